"""The worker loop, which every host of workflows runs: claim, activate, commit, until it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.authoring import workflow
from temporalex_django.conf import get_settings
from temporalex_django.core import crash_points
from temporalex_django.core.error_text import error_line
from temporalex_django.core.payloads.codec import error_reason
from temporalex_django.db import background_tasks
from temporalex_django.db.atomic_activities import run_atomic_activity
from temporalex_django.db.connections import worker_session
from temporalex_django.db.messages.notify import notify_payloads, send_notifications, send_turn_signals
from temporalex_django.db.people.deciders import DatabaseJudge
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.scheduling import policy
from temporalex_django.engine.scheduling.capacity import Capacity
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.liveness.crash_markers import MarkedWork, MarkerSlot, open_marker
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.liveness.recovery import block_run, release_activities
from temporalex_django.workers.admission import Admission
from temporalex_django.workers.attempts import announce_result
from temporalex_django.workers.fair_queue import select_fairly
from temporalex_django.workers.health_report import activity_threads, handover_threads
from temporalex_django.workers.maintenance import Maintenance
from temporalex_django.workers.polled import PollResult
from temporalex_django.workers.pool import InlinePool, Pool
from temporalex_django.workers.quarantine import Quarantine
from temporalex_django.workers.queue_names import all_queues
from temporalex_django.workers.reconnect import next_pause, retry_until_available
from temporalex_django.workers.turn_handover import TurnHandover
from temporalex_django.workers.turn_runner import TurnRunner

if TYPE_CHECKING:
    from temporalex_django.workers.listener import Listener

log = logging.getLogger("temporalex_django.workers")


class WorkerLoop:
    """One worker: its row, its executors, its activities.

    One thread calls ``run``, which runs the turns. A maintenance thread sends heartbeats, a listener thread receives
    notifications, and activities have threads of their own. Workers share nothing but the tables.
    """

    def __init__(
        self,
        *,
        alias: str | None = None,
        queues: Sequence[str] | None = None,
        kind: str = "worker",
        inline: bool = False,
        on_heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        settings = get_settings()
        self.storage = DjangoStorage(alias, worker=True)
        self.alias = self.storage.alias
        self.queues = list(queues or all_queues())
        self.storage.priority_queues = background_tasks.priority_queues(self.queues)
        self.admission = Admission(self.storage, self.queues)
        self.wake = threading.Event()
        self.marker = open_marker(self.storage.domain)
        versions = workflow.registered_versions()
        self.row = WorkerRow(kind=kind, queues=self.queues, workflows=versions, crash_marker=self.marker.path)
        self.caution = 0  # set by maintenance: see ``liveness.recovery``
        self._trying_suspects = False  # runs that ended processes are being tried
        self.on_heartbeat = on_heartbeat  # the maintenance thread calls it several times a second
        self.pool: Pool = (
            InlinePool(now=self.row.now, mark_running=partial(self.marker.record_work, "task"))
            if inline
            else Pool(
                threads=activity_threads(),
                tasks=settings.ACTIVITY_TASKS,
                now=self.row.now,
                on_result=self._wake,
                mark_running=partial(self.marker.record_work, "task"),
            )
        )
        announce = partial(self.row.announce, self.storage)
        self.quarantine = Quarantine(self.pool, MarkerSlot(self.marker), announce=announce)
        self.engine = WorkflowEngine(
            self.storage,
            self.storage,
            cache_size=settings.CACHE_SIZE,
            cache_bytes=settings.CACHE_BYTES,
            payload_limit=settings.MAX_PAYLOAD_BYTES,
            deadlock_timeout=settings.DEADLOCK_TIMEOUT,
            unexpected_error=settings.UNEXPECTED_ERROR,
            strict_replay=settings.STRICT_REPLAY,
            perform=self._perform,
            resolve=self.admission.resolve,
            on_activate=self.marker.record_chain,
            rebuilds=True,
            make_judge=partial(DatabaseJudge, self.alias),
        )
        self.turn_runner = TurnRunner(
            storage=self.storage, engine=self.engine, admission=self.admission, row=self.row, quarantine=self.quarantine
        )
        self.turn_count = 0
        self.poll_count = 0  # polls that are over
        self.polled_at = time.monotonic()  # when the last poll began
        self.stop_deadline = 0.0  # when the process has to be gone after a stop
        # True if much was done or a wakeup came. Otherwise a plain read decides whether a turn is worthwhile. With a
        # writer lock it always does, since only a turn that has something to write should take that.
        self.expects_work = not self.storage.sql.writer_lock
        self._pause = float("inf")  # seconds until the next poll without a wakeup
        self._error_delay = 0.0  # seconds of the pause after the last error
        self._pauses: dict[UUID, float] = {}  # of runs whose business rows others have locked
        self.listener: Listener | None = None  # the one of maintenance, where there is one
        self._stop_event = threading.Event()  # to stop
        self.handover = TurnHandover(
            self.storage,
            max_helpers=handover_threads(),
            run_turns=lambda is_relieved: self._run_loop(
                self._stop_event, is_over=lambda: self._stop_event.is_set() or is_relieved()
            ),
        )

    def _wake(self) -> None:
        """Wake the loop, because an activity has ended."""
        if not self.wake.is_set():
            self.wake.set()

    # --- one look ----------------------------------------------------------------------------------------------------

    def poll(self) -> PollResult:
        """Look for due work once and do it: see ``_poll_once``. Afterwards the pool has all claimed activities."""
        try:
            # First where the last turn left no capacity: activities without limits would use all of it, each time.
            limited_count = (
                self._claim_limited() if self.admission.lacks_capacity and not self.quarantine.has_suspects else None
            )
            result = self._poll_once()
            result.tasks += self._claim_limited() if limited_count is None else limited_count
            return result
        finally:
            self.poll_count += 1

    def _claim_limited(self) -> int:
        """Claim activities under limits, in transactions of their own; return how many were claimed or moved."""
        if not self.admission.is_active or self.quarantine.is_on_trial or self.row.drained_at is not None:
            return 0
        suspects = self.quarantine.is_ready
        capacity = Capacity(threads=1) if suspects else self._cautious_capacity() if self.caution else self._capacity()
        capacity.prefetch.clear()  # what waits in a pool would use up a limit that another worker could use
        capacity.prefetch_limit = 0
        tasks, moved = self.admission.claim(capacity, owner=self.row.epoch, suspects=suspects)
        self._start_tasks(tasks, all_seen=suspects)
        return len(tasks) + moved

    def _poll_once(self) -> PollResult:
        """Commit results, advance due runs and claim due activities in one transaction; then run atomic activities.

        Before that comes a slice of the rebuild of a run, outside of transactions. Raises when the database is gone.
        Results leave the memory after the commit, not before.
        """
        if self.quarantine.is_on_trial or self.row.drained_at is not None:
            return self._store_results_only()
        if self.caution:
            return self._poll_cautiously()
        rebuilding = self.engine.rebuild_count if self.engine.rebuild() else 0
        results, capacity = select_fairly(self.pool.results(), self.turn_runner.result_limit), self._capacity()
        if not results and not self.expects_work and (due := self._next_due()) != 0.0:
            return PollResult(rebuilding=rebuilding, is_plain_read=True, due_in=due)
        report = TurnReport()
        try:
            valid, tasks = self.turn_runner.turn(results, capacity, report)
        except Exception as exc:
            if self.storage.is_connection_lost(exc):
                raise
            return self._retry_separately(results, report.claimed_chains, exc)
        self._apply_turn(results, valid, tasks)
        self._publish_report(report)
        runs = report.run_count + self._run_atomic_phase(report.atomic_chains)
        if report.suspect_chains:
            runs += self._turn_announced(report.suspect_chains[:1])
        return PollResult(
            runs=runs, tasks=len(tasks), results=len(results), rebuilding=rebuilding or self.engine.rebuild_count
        )

    def _capacity(self) -> Capacity:
        return Capacity() if self.quarantine.has_suspects else self.pool.capacity()

    def _cautious_capacity(self) -> Capacity:
        """Return the capacity of the pool, made smaller for each recent death of a worker without an explanation."""
        threads = min(self._capacity().threads, get_settings().ACTIVITY_THREADS >> min(self.caution, 30))
        return Capacity(threads=threads or (0 if self.pool.busy else 1))

    def _next_due(self) -> float | None:
        """Return the seconds until something is due that this worker may claim."""
        return self.storage.next_due(queues=self.admission.queues, activity_queues=self.admission.unlimited_queues)

    def _apply_turn(self, results: list[TaskResult], valid_ids: list[int], tasks: list[TaskState]) -> None:
        """Remove committed results and start claimed activities; call it after the commit."""
        self.pool.discard_results(results)
        if results and self.admission.has_waiting:
            self.admission.reset_waits([result.task.queue for result in results])
        self._start_tasks(tasks, all_seen=not self.admission.is_active)
        self._announce_results(results, valid_ids)

    def _start_tasks(self, tasks: list[TaskState], *, all_seen: bool) -> None:
        """Start claimed activities, except suspects that have to wait. ``all_seen``: no others can be claimed now."""
        tasks, released_keys = self.quarantine.filter_claimed(tasks, all_seen=all_seen)
        self.pool.submit(tasks)
        self.storage.release_unstarted(released_keys)

    def _announce_results(self, results: list[TaskResult], valid_ids: list[int]) -> None:
        finished_ids = set(valid_ids)
        for result in results:
            if result.task.id in finished_ids:
                announce_result(result)

    def _publish_report(self, report: TurnReport) -> None:
        self.turn_count += report.run_count
        send_turn_signals(report)
        crash_points.reached("notify: before")
        if self.listener is not None:
            self.listener.send_notifications(notify_payloads(report, own_queues=self.queues))
        else:
            send_notifications(report, alias=self.alias, own_queues=self.queues)

    def _run_atomic_phase(self, chains: Sequence[UUID]) -> int:
        """Run the due atomic activities of these runs, one run after the other, until a moment has passed.

        Returns the number of runs that were advanced. The others stay due.
        """
        if self.handover.is_last_helper:
            return 0
        deadline, advanced = time.monotonic() + policy.ATOMIC_PHASE_SECONDS, 0
        # A run whose pause is over waits for its locks, one a poll: a claim would not find it while its callers take
        # turns.
        retry_chains = [chain for chain in self._pauses if not self.storage.is_deferred(chain)][:1]
        for chain in dict.fromkeys([*retry_chains, *chains]):
            if self.handover.is_running(chain):  # the server has ended its session, and its code still runs
                self.storage.defer([chain], seconds=policy.LONGEST_LOCK_PAUSE)
            elif self._advance_atomic(
                chain, lock_timeout=policy.BUSINESS_LOCK_SECONDS if chain in retry_chains else 0.0
            ):
                self._pauses.pop(chain, None)
                advanced += 1
            elif (
                chain not in chains and self._pauses.get(chain, policy.LONGEST_LOCK_PAUSE) >= policy.LONGEST_LOCK_PAUSE
            ):
                self._pauses.pop(chain, None)  # another worker has done it, or a claim finds it again
            else:  # its rows are locked: other runs first, and this one a little later each time
                pause = self._pauses[chain] = min(
                    self._pauses.get(chain, policy.CONTENDED_SECONDS / 2) * 2, policy.LONGEST_LOCK_PAUSE
                )
                self.storage.defer([chain], seconds=pause)
            if time.monotonic() > deadline:
                break
        return advanced

    def _advance_atomic(self, chain: UUID, *, lock_timeout: float) -> bool:
        """Run the due atomic activities of one run; return True if the run was advanced, or blocked."""
        try:
            report = self.engine.advance_atomic(chain, queues=self.queues, lock_timeout=lock_timeout)
        except Exception as exc:
            if self.storage.is_connection_lost(exc):
                raise
            return not self._defer_for_key(chain, exc) and block_run(self.storage, chain, exc)
        self._publish_report(report)
        return bool(report.run_count)

    def _retry_separately(self, results: list[TaskResult], chains: Sequence[UUID], cause: BaseException) -> PollResult:
        """Store each result and advance each run alone, after ``cause`` rolled back the turn with all of them."""
        if not self.storage.is_transient(cause):
            log.warning("a turn of %d runs failed, retrying each run alone: %s", len(chains), error_line(cause))
        results, valid = self._store_each(results)
        with self.storage.transaction("apart"):
            tasks = self.turn_runner.claim_tasks(self._capacity())
        self._apply_turn(results, valid, tasks)
        poll_result = PollResult(tasks=len(tasks), results=len(results))
        poll_result.runs += sum(self._turn_alone(chain) for chain in chains)
        return poll_result

    def _store_each(self, results: list[TaskResult]) -> tuple[list[TaskResult], list[int]]:
        """Store results one by one; return those that need no other try, and the ids of those that were valid."""
        stored = [end for result in results if (end := self._store_result(result)) is not None]
        return [end for end, _ in stored], [end.task.id for end, valid in stored if valid]

    def _store_result(self, result: TaskResult) -> tuple[TaskResult, bool] | None:
        """Store one result, or a failure if it cannot be stored; return it and if it was valid. None: try again."""
        task = result.task
        try:
            return result, bool(self.storage.finish_tasks([result]))
        except Exception as exc:
            if self.storage.is_connection_lost(exc):
                raise
            if self.storage.is_transient(exc):
                return None
            log.error(
                "the result of %s cannot be stored: %s",
                task.activity,
                error_line(exc),
                extra={"run_id": str(task.run_id)},
            )
            error = PayloadError(f"the result of {task.activity} cannot be stored: {error_reason(exc)}")
            result = activity_policy.failed_result(task, error, self.row.now(), final=True)
        try:
            return result, bool(self.storage.finish_tasks([result]))
        except Exception as exc:
            if self.storage.is_connection_lost(exc):
                raise
            return None

    def _turn_alone(self, chain: UUID) -> int:
        """Run a turn of one run, and return the number of runs that it advanced or blocked."""
        try:
            report = self.engine.turn(limit=1, queues=self.queues, chains=[chain])
        except Exception as exc:
            if self.storage.is_connection_lost(exc):
                raise
            if self.storage.is_transient(exc):
                return 0
            if self._defer_for_key(chain, exc):
                return 0
            block_run(self.storage, chain, exc)
            return 1
        self._publish_report(report)
        return report.run_count

    def _turn_announced(self, chains: Sequence[UUID], *, deadline: float = inf) -> int:
        """Run a turn of each chain alone, announced on the row of this worker: its code may be what ended a process.

        A run that another worker has announced is left alone for a while, because that worker runs it or the run has
        ended that worker. Returns the number of runs that were advanced.
        """
        advanced = 0
        self._trying_suspects = True
        try:
            for chain in chains:
                if self.row.announce(self.storage, [MarkedWork("chain", chain)]):
                    advanced += self._turn_alone(chain)
                else:
                    self.storage.defer([chain], seconds=policy.ANNOUNCED_ELSEWHERE)
                if time.monotonic() > deadline:
                    break
        finally:
            self._trying_suspects = False
        self.row.announce(self.storage, ())
        return advanced

    def _store_results_only(self) -> PollResult:
        """Store results and do nothing else: during a trial, while the worker is drained, and when it stops."""
        results = self.pool.results()
        if results:
            try:
                valid = self.storage.finish_tasks(results)
            except Exception as exc:
                if self.storage.is_connection_lost(exc):
                    raise
                results, valid = self._store_each(results)  # one that cannot be stored must not keep the others
            self.pool.discard_results(results)
            self._announce_results(results, valid)
        return PollResult(results=len(results))

    def _poll_cautiously(self) -> PollResult:
        """Poll while a worker elsewhere may have died, or has died for an unknown reason (see decision 22).

        Runs are activated one by one, each announced on the row of this worker before its code runs.
        """
        results, capacity = self.pool.results(), self._cautious_capacity()
        try:
            with self.storage.transaction("careful ends"):
                valid = self.storage.finish_tasks(results)
                tasks = self.turn_runner.claim_tasks(capacity)
        except Exception as exc:
            if self.storage.is_connection_lost(exc):
                raise
            (results, valid), tasks = self._store_each(results), []  # one that cannot be stored must not keep others
        self._apply_turn(results, valid, tasks)
        if self.quarantine.is_on_trial:  # an activity has just started its trial
            return PollResult(tasks=len(tasks), results=len(results), rebuilding=self.engine.rebuild_count)
        if (waiting := self.engine.deferred_chains[:1]) and self.row.announce(
            self.storage, [MarkedWork("chain", waiting[0])]
        ):
            self.engine.rebuild()
        with self.storage.transaction("careful claim"):
            claimed = self.storage.claim(limit=self.storage.turn_size, queues=self.admission.queues)
        suspects = [run.chain_id for run in claimed if run.crashes][:1]
        chains = [*suspects, *(run.chain_id for run in claimed if not run.crashes)]
        runs = (
            self._turn_announced(chains, deadline=time.monotonic() + policy.ATOMIC_PHASE_SECONDS)
            if chains or waiting
            else 0
        )
        return PollResult(runs=runs, tasks=len(tasks), results=len(results), rebuilding=self.engine.rebuild_count)

    def _defer_for_key(self, chain: UUID, error: BaseException) -> bool:
        """Return True if the run was deferred because this process lacks a key that another worker may have."""
        return isinstance(error, KeyMissing) and self.engine.defer_for_key(chain)

    def _perform(self, task: TaskState) -> TaskResult:
        """Run an atomic activity and return its result. The marker names its run, since it may end this process."""
        self.marker.record_chain(task.chain_id)  # atomic activities always belong to a run
        try:
            # Beside what may have ended a process, nothing else is to run.
            with self.handover.running_activity(task, releases_lock=not self.caution and not self._trying_suspects):
                return run_atomic_activity(task)
        finally:
            self.marker.record_chain(None)

    # --- loops -------------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event, *, until_idle: bool = False, timeout: float | None = None) -> int:
        """Run turns until ``stop`` is set or, with ``until_idle``, until nothing is due; return how many runs advanced.

        Waits for a database that does not answer, and reconnects with growing pauses when the connection breaks:
        nothing was committed then. When it returns, activities that have not started are released and the attempt does
        not count; those that still run are released with their attempt counted.
        """
        maintenance = Maintenance(self)
        self._stop_event = stop
        with worker_session(self.alias):
            watchdog.set_heartbeat(self.marker.heartbeat)
            try:
                retry_until_available(maintenance.start, storage=self.storage, stop=stop, timeout=timeout)
                self.handover.register_thread()
                self._run_loop(stop, until_idle=until_idle, timeout=timeout)
            finally:
                self._shut_down(maintenance, hurried=until_idle)
        return self.turn_count

    def _run_loop(
        self,
        stop: threading.Event,
        *,
        until_idle: bool = False,
        timeout: float | None = None,
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        is_over = is_over or stop.is_set
        fruitless = 0
        deadline = None if timeout is None else time.monotonic() + timeout
        while not is_over():
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout:g} s there is still work: {self.pool.busy} activities are running")
            self.wake.clear()
            poll = self._try_poll(stop, is_over, until_idle=until_idle)
            if poll is None:
                continue
            result, due = poll
            if result:
                self._error_delay, fruitless = 0.0, 0
                self._pause_after(result, stop)
                continue
            if self.row.drained_at is not None:
                due = None  # left to other workers
            has_waiting = due == 0.0 or bool(self._pauses) or self.admission.has_waiting
            fruitless = fruitless + 1 if has_waiting else 0
            if until_idle and self._is_idle and (not has_waiting or fruitless > policy.FRUITLESS_POLLS):
                return
            was_woken = self.wake.wait(policy.CONTENDED_SECONDS if due == 0.0 else self._seconds_until_poll(due))
            self.expects_work = was_woken and not self.storage.sql.writer_lock

    def _try_poll(
        self, stop: threading.Event, is_over: Callable[[], bool], *, until_idle: bool
    ) -> tuple[PollResult, float | None] | None:
        """Poll once under the turn lock. Return the result, and the seconds until something is due.

        Returns None if the loop is over, or after an error and a pause, which grows from error to error. With
        ``until_idle``, errors are raised, except the loss of the connection.
        """
        try:
            with self.handover.turn_lock:
                if is_over():  # while it waited for the lock
                    return None
                self.polled_at = time.monotonic()
                result = self.poll()
                return result, result.due_in if result or result.is_plain_read else self._next_due()
        except DatabaseError as exc:
            if until_idle and not self.storage.is_connection_lost(exc):
                raise
            self._error_delay = next_pause(self._error_delay)
            log.warning("the database does not answer, retrying in %.1f s: %s", self._error_delay, error_line(exc))
            connections[self.alias].close()
        except Exception as exc:
            if until_idle:
                raise
            self._error_delay = next_pause(self._error_delay)
            log.error("a poll failed, retrying in %.1f s: %s", self._error_delay, error_line(exc))
        stop.wait(self._error_delay)
        return None

    @property
    def _is_idle(self) -> bool:
        """True if nothing runs here and no rate limit keeps work back."""
        return not (self.pool.busy or self.handover.busy or self.admission.is_rate_limited)

    def _pause_after(self, result: PollResult, stop: threading.Event) -> None:
        """Wait a moment after a poll that found something, since there may be more at once."""
        self._pause = policy.WRITER_PAUSE
        if self.storage.sql.writer_lock:
            stop.wait(policy.WRITER_PAUSE)
            return
        self.expects_work = result.runs >= policy.FEWEST_RUNS
        if result.tasks and result.runs < policy.FEWEST_RUNS:
            self.wake.wait(policy.RESULT_WAIT)

    def _seconds_until_poll(self, due: float | None) -> float:
        """Return the seconds until the next poll if nothing wakes the loop; ``due`` is when work is due, in seconds."""
        poll = get_settings().POLL_INTERVAL
        if self.listener is not None:
            poll *= policy.LISTENING_FACTOR if self.listener.locked else 1
        else:  # recent work is often followed by more at once, so pauses grow
            poll, self._pause = min(poll, self._pause), min(self._pause * 2, poll)
        return min(seconds for seconds in (poll, due, self.admission.wait_seconds) if seconds is not None)

    def run_inline(self, *, timeout: float | None) -> int:
        """Run turns until nothing is due, in this thread and on its connection; see ``run_until_idle``."""
        maintenance = Maintenance(self)
        maintenance.register()
        deadline = None if timeout is None else time.monotonic() + timeout
        fruitless = 0
        try:
            while True:
                maintenance.run_pass()
                if advanced := self.poll() or self.pool.busy:
                    fruitless = 0
                if (
                    (advanced or self.admission.is_rate_limited)
                    and deadline is not None
                    and time.monotonic() > deadline
                ):
                    raise TimeoutError(f"after {timeout:g} s there is still work that is due")
                if advanced:
                    continue
                has_waiting = self._next_due() == 0.0 or bool(self._pauses) or self.admission.has_waiting
                fruitless += 1
                if not self.admission.is_rate_limited and (not has_waiting or fruitless > policy.FRUITLESS_POLLS):
                    return self.turn_count
                time.sleep(policy.CONTENDED_SECONDS)
        finally:
            self._shut_down(None, hurried=True)

    def _shut_down(self, maintenance: Maintenance | None, *, hurried: bool) -> None:
        settings = get_settings()
        self.stop_deadline = time.monotonic() + settings.DRAIN_SECONDS + settings.LEAVE_SECONDS
        waiting = self.pool.drain(0.0 if hurried else settings.DRAIN_SECONDS)
        if maintenance is not None:
            maintenance.stop()
        self.handover.join(seconds=self.stop_deadline - settings.LEAVE_SECONDS / 2 - time.monotonic())
        try:
            with self.handover.turn_lock:
                # Results come before the release: an activity that has ended must not be released and run again.
                self._store_results_only()
                with self.storage.transaction("leave"):
                    self.storage.release_unstarted(waiting)
                    release_activities(self.storage, self.row.epoch)
                    self.row.remove(self.storage)
        except DatabaseError as exc:
            log.warning("could not release the work of this worker before its lease expires: %s", error_line(exc))
        finally:
            self.pool.close()
            self.engine.cache.clear()
            watchdog.set_heartbeat(None)
            self.marker.stop_heartbeat()
            self.marker.close()


def run_until_idle(
    *, alias: str | None = None, queues: Sequence[str] | None = None, timeout: float | None = 20.0, kind: str = "burst"
) -> int:
    """Run turns, activities and due timers on committed data in this thread until nothing is due.

    Returns the number of runs that advanced. Waits for activities that a rate keeps waiting. Raises ``TimeoutError``
    after ``timeout`` seconds.
    """
    return WorkerLoop(alias=alias, queues=queues, kind=kind, inline=True).run_inline(timeout=timeout)
