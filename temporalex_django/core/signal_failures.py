"""Signals whose handler failed: they become failed messages, which people can deliver again or discard.

A failure is recorded (``SignalFailed``), since the handler may be put right later: a replay with the new code must not
take a signal that failed when the history was made.

The replay calls the handler, since it may have changed objects of the run before it failed. Where it had left nothing
behind in the history and does not fail in that way now, it was put right: ``HandlerPutRight`` asks for another replay,
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
from temporalex_django.core.standing import Standing
from temporalex_django.errors import NondeterminismError


class HandlerPutRight(Exception):
    """A handler that failed when the history was made does not fail now: replay anew, and skip those that failed."""


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """All that workflow code can leave behind within an activation.

    It refers to the objects: an id alone may be that of a later object.
    """

    completion: Completion
    commands: int
    effects: int
    state: Any

    def are(self, other: Traces) -> bool:
        """Whether nothing was left behind between the two."""
        same = self.completion is other.completion and self.state is other.state
        return same and (self.commands, self.effects) == (other.commands, other.effects)


class SignalFailures:
    """The failed signals of a run.

    ``open`` names those that were not delivered again, by message id. ``skipped``: a replay calls no handler that had
    failed and left nothing behind.
    """

    __slots__ = ("_journal", "_recorded", "_standing", "open", "skipped")

    def __init__(self, standing: Standing, journal: Journal) -> None:
        self.skipped = False
        self._standing = standing
        self._journal = journal
        self._recorded: dict[int, bool] = {}
        self.open: dict[str, str] = {}

    def begin(self, failed: Mapping[int, bool]) -> None:
        """Begin an activation. ``failed``: those that a history has of it, see ``Activation.failed``."""
        self._recorded = dict(failed)

    def traces(self, phase: Phase) -> Traces:
        """Note what has been left behind so far."""
        completion = self._journal.completion
        return Traces(completion, len(completion.commands), self._standing.effects, phase.state)

    def skips(self, signal: Signal) -> bool:
        """Whether the handler of this signal is not called: it failed, left nothing behind, and was put right.

        Never outside of a replay.
        """
        if not self.skipped or not self._recorded.get(signal.number):
            return False
        self._fail(signal)
        return True

    def is_recorded(self, signal: Signal) -> bool:
        """Whether the history says that this signal failed in the activation that is replayed."""
        return signal.number in self._recorded

    def add(self, signal: Signal, error: BaseException, *, untouched: bool) -> None:
        """The handler of a signal has failed. Raises ``HandlerPutRight``."""
        if self._recorded.get(signal.number) and not untouched:
            raise HandlerPutRight
        message_id = self._fail(signal)
        if self._standing.replaying:
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

    def succeeded(self, signal: Signal) -> None:
        """Raise ``HandlerPutRight`` if the handler of this signal failed when the history was made."""
        if self._recorded.get(signal.number):
            raise HandlerPutRight

    def check(self) -> None:
        """Raise if a handler did not fail that failed when the history was made.

        ``HandlerPutRight`` where it had left nothing behind, else ``NondeterminismError``.
        """
        for number, untouched in self._recorded.items():
            if untouched:
                raise HandlerPutRight
            raise NondeterminismError(
                f"{self._standing.run}: the handler of signal {number} of the run failed when the history was made, after it "
                "had done something, and the code does not fail there now. Put the code back, or keep the old path for "
                "old runs with api.patched()",
                recorded=f"SignalFailed, signal {number}",
                produced="nothing",
            )

    def delivered(self, message_id: str) -> None:
        """A signal of that id has come: if it failed before, it is delivered again."""
        self.open.pop(message_id, None)

    def carried(self) -> list[dict[str, Any]]:
        """The failures that the next run of the chain begins with."""
        return [{"id": message_id, "name": name} for message_id, name in self.open.items()]

    def begin_with(self, carried: list[dict[str, Any]]) -> None:
        """Take over the failures of the run before."""
        self.open = {failed["id"]: failed["name"] for failed in carried}

    def _fail(self, signal: Signal) -> str:
        self._recorded.pop(signal.number, None)
        message_id = signal.id or f"{self._standing.info.run_id}:{signal.number}"
        self.open[message_id] = signal.name
        return message_id
