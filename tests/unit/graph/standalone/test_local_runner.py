"""Graphs in the memory of a process: the local runner, with timers and a clock that tests move."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import (
    Approval,
    Done,
    Err,
    Escalation,
    Event,
    GraphWorkflow,
    Pending,
    RetryLater,
    RetryPolicy,
    Unique,
    Wait,
    WaitForEvent,
    errors,
)
from temporalex_django.graph import Engine, Instance, LocalRunner, MemoryStorage, engine, lookup
from temporalex_django.graph.contracts import OPEN
from temporalex_django.graph.local_runner import RESTARTS
from tests.support.people import Somebody
from tests.support.waiting import wait_for
from tests.unit.graph.standalone.local_graphs import (
    START,
    First,
    Join,
    Left,
    Right,
    Second,
    Time,
    line,
    parked,
    running,
    step,
)


def test_from_start_to_end_by_value() -> None:
    """HE-004 HE-005 HE-093 HE-094 HE-096 HE-099 HE-102 HE-103 HE-123 HE-142 HE-179."""
    hook = WaitForEvent("paid")
    Flow = line(First, hook, Second)
    with running() as (made, _):
        handle = Flow.start("42", {"order": 7})
        assert handle.id == "line::42"
        found = parked(handle)
        assert (found.context.initial.order, found.waiting_steps, made.get("line::42")) == (7, {hook}, found)
        assert handle.describe().waiting_for == ["step wait_for_event: paid"]
        Flow.resume("42", "paid", data={"cents": 5})
        result = handle.result(timeout=20)
        assert result == {
            "first": {"config": None},
            "wait_for_event": {"cents": 5},
            "second": {"config": None},
            "done": {},
        }
        assert Flow.get("42").status == "completed"
        assert [one.id for one in Flow.list(status="completed")] == ["line::42"]
        assert [*Flow.list(status="waiting")] == []
        described = handle.describe()
        assert (described.status, described.started_at, described.closed_at) == ("completed", START, START)


def test_the_instance_is_stored_before_anything_of_it_runs() -> None:
    """HE-096: the step finds it, and start has given the id by then."""
    seen: list[Any] = []
    storage, gate = MemoryStorage(), threading.Event()

    def look(instance: Any, config: Any, context: Any) -> Event:
        assert gate.wait(20)
        seen.append((storage.get(instance.id).status, instance.status, instance.active_steps))
        return Event("ok")

    Look = step("Look", does=look)
    with running(storage) as (made, _):
        assert made.start_instance(line(Look), id="line::1") == "line::1"
        assert made.get("line::1").status in OPEN
        gate.set()
        made.runner.wait("line::1", timeout=20)
    assert seen == [("running", "running", {Look})]


def test_steps_of_a_cycle_run_at_once_and_fold_in_one_order() -> None:
    """HE-100 HE-101: each waits for the other, the last to be asked ends first.

    The order of the history is that of the graph.
    """
    both = threading.Barrier(2, timeout=20)
    right_ended = threading.Event()

    def left(instance: Any, config: Any, context: Any) -> Event:
        both.wait()
        assert right_ended.wait(20)
        return Event("ok")

    def right(instance: Any, config: Any, context: Any) -> Event:
        both.wait()
        right_ended.set()
        return Event("ok")

    L, R = step("L", does=left), step("R", does=right)

    class Fan(GraphWorkflow):
        unique = Unique(key="fan")
        engine = "local"
        initial = First
        transitions = {(First, "ok"): [L, R], (L, "ok"): Join, (R, "ok"): Join, (Join, "ok"): Done}

    with running():
        handle = Fan.start("1")
        handle.result(timeout=20)
        assert [entry.step for entry in handle.instance().execution_history] == [First, L, R, Join, Done]


def test_one_thread_is_enough() -> None:
    """Nothing waits for others in the pool: a fan-out, a retry and a parked instance share one thread."""
    tries: list[int] = []

    def flaky(instance: Any, config: Any, context: Any) -> Event:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not yet")
        return Event("ok")

    Flaky, hook = step("Flaky", does=flaky), WaitForEvent("go")

    class Fan(GraphWorkflow):
        unique = Unique(key="fan")
        engine = "local"
        initial = First
        transitions = {(First, "ok"): [Flaky, hook], (Flaky, "ok"): Join, (hook, "go"): Join, (Join, "ok"): Done}

    with running(threads=1) as (_, time):
        handle = Fan.start("1")
        wait_for(lambda: time.pending, what="a retry")
        line(Left).start("2").result(timeout=20)
        handle.resume("go")
        time.advance(1)
        assert set(handle.result(timeout=20)) == {"first", "flaky", "wait_for_event", "join", "done"}


def test_a_failed_branch_fails_the_instance_and_keeps_its_sibling() -> None:
    """HE-109."""
    Bad = step("Bad", does=lambda *_: Err("no money"), retry=RetryPolicy(max_attempts=1))

    class Fan(GraphWorkflow):
        unique = Unique(key="fan")
        engine = "local"
        initial = First
        transitions = {(First, "ok"): [Bad, Right], (Bad, "ok"): Join, (Right, "ok"): Join, (Join, "ok"): Done}

    with running():
        handle = Fan.start("1")
        with pytest.raises(errors.WorkflowFailed, match=r"Fan fan::1 failed: step bad \(Bad\): no money") as caught:
            handle.result(timeout=20)
        assert caught.value.reason == "no money"
        found = handle.instance()
        assert (found.failed_step, found.completed_steps, found.active_steps) == (Bad, {First, Right}, set())


async def _later(instance: Any, config: Any, context: Any) -> Event:
    await asyncio.sleep(0)
    return Event("ok", {"later": True})


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        (lambda *_: Event("other"), "step Odd emitted 'other', which it does not declare"),
        (lambda *_: 7, "step Odd returned 7"),
        (lambda *_: None, "step Odd returned None"),
        (lambda *_: Event("ok", {"x": object()}), "the result of step Odd"),
    ],
)
def test_what_is_no_result_fails_at_once(gives: Any, why: str) -> None:
    """HE-082 HE-083."""
    calls: list[int] = []

    def does(*given: Any) -> Any:
        calls.append(1)
        return gives(*given)

    with running() as (_, time):
        handle = line(step("Odd", does=does)).start("1")
        with pytest.raises(errors.WorkflowFailed, match=why):
            handle.result(timeout=20)
        assert (len(calls), time.pending) == (1, [])


def test_an_async_step_and_a_config() -> None:
    Later_, Configured = step("Later", does=_later), step("Configured")
    Flow = line(Later_, Configured)
    Flow2 = type(
        "Flow2",
        (GraphWorkflow,),
        {
            "unique": Unique(key="two"),
            "engine": "local",
            "initial": (Later_, {"deep": [1]}),
            "transitions": {(Later_, "ok"): (Configured, {"side": "left"}), (Configured, "ok"): Done},
            "__module__": __name__,
        },
    )
    with running():
        assert Flow.start("1").result(timeout=20)["later"] == {"later": True}
        assert Flow2.start("1").result(timeout=20)["configured"] == {"config": {"side": "left"}}


def test_err_is_tried_again_like_an_exception() -> None:
    """HE-080 HE-086: and is the reason when no attempt is left."""
    Own = step("Own", does=lambda *_: Err("broken"), retry=RetryPolicy(max_attempts=2, initial_interval=2))
    with running() as (_, time):
        handle = line(Own).start("1")
        assert wait_for(lambda: time.pending) == [2]
        time.advance(2)
        with pytest.raises(errors.WorkflowFailed, match=r"step own \(Own\): broken") as caught:
            handle.result(timeout=20)
        assert caught.value.reason == "broken"


def test_a_step_names_the_time_of_its_next_attempt() -> None:
    calls: list[int] = []

    def busy(*_: Any) -> Any:
        calls.append(1)
        if len(calls) < 4:
            raise RetryLater("busy", after=600, counts=len(calls) == 3)
        return Event("ok")

    Own = step("Own", does=busy, retry=RetryPolicy(max_attempts=2))
    with running() as (_, time):
        handle = line(Own).start("1")
        for number in range(1, 4):
            assert wait_for(lambda: time.pending) == [600], number
            time.advance(600)
        handle.result(timeout=20)
    assert len(calls) == 4


def test_retries_by_the_policy_of_step_and_workflow() -> None:
    """HE-086 HE-087: a retry holds no thread, and the instance fails behind the last attempt."""

    def fails(*_: Any) -> Any:
        raise ValueError("broken")

    Own = step("Own", does=fails, retry=RetryPolicy(max_attempts=3, initial_interval=2, backoff=3))
    Plain = step("Plain", does=fails)
    with running() as (_, time):
        handle = line(Own).start("1")
        for delay in (2, 6):
            assert wait_for(lambda: time.pending) == [delay]
            time.advance(delay)
        with pytest.raises(errors.WorkflowFailed, match=r"step own \(Own\): broken \(after 3 attempts\)"):
            handle.result(timeout=20)
        handle = line(Plain, retry=RetryPolicy(max_attempts=1)).start("2")
        with pytest.raises(errors.WorkflowFailed, match=r"step plain \(Plain\): broken$"):
            handle.result(timeout=20)


def test_a_step_that_ends_its_thread_fails_its_instance_alone() -> None:
    def exits(*_: Any) -> Any:
        raise SystemExit(3)

    with running(threads=1):
        handle = line(step("Exits", does=exits), retry=RetryPolicy(max_attempts=1)).start("1")
        with pytest.raises(errors.WorkflowFailed, match=r"step exits \(Exits\): 3"):
            handle.result(timeout=20)
        line(First).start("2").result(timeout=20)


def test_waiting_steps_are_timed() -> None:
    """HE-095 HE-099: by their own timers; a resume ends the wait, and its timer with it."""
    pause, hook = Wait(timedelta(minutes=1)), WaitForEvent("paid", timeout=30)
    Flow = line(pause, hook)
    with running() as (_, time):
        handle = Flow.start("1")
        parked(handle)
        assert time.pending == [60]
        time.advance(59)
        assert handle.status == "waiting"
        time.advance(1)
        wait_for(lambda: time.pending == [30])
        handle.resume("paid")
        assert handle.result(timeout=20)["wait_for_event"] == {}
        assert time.pending == []
        assert [entry.timestamp for entry in handle.instance().execution_history] == [START + timedelta(minutes=1)] * 3


def test_a_timeout_of_a_wait_goes_its_own_way() -> None:
    hook = WaitForEvent("paid", timeout=30)
    with running() as (_, time):
        handle = line(hook, Second).start("1")
        parked(handle)
        time.advance(30)
        assert set(handle.result(timeout=20)) == {"wait_for_event", "done"}


def test_schedule_resume() -> None:
    """HE-095 HE-104 HE-106: later, to that step, if it waits then; it can be taken back."""
    Slow = step("Slow", "done_slowly", "timeout", does=lambda *_: Pending())
    with running() as (made, time):
        handle = line(Slow, First).start("1")
        parked(handle)
        taken_back = made.schedule_resume("line::1", Slow, 5)
        made.schedule_resume("line::1", "slow", 10)
        taken_back.cancel()
        time.advance(5)
        assert handle.status == "waiting"
        time.advance(5)
        assert set(handle.result(timeout=20)) == {"slow", "done"}
        with pytest.raises(errors.WorkflowClosed):
            made.schedule_resume("line::1", Slow, 5)
        with pytest.raises(errors.WorkflowNotFound):
            made.schedule_resume("line::2", Slow, 5)
        second = line(Slow, First).start("3")
        parked(second)
        for wrong, why in ((First, "step First has no event 'timeout'"), ("gone", "has no step 'gone'")):
            with pytest.raises(errors.ResumeRefused, match=why):
                made.schedule_resume("line::3", wrong, 5)
        made.schedule_resume("line::3", Slow, 5)
        second.resume("done_slowly")
        second.result(timeout=20)
        time.advance(5)
        assert second.status == "completed"


def test_what_comes_for_a_step_that_does_not_wait_changes_nothing() -> None:
    """HE-095: it has still to begin."""
    one, two = WaitForEvent("one", key="one"), WaitForEvent("two", timeout=60, key="two")
    with running(threads=1) as (made, time):
        handle = line(one, two).start("1")
        before = parked(handle)
        made.schedule_resume("line::1", two, 5)
        time.advance(5)
        line(First).start("2").result(timeout=20)
        assert handle.instance() is before
        handle.resume("one")
        handle.resume("two")
        assert handle.result(timeout=20) == {"one": {}, "two": {}, "done": {}}


def test_a_resume_that_fits_nothing_changes_nothing() -> None:
    """HE-104 HE-105 HE-108."""
    one, two = WaitForEvent("go", key="one"), WaitForEvent("go", key="two")

    class Fan(GraphWorkflow):
        unique = Unique(key="fan")
        engine = "local"
        initial = First
        transitions = {(First, "ok"): [one, two], (one, "go"): Join, (two, "go"): Join, (Join, "ok"): Done}

    with running() as (made, _):
        handle = Fan.start("1")
        before = parked(handle)
        for event in ("go", "other", "__x", ""):
            with pytest.raises(errors.ResumeRefused):
                Fan.resume("1", event)
        with pytest.raises(errors.PayloadError):
            Fan.resume("1", "go", step=one, data=object())
        assert handle.instance() is before
        with pytest.raises(errors.WorkflowNotFound):
            made.resume("fan::2", "go")
        Fan.resume("1", "go", step=one)
        Fan.resume("1", "go")
        handle.result(timeout=20)
        with pytest.raises(errors.WorkflowClosed):
            Fan.resume("1", "go")


def test_who_decides_needs_the_role_and_is_noted() -> None:
    decision = Approval(role="deciders")
    with running():
        handle = line(decision).start("1")
        parked(handle)
        for by in (None, "ann", Somebody("bob", groups=()), Somebody("cy", groups=("deciders",), is_active=False)):
            with pytest.raises(errors.ActionNotPermitted, match=r"may not decide .* this requires the role 'deciders'"):
                handle.resume("approved", by=by)
        with pytest.raises(errors.ActionNotPermitted, match="membership in 'deciders' cannot be checked"):
            handle.resume("approved", by=Somebody("dan", "shop.decide"))
        handle.resume("approved", by=Somebody("ann", groups=("deciders",)), data={"why": "fine"})
        assert handle.result(timeout=20)["approval"] == {"why": "fine", "by": "ann", "by_key": "ann"}


@pytest.mark.parametrize("option", [{"atomic": True}, {"timeout": 5}, {"heartbeat": 5}, {"queue": "slow"}], ids=str)
def test_what_only_the_durable_runtime_does_with_a_step_is_refused(option: dict[str, Any]) -> None:
    Flow = line(type("Asking", (First,), option))
    with running() as (made, _), pytest.raises(errors.NotConfigured, match=rf"{[*option][0]} of step Asking"):
        Flow.start("1")
    assert made.query() == []


@pytest.mark.parametrize("option", ["execution_timeout", "run_timeout", "retention"])
def test_what_only_the_durable_runtime_does_with_a_class_is_refused(option: str) -> None:
    Flow = type("Asking", (line(First),), {option: 60})
    with running(), pytest.raises(errors.NotConfigured, match=option):
        Flow.start("1")


def test_as_many_threads_as_it_is_given() -> None:
    runner = LocalRunner(MemoryStorage(), threads=3)

    assert runner._pool._max_workers == 3
    runner.stop()


def test_a_runner_means_the_workflow_and_the_version_that_is_named() -> None:
    unique = Unique(key="line", scope="version")
    hook = WaitForEvent("paid")
    flows = [line(hook, name=name, unique=unique, version=version) for name in ("A", "B") for version in (1, 2)]
    with running() as (made, _):
        for flow in flows:
            made.start_instance(flow, id="line::1", version=flow.version)
            wait_for(
                lambda flow=flow: made.storage.get("line::1", workflow=flow.name, version=flow.version).waiting_steps
            )
        made.runner.cancel("line::1", workflow="A", version=1)
        made.runner.resume("line::1", "paid", workflow="B", version=1)
        wait_for(lambda: made.storage.get("line::1", workflow="B", version=1).closed)

        found = [made.storage.get("line::1", workflow=flow.name, version=flow.version).status for flow in flows]
    assert (found[0], found[2]) == ("cancelled", "completed")
    assert {found[1], found[3]} == {"waiting"}


def test_an_engine_means_the_instance_and_the_step_that_are_named() -> None:
    with running() as (made, _):
        for value in ("1", "2"):
            parked(line(WaitForEvent("paid", key="hook")).start(value))
        with pytest.raises(errors.ResumeRefused):
            made.resume("line::2", "paid", step="another")
        made.cancel("line::1")

        assert [made.get(f"line::{value}").status for value in ("1", "2")] == ["cancelled", "waiting"]


def test_what_an_engine_has_no_place_for_is_refused() -> None:
    Flow = line(WaitForEvent("paid"))
    with running() as (made, _):
        for options in ({"subject": object()}, {"by": Somebody("ann", "temporalex_django.start_instance")}):
            with pytest.raises(errors.NotConfigured, match=f"{[*options][0]}= requires the durable runtime"):
                Flow.start("1", **options)
        assert made.query() == []
        handle = Flow.start("1")
        for options in ({"reason": "why"}, {"by": Somebody("ann", "temporalex_django.cancel_instance")}):
            with pytest.raises(errors.NotConfigured, match=f"{[*options][0]}= requires the durable runtime"):
                handle.cancel(**options)
        assert handle.status != "cancelled"
        handle.cancel()


def test_cancelling_is_at_once_and_what_still_runs_goes_nowhere() -> None:
    """HE-098: not into the instance that is started under the same id, either."""
    entered, gate = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    calls: list[str] = []

    def slow(instance: Any, config: Any, context: Any) -> Event:
        number = len(calls)
        calls.append(instance.id)
        entered[number].set()
        assert gate[number].wait(20)
        return Event("ok", {"of": number})

    Slow = step("Slow", does=slow)
    Flow = line(Slow, WaitForEvent("go"))
    with running(threads=2) as (_, time):
        handle = Flow.start("1")
        assert entered[0].wait(20)
        Flow.cancel("1")
        assert handle.status == "cancelled"
        with pytest.raises(errors.WorkflowCancelled):
            handle.result(timeout=0)
        with pytest.raises(errors.NotCancellable):
            Flow.cancel("1")
        again = Flow.start("1")
        assert entered[1].wait(20)
        gate[0].set()
        line(First).start("2").result(timeout=20)
        assert again.instance().active_steps == {Slow}
        gate[1].set()
        assert parked(again).context.steps.slow.of == 1
        again.resume("go")
        again.result(timeout=20)
        assert time.pending == []


def test_an_engine_goes_on_with_what_is_stored() -> None:
    """HE-088 HE-097 HE-098 HE-106 HE-178: a begun step is executed again, timers begin anew, what is closed stays."""
    storage = MemoryStorage()
    hook = WaitForEvent("go", timeout=100)
    Flow = line(First, hook, Second)
    active = engine.advance(Instance.new(id="line::1", workflow=Flow), now=START)
    waiting = engine.wait_step(
        engine.activate_transitions(engine.complete_step(active, First, "ok", now=START), First, "ok"), hook
    )
    storage.put(active)
    storage.put(waiting.changed(id="line::2"))
    storage.put(engine.cancel(active).changed(id="line::3"))
    storage.put(Instance.new(id="line::4", workflow=Flow))
    with running(storage) as (made, time):
        for value in "124":
            parked(Flow.get(value))
        wait_for(lambda: time.pending == [100, 100, 100])
        assert Flow.get("3").instance().execution_history == ()
        Flow.resume("2", "go")
        assert set(Flow.get("2").result(timeout=20)) == {"first", "wait_for_event", "second", "done"}
        stored = made.get("line::1")
    assert storage.get("line::1") == stored
    with running(storage) as (_, time):
        wait_for(lambda: time.pending == [100, 100])
        time.advance(100)
        assert set(Flow.get("1").result(timeout=20)) == {"first", "wait_for_event", "done"}


class Failing(MemoryStorage):
    """Raises when it is told to, before or behind what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.behind = 0

    def put(self, instance: Instance) -> None:
        if instance.status != "pending" and self.before:
            self.before -= 1
            raise OSError("the disk is full")
        super().put(instance)
        if instance.status != "pending" and self.behind:
            self.behind -= 1
            raise OSError("the answer is lost")


@pytest.mark.parametrize(("before", "behind"), [(2, 0), (0, 1)])
@pytest.mark.parametrize("when", ["at the start", "behind a step"])
def test_a_crashed_turn_is_done_again_from_the_storage(before: int, behind: int, when: str) -> None:
    """HE-107: whether the crash was before or behind the write; no step that ended runs twice."""
    storage, gate = Failing(), threading.Event()
    calls: list[str] = []

    def counted(instance: Any, config: Any, context: Any) -> Event:
        calls.append("counted")
        assert gate.wait(20)
        return Event("ok")

    def broken() -> None:
        storage.before, storage.behind = before, behind

    Flow = line(step("Counted", does=counted), Second)
    with running(storage) as (_, time):
        if when == "at the start":
            broken()
        handle = Flow.start("1")
        if when == "behind a step":
            wait_for(lambda: calls)
            broken()
        gate.set()
        for delay in RESTARTS[: before + behind]:
            assert wait_for(lambda: time.pending) == [delay]
            time.advance(delay)
        assert set(handle.result(timeout=20)) == {"counted", "second", "done"}
        assert (calls, time.pending) == (["counted"], [])


def test_an_instance_that_crashes_again_and_again_is_given_up_until_it_is_recovered(caplog: Any) -> None:
    """HE-107: a few times, and not after a normal end."""
    storage = Failing()
    Flow = line(First)
    with running(storage) as (made, time):
        storage.before = 1000
        handle = Flow.start("1")
        for delay in RESTARTS:
            assert wait_for(lambda: time.pending) == [delay]
            time.advance(delay)
        with pytest.raises(errors.ResultTimeout, match="it is pending"):
            handle.result(timeout=20)
        wait_for(lambda: "abandoned until it is recovered" in caplog.text)
        storage.before = 0
        assert made.runner.recover() == 1
        handle.result(timeout=20)
        assert made.runner.recover() == 0
        assert time.pending == []


def test_stopping_lets_steps_end_and_begins_no_more() -> None:
    """HE-178: what follows waits for the next engine over the storage."""
    storage, entered, gate = MemoryStorage(), threading.Event(), threading.Event()

    def slow(*_: Any) -> Event:
        entered.set()
        assert gate.wait(20)
        return Event("ok")

    Slow = step("Slow", does=slow)
    Flow = line(Slow, Second)
    time = Time()
    made = Engine("local", storage, (LocalRunner, {"timers": time, "clock": time.clock})).start()
    Flow.start("1")
    assert entered.wait(20)
    stopping = threading.Thread(target=made.stop)
    stopping.start()
    wait_for(lambda: made.runner._stopped)
    assert _absent("local")
    gate.set()
    stopping.join(20)
    found = storage.get("line::1")
    assert (found.status, found.completed_steps, found.active_steps) == ("running", {Slow}, {Second})
    with pytest.raises(errors.EngineNotFound):
        made.start_instance(Flow, id="line::2")
    with running(storage):
        assert Flow.get("1").result(timeout=20)["second"] == {"config": None}


def _absent(name: str) -> bool:
    try:
        lookup(name)
    except errors.EngineNotFound:
        return True
    return False


def test_deleting_drops_what_is_open() -> None:
    """HE-121."""
    with running() as (made, time):
        hook = WaitForEvent("go", timeout=9)
        Flow = line(hook)
        parked(Flow.start("1"))
        made.delete("line::1")
        assert time.pending == []
        with pytest.raises(errors.WorkflowNotFound):
            Flow.get("1")
        made.delete("line::1")
        parked(Flow.start("1"))


def test_a_transition_cannot_act_on_its_own_instance() -> None:
    seen: list[BaseException] = []
    from temporalex_django import transit

    hook = WaitForEvent("go")

    class Meddling(GraphWorkflow):
        unique = Unique(key="meddling")
        engine = "local"
        initial = First
        transitions = {(hook, "go"): Done}

        @transit(First, "ok", targets=[hook])
        @staticmethod
        def route(context: Any) -> Any:
            try:
                Meddling.cancel("1")
            except errors.NestingError as exc:
                seen.append(exc)
            return hook

    with running():
        handle = Meddling.start("1")
        parked(handle)
        assert len(seen) == 1


def test_a_listener_hears_what_is_stored() -> None:
    """HE-187 HE-188 HE-191: merged with the caller's metadata, which overrides nothing; errors harm nobody."""
    heard: list[tuple[str, dict[str, Any]]] = []

    def tell(instance: Instance, name: str, facts: dict[str, Any]) -> None:
        heard.append((name, facts))
        raise ValueError("a broken listener")

    with running(tell=tell):
        handle = line(First).start("1", {}, telemetry={"trace": "t1", "step": "mine"})
        handle.result(timeout=20)
        wait_for(lambda: any(name == "workflow_stopped" for name, _ in heard))
    names = [name for name, _ in heard]
    assert names[:3] == ["runner_initialized", "workflow_started", "step_started"]
    assert {facts["trace"] for _, facts in heard} == {"t1"}
    assert [facts["step"] for name, facts in heard if name == "step_stopped"] == ["first", "done"]


def test_a_turn_beside_a_step_that_runs_leaves_that_alone() -> None:
    """HE-050: it is not executed again, and nobody is timed twice."""
    entered, gate = threading.Event(), threading.Event()
    calls: list[int] = []

    def slow(instance: Any, config: Any, context: Any) -> Event:
        calls.append(1)
        entered.set()
        assert gate.wait(20)
        return Event("ok")

    Slow = step("Slow", does=slow)
    one, two, then = (
        WaitForEvent(name, timeout=seconds, key=name) for name, seconds in {"one": 50, "two": 60, "then": 70}.items()
    )

    class Fan(GraphWorkflow):
        unique = Unique(key="fan")
        engine = "local"
        initial = First
        transitions = {
            (First, "ok"): [Slow, one, two],
            (one, "one"): then,
            (one, "timeout"): then,
            **dict.fromkeys([(Slow, "ok"), (two, "two"), (two, "timeout"), (then, "then"), (then, "timeout")], Join),
            (Join, "ok"): Done,
        }

    with running() as (made, time):
        handle = Fan.start("1")
        assert entered.wait(20)
        wait_for(lambda: time.pending == [50, 60])
        made.schedule_resume("fan::1", one, 20)
        handle.resume("one")
        wait_for(lambda: time.pending == [20, 60, 70])
        time.advance(20)
        handle.resume("two")
        handle.resume("then")
        gate.set()
        handle.result(timeout=20)
        assert (calls, time.pending) == ([1], [])


def test_crashes_count_from_one_that_went_well() -> None:
    """HE-107: together more than an instance is begun again in a row."""
    storage, gate = Failing(), threading.Event()

    def waits(*_: Any) -> Event:
        assert gate.wait(20)
        return Event("ok")

    def crashing(time: Time) -> None:
        for delay in RESTARTS[:-1]:
            assert wait_for(lambda: time.pending) == [delay]
            time.advance(delay)

    with running(storage) as (_, time):
        storage.before = len(RESTARTS) - 1
        handle = line(step("Waits", does=waits), WaitForEvent("go")).start("1")
        crashing(time)
        wait_for(lambda: handle.status == "running")
        storage.before = len(RESTARTS) - 1
        gate.set()
        crashing(time)
        parked(handle)


def test_an_approval_asks_who_may_and_keeps_no_human_task() -> None:
    ann = Somebody("ann", groups=("chiefs",))
    review = Approval(users=("bob",), groups=("chiefs",), form=dict[str, int])
    Flow = line(review)
    with running():
        handle = Flow.start("1")
        parked(handle)
        with pytest.raises(errors.ActionNotPermitted, match="requires the name 'bob' or the role 'chiefs'"):
            handle.resume("approved", data={"n": 1}, by=Somebody("cleo", groups=()))
        with pytest.raises(errors.PayloadError, match="does not fit"):
            handle.resume("approved", data={"n": "one"}, by=ann)
        handle.resume("approved", data={"n": 1}, by=ann)
        assert handle.result(timeout=20)["approval"]["by"] == "ann"
        kept = {"title": "Check it", "remind": 5, "escalate": Escalation(after=5, role="chiefs"), "form": "shop.Form"}
        for name, given in kept.items():
            with pytest.raises(errors.NotConfigured, match=f"{name} of step Approval"):
                line(Approval(**{name: given})).start("2")
