"""The broker for django-q2: a cluster advances runs with it."""

from __future__ import annotations

import logging
import mmap
import os
import struct
import subprocess
import sys
import threading
import time
from multiprocessing import process, util
from typing import Any

from django.conf import settings as django_settings
from django.db import connections
from django_q.brokers import Broker as BaseBroker
from django_q.conf import Conf

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.liveness.guardian import WorkerGuardian
from temporalex_django.liveness.process_identity import identity_of

# --- broker -----------------------------------------------------------------------------------------------------------
#
# django-q2 as the host of workers: a broker that runs them beside its queue.
#
#     Q_CLUSTER = {..., "broker_class": "temporalex_django.workers.q2.Broker"}
#
# ``manage.py qcluster`` then runs the project's own tasks as before, from the broker that the rest of ``Q_CLUSTER``
# configures. Beside them it runs processes that advance workflows. Turns never go through django-q2's queue.


log = logging.getLogger("temporalex_django.workers")


def worker_count() -> int:
    """Return the number of worker processes that a cluster starts."""
    return get_settings().Q2_PUMPS or max(1, int(Conf.WORKERS) // 2)


class WorkerHost:
    """A mixin for a broker of your own: ``class Broker(WorkerHost, MyBroker)``.

    ``dequeue`` runs in the cluster's pusher process, which becomes the parent of the workers. When the cluster stops,
    it waits for its pusher, and the pusher waits for the workers.
    """

    _owner: int = 0

    def dequeue(self) -> Any:
        """Return the next task of the project. The first call in the cluster's pusher starts the workers."""
        # The cluster forks with brokers that exist already, so the process id shows whether this one has its own
        # workers.
        if self._owner != os.getpid():
            self._owner = os.getpid()
            hosted = WorkerProcesses(worker_count())
            hosted.start()
            util.Finalize(None, hosted.stop, exitpriority=10)
        try:
            return super().dequeue()  # type: ignore[misc] # the broker that this is mixed into
        except Exception as exc:  # noqa: BLE001 - see below
            # Stock django-q2 would replace the pusher, which ends its workers. A broken queue must not interrupt
            # workflows.
            log.error("the broker of this cluster's tasks does not answer, retrying: %s", error_line(exc))
            connections.close_all()
            time.sleep(policy.Q2_RETRY_SECONDS)
            return None


class _EmptyBroker(BaseBroker):  # type: ignore[misc] # django-q2 is not typed
    """The broker of a django-q2 cluster that has no queue of its own, and only runs workers."""

    def dequeue(self) -> None:
        time.sleep(Conf.POLL)

    def queue_size(self) -> int:
        return 0

    def lock_size(self) -> int:
        return 0

    def ping(self) -> bool:
        return True

    def info(self) -> str:
        return "no queue"


def _project_broker() -> type[Any]:
    """Choose a broker as ``django_q.brokers.get_broker`` does without a ``broker_class``."""
    if Conf.IRON_MQ:
        from django_q.brokers.ironmq import IronMQBroker as Chosen  # noqa: PLC0415 - each needs a library of its own
    elif isinstance(Conf.SQS, dict):
        from django_q.brokers.aws_sqs import Sqs as Chosen  # noqa: PLC0415 - each needs a library of its own
    elif Conf.ORM:
        from django_q.brokers.orm import ORM as Chosen  # noqa: PLC0415, N811 - it needs the apps
    elif Conf.MONGO:
        from django_q.brokers.mongo import Mongo as Chosen  # noqa: PLC0415 - as above
    elif Conf.REDIS or Conf.DJANGO_REDIS:
        from django_q.brokers.redis_broker import Redis as Chosen  # noqa: PLC0415 - as above
    else:
        Chosen = _EmptyBroker  # noqa: N806 - a class
    return Chosen  # type: ignore[no-any-return]


class Broker(WorkerHost, _project_broker()):  # type: ignore[misc] # the base is chosen by the settings
    """The project's broker, which also starts workers in the cluster's pusher."""


# --- queue locks ------------------------------------------------------------------------------------------------------
#
# Locks on the queues of a django-q2 cluster that do not outlive the processes that hold them.
#
# Processes of the cluster take turns at its queues. The one that waits for a task holds the queue's lock, and a process
# that is killed never releases it, which would lock the others out for ever. Here each process records that it holds
# the lock, in memory that all of them share. The lock of a dead process is released: that of the task queue by the
# pusher, that of the result queue by the monitor that replaces the dead one. This relies on what django-q2's queues are
# underneath: ``multiprocessing.Queue``, whose reading end has one lock (``_rlock``), and processes that know their
# arguments. See decision 34.


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
        """Give a child that reads a queue a tracked lock for it, before the child's function runs."""
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
    """Release a lock if a process is recorded as its holder, at ``offset``."""
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


# --- worker processes -------------------------------------------------------------------------------------------------
#
# The workers of a django-q2 cluster: processes that its pusher starts, replaces and ends.
#
# They are children of the pusher and share nothing with the cluster but the log, so that its queue does not affect
# them. When the pusher dies, the cluster's sentinel replaces it. The workers of the dead one end, and the new one
# starts its own. See decision 34.


class WorkerProcesses:
    """The worker processes that a django-q2 cluster has, ``number`` of them.

    From ``start`` to ``stop`` a thread of this process watches them, and replaces those that have ended.
    """

    def __init__(self, number: int) -> None:
        self.workers = [_SupervisedWorker() for _ in range(number)]
        self._sentinel = os.getppid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="temporalex-workers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        """Watch the workers and replace ended ones, until ``stop`` is called or the cluster is gone."""
        limit = get_settings().HARD_DEADLOCK_TIMEOUT
        guard = None
        if limit is not None:
            guard = WorkerGuardian(DjangoStorage().domain, limit)
        while not self._stop.is_set():
            try:
                # A process of the cluster that was killed while it waited for a task would keep the queue locked.
                release_dead_reader()
                for worker in self.workers:
                    worker.ensure_running()
                if guard is not None:
                    guard.check([worker.child.pid for worker in self.workers if worker.child is not None])
            except Exception as exc:  # noqa: BLE001 - the others go on
                log.error("supervising the workers of this cluster failed, retrying: %s", error_line(exc))
            self._stop.wait(policy.Q2_LOOK_SECONDS)
            # A process whose parent has died gets another parent.
            if os.getppid() != self._sentinel:
                log.error("this cluster has lost its sentinel, stopping its workers")
                break
        self._stop_workers()
        if guard is not None:
            guard.stop()

    def stop(self) -> None:
        """Tell all workers to finish, and return when their processes have ended.

        Workers that do not end in time are killed; other workers take over their work.
        """
        self._stop.set()
        self._thread.join()

    def _stop_workers(self) -> None:
        """Ask all workers to stop, and kill those that have not ended in time."""
        settings = get_settings()
        deadline = time.monotonic() + settings.DRAIN_SECONDS + settings.LEAVE_SECONDS
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(deadline)


class _SupervisedWorker:
    """A worker process that is replaced when it ends.

    ``child`` is the process, or None while there is none. ``pause`` is the number of seconds from the last start to the
    next one.
    """

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.pause = 0.0

    def ensure_running(self) -> None:
        """Start the process if it does not run. One that keeps ending soon starts after growing pauses."""
        if self.child is None:
            if time.monotonic() - self.started_at >= self.pause:
                self.started_at = time.monotonic()
                self.child = _spawn_worker()
        elif (code := self.child.poll()) is not None:
            self.child = None
            soon = time.monotonic() - self.started_at < policy.Q2_SOON_SECONDS
            self.pause = (
                min(max(policy.Q2_LOOK_SECONDS, self.pause * 2), policy.LONGEST_RECONNECT) if soon and code else 0.0
            )
            if code:
                log.error("a worker of this cluster exited with status %d, starting another one", code)

    def terminate(self) -> None:
        if self.child is not None:
            self.child.terminate()

    def wait(self, deadline: float) -> None:
        """Wait until the process ends; kill it at ``deadline`` (``time.monotonic``)."""
        if self.child is None:
            return
        try:
            self.child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.error("worker %d did not stop, killing it", self.child.pid)
            self.child.kill()
            self.child.wait()


def _spawn_worker() -> subprocess.Popen[bytes]:
    """Start a worker with this interpreter and these settings, in the process group of the cluster."""
    environment: dict[str, Any] = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": django_settings.SETTINGS_MODULE,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    options = [*(f"-W{option}" for option in sys.warnoptions), *(f"-X{name}" for name in sys._xoptions)]  # noqa: SLF001
    command = [sys.executable, *options, "-m", "temporalex_django.workers.q2.worker_process", str(os.getpid())]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603
