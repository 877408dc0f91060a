"""The worker loop, which every host of workflows runs: claim, activate, commit, until it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.authoring import workflow
from temporalex_django.conf import get_settings, uses_cluster
from temporalex_django.core import process
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import TABLES, TEMPORAL
from temporalex_django.db import background_hooks, background_tasks
from temporalex_django.db.atomic_activities import run_atomic_activity
from temporalex_django.db.background_hooks import SCHEDULE_HOOKS
from temporalex_django.db.connections import worker_session
from temporalex_django.db.human_tasks import DatabaseJudge
from temporalex_django.db.messages.notify import notify_payloads, send_notifications, send_turn_signals
from temporalex_django.db.outbox import due_destinations
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.liveness.crash_markers import MarkerSlot, open_marker
from temporalex_django.liveness.health import activity_threads
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.liveness.recovery import release_activities
from temporalex_django.workers.admission import Admission, all_queues, run_queues
from temporalex_django.workers.background_thread import next_pause, retry_until_available
from temporalex_django.workers.cluster import ClusterPoller
from temporalex_django.workers.maintenance import Maintenance, handover_threads, send_batch
from temporalex_django.workers.polling import Poller, PollParts, PollResult, SingleRuns, TaskIntake
from temporalex_django.workers.pool import InlinePool, Pool, Quarantine
from temporalex_django.workers.turn_runner import TurnHandover, TurnRunner

if TYPE_CHECKING:
    from temporalex_django.workers.listener import Listener

log = logging.getLogger("temporalex_django.workers")


class WorkerLoop:
    """One worker: it claims due runs and activities, advances the runs and runs the activities, until it is stopped.

    ``queues`` None means all queues of the project. ``backends`` names what it polls: the tables, the Temporal cluster
    of the project, or both. ``kind`` says for people what runs the loop. ``inline`` runs activities in the thread of
    the loop. ``on_heartbeat`` is called several times a second.

    One thread calls ``run``, which runs the turns: the transactions that advance runs. A maintenance thread sends
    heartbeats, a listener thread receives notifications, and activities have threads of their own. Workers share
    nothing but the tables.
    """

    def __init__(
        self,
        *,
        alias: str | None = None,
        queues: Sequence[str] | None = None,
        backends: Collection[str] = (TABLES, TEMPORAL),
        kind: str = "worker",
        inline: bool = False,
        on_heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        settings = get_settings()
        self.storage = DjangoStorage(alias, worker=True)
        self.alias = self.storage.alias
        self.polls_tables = TABLES in backends
        self.queues = list(queues or all_queues()) if self.polls_tables else []
        self.storage.priority_queues = background_tasks.priority_queues(self.queues)
        self.admission = Admission(self.storage, self.queues)
        self.wake = threading.Event()
        self.marker = open_marker(self.storage.domain)
        versions = workflow.registered_versions()
        self.row = WorkerRow(kind=kind, queues=self.queues, workflows=versions, crash_marker=self.marker.path)
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
        self.cluster: ClusterPoller | None = None
        if TEMPORAL in backends and not inline and uses_cluster():
            self.cluster = ClusterPoller(
                self.pool,
                self.row,
                queues=queues or run_queues(),
                alias=self.alias,
                resolve=self.admission.resolve,
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
            backend=TABLES,
        )
        self.turn_runner = TurnRunner(
            storage=self.storage, engine=self.engine, admission=self.admission, row=self.row, quarantine=self.quarantine
        )
        self.turn_count = 0
        self.poll_count = 0  # polls that are over
        self.polled_at = time.monotonic()  # when the last poll began
        self.stop_deadline = 0.0  # when the process has to be gone after a stop
        self._pause = float("inf")  # seconds until the next poll without a wakeup
        self._error_delay = 0.0  # seconds of the pause after the last error
        self.listener: Listener | None = None  # the one of maintenance, where there is one
        self._stop_event = threading.Event()  # to stop
        self.handover = TurnHandover(
            self.storage,
            max_helpers=handover_threads(),
            run_turns=lambda is_relieved: self._run_loop(
                self._stop_event, is_over=lambda: self._stop_event.is_set() or is_relieved()
            ),
        )
        self.single_runs = SingleRuns(
            storage=self.storage,
            engine=self.engine,
            row=self.row,
            queues=self.queues,
            handover=self.handover,
            publish=self._publish_report,
        )
        self.intake = TaskIntake(
            storage=self.storage,
            pool=self.pool,
            admission=self.admission,
            quarantine=self.quarantine,
            now=self.row.now,
        )
        self.poller = Poller(
            PollParts(
                storage=self.storage,
                engine=self.engine,
                pool=self.pool,
                admission=self.admission,
                quarantine=self.quarantine,
                row=self.row,
                turn_runner=self.turn_runner,
                intake=self.intake,
                single_runs=self.single_runs,
                publish=self._publish_report,
            )
        )

    def _wake(self) -> None:
        if not self.wake.is_set():
            self.wake.set()

    def poll(self) -> PollResult:
        """Look for due work once and do it, and return the number of runs, activities and results by kind.

        Afterwards all activities that were claimed are in the pool. Raises when the database is gone.
        """
        try:
            return self.poller.poll()
        finally:
            self.poll_count += 1

    def _publish_report(self, report: TurnReport) -> None:
        """Send the Django signals and notifications about a committed turn."""
        self.turn_count += report.run_count
        send_turn_signals(report)
        process.reached("notify: before")
        if self.listener is not None:
            self.listener.send_notifications(notify_payloads(report, own_queues=self.queues))
        else:
            send_notifications(report, alias=self.alias, own_queues=self.queues)

    def _perform(self, task: TaskState) -> TaskResult:
        """Run an atomic activity in its run's transaction. The crash marker names the run: this process may end."""
        self.marker.record_chain(task.chain_id)  # atomic activities always belong to a run
        try:
            # Beside what may have ended a process, nothing else is to run.
            releases_lock = not self.poller.caution and not self.single_runs.is_trying_suspects
            with self.handover.running_activity(task, releases_lock=releases_lock):
                return run_atomic_activity(task)
        finally:
            self.marker.record_chain(None)

    # --- loops -------------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event, *, until_idle: bool = False, timeout: float | None = None) -> int:
        """Run turns until ``stop`` is set or, with ``until_idle``, until nothing is due; return how many runs advanced.

        It waits for a database that does not answer, and reconnects with growing pauses when the connection breaks:
        nothing was committed then. ``timeout`` (seconds) limits that, and the time until nothing is due, by a
        ``TimeoutError``. When it returns, activities that have not started are released and the attempt does not count;
        those that still run are released with their attempt counted.
        """
        if until_idle:
            self.cluster = None  # it cannot say when it has no work
        maintenance = Maintenance(self, fires_schedules=not until_idle)
        self._stop_event = stop
        with worker_session(self.alias):
            watchdog.set_heartbeat(self.marker.heartbeat)
            try:
                retry_until_available(maintenance.start, storage=self.storage, stop=stop, timeout=timeout)
                self.handover.register_thread()
                if self.polls_tables:
                    self._run_loop(stop, until_idle=until_idle, timeout=timeout)
                else:
                    self._stay(stop)
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
        """Work until ``is_over()`` (None: until ``stop``), or until nothing is due. Raises ``TimeoutError``."""
        is_over = is_over or stop.is_set
        fruitless = 0
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + timeout
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
            has_waiting = self._has_waiting(due)
            fruitless = fruitless + 1 if has_waiting else 0
            if until_idle and self._is_idle and (not has_waiting or fruitless > policy.FRUITLESS_POLLS):
                if not self._fire_schedules():
                    return
                continue
            self._wait_for_work(due)

    def _stay(self, stop: threading.Event) -> None:
        """Wait for the stop of a worker that leaves the tables to others, and be seen as alive meanwhile."""
        while not stop.wait(policy.MAINTENANCE_SECONDS):
            self.polled_at = time.monotonic()

    def _has_waiting(self, due: float | None) -> bool:
        """Return True if work waits that this worker could not take."""
        return due == 0.0 or self.single_runs.has_waiting or self.admission.has_waiting

    def _wait_for_work(self, due: float | None) -> None:
        """Wait for the next poll or a wakeup; ``due`` is in seconds."""
        if due == 0.0:
            seconds = policy.CONTENDED_SECONDS
        else:
            seconds = self._seconds_until_poll(due)
        was_woken = self.wake.wait(seconds)
        self.poller.expects_work = was_woken and not self.storage.sql.writer_lock

    def _try_poll(
        self, stop: threading.Event, is_over: Callable[[], bool], *, until_idle: bool
    ) -> tuple[PollResult, float | None] | None:
        """Do due work while holding the turn lock; return it and the seconds until something is due.

        None means that the loop is over, or an error and a growing pause. With ``until_idle``, errors are raised,
        except the loss of the connection.
        """
        try:
            with self.handover.turn_lock:
                if is_over():  # while it waited for the lock
                    return None
                self.polled_at = time.monotonic()
                result = self.poll()
                if result:
                    self.pool.load.add_poll(time.monotonic() - self.polled_at, runs=result.runs)
                return result, result.due_in if result or result.is_plain_read else self.poller.next_due()
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
        """Return True if nothing runs here and no rate limit keeps work back."""
        return not (self.pool.busy or self.handover.busy or self.admission.is_rate_limited)

    def _pause_after(self, result: PollResult, stop: threading.Event) -> None:
        """Wait a moment after a poll that found work: more may be due soon and can share a transaction."""
        self._pause = policy.WRITER_PAUSE
        if self.storage.sql.writer_lock:
            stop.wait(policy.WRITER_PAUSE)
            return
        self.poller.expects_work = result.runs >= policy.FEWEST_RUNS
        if result.tasks and result.runs < policy.FEWEST_RUNS:
            self.wake.wait(policy.RESULT_WAIT)

    def _seconds_until_poll(self, due: float | None) -> float:
        poll = get_settings().POLL_INTERVAL
        if self.listener is not None:
            poll *= policy.LISTENING_FACTOR if self.listener.locked else 1
        else:  # recent work is often followed by more at once, so pauses grow
            poll, self._pause = min(poll, self._pause), min(self._pause * 2, poll)
        return min(seconds for seconds in (poll, due, self.admission.wait_seconds) if seconds is not None)

    def run_inline(self, *, timeout: float | None) -> int:
        """Run turns until nothing is due, in this thread and on its connection; return how many runs advanced.

        Activities run in this thread as well. Raises ``TimeoutError`` after ``timeout`` seconds (None: never). At the
        end the worker gives up its row.
        """
        maintenance = Maintenance(self, fires_schedules=False)
        maintenance.register()
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + timeout
        fruitless = 0
        try:
            while True:
                maintenance.run_pass()
                has_advanced = bool(self.poll()) or bool(self.pool.busy)
                is_late = deadline is not None and time.monotonic() > deadline
                if is_late and (has_advanced or self.admission.is_rate_limited):
                    raise TimeoutError(f"after {timeout:g} s there is still work that is due")
                if has_advanced:
                    fruitless = 0
                    continue
                fruitless += 1
                if self._is_finished(fruitless):
                    if not self._fire_schedules():
                        return self.turn_count
                    continue
                time.sleep(policy.CONTENDED_SECONDS)
        finally:
            self._shut_down(None, hurried=True)

    def _fire_schedules(self) -> bool:
        """Fire schedules and send the outbox in this thread, as the last work; return True if there was any."""
        has_fired = background_hooks.run_hooks(self.alias, SCHEDULE_HOOKS)
        return (bool(due_destinations(self.storage)) and send_batch(self.alias, None)) or has_fired

    def _is_finished(self, fruitless: int) -> bool:
        """Return True if nothing is due that this worker can take: after fruitless polls, others have the work."""
        has_waiting = self._has_waiting(self.poller.next_due())
        return not self.admission.is_rate_limited and (not has_waiting or fruitless > policy.FRUITLESS_POLLS)

    def _shut_down(self, maintenance: Maintenance | None, *, hurried: bool) -> None:
        """Store results and give up all work and the row. ``hurried`` does not wait for running activities."""
        settings = get_settings()
        self.stop_deadline = time.monotonic() + settings.DRAIN_SECONDS + settings.LEAVE_SECONDS
        if self.cluster is not None:
            self.cluster.begin_stop()
        waiting = self.pool.drain(0.0 if hurried else settings.DRAIN_SECONDS)
        if maintenance is not None:
            maintenance.stop()
        self.handover.join(seconds=self.stop_deadline - settings.LEAVE_SECONDS / 2 - time.monotonic())
        if self.cluster is not None:
            self.cluster.finish_stop(self.stop_deadline - settings.LEAVE_SECONDS / 2 - time.monotonic())
        try:
            with self.handover.turn_lock:
                # Results come before the release: an activity that has ended must not be released and run again.
                self.intake.store_results()
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

    ``queues`` None means all queues of the project. Returns the number of runs that advanced. It waits for activities
    that a rate keeps waiting. Raises ``TimeoutError`` after ``timeout`` seconds (None: never).
    """
    return WorkerLoop(alias=alias, queues=queues, kind=kind, inline=True).run_inline(timeout=timeout)
