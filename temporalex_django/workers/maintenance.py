"""The maintenance of a worker, in a thread of its own.

It sends heartbeats of the worker and of activities, ends activities that exceed a timeout, recovers the work of dead
workers, and deletes runs whose retention is over.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import counted
from temporalex_django.db import outbox
from temporalex_django.db.background_hooks import ALERT_HOOKS, BACKGROUND_HOOKS, SCHEDULE_HOOKS
from temporalex_django.db.claims.limited import read_switches
from temporalex_django.db.connections import worker_session
from temporalex_django.db.retention import Retention
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import activity_policy, policy
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.liveness.health import (
    Health,
    HealthFile,
    State,
    activity_threads,
    delete_stale_files,
    extra_connections,
)
from temporalex_django.liveness.leases import Heartbeats, WorkerRow, wake_for_code, wake_switched_on
from temporalex_django.liveness.recovery import judge_abandoned_markers, recover, release_orphans
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder
from temporalex_django.workers.admission import Admission
from temporalex_django.workers.attempts import announce_result
from temporalex_django.workers.background_thread import BackgroundThread
from temporalex_django.workers.cluster import ClusterPoller
from temporalex_django.workers.polling import Poller
from temporalex_django.workers.pool import Pool
from temporalex_django.workers.turn_runner import TurnHandover

if TYPE_CHECKING:
    from temporalex_django.workers.listener import Listener


log = logging.getLogger("temporalex_django.workers")


class Maintenance:
    """The maintenance of one worker loop, in a thread of its own.

    It has a storage and a connection of its own, so that a long turn does not keep the worker from sending heartbeats.
    A loop that ends when nothing is due fires schedules itself (``fires_schedules=False``).
    """

    def __init__(self, loop: MaintainedLoop, *, fires_schedules: bool = True) -> None:
        self.loop = loop
        self._fires_schedules = fires_schedules
        self.storage = DjangoStorage(loop.alias, worker=True)
        self.listener: Listener | None = None
        self.background_thread = BackgroundThread(
            loop.alias, BACKGROUND_HOOKS, name="temporalex-chores", pause=policy.BACKGROUND_PAUSE
        )
        self.schedule_thread = BackgroundThread(loop.alias, SCHEDULE_HOOKS, name="temporalex-schedules", pause=0)
        self.alert_thread = BackgroundThread(loop.alias, ALERT_HOOKS, name="temporalex-alerts", pause=0)
        self.outbox = OutboxDispatcher(loop.alias)
        self._outbox_event = threading.Event()
        self._heartbeat_at = 0.0
        self._orphans_at = 0.0
        self._retention = Retention(self.storage)
        self._retention_at = 0.0
        self._abandoned_at = 0.0
        self._background_at = 0.0
        self._schedules_at = 0.0
        # The first round of a worker comes a minute after its start: runs that waited for it are no problem then.
        self._alerts_at = time.monotonic()
        self._reported_at = 0.0
        self.heartbeats = Heartbeats()
        self._code_checked_at = 0.0
        self._stray_keys: tuple[set[tuple[int, int, int]], int] = (set(), 0)  # with the number of polls before
        self.report = HealthReport(loop)
        self._switched_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="temporalex-maintenance", daemon=True)

    def start(self) -> None:
        """Register the worker in the calling thread, then start the maintenance thread.

        The row of the worker exists when this returns. If the database did not answer, it may be called again.
        """
        loop = self.loop
        self.report.start()
        if self.listener is None and self.storage.sql.listens and not get_settings().POOLED:
            from temporalex_django.workers.listener import Listener  # noqa: PLC0415 - psycopg is an extra

            self.listener = Listener(
                loop.alias,
                loop.queues,
                epoch=lambda: loop.row.epoch,
                wake=loop.wake.set,
                wake_outbox=self._outbox_event.set,
            )
            self.listener.start()
            loop.listener = self.listener
        self.register()
        self.report.write()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._outbox_event.set()
        if self._thread.is_alive():
            self._thread.join(policy.STOP_SECONDS)
        self.background_thread.stop()
        self.schedule_thread.stop()
        self.alert_thread.stop()
        self.outbox.stop()
        if self.listener is not None:
            self.listener.stop()
        recorder.set_sampler(samples=False)
        self.report.remove()

    def register(self) -> None:
        """Insert the row of the worker, after a search for dead workers.

        Blocked runs are made due, because this worker may have the code that they need.
        """
        row = self.loop.row
        self.loop.admission.switches = read_switches(self.storage.sql)  # before the first poll
        # First, so that a run that killed the worker before this one is not among the first to be claimed.
        self._recover()
        row.session_lock = self.listener is not None and self.listener.locked
        started_at = time.monotonic()
        row.register(self.storage)
        self.report.record_lease(started_at)
        self._heartbeat_at = time.monotonic()

    def _recover(self) -> None:
        """Find dead workers and count deaths. A try fails if another process does the same at that moment."""
        self.heartbeats.clear()
        for _ in range(policy.RECOVERY_TRIES):
            try:
                self.loop.poller.caution = recover(self.storage, self.heartbeats).caution
                judge_abandoned_markers(self.storage)
            except DatabaseError as exc:
                if not self.storage.is_transient(exc):
                    raise
                log.info("another process is recovering the same worker: %s", error_line(exc))
            else:
                return

    def _run(self) -> None:
        """Do one pass after the other until the worker stops, whatever a pass raises."""
        delay = policy.MAINTENANCE_SECONDS
        with worker_session(self.storage.alias):
            while not self._rest(delay):
                try:
                    self.run_pass()
                    delay = policy.MAINTENANCE_SECONDS
                except DatabaseError as exc:
                    self.loop.on_heartbeat()
                    if not self.storage.is_transient(exc):
                        log.warning(
                            "the database is not responding to this worker's maintenance queries: %s", error_line(exc)
                        )
                        connections[self.storage.alias].close()
                        delay = min(delay * 2, policy.LONGEST_RECONNECT)
                except Exception as exc:  # noqa: BLE001 - whatever it is, maintenance continues
                    log.error("maintenance continues after an error: %s", error_line(exc))

    def _rest(self, delay: float) -> bool:
        """Wait for the next pass; send the outbox meanwhile if notified. Return True after a stop."""
        deadline = time.monotonic() + delay
        while not self._stop.is_set() and (left := deadline - time.monotonic()) > 0:
            if self._outbox_event.wait(left):
                self._outbox_event.clear()
                if not self._stop.is_set() and self.loop.row.drained_at is None:
                    with suppress(DatabaseError):  # the next pass reports it
                        self.outbox.ensure_running()
        return self._stop.is_set()

    def run_pass(self) -> None:
        """Do the maintenance that is due now. Raises when the database is gone."""
        self.loop.on_heartbeat()
        self.loop.handover.check()
        # Nobody watches a worker that works in the thread of its caller.
        if self._thread.is_alive() and time.monotonic() - self._reported_at >= policy.REPORT_SECONDS:
            self._reported_at = time.monotonic()
            self.report.write()
            self._record_metrics()
        self._read_switches()
        self._record_heartbeats()
        self._expire_tasks()
        if self._is_heartbeat_due():
            self._send_heartbeat()
        recovered = recover(self.storage, self.heartbeats, own=self.loop.row.id)
        if bool(recovered.caution) != bool(self.loop.poller.caution):
            log.info(
                "the work of another worker may have killed it: claiming runs one by one"
                if recovered.caution
                else "all other workers send heartbeats: claiming runs together again"
            )
        self.loop.poller.caution = recovered.caution
        if time.monotonic() - self._abandoned_at >= policy.ABANDONED_SECONDS:
            judge_abandoned_markers(self.storage)
            self._abandoned_at = time.monotonic()
        if recovered:
            self.loop.wake.set()
        if time.monotonic() - self._code_checked_at >= policy.CODE_SECONDS:
            self._code_checked_at = time.monotonic()
            if wake_for_code(self.storage, self.loop.row.workflows):
                self.loop.wake.set()
        if time.monotonic() - self._orphans_at >= policy.ORPHANS_SECONDS:
            release_orphans(self.storage)
            self._orphans_at = time.monotonic()
        if self.loop.row.drained_at is None:
            self._start_background_work()
            if self._thread.is_alive():  # a loop in the thread of its caller sends the outbox itself, at its end
                self.outbox.ensure_running()
        if time.monotonic() - self._retention_at >= policy.RETENTION_SECONDS and not self._retention.sweep():
            self._retention_at = time.monotonic()

    def _start_background_work(self) -> None:
        if time.monotonic() - self._background_at >= policy.BACKGROUND_SECONDS:
            self._background_at = time.monotonic()
            self.background_thread.ensure_running()
            self.report.outbox_age = self.outbox.age()
        if self._fires_schedules and time.monotonic() - self._schedules_at >= policy.SCHEDULE_SECONDS:
            self._schedules_at = time.monotonic()
            self.schedule_thread.ensure_running()
        if get_settings().ALERTS and time.monotonic() - self._alerts_at >= policy.ALERT_SECONDS / 4:
            self._alerts_at = time.monotonic()
            self.alert_thread.ensure_running()

    def _read_switches(self) -> None:
        """Read the switches for the loop and the cluster, and make runs due whose class is on again."""
        admission = self.loop.admission
        previous_switches, admission.switches = admission.switches, read_switches(self.storage.sql)
        if admission.switches != previous_switches:
            self._switched_at = time.monotonic()
            self.loop.wake.set()
        if self.loop.cluster is not None:
            self.loop.cluster.update(admission.switches)
        # A worker that has not read the change yet may still block a run after this one has looked.
        if time.monotonic() - self._switched_at < policy.SWITCH_SECONDS:
            woken = wake_switched_on(self.storage, admission.switches.workflows)
            if woken:
                self.loop.wake.set()
            if woken >= policy.WAKE_LIMIT:
                self._switched_at = time.monotonic()

    def _record_metrics(self) -> None:
        """Record the places for activities, and find out if this process samples the database's metrics."""
        if not recorder.is_active:
            return
        for lane, (used, free) in zip(("threads", "tasks"), self.loop.pool.slots, strict=True):
            recorder.record(definitions.WORKER_SLOTS, used, lane=lane, state="used")
            recorder.record(definitions.WORKER_SLOTS, free, lane=lane, state="free")
        recorder.set_sampler(samples=self.loop.row.samples_facts(self.storage))

    def _is_heartbeat_due(self) -> bool:
        return time.monotonic() - self._heartbeat_at >= get_settings().LEASE_SECONDS / policy.HEARTBEATS_PER_LEASE

    def _send_heartbeat(self) -> None:
        """Extend the lease. A worker that was declared dead gives up its activities and registers anew."""
        loop, row, started_at = self.loop, self.loop.row, time.monotonic()
        row.session_lock = self.listener is not None and self.listener.locked
        if not row.send_heartbeat(
            self.storage,
            runs=len(loop.engine.cache),
            activities=loop.pool.busy,
            turns=loop.turn_count,
            load=loop.pool.load.load(),
        ):
            log.error("this worker was declared dead: others have its activities, and it continues under a new epoch")
            if recorder.is_active:
                recorder.record(definitions.LEASES_LOST)
            loop.pool.cancel(loop.pool.pending_keys())
            row.remove(self.storage)  # otherwise others would look for what it died of
            row.renew_epoch()
            row.register(self.storage)
            self.heartbeats.clear()
        self.report.record_lease(started_at)
        if time.monotonic() - self._heartbeat_at > get_settings().LEASE_SECONDS:
            self.heartbeats.clear()  # other workers could not send any either
        self._heartbeat_at = time.monotonic()

    def _record_heartbeats(self) -> None:
        """Store starts and heartbeats, one statement each. Attempts that this worker lost are cancelled."""
        pool = self.loop.pool
        heartbeats = pool.heartbeats()
        started_tasks = pool.started_tasks()
        self.storage.mark_tasks_started(started_tasks)
        pool.mark_start_recorded(started_tasks)
        self.storage.record_heartbeats(heartbeats)
        self.storage.record_progress(pool.progress_reports())
        if overdue_keys := pool.overdue():
            self.storage.release_unstarted(overdue_keys)
            self.loop.wake.set()  # they wait for a thread that is free
        running_keys = pool.running_keys()
        # An idle worker asks for its rows only as often as it sends its own heartbeat.
        if running_keys or self._stray_keys[0] or self._is_heartbeat_due():
            owned = self._owned_keys()
            pool.mark_cancelled({key: at for key, at in owned.items() if at is not None})
            if lost := {key for key in (*heartbeats, *running_keys) if key not in owned}:
                pool.cancel(lost)

    def _owned_keys(self) -> dict[tuple[int, int, int], datetime | None]:
        """Return ``(task id, attempt, owner)`` of owned attempts, and when each was cancelled.

        Release unknown ones: the answer to their commit was lost.
        A poll in progress may have claimed an attempt a moment ago. So it is released only if it is still unknown after
        a later poll than that one.
        """
        loop = self.loop
        owned = self.storage.owned_tasks(loop.row.epoch)
        unknown_keys = owned.keys() - loop.pool.all_keys()
        stray_keys, poll_count = self._stray_keys
        if unknown_keys & stray_keys and loop.poll_count > poll_count:
            log.warning(
                "released %s that this worker had claimed without noticing",
                counted(len(unknown_keys & stray_keys), "activity", "activities"),
            )
            self.storage.release_unstarted(unknown_keys & stray_keys)
            loop.wake.set()
            unknown_keys -= stray_keys
        elif unknown_keys & stray_keys:
            return owned  # the poll is not over yet
        self._stray_keys = unknown_keys, loop.poll_count
        return owned

    def _expire_tasks(self) -> None:
        """End activities and attempts of all workers that have exceeded one of their timeouts."""
        expired = self.storage.expired_tasks(limit=policy.EXPIRED_LIMIT)
        if not expired:
            return
        now = self.storage.now()
        results = [result for task in expired if (result := activity_policy.check_timeout(task, now)) is not None]
        valid = set(self.storage.finish_tasks(results))
        for result in results:
            if result.task.id in valid:
                announce_result(result)
        self.loop.wake.set()


# --- maintained loop --------------------------------------------------------------------------------------------------
#
# The type of a worker loop, as its maintenance and its health report use it.


class MaintainedLoop(Protocol):
    """The attributes of a worker loop that its maintenance thread and its health report use.

    Maintenance sets ``listener`` and parts of ``poller``, and reads the others.
    """

    alias: str
    queues: list[str]
    row: WorkerRow
    engine: WorkflowEngine
    pool: Pool
    admission: Admission
    handover: TurnHandover
    poller: Poller
    cluster: ClusterPoller | None
    wake: threading.Event
    listener: Listener | None
    #: Runs that were advanced, and polls that are over.
    turn_count: int
    poll_count: int
    #: When the last poll began, and when the process has to be gone after a stop (0.0: it was not asked to).
    polled_at: float
    stop_deadline: float
    #: The maintenance thread calls it several times a second.
    on_heartbeat: Callable[[], None]

    @property
    def storage(self) -> WorkerStorage: ...


# --- health report ----------------------------------------------------------------------------------------------------
#
# The health file of a worker, and the number of its database connections.


def handover_threads() -> int:
    """Return how many threads may run turns while a long atomic activity occupies the worker's own thread.

    Each of them needs a connection, so there are no more than the other connections leave of ``WORKER_CONNECTIONS``.
    """
    settings = get_settings()
    if settings.WORKER_CONNECTIONS is None:
        return policy.MAX_HELPERS
    return max(0, min(policy.MAX_HELPERS, settings.WORKER_CONNECTIONS - extra_connections() - activity_threads()))


class HealthReport:
    """The health file of one worker loop, and the values that it writes there.

    ``lease_until`` is a time of the monotonic clock; the code that sends the heartbeats sets it.
    """

    def __init__(self, loop: MaintainedLoop) -> None:
        self.loop = loop
        self.lease_until = 0.0
        #: Seconds since which the oldest outgoing message should be gone; 0.0: there is none.
        self.outbox_age = 0.0
        self._file = HealthFile(loop.storage.domain)

    def start(self) -> None:
        """Write that the worker starts, and delete the files of dead workers.

        It may be called again as long as the worker waits for its database.
        """
        delete_stale_files(self._file.domain)
        self.write("starting")

    def record_lease(self, started_at: float) -> None:
        """Record that a statement which began at ``started_at`` (monotonic clock) extended the lease."""
        # Counted from the beginning of the statement, so that the worker never takes its lease for longer than it is.
        self.lease_until = started_at + get_settings().LEASE_SECONDS

    def write(self, state: State | None = None) -> None:
        """Write the present values of the worker to its health file.

        ``state`` replaces the state that follows from the worker's values (working, draining, leaving), if it is not
        None.
        """
        loop = self.loop
        current_state: State = "leaving" if loop.stop_deadline else "draining" if loop.row.drained_at else "working"
        health = Health(
            worker=str(loop.row.id),
            pid=os.getpid(),
            guardian=self._file.guardian_pid(),
            kind=loop.row.kind,
            queues=loop.queues,
            state=state or current_state,
            wrote_at=time.monotonic(),
            looked_at=min(loop.polled_at, loop.handover.oldest_started_at),
            lease_until=self.lease_until,
            leaves_by=loop.stop_deadline,
            runs=len(loop.engine.cache),
            activities=loop.pool.busy,
            turns=loop.turn_count,
            connections=activity_threads() + handover_threads() + extra_connections(),
            counters={"outbox_age": round(self.outbox_age, 1)},
        )
        self._file.write(health)

    def remove(self) -> None:
        self._file.remove()


# --- outbox -----------------------------------------------------------------------------------------------------------
#
# The dispatcher of a worker: it sends the rows of the outbox, in one thread for each destination that has some.


class OutboxDispatcher:
    """Sends the rows of the outbox of one database, from the maintenance of a worker.

    No destination waits for another: each has a thread, which exists only while rows for it are due.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._stop = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def ensure_running(self) -> None:
        """Start the threads of destinations that have due rows and no thread. One read."""
        for destination in outbox.due_destinations(DjangoStorage(self.alias, worker=True)):
            thread = self._threads.get(destination)
            if thread is None or not thread.is_alive():
                thread = threading.Thread(
                    target=self._run, args=[destination], name=f"temporalex-outbox-{destination}", daemon=True
                )
                self._threads[destination] = thread
                thread.start()

    def age(self) -> float:
        """Return the seconds since which the oldest row should have been sent; 0.0 if there is none. One read."""
        storage = DjangoStorage(self.alias, worker=True)
        oldest = outbox.oldest_due(storage)
        return 0.0 if oldest is None else max(0.0, (storage.now() - oldest).total_seconds())

    def stop(self) -> None:
        """Stop the threads after what they are sending, and wait for them at most ``policy.STOP_SECONDS`` seconds."""
        self._stop.set()
        for thread in self._threads.values():
            thread.join(policy.STOP_SECONDS)

    def _run(self, destination: str) -> None:
        with worker_session(self.alias), ThreadPoolExecutor(policy.OUTBOX_THREADS) as pool:
            try:
                while not self._stop.is_set() and send_batch(self.alias, destination, pool):
                    pass
            except DatabaseError as exc:
                log.warning("the outbox of %s waits for the database: %s", destination, error_line(exc))
                connections[self.alias].close()


def send_batch(alias: str, destination: str | None, pool: ThreadPoolExecutor | None = None) -> bool:
    """Claim and send some due rows of a destination (None: of all); return True if there were any."""
    storage = DjangoStorage(alias, worker=True)
    rows = outbox.claim(storage, limit=policy.OUTBOX_BATCH, destination=destination)
    outbox.deliver(rows, storage=storage, pool=pool)
    return bool(rows)
