"""Phase 2 of a turn: due atomic activities of one run, their results and its next step, in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.core.history.events import Job
from temporalex_django.engine import activity_policy
from temporalex_django.engine.activation import ActivationStep
from temporalex_django.engine.contracts.records import Inbox, Retry, RunWrite, TaskResult, TaskState
from temporalex_django.engine.fates import DEFER_SECONDS, SHARE
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import DeadlockDetected

if TYPE_CHECKING:
    from temporalex_django.engine.turn import WorkflowEngine

logger = logging.getLogger("temporalex_django.engine")

#: Limits of one transaction: activations, seconds after which no further activation starts, and seconds from which an
#: activity counts as slow.
_MAX_ACTIVATIONS = 20
_BUDGET = 0.05
_SLOW = 1.0


class AtomicPhase:
    """The second phase of an engine's turn, which runs the due atomic activities of one run at a time.

    ``perform(task)`` runs an atomic activity and returns its result.
    """

    def __init__(self, engine: WorkflowEngine, perform: Callable[[TaskState], TaskResult]) -> None:
        self._engine = engine
        self._storage = engine.storage
        self._perform = perform

    def advance(self, chain_id: UUID, *, queues: Sequence[str], lock_timeout: float = 0.0) -> TurnReport:
        """Run phase 2 of one run in a transaction of its own.

        If others have locked its business rows, nothing happens: it stays due, and no attempt is counted. With
        ``lock_timeout`` it waits that many seconds for locks of others, instead of giving up after a moment.
        """
        report = TurnReport()
        try:
            with self._storage.transaction("atomic"):
                if lock_timeout:
                    self._storage.wait_for_locks(chain_id, timeout=lock_timeout)
                self._advance_in_savepoint(chain_id, queues, report)
        except activity_policy.ActivityUnavailable:  # another worker is to run it
            self._storage.defer([chain_id], seconds=DEFER_SECONDS)
            return TurnReport()
        except Exception as exc:
            if not self._storage.is_transient(exc):
                raise
            return TurnReport()
        return report

    def _advance_in_savepoint(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        """Run due atomic activities of one run, and continue with it while its work is atomic, in one transaction.

        When an activation fails, the writes of the activities before it are undone, too: their results have no place to
        go.
        """
        phase_report = TurnReport()
        try:
            with self._storage.savepoint():
                self._run_activations(chain_id, queues, phase_report)
        except _ActivationFailed as failed:
            for run in self._storage.claim(limit=1, queues=queues, chains=[chain_id]):
                messages = self._storage.inbox([chain_id])[chain_id]
                report.records.update(phase_report.records)
                write = self._engine.block_run(ActivationStep(run, messages, self._storage.now()), failed.error, report)
                self._storage.write([write])
                report.writes.append(write)
                report.run_count += 1
        else:
            report.merge(phase_report)

    def _run_activations(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        claimed = self._storage.claim(limit=1, queues=queues, chains=[chain_id])
        if not claimed or claimed[0].closed or claimed[0].paused:
            return
        run = claimed[0]
        entries, errors = self._engine.load_entries(claimed, report.records)
        if self._engine.defer_if_unavailable(run, errors.get(run.run_id), report):
            return
        entry = entries.get(run.run_id)
        if entry is None:
            if run.run_id in errors:
                raise _ActivationFailed(errors[run.run_id])
            return  # it is being rebuilt
        now, rows = self._storage.now(), self._engine.tasks.atomic_tasks(chain_id)
        due_tasks = [task for task in rows if task.due_at <= now]
        # Activities that have failed before and wait for another try.
        retry_times = {task.seq: task.due_at for task in rows if task.due_at > now}
        messages = self._storage.inbox([chain_id])[chain_id]
        started_at = time.monotonic()
        for remaining in reversed(range(_MAX_ACTIVATIONS)):
            results, retries = self._perform_all(due_tasks)
            retry_times.update((retry.task.seq, retry.retry_at) for retry in retries if retry.retry_at is not None)
            run.atomic_due = min(retry_times.values(), default=None)
            step = ActivationStep(run, messages, self._storage.now())
            # Only the first activation reads the inbox. The others of this transaction deliver results alone.
            messages = Inbox(has_more=step.has_more_messages)
            until = time.monotonic() + SHARE
            write = self._engine.activate(step, entry, None, report, results=[job for job, _ in results], until=until)
            if run.run_id in report.block_errors:
                raise _ActivationFailed(report.block_errors[run.run_id])
            write.cancelled_tasks += [task.seq for _, task in results if task.id]
            for number in write.cancelled_tasks:
                retry_times.pop(number, None)
            for retry in retries:
                _schedule_retry(write, retry)
            new_tasks = [task for task in write.tasks if task.atomic and task.attempt == 0]
            has_more_work = bool(new_tasks and remaining and not retries and time.monotonic() - started_at < _BUDGET)
            has_more_work = has_more_work and all(task.activity in activity.registry for task in new_tasks)
            if has_more_work:
                write.tasks = [task for task in write.tasks if not task.atomic]
                # They run in the transaction that scheduled them, so they never become rows.
                due_tasks = [task.as_state(0, attempt=1) for task in new_tasks]
                run.atomic_due = min(retry_times.values(), default=None)
            self._storage.write([write])
            report.writes.append(write)
            report.run_count += 1
            next_entry = self._engine.cache.take(run.run_id) if has_more_work else None
            if next_entry is None:
                return
            entry = next_entry

    def _perform_all(self, tasks: Sequence[TaskState]) -> tuple[list[tuple[Job, TaskState]], list[TaskResult]]:
        """Run each activity in a savepoint of its own; return the results, and those to retry.

        Raises what the database raises about the transaction as a whole.
        """
        results: list[tuple[Job, TaskState]] = []
        retries: list[TaskResult] = []
        for task in tasks:
            started_at, entered = time.monotonic(), False
            try:
                with self._storage.checked_savepoint():
                    entered = True
                    result = self._perform(task)
            except activity_policy.ActivityUnavailable:
                raise
            except BaseException as exc:
                if not entered or (self._storage.is_transient(exc) and not self._storage.is_interrupted(exc)):
                    raise  # the transaction failed, not the activity: without its savepoint nothing can be undone
                if self._storage.is_connection_lost(exc):
                    lock_seconds = time.monotonic() - started_at
                    # The server ends sessions that idle in a transaction, so it would end this one each time.
                    if lock_seconds > _SLOW:
                        raise DeadlockDetected(
                            f"atomic activity {task.activity} held its transaction for {lock_seconds:.1f} s and the "
                            "database ended the session: shorten it, or make it an external activity"
                        ) from exc
                    raise
                result = activity_policy.failed_result(
                    task, exc, self._storage.now(), final=activity_policy.is_permanent_error(exc)
                )
            if (elapsed := time.monotonic() - started_at) > _SLOW:
                logger.warning("atomic activity %s held its transaction for %.1f s", task.activity, elapsed)
            if result.outcome is None:
                retries.append(result)
            else:
                results.append((Job(*result.outcome), task))
        return results, retries


class _ActivationFailed(Exception):
    """Raised to undo the transaction of phase 2; ``error`` is the reason why the run is blocked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _schedule_retry(write: RunWrite, result: TaskResult) -> None:
    """Schedule another try of an atomic activity that failed; one that never was a row becomes one now."""
    task = result.task
    assert result.retry_at is not None
    if task.id:
        retry = Retry(attempt=task.attempt, due_at=result.retry_at, failure=result.failure)
        write.retried_tasks[task.seq] = retry
        return
    write.tasks.append(task.as_new(due_at=result.retry_at, failure=result.failure))
