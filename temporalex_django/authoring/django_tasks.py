"""Django tasks as activities.

They are known by the paths of their functions, and take and return JSON. Django's own classes are not imported here:
``django.tasks`` and its backport each have their own, and both look alike.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

from asgiref.sync import sync_to_async

from temporalex_django.authoring import activity
from temporalex_django.authoring.activity import Activity, ActivityOptions, RunSource
from temporalex_django.authoring.activity_context import ActivityContext, activity_context
from temporalex_django.authoring.activity_options import RetryPolicy
from temporalex_django.authoring.definition import require_same_activity
from temporalex_django.core.failures import clear_requested_pause, error_line, set_requested_pause
from temporalex_django.core.names import to_seconds
from temporalex_django.core.payloads.codec import error_reason
from temporalex_django.errors import (
    ActivityNotFound,
    NotConfigured,
    PayloadError,
    ScheduleInvalid,
    WorkflowDefinitionError,
)

log = logging.getLogger("temporalex_django.authoring")

#: Prefix of the names of these activities; the path of the function follows.
KIND: Final = "task"


class TaskHost(Protocol):
    """The protocol of the object that imports Django's tasks for this module, which must not import them.

    It creates objects of Django's task classes and sends Django's signals about tasks.
    """

    def context(self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return Django's ``TaskContext`` for an attempt of ``task``.

        ``args`` and ``kwargs`` are the arguments of the task.
        """

    async def acontext(
        self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return Django's ``TaskContext`` for an attempt of ``task``, from code that runs in an event loop.

        ``args`` and ``kwargs`` are the arguments of the task.
        """

    def failed_result(
        self, task: Any, attempt: ActivityContext, args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException
    ) -> Any:
        """Return Django's ``TaskResult`` for an attempt of ``task`` that has just raised ``error``."""

    def notify_started(self, state: Any) -> None:
        """Send Django's signal that an attempt of a background task begins. ``state`` is its ``TaskState``."""

    def notify_finished(self, result: Any) -> None:
        """Send Django's signal that a background task has ended, after the commit. ``result`` is its ``TaskResult``."""


#: Paths of the Django tasks with a backend of this package that this process has defined.
defined_paths: set[str] = set()
_host: Callable[[], TaskHost] | None = None


def bind(host: Callable[[], TaskHost]) -> None:
    """Set the function that returns the ``TaskHost`` of this process."""
    global _host  # noqa: PLW0603 - bound once, when Django is ready
    _host = host


def host() -> TaskHost:
    """Return the ``TaskHost`` of this process. Raises ``NotConfigured``."""
    if _host is None:
        raise NotConfigured("Django tasks need 'temporalex_django' in INSTALLED_APPS")
    return _host()


def notify_finished(result: Any) -> None:
    """Send Django's signal that a background task has ended. Errors are logged: the end is committed.

    ``result`` is its ``TaskResult``.
    """
    try:
        host().notify_finished(result)
    except Exception as exc:  # noqa: BLE001 - such as a task whose code this process lacks
        log.error("could not send a signal about a Django task: %s", error_line(exc))


def is_task(value: object) -> bool:
    """Return True if the value is a function that ``@task`` has decorated."""
    has_function = inspect.isfunction(getattr(value, "func", None)) and hasattr(value, "takes_context")
    return has_function and isinstance(getattr(value, "module_path", None), str)


class DjangoTask(Activity[Any, Any]):
    """The activity that calls the function of a Django task."""

    def __init__(self, task: Any) -> None:
        queue_options: dict[str, Any] = {} if task.queue_name == "default" else {"queue": task.queue_name}
        super().__init__(
            task.func, ActivityOptions(**queue_options, **options_of(task)), name=f"{KIND}:{task.module_path}"
        )
        self.task = task
        self._signature = task_signature(task)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a call that schedules the activity when it is awaited.

        Raises ``PayloadError`` for arguments that are not JSON, and ``NestingError`` or ``OutsideWorkflow`` in a place
        where activities cannot be called.
        """
        label = f"an argument of {self.name}"
        return super().__call__(
            *(normalize(arg, label=label) for arg in args),
            **{name: normalize(arg, label=label) for name, arg in kwargs.items()},
        )

    def _accepts_count(self, count: int) -> bool:
        # Always bind against the signature made in `__init__`, which leaves the context parameter out.
        return False

    @property
    def result_type(self) -> Any:
        """The type of the result: Any, because Django tasks return plain JSON."""
        return Any

    def decode_call(
        self, args: Sequence[Any], kwargs: Any, source: RunSource
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return ``(function of the task, positional arguments, keyword arguments)`` for a recorded call.

        The arguments are passed as they are stored. Annotations do not convert them, as in Django's own backends.
        """
        del source
        fn: Callable[..., Any] = self.__wrapped__
        if self.task.takes_context:
            fn = self._with_context_async if self.is_async else self._with_context
        if getattr(self.task, "backoff", None) is not None:
            fn = partial(self._with_backoff_async if self.is_async else self._with_backoff, fn)
        return fn, tuple(args), dict(kwargs)

    def _with_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.task.func(host().context(self.task, activity_context(), args, kwargs), *args, **kwargs)

    async def _with_context_async(self, *args: Any, **kwargs: Any) -> Any:
        context = await host().acontext(self.task, activity_context(), args, kwargs)
        return await self.task.func(context, *args, **kwargs)

    def _with_backoff(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as exc:
            self._request_pause(exc, args, kwargs)
            raise

    async def _with_backoff_async(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await fn(*args, **kwargs)
        except Exception as exc:
            await sync_to_async(self._request_pause)(exc, args, kwargs)
            raise

    def _request_pause(self, exc: Exception, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Ask the ``backoff`` of the task for the pause after ``exc``. Without an answer, the retry policy decides."""
        try:
            clear_requested_pause(exc)
            task_result = host().failed_result(self.task, activity_context(), args, kwargs, exc)
            pause = self.task.backoff(exc, task_result)
            set_requested_pause(exc, None if pause is None else to_seconds(pause, label="backoff"))
        except Exception as problem:  # noqa: BLE001 - code of the user, which must not hide the failure
            log.error("%s: its backoff has failed, so the retry policy decides: %s", self.name, error_line(problem))

    def encode_result(self, value: Any, args: Sequence[Any], source: RunSource) -> Any:
        """Return the result of the task's function as JSON, as the history records it.

        Raises ``PayloadError`` if it is not JSON.
        """
        del args, source
        return normalize(value, label=f"the result of {self.name}")


def task_signature(task: Any) -> inspect.Signature:
    """Return the signature of a task's function as it is called, without the context parameter."""
    signature = inspect.signature(task.func)
    if task.takes_context:
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    return signature


def options_of(task: Any) -> dict[str, Any]:
    """Return the options of a task that activities have too, by name: the retry policy and the timeouts.

    ``max_attempts`` and ``backoff`` of the task become a retry policy. Raises ``WorkflowDefinitionError`` for values
    that make no sense.
    """
    options = {name: getattr(task, name, None) for name in ("retry", "start_to_close", "heartbeat")}
    max_attempts, backoff = getattr(task, "max_attempts", None), getattr(task, "backoff", None)
    if max_attempts is None and backoff is None:
        return options
    if options["retry"] is not None:
        raise WorkflowDefinitionError(
            f"{task.module_path}: retry= takes max_attempts= and backoff= too; use one of both"
        )
    if max_attempts is not None and (type(max_attempts) is not int or max_attempts < 1):
        raise WorkflowDefinitionError(
            f"{task.module_path}: max_attempts={max_attempts!r} is not a whole number of 1 or more"
        )
    if backoff is not None and not callable(backoff):
        raise WorkflowDefinitionError(
            f"{task.module_path}: backoff={backoff!r} is not a function of an exception and a TaskResult"
        )
    return {**options, "retry": RetryPolicy(max_attempts=max_attempts)}


def activity_of(task: Any) -> DjangoTask:
    """Return the activity of a Django task. Raises ``WorkflowDefinitionError`` for anything else.

    The task that its module has under its name is registered, since workers import that one.
    """
    if not is_task(task):
        raise WorkflowDefinitionError(f"task: {task!r} is not a Django task: decorate the function with @task")
    current_task = task_of_module(task)
    registered = activity.registry.get(f"{KIND}:{task.module_path}")
    if not isinstance(registered, DjangoTask) or registered.task.func is not current_task.func:
        registered = DjangoTask(current_task)
        activity.register(registered)
    # `using()` makes copies with other options, which are not registered.
    return registered if registered.task == task else DjangoTask(task)


def task_of_module(task: Any) -> Any:
    """Return the task that the module of ``task`` has under its name now; ``task`` itself if it has none."""
    module, _, name = task.module_path.rpartition(".")
    current_task: Any = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return current_task if is_task(current_task) and current_task.module_path == task.module_path else task


def require_current(task: Any) -> None:
    """Raise ``WorkflowDefinitionError`` if the module of ``task`` has another task under its name by now."""
    current_task = task_of_module(task)
    if current_task.func is not task.func:
        require_same_activity(DjangoTask(task), DjangoTask(current_task))


def load(path: str) -> DjangoTask:
    """Import the Django task at that path and return its activity. Raises ``ActivityNotFound``."""
    module, _, name = path.rpartition(".")
    try:
        task = getattr(import_module(module), name)
    except Exception as exc:
        # A module may raise anything on import, and must not stop the other tasks of the worker.
        raise ActivityNotFound(f"no Django task {path!r} in this process: {error_reason(exc)}") from exc
    if not is_task(task):
        raise ActivityNotFound(f"{path!r} is not a Django task in this process: decorate the function with @task")
    if task.module_path != path:
        raise ActivityNotFound(f"{path!r} is the Django task {task.module_path!r} in this process")
    try:
        return activity_of(task)
    except WorkflowDefinitionError as exc:
        raise ActivityNotFound(f"the Django task {path!r} cannot run in this process: {exc.message}") from exc


def normalize(value: Any, *, label: str) -> Any:
    """Return ``value`` as plain JSON data, converted as Django's task backends do: tuples become lists, bytes texts.

    ``label`` names the value in errors. Raises ``PayloadError`` if the value is not JSON.
    """
    match value:
        case str() | int() | float() | bool() | None:
            return value
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass
        case Mapping():
            return {normalize(key, label=label): normalize(element, label=label) for key, element in value.items()}
        case Sequence():
            return [normalize(element, label=label) for element in value]
    raise PayloadError(
        f"{label}: Django tasks take and return JSON, and {type(value).__name__} is not JSON: convert it"
    )


def find_scheduled(path: str) -> Any:
    """Return the Django task at that path, for a schedule that enqueues it.

    Raises ``ScheduleInvalid`` if this process does not have it, or if its backend is not the one of this package, so
    that nothing could be said about its end.
    """
    try:
        task = load(path).task
    except ActivityNotFound as exc:
        raise ScheduleInvalid(f"task: {exc.message}") from exc
    if not getattr(task.get_backend(), "runs_on_temporalex", False):
        raise ScheduleInvalid(
            f"task: the backend {task.backend!r} of {path} is not a DurableBackend, so a schedule cannot follow the task"
        )
    return task


activity.loaders[KIND] = load
