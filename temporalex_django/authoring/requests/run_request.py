"""Requests of handles: a method of ``WorkflowHandle`` makes one, and the backend of its run performs it.

Each method is defined once, as a function that builds the request. ``operation_method`` makes the method from it, and
``async_method`` the method for async code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, cast

from temporalex_django.core.payloads.external_types import unreadable_reason
from temporalex_django.errors import WorkflowDefinitionError

if TYPE_CHECKING:
    from uuid import UUID

    from temporalex_django.authoring.backend import Backend
    from temporalex_django.authoring.start_api import Startable

T = TypeVar("T")
M = TypeVar("M", bound="Callable[..., Any]")
P = ParamSpec("P")
H = TypeVar("H", bound="Handle")

#: Default of an input that may be None. ``inputs`` leaves it out, so that the operation uses its own default.
UNSET: Final[Any] = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAddress:
    """The address of the run that a handle belongs to, by which its backend finds the run.

    ``id`` is the business id, or a run id. ``chain_id`` is the chain that a start returned, or None. ``run_id`` is set
    if the handle shows one run of the chain instead of the newest one. ``workflow`` and ``version`` limit the search.
    """

    id: str
    chain_id: UUID | None = None
    run_id: UUID | None = None
    workflow: type[Startable] | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class RunRequest(Generic[T]):
    """One operation on a run, before it is performed; ``T`` is the type of its result.

    ``operation`` is its name in the audit log (``signal``, ``reset``), or the name of a read (``describe``). ``by`` is
    the user in whose name it is performed. ``inputs`` are the arguments of the operation, by name. ``returns`` is the
    type as which the handle returns the answer to an update or query; None for plain data.
    """

    operation: str
    by: Any = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    returns: Any = None


def inputs(**values: Any) -> dict[str, Any]:
    """Return the keyword arguments that are not ``UNSET`` as a dict: the inputs of a request."""
    return {name: value for name, value in values.items() if value is not UNSET}


def readable_type(operation: str, returns: Any) -> Any:
    """Return ``returns``, the type as which the answer to an update or query is read; None for plain data.

    It is checked before the message is sent, whose handler acts. Raises ``WorkflowDefinitionError``.
    """
    reason = "it is a text" if isinstance(returns, str) else unreadable_reason(returns)
    if reason is not None:
        raise WorkflowDefinitionError(
            f"{operation}: returns must be a type that payloads may have, not {returns!r}: {reason}"
        )
    return returns


class Handle(Protocol):
    """A handle of a run, as ``operation_method`` needs it: an object with the address and the backend of a run."""

    _address: RunAddress
    _backend: Backend


def operation_method(build: Callable[Concatenate[H, P], RunRequest[T]]) -> Callable[Concatenate[H, P], T]:
    """Return a method of a handle, made from ``build``, a function that returns the request of the operation.

    The method takes the arguments of ``build``, performs the request on the handle's backend and returns its result.
    """

    @wraps(build)
    def perform(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._backend.perform(self._address, build(self, *args, **kwargs))

    return _with_signature(perform, build)


def async_method(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Return the method for async code that does the same as ``method``, which ``operation_method`` has made.

    It takes the same arguments, and holds no thread in a wait.
    """
    build = cast("Callable[Concatenate[H, P], RunRequest[T]]", method.__wrapped__)  # type: ignore[attr-defined] # set by wraps

    @wraps(build)
    async def perform(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._backend.aperform(self._address, build(self, *args, **kwargs))

    perform.__name__ = f"a{build.__name__}"
    perform.__qualname__ = build.__qualname__.removesuffix(build.__name__) + perform.__name__
    perform.__doc__ = f"``{build.__name__}`` for async code."
    return _with_signature(perform, build)


def _with_signature(method: M, build: Callable[..., Any]) -> M:
    """Return ``method`` with the annotations and the signature of ``build``.

    The annotation of its result is ``T`` where ``build`` returns ``RunRequest[T]``.
    """
    signature = inspect.signature(build)
    result = str(signature.return_annotation).removeprefix("RunRequest[").removesuffix("]")
    method.__annotations__ = {**build.__annotations__, "return": result}
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined] # inspect reads it
    return method
