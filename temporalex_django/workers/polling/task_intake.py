"""The exchange between a worker's pool and the tables: capacity, claimed activities, results."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.core.payloads.codec import error_reason
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.errors import PayloadError
from temporalex_django.workers.admission import Admission
from temporalex_django.workers.attempts import Quarantine, announce_result
from temporalex_django.workers.pool import Pool

log = logging.getLogger("temporalex_django.workers")


class TaskIntake:
    """The exchange of activities between one worker and the tables: claims, starts and results.

    ``now`` returns the database's time.
    """

    def __init__(
        self,
        *,
        storage: WorkerStorage,
        pool: Pool,
        admission: Admission,
        quarantine: Quarantine,
        now: Callable[[], datetime],
    ) -> None:
        self._storage = storage
        self._pool = pool
        self._admission = admission
        self._quarantine = quarantine
        self._now = now

    # -- claiming -----------------------------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Return how many activities the worker may claim now.

        None while an activity that may have ended a worker waits for the pool to be empty.
        """
        if self._quarantine.has_suspects:
            return Capacity()
        return self._pool.capacity()

    def cautious_capacity(self, caution: int) -> Capacity:
        """Return how many activities the worker may claim while workers die for unknown reasons.

        That is the capacity of the pool, halved for each death: ``caution`` is the number of recent deaths without an
        explanation. Only plain activities are claimed then, and at least one if the pool is empty.
        """
        threads = min(self.capacity().threads, get_settings().ACTIVITY_THREADS >> min(caution, 30))
        if not threads and not self._pool.busy:
            threads = 1
        return Capacity(threads=threads)

    def claim_limited(self, capacity: Capacity, *, owner: int) -> int:
        """Claim activities under limits, in transactions of their own, and start them.

        ``owner`` is the epoch of the worker. Returns how many were claimed or moved to another partition.
        """
        suspects = self._quarantine.is_ready
        if suspects:
            capacity = Capacity(threads=1)
        capacity.prefetch.clear()  # what waits in a pool would use up a limit that another worker could use
        capacity.prefetch_limit = 0
        tasks, moved = self._admission.claim(capacity, owner=owner, suspects=suspects)
        self.start_tasks(tasks, all_seen=suspects)
        return len(tasks) + moved

    def start_tasks(self, tasks: list[TaskState], *, all_seen: bool) -> None:
        """Start claimed activities, except those that may have ended a worker and have to wait; these are released.

        ``all_seen`` is True if every due activity could have been claimed, so that a claim without suspects shows that
        none are due.
        """
        tasks, released_keys = self._quarantine.filter_claimed(tasks, all_seen=all_seen)
        self._pool.submit(tasks)
        self._storage.release_unstarted(released_keys)

    # -- results ------------------------------------------------------------------------------------------------------

    def apply_turn(self, results: list[TaskResult], valid_ids: list[int], tasks: list[TaskState]) -> None:
        """Remove committed results from the pool and start claimed activities; call it after the commit.

        ``valid_ids`` are the ids of the activities whose result was still valid; only these are announced.
        """
        self._pool.discard_results(results)
        if results and self._admission.has_waiting:
            self._admission.reset_waits([result.task.queue for result in results])
        self.start_tasks(tasks, all_seen=not self._admission.is_active)
        self._announce(results, valid_ids)

    def store_results(self) -> int:
        """Store all results and claim nothing; return the number of results that need no other try."""
        results = self._pool.results()
        if results:
            try:
                valid_ids = self._storage.finish_tasks(results)
            except Exception as exc:
                if self._storage.is_connection_lost(exc):
                    raise
                results, valid_ids = self.store_each(results)  # one that cannot be stored must not keep the others
            self._pool.discard_results(results)
            self._announce(results, valid_ids)
        return len(results)

    def store_each(self, results: list[TaskResult]) -> tuple[list[TaskResult], list[int]]:
        """Store results one by one, each in a transaction of its own.

        Returns the results that need no other try, and the ids of those activities whose result was valid.
        """
        stored = [end for result in results if (end := self._store_result(result)) is not None]
        return [end for end, _ in stored], [end.task.id for end, valid in stored if valid]

    def _store_result(self, result: TaskResult) -> tuple[TaskResult, bool] | None:
        """Store one result, or a failure of the activity if its result cannot be stored.

        Returns the result that was stored, and True if it was still valid. Returns None if it has to be tried again.
        """
        task = result.task
        try:
            return result, bool(self._storage.finish_tasks([result]))
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            if self._storage.is_transient(exc):
                return None
            log.error(
                "the result of %s cannot be stored: %s",
                task.activity,
                error_line(exc),
                extra={"run_id": str(task.run_id)},
            )
            error = PayloadError(f"the result of {task.activity} cannot be stored: {error_reason(exc)}")
            result = activity_policy.failed_result(task, error, self._now(), final=True)
        try:
            return result, bool(self._storage.finish_tasks([result]))
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            return None

    def _announce(self, results: list[TaskResult], valid_ids: list[int]) -> None:
        """Send the Django signals about those committed results whose activity is among ``valid_ids``.

        A result of an earlier attempt of the same activity, which exceeded a timeout, may be beside the valid one.
        """
        latest = {result.task.id: result for result in sorted(results, key=lambda result: result.task.attempt)}
        finished_ids = set(valid_ids)
        for result in results:
            if result.task.id in finished_ids and latest[result.task.id] is result:
                announce_result(result)
