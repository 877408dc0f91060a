"""``TaskResult`` of Django, made of what the tables say; and its signals, which workers send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone

from temporalex_django.actions.lone_tasks import find_background_task, finished_task, started_task
from temporalex_django.authoring.activity_context import ActivityContext
from temporalex_django.authoring.django_tasks import is_task
from temporalex_django.tasks.compat import (
    InvalidTask,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)

if TYPE_CHECKING:
    from temporalex_django.engine.background_task import BackgroundTask


def new_result(
    task: Task[Any, Any], *, id: UUID | str, at: datetime, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TaskResult[Any, Any]:
    """Of one that was enqueued just now."""
    return TaskResult(
        task=task,
        id=str(id),
        status=TaskResultStatus.READY,
        enqueued_at=_to_django_time(at),
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
    """Of one as it stands. Raises ``InvalidTask`` when its function is no task in this process."""
    task_result: TaskResult[Any, Any] = TaskResult(
        task=task_of(background_task),
        id=str(background_task.id),
        status=TaskResultStatus[background_task.status],
        enqueued_at=_to_django_time(background_task.enqueued_at),
        started_at=_to_django_time(background_task.started_at),
        finished_at=_to_django_time(background_task.finished_at),
        last_attempted_at=_to_django_time(background_task.last_attempted_at),
        args=[*background_task.args],
        kwargs=dict(background_task.kwargs),
        backend=background_task.backend,
        errors=[
            TaskError(exception_class_path=error["class"], traceback=error["traceback"])
            for error in background_task.errors
        ],
        worker_ids=background_task.worker_ids,
    )
    object.__setattr__(task_result, "_return_value", background_task.value)
    return task_result


def task_of(background_task: BackgroundTask) -> Task[Any, Any]:
    """The task as it was enqueued. Raises ``InvalidTask``."""
    task: Task[Any, Any] = _import_task(background_task.path)
    task_options = {
        "priority": background_task.priority,
        "queue_name": background_task.queue,
        "run_after": _to_django_time(background_task.run_after),
        "backend": background_task.backend,
    }
    is_unchanged = all(getattr(task, name) == value for name, value in task_options.items())
    return task if is_unchanged else task.using(**task_options)


@lru_cache(maxsize=1024)
def _import_task(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        task = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise InvalidTask(f"the task {path!r} of this result is not in this process: {exc}") from exc
    if not is_task(task):
        raise InvalidTask(f"{path!r} is no task any more: it has lost its @task")
    return task


def _to_django_time(moment: datetime | None) -> Any:
    return moment if moment is None or settings.USE_TZ else timezone.make_naive(moment)


class DjangoTaskHost:
    """``authoring.django_tasks.TaskHost``."""

    def context(self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Of a lone one with its own result; in a workflow with one that is there for the attempt alone."""
        background_task = None if attempt.workflow_id else find_background_task(attempt.run_id)
        now = timezone.now()
        if background_task is not None:
            result = result_of(background_task)
        else:
            result = new_result(task, id=attempt.idempotency_key, at=now, args=args, kwargs=kwargs)
            result.worker_ids.extend([attempt.run_id] * attempt.attempt)
        running_fields = {
            "status": TaskResultStatus.RUNNING,
            "started_at": result.started_at or now,
            "last_attempted_at": now,
        }
        for name, value in running_fields.items():
            object.__setattr__(result, name, value)
        return TaskContext(task_result=result)

    async def acontext(
        self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The same for code of an event loop, in which Django asks no database."""
        return await sync_to_async(self.context)(task, attempt, args, kwargs)

    def notify_started(self, state: Any) -> None:
        """``task_started``, in the thread of the attempt."""
        self._send(task_started, started_task(state))

    def notify_finished(self, result: Any) -> None:
        """``task_finished``, after the commit of the end."""
        self._send(task_finished, finished_task(result))

    def _send(self, signal: Any, background_task: BackgroundTask) -> None:
        if signal.receivers:
            signal.send_robust(type(task_backends[background_task.backend]), task_result=result_of(background_task))
