"""``recover``: one of two workers is killed while both are busy.

Nothing may be lost; effects that happened twice are counted.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from django.db import transaction
from django.db.models import Count

from benchmarks.measures import wait_until
from benchmarks.processes import worker


def run(count: int) -> dict[str, Any]:
    """Measure seconds until the dead worker owns nothing, effects that happened twice, and lost runs."""
    from benchmarks.app.models import Entry
    from benchmarks.app.workflows import Effect
    from temporalex_django.models import ActivityTask, Instance, Worker

    completed = Instance.objects.filter(status="completed")
    with worker() as victim:
        wait_until(Worker.objects.exists, seconds=20)
        epoch = Worker.objects.get().epoch
        with worker():
            wait_until(lambda: Worker.objects.count() == 2, seconds=20)
            with transaction.atomic():  # all appear at once
                for number in range(count):
                    Effect.start(f"effect-{number}", id=f"effect-{number}")
            owned = ActivityTask.objects.filter(owner=epoch)
            wait_until(lambda: completed.count() > count // 10, seconds=60, every=0.01)
            wait_until(owned.exists, seconds=20, every=0.001)
            os.killpg(victim.pid, signal.SIGKILL)
            killed = time.perf_counter()
            inherited = owned.count()
            taken = wait_until(lambda: not owned.exists(), seconds=60, every=0.01)
            wait_until(lambda: completed.count() >= count, seconds=60)
    twice = Entry.objects.values("run").annotate(times=Count("id")).filter(times__gt=1).count()
    never = count - Entry.objects.values("run").distinct().count()
    return {
        "workflows": count,
        "in_hand_of_the_dead": inherited,
        "seconds_until_taken_over": round(taken - killed, 2),
        "effects_twice": twice,
        "effects_never": never,
        "runs_lost": count - completed.count(),
    }
