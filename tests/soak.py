"""``make soak``: work of every kind while something is killed every few seconds, then whether all of it adds up.

``python -m tests.soak --seconds 600 [--host q2] [--seed N] [--json FILE]``, with ``TEST_DB=sqlite`` or ``postgres``.
Ends with 1 when a crash point was not hit, or something does not add up. What it starts it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scripts.embedded_postgres import EmbeddedPostgres
    from tests.support.crash_walk import Walk
    from tests.support.processes import Process

_ACCOUNTS = [f"account{n}" for n in range(6)]
_WORKERS = 2
#: Between two disturbances, and between two pieces of work.
_EVERY, _STARTED_EVERY = 2.0, 0.15
_LAST_RUNS = 180.0
_RESTARTED_EVERY = 30.0


class Soak:
    """One run of it. ``kills`` by kind, ``points`` by name; ``tallies``: what each was told, by update."""

    def __init__(self, options: argparse.Namespace, folder: Path, server: EmbeddedPostgres | None) -> None:
        self.options = options
        self.folder = folder
        self.server = server
        self.chance = random.Random(options.seed)
        self.kills: Counter[str] = Counter()
        self.points: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self.tallies: dict[str, dict[str, int]] = {}
        self.answers: dict[tuple[str, str], Any] = {}
        self.wrong: list[str] = []
        self.processes: list[Process] = []
        self.stack = ExitStack()
        self.log = folder / "effects"
        self.log.touch()
        self.restarted_at = time.monotonic()
        temporalex = {"LEASE_SECONDS": 2.0, "DRAIN_SECONDS": 1.0, "LEAVE_SECONDS": 3.0}
        self.env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
            "TX_TEST_TEMPORALEX": json.dumps(temporalex),
            "TX_TEST_DATABASE": _name(),
            "PYTHONPATH": str(Path.cwd()),
        }

    # -- processes -----------------------------------------------------------------------------------------------------

    def replenish(self) -> None:
        """As a supervisor does."""
        from tests.support.processes import Process

        self.processes = [process for process in self.processes if process.popen.poll() is None]
        cluster = self.options.host == "q2"
        command = ["qcluster", "--skip-checks"] if cluster else ["temporalex", "worker"]
        while len(self.processes) < (1 if cluster else _WORKERS):
            process = Process(command, self.env, self.folder / "workers.log")
            self.processes.append(process)

    def end_all(self) -> None:
        for process in self.processes:
            _kill_group(process.pid)
            process.popen.wait(20)
        self.processes = []

    # -- work ----------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        from tests.support.crash_walk import start

        n = sum(self.started.values())
        kind = self.chance.choice(["Transfer", "Transfer", "Booking", "Recording", "Flaky", "AsyncDoubling", "Tally"])
        kind = self.chance.choice([kind, kind, "LocalDoubling", "Sleeping", "Update", "Update"])
        source, target = self.chance.sample(_ACCOUNTS, 2)
        amount = self.chance.randrange(1, 100)
        args: dict[str, Any] = {
            "Transfer": {"source": source, "target": target, "amount": amount, "path": str(self.log)},
            "Booking": {"name": f"soak{n}"},
            "Recording": {"path": str(self.log)},
            "Flaky": {"path": str(self.folder / "flaky"), "failures": 1},
            "AsyncDoubling": {"n": 3},
            "LocalDoubling": {"n": n},
            "Sleeping": {"seconds": self.chance.random() * 3},
        }
        self.started[kind] += 1
        if kind == "Update":
            self.update(n)
        elif kind == "Tally":
            start("Tally", workflow_id=f"soak{n}")
            self.tallies[f"soak{n}"] = {}
        else:
            start(kind, args[kind], workflow_id=f"soak{n}")

    def update(self, n: int) -> None:
        """Told once, however often it is asked: what is not known to have been answered is asked again at the end."""
        if not self.tallies:
            return
        name = self.chance.choice([*self.tallies])
        self.tallies[name][f"u{n}"] = self.chance.randrange(1, 10)
        self.ask(name, f"u{n}", timeout=0.5)

    def ask(self, name: str, key: str, *, timeout: float) -> None:
        from temporalex_django.client import backend
        from temporalex_django.errors import TemporalexError

        with suppress(TemporalexError):
            mode = self.chance.choice(["auto", "worker"])
            said = backend().handle(name).update("add", self.tallies[name][key], id=key, timeout=timeout, mode=mode)
            if self.answers.setdefault((name, key), said) != said:
                self.wrong.append(f"update {key} of {name} was answered {self.answers[name, key]} and {said}")

    def patiently(self, do: Callable[[], Any], *, seconds: float = 60.0) -> Any:
        """What the database refuses while it restarts is asked again."""
        from django.db import Error, connection

        deadline = time.monotonic() + seconds
        while True:
            try:
                return do()
            except Error as exc:
                if time.monotonic() > deadline:
                    raise
                del exc
                connection.close()
                time.sleep(0.1)

    # -- disturbances --------------------------------------------------------------------------------------------------

    def kinds(self) -> dict[str, Callable[[], None]]:
        found: dict[str, Callable[[], None]] = {
            "worker": self.kill_worker,
            "all workers": self.end_all,
            "SIGTERM": self.terminate,
            "SIGSTOP and SIGCONT": self.freeze,
            "cluster member" if self.options.host == "q2" else "guardian": self.kill_above,
        }
        if os.environ["TEST_DB"] == "postgres":
            found["connections"] = self.cut_connections
            if self.server is not None:
                found["PostgreSQL restarted"] = self.restart_database
        return found

    def disturb(self, walk: Walk) -> None:
        missing = [point for point in _points() if not self.points[point]]
        if missing and self.chance.random() < self.share_of_points():
            self.crash_at(self.chance.choice(missing), walk)
            return
        kinds = self.kinds()
        if time.monotonic() - self.restarted_at < _RESTARTED_EVERY:
            kinds.pop("PostgreSQL restarted", None)
        kind = min(kinds, key=lambda name: (self.kills[name], self.chance.random()))
        kinds[kind]()
        self.kills[kind] += 1

    def share_of_points(self) -> float:
        return 0.7

    def crash_at(self, point: str, walk: Walk) -> None:
        """A worker alone, so that it is he who comes there; what the others had in hand he finds."""
        from tests.support.crash_walk import prepared, start

        self.end_all()
        if point.startswith("update"):
            tally = self.patiently(
                lambda: start("Tally", workflow_id=f"point{walk.n}-{len(self.points)}-{time.monotonic()}")
            )
            mode = "worker" if "left" in point else "auto"
            hit = walk.dies_at(point, do=mode, ref=str(tally.run_id), seconds=15)
        else:
            try:
                with prepared(walk, point) as fails:
                    walk.load()
                    hit = walk.dies_at(point, fail=fails, seconds=20)
            except AssertionError:
                hit = False
        self.points[point] += hit
        self.kills["crash point"] += hit

    def kill_worker(self) -> None:
        if (pid := self.a_worker()) is not None:
            _kill(pid, signal.SIGKILL)

    def kill_above(self) -> None:
        from tests.support.processes import members

        process = self.chance.choice(self.processes)
        there = [pid for pid in members(process) if pid != process.pid] if self.options.host == "q2" else [process.pid]
        if there:
            _kill(self.chance.choice(there), signal.SIGKILL)

    def terminate(self) -> None:
        process = self.chance.choice(self.processes)
        process.popen.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Longer than a lease."""
        if (pid := self.a_worker()) is None:
            return
        _kill(pid, signal.SIGSTOP)
        self.go_on(3.0)
        _kill(pid, signal.SIGCONT)

    def a_worker(self) -> int | None:
        from temporalex_django.liveness.process_identity import identity_of
        from temporalex_django.models import Worker

        rows = self.patiently(lambda: [*Worker.objects.exclude(host="elsewhere").values_list("pid", flat=True)])
        there = [pid for pid in rows if identity_of(pid)]
        return self.chance.choice(there) if there else None

    def cut_connections(self) -> None:
        from django.db import connection

        def cut() -> None:
            with connection.cursor() as cursor:
                cursor.execute(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )

        self.patiently(cut)

    def restart_database(self) -> None:
        from django.db import connection

        assert self.server is not None
        connection.close()
        self.server.stop()
        self.server.start()
        self.restarted_at = time.monotonic()

    # -- the course of it ----------------------------------------------------------------------------------------------

    def go_on(self, seconds: float) -> None:
        """With work alone."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.patiently(self.work)
            time.sleep(_STARTED_EVERY)

    def run(self, walk: Walk) -> None:
        until = time.monotonic() + self.options.seconds
        while time.monotonic() < until:
            self.replenish()
            self.go_on(_EVERY * self.chance.uniform(0.5, 1.5))
            self.disturb(walk)

    def come_to_an_end(self) -> None:
        """Nothing is killed any more: every update has its answer, every run ends."""
        from temporalex_django.db.starts import insert_message
        from temporalex_django.db.storage import DjangoStorage
        from temporalex_django.models import Instance, Worker

        Worker.objects.filter(host="elsewhere").delete()
        self.replenish()
        for name, told in self.tallies.items():
            for key in told:
                for _ in range(20):
                    if (name, key) not in self.answers:
                        self.patiently(lambda n=name, k=key: self.ask(n, k, timeout=10.0))
                if (name, key) not in self.answers:
                    self.wrong.append(f"update {key} of {name} has no answer")
        Instance.objects.filter(workflow="Stuck").update(blocked=None)
        stops = {"Tally": "stop", "Stuck": "go"}
        for run in Instance.objects.open().filter(workflow__in=stops):
            insert_message(run.chain_id, kind="signal", name=stops[run.workflow], body=None, storage=DjangoStorage())
        deadline = time.monotonic() + _LAST_RUNS
        while Instance.objects.open().exists() and time.monotonic() < deadline:
            self.replenish()
            time.sleep(0.5)
        for process in self.processes:
            process.popen.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.popen.wait(60)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self, walk: Walk) -> None:
        from django.contrib.auth import get_user_model
        from django.db.models import Count

        from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message, Worker
        from tests.support.processes import MANAGE

        def expect(holds: bool, what: object) -> None:
            if not holds:
                self.wrong.append(str(what))

        stuck = Instance.objects.open().values_list("workflow", "workflow_id", "status", "blocked")
        expect(not stuck, f"stuck runs: {[*stuck[:5]]}")
        odd = Instance.objects.exclude(status__in=["completed", "terminated", "continued_as_new"])
        # an activity that was alone in three workers when they died is lost, by its policy: that one lasts that long
        odd = odd.exclude(workflow__in=["Stuck", "Beating"]).values_list("workflow", "workflow_id", "status")
        expect(not odd, f"runs that did not complete: {[*odd[:5]]}")
        for name, told in self.tallies.items():
            result = Instance.objects.get(workflow="Tally", workflow_id=name).closing_value
            expect(result == {"result": sum(told.values())}, f"{name} counted {result}, was told {sum(told.values())}")
        twice = Message.objects.filter(request_id__isnull=False).values("chain", "request_id").annotate(n=Count("pk"))
        expect(not twice.filter(n__gt=1), "a message is there twice")
        unread = Message.objects.filter(settled=False).exclude(chain__closed=True)
        expect(not unread, f"{unread.count()} messages are not accounted for")
        ends = HistoryEvent.objects.filter(kind__in=["ActivityCompleted", "ActivityFailed"])
        keys = Counter((run, attributes["seq"]) for run, attributes in _decoded(ends))
        expect(not [key for key, n in keys.items() if n > 1], "an effect has two recorded results")
        lines = [line.split()[1] for line in self.log.read_text().splitlines() + walk.log.read_text().splitlines()]
        effects = Instance.objects.filter(workflow__in=["Recording", "Transfer"], status="completed").count()
        expect(len(set(lines)) == effects, f"{len(set(lines))} effects by their keys, of {effects} runs")
        users = get_user_model().objects.exclude(username__in=_ACCOUNTS)
        booked = Instance.objects.filter(workflow="Booking", status="completed").count()
        expect(users.count() == booked, f"{users.count()} atomic effects of {booked} runs")
        balances = dict(get_user_model().objects.filter(username__in=_ACCOUNTS).values_list("username", "last_name"))
        moved: Counter[str] = Counter()
        for run in Instance.objects.filter(workflow="Transfer", status="completed"):
            moved[run.input["source"]] -= run.input["amount"]
            moved[run.input["target"]] += run.input["amount"]
        expect({a: int(b or 0) for a, b in balances.items()} == {a: moved[a] for a in _ACCOUNTS}, "money is missing")
        runs = Instance.objects.values("pk")
        expect(not ActivityTask.objects.exists(), "activities are left")
        expect(not HistoryEvent.objects.exclude(run_id__in=runs).exists(), "events without a run")
        expect(not Chain.objects.exclude(pk__in=Instance.objects.values("chain_id")).exists(), "chains without a run")
        expect(not Message.objects.exclude(chain_id__in=Chain.objects.values("pk")).exists(), "messages of no chain")
        expect(not Worker.objects.exists(), f"workers are left: {[*Worker.objects.values_list('pid', 'buried_at')]}")
        command = [*MANAGE, "temporalex", "replay"]
        replayed = subprocess.run(command, env=self.env, check=False, capture_output=True, text=True)
        expect(replayed.returncode == 0, f"a history does not replay: {replayed.stderr[-500:]}")
        if missing := [point for point in _points() if not self.points[point]]:
            self.wrong.append(f"points that were never hit: {', '.join(missing)}")

    def report(self) -> dict[str, Any]:
        from temporalex_django.models import HistoryEvent, Instance

        return {
            "seconds": self.options.seconds,
            "host": self.options.host,
            "database": os.environ["TEST_DB"],
            "seed": self.options.seed,
            "runs": Instance.objects.count(),
            "events": HistoryEvent.objects.count(),
            "started": dict(self.started),
            "updates": sum(len(told) for told in self.tallies.values()),
            "kills": dict(sorted(self.kills.items())),
            "points": dict(sorted(self.points.items())),
            "wrong": self.wrong,
        }


def _points() -> tuple[str, ...]:
    from temporalex_django.core import crash_points

    return crash_points.POINTS


def _decoded(events: Any) -> Any:
    from temporalex_django.conf import codec

    for run, attributes in events.values_list("run_id", "attributes"):
        yield run, attributes if isinstance(attributes, dict) else codec().decode(bytes(attributes))


def _name() -> str:
    from django.db import connection

    return str(connection.settings_dict["NAME"])


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long something is killed (at most 7200)")
    parser.add_argument("--host", choices=["worker", "q2"], default="worker")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.seconds = min(options.seconds, 7200.0)
    options.seed = random.randrange(10**6) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings_of_processes"
    import django

    server = _server()
    django.setup()
    from django.contrib.auth import get_user_model
    from django.db import connection

    from tests.settings import FOLDER
    from tests.support.crash_walk import walking

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    for name in _ACCOUNTS:
        get_user_model().objects.create(username=name)
    soak = Soak(options, FOLDER, server)
    try:
        with walking(soak.env, FOLDER) as walk:
            walk.log.touch()
            soak.run(walk)
            soak.come_to_an_end()
            soak.check(walk)
    finally:
        soak.end_all()
    said = json.dumps(soak.report(), indent=2)
    print(said)
    if options.json:
        options.json.write_text(said)
    return 1 if soak.wrong else 0


def _server() -> EmbeddedPostgres | None:
    """A server that this process can stop and start again, unless there is one already."""
    if os.environ.setdefault("TEST_DB", "postgres") != "postgres" or os.environ.get("DATABASE_URL"):
        return None
    import tempfile

    from scripts.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(Path(tempfile.mkdtemp(prefix="tx-soak-")), options={"fsync": "off"}).start()
    os.environ["DATABASE_URL"] = server.url()
    return server


if __name__ == "__main__":
    sys.exit(main())
