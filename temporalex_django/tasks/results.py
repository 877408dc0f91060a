"""Conversions from background tasks to Django's ``TaskResult`` and ``Task``, and Django's signals about tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import UUID

import django
from asgiref.sync import sync_to_async
from django.utils import timezone

from temporalex_django.authoring.activity_context import ActivityContext
from temporalex_django.authoring.django_tasks import is_task
from temporalex_django.operations.background_tasks import (
    describe_error,
    find_background_task,
    finished_task,
    started_task,
)

if TYPE_CHECKING:
    from temporalex_django.engine.background_task import BackgroundTask

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskError

        # The backport kept the older names of two exceptions.
        from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
    except ImportError as exc:
        raise ImportError(
            "Django before 6.0 does not include tasks: run pip install 'temporalex-django[tasks]', or "
            "install django-tasks"
        ) from exc

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]


def new_result(
    task: Task[Any, Any], *, id: UUID | str, at: datetime, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TaskResult[Any, Any]:
    """Return Django's ``TaskResult`` for a background task that was just enqueued, with the status ``READY``.

    ``id`` is the id of the task, and ``at`` the time at which it was enqueued.
    """
    return TaskResult(
        task=task,
        id=str(id),
        status=TaskResultStatus.READY,
        enqueued_at=at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=[*args],
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def result_of(background_task: BackgroundTask) -> TaskResult[Any, Any]:
    """Convert a background task to Django's ``TaskResult``.

    Raises ``InvalidTask`` if its function is not a task in this process.
    """
    task_result: TaskResult[Any, Any] = TaskResult(
        task=task_of(background_task),
        id=str(background_task.id),
        # Django has no status for a cancelled task; its last error says so.
        status=TaskResultStatus["FAILED" if background_task.status == "CANCELLED" else background_task.status],
        enqueued_at=background_task.enqueued_at,
        started_at=background_task.started_at,
        finished_at=background_task.finished_at,
        last_attempted_at=background_task.last_attempted_at,
        args=[*background_task.args],
        kwargs=dict(background_task.kwargs),
        backend=background_task.backend,
        errors=[
            TaskError(exception_class_path=error["class"], traceback=error["traceback"])
            for error in background_task.errors
        ],
        worker_ids=background_task.worker_ids,
    )
    # TaskResult is frozen and does not take the value as an argument; Django's own backends set it like this.
    object.__setattr__(task_result, "_return_value", background_task.value)
    return task_result


def task_of(background_task: BackgroundTask) -> Task[Any, Any]:
    """Return Django's ``Task`` object for the function of a background task, with the options of the enqueue.

    Raises ``InvalidTask`` if the function is not a task in this process.
    """
    task: Task[Any, Any] = _import_task(background_task.path)
    task_options: dict[str, Any] = {
        "priority": background_task.priority,
        "queue_name": background_task.queue,
        "run_after": background_task.run_after,
        "backend": background_task.backend,
    }
    # Return the imported object itself where possible, so that it is identical to the task in the user's module.
    is_unchanged = all(getattr(task, name) == value for name, value in task_options.items())
    if is_unchanged:
        return task
    return task.using(**task_options)


# The same few paths are looked up again and again. Errors are not cached, so a later import may succeed.
@lru_cache(maxsize=1024)
def _import_task(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        task = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise InvalidTask(f"this process does not have the task {path!r} of this result: {exc}") from exc
    if not is_task(task):
        raise InvalidTask(f"{path!r} is not a task any more: its @task decorator is gone")
    return task


class DjangoTaskHost:
    """Gives attempts of Django tasks their ``TaskContext``, and sends Django's signals about tasks.

    It implements ``authoring.django_tasks.TaskHost``; the code that runs activities calls it.
    """

    def context(self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return Django's ``TaskContext`` for an attempt of ``task``.

        ``attempt`` is the context that activities have, and ``args`` and ``kwargs`` are the arguments of the call. The
        ``TaskContext`` of a background task contains the stored result. A task that a workflow awaits has none, so its
        ``TaskContext`` contains a result that exists only during the attempt.
        """
        background_task = None if attempt.workflow_id else find_background_task(attempt.run_id)
        now = timezone.now()
        if background_task is not None:
            result = result_of(background_task)
        else:
            result = new_result(task, id=attempt.idempotency_key, at=now, args=args, kwargs=kwargs)
            # TaskContext.attempt is the length of this list, so it needs one entry per attempt. Which ids they are has
            # no meaning inside a workflow.
            result.worker_ids.extend([attempt.run_id] * attempt.attempt)
        running_fields = {
            "status": TaskResultStatus.RUNNING,
            "started_at": result.started_at or now,
            "last_attempted_at": now,
        }
        # The dataclass is frozen. The row may not have the start of this attempt yet, because an attempt begins after
        # its claim (see decision 35).
        for name, value in running_fields.items():
            object.__setattr__(result, name, value)
        return TaskContext(task_result=result)

    async def acontext(
        self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return Django's ``TaskContext`` for an attempt of ``task``, for code in an event loop.

        The arguments are those of ``context``, which is called in a thread because it reads the database.
        """
        return await sync_to_async(self.context)(task, attempt, args, kwargs)

    def failed_result(
        self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException
    ) -> Any:
        """Return Django's ``TaskResult`` for an attempt of ``task`` that has just raised ``error``.

        It is the result of ``context``, with the status ``FAILED`` and the error among its errors. At most two reads.
        """
        result, entry = self.context(task, attempt, args, kwargs).task_result, describe_error(error)
        object.__setattr__(result, "status", TaskResultStatus.FAILED)  # frozen, as above
        result.errors.append(TaskError(exception_class_path=entry["class"], traceback=entry["traceback"]))
        return result

    def notify_started(self, state: Any) -> None:
        """Send Django's signal ``task_started``, in the thread of the attempt; ``state`` is the task's claimed row."""
        self._send(task_started, started_task(state))

    def notify_finished(self, result: Any) -> None:
        """Send Django's signal ``task_finished`` after the commit; ``result`` is the final result of the task."""
        self._send(task_finished, finished_task(result))

    def _send(self, signal: Any, background_task: BackgroundTask) -> None:
        # Building the result imports the task's module: skip it when nobody listens.
        if signal.receivers:
            signal.send_robust(type(task_backends[background_task.backend]), task_result=result_of(background_task))
