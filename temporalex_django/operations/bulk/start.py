"""Start a bulk job: one operation on many runs, or on activities or timers of many runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.authoring.authorization import APP
from temporalex_django.authoring.run_columns import UNREAD_COLUMNS
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.names import check_message_id, check_name, counted, fit_note, quoted
from temporalex_django.engine.ids import parse_run_id, uuid7
from temporalex_django.errors import ActionNotPermitted, ActionNotPossible, IdempotencyKeyReused, WorkflowNotFound
from temporalex_django.models import BulkItem, BulkJob, Instance
from temporalex_django.operations.base import CODE, Action, Actor, to_plain_payload
from temporalex_django.operations.bulk.worker import jobs_for, operator_action
from temporalex_django.operations.runs.signal import SendSignal

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
        """Raise ``ActionNotPossible`` if the user already has ``BULK_JOBS`` running jobs.

        The limit keeps other people's jobs from waiting long.
        """
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
        """The digest of the user and their token, or None if there is no token.

        The same token of another person has another digest.
        """
        if self.token is None:
            return None
        return _digest([str(getattr(self.by.user, "pk", None)), self.token])

    def _find_duplicate(self, job: BulkJob, token: str) -> BulkJob | None:
        """Return the earlier job that has the same token, or None after inserting ``job``.

        A concurrent request with the same token waits for this transaction. Raises ``IdempotencyKeyReused`` if the
        earlier job was started by another request.
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
        """Return a digest of the action, its inputs, the reason and the selected runs, to recognize a repeated request.

        Times in a queryset are left out, because a repeated request computes them anew.
        """
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
        """Return the ids of the selected runs that the user may operate, newest first.

        Raises ``ActionNotPossible`` for no runs, too many, or an input that only one run can have, and
        ``WorkflowNotFound`` for the id of no run, or of a run that the user may not see.
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
        """Return the items of the job as pairs ``(run id, command number of the activity or timer)``.

        For an operation on whole runs, the number is None. Raises ``ActionNotPossible`` if there are none, or more than
        ``BULK_LIMIT``.
        """
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
        """Return a queryset of the ids of ``runs``, for use as a subquery.

        The order is removed, except from a slice, where it determines which runs the slice contains.
        """
        queryset = runs.using(self.storage.alias)
        return (queryset if queryset.query.is_sliced else queryset.order_by()).values("pk")

    def _filter_admitted(self, run_ids: list[UUID]) -> list[UUID]:
        """Return the run ids for which the function ``is_admitted`` of the interface returns True.

        Raises ``ActionNotPermitted`` if the caller named a run for which it returns False.
        """
        if self.is_admitted is None:
            return run_ids
        rows = Instance.objects.using(self.storage.alias).filter(pk__in=run_ids).defer(*UNREAD_COLUMNS)
        refused_runs = {run.pk: run for run in rows if not self.is_admitted(run)}
        if refused_runs and not isinstance(self.runs, QuerySet):
            run = refused_runs[max(refused_runs)]
            raise ActionNotPermitted(f"{self.by.user} may not {self.action} {run.workflow} {run.workflow_id}")
        return [run_id for run_id in run_ids if run_id not in refused_runs]

    def _single_run_input(self) -> str | None:
        """Return the name of an input that was passed although only one run can have its value, such as an id.

        Returns None if there is none. A bulk job on several runs refuses such an input.
        """
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
    """Return the argument ``runs`` of a bulk job if it is a queryset of runs, or a list of the run ids in it.

    Raises ``TypeError`` for anything else. The ids themselves are not checked.
    """
    if isinstance(runs, QuerySet):
        if not issubclass(runs.model, Instance):
            raise TypeError(f"runs is a queryset of {runs.model.__name__}: pass a queryset of Instance, or run ids")
        return runs
    if isinstance(runs, str | bytes | Mapping) or not isinstance(runs, Iterable):
        raise TypeError(f"runs={quoted(runs)} is not valid: pass a list of run ids, or a queryset of runs")
    return [*runs]


def _validate_inputs(action: str, inputs: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Validate the inputs of a bulk job; return ``(permission of the action, input values, selector values)``.

    ``action`` is the name of the operation. ``inputs`` contains both the inputs of the operation and the selectors,
    which choose among activities or timers, by name. The two returned dicts have the values as they will be stored.
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
