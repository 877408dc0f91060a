"""The chaos of a replay: kill workers that have work in hand, and watch that the work is done again."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import dataclass

from django.db import DatabaseError, connection

from example_project.replay.clock import Clock, Stopped
from example_project.replay.processes import descendants
from temporalex_django.models import ActivityTask, Worker

LOOK_EVERY = 0.004
WATCH_FOR = 60.0


@dataclass(slots=True, kw_only=True)
class Held:
    """An activity that a worker had in hand when it was killed; ``again`` is the attempt that followed."""

    task: int
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


class Chaos(threading.Thread):
    """A thread that spreads ``wanted`` kills over the middle of a play of ``seconds``.

    Only processes below ``cluster`` are killed.
    """

    def __init__(self, *, wanted: int, clock: Clock, seconds: float, cluster: int) -> None:
        super().__init__(name="chaos", daemon=True)
        self.wanted = wanted
        self.kills: list[Kill] = []
        self.problem = ""
        self._clock = clock
        self._seconds = seconds
        self._cluster = cluster
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
                    self._clock.sleep(LOOK_EVERY)
        except Stopped:
            pass
        except DatabaseError as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def finish(self) -> None:
        """End the chaos because the play is over; no further worker is killed."""
        self._over.set()
        self.join(WATCH_FOR)

    def _try(self) -> Kill | None:
        """Kill one of our workers that holds a lease at this moment, if there is one."""
        ours = {entry.pid for entry in descendants(self._cluster)} if _leases(None) else set()
        workers = Worker.objects.filter(pid__in=ours, host=socket.gethostname()) if ours else ()
        for worker in workers:
            if not _leases(worker.epoch):
                continue
            # Stopped first, so that it still holds the lease when it dies.
            os.kill(worker.pid, signal.SIGSTOP)
            held = _leases(worker.epoch)
            if not held:
                os.kill(worker.pid, signal.SIGCONT)
                continue
            os.kill(worker.pid, signal.SIGKILL)
            return Kill(pid=worker.pid, epoch=worker.epoch, at=self._clock.elapsed, held=tuple(held))
        return None

    def _watch(self, kill: Kill) -> None:
        """Note the attempts that follow, while their rows last."""
        until = time.monotonic() + WATCH_FOR
        waiting = {held.task: held for held in kill.held}
        while waiting and time.monotonic() < until:
            rows = {task.pk: task for task in ActivityTask.objects.filter(pk__in=waiting)}
            for key, held in list(waiting.items()):
                task = rows.get(key)
                if task is None or task.attempt > held.attempt:
                    # Another worker finished a row that is gone, because its holder is dead.
                    held.again = task.attempt if task else held.attempt + 1
                    del waiting[key]
            self._clock.sleep(LOOK_EVERY)


def _leases(epoch: int | None) -> list[Held]:
    tasks = (
        ActivityTask.objects.filter(owner__isnull=False) if epoch is None else ActivityTask.objects.filter(owner=epoch)
    )
    return [Held(task=task.pk, activity=task.activity, run=task.workflow_id, attempt=task.attempt) for task in tasks]
