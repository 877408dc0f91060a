"""Ends of activities on their way to their runs without a row of the inbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(slots=True, kw_only=True, eq=False)
class FinishedActivity:
    """An activity that is over, stored as such by the open transaction, of which its run has not heard.

    ``attributes`` as they will be read back, ``encoded`` as they are stored, where that is known. ``queue`` is that of
    the run. Whoever has it lets a turn of the same transaction deliver it, or tells the chain
    (``TaskStorage.deliver``).
    """

    id: int
    chain_id: UUID
    run_id: UUID
    queue: str
    kind: str
    attributes: dict[str, Any]
    encoded: bytes | None = None
