"""The task queues of the cluster: what waits in them, and who polls them, as far as the server tells."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError

from temporalex_django.backends.cluster.client import ClusterUnavailable, cluster_client
from temporalex_django.backends.cluster.health import is_alive
from temporalex_django.backends.cluster.ids import identity_of, task_queue
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Worker

#: Seconds in which the server has to answer about all queues: somebody waits for a page.
_LOOK_SECONDS: Final = 2.0
_TYPES: Final = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)


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
        answers = cluster_client().call(lambda sdk: _describe(sdk, names), timeout=_LOOK_SECONDS)
    except (ClusterUnavailable, RPCError):
        return None
    now = storage.now()
    rows = Worker.objects.using(storage.alias).filter(expires_at__gt=now).only("id", "host", "pid")
    live = {identity_of(row.pk): str(row) for row in rows}
    return {name: _queue(answers[2 * n], answers[2 * n + 1], live, now) for n, name in enumerate(names)}


def _queue(
    runs: service.DescribeTaskQueueResponse,
    activities: service.DescribeTaskQueueResponse,
    live: dict[str, str],
    now: datetime,
) -> ClusterQueue:
    pollers = {
        live.get(poller.identity, poller.identity)
        for poller in (*runs.pollers, *activities.pollers)
        if is_alive(poller, {*live}, now)
    }
    return ClusterQueue(
        runs=runs.stats.approximate_backlog_count,
        activities=activities.stats.approximate_backlog_count,
        runs_wait=_wait(runs),
        activities_wait=_wait(activities),
        pollers=sorted(pollers),
    )


def _wait(answer: service.DescribeTaskQueueResponse) -> timedelta | None:
    age: timedelta = answer.stats.approximate_backlog_age.ToTimedelta()
    return age if answer.stats.approximate_backlog_count else None


async def _describe(sdk: Client, names: Sequence[str]) -> list[service.DescribeTaskQueueResponse]:
    """Return the answers about each queue: that about tasks of runs, then that about activities."""
    requests = [
        service.DescribeTaskQueueRequest(
            namespace=sdk.namespace,
            task_queue=TaskQueue(name=task_queue(name)),
            task_queue_type=queue_type,
            report_stats=True,
        )
        for name in names
        for queue_type in _TYPES
    ]
    return [*await asyncio.gather(*map(sdk.workflow_service.describe_task_queue, requests))]
