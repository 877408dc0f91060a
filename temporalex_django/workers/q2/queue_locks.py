"""Locks on the queues of a django-q2 cluster that do not outlive the processes that hold them.

Processes of the cluster take turns at its queues. The one that waits for a task holds the queue's lock, and a process
that is killed never releases it, which would lock the others out for ever. Here each process records that it holds the
lock, in memory that all of them share. The lock of a dead process is released: that of the task queue by the pusher,
that of the result queue by the monitor that replaces the dead one. This relies on what django-q2's queues are
underneath: ``multiprocessing.Queue``, whose reading end has one lock (``_rlock``), and processes that know their
arguments. See decision 34.
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
#: The pids of the processes that hold the locks. It is made before the cluster forks, so all its processes share it.
_holders = mmap.mmap(-1, 2 * _PID.size)


class _TrackedLock:
    """A lock on a queue of a django-q2 cluster that records which process holds it, so that a dead one can be found.

    ``lock`` is the lock itself. ``offset`` is the place of the pid in the memory that the processes share.
    """

    def __init__(self, lock: Any, offset: int) -> None:
        self.lock = lock
        self.offset = offset

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:  # noqa: FBT001, FBT002 - multiprocessing's
        got = bool(self.lock.acquire(block, timeout))
        if got:
            _PID.pack_into(_holders, self.offset, os.getpid())
        return got

    def release(self) -> None:
        # Before the release: afterwards it could erase the pid of the next holder.
        _PID.pack_into(_holders, self.offset, 0)
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _ForkHook:
    """The object that ``multiprocessing`` calls in each process that it forks, to replace the locks of queues."""

    def replace_lock(self) -> None:
        """Give a child that reads a queue of the cluster a tracked lock for it, before the child's function runs."""
        match _target_module(), _process_arguments():
            case "django_q.worker", (queue, *_):
                queue._rlock = _TrackedLock(queue._rlock, _TASKS)  # noqa: SLF001
            case "django_q.monitor", (queue, *_):
                _release_lock(queue._rlock, _RESULTS)  # noqa: SLF001 - there is one monitor: the one before is gone
                queue._rlock = _TrackedLock(queue._rlock, _RESULTS)  # noqa: SLF001


_fork_hook = _ForkHook()
util.register_after_fork(_fork_hook, _ForkHook.replace_lock)


def release_dead_reader() -> None:
    """Release the lock of the task queue if the process that holds it has ended. The cluster's pusher calls this."""
    (pid,) = _PID.unpack_from(_holders, _TASKS)
    if pid and not _is_alive(pid) and _target_module() == "django_q.pusher":
        queue, *_ = _process_arguments()
        _release_lock(queue._rlock, _TASKS)  # noqa: SLF001


def _release_lock(lock: Any, offset: int) -> None:
    """Release a lock if a process is recorded as its holder; ``offset`` is the place of that record."""
    if _PID.unpack_from(_holders, offset)[0]:
        _PID.pack_into(_holders, offset, 0)
        lock.release()


def _target_module() -> str:
    """Return the module of the function that the cluster runs in this process."""
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
