"""Handlers of a phase at work: what an update must pass, how a handler is run, and what it may answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from temporalex_django.core import payloads, senders
from temporalex_django.core.copying import copied
from temporalex_django.core.failures import describe, is_refusal, message_of, reason_of_refusal
from temporalex_django.core.history.activation import Fault, Refusal
from temporalex_django.core.invoking import given, invoke
from temporalex_django.core.journal import Journal
from temporalex_django.core.mailbox import Signal, Update
from temporalex_django.core.permissions import Permissions
from temporalex_django.core.phase import Handler, Phase, check_shape
from temporalex_django.core.results import Async, Err, Ok, Stop
from temporalex_django.core.scheduler import Scheduler, Unit, unheard
from temporalex_django.core.signal_failures import SignalFailures, Traces
from temporalex_django.core.standing import Standing
from temporalex_django.core.unit_contexts import inherited
from temporalex_django.errors import (
    ActionNotPermitted,
    Cancelled,
    NestingError,
    PayloadError,
    UnexpectedError,
    UpdateRejected,
)


class Handling:
    """Knows the updates that are accepted and unfinished. ``leave(phase)`` is called when a handler stops its phase."""

    __slots__ = ("_journal", "_leave", "_open", "_permissions", "_scheduler", "_standing", "failures")

    def __init__(
        self,
        standing: Standing,
        journal: Journal,
        scheduler: Scheduler,
        permissions: Permissions,
        leave: Callable[[Phase], None],
    ) -> None:
        self._standing = standing
        self._journal = journal
        self._scheduler = scheduler
        self._permissions = permissions
        self._leave = leave
        self._open: dict[str, str] = {}  # id -> name
        self.failures = SignalFailures(standing, journal)

    # -- updates are judged -------------------------------------------------------------------------------------------

    def admit(self, phase: Phase, handler: Handler, update: Update) -> bool:
        """Judge an update: accepted (its arguments decoded from here on), or rejected without a trace.

        A validator that fails by a fault of the code has not judged: that is no answer to the sender's data.
        """
        if not update.accepted and (refusal := self._refusal(handler, update)) is not None:
            self._journal.reject(update.id, refusal)
            return False
        judged = inherited(phase.host.context)  # thrown away: of those that are refused a replay knows nothing
        what = f"the arguments of update {update.name!r}"
        try:
            args = judged.run(payloads.fit, copied(update.args), handler.args_type, what=what)
            if not update.accepted:
                judged.run(self._validate, handler, update, args, phase)
        except UpdateRejected as exc:
            self._journal.reject(update.id, exc)
            return False
        except PayloadError as exc:
            self._journal.reject(update.id, UpdateRejected(exc.message, reason=exc.message, path=exc.path))
            return False
        except _ValidatorFault as fault:
            self._journal.completion.faults.append(Fault(update_id=update.id, name=update.name, error=fault.error))
            return False
        self._open[update.id] = update.name
        attributes = {"id": update.id, "name": update.name, "args": update.args, "after": update.after}
        self._journal.emit("AcceptUpdate", None, {**attributes, **senders.recorded(update.sender)})
        update.admitted, update.args = True, args
        return True

    def _refusal(self, handler: Handler, update: Update) -> ActionNotPermitted | None:
        """Why the sender may not send an update, when he may not."""
        permission, what = handler.permission, f"update {update.name!r}"
        if permission is None or self._permissions.permitted(permission, update.sender, what):
            return None
        return ActionNotPermitted(
            f"{self._standing.run}: {update.sender} may not send the {what}: that takes the permission {permission}"
        )

    def _validate(self, handler: Handler, update: Update, args: Any, phase: Phase) -> None:
        if handler.validator is None:
            return
        try:
            with self._standing.validating(update.sender):
                verdict = handler.validator(copied(args), copied(phase.state))
        except (MemoryError, RecursionError, KeyboardInterrupt):
            raise
        except BaseException as exc:  # nobody else is to suffer
            if not is_refusal(exc):
                raise _ValidatorFault(exc) from exc
            if not isinstance(exc, UpdateRejected):
                self._standing.tell_rejected(f"the validator of update {update.name}", exc)
            reason = reason_of_refusal(exc)
            raise UpdateRejected(reason, reason=reason) from exc
        if verdict is None or isinstance(verdict, Ok):
            return
        if isinstance(verdict, Err):
            reason = verdict.reason
            text = reason if isinstance(reason, str) and reason else repr(reason)
            raise UpdateRejected(text, reason=self._told(reason))
        if inspect.iscoroutine(verdict):
            verdict.close()
        raise UpdateRejected(
            f"the validator of update {update.name!r} returned {verdict!r}; it must return None, Ok(...) or Err(reason), "
            "and not be async"
        )

    def _told(self, reason: Any) -> Any:
        """Why a validator refused, as plain data; as text where it is none."""
        try:
            return self._standing.plain(reason, "the reason of a validator")
        except PayloadError:
            return repr(reason)

    # -- handlers are called ------------------------------------------------------------------------------------------

    def update(self, phase: Phase, update: Update) -> None:
        """Run the handler of an update that was admitted."""
        self._call(phase, "update", update, phase.updates[update.name], update.args)

    def signal(self, phase: Phase, signal: Signal) -> None:
        """Run the handler of a signal, unless its sender may not send it, or its payload does not fit."""
        handler = phase.signals[signal.name]
        if self._refused_late(signal, handler.permission) or self.failures.skips(signal):
            return
        try:
            args = payloads.fit(
                copied(signal.payload), handler.args_type, what=f"the payload of signal {signal.name!r}"
            )
        except PayloadError as exc:
            self._signal_failed(signal, handler, exc, untouched=True)
            return
        self._call(phase, "signal", signal, handler, args)

    def _refused_late(self, signal: Signal, permission: str | None) -> bool:
        """Whether a signal that came before its phase was open goes nowhere.

        Its event is in the history: which one it was is recorded.
        """
        if permission is None or signal.sender is None or signal.permission == permission:
            return False
        if self._standing.replaying:
            return signal.number in self._permissions.refused
        if self._permissions.permitted(permission, signal.sender, f"signal {signal.name!r}"):
            return False
        self._journal.refuse(
            Refusal(name=signal.name, sender=signal.sender, permission=permission, number=signal.number)
        )
        return True

    def _call(self, phase: Phase, kind: str, message: Signal | Update, handler: Handler, args: Any) -> None:
        name = message.name
        traces = self.failures.traces(phase)

        def finished(value: Any, error: BaseException | None) -> None:
            phase.busy, unit.finished = None, unheard
            self._answered(phase, kind, message, handler, unit, value, error, traces)

        unit = Unit(self._scheduler, "sync handler", f"{kind} {name}", finished, phase.host)
        unit.sender = message.sender
        phase.busy = unit
        try:
            value = self._scheduler.call(unit, lambda: handler.fn(args, copied(phase.state)))
        except KeyboardInterrupt:
            raise  # the process is meant
        except BaseException as exc:  # noqa: BLE001 - the handler's failure is its sender's
            finished(None, exc)
            return
        if inspect.isawaitable(value) or unit.generators:
            self._scheduler.spawn(unit, given(value))
        else:
            finished(value, unit.unawaited.at_end(unit))

    def _answered(
        self,
        phase: Phase,
        kind: str,
        message: Signal | Update,
        handler: Handler,
        unit: Unit,
        value: Any,
        error: BaseException | None,
        traces: Traces,
    ) -> None:
        response, name, update = None, message.name, message.id if isinstance(message, Update) else None
        if error is None:
            try:
                check_shape(kind, name, value)
                if update is not None and not isinstance(value, Async):
                    response = self._standing.handed(value.response, f"the response of update {name!r}")
            except (TypeError, PayloadError) as exc:
                error = exc
        if error is not None:
            self._handler_failed(phase, message, handler, error, traces)
        else:
            if isinstance(message, Signal):
                self.failures.succeeded(message)
            phase.state = copied(value.state)  # the handler may have kept a reference
            if isinstance(value, Async):
                self._spawn(phase, kind, message, handler, unit, value.fn)
            elif update is not None:
                self._complete(update, response)
            if isinstance(value, Stop):
                self._leave(phase)
        delayed, phase.delayed = phase.delayed, []
        for apply in delayed:
            apply()
        phase.settle()

    def _spawn(
        self,
        phase: Phase,
        kind: str,
        message: Signal | Update,
        handler: Handler,
        by: Unit,
        fn: Callable[[], Any],
    ) -> None:
        name, update = message.name, message.id if isinstance(message, Update) else None

        def finished(value: Any, error: BaseException | None) -> None:
            phase.running -= 1
            if error is None and isinstance(value, Async):
                error = NestingError(
                    f"the async handler of {kind} {name!r} returned Async: it cannot start another one"
                )
            if error is None and update is not None:
                try:
                    self._complete(update, self._standing.handed(value, f"the response of update {name!r}"))
                except PayloadError as exc:
                    error = exc
            if error is not None:
                self._handler_failed(phase, message, handler, error, None)
            phase.settle()

        phase.running += 1
        unit = Unit(self._scheduler, "async handler", f"async {kind} {name}", finished, phase.host)
        unit.sender = by.sender
        self._scheduler.spawn(unit, invoke(fn))

    def _complete(self, update: str, response: Any) -> None:
        name = self._open.pop(update)
        self._journal.emit("CompleteUpdate", None, {"id": update, "name": name, "result": response})

    def _handler_failed(
        self, phase: Phase, message: Signal | Update, handler: Handler, error: BaseException, traces: Traces | None
    ) -> None:
        """A handler has failed; ``traces`` are those of before it, None where it may have left anything behind.

        Raises what fails the activation.
        """
        if isinstance(error, (MemoryError, RecursionError)):
            raise error
        if isinstance(message, Update):
            self.failed(f"update {message.name}", message.id, error)
        elif not isinstance(error, Cancelled):
            untouched = traces is not None and traces.are(self.failures.traces(phase))
            self._signal_failed(message, handler, error, untouched=untouched)

    def _signal_failed(self, signal: Signal, handler: Handler, error: BaseException, *, untouched: bool) -> None:
        """A signal becomes a failed message, unless its handler asks to block the run instead."""
        what, recorded = f"the handler of signal {signal.name}", self.failures.is_recorded(signal)
        if self._standing.replaying and not recorded:
            self._standing.complain_of_replay(what, error)
            return
        if handler.on_error == "block" and not recorded:
            raise error if isinstance(error, Exception) else UnexpectedError(f"{what}: {message_of(error)}")
        self._standing.complain(what, error)
        self.failures.add(signal, error, untouched=untouched)

    def failed(self, what: str, update: str, error: BaseException) -> None:
        """The error of an update's handler goes to its sender, and to the log."""
        name = self._open.pop(update)
        self._journal.emit("FailUpdate", None, {"id": update, "name": name, **describe(error)})
        if not isinstance(error, (Cancelled, UpdateRejected)):
            self._standing.complain(f"the handler of {what}", error)

    def dissolve(self) -> None:
        """The run is dropped: nobody is called any more."""
        self._leave = _nobody


class _ValidatorFault(Exception):
    """A validator raised what is no refusal."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _nobody(_: Phase) -> None:
    """A run that was dropped leaves no phase."""
