"""The result of one poll of a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PollResult:
    """The effects of one poll of a worker."""

    runs: int = 0
    tasks: int = 0
    results: int = 0
    rebuilding: int = 0  # runs that are being rebuilt, slice by slice
    is_plain_read: bool = False  # it was a plain read that found nothing
    due_in: float | None = None  # seconds until something is due, by that read; None: nothing is known

    def __bool__(self) -> bool:
        return bool(self.runs or self.tasks or self.results or self.rebuilding)
