"""Workflows on a cluster, whose activities are counted by rows that they write."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from django.contrib.auth.models import Group

from temporalex_django import Ok, Reply, Workflow, activity, activity_context, api, once
from temporalex_django.backends.cluster import mirror_writer
from temporalex_django.liveness.process_identity import identity_of

QUEUE = os.environ.get("TX_TEST_QUEUE", "mirrored")

#: Seconds for which rows may be combined with later ones, if a test sets them.
if soon := os.environ.get("TX_TEST_SOON"):
    mirror_writer._SOON = float(soon)  # type: ignore[misc] # a constant elsewhere


@activity(atomic=True)
def book_once(name: str) -> int:
    """Write a row. Its number of rows is the number of times that it took effect."""
    Group.objects.create(name=f"{name}:{uuid.uuid4()}")
    return Group.objects.filter(name__startswith=f"{name}:").count()


@activity
def book_by_key(name: str) -> int:
    with once(f"{name}:{activity_context().idempotency_key}") as booking:
        if booking.is_first:
            Group.objects.create(name=f"{name}:{uuid.uuid4()}")
            booking.result = Group.objects.filter(name__startswith=f"{name}:").count()
    return booking.result


@activity(heartbeat=2.0)
def occupy(seconds: float) -> int:
    """Stay for a while, and return the number of attempts of living processes that were there at the beginning."""
    place = Group.objects.create(name=f"place:{os.getpid()}:{uuid.uuid4()}")
    others = Group.objects.filter(name__startswith="place:").values_list("name", flat=True)
    count = sum(bool(identity_of(int(name.split(":")[1]))) for name in others)
    ending = time.monotonic() + seconds
    while time.monotonic() < ending:
        time.sleep(0.05)  # it is busy
        activity_context().heartbeat()
    place.delete()
    return count


class CrowdedRun(Workflow):
    """Calls many activities at a time."""

    task_queue = QUEUE

    async def run(self, args: dict[str, Any]) -> Any:
        return Ok(await api.parallel([occupy(args["seconds"]) for _ in range(args["calls"])]))


class BookingRun(Workflow):
    """Books twice and asks a person in between."""

    task_queue = QUEUE
    signals = ("go",)

    async def run(self, args: dict[str, Any]) -> Any:
        name = args["name"]
        booked = [await book_once(f"{name}-a")]
        api.publish_state({"booked": booked})
        if args.get("waits"):
            await api.wait_for_signal("go")
        booked.append(await book_by_key(f"{name}-b"))
        return Ok(booked)


class CountingPhase(Workflow):
    """Counts updates, and publishes nothing."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.phase(0, update={"count": self.count}))

    def count(self, args: Any, state: int) -> Any:
        return Reply(state + 1, state + 1)
