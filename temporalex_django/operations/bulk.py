"""Bulk jobs: how one is started, and the worker that performs it."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, ClassVar
from uuid import UUID

from django.core.exceptions import EmptyResultSet, ObjectDoesNotExist
from django.db import Error as DatabaseError
from django.db import connections
from django.db.models import QuerySet
from django.utils.translation import ngettext

from temporalex_django import access
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.run_columns import UNREAD_COLUMNS
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import AuditSubject, RunTarget
from temporalex_django.conf import codec, get_settings, uses_cluster
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import check_message_id, check_name, counted, fit_note, quoted
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.ids import parse_run_id, uuid7
from temporalex_django.errors import (
    ActionNotPermitted,
    ActionNotPossible,
    IdempotencyKeyReused,
    TaskNotFound,
    TemporalexError,
    UpdateTimeout,
    WorkflowNotFound,
)
from temporalex_django.models import BulkItem, BulkJob, Instance
from temporalex_django.operations import audit
from temporalex_django.operations.background_tasks import TASK_ACTIONS, find_task_row, task_id_of
from temporalex_django.operations.base import CODE, Action, Actor, to_plain_payload
from temporalex_django.operations.read.background_tasks import TaskFilter, require_view, task_rows
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Delete
from temporalex_django.operations.runs.history_action import ReplayFromAction
from temporalex_django.operations.runs.messages import SendSignal
from temporalex_django.operations.runs.operator_action import OperatorRunAction

# --- worker -----------------------------------------------------------------------------------------------------------
#
# The processing of bulk jobs by workers: each run is a transaction, which also stores the outcome for that run.


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
    """Return running jobs, oldest first, from the one after the job that this process served last."""
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
    if action in TASK_ACTIONS:
        return ngettext("%(count)s task", "%(count)s tasks", count) % {"count": f"{count:,}"}
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
    """Process the next run in a transaction. False means that none is left, the job is stopped, or another has it."""
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
    """Return True if the run lives on a cluster, which does the operation at once. At most one read."""
    action = operator_action(job.action)
    if not uses_cluster() or action is None or action.cluster != "at once":
        return False
    return Instance.objects.using(storage.alias).filter(pk=item.run_id, mirrored_at__isnull=False).exists()


def _check_and_run(job: BulkJob, item: BulkItem, storage: DjangoStorage) -> None:
    """Replay or act at once while nothing is locked, then reset, fork or store the outcome in a transaction.

    The replay may end this process. Until ``held_until`` no other worker takes the job. After that time another
    worker processes the run, and the outcome of this call is dropped.
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
    """Store the outcome of ``run_action`` in one transaction, unless another worker has the item by now.

    If the job was stopped meanwhile, the run is left for later and ``held_until`` of the job is reset.
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
    """Let any worker process the item again after the database failed, unless one does so by now.

    The attempt is not counted as a crash, because no process ended.
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
    if job.action in TASK_ACTIONS:
        inputs = codec().decode(bytes(job.given))
        return TASK_ACTIONS[job.action](item.run_id, reason=job.reason, by=by, **inputs)
    visible_runs = access.runs_for(by.user, alias=storage.alias)
    return build_action(job, item, find_run(str(item.run_id), storage=storage, visible_runs=visible_runs), by)


def _run_item(job: BulkJob, item: BulkItem, run_action: Callable[[], object], storage: DjangoStorage) -> None:
    """Act in a savepoint and set the outcome without saving it. It stays open for a busy run, up to some tries.

    Raises the database error of a lost connection or a transient failure; the item is tried again then.
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
    """Return True if somebody has deleted the run since the job was started."""
    if job.action != Delete.name or not isinstance(error, WorkflowNotFound):
        return False
    # A run that the user may not see any more gets the same error.
    return not Instance.objects.using(storage.alias).filter(pk=item.run_id).exists()


def _mark_failed(item: BulkItem, code: str, message: str) -> None:
    item.outcome, item.code, item.message = "failed", code, message[:_MAX_MESSAGE_LENGTH]


def _actor_of(job: BulkJob) -> Actor:
    """Read the user again: they may have been deactivated. Raises ``ActionNotPermitted`` for one who is gone."""
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
    """Return the runs without columns that no check reads."""
    runs = access.runs_or_all(visible_runs, alias=alias).using(alias)
    return runs.filter(pk__in=run_ids).defer(*UNREAD_COLUMNS)


def _redacted_message(item: BulkItem, redactor: Redactor | None) -> str:
    if redactor is None:
        return ""
    if item.message and item.code in _PAYLOAD_QUOTING_CODES:
        return redactor.redact_text(item.message)
    return item.message


# --- start ------------------------------------------------------------------------------------------------------------
#
# Start a bulk job: one operation on many runs, or on activities or timers of many runs.


_BATCH_SIZE = 500
#: A time among the values of a filter, or an id that was derived from one (see ``operations.read.run_filters``).
_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:.*|[0-9a-f]{8}-?[0-9a-f]{4}-?0{4}-?0{4}-?0{12}")


class StartBulk(Action[BulkJob]):
    """Operation that creates a bulk job and returns it; workers process its runs.

    ``action`` is the name of an operator action (see ``registry.STEERING``), or ``signal``. It is performed on each of
    the ``runs``; for an action on activities or timers, on each of those that the runs have now and for which it is
    possible. ``inputs`` are the inputs of the action, and its ``selectors``, which choose among the activities or
    timers. For ``signal`` they are ``signal`` and ``payload``.

    ``runs`` are run ids, or a queryset of runs, at most ``BULK_LIMIT``. ``visible_runs`` and ``is_admitted`` are
    further restrictions of an interface: a queryset, and a function that is called with each run. Runs of a queryset
    that are excluded are skipped. A run id that is excluded is refused.

    The permission of the action is checked now, and again for each run when it is processed. A queryset also requires
    the permission to view runs. With a ``token``, a repeated request of the same person returns the job of the first
    one, while that job exists. The two requests may differ only in times that a queryset contains.

    One transaction, which is the caller's if one is open. Audited. Raises:

    - ``ActionNotPermitted``;
    - ``ActionNotPossible`` for an unknown action, no runs, too many runs, or an input that only one run can have;
    - ``WorkflowNotFound`` for the id of no run, or of a run that the user may not see;
    - ``PayloadError``;
    - ``TypeError`` for inputs that the action does not have, and for invalid ``runs``;
    - ``InvalidId`` for an invalid token;
    - ``IdempotencyKeyReused`` for a token that was used for another request.
    """

    name: ClassVar[str] = "start_bulk"
    permission: ClassVar[str] = "bulk_actions"
    forced: ClassVar[bool] = True

    def __init__(
        self,
        action: str,
        *,
        runs: Iterable[str | UUID] | QuerySet[Instance],
        reason: str = "",
        token: str | None = None,
        visible_runs: QuerySet[Instance] | None = None,
        is_admitted: Callable[[Instance], bool] | None = None,
        by: Actor = CODE,
        **inputs: Any,
    ) -> None:
        super().__init__(by=by)
        self.action = action
        self.runs = _validate_runs(runs)
        self.reason = fit_note(reason, label="the reason")
        self.token = None if token is None else check_message_id(token, label="bulk job")
        self.visible_runs = visible_runs
        self.is_admitted = is_admitted
        self.action_permission, self.input_values, self.selection = _validate_inputs(action, inputs)

    def check(self) -> None:
        """Check the permission to start bulk jobs, and the permission for the action itself.

        A user who selects runs by a queryset must be allowed to view runs, because the selection reveals their
        properties. An action that edits or reads payloads requires the permissions for that, too.
        """
        super().check()
        if isinstance(self.runs, QuerySet):
            access.require_access(self.by.user, access.VIEW, alias=self.storage.alias)
        action_operation = access.Operation(action=self.action, permission=f"{APP}.{self.action_permission}")
        action = operator_action(self.action)
        edits_input = action is not None and any(
            action_input.edits and action_input.name in self.input_values for action_input in action.inputs
        )
        operations = [action_operation]
        if edits_input:
            operations.append(access.EDIT)
        if edits_input or (action is not None and action.sees_payloads):
            operations.append(access.VIEW_PAYLOAD)
        for operation in operations:
            access.require_access(self.by.user, operation, alias=self.storage.alias)

    def perform(self) -> BulkJob:
        alias, user, token = self.storage.alias, self.by.user, self._token_digest
        with self.storage.transaction():
            job = BulkJob(
                id=uuid7(),
                action=self.action,
                given=codec().encode(self.input_values),
                reason=self.reason,
                token=token,
                asked="" if token is None else self._request_digest(),
                actor_id=getattr(user, "pk", None),
                actor_name=(self.by.account if user is None else str(user))[:200],
                by_code=user is None,
                source=self.by.source,
                address=self.by.address,
                request_id=self.by.request_id,
                program=self.by.program,
                total=0,
                created_at=self.storage.now(),
            )
            # Before the limit and the selection: a repeated request returns its job, whatever has changed since.
            if token is not None and (duplicate := self._find_duplicate(job, token)) is not None:
                return duplicate
            self._require_job_limit()
            parts = self._build_parts(self._select_runs())
            job.total = len(parts)
            job.save(using=alias)
            items = [BulkItem(job_id=job.pk, run_id=run, part=seq) for run, seq in parts]
            BulkItem.objects.using(alias).bulk_create(items, batch_size=_BATCH_SIZE)
            self.record(
                AuditSubject(run_id=None, workflow="", workflow_id=""),
                reason=self.reason,
                job=str(job.pk),
                of=self.action,
                runs=len({run for run, _ in parts}),
                **({} if self._target_kind == "run" else {"parts": job.total, **self.selection}),
            )
        return job

    def _require_job_limit(self) -> None:
        """Raise ``ActionNotPossible`` at ``BULK_JOBS`` running jobs, so that other people's jobs do not wait long."""
        user_id, limit = getattr(self.by.user, "pk", None), get_settings().BULK_JOBS
        if user_id is None:
            return
        running = BulkJob.objects.using(self.storage.alias).filter(actor_id=user_id, state=BulkJob.State.RUNNING)
        if running.exclude(total=0).count() >= limit:
            raise ActionNotPossible(
                f"{self.by.user} already has {limit} running bulk jobs, which is the limit (BULK_JOBS): wait "
                "until one has finished, or stop one"
            )

    @property
    def _token_digest(self) -> str | None:
        """The digest of user and token: the same token of another person has another digest."""
        if self.token is None:
            return None
        return _digest([str(getattr(self.by.user, "pk", None)), self.token])

    def _find_duplicate(self, job: BulkJob, token: str) -> BulkJob | None:
        """Return the earlier job of the token, or None after the insert.

        Raises ``IdempotencyKeyReused`` for another request. A concurrent one with the token waits for this transaction.
        """
        jobs = BulkJob.objects.using(self.storage.alias)
        jobs.bulk_create([job], ignore_conflicts=True)
        stored_job = jobs.get(token=token)
        if stored_job.asked != job.asked:
            raise IdempotencyKeyReused(f"another bulk job has already used the token {self.token}")
        if stored_job.pk == job.pk:
            return None
        return stored_job

    def _request_digest(self) -> str:
        """Return a digest that recognizes a repeated request, without times, which it computes anew."""
        runs: Sequence[str]
        if isinstance(self.runs, QuerySet):
            try:
                # The same filter compiles to the same statement. Times in it are left out: a repeated request computes
                # them anew.
                rows = self._run_keys(self.runs)
                sql, values = rows.query.get_compiler(using=self.storage.alias).as_sql()
            except EmptyResultSet:
                sql, values = "", ()
            runs = [sql, *(parameter for parameter in map(str, values) if not _TIME_PATTERN.fullmatch(parameter))]
        else:
            runs = sorted({str(self._run_id(run)) for run in self.runs})
        return _digest([self.action, self.input_values, self.reason, runs, self.selection])

    def _select_runs(self) -> list[UUID]:
        """Return the ids that the user may operate, newest first.

        Raises ``ActionNotPossible`` for no runs, too many, or an input for one run, and ``WorkflowNotFound`` for a run
        that does not exist or that the user may not see.
        """
        alias, limit = self.storage.alias, get_settings().BULK_LIMIT
        allowed_runs = access.runs_for(self.by.user, alias=alias)
        queryset = access.runs_or_all(allowed_runs, alias=alias)
        if self.visible_runs is not None and not access.is_unfiltered(self.visible_runs):
            queryset = queryset.filter(pk__in=self.visible_runs.using(alias).order_by().values("pk"))
        requested_ids: set[UUID] = set()
        if isinstance(self.runs, QuerySet):
            queryset = queryset.filter(pk__in=self._run_keys(self.runs))
        else:
            requested_ids = {self._run_id(entry) for entry in self.runs}
            queryset = queryset.filter(pk__in=list(requested_ids)[: limit + 1])
        # One more than the limit says that there are too many, without counting all of them.
        run_ids = list(queryset.order_by("-id").values_list("pk", flat=True)[: limit + 1])
        if max(len(requested_ids), len(run_ids)) > limit:
            raise ActionNotPossible(
                f"a bulk job accepts at most {counted(limit, 'run', 'runs')} (BULK_LIMIT): select fewer"
            )
        # A run of another tenant and one that does not exist get the same error.
        if missing := requested_ids - set(run_ids):
            raise WorkflowNotFound(f"there is no run {min(map(str, missing))}")
        run_ids = self._filter_admitted(run_ids)
        if not run_ids:
            raise ActionNotPossible("the selection contains no runs")
        if len(run_ids) > 1 and (entry := self._single_run_input()):
            raise ActionNotPossible(
                f"the input {entry!r} is for one run, but {len(run_ids):,} runs are selected: leave it out"
            )
        return run_ids

    @property
    def _target_kind(self) -> str:
        action = operator_action(self.action)
        if action is None:
            return "run"
        return action.target_kind

    def _build_parts(self, runs: list[UUID]) -> list[tuple[UUID, int | None]]:
        """Return ``(run id, command number or None)``. Raises ``ActionNotPossible`` for none, or too many."""
        action, limit = operator_action(self.action), get_settings().BULK_LIMIT
        if action is None:
            return [(run, None) for run in runs]
        parts = action.parts(runs, self.selection, alias=self.storage.alias, limit=limit + 1)
        if not parts:
            raise ActionNotPossible(
                f"none of the {counted(len(runs), 'run', 'runs')} has any {action.target_kind} for which this is possible"
            )
        if len(parts) > limit:
            raise ActionNotPossible(
                f"a bulk job accepts at most {action.count_text(limit)} (BULK_LIMIT), but more are selected: "
                "select fewer"
            )
        return parts

    def _run_keys(self, runs: QuerySet[Instance]) -> QuerySet[Instance, Any]:
        """Return the ids as a subquery. Only a slice keeps its order, which determines its runs."""
        queryset = runs.using(self.storage.alias)
        return (queryset if queryset.query.is_sliced else queryset.order_by()).values("pk")

    def _filter_admitted(self, run_ids: list[UUID]) -> list[UUID]:
        """Raise ``ActionNotPermitted`` for a refused run that the caller named."""
        if self.is_admitted is None:
            return run_ids
        rows = Instance.objects.using(self.storage.alias).filter(pk__in=run_ids).defer(*UNREAD_COLUMNS)
        refused_runs = {run.pk: run for run in rows if not self.is_admitted(run)}
        if refused_runs and not isinstance(self.runs, QuerySet):
            run = refused_runs[max(refused_runs)]
            raise ActionNotPermitted(f"{self.by.user} may not {self.action} {run.workflow} {run.workflow_id}")
        return [run_id for run_id in run_ids if run_id not in refused_runs]

    def _single_run_input(self) -> str | None:
        """Return the name of a given input whose value only one run can have, such as an id."""
        action = operator_action(self.action)
        inputs = () if action is None else action.inputs
        return next(
            (
                action_input.name
                for action_input in inputs
                if action_input.single and self.input_values.get(action_input.name)
            ),
            None,
        )

    def _run_id(self, run: object) -> UUID:
        run_id = run
        if isinstance(run, str):
            run_id = parse_run_id(run)
        if not isinstance(run_id, UUID):
            raise WorkflowNotFound(f"there is no run {quoted(run)}")
        return run_id


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "replace")).hexdigest()


def _validate_runs(runs: object) -> QuerySet[Instance] | list[object]:
    """Raise ``TypeError`` unless this is a queryset of runs or an iterable. The ids in it are not checked."""
    if isinstance(runs, QuerySet):
        if not issubclass(runs.model, Instance):
            raise TypeError(f"runs is a queryset of {runs.model.__name__}: pass a queryset of Instance, or run ids")
        return runs
    if isinstance(runs, str | bytes | Mapping) or not isinstance(runs, Iterable):
        raise TypeError(f"runs={quoted(runs)} is not valid: pass a list of run ids, or a queryset of runs")
    return [*runs]


def _validate_inputs(action: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return ``(permission, input values, selector values)`` as they will be stored.

    Raises ``ActionNotPossible`` for an unknown action, ``PayloadError`` for a wrong value, and ``TypeError`` for an
    unknown or missing input.
    """
    if action == SendSignal.name:
        if unknown := sorted(set(inputs) - {"signal", "payload"}):
            raise TypeError(f"signal has no input {', '.join(unknown)}")
        name = check_name(inputs.get("signal"), label="signal")
        payload = to_plain_payload(inputs.get("payload"), label=f"the payload of signal {name!r}")
        return SendSignal.permission, {"signal": name, "payload": payload}, {}
    action_class = None
    if isinstance(action, str):
        action_class = operator_action(action)
    if action_class is None:
        raise ActionNotPossible(f"{quoted(action)} is not an operation on runs")
    selector_names = {selector.name for selector in action_class.selectors}
    selection = action_class.validate_inputs(
        action_class.selectors, {name: value for name, value in inputs.items() if name in selector_names}
    )
    values = action_class.validate_inputs(
        action_class.inputs, {name: value for name, value in inputs.items() if name not in selector_names}
    )
    return action_class.permission, values, selection


class StartTaskBulk(StartBulk):
    """Operation that creates a bulk job over background tasks and returns it; workers process the tasks.

    ``action`` is the name of an operation on background tasks (see ``TASK_ACTIONS``), with its ``inputs``. ``tasks``
    are the ids of tasks, or a ``TaskFilter``, at most ``BULK_LIMIT``. For a task that has changed meanwhile, for
    example because it was successful by itself, the job lists why the operation was not possible.

    The permissions, the ``token`` and the errors are those of ``StartBulk``. A filter also requires the permissions to
    view background tasks. Raises ``TaskNotFound`` for the id of no task, or of one that the user may not see.
    """

    def __init__(
        self,
        action: str,
        *,
        tasks: Iterable[str | UUID] | TaskFilter,
        reason: str = "",
        token: str | None = None,
        by: Actor = CODE,
        **inputs: Any,
    ) -> None:
        if action not in TASK_ACTIONS:
            raise ActionNotPossible(
                f"{quoted(action)} is not an operation on background tasks: choose one of {', '.join(TASK_ACTIONS)}"
            )
        Action.__init__(self, by=by)
        self.action = action
        self.tasks = tasks if isinstance(tasks, TaskFilter) else [*tasks]
        self.reason = fit_note(reason, label="the reason")
        self.token = None if token is None else check_message_id(token, label="bulk job")
        TASK_ACTIONS[action](UUID(int=0), reason=self.reason, by=by, **inputs)  # it checks the inputs
        self.input_values, self.selection = inputs, {}

    def check(self) -> None:
        Action.check(self)
        if isinstance(self.tasks, TaskFilter):
            require_view(self.by.user)
        operation = access.Operation(action=self.action, permission=f"{APP}.{TASK_ACTIONS[self.action].permission}")
        access.require_access(self.by.user, operation, alias=self.storage.alias)

    def _request_digest(self) -> str:
        tasks = asdict(self.tasks) if isinstance(self.tasks, TaskFilter) else sorted(map(str, self.tasks))
        return _digest([self.action, self.input_values, self.reason, json.loads(json.dumps(tasks, default=str))])

    def _select_runs(self) -> list[UUID]:
        """Return the ids of the tasks, newest first. Raises ``ActionNotPossible`` for none, or too many."""
        limit, user = get_settings().BULK_LIMIT, self.by.user
        if isinstance(self.tasks, TaskFilter):
            rows = islice(task_rows(self.tasks, user, size=_BATCH_SIZE), limit + 1)
            task_ids = [task_id_of(row) for row in rows]
        else:
            task_ids = []
            for task in dict.fromkeys(map(str, self.tasks[: limit + 1])):
                row = find_task_row(task, user)
                if row is None:
                    raise TaskNotFound(f"there is no background task {quoted(task)}")
                task_ids.append(task_id_of(row))
        if len(task_ids) > limit:
            raise ActionNotPossible(
                f"a bulk job accepts at most {counted(limit, 'task', 'tasks')} (BULK_LIMIT): select fewer"
            )
        if not task_ids:
            raise ActionNotPossible("the selection contains no tasks")
        return task_ids

    def _build_parts(self, runs: list[UUID]) -> list[tuple[UUID, int | None]]:
        return [(task_id, None) for task_id in runs]


class StopBulk(Action[BulkJob]):
    """Operation that stops a running bulk job and returns it.

    Runs that were processed stay as they are. Workers leave the other runs alone until the job is resumed.

    Raises ``WorkflowNotFound`` for an unknown job and for one that does not belong to the user (see ``jobs_for``).
    Raises ``ActionNotPossible`` if the job is not running. Locks the row of the job, in the caller's transaction.
    Audited.
    """

    name: ClassVar[str] = "stop_bulk"
    permission: ClassVar[str] = "bulk_actions"
    forced: ClassVar[bool] = True
    from_state: ClassVar[str] = BulkJob.State.RUNNING
    to_state: ClassVar[str] = BulkJob.State.STOPPED

    def __init__(self, job: UUID | str, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.job = job
        self.reason = fit_note(reason, label="the reason")

    def perform(self) -> BulkJob:
        alias = self.storage.alias
        try:
            pk = UUID(str(self.job))
        except ValueError:
            raise WorkflowNotFound("there is no such bulk job") from None
        with self.storage.transaction():
            job = jobs_for(self.by.user, alias=alias).select_for_update().filter(pk=pk).first()
            if job is None:
                raise WorkflowNotFound("there is no such bulk job")
            if job.state != self.from_state:
                raise ActionNotPossible(f"the bulk job is {job.get_state_display()}, not {self.from_state}")
            job.state = self.to_state
            job.save(using=alias, update_fields=["state"])
            self.record(AuditSubject(run_id=None, workflow="", workflow_id=""), reason=self.reason, job=str(job.pk))
        return job


class ResumeBulk(StopBulk):
    """Operation that resumes a stopped bulk job and returns it: workers process the runs that are left.

    It raises the errors of ``StopBulk``, with ``ActionNotPossible`` for a job that is not stopped. Locks the row of the
    job. Audited.
    """

    name: ClassVar[str] = "resume_bulk"
    from_state: ClassVar[str] = BulkJob.State.STOPPED
    to_state: ClassVar[str] = BulkJob.State.RUNNING
