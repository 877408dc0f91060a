"""The contract between what advances runs and what hosts it.

A runner only gives a pump somewhere to live: threads of this process (``local``), or slots of a django-q2 cluster (``q2``). Rows
are the truth: whatever a runner forgets, the next look at the tables finds.
"""

from __future__ import annotations

from typing import ClassVar, Protocol


class Runner(Protocol):
    """Hosts pumps."""

    #: Whether a run that is due later is found without this runner: True for all that poll the tables.
    durable_wakeups: ClassVar[bool]

    def ring(self, after: float = 0.0) -> None:
        """A hint that something is due, now or in so many seconds. May be lost."""

    def start(self) -> None:
        """Begin; returns when pumps are under way. Again: no effect."""

    def stop(self) -> None:
        """Finish the turns in hand, give back what has not started, and return."""
