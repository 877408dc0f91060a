"""What brings a worker to a crash point, beside the work that goes on anyway."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from temporalex_django.core import process
from temporalex_django.models import ActivityTask, Instance, Worker
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from tests.soak.small import Beaten, Booked, Slept, UnderLimits, Waited
from tests.support.crash_walk import due_schedule, marker, row, start

if TYPE_CHECKING:
    from tests.soak.course import Course

#: Points that a host or a database does not have, each with the reason.
UNREACHABLE: dict[tuple[str, str], dict[str, str]] = {}

Before = Callable[["Course"], None]


def points(host: str, database: str) -> list[str]:
    """Those that must be hit."""
    return [point for point in process.POINTS if point not in UNREACHABLE.get((host, database), {})]


def _nothing(course: Course) -> None:
    """Ordinary work comes there."""


def _terminated(course: Course) -> None:
    """A worker leaves."""
    if (pid := course.a_worker()) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _killed(course: Course) -> None:
    """A worker dies, and another one takes its place."""
    course.kill_worker()


def _all_killed(course: Course) -> None:
    course.end_all()
    course.replenish()


def _unknown_death(course: Course) -> None:
    course.patiently(lambda: row(buried_at=timezone.now()))


def _late_elsewhere(course: Course) -> None:
    """Who has lived for a lease buries it at once: so only those are there who have just begun."""
    course.end_all()
    told = course.tell(Waited)

    def once() -> None:
        chain = Instance.objects.get(workflow_id=told.run).chain_id
        row(trying=[str(chain)], workflows={"Stuck": [1]})

    course.patiently(once)
    course.replenish()


def _marker(course: Course) -> None:
    name = f"marked{course.desk.number()}"
    course.patiently(lambda: marker(name))


def _orphan(course: Course) -> None:
    """Somebody has it who has no row. Workers look for that when they begin."""
    held = course.tell(Beaten)
    begun = ActivityTask.objects.filter(workflow_id=held.run, owner__isnull=False)
    if course.until(begun.exists):
        course.end_all()
        course.patiently(lambda: begun.update(owner=12345))
        course.replenish()


def _kept_too_long(course: Course) -> None:
    run = course.patiently(lambda: start("Remembered", workflow_id=f"kept{course.desk.number()}"))
    closed = Instance.objects.filter(pk=run.run_id, status="completed")
    if course.until(closed.exists):
        course.patiently(lambda: closed.update(closed_at=timezone.now() - timedelta(hours=2)))


def _goes_on(course: Course) -> None:
    number = course.desk.number()
    run = course.patiently(lambda: start("Entity", 0, workflow_id=f"entity{number}"))
    closed = Instance.objects.filter(pk=run.run_id, status="continued_as_new")
    course.desk.signal(f"entity{number}", "next")
    if course.until(closed.exists):
        course.patiently(lambda: closed.update(closed_at=timezone.now() - timedelta(hours=2)))
    course.at_the_end(lambda: course.desk.signal(f"entity{number}", "next", "stop"))


def _told(kind: type[Beaten | Booked | UnderLimits]) -> Before:
    def tell(course: Course) -> None:
        course.tell(kind)

    return tell


def _waiting(course: Course) -> Instance | None:
    told = course.tell(Waited)
    waits = Instance.objects.filter(workflow_id=told.run, status="waiting")
    return course.patiently(waits.first) if course.until(waits.exists) else None


def _without_code(course: Course) -> None:
    if (run := _waiting(course)) is not None:
        mark = {"code": "unknown_workflow", "error": "no class"}
        course.patiently(lambda: Instance.objects.filter(pk=run.pk).update(blocked=mark))


def _scheduled(course: Course) -> None:
    course.patiently(lambda: due_schedule(f"nightly{course.desk.number()}", slots=2))


def _job(action: str) -> Before:
    def begin(course: Course) -> None:
        if (run := _waiting(course)) is not None:
            given: Any = {"to": 0} if action == "reset" else {}
            course.patiently(StartBulk(action, runs=[run.pk], reason="over", **given).execute)

    return begin


def _switched_on(course: Course) -> None:
    """Work of a class comes while it is off."""
    course.switch(SwitchOff, "workflow", "Sleeping")
    told = course.tell(Slept)
    course.until(Instance.objects.filter(workflow_id=told.run, blocked__isnull=False).exists)
    course.switch(SwitchOn, "workflow", "Sleeping")


#: By the beginning of the name of a point: what comes before, and what fails on the way.
BEFORE: dict[str, tuple[Before, dict[str, int]]] = {
    "limited": (_told(UnderLimits), {}),
    "apart": (_nothing, {"turn: before commit": 1}),
    "alone": (_nothing, {"turn: before commit": 1}),
    "block": (_nothing, {"turn: before commit": 1, "alone: before commit": 99}),
    "atomic": (_told(Booked), {}),
    "careful": (_unknown_death, {}),
    "late": (_late_elsewhere, {}),
    "marker": (_marker, {}),
    "orphans": (_orphan, {}),
    "bury": (_killed, {}),
    "register": (_killed, {}),
    "leave": (_terminated, {}),
    "retention": (_kept_too_long, {}),
    "earlier": (_goes_on, {}),
    "heartbeat": (_told(Beaten), {}),
    "code": (_without_code, {}),
    "schedule": (_scheduled, {}),
    "switched on": (_switched_on, {}),
    "bulk let go": (_job("reset"), {"bulk end: before commit": 1}),
    "bulk end": (_job("reset"), {}),
    "bulk": (_job("terminate"), {}),
}


@contextmanager
def brought_to(point: str, course: Course) -> Iterator[None]:
    """It is armed, and what comes before has happened."""
    before, fails = next((found for name, found in BEFORE.items() if point.startswith(name)), (_nothing, {}))
    course.arms.arm(point, fails)
    try:
        before(course)
        yield
    finally:
        course.arms.disarm()
        course.patiently(Worker.objects.filter(host="elsewhere").delete)
