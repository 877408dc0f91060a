"""``@query``: it marks the static method of a workflow class that answers a query."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from temporalex_django.core.failures import source_line
from temporalex_django.errors import WorkflowDefinitionError

P = ParamSpec("P")
R = TypeVar("R")


class QueryDecorator(Protocol):
    """The type of ``query(name)``, for type checkers: the method keeps its type."""

    @overload
    def __call__(self, fn: staticmethod[P, R], /) -> staticmethod[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> staticmethod[P, R]: ...


class QueryMethod(staticmethod):  # type: ignore[type-arg] # generic only in the stubs
    """A static method that ``@query`` has marked: it answers the query ``query_name`` of a workflow class."""

    query_name: str


def query(name: str) -> QueryDecorator:
    """Return a decorator that makes a static method of a workflow class answer the query ``name``.

    Write it over ``@staticmethod``. The method takes ``(state)`` or ``(state, args)``, where ``state`` is the published
    state. Raises ``WorkflowDefinitionError`` for a method that takes ``self``, and for one that is async.
    """
    if not isinstance(name, str) or not name or name.startswith("__"):
        raise WorkflowDefinitionError(
            f'query: write @query("name"), with a name that does not begin with "__", not {name!r}'
        )

    def decorate(fn: Callable[..., Any]) -> Any:
        function: Any = fn.__func__ if isinstance(fn, (staticmethod, classmethod)) else fn
        if (problem := _problem(fn, function)) is not None:
            raise WorkflowDefinitionError(f"the query {name!r} ({source_line(function)}): {problem}")
        query_method = QueryMethod(function)
        query_method.query_name = name
        return query_method

    return decorate


def _problem(marked: Any, function: Any) -> str | None:
    """Return why ``marked``, a value under ``@query``, cannot answer a query, or None."""
    if not callable(function):
        return f"{function!r} is not a function: write @query over @staticmethod and `def`"
    if isinstance(marked, classmethod):
        return "it is a class method, but a query reads the published state alone: write @staticmethod, without cls"
    try:
        first = next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):  # a builtin without a signature
        first = None
    # No run has an instance that could be asked: `self` would be the state, and the state the arguments.
    if first in ("self", "cls") and not isinstance(marked, staticmethod):
        return f"it takes {first!r}, but a query reads the published state alone: write @staticmethod, and (state) or (state, args)"
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        return "a query answers at once: write a plain `def` that returns the answer"
    return None


def query_methods(cls: type, is_own: Callable[[type], bool]) -> list[QueryMethod]:
    """Return the query methods of a class and of its mixins, later ones over earlier ones.

    ``is_own`` returns True for the classes whose methods count.
    """
    return [
        value
        for base in reversed(cls.__mro__)
        if is_own(base)
        for value in vars(base).values()
        if isinstance(value, QueryMethod)
    ]


def hidden_query_problems(cls: type) -> Iterator[str]:
    """Yield one sentence for each query of the class that another decorator hides."""
    for name, value in vars(cls).items():
        inner = getattr(value, "__func__", None) or getattr(value, "fget", None)
        if isinstance(inner, QueryMethod):
            yield f"{name}: write @query({inner.query_name!r}) over @staticmethod, not below it"


def takes_args(fn: Callable[..., Any]) -> bool:
    """Return True if a function that answers a query takes the arguments of the query, too."""
    try:
        kinds = [p.kind for p in inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in positional for kind in kinds) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds
