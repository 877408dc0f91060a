"""The task queues of the cluster: what waits in them, and who polls them, as far as the server tells."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError

from temporalex_django.backends.cluster.client import ClusterUnavailable, cluster_client, send
from temporalex_django.backends.cluster.ids import identity_of, task_queue
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Worker

#: Seconds in which the server has to answer about all queues: somebody waits for a page.
_LOOK_SECONDS: Final = 2.0
#: A poll of the server takes a minute. A poller that has not come back for longer is gone.
POLL: Final = timedelta(seconds=90)
OF_RUNS: Final = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
_OF_ACTIVITIES: Final = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterQueue:
    """A task queue: how many tasks of runs and of activities wait, for how long, and the names of its pollers."""

    runs: int
    activities: int
    runs_wait: timedelta | None
    activities_wait: timedelta | None
    pollers: Sequence[str]


def read_queues(queues: Collection[str], *, storage: DjangoStorage) -> Mapping[str, ClusterQueue] | None:
    """Return what the server tells about these queues, by name; None if it does not answer in time. Two reads."""
    names = sorted(queues)
    try:
        answers = cluster_client().call(
            lambda sdk: describe_queues(sdk, names, OF_RUNS, _OF_ACTIVITIES), timeout=_LOOK_SECONDS
        )
    except (ClusterUnavailable, RPCError):
        return None
    now = storage.now()
    live = live_workers(now, storage=storage)
    return {name: _queue(answers[2 * n], answers[2 * n + 1], live, now) for n, name in enumerate(names)}


def live_workers(now: datetime, *, storage: DjangoStorage) -> dict[str, str]:
    """Return the names of the workers of this project that have a lease, by their identities on the cluster."""
    rows = Worker.objects.using(storage.alias).filter(expires_at__gt=now).only("id", "host", "pid")
    return {identity_of(row.pk): str(row) for row in rows}


def live_pollers(answer: service.DescribeTaskQueueResponse, live: Mapping[str, str], now: datetime) -> list[PollerInfo]:
    """Return the ``live`` workers that poll a queue, and any others than workers of this project that poll it."""
    own = identity_of("")
    return [
        poller
        for poller in answer.pollers
        if (poller.identity in live if poller.identity.startswith(own) else now - seen_at(poller) < POLL)
    ]


def seen_at(poller: PollerInfo) -> datetime:
    """Return the time of the last poll."""
    return poller.last_access_time.ToDatetime(UTC)


def _queue(
    runs: service.DescribeTaskQueueResponse,
    activities: service.DescribeTaskQueueResponse,
    live: dict[str, str],
    now: datetime,
) -> ClusterQueue:
    pollers = [*live_pollers(runs, live, now), *live_pollers(activities, live, now)]
    return ClusterQueue(
        runs=runs.stats.approximate_backlog_count,
        activities=activities.stats.approximate_backlog_count,
        runs_wait=_wait(runs),
        activities_wait=_wait(activities),
        pollers=sorted({live.get(poller.identity, poller.identity) for poller in pollers}),
    )


def _wait(answer: service.DescribeTaskQueueResponse) -> timedelta | None:
    age: timedelta = answer.stats.approximate_backlog_age.ToTimedelta()
    return age if answer.stats.approximate_backlog_count else None


async def describe_queues(sdk: Client, names: Sequence[str], *types: Any) -> list[service.DescribeTaskQueueResponse]:
    """Return the answers about tasks of these types in each queue."""
    requests = [
        service.DescribeTaskQueueRequest(
            task_queue=TaskQueue(name=task_queue(name)),
            task_queue_type=task_type,
            report_stats=True,
        )
        for name in names
        for task_type in types
    ]
    return [*await asyncio.gather(*(send(sdk, request) for request in requests))]
