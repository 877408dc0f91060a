"""Metrics of work that was committed: each moves when it should, and a replay moves none but that of rebuilds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from temporalex_django import Err, Ok, Overlap, Reply, RetryPolicy, Workflow, activity, api, errors, update
from temporalex_django.authoring.schedules.specs import parse_specs
from temporalex_django.backends.tables.requests import TablesRequest
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.atomic import AtomicPhase
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.engine.turn_metrics import record_attempt
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.models import Chain, HistoryEvent, HumanTask, Instance, Schedule, ScheduleSlot, Worker
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks.operations import Decide
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.fire import fire_due
from temporalex_django.operations.schedules.operations import BackfillSchedule, TriggerSchedule
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.telemetry import definitions
from temporalex_django.workers import polling
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from temporalex_django.workers.maintenance import Maintenance
from tests.support.metrics import KeptMetrics, kept_metrics
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

FAILURES: list[str] = []


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=0.001))
def flaky(value: int) -> int:
    if FAILURES:
        raise LookupError(FAILURES.pop())
    return value + 1


@activity(atomic=True)
def book(value: int) -> int:
    return value * 2


class Work(Workflow):
    name = "metrics.Work"

    async def run(self, args: int) -> Any:
        value = await book(await flaky(args))
        await api.wait_for_signal("go")
        return Ok(value)


def positive(args: int, state: int) -> Any:
    return Ok(None) if args else Err("nothing to add")


def add(args: int, state: int) -> Any:
    if args < 0:
        raise ValueError("less than nothing")
    return Reply(state + args, state + args)


@activity
def slow(value: int) -> int:
    """Return when the time of its run is over, which no turn has seen yet: the worker of the test has one thread."""
    Chain.objects.update(deadline=timezone.now() - timedelta(seconds=1))
    return value


@activity
def pause_first(value: int) -> int:
    Impatient.handle("i-1").pause("a look at it")
    return value


class Impatient(Workflow):
    name = "metrics.Impatient"

    async def run(self, args: Any) -> Any:
        return Ok(await pause_first(1))


class TimesOut(Workflow):
    name = "metrics.TimesOut"
    execution_timeout = 3600

    async def run(self, args: Any) -> Any:
        return Ok(await slow(1))


class Counter(Workflow):
    name = "metrics.Counter"

    async def run(self, args: int) -> Any:
        return Ok(await api.phase(args, update={"add": update(add, validator=positive)}))


class Asks(Workflow):
    name = "metrics.Asks"

    async def run(self, args: Any) -> Any:
        return Ok((await api.approval("Pay it", role="auth.change_group")).outcome)


class Stuck(Workflow):
    name = "metrics.Stuck"
    unexpected_error = "block"

    async def run(self, args: Any) -> Any:
        return Ok({}["missing"])


@pytest.fixture
def kept() -> Iterator[KeptMetrics]:
    FAILURES.clear()
    with kept_metrics() as exporter:
        yield exporter


def test_activations_and_activities_are_counted_once_after_the_commit(kept: KeptMetrics) -> None:
    FAILURES.append("once")
    handle = Work.start(1, id="w-1")
    assert kept.of(definitions.ACTIVATIONS) == {}
    run_until_idle()

    activations = kept.of(definitions.ACTIVATIONS)
    assert activations == {("metrics.Work", "open"): Instance.objects.get().chain.activations}
    assert kept.of(definitions.ACTIVATION_SECONDS) == {("metrics.Work",): activations["metrics.Work", "open"]}
    names = (flaky.name, book.name)
    assert kept.of(definitions.ACTIVITY_ATTEMPTS) == {
        (names[0], "retried"): 1,
        (names[0], "completed"): 1,
        (names[1], "completed"): 1,
    }
    assert kept.of(definitions.ACTIVITY_SECONDS) == {(names[0],): 2, (names[1],): 1}
    assert kept.of(definitions.TURN_DATABASE_SECONDS)[()] > 0
    assert kept.of(definitions.REBUILDS) == {}

    handle.signal("go")
    run_until_idle()  # another loop, which has to rebuild the run

    assert handle.result() == 4
    assert kept.of(definitions.ACTIVATIONS) == {**activations, ("metrics.Work", "closed"): 1}
    assert sum(kept.of(definitions.ACTIVITY_ATTEMPTS).values()) == 3
    assert kept.of(definitions.REBUILDS) == {(): 1}


def test_a_run_in_memory_is_a_hit(kept: KeptMetrics) -> None:
    Work.start(1, id="w-1")
    run_until_idle()
    assert kept.of(definitions.CACHE_HITS)[()] >= 1


def test_a_run_that_is_blocked_is_counted_as_blocked(kept: KeptMetrics) -> None:
    Stuck.start(id="s-1")
    run_until_idle()
    assert Instance.objects.get().blocked is not None
    assert kept.of(definitions.ACTIVATIONS) == {("metrics.Stuck", "blocked"): 1}
    assert kept.of(definitions.ACTIVATION_SECONDS) == {}


def test_updates_by_outcome(kept: KeptMetrics) -> None:
    handle = Counter.start(1, id="c-1")
    run_until_idle()
    assert handle.update("add", 2) == 3
    with pytest.raises(errors.UpdateRejected):
        handle.update("add", 0)
    with pytest.raises(errors.UpdateFailed):
        handle.update("add", -1)
    handle.terminate("enough")
    with pytest.raises(errors.WorkflowClosed):
        handle.update("add", 1)

    updates = kept.of(definitions.UPDATES)
    assert updates == {("metrics.Counter", outcome): 1 for outcome in ("completed", "rejected", "failed", "refused")}
    assert kept.of(definitions.UPDATE_SECONDS) == {("metrics.Counter",): 4}


def test_human_tasks_by_ending(kept: KeptMetrics) -> None:
    for number in range(2):
        Asks.start(id=f"a-{number}")
    run_until_idle()
    task = HumanTask.objects.first()
    assert task is not None
    Decide(task, outcome="approved", by=Actor(user=stored("ann", "auth.change_group"))).execute()
    Asks.handle("a-0" if task.workflow_id == "a-1" else "a-1").terminate("enough")
    run_until_idle()

    assert kept.of(definitions.HUMAN_TASKS_CLOSED) == {
        ("metrics.Asks", "decided"): 1,
        ("metrics.Asks", "run_closed"): 1,
    }
    # A run that is terminated is closed without an activation.
    assert kept.of(definitions.ACTIVATIONS) == {("metrics.Asks", "open"): 2, ("metrics.Asks", "closed"): 1}
    assert kept.of(definitions.UPDATES)["metrics.Asks", "completed"] == 1


def test_a_turn_that_has_to_be_tried_again_is_a_conflict(kept: KeptMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    Work.start(1, id="w-1")
    loop = WorkerLoop(inline=True)
    turn, fails = loop.turn_runner.turn, [True]

    def fail_once(*arguments: Any) -> Any:
        if fails:
            fails.clear()
            raise OperationalError("database is locked")
        return turn(*arguments)

    monkeypatch.setattr(loop.turn_runner, "turn", fail_once)
    monkeypatch.setattr(loop.storage.sql, "is_transient", lambda exc: isinstance(exc, OperationalError), raising=False)
    loop.run_inline(timeout=20)

    assert kept.of(definitions.CONFLICTS) == {("turn",): 1}


def test_a_result_that_does_not_count_is_deferred(kept: KeptMetrics) -> None:
    task: Any = type("Task", (), {"activity": "charge", "chain_id": None})
    record_attempt(TaskResult(task=task, count=False))
    record_attempt(TaskResult(task=task, outcome=("ActivityTimedOut", {})))
    record_attempt(TaskResult(task=task, outcome=("ActivityFailed", {}), seconds=0.5))
    assert kept.of(definitions.ACTIVITY_ATTEMPTS) == {
        ("charge", outcome): 1 for outcome in ("deferred", "timed_out", "failed")
    }
    assert kept.of(definitions.ACTIVITY_SECONDS) == {("charge",): 1}


def completed_events() -> int:
    return HistoryEvent.objects.filter(kind="ActivityCompleted").count()


def test_a_result_for_which_the_run_no_longer_waits_is_dropped(kept: KeptMetrics) -> None:
    """The turn that takes the result finds the run overdue, and closes it: the attempt has no event."""
    handle = TimesOut.start(id="t-1")
    run_until_idle()

    assert handle.status == "timed_out"
    assert completed_events() == 0
    assert kept.of(definitions.ACTIVITY_ATTEMPTS) == {(definitions.OTHER, "dropped"): 1}
    assert kept.of(definitions.ACTIVITY_SECONDS) == {(slow.name,): 1}


def test_a_result_that_waits_is_counted_when_the_run_has_it(kept: KeptMetrics) -> None:
    handle = Impatient.start(id="i-1")
    run_until_idle()
    assert kept.of(definitions.ACTIVITY_ATTEMPTS) == {}

    handle.unpause()
    run_until_idle()

    assert completed_events() == 1
    assert kept.of(definitions.ACTIVITY_ATTEMPTS) == {(pause_first.name, "completed"): 1}


def test_a_result_that_waits_for_a_run_that_is_closed_is_dropped(kept: KeptMetrics) -> None:
    handle = Impatient.start(id="i-1")
    run_until_idle()

    handle.terminate("enough")
    run_until_idle()

    assert completed_events() == 0
    assert kept.of(definitions.ACTIVITY_ATTEMPTS) == {(definitions.OTHER, "dropped"): 1}


def test_a_late_result_of_an_earlier_attempt_is_no_second_one(
    kept: KeptMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that timed out and the next one may return between the same two polls."""
    Impatient.start(id="i-1")
    loop, ended = WorkerLoop(inline=True), []
    storage = loop.storage
    loop.turn_runner.turn([], Capacity(), TurnReport())

    def claimed() -> TaskState:
        (task,) = storage.claim_tasks(capacity=Capacity(threads=1), queues=["default"], owner=1)
        return task

    late = TaskResult(task=claimed(), outcome=("ActivityCompleted", {"seq": 1, "result": 1}), seconds=0.5)
    storage.finish_tasks([TaskResult(task=late.task, retry_at=timezone.now())])
    valid = TaskResult(task=claimed(), outcome=("ActivityCompleted", {"seq": 1, "result": 2}), seconds=0.5)
    monkeypatch.setattr(loop.pool, "results", lambda: [late, valid])
    monkeypatch.setattr(polling, "announce_result", ended.append)

    loop.intake.store_results()

    assert [result.task.attempt for result in ended] == [2]


def test_a_worker_that_was_declared_dead_has_lost_its_lease(kept: KeptMetrics) -> None:
    loop = WorkerLoop(inline=True)
    maintenance = Maintenance(loop)
    maintenance.register()
    Worker.objects.all().delete()
    maintenance._heartbeat_at = float("-inf")
    maintenance.run_pass()
    assert kept.of(definitions.LEASES_LOST) == {(): 1}
    loop._shut_down(None, hurried=True)


def test_the_places_of_a_pool(kept: KeptMetrics) -> None:
    loop = WorkerLoop(inline=True)
    Maintenance(loop)._record_metrics()
    assert kept.of(definitions.WORKER_SLOTS) == {
        (lane, state): float(state == "free") for lane in ("threads", "tasks") for state in ("used", "free")
    }
    loop._shut_down(None, hurried=True)


def test_the_delay_of_a_schedule_counts_from_its_slot(kept: KeptMetrics) -> None:
    every, now = timedelta(days=1), timezone.now()
    specs = parse_specs(every=every, offset=timedelta(seconds=(now.timestamp() - 30) % every.total_seconds()))
    options: dict[str, Any] = {"workflow": Work.name, "specs": specs, "catch_up": every, "args": 1}
    options["overlap"] = Overlap.ALLOW_ALL
    SaveSchedule(ScheduleDefinition(name="daily", **options), create=True, by=Actor()).execute()
    Schedule.objects.update(position=now - every, next_at=now, last_walls={})
    while fire_due("default"):
        pass

    assert kept.of(definitions.SCHEDULE_DELAY) == {("metrics.Work",): 1}
    (delay,) = kept.observed[definitions.SCHEDULE_DELAY.name]["metrics.Work",]
    assert 29 <= delay < 600
    TriggerSchedule("daily", by=Actor()).execute()
    BackfillSchedule("daily", start=now - 9 * every, end=now - 2 * every, by=Actor()).execute()
    Schedule.objects.update(next_at=now)
    while fire_due("default"):
        pass
    assert ScheduleSlot.objects.filter(cause="backfill", outcome="started").exists()
    assert kept.of(definitions.SCHEDULE_DELAY) == {("metrics.Work",): 1}
    assert kept.of(definitions.SCHEDULE_DELAY) == {("metrics.Work",): 1}


def test_an_update_that_does_not_get_the_lock_is_a_conflict(kept: KeptMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Counter.start(1, id="c-1")
    run_until_idle()
    monkeypatch.setattr(TablesRequest, "_try_turn", lambda self, *, wait: None)
    with pytest.raises(errors.UpdateTimeout):
        handle.update("add", 2, timeout=0)
    assert kept.of(definitions.CONFLICTS) == {("update",): 1}
    assert kept.of(definitions.UPDATES) == {("metrics.Counter", "timeout"): 1}


def test_atomic_activities_that_have_to_be_tried_again_are_a_conflict(
    kept: KeptMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    Work.start(1, id="w-1")
    fails, advance = [True], AtomicPhase._run_activations

    def fail_once(self: Any, *arguments: Any) -> None:
        advance(self, *arguments)
        if fails:
            fails.clear()
            raise OperationalError("database is locked")

    monkeypatch.setattr(AtomicPhase, "_run_activations", fail_once)
    monkeypatch.setattr(DjangoStorage, "is_transient", lambda self, exc: isinstance(exc, OperationalError))
    run_until_idle()

    assert kept.of(definitions.CONFLICTS) == {("atomic",): 1}
    # Its first try was rolled back, with the activation that followed it.
    assert kept.of(definitions.ACTIVITY_ATTEMPTS)[book.name, "completed"] == 1
    assert kept.of(definitions.ACTIVATIONS) == {("metrics.Work", "open"): Instance.objects.get().chain.activations}
