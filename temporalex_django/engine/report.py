"""What a turn did: for whoever hosts it, for signals and for hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from temporalex_django.core.senders import Judge
from temporalex_django.engine.storage import RunFacts, RunWrite, TaskState


@dataclass(slots=True)
class TurnReport:
    """What a turn did. ``runs`` counts the runs that it took up; ``atomic`` names those that are due for phase 2.

    ``claimed`` are the chains that it claimed, ``unbegun`` how many of them its time did not suffice for, ``suspects``
    others that were due and are to be taken one by one, since their code ended a process. ``taken`` gives the
    activities that were written as claimed, behind the commit. ``unexpected`` holds those of the errors in ``blocked``
    that escaped ``run`` and that nobody raised on purpose.
    """

    claimed: list[UUID] = field(default_factory=list)
    suspects: list[UUID] = field(default_factory=list)
    taken: Callable[[], list[TaskState]] = list
    unbegun: int = 0
    runs: int = 0
    tasks: int = 0
    writes: list[RunWrite] = field(default_factory=list)
    facts: dict[UUID, RunFacts] = field(default_factory=dict)
    atomic: list[UUID] = field(default_factory=list)
    blocked: dict[UUID, BaseException] = field(default_factory=dict)
    unexpected: list[Exception] = field(default_factory=list)
    judge: Judge | None = None

    def add(self, other: TurnReport) -> None:
        """Count in what a further transaction of the same turn did."""
        self.runs += other.runs
        self.tasks += sum(len(write.tasks) for write in other.writes)
        self.writes += other.writes
        self.facts.update(other.facts)
        self.blocked.update(other.blocked)
        self.unexpected += other.unexpected
