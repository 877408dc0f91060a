"""An executor that knows where in user code each command was issued. It serves reports and never runs workflows."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any

from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Completion, Definition, RunInfo
from temporalex_django.core.history.events import Command
from temporalex_django.core.journal import Journal
from temporalex_django.core.units.eviction import suspended_parts
from temporalex_django.core.units.scheduler import Unit

_PACKAGE_PATH = __file__.removesuffix("core/history/tracing.py")
_LIBRARY = sysconfig.get_paths()["stdlib"]


class _TracingJournal(Journal):
    """A journal that records the place (``path:line``) of each command. ``current_place()`` returns it, or None."""

    __slots__ = ("_current_place", "places")

    def __init__(self, current_place: Callable[[], str | None]) -> None:
        super().__init__()
        self._current_place = current_place
        self.places: list[str | None] = []

    def begin(self, *, changed: bool) -> Completion:
        self.places = []
        return super().begin(changed=changed)

    def add(self, command: Command) -> None:
        self.places.append(self._current_place())
        super().add(command)


class TracingExecutor(Executor):
    """An executor whose ``place_of(index)`` returns the place (``path:line``) of a command of the activation."""

    def __init__(
        self, definition: Definition, info: RunInfo, *, strict: bool = False, skip_failed: bool = False
    ) -> None:
        self._tracing_journal = _TracingJournal(self._current_place)
        traced_definition = replace(definition, entry=self._start_coroutine)
        super().__init__(traced_definition, info, journal=self._tracing_journal, strict=strict, skip_failed=skip_failed)
        self._original_entry = definition.entry
        self._run_code: CodeType | None = None

    def _start_coroutine(self, args: Any) -> Any:
        coroutine = self._original_entry(args)
        self._run_code = coroutine.cr_code  # type: ignore[attr-defined] # run is an `async def`
        return coroutine

    def place_of(self, index: int | None) -> str | None:
        """Return the place (``path:line``) where command ``index`` was issued; for None, where the run is suspended."""
        return self._tracing_journal.places[index] if index is not None else self._suspended_place()

    def _current_place(self) -> str | None:
        """Return the place (``path:line``) of the innermost user code that is running.

        If there is none, return the line where the active unit (coroutine of workflow code), or one of the units that
        started it, is suspended.
        """
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the way that `traceback` and `logging` look, too
        while frame is not None and frame.f_code is not Executor._activate.__code__:  # noqa: SLF001 - one of ours
            if is_user_code(frame.f_code):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        unit = self.scheduler.current
        while unit is not None:
            if place := _place_of_unit(unit):
                return place
            unit = unit.parent
        return self._suspended_place()

    def _suspended_place(self) -> str | None:
        """Return the file and line (``path:line``) of user code at which the oldest suspended coroutine waits.

        If none is suspended in user code, return the first line of ``run``, or None before the run has started.
        """
        for unit in self.scheduler.units.values():
            if place := _place_of_unit(unit):
                return place
        return f"{self._run_code.co_filename}:{self._run_code.co_firstlineno}" if self._run_code is not None else None


def _place_of_unit(unit: Unit) -> str | None:
    places = [f"{code.co_filename}:{line}" for code, line in _frames_of(unit.coroutine) if is_user_code(code)]
    return places[-1] if places else None


def _frames_of(coroutine: Any) -> Iterator[tuple[CodeType, int]]:
    for part in suspended_parts(coroutine):
        frame = next((f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(part, name, None))), None)
        if frame is not None:
            yield frame.f_code, frame.f_lineno


def is_user_code(code: CodeType) -> bool:
    """Return True for code outside this package and the standard library."""
    path = code.co_filename
    if path.startswith("<"):
        return False
    # Installed packages may live below the directory of the standard library, but they count as user code here.
    return not path.startswith(_PACKAGE_PATH) and (not path.startswith(_LIBRARY) or "site-packages" in path)
