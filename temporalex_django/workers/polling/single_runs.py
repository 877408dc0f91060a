"""Runs that a worker advances in transactions of their own: with atomic activities, after a failure, or as suspects.

A suspect is a run whose code may have ended a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from uuid import UUID

from temporalex_django.engine import policy
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import KeyMissing
from temporalex_django.liveness.crash_markers import MarkedWork
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.liveness.recovery import block_run
from temporalex_django.workers.turn_handover import TurnHandover


class SingleRuns:
    """Advances runs of one worker that need a transaction of their own.

    ``queues`` and ``row`` are the queues and the row of the worker. ``handover`` says which atomic activities are
    running. ``publish`` is called with the report of each transaction that advanced a run.
    """

    def __init__(
        self,
        *,
        storage: WorkerStorage,
        engine: WorkflowEngine,
        row: WorkerRow,
        queues: Sequence[str],
        handover: TurnHandover,
        publish: Callable[[TurnReport], None],
    ) -> None:
        self._storage = storage
        self._engine = engine
        self._row = row
        self._queues = queues
        self._handover = handover
        self._publish = publish
        self._pauses: dict[UUID, float] = {}  # of runs whose business rows others have locked
        self.is_trying_suspects = False  # runs that ended processes are being tried

    @property
    def has_waiting(self) -> bool:
        """True if some runs wait for rows of the project's own tables that others have locked."""
        return bool(self._pauses)

    def run_atomic_phase(self, chains: Sequence[UUID]) -> int:
        """Run the due atomic activities of these runs, one run after the other, until a moment has passed.

        Returns the number of runs that were advanced. The others stay due.
        """
        if self._handover.is_last_helper:
            return 0
        deadline, advanced = time.monotonic() + policy.ATOMIC_PHASE_SECONDS, 0
        # A run whose pause is over waits for its locks, one a poll: a claim would not find it while its callers take
        # turns.
        retry_chains = [chain for chain in self._pauses if not self._storage.is_deferred(chain)][:1]
        for chain in dict.fromkeys([*retry_chains, *chains]):
            if self._handover.is_running(chain):  # the server has ended its session, and its code still runs
                self._storage.defer([chain], seconds=policy.LONGEST_LOCK_PAUSE)
            elif self._advance_atomic(chain, waits=chain in retry_chains):
                self._pauses.pop(chain, None)
                advanced += 1
            else:
                self._pause_locked(chain, is_due=chain in chains)
            if time.monotonic() > deadline:
                break
        return advanced

    def _advance_atomic(self, chain: UUID, *, waits: bool) -> bool:
        """Run the due atomic activities of one run; return True if the run was advanced, or blocked.

        With ``waits`` it waits for rows that others have locked.
        """
        lock_timeout = 0.0
        if waits:
            lock_timeout = policy.BUSINESS_LOCK_SECONDS
        try:
            report = self._engine.advance_atomic(chain, queues=self._queues, lock_timeout=lock_timeout)
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            return not self._defer_for_key(chain, exc) and block_run(self._storage, chain, exc)
        self._publish(report)
        return bool(report.run_count)

    def _pause_locked(self, chain: UUID, *, is_due: bool) -> None:
        """Defer a run that needs rows which others have locked, a little longer each time; other runs come first.

        ``is_due`` False means that the claim of this poll did not find the run. After the longest pause it is no longer
        tracked here: another worker has done it, or a claim finds it again.
        """
        longest = policy.LONGEST_LOCK_PAUSE
        if not is_due and self._pauses.get(chain, longest) >= longest:
            self._pauses.pop(chain, None)
            return
        pause = self._pauses[chain] = min(self._pauses.get(chain, policy.CONTENDED_SECONDS / 2) * 2, longest)
        self._storage.defer([chain], seconds=pause)

    def turn_alone(self, chain: UUID) -> int:
        """Run a turn of one run, and return the number of runs that it advanced or blocked."""
        try:
            report = self._engine.turn(limit=1, queues=self._queues, chains=[chain])
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            if self._storage.is_transient(exc):
                return 0
            if self._defer_for_key(chain, exc):
                return 0
            block_run(self._storage, chain, exc)
            return 1
        self._publish(report)
        return report.run_count

    def turn_announced(self, chains: Sequence[UUID], *, deadline: float = inf) -> int:
        """Run a turn of each chain alone, after announcing it on the row of this worker.

        The code of the run may have ended a process, and the row names the run if it ends this one. A run that another
        worker has announced is left alone for a while, because that worker is running it or has died of it. After
        ``deadline`` (``time.monotonic``) no further turn starts. Returns the number of runs that were advanced.
        """
        advanced = 0
        self.is_trying_suspects = True
        try:
            for chain in chains:
                if self._row.announce(self._storage, [MarkedWork("chain", chain)]):
                    advanced += self.turn_alone(chain)
                else:
                    self._storage.defer([chain], seconds=policy.ANNOUNCED_ELSEWHERE)
                if time.monotonic() > deadline:
                    break
        finally:
            self.is_trying_suspects = False
        self._row.announce(self._storage, ())
        return advanced

    def _defer_for_key(self, chain: UUID, error: BaseException) -> bool:
        """Return True if ``error`` says that a key is missing and the run was deferred to a worker that may have it."""
        return isinstance(error, KeyMissing) and self._engine.defer_for_key(chain)
