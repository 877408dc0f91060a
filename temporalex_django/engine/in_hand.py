"""Results of activities that go to their runs without a row of the inbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(slots=True, kw_only=True, eq=False)
class FinishedActivity:
    """An activity that the open transaction has stored as finished, and whose result its run has not received.

    ``attributes`` are as they will be read back, and ``encoded`` as they are stored, where that is known. ``queue`` is
    that of the run. The holder lets a turn of the same transaction deliver the result, or sends it to the chain as a
    message (``TaskStorage.deliver``). See decision 45.
    """

    id: int
    chain_id: UUID
    run_id: UUID
    queue: str
    kind: str
    attributes: dict[str, Any]
    encoded: bytes | None = None
