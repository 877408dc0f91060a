"""Who reads a queue of a django-q2 cluster: so that one who is killed meanwhile does not lock the others out for ever.

Processes of the cluster take turns at its queues: whoever waits for a task holds the queue's lock, and a process that
is killed does not let go of it. Here each of them notes that it holds the lock, in memory that they share, and the lock
of a dead one is let go: that of the task queue by the pusher, that of the result queue by the monitor that replaces the
dead one. That is what django-q2's queues are, underneath: ``multiprocessing.Queue``, whose reading end has one lock
(``_rlock``), and processes that know their arguments.
"""

from __future__ import annotations

import mmap
import os
import struct
from multiprocessing import process, util
from typing import Any

from temporalex_django.liveness.process_identity import identity_of

_PID = struct.Struct("q")
_TASKS, _RESULTS = 0, _PID.size
#: Made before the cluster forks, hence shared by all its processes.
_holders = mmap.mmap(-1, 2 * _PID.size)


class _TrackedLock:
    """The lock of a queue's reading end; while a process holds it, its pid is written down."""

    def __init__(self, lock: Any, offset: int) -> None:
        self.lock = lock
        self.offset = offset

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - multiprocessing's
        got = bool(self.lock.acquire(block, timeout))
        if got:
            _PID.pack_into(_holders, self.offset, os.getpid())
        return got

    def release(self) -> None:
        _PID.pack_into(_holders, self.offset, 0)
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _ForkHook:
    """What ``multiprocessing`` tells of each process that it forks."""

    def replace_lock(self) -> None:
        """In the child, before its function: whoever reads a queue of the cluster does so under a noted lock."""
        match _target_module(), _process_arguments():
            case "django_q.worker", (queue, *_):
                queue._rlock = _TrackedLock(queue._rlock, _TASKS)  # noqa: SLF001
            case "django_q.monitor", (queue, *_):
                _release_lock(queue._rlock, _RESULTS)  # noqa: SLF001 - there is one monitor: the one before is gone
                queue._rlock = _TrackedLock(queue._rlock, _RESULTS)  # noqa: SLF001


_fork_hook = _ForkHook()
util.register_after_fork(_fork_hook, _ForkHook.replace_lock)


def release_dead_reader() -> None:
    """In the pusher: let go of the lock of the task queue if the process that holds it is gone."""
    (pid,) = _PID.unpack_from(_holders, _TASKS)
    if pid and not _is_alive(pid) and _target_module() == "django_q.pusher":
        queue, *_ = _process_arguments()
        _release_lock(queue._rlock, _TASKS)  # noqa: SLF001


def _release_lock(lock: Any, offset: int) -> None:
    if _PID.unpack_from(_holders, offset)[0]:
        _PID.pack_into(_holders, offset, 0)
        lock.release()


def _target_module() -> str:
    """The module of the function that this process runs for the cluster."""
    return getattr(getattr(process.current_process(), "_target", None), "__module__", "")


def _process_arguments() -> tuple[Any, ...]:
    return getattr(process.current_process(), "_args", ())


def _is_alive(pid: int) -> bool:
    if identity_of():
        return bool(identity_of(pid))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
