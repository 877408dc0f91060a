"""The number of workers that each queue needs, for autoscalers: computed from lag, rates and durations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models.functions import Now

from temporalex_django.conf import get_settings
from temporalex_django.liveness.health import WorkerLoad, activity_threads
from temporalex_django.models import Worker
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.queue_stats import QueueFigures, queue_figures

#: Seconds that an attempt is assumed to take in a queue of which no worker has measured one.
UNMEASURED_ATTEMPT_SECONDS = 1.0
#: Seconds that it is assumed to take to advance a run, as long as no worker has measured it.
UNMEASURED_RUN_SECONDS = 0.005
#: The part of its capacity that a worker should use; the rest is for peaks.
UTILISATION = 0.8
#: However late a queue is, what waits is to be done in no less than this part of the target.
_SHORTEST_DRAIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDemand:
    """The number of workers that a queue needs, and the figures from which it was computed.

    - ``workers_needed``: the number of workers; 0 if nothing is due and nothing runs.
    - ``need``: the same before it is rounded up. Add the needs of queues that the same workers poll.
    - ``workers``: the number of live workers that poll the queue and are not drained.
    - ``lag``, ``due_runs``, ``due_activities``, ``running``: those of ``QueueFigures``.
    - ``attempt_rate`` and ``attempt_seconds``: attempts of activities that end in a second, and their mean duration;
      None if no worker has measured any.
    - ``run_seconds``: the mean time to advance a run; None if no worker has measured it.
    - ``slots``: the number of such activities that one worker runs at a time.
    """

    queue: str
    workers_needed: int
    need: float
    workers: int
    lag: float
    due_runs: int
    due_activities: int
    running: int
    attempt_rate: float | None
    attempt_seconds: float | None
    run_seconds: float | None
    slots: float


def queue_demands() -> list[QueueDemand]:
    """Return the demand of all queues, sorted by name. At most seven reads; locks nothing."""
    return demands_of(queue_figures())


def demands_of(figures: Sequence[QueueFigures]) -> list[QueueDemand]:
    """Return the demand of queues whose figures were read already. Reads the rows of the live workers."""
    live_workers = Worker.objects.using(storage().alias).filter(expires_at__gt=Now(), buried_at=None, drained_at=None)
    loads = [(frozenset(names), load) for names, load in live_workers.values_list("queues", "load") if load is not None]
    target, slots = get_settings().TARGET_LAG_SECONDS, activity_threads()
    return [
        compute_demand(
            queue, [load for names, load in loads if queue.queue in names], target=target, default_slots=slots
        )
        for queue in figures
    ]


def compute_demand(
    figures: QueueFigures, loads: Sequence[WorkerLoad], *, target: float, default_slots: int
) -> QueueDemand:
    """Return the demand of one queue. Reads nothing.

    ``loads`` are those of the workers that poll the queue. ``target`` is the number of seconds within which work that
    is due should begin. ``default_slots`` is the number of activities that a worker runs at a time if ``loads`` is
    empty.

    The need has two parts for activities and two for runs. One is what runs all the time: rate times duration (Little's
    law). The other is what waits: it should be done within the target, or sooner if the queue is late already.
    Activities that wait because of a limit or a hold do not count, because more workers would not start them.
    """
    measured = _combine(figures.queue, loads)
    share = measured.share or 1 / default_slots
    drain = max(target - figures.lag, target * _SHORTEST_DRAIN)
    waiting = _startable_activities(figures)
    running = max((measured.rate or 0.0) * (measured.attempt_seconds or 0.0), float(figures.running))
    running += waiting * (measured.attempt_seconds or UNMEASURED_ATTEMPT_SECONDS) / drain
    running = min(running, float("inf") if figures.concurrency is None else float(figures.concurrency))
    due_runs = 0 if figures.off else figures.due_runs
    turns = sum(load["busy"] for load in loads) + due_runs * (measured.run_seconds or UNMEASURED_RUN_SECONDS) / drain
    need = round(max(running * share, turns) / UTILISATION, 4)
    has_work = bool(figures.running or waiting or due_runs)
    return QueueDemand(
        queue=figures.queue,
        workers_needed=max(math.ceil(need), int(has_work)),
        need=need,
        workers=len(figures.workers),
        lag=figures.lag,
        due_runs=figures.due_runs,
        due_activities=figures.due_activities,
        running=figures.running,
        attempt_rate=measured.rate,
        attempt_seconds=measured.attempt_seconds,
        run_seconds=measured.run_seconds,
        slots=round(1 / share, 1),
    )


class _CombinedLoad(NamedTuple):
    """The load of all workers of a queue: the sum of their rates, and their mean times; None if nobody measured it."""

    rate: float | None
    attempt_seconds: float | None
    share: float | None
    run_seconds: float | None


def _combine(queue: str, loads: Sequence[WorkerLoad]) -> _CombinedLoad:
    """Combine the loads that the workers of a queue have measured; a worker that is busier counts more."""
    measured = [load["queues"][queue] for load in loads if queue in load["queues"]]
    return _CombinedLoad(
        rate=round(sum(queue_load["rate"] for queue_load in measured), 4) if measured else None,
        attempt_seconds=_mean([(queue_load["seconds"], queue_load["rate"]) for queue_load in measured]),
        share=_mean([(queue_load["share"], queue_load["rate"]) for queue_load in measured]),
        run_seconds=_mean([(seconds, load["busy"]) for load in loads if (seconds := load["run_seconds"]) is not None]),
    )


def _startable_activities(figures: QueueFigures) -> int:
    """Return the number of due activities that a further worker could start: no limit or switch keeps them back."""
    if figures.off or figures.held_until is not None:
        return 0
    return figures.due_activities - figures.held_activities


def _mean(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of values, each with its weight, or None without any."""
    weight = sum(part for _, part in pairs)
    if not pairs:
        return None
    if not weight:
        return round(sum(value for value, _ in pairs) / len(pairs), 6)
    return round(sum(value * part for value, part in pairs) / weight, 6)
