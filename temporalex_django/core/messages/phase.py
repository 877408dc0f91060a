"""Phases: the parts of ``run`` that take messages, with their state, their handlers and their end.

A phase is *idle* (the next message may be dispatched), *busy* (a sync handler runs) or *leaving*. A stop, its timeout
or a cancellation makes it leave, and its units finish first. At most one phase is open in a run, because only ``run``
may open one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from temporalex_django.core import names
from temporalex_django.core.determinism import guard
from temporalex_django.core.error_text import source_line
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.copying import deep_copy
from temporalex_django.core.payloads.external_types import unreadable_reason
from temporalex_django.core.results import Async, NoReply, Reply, Stop, TimedOut
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Unit
from temporalex_django.errors import NestingError, WorkflowDefinitionError

RETURN_TYPES = {
    "signal": ((NoReply, Stop, Async), "NoReply(state), Stop(state) or Async(fn, state)"),
    "update": ((Reply, Stop, Async), "Reply(response, state), Stop(state, response) or Async(fn, state)"),
}


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler of a phase with its options.

    ``args_type`` is the annotation of its first parameter. ``permission`` is the permission that senders need, or None.
    ``on_error`` applies to signals whose handler fails: "keep" makes a failed message of the signal, "block" blocks the
    run.
    """

    fn: Callable[[Any, Any], Any]
    validator: Callable[[Any, Any], Any] | None = None
    permission: str | None = None
    args_type: Any = Any
    label: str | None = None
    on_error: str = "keep"


def build_handler(name: str, kind: str, value: Any) -> Handler:
    """Return the handler for ``value``: a callable, or the result of ``signal(...)`` or ``update(...)``.

    ``name`` is the name of the message, and ``kind`` is "signal" or "update". Raises ``WorkflowDefinitionError``.
    """
    names.check_code_name(name, label=f"phase: {kind}")
    handler = value if isinstance(value, Handler) else None
    if handler is None:
        if not callable(value):
            raise WorkflowDefinitionError(f"phase: the handler of {kind} {name!r} is not callable: {value!r}")
        handler = Handler(value, args_type=first_annotation(value))
    if (reason := unreadable_reason(handler.args_type)) is not None:
        raise WorkflowDefinitionError(
            f"phase: nothing can be read back from JSON as the annotation of {kind} {name!r}: {reason}; declare a type "
            "that payloads may have, or take plain data"
        )
    for fn, role in ((handler.fn, "handler"), (handler.validator, "validator")):
        if fn is not None and not accepts_arguments(fn, 2):
            raise WorkflowDefinitionError(
                f"phase: the {role} of {kind} {name!r} must be callable as (args, state): {signature_text(fn)}"
            )
        guard.watch(fn)
    return handler


def accepts_arguments(fn: Callable[..., Any], count: int) -> bool:
    """Return True if ``fn`` accepts ``count`` positional arguments, or is a builtin without a signature."""
    try:
        inspect.signature(fn).bind(*range(count))
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def signature_text(fn: Any) -> str:
    """Return the parameters that a function takes, and its line, for an error: ``shop/flows.py:12 takes (order)``."""
    try:
        return f"{source_line(fn)} takes {inspect.signature(fn)}"
    except (TypeError, ValueError):
        return repr(fn)


def first_annotation(fn: Any) -> Any:
    """Return the annotation of the first parameter of a handler, or ``Any`` if there is none."""
    # A lambda cannot have annotations, so the slow look at its signature is saved.
    if getattr(fn, "__name__", "") == "<lambda>":
        return Any
    try:
        first = next(iter(inspect.signature(fn).parameters), None)
    except (TypeError, ValueError):  # a builtin without a signature
        return Any
    return codec.resolve_hints(fn).get(first, Any) if first is not None else Any


class Phase:
    """An open phase, with its state and its handlers.

    ``signals`` and ``updates`` map names to handlers. ``timed`` is True if it has a timeout, and ``host`` is the unit
    (the coroutine of ``run``) that opens it. ``done`` is an IVar. It is set when the last unit of the phase has ended,
    to the value that ``api.phase`` returns.
    """

    def __init__(
        self,
        state: Any,
        signals: Mapping[str, Any],
        updates: Mapping[str, Any],
        *,
        timed: bool,
        host: Unit,
        label: str | None = None,
    ) -> None:
        self.signals: dict[str, Handler] = {}
        self.updates: dict[str, Handler] = {}
        problems = []
        for kind, declared, handlers in (("signal", signals, self.signals), ("update", updates, self.updates)):
            for name, value in declared.items():
                try:
                    handlers[name] = build_handler(name, kind, value)
                except WorkflowDefinitionError as exc:
                    problems.append(exc.message.removeprefix("phase: "))
        if problems:
            raise WorkflowDefinitionError("phase: " + "; ".join(problems))
        if duplicates := sorted(self.signals.keys() & self.updates.keys()):
            raise WorkflowDefinitionError(
                f"phase: {', '.join(duplicates)} is both a signal and an update: use two names"
            )
        if not self.signals and not self.updates and not timed:
            raise WorkflowDefinitionError("phase: without a handler or a timeout it could never end")
        self.state = deep_copy(state)
        self.host = host
        self.label = label
        self.busy: Unit | None = None
        self.running = 0  # async units
        self.leave_reason: Literal["stop", "timeout", "cancel"] | None = None
        self.delayed_changes: list[Callable[[], None]] = []  # update_state calls that wait for the sync handler
        self.timer: int | None = None
        accepts = [*(f"signal {n}" for n in self.signals), *(f"update {n}" for n in self.updates)]
        self.done = IVar(f"phase: {', '.join(accepts)}" if accepts else "phase")

    @property
    def labels(self) -> dict[str, str]:
        """The labels for people that its handlers declare, by name of the message."""
        handlers = (*self.signals.items(), *self.updates.items())
        return {name: handler.label for name, handler in handlers if handler.label is not None}

    def settle(self) -> None:
        """Set ``done``, so that ``run`` continues, if the phase is leaving and all its coroutines have ended."""
        if self.leave_reason is not None and self.busy is None and not self.running:
            self.done.put(TimedOut(self.state) if self.leave_reason == "timeout" else self.state)

    def change_state(self, fn: Callable[[Any], Any]) -> Any:
        """Apply ``fn(state) -> (result, new state)`` to a copy of the state, and return the result.

        Nothing changes if ``fn`` raises or returns another shape.
        """
        if inspect.iscoroutinefunction(fn):
            raise NestingError("update_state needs a plain function: an async one could be interleaved with others")
        guard.watch(fn)
        outcome = fn(deep_copy(self.state))
        if inspect.isawaitable(outcome):
            getattr(outcome, "close", lambda: None)()
            raise NestingError("update_state needs a plain function: this one returned an awaitable")
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise TypeError(f"update_state: the function must return (result, new_state), not {outcome!r}")
        result, state = outcome
        self.state = deep_copy(state)
        return deep_copy(result)


def check_return_value(kind: str, name: str, value: Any) -> None:
    """Raise ``TypeError`` if a handler returned a value that its kind, "signal" or "update", does not allow."""
    allowed, words = RETURN_TYPES[kind]
    if not isinstance(value, allowed):
        raise TypeError(f"the {kind} handler {name!r} returned {value!r}; it must return {words}")
    if isinstance(value, Async) and not callable(value.fn):
        raise TypeError(f"the {kind} handler {name!r} returned Async with {value.fn!r}, which is not callable")
