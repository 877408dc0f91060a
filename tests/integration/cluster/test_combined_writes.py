"""Rows that change only which activities a run waits for are written with the next ones, and none stays behind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

from temporalex_django import NoReply, Ok, Reply, Stop, Workflow, activity, api
from temporalex_django.backends.cluster import mirror, mirror_writer, reconcile
from temporalex_django.backends.cluster.mirror_writer import MirrorWriter
from temporalex_django.backends.cluster.mirrored_run import ObservedRun
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Chain, LostWorker
from tests.support.observations import BEGIN, Observations
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = f"cluster-combined-{uuid.uuid4().hex[:8]}"
LONG = 3600.0


@pytest.fixture
def writer() -> Iterator[MirrorWriter]:
    made = MirrorWriter("default", combines=True)
    yield made
    made.close()


@pytest.fixture
def run() -> Observations:
    """A run whose first activation is in the rows."""
    made = Observations("combined")
    mirror.write(made.see(1, at=0), storage=DjangoStorage(), restores=True)
    return made


def event(number: int) -> HistoryEvent:
    return HistoryEvent(number, number, "ActivityScheduled", BEGIN, {})


def activations() -> int:
    return Chain.objects.get().activations


def test_rows_are_written_with_those_of_the_next_activation(
    writer: MirrorWriter, run: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "_SOON", LONG)
    seen: list[ObservedRun] = []
    write = mirror.write

    def keep(*runs: ObservedRun, **options: Any) -> Any:
        seen.extend(runs)
        return write(*runs, **options)

    monkeypatch.setattr(mirror, "write", keep)
    for number in (2, 3):
        writer.observe_soon(replace(run.see(number, at=number), events=[event(number)]))
    assert activations() == 1
    writer.observe(replace(run.see(4, at=4), events=[event(4)]))
    assert activations() == 4
    assert [[e.number for e in observed.events] for observed in seen] == [[2, 3, 4]]


def test_rows_are_written_soon_and_at_the_end_of_the_worker(
    writer: MirrorWriter, run: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.observe_soon(run.see(2, at=1))
    wait_for(lambda: activations() == 2)
    monkeypatch.setattr(mirror_writer, "_SOON", LONG)
    writer.observe_soon(run.see(3, at=2))
    writer.close()
    assert activations() == 3


def test_a_failure_of_the_task_behind_such_rows_stays_marked(
    writer: MirrorWriter, run: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "_SOON", LONG)
    writer.observe_soon(run.see(2, at=1))
    writer.note_failure(run.run_id, ValueError("why"))
    wait_for(lambda: run.row().blocked)
    assert activations() == 2


def test_runs_wait_for_a_database_that_takes_no_rows(
    writer: MirrorWriter, run: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "_SOON", 0.01)
    write, is_away = mirror.write, [True]

    def refuse(*runs: ObservedRun, **options: Any) -> Any:
        if is_away[0]:
            raise OperationalError("away")
        return write(*runs, **options)

    monkeypatch.setattr(mirror, "write", refuse)
    writer.observe_soon(run.see(2, at=1))
    wait_for(writer._is_late)
    monkeypatch.setattr(mirror_writer, "_TRY_SECONDS", 0.0)
    with pytest.raises(OperationalError):
        writer.observe_soon(run.see(3, at=2))
    is_away[0] = False
    writer.observe_soon(run.see(3, at=2))
    assert activations() == 3
    assert not writer._is_late()


def test_a_worker_without_a_row_writes_at_once(run: Observations) -> None:
    writer = MirrorWriter("default")
    writer.observe_soon(run.see(2, at=1))
    assert activations() == 2
    writer.close()


def test_runs_of_a_lost_worker_are_compared_once(run: Observations, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, asked = DjangoStorage(), []
    old = Observations("old")
    mirror.write(old.see(1, at=0), storage=storage, restores=True)
    row = old.row()
    row.mirrored_at -= timedelta(minutes=1)
    row.save()

    def rebuild(infos: Any) -> list[ObservedRun]:
        asked.append([info.execution.run_id for info in infos])
        return [run.see(2, at=1)] if infos else []

    monkeypatch.setattr(reconcile, "_rebuild", rebuild)
    notes: dict[str, Any] = {}
    reconcile.Comparison(storage).look_at_lost(notes)
    assert (asked, activations_of(run)) == ([], 1)
    now = storage.now()
    fields = {"name": "w", "kind": "worker", "queues": [], "held_activities": [], "released_by": "other"}
    lost = LostWorker.objects.create(epoch=7, started_at=now, beat_at=now, lost_at=storage.now(), **fields)
    for _ in range(2):
        reconcile.Comparison(storage).look_at_lost(notes)
        assert (asked, activations_of(run), notes) == ([[run.run_id]], 2, {"lost": [lost.pk]})


def activations_of(run: Observations) -> int:
    return run.row().chain.activations


# -- on a server ------------------------------------------------------------------------------------------------------


@activity
def one_step() -> int:
    return 1


class CombinedSteps(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        for _ in range(3):
            await one_step()
        api.publish_state("half")
        await one_step()
        await one_step()
        signals = {"go": lambda _, state: Stop(state), "note": lambda _, state: NoReply(state)}
        return Ok(await api.phase(1, signal=signals, update={"show": self.show}))

    def show(self, args: Any, state: int) -> Any:
        if args:
            api.publish_state(args)
        return Reply(state, state)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The methods by which the writer gets activations, with their numbers."""
    calls: list[tuple[str, int]] = []
    for name in ("observe", "observe_soon"):
        call = getattr(MirrorWriter, name)

        def keep(self: MirrorWriter, observed: ObservedRun, *, name: str = name, call: Any = call) -> None:
            calls.append((name, observed.activation))
            call(self, observed)

        monkeypatch.setattr(MirrorWriter, name, keep)
    return calls


def test_activations_are_combined_that_change_nothing_for_others(
    cluster: Any, start_worker: Any, seen: list[tuple[str, int]]
) -> None:
    with start_worker():
        run = CombinedSteps.start(None, id=f"combined-{uuid.uuid4().hex[:8]}")
        wait_for(lambda: run.describe().accepts["signals"])
        assert run.update("show") == 1
        run.signal("note")
        wait_for(lambda: any(number == 8 for _, number in seen))
        assert run.update("show", "all") == 1
        run.signal("go")
        assert run.result(timeout=20) == 1
    soon = [number for name, number in seen if name == "observe_soon"]
    at_once = [number for name, number in seen if name == "observe"]
    # 4 publishes, 6 opens the phase, 9 publishes, and 10 ends the run.
    assert (soon, at_once) == ([1, 2, 3, 5, 7, 8], [4, 6, 9, 10])


@activity(queue=f"{QUEUE}-of-nobody")
def one_step_of_nobody() -> None: ...


class CombinedWaits(Workflow):
    task_queue = QUEUE
    signals = ("a", "b")

    async def run(self, args: Any) -> Any:
        return Ok(await api.parallel([one_step_of_nobody(), self.wait()]))

    async def wait(self) -> None:
        await api.wait_for_signal("a")
        await api.wait_for_signal("b")


def test_other_waits_of_a_run_with_an_activity_are_written_at_once(
    cluster: Any, start_worker: Any, seen: list[tuple[str, int]]
) -> None:
    with start_worker():
        run = CombinedWaits.start(None, id=f"waits-{uuid.uuid4().hex[:8]}")
        wait_for(lambda: seen)
        run.signal("a")
        wait_for(lambda: len(seen) == 2)
        run.terminate()
    assert seen[1] == ("observe", 2)
