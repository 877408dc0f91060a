"""Signals whose handler failed. They become failed messages, which people can redeliver or discard. See decision 46.

A failure is recorded (``SignalFailed``), because the handler may be corrected later. A replay with new code must not
take a signal that failed when the history was made.

The replay calls the handler, because it may have changed objects of the run before it failed. There are two cases:

- The handler had left nothing behind in the history. If it does not fail in that way now, it was corrected.
  ``HandlerFixed`` then asks for another replay, from the beginning, which does not call such handlers.
- The handler had left something behind: a command, a published state, a drawn number. It must fail again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalex_django.core.error_text import error_line
from temporalex_django.core.failures import describe
from temporalex_django.core.history.activation import Completion, FailedSignal
from temporalex_django.core.history.attributes import SignalFailedAttributes
from temporalex_django.core.journal import Journal
from temporalex_django.core.messages.mailbox import Signal
from temporalex_django.core.messages.phase import Phase
from temporalex_django.core.run_context import RunContext
from temporalex_django.errors import NondeterminismError, PayloadError


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
        """Record that the signal has become a failed message, and return its message id."""
        self._recorded.pop(signal.number, None)
        # The id of a failed message must be the same in each rebuild, so it comes from the run id and the number.
        message_id = signal.message_id or f"{self._run_context.info.run_id}:{signal.number}"
        self.open_failures[message_id] = signal.name
        return message_id
