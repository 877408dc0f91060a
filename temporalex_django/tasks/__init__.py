"""A backend for ``django.tasks``: ``TASKS = {"default": {"BACKEND": "temporalex_django.tasks.DurableBackend"}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.utils import timezone

from temporalex_django.authoring.activity import ActivityOptions
from temporalex_django.authoring.django_tasks import normalize
from temporalex_django.authoring.retry import RetryPolicy
from temporalex_django.core.durations import to_seconds
from temporalex_django.errors import PayloadError, WorkflowDefinitionError
from temporalex_django.tasks.compat import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)

__all__ = ["DurableBackend", "DurableTask"]

#: What raises has failed, as with Django's own backends; what a worker took with it when it died runs again.
UNLESS_IT_RAISES = RetryPolicy(non_retryable=(BaseException, TimeoutError))
#: How long the end of a task is kept.
RETENTION = timedelta(days=7)
_OPTIONS = ("retry", "retention")
_POLICY = tuple(field.name for field in fields(RetryPolicy))


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTask(Task):  # type: ignore[type-arg] # generic in the stubs only
    """A task of this backend: ``@task(retry=RetryPolicy(max_attempts=5), start_to_close=60)``.

    ``retry`` None is that of the backend. ``start_to_close``: an attempt may take so long, ``heartbeat``: it may be
    silent for so long (``activity_context().heartbeat()``); timedeltas or seconds.
    """

    retry: RetryPolicy | None = None
    start_to_close: timedelta | float | None = None
    heartbeat: timedelta | float | None = None


class DurableBackend(BaseTaskBackend):
    """Tasks in the tables of the workflows, run by the same workers.

    ``enqueue`` is one INSERT on the caller's connection: inside ``atomic()`` it commits or vanishes with it.

    ``OPTIONS``: ``retry``, the policy of tasks that have none, as a ``RetryPolicy`` or a dict of its arguments (without
    it one that raises has failed, and one whose worker died runs again); ``retention``, a timedelta or seconds for
    which ends are kept, None for good (7 days).
    """

    task_class = DurableTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    #: By this workers know whose queues are theirs.
    runs_on_temporalex = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Raises ``InvalidTaskBackend`` for options that cannot work."""
        super().__init__(alias, dict(params))
        self.retry, self.retention = self._chosen()

    def _chosen(self) -> tuple[RetryPolicy, float | None]:
        wrong = f"TASKS[{self.alias!r}]['OPTIONS']"
        if unknown := sorted(set(self.options) - set(_OPTIONS)):
            raise InvalidTaskBackend(
                f"{wrong} has no {', '.join(map(repr, unknown))}: there are {', '.join(_OPTIONS)}."
            )
        retry, retention = self.options.get("retry", UNLESS_IT_RAISES), self.options.get("retention", RETENTION)
        if isinstance(retry, Mapping):
            if unknown := sorted(set(retry) - set(_POLICY)):
                known = ", ".join(_POLICY)
                raise InvalidTaskBackend(f"{wrong}['retry'] has no {', '.join(map(repr, unknown))}: there are {known}.")
            try:
                retry = RetryPolicy(**retry)
            except WorkflowDefinitionError as exc:
                raise InvalidTaskBackend(f"{wrong}['retry']: {exc.message}") from exc
        if not isinstance(retry, RetryPolicy):
            raise InvalidTaskBackend(
                f"{wrong}['retry'] must be a RetryPolicy, or a dict of its arguments, not {retry!r}."
            )
        try:
            kept = None if retention is None else to_seconds(retention, label="retention")
        except (TypeError, ValueError) as exc:
            raise InvalidTaskBackend(f"{wrong}['retention']: {exc}.") from exc
        if kept is not None and kept < 0:
            raise InvalidTaskBackend(f"{wrong}['retention'] must be 0 or more, not {retention!r}.")
        return retry, kept

    def validate_task(self, task: Task[Any, Any]) -> None:
        """Raises ``InvalidTask``."""
        super().validate_task(task)
        try:
            ActivityOptions(**_timed(task))
        except WorkflowDefinitionError as exc:
            raise InvalidTask(exc.message) from exc

    def enqueue(self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any, Any]:
        """Raises ``InvalidTask``, and ``TypeError`` for arguments that are no JSON.

        ``NestingError`` inside workflow code, where ``await api.task(t, ...)`` is the way.
        """
        from temporalex_django.actions.lone_tasks import enqueue  # noqa: PLC0415 - tasks are defined before models are
        from temporalex_django.tasks.results import fresh  # noqa: PLC0415 - as above

        self.validate_task(task)
        try:
            args, kwargs = normalize([*args], label=task.module_path), normalize(dict(kwargs), label=task.module_path)
        except PayloadError as exc:
            raise TypeError(exc.message) from exc
        timed = _timed(task)
        retry = timed.pop("retry") or self.retry
        options = {
            **ActivityOptions(retry=retry, **timed).as_dict(),
            "backend": self.alias,
            "retention": self.retention,
        }
        number, at = enqueue(
            task.module_path,
            args=args,
            kwargs=kwargs,
            options=options,
            queue=task.queue_name,
            priority=task.priority,
            run_after=_aware(task.run_after),
        )
        result = fresh(task, id=number, at=at, args=args, kwargs=kwargs)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """Raises ``TaskResultDoesNotExist``, also when it was kept long enough."""
        from temporalex_django.actions.lone_tasks import find_lone  # noqa: PLC0415 - as above
        from temporalex_django.tasks.results import result_of  # noqa: PLC0415 - as above

        found = find_lone(result_id)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(found)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """That there are tables, and workers for all queues."""
        found: list[checks.CheckMessage] = [*super().check(**kwargs)]
        if not apps.is_installed("temporalex_django"):
            found.append(
                checks.Error(
                    f"TASKS[{self.alias!r}] is a DurableBackend, and 'temporalex_django' is not in INSTALLED_APPS.",
                    hint="Add it, and run: manage.py migrate temporalex_django",
                    id="temporalex_django.E020",
                )
            )
        if not self.queues:
            found.append(
                checks.Warning(
                    f"TASKS[{self.alias!r}]['QUEUES'] is empty: any queue is taken, and workers do not know which there are.",
                    hint="Name the queues, or run: manage.py temporalex worker --queues NAME",
                    id="temporalex_django.W020",
                )
            )
        return found


def _timed(task: Task[Any, Any]) -> dict[str, Any]:
    """What a task says of its attempts; one of another class says nothing."""
    return {name: getattr(task, name, None) for name in ("retry", "start_to_close", "heartbeat")}


def _aware(moment: Any) -> Any:
    """Without ``USE_TZ`` times are those of the default time zone."""
    return moment if moment is None or settings.USE_TZ or timezone.is_aware(moment) else timezone.make_aware(moment)
