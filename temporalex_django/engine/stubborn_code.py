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


def frames_of_users(frame: FrameType | None, until: CodeType) -> list[FrameType]:
    """The frames of the project's own code from this one down to the one that runs ``until``, innermost first."""
    found = []
    while frame is not None and frame.f_code is not until:
        if is_user_code(frame.f_code):
            found.append(frame)
        frame = frame.f_back
    return found


def is_covered(code: CodeType, offset: int) -> bool:
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
            self._codes = {one.f_code for one in frames_of_users(frame, until)}
            monitoring.use_tool_id(_TOOL, "temporalex stop")

            def instruction(code: CodeType, offset: int) -> None:
                if threading.get_ident() == thread and not is_covered(code, offset):
                    raise error

            monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, instruction)
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
            self._before: Any = None
            self._traced = False

            def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
                raise error

            def begin(frame: FrameType | None) -> None:
                if not self._traced:
                    self._traced, self._before = True, sys.gettrace()
                for one in frames_of_users(frame, until):
                    one.f_trace = trace
                sys.settrace(lambda *_: None)

            class Interruption(error):  # type: ignore[misc,valid-type] # it is a class
                def __init__(self, *args: object) -> None:
                    super().__init__(*args)
                    begin(sys._getframe(1))  # noqa: SLF001 - the thread that is interrupted makes it

            #: Its instances, which the interrupted thread makes, begin to trace.
            self.interruption: type[BaseException] = Interruption

        def end(self) -> None:
            """Trace what was traced before; to be called in the thread itself."""
            if self._traced:
                sys.settrace(self._before)

    LoopBreaker = _TracingBreaker
