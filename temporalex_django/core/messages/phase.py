"""Phases, the handlers that answer messages in them, and signals whose handler fails."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal

from temporalex_django.core import names
from temporalex_django.core.determinism import guard
from temporalex_django.core.failures import (
    describe,
    error_line,
    exception_message,
    exception_name,
    is_error,
    is_refusal,
    refusal_reason,
    source_line,
)
from temporalex_django.core.history.activation import Completion, FailedSignal, Fault, Refusal
from temporalex_django.core.history.attributes import SignalFailedAttributes
from temporalex_django.core.messages import sender
from temporalex_django.core.messages.mailbox import Signal, Update
from temporalex_django.core.messages.sender import NO_HEADERS, Permissions, headers_attributes
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.payloads.external_types import unreadable_reason
from temporalex_django.core.pending_commands import Journal
from temporalex_django.core.results import Async, Err, NoReply, Ok, Reply, Stop, TimedOut, answer_type_of
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Scheduler, Unit, ignore_failure, inherit_context
from temporalex_django.errors import (
    ActionNotPermitted,
    Cancelled,
    NestingError,
    NondeterminismError,
    PayloadError,
    TemporalexError,
    UnexpectedError,
    UpdateRejected,
    WorkflowDefinitionError,
)

if TYPE_CHECKING:
    from temporalex_django.core.runtime_protocol import WorkflowRuntime


# --- phase ------------------------------------------------------------------------------------------------------------
#
# Phases: the parts of ``run`` that take messages, with their state, their handlers and their end.
#
# A phase is *idle* (the next message may be dispatched), *busy* (a sync handler runs) or *leaving*. A stop, its timeout
# or a cancellation makes it leave, and its units finish first. At most one phase is open in a run, because only ``run``
# may open one.


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
    """Raise ``PayloadError`` for a state that has no copy, such as a generator."""
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


# --- handlers ---------------------------------------------------------------------------------------------------------
#
# The calls of handlers of a phase: the checks of an update, the run of a handler, and the answers that it may give.


async def await_if_needed(value: Any) -> Any:
    """Return ``value``, or its result if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


async def invoke(fn: Callable[[], Any] | Awaitable[Any]) -> Any:
    """Run a branch or an async handler, a callable without arguments or an awaitable, and return its value."""
    guard.watch(fn)
    return await await_if_needed(fn() if callable(fn) else fn)


class HandlerRunner:
    """The part that judges updates and runs handlers. ``open_updates`` are the accepted ones without an answer.

    It calls ``leave_phase(phase)`` when a handler stops its phase.
    """

    __slots__ = ("_journal", "_leave_phase", "_permissions", "_run_context", "_scheduler", "failures", "open_updates")

    def __init__(
        self,
        run_context: RunContext,
        journal: Journal,
        scheduler: Scheduler,
        permissions: Permissions,
        leave_phase: Callable[[Phase], None],
    ) -> None:
        self._run_context = run_context
        self._journal = journal
        self._scheduler = scheduler
        self._permissions = permissions
        self._leave_phase = leave_phase
        self.open_updates: dict[str, str] = {}  # id -> name
        self.failures = SignalFailures(run_context, journal)

    # -- judging updates ----------------------------------------------------------------------------------------------

    def admit(self, phase: Phase, handler: Handler, update: Update) -> bool:
        """Judge an update and return True if it is accepted. A rejected update leaves no trace.

        Acceptance replaces the update's arguments by values of the handler's type. If the validator fails by a fault
        of its code, the update is not judged: the error is reported, but is no answer to the sender.

        An update that ``waits`` is accepted already, so it fails where another one would be rejected.
        """
        if not update.accepted and (refusal := self._permission_error(handler, update)) is not None:
            self.refuse_update(update, refusal)
            return False
        # A copy that is discarded: a replay does not know the refused updates, so nothing that they set may remain.
        context = inherit_context(phase.host.context)
        label = f"the arguments of update {update.name!r}"
        try:
            args = context.run(codec.convert, deep_copy(update.args), handler.args_type, label=label)
            if not update.accepted:
                context.run(self._validate, handler, update, args, phase)
        except UpdateRejected as exc:
            self.refuse_update(update, exc)
            return False
        except PayloadError as exc:
            self.refuse_update(update, UpdateRejected(exc.message, reason=exc.message, path=exc.path))
            return False
        except _ValidatorFault as fault:
            if update.admitted:
                self.refuse_update(update, UnexpectedError(f"the validator of update {update.name!r}: {fault}"))
            else:
                rejected = Fault(update_id=update.message_id, name=update.name, error=fault.error)
                self._journal.completion.faults.append(rejected)
            return False
        if not update.admitted:
            self.accept(update)
        update.waits, update.args = False, args
        return True

    def accept(self, update: Update, **marks: bool) -> None:
        """Accept an update. With the mark ``waits``, a phase judges it later, in a replay as well."""
        # The event comes before anything that the handler does (decision 12), so a replay finds the update accepted.
        self.open_updates[update.message_id] = update.name
        update.admitted, update.accepted = True, update.accepted and not marks
        attributes = {"id": update.message_id, "name": update.name, "args": update.args, "after": update.after}
        origin = {**sender.sender_attributes(update.sender), **headers_attributes(update.headers)}
        self._journal.emit("AcceptUpdate", None, {**attributes, **marks, **origin})

    def refuse_update(self, update: Update, error: TemporalexError) -> None:
        """Reject an update with this error. One that was accepted early fails with it. One that ``waits`` is lost."""
        if update.admitted:
            self.fail_update(f"update {update.name}", update.message_id, error)
        else:
            self._journal.reject_update(update.message_id, error)
        if update.waits:
            self._journal.lose("update", update.name, update.sender, error)

    def _permission_error(self, handler: Handler, update: Update) -> ActionNotPermitted | None:
        permission, label = handler.permission, f"update {update.name!r}"
        accepted_id = update.message_id if update.admitted else None
        if permission is None or self._permissions.is_permitted(permission, update.sender, label, accepted_id):
            return None
        return ActionNotPermitted(
            f"{self._run_context.run_label}: {update.sender} may not send the {label}: this requires the permission "
            f"{permission}"
        )

    def _validate(self, handler: Handler, update: Update, args: Any, phase: Phase) -> None:
        """Validate copies. Raises ``UpdateRejected`` for a refusal, and ``_ValidatorFault`` for a fault."""
        if handler.validator is None:
            return
        try:
            with self._run_context.validation(update.sender, update.headers or NO_HEADERS):
                verdict = handler.validator(deep_copy(args), deep_copy(phase.state))
        except (MemoryError, RecursionError, KeyboardInterrupt):
            raise
        except BaseException as exc:  # an error of a validator must not fail the run
            if not is_refusal(exc):
                raise _ValidatorFault(exc) from exc
            if not is_error(exc, UpdateRejected):
                self._run_context.log_rejection(f"the validator of update {update.name}", exc)
            reason = refusal_reason(exc)
            raise UpdateRejected(reason, reason=reason) from exc
        if verdict is None or isinstance(verdict, Ok):
            return
        if isinstance(verdict, Err):
            reason = verdict.reason
            text = reason if isinstance(reason, str) and reason else repr(reason)
            raise UpdateRejected(text, reason=self._plain_reason(reason))
        if inspect.iscoroutine(verdict):
            verdict.close()
        raise UpdateRejected(
            f"the validator of update {update.name!r} returned {verdict!r}; it must return None, Ok(...) or "
            "Err(reason), and it must not be async"
        )

    def _plain_reason(self, reason: Any) -> Any:
        """Return the ``repr`` of a reason that is not a payload."""
        try:
            return self._run_context.to_plain(reason, "the reason of a validator")
        except PayloadError:
            return repr(reason)

    # -- calling handlers ---------------------------------------------------------------------------------------------

    def run_update(self, phase: Phase, update: Update) -> None:
        """Run the handler of an update that ``admit`` has accepted."""
        self._call_handler(phase, "update", update, phase.updates[update.name], update.args)

    def run_signal(self, phase: Phase, signal: Signal) -> None:
        """Run the handler of a signal, unless its sender lacks the permission or its payload does not fit."""
        handler = phase.signals[signal.name]
        if self._is_refused_late(signal, handler.permission) or self.failures.should_skip(signal):
            return
        try:
            args = codec.convert(
                deep_copy(signal.payload), handler.args_type, label=f"the payload of signal {signal.name!r}"
            )
        except PayloadError as exc:
            if self._run_context.replaying and not self.failures.is_recorded(signal):
                raise self.failures.unreadable(signal, exc) from exc
            self._fail_signal(signal, handler, exc, untouched=True)
            return
        self._call_handler(phase, "signal", signal, handler, args)

    def _is_refused_late(self, signal: Signal, permission: str | None) -> bool:
        """Return True for a refused signal from before the phase. Its event exists, so its number is recorded."""
        if permission is None or signal.sender is None or signal.permission == permission:
            return False
        if self._run_context.replaying:
            # The history says which signals were refused: the permissions of today must not change the past.
            return signal.number in self._permissions.refused
        if self._permissions.is_permitted(permission, signal.sender, f"signal {signal.name!r}"):
            return False
        self._journal.refuse_signal(
            Refusal(name=signal.name, sender=signal.sender, permission=permission, number=signal.number)
        )
        return True

    def _call_handler(self, phase: Phase, kind: str, message: Signal | Update, handler: Handler, args: Any) -> None:
        """Keep the phase busy until the handler ends. ``kind`` is "signal" or "update"."""
        name = message.name
        effects_before = self.failures.snapshot(phase)

        def on_finish(value: Any, error: BaseException | None) -> None:
            # This closure refers to the unit. Without the reset, the cycle would wait for the garbage collector.
            phase.busy, unit.on_finish = None, ignore_failure
            self._finish_call(phase, kind, message, handler, unit, value, error, effects_before)

        unit = Unit(self._scheduler, "sync handler", f"{kind} {name}", on_finish, phase.host)
        unit.sender, unit.headers = message.sender, message.headers or NO_HEADERS
        phase.busy = unit
        try:
            value = self._scheduler.call(unit, lambda: handler.fn(args, deep_copy(phase.state)))
        except KeyboardInterrupt:
            raise  # it is for the process, not for the handler
        except BaseException as exc:  # noqa: BLE001 - the handler's failure is its sender's
            on_finish(None, exc)
            return
        # A plain handler that started an async generator becomes a unit as well: its generators are closed in steps.
        if inspect.isawaitable(value) or unit.generators:
            self._scheduler.spawn(unit, await_if_needed(value))
        else:
            on_finish(value, unit.unawaited.end_error(unit))

    def _finish_call(
        self,
        phase: Phase,
        kind: str,
        message: Signal | Update,
        handler: Handler,
        unit: Unit,
        value: Any,
        error: BaseException | None,
        effects_before: EffectSnapshot,
    ) -> None:
        """Apply the end of a handler. ``effects_before`` shows whether a failed one changed anything."""
        name, update = message.name, message.message_id if isinstance(message, Update) else None
        response = published = None
        if error is None:
            try:
                check_return_value(kind, name, value)
                if update is not None and not isinstance(value, Async):
                    response = self._encode_answer(handler, name, value.response)
                published = self._encode_published(phase, message, value.state)
            except (TypeError, PayloadError) as exc:
                error = exc
        if error is not None:
            self._handle_failure(phase, message, handler, error, effects_before)
        else:
            if isinstance(message, Signal):
                self.failures.check_success(message)
            phase.set_state(value.state, published)
            if isinstance(value, Async):
                self._spawn_async(phase, kind, message, handler, unit, value.fn)
            elif update is not None:
                self._complete_update(update, response)
            if isinstance(value, Stop):
                self._leave_phase(phase)
        # After the state of the handler is in place: a change that ran before it would be overwritten.
        delayed_changes, phase.delayed_changes = phase.delayed_changes, []
        for apply in delayed_changes:
            apply()
        phase.settle()

    def _spawn_async(
        self,
        phase: Phase,
        kind: str,
        message: Signal | Update,
        handler: Handler,
        caller: Unit,
        fn: Callable[[], Any],
    ) -> None:
        """Run ``fn`` as a unit beside the phase, with the sender and headers of ``caller``. It answers the update."""
        name, update = message.name, message.message_id if isinstance(message, Update) else None

        def on_finish(value: Any, error: BaseException | None) -> None:
            phase.running -= 1
            if error is None and isinstance(value, Async):
                error = NestingError(
                    f"the async handler of {kind} {name!r} returned Async: it cannot start another one"
                )
            if error is None and update is not None:
                try:
                    self._complete_update(update, self._encode_answer(handler, name, value))
                except PayloadError as exc:
                    error = exc
            if error is not None:
                self._handle_failure(phase, message, handler, error, None)
            phase.settle()

        phase.running += 1
        unit = Unit(self._scheduler, "async handler", f"async {kind} {name}", on_finish, phase.host)
        unit.sender, unit.headers = caller.sender, caller.headers
        self._scheduler.spawn(unit, invoke(fn))

    def _encode_published(self, phase: Phase, message: Signal | Update, state: Any) -> Any:
        """Raise ``PayloadError``, or ``NondeterminismError`` for a signal that was handled in the history."""
        try:
            return phase.encode_state(state)
        except PayloadError as exc:
            if self._run_context.replaying and isinstance(message, Signal) and not self.failures.is_recorded(message):
                raise self.failures.unpublished(message, exc) from exc
            raise

    def _encode_answer(self, handler: Handler, name: str, answer: Any) -> Any:
        """Return plain data that the declared type of the handler reads back. Raises ``PayloadError``."""
        label, annotate = f"the response of update {name!r}", "annotate the handler with -> Reply[...]"
        if handler.answer_type is Any:
            return self._run_context.encode_lossless(answer, label, annotate=annotate)
        read = partial(codec.convert, annotation=handler.answer_type, label=label)
        return self._run_context.encode_lossless(answer, label, read=read, annotate=annotate, must_fit=True)

    def _complete_update(self, update: str, response: Any) -> None:
        name = self.open_updates.pop(update)
        self._journal.emit("CompleteUpdate", None, {"id": update, "name": name, "result": response})

    def _handle_failure(
        self,
        phase: Phase,
        message: Signal | Update,
        handler: Handler,
        error: BaseException,
        effects_before: EffectSnapshot | None,
    ) -> None:
        """Fail the update, record the signal, or raise ``error``. ``effects_before`` is None for ``Async`` code."""
        if is_error(error, MemoryError, RecursionError):
            raise error
        if isinstance(message, Update):
            self.fail_update(f"update {message.name}", message.message_id, error)
        elif not is_error(error, Cancelled):
            untouched = effects_before is not None and effects_before.is_same(self.failures.snapshot(phase))
            self._fail_signal(message, handler, error, untouched=untouched)

    def _fail_signal(self, signal: Signal, handler: Handler, error: BaseException, *, untouched: bool) -> None:
        """Record a failed message, or block the run if the handler asks for that. See decision 46."""
        label, recorded = f"the handler of signal {signal.name}", self.failures.is_recorded(signal)
        # The history has no failure of this signal, so a replay must not add one. The error is only logged.
        if self._run_context.replaying and not recorded:
            self._run_context.log_replay_failure(label, error)
            return
        if handler.on_error == "block" and not recorded:
            raise error if is_error(error, Exception) else UnexpectedError(f"{label}: {exception_message(error)}")
        self._run_context.log_failure(label, error)
        self.failures.add(signal, error, untouched=untouched)

    def fail_update(self, label: str, update: str, error: BaseException) -> None:
        """Answer an accepted update with the error of its handler, and log the error.

        ``update`` is the id of the update, and ``label`` names it in the log.
        """
        name = self.open_updates.pop(update)
        self._journal.emit("FailUpdate", None, {"id": update, "name": name, **describe(error)})
        if not is_error(error, Cancelled, UpdateRejected, ActionNotPermitted):
            self._run_context.log_failure(f"the handler of {label}", error)

    def release_references(self) -> None:
        """Drop the reference to the dispatcher, because the run is evicted."""
        self._leave_phase = _ignore_phase


class _ValidatorFault(Exception):
    """The error of a validator that raised an exception which is no refusal, so that the update is not judged."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{exception_name(type(error))}: {exception_message(error)}")
        self.error = error


def _ignore_phase(_: Phase) -> None:
    """Do nothing, in place of the call that makes a phase leave: an evicted run leaves no phase."""


# --- signal failures --------------------------------------------------------------------------------------------------
#
# Signals whose handler failed. They become failed messages, which people can redeliver or discard. See decision 46.
#
# A failure is recorded (``SignalFailed``), because the handler may be corrected later. A replay with new code must not
# take a signal that failed when the history was made.
#
# The replay calls the handler, because it may have changed objects of the run before it failed. There are two cases:
#
# - The handler had left nothing behind in the history. If it does not fail in that way now, it was corrected.
#   ``HandlerFixed`` then asks for another replay, from the beginning, which does not call such handlers.
# - The handler had left something behind: a command, a published state, a drawn number. It must fail again.


class HandlerFixed(Exception):
    """Raised in a replay when a handler that failed when the history was made does not fail now.

    The host then replays the history again and skips the failed handlers.
    """


@dataclass(frozen=True, slots=True, eq=False)
class EffectSnapshot:
    """A record of everything that workflow code has left behind in an activation, up to one moment.

    ``commands`` and ``effects`` are counts; ``state`` is the phase state. The record refers to the objects themselves,
    because the id of an object may be reused by a later one.
    """

    completion: Completion
    commands: int
    effects: int
    state: Any

    def is_same(self, other: EffectSnapshot) -> bool:
        """Return True if the code has left nothing behind between this snapshot and the ``other`` one."""
        same = self.completion is other.completion and self.state is other.state
        return same and (self.commands, self.effects) == (other.commands, other.effects)


class SignalFailures:
    """The failed signals of a run.

    ``open_failures`` has the names of failed signals that nobody has delivered again, by message id. With
    ``skip_failed``, a replay does not call handlers that had failed without leaving anything behind.
    """

    __slots__ = ("_journal", "_recorded", "_run_context", "open_failures", "skip_failed")

    def __init__(self, run_context: RunContext, journal: Journal) -> None:
        self.skip_failed = False
        self._run_context = run_context
        self._journal = journal
        self._recorded: dict[int, bool] = {}  # True if the handler left nothing behind, by number of the signal
        self.open_failures: dict[str, str] = {}

    def begin(self, failed: Mapping[int, SignalFailedAttributes]) -> None:
        """Begin an activation. ``failed`` are its recorded failures; see ``DeliveryRecord.failed``."""
        self._recorded = {number: failed[number]["untouched"] for number in failed}

    def snapshot(self, phase: Phase) -> EffectSnapshot:
        """Return a snapshot of everything that workflow code has left behind in this activation."""
        completion = self._journal.completion
        return EffectSnapshot(completion, len(completion.commands), self._run_context.effects, phase.state)

    def should_skip(self, signal: Signal) -> bool:
        """Return True if the handler must not be called: it failed, left nothing behind and was corrected since.

        This happens only in a replay with ``skip_failed``.
        """
        if not self.skip_failed or not self._recorded.get(signal.number):
            return False
        self._mark_failed(signal)
        return True

    def is_recorded(self, signal: Signal) -> bool:
        """Return True if the history says that this signal failed in the activation that is replayed."""
        return signal.number in self._recorded

    def unreadable(self, signal: Signal, error: PayloadError) -> NondeterminismError:
        """Return the error for a recorded signal whose payload the handler does not accept any more.

        The run is blocked. Otherwise it would continue without what the signal had added to its state.
        """
        return NondeterminismError(
            f"{self._run_context.run_label}: signal {signal.name!r} ({signal.number} of the run) was handled when the "
            f"history was made, but its handler does not accept the recorded payload now: {error_line(error)}. Accept "
            "the old form as well, for as long as runs have it in their histories",
            recorded=f"signal {signal.number}, handled",
            produced="a payload that does not fit",
        )

    def unpublished(self, signal: Signal, error: PayloadError) -> NondeterminismError:
        """Return the error for a recorded signal after which the phase cannot publish its state any more.

        The run is blocked. Otherwise it would continue without what the signal had changed.
        """
        return NondeterminismError(
            f"{self._run_context.run_label}: signal {signal.name!r} ({signal.number} of the run) was handled when the "
            f"history was made, but its phase cannot publish the new state now: {error_line(error)}",
            recorded=f"signal {signal.number}, handled",
            produced="a state that cannot be published",
        )

    def add(self, signal: Signal, error: BaseException, *, untouched: bool) -> None:
        """Record that the handler of a signal failed with ``error``. ``untouched`` is True if it left nothing behind.

        Raises ``HandlerFixed`` if it left nothing behind when the history was made, but leaves something behind now.
        """
        # It failed without an effect when the history was made. Now it has one, so it does not fail in that way.
        if self._recorded.get(signal.number) and not untouched:
            raise HandlerFixed
        message_id = self._mark_failed(signal)
        if self._run_context.replaying:
            return
        failed = FailedSignal(
            number=signal.number,
            id=message_id,
            name=signal.name,
            payload=signal.payload,
            sender=signal.sender,
            failure=describe(error),
            untouched=untouched,
            headers=signal.headers,
        )
        self._journal.completion.failed.append(failed)

    def check_success(self, signal: Signal) -> None:
        """Raise ``HandlerFixed`` if the handler of this signal failed when the history was made."""
        if self._recorded.get(signal.number):
            raise HandlerFixed

    def check(self) -> None:
        """Raise if a handler that failed when the history was made did not fail now.

        Raises ``HandlerFixed`` if it had left nothing behind, else ``NondeterminismError``.
        """
        for number, untouched in self._recorded.items():
            if untouched:
                raise HandlerFixed
            raise NondeterminismError(
                f"{self._run_context.run_label}: the handler of signal {number} of the run failed when the history was "
                "made, after it had done something, but the code does not fail there now. Restore the old code, or keep "
                "the old path for old runs with api.patched()",
                recorded=f"SignalFailed, signal {number}",
                produced="nothing",
            )

    def mark_delivered(self, message_id: str) -> None:
        """Record that a signal with this id has come. If it was a failed message, it is none any more."""
        self.open_failures.pop(message_id, None)

    def carried_failures(self) -> list[dict[str, Any]]:
        """Return ``{"id", "name"}`` of the failed signals that this run passes to the next run of its chain."""
        return [{"id": message_id, "name": name} for message_id, name in self.open_failures.items()]

    def load_carried(self, carried: list[dict[str, Any]]) -> None:
        """Load the failed signals that the previous run of the chain passed to this one."""
        self.open_failures = {failed["id"]: failed["name"] for failed in carried}

    def _mark_failed(self, signal: Signal) -> str:
        """Return the message id of the failed message."""
        self._recorded.pop(signal.number, None)
        # The id of a failed message must be the same in each rebuild, so it comes from the run id and the number.
        message_id = signal.message_id or f"{self._run_context.info.run_id}:{signal.number}"
        self.open_failures[message_id] = signal.name
        return message_id
