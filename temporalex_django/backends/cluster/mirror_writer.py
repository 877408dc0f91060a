"""The thread of a worker that writes rows of runs on a cluster: it commits the writes of several runs together."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, close_old_connections

from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.mirrored_run import FailedTask, ObservedRun
from temporalex_django.core.error_text import error_line
from temporalex_django.db.connections import keep_open, worker_session
from temporalex_django.db.storage import DjangoStorage

log = logging.getLogger("temporalex_django.backends")

#: Seconds for which an activation waits for its rows. After them its task fails, and the server has it done again. The
#: SDK itself ends a task after 2 seconds.
WAIT_SECONDS: Final = 1.5
#: Runs whose rows are committed together.
BATCH: Final = 50
#: Seconds for which a write is tried again after a conflict with another transaction.
_TRY_SECONDS: Final = 1.0
_CONFLICT_PAUSE: Final = 0.02


class DatabaseBusy(Exception):
    """Raised if the database has not taken the rows of a run in time."""


@dataclass(slots=True, eq=False)
class _Job:
    """Work for the thread, and the future of its result."""

    future: Future[Any] = field(default_factory=Future, kw_only=True)


@dataclass(slots=True, eq=False)
class _Rows(_Job):
    """The rows of a run, to be written."""

    run: ObservedRun


@dataclass(slots=True, eq=False)
class _Call(_Job):
    """A function to be called."""

    function: Callable[[], Any]


class MirrorWriter:
    """Writes rows of runs in one thread, with one connection, whatever the number of activations at a time.

    What has come in while the thread was committing is committed together next. So a write waits for one commit at
    most before its own, and a busy worker has few commits.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="temporalex-mirror", daemon=True)
        self._thread.start()

    def observe(self, run: ObservedRun) -> None:
        """Write the rows of a run, and return when they are committed.

        Raises ``DatabaseBusy`` after ``WAIT_SECONDS``, ``mirror.MirrorBusy``, and the errors of the database.
        """
        self._submit(_Rows(run))

    def note_failure(self, failed: FailedTask) -> None:
        """Mark the row of a run as blocked, soon. Returns at once; the next activation clears the mark."""
        self._jobs.put(_Call(partial(mirror.mark_blocked, failed, storage=DjangoStorage(self.alias, worker=True))))

    def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the thread and return its value, for short reads of activations.

        Raises what the function raises, and ``DatabaseBusy``.
        """
        return self._submit(_Call(function))

    def _submit(self, job: _Job) -> Any:
        self._jobs.put(job)
        try:
            return job.future.result(WAIT_SECONDS)
        except FutureTimeout:
            job.future.cancel()  # has no effect if the rows are being written, and then either outcome is right
            raise DatabaseBusy(f"the database has not answered within {WAIT_SECONDS:g} s") from None

    def close(self) -> None:
        """End the thread after what waits, and close its connection."""
        self._jobs.put(None)
        self._thread.join(10)

    def _run(self) -> None:
        keep_open()
        with worker_session(self.alias):
            while (jobs := self._next_jobs()) is not None:
                close_old_connections()
                self._perform(jobs)

    def _next_jobs(self) -> list[_Job] | None:
        """Wait for work and return all that is there, without what nobody waits for; None: it is over."""
        jobs: list[_Job | None] = [self._jobs.get()]
        while len(jobs) < BATCH:
            try:
                jobs.append(self._jobs.get_nowait())
            except queue.Empty:
                break
        if None in jobs:
            self._jobs.put(None)
            if jobs[0] is None:
                return None
        return [job for job in jobs if job is not None and job.future.set_running_or_notify_cancel()]

    def _perform(self, jobs: Sequence[_Job]) -> None:
        storage = DjangoStorage(self.alias, worker=True)
        runs = [job for job in jobs if isinstance(job, _Rows)]
        if len(runs) > 1:
            runs = self._write_together(runs, storage)
        for rows in runs:
            _settle(rows, partial(_write_alone, rows.run, storage))
        for job in jobs:
            if isinstance(job, _Call):
                _settle(job, job.function)

    def _write_together(self, jobs: list[_Rows], storage: DjangoStorage) -> list[_Rows]:
        """Write the rows of these runs in one transaction, and return the jobs that have to be written alone."""
        jobs.sort(key=lambda job: mirror.lock_order(job.run))  # as other workers do
        busy: list[_Rows] = []
        try:
            with storage.transaction("mirror"):
                for job in jobs:
                    try:
                        mirror.write(job.run, storage=storage, wait=0.0)
                    except mirror.MirrorBusy:
                        busy.append(job)
        except Exception as exc:  # noqa: BLE001 - each is tried alone, and gets its own error
            log.info("the rows of %d runs are written one by one: %s", len(jobs), error_line(exc))
            return jobs
        for job in jobs:
            if job not in busy:
                job.future.set_result(None)
        return busy


def _write_alone(run: ObservedRun, storage: DjangoStorage) -> None:
    """Write the rows of one run, again after conflicts."""
    started_at = time.monotonic()
    while True:
        try:
            mirror.write(run, storage=storage)
        except DatabaseError as exc:
            if not storage.is_transient(exc) or time.monotonic() - started_at > _TRY_SECONDS:
                raise
            time.sleep(_CONFLICT_PAUSE)
        else:
            return


def _settle(job: _Job, function: Callable[[], Any]) -> None:
    try:
        job.future.set_result(function())
    except Exception as exc:  # noqa: BLE001 - the one who waits gets it
        job.future.set_exception(exc)
