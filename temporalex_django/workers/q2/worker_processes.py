"""The workers of a django-q2 cluster: processes that its pusher starts, replaces and ends.

They are children of the pusher and share nothing with the cluster but the log, so that its queue does not affect them.
When the pusher dies, the cluster's sentinel replaces it. The workers of the dead one end, and the new one starts its
own. See decision 34.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any

from django.conf import settings as django_settings

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.liveness.guardian import WorkerGuardian
from temporalex_django.workers.q2.queue_locks import release_dead_reader

log = logging.getLogger("temporalex_django.workers")


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
        """Watch the workers and replace those that have ended, until ``stop`` is called or the cluster is gone."""
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
        """Start the process if it does not run.

        A process that keeps ending soon is started after a pause, which grows each time.
        """
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
    """Start a worker process with this interpreter and these settings, in the process group of the cluster."""
    environment: dict[str, Any] = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": django_settings.SETTINGS_MODULE,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    options = [*(f"-W{option}" for option in sys.warnoptions), *(f"-X{name}" for name in sys._xoptions)]  # noqa: SLF001
    command = [sys.executable, *options, "-m", "temporalex_django.workers.q2.worker_process", str(os.getpid())]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603
