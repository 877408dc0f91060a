"""The calls of handlers of a phase: the checks of an update, the run of a handler, and the answers that it may give."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from temporalex_django.core.determinism import guard
from temporalex_django.core.error_text import is_error
from temporalex_django.core.failures import describe, exception_message, is_refusal, refusal_reason
from temporalex_django.core.history.activation import Fault, Refusal
from temporalex_django.core.journal import Journal
from temporalex_django.core.messages import sender
from temporalex_django.core.messages.mailbox import Signal, Update
from temporalex_django.core.messages.phase import Handler, Phase, check_return_value
from temporalex_django.core.messages.sender import NO_HEADERS, Permissions, headers_attributes
from temporalex_django.core.messages.signal_failures import EffectSnapshot, SignalFailures
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.copying import deep_copy
from temporalex_django.core.results import Async, Err, Ok, Stop
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.units.contexts import inherit_context
from temporalex_django.core.units.scheduler import Scheduler, Unit, ignore_failure
from temporalex_django.errors import (
    ActionNotPermitted,
    Cancelled,
    NestingError,
    PayloadError,
    UnexpectedError,
    UpdateRejected,
)


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
        """
        if not update.accepted and (refusal := self._permission_error(handler, update)) is not None:
            self._journal.reject_update(update.message_id, refusal)
            return False
        # A copy that is discarded: a replay does not know the refused updates, so nothing that they set may remain.
        context = inherit_context(phase.host.context)
        label = f"the arguments of update {update.name!r}"
        try:
            args = context.run(codec.convert, deep_copy(update.args), handler.args_type, label=label)
            if not update.accepted:
                context.run(self._validate, handler, update, args, phase)
        except UpdateRejected as exc:
            self._journal.reject_update(update.message_id, exc)
            return False
        except PayloadError as exc:
            self._journal.reject_update(
                update.message_id, UpdateRejected(exc.message, reason=exc.message, path=exc.path)
            )
            return False
        except _ValidatorFault as fault:
            self._journal.completion.faults.append(
                Fault(update_id=update.message_id, name=update.name, error=fault.error)
            )
            return False
        # The event comes before anything that the handler does (decision 12), so a replay finds the update accepted.
        self.open_updates[update.message_id] = update.name
        attributes = {"id": update.message_id, "name": update.name, "args": update.args, "after": update.after}
        origin = {**sender.sender_attributes(update.sender), **headers_attributes(update.headers)}
        self._journal.emit("AcceptUpdate", None, {**attributes, **origin})
        update.admitted, update.args = True, args
        return True

    def _permission_error(self, handler: Handler, update: Update) -> ActionNotPermitted | None:
        """Return the error if the sender may not send the update, else None."""
        permission, label = handler.permission, f"update {update.name!r}"
        if permission is None or self._permissions.is_permitted(permission, update.sender, label):
            return None
        return ActionNotPermitted(
            f"{self._run_context.run_label}: {update.sender} may not send the {label}: this requires the permission "
            f"{permission}"
        )

    def _validate(self, handler: Handler, update: Update, args: Any, phase: Phase) -> None:
        """Run the validator of an update, if it has one, with copies of ``args`` and of the phase state.

        Raises ``UpdateRejected`` if the validator refuses the update, and ``_ValidatorFault`` if it fails by a fault.
        """
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
        """Return the reason that a validator gave as plain data, or its ``repr`` if it is not a payload."""
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
        """Return True if a phase refuses a signal that came before the phase was open.

        The event of the signal is already in the history, so its number is recorded with the activation.
        """
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
        """Call the handler of a message with the decoded ``args``. The phase is busy until the handler ends.

        ``kind`` is "signal" or "update".
        """
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
        """Apply the end of a handler, which returned ``value`` or raised ``error``.

        A value sets the phase state, answers the update, and may close the phase. An error fails the update, or records
        the signal as failed. ``unit`` is the coroutine in which the handler ran. ``effects_before`` is what the
        activation had left behind before the call, which shows whether a failed handler changed anything.
        """
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
        """Run ``fn`` of the ``Async`` that a handler returned as a new unit, a coroutine that runs beside the phase.

        If the message is an update, the value of ``fn`` is its answer. ``caller`` is the unit of the handler; the new
        unit keeps its sender and headers.
        """
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
        """Return what ``phase`` publishes of the state that the handler of ``message`` returned. See ``set_state``.

        Raises ``PayloadError``, and ``NondeterminismError`` for a signal that was handled when the history was made.
        """
        try:
            return phase.encode_state(state)
        except PayloadError as exc:
            if self._run_context.replaying and isinstance(message, Signal) and not self.failures.is_recorded(message):
                raise self.failures.unpublished(message, exc) from exc
            raise

    def _encode_answer(self, handler: Handler, name: str, answer: Any) -> Any:
        """Return the answer of the update ``name`` as plain data, which the type that its handler declares reads back.

        Raises ``PayloadError``.
        """
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
        """Handle the exception ``error`` of the handler of a message: fail the update, or record the failed signal.

        ``effects_before`` is what the activation had left behind before the call. It is None for code that runs beside
        the phase (``Async``), which may have left something behind in earlier activations. Raises ``error`` if it fails
        the activation.
        """
        if is_error(error, MemoryError, RecursionError):
            raise error
        if isinstance(message, Update):
            self.fail_update(f"update {message.name}", message.message_id, error)
        elif not is_error(error, Cancelled):
            untouched = effects_before is not None and effects_before.is_same(self.failures.snapshot(phase))
            self._fail_signal(message, handler, error, untouched=untouched)

    def _fail_signal(self, signal: Signal, handler: Handler, error: BaseException, *, untouched: bool) -> None:
        """Record a signal as a failed message, or block the run if its handler asks for that. See decision 46.

        ``untouched`` is True if the handler left nothing behind.
        """
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
        if not is_error(error, Cancelled, UpdateRejected):
            self._run_context.log_failure(f"the handler of {label}", error)

    def release_references(self) -> None:
        """Drop the reference to the dispatcher, because the run is evicted."""
        self._leave_phase = _ignore_phase


class _ValidatorFault(Exception):
    """The error of a validator that raised an exception which is no refusal, so that the update is not judged."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _ignore_phase(_: Phase) -> None:
    """Do nothing, in place of the call that makes a phase leave: an evicted run leaves no phase."""
