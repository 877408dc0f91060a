"""A backend for ``django.tasks``: ``TASKS = {"default": {"BACKEND": "temporalex_django.tasks.DurableBackend"}}``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload
from uuid import UUID

from django.apps import apps
from django.core import checks

from temporalex_django.authoring.activity import ActivityOptions
from temporalex_django.authoring.activity_options import RetryPolicy
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.django_tasks import defined_paths, normalize, options_of, require_current
from temporalex_django.core.names import check_time, to_seconds
from temporalex_django.errors import PayloadError, WorkflowDefinitionError
from temporalex_django.tasks.results import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)

__all__ = ["DurableBackend", "DurableTask", "cancel_task", "requeue", "retry_task", "run_task_now", "task"]

P = ParamSpec("P")
R = TypeVar("R")
#: The default policy. A task that raises has failed, as with Django's own backends. The policy still retries a task
#: that was lost with its worker.
RETRY_LOST_ONLY = RetryPolicy(non_retryable=(BaseException, TimeoutError))
#: The default time for which the result of a task is kept.
RETENTION = timedelta(days=7)
_OPTIONS = ("retry", "retention")
_POLICY_FIELDS = tuple(field.name for field in fields(RetryPolicy))


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTask(Task):  # type: ignore[type-arg] # generic in the stubs only
    """A Django task of the backend ``DurableBackend``, with options for retries and timeouts.

    Write ``@task(retry=RetryPolicy(max_attempts=5), start_to_close=60)``. ``retry`` is the retry policy; None uses that
    of the backend. ``start_to_close`` is the longest time that an attempt may take. ``heartbeat`` is the longest time
    between two calls of ``activity_context().heartbeat()``. Both are timedeltas or seconds.

    ``max_attempts`` and ``backoff`` take the place of ``retry``. They have the form of Django's own proposal
    (django/new-features 142). ``max_attempts`` counts all attempts; None means no limit. After an attempt that raised,
    ``backoff(exception, task_result)`` returns the pause before the next one, in seconds or as a timedelta, or None to
    end the task. The errors of ``task_result`` include that exception. Without ``backoff``, the pauses are those of a
    ``RetryPolicy``.
    """

    retry: RetryPolicy | None = None
    max_attempts: int | None = None
    backoff: Callable[[BaseException, TaskResult[Any, Any]], float | timedelta | None] | None = None
    start_to_close: timedelta | float | None = None
    heartbeat: timedelta | float | None = None


#: The options of a durable task that tasks of other backends lack.
_TASK_OPTIONS = {"retry", "max_attempts", "backoff", "start_to_close", "heartbeat"}


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: Literal[False] = False,
    **options: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: Literal[True],
    **options: Any,
) -> Callable[[Callable[Concatenate[TaskContext[Any, Any], P], R]], Task[P, R]]: ...
def task(
    function: Any = None,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """Declare a function of a module as a Django task.

    It is Django's decorator of this name, with the options of ``DurableTask``, such as ``retry``, on each supported
    version of Django; that of Django 6.0 takes none. Tasks that are declared with Django's own decorator work as well.
    Raises ``InvalidTask`` if the backend cannot run the task, and ``TypeError`` for an unknown option.
    """
    if "run_after" in options:
        raise TypeError(
            "run_after is no option of a declaration: write .using(run_after=...) when you enqueue the task."
        )

    def declare(function: Any) -> Any:
        task_class = task_backends[backend].task_class
        foreign = sorted(options.keys() & _TASK_OPTIONS) if not issubclass(task_class, DurableTask) else []
        if foreign:
            raise TypeError(
                f"the backend of TASKS[{backend!r}] takes no {', '.join(foreign)}: set its BACKEND to "
                "temporalex_django.tasks.DurableBackend, or leave the options out"
            )
        return task_class(
            func=function,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **options,
        )

    return declare if function is None else declare(function)


class DurableBackend(BaseTaskBackend):
    """A task backend that stores tasks in the tables of the workflows; the same workers run them.

    ``enqueue`` is one INSERT on the caller's connection. Inside ``atomic()`` it commits or rolls back with the
    caller.

    ``OPTIONS`` has two keys:

    - ``retry``: the policy of tasks that have none, as a ``RetryPolicy`` or a dict of its arguments. Without it, a task
      that raises has failed, and a task whose worker died runs again.
    - ``retention``: how long results are kept, as a timedelta or seconds. The default is 7 days; None keeps them for
      ever.
    """

    task_class = DurableTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    #: Workers read this attribute to find the backends whose queues they process.
    runs_on_temporalex = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Read the options of the backend from ``OPTIONS`` in ``params``.

        ``alias`` is the name of the backend in the setting ``TASKS``. Raises ``InvalidTaskBackend`` for an unknown
        option or a wrong value.
        """
        super().__init__(alias, dict(params))
        self.retry, self.retention = self._parse_options()

    def _parse_options(self) -> tuple[RetryPolicy, float | None]:
        """Return ``(retry policy, seconds of retention)``; None: for ever. Raises ``InvalidTaskBackend``."""
        setting_text = f"TASKS[{self.alias!r}]['OPTIONS']"
        if unknown := sorted(set(self.options) - set(_OPTIONS)):
            raise InvalidTaskBackend(
                f"{setting_text} has no {', '.join(map(repr, unknown))}. The options are {', '.join(_OPTIONS)}."
            )
        retry, retention = self.options.get("retry", RETRY_LOST_ONLY), self.options.get("retention", RETENTION)
        if isinstance(retry, Mapping):
            if unknown := sorted(set(retry) - set(_POLICY_FIELDS)):
                field_names = ", ".join(_POLICY_FIELDS)
                raise InvalidTaskBackend(
                    f"{setting_text}['retry'] has no {', '.join(map(repr, unknown))}. The arguments are {field_names}."
                )
            try:
                retry = RetryPolicy(**retry)
            except WorkflowDefinitionError as exc:
                raise InvalidTaskBackend(f"{setting_text}['retry']: {exc.message}") from exc
        if not isinstance(retry, RetryPolicy):
            raise InvalidTaskBackend(
                f"{setting_text}['retry'] must be a RetryPolicy, or a dict of its arguments, not {retry!r}."
            )
        try:
            retention_seconds = None if retention is None else to_seconds(retention, label="retention")
        except (TypeError, ValueError) as exc:
            raise InvalidTaskBackend(f"{setting_text}['retention']: {exc}.") from exc
        if retention_seconds is not None and retention_seconds < 0:
            raise InvalidTaskBackend(f"{setting_text}['retention'] must be 0 or more, not {retention!r}.")
        return retry, retention_seconds

    def validate_task(self, task: Task[Any, Any]) -> None:
        """Raise ``InvalidTask`` if this backend cannot run the task, for example because of a wrong timeout."""
        super().validate_task(task)
        defined_paths.add(task.module_path)
        try:
            ActivityOptions(**options_of(task))
            if task.run_after is not None:
                check_time(task.run_after, label=f"run_after of {task.module_path}")
        except WorkflowDefinitionError as exc:
            raise InvalidTask(exc.message) from exc
        except ValueError as exc:
            raise InvalidTask(str(exc)) from exc

    def enqueue(self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any, Any]:
        """Store a background task with one INSERT and return its result, whose status is ``READY``.

        Raises ``InvalidTask``, also for a task that another one has replaced under its path, and ``TypeError`` for
        arguments that are not JSON. Raises ``NestingError`` inside workflow code: write ``await api.task(t, ...)``
        there.
        """
        from temporalex_django.operations.background_tasks import enqueue  # noqa: PLC0415 - tasks may be defined before models are loaded
        from temporalex_django.tasks.results import new_result  # noqa: PLC0415 - as above

        self.validate_task(task)
        try:
            require_current(task)
        except WorkflowDefinitionError as exc:
            raise InvalidTask(exc.message) from exc
        try:
            # The worker reads JSON. Normalize here, so that an argument that is not JSON fails in the caller.
            args, kwargs = normalize([*args], label=task.module_path), normalize(dict(kwargs), label=task.module_path)
        except PayloadError as exc:
            raise TypeError(exc.message) from exc
        task_options = options_of(task)
        retry = task_options.pop("retry") or self.retry
        # Everything that a worker needs goes into the row: its code and settings may differ from those of this process.
        options = {
            **ActivityOptions(retry=retry, **task_options).as_dict(),
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
            run_after=task.run_after,
        )
        result = new_result(task, id=number, at=at, args=args, kwargs=kwargs)
        # Django's contract: the signal follows the enqueue at once, and does not wait for the commit.
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """Return the result of the background task with that id as it is now.

        Raises ``TaskResultDoesNotExist`` if there is none, or if its retention has passed.
        """
        from temporalex_django.operations.background_tasks import find_background_task  # noqa: PLC0415 - as above
        from temporalex_django.tasks.results import result_of  # noqa: PLC0415 - as above

        background_task = find_background_task(result_id)
        if background_task is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(background_task)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return errors and warnings about this backend for Django's system checks.

        There is an error if the app is not installed, so that its tables are missing. There is a warning if ``QUEUES``
        is empty, so that workers do not know which queues exist.
        """
        messages: list[checks.CheckMessage] = [*super().check(**kwargs)]
        if not apps.is_installed("temporalex_django"):
            messages.append(
                checks.Error(
                    f"TASKS[{self.alias!r}] is a DurableBackend, but 'temporalex_django' is not in INSTALLED_APPS.",
                    hint="Add it, and run: manage.py migrate temporalex_django",
                    id="temporalex_django.E020",
                )
            )
        if not self.queues:
            messages.append(
                checks.Warning(
                    f"TASKS[{self.alias!r}]['QUEUES'] is empty: every queue is accepted, so workers do not know "
                    "which queues exist.",
                    hint="List the queues, or run: manage.py temporalex worker --queues NAME",
                    id="temporalex_django.W020",
                )
            )
        return messages


# --- operations -------------------------------------------------------------------------------------------------------
#
# Operations on background tasks, for code. Each takes the result of an enqueued task, or its id.


def retry_task(
    task: TaskResult[Any, Any] | UUID | str, *, reason: str = "", by: Person | None = None
) -> TaskResult[Any, Any]:
    """Run a failed or cancelled background task again, under its id, and return its result as it is then.

    Its arguments, idempotency key and attempts stay. In the caller's transaction; it locks the row of the task. ``by``
    is the user who does it, and None stands for code, which may do anything. Raises ``TaskNotFound``,
    ``ActionNotPossible`` for a task that has not failed, and ``ActionNotPermitted``. Audited, with the ``reason``.
    """
    return _operate("retry_task", task, reason=reason, by=by)


def cancel_task(
    task: TaskResult[Any, Any] | UUID | str, *, reason: str = "", by: Person | None = None
) -> TaskResult[Any, Any]:
    """Cancel a background task, and return its result as it is then.

    A task that waits has failed at once, with ``TaskCancelled`` as its last error. One that runs is asked to end: its
    ``activity_context().is_cancelled()`` returns True, and its heartbeats raise ``TaskCancelled``. The arguments and
    errors are those of ``retry_task``; a task that has ended cannot be cancelled.
    """
    return _operate("cancel_task", task, reason=reason, by=by)


def run_task_now(
    task: TaskResult[Any, Any] | UUID | str, *, reason: str = "", by: Person | None = None
) -> TaskResult[Any, Any]:
    """Make a background task due now that waits for its time or its next attempt, and return its result.

    The arguments and errors are those of ``retry_task``; a task that runs or has ended cannot be due.
    """
    return _operate("run_task_now", task, reason=reason, by=by)


def requeue(
    task: TaskResult[Any, Any] | UUID | str,
    *,
    queue: str | None = None,
    priority: int | None = None,
    reason: str = "",
    by: Person | None = None,
) -> TaskResult[Any, Any]:
    """Move a background task that waits to another queue or priority, and return its result as it is then.

    ``queue`` is one of the queues of the project's task backends, and ``priority`` a number from -100 to 100. The other
    arguments and the errors are those of ``retry_task``; a task that runs or has ended cannot be moved.
    """
    return _operate("requeue", task, queue=queue, priority=priority, reason=reason, by=by)


def _operate(
    name: str, task: TaskResult[Any, Any] | UUID | str, *, by: Person | None, **options: Any
) -> TaskResult[Any, Any]:
    from temporalex_django.operations.background_tasks import TASK_ACTIONS  # noqa: PLC0415 - tasks may be defined before models are loaded
    from temporalex_django.operations.base import actor_for  # noqa: PLC0415 - as above
    from temporalex_django.tasks.results import result_of  # noqa: PLC0415 - as above

    task_id = task.id if isinstance(task, TaskResult) else task
    return result_of(TASK_ACTIONS[name](task_id, by=actor_for(by), **options).execute())
