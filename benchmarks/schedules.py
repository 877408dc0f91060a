"""``schedules``: schedules that are all due in one minute, on one worker, and the cost of those that are idle."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final

from benchmarks.measures import milliseconds, timed, wait_until
from benchmarks.processes import worker

_LOOKS: Final = 50


def run(count: int) -> dict[str, Any]:
    """Measure in how many seconds one worker starts the runs of ``count`` due schedules, and ms an idle look."""
    from django.db.models import Max
    from django.utils import timezone

    from temporalex_django.models import Instance, Schedule, ScheduleSlot
    from temporalex_django.operations.schedules.fire import has_due

    now = timezone.now()
    values = {
        "workflow": "One",
        "owner": "people",
        "specs": [{"type": "interval", "every": 86_400.0, "offset": now.timestamp() // 1 % 86_400}],
        "args": b"null",
        "workflow_id": "{schedule}-{slot:%Y%m%dT%H%M}",
        "catch_up": timedelta(hours=1),
        "position": now - timedelta(minutes=1),
        "created_at": now,
        "changed_at": now,
    }
    rows = [Schedule(name=f"nightly-{number}", next_at=now + timedelta(days=1), **values) for number in range(count)]
    Schedule.objects.bulk_create(rows, batch_size=500)
    looks = [timed(lambda: has_due("default")) for _ in range(_LOOKS)]
    Schedule.objects.update(next_at=now)
    with worker():
        began = time.perf_counter()
        started = ScheduleSlot.objects.filter(outcome="started")
        spent = wait_until(lambda: started.count() >= count, seconds=110, every=0.1) - began
        ended = wait_until(lambda: Instance.objects.filter(status="completed").count() >= count, seconds=110) - began
    assert Instance.objects.count() == count, "one run a slot"
    latest = ScheduleSlot.objects.aggregate(at=Max("decided_at"))["at"]
    return {
        "schedules": count,
        "seconds_until_started": round(spent, 2),
        "seconds_until_completed": round(ended, 2),
        "schedules_per_s": round(count / spent),
        "last_decided_after_s": round((latest - now).total_seconds(), 2),
        "idle_look": milliseconds(looks),
    }
