"""The status of a message that waits for an outcome, read from its row."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from temporalex_django.conf import codec
from temporalex_django.db.inserts import SENT
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatus:
    """The status of a message with an answer: an update, a resume or a decision.

    ``outcome`` is None if no turn has judged the message. ``fresh`` is True if no turn has read it yet.
    """

    outcome: Outcome | None
    fresh: bool = False

    @property
    def is_finished(self) -> bool:
        return self.outcome is not None and self.outcome.status != "accepted"


def update_status(chain_id: UUID, update_id: str, *, storage: DjangoStorage) -> UpdateStatus | None:
    """Return the status of the message with that id in a chain, or None for an unknown id. One read."""
    rows = storage.sql.select(
        "select fresh, outcome_status, outcome from temporalex_message where chain_id = %s and request_id = %s",
        [chain_id, update_id],
        ("bool", "text", "bytea"),
    )
    if not rows:
        return None
    fresh, status, value = rows[0]
    if status in (None, SENT):
        return UpdateStatus(outcome=None, fresh=fresh)
    return UpdateStatus(outcome=Outcome(status=status, value=None if value is None else codec().decode(value)))
