"""The part of a worker that polls a Temporal cluster, beside the tables."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from temporalex_django.backends.routing import cluster_module
from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.db.background_hooks import BackgroundHook
from temporalex_django.db.claims.limited import Switches
from temporalex_django.engine import policy
from temporalex_django.liveness.health import activity_threads
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.workers import processes
from temporalex_django.workers.background_thread import BackgroundThread
from temporalex_django.workers.pool import Pool

if TYPE_CHECKING:
    from temporalex_django.backends.cluster.worker import ClusterWorker  # needs the SDK of Temporal

log = logging.getLogger("temporalex_django.workers")


class ClusterPoller:
    """Polls the task queues of a Temporal cluster with the threads of a worker's ``pool``.

    ``queues`` are those of the project that it polls, unless they are switched off or the worker is drained.
    ``resolve(chain, name, version)`` returns the class of a run, as ``Admission.resolve`` does.
    """

    def __init__(
        self,
        pool: Pool,
        row: WorkerRow,
        *,
        queues: Collection[str],
        alias: str,
        resolve: Callable[[UUID, str, int], Any],
    ) -> None:
        self._pool = pool
        self._row = row
        self._queues = frozenset(queues)
        self._alias = alias
        self._resolve = partial(resolve, UUID(int=0))
        self._worker: ClusterWorker | None = None
        self._stopping: threading.Thread | None = None
        self._lock = threading.Lock()
        self._comparison: BackgroundThread | None = None
        self._compared_at = float("-inf")
        self._start_again_at = float("-inf")

    def update(self, switches: Switches) -> None:
        """Poll what the switches and the drain of the worker leave. The first call starts the threads."""
        if self._row.drained_at is None:
            queues = self._queues - switches.queues - switches.held_queues
        else:
            queues = frozenset()
        with self._lock:
            if self._stopping is not None:
                return
            if self._worker is None:
                self._worker = self._start()
            if self._worker is None:
                return
        self._worker.poll(queues)
        if self._row.drained_at is None and time.monotonic() - self._compared_at >= policy.MIRROR_SECONDS:
            self._compared_at = time.monotonic()
            self._compare()

    def _compare(self) -> None:
        """Let one of all workers compare the rows with the cluster, in a thread. One read."""
        if self._comparison is None:
            module = cluster_module("reconcile")
            hook = BackgroundHook(has_work=module.is_due, run=module.run_round)
            self._comparison = BackgroundThread(self._alias, [hook], name="temporalex-comparison", pause=0)
        self._comparison.ensure_running()

    def _start(self) -> ClusterWorker | None:
        """Start the threads. An error is logged and tried again later: the tables must not suffer."""
        settings = get_settings()
        if time.monotonic() < self._start_again_at:
            return None
        try:
            worker: ClusterWorker = cluster_module("worker").ClusterWorker(
                threads=self._pool,
                thread_count=activity_threads(),
                tasks=settings.ACTIVITY_TASKS,
                alias=self._alias,
                name=str(self._row.id),
                drain_seconds=settings.DRAIN_SECONDS,
                resolve=self._resolve,
                owner=lambda: self._row.epoch,
                call_in_process=processes.run_task,
            )
        except Exception as exc:  # noqa: BLE001 - such as an SDK that is missing or too old
            self._start_again_at = time.monotonic() + policy.MIRROR_SECONDS
            log.error("the cluster is not polled, because its worker cannot start: %s", error_line(exc))
            return None
        return worker

    @property
    def polled_queues(self) -> frozenset[str]:
        """The queues that are polled now, which the cluster has answered."""
        return frozenset() if self._worker is None else frozenset(self._worker.polled)

    def begin_stop(self) -> None:
        """Take no new work, and let activities end, in a thread of its own. ``finish_stop`` waits for it."""
        with self._lock:
            if self._worker is None or self._stopping is not None:
                return
            self._stopping = threading.Thread(target=self._stop, name="temporalex-cluster-stop", daemon=True)
        self._stopping.start()

    def _stop(self) -> None:
        assert self._worker is not None
        if self._comparison is not None:
            self._comparison.stop()
        try:
            self._worker.stop()
        except Exception as exc:  # noqa: BLE001 - the server notices that the worker has gone
            log.warning("the worker of the cluster could not be stopped: %s", error_line(exc))

    def finish_stop(self, seconds: float) -> None:
        """Wait at most ``seconds`` until all activities have ended and their results have been sent."""
        if self._stopping is not None:
            self._stopping.join(seconds)
