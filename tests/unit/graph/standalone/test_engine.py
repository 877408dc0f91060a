"""Engines: how they are made and found, and the facade of graphs over one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from typing import Any

import pytest

from temporalex_django import (
    Done,
    Ok,
    Unique,
    VersionedWorkflow,
    WaitForEvent,
    Workflow,
    errors,
)
from temporalex_django.graph import Engine, Instance, LocalRunner, MemoryStorage, lookup
from temporalex_django.graph.local_runner import ThreadTimers
from tests.structure.source import ROOT
from tests.structure.test_imports import WITHOUT_DJANGO
from tests.support.waiting import wait_for
from tests.unit.graph.standalone.local_graphs import First, Second, line, parked, running


def test_lookup() -> None:
    """HE-174 HE-175 HE-176 HE-177 HE-178."""
    with pytest.raises(errors.EngineNotFound, match=r"no engine is running: start one, with Engine\(name\)"):
        lookup()
    with Engine("one") as one:
        assert (lookup(), lookup("one")) == (one, one)
        with pytest.raises(errors.EngineNotFound, match="no engine 'two' is running \\(running: 'one'\\)"):
            lookup("two")
        with pytest.raises(errors.NotConfigured, match="'one' is already running"):
            Engine("one").start()
        with Engine("two") as two:
            with pytest.raises(
                errors.EngineNotFound, match="several engines are running \\('one', 'two'\\): choose one"
            ):
                lookup()
            assert lookup("two") is two
        assert lookup() is one
    with pytest.raises(errors.EngineNotFound):
        lookup("one")


def test_the_engine_that_a_workflow_names_wins() -> None:
    """HE-177: over the other that runs, and over Django's backend; of a dispatcher for all its versions."""
    Named = line(First, engine="second")
    with Engine("first") as first, Engine("second") as second:
        Named.start("1").result(timeout=20)
        assert (len(first.query()), len(second.query())) == (0, 1)

    class Both(VersionedWorkflow):
        engine = "second"
        versions = {1: line(First, version=1, engine=None), 2: line(Second, version=2, engine=None)}
        current = 2

    with Engine("second") as second:
        Both.start("1", version=1).result(timeout=20)
        assert [(i.version, i.completed_steps) for i in second.query()] == [(1, {First, Done})]
        assert Both.get("1").id == "line::1"
    with pytest.raises(errors.EngineNotFound, match="no engine 'second'"):
        Named.start("1")


def test_adapters_in_three_forms() -> None:
    """HE-180."""
    storage = MemoryStorage()
    runner = LocalRunner(storage)
    assert (Engine("a", storage).storage, Engine("a", runner=runner).storage) == (storage, storage)
    assert isinstance(Engine("a", MemoryStorage, LocalRunner).runner, LocalRunner)
    assert isinstance(Engine("a").storage, MemoryStorage)
    assert isinstance(Engine("a", (MemoryStorage, {}), (LocalRunner, {"threads": 2})).runner, LocalRunner)
    with pytest.raises(errors.NotConfigured, match="cannot create the runner LocalRunner with {'thread': 2}"):
        Engine("a", runner=(LocalRunner, {"thread": 2}))
    with pytest.raises(errors.NotConfigured, match="a different storage"):
        Engine("a", MemoryStorage(), runner)
    with pytest.raises(errors.NotConfigured, match="the name of an engine must be a string"):
        Engine("")
    runner.stop()


def test_the_low_level_start_needs_an_id_and_a_graph() -> None:
    """HE-008 HE-181."""

    class Function(Workflow):
        async def run(self, args: Any) -> Ok[Any]:
            return Ok()

    with running() as (made, _):
        with pytest.raises(TypeError):
            made.start_instance(line(First))  # type: ignore[call-arg]
        for wrong in (None, "", 7, "a/b"):
            with pytest.raises(errors.InvalidId):
                made.start_instance(line(First), id=wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.UnknownWorkflow, match="Function is not a graph"):
            made.start_instance(Function, id="x")
        with pytest.raises(errors.UnknownVersion):
            made.start_instance(line(First), id="x", version=9)
        with pytest.raises(errors.PayloadError):
            made.start_instance(line(First), id="x", context={"x": object()})
        assert made.query() == []


@pytest.mark.parametrize(
    ("scope", "other_version", "other_workflow"),
    [
        ("workflow", "already_running", "ok"),
        ("version", "ok", "ok"),
        ("global", "already_running", "already_running"),
        ("none", "ok", "ok"),
    ],
)
def test_scopes(scope: Any, other_version: str, other_workflow: str) -> None:
    """HE-133 HE-134 HE-135 HE-136 HE-137 HE-138 HE-141: what is open blocks in its scope, what is closed does not."""
    hook = WaitForEvent("go")
    unique = Unique(key="line", scope=scope)
    One, Two = line(hook, unique=unique), line(hook, unique=unique, version=2)
    Other = line(hook, unique=unique, name="Other")
    with running() as (made, _):
        made.start_instance(One, id="line::1")
        own = "ok" if scope == "none" else "already_running"
        assert made.check(One, "line::1") == own  # pending counts
        wait_for(lambda: made.get("line::1").status == "waiting")
        found = [made.check(cls, "line::1") for cls in (One, Two, Other)]
        assert found == [own, other_version, other_workflow]
        assert made.check(One, "line::2") == "ok"
        with pytest.raises(errors.AlreadyRunning):
            made.start_instance(One, id="line::1")
        if other_version == other_workflow == "ok" and scope == "version":
            made.start_instance(Two, id="line::1")
            wait_for(lambda: [i.status for i in made.query(id="line::1")] == ["waiting", "waiting"])
            with pytest.raises(errors.UnknownVersion, match=r"several versions \(1, 2\)"):
                One.get("1")
            One.resume("1", "go", version=1)
            assert [i.version for i in made.query(status="waiting")] == [2]
        else:
            made.resume("line::1", "go")
            made.runner.wait("line::1", timeout=20)
            assert [made.check(cls, "line::1") for cls in (One, Two, Other)] == ["ok"] * 3
            made.start_instance(One, id="line::1")


def test_thirty_threads_start_one_value() -> None:
    """HE-140: exactly one wins, however long a look into the storage takes."""

    class Slow(MemoryStorage):
        together = threading.Barrier(2)

        def query(self, **filters: Any) -> list[Instance]:
            found = super().query(**filters)
            if "id" in filters:
                with contextlib.suppress(threading.BrokenBarrierError):  # nobody else comes: they wait for us
                    self.together.wait(0.2)
            return found

    Flow = line(WaitForEvent("go"))
    ready = threading.Barrier(30, timeout=20)
    won: list[str] = []

    def start() -> None:
        ready.wait()
        try:
            won.append(Flow.start("1").id)
        except errors.AlreadyRunning:
            return

    with running(Slow()) as (made, _):
        threads = [threading.Thread(target=start) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert (won, len(made.query())) == (["line::1"], 1)


def test_async_twins() -> None:
    Flow = line(WaitForEvent("go"))

    async def whole() -> Any:
        handle = await Flow.astart("1", {})
        await asyncio.to_thread(parked, handle)
        await Flow.aresume("1", "go")
        found = await (await Flow.aget("1")).aresult(timeout=20)
        assert [one.id for one in await Flow.alist()] == ["line::1"]
        parked_again = await Flow.astart("2", {})
        await Flow.acancel("2")
        return found, parked_again.status

    with running():
        assert asyncio.run(whole()) == ({"wait_for_event": {}, "done": {}}, "cancelled")


def test_what_takes_django_says_so() -> None:
    Flow = line(First)
    with running():
        with pytest.raises(errors.NotConfigured, match="subject="):
            Flow.start("1", {}, subject=object())
        with pytest.raises(errors.UnknownWorkflow, match="do not accept signals"):
            Flow.signal_with_start("go", id="line::1")
        with pytest.raises(errors.WorkflowNotFound):
            Flow.handle("line::1")


def test_timers_of_threads_fire_in_order_and_can_be_taken_back() -> None:
    timers, fired, done = ThreadTimers(), list[int](), threading.Event()
    timers.start(0.03, lambda: fired.append(2))
    taken_back = timers.start(0.02, lambda: fired.append(9))
    timers.start(0.01, lambda: fired.append(1))

    def broken() -> None:
        raise ValueError

    timers.start(0.015, broken)
    taken_back.cancel()
    timers.start(0.04, done.set)
    assert done.wait(20)
    assert fired == [1, 2]
    timers.start(3600, lambda: fired.append(3))
    timers.stop()
    wait_for(lambda: not any(thread.name == "graph-timers" for thread in threading.enumerate()))


def test_a_graph_runs_without_django() -> None:
    """HE-001 HE-005: with nothing of Django to be imported, on the only engine, by real timers."""
    script = f"""{WITHOUT_DJANGO}
from temporalex_django import Done, Event, GraphWorkflow, Step, Unique, Wait, errors
from temporalex_django.graph import Engine

class First(Step):
    events = ("ok",)
    def execute(self, instance, config, context):
        return Event("ok", {{"of": context.initial.order}})

class Flow(GraphWorkflow):
    unique = Unique(key="flow")
    initial = First
    transitions = {{(First, "ok"): Wait(0.01), (Wait(0.01), "timeout"): Done}}

try:
    Flow.start("1")
except errors.NotConfigured as exc:
    assert "Engine(name)" in str(exc)
with Engine("shop"):
    print(Flow.start("1", {{"order": 7}}).result(timeout=20))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("{'first': {'of': 7}, 'wait': {}, 'done': {}}", "")
