"""Guardians: processes that end a worker which nothing inside it can stop.

Code in a C function may keep the interpreter to itself, and a loop may catch every exception. Then no thread of the
process can end it. So ``manage.py temporalex worker`` is two processes: the parent, which runs no user code, and its
child, which works. The watchdog of the child sends heartbeats to its marker (``liveness.crash_markers``) as long as all
code can be interrupted. When the child dies, the parent reports the death: it writes to the database what the marker
names, since the marker may go with the container. The pusher of a django-q2 cluster does the same for the workers of
the cluster, except for the report: the worker that it starts next reads the marker. See decision 21.
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
from queue import SimpleQueue
from typing import Any

from temporalex_django.engine import policy
from temporalex_django.liveness.crash_markers import read_heartbeats, record_end
from temporalex_django.liveness.health import GuardianFile
from temporalex_django.liveness.process_identity import process_state

log = logging.getLogger("temporalex_django.liveness")

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_STOPPED = "T"


class WatchState:
    """The record of one process that a guardian watches: how long it has sent no heartbeat. It does no I/O itself.

    ``limit`` is the number of seconds of silence after which the process has to be ended. ``silent`` is the number of
    seconds in which it could have sent a heartbeat and did not.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.silent = 0.0
        self._heartbeats = 0
        self._observed_at: float | None = None

    def observe(self, *, heartbeats: int, stopped: bool, now: float) -> bool:
        """Record one check of the process at ``now`` (``time.monotonic``); return True if it has to be ended.

        ``heartbeats`` is the count in its crash marker; 0 means that it is not watched. ``stopped`` is True while the
        process is stopped (SIGSTOP). Such time does not count, nor does time in which the guardian did not check.
        """
        before, self._observed_at = self._observed_at, now
        if not heartbeats or heartbeats != self._heartbeats or before is None:
            self._heartbeats, self.silent = heartbeats, 0.0
        elif not stopped:
            self.silent += min(now - before, policy.GUARDIAN_MAX_STEP)
        return self.silent > self.limit


class WorkerGuardian:
    """The part of a parent process that kills workers which send no heartbeat, as nothing else can stop them.

    ``domain`` identifies the database that the workers use (``DjangoStorage.domain``). ``limit`` is the number of
    seconds without a heartbeat after which it kills a worker.
    """

    def __init__(self, domain: str, limit: float) -> None:
        self.domain = domain
        self.limit = limit
        self._watch_states: dict[int, WatchState] = {}
        self._file = GuardianFile(domain)
        self._wrote_at = 0.0

    def check(self, pids: Collection[int]) -> None:
        """Kill (SIGKILL) those of the processes that have sent no heartbeat for too long.

        Call it every ``policy.GUARDIAN_SECONDS`` seconds with the pids of all workers that it watches.
        """
        if time.monotonic() - self._wrote_at >= policy.REPORT_SECONDS:
            self._file.write()
            self._wrote_at = time.monotonic()
        self._watch_states = {pid: self._watch_states.get(pid) or WatchState(self.limit) for pid in pids}
        for pid, watch_state in self._watch_states.items():
            path, heartbeats = read_heartbeats(pid, self.domain)
            if watch_state.observe(
                heartbeats=heartbeats, stopped=process_state(pid) in {"T", "t"}, now=time.monotonic()
            ):
                log.error("killing worker %d: nothing could interrupt its work for %g s", pid, watch_state.silent)
                # Before the kill, so that the judge of the death finds the reason in the marker.
                record_end(path, self.limit)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Delete the file by which ``temporalex health`` sees this guardian, because it makes no more checks."""
        self._file.remove()


def supervise(
    domain: str, limit: float, *, leaves_within: float, report_deaths: Callable[[], None]
) -> int | Callable[[], None]:
    """Fork: the child continues as the worker, and the parent supervises it.

    Call it before any thread or connection exists. ``domain`` identifies the database of the worker
    (``DjangoStorage.domain``).

    In the parent it returns when the child has ended, with the exit status for the parent. A child that a signal ended
    gives 128 plus the number of the signal. SIGTERM and SIGINT are forwarded. A child that is still there
    ``leaves_within`` seconds after the first signal is killed, and so is one that has been silent for ``limit``
    seconds. If the parent is killed, the child is killed, too. ``report_deaths`` is called in the parent if the child
    did not end well. It may take ``policy.GUARDIAN_REPORT_TIMEOUT`` seconds.

    In the child it returns a function to call at every heartbeat. That function stops the child (SIGSTOP) while the
    parent is stopped, because supervisors know only the pid of the parent.
    """
    # Text in these buffers would be printed twice: a fork copies them.
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
        # The pipe is readable, too, when the child has ended. So the end of the child needs no further wait.
        readable, _, _ = select.select([ours], [], [], policy.GUARDIAN_SECONDS)
        is_stopping = bool(readable and os.read(ours, select.PIPE_BUF)) or is_stopping
        # The child stopped because this process was stopped. This process runs again, so the child has to.
        if is_stopping and process_state(child) == _STOPPED:
            _send_signal(child, signal.SIGCONT)
            is_stopping = False
        ended_pid, status = os.waitpid(child, os.WNOHANG)
        if ended_pid:
            guard.stop()
            code = os.waitstatus_to_exitcode(status)
            if code:
                _run_with_timeout(policy.GUARDIAN_REPORT_TIMEOUT, report_deaths)
            if code >= 0:
                return code
            return 128 - code
        if signal_times and time.monotonic() - signal_times[0] > leaves_within:
            log.error("worker %d did not stop within %g s, killing it", child, leaves_within)
            _send_signal(child, signal.SIGKILL)
            signal_times.clear()
        guard.check([child])


def _run_with_timeout(seconds: float, report_deaths: Callable[[], None]) -> None:
    """Call ``report_deaths`` in a thread, since the database may not answer."""
    thread = threading.Thread(target=report_deaths, name="temporalex-deaths", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        log.warning(
            "the database did not answer within %g s: another worker will detect that this one has died", seconds
        )


def _send_signal(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _stop_with_parent(parent: int, pipe: int) -> None:
    """Stop this process if its parent is stopped; ``pipe`` tells the parent to continue it later."""
    if process_state(parent) == _STOPPED:
        os.write(pipe, b".")
        os.kill(os.getpid(), signal.SIGSTOP)


def die_with_parent(parent: int) -> None:
    """Make this process end when its parent ends, however the parent ends and whatever runs here.

    On Linux the end of the parent's thread that started this process has the same effect.
    """
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    except AttributeError:  # not Linux
        threading.Thread(target=_watch_parent, args=[parent], name="temporalex-parent", daemon=True).start()
    # The parent may have ended before the request above took effect.
    if os.getppid() != parent:
        os._exit(1)


def _watch_parent(parent: int) -> None:
    """Wait until the parent is gone, then end this process."""
    while os.getppid() == parent:
        time.sleep(policy.GUARDIAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


# --- stop signals -----------------------------------------------------------------------------------------------------
#
# Signals that ask a worker to stop, handled without the locks of the code that they interrupt.
#
# The handler of a signal runs in the middle of whatever the main thread does. That may be ``wait`` or ``set`` of the
# very event that the handler sets; ``set`` may come from the handler of an earlier signal. Then the lock of the event
# is held, and a handler that calls ``set`` would wait for it for ever. So a thread sets the event.


class EventSetter:
    """A setter whose own thread sets ``event`` after a call of ``trigger``, which is safe in any handler."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        # Of all queues this one has a ``put`` that may be interrupted by itself.
        self._signals: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._run, name="temporalex-stop", daemon=True).start()

    def trigger(self, *_: Any) -> None:
        """Let the thread set the event. A signal handler may call this; the arguments are ignored."""
        self._signals.put(None)

    def _run(self) -> None:
        self._signals.get()
        self._event.set()


class StopSignals:
    """Handlers of SIGTERM and SIGINT that set ``event``.

    A second signal ends this process at once, unless it comes within a second after the first one. A signal to all
    processes of a service or a terminal arrives twice: directly, and forwarded by the parent.
    """

    _TWICE_WITHIN = 1.0

    def __init__(self, event: threading.Event) -> None:
        self._setter = EventSetter(event)
        self._signaled_at: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle_signal)

    def _handle_signal(self, number: int, _frame: Any) -> None:
        now = time.monotonic()
        if self._signaled_at is None:
            self._signaled_at = now
            self._setter.trigger()
        elif now - self._signaled_at > self._TWICE_WITHIN:
            raise SystemExit(128 + number)
