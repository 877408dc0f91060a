"""Facts of the database: their values, and the one worker that samples them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.utils import timezone

from temporalex_django import Ok, Workflow, api
from temporalex_django.db import background_hooks
from temporalex_django.db.inserts import insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.run_start import RunStart
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.models import Chain, HumanTask, Instance, Outbox, Schedule, Worker
from temporalex_django.operations.fleet import facts
from temporalex_django.operations.fleet.stats import queue_figures
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from tests.support.metrics import KeptMetrics, kept_metrics
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


class Waits(Workflow):
    name = "facts.Waits"

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class Asks(Workflow):
    name = "facts.Asks"

    async def run(self, args: Any) -> Any:
        return Ok((await api.approval("Pay it", role="auth.change_group", due=timedelta(days=1))).outcome)


@pytest.fixture
def kept() -> Iterator[KeptMetrics]:
    with kept_metrics() as exporter:
        yield exporter


@pytest.fixture(autouse=True)
def sampled_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_sampled_at", float("-inf"))


def register(**values: Any) -> WorkerRow:
    row = WorkerRow(kind="worker", queues=["default"], workflows={})
    row.register(DjangoStorage())
    Worker.objects.filter(pk=row.id).update(**values)
    return row


def start_in(queue: str) -> None:
    insert_start(
        RunStart(workflow=Waits.name, args=None, workflow_id=f"w-{queue}", queue=queue), storage=DjangoStorage()
    )


def test_runs_by_class_and_status() -> None:
    for number in range(4):
        Waits.start(id=f"w-{number}")
    Asks.start(id="a-1")
    run_until_idle()
    Waits.handle("w-3").signal("go", None)
    run_until_idle()
    Waits.handle("w-2").pause()
    Instance.objects.filter(workflow_id="w-1").update(blocked={"code": "x"})

    assert facts.read_facts("default")[definitions.OPEN_RUNS] == {
        ("facts.Waits", "open"): 1,
        ("facts.Waits", "blocked"): 1,
        ("facts.Waits", "paused"): 1,
        ("facts.Asks", "open"): 1,
    }


def test_of_too_many_open_runs_there_is_a_number_without_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        Waits.start(id=f"w-{number}")
    monkeypatch.setattr(facts, "MAX_COUNT", 4)
    assert facts._run_facts("default") == {("facts.Waits", "open"): 4}
    monkeypatch.setattr(facts, "MAX_COUNT", 3)
    assert facts._run_facts("default") == {("other", "open"): 3}


def test_lag_and_backlog_are_those_of_the_queue_figures() -> None:
    Waits.start(id="w-1")
    start_in("other")
    Chain.objects.filter(queue="other").update(due_at=timezone.now() - timedelta(seconds=90))
    register(queues=["other"])

    values, figures = facts.read_facts("default"), {queue.queue: queue for queue in queue_figures()}

    assert set(values[definitions.QUEUE_LAG]) == {(name,) for name in figures}
    assert 90 <= values[definitions.QUEUE_LAG]["other",] < 600
    assert values[definitions.QUEUE_BACKLOG]["other", "runs"] == figures["other"].due_runs == 1
    assert values[definitions.QUEUE_BACKLOG]["default", "activities"] == 0
    assert values[definitions.QUEUE_WORKERS]["other",] == 1
    assert values[definitions.QUEUE_WORKERS]["default",] == values[definitions.QUEUE_RUNNING]["default",] == 0


def test_human_tasks_and_schedules_that_are_late() -> None:
    for number in range(3):
        Asks.start(id=f"a-{number}")
    run_until_idle()
    values = facts.read_facts("default")
    assert (values[definitions.HUMAN_TASKS_OPEN], values[definitions.HUMAN_TASKS_OVERDUE]) == ({(): 3}, {(): 0})
    assert values[definitions.SCHEDULES_LATE] == {(): 0}

    now = timezone.now()
    HumanTask.objects.filter(workflow_id="a-1").update(due_at=now - timedelta(seconds=1))
    for name, late in (("a", 100), ("b", 300), ("c", -300)):
        Schedule.objects.create(
            name=name, workflow="facts.Waits", owner="code", specs=[], workflow_id="x", catch_up=timedelta(1),
            position=now, next_at=now - timedelta(seconds=late), created_at=now, changed_at=now,
        )  # fmt: skip
    values = facts.read_facts("default")
    assert values[definitions.HUMAN_TASKS_OVERDUE] == {(): 1}
    assert 300 <= values[definitions.SCHEDULES_LATE][()] < 400


def test_workers_by_state() -> None:
    register()
    register(drained_at=timezone.now())
    register(buried_at=timezone.now())
    register(expires_at=timezone.now() - timedelta(seconds=1))
    assert facts.read_facts("default")[definitions.WORKERS] == {("live",): 1, ("drained",): 1, ("late",): 2}


def test_names_beyond_the_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MAX_NAMES", 2)
    for name in ("a", "b", "c"):
        start_in(name)
    register(queues=["c"])
    assert set(facts.read_facts("default")[definitions.QUEUE_LAG]) == {("c",), ("a",)}


def test_the_oldest_live_worker_that_exports_metrics_samples_them(kept: KeptMetrics) -> None:
    storage = DjangoStorage()
    silent = register(exports_metrics=False)
    rows = [register() for _ in range(4)]
    assert Worker.objects.filter(exports_metrics=True).count() == 4

    def owners() -> list[bool]:
        return [row.samples_facts(storage) for row in rows]

    assert owners() == [True, False, False, False]
    assert not silent.samples_facts(storage)
    Worker.objects.filter(pk=rows[0].id).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert owners() == [False, True, False, False]
    Worker.objects.filter(pk=rows[1].id).update(drained_at=timezone.now())
    Worker.objects.filter(pk=rows[2].id).update(buried_at=timezone.now())
    assert owners() == [False, False, False, True]


def test_without_an_exporter_a_worker_is_no_candidate() -> None:
    register()
    assert not Worker.objects.get().exports_metrics


def test_a_sample_is_taken_by_the_sampler_and_no_more_often(kept: KeptMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    background_hooks.run_hooks("default")
    assert kept.facts == []
    recorder.set_sampler(samples=True)
    assert background_hooks.has_work("default")
    background_hooks.run_hooks("default")
    background_hooks.run_hooks("default")
    assert not background_hooks.has_work("default")
    assert len(kept.facts) == 1
    assert recorder.facts()[definitions.WORKERS] == {("live",): 0, ("drained",): 0, ("late",): 0}

    monkeypatch.setattr(facts, "_sampled_at", float("-inf"))
    recorder.set_sampler(samples=False)
    background_hooks.run_hooks("default")
    assert len(kept.facts) == 2, "only that they are dropped"
    assert kept.facts[-1] is None


def test_a_sample_that_fails_is_logged(
    kept: KeptMetrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(alias: str) -> Any:
        raise DatabaseError("statement timeout")

    monkeypatch.setattr(facts, "read_facts", fail)
    recorder.set_sampler(samples=True)
    background_hooks.run_hooks("default")
    assert not background_hooks.has_work("default")
    assert "the metrics of the database could not be sampled" in caplog.text


def test_a_worker_samples_the_facts_beside_its_work(kept: KeptMetrics) -> None:
    stop = threading.Event()
    Waits.start(id="w-1")
    thread = threading.Thread(target=WorkerLoop().run, args=[stop])
    thread.start()
    try:
        wait_for(lambda: recorder.facts().get(definitions.OPEN_RUNS) == {("facts.Waits", "open"): 1})
        assert recorder.facts()[definitions.WORKERS]["live",] == 1
        assert kept.of(definitions.WORKER_SLOTS)["threads", "free"] == 8
    finally:
        stop.set()
        thread.join()
    assert not recorder.samples_facts
    assert kept.facts[-1] is None


def test_the_age_of_the_outbox_and_its_dead_letters() -> None:
    now = timezone.now()
    rows = [
        Outbox(id=uuid7(), chain_id=uuid7(), destination="d", kind="k.k", body=b"{}", created_at=at, due_at=at)
        for at in (now - timedelta(seconds=100), now - timedelta(seconds=40), now + timedelta(days=1))
    ]
    rows[0].failed = {"code": "workflow_closed", "error": "closed", "at": now.isoformat()}
    Outbox.objects.bulk_create(rows)

    found = facts.read_facts("default")

    assert 40 <= found[definitions.OUTBOX_AGE][()] < 99
    assert found[definitions.OUTBOX_DEAD_LETTERS] == {(): 1.0}
    Outbox.objects.all().delete()
    assert facts.read_facts("default")[definitions.OUTBOX_AGE] == {(): 0.0}
