"""The interceptors of this process, and the calls of their hooks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import Any, Final

from temporalex_django.errors import DeterminismViolation, InterceptorFailed, NotConfigured, TemporalexError
from temporalex_django.interceptors import Interceptor

logger = logging.getLogger("temporalex_django.interceptors")

#: Returns the name of a class. It calls no code of a metaclass, which may raise.
_class_name: Final = type.__dict__["__name__"].__get__

#: The hooks, as attributes of ``Interceptor`` and of ``InterceptorChain``.
HOOKS: Final = ("client_call", "activation", "outgoing", "workflow_code", "activity_attempt", "query", "problem")


class InterceptorChain:
    """The interceptors of a process, the outermost one first.

    It has an attribute for each hook: the methods of the interceptors that override the hook. The list is empty if none
    does, so a place in the code asks for it before it builds what the hook takes.
    """

    client_call: Sequence[Callable[..., Any]]
    activation: Sequence[Callable[..., Any]]
    outgoing: Sequence[Callable[..., Any]]
    workflow_code: Sequence[Callable[..., Any]]
    activity_attempt: Sequence[Callable[..., Any]]
    query: Sequence[Callable[..., Any]]
    problem: Sequence[Callable[..., Any]]

    def __init__(self) -> None:
        self.install(())

    def install(self, interceptors: Iterable[Interceptor]) -> None:
        """Replace the interceptors of this process."""
        self.interceptors = tuple(interceptors)
        for name in HOOKS:
            base = getattr(Interceptor, name)
            methods = [getattr(i, name) for i in self.interceptors if getattr(type(i), name) is not base]
            setattr(self, name, tuple(methods))

    def report(self, problem: Any) -> None:
        """Call the hook ``problem`` of each interceptor that has one. An error of a hook is logged, and not raised."""
        for hook in self.problem:
            try:
                hook(problem)
            except Exception as exc:  # noqa: BLE001 - the work is done, and must not suffer
                logger.error("%s failed: %s", _name_of(hook), _class_name(type(exc)))

    def prepare(self, outgoing: Any) -> None:
        """Call the hook ``outgoing`` of each interceptor that has one, for something that an activation sends.

        Raises ``InterceptorFailed`` if one of them raises.
        """
        for hook in self.outgoing:
            try:
                hook(outgoing)
            except Exception as exc:
                raise _failure(hook, exc) from exc


class around:  # noqa: N801 - used like a function
    """A context manager that enters the context managers of some hooks, the outermost one first.

    ``hooks`` are methods of interceptors, and ``subject`` is their argument. An exception of the block passes through
    unchanged. An exception of an interceptor is raised as ``InterceptorFailed``, which names it. With ``keeps_errors``,
    errors of this package that an interceptor raises keep their type; a note names the interceptor then.
    """

    __slots__ = ("_entered", "_hooks", "_keeps_errors", "_subject")

    def __init__(self, hooks: Sequence[Callable[..., Any]], subject: Any, *, keeps_errors: bool = False) -> None:
        self._hooks = hooks
        self._subject = subject
        self._keeps_errors = keeps_errors
        self._entered: list[tuple[Callable[..., Any], AbstractContextManager[object]]] = []

    def __enter__(self) -> None:
        for hook in self._hooks:
            try:
                manager = hook(self._subject)
                manager.__enter__()
            except BaseException as exc:
                error = self._named(hook, exc)
                self._leave(type(error), error, error.__traceback__)
                if error is exc:
                    raise
                raise error from exc
            self._entered.append((hook, manager))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(kind, error, traceback)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the context managers that were entered, the innermost one first."""
        failure: BaseException | None = None
        while self._entered:
            hook, manager = self._entered.pop()
            try:
                swallowed = manager.__exit__(kind, error, traceback)
            except BaseException as exc:  # noqa: BLE001 - the outer ones must be left in any case
                if exc is error:
                    continue
                failure = named = self._named(hook, exc)
                if named is not exc:
                    named.__cause__ = exc
                kind, error, traceback = type(named), named, named.__traceback__
                continue
            if swallowed and error is not None:
                failure = InterceptorFailed(
                    f"{_name_of(hook)} must not suppress {_class_name(type(error))}: raise it again"
                )
                failure.__cause__ = error
                kind, error, traceback = type(failure), failure, None
        if failure is not None:
            raise failure

    def _named(self, hook: Callable[..., Any], error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            return error
        if self._keeps_errors and isinstance(error, TemporalexError):
            error.add_note(f"raised by {_name_of(hook)}")
            return error
        return _failure(hook, error)


def _failure(hook: Callable[..., Any], error: Exception) -> TemporalexError:
    """Return the error that names the interceptor; a ``DeterminismViolation`` stays one."""
    if isinstance(error, DeterminismViolation):
        return DeterminismViolation(f"{_name_of(hook)}: {_text(error)}")
    # An error of this package has no payload in its text; another one may quote some.
    text = f": {_text(error)}" if isinstance(error, TemporalexError) else ""
    return InterceptorFailed(f"{_name_of(hook)} raised {_class_name(type(error))}{text}")


def _text(error: Exception) -> str:
    try:
        return str(error)
    except BaseException as exc:  # noqa: BLE001 - arbitrary user code, which must not hide the failure itself
        return f"no message ({type(exc).__name__})"


def _name_of(hook: Any) -> str:
    cls = type(hook.__self__)
    return f"the interceptor {cls.__module__}.{cls.__qualname__} ({hook.__name__})"


#: The interceptors of this process. ``AppConfig.ready`` installs those of the settings.
chain = InterceptorChain()


# --- loading ----------------------------------------------------------------------------------------------------------
#
# The loading of the interceptors that a setting names.


_PLAIN_HOOKS = ("outgoing", "problem")


@cache
def load_interceptors(paths: tuple[str, ...]) -> tuple[Interceptor, ...]:
    """Return an object of each class, one for each path in this process.

    Raises ``NotConfigured`` for a class that cannot be used, with the reason.
    """
    return tuple([_load_interceptor(path) for path in paths])


def _load_interceptor(path: str) -> Interceptor:
    label = f"TEMPORALEX['INTERCEPTORS'] names {path!r}, which cannot be used"
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(import_module(module), name)
        if not (isinstance(cls, type) and issubclass(cls, Interceptor)):
            raise NotConfigured(f"{label}: it is not a subclass of temporalex_django.interceptors.Interceptor.")
        interceptor: Interceptor = cls()
    except NotConfigured:
        raise
    except Exception as exc:
        raise NotConfigured(f"{label}: {type(exc).__name__}: {exc}.") from exc
    for hook in HOOKS:
        function = getattr(cls, hook)
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            advice = "write a plain function" if hook in _PLAIN_HOOKS else "decorate it with contextlib.contextmanager"
            raise NotConfigured(f"{label}: {hook} is an async function or a generator: {advice}.")
    return interceptor
