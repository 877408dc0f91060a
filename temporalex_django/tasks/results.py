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

from temporalex_django.actions.lone_tasks import begun, find_lone, over
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
    from temporalex_django.engine.lone import LoneTask


def fresh(
    task: Task[Any, Any], *, id: UUID | str, at: datetime, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TaskResult[Any, Any]:
    """Of one that was enqueued just now."""
    return TaskResult(
        task=task,
        id=str(id),
        status=TaskResultStatus.READY,
        enqueued_at=_said(at),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=[*args],
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def result_of(found: LoneTask) -> TaskResult[Any, Any]:
    """Of one as it stands. Raises ``InvalidTask`` when its function is no task in this process."""
    made: TaskResult[Any, Any] = TaskResult(
        task=task_of(found),
        id=str(found.id),
        status=TaskResultStatus[found.status],
        enqueued_at=_said(found.enqueued_at),
        started_at=_said(found.started_at),
        finished_at=_said(found.finished_at),
        last_attempted_at=_said(found.last_attempted_at),
        args=[*found.args],
        kwargs=dict(found.kwargs),
        backend=found.backend,
        errors=[TaskError(exception_class_path=one["class"], traceback=one["traceback"]) for one in found.errors],
        worker_ids=found.worker_ids,
    )
    object.__setattr__(made, "_return_value", found.value)
    return made


def task_of(found: LoneTask) -> Task[Any, Any]:
    """The task as it was enqueued. Raises ``InvalidTask``."""
    task: Task[Any, Any] = _at(found.path)
    chosen = {
        "priority": found.priority,
        "queue_name": found.queue,
        "run_after": _said(found.run_after),
        "backend": found.backend,
    }
    same = all(getattr(task, name) == value for name, value in chosen.items())
    return task if same else task.using(**chosen)


@lru_cache(maxsize=1024)
def _at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        task = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise InvalidTask(f"the task {path!r} of this result is not in this process: {exc}") from exc
    if not is_task(task):
        raise InvalidTask(f"{path!r} is no task any more: it has lost its @task")
    return task


def _said(moment: datetime | None) -> Any:
    return moment if moment is None or settings.USE_TZ else timezone.make_naive(moment)


class Hosting:
    """``authoring.django_tasks.TaskHost``."""

    def context(self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Of a lone one with its own result; in a workflow with one that is there for the attempt alone."""
        found = None if attempt.workflow_id else find_lone(attempt.run_id)
        now = timezone.now()
        if found is not None:
            result = result_of(found)
        else:
            result = fresh(task, id=attempt.idempotency_key, at=now, args=args, kwargs=kwargs)
            result.worker_ids.extend([attempt.run_id] * attempt.attempt)
        told = {"status": TaskResultStatus.RUNNING, "started_at": result.started_at or now, "last_attempted_at": now}
        for name, value in told.items():
            object.__setattr__(result, name, value)
        return TaskContext(task_result=result)

    async def acontext(
        self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The same for code of an event loop, in which Django asks no database."""
        return await sync_to_async(self.context)(task, attempt, args, kwargs)

    def notify_started(self, state: Any) -> None:
        """``task_started``, in the thread of the attempt."""
        self._send(task_started, begun(state))

    def notify_finished(self, result: Any) -> None:
        """``task_finished``, after the commit of the end."""
        self._send(task_finished, over(result))

    def _send(self, signal: Any, found: LoneTask) -> None:
        if signal.receivers:
            signal.send_robust(type(task_backends[found.backend]), task_result=result_of(found))
