"""A turn as a worker takes it: ends of activities go in, runs advance, new activities are taken, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.conf import get_settings
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.in_hand import TaskInHand
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.storage import TaskResult, TaskState
from temporalex_django.engine.taker import Taker

if TYPE_CHECKING:
    from temporalex_django.db.storage import DjangoStorage
    from temporalex_django.engine.turn import WorkflowEngine
    from temporalex_django.liveness.leases import WorkerRow
    from temporalex_django.workers.gates import Gates
    from temporalex_django.workers.quarantine import Quarantine

#: It claims as many runs as its turns get done of late, and these at least.
FEWEST_RUNS = 20
#: A turn takes up as many runs that are due as there is room for beside those that have an activity in hand, which is
#: for two fifths of the cache: of more that go on at a time each step would begin with the history of its run. Others
#: are not to wait for them, so up to twice as many a few come to each turn, the fewer the more there are.
_IN_HAND = 2 / 5
_BESIDE = 1 / 25
_FEWEST_BESIDE = 2
#: As long as a turn has the writer lock no longer, where there is one, it takes more runs than the fewest.
_HELD = 0.008


class Turner:
    """Takes the turns of one worker; what becomes of one that fails is for its loop."""

    def __init__(
        self, *, storage: DjangoStorage, engine: WorkflowEngine, gates: Gates, row: WorkerRow, quarantine: Quarantine
    ) -> None:
        self.storage = storage
        self.engine = engine
        self.gates = gates
        self._row = row
        self._quarantine = quarantine
        # so many runs the last turns came to: more are not worth claiming
        self._reach = FEWEST_RUNS if storage.sql.writer_lock else storage.turn_size

    @property
    def room_for_ends(self) -> int:
        """Of so many runs ends of activities are taken into a turn; where time is short, some of it is for others."""
        limit = min(self.storage.turn_size, self._reach)
        return limit if limit == self.storage.turn_size else limit - limit // 4

    def turn(
        self, results: Sequence[TaskResult], capacity: Capacity, report: TurnReport
    ) -> tuple[list[int], list[TaskState]]:
        """One turn, committed: which of ``results`` count, and the activities that were taken.

        Raises what the storage raises: nothing was done then, and ``report`` says which runs were claimed.
        """
        with self.storage.transaction("turn"):
            began = time.monotonic()
            # those that wait come before those that this turn makes, where these are taken while they are written
            valid, tasks = self._advance(results, capacity, report)
            if not self.storage.sql.claims_on_insert:
                tasks += self.claim_tasks(capacity)
            if self.storage.sql.writer_lock and (held := time.monotonic() - began) > _HELD:
                self._reach = max(int(len(report.claimed) * _HELD / held), FEWEST_RUNS)
        return valid, tasks + report.taken()

    def _advance(
        self, results: Sequence[TaskResult], capacity: Capacity, report: TurnReport
    ) -> tuple[list[int], list[TaskState]]:
        """Advance runs: which of ``results`` count, and activities that were waiting, where they are taken before.

        One wait for ends, runs and activities: a run whose end does not count any more is locked in vain.
        """
        gates = self.gates
        refuses = gates.refuses if activity.limits_by_name or gates.in_force else None
        taker = Taker(owner=self._row.epoch, capacity=capacity, queues=gates.open_queues, refuses=refuses)
        limit, kept = min(self.storage.turn_size, self._reach), capacity.keep_back()
        hear = {end.task.chain_id for end in results if end.outcome is not None and end.task.chain_id is not None}
        with self.storage.sql.together():
            self.storage.sql.prefer_indexes()
            ends = self.storage.ask_ends(results)
            waiting = self._ask_tasks(capacity) if self.storage.sql.claims_on_insert else list
            claim = self.storage.ask_claim(
                limit=limit, queues=gates.queues, first=hear, due=self._due_beside(capacity.runs)
            )
        valid, ended = ends()
        by_chain: dict[UUID, list[TaskInHand]] = {}
        for one in ended:
            by_chain.setdefault(one.chain_id, []).append(one)
        tasks = self._sifted(waiting())
        capacity.together = (capacity.together or 0) + kept + (capacity.own if self.storage.sql.claims_on_insert else 0)
        claimed = partial(claim, by_chain.keys())
        self.engine.advance(
            limit=limit,
            queues=gates.queues,
            taker=taker,
            report=report,
            ended=by_chain,
            claim=claimed,
            last=self.storage.sql.claims_on_insert,
        )
        if report.unbegun:
            self._reach = max(report.runs + report.runs // 8, FEWEST_RUNS)
        elif len(report.claimed) >= limit:
            self._reach = min(limit + limit // 4, self.storage.turn_size)
        return valid, tasks

    def _due_beside(self, in_hand: int) -> int:
        """How many runs that are due a turn takes up, beside so many that have an activity in hand."""
        room = int(get_settings().CACHE_SIZE * _IN_HAND)
        return max(room - in_hand, int(_BESIDE * (2 * room - in_hand)), _FEWEST_BESIDE)

    def claim_tasks(self, capacity: Capacity) -> list[TaskState]:
        """Take activities that wait, inside a transaction that is open, or in one of their own."""
        with self.storage.joined():
            with self.storage.sql.together():
                taken = self._ask_tasks(capacity)
            return self._sifted(taken())

    def _ask_tasks(self, capacity: Capacity) -> Callable[[], list[TaskState]]:
        """In two halves, as ``TaskStatements.ask_tasks``."""
        suspects = self._quarantine.wanted
        if suspects and self._quarantine.ready:
            capacity = Capacity(threads=1)
        if not capacity:
            return list
        return self.storage.ask_tasks(
            capacity=capacity, queues=self.gates.open_queues, owner=self._row.epoch, suspects=suspects
        )

    def _sifted(self, tasks: list[TaskState]) -> list[TaskState]:
        return self.gates.sift(tasks) if activity.limits_by_name or self.gates.in_force else tasks
