"""How workers go through bulk jobs: run after run, each in a transaction that says what became of it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist
from django.db import Error as DatabaseError
from django.db import connections
from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.actions import audit
from temporalex_django.actions.base import Action, Actor
from temporalex_django.actions.signal import SendSignal
from temporalex_django.actions.steering import Steering
from temporalex_django.actions.taking_up import TakingUp
from temporalex_django.actions.targets import RunTarget, find
from temporalex_django.authoring.authorization import Person
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.error_text import error_line
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import ActionNotPermitted, ActionNotPossible, TemporalexError, UpdateTimeout
from temporalex_django.liveness.crash_attribution import MOST_CRASHES
from temporalex_django.models import BulkItem, BulkJob

logger = logging.getLogger("temporalex_django.actions")

#: What a worker takes for jobs before it goes on with other things, in seconds; runs of a job at most in that time.
_BUDGET = 0.2
_AT_ONCE = 50
#: A run that is busy is tried so often, behind the others.
_TRIES = 5
_LONGEST = 500
#: Leases for which a worker has a job to itself while it replays: a replay takes one at most, and somewhat more where
#: nothing can interrupt it. So long nobody goes on with the job when the worker dies.
_HELD_FOR = 2
#: By database, the job to which this process came last.
_had_turn: dict[str, UUID] = {}


def waiting(alias: str) -> bool:
    """Whether there is a job to go on with."""
    return BulkJob.objects.using(alias).filter(state=BulkJob.State.RUNNING).exists()


def work(alias: str) -> bool:
    """Go on with jobs for a moment: a run of each, in turn. Whether anything was done.

    Each run is a transaction of its own. The next moment begins behind the job that had the last turn: of one whose
    runs are slow there is time for one run, and the others come to theirs.
    """
    until, came_to_one = time.monotonic() + _BUDGET, False
    jobs = deque(_in_turn(alias))
    while jobs:
        job = _had_turn[alias] = jobs.popleft()
        if _next(job, DjangoStorage(alias)):  # of one at least, however long it took to come here
            came_to_one = True
            if time.monotonic() >= until:
                return True
            jobs.append(job)
    return came_to_one


def _in_turn(alias: str) -> list[UUID]:
    """Jobs to go on with, oldest first, beginning behind that of the last turn."""
    running = BulkJob.objects.using(alias).filter(state=BulkJob.State.RUNNING).order_by("pk")
    jobs, last = running.values_list("pk", flat=True), _had_turn.get(alias)
    if last is None:
        return [*jobs[:_AT_ONCE]]
    return [*jobs.filter(pk__gt=last)[:_AT_ONCE], *jobs.filter(pk__lte=last)[:_AT_ONCE]]


def jobs_for(user: Person | None, *, alias: str) -> QuerySet[BulkJob]:
    """A job is his who started it. Code (``user`` None) has all of them, and superusers for whom there are all runs."""
    jobs = BulkJob.objects.using(alias)
    if user is None or (getattr(user, "is_superuser", False) and access.runs_for(user, alias=alias) is None):
        return jobs.all()
    key = getattr(user, "pk", None)
    return jobs.none() if key is None else jobs.filter(actor_id=key)


def steering(name: str) -> type[Steering[Any]] | None:
    """The action of operators with this name; None if there is none."""
    from temporalex_django.actions.registry import STEERING  # noqa: PLC0415 - which imports this module, like all others

    return STEERING.get(name)


def count_of(action: str, count: int) -> str:
    """The items of a job of that action in words, such as ``5 activities``."""
    return (steering(action) or Steering).count_of(count)


def made(job: BulkJob, item: BulkItem, target: RunTarget, by: Actor) -> Action[Any]:
    """The action on one run, or on one activity or timer of it."""
    given = codec().decode(bytes(job.given))
    if job.action == SendSignal.name:
        return SendSignal(target, **given, id=f"bulk-{job.pk}-{item.pk}", by=by)
    action = steering(job.action)
    if action is None:
        raise ActionNotPossible(f"{job.action} is nothing that this process does to runs")
    return action(target, reason=job.reason, by=by, seq=item.part, **given)


def _next(pk: UUID, storage: DjangoStorage) -> bool:
    """One run. False when there is none left, or another worker has the job, or it was stopped."""
    alias, begun = storage.alias, False
    skips = connections[alias].features.has_select_for_update_skip_locked
    with storage.transaction("bulk"):
        jobs = BulkJob.objects.using(alias).select_for_update(skip_locked=skips)
        job = jobs.filter(pk=pk, state=BulkJob.State.RUNNING).first()
        if job is None or (job.held_until is not None and job.held_until > storage.now()):
            return False
        item = BulkItem.objects.using(alias).filter(job_id=pk, outcome="").order_by("tries", "pk").first()
        if item is None:
            job.state, job.finished_at = BulkJob.State.DONE, storage.now()
        elif item.crashes >= MOST_CRASHES:
            _failed(item, "crash", f"{item.crashes} workers ended while they replayed its code for it")
        elif begun := _replays(job):
            item.crashes += 1
            job.held_until = storage.now() + timedelta(seconds=_HELD_FOR * get_settings().LEASE_SECONDS)
        else:
            _do(job, item, lambda: _action(job, item, storage).execute(), storage)
        _note(job, item, storage)
    if begun:
        assert item is not None
        _rehearse_and_do(job, item, storage)
    return item is not None


def _replays(job: BulkJob) -> bool:
    """Whether code of the runs is replayed for it."""
    action = steering(job.action)
    return action is not None and issubclass(action, TakingUp)


def _rehearse_and_do(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> None:
    """The code of the run first, without a lock: it may take a while, and it may be the end of this process.

    Whoever finds the job held for too long goes on with it: then what came of this here does not count.
    """
    done: Callable[[], object]
    try:
        action = _action(job, item, storage)
        assert isinstance(action, TakingUp)
        with action.noting_denials():
            action.check()
            action.rehearse()
        done = action.execute
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is noted there
        done = partial(_again, exc)
    try:
        _finish(job, item, done, storage)
    except DatabaseError:
        with suppress(DatabaseError):
            _let_go(job, item, storage)
        raise


def _finish(job: BulkJob, item: BulkItem, done: Callable[[], object], storage: DjangoStorage) -> None:
    """What comes behind the replay, if nobody else has gone on with the job, and it was not stopped."""
    with storage.transaction("bulk end"):
        now = BulkJob.objects.using(storage.alias).select_for_update().get(pk=job.pk)
        own = BulkItem.objects.using(storage.alias).filter(pk=item.pk, outcome="", crashes=item.crashes).first()
        if own is None:
            return
        own.crashes, now.held_until = 0, None
        if now.state == BulkJob.State.RUNNING:
            _do(now, own, done, storage)
        _note(now, own, storage)


def _let_go(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> None:
    """It is to be done again, by anybody: nobody has died of it."""
    with storage.transaction("bulk let go"):
        own = BulkItem.objects.using(storage.alias).filter(pk=item.pk, outcome="", crashes=item.crashes)
        if own.update(crashes=item.crashes - 1):
            BulkJob.objects.using(storage.alias).filter(pk=job.pk).update(held_until=None)


def _again(error: Exception) -> None:
    raise error


def _note(job: BulkJob, item: BulkItem | None, storage: DjangoStorage) -> None:
    """Where both stand, in the open transaction."""
    if item is not None:
        item.save(using=storage.alias)
        job.done += item.outcome == "done"
        job.failed += item.outcome == "failed"
    job.save(using=storage.alias, update_fields=["state", "finished_at", "done", "failed", "held_until"])


def _action(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> Action[Any]:
    by = _actor(job)
    there = access.runs_for(by.user, alias=storage.alias)
    return made(job, item, find(str(item.run_id), storage=storage, among=there), by)


def _do(job: BulkJob, item: BulkItem, do: Callable[[], object], storage: DjangoStorage) -> None:
    """What is written with it, or the reason why nothing was. Raises what the database raises when it is in trouble."""
    try:
        with audit.surviving(), storage.savepoint():
            do()
    except UpdateTimeout as exc:
        item.tries += 1
        if item.tries >= _TRIES:
            _failed(item, exc.code, str(exc))
    except TemporalexError as exc:
        _failed(item, exc.code, str(exc))
    except Exception as exc:
        if isinstance(exc, DatabaseError) and (storage.is_transient(exc) or storage.is_connection_lost(exc)):
            raise
        logger.error("%s of run %s in bulk job %s: %s", job.action, item.run_id, job.pk, error_line(exc))
        _failed(item, "internal", type(exc).__name__)
    else:
        item.outcome = "done"


def _failed(item: BulkItem, code: str, message: str) -> None:
    item.outcome, item.code, item.message = "failed", code, message[:_LONGEST]


def _actor(job: BulkJob) -> Actor:
    """Who asked for it, as he stands now. Raises ``ActionNotPermitted`` for who is no more."""
    make = partial(
        Actor,
        source=job.source,
        address=job.address,
        program=job.program,
        request_id=job.request_id,
        job=str(job.pk),
    )
    if job.by_code:
        return make(account=job.actor_name)
    try:
        user = job.actor
    except ObjectDoesNotExist:  # deleted without Django, which would have emptied the column
        user = None
    if user is None:
        raise ActionNotPermitted(f"{job.actor_name} is no user any more")
    return make(user=user)
