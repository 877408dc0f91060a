"""Background tasks as interfaces show them: lists with filters, and one task with its payloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django import access
from temporalex_django.access import VIEW_PAYLOAD, policy
from temporalex_django.authoring import django_tasks
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.names import quoted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.engine.background_task import attempt_log
from temporalex_django.errors import TaskNotFound
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.models.activities import read_progress
from temporalex_django.models.fields import decode_payload
from temporalex_django.operations import audit
from temporalex_django.operations.background_tasks import (
    VIEW_TASKS,
    attempts_of,
    find_task_row,
    parse_id,
    task_id_of,
)
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.read.failure_groups import with_faults
from temporalex_django.operations.read.run_summary import RunStateLoader
from temporalex_django.present.formatting import format_at

#: Statuses of tasks that have ended.
ENDED_STATUSES = frozenset(EndedTask.TaskStatus.values)
_PAYLOAD_COLUMNS = ("call", "options")
_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A background task (an enqueued Django task), as lists show it.

    - ``task``: the dotted path of its function.
    - ``status``: one of READY, RUNNING, FAILED, CANCELLED and SUCCESSFUL.
    - ``attempts``: the number of its attempts, with the one that runs; ``max_attempts``: their limit (0: none).
    - ``due_at``: when it may run, or is tried next; null when it has ended, and ``finished_at`` is set then.
    - ``text``: a sentence that says what it waits for, or how it ended.
    - ``cause``: the type of the error of its last attempt, and the place in the code; null if it has not failed.
    - ``cancelled_at``: when somebody asked it to end while it was running.
    - ``progress_done``, ``progress_total``, ``progress_text``: the progress that it reported last. The text is a
      payload.
    - ``enqueued_by``: the id of the run whose activity enqueued it.
    """

    id: str
    task: str
    status: str
    queue: str
    priority: int
    attempts: int
    max_attempts: int
    enqueued_at: datetime
    due_at: datetime | None
    finished_at: datetime | None
    text: str
    cause: str | None
    cancelled_at: datetime | None
    progress_done: float | None
    progress_total: float | None
    progress_text: str | None
    enqueued_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail(TaskRow):
    """A background task with its arguments, its result and its attempts, which are null if the user may not see them.

    ``call`` is ``[args, kwargs]``. Each of ``log`` has the ``worker`` (an epoch), the time ``at`` and the ``error`` of
    an attempt.
    """

    call: Any
    result: Any
    log: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The conditions of a list of background tasks; None leaves one out.

    ``task`` is the path of the function. ``cause`` is that of a failure, and selects all failures of its group: of the
    same type and in the same function of the code. ``run`` is the id of the run whose activities enqueued them.
    ``since`` and ``until`` bound the time of the enqueue.
    """

    status: str | None = None
    queue: str | None = None
    task: str | None = None
    cause: str | None = None
    run: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def apply(self, rows: QuerySet[Any]) -> QuerySet[Any] | None:
        """Return those ``rows`` of ``EnqueuedTask`` or ``EndedTask`` that meet the conditions; None if none can."""
        is_ended = rows.model is EndedTask
        if self.status is not None:
            if (self.status in ENDED_STATUSES) is not is_ended:
                return None
            condition = Q(status=self.status) if is_ended else Q(owner__isnull=self.status == "READY")
            rows = rows.filter(condition)
        if self.queue is not None:
            rows = rows.filter(queue=self.queue)
        if self.task is not None:
            rows = rows.filter(task=self.task) if is_ended else rows.filter(activity=_activity_name(self.task))
        if self.run is not None:
            run_id = parse_id(self.run)
            rows = rows.none() if run_id is None else rows.filter(enqueued_by=run_id)
        time_column = "enqueued_at" if is_ended else "scheduled_at"
        bounds = {"gte": self.since, "lt": self.until}
        rows = rows.filter(**{f"{time_column}__{name}": at for name, at in bounds.items() if at is not None})
        return rows if self.cause is None else self._with_cause(rows, is_ended=is_ended)

    def _with_cause(self, rows: QuerySet[Any], *, is_ended: bool) -> QuerySet[Any]:
        assert self.cause is not None
        if is_ended:
            same = (
                EndedTask.objects.using(rows.db).filter(cause=self.cause, fault__isnull=False).order_by("-finished_at")
            )
            return with_faults(rows, self.cause, [*map(str, same.values_list("fault", flat=True)[:1])])
        # The cause of an open task begins with the name of its activity.
        if self.task is None:
            return rows.filter(cause__isnull=False, cause__endswith=f": {self.cause}")
        cause = f"{_activity_name(self.task)}: {self.cause}"
        same = rows.filter(cause=cause, fault__isnull=False).order_by("-id")
        return with_faults(rows, cause, [*map(str, same.values_list("fault", flat=True)[:1])])


def _activity_name(path: str) -> str:
    return f"{django_tasks.KIND}:{path}"


def require_view(user: Person | None) -> None:
    """Raise ``ActionNotPermitted`` unless the user may see background tasks. None stands for code."""
    for operation in VIEW_TASKS:
        access.require_access(user, operation, alias=storage().alias)


def task_rows(filters: TaskFilter, user: Person | None, *, before: UUID | None = None, size: int) -> Iterator[Any]:
    """Yield the rows of background tasks that a user may see (None: code sees all), newest first.

    ``before`` is the id of the task behind which they begin, and ``size`` the number of rows that one statement reads
    of each of the two tables. Payloads are deferred.
    """
    alias = storage().alias
    sources = []
    for model, column in ((EnqueuedTask, "run_id"), (EndedTask, "id")):
        rows = filters.apply(access.tasks_for(user, model, alias=alias))
        if rows is None:
            continue
        if before is not None:
            rows = rows.filter(**{f"{column}__lt": before})
        deferred = (*_PAYLOAD_COLUMNS, *(("outcome",) if model is EndedTask else ()))
        sources.append(iterate_pages(rows.defer(*deferred), by=f"-{column}", size=size))
    # Both tables are read in descending order of their ids, which sort by time, so merging keeps memory constant.
    return merge(*sources, key=task_id_of, reverse=True)


def list_tasks(
    filters: TaskFilter, user: Person | None, *, before: UUID | None = None, limit: int
) -> tuple[list[TaskRow], bool]:
    """Return ``(rows of the list, True if there are more)``: at most ``limit`` background tasks, newest first.

    At most two reads of tasks, and two of workers and switches if some have not ended. Raises ``ActionNotPermitted``
    for a user who may not see background tasks.
    """
    require_view(user)
    rows = [*islice(task_rows(filters, user, before=before, size=min(limit + 1, _PAGE_SIZE)), limit + 1)]
    return describe_tasks(rows[:limit], user), len(rows) > limit


def iterate_tasks(filters: TaskFilter, user: Person | None) -> Iterator[TaskRow]:
    """Yield all background tasks that a user may see, newest first, in constant memory. See ``list_tasks``."""
    require_view(user)
    rows = task_rows(filters, user, size=_PAGE_SIZE)
    while page := [*islice(rows, _PAGE_SIZE)]:
        yield from describe_tasks(page, user)


def describe_tasks(rows: Sequence[Any], user: Person | None) -> list[TaskRow]:
    """Return rows of ``EnqueuedTask`` and ``EndedTask`` as lists show them to a user. At most two reads."""
    redactor, now = _redactor(user), timezone.now()
    loader = RunStateLoader([], now=now, background_tasks=[row for row in rows if isinstance(row, EnqueuedTask)])
    return [TaskRow(**_row_fields(row, redactor, loader, now)) for row in rows]


def find_described_task(id: UUID | str, user: Person | None, *, is_own_result: bool = False) -> TaskRow:
    """Return one background task as lists show it to a user (None: code).

    With ``is_own_result``, the user has just performed an operation on it, which needs no permission to look at tasks.
    Raises ``TaskNotFound`` and ``ActionNotPermitted``.
    """
    if not is_own_result:
        require_view(user)
    row = find_task_row(id, user)
    if row is None:
        raise TaskNotFound(f"there is no background task {quoted(str(id))}")
    return describe_tasks([row], user)[0]


def describe_task(id: UUID | str, by: Actor) -> TaskDetail:
    """Return one background task with its payloads, as far as the actor may see them; a person's look is audited.

    Raises ``TaskNotFound``, and ``ActionNotPermitted`` for a user who may not see background tasks.
    """
    require_view(by.user)
    row = find_task_row(id, by.user)
    if row is None:
        raise TaskNotFound(f"there is no background task {quoted(str(id))}")
    redactor, now = _redactor(by.user), timezone.now()
    loader = RunStateLoader([], now=now, background_tasks=[row] if isinstance(row, EnqueuedTask) else [])
    payloads: dict[str, Any] = dict.fromkeys(("call", "result", "log"))
    if redactor.may_see_payloads:
        options, outcome = decode_payload(row.options), decode_payload(getattr(row, "outcome", None))
        payloads = {
            "call": row.arguments,
            "result": outcome.get("result") if isinstance(outcome, dict) else outcome,
            "log": attempt_log(options) if isinstance(options, dict) else options,
        }
        audit.record_task_read(by, task_id_of(row), str(row))
    return TaskDetail(**_row_fields(row, redactor, loader, now), **payloads)


def _redactor(user: Person | None) -> Redactor:
    return Redactor(may_see_payloads=user is None or policy().allows(user, VIEW_PAYLOAD))


def _row_fields(row: Any, redactor: Redactor, loader: RunStateLoader, now: datetime) -> dict[str, Any]:
    is_ended = isinstance(row, EndedTask)
    progress = read_progress(row) or {}
    return {
        "id": str(task_id_of(row)),
        "task": str(row),
        "status": row.status if is_ended else "READY" if row.owner is None else "RUNNING",
        "queue": row.queue,
        "priority": row.priority,
        "attempts": attempts_of(row),
        "max_attempts": 0 if is_ended else row.max_attempts,
        "enqueued_at": row.enqueued_at if is_ended else row.scheduled_at,
        "due_at": None if is_ended else row.due_at,
        "finished_at": row.finished_at if is_ended else None,
        "text": _ended_text(row, now) if is_ended else loader.task_summary(row, redactor).text,
        "cause": row.cause if is_ended or row.cause is None else row.cause.removeprefix(f"{row.activity}: "),
        "cancelled_at": None if is_ended else row.cancelled_at,
        "progress_done": progress.get("done"),
        "progress_total": progress.get("total"),
        "progress_text": progress.get("text") if redactor.may_see_payloads else None,
        "enqueued_by": None if row.enqueued_by_id is None else str(row.enqueued_by_id),
    }


def _ended_text(row: EndedTask, now: datetime) -> str:
    words = {"at": format_at(row.finished_at, now), "count": row.attempts, "cause": row.cause}
    if row.status == EndedTask.TaskStatus.SUCCESSFUL:
        return _("It was successful %(at)s.") % words
    if row.status == EndedTask.TaskStatus.CANCELLED:
        return _("It was cancelled %(at)s.") % words
    text = ngettext(
        "It failed %(at)s, after %(count)d attempt: %(cause)s.",
        "It failed %(at)s, after %(count)d attempts: %(cause)s.",
        row.attempts,
    )
    return text % words
