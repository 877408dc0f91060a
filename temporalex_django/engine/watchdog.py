"""The deadlock watchdog, which interrupts workflow code that computes without reaching a wait.

``PyThreadState_SetAsyncExc`` raises an exception in another thread at its next bytecode, which also ends ``while True``
and loops in ``finally``. Three rules make it sound:

- Arming, firing and disarming share one lock, so nothing fires at a step that has ended.
- The step is one *call* inside the ``try``.
- A watchdog that fired counts as a deadlock, even if the code swallowed the exception.

Code that swallows the exception and loops on is interrupted again every second. Time in which the whole process did not
run does not count, because it was stopped or the machine was busy elsewhere. A replay before a deploy is measured in
processor time of its thread, since nobody waits for it on a slow machine. Code inside a C function is interrupted when
that function returns. Code that cannot be interrupted at all is left to another process. The watchdog sends
heartbeats as long as no code resists it, and ``liveness.guardian`` ends a worker that sends none. See decisions 19 and
21.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dis import _parse_exception_table  # type: ignore[attr-defined] # nothing public reads the table
from functools import partial
from types import CodeType, FrameType
from typing import Any, TypeVar

from temporalex_django.core.history.replay import is_user_code
from temporalex_django.engine import policy
from temporalex_django.errors import DeadlockDetected

T = TypeVar("T")
logger = logging.getLogger("temporalex_django.engine")
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = [ctypes.c_ulong, ctypes.py_object]


class _Interrupted(BaseException):
    """Raised by the watchdog in a thread that is stuck; ``except Exception`` does not catch it."""


def _consume_interruption(thread: int) -> None:
    """Clear a pending interruption, so that it hits no later code.

    To withdraw it (no exception as argument) would make the interpreter check for it at every step: up to 3.12, and on
    3.11 with a profile function for ever. So another exception, which replaces it, is raised and caught here.
    """
    try:
        _raise_in(thread, ctypes.py_object(_Interrupted))
        while True:
            pass
    except _Interrupted:
        return


def _processor_clock(thread: int) -> Callable[[], float]:
    """Return a function for the thread's processor time in seconds, or the process's where none is known."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))


class _WatchedCode:
    """A call of workflow code that the watchdog watches in one thread, with the times at which to interrupt it.

    ``limit`` is the largest number of seconds between two waits. ``fired`` is True once the call was interrupted. With
    ``force``, code that swallows the interruption is interrupted again at each further step. ``clock`` measures the
    seconds. If that is ``time.monotonic``, they are those of a clock on the wall, else those of processor time; then
    ``latest`` is the time by the clock on the wall at which code that waits for something else is interrupted.
    """

    __slots__ = ("armed", "clock", "deadline", "end", "fired", "force", "latest", "limit", "stop", "thread")

    def __init__(self, thread: int, limit: float, *, force: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.thread = thread
        self.limit = limit
        self.force = force
        self.clock = clock
        self.stop: LoopBreaker | None = None
        self.fired = False
        self.rearm()

    def rearm(self) -> None:
        """Start the time limits anew: one for the next part (up to a wait), and a multiple of it for all parts."""
        self.armed = now = self.clock()
        self.deadline, self.end = now + self.limit, now + self.limit * policy.TOTAL_DEADLOCK_FACTOR
        self.latest: float | None = None
        if self.clock is not time.monotonic:
            self.latest = time.monotonic() + max(self.limit, 1.0) * policy.PROCESSOR_WAIT_FACTOR

    def forgive(self, now: float, last_check: float, pause: float, computed: float) -> None:
        """Extend the deadlines by the time in which the whole process did not run: that is not the code's fault.

        ``pause`` is the planned part of the time since the last check, ``computed`` the processor time; both in
        seconds.
        """
        if self.clock is not time.monotonic:
            return  # a process that does not run uses no processor time
        if last_check > self.armed:
            paused_seconds = now - last_check - pause - computed
        else:
            paused_seconds = now - self.armed - computed
        if paused_seconds > policy.WATCHDOG_LATE_SECONDS:
            self.deadline += paused_seconds
            self.end += paused_seconds


class Watchdog:
    """A thread that watches workflow code in all other threads; it sleeps while no such code runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _WatchedCode] = {}
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None
        self._heartbeat: Callable[[], None] | None = None

    def set_heartbeat(self, heartbeat: Callable[[], None] | None) -> None:
        """Let the watchdog call ``heartbeat`` several times a second; None ends the calls.

        The calls are a sign that the process works. The watchdog stops them while code that was interrupted continues
        all the same, so that a guardian can end the process.
        """
        with self._lock:
            self._heartbeat = heartbeat
            self._ensure_thread()
        if heartbeat is not None:
            # From this heartbeat on, the guardian expects the next one.
            heartbeat()
        self._busy.set()

    def run(
        self,
        call: Callable[[], T],
        *,
        limit: float | None,
        label: str,
        subject: object = "",
        force: bool = False,
        by_processor_time: bool = False,
    ) -> T:
        """Call ``call`` and return its value; it may compute for at most ``limit`` seconds between two waits.

        ``limit`` None sets no limit. ``label`` and ``subject`` name the code in the error message. With ``force``, code
        that swallows the interruption is interrupted at each further step that no ``except`` covers (``LoopBreaker``),
        until it ends. With ``by_processor_time``, seconds in which the thread does not run do not count; code that
        waits for something else is interrupted after twenty times the limit. Raises ``DeadlockDetected`` after an
        interruption, whatever the code did then.
        """
        if limit is None:
            return call()
        thread = threading.get_ident()
        clock = _processor_clock(thread) if by_processor_time else time.monotonic
        watched = _WatchedCode(thread, limit, force=force, clock=clock)
        self._arm(watched)
        value: T | None = None
        try:
            try:
                value = call()
            finally:
                self._disarm(watched)
        except _Interrupted:
            self._disarm(watched)
        except Exception:
            # After an interruption the error is a consequence of it, such as a replay that was cut off.
            if not watched.fired:
                raise
        if watched.fired:
            kind = " of processor time" if by_processor_time else ""
            raise DeadlockDetected(
                f"{label}{subject} did not reach a wait within {limit:g} s{kind}: its code loops or computes for too long"
            )
        return value  # type: ignore[return-value] # None only when it was interrupted

    def note_unit_blocked(self) -> None:
        """Record that a coroutine of the watched call in this thread, such as a branch, has come to a wait.

        The next one gets the whole limit; all of them together get a multiple of it. The scheduler calls this.
        """
        if (watched := self._watched.get(threading.get_ident())) is not None and not watched.fired:
            watched.deadline = min(watched.clock() + watched.limit, watched.end)

    def note_all_blocked(self) -> None:
        """Record that all coroutines of the workflow code in this thread wait, so that its time limits start again."""
        if (watched := self._watched.get(threading.get_ident())) is not None and not watched.fired:
            watched.rearm()

    def _arm(self, watched: _WatchedCode) -> None:
        with self._lock:
            self._watched[watched.thread] = watched
            self._ensure_thread()
        # The thread clears the flag only under the lock, after it has seen that nothing is watched. So this cannot miss
        # it.
        if not self._busy.is_set():
            self._busy.set()

    def _ensure_thread(self) -> None:
        # This is the first use, or the child of a fork, which has no copy of the thread.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._watch, name="temporalex-watchdog", daemon=True)
            self._thread.start()

    def _disarm(self, watched: _WatchedCode) -> None:
        with self._lock:
            self._watched.pop(watched.thread, None)
        if watched.stop is not None:
            watched.stop.end()
        if watched.fired:
            _consume_interruption(watched.thread)

    def _watch(self) -> None:
        pause, last_check, spent, idle = 0.0, 0.0, 0.0, 0
        while True:
            rested = not self._busy.is_set()
            heartbeat_seconds = None
            if self._heartbeat is not None:
                heartbeat_seconds = policy.WATCHDOG_HEARTBEAT_SECONDS
            # The time in which this thread slept is no pause of the process, so the measurement starts anew.
            if rested:
                pause, last_check, spent = heartbeat_seconds or 0.0, time.monotonic(), time.process_time()
            if self._busy.wait(heartbeat_seconds) and rested:
                idle = 0
            with self._lock:
                self._send_heartbeat()
                idle = 0 if self._watched else idle + 1
                if idle > policy.WATCHDOG_IDLE_ROUNDS:
                    self._busy.clear()
                    continue
                now, processor = time.monotonic(), time.process_time()
                for watched in self._watched.values():
                    watched.forgive(now, last_check, pause, processor - spent)
                self._interrupt_late(now)
                # A thread uses at most as much processor time as passes.
                pause = min((w.deadline - w.clock() for w in self._watched.values()), default=0.05)
                pause = min(max(pause, 0.001), 0.05)
                last_check, spent = now, processor
            time.sleep(pause)

    def _send_heartbeat(self) -> None:
        # Code that was interrupted and still runs stops the heartbeat, so that the guardian ends the process.
        if self._heartbeat is not None and not any(watched.fired for watched in self._watched.values()):
            self._heartbeat()

    def _interrupt_late(self, now: float) -> None:
        for watched in self._watched.values():
            measured = watched.clock()
            if watched.deadline > measured and (watched.latest is None or watched.latest > now):
                continue
            watched.deadline = measured + policy.INTERRUPT_SECONDS
            if watched.latest is not None:
                watched.latest = now + policy.INTERRUPT_SECONDS
            if watched.fired:  # the code swallowed it and loops on
                self._interrupt_again(watched)
            else:
                self._interrupt(watched)

    @staticmethod
    def _interrupt(watched: _WatchedCode) -> None:
        watched.fired = True
        stack = sys._current_frames().get(watched.thread)  # noqa: SLF001 - the one way to a thread's stack
        if stack is not None:
            text = "".join(traceback.format_stack(stack))
        else:
            text = "(no stack)"
        _raise_in(watched.thread, ctypes.py_object(_Interrupted))
        logger.error("workflow code did not reach a wait and was interrupted here:\n%s", text)

    @staticmethod
    def _interrupt_again(watched: _WatchedCode) -> None:
        interruption: type[BaseException] = _Interrupted
        if watched.force:
            if watched.stop is None:
                watched.stop = LoopBreaker(watched.thread, _Interrupted, Watchdog.run.__code__)
            interruption = watched.stop.interruption
        _raise_in(watched.thread, ctypes.py_object(interruption))


watchdog = Watchdog()


def user_frames(frame: FrameType | None, until: CodeType) -> list[FrameType]:
    """Return the stack frames of the project's own code, from ``frame`` up to its caller that runs ``until``.

    The innermost frame comes first.
    """
    frames = []
    while frame is not None and frame.f_code is not until:
        if is_user_code(frame.f_code):
            frames.append(frame)
        frame = frame.f_back
    return frames


def has_handler(code: CodeType, offset: int) -> bool:
    """Return True if an ``except`` in the code object covers the instruction at ``offset``.

    Handlers that only clean up, such as ``finally``, do not count.
    """
    return any(entry.start <= offset < entry.end and not entry.lasti for entry in _parse_exception_table(code))


if sys.version_info >= (3, 12):
    # Ids 0, 1, 2 and 5 are reserved for debuggers, coverage, profilers and optimizers.
    _TOOL = 3

    class _MonitoringBreaker:
        """Raises ``error`` in a thread at every instruction that no handler covers, until ``end()`` is called.

        It does so in the project's own code that the frame of ``until`` has called.
        """

        def __init__(self, thread: int, error: type[BaseException], until: CodeType) -> None:
            monitoring = sys.monitoring
            self.interruption = error
            frame = sys._current_frames().get(thread)  # noqa: SLF001 - the one way to a thread's stack
            self._codes = {user_frame.f_code for user_frame in user_frames(frame, until)}
            monitoring.use_tool_id(_TOOL, "temporalex stop")

            def on_instruction(code: CodeType, offset: int) -> None:
                if threading.get_ident() == thread and not has_handler(code, offset):
                    raise error

            monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, on_instruction)
            for code in self._codes:
                monitoring.set_local_events(_TOOL, code, monitoring.events.INSTRUCTION)

        def end(self) -> None:
            monitoring = sys.monitoring
            for code in self._codes:
                monitoring.set_local_events(_TOOL, code, 0)
            monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(_TOOL)

    LoopBreaker = _MonitoringBreaker

else:

    class _TracingBreaker:
        """Raises ``error`` in a thread at every line, by tracing, until ``end()`` is called.

        The tracing starts in the code in which an instance of ``interruption`` is raised.
        """

        def __init__(self, thread: int, error: type[BaseException], until: CodeType) -> None:
            del thread
            self._previous_trace: Any = None
            self._is_tracing = False

            def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
                raise error

            def start_tracing(frame: FrameType | None) -> None:
                if not self._is_tracing:
                    self._is_tracing, self._previous_trace = True, sys.gettrace()
                # Frames are traced only in a thread that has a trace function, even one that does nothing.
                for user_frame in user_frames(frame, until):
                    user_frame.f_trace = trace
                sys.settrace(lambda *_: None)

            class Interruption(error):  # type: ignore[misc,valid-type] # it is a class
                def __init__(self, *args: object) -> None:
                    super().__init__(*args)
                    start_tracing(sys._getframe(1))  # noqa: SLF001 - the thread that is interrupted makes it

            #: The interrupted thread creates the instance itself, so its constructor can start tracing in that thread.
            self.interruption: type[BaseException] = Interruption

        def end(self) -> None:
            """Restore the previous trace function. Must run in the traced thread."""
            if self._is_tracing:
                sys.settrace(self._previous_trace)

    LoopBreaker = _TracingBreaker
