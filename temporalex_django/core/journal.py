"""What the present activation leaves behind."""

from __future__ import annotations

from typing import Any

from temporalex_django.core.history.activation import Completion, Refusal
from temporalex_django.core.history.commands import Command
from temporalex_django.core.history.events import Job
from temporalex_django.errors import TemporalexError


class Journal:
    """Commands in the order in which workflow code asked, jobs that were effective, and whom the host is to answer."""

    __slots__ = ("completion",)

    def __init__(self) -> None:
        self.completion = Completion()

    def begin(self, *, changed: bool) -> Completion:
        """A new activation; what it leaves is in the completion that is given back."""
        self.completion = Completion(changed=changed)
        return self.completion

    @property
    def is_recording(self) -> bool:
        """Whether the present activation has had an effect, so that it will be in the history."""
        completion = self.completion
        return completion.changed or bool(completion.jobs or completion.commands or completion.failed)

    def emit(self, kind: str, number: int | None, attributes: dict[str, Any]) -> None:
        self.add(Command(kind, number, attributes))

    def add(self, command: Command) -> None:
        self.completion.commands.append(command)

    def record(self, job: Job) -> None:
        """``job`` is effective: it belongs into the history."""
        self.completion.jobs.append(job)

    def add_note(self, name: str, facts: dict[str, Any]) -> None:
        """Tell whoever listens, when the activation is committed; not to be called while a history is replayed."""
        self.completion.notes.append((name, facts))

    def refuse_signal(self, refusal: Refusal) -> None:
        """A signal goes nowhere: its sender may not send it."""
        self.completion.refused.append(refusal)

    def reject_update(self, update_id: str, error: TemporalexError) -> None:
        self.completion.rejected.append((update_id, error))

    def grant_request(self, request_id: str) -> None:
        """The request of that id was let through."""
        self.completion.granted.append(request_id)
