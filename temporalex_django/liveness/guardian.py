"""Who ends a worker that nothing inside of it can stop.

Code in a C function may keep the interpreter to itself, and a loop may catch every exception: then no thread of the
process can do anything about it. So ``manage.py temporalex worker`` is two processes: the parent, which runs no code of
users, and its child, which works. The watchdog of the child beats in its marker (``liveness.crash_markers``) as long as
nothing holds out against it. When the child dies, the parent reports it: it writes to the database what the marker
says, since the marker may go with the container. The pusher of a django-q2 cluster does the same for the workers of the
cluster, but for that report: the worker that it starts next reads the marker.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

from temporalex_django.liveness.crash_markers import read_heartbeats, record_end
from temporalex_django.liveness.health import GuardianFile
from temporalex_django.liveness.process_identity import process_state

log = logging.getLogger("temporalex_django.liveness")

_CHECK_INTERVAL = 0.5
#: What a look counts at most: a guardian that was late itself has not seen what happened meanwhile.
_MAX_STEP = 0.6
#: How often its own file says that it looks.
_WRITE_INTERVAL = 1.0
#: How long the database has to answer before a guardian ends without having written what its worker died of.
_REPORT_TIMEOUT = 5.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_STOPPED = "T"


class WatchState:
    """Counts the seconds in which one process could have beaten, and did not. Pure."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.silent = 0.0
        self._heartbeats = 0
        self._observed_at: float | None = None

    def observe(self, *, heartbeats: int, stopped: bool, now: float) -> bool:
        """Whether it is to be ended.

        ``heartbeats`` 0: it is not watched. Time in which it was stopped, or nobody looked, does not count.
        """
        before, self._observed_at = self._observed_at, now
        if not heartbeats or heartbeats != self._heartbeats or before is None:
            self._heartbeats, self.silent = heartbeats, 0.0
        elif not stopped:
            self.silent += min(now - before, _MAX_STEP)
        return self.silent > self.limit


class WorkerGuardian:
    """Looks after worker processes on this machine that work on one database (``DjangoStorage.domain``)."""

    def __init__(self, domain: str, limit: float) -> None:
        self.domain = domain
        self.limit = limit
        self._watch_states: dict[int, WatchState] = {}
        self._file = GuardianFile(domain)
        self._wrote_at = 0.0

    def check(self, pids: Collection[int]) -> None:
        """To be called every ``_CHECK_INTERVAL`` seconds.

        Ends (SIGKILL) those of them that have been silent for too long.
        """
        if time.monotonic() - self._wrote_at >= _WRITE_INTERVAL:
            self._file.write()
            self._wrote_at = time.monotonic()
        self._watch_states = {pid: self._watch_states.get(pid) or WatchState(self.limit) for pid in pids}
        for pid, watch_state in self._watch_states.items():
            path, heartbeats = read_heartbeats(pid, self.domain)
            if watch_state.observe(
                heartbeats=heartbeats, stopped=process_state(pid) in {"T", "t"}, now=time.monotonic()
            ):
                log.error("worker %d is ended: for %g s nothing could interrupt what it runs", pid, watch_state.silent)
                record_end(path, self.limit)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """It looks no more."""
        self._file.remove()


def supervise(
    domain: str, limit: float, *, leaves_within: float, report_deaths: Callable[[], None]
) -> int | Callable[[], None]:
    """Go on in a child of this process.

    Here the exit status that this process is to end with, when the child has ended.

    Before any thread or connection. SIGTERM and SIGINT are passed on; a child that is still there ``leaves_within``
    seconds later is killed. One that a signal ended gives 128 and its number; when this process is killed, so is the
    child. ``report_deaths`` is called here when the child did not end well, and gets a moment for it. In the child:
    what it is to call at every beat, so that it is stopped (SIGSTOP) as long as this process is; supervisors know no
    other pid.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent, (ours, theirs) = os.getpid(), os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        die_with_parent(parent)
        return partial(_stop_with_parent, parent, theirs)
    os.close(theirs)
    signal_times: list[float] = []

    def forward_signal(number: int, _frame: Any) -> None:
        signal_times.append(time.monotonic())
        _send_signal(child, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward_signal)
    guard, is_stopping = WorkerGuardian(domain, limit), False
    while True:
        readable, _, _ = select.select([ours], [], [], _CHECK_INTERVAL)  # readable too when the child has ended
        is_stopping = bool(readable and os.read(ours, select.PIPE_BUF)) or is_stopping
        if is_stopping and process_state(child) == _STOPPED:  # because this process was, which goes on
            _send_signal(child, signal.SIGCONT)
            is_stopping = False
        ended_pid, status = os.waitpid(child, os.WNOHANG)
        if ended_pid:
            guard.stop()
            code = os.waitstatus_to_exitcode(status)
            if code:
                _run_with_timeout(_REPORT_TIMEOUT, report_deaths)
            return code if code >= 0 else 128 - code
        if signal_times and time.monotonic() - signal_times[0] > leaves_within:
            log.error("the worker %d does not end within %g s, killing it", child, leaves_within)
            _send_signal(child, signal.SIGKILL)
            signal_times.clear()
        guard.check([child])


def _run_with_timeout(seconds: float, report_deaths: Callable[[], None]) -> None:
    """Call it in a thread that this process does not wait for any longer: the database may be away."""
    thread = threading.Thread(target=report_deaths, name="temporalex-deaths", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        log.warning("the database did not answer within %g s: whoever finds the worker dead judges it", seconds)


def _send_signal(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _stop_with_parent(parent: int, pipe: int) -> None:
    """Stop if the parent was stopped.

    It is told before, so that it knows for whom it is to see to it that this process goes on.
    """
    if process_state(parent) == _STOPPED:
        os.write(pipe, b".")
        os.kill(os.getpid(), signal.SIGSTOP)


def die_with_parent(parent: int) -> None:
    """End when the parent does, or its thread that started this process, however it ends and whatever runs here."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    except AttributeError:  # not Linux
        threading.Thread(target=_watch_parent, args=[parent], name="temporalex-parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_INTERVAL)
    os.kill(os.getpid(), signal.SIGKILL)
