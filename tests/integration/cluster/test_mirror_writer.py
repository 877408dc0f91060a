"""The threads that write the rows of runs on a cluster: no run waits for another one's locks or signals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from temporalex_django import signals
from temporalex_django.backends.cluster import mirror, mirror_writer
from temporalex_django.backends.cluster.mirrored_run import MirroredFacts, ObservedRun
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Chain, Instance
from tests.support.observations import Observations
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 30


@pytest.fixture
def writer() -> Iterator[mirror_writer.MirrorWriter]:
    made = mirror_writer.MirrorWriter("default")
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def new_run(workflow_id: str) -> Observations:
    """A run whose first activation is in the rows."""
    run = Observations(workflow_id)
    mirror.write(run.see(1, at=0), storage=DjangoStorage(), restores=True)
    return run


def test_an_activation_does_not_wait_for_the_receivers_of_signals(
    writer: mirror_writer.MirrorWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "WAIT_SECONDS", SECONDS)
    run, others = new_run("slow"), [new_run("one"), new_run("two")]
    may_go_on, states = threading.Event(), []

    def receive(state: Any, **_: Any) -> None:
        may_go_on.wait(SECONDS)
        states.append((state, threading.current_thread().name))

    signals.state_published.connect(receive)
    try:
        for observations in (run, *others):
            writer.observe(observations.see(2, at=1, published=observations.info.id))
        assert states == []
        assert Instance.objects.exclude(published=None).count() == 3
        may_go_on.set()
        wait_for(lambda: len(states) == 3)
    finally:
        may_go_on.set()
        signals.state_published.disconnect(receive)
    assert [state for state, _ in states] == ["slow", "one", "two"]
    assert {name for _, name in states} == {"temporalex-mirror-signals"}


def test_a_locked_run_keeps_no_other_one_waiting(
    writer: mirror_writer.MirrorWriter, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "_TRY_SECONDS", SECONDS)
    monkeypatch.setattr(mirror_writer, "WAIT_SECONDS", SECONDS)
    locked, other = new_run("locked"), new_run("other")
    write, is_locked, waits = mirror.write, [True], []

    def meet_lock(*runs: ObservedRun, **options: Any) -> Any:
        free = [run for run in runs if run.run_id != locked.run_id or not is_locked[0]]
        errors = write(*free, **options)
        if len(free) < len(runs):
            waits.append(options["wait"])
            errors[locked.run_id] = mirror.MirrorBusy("another transaction has locked it")
        return errors

    monkeypatch.setattr(mirror, "write", meet_lock)
    first = pool.submit(writer.observe, locked.see(2, at=1, published=1))
    wait_for(lambda: len(waits) > 1)
    writer.observe(other.see(2, at=1, published=1))
    assert not first.done()
    is_locked[0] = False
    first.result(SECONDS)
    assert set(waits) == {0.0}
    assert Instance.objects.exclude(published=None).count() == 2


def test_rows_that_stay_locked_fail_their_activation(
    writer: mirror_writer.MirrorWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "_TRY_SECONDS", 0.1)
    monkeypatch.setattr(mirror_writer, "WAIT_SECONDS", SECONDS)

    def meet_lock(*runs: ObservedRun, **options: Any) -> Any:
        raise mirror.MirrorBusy("another transaction has locked it")

    monkeypatch.setattr(mirror, "write", meet_lock)
    with pytest.raises(mirror.MirrorBusy):
        writer.observe(Observations().see(1, at=0))


def test_a_failure_that_a_later_activation_has_mended_leaves_no_mark(
    writer: mirror_writer.MirrorWriter, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it waits until a commit is over, and is done together."""
    monkeypatch.setattr(mirror_writer, "WAIT_SECONDS", SECONDS)
    mended, broken = new_run("mended"), new_run("broken")
    has_begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        may_end.wait(SECONDS)

    commit = pool.submit(writer.call, hold)
    assert has_begun.wait(SECONDS)
    writer.note_failure(mended.run_id, KeyError("no"))
    written = [pool.submit(writer.observe, run.see(2, at=1)) for run in (mended, broken)]
    wait_for(lambda: writer._thread.items.qsize() == 3)
    writer.note_failure(broken.run_id, KeyError("no"))
    may_end.set()
    for done in (commit, *written):
        done.result(SECONDS)
    writer.call(lambda: None)
    assert mended.row().blocked is None
    assert (broken.row().blocked or {}).get("error") == "KeyError: 'no'"


def test_two_workers_that_see_a_foreign_run_at_once_write_one_chain(
    writer: mirror_writer.MirrorWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither finds a row of the run, and the second one learns of the first when it has inserted its own."""
    monkeypatch.setattr(mirror_writer, "WAIT_SECONDS", SECONDS)
    run = Observations(facts=MirroredFacts(version=1))
    run.write(DjangoStorage(), 1, at=0)
    find, looks = mirror._chain_of, []

    def find_late(observed: ObservedRun, storage: DjangoStorage) -> Any:
        looks.append(observed)
        return None if len(looks) <= 1 else find(observed, storage)

    monkeypatch.setattr(mirror, "_chain_of", find_late)
    writer.observe(run.see(2, at=1, published="both"))
    assert (Chain.objects.count(), len(looks)) == (1, 2)
    assert run.row().published is not None


def test_rows_follow_a_cluster_that_was_restored_from_a_backup() -> None:
    """Only ``sync`` tells when it has read the cluster. What a worker has written since then stays."""
    run, storage = new_run("restored"), DjangoStorage()
    yesterday = run.see(2, at=1, published="yesterday")
    run.write(storage, 5, at=4, published="today")
    read_at = storage.now()
    mirror.write(yesterday, storage=storage, restores=True)
    assert run.row().published_state == "today"
    mirror.write(yesterday, storage=storage, restores=True, read_at=read_at)
    assert run.row().published_state == "yesterday"
    assert Chain.objects.get().activations == 2
    run.write(storage, 3, at=2, published="since then")
    mirror.write(yesterday, storage=storage, restores=True, read_at=read_at)
    assert run.row().published_state == "since then"
    run.write(storage, 6, at=5, closing="WorkflowCompleted", result=1)
    mirror.write(yesterday, storage=storage, restores=True, read_at=storage.now())
    assert run.row().is_open
    with storage.transaction():
        mirror.close(Chain.objects.get().pk, "terminated", {"reason": "no"}, storage=storage)
    mirror.write(yesterday, storage=storage, restores=True, read_at=storage.now())
    assert run.row().status == "terminated"
