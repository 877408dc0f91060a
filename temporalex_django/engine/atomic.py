"""The atomic part of a turn: due atomic activities of one run, their results, and the run's next activation.

All of it is one transaction, so the writes of the activities commit together with what follows from them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.core.history.events import Job
from temporalex_django.engine import activity_policy, policy
from temporalex_django.engine.activation import ActivationStep
from temporalex_django.engine.contracts.records import (
    Inbox,
    Retry,
    RunRecord,
    RunState,
    RunWrite,
    TaskResult,
    TaskState,
)
from temporalex_django.engine.contracts.storage import RunStorage, TaskStorage
from temporalex_django.engine.executors import Cache, CachedRun
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import DeadlockDetected
from temporalex_django.interceptors.chain import chain
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

logger = logging.getLogger("temporalex_django.engine")


class RunAdvancer(Protocol):
    """The methods of ``WorkflowEngine`` that activate one run, as a protocol for ``AtomicPhase``."""

    storage: RunStorage
    tasks: TaskStorage
    cache: Cache

    def load_entries(
        self, runs: Sequence[RunState], records: dict[UUID, RunRecord]
    ) -> tuple[dict[UUID, CachedRun], dict[UUID, BaseException]]:
        """Return ``(cache entries, errors)``, both by run id: the executors of runs, or why they cannot have one.

        ``records`` gets the records of the runs.
        """

    def defer_if_unavailable(self, run: RunState, error: BaseException | None, report: TurnReport) -> bool:
        """Leave a run to another worker for a while if ``error`` says that this process lacks its code or a key.

        Return True if the run was deferred.
        """

    def activate(
        self,
        step: ActivationStep,
        entry: CachedRun | None,
        error: BaseException | None,
        report: TurnReport,
        results: Sequence[Job] = (),
        *,
        until: float,
    ) -> RunWrite:
        """Activate a run and return what to write. A run that cannot be activated is blocked, as the report says.

        ``step`` is the run with its inbox, and ``entry`` has its executor; without one (None), ``error`` is the reason.
        ``results`` are those of atomic activities of the same transaction. After ``until`` (``time.monotonic``) the run
        takes no further message.
        """

    def block_run(self, step: ActivationStep, error: BaseException, report: TurnReport) -> RunWrite:
        """Return the ``RunWrite`` that blocks a run because of ``error``, and add the run to the report."""


class AtomicPhase:
    """The part of an engine that runs the due atomic activities of one run, in a transaction of its own.

    A turn calls it after the transaction that advanced all other runs. ``perform(task)`` runs an atomic activity and
    returns its result. With ``inline`` False, further attempts are left to the process that claims activities.
    """

    def __init__(self, advancer: RunAdvancer, perform: Callable[[TaskState], TaskResult], *, inline: bool) -> None:
        self._advancer = advancer
        self._storage = advancer.storage
        self._perform = perform
        self._inline = inline

    def advance(self, chain_id: UUID, *, queues: Sequence[str], lock_timeout: float = 0.0) -> TurnReport:
        """Run the due atomic activities of one run and advance the run, in a transaction of its own.

        ``queues`` are those of the worker. If another transaction has locked rows that the activities need, nothing
        happens: the run stays due, and no attempt is counted. ``lock_timeout`` is the number of seconds to wait for
        such locks (0.0: only a moment).
        """
        report = TurnReport()
        try:
            with self._storage.transaction("atomic"):
                if lock_timeout:
                    self._storage.wait_for_locks(chain_id, timeout=lock_timeout)
                self._advance_in_savepoint(chain_id, queues, report)
        except activity_policy.ActivityUnavailable:  # another worker is to run it
            self._storage.defer([chain_id], seconds=policy.DEFER_SECONDS)
            return TurnReport()
        except Exception as exc:
            if not self._storage.is_transient(exc):
                raise
            if recorder.is_active:
                recorder.record(definitions.CONFLICTS, place="atomic")
            return TurnReport()
        return report

    def _advance_in_savepoint(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        """Run atomic activities of a run and continue with it while it has such work.

        If an activation fails, the savepoint is rolled back and the run is blocked. That undoes the writes of its
        activities, too: no event would record their results.
        """
        phase_report = TurnReport()
        try:
            with self._storage.savepoint():
                self._run_activations(chain_id, queues, phase_report)
        except _ActivationFailed as failed:
            for run in self._storage.claim(limit=1, queues=queues, chains=[chain_id]):
                messages = self._storage.inbox([chain_id])[chain_id]
                report.records.update(phase_report.records)
                write = self._advancer.block_run(
                    ActivationStep(run, messages, self._storage.now()), failed.error, report
                )
                self._storage.write([write])
                report.writes.append(write)
                report.run_count += 1
        else:
            report.merge(phase_report)

    def _run_activations(self, chain_id: UUID, queues: Sequence[str], report: TurnReport) -> None:
        """Run atomic activities and activate the run, again and again. Raises ``_ActivationFailed``."""
        run = next(iter(self._storage.claim(limit=1, queues=queues, chains=[chain_id])), None)
        if run is None or run.closed or run.paused:
            return
        entry = self._load_entry(run, report)
        if entry is None:
            return
        due_tasks, retry_times = self._load_tasks(chain_id)
        messages = self._storage.inbox([chain_id])[chain_id]
        started_at = time.monotonic()
        for index in range(policy.MAX_ATOMIC_ACTIVATIONS):
            results, retries, failed = self._perform_all(due_tasks, report)
            retry_times.update((retry.task.seq, retry.retry_at) for retry in retries if retry.retry_at is not None)
            run.atomic_due = self._next_attempt(retry_times)
            step = ActivationStep(run, messages, self._storage.now(), inline_atomic=self._inline)
            write = self._activate(step, entry, results, report)
            write.failed_attempts = failed
            # Only the first activation reads the inbox. The others get what waits, and the results.
            messages = _take_waiting(step, write, stored=index > 0)
            for number in write.cancelled_tasks:
                retry_times.pop(number, None)
            _schedule_retries(write, retries)
            due_tasks = []
            is_last = index + 1 == policy.MAX_ATOMIC_ACTIVATIONS
            if not is_last and not retries and time.monotonic() - started_at < policy.ATOMIC_RUN_SECONDS:
                due_tasks = _take_new_tasks(write)
            if due_tasks:
                run.atomic_due = self._next_attempt(retry_times)
            next_entry = self._store_activation(write, report, continues=bool(due_tasks))
            if next_entry is None:
                return
            entry = next_entry

    def _next_attempt(self, retry_times: dict[int, datetime]) -> datetime | None:
        return min(retry_times.values(), default=None) if self._inline else None

    def _store_activation(self, write: RunWrite, report: TurnReport, *, continues: bool) -> CachedRun | None:
        """Store one activation; return the entry for the next one in the same transaction, if there is one."""
        self._storage.write([write])
        report.writes.append(write)
        report.run_count += 1
        if continues:
            return self._advancer.cache.take(write.run.run_id)
        return None

    def _load_tasks(self, chain_id: UUID) -> tuple[list[TaskState], dict[int, datetime]]:
        """Return due activities, and by command number when others, which failed before, are due."""
        now, rows = self._storage.now(), self._advancer.tasks.atomic_tasks(chain_id)
        due_tasks = [task for task in rows if task.due_at <= now]
        return due_tasks, {task.seq: task.due_at for task in rows if task.due_at > now}

    def _load_entry(self, run: RunState, report: TurnReport) -> CachedRun | None:
        """Return the entry. None: the run is another worker's, or still rebuilt. Raises ``_ActivationFailed``."""
        entries, errors = self._advancer.load_entries([run], report.records)
        if self._advancer.defer_if_unavailable(run, errors.get(run.run_id), report):
            return None
        if run.run_id not in entries and run.run_id in errors:
            raise _ActivationFailed(errors[run.run_id])
        return entries.get(run.run_id)

    def _activate(
        self, step: ActivationStep, entry: CachedRun, results: Sequence[tuple[Job, TaskState]], report: TurnReport
    ) -> RunWrite:
        """Activate the run with the results of its atomic activities. Raises ``_ActivationFailed``."""
        jobs = [job for job, _ in results]
        step.atomic_tasks = [task for _, task in results]
        write = self._advancer.activate(
            step, entry, None, report, results=jobs, until=time.monotonic() + policy.RUN_SECONDS
        )
        if step.run.run_id in report.block_errors:
            raise _ActivationFailed(report.block_errors[step.run.run_id])
        write.cancelled_tasks += [task.seq for _, task in results if task.id]
        return write

    def _perform_all(
        self, tasks: Sequence[TaskState], report: TurnReport
    ) -> tuple[list[tuple[Job, TaskState]], list[TaskResult], list[TaskResult]]:
        """Run each in a savepoint; return ``(final, to retry, failed)``. Raises errors that end the transaction."""
        results: list[tuple[Job, TaskState]] = []
        retries: list[TaskResult] = []
        failed: list[TaskResult] = []
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
                if self._storage.is_connection_lost(exc, is_of_code=True):
                    _raise_if_slow(task, time.monotonic() - started_at, exc)
                    raise
                result = activity_policy.failed_result(
                    task, exc, self._storage.now(), final=activity_policy.is_permanent_error(exc)
                )
            if (elapsed := time.monotonic() - started_at) > policy.SLOW_ATOMIC_SECONDS:
                logger.warning("atomic activity %s held its transaction for %.1f s", task.activity, elapsed)
            if result.is_failure:
                failed.append(result)
            result.seconds = elapsed
            if recorder.is_active or chain.problem:
                report.atomic_results.append(result)
            if result.outcome is None:
                retries.append(result)
            else:
                results.append((Job(*result.outcome), task))
        return results, retries, failed


class _ActivationFailed(Exception):
    """Raised to undo the savepoint of a run's atomic activities; ``error`` is the reason why the run is blocked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _raise_if_slow(task: TaskState, seconds: float, error: BaseException) -> None:
    """Raise ``DeadlockDetected`` if an activity idled in its transaction so long that the server ended the session."""
    if seconds > policy.SLOW_ATOMIC_SECONDS:
        raise DeadlockDetected(
            f"atomic activity {task.activity} held its transaction for {seconds:.1f} s and the database ended the "
            "session: shorten it, or make it an external activity"
        ) from error


def _take_new_tasks(write: RunWrite) -> list[TaskState]:
    """Remove activities, to run now without ever being rows. All stay if this process lacks the code of one."""
    new_tasks = [task for task in write.tasks if task.atomic and task.attempt == 0]
    if not all(task.activity in activity.registry for task in new_tasks):
        return []
    if new_tasks:
        write.tasks = [task for task in write.tasks if not task.atomic]
    return [task.as_state(0, attempt=1) for task in new_tasks]


def _take_waiting(step: ActivationStep, write: RunWrite, *, stored: bool) -> Inbox:
    """Return messages that wait behind a handler: the executor gets them again with whatever may end it.

    With ``stored``, their rows may have their positions already; those are not stored again.
    """
    messages = Inbox(has_more=step.has_more_messages)
    for message in step.messages:
        position = write.waiting.get(message.id)
        if position is None:
            continue
        if stored and message.after == position:
            del write.waiting[message.id]
        message.after = position
        messages.append(message)
    return messages


def _schedule_retries(write: RunWrite, results: Sequence[TaskResult]) -> None:
    """Add a further attempt of each activity. One that never was a row becomes one now."""
    for result in results:
        task = result.task
        assert result.retry_at is not None
        attempt = task.attempt if result.count else task.attempt - 1
        if task.id:
            retry = Retry(attempt=attempt, due_at=result.retry_at, failure=result.failure)
            write.retried_tasks[task.seq] = retry
        else:
            write.tasks.append(task.as_new(due_at=result.retry_at, failure=result.failure, attempt=attempt))
