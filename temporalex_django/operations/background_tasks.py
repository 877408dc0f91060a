"""Background tasks: enqueue a Django task, and find its state or result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from temporalex_django.authoring import django_tasks
from temporalex_django.conf import codec
from temporalex_django.core import current
from temporalex_django.db.background_tasks import NewBackgroundTask, backend_queues, insert_task
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.engine import background_task
from temporalex_django.engine.background_task import BackgroundTask, Status
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.errors import NestingError
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.operations.base import storage, to_plain_payload

#: The statuses of a task, in the order in which it passes through them.
STATUSES: tuple[Status, ...] = ("READY", "RUNNING", "FAILED", "SUCCESSFUL")


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
    )
    store = storage()
    inserted = insert_task(task, storage=store)
    notify_on_commit(alias=store.alias, queues=[queue])
    return inserted


def started_task(state: TaskState) -> BackgroundTask:
    """Convert the claimed row of a background task to a ``BackgroundTask``, when an attempt starts."""
    return background_task.started_task(state)


def finished_task(result: TaskResult) -> BackgroundTask:
    """Convert the final result of a background task to a ``BackgroundTask``, when the task has ended."""
    return background_task.finished_task(result, timezone.now())


def find_background_task(id: str) -> BackgroundTask | None:
    """Return the background task with that id as it is now, or None if there is none or its row was deleted.

    At most two reads, and no lock. Raises ``PayloadError`` if its arguments or its result cannot be decoded, and
    ``KeyMissing`` if the codec of this process lacks their key.
    """
    try:
        task_id = UUID(str(id))
    except ValueError:
        return None
    alias = storage().alias
    # Read in this order: a task that ends moves from the first table to the second, so the other order could miss it.
    if (row := EnqueuedTask.objects.using(alias).filter(run_id=task_id).first()) is not None:
        return from_enqueued_row(row)
    finished_row = EndedTask.objects.using(alias).filter(pk=task_id).first()
    if finished_row is None:
        return None
    return from_finished_row(finished_row)


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
        status="SUCCESSFUL" if row.status == EndedTask.TaskStatus.SUCCESSFUL else "FAILED",
        args=args,
        kwargs=kwargs,
        enqueued_at=row.enqueued_at,
        run_after=_parse_run_after(options),
        finished_at=row.finished_at,
        log=background_task.attempt_log(options),
        value=_decode(row.outcome).get("result"),
        attempts=row.attempts,
    )


def _decode(data: Any) -> Any:
    return codec().decode(bytes(data))


def _parse_run_after(options: dict[str, Any]) -> datetime | None:
    text = options.get("run_after")
    if text is None:
        return None
    return datetime.fromisoformat(text)
