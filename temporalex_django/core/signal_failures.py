"""Signals whose handler failed: they become failed messages, which people can deliver again or discard.

A failure is recorded (``SignalFailed``), since the handler may be put right later: a replay with the new code must not
take a signal that failed when the history was made.

The replay calls the handler, since it may have changed objects of the run before it failed. Where it had left nothing
behind in the history and does not fail in that way now, it was put right: ``HandlerFixed`` asks for another replay,
from the beginning, that calls no such handler. Where it had left something behind (a command, a published state, a
drawn number), it must fail again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalex_django.core.failures import describe
from temporalex_django.core.history.activation import Completion, FailedSignal
from temporalex_django.core.journal import Journal
from temporalex_django.core.mailbox import Signal
from temporalex_django.core.phase import Phase
from temporalex_django.core.run_context import RunContext
from temporalex_django.errors import NondeterminismError


class HandlerFixed(Exception):
    """A handler that failed when the history was made does not fail now: replay anew, and skip those that failed."""


@dataclass(frozen=True, slots=True, eq=False)
class EffectSnapshot:
    """All that workflow code can leave behind within an activation.

    It refers to the objects: an id alone may be that of a later object.
    """

    completion: Completion
    commands: int
    effects: int
    state: Any

    def is_same(self, other: EffectSnapshot) -> bool:
        """Whether nothing was left behind between the two."""
        same = self.completion is other.completion and self.state is other.state
        return same and (self.commands, self.effects) == (other.commands, other.effects)


class SignalFailures:
    """The failed signals of a run.

    ``open_failures`` names those that were not delivered again, by message id. ``skip_failed``: a replay calls no
    handler that had failed and left nothing behind.
    """

    __slots__ = ("_journal", "_recorded", "_run_context", "open_failures", "skip_failed")

    def __init__(self, run_context: RunContext, journal: Journal) -> None:
        self.skip_failed = False
        self._run_context = run_context
        self._journal = journal
        self._recorded: dict[int, bool] = {}
        self.open_failures: dict[str, str] = {}

    def begin(self, failed: Mapping[int, bool]) -> None:
        """Begin an activation. ``failed``: those that a history has of it, see ``Activation.failed``."""
        self._recorded = dict(failed)

    def snapshot(self, phase: Phase) -> EffectSnapshot:
        """Note what has been left behind so far."""
        completion = self._journal.completion
        return EffectSnapshot(completion, len(completion.commands), self._run_context.effects, phase.state)

    def should_skip(self, signal: Signal) -> bool:
        """Whether the handler of this signal is not called: it failed, left nothing behind, and was put right.

        Never outside of a replay.
        """
        if not self.skip_failed or not self._recorded.get(signal.number):
            return False
        self._mark_failed(signal)
        return True

    def is_recorded(self, signal: Signal) -> bool:
        """Whether the history says that this signal failed in the activation that is replayed."""
        return signal.number in self._recorded

    def add(self, signal: Signal, error: BaseException, *, untouched: bool) -> None:
        """The handler of a signal has failed. Raises ``HandlerFixed``."""
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
        )
        self._journal.completion.failed.append(failed)

    def check_success(self, signal: Signal) -> None:
        """Raise ``HandlerFixed`` if the handler of this signal failed when the history was made."""
        if self._recorded.get(signal.number):
            raise HandlerFixed

    def check(self) -> None:
        """Raise if a handler did not fail that failed when the history was made.

        ``HandlerFixed`` where it had left nothing behind, else ``NondeterminismError``.
        """
        for number, untouched in self._recorded.items():
            if untouched:
                raise HandlerFixed
            raise NondeterminismError(
                f"{self._run_context.run_label}: the handler of signal {number} of the run failed when the history was made, after it "
                "had done something, and the code does not fail there now. Put the code back, or keep the old path for "
                "old runs with api.patched()",
                recorded=f"SignalFailed, signal {number}",
                produced="nothing",
            )

    def mark_delivered(self, message_id: str) -> None:
        """A signal of that id has come: if it failed before, it is delivered again."""
        self.open_failures.pop(message_id, None)

    def carried_failures(self) -> list[dict[str, Any]]:
        """The failures that the next run of the chain begins with."""
        return [{"id": message_id, "name": name} for message_id, name in self.open_failures.items()]

    def load_carried(self, carried: list[dict[str, Any]]) -> None:
        """Take over the failures of the run before."""
        self.open_failures = {failed["id"]: failed["name"] for failed in carried}

    def _mark_failed(self, signal: Signal) -> str:
        self._recorded.pop(signal.number, None)
        message_id = signal.message_id or f"{self._run_context.info.run_id}:{signal.number}"
        self.open_failures[message_id] = signal.name
        return message_id
