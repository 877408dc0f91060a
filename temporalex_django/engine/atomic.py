"""Atomic work of a turn: due activities of one run, what they give and what the run does next, in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.core.history.events import Job
from temporalex_django.engine import activity_policy
from temporalex_django.engine.advance import Advance
from temporalex_django.engine.fates import LEFT_FOR, SHARE
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.storage import Inbox, Retry, RunWrite, TaskResult, TaskState
from temporalex_django.errors import DeadlockDetected

if TYPE_CHECKING:
    from temporalex_django.engine.turn import WorkflowEngine

logger = logging.getLogger("temporalex_django.runtime")

#: How far it goes on with one run in one transaction.
_ACTIVATIONS = 20
_BUDGET = 0.05
_SLOW = 1.0


class AtomicPhase:
    """``perform(task)`` runs an atomic activity and gives its end."""

    def __init__(self, engine: WorkflowEngine, perform: Callable[[TaskState], TaskResult]) -> None:
        self._engine = engine
        self._storage = engine.storage
        self._perform = perform

    def advance(self, chain_id: UUID, *, queues: Sequence[str], patience: float = 0.0) -> TurnReport:
        """In a transaction of its own. Business rows that others have locked: nothing, still due, uncounted.

        ``patience``: it stands in line so long for what others have locked, instead of giving up after a moment.
        """
        report = TurnReport()
        try:
            with self._storage.transaction("atomic"):
                if patience:
                    self._storage.queue_for(chain_id, patience=patience)
                self._advance(chain_id, queues, report)
        except activity_policy.Absent:  # another worker is to run it
            self._storage.defer([chain_id], seconds=LEFT_FOR)
            return TurnReport()
        except Exception as exc:
            if not self._storage.transient(exc):
                raise
            return TurnReport()
        return report

    def _advance(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        """Run due atomic activities of one run, and go on with it while its work is atomic, in one transaction.

        When an activation fails, what the activities wrote before it is undone with it: their results have no place to
        go.
        """
        done = TurnReport()
        try:
            with self._storage.savepoint():
                self._go_on(chain_id, queues, done)
        except _ActivationFailed as failed:
            for run in self._storage.claim(limit=1, queues=queues, chains=[chain_id]):
                messages = self._storage.inbox([chain_id])[chain_id]
                report.facts.update(done.facts)
                write = self._engine.blocked(Advance(run, messages, self._storage.now()), failed.error, report)
                self._storage.write([write])
                report.writes.append(write)
                report.runs += 1
        else:
            report.add(done)

    def _go_on(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        claimed = self._storage.claim(limit=1, queues=queues, chains=[chain_id])
        if not claimed or claimed[0].closed or claimed[0].paused:
            return
        run = claimed[0]
        entries, errors = self._engine.entries(claimed, report.facts)
        if self._engine.left_to_others(run, errors.get(run.run_id), report):
            return
        entry = entries.get(run.run_id)
        if entry is None:
            if run.run_id in errors:
                raise _ActivationFailed(errors[run.run_id])
            return  # it is being rebuilt
        now, rows = self._storage.now(), self._engine.tasks.atomic_tasks(chain_id)
        due = [task for task in rows if task.due_at <= now]
        later = {task.seq: task.due_at for task in rows if task.due_at > now}  # failed before, waiting for another try
        messages = self._storage.inbox([chain_id])[chain_id]
        begun = time.monotonic()
        for remaining in reversed(range(_ACTIVATIONS)):
            results, retries = self._perform_all(due)
            later.update((again.task.seq, again.retry_at) for again in retries if again.retry_at is not None)
            run.atomic_due = min(later.values(), default=None)
            step = Advance(run, messages, self._storage.now())
            messages = Inbox(more=step.left)
            until = time.monotonic() + SHARE
            write = self._engine.activate(step, entry, None, report, results=[job for job, _ in results], until=until)
            if run.run_id in report.blocked:
                raise _ActivationFailed(report.blocked[run.run_id])
            write.cancelled_tasks += [task.seq for _, task in results if task.id]
            for number in write.cancelled_tasks:
                later.pop(number, None)
            for again in retries:
                _keep(write, again)
            new = [task for task in write.tasks if task.atomic and task.attempt == 0]
            more = bool(new and remaining and not retries and time.monotonic() - begun < _BUDGET)
            more = more and all(task.activity in activity.registry for task in new)
            if more:
                write.tasks = [task for task in write.tasks if not task.atomic]
                due = [
                    task.as_state(0, attempt=1) for task in new
                ]  # run in the transaction that scheduled them: they never become rows
                run.atomic_due = min(later.values(), default=None)
            self._storage.write([write])
            report.writes.append(write)
            report.runs += 1
            taken = self._engine.cache.take(run.run_id) if more else None
            if taken is None:
                return
            entry = taken

    def _perform_all(self, due: Sequence[TaskState]) -> tuple[list[tuple[Job, TaskState]], list[TaskResult]]:
        """Each in a savepoint of its own. Raises what the database raises about the transaction as a whole."""
        results: list[tuple[Job, TaskState]] = []
        retries: list[TaskResult] = []
        for task in due:
            began, inside = time.monotonic(), False
            try:
                with self._storage.checked_savepoint():
                    inside = True
                    result = self._perform(task)
            except activity_policy.Absent:
                raise
            except BaseException as exc:
                if not inside or (self._storage.transient(exc) and not self._storage.interrupted(exc)):
                    raise  # without its savepoint it is the transaction that failed, not the activity
                if self._storage.lost(exc):
                    held = time.monotonic() - began
                    if (
                        held > _SLOW
                    ):  # the server ends sessions that do nothing in a transaction: it would do so each time
                        raise DeadlockDetected(
                            f"atomic activity {task.activity} held its transaction for {held:.1f} s and the database ended the "
                            "session: make it short, or an external activity"
                        ) from exc
                    raise
                result = activity_policy.failed(task, exc, self._storage.now(), final=activity_policy.hopeless(exc))
            if (took := time.monotonic() - began) > _SLOW:
                logger.warning("atomic activity %s held its transaction for %.1f s", task.activity, took)
            if result.outcome is None:
                retries.append(result)
            else:
                results.append((Job(*result.outcome), task))
        return results, retries


class _ActivationFailed(Exception):
    """Undoes the transaction of phase 2; ``error`` is why the run is blocked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _keep(write: RunWrite, again: TaskResult) -> None:
    """An atomic activity that failed is tried later; one that never was a row becomes one now."""
    task = again.task
    assert again.retry_at is not None
    if task.id:
        retry = Retry(attempt=task.attempt, due_at=again.retry_at, failure=again.failure)
        write.retried_tasks[task.seq] = retry
        return
    write.tasks.append(task.as_new(due_at=again.retry_at, failure=again.failure))
