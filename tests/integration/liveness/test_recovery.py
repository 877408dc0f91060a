"""Who is dead, and who may say so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from django.db import OperationalError, ProgrammingError
from django.db.models import F

from temporalex_django import RetryPolicy, activity, errors
from temporalex_django.conf import codec, get_settings
from temporalex_django.core import process
from temporalex_django.db.inserts import StartedRun, insert_message, insert_start, update_outcome
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.engine.run_start import RunStart
from temporalex_django.liveness import recovery
from temporalex_django.liveness.crash_markers import (
    Kind,
    MarkedWork,
    MarkerSlot,
    marker_folder,
    open_marker,
    owner_state,
)
from temporalex_django.liveness.leases import Heartbeats, WorkerRow
from temporalex_django.liveness.process_identity import identity_of
from temporalex_django.liveness.recovery import judge_abandoned_markers, recover, release_activities, report_deaths
from temporalex_django.models import ActivityTask, Chain, Instance, Message, Worker
from temporalex_django.testing import DjangoEnvironment
from temporalex_django.workers.background_thread import retry_until_available
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from temporalex_django.workers.maintenance import Maintenance
from tests.support.runs import events, once
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def row(storage: DjangoStorage, *, marker: str = "", epoch: int | None = None) -> Worker:
    now = storage.now()
    return Worker.objects.create(
        id=uuid7(),
        epoch=token() if epoch is None else epoch,
        kind="worker",
        host="h",
        pid=1,
        process_identity=identity_of(),
        crash_marker=marker,
        queues=[],
        workflows={},
        session_lock=True,
        started_at=now,
        beat_at=now,
        expires_at=now + timedelta(seconds=60),
    )


@dataclass
class Clock:
    """The monotonic clock of this process, as far ahead as a test says."""

    ahead: float = 0.0

    def lease(self, number: float = 1.0) -> None:
        self.ahead += number * get_settings().LEASE_SECONDS


@pytest.fixture(autouse=True)
def _no_markers_of_others() -> None:
    """Processes that other tests killed leave markers, and a judge takes all of its database in one go."""
    judge_abandoned_markers(DjangoStorage(worker=True))


def test_a_slot_that_was_interrupted_before_it_was_acquired_releases_none(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    MarkerSlot.__new__(MarkerSlot)

    assert unraisable == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, monotonic = Clock(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + made.ahead)
    return made


def test_late_is_who_sends_no_heartbeat_for_a_lease_by_the_clock_of_the_judge(clock: Clock) -> None:
    storage, heartbeats = DjangoStorage(worker=True), Heartbeats()
    late, lively = row(storage), row(storage)

    assert not recover(storage, heartbeats)
    clock.lease(0.9)
    Worker.objects.filter(pk=lively.pk).update(beat_at=storage.now())
    assert not recover(storage, heartbeats)
    clock.lease(0.2)
    assert recover(storage, heartbeats).workers == [late.pk]


def test_a_step_of_the_clock_of_the_database_buries_nobody(clock: Clock) -> None:
    """Somebody sets it forward by an hour: all leases have expired by it, and everybody lives."""
    loop = WorkerLoop(inline=True)
    maintenance = Maintenance(loop)
    maintenance.register()
    other = row(loop.storage)
    try:
        maintenance.run_pass()
        hour = timedelta(hours=1)
        Worker.objects.update(
            started_at=F("started_at") - hour, beat_at=F("beat_at") - hour, expires_at=F("expires_at") - hour
        )
        maintenance.run_pass()
        clock.lease(0.5)
        maintenance.run_pass()
    finally:
        loop.marker.close()
    assert Worker.objects.filter(pk=other.pk, buried_at=None).exists()


@pytest.mark.parametrize("away", [False, True])
def test_who_could_not_beat_for_a_lease_begins_to_look_anew(away: bool, clock: Clock) -> None:
    """The database was away for everybody: who sent no heartbeat meanwhile may live as well as this one does."""
    loop = WorkerLoop(inline=True)
    maintenance = Maintenance(loop)
    maintenance.register()
    frozen = row(loop.storage, marker=loop.marker.path)  # it lives: it is this process
    try:
        maintenance.run_pass()
        for step in (2.0, 0.1) if away else (0.5, 0.5, 0.1):
            clock.lease(step)
            maintenance.run_pass()
    finally:
        loop.marker.close()
    assert Worker.objects.filter(pk=frozen.pk).exists() == away


def test_a_process_that_has_ended_here_is_dead_whatever_its_lease_says() -> None:
    storage = DjangoStorage(worker=True)
    ended = row(storage, marker=left_by_a_dead_process(storage))

    found = recover(storage, Heartbeats())
    assert found.workers == [ended.pk]
    assert not found.caution


def test_a_machine_of_the_same_snapshot_is_another_machine(clock: Clock) -> None:
    """Boot, process namespace and pid are those of a process that has ended here; its marker is not here."""
    storage, heartbeats = DjangoStorage(worker=True), Heartbeats()
    other = row(storage, marker=str(marker_folder() / f"{storage.domain}.none.marker"))
    Worker.objects.update(process_identity=identity_of().rpartition(":")[0] + ":1")

    assert not recover(storage, heartbeats)
    clock.lease()
    assert recover(storage, heartbeats).workers == [other.pk]


def test_a_marker_that_outlives_the_process_namespace_is_read() -> None:
    """A container is made anew, and its temporary folder is not."""
    storage = DjangoStorage(worker=True)
    run = started()
    row(storage, marker=left_by_a_dead_process(storage, ("chain", run.chain_id)))
    Worker.objects.update(process_identity="another-boot:1:1:1")

    assert recover(storage, Heartbeats())
    assert Chain.objects.get().crashes == 1


def test_children_of_a_fork_do_not_keep_their_parent_alive(tmp_path: Path) -> None:
    """The lock of a marker belongs to the process that made it."""
    code = (
        "import os, sys, time\n"
        "from temporalex_django.liveness.crash_markers import open_marker\n"
        "path = open_marker('fork').path\n"
        "os.fork() or time.sleep(600)\n"
        "print(path, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            path = parent.stdout.readline().strip()
            parent.wait(20)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tempfile, "tempdir", str(tmp_path))
                wait_for(lambda: owner_state(path) == "ended", what="the child to let go of the lock of its parent")
        finally:
            for child in Path("/proc").glob("[0-9]*/environ"):
                with suppress(OSError):
                    if f"TMPDIR={tmp_path}".encode() in child.read_bytes().split(b"\0"):
                        os.kill(int(child.parent.name), signal.SIGKILL)


def test_who_may_have_died_elsewhere_makes_careful_at_once(clock: Clock) -> None:
    """A worker elsewhere that sends heartbeats makes nobody careful, one that is late does before its lease is over."""
    storage, heartbeats = DjangoStorage(worker=True), Heartbeats()
    other = row(storage)

    assert recover(storage, heartbeats).caution == 1  # it may have died just now
    Worker.objects.update(beat_at=storage.now())
    assert recover(storage, heartbeats).caution == 0
    clock.lease(0.6)
    found = recover(storage, heartbeats)
    assert (found.caution, found.workers) == (1, [])
    clock.lease(0.5)
    assert recover(storage, heartbeats).workers == [other.pk]


def test_a_worker_that_lives_here_makes_nobody_careful(clock: Clock) -> None:
    storage, heartbeats = DjangoStorage(worker=True), Heartbeats()
    marker = open_marker(storage.domain)
    row(storage, marker=marker.path)
    try:
        assert recover(storage, heartbeats).caution == 0
        clock.lease(0.6)
        assert recover(storage, heartbeats).caution == 0
    finally:
        marker.close()


def test_a_death_that_nobody_can_explain_makes_careful_until_a_worker_has_outlived_it(clock: Clock) -> None:
    storage, heartbeats = DjangoStorage(worker=True), Heartbeats()
    row(storage)

    recover(storage, heartbeats)
    clock.lease()
    assert recover(storage, heartbeats).caution
    assert recover(storage, heartbeats).caution == 1
    clock.lease(4)
    assert recover(storage, heartbeats).caution == 1
    assert recover(storage, Heartbeats()).caution == 1
    clock.lease(2)
    recover(storage, heartbeats)
    assert not Worker.objects.exists()


def announcing(storage: DjangoStorage, *suspects: MarkedWork) -> WorkerRow:
    """A worker elsewhere that has announced these."""
    made = WorkerRow(kind="worker", queues=[], workflows={})
    made.register(storage)
    assert made.announce(storage, suspects)
    return made


@pytest.mark.parametrize(
    ("unexplained", "before", "after"), [(0, 0, 1), (1, 0, 1), (0, 1, 2), (1, 1, 3), (0, 2, 3)], ids=str
)
def test_a_run_that_was_announced_alone_is_blamed_and_one_death_before_counts_at_its_second(
    unexplained: int, before: int, after: int, clock: Clock
) -> None:
    """Earlier deaths are kept: those without an explanation are not forgotten until the killer is blocked."""
    storage, heartbeats = DjangoStorage(worker=True), Heartbeats()
    run = started()
    Chain.objects.update(crashes=before)
    for _ in range(unexplained):
        row(storage)
    Worker.objects.update(buried_at=storage.now())
    dead = announcing(storage, MarkedWork("chain", run.chain_id))

    recover(storage, heartbeats)
    clock.lease()
    assert recover(storage, heartbeats).workers == [dead.id]

    assert Chain.objects.get().crashes == after
    assert bool(Instance.objects.get().blocked) == (after == 3)
    assert Worker.objects.count() == (unexplained if after < 3 or not before or before == 2 else 0)


def test_an_activity_on_trial_elsewhere_is_blamed_and_what_it_had_beside_it_is_not(clock: Clock) -> None:
    storage, heartbeats = DjangoStorage(worker=True), Heartbeats()
    env = DjangoEnvironment()
    for _ in range(2):
        env.start(once(lambda: charged_once_more(5)))
    env.hold(charged_once_more)
    env.advance(0)
    one, _ = ActivityTask.objects.order_by("id")
    ActivityTask.objects.update(crashes=1)
    dead = announcing(storage, MarkedWork("trial", one.pk))
    ActivityTask.objects.update(owner=dead.epoch)

    recover(storage, heartbeats)
    clock.lease()
    recover(storage, heartbeats)
    assert [task.crashes for task in ActivityTask.objects.order_by("id")] == [2, 1]


def test_a_run_on_the_row_of_another_worker_is_not_announced_again(clock: Clock) -> None:
    """Its worker runs it, or has died of it: whoever began it as well would die of it, too."""
    storage = DjangoStorage(worker=True)
    suspect = MarkedWork("chain", started().chain_id)
    first, second = announcing(storage, suspect), announcing(storage)

    assert not second.announce(storage, [suspect])
    assert first.announce(storage, ())
    assert second.announce(storage, [suspect])
    Worker.objects.filter(pk=second.id).update(buried_at=storage.now())
    assert first.announce(storage, [suspect])
    assert not second.announce(storage, [suspect])  # it is taken for dead


def test_a_careful_worker_does_not_begin_what_stands_on_the_row_of_another_one(clock: Clock) -> None:
    loop = WorkerLoop(inline=True)
    maintenance = Maintenance(loop)
    maintenance.register()
    suspect = started()
    innocent = insert_start(RunStart(workflow="Tally", args=None, workflow_id="u"), storage=loop.storage)
    other = announcing(loop.storage, MarkedWork("chain", suspect.chain_id))
    begun = Instance.objects.filter(started_at__isnull=False)
    try:
        maintenance.run_pass()
        assert loop.poller.caution
        loop.poll()
        assert [run.pk for run in begun.all()] == [innocent.run_id]
        assert Worker.objects.get(pk=loop.row.id).trying is None
        other.announce(loop.storage, ())
        clock.lease()  # so long it leaves it alone at most
        loop.poll()
        assert begun.all().count() == 2
    finally:
        loop.marker.close()


# -- blame -------------------------------------------------------------------------------------------------------------


def left_by_a_dead_process(storage: DjangoStorage, *marks: tuple[Kind, UUID | int]) -> str:
    """The marker of a process that ended while it ran these."""
    marker = open_marker(storage.domain)
    notes = [MarkerSlot(marker) for _ in marks]
    for one, mark in zip(notes, marks, strict=True):
        one.record(*mark)
    path = Path(marker.path).with_name(f"{storage.domain}.{identity_of().replace(':', '.')}.{token()}.marker")
    shutil.copy(marker.path, path)
    for one in notes:
        one.clear()
    marker.close()
    return str(path)


def started() -> StartedRun:
    return insert_start(
        RunStart(workflow="Tally", args=None, workflow_id="t", execution_timeout=3600.0), storage=DjangoStorage()
    )


def test_a_marker_that_a_worker_names_is_read_once_by_who_buries_it() -> None:
    storage = DjangoStorage(worker=True)
    run = started()
    path = left_by_a_dead_process(storage, ("chain", run.chain_id))
    dead = row(storage, marker=path)

    judge_abandoned_markers(storage)
    assert Chain.objects.get().crashes == 0
    assert recover(storage, Heartbeats()).workers == [dead.pk]
    judge_abandoned_markers(storage)
    assert Chain.objects.get().crashes == 1


def test_a_guardian_reports_what_its_worker_died_of() -> None:
    storage = DjangoStorage(worker=True)
    run = started()
    row(storage, marker=left_by_a_dead_process(storage, ("chain", run.chain_id)))
    elsewhere = row(storage)

    report_deaths(storage)
    assert Chain.objects.get().crashes == 1
    assert [worker.pk for worker in Worker.objects.all()] == [elsewhere.pk]


def test_a_guardian_whose_database_is_away_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> None:
        raise OperationalError("the server is gone")

    monkeypatch.setattr(recovery, "recover", away)
    report_deaths(DjangoStorage(worker=True))
    assert "could not record the cause of a worker's death" in caplog.text


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
        row(storage, marker=path)

    def reached(point: str) -> None:
        if point == f"{site}: after commit":
            raise Killed

    def judged() -> None:
        recover(storage, Heartbeats())
        judge_abandoned_markers(storage)

    with monkeypatch.context() as patch:
        patch.setattr(process, "reached", reached)
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

    judge_abandoned_markers(storage)

    chain = Chain.objects.get()
    assert chain.crashes == 1
    assert (chain.due_at > before) == put_off


def test_at_the_third_death_a_run_is_blocked_until_its_deadline_and_no_new_worker_wakes_it() -> None:
    storage = DjangoStorage(worker=True)
    run = started()
    Chain.objects.update(crashes=2)
    left_by_a_dead_process(storage, ("chain", run.chain_id))

    judge_abandoned_markers(storage)
    assert Instance.objects.get().blocked["code"] == "crash"
    assert Chain.objects.get().due_at == Chain.objects.get().deadline
    assert WorkerRow(kind="worker", queues=["default"], workflows={"Tally": [1]}).register(storage) == 0
    assert Chain.objects.get().due_at == Chain.objects.get().deadline


@pytest.mark.parametrize("limit", [None, 3600.0])
def test_who_updates_a_run_that_ends_processes_is_refused_and_its_code_is_left_alone(limit: float | None) -> None:
    """Tried whenever somebody sends it something, it would end one worker after the other."""
    storage = DjangoStorage(worker=True)
    new = RunStart(workflow="Tally", args=None, workflow_id="t", execution_timeout=limit)
    run = insert_start(new, storage=storage)
    insert_message(run.chain_id, kind="update", name="add", body=1, request_id="before", storage=storage)
    Chain.objects.update(crashes=2)
    left_by_a_dead_process(storage, ("chain", run.chain_id))

    judge_abandoned_markers(storage)
    insert_message(run.chain_id, kind="update", name="add", body=1, request_id="behind", storage=storage)
    insert_message(run.chain_id, kind="signal", name="stop", body=None, storage=storage)
    run_until_idle(timeout=20)

    for sent in ("before", "behind"):
        outcome = update_outcome(run.chain_id, sent, storage=storage)
        assert outcome is not None
        assert (outcome.status, outcome.value["code"]) == ("rejected", "blocked")
        assert "3 processes in a row died" in outcome.value["reason"]
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
    (task,) = env._held_tasks
    assert task.attempt == 2
    if not readable:
        monkeypatch.setattr(recovery, "codec", KeylessCodec)
    if deaths == 3:
        ActivityTask.objects.update(owner=None, crashes=2)
        left_by_a_dead_process(env.storage, ("task", task.id))
        judge_abandoned_markers(env.storage)
    else:
        with env.storage.transaction():
            assert release_activities(env.storage, task.owner or 0) == (0, 1)
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
        retry_until_available(wrong, storage=DjangoStorage(), stop=threading.Event(), timeout=5.0)
