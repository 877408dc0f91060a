"""The progress of a day on standard error: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

WIDTH = 30
ON_TERMINAL = 0.2
ELSEWHERE = 10.0


class Progress:
    """A context manager that shows ``counts()`` (done, total, words) while its block runs."""

    def __init__(self, counts: Callable[[], tuple[int, int, str]], *, stream: TextIO | None = None) -> None:
        self._counts = counts
        self._stream = stream or sys.stderr
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._show(last=True)

    def _run(self) -> None:
        while not self._done.wait(ON_TERMINAL if self._stream.isatty() else ELSEWHERE):
            self._show(last=False)

    def _show(self, *, last: bool) -> None:
        done, total, words = self._counts()
        seconds = time.monotonic() - self._begun
        if self._stream.isatty():
            filled = WIDTH * done // max(total, 1)
            bar = "█" * filled + "·" * (WIDTH - filled)
            self._stream.write(f"\r\033[K{bar} {done}/{total} {words} {seconds:.0f} s" + ("\n" if last else ""))
        else:
            self._stream.write(f"{seconds:4.0f} s  {done}/{total} {words}\n")
        self._stream.flush()
