"""Stops code that swallows every interruption: a loop around a bare ``except``.

An exception that is raised inside of a ``try`` goes to its handler. So it is raised where no handler is around: at an
instruction that no handler covers (from Python 3.12 on), or at the first line of the handler itself (Python 3.11). Both
slow the code down, which does nothing useful any more. For environments: a worker that has such code in hand is ended
by its guardian.
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
    """The frames of the project's own code from this one down to the one that runs ``until``, innermost first."""
    frames = []
    while frame is not None and frame.f_code is not until:
        if is_user_code(frame.f_code):
            frames.append(frame)
        frame = frame.f_back
    return frames


def has_handler(code: CodeType, offset: int) -> bool:
    """Whether a handler is around the instruction; what only cleans up raises again."""
    return any(entry.start <= offset < entry.end and not entry.lasti for entry in _parse_exception_table(code))


if sys.version_info >= (3, 12):
    _TOOL = 3

    class _MonitoringBreaker:
        """Raises ``error`` in a thread, again and again, wherever no handler is around. ``end()`` undoes it.

        In the code that the frame ``until`` has called, as far as it is the project's own.
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
            """Watch nothing any more."""
            monitoring = sys.monitoring
            for code in self._codes:
                monitoring.set_local_events(_TOOL, code, 0)
            monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(_TOOL)

    LoopBreaker = _MonitoringBreaker

else:

    class _TracingBreaker:
        """Raises ``error`` like the other: its ``interruption`` traces the code that it is raised in."""

        def __init__(self, thread: int, error: type[BaseException], until: CodeType) -> None:
            del thread
            self._previous_trace: Any = None
            self._is_tracing = False

            def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
                raise error

            def start_tracing(frame: FrameType | None) -> None:
                if not self._is_tracing:
                    self._is_tracing, self._previous_trace = True, sys.gettrace()
                for user_frame in user_frames(frame, until):
                    user_frame.f_trace = trace
                sys.settrace(lambda *_: None)

            class Interruption(error):  # type: ignore[misc,valid-type] # it is a class
                def __init__(self, *args: object) -> None:
                    super().__init__(*args)
                    start_tracing(sys._getframe(1))  # noqa: SLF001 - the thread that is interrupted makes it

            #: Its instances, which the interrupted thread makes, begin to trace.
            self.interruption: type[BaseException] = Interruption

        def end(self) -> None:
            """Trace what was traced before; to be called in the thread itself."""
            if self._is_tracing:
                sys.settrace(self._previous_trace)

    LoopBreaker = _TracingBreaker
