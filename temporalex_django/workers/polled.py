"""What one look of a worker at the tables came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PollResult:
    """What one look at the tables did."""

    runs: int = 0
    tasks: int = 0
    results: int = 0
    rebuilding: int = 0  # runs that come into memory, slice by slice
    is_plain_read: bool = False  # it was a plain read, which found nothing
    due_in: float | None = None  # seconds until something is due, by that read; None: nothing is known of

    def __bool__(self) -> bool:
        return bool(self.runs or self.tasks or self.results or self.rebuilding)
