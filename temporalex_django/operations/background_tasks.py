"""Background tasks: enqueue a Django task, find its state or result, and operate it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, cast
from uuid import UUID

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.access import Operation
from temporalex_django.authoring import django_tasks
from temporalex_django.authoring.activity_context import activity_context
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.conf import codec
from temporalex_django.core import current
from temporalex_django.core.names import fit_note, quoted
from temporalex_django.db.background_tasks import NewBackgroundTask, backend_queues, insert_task
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.engine import background_task
from temporalex_django.engine.activity_policy import CANCELLED, CANCELLED_TEXT, cancelled_result
from temporalex_django.engine.background_task import BackgroundTask, Status
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.ids import parse_run_id
from temporalex_django.errors import ActionNotPossible, NestingError, TaskNotFound
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.models.activities import read_progress
from temporalex_django.operations.base import CODE, Action, Actor, storage, to_plain_payload

#: About which the access policy is asked before open and ended tasks are shown.
VIEW_TASKS = tuple(
    Operation(action="view", permission=f"{APP}.{permission}") for permission in ("view_enqueuedtask", "view_endedtask")
)
_PRIORITIES = (-100, 100)
#: How long a cancelled task is kept whose options, with its own retention, this process cannot read.
UNREAD_RETENTION = timedelta(days=7)
#: The statuses of a task, in the order in which it passes through them.
STATUSES: tuple[Status, ...] = ("READY", "RUNNING", "FAILED", "CANCELLED", "SUCCESSFUL")


def named_queues() -> list[str]:
    """Return the sorted names of the queues that the project's task backends declare, with the queue "default"."""
    return sorted({"default", *(backend_queues() or ())})


def enqueue(
    path: str,
    *,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    queue: str,
    priority: int,
    run_after: datetime | None,
) -> tuple[UUID, datetime]:
    """Store a background task, and return ``(id, time at which it was enqueued)``.

    ``path`` is the dotted name of the function. ``options`` are the options of an activity, such as its retry policy,
    and also ``backend`` (the alias of the task backend) and ``retention`` (the seconds for which the result is kept).
    ``run_after`` is the earliest time of the first attempt. A task with a higher ``priority`` is claimed before others
    of its queue.

    This is one INSERT, in the caller's transaction if one is open. Raises ``PayloadError`` for arguments that are too
    large, and ``NestingError`` inside workflow code.
    """
    if current.is_inside_workflow():
        raise NestingError(
            f"{path} was enqueued in workflow code: use await api.task(...) instead, or enqueue it in an activity"
        )
    to_plain_payload([args, kwargs], label=f"the arguments of {path}")
    run_after_text = None
    if run_after is not None:
        run_after_text = run_after.isoformat()
    stored_options = {**options, "run_after": run_after_text, "priority": priority or None}
    task = NewBackgroundTask(
        activity=f"{django_tasks.KIND}:{path}",
        args=args,
        kwargs=kwargs,
        options={name: value for name, value in stored_options.items() if value is not None},
        queue=queue,
        priority=priority,
        run_after=run_after,
        enqueued_by=_enqueuing_run(),
    )
    store = storage()
    inserted = insert_task(task, storage=store)
    notify_on_commit(alias=store.alias, queues=[queue])
    return inserted


def _enqueuing_run() -> UUID | None:
    """Return the run whose activity runs here, or None."""
    if not current.is_in_activity():
        return None
    context = activity_context()
    return parse_run_id(context.run_id) if context.workflow_id else None


def started_task(state: TaskState) -> BackgroundTask:
    """Convert the claimed row of a background task to a ``BackgroundTask``, when an attempt starts."""
    return background_task.started_task(state)


def finished_task(result: TaskResult) -> BackgroundTask:
    """Convert the final result of a background task to a ``BackgroundTask``, when the task has ended."""
    return background_task.finished_task(result, timezone.now())


def find_background_task(id: str, user: Person | None = None) -> BackgroundTask | None:
    """Return the background task with that id as it is now, or None if there is none or its row was deleted.

    A task that the access policy hides from ``user`` is not there for them; None stands for code. At most two reads,
    and no lock. Raises ``PayloadError`` if its arguments or its result cannot be decoded, and
    ``KeyMissing`` if the codec of this process lacks their key.
    """
    row = find_task_row(id, user)
    if row is None:
        return None
    return from_enqueued_row(row) if isinstance(row, EnqueuedTask) else from_finished_row(row)


def parse_id(id: object) -> UUID | None:
    """Return the id of a background task as a UUID, or None for something else."""
    try:
        return UUID(str(id))
    except ValueError:
        return None


def describe_error(error: BaseException) -> dict[str, str]:
    """Return an exception as the log of a background task stores it: its ``class`` path and its ``traceback``."""
    return background_task.error_entry(error)


def find_task_row(id: object, user: Person | None = None, *, lock: bool = False) -> EnqueuedTask | EndedTask | None:
    """Return the row of the background task with that id, or None if it does not exist for ``user`` (None: code).

    With ``lock``, the row is locked in the open transaction. At most two reads.
    """
    if (task_id := parse_id(id)) is None:
        return None
    alias = storage().alias
    # Read in this order: a task that ends moves from the first table to the second, so the other order could miss it.
    for rows in (
        access.tasks_for(user, EnqueuedTask, alias=alias).filter(run_id=task_id),
        access.tasks_for(user, EndedTask, alias=alias).filter(pk=task_id),
    ):
        if (row := (rows.select_for_update(of=("self",)) if lock else rows).first()) is not None:
            return row
    return None


def from_enqueued_row(row: Any) -> BackgroundTask:
    """Convert a row of ``EnqueuedTask``, the table of tasks that wait or run, to a ``BackgroundTask``."""
    (args, kwargs), options = _decode(row.call), _decode(row.options)
    log, is_running = background_task.attempt_log(options), row.owner is not None
    if is_running:
        log.append(background_task.log_entry(row.owner, row.started_at, None))
    return BackgroundTask(
        id=row.run_id,
        path=background_task.function_path(row.activity),
        backend=str(options.get("backend")),
        queue=row.queue,
        priority=row.priority,
        status="RUNNING" if is_running else "READY",
        args=args,
        kwargs=kwargs,
        enqueued_at=row.scheduled_at,
        run_after=_parse_run_after(options),
        log=log,
        attempts=row.attempt,
        waits_for=row.waits_for,
        cancelled_at=row.cancelled_at,
        progress=read_progress(row),
        enqueued_by=row.enqueued_by_id,
    )


def from_finished_row(row: EndedTask) -> BackgroundTask:
    """Convert a row of ``EndedTask``, the table of tasks that have ended, to a ``BackgroundTask``."""
    (args, kwargs), options = _decode(row.call), _decode(row.options)
    return BackgroundTask(
        id=row.pk,
        path=row.task,
        backend=row.backend,
        queue=row.queue,
        priority=row.priority,
        # A damaged row may have another status.
        status=cast("Status", row.status if row.status in EndedTask.TaskStatus.values else "FAILED"),
        args=args,
        kwargs=kwargs,
        enqueued_at=row.enqueued_at,
        run_after=_parse_run_after(options),
        finished_at=row.finished_at,
        log=background_task.attempt_log(options),
        value=_decode(row.outcome).get("result"),
        attempts=row.attempts,
        progress=read_progress(row),
        enqueued_by=row.enqueued_by_id,
    )


def _decode(data: Any) -> Any:
    return codec().decode(bytes(data))


def _parse_run_after(options: dict[str, Any]) -> datetime | None:
    text = options.get("run_after")
    if text is None:
        return None
    return datetime.fromisoformat(text)


# --- operations -------------------------------------------------------------------------------------------------------
#
# Operations that people and code perform on one background task.


class TaskAction(Action[BackgroundTask]):
    """Base class of the operations on one background task. Each returns the task as it is then.

    - ``label`` and ``summary``: the text of the button, and a short sentence in the imperative.
    - ``effect`` and ``done``: sentences that say what will happen, and what has happened.
    - ``destructive``: True if the operation cannot be undone.
    - ``is_for_ended``: True if it is possible only for a task that has ended, False only for one that has not.
    - ``done_status``: the status of an ended task for which nothing is left to do, if there is one.

    ``attempts`` is the number of attempts that the caller has seen. If the task has another one by now, nothing is
    done, so a form that is sent twice acts once. None leaves that out.

    ``execute`` raises ``TaskNotFound`` if there is no such task or its user may not see it, and ``ActionNotPossible``
    if ``why_not`` says so. It locks the row of the task, in the caller's transaction. Audited.
    """

    permission: ClassVar[str] = "operate_tasks"
    forced: ClassVar[bool] = True
    label: ClassVar[Promise]
    summary: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]
    destructive: ClassVar[bool] = False
    is_for_ended: ClassVar[bool] = False
    done_status: ClassVar[str] = ""

    def __init__(self, task: UUID | str, *, reason: str = "", attempts: int | None = None, by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.task = task
        self.reason = fit_note(reason, label="the reason")
        self.attempts = attempts

    def perform(self) -> BackgroundTask:
        with self.translate_busy(f"the task {self.task}"), self.storage.transaction():
            row = find_task_row(self.task, self.by.user, lock=True)
            if row is None:
                raise TaskNotFound(f"there is no background task {quoted(str(self.task))}")
            if (reason := self.why_not(row)) is not None:
                refusal = ActionNotPossible(f"{self.name} of the task {row}: {reason}")
                refusal.already_done = self.is_done(row)
                raise refusal
            if self.attempts is not None and attempts_of(row) != self.attempts:
                raise ActionNotPossible(
                    f"{self.name} of the task {row}: it has had another attempt since you looked; look at it again"
                )
            path, changed = str(row), self.change(row)
            self.record(
                AuditSubject(run_id=None, workflow="", workflow_id=""),
                reason=self.reason,
                task=path,
                id=str(changed.id),
                **self.details,
            )
        return changed

    @abstractmethod
    def change(self, row: Any) -> BackgroundTask:
        """Change the locked row of the task, and return the task as it is then."""

    @property
    def details(self) -> dict[str, Any]:
        """Values for the audit row, besides the task."""
        return {}

    @classmethod
    def why_not(cls, row: EnqueuedTask | EndedTask) -> str | None:
        """Return why the operation is impossible for the task in this state, or None if it is possible."""
        if isinstance(row, EndedTask) is not cls.is_for_ended:
            return (
                gettext("it has ended as {status}").format(status=row.get_status_display())
                if isinstance(row, EndedTask)
                else gettext("it has not ended")
            )
        return None

    @classmethod
    def is_done(cls, row: EnqueuedTask | EndedTask) -> bool:
        """Return True if the operation is impossible only because the task is in the wanted state already."""
        return isinstance(row, EndedTask) and row.status == cls.done_status


def task_id_of(row: EnqueuedTask | EndedTask) -> UUID:
    """Return the id of the background task of a row, as ``enqueue`` returned it."""
    return row.run_id if isinstance(row, EnqueuedTask) else row.pk


def attempts_of(row: EnqueuedTask | EndedTask) -> int:
    """Return the number of attempts of the background task of a row, with the one that runs."""
    return row.attempt if isinstance(row, EnqueuedTask) else row.attempts


class RetryTask(TaskAction):
    """Operation that runs a failed or cancelled background task again, under its id.

    The arguments and the idempotency key stay, and so do its attempts and their errors. It gets as many attempts as its
    retry policy allows, and ``task_finished`` is sent again when it has ended.
    """

    name: ClassVar[str] = "retry_task"
    label: ClassVar[Promise] = _("Retry")
    summary: ClassVar[Promise] = _("Run a failed or cancelled background task again.")
    effect: ClassVar[Promise] = _("The task runs again, with the same arguments and the same key.")
    done: ClassVar[Promise] = _("The task will run again.")
    done_status: ClassVar[str] = "SUCCESSFUL"
    is_for_ended: ClassVar[bool] = True

    @classmethod
    def why_not(cls, row: EnqueuedTask | EndedTask) -> str | None:
        if isinstance(row, EndedTask) and row.status == EndedTask.TaskStatus.SUCCESSFUL:
            return gettext("it was successful")
        if isinstance(row, EnqueuedTask):
            return gettext("it is running") if row.owner is not None else gettext("it waits to run already")
        return None

    @classmethod
    def is_done(cls, row: EnqueuedTask | EndedTask) -> bool:
        return isinstance(row, EnqueuedTask) or super().is_done(row)

    def change(self, row: Any) -> BackgroundTask:
        options, now = {**_decode(row.options), "attempts_before": row.attempts}, self.storage.now()
        max_attempts = int((options.get("retry") or {}).get("max_attempts") or 0)
        task = EnqueuedTask.objects.using(self.storage.alias).create(
            run_id=row.pk,
            workflow_id="",
            workflow="",
            seq=0,
            activity=f"{django_tasks.KIND}:{row.task}",
            call=row.call,
            options=codec().encode(options),
            queue=row.queue,
            run_queue=row.queue,
            priority=row.priority,
            attempt=row.attempts,
            max_attempts=max_attempts and row.attempts + max_attempts,
            start_to_close=options.get("start_to_close"),
            heartbeat_timeout=options.get("heartbeat"),
            scheduled_at=row.enqueued_at,
            due_at=now,
            enqueued_by_id=row.enqueued_by_id,
        )
        row.delete(using=self.storage.alias)
        notify_on_commit(alias=self.storage.alias, queues=[row.queue])
        return from_enqueued_row(task)


class CancelTask(TaskAction):
    """Operation that cancels a background task.

    A task that waits ends at once as cancelled, with ``TaskCancelled`` as its last error. In one that runs,
    ``is_cancelled()`` becomes True within a second, and its next heartbeat raises ``TaskCancelled``. If it returns all
    the same, it is successful. In any other case it ends as cancelled, and no attempt follows.
    """

    name: ClassVar[str] = "cancel_task"
    label: ClassVar[Promise] = _("Cancel")
    summary: ClassVar[Promise] = _("Cancel a background task.")
    effect: ClassVar[Promise] = _("A task that waits does not run. One that runs is asked to end, and is not retried.")
    done: ClassVar[Promise] = _("The task was cancelled.")
    done_status: ClassVar[str] = "CANCELLED"
    destructive: ClassVar[bool] = True

    @classmethod
    def why_not(cls, row: EnqueuedTask | EndedTask) -> str | None:
        if isinstance(row, EnqueuedTask) and row.owner is not None and row.cancelled_at is not None:
            return gettext("it was asked to end already")
        return super().why_not(row)

    @classmethod
    def is_done(cls, row: EnqueuedTask | EndedTask) -> bool:
        return isinstance(row, EnqueuedTask) or super().is_done(row)

    def change(self, row: Any) -> BackgroundTask:
        alias = self.storage.alias
        if row.owner is not None:
            row.cancelled_at = self.storage.now()
            row.save(using=alias, update_fields=["cancelled_at"])
            return from_enqueued_row(row)
        state = self.storage.free_background_task(row.pk)
        if state is None:  # this process cannot read it
            return self._end_unread(row)
        result = cancelled_result(state)
        self.storage.finish_tasks([result])
        self.storage.on_commit(lambda: django_tasks.notify_finished(result))
        return from_finished_row(EndedTask.objects.using(alias).get(pk=row.run_id))

    def _end_unread(self, row: Any) -> BackgroundTask:
        """End a task whose payloads this process cannot read, as they are."""
        now, alias = self.storage.now(), self.storage.alias
        EndedTask.objects.using(alias).create(
            id=row.run_id,
            task=str(row),
            backend="",
            queue=row.queue,
            priority=row.priority,
            status=EndedTask.TaskStatus.CANCELLED,
            call=row.call,
            options=row.options,
            outcome=codec().encode({"type": CANCELLED, "message": CANCELLED_TEXT}),
            attempts=row.attempt,
            enqueued_at=row.scheduled_at,
            finished_at=now,
            keep_until=now + UNREAD_RETENTION,
            enqueued_by_id=row.enqueued_by_id,
        )
        row.delete(using=alias)
        return BackgroundTask(
            id=row.run_id,
            path=str(row),
            backend="",
            queue=row.queue,
            priority=row.priority,
            status="CANCELLED",
            args=(),
            kwargs={},
            enqueued_at=row.scheduled_at,
            finished_at=now,
            attempts=row.attempt,
        )


class _WaitingTaskAction(TaskAction):
    """Base class of operations on tasks that wait for a worker."""

    @classmethod
    def why_not(cls, row: EnqueuedTask | EndedTask) -> str | None:
        if isinstance(row, EnqueuedTask) and row.owner is not None:
            return gettext("it is running")
        return super().why_not(row)


class RunTaskNow(_WaitingTaskAction):
    """Operation that makes a background task due now, which waits for its time or for its next attempt."""

    name: ClassVar[str] = "run_task_now"
    label: ClassVar[Promise] = _("Run now")
    summary: ClassVar[Promise] = _("Run a background task before its time.")
    effect: ClassVar[Promise] = _("A worker runs the task as soon as it can, before its time.")
    done: ClassVar[Promise] = _("The task is due now.")

    def change(self, row: Any) -> BackgroundTask:
        row.due_at = self.storage.now()
        row.save(using=self.storage.alias, update_fields=["due_at"])
        notify_on_commit(alias=self.storage.alias, queues=[row.queue])
        return from_enqueued_row(row)


class Requeue(_WaitingTaskAction):
    """Operation that moves a background task that waits to another queue, gives it another priority, or both.

    Raises ``ActionNotPossible`` also for a queue that no task backend of the project has, for a priority outside of
    -100 to 100, and if both are left out.
    """

    name: ClassVar[str] = "requeue"
    label: ClassVar[Promise] = _("Requeue")
    summary: ClassVar[Promise] = _("Move a background task to another queue or priority.")
    effect: ClassVar[Promise] = _("The task waits in another queue, or with another priority.")
    done: ClassVar[Promise] = _("The task was requeued.")

    def __init__(
        self, task: UUID | str, *, queue: str | None = None, priority: int | None = None, **options: Any
    ) -> None:
        super().__init__(task, **options)
        queues = backend_queues()
        if queue is None and priority is None:
            raise ActionNotPossible("requeue needs another queue, another priority, or both")
        if queue is not None and (not isinstance(queue, str) or (queues is not None and queue not in queues)):
            raise ActionNotPossible(
                f"no task backend of this project has the queue {quoted(queue)}: choose one of {', '.join(named_queues())}"
            )
        if priority is not None and (type(priority) is not int or not _PRIORITIES[0] <= priority <= _PRIORITIES[1]):
            raise ActionNotPossible(f"the priority {quoted(priority)} is not a whole number from -100 to 100")
        self.queue = queue
        self.priority = priority

    @property
    def details(self) -> dict[str, Any]:
        inputs = {"queue": self.queue, "priority": self.priority}
        return {name: value for name, value in inputs.items() if value is not None}

    def change(self, row: Any) -> BackgroundTask:
        if self.queue is not None and self.queue != row.queue:
            row.queue = row.run_queue = self.queue
            row.line = None  # the partition of its old queue; the next claim finds that of the new one
        row.priority = row.priority if self.priority is None else self.priority
        row.save(using=self.storage.alias, update_fields=["queue", "run_queue", "line", "priority"])
        notify_on_commit(alias=self.storage.alias, queues=[row.queue])
        return from_enqueued_row(row)


#: The operations on background tasks, by name.
TASK_ACTIONS: Mapping[str, type[TaskAction]] = {
    action.name: action for action in (RetryTask, CancelTask, RunTaskNow, Requeue)
}
