"""The processing of bulk jobs by workers: each run is a transaction, which also stores the outcome for that run."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
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
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.run_columns import UNREAD_COLUMNS
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import RunTarget, acts_at_once
from temporalex_django.conf import codec, get_settings, uses_cluster
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import TEMPORAL, counted
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.errors import (
    ActionNotPermitted,
    ActionNotPossible,
    TemporalexError,
    UpdateTimeout,
    WorkflowNotFound,
)
from temporalex_django.models import BulkItem, BulkJob, Instance
from temporalex_django.operations import audit
from temporalex_django.operations.base import Action, Actor
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.delete import Delete
from temporalex_django.operations.runs.history_action import ReplayFromAction
from temporalex_django.operations.runs.operator_action import OperatorRunAction
from temporalex_django.operations.runs.signal import SendSignal

logger = logging.getLogger("temporalex_django.operations")

#: Seconds that a worker spends on bulk jobs before it continues with other work.
_BUDGET_SECONDS = 0.2
_JOBS_PER_ROUND = 50
#: Number of times that a busy run is tried, each time after the other runs of the job.
_MAX_TRIES = 5
_MAX_MESSAGE_LENGTH = 500
#: Number of leases for which a worker holds a job while it replays. A replay takes at most one lease, and somewhat more
#: where nothing can interrupt it. If the worker dies, nobody continues with the job before the hold has expired.
_HOLD_LEASES = 2
#: By database alias, the job that this process served last.
_last_job: dict[str, UUID] = {}


def has_running_jobs(alias: str) -> bool:
    """Return True if a bulk job of the database is running, so that a worker should call ``run_jobs``. One read."""
    return BulkJob.objects.using(alias).filter(state=BulkJob.State.RUNNING).exists()


def run_jobs(alias: str) -> bool:
    """Process runs of bulk jobs for a short time, one run of each job in turn; return True if any was processed.

    Each run is a transaction of its own. The next call starts after the job that was served last, so a job whose runs
    are slow does not keep the other jobs waiting.
    """
    deadline, did_run = time.monotonic() + _BUDGET_SECONDS, False
    jobs = deque(_rotated_jobs(alias))
    while jobs:
        job = _last_job[alias] = jobs.popleft()
        # Check the time only after an item, so that each call makes progress however long the queries above took.
        if _run_next_item(job, host().storage(alias)):
            did_run = True
            if time.monotonic() >= deadline:
                return True
            jobs.append(job)
    return did_run


def _rotated_jobs(alias: str) -> list[UUID]:
    """Return ids of running jobs, oldest first, starting after the job that this process served last."""
    running = BulkJob.objects.using(alias).filter(state=BulkJob.State.RUNNING).order_by("pk")
    jobs, last_job = running.values_list("pk", flat=True), _last_job.get(alias)
    if last_job is None:
        return [*jobs[:_JOBS_PER_ROUND]]
    return [*jobs.filter(pk__gt=last_job)[:_JOBS_PER_ROUND], *jobs.filter(pk__lte=last_job)[:_JOBS_PER_ROUND]]


def jobs_for(user: Person | None, *, alias: str) -> QuerySet[BulkJob]:
    """Return the jobs that belong to a user: those that they started.

    Code (``user`` None) gets all jobs, and so do superusers who may see all runs.
    """
    jobs = BulkJob.objects.using(alias)
    if user is None or (getattr(user, "is_superuser", False) and access.runs_for(user, alias=alias) is None):
        return jobs.all()
    key = getattr(user, "pk", None)
    if key is None:
        return jobs.none()
    return jobs.filter(actor_id=key)


def operator_action(name: str) -> type[OperatorRunAction[Any]] | None:
    """Return the class of the operation on runs with this name, such as ``cancel``, or None if there is none.

    Only operations that an operator performs on one run (``OperatorRunAction``) are found.
    """
    from temporalex_django.operations.registry import STEERING  # noqa: PLC0415 - that module imports this one

    return STEERING.get(name)


def count_text(action: str, count: int) -> str:
    """Return ``count`` with the word for what the operation ``action`` is performed on, such as ``5 activities``."""
    return (operator_action(action) or OperatorRunAction).count_text(count)


def build_action(job: BulkJob, item: BulkItem, target: RunTarget, by: Actor) -> Action[Any]:
    """Return the operation of the job on the run ``target``, or on the activity or timer in it that ``item`` names.

    ``by`` is the actor who performs it, as ``_actor_of`` returns them. Raises ``ActionNotPossible`` if this process
    does not have the operation.
    """
    inputs = codec().decode(bytes(job.given))
    if job.action == SendSignal.name:
        return SendSignal(target, **inputs, id=f"bulk-{job.pk}-{item.pk}", by=by)
    action = operator_action(job.action)
    if action is None:
        raise ActionNotPossible(f"this process does not have the operation {job.action}")
    run_action = action(target, reason=job.reason, by=by, seq=item.part, **inputs)
    run_action.once_id = f"bulk-{job.pk}-{item.pk}"
    return run_action


def _run_next_item(pk: UUID, storage: DjangoStorage) -> bool:
    """Process the next run of the job with the id ``pk``, in a transaction of its own.

    Returns False if nothing was processed: no run is left (the job is then done), another worker has the job, or it was
    stopped.
    """
    alias, is_replay = storage.alias, False
    skip_locked = connections[alias].features.has_select_for_update_skip_locked
    with storage.transaction("bulk"):
        jobs = BulkJob.objects.using(alias).select_for_update(skip_locked=skip_locked)
        job = jobs.filter(pk=pk, state=BulkJob.State.RUNNING).first()
        if job is None or (job.held_until is not None and job.held_until > storage.now()):
            return False
        # Busy runs have more tries, so they come after all runs that have not been tried as often.
        item = BulkItem.objects.using(alias).filter(job_id=pk, outcome="").order_by("tries", "pk").first()
        if item is None:
            job.state, job.finished_at = BulkJob.State.DONE, storage.now()
        # Too many workers ended in the replay of this run: that is its outcome, and the job continues (see decision
        # 42).
        elif item.crashes >= policy.MOST_CRASHES:
            _mark_failed(
                item, "crash", f"{counted(item.crashes, 'worker', 'workers')} died while they replayed the run"
            )
        elif is_replay := _is_replay_job(job) or _is_done_at_once(job, item, storage):
            # Commit the crash before the replay starts: if the replay ends this process, nobody else can count it. The
            # worker that comes back takes it off again.
            item.crashes += 1
            job.held_until = storage.now() + timedelta(seconds=_HOLD_LEASES * get_settings().LEASE_SECONDS)
        else:
            _run_item(job, item, lambda: _action_for(job, item, storage).execute(), storage)
        _save_progress(job, item, storage)
    # The lock of the job is released here, so that a slow replay does not keep others from stopping the job. What a
    # cluster does at once is no part of a transaction.
    if is_replay:
        assert item is not None
        _check_and_run(job, item, storage)
    return item is not None


def _is_replay_job(job: BulkJob) -> bool:
    """Return True for a job that resets or forks runs, because this replays their code."""
    action = operator_action(job.action)
    return action is not None and issubclass(action, ReplayFromAction)


def _is_done_at_once(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> bool:
    """Return True if the run of the item lives on a cluster, which does the operation at once. At most one read."""
    if not (uses_cluster() and acts_at_once(TEMPORAL, job.action)):
        return False
    return Instance.objects.using(storage.alias).filter(pk=item.run_id, mirrored_at__isnull=False).exists()


def _check_and_run(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> None:
    """Replay the code of a run while nothing is locked, then perform the job's reset or fork in a transaction.

    An operation that a cluster does at once is performed while nothing is locked, and its outcome is stored after it.

    The replay may take a while, and may end this process. Meanwhile ``held_until`` keeps other workers from the job. If
    that time passes, another worker processes the run, and the outcome of this call is dropped.
    """
    run_action: Callable[[], object]
    try:
        action = _action_for(job, item, storage)
        assert isinstance(action, OperatorRunAction)
        if action.acts_at_once:
            action.execute()
            run_action = _nothing_left
        else:
            assert isinstance(action, ReplayFromAction)
            with action.audit_denials():
                action.check()
                action.check_replay()
            run_action = action.execute
    except Exception as exc:  # noqa: BLE001 - any error becomes the outcome of the item
        run_action = partial(_reraise, exc)
    try:
        _finish_item(job, item, run_action, storage)
    # The database failed, and not the code of the run. Release the item, as far as the database still answers.
    except DatabaseError:
        with suppress(DatabaseError):
            _release_item(job, item, storage)
        raise


def _finish_item(job: BulkJob, item: BulkItem, run_action: Callable[[], object], storage: DjangoStorage) -> None:
    """Perform ``run_action`` after the replay of its run and store the outcome, in one transaction.

    ``item`` is the run in the bulk job ``job``. Nothing is done if another worker processes the item by now, because
    the replay took too long. If the job was stopped meanwhile, the run is left for later and ``held_until`` of the job
    is reset.
    """
    with storage.transaction("bulk end"):
        current_job = BulkJob.objects.using(storage.alias).select_for_update().get(pk=job.pk)
        # ``crashes`` works as a fence: it differs if another worker has started the replay of this item meanwhile.
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
    """Let any worker process the item of the bulk job again, after the database failed while this worker processed it.

    The attempt is not counted as a crash, because no process ended. Does nothing if another worker processes the item
    by now.
    """
    with storage.transaction("bulk let go"):
        items = BulkItem.objects.using(storage.alias).filter(pk=item.pk, outcome="", crashes=item.crashes)
        if items.update(crashes=item.crashes - 1):
            BulkJob.objects.using(storage.alias).filter(pk=job.pk).update(held_until=None)


def _nothing_left() -> None:
    """Do nothing: the operation was performed before."""


def _reraise(error: Exception) -> None:
    raise error


def _save_progress(job: BulkJob, item: BulkItem | None, storage: DjangoStorage) -> None:
    """Save the item, if there is one, and the counts and the state of its bulk job."""
    if item is not None:
        item.save(using=storage.alias)
        job.done += item.outcome == "done"
        job.failed += item.outcome == "failed"
        job.already_done += item.already_done
    job.save(
        using=storage.alias, update_fields=["state", "finished_at", "done", "failed", "already_done", "held_until"]
    )


def _action_for(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> Action[Any]:
    by = _actor_of(job)
    visible_runs = access.runs_for(by.user, alias=storage.alias)
    return build_action(job, item, find_run(str(item.run_id), storage=storage, visible_runs=visible_runs), by)


def _run_item(job: BulkJob, item: BulkItem, run_action: Callable[[], object], storage: DjangoStorage) -> None:
    """Perform ``run_action`` in a savepoint, and set the outcome on ``item`` without saving it.

    The outcome is done, or failed with a code and a message. It stays open if the run was busy, up to a number of
    tries. Raises the database error of a lost connection or a transient failure; the item is tried again then.
    """
    try:
        with audit.defer_denials(), storage.savepoint():
            run_action()
    except UpdateTimeout as exc:
        item.tries += 1
        if item.tries >= _MAX_TRIES:
            _mark_failed(item, exc.code, str(exc))
    except TemporalexError as exc:
        _mark_failed(item, exc.code, str(exc))
        item.already_done = exc.already_done or _is_deleted_already(job, item, exc, storage)
    except Exception as exc:
        if isinstance(exc, DatabaseError) and (storage.is_transient(exc) or storage.is_connection_lost(exc)):
            raise
        logger.error("%s of run %s in bulk job %s: %s", job.action, item.run_id, job.pk, error_line(exc))
        _mark_failed(item, "internal", type(exc).__name__)
    else:
        item.outcome = "done"


def _is_deleted_already(job: BulkJob, item: BulkItem, error: TemporalexError, storage: DjangoStorage) -> bool:
    """Return True if the job deletes runs, and somebody has deleted this run since the job was started."""
    if job.action != Delete.name or not isinstance(error, WorkflowNotFound):
        return False
    # A run that the user may not see any more gets the same error.
    return not Instance.objects.using(storage.alias).filter(pk=item.run_id).exists()


def _mark_failed(item: BulkItem, code: str, message: str) -> None:
    item.outcome, item.code, item.message = "failed", code, message[:_MAX_MESSAGE_LENGTH]


def _actor_of(job: BulkJob) -> Actor:
    """Return the actor who started the bulk job; operations on its runs are performed in their name.

    The user is read again, because they may have been deactivated since. Raises ``ActionNotPermitted`` for a user who
    no longer exists.
    """
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
    # Read the user anew: they may have been deactivated or deleted since the job was started.
    try:
        user = job.actor
    # The user was deleted by other means than Django, which would have set the column to NULL.
    except ObjectDoesNotExist:
        user = None
    if user is None:
        raise ActionNotPermitted(f"the user {job.actor_name} no longer exists")
    return make_actor(user=user)


#: Codes of errors whose text may come from the code or the payloads of the project.
_PAYLOAD_QUOTING_CODES = frozenset(
    {
        *("payload", "update_rejected", "update_failed", "query_failed", "resume_refused", "judging_failed"),
        *("workflow_failed", "activity_failure", "child_workflow_failure"),
    }
)


def redact_items(
    items: Iterable[BulkItem],
    user: Person | None,
    *,
    alias: str,
    visible_runs: QuerySet[Instance] | None = None,
    is_admitted: Callable[[Instance], bool] | None = None,
) -> list[BulkItem]:
    """Return the items without the messages that ``user`` may not see; their ``code`` stays.

    The message about a run that the user may not look at is emptied. If they may not see its payloads, a message that
    may quote payloads is redacted. ``visible_runs`` and ``is_admitted`` are the restrictions of the interface, as for
    ``StartBulk``. Code (``user`` None) sees all messages.

    The messages of the passed rows are replaced: do not save them. One read if an item has a message.
    """
    bulk_items = [*items]
    run_ids = [item.run_id for item in bulk_items if item.message]
    if user is None or not run_ids:
        return bulk_items
    if not access.policy().allows(user, access.VIEW):
        for item in bulk_items:
            item.message = ""
        return bulk_items
    if visible_runs is None:
        visible_runs = access.runs_for(user, alias=alias)
    rows = _checked_runs(run_ids, visible_runs, alias=alias)
    can_view = is_admitted or (lambda run: access.policy().allows(user, access.VIEW.of(run)))
    redactors = {run.pk: access.redactor_for(user, run) if can_view(run) else None for run in rows}
    # A deleted run belongs to nobody any more. Users who see all runs could see it too, so they keep its message.
    shows_deleted = visible_runs is None or access.is_unfiltered(visible_runs)
    for item in bulk_items:
        if item.run_id in redactors or not shows_deleted:
            item.message = _redacted_message(item, redactors.get(item.run_id))
    return bulk_items


def _checked_runs(
    run_ids: Iterable[UUID], visible_runs: QuerySet[Instance] | None, *, alias: str
) -> QuerySet[Instance]:
    """Return the runs with these ids, of ``visible_runs`` if it is not None, without columns that no check reads."""
    runs = access.runs_or_all(visible_runs, alias=alias).using(alias)
    return runs.filter(pk__in=run_ids).defer(*UNREAD_COLUMNS)


def _redacted_message(item: BulkItem, redactor: Redactor | None) -> str:
    if redactor is None:
        return ""
    if item.message and item.code in _PAYLOAD_QUOTING_CODES:
        return redactor.redact_text(item.message)
    return item.message
