"""The course of a soak: work, disturbances, an end in peace."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connection

from temporalex_django.errors import ActionNotPossible
from temporalex_django.liveness.process_identity import identity_of
from temporalex_django.models import ActivityTask, BulkJob, Instance, Worker
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from tests.soak import points
from tests.soak.arms import Arms
from tests.soak.desk import Desk
from tests.soak.small import SMALL, Tallied
from tests.soak.tales import TALES, Tale
from tests.support.processes import Process, members

if TYPE_CHECKING:
    from scripts.embedded_postgres import EmbeddedPostgres
    from tests.support.crash_walk import Walk

T = TypeVar("T", bound=Tale)

_WORKERS = 2
#: Seconds between two disturbances and between two pieces of work; runs that are open at a time.
_EVERY, _PIECE, _OPEN = 1.5, 0.05, 70
_RESTARTED_EVERY = 45.0
#: How long a worker may take to come to a point; what one takes on the average, with what comes before.
_COMES_WITHIN, _TAKES = 15.0, 6.0
_LAST_RUNS = 300.0
_LOOKED_EVERY = 1.0
#: Longer than a lease.
_FROZEN = 3.0
_SWITCHED = (("activity", "recorded"), ("workflow", "Counter"), ("workflow", "ShoppingCart"), ("queue", "default"))


class Course:
    """``kills`` by kind, ``hits`` and ``tries`` of points by name, ``started`` tales by workflow."""

    def __init__(
        self,
        *,
        host: str,
        seconds: float,
        chance: random.Random,
        env: dict[str, str],
        arms: Arms,
        desk: Desk,
        walk: Walk,
        server: EmbeddedPostgres | None,
    ) -> None:
        self.host, self.seconds, self.chance, self.env = host, seconds, chance, env
        self.arms, self.desk, self.walk, self.server = arms, desk, walk, server
        self.patiently = desk.patiently
        self.points = points.points(host, connection.vendor)
        self.kills: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.tries: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.switches = 0
        self.tales: list[Tale] = []
        self.open: list[Tale] = []
        self.processes: list[Process] = []
        self._last_words: list[Callable[[], object]] = []
        self._until = self._looked_at = 0.0
        self._restarted_at = time.monotonic()

    # -- processes -----------------------------------------------------------------------------------------------------

    def replenish(self) -> None:
        """As a supervisor does: what a leader that ended has left of its group ends, too."""
        ended = [process for process in self.processes if process.popen.poll() is not None]
        self.processes = [process for process in self.processes if process not in ended]
        for process in ended:
            _kill_group(process.pid)
        cluster = self.host == "q2"
        command = ["qcluster", "--skip-checks"] if cluster else ["temporalex", "worker"]
        while len(self.processes) < (1 if cluster else _WORKERS):
            self.processes.append(Process(command, self.env, self.desk.folder / "workers.log"))

    def end_all(self) -> None:
        for process in self.processes:
            _kill_group(process.pid)
            process.popen.wait(20)
        self.processes = []

    def a_worker(self) -> int | None:
        """The pid of one that works, whatever hosts it."""
        rows = self.patiently(lambda: [*Worker.objects.exclude(host="elsewhere").values_list("pid", flat=True)])
        there = [pid for pid in rows if identity_of(pid)]
        return self.chance.choice(there) if there else None

    # -- work ----------------------------------------------------------------------------------------------------------

    def tell(self, kind: type[T]) -> T:
        """A new one has begun."""
        tale = kind(self.desk, self.desk.number())
        tale.begin()
        self.tales.append(tale)
        self.open.append(tale)
        self.started[kind.of] += 1
        return tale

    def work(self) -> None:
        """One piece of it."""
        if time.monotonic() - self._looked_at > _LOOKED_EVERY:
            self._look()
        unknown = self.desk.open()
        if len(self.open) > _OPEN:
            self.chance.choice(self.open).end()
        elif unknown and self.chance.random() < 0.1:
            self.desk.ask(self.chance.choice(unknown))
        elif not self.open or self.chance.random() < 0.3:
            self.tell(self.chance.choice([*TALES, *SMALL]))
        else:
            self.chance.choice(self.open).act()

    def _look(self) -> None:
        """Which of them are over."""
        there = Instance.objects.open().filter(workflow_id__in=[tale.run for tale in self.open])
        ids = self.patiently(lambda: {*there.values_list("workflow_id", flat=True)})
        self.open = [tale for tale in self.open if tale.run in ids]
        self._looked_at = time.monotonic()

    def at_the_end(self, do: Callable[[], object]) -> None:
        """Called when nothing is disturbed any more."""
        self._last_words.append(do)

    def go_on(self, seconds: float) -> None:
        """With work alone."""
        self.until(lambda: False, seconds=seconds)

    def until(self, condition: Callable[[], bool], *, seconds: float = _COMES_WITHIN) -> bool:
        """Go on with work until it holds; whether it did in time."""
        until = time.monotonic() + seconds
        while not (holds := self.patiently(condition)) and time.monotonic() < until:
            self.replenish()
            self.work()
            time.sleep(_PIECE)
        return holds

    def switch(self, how: type[SwitchOff], kind: str, thing: str) -> None:
        """Off or on, whether or not it was."""

        def once() -> None:
            with suppress(ActionNotPossible):
                how(kind, thing, reason="soak").execute()

        self.patiently(once)

    # -- disturbances --------------------------------------------------------------------------------------------------

    def _kinds(self) -> dict[str, Callable[[], None]]:
        found: dict[str, Callable[[], None]] = {
            "worker": self.kill_worker,
            "all workers": self.end_all,
            "SIGTERM": self._terminate,
            "SIGSTOP and SIGCONT": self._freeze,
            "cluster member" if self.host == "q2" else "guardian": self._kill_above,
        }
        if connection.vendor == "postgresql":
            found["connections"] = self._cut_connections
            if self.server is not None and time.monotonic() - self._restarted_at > _RESTARTED_EVERY:
                found["PostgreSQL restarted"] = self._restart_database
        return found

    def disturb(self) -> None:
        missing = [point for point in self.points if not self.hits[point]]
        hurried = len(missing) * _TAKES > (self._until - time.monotonic()) / 2
        if self.chance.random() < (1.0 if hurried and missing else 0.5):
            self._crash_at(
                min(self.points, key=lambda point: (self.hits[point], self.tries[point], self.chance.random()))
            )
            return
        if self.chance.random() < 0.1:
            self._switch_for_a_while()
            return
        kinds = self._kinds()
        kind = min(kinds, key=lambda name: (self.kills[name], self.chance.random()))
        kinds[kind]()
        self.kills[kind] += 1

    def _crash_at(self, point: str) -> None:
        self.tries[point] += 1
        if point.startswith("update"):
            hit = self._dies_asking(point)
        else:
            with points.brought_to(point, self):
                hit = self.until(lambda: self.arms.hit)
        self.hits[point] += hit
        self.kills["crash point"] += hit

    def _dies_asking(self, point: str) -> bool:
        """A process that sends an update, as one that serves requests does. It is asked again later."""
        tally = self.tell(Tallied)
        waits = self.until(Instance.objects.filter(workflow_id=tally.run, status="waiting").exists)
        if not waits or tally.stopped:
            return False
        key = f"u{self.desk.number()}"
        self.desk.told[tally.run, key] = ("add", 3)
        mode = "worker" if "left" in point else "auto"
        return self.walk.dies_at(point, do=mode, ref=tally.run, id=key, args=3, seconds=_COMES_WITHIN)

    def _switch_for_a_while(self) -> None:
        kind, thing = self.chance.choice(_SWITCHED)
        self.switch(SwitchOff, kind, thing)
        self.go_on(_EVERY)
        self.switch(SwitchOn, kind, thing)
        self.switches += 1

    def kill_worker(self) -> None:
        if (pid := self.a_worker()) is not None:
            _kill(pid, signal.SIGKILL)

    def _kill_above(self) -> None:
        process = self.chance.choice(self.processes)
        there = [pid for pid in members(process) if pid != process.pid] if self.host == "q2" else [process.pid]
        if there:
            _kill(self.chance.choice(there), signal.SIGKILL)

    def _terminate(self) -> None:
        self.chance.choice(self.processes).popen.send_signal(signal.SIGTERM)

    def _freeze(self) -> None:
        if (pid := self.a_worker()) is None:
            return
        _kill(pid, signal.SIGSTOP)
        # not from here: it may have the lock that the work waits for
        threading.Timer(_FROZEN, _kill, [pid, signal.SIGCONT]).start()
        self.go_on(_FROZEN)

    def _cut_connections(self) -> None:
        def cut() -> None:
            with connection.cursor() as cursor:
                cursor.execute(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )

        self.patiently(cut)

    def _restart_database(self) -> None:
        assert self.server is not None
        connection.close()
        self.server.stop()
        self.server.start()
        self._restarted_at = time.monotonic()

    # -- the whole -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._until = time.monotonic() + self.seconds
        while time.monotonic() < self._until:
            self.replenish()
            self.go_on(_EVERY * self.chance.uniform(0.5, 1.5))
            self.disturb()
        self._end()

    def _end(self) -> None:
        """Nothing is disturbed any more: every update has its answer, every run ends, every dead worker is buried."""
        for kind, thing in _SWITCHED:
            self.switch(SwitchOn, kind, thing)
        for say in self._last_words:
            say()
        deadline = time.monotonic() + _LAST_RUNS
        while time.monotonic() < deadline and not self.patiently(self._is_over):
            self.replenish()
            self._look()
            for tale in self.open:
                tale.end()
            for key in self.desk.open():
                self.desk.ask(key, timeout=2.0)
            time.sleep(0.2)
        for process in self.processes:
            process.popen.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.popen.wait(60)

    def _is_over(self) -> bool:
        left: Sequence[Any] = (
            Instance.objects.open(),
            ActivityTask.objects.all(),
            BulkJob.objects.filter(state="running"),
        )
        if self.desk.open() or any(rows.exists() for rows in left):
            return False
        return all(row.buried_at is None and identity_of(row.pid) for row in Worker.objects.all())


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
