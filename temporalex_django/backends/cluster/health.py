"""The health of the cluster, for a project: whether it answers, who polls its queues, and what its clock says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError

from temporalex_django.backends.cluster import deployments
from temporalex_django.backends.cluster.client import ClusterUnavailable, cluster_client
from temporalex_django.backends.cluster.ids import identity_of, task_queue
from temporalex_django.backends.cluster.reconcile import LEASE
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Instance, Lease, Worker
from temporalex_django.present.project_view import ClusterView

#: Runs younger than this may wait for a worker that starts.
_YOUNG: Final = timedelta(seconds=30)
#: A poll of the server takes a minute. A poller that has not come back for longer is gone.
_POLL: Final = timedelta(seconds=90)
_CALL_SECONDS: Final = 5.0
_MAX_QUEUES: Final = 50


def read_cluster(storage: DjangoStorage) -> ClusterView:
    """Return the state of the cluster. It takes a few reads, and a question to the server for each queue with runs."""
    client, now = cluster_client(), storage.now()
    address = client.address
    compared_until = Lease.objects.using(storage.alias).filter(name=LEASE).values_list("until", flat=True).first()
    rows = Instance.objects.using(storage.alias).filter(closed_at=None, cluster_id__isnull=False)
    queues = sorted(rows.filter(created_at__lt=now - _YOUNG).values_list("queue", flat=True).distinct()[:_MAX_QUEUES])
    try:
        pollers = client.call(lambda sdk: _pollers(sdk, queues), timeout=_CALL_SECONDS)
        build = client.call(deployments.read_build, timeout=_CALL_SECONDS)
    except (ClusterUnavailable, RPCError) as exc:
        return ClusterView(address=address, error=str(exc), compared_until=compared_until)
    live = {
        identity_of(worker)
        for worker in Worker.objects.using(storage.alias).filter(expires_at__gt=now).values_list("id", flat=True)
    }
    seen = {
        queue: [poller for poller in infos if is_alive(poller, live, now)]
        for queue, infos in zip(queues, pollers, strict=True)
    }
    own = [_seen_at(poller) for infos in seen.values() for poller in infos if poller.identity in live]
    return ClusterView(
        address=address,
        unpolled_queues=[queue for queue, infos in seen.items() if not infos],
        skew=_skew(max(own), now) if own else 0.0,
        compared_until=compared_until,
        build=build,
    )


async def _pollers(sdk: Client, queues: Sequence[str]) -> list[list[PollerInfo]]:
    """Return who polls each of these queues for tasks of runs. Asks the server once if there is none."""
    if not queues:
        await sdk.workflow_service.get_system_info(service.GetSystemInfoRequest())
    return [
        [
            *(
                await sdk.workflow_service.describe_task_queue(
                    service.DescribeTaskQueueRequest(
                        namespace=sdk.namespace,
                        task_queue=TaskQueue(name=task_queue(queue)),
                        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
                    )
                )
            ).pollers
        ]
        for queue in queues
    ]


def _seen_at(poller: PollerInfo) -> datetime:
    return poller.last_access_time.ToDatetime(UTC)


def is_alive(poller: PollerInfo, live: set[str], now: datetime) -> bool:
    """Return True for a worker of this project that has a lease, and for any other one that has polled lately."""
    if poller.identity.startswith(identity_of("")):
        return poller.identity in live
    return now - _seen_at(poller) < _POLL


def _skew(last_poll: datetime, now: datetime) -> float:
    """Return by how many seconds the clock of the cluster is ahead of the database's, from the last poll of a live one.

    A poll may be as old as polls take, so the clock counts as right within that time.
    """
    ahead = last_poll - now
    if ahead > timedelta():
        return ahead.total_seconds()
    return min(0.0, (ahead + _POLL).total_seconds())
