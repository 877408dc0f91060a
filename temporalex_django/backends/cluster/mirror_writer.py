"""The threads of a worker that write rows of runs on a cluster, several runs in one commit, and send their signals."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, IntegrityError, close_old_connections, connections

from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.mirrored_run import FailedTask, ObservedRun
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import counted
from temporalex_django.db.connections import keep_open, worker_session
from temporalex_django.db.messages.notify import send_turn_signals
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.turn_report import TurnReport

log = logging.getLogger("temporalex_django.backends")

#: Seconds for which an activation waits for its rows. After them its task fails, and the server has it done again. The
#: SDK itself ends a task after 2 seconds.
WAIT_SECONDS: Final = 1.5
#: Runs whose rows are committed together.
BATCH: Final = 50
#: Seconds for which a write is tried again while another transaction has its rows, and the pause before the next try.
_TRY_SECONDS: Final = 1.0
_CONFLICT_PAUSE: Final = 0.02
#: Seconds after which the next write checks the connection first.
_CHECK_SECONDS: Final = 1.0
#: Seconds after which rows that nobody waits for are written at the latest.
_SOON: Final = 0.5
#: Seconds after which such rows are given up. The next activation of the run writes them.
_DROPPED: Final = 60.0


class DatabaseBusy(Exception):
    """Raised if the database has not taken the rows of a run in time."""


@dataclass(slots=True, eq=False)
class _Job:
    """Work for the thread, and the future of its result."""

    future: Future[Any] = field(default_factory=Future, kw_only=True)


@dataclass(slots=True, eq=False)
class _Rows(_Job):
    """The rows of a run, to be written. They are tried again until ``until``, by ``time.monotonic``.

    Rows that nobody waits for (``is_awaited``) are kept until then, and given up at ``dropped_at``.
    """

    run: ObservedRun
    until: float
    is_awaited: bool = True
    dropped_at: float = 0.0

    def follow(self, earlier: _Rows) -> None:
        """Take over what has happened in an earlier activation of the run, whose rows are not written."""
        self.run = replace(self.run, events=[*earlier.run.events, *self.run.events])
        if not self.is_awaited:
            self.until, self.dropped_at = earlier.until, earlier.dropped_at


@dataclass(slots=True, eq=False)
class _Call(_Job):
    """A function to be called. It is left out if later rows of the run ``run_id`` are written with it."""

    function: Callable[[], Any]
    run_id: str | None = None


class _Thread:
    """A thread and the queue of its work. It begins with the first item, and again with the first one after its end."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._name, self._run = name, run
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, item: Any) -> None:
        """Add an item. Returns at once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self.items.put(item)

    def close(self) -> None:
        """End the thread after what waits."""
        with self._lock:
            if self._thread is not None:
                self.items.put(None)
                self._thread.join(10)
                self._thread = None


class _Announcer:
    """A thread that sends the Django signals about rows, so that no activation waits for their receivers.

    ``announce`` takes a report about committed rows, and returns at once.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._thread = _Thread("temporalex-mirror-signals", self._run)
        self.announce: Callable[[TurnReport], None] = self._thread.put
        self.close = self._thread.close

    def _run(self) -> None:
        keep_open()
        with worker_session(self._alias):
            while (report := self._thread.items.get()) is not None:
                close_old_connections()
                try:
                    send_turn_signals(report)
                except Exception as exc:  # noqa: BLE001 - the rows are committed, and others follow
                    log.error("signals about runs on the cluster were not sent: %s", error_line(exc))


class MirrorWriter:
    """Writes rows of runs in one thread, with one connection, whatever the number of activations at a time.

    What has come in while the thread was committing is committed together next. So a write waits for one commit at
    most before its own, and a busy worker has few commits. Rows that another transaction has locked are tried again
    with what comes next, and another thread sends the Django signals, so no run waits for another one's.

    With ``combines``, rows that change at most which activities a run waits for are written within half a second, or
    with those of the next activation of the run. If the worker dies meanwhile, its runs are compared with the cluster:
    see ``reconcile``. Workers without a row of their own must not combine, since nobody notices their death.
    """

    def __init__(self, alias: str, *, combines: bool = False) -> None:
        self.alias = alias
        self._busy: list[_Rows] = []
        self._combines = combines
        self._soon: dict[str, _Rows] = {}  # by the run, in the order in which they are due
        self._is_failing = self._is_ending = False
        self._announcer = _Announcer(alias)
        self._thread = _Thread("temporalex-mirror", self._run)

    def observe(self, run: ObservedRun) -> None:
        """Write the rows of a run, and return when they are committed.

        Raises ``mirror.MirrorBusy`` if another transaction locks the rows for about a second. Raises ``DatabaseBusy``
        if there is no commit within ``WAIT_SECONDS``. Errors of the database are raised unchanged.
        """
        self._submit(_Rows(run, time.monotonic() + _TRY_SECONDS))

    def observe_soon(self, run: ObservedRun) -> None:
        """Write the rows of a run soon. Returns at once, unless the database has not taken earlier ones in time."""
        if not self._combines or self._is_late():
            self.observe(run)
        else:
            now = time.monotonic()
            self._thread.put(_Rows(run, now + _SOON, is_awaited=False, dropped_at=now + _DROPPED))

    def _is_late(self) -> bool:
        """Return True if rows that nobody waits for are behind, because the database takes none or is slow."""
        oldest = next(iter(self._soon.copy().values()), None)
        return self._is_failing or (oldest is not None and time.monotonic() > oldest.until + _SOON)

    def note_failure(self, failed: FailedTask) -> None:
        """Mark the row of a run as blocked, soon. Returns at once; the next activation clears the mark."""
        mark = partial(mirror.mark_blocked, failed, storage=DjangoStorage(self.alias, worker=True))
        call = _Call(mark, failed.run_id)
        call.future.add_done_callback(_log_error)
        self._thread.put(call)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the thread and return its value, for short reads of activations.

        Raises what the function raises, and ``DatabaseBusy``.
        """
        return self._submit(_Call(function))

    def _submit(self, job: _Job) -> Any:
        self._thread.put(job)
        try:
            return job.future.result(WAIT_SECONDS)
        except FutureTimeout:
            job.future.cancel()  # has no effect if the rows are being written, and then either outcome is right
            raise DatabaseBusy(f"the database has not answered within {WAIT_SECONDS:g} s") from None

    def close(self) -> None:
        """End the threads after what waits, and close their connections."""
        self._thread.close()
        self._announcer.close()

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Return a context manager at whose end the threads end."""
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def _run(self) -> None:
        keep_open()
        with worker_session(self.alias):
            checked_at = 0.0
            while (jobs := self._next_jobs()) is not None:
                # A check of the connection is a round trip: a busy thread makes none, unless something has failed.
                if connections[self.alias].errors_occurred or time.monotonic() - checked_at > _CHECK_SECONDS:
                    close_old_connections()
                    checked_at = time.monotonic()
                self._perform(jobs)

    def _next_jobs(self) -> list[_Job] | None:
        """Wait for work and return all that is there, without what nobody waits for; None: it is over.

        Rows that were locked come first. They are tried again after a pause at the latest.
        """
        busy, self._busy = self._busy, []
        jobs: list[_Job | None] = []
        with suppress(queue.Empty):
            jobs.append(self._thread.items.get(timeout=self._pause(is_busy=bool(busy))))
            while len(jobs) < BATCH:
                jobs.append(self._thread.items.get_nowait())
        if None in jobs:
            self._thread.items.put(None)
            if jobs[0] is None and not busy and not self._soon:
                return None
        new = [job for job in jobs if job is not None and job.future.set_running_or_notify_cancel()]
        return [*busy, *self._combine(new, is_ending=None in jobs)]

    def _pause(self, *, is_busy: bool) -> float | None:
        """Return for how many seconds the thread may wait for work; None: as long as there is none."""
        if is_busy:
            return _CONFLICT_PAUSE
        oldest = next(iter(self._soon.values()), None)
        return None if oldest is None else max(oldest.until - time.monotonic(), 0.0)

    def _combine(self, jobs: Sequence[_Job], *, is_ending: bool) -> list[_Job]:
        """Return the jobs to be done now: rows that nobody waits for are kept until the next ones of their run."""
        now_due: list[_Job] = []
        for job in jobs:
            if isinstance(job, _Call) and (earlier := self._soon.pop(job.run_id or "", None)) is not None:
                now_due.append(earlier)
            if isinstance(job, _Rows) and (earlier := self._soon.pop(job.run.run_id, None)) is not None:
                job.follow(earlier)
            if isinstance(job, _Rows) and not job.is_awaited:
                self._soon[job.run.run_id] = job
            else:
                now_due.append(job)
        self._is_ending = is_ending
        due = [job for job in self._soon.values() if is_ending or job.until <= time.monotonic()][:BATCH]
        for job in due:
            del self._soon[job.run.run_id]
        return [*due, *now_due]  # a call about a run comes behind its rows

    def _perform(self, jobs: Sequence[_Job]) -> None:
        storage = DjangoStorage(self.alias, worker=True)
        runs = [job for job in jobs if isinstance(job, _Rows)]
        if len(runs) > 1:
            runs = self._write_together(runs, storage)
        for rows in runs:
            self._write_alone(rows, storage)
        for call in _calls(jobs):
            _settle(call)

    def _write_together(self, jobs: list[_Rows], storage: DjangoStorage) -> list[_Rows]:
        """Write the rows of these runs in one transaction, and return the jobs that have to be written alone."""
        jobs.sort(key=lambda job: mirror.lock_order(job.run))  # as other workers do
        busy: dict[_Rows, Exception] = {}
        try:
            with storage.transaction("mirror"):
                batch = mirror.Batch(storage, announce=self._announcer.announce)
                batch.read([job.run for job in jobs])
                for job in jobs:
                    try:
                        mirror.write(job.run, storage=storage, batch=batch)
                    except mirror.MirrorBusy as exc:
                        busy[job] = exc
                batch.store()
        except Exception as exc:  # noqa: BLE001 - each is tried alone, and gets its own error
            log.info("the rows of %s are written one by one: %s", counted(len(jobs), "run", "runs"), error_line(exc))
            return jobs
        self._is_failing = False
        for job in jobs:
            if job not in busy:
                job.future.set_result(None)
        for job, error in busy.items():
            self._try_later(job, error)
        return []

    def _write_alone(self, job: _Rows, storage: DjangoStorage) -> None:
        """Write the rows of one run. After a conflict with another transaction they are tried again later."""
        try:
            mirror.write(job.run, storage=storage, wait=0.0, announce=self._announcer.announce)
        except Exception as exc:  # noqa: BLE001 - the one who waits gets it
            # Another worker may have inserted the rows of the same run, which the next try finds.
            may_pass = isinstance(exc, mirror.MirrorBusy | IntegrityError)
            if may_pass or (isinstance(exc, DatabaseError) and storage.is_transient(exc)):
                self._try_later(job, exc)
            else:
                self._give_up(job, exc)
        else:
            self._is_failing = False
            job.future.set_result(None)

    def _try_later(self, job: _Rows, error: Exception) -> None:
        if job.is_awaited and time.monotonic() < job.until:
            self._busy.append(job)
        else:
            self._give_up(job, error)

    def _give_up(self, job: _Rows, error: Exception) -> None:
        """Tell the one who waits for the rows. If nobody does, try them again a little later."""
        if job.is_awaited:
            job.future.set_exception(error)
            return
        self._is_failing = True
        log.warning("the rows of %s are not written yet: %s", job.run.cluster_id, error_line(error))
        if self._is_ending or time.monotonic() > job.dropped_at:
            return
        job.until = time.monotonic() + _SOON
        if (later := self._soon.get(job.run.run_id)) is not None:
            later.follow(job)
        else:
            self._soon[job.run.run_id] = job


def _calls(jobs: Sequence[_Job]) -> list[_Call]:
    """Return the calls among these jobs in order, without those that later rows of their run make obsolete."""
    calls: list[_Call] = []
    written: set[str] = set()
    for job in reversed(jobs):
        if isinstance(job, _Rows):
            written.add(job.run.run_id)
        elif isinstance(job, _Call) and job.run_id not in written:
            calls.append(job)
    return calls[::-1]


def _settle(call: _Call) -> None:
    try:
        call.future.set_result(call.function())
    except Exception as exc:  # noqa: BLE001 - the one who waits gets it
        call.future.set_exception(exc)


def _log_error(future: Future[Any]) -> None:
    """Log the error of a call for which nobody waits."""
    if (error := future.exception()) is not None:
        log.error("could not mark a run as blocked: %s", error_line(error))
