"""Who is dead, and who may say so."""

from __future__ import annotations

import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from django.db import ProgrammingError

from temporalex_django import RetryPolicy, activity, errors
from temporalex_django.conf import codec, get_settings
from temporalex_django.core import crash_points
from temporalex_django.db.starts import NewStart, Started, insert_message, insert_start, update_outcome
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.liveness import recovery
from temporalex_django.liveness.crash_markers import Kind, Mark, open_marker
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.liveness.process_identity import identity_of
from temporalex_django.liveness.recovery import judge_abandoned, recover, release
from temporalex_django.models import ActivityTask, Chain, Instance, Message, Worker
from temporalex_django.testing import DjangoEnvironment
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from temporalex_django.workers.maintenance import Maintenance
from temporalex_django.workers.patience import once_there
from tests.support.runs import events, once

pytestmark = pytest.mark.django_db(transaction=True)


def row(storage: DjangoStorage, *, identity: str, late: bool) -> Worker:
    now = storage.now()
    return Worker.objects.create(
        id=uuid7(),
        epoch=token(),
        kind="worker",
        host="h",
        pid=1,
        process_identity=identity,
        queues=[],
        workflows={},
        session_lock=True,
        started_at=now,
        beat_at=now,
        expires_at=now + timedelta(seconds=-1 if late else 60),
    )


def test_who_has_not_lived_for_a_lease_buries_nobody_by_his() -> None:
    """After an outage of the database every lease has expired: survivors must not bury each other."""
    storage = DjangoStorage(worker=True)
    frozen = row(storage, identity=identity_of(), late=True)  # it lives: it is this process
    lease = get_settings().LEASE_SECONDS

    assert not recover(storage, lived=0.0)
    assert not recover(storage, lived=lease - 0.1)
    assert recover(storage, lived=lease).workers == [frozen.pk]
    assert not Worker.objects.exists()


@pytest.mark.parametrize("away", [False, True])
def test_who_could_not_beat_for_a_lease_begins_to_live_anew(away: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database was away for everybody: whose lease has expired may live as well as this one does."""
    loop = WorkerLoop(inline=True)
    maintenance = Maintenance(loop)
    maintenance.register()
    frozen = row(loop.storage, identity=identity_of(), late=True)
    lease, clock = get_settings().LEASE_SECONDS, time.monotonic
    gone, step = [0.0], 2.0 * lease if away else lease / 2
    monkeypatch.setattr(time, "monotonic", lambda: clock() + gone[0])
    try:
        for gone[0] in (step, 2 * step, 2 * step + 0.1):
            maintenance.tend()
    finally:
        monkeypatch.undo()
        loop.marker.close()
    assert Worker.objects.filter(pk=frozen.pk).exists() == away


def test_a_process_that_has_ended_is_dead_whatever_its_lease_says() -> None:
    storage = DjangoStorage(worker=True)
    ended = row(storage, identity=identity_of().rpartition(":")[0] + ":1", late=False)

    found = recover(storage, lived=0.0)
    assert found.workers == [ended.pk]
    assert found.caution == 1  # it left no marker


def test_a_death_that_nobody_can_explain_makes_careful_until_a_worker_has_outlived_it() -> None:
    storage = DjangoStorage(worker=True)
    row(storage, identity="elsewhere:1:1", late=True)
    lease = get_settings().LEASE_SECONDS

    assert recover(storage, lived=0.0).caution == 1
    assert recover(storage, lived=lease).caution
    assert recover(storage, lived=lease).caution == 1
    Worker.objects.update(buried_at=storage.now() - timedelta(seconds=6 * lease))
    recover(storage, lived=lease)
    assert Worker.objects.exists()
    recover(storage, lived=6 * lease)
    assert not Worker.objects.exists()


# -- blame -------------------------------------------------------------------------------------------------------------


def left_by_a_dead_process(storage: DjangoStorage, *marks: tuple[Kind, UUID | int]) -> str:
    """The marker of a process that ended while it ran these."""
    marker = open_marker(storage.domain)
    notes = [Mark(marker) for _ in marks]
    for one, mark in zip(notes, marks, strict=True):
        one.note(*mark)
    path = Path(marker.path).with_name(
        f"{storage.domain}.{identity_of().rpartition(':')[0].replace(':', '.')}.1.marker"
    )
    shutil.copy(marker.path, path)
    for one in notes:
        one.clear()
    marker.close()
    return str(path)


def started() -> Started:
    return insert_start(
        NewStart(workflow="Tally", args=None, workflow_id="t", execution_timeout=3600.0), storage=DjangoStorage()
    )


def test_a_marker_that_a_worker_names_is_read_once_by_who_buries_it() -> None:
    storage = DjangoStorage(worker=True)
    run = started()
    path = left_by_a_dead_process(storage, ("chain", run.chain_id))
    dead = row(storage, identity=identity_of().rpartition(":")[0] + ":1", late=False)
    Worker.objects.update(crash_marker=path)

    judge_abandoned(storage)
    assert Chain.objects.get().crashes == 0
    assert recover(storage).workers == [dead.pk]
    judge_abandoned(storage)
    assert Chain.objects.get().crashes == 1


class Killed(BaseException):
    """As SIGKILL: nothing behind it is done."""


@pytest.mark.parametrize("site", ["bury", "marker"])
def test_a_death_counts_once_also_when_its_judge_dies_behind_his_commit(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An activity would fail as lost after two deaths, and a run be blocked."""
    storage = DjangoStorage(worker=True)
    run = started()
    path = left_by_a_dead_process(storage, ("chain", run.chain_id))
    if site == "bury":
        row(storage, identity=identity_of().rpartition(":")[0] + ":1", late=False)
        Worker.objects.update(crash_marker=path)

    def reached(point: str) -> None:
        if point == f"{site}: after commit":
            raise Killed

    def judged() -> None:
        recover(storage)
        judge_abandoned(storage)

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "reached", reached)
        with pytest.raises(Killed):
            judged()
    assert Chain.objects.get().crashes == 1
    judged()
    assert Chain.objects.get().crashes == 1
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("kind", "attempt", "put_off"), [("chain", 0, True), ("chain", 2, False), ("run", 0, False)], ids=str
)
def test_who_killed_a_process_comes_back_later_unless_it_waits_already(kind: Kind, attempt: int, put_off: bool) -> None:
    storage = DjangoStorage(worker=True)
    run = started()
    Chain.objects.update(failed_tries=attempt)
    before = Chain.objects.get().due_at
    left_by_a_dead_process(storage, (kind, run.chain_id if kind == "chain" else run.run_id))

    judge_abandoned(storage)

    chain = Chain.objects.get()
    assert chain.crashes == 1
    assert (chain.due_at > before) == put_off


def test_at_the_third_death_a_run_is_blocked_until_its_deadline_and_no_new_worker_wakes_it() -> None:
    storage = DjangoStorage(worker=True)
    run = started()
    Chain.objects.update(crashes=2)
    left_by_a_dead_process(storage, ("chain", run.chain_id))

    judge_abandoned(storage)
    assert Instance.objects.get().blocked["code"] == "crash"
    assert Chain.objects.get().due_at == Chain.objects.get().deadline
    assert WorkerRow(kind="worker", queues=["default"], workflows={"Tally": [1]}).register(storage) == 0
    assert Chain.objects.get().due_at == Chain.objects.get().deadline


@pytest.mark.parametrize("limit", [None, 3600.0])
def test_who_updates_a_run_that_ends_processes_is_refused_and_its_code_is_left_alone(limit: float | None) -> None:
    """Tried whenever somebody sends it something, it would end one worker after the other."""
    storage = DjangoStorage(worker=True)
    new = NewStart(workflow="Tally", args=None, workflow_id="t", execution_timeout=limit)
    run = insert_start(new, storage=storage)
    insert_message(run.chain_id, kind="update", name="add", body=1, request_id="before", storage=storage)
    Chain.objects.update(crashes=2)
    left_by_a_dead_process(storage, ("chain", run.chain_id))

    judge_abandoned(storage)
    insert_message(run.chain_id, kind="update", name="add", body=1, request_id="behind", storage=storage)
    insert_message(run.chain_id, kind="signal", name="stop", body=None, storage=storage)
    run_until_idle(timeout=20)

    for sent in ("before", "behind"):
        outcome = update_outcome(run.chain_id, sent, storage=storage)
        assert outcome is not None
        assert (outcome.status, outcome.value["code"]) == ("rejected", "blocked")
        assert "3 processes in a row ended" in outcome.value["reason"]
    assert (Instance.objects.get().started_at, Chain.objects.get().crashes) == (None, 3)
    assert not Message.objects.filter(fresh=True).exists(), "a worker would look at it again and again"


def test_a_new_worker_does_not_wake_a_run_that_is_paused() -> None:
    storage = DjangoStorage(worker=True)
    started()
    Chain.objects.update(paused=True, failed_tries=1, due_at=None)
    Instance.objects.update(blocked={"code": "unknown_workflow", "error": "", "since": "", "attempt": 1})

    assert WorkerRow(kind="worker", queues=["default"], workflows={"Tally": [1]}).register(storage) == 0
    assert Chain.objects.get().due_at is None


# -- what is lost ------------------------------------------------------------------------------------------------------


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=60))
def charged_once_more(amount: int) -> int:
    raise ConnectionError("refused")


class KeylessCodec:
    def encode(self, value: object) -> bytes:
        return codec().encode(value)

    def decode(self, stored: bytes) -> object:
        raise errors.KeyMissing("old")


@pytest.mark.parametrize(("deaths", "readable"), [(1, True), (3, True), (1, False)])
def test_an_edited_activity_whose_worker_dies_at_last_says_with_what_it_was_tried(
    deaths: int, readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DjangoEnvironment()
    h = env.start(once(lambda: charged_once_more(5)))
    env.hold(charged_once_more)
    h.retry_activity(1, input=[7])
    (task,) = env._held
    assert task.attempt == 2
    if not readable:
        monkeypatch.setattr(recovery, "codec", KeylessCodec)
    if deaths == 3:
        ActivityTask.objects.update(owner=None, crashes=2)
        left_by_a_dead_process(env.storage, ("task", task.id))
        judge_abandoned(env.storage)
    else:
        with env.storage.transaction():
            assert release(env.storage, task.owner or 0) == (0, 1)
    env.advance(0)

    (failed,) = events(h, "ActivityFailed")
    assert failed["type"] == "WorkerLost"
    told = {"args": [7], "kwargs": {}, "key": f"{h.run_id}:1:1", "by": None}
    assert failed.get("edited") == (told if readable else None)  # who waits hears of the end in any case


# -- waiting for the database ------------------------------------------------------------------------------------------


def test_only_a_database_that_is_away_is_waited_for() -> None:
    def wrong() -> None:
        raise ProgrammingError("no such table")

    with pytest.raises(ProgrammingError):
        once_there(wrong, storage=DjangoStorage(), stop=threading.Event(), timeout=5.0)
