"""The chaos of a replay: kill workers that have work in hand, and watch that the work is done again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import connection

from example_project.replay.clock import Clock, Stopped
from example_project.replay.processes import descendants
from temporalex_django import Workflow
from temporalex_django.conf import get_settings
from temporalex_django.models import ActivityTask, Instance, Worker

WATCH_FOR = 60.0
#: Workers tell a cluster who they are in this form; the id is that of their row.
IDENTITY = "temporalex-worker-"


@dataclass(slots=True, kw_only=True)
class Held:
    """An activity that a worker had in hand when it was killed; ``again`` is the attempt that followed."""

    task: str
    activity: str
    run: str
    attempt: int
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One killed worker."""

    pid: int
    epoch: int
    at: float
    held: tuple[Held, ...]


class Work(ABC):
    """The activities that workers have in hand. ``look_every``: seconds between two looks."""

    look_every: float
    #: Seconds in which the word of a worker that its activity has ended may still be on its way.
    on_its_way = 0.0

    @abstractmethod
    def held(self) -> dict[int, list[Held]]:
        """Return the running attempts by the epoch of their worker."""

    @abstractmethod
    def attempts(self, tasks: Iterable[Held]) -> dict[str, int]:
        """Return the number of the newest attempt by task. A task that has ended is missing."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close connections."""


class TablesWork(Work):
    """The activities of runs in the tables: a row that a worker has in hand names its epoch."""

    look_every = 0.004

    def held(self) -> dict[int, list[Held]]:
        found: dict[int, list[Held]] = {}
        rows = ActivityTask.objects.filter(owner__isnull=False)
        for owner, key, activity, run, attempt in rows.values_list("owner", "pk", "activity", "workflow_id", "attempt"):
            held = Held(task=str(key), activity=activity, run=run, attempt=attempt)
            found.setdefault(owner or 0, []).append(held)
        return found

    def attempts(self, tasks: Iterable[Held]) -> dict[str, int]:
        rows = ActivityTask.objects.filter(pk__in=[held.task for held in tasks])
        return {str(key): attempt for key, attempt in rows.values_list("pk", "attempt")}


class ClusterWork(Work):
    """The activities of runs of one class on a Temporal cluster, whose server is asked."""

    look_every = 0.02
    on_its_way = 0.05

    def __init__(self, workflow: type[Workflow]) -> None:
        self._workflow = workflow.name
        self._loop = asyncio.Runner()
        self._client: Any = None

    def held(self) -> dict[int, list[Held]]:
        runs = Instance.objects.open().filter(workflow=self._workflow, cluster_run_id__isnull=False)
        pending = self._pending({run.cluster_id or "": run.workflow_id for run in runs})
        workers = {f"{IDENTITY}{key}": epoch for key, epoch in Worker.objects.values_list("pk", "epoch")}
        found: dict[int, list[Held]] = {}
        for held, holder in pending:
            if holder in workers:
                found.setdefault(workers[holder], []).append(held)
        return found

    def attempts(self, tasks: Iterable[Held]) -> dict[str, int]:
        ids = {held.task.rpartition("/")[0]: held.run for held in tasks}
        return {held.task: held.attempt for held, _ in self._pending(ids)}

    def close(self) -> None:
        self._loop.close()

    def _pending(self, runs: dict[str, str]) -> list[tuple[Held, str]]:
        """Return the activities that have not ended, of runs by their ids on the cluster.

        Each comes with the identity of the worker that runs it, or an empty text.
        """
        from temporalio.service import RPCError  # noqa: PLC0415 - an extra

        until = time.monotonic() + WATCH_FOR
        while True:  # the server restarts in a demo
            try:
                return self._loop.run(self._ask(runs))
            except (RPCError, RuntimeError):
                if time.monotonic() > until:
                    raise
                time.sleep(self.look_every)

    async def _ask(self, runs: dict[str, str]) -> list[tuple[Held, str]]:
        from temporalio.api.enums.v1 import PendingActivityState  # noqa: PLC0415 - an extra
        from temporalio.client import Client  # noqa: PLC0415 - as above

        if self._client is None:
            self._client = await Client.connect(get_settings().CLUSTER["ADDRESS"])
        handles = [self._client.get_workflow_handle(cluster_id) for cluster_id in runs]
        described = await asyncio.gather(*(handle.describe() for handle in handles))
        started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        return [
            (
                Held(
                    task=f"{cluster_id}/{activity.activity_id}",
                    activity=activity.activity_type.name,
                    run=run,
                    attempt=activity.attempt,
                ),
                activity.last_worker_identity if activity.state == started else "",
            )
            for (cluster_id, run), one in zip(runs.items(), described, strict=True)
            for activity in one.raw_description.pending_activities
        ]


class Chaos(threading.Thread):
    """A thread that spreads ``wanted`` kills over the middle of a play of ``seconds``.

    Only processes below ``cluster`` are killed, while they have some of the ``work`` in hand.
    """

    def __init__(self, *, wanted: int, clock: Clock, seconds: float, cluster: int, work: Work) -> None:
        super().__init__(name="chaos", daemon=True)
        self.wanted = wanted
        self.kills: list[Kill] = []
        self.problem = ""
        self._clock = clock
        self._seconds = seconds
        self._cluster = cluster
        self._work = work
        self._over = threading.Event()

    def run(self) -> None:
        """Kill at each moment of the plan, or as soon after it as a worker has something in hand."""
        try:
            for number in range(1, self.wanted + 1):
                self._clock.sleep(self._seconds * number / (self.wanted + 1) - self._clock.elapsed)
                while not self._over.is_set():
                    kill = self._try()
                    if kill is not None:
                        self.kills.append(kill)
                        self._watch(kill)
                        break
                    self._clock.sleep(self._work.look_every)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the play goes on, and its report names the problem
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._work.close()
            connection.close()

    def finish(self) -> None:
        """End the chaos because the play is over; no further worker is killed."""
        self._over.set()
        self.join(WATCH_FOR)

    def _try(self) -> Kill | None:
        """Kill one of our workers that has work in hand at this moment, if there is one."""
        held = self._work.held()
        ours = {entry.pid for entry in descendants(self._cluster)} if held else set()
        for worker in Worker.objects.filter(pid__in=ours, host=socket.gethostname(), epoch__in=held):
            # Stopped first, so that it still has the work when it dies.
            os.kill(worker.pid, signal.SIGSTOP)
            time.sleep(self._work.on_its_way)
            still = self._work.held().get(worker.epoch)
            if not still:
                os.kill(worker.pid, signal.SIGCONT)
                continue
            os.kill(worker.pid, signal.SIGKILL)
            return Kill(pid=worker.pid, epoch=worker.epoch, at=self._clock.elapsed, held=tuple(still))
        return None

    def _watch(self, kill: Kill) -> None:
        """Note the attempts that follow, while they last."""
        until = time.monotonic() + WATCH_FOR
        waiting = {held.task: held for held in kill.held}
        while waiting and time.monotonic() < until:
            attempts = self._work.attempts(waiting.values())
            for key, held in list(waiting.items()):
                # Another worker has ended a task that is gone, because its holder is dead.
                attempt = attempts.get(key, held.attempt + 1)
                if attempt > held.attempt:
                    held.again = attempt
                    del waiting[key]
            self._clock.sleep(self._work.look_every)
