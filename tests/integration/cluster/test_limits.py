"""Limits of queues, activities and keys hold for attempts on a cluster, over all workers and both backends."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.backends.cluster import permits as cluster_permits
from temporalex_django.backends.host import host
from temporalex_django.db.claims import permits
from temporalex_django.liveness.recovery import release_orphans
from temporalex_django.models import Limit, Permit, Worker
from temporalex_django.workers.loop import run_until_idle
from tests.support.cluster_worker import running_worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-limits-{uuid.uuid4().hex[:8]}"


class Meter:
    """Counts the attempts that run at a time, by key, and the times at which they started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running: dict[str, int] = {}
        self.highest: dict[str, int] = {}
        self.starts: list[float] = []

    def reset(self) -> None:
        for values in (self.running, self.highest, self.starts):
            values.clear()

    def attend(self, key: str, seconds: float) -> None:
        with self._lock:
            self.starts.append(time.monotonic())
            for name in (key, "all"):
                self.running[name] = self.running.get(name, 0) + 1
                self.highest[name] = max(self.highest.get(name, 0), self.running[name])
        time.sleep(seconds)  # it is busy
        with self._lock:
            for name in (key, "all"):
                self.running[name] -= 1


meter = Meter()


@activity
def attend_limited(key: str, seconds: float) -> str:
    meter.attend(key, seconds)
    return key


@activity(concurrency=2)
def attend_two(key: str, seconds: float) -> str:
    meter.attend(key, seconds)
    return key


class LimitedFan(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        call = attend_two if args.get("own") else attend_limited
        calls = [
            call.options(concurrency_key=key)(key, args["seconds"]) if args.get("keyed") else call(key, args["seconds"])
            for key in args["keys"]
        ]
        await api.parallel(calls)
        return Ok(len(calls))


class LimitedFanHere(LimitedFan):
    backend = "tables"
    task_queue = QUEUE


@pytest.fixture(autouse=True)
def new_meter() -> None:
    meter.reset()


@pytest.fixture
def limit(settings: Any, cluster: Any) -> Callable[..., None]:
    """A function that sets the limits of the queue."""

    def set_limits(**options: Any) -> None:
        settings.TEMPORALEX = {**settings.TEMPORALEX, "QUEUES": {QUEUE: options}}

    return set_limits


@pytest.fixture
def two_workers(limit: Any) -> Iterator[Callable[[], None]]:
    """A function that starts two workers for the queue, after the limits are set. They have rows, so they live."""

    def start() -> None:
        now = timezone.now()
        for epoch, name in ((1, "first"), (2, "second")):
            Worker.objects.create(
                id=uuid.uuid4(),
                epoch=epoch,
                kind="worker",
                host="test",
                pid=0,
                queues=[],
                workflows={},
                started_at=now,
                beat_at=now,
                expires_at=now + timedelta(hours=1),
            )
            stack.enter_context(running_worker(QUEUE, name=name, epoch=epoch))

    with ExitStack() as stack:
        yield start


def fan(keys: str, seconds: float, cls: Any = LimitedFan, **options: Any) -> Any:
    return cls.start({"keys": list(keys), "seconds": seconds, **options}, id=f"fan-{uuid.uuid4().hex[:6]}")


def storage() -> Any:
    return host().storage()


def test_a_queue_runs_so_many_attempts_at_a_time_in_two_workers(limit: Any, two_workers: Any) -> None:
    limit(concurrency=2)
    two_workers()

    assert fan("abcdefgh", 0.1).result(timeout=60) == 8

    assert meter.highest["all"] == 2
    wait_for(lambda: not Permit.objects.filter(started=True).exists())


def test_without_limits_nothing_is_counted(limit: Any, two_workers: Any) -> None:
    two_workers()

    assert fan("abcd", 0.2).result(timeout=60) == 4

    assert meter.highest["all"] > 2
    assert not Permit.objects.exists()
    assert not Limit.objects.exists()


def test_a_rate_bounds_the_starts_of_every_period(limit: Any, two_workers: Any) -> None:
    limit(rate="3/s")
    two_workers()

    assert fan("abcdefgh", 0.0).result(timeout=60) == 8

    starts = sorted(meter.starts)
    assert all(later - earlier >= 0.9 for earlier, later in zip(starts, starts[3:], strict=False))


def test_a_key_bounds_its_own_attempts(limit: Any, two_workers: Any) -> None:
    limit(concurrency_per_key=1)
    two_workers()

    assert fan("ababab", 0.15, keyed=True).result(timeout=60) == 6

    assert (meter.highest["a"], meter.highest["b"]) == (1, 1)
    assert meter.highest["all"] == 2


def test_an_activity_has_limits_of_its_own(limit: Any, two_workers: Any) -> None:
    two_workers()

    assert fan("abcdef", 0.1, own=True).result(timeout=60) == 6

    assert meter.highest["all"] == 2


def test_attempts_of_both_backends_count_together(limit: Any, two_workers: Any) -> None:
    limit(concurrency=2)
    two_workers()
    there = fan("abcdef", 0.1)
    here = fan("abcdef", 0.1, LimitedFanHere)

    run_until_idle(timeout=60)

    assert (here.result(timeout=60), there.result(timeout=60)) == (6, 6)
    assert meter.highest["all"] == 2


def take(owner: int) -> int | None:
    with storage().transaction():
        return permits.start(QUEUE, "x", None, owner=owner, storage=storage())[0]


def keep_place(owner: int) -> int | None:
    with storage().transaction():
        return permits.keep_place(QUEUE, owner=owner, storage=storage())


def test_the_permit_of_a_dead_worker_counts_until_it_is_declared_dead(limit: Any) -> None:
    limit(concurrency=1)
    assert take(owner=4711) is not None  # no worker has this epoch
    assert take(owner=1) is None

    release_orphans(storage())

    assert take(owner=1) is not None


def test_a_place_keeps_other_workers_from_polling_and_nobody_from_running(limit: Any) -> None:
    limit(concurrency=1)
    place = keep_place(owner=1)
    assert place is not None
    assert keep_place(owner=2) is None

    permit = take(owner=2)  # somebody who did not wait for a place
    assert permit is not None
    assert take(owner=1) is None

    permits.give_back([permit], storage=storage())
    assert take(owner=1) is not None
    permits.give_back([place], storage=storage())
    assert Permit.objects.get().owner == 1


def test_an_idle_worker_gives_its_places_back_when_it_stops(limit: Any) -> None:
    limit(concurrency=3)
    with running_worker(QUEUE):
        wait_for(lambda: Permit.objects.exists())
    assert not Permit.objects.exists()


def test_a_permit_is_given_back_when_the_database_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one outage at the end of an attempt would stop a queue with ``concurrency=1``."""
    give_back, failures = permits.give_back, [1, 2]

    def fail_at_first(keys: Any, **options: Any) -> None:
        if failures:
            raise OperationalError(f"the connection was refused ({failures.pop()})")
        give_back(keys, **options)

    monkeypatch.setattr(permits, "give_back", fail_at_first)
    monkeypatch.setattr(cluster_permits, "_PAUSE", 0.01)
    own = cluster_permits.Permits("default", lambda: 7)
    try:
        row = Permit.objects.create(queue=QUEUE, activity="", owner=7, started=True)
        own._give_back(row.pk)
        wait_for(lambda: not Permit.objects.exists())
    finally:
        own.close()
    assert not failures
