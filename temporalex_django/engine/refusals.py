"""Messages that a run refused, for the audit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from temporalex_django.core.messages.sender import Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSignal:
    """A signal that was refused because its sender lacks the permission of its handler."""

    run_id: UUID
    workflow: str
    workflow_id: str
    at: datetime
    signal: str
    permission: str
    sender: Sender

    @property
    def reason(self) -> str:
        return f"refused: {self.sender} lacks the permission {self.permission}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRedelivery:
    """A message that was refused after a reset or fork delivered it again; ``code`` is that of the refusal."""

    run_id: UUID
    workflow: str
    workflow_id: str
    at: datetime
    kind: str
    name: str
    code: str
    sender: Sender | None
