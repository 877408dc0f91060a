"""What a turn did: for whoever hosts it, for signals and for hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from temporalex_django.core.senders import Judge
from temporalex_django.engine.storage import RunRecord, RunWrite, TaskState


@dataclass(slots=True)
class TurnReport:
    """What a turn did.

    ``run_count`` counts the runs that it took up; ``atomic_chains`` names those that are due for phase 2.

    ``claimed_chains`` are the chains that it claimed, ``unstarted_count`` how many of them its time did not suffice
    for, ``suspect_chains`` others that were due and are to be taken one by one, since their code ended a process.
    ``claimed_tasks`` gives the activities that were written as claimed, behind the commit. ``unexpected_errors`` holds
    those of the errors in ``block_errors`` that escaped ``run`` and that nobody raised on purpose.
    """

    claimed_chains: list[UUID] = field(default_factory=list)
    suspect_chains: list[UUID] = field(default_factory=list)
    claimed_tasks: Callable[[], list[TaskState]] = list
    unstarted_count: int = 0
    run_count: int = 0
    task_count: int = 0
    writes: list[RunWrite] = field(default_factory=list)
    records: dict[UUID, RunRecord] = field(default_factory=dict)
    atomic_chains: list[UUID] = field(default_factory=list)
    block_errors: dict[UUID, BaseException] = field(default_factory=dict)
    unexpected_errors: list[Exception] = field(default_factory=list)
    judge: Judge | None = None

    def merge(self, other: TurnReport) -> None:
        """Count in what a further transaction of the same turn did."""
        self.run_count += other.run_count
        self.task_count += sum(len(write.tasks) for write in other.writes)
        self.writes += other.writes
        self.records.update(other.records)
        self.block_errors.update(other.block_errors)
        self.unexpected_errors += other.unexpected_errors
