"""The result of a claim for a turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from temporalex_django.core.messages.sender import Judge
from temporalex_django.engine.contracts.records import Inbox, RunRecord, RunState, RunWrite, TaskState


class ClaimedRuns(list[RunState]):
    """Runs that a claim has locked; ``now`` is the storage's clock after that, where it came with them.

    ``inbox(chains)`` returns inboxes that were requested together with the locks, as ``RunStorage.inbox`` does. It has
    those of ``chains`` that the claim wanted ``first``.
    """

    __slots__ = ("inbox", "now")

    def __init__(
        self,
        runs: Iterable[RunState] = (),
        *,
        now: datetime | None = None,
        inbox: Callable[[Collection[UUID]], dict[UUID, Inbox]] = lambda _: {},
    ) -> None:
        super().__init__(runs)
        self.now = now
        self.inbox = inbox


@dataclass(slots=True)
class TurnReport:
    """The effects of a turn.

    ``run_count`` is the number of runs that it processed, and ``atomic_chains`` names those that are due for phase 2.
    ``claimed_chains`` are the chains that it claimed, and ``unstarted_count`` the number of them for which time ran
    out. ``suspect_chains`` were due, too, but must be claimed one by one, because their code ended a process.
    ``claimed_tasks`` returns, after the commit, the activities that were stored as claimed. ``unexpected_errors`` holds
    those errors of ``block_errors`` that escaped ``run`` and that nobody raised on purpose (see decision 48).
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
        """Add the effects of a further transaction of the same turn."""
        self.run_count += other.run_count
        self.task_count += sum(len(write.tasks) for write in other.writes)
        self.writes += other.writes
        self.records.update(other.records)
        self.block_errors.update(other.block_errors)
        self.unexpected_errors += other.unexpected_errors
