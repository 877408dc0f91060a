"""The journal: the record of the current activation."""

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
        """Begin a new activation and return its completion.

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
        self.add(Command(kind, number, attributes))

    def add(self, command: Command) -> None:
        self.completion.commands.append(command)

    def record(self, job: Job) -> None:
        """Record a job that took effect, so that it goes into the history."""
        self.completion.jobs.append(job)

    def add_note(self, name: str, facts: dict[str, Any]) -> None:
        """Add a notice with a name and facts, which the host gives to its listeners after the commit.

        Do not call this during a replay.
        """
        self.completion.notes.append((name, facts))

    def refuse_signal(self, refusal: Refusal) -> None:
        """Record that a signal is refused, because its sender may not send it."""
        self.completion.refused.append(refusal)

    def reject_update(self, update_id: str, error: TemporalexError) -> None:
        self.completion.rejected.append((update_id, error))

    def grant_request(self, request_id: str) -> None:
        """Record that the request with this id was accepted."""
        self.completion.granted.append(request_id)
