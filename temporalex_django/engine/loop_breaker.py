"""Breakers that stop code which swallows every interruption, such as a loop around a bare ``except``.

An exception that is raised inside a ``try`` goes to its handler. So it is raised where no handler is around. On Python
3.12 and later that is an instruction that no handler covers, and on 3.11 the first line of the handler itself. Both
slow the code down, which does nothing useful any more. Test environments use this. A worker that runs such code is
ended by its guardian instead.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dis import _parse_exception_table  # type: ignore[attr-defined] # nothing public reads the table
from types import CodeType, FrameType
from typing import Any

from temporalex_django.core.history.tracing import is_user_code


def user_frames(frame: FrameType | None, until: CodeType) -> list[FrameType]:
    """Return the frames of the project's own code, from ``frame`` down to the one that runs ``until``.

    The innermost frame comes first.
    """
    frames = []
    while frame is not None and frame.f_code is not until:
        if is_user_code(frame.f_code):
            frames.append(frame)
        frame = frame.f_back
    return frames


def has_handler(code: CodeType, offset: int) -> bool:
    """Return True if a handler covers the instruction. Entries that only clean up raise again and do not count."""
    return any(entry.start <= offset < entry.end and not entry.lasti for entry in _parse_exception_table(code))


if sys.version_info >= (3, 12):
    # Ids 0, 1, 2 and 5 are reserved for debuggers, coverage, profilers and optimizers.
    _TOOL = 3

    class _MonitoringBreaker:
        """Raises ``error`` in a thread, again and again, wherever no handler is around; ``end()`` undoes it.

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
            """Stop watching."""
            monitoring = sys.monitoring
            for code in self._codes:
                monitoring.set_local_events(_TOOL, code, 0)
            monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(_TOOL)

    LoopBreaker = _MonitoringBreaker

else:

    class _TracingBreaker:
        """Raises ``error`` again and again by tracing: an ``interruption`` traces the code in which it is raised."""

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
