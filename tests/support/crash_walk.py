"""Forked workers that die at a named point, and what brings one there that ordinary work does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.utils import timezone

from temporalex_django.authoring.schedules.schedule import Overlap
from temporalex_django.authoring.schedules.specs import parse_specs
from temporalex_django.db import outbox
from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.liveness import crash_markers
from temporalex_django.models import ActivityTask, Instance, Schedule, Worker
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.save import SaveSchedule
from tests.support.waiting import wait_for

#: How a worker that was ended for want of its point is told from one that died there.
MISSED = 999


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


class Walk:
    """Forked workers, each of which dies at a point; ``n`` counts them."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.log = folder / "effects"
        self.hold = folder / "hold"
        self.sent = folder / "sent"
        self.n = 0
        self.bookings: list[str] = []
        self.recordings = 0

    def ask(self, **asked: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def load(self) -> None:
        """Ordinary work: external effects, an atomic one, messages."""
        self.n += 1
        self.bookings.append(f"u{self.n}")
        start("Booking", {"name": f"u{self.n}"}, workflow_id=f"b{self.n}")
        start("Recording", {"path": str(self.log)}, workflow_id=f"r{self.n}")
        tally = start("Tally", workflow_id=f"t{self.n}")
        storage = DjangoStorage()
        insert_message(tally.chain_id, kind="update", name="add", body=3, request_id="a", storage=storage)
        insert_message(tally.chain_id, kind="signal", name="stop", body=None, storage=storage)
        for line in (f"sent {self.n}", f"no {self.n}"):
            body = {"path": str(self.sent), "line": line}
            outbox.insert(tally.chain_id, destination="file", kind="file.append", body=body, storage=storage)

    def dies_at(self, point: str, *, seconds: float = 30.0, **asked: Any) -> bool:
        """Whether it came there in time. If not it is ended here."""
        pid = self.ask(die=point, **asked)
        if point.startswith("leave"):
            wait_for(lambda: Worker.objects.filter(pid=pid).exists())
            return self.ask(stop=pid) == -9
        if point.startswith("code"):
            wait_for(lambda: Worker.objects.filter(pid=pid).exists())
            blocked_for_code()
        return self.ask(wait=pid, seconds=seconds) == -9


@contextmanager
def walking(env: dict[str, str], folder: Path) -> Iterator[Walk]:
    """The process that forks them, for the length of the block; it ends with all that it forked."""
    with (folder / "walker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.walker"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            yield Walk(process, folder)
        except BaseException:
            print((folder / "walker.log").read_text()[-4000:])
            raise
        finally:
            os.killpg(process.pid, 9)
            process.communicate(timeout=10)


# -- what brings a worker to a point that ordinary work does not -------------------------------------------------------


def row(**more: Any) -> Worker:
    """A worker of another machine, whose lease ran out long ago."""
    past = timezone.now() - timedelta(minutes=5)
    given = {
        "host": "elsewhere",
        "pid": 1,
        "process_identity": "",
        "workflows": {},
        "started_at": past,
        "beat_at": past,
        **more,
    }
    return Worker.objects.create(
        id=uuid.uuid4(), epoch=uuid.uuid4().int >> 66, kind="worker", queues=["default"],
        expires_at=past, **given,
    )  # fmt: skip


def dead_neighbour(walk: Walk) -> None:
    row(crash_marker=str(marker(f"buried{walk.n}")))


def unknown_death(walk: Walk) -> None:
    row(buried_at=timezone.now())


def marked(walk: Walk) -> None:
    marker(f"marked{walk.n}")


def marker(name: str) -> Path:
    """The marker of a process of this machine that ended while it ran this: nobody holds its lock."""
    run = start("Doubling", {"n": 1}, workflow_id=name)
    data = bytearray(crash_markers._SIZE)
    crash_markers._HEADER.pack_into(data, 0, crash_markers._MAGIC, 0, 0.0)
    crash_markers._SLOT.pack_into(data, crash_markers._HEADER.size, 1, run.chain_id.bytes)
    path = crash_markers.marker_folder() / f"{DjangoStorage().domain}.of.{name}{crash_markers._SUFFIX}"
    path.write_bytes(data)
    return path


def orphan(walk: Walk) -> None:
    """Somebody took it who has no row."""
    start("Recording", {"path": str(walk.log)}, workflow_id=f"orphan{walk.n}")
    assert walk.dies_at("effect: before")
    assert ActivityTask.objects.filter(owner__isnull=False).update(owner=12345)


def kept_too_long(walk: Walk) -> None:
    run = start("Remembered", workflow_id=f"f{walk.n}")
    call_command("temporalex", "worker", "--burst", verbosity=0)
    assert Instance.objects.filter(pk=run.run_id).update(closed_at=timezone.now() - timedelta(hours=2)) == 1


def goes_on(walk: Walk) -> None:
    """It goes on until the walk is over: what is pruned is an earlier run of a chain that is open."""
    run = start("Entity", 0, workflow_id=f"entity{walk.n}")
    insert_message(run.chain_id, kind="signal", name="next", body=None, storage=DjangoStorage())
    call_command("temporalex", "worker", "--burst", verbosity=0)
    past = timezone.now() - timedelta(hours=2)
    assert Instance.objects.filter(pk=run.run_id, status="continued_as_new").update(closed_at=past) == 1


def held(walk: Walk) -> None:
    walk.hold.touch()
    start("Beating", {"hold": str(walk.hold)}, workflow_id=f"beating{walk.n}")


def job(action: str) -> Callable[[Walk], None]:
    def start_job(walk: Walk) -> None:
        run = start("Stuck", {}, workflow_id=f"{action}{walk.n}")
        call_command("temporalex", "worker", "--burst", verbosity=0)
        given = {"to": 0} if action == "reset" else {}
        StartBulk(action, runs=[run.run_id], reason="over", **given).execute()

    return start_job


def blocked_for_code() -> None:
    run = Instance.objects.filter(workflow="Stuck", status="waiting").latest("pk")
    Instance.objects.filter(pk=run.pk).update(blocked={"code": "unknown_workflow", "error": "no class"})


def stuck(walk: Walk) -> None:
    start("Stuck", {}, workflow_id=f"stuck{walk.n}")
    call_command("temporalex", "worker", "--burst", verbosity=0)


def limited(walk: Walk) -> None:
    """Activities that wait in a line of their own."""
    start("Mixture", {"calls": [["seldom", None], ["seldom", "a"]]}, workflow_id=f"limited{walk.n}")


def switched_on(walk: Walk) -> None:
    """A run of a class that was off when it began, and is on again."""
    SwitchOff("workflow", "Sleeping").execute()
    run = start("Sleeping", {"seconds": 0}, workflow_id=f"off{walk.n}")
    call_command("temporalex", "worker", "--burst", verbosity=0)
    assert Instance.objects.filter(pk=run.run_id, blocked__isnull=False).exists()
    SwitchOn("workflow", "Sleeping").execute()


def scheduled(walk: Walk) -> None:
    """Two schedules that are due: one that fires alone, and one whose second slot waits for the first."""
    for name in ("nightly", "hourly"):
        due_schedule(f"{name}{walk.n}", slots=2 if name == "hourly" else 1)


def due_schedule(name: str, *, slots: int) -> None:
    """A schedule with so many slots that no worker has fired yet; the next one comes in a day."""
    last = timezone.now().replace(microsecond=0) - timedelta(minutes=1)
    day = timedelta(days=1)
    specs = parse_specs(every=day, offset=timedelta(seconds=last.timestamp() % day.total_seconds()))
    definition = ScheduleDefinition(
        name=name, workflow="Doubling", specs=specs, args={"n": 2}, catch_up=5 * day, overlap=Overlap.BUFFER_ALL
    )
    SaveSchedule(definition, create=True).execute()
    Schedule.objects.filter(name=name).update(position=last - slots * day, next_at=last)


#: By the beginning of the name of a point: what comes before, and what fails on the way.
BEFORE: dict[str, tuple[Callable[[Walk], None] | None, dict[str, int]]] = {
    "limited": (limited, {}),
    "apart": (None, {"turn: before commit": 1}),
    "alone": (None, {"turn: before commit": 1}),
    "block": (None, {"turn: before commit": 1, "alone: before commit": 99}),
    "careful": (unknown_death, {}),
    "marker": (marked, {}),
    "orphans": (orphan, {}),
    "bury": (dead_neighbour, {}),
    "retention": (kept_too_long, {}),
    "earlier": (goes_on, {}),
    "heartbeat": (held, {}),
    "code": (stuck, {}),
    "schedule": (scheduled, {}),
    "switched on": (switched_on, {}),
    "bulk let go": (job("reset"), {"bulk end: before commit": 1}),
    "bulk end": (job("reset"), {}),
    "bulk": (job("terminate"), {}),
}


@contextmanager
def prepared(walk: Walk, point: str) -> Iterator[dict[str, int]]:
    before, fails = next((found for name, found in BEFORE.items() if point.startswith(name)), (None, {}))
    try:
        if before is not None:
            before(walk)
        yield fails
    finally:
        walk.hold.unlink(missing_ok=True)
        Worker.objects.filter(host="elsewhere").delete()
