"""Processes of the benchmarks, and their cost.

Each ends with the block that started it, and with this process, however that ends (Linux). A second interrupt does not
keep the first one from ending them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_BREAKS: Final = {signal.SIGINT, signal.SIGTERM, signal.SIGALRM}
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
_SECONDS_TO_END: Final = 5.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python with these arguments until the block ends; then SIGTERM, and after a while SIGKILL to its group."""
    with _unbroken():  # no interrupt between its start and the block that ends it
        child = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=_begin,  # noqa: PLW1509 - called from the main thread, two system calls
        )
    try:
        yield child
    finally:
        with _unbroken():
            _end(child)


@contextmanager
def worker(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run one worker process of ours, which is ready: its first line of output has been read."""
    with process("-m", "django", "temporalex", "worker", *arguments, **environment) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child


def _end(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_SECONDS_TO_END)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(_SECONDS_TO_END)
    if child.stdout is not None:
        child.stdout.close()


def family(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    parents = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    found, left = [pid], [pid]
    while left:
        parent = left.pop()
        children = [one for one, fields in parents.items() if fields and int(fields[1]) == parent]
        found += children
        left += children
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU seconds of processes and of their children that have ended."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / _TICKS


def memory_mb(pids: list[int]) -> float:
    """Return the resident memory in MB. Pages that processes share count for each of them."""
    pages = 0
    for pid in pids:
        with suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _stat(pid: int) -> list[str]:
    """Return the fields of a process from the state on; the name before it may hold any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _begin() -> None:
    """Prepare a child process: it ends with its parent, and can be interrupted."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BREAKS)


@contextmanager
def _unbroken() -> Iterator[None]:
    """Hold back signals that interrupt a benchmark until the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BREAKS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
