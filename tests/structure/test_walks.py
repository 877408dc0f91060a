"""The walks that docs/architecture.md describes are those that calls take, from the outside to the core."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client

from temporalex_django import Ok, api
from temporalex_django.core.executor import Executor
from temporalex_django.workers.loop import run_until_idle
from tests.app.graphs import Order
from tests.structure.source import PACKAGE, ROOT
from tests.support.client_flows import Basket
from tests.support.runs import flow, work
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = ROOT / "docs" / "architecture.md"
#: They stand around a walk and hand it on: the call of a handle as a request, access, time limits, and statements.
AROUND = {
    *("authoring/requests.py", "operations/base.py", "engine/watchdog.py"),
    "db/guards.py",
}
CORE = "core/executor.py"
#: How many modules of the package each call enters when it is made a second time, on SQLite. They may only fall.
#: A reader of a walk has to open as many files.
CEILINGS = {
    "handle.signal()": 17,
    "Workflow.start()": 21,
    "POST signals/": 28,
    "POST instances/": 48,
    "a turn with an activity": 79,
    "a poll with nothing to do": 44,
    "POST updates/": 64,
    "POST reset/": 79,
}


def described() -> dict[str, list[str]]:
    """Name and files of each walk of the page's table."""
    rows = re.findall(r"^\| (an? [^|]+?) \| (`[^|]+`) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: re.findall(r"`([^`]+)`", files) for name, files in rows}


def calling() -> list[str]:
    """The files of the package through which the present call came, outermost first."""
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            name = path.relative_to(PACKAGE).as_posix()
            if name not in AROUND and not name.startswith("db/dialects/") and found[-1:] != [name]:
                found.append(name)
        frame = frame.f_back
    return found[::-1]


@contextmanager
def walked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[list[str]]]]:
    """How the inbox and the executor are reached inside."""
    found: dict[str, list[list[str]]] = {"inbox": [], "ended": [], "runs": [], "core": []}
    activate = Executor.activate

    def noted(self: Executor, *args: Any, **kwargs: Any) -> Any:
        found["core"].append([*calling(), CORE])
        return activate(self, *args, **kwargs)

    def told(execute: Any, sql: str, *rest: Any) -> Any:
        if "insert into temporalex_message" in sql:
            found["inbox"].append(calling())
        if "delete from temporalex_activity_task" in sql:
            found["ended"].append(calling())
        if "insert into temporalex_instance" in sql:
            found["runs"].append(calling())
        return execute(sql, *rest)

    with monkeypatch.context() as patch, connection.execute_wrapper(told):
        patch.setattr(Executor, "activate", noted)
        yield found


def test_each_walk_is_short() -> None:
    walks = described()

    assert len(walks) == 8
    assert {name: files for name, files in walks.items() if len(set(files) - {CORE}) > 6} == {}


def test_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Basket.start({})
    run_until_idle()
    with walked(monkeypatch) as found:
        handle.signal("anything", 1)
        assert found == {"inbox": [described()["a signal is sent"]], "ended": [], "runs": [], "core": []}
        run_until_idle()

    assert found["core"] == [described()["a signal is delivered"]]


def test_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Basket.start({})
    run_until_idle()
    with walked(monkeypatch) as found:
        handle.update("add", 1)

    assert found["core"] == [described()["an update"]]


def test_an_activitys_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: Any, args: Any) -> Any:
        await work(1)

    flow(run, name="Walked").start({})
    with walked(monkeypatch) as found:
        run_until_idle()

    assert found["inbox"] == []
    assert found["ended"][0] == described()["an activity's result is committed"]  # then the worker leaves
    assert found["core"] == [described()["an activity's result is delivered"]] * 2  # the first one is the start


def test_a_resume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handle = Order.start("walked", {"path": str(tmp_path / "effects")})

    def waits() -> bool:
        run_until_idle()
        return any("delivered" in str(wait) for wait in handle.describe().waiting_for)

    wait_for(waits)
    with walked(monkeypatch) as found:
        handle.resume("delivered")

    assert found["core"][:1] == [described()["a resume"]]


def test_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Basket.start({})
    run_until_idle()
    with walked(monkeypatch) as found:
        handle.reset(0)

    assert found["runs"][0] == described()["a reset"]


def test_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = get_user_model().objects.create_superuser("ann")

    async def run(self: Any, args: Any) -> Any:
        return Ok((await api.approval("Pay it", role="auth.change_group")).outcome)

    handle = flow(run, name="WalkedApproval").start({})
    run_until_idle()
    with walked(monkeypatch) as found:
        handle.decide("approved", by=ann)

    assert found["core"][:1] == [described()["a decision"]]


def entered(walk: Callable[[], object]) -> int:
    """Make the call, and count the modules of the package whose functions this thread enters."""
    root, modules = f"{PACKAGE}/", set[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            modules.add(frame.f_code.co_filename)

    gc.disable()  # the destructors of what earlier tests left behind belong to no walk
    sys.setprofile(profile)
    try:
        walk()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(modules)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="each database has files of its own")
def test_a_walk_enters_no_more_modules_than_before(client: Client) -> None:
    client.force_login(get_user_model().objects.create_superuser("root"))
    handle = Basket.start({})
    others = [Basket.start({}).id for _ in range(3)]

    def post(path: str, **body: Any) -> None:
        assert client.post(f"/api/instances/{path}", body, content_type="application/json").status_code in (
            200,
            201,
            202,
        )

    async def run(self: Any, args: Any) -> Any:
        return Ok(await work(1))

    with_activity = flow(run, name="WalkedWithActivity")
    walks: dict[str, Callable[[], Any]] = {
        "handle.signal()": lambda: handle.signal("anything", 1),
        "Workflow.start()": lambda: Basket.start({}),
        "POST signals/": lambda: post(f"{address}/signals/anything/", payload=1),
        "POST instances/": lambda: post("", workflow=Basket.name, args={}),
        "POST updates/": lambda: post(f"{address}/updates/add/", args=1),
        "a poll with nothing to do": run_until_idle,
        "POST reset/": lambda: post(f"{others.pop()}/reset/", to=0),
    }
    run_until_idle()
    address = handle.id
    # The fewest of three: the first one imports and fills caches, and work may become due in between.
    counts: dict[str, int] = {}
    for _ in range(3):
        for name, walk in walks.items():
            counts[name] = min(entered(walk), counts.get(name, 1_000))
            run_until_idle()
        with_activity.start({})
        counts["a turn with an activity"] = min(entered(run_until_idle), counts.get("a turn with an activity", 1_000))

    assert counts.keys() == CEILINGS.keys()
    assert {name: count for name, count in counts.items() if count > CEILINGS[name]} == {}, "find a shorter way"
    assert {name: count for name, count in counts.items() if count < CEILINGS[name] - 2} == {}, "lower the ceiling"
