"""The threads of a worker that write rows of runs on a cluster, several runs in one commit, and send their signals."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, IntegrityError, close_old_connections, connections

from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.mirrored_run import MirroredRun, ObservedRun
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import counted
from temporalex_django.db.connections import keep_open, worker_session
from temporalex_django.db.messages.notify import send_turn_signals
from temporalex_django.db.storage import DjangoStorage

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
    """Work for the thread, and the future of its result. ``run_id`` names the run that it is about, if there is one."""

    run_id: str
    future: Future[Any] = field(default_factory=Future, kw_only=True)


@dataclass(slots=True, eq=False)
class _Rows(_Job):
    """The rows of a run, to be written. They are tried again until ``until``, by ``time.monotonic``.

    Rows that nobody waits for are kept until then, and given up at ``dropped_at`` (None: an activation waits for them).
    """

    run: ObservedRun
    until: float
    dropped_at: float | None = None

    def follow(self, earlier: _Rows) -> None:
        """Take over what has happened in an earlier activation of the run, whose rows are not written."""
        self.run = replace(self.run, events=[*earlier.run.events, *self.run.events])
        if self.dropped_at is not None:
            self.until, self.dropped_at = earlier.until, earlier.dropped_at


@dataclass(slots=True, eq=False)
class _Call(_Job):
    """A function to be called. It is left out if later rows of its run are written with it."""

    function: Callable[[], Any]


class _Thread:
    """A thread with a connection of its own, and the queue of its work.

    It begins with the first item, and again with the first one after its end. ``run`` takes the items.
    """

    def __init__(self, name: str, run: Callable[[], None], alias: str) -> None:
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._name, self._run, self._alias = name, run, alias
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, item: Any) -> None:
        """Add an item. Returns at once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self.items.put(item)

    def _work(self) -> None:
        keep_open()
        with worker_session(self._alias):
            self._run()

    def close(self) -> None:
        """End the thread after what waits."""
        with self._lock:
            if self._thread is not None:
                self.items.put(None)
                self._thread.join(10)
                self._thread = None


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
        self._reports = _Thread("temporalex-mirror-signals", self._send_signals, alias)
        self._thread = _Thread("temporalex-mirror", self._run, alias)

    def observe(self, run: ObservedRun) -> None:
        """Write the rows of a run, and return when they are committed.

        Raises ``mirror.MirrorBusy`` if another transaction locks the rows for about a second. Raises ``DatabaseBusy``
        if there is no commit within ``WAIT_SECONDS``. Errors of the database are raised unchanged.
        """
        self._submit(_Rows(run.run_id, run, time.monotonic() + _TRY_SECONDS))

    def observe_soon(self, run: ObservedRun) -> None:
        """Write the rows of a run soon. Returns at once, unless the database has not taken earlier ones in time."""
        if not self._combines or self._is_late():
            self.observe(run)
        else:
            now = time.monotonic()
            self._thread.put(_Rows(run.run_id, run, now + _SOON, dropped_at=now + _DROPPED))

    def _is_late(self) -> bool:
        """Return True if rows that nobody waits for are behind, because the database takes none or is slow."""
        oldest = next(iter(self._soon.copy().values()), None)
        return self._is_failing or (oldest is not None and time.monotonic() > oldest.until + _SOON)

    def note_failure(self, run_id: str, error: Exception) -> None:
        """Mark the row of a run as blocked, soon. Returns at once; the next activation clears the mark."""
        mark = partial(mirror.mark_blocked, run_id, error, storage=DjangoStorage(self.alias, worker=True))
        self._thread.put(_Call(run_id, mark))

    def leave(self, run: MirroredRun) -> None:
        """Do nothing: the rows of a run stay when it leaves memory."""

    def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the thread and return its value, for short reads of activations.

        Raises what the function raises, and ``DatabaseBusy``.
        """
        return self._submit(_Call("", function))

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
        self._reports.close()

    async def aclose(self) -> None:
        """End the threads like ``close``, beside the event loop."""
        await asyncio.to_thread(self.close)

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _send_signals(self) -> None:
        """Send the Django signals about committed rows, so that no activation waits for their receivers."""
        while (report := self._reports.items.get()) is not None:
            close_old_connections()
            try:
                send_turn_signals(report)
            except Exception as exc:  # noqa: BLE001 - the rows are committed, and others follow
                log.error("signals about runs on the cluster were not sent: %s", error_line(exc))

    def _run(self) -> None:
        checked_at = 0.0
        while (jobs := self._next_jobs()) is not None:
            # A check of the connection is a round trip: a busy thread makes none, unless something has failed.
            if connections[self.alias].errors_occurred or time.monotonic() - checked_at > _CHECK_SECONDS:
                close_old_connections()
                checked_at = time.monotonic()
            self._perform(jobs)

    def _next_jobs(self) -> list[_Job] | None:
        """Wait for work and return the jobs to be done now, without what nobody waits for; None: it is over.

        Rows that were locked come first. They are tried again after a pause at the latest. Rows that nobody waits for
        are kept until the next ones of their run, and a call about a run comes behind its rows.
        """
        due: list[_Job] = [*self._busy]
        jobs: list[_Job | None] = []
        with suppress(queue.Empty):
            jobs.append(self._thread.items.get(timeout=self._pause()))
            while len(jobs) < BATCH:
                jobs.append(self._thread.items.get_nowait())
        self._busy, self._is_ending = [], None in jobs
        if self._is_ending:
            self._thread.items.put(None)
            if jobs[0] is None and not due and not self._soon:
                return None
        new = [job for job in jobs if job is not None and job.future.set_running_or_notify_cancel()]
        return [*due, *self._combine(new)]

    def _pause(self) -> float | None:
        """Return for how many seconds the thread may wait for work; None: as long as there is none."""
        if self._busy:
            return _CONFLICT_PAUSE
        oldest = next(iter(self._soon.values()), None)
        return None if oldest is None else max(oldest.until - time.monotonic(), 0.0)

    def _combine(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Return the jobs to be done now. Rows that nobody waits for are kept until the next ones of their run."""
        now_due: list[_Job] = []
        for job in jobs:
            earlier = self._soon.pop(job.run_id, None)
            if earlier is not None and isinstance(job, _Rows):
                job.follow(earlier)
            elif earlier is not None:
                now_due.append(earlier)
            if isinstance(job, _Rows) and job.dropped_at is not None:
                self._soon[job.run_id] = job
            else:
                now_due.append(job)
        late = [job for job in self._soon.values() if self._is_ending or job.until <= time.monotonic()][:BATCH]
        for job in late:
            del self._soon[job.run_id]
        return [*late, *now_due]  # a call about a run comes behind its rows

    def _perform(self, jobs: Sequence[_Job]) -> None:
        """Write the rows, and call the functions except those that later rows of their runs make obsolete."""
        if rows := [job for job in jobs if isinstance(job, _Rows)]:
            self._write(rows, DjangoStorage(self.alias, worker=True))
        last_rows = {job.run_id: number for number, job in enumerate(jobs) if isinstance(job, _Rows)}
        for number, job in enumerate(jobs):
            if isinstance(job, _Call) and number > last_rows.get(job.run_id, -1):
                try:
                    job.future.set_result(job.function())
                except Exception as exc:  # noqa: BLE001 - the one who waits gets it
                    job.future.set_exception(exc)
                    if job.run_id:  # nobody waits
                        log.error("could not mark a run as blocked: %s", error_line(exc))

    def _write(self, jobs: Sequence[_Rows], storage: DjangoStorage) -> None:
        """Write the rows of these runs in one transaction. If that fails, write them one by one.

        After a conflict with another transaction, rows are tried again later.
        """
        try:
            runs = [job.run for job in jobs]
            errors = mirror.write(*runs, storage=storage, wait=0.0, announce=self._reports.put)
        except Exception as exc:  # noqa: BLE001 - each is tried alone, and the one who waits gets its own error
            if len(jobs) > 1:
                log.info(
                    "the rows of %s are written one by one: %s", counted(len(jobs), "run", "runs"), error_line(exc)
                )
                for job in jobs:
                    self._write([job], storage)
                return
            # Another worker may have inserted the rows of the same run, which the next try finds.
            may_pass = isinstance(exc, mirror.MirrorBusy | IntegrityError)
            may_pass = may_pass or (isinstance(exc, DatabaseError) and storage.is_transient(exc))
            self._try_later(jobs[0], exc, may_pass=may_pass)
            return
        self._is_failing = False
        for job in jobs:
            if (error := errors.get(job.run_id)) is None:
                job.future.set_result(None)
            else:
                self._try_later(job, error, may_pass=True)

    def _try_later(self, job: _Rows, error: Exception, *, may_pass: bool) -> None:
        """Try rows again after a conflict that ``may_pass``, or else tell the one who waits for them.

        If nobody does, try them again a little later.
        """
        now = time.monotonic()
        if job.dropped_at is None and may_pass and now < job.until:
            self._busy.append(job)
        elif job.dropped_at is None:
            job.future.set_exception(error)
        else:
            self._is_failing = True
            log.warning("the rows of %s are not written yet: %s", job.run.execution.workflow_id, error_line(error))
            if self._is_ending or now > job.dropped_at:
                return
            job.until = now + _SOON
            if (later := self._soon.setdefault(job.run_id, job)) is not job:
                later.follow(job)
