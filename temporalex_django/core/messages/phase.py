"""Phases: the parts of ``run`` that take messages, with their state, their handlers and their end.

A phase is *idle* (the next message may be dispatched), *busy* (a sync handler runs) or *leaving*. A stop, its timeout
or a cancellation makes it leave, and its units finish first. At most one phase is open in a run, because only ``run``
may open one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal

from temporalex_django.core import names
from temporalex_django.core.determinism import guard
from temporalex_django.core.error_text import is_error, source_line
from temporalex_django.core.failures import exception_message, exception_name
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.copying import deep_copy
from temporalex_django.core.payloads.external_types import unreadable_reason
from temporalex_django.core.results import Async, NoReply, Reply, Stop, TimedOut, answer_type_of
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Unit
from temporalex_django.errors import NestingError, PayloadError, WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.core.runtime_protocol import WorkflowRuntime

_NOTHING: Final = object()
#: First parameters of a method.
_SELF: Final = (("self",), ("cls",))
RETURN_TYPES = {
    "signal": ((NoReply, Stop, Async), "NoReply(state), Stop(state) or Async(fn, state)"),
    "update": ((Reply, Stop, Async), "Reply(response, state), Stop(state, response) or Async(fn, state)"),
}


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler of a phase with its options.

    ``args_type`` is the annotation of its first parameter, and ``answer_type`` that of the answers to an update.
    ``permission`` is the permission that senders need, or None.
    ``on_error`` applies to signals whose handler fails: "keep" makes a failed message of the signal, "block" blocks the
    run.
    """

    fn: Callable[[Any, Any], Any]
    validator: Callable[[Any, Any], Any] | None = None
    permission: str | None = None
    args_type: Any = Any
    answer_type: Any = Any
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
        args_type, answer_type = handler_types(value)
        handler = Handler(value, args_type=args_type, answer_type=answer_type)
    if (reason := unreadable_reason(handler.args_type)) is not None:
        raise WorkflowDefinitionError(
            f"phase: nothing can be read back from JSON as the annotation of {kind} {name!r}: {reason}; declare a type "
            "that payloads may have, or take plain data"
        )
    if (problem := self_problem(handler.fn)) is not None:
        raise WorkflowDefinitionError(f"phase: the handler of {kind} {name!r}: {problem}")
    if kind == "update":
        require_storable_answer(handler.answer_type, label=f"phase: the handler of update {name!r}")
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


def self_problem(fn: Any) -> str | None:
    """Return why ``fn`` is no handler if it is a method without its object, else None."""
    # No run has an object to call it on: `self` would be the arguments of the message, and these the state.
    if type(fn) is not FunctionType or fn.__code__.co_varnames[: min(fn.__code__.co_argcount, 1)] not in _SELF:
        return None
    return (
        f"{signature_text(fn)}, but a handler is a function (args, state) that a phase calls: define it in run() or "
        'outside of the class, and pass it as api.phase(state, update={"name": handler})'
    )


def signature_text(fn: Any) -> str:
    """Return the parameters that a function takes, and its line, for an error: ``shop/flows.py:12 takes (order)``."""
    try:
        return f"{source_line(fn)} takes {inspect.signature(fn)}"
    except (TypeError, ValueError):
        return repr(fn)


def handler_types(fn: Any) -> tuple[Any, Any]:
    """Return the types that a handler declares: ``(annotation of its first parameter, type of its answers)``.

    Each is Any if there is no annotation.
    """
    # A lambda cannot have annotations, so the slow look at its signature is saved.
    if getattr(fn, "__name__", "") == "<lambda>":
        return Any, Any
    try:
        first = next(iter(inspect.signature(fn).parameters), None)
    except (TypeError, ValueError):  # a builtin without a signature
        return Any, Any
    hints = codec.resolve_hints(fn.func if isinstance(fn, partial) else fn)
    return hints.get(first, Any) if first is not None else Any, answer_type_of(hints.get("return", Any))


def first_annotation(fn: Any) -> Any:
    """Return the annotation of the first parameter of a handler, or ``Any`` if there is none."""
    return handler_types(fn)[0]


def require_storable_answer(answer_type: Any, *, label: str) -> None:
    """Raise ``WorkflowDefinitionError`` if no answer could be read back as the type that a handler declares.

    ``label`` begins the message.
    """
    if (reason := unreadable_reason(answer_type)) is not None:
        raise WorkflowDefinitionError(
            f"{label}: nothing can be read back from JSON as the type of its answer: {reason}; declare a type that "
            "payloads may have, or answer with plain data"
        )


def _copy_of(state: Any) -> Any:
    """Return a copy of the state of a phase. Raises ``PayloadError`` for a value that has none, such as a generator."""
    try:
        return deep_copy(state)
    except TypeError as exc:
        raise PayloadError(
            f"phase: the state cannot be copied: {exception_message(exc)}; keep plain data in it, such as a list"
        ) from exc


class Publication:
    """The part of a phase that publishes its state.

    ``publish`` is True for the state itself, or a function ``(state)`` that returns what is published.
    """

    __slots__ = ("_fn", "_latest", "_runtime")

    def __init__(self, runtime: WorkflowRuntime, publish: object) -> None:
        if publish is not True and (not callable(publish) or inspect.iscoroutinefunction(publish)):
            raise WorkflowDefinitionError(f"phase: publish is True, False or a plain function (state), not {publish!r}")
        if publish is not True and not accepts_arguments(publish, 1):
            raise WorkflowDefinitionError(f"phase: publish must be callable as (state): {signature_text(publish)}")
        self._fn = None if publish is True else publish
        guard.watch(self._fn)
        self._runtime = runtime
        self._latest: Any = _NOTHING

    def encode(self, state: Any) -> Any:
        """Return what is published of a state, as plain data. Raises ``PayloadError``."""
        value = state if self._fn is None else self._call(self._fn, state)
        label = "the published state of the phase"
        return self._runtime.run_context.encode_lossless(
            value, label, annotate="let publish= be a function that converts it"
        )

    def _call(self, fn: Callable[[Any], Any], state: Any) -> Any:
        try:
            with self._runtime.run_context.pure_section("publish function"):
                value = fn(deep_copy(state))
        except Exception as exc:
            if is_error(exc, MemoryError, RecursionError):
                raise
            error = f"{exception_name(type(exc))}: {exception_message(exc)}"
            raise PayloadError(f"phase: the function that publishes the state raised {error}") from exc
        if inspect.isawaitable(value):
            getattr(value, "close", lambda: None)()
            raise PayloadError("phase: the function that publishes the state must be a plain one, not async")
        return value

    def publish(self, encoded: Any) -> None:
        """Publish plain data, unless it is the same as before: published by this phase, or by the code before it."""
        before = self._runtime.published if self._latest is _NOTHING else self._latest
        # Equal is not the same: 1 is not True, and the order of keys counts.
        if encoded != before or codec.encode(encoded) != codec.encode(before):
            self._runtime.publish(encoded)
        self._latest = encoded


class Phase:
    """An open phase, with its state and its handlers.

    ``publication`` publishes the state whenever it changes; None leaves that to the code.

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
        publication: Publication | None = None,
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
        self.state = _copy_of(state)
        self.publication = publication
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

    def encode_state(self, state: Any) -> Any:
        """Return what the phase will publish of ``state``, for ``set_state``; None if it publishes nothing.

        Raises ``PayloadError``. Nothing changes then.
        """
        return None if self.publication is None else self.publication.encode(state)

    def publish_state(self) -> None:
        """Publish the state with which the phase begins, if it publishes any. Raises ``PayloadError``."""
        if self.publication is not None:
            self.publication.publish(self.encode_state(self.state))

    def set_state(self, state: Any, encoded: Any) -> None:
        """Set the state to a copy of ``state``, and publish ``encoded``, which ``encode_state`` returned for it."""
        self.state = _copy_of(state)  # the code may keep a reference to it
        if self.publication is not None:
            self.publication.publish(encoded)

    def change_state(self, fn: Callable[[Any], Any]) -> Any:
        """Apply ``fn(state) -> (result, new state)`` to a copy of the state, and return the result.

        Nothing changes if ``fn`` raises or returns another shape, or if the phase cannot publish the new state.
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
        self.set_state(state, self.encode_state(state))
        return deep_copy(result)


def check_return_value(kind: str, name: str, value: Any) -> None:
    """Raise ``TypeError`` if a handler returned a value that its kind, "signal" or "update", does not allow."""
    allowed, words = RETURN_TYPES[kind]
    if not isinstance(value, allowed):
        raise TypeError(f"the {kind} handler {name!r} returned {value!r}; it must return {words}")
    if isinstance(value, Async) and not callable(value.fn):
        raise TypeError(f"the {kind} handler {name!r} returned Async with {value.fn!r}, which is not callable")
