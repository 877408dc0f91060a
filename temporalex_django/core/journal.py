"""The journal: the record of an activation while its code runs."""

from __future__ import annotations

from typing import Any

from temporalex_django.core.history.activation import Completion, Refusal
from temporalex_django.core.history.events import Command, Job
from temporalex_django.errors import TemporalexError


class Journal:
    """The record of the current activation, kept in its ``completion``.

    It has the commands in the order of the calls, the jobs that took effect, and the answers that the host must give.
    """

    __slots__ = ("completion",)

    def __init__(self) -> None:
        self.completion = Completion()

    def begin(self, *, changed: bool) -> Completion:
        """Begin the record of a new activation, and return the completion that it fills.

        ``changed`` is True if the host must store something even if nothing takes effect.
        """
        self.completion = Completion(changed=changed)
        return self.completion

    @property
    def is_recording(self) -> bool:
        """True if the current activation has had an effect, so that the history will contain it."""
        completion = self.completion
        return completion.changed or bool(completion.jobs or completion.commands or completion.failed)

    def emit(self, kind: str, number: int | None, attributes: dict[str, Any]) -> None:
        """Record a command of this kind. ``number`` is its command number, or None for a command without one."""
        self.add(Command(kind, number, attributes))

    def add(self, command: Command) -> None:
        self.completion.commands.append(command)

    def record(self, job: Job) -> None:
        """Record a job that took effect, so that it goes into the history."""
        self.completion.jobs.append(job)

    def add_note(self, name: str, facts: dict[str, Any]) -> None:
        """Add a notice for listeners of the run, which the host sends after the commit.

        ``name`` says what happened, and ``facts`` has the details. Do not call this during a replay.
        """
        self.completion.notes.append((name, facts))

    def refuse_signal(self, refusal: Refusal) -> None:
        """Record that a signal was refused because its sender lacks a permission."""
        self.completion.refused.append(refusal)

    def reject_update(self, update_id: str, error: TemporalexError) -> None:
        """Record that an update, or a request, was rejected with ``error``."""
        self.completion.rejected.append((update_id, error))

    def grant_request(self, request_id: str) -> None:
        """Record that the request with this id was accepted."""
        self.completion.granted.append(request_id)
