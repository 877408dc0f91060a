"""The runs that a turn has claimed, and its report: everything that it has done and stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from temporalex_django.core.messages.sender import Judge
from temporalex_django.engine.contracts.records import Inbox, RunRecord, RunState, RunWrite, TaskResult, TaskState


class ClaimedRuns(list[RunState]):
    """The list of runs that a claim has locked.

    ``now`` is the storage's time after the locks, or None. ``inbox(chains)`` returns the inboxes, by chain, that were
    read together with the locks. These are at most the inboxes of the chains that the argument ``first`` of the claim
    named.
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

    - ``claimed_chains``: the chains that it claimed.
    - ``suspect_chains``: chains that were due, too, but must be claimed one by one, because their code ended a process.
    - ``claimed_tasks``: a function that returns, after the commit, the activities that were stored as claimed.
    - ``unstarted_count``: the number of claimed runs for which time ran out.
    - ``run_count``, ``task_count``: the number of runs that it processed, and of activities that it scheduled.
    - ``writes``, ``records``: what it stored, and the records of runs by run id.
    - ``atomic_chains``: the chains that have atomic activities to run.
    - ``block_errors``: the errors that blocked runs, by run id.
    - ``unexpected_errors``: those of them that escaped ``run`` and that nobody raised on purpose (see decision 48).
    - ``atomic_results``: the results of its atomic activities, if metrics are recorded.
    - ``judge``: the object that decided who may send what; None if none was needed.
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
    atomic_results: list[TaskResult] = field(default_factory=list)
    judge: Judge | None = None

    def merge(self, other: TurnReport) -> None:
        """Add the effects of a further transaction of the same turn, such as one with a run's atomic activities."""
        self.run_count += other.run_count
        self.task_count += sum(len(write.tasks) for write in other.writes)
        self.writes += other.writes
        self.records.update(other.records)
        self.block_errors.update(other.block_errors)
        self.unexpected_errors += other.unexpected_errors
        self.atomic_results += other.atomic_results
