"""The determinism guard: what workflow code may not call, wherever it calls it, and nobody else."""

# What is called here is what must not be.
# ruff: noqa: B008, B009, C400, DTZ001, DTZ002, DTZ003, DTZ005, DTZ007, DTZ011, PERF401, PLW1510, PTH103, PTH107, PTH109, PTH110, PTH118, PTH123, PTH208, SIM115, UP020

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import functools
import io
import json
import logging
import os
import pathlib
import random
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from datetime import datetime as renamed
from decimal import Decimal
from pathlib import Path
from random import randint
from time import sleep
from time import time as imported_time
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from temporalex_django import (
    Async,
    Ok,
    Reply,
    Stop,
    Workflow,
    activity,
    api,
    errors,
    query,
    update,
)
from temporalex_django.core import current
from temporalex_django.core.determinism import guard
from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, RunInfo
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import flow, once, other, work
from tests.unit.core.determinism import guarded_helpers as helpers
from tests.unit.core.determinism.guarded_helpers import Clock, Starts, call, decorated, stamp

CLOCK, CHANCE, IDS, SLEEP, ELSE = "api.now", "api.random", "api.uuid4", "api.sleep", "activity"
READS_ARGUMENTS = sys.version_info >= (3, 12)


@pytest.fixture
def mode() -> Iterator[Callable[[guard.Mode], None]]:
    before = guard.mode()
    yield guard.configure
    guard.configure(before)


def caught(body: Callable[[], Any]) -> str:
    """The message of the violation that ``body()`` raises in ``run``, "" when there is none."""

    async def run(self: Any, args: Any) -> Ok[str]:
        try:
            value = body()
            if hasattr(value, "__await__"):
                await value
        except errors.DeterminismViolation as exc:
            return Ok(exc.message)
        return Ok("")

    env = WorkflowEnvironment()
    return env.start(flow(run)).result()


FORBIDDEN: list[tuple[str, str, Callable[[], Any]]] = [
    ("time.time", CLOCK, lambda: time.time()),
    ("time.time", CLOCK, lambda: imported_time()),
    ("time.time_ns", CLOCK, lambda: time.time_ns()),
    ("time.monotonic", CLOCK, lambda: time.monotonic()),
    ("time.monotonic_ns", CLOCK, lambda: time.monotonic_ns()),
    ("time.perf_counter", CLOCK, lambda: time.perf_counter()),
    ("time.process_time", CLOCK, lambda: time.process_time()),
    ("datetime.datetime.now", CLOCK, lambda: datetime.now()),
    ("datetime.datetime.now", CLOCK, lambda: dt.datetime.now(dt.UTC)),
    ("datetime.datetime.now", CLOCK, lambda: renamed.now(tz=dt.UTC)),
    ("datetime.datetime.utcnow", CLOCK, lambda: datetime.utcnow()),
    ("datetime.datetime.today", CLOCK, lambda: datetime.today()),
    ("datetime.date.today", CLOCK, lambda: date.today()),
    ("django.utils.timezone.now", CLOCK, lambda: timezone.now()),
    ("django.utils.timezone.localtime", CLOCK, lambda: timezone.localtime()),
    ("django.utils.timezone.localdate", CLOCK, lambda: timezone.localdate()),
    ("random.random", CHANCE, lambda: random.random()),
    ("random.randint", CHANCE, lambda: random.randint(1, 6)),
    ("random.randint", CHANCE, lambda: randint(1, 6)),
    ("random.choice", CHANCE, lambda: random.choice("ab")),
    ("random.shuffle", CHANCE, lambda: random.shuffle([])),
    ("random.getrandbits", CHANCE, lambda: random.getrandbits(8)),
    ("random.seed", CHANCE, lambda: random.seed(1)),
    ("random.Random", CHANCE, lambda: random.Random()),
    ("random.Random", CHANCE, lambda: random.Random(None)),
    ("random", CHANCE, lambda: random.SystemRandom()),
    ("secrets.token_hex", ELSE, lambda: secrets.token_hex()),
    ("secrets.token_urlsafe", ELSE, lambda: secrets.token_urlsafe()),
    ("choice", CHANCE, lambda: secrets.choice("ab")),
    ("os.urandom", ELSE, lambda: os.urandom(4)),
    ("uuid.uuid1", IDS, lambda: uuid.uuid1()),
    ("uuid.uuid4", IDS, lambda: uuid.uuid4()),
    ("uuid.uuid4", IDS, lambda: uuid4()),
    ("time.sleep", SLEEP, lambda: time.sleep(0)),
    ("time.sleep", SLEEP, lambda: sleep(0)),
    ("asyncio.sleep", SLEEP, lambda: asyncio.sleep(0)),
    ("asyncio", ELSE, lambda: asyncio.Event()),
    ("asyncio", ELSE, lambda: asyncio.new_event_loop()),
    ("asyncio", ELSE, lambda: asyncio.get_running_loop()),
    ("os.getenv", ELSE, lambda: os.getenv("HOME")),
    ("os.environ", ELSE, lambda: os.environ["HOME"]),
    ("os.environ.get", ELSE, lambda: os.environ.get("HOME")),
    ("os.environ", ELSE, lambda: "HOME" in os.environ),
    ("os.environ", ELSE, lambda: dict(os.environ)),
    ("os.environ.items", ELSE, lambda: os.environ.items()),
    ("os.environ.setdefault", ELSE, lambda: os.environ.setdefault("HOME", "")),
    ("open", ELSE, lambda: open("nothing")),
    ("open", ELSE, lambda: io.open("nothing")),
    ("pathlib.Path.read_text", ELSE, lambda: Path("nothing").read_text()),
    ("pathlib.Path.write_text", ELSE, lambda: pathlib.Path("nothing").write_text("")),
    ("pathlib.Path.exists", ELSE, lambda: Path("nothing").exists()),
    ("pathlib.Path.mkdir", ELSE, lambda: Path("nothing").mkdir()),
    ("pathlib.Path.cwd", ELSE, lambda: Path.cwd()),
    ("os.listdir", ELSE, lambda: os.listdir("/")),
    ("os.remove", ELSE, lambda: os.remove("nothing")),
    ("os.makedirs", ELSE, lambda: os.makedirs("nothing")),
    ("os.path.exists", ELSE, lambda: os.path.exists("nothing")),
    ("os.getcwd", ELSE, lambda: os.getcwd()),
    ("os.getpid", ELSE, lambda: os.getpid()),
    ("os.system", ELSE, lambda: os.system("true")),
    ("os.fork", ELSE, lambda: os.fork()),
    ("shutil.rmtree", ELSE, lambda: shutil.rmtree("nothing")),
    ("tempfile.mkdtemp", ELSE, lambda: tempfile.mkdtemp()),
    ("subprocess.run", ELSE, lambda: subprocess.run(["true"])),
    ("subprocess.Popen", ELSE, lambda: subprocess.Popen(["true"])),
    ("socket.socket", ELSE, lambda: socket.socket()),
    ("socket.create_connection", ELSE, lambda: socket.create_connection(("127.0.0.1", 9))),
    ("socket.gethostname", ELSE, lambda: socket.gethostname()),
    ("threading.Thread.start", ELSE, lambda: threading.Thread(target=print).start()),
    ("concurrent.futures", ELSE, lambda: concurrent.futures.ThreadPoolExecutor()),
    ("concurrent.futures", ELSE, lambda: POOL.submit(print)),
    ("input", ELSE, lambda: input()),
    # in other places of a project
    ("time.time", CLOCK, lambda: stamp()),
    ("time.time", CLOCK, lambda: helpers.two_deep()),
    ("time.time", CLOCK, lambda: helpers.by_imported_name()),
    ("time.monotonic", CLOCK, lambda: decorated()),
    ("time.monotonic", CLOCK, lambda: helpers.cached()),
    ("datetime.datetime.now", CLOCK, lambda: Clock().read()),
    ("datetime.datetime.today", CLOCK, lambda: Clock().today),
    ("time.perf_counter_ns", CLOCK, lambda: Clock.ticks()),
    ("time.time", CLOCK, lambda: Clock()()),
    ("time.time", CLOCK, lambda: Starts()),
    # in other forms
    ("time.time", CLOCK, lambda: [time.time() for _ in range(2)]),
    ("time.time", CLOCK, lambda: list(time.time() for _ in range(2))),
    ("random.random", CHANCE, lambda: sorted([1, 2], key=lambda _: random.random())),
    ("random.random", CHANCE, lambda: sorted([1, 2], key=BY_CHANCE)),
    ("time.time", CLOCK, lambda: call(time.time)),
    ("time.time", CLOCK, lambda: call(stamp)),
    ("time.time", CLOCK, lambda: TABLE["clock"]()),
    ("datetime.datetime.now", CLOCK, lambda: Mine.now()),
    ("time.time", CLOCK, lambda: getattr(time, "time")()),
    ("datetime.datetime.now", CLOCK, lambda: Made()),
]  # fmt: skip
if sys.version_info[:2] != (3, 12):  # `sys.monitoring` of 3.12 reports no Python function that is called with *args
    FORBIDDEN.append(("os.getenv", ELSE, lambda: call(os.getenv, "HOME")))
if READS_ARGUMENTS:
    FORBIDDEN.append(("time.time", CLOCK, lambda: functools.partial(time.time)()))
for newer in ("uuid6", "uuid7"):
    if hasattr(uuid, newer):
        FORBIDDEN.append((f"uuid.{newer}", IDS, lambda fn=getattr(uuid, newer): fn()))

POOL = concurrent.futures.ThreadPoolExecutor(1)
TABLE = {"clock": time.time}


def BY_CHANCE(_: Any) -> float:
    return random.random()


class Mine(datetime):
    pass


@dataclass
class Made:
    at: datetime = field(default_factory=datetime.now)


@pytest.mark.parametrize(
    ("name", "replacement", "body"), FORBIDDEN, ids=[f"{i}-{f[0]}" for i, f in enumerate(FORBIDDEN)]
)
def test_a_forbidden_call_names_its_place_and_the_replacement(name: str, replacement: str, body: Any) -> None:
    """TX-189."""
    message = caught(body)

    assert message.startswith(name) or name in message.split(" in workflow code", 1)[0]
    assert replacement in message
    assert re.search(r"(test_guard|guarded_helpers)\.py:\d+", message)


@pytest.mark.skipif(not READS_ARGUMENTS, reason="a profile function does not see arguments of C functions")
@pytest.mark.parametrize("name", ["localtime", "gmtime", "ctime"])
def test_functions_that_read_the_clock_without_an_argument(name: str) -> None:
    """TX-189."""
    assert caught(lambda: getattr(time, name)()).startswith(f"time.{name} in")
    assert caught(lambda: getattr(time, name)(0)) == ""


ALLOWED: list[Callable[[], Any]] = [
    lambda: datetime(2026, 1, 1),
    lambda: datetime.fromisoformat("2026-01-01"),
    lambda: datetime.strptime("2026", "%Y"),
    lambda: api.now() + timedelta(days=1),
    lambda: timezone.localtime(api.now(), dt.UTC),
    lambda: uuid.UUID(int=1),
    lambda: uuid.uuid5(uuid.NAMESPACE_URL, "x"),
    lambda: random.Random(7).random(),
    lambda: random.Random(7).randint(1, 6),
    lambda: [api.random(), api.uuid4()],
    lambda: json.loads(json.dumps({"a": [1]})),
    lambda: re.sub("a", "b", "aaa"),
    lambda: Decimal("1.5").quantize(Decimal(1)),
    lambda: os.path.join("a", "b"),
    lambda: os.fspath(Path("a") / "b"),
    lambda: Path("a").with_suffix(".txt").name,
    lambda: Clock(),
    lambda: {"a": 1}.get("a"),
    lambda: threading.Lock(),
    lambda: asyncio.iscoroutinefunction(work),
    lambda: logging.getLogger("x").info("y"),
    lambda: api.logger.info("hello"),
    lambda: __import__("this_day_module", fromlist=["x"]),
    lambda: max([1, 2], key=lambda x: -x),
    lambda: call(len, "abc"),
]


@pytest.mark.parametrize("body", ALLOWED)
def test_what_gives_the_same_each_time_is_allowed(body: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TX-189."""
    (tmp_path / "this_day_module.py").write_text(
        "import os, time\nx = time.time(), os.environ.get('X'), 'X' in os.environ\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("this_day_module", None)

    assert caught(body) == ""


def test_a_variable_may_hold_anything_at_any_time() -> None:
    """TX-189: a call site whose callee changes is looked at every time."""

    async def run(self: Any, args: Any) -> Ok[list[str]]:
        seen = []
        for fn in (dict, len_of_nothing, time.time, dict, stamp, dict, Clock().read, len_of_nothing, uuid4):
            try:
                fn()
                seen.append("")
            except errors.DeterminismViolation as exc:
                seen.append(exc.message.split(" ", 1)[0])
        return Ok(seen)

    for _ in range(2):
        assert WorkflowEnvironment().start(flow(run)).result() == [
            *("", "", "time.time", "", "time.time", "", "datetime.datetime.now", "", "uuid.uuid4"),
        ]


def len_of_nothing() -> int:
    return len("")


def test_the_same_line_is_refused_each_time_and_harmless_outside() -> None:
    """TX-189: what was called outside of a workflow first is no exception."""
    first = [stamp(), stamp()]
    assert first == sorted(first)
    assert [caught(stamp)[:9] for _ in range(3)] == ["time.time"] * 3
    assert stamp() >= first[0]


def test_code_that_swallows_the_error_meets_it_again() -> None:
    """TX-189."""

    async def run(self: Any, args: Any) -> Ok[int]:
        count = 0
        for _ in range(3):
            try:
                time.time()
            except Exception:
                count += 1
        try:
            stamp()
        except Exception:
            count += 10
        await work()
        try:
            random.random()
        except Exception:
            count += 100
        return Ok(count)

    assert WorkflowEnvironment().start(flow(run)).result() == 113


def test_uncaught_it_fails_the_workflow() -> None:
    """TX-189 TX-008."""
    handle = WorkflowEnvironment().start(once(lambda: time.time()))

    with pytest.raises(errors.WorkflowFailed) as failed:
        handle.result()
    assert failed.value.type == "DeterminismViolation"


def asks(*_: Any) -> Any:
    return time.time()


def asking() -> type[Workflow]:
    """Made here, since module-level workflows of the tests are linted, too."""

    class Asks(Workflow):
        """Does what its argument says in the place that the argument names."""

        @query("asks")
        @staticmethod
        def asked(state: Any) -> Any:
            return asks()

        async def run(self, args: str) -> Any:
            api.publish_state(0)
            if args == "branch":
                return Ok([str(found.reason) for found in await api.parallel([asks])])
            if args == "partial":
                return Ok([str(found.reason) for found in await api.parallel([functools.partial(asks, 1)])])
            if args == "predicate":
                await api.wait_condition(lambda: asks())
            if args == "saga":
                async with api.saga() as saga:
                    saga.add(asks)
                    raise ValueError("undo")
            updates = {
                "handler": lambda a, s: Reply(asks(), s),
                "named": asks,
                "validator": update(lambda a, s: Reply(1, s), validator=asks),
                "async": lambda a, s: Async(asks, s),
                "closure": lambda a, s: Async(change, s),
                "stop": lambda a, s: Stop(s),
            }
            return Ok(await api.phase(0, update=updates))

    return Asks


async def change() -> Any:
    return await api.update_state(lambda state: (asks(), state))


@pytest.mark.parametrize("place", ["handler", "named", "async", "closure"])
def test_handlers_are_workflow_code(place: str) -> None:
    """TX-189."""
    with pytest.raises(errors.UpdateFailed, match=r"time\.time in workflow code \(asks, .*api\.now"):
        WorkflowEnvironment().start(asking(), "").update(place)


def test_validators_are_workflow_code() -> None:
    """TX-189 TX-071."""
    with pytest.raises(errors.UpdateFailed, match=r"time\.time in workflow code \(asks") as failed:
        WorkflowEnvironment().start(asking(), "").update("validator")
    assert failed.value.accepted is False


def test_queries_are_workflow_code() -> None:
    """TX-189."""
    with pytest.raises(errors.QueryFailed, match=r"time\.time in workflow code \(asks"):
        WorkflowEnvironment().start(asking(), "").query("asks")


def test_predicates_are_workflow_code() -> None:
    """TX-189."""
    with pytest.raises(errors.WorkflowFailed, match=r"time\.time in workflow code \(asks"):
        WorkflowEnvironment().start(asking(), "predicate").result()


@pytest.mark.parametrize("place", ["branch", "partial"])
def test_branches_are_workflow_code(place: str) -> None:
    """TX-189."""
    assert "time.time in workflow code (asks" in WorkflowEnvironment().start(asking(), place).result()[0]


def test_compensations_are_workflow_code(caplog: pytest.LogCaptureFixture) -> None:
    """TX-189."""
    with pytest.raises(errors.WorkflowFailed, match="undo"):
        WorkflowEnvironment().start(asking(), "saga").result()
    assert "time.time in workflow code (asks" in caplog.text


class Hidden(Workflow):
    """The same with functions that no name leads to: the engine is the first that sees them."""

    async def run(self, args: str) -> Any:
        hidden = BOX.hidden
        if args == "branch":
            return Ok([str(found.reason) for found in await api.parallel([hidden])])
        if args == "predicate":
            await api.wait_condition(hidden)
        if args == "saga":
            async with api.saga() as saga:
                saga.add(hidden)
                raise ValueError("undo")
        handlers = {
            "handler": hidden,
            "validator": update(lambda a, s: Reply(1, s), validator=hidden),
            "async": lambda a, s: Async(BOX.hidden, s),
            "closure": lambda a, s: Async(lambda: api.update_state(BOX.hidden), s),
        }
        return Ok(await api.phase(0, update={args: handlers[args]}))


BOX = types.SimpleNamespace(hidden=None)


@pytest.mark.parametrize("place", ["handler", "validator", "async", "closure", "branch", "predicate", "saga"])
def test_functions_that_only_the_engine_calls(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """TX-189."""
    made: dict[str, Any] = {"__name__": "made"}
    exec(compile("import time\ndef hidden(*_):\n    return time.time()\n", "made_by_test.py", "exec"), made)
    BOX.hidden = made["hidden"]
    handle = WorkflowEnvironment().start(Hidden, place)
    if place in ("handler", "validator", "async", "closure"):
        with pytest.raises((errors.UpdateFailed, errors.UpdateRejected), match=r"time\.time in workflow code \(hidden"):
            handle.update(place)
    elif place == "branch":
        assert "time.time in workflow code (hidden" in handle.result()[0]
    else:
        with pytest.raises(errors.WorkflowFailed) as failed:
            handle.result()
        assert "time.time in workflow code (hidden" in f"{failed.value} {caplog.text}"


def test_an_attribute_of_a_global_object_may_hold_anything() -> None:
    """TX-189: it looks like a name that cannot change, and does."""

    async def run(self: Any, args: Any) -> Ok[list[str]]:
        seen = []
        for fn in (dict, dict, time.time, dict):
            BOX.hidden = fn
            try:
                BOX.hidden()
                seen.append("")
            except errors.DeterminismViolation as exc:
                seen.append(exc.message.split(" ", 1)[0])
        return Ok(seen)

    assert WorkflowEnvironment().start(flow(run)).result() == ["", "", "time.time", ""]


@activity(name="guard.real")
def real() -> list[Any]:
    return [stamp() > 0, random.random() < 1, len(os.environ["PATH"]) > 0, str(uuid4()) != ""]


@activity(name="guard.real_async")
async def real_async() -> bool:
    await asyncio.sleep(0)
    return stamp() > 0


def test_activities_and_their_stand_ins_do_as_they_like() -> None:
    """TX-189."""

    async def run(self: Any, args: Any) -> Ok[Any]:
        stamped = caught_here(stamp)
        return Ok([await real(), await real_async(), await work(), stamped, caught_here(stamp)])

    env = WorkflowEnvironment()
    env.mock(work, lambda value=None: [stamp() > 0, time.time() > 0, os.environ["PATH"] != ""])
    assert env.start(flow(run)).result() == [[True] * 4, True, [True] * 3, "time.time", "time.time"]


def caught_here(fn: Callable[[], Any]) -> str:
    try:
        fn()
    except errors.DeterminismViolation as exc:
        return exc.message.split(" ", 1)[0]
    return ""


def test_threads_beside_it_are_not_guarded() -> None:
    """TX-189: the same code, at the same time."""
    outcomes: list[Any] = []
    inside, done = threading.Event(), threading.Event()

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            inside.set()
            assert done.wait(20)

    def beside() -> None:
        assert inside.wait(20)
        outcomes.append([stamp() > 0, caught_here(stamp), os.environ["PATH"] != ""])
        done.set()

    async def run(self: Any, args: Any) -> Ok[str]:
        api.logger.warning("in the middle")
        return Ok(caught_here(stamp))

    handler = Waits()
    logging.getLogger("temporalex_django.workflow").addHandler(handler)
    thread = threading.Thread(target=beside)
    thread.start()
    try:
        assert WorkflowEnvironment().start(flow(run)).result() == "time.time"
    finally:
        logging.getLogger("temporalex_django.workflow").removeHandler(handler)
        thread.join(20)
    assert outcomes == [[True, "", True]]


def test_tasks_around_it_are_not_guarded() -> None:
    """TX-189."""

    async def run(self: Any, args: Any) -> Ok[str]:
        return Ok(caught_here(stamp))

    async def one(index: int) -> list[Any]:
        seen = [caught_here(stamp)]
        await asyncio.sleep(0)
        seen.append(WorkflowEnvironment().start(flow(run)).result())
        await asyncio.sleep(0)
        return [*seen, caught_here(stamp)]

    async def main() -> list[Any]:
        return await asyncio.gather(*map(one, range(5)))

    assert asyncio.run(main()) == [["", "time.time", ""]] * 5


def test_log_handlers_are_not_workflow_code() -> None:
    """TX-189: logging is allowed, whatever a handler of the project does with it."""
    seen: list[Any] = []

    class Stamps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append([time.time() > 0, os.environ["PATH"] != "", stamp() > 0])

    async def run(self: Any, args: Any) -> Ok[str]:
        api.logger.warning("one")
        logging.getLogger("temporalex_django.workflow").warning("two")
        return Ok(caught_here(stamp))

    handler = Stamps()
    logging.getLogger("temporalex_django.workflow").addHandler(handler)
    try:
        assert WorkflowEnvironment().start(flow(run)).result() == "time.time"
    finally:
        logging.getLogger("temporalex_django.workflow").removeHandler(handler)
    assert seen == [[True, True, True]] * 2


def test_off(mode: Callable[[guard.Mode], None]) -> None:
    """TX-189."""
    mode("off")
    assert caught(lambda: [time.time(), stamp(), os.environ["PATH"], uuid4()]) == ""
    mode("error")
    assert caught(lambda: stamp()).startswith("time.time")


def test_warn_says_it_once_a_place(mode: Callable[[guard.Mode], None], caplog: pytest.LogCaptureFixture) -> None:
    """TX-189."""
    mode("warn")

    async def run(self: Any, args: Any) -> Ok[list[bool]]:
        return Ok([time.monotonic() > 0 for _ in range(3)] + [date.today() is not None])

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            assert WorkflowEnvironment().start(flow(run)).result() == [True] * 4
    assert [str(w.message).split(" ", 1)[0] for w in said] == ["time.monotonic", "datetime.date.today"]
    assert {w.category for w in said} == {errors.DeterminismWarning}
    assert {Path(w.filename).name for w in said} == {"test_guard.py"}
    assert len([r for r in caplog.records if r.name == "temporalex_django.core"]) == 2


def test_replay_meets_the_same_refusals() -> None:
    """TX-189: cached, rebuilt and replayed alike."""

    async def run(self: Any, args: Any) -> Ok[list[str]]:
        seen = [caught_here(stamp)]
        await work()
        seen.append(caught_here(uuid4))
        await other()
        return Ok([*seen, caught_here(stamp)])

    for evict in (False, True):
        env = WorkflowEnvironment(evict=evict)
        handle = env.start(flow(run))
        assert handle.result() == ["time.time", "uuid.uuid4", "time.time"]
        env.replay(handle)


def test_code_of_a_run_that_is_closed_in_passing_is_guarded() -> None:
    """Where a run cannot be dropped without running its `finally` blocks, these are guarded, too."""
    with current.outside_workflow("workflow that is being evicted"):
        guard.watch(stamp)
        assert caught_here(stamp) == "time.time"
    with current.outside_workflow(None):
        assert caught_here(stamp) == ""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
def test_other_tools_have_their_ids(tmp_path: Path) -> None:
    """TX-189: a debugger, coverage and a profiler find their ids free; without one the guard says that it is off."""
    script = tmp_path / "several.py"
    script.write_text(SEVERAL)
    root = Path(__file__).resolve().parents[4]
    for taken, expected in (("0,1,2", "refused"), ("0,1,2,4", "refused"), ("0,1,2,3,4,5", "passed, warned")):
        done = subprocess.run(
            [sys.executable, str(script), taken],
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.strip() == expected, done.stderr


SEVERAL = """
import sys, time, warnings
for number in map(int, sys.argv[1].split(",")):
    sys.monitoring.use_tool_id(number, "somebody else")
from temporalex_django import Ok, Workflow, errors
from temporalex_django.testing import WorkflowEnvironment

class Flow(Workflow):
    async def run(self, args):
        try:
            time.time()
        except errors.DeterminismViolation:
            return Ok("refused")
        return Ok("passed")

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    result = WorkflowEnvironment().start(Flow).result()
print(", ".join([result, *("warned" for w in said if w.category is errors.DeterminismWarning)]))
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.setprofile")
def test_another_profiler_is_left_alone() -> None:
    """TX-189, Python 3.11: the guard steps back for a profiler, and says so once."""
    heard: list[str] = []

    def profiler(frame: Any, event: str, arg: Any) -> None:
        heard.append(event)

    sys.setprofile(profiler)
    try:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            assert caught(stamp) == ""
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert heard
    assert caught(stamp).startswith("time.time")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.setprofile")
def test_comprehensions_make_no_run_suspect() -> None:
    """Python 3.11 calls them like functions; a run that is suspect takes four times as long."""

    async def plain(self: Any, args: Any) -> Ok[Any]:
        made = {n + 1 for n in args}, {n: n + 1 for n in args}
        return Ok([[n + 1 for n in args], len(made[0]), len(made[1]), sum(n + 1 for n in range(3))])

    async def variable(self: Any, args: Any) -> Ok[Any]:
        called = max if args else min
        return Ok(called(args))

    seen = []
    for run in (plain, variable):
        cls = flow(run)
        executor = Executor(cls.definition, RunInfo(workflow=cls.name, id="1", run_id="1", version=1))
        executor.activate(Activation(now=datetime(2026, 1, 1, tzinfo=dt.UTC), start={"args": [1, 2], "seed": 1}))
        assert executor.closed == "CompleteWorkflow"
        seen.append(executor.is_suspect)
    assert seen == [False, True]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.setprofile")
def test_nothing_is_left_behind_in_the_thread() -> None:
    """Python 3.11: neither the profile function nor the tracer that brings it back, not at first either."""
    tracer = sys.gettrace()
    assert caught(stamp)
    assert (sys.getprofile(), sys.gettrace()) == (None, tracer)

    script = "from tests.unit.core.determinism.test_guard import caught, stamp, sys; print(caught(stamp)[:9], sys.getprofile(), sys.gettrace())"
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "time.time None None", done.stderr
