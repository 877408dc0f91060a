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
from temporalex_django.actions.steering import OperatorRunAction
from temporalex_django.actions.taking_up import ReplayFromAction
from temporalex_django.actions.targets import RunTarget, find_run
from temporalex_django.authoring.authorization import Person
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.error_text import error_line
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import ActionNotPermitted, ActionNotPossible, TemporalexError, UpdateTimeout
from temporalex_django.liveness.crash_attribution import MOST_CRASHES
from temporalex_django.models import BulkItem, BulkJob

logger = logging.getLogger("temporalex_django.actions")

#: What a worker takes for jobs before it goes on with other things, in seconds; runs of a job at most in that time.
_BUDGET_SECONDS = 0.2
_JOBS_PER_ROUND = 50
#: A run that is busy is tried so often, behind the others.
_MAX_TRIES = 5
_MAX_MESSAGE_LENGTH = 500
#: Leases for which a worker has a job to itself while it replays: a replay takes one at most, and somewhat more where
#: nothing can interrupt it. So long nobody goes on with the job when the worker dies.
_HOLD_LEASES = 2
#: By database, the job to which this process came last.
_last_job: dict[str, UUID] = {}


def has_running_jobs(alias: str) -> bool:
    """Whether there is a job to go on with."""
    return BulkJob.objects.using(alias).filter(state=BulkJob.State.RUNNING).exists()


def run_jobs(alias: str) -> bool:
    """Go on with jobs for a moment: a run of each, in turn. Whether anything was done.

    Each run is a transaction of its own. The next moment begins behind the job that had the last turn: of one whose
    runs are slow there is time for one run, and the others come to theirs.
    """
    deadline, did_run = time.monotonic() + _BUDGET_SECONDS, False
    jobs = deque(_rotated_jobs(alias))
    while jobs:
        job = _last_job[alias] = jobs.popleft()
        if _run_next_item(job, DjangoStorage(alias)):  # of one at least, however long it took to come here
            did_run = True
            if time.monotonic() >= deadline:
                return True
            jobs.append(job)
    return did_run


def _rotated_jobs(alias: str) -> list[UUID]:
    """Jobs to go on with, oldest first, beginning behind that of the last turn."""
    running = BulkJob.objects.using(alias).filter(state=BulkJob.State.RUNNING).order_by("pk")
    jobs, last_job = running.values_list("pk", flat=True), _last_job.get(alias)
    if last_job is None:
        return [*jobs[:_JOBS_PER_ROUND]]
    return [*jobs.filter(pk__gt=last_job)[:_JOBS_PER_ROUND], *jobs.filter(pk__lte=last_job)[:_JOBS_PER_ROUND]]


def jobs_for(user: Person | None, *, alias: str) -> QuerySet[BulkJob]:
    """A job is his who started it. Code (``user`` None) has all of them, and superusers for whom there are all runs."""
    jobs = BulkJob.objects.using(alias)
    if user is None or (getattr(user, "is_superuser", False) and access.runs_for(user, alias=alias) is None):
        return jobs.all()
    key = getattr(user, "pk", None)
    return jobs.none() if key is None else jobs.filter(actor_id=key)


def operator_action(name: str) -> type[OperatorRunAction[Any]] | None:
    """The action of operators with this name; None if there is none."""
    from temporalex_django.actions.registry import STEERING  # noqa: PLC0415 - which imports this module, like all others

    return STEERING.get(name)


def count_text(action: str, count: int) -> str:
    """The items of a job of that action in words, such as ``5 activities``."""
    return (operator_action(action) or OperatorRunAction).count_text(count)


def build_action(job: BulkJob, item: BulkItem, target: RunTarget, by: Actor) -> Action[Any]:
    """The action on one run, or on one activity or timer of it."""
    inputs = codec().decode(bytes(job.given))
    if job.action == SendSignal.name:
        return SendSignal(target, **inputs, id=f"bulk-{job.pk}-{item.pk}", by=by)
    action = operator_action(job.action)
    if action is None:
        raise ActionNotPossible(f"{job.action} is nothing that this process does to runs")
    return action(target, reason=job.reason, by=by, seq=item.part, **inputs)


def _run_next_item(pk: UUID, storage: DjangoStorage) -> bool:
    """One run. False when there is none left, or another worker has the job, or it was stopped."""
    alias, is_replay = storage.alias, False
    skip_locked = connections[alias].features.has_select_for_update_skip_locked
    with storage.transaction("bulk"):
        jobs = BulkJob.objects.using(alias).select_for_update(skip_locked=skip_locked)
        job = jobs.filter(pk=pk, state=BulkJob.State.RUNNING).first()
        if job is None or (job.held_until is not None and job.held_until > storage.now()):
            return False
        item = BulkItem.objects.using(alias).filter(job_id=pk, outcome="").order_by("tries", "pk").first()
        if item is None:
            job.state, job.finished_at = BulkJob.State.DONE, storage.now()
        elif item.crashes >= MOST_CRASHES:
            _mark_failed(item, "crash", f"{item.crashes} workers ended while they replayed its code for it")
        elif is_replay := _is_replay_job(job):
            item.crashes += 1
            job.held_until = storage.now() + timedelta(seconds=_HOLD_LEASES * get_settings().LEASE_SECONDS)
        else:
            _run_item(job, item, lambda: _action_for(job, item, storage).execute(), storage)
        _save_progress(job, item, storage)
    if is_replay:
        assert item is not None
        _check_and_run(job, item, storage)
    return item is not None


def _is_replay_job(job: BulkJob) -> bool:
    """Whether code of the runs is replayed for it."""
    action = operator_action(job.action)
    return action is not None and issubclass(action, ReplayFromAction)


def _check_and_run(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> None:
    """The code of the run first, without a lock: it may take a while, and it may be the end of this process.

    Whoever finds the job held for too long goes on with it: then what came of this here does not count.
    """
    run_action: Callable[[], object]
    try:
        action = _action_for(job, item, storage)
        assert isinstance(action, ReplayFromAction)
        with action.audit_denials():
            action.check()
            action.check_replay()
        run_action = action.execute
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is noted there
        run_action = partial(_reraise, exc)
    try:
        _finish_item(job, item, run_action, storage)
    except DatabaseError:
        with suppress(DatabaseError):
            _release_item(job, item, storage)
        raise


def _finish_item(job: BulkJob, item: BulkItem, run_action: Callable[[], object], storage: DjangoStorage) -> None:
    """What comes behind the replay, if nobody else has gone on with the job, and it was not stopped."""
    with storage.transaction("bulk end"):
        current_job = BulkJob.objects.using(storage.alias).select_for_update().get(pk=job.pk)
        current_item = (
            BulkItem.objects.using(storage.alias).filter(pk=item.pk, outcome="", crashes=item.crashes).first()
        )
        if current_item is None:
            return
        current_item.crashes, current_job.held_until = 0, None
        if current_job.state == BulkJob.State.RUNNING:
            _run_item(current_job, current_item, run_action, storage)
        _save_progress(current_job, current_item, storage)


def _release_item(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> None:
    """It is to be done again, by anybody: nobody has died of it."""
    with storage.transaction("bulk let go"):
        items = BulkItem.objects.using(storage.alias).filter(pk=item.pk, outcome="", crashes=item.crashes)
        if items.update(crashes=item.crashes - 1):
            BulkJob.objects.using(storage.alias).filter(pk=job.pk).update(held_until=None)


def _reraise(error: Exception) -> None:
    raise error


def _save_progress(job: BulkJob, item: BulkItem | None, storage: DjangoStorage) -> None:
    """Where both stand, in the open transaction."""
    if item is not None:
        item.save(using=storage.alias)
        job.done += item.outcome == "done"
        job.failed += item.outcome == "failed"
    job.save(using=storage.alias, update_fields=["state", "finished_at", "done", "failed", "held_until"])


def _action_for(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> Action[Any]:
    by = _actor_of(job)
    visible_runs = access.runs_for(by.user, alias=storage.alias)
    return build_action(job, item, find_run(str(item.run_id), storage=storage, visible_runs=visible_runs), by)


def _run_item(job: BulkJob, item: BulkItem, run_action: Callable[[], object], storage: DjangoStorage) -> None:
    """What is written with it, or the reason why nothing was. Raises what the database raises when it is in trouble."""
    try:
        with audit.defer_denials(), storage.savepoint():
            run_action()
    except UpdateTimeout as exc:
        item.tries += 1
        if item.tries >= _MAX_TRIES:
            _mark_failed(item, exc.code, str(exc))
    except TemporalexError as exc:
        _mark_failed(item, exc.code, str(exc))
    except Exception as exc:
        if isinstance(exc, DatabaseError) and (storage.is_transient(exc) or storage.is_connection_lost(exc)):
            raise
        logger.error("%s of run %s in bulk job %s: %s", job.action, item.run_id, job.pk, error_line(exc))
        _mark_failed(item, "internal", type(exc).__name__)
    else:
        item.outcome = "done"


def _mark_failed(item: BulkItem, code: str, message: str) -> None:
    item.outcome, item.code, item.message = "failed", code, message[:_MAX_MESSAGE_LENGTH]


def _actor_of(job: BulkJob) -> Actor:
    """Who asked for it, as he stands now. Raises ``ActionNotPermitted`` for who is no more."""
    make_actor = partial(
        Actor,
        source=job.source,
        address=job.address,
        program=job.program,
        request_id=job.request_id,
        job=str(job.pk),
    )
    if job.by_code:
        return make_actor(account=job.actor_name)
    try:
        user = job.actor
    except ObjectDoesNotExist:  # deleted without Django, which would have emptied the column
        user = None
    if user is None:
        raise ActionNotPermitted(f"{job.actor_name} is no user any more")
    return make_actor(user=user)
