"""Workflows on a cluster, whose activities are counted by rows that they write."""

from __future__ import annotations

import os
import uuid
from typing import Any

from django.contrib.auth.models import Group

from temporalex_django import Ok, Workflow, activity, activity_context, api, once

QUEUE = os.environ.get("TX_TEST_QUEUE", "mirrored")


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
