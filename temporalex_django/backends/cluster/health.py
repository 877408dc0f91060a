"""The health of the cluster, for a project: whether it answers, who polls its queues, and what its clock says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from django.db.models import QuerySet
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError

from temporalex_django.backends.cluster import deployments, names
from temporalex_django.backends.cluster.client import ClusterUnavailable, cluster_client, send
from temporalex_django.backends.cluster.ids import prefix
from temporalex_django.backends.cluster.queues import (
    OF_RUNS,
    POLL,
    describe_queues,
    live_pollers,
    live_workers,
    seen_at,
)
from temporalex_django.backends.cluster.reconcile import LEASE, address_of
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Instance, Lease
from temporalex_django.present.project_view import ClusterView, FullHistory, FullKind

#: Runs younger than this may wait for a worker that starts.
_YOUNG: Final = timedelta(seconds=30)
_CALL_SECONDS: Final = 5.0
#: Most open runs whose histories are measured, and the fewest events of one.
_MAX_HISTORIES: Final = 20
LONG: Final = 100
#: The server terminates a run whose history has more events or bytes, and refuses further signals and updates. A run is
#: named when it has used this part.
MOST_EVENTS: Final = 51_200
MOST_BYTES: Final = 50 * 2**20
MOST_SIGNALS: Final = 10_000
MOST_UPDATES: Final = 2_000
FULL: Final = 0.8
#: A run is asked for its numbers again when its history has grown by so many events.
_GROWN: Final = 50
_MAX_QUEUES: Final = 50
#: The oldest version of the server with which this package was tested.
OLDEST: Final = (1, 32)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


def read_cluster(storage: DjangoStorage) -> ClusterView:
    """Return the state of the cluster. It takes a few reads, and a question to the server for each queue with runs."""
    client, now = cluster_client(), storage.now()
    address = client.address
    compared_until = Lease.objects.using(storage.alias).filter(name=LEASE).values_list("until", flat=True).first()
    rows = Instance.objects.using(storage.alias).filter(closed_at=None, cluster_id__isnull=False)
    queues = sorted(rows.filter(created_at__lt=now - _YOUNG).values_list("queue", flat=True).distinct()[:_MAX_QUEUES])
    try:
        version = client.call(_read_version, timeout=_CALL_SECONDS)
        answers = client.call(lambda sdk: describe_queues(sdk, queues, OF_RUNS), timeout=_CALL_SECONDS)
        build = client.call(deployments.read_build, timeout=_CALL_SECONDS)
        longest = rows.filter(chain__length__gte=LONG, cluster_run_id__isnull=False).order_by("-chain__length")
        long = [*longest.select_related("chain")[:_MAX_HISTORIES]]
        full = client.call(partial(_full_histories, runs=long), timeout=_CALL_SECONDS)
        full += client.call(partial(_full_inboxes, runs=long), timeout=_CALL_SECONDS)
    except (ClusterUnavailable, RPCError) as exc:
        return ClusterView(address=address, error=str(exc), compared_until=compared_until)
    live = live_workers(now, storage=storage)
    seen = {queue: live_pollers(answer, live, now) for queue, answer in zip(queues, answers, strict=True)}
    own = [seen_at(poller) for infos in seen.values() for poller in infos if poller.identity in live]
    return ClusterView(
        address=address,
        unpolled_queues=[queue for queue, infos in seen.items() if not infos],
        skew=_skew(max(own), now) if own else 0.0,
        compared_until=compared_until,
        build=build,
        full_histories=full,
        old_version=version if is_old(version) else "",
        misplaced_id=_misplaced_id(rows),
    )


async def _read_version(sdk: Client) -> str:
    version: str = (await send(sdk, service.GetSystemInfoRequest())).server_version
    return version


def is_old(version: str) -> bool:
    """Return True for a version such as ``1.31.2`` before ``OLDEST``. Versions of another form are no releases."""
    numbers = _VERSION.match(version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST


def _misplaced_id(rows: QuerySet[Instance]) -> str:
    """Return the id on the cluster of a run that this project has started with another prefix, or an empty text."""
    others = rows.exclude(cluster_id__startswith=prefix()).only("cluster_id", "metadata")[:_MAX_HISTORIES]
    return next((run.cluster_id or "" for run in others if "started_by" not in (run.metadata or {})), "")


async def _full_histories(sdk: Client, runs: Sequence[Instance]) -> list[FullHistory]:
    """Return those of these runs whose histories have used most of what the server allows."""
    requests = [service.DescribeWorkflowExecutionRequest(execution=address_of(run)) for run in runs]
    answers = await asyncio.gather(*(send(sdk, request) for request in requests), return_exceptions=True)
    full = []
    for run, answer in zip(runs, answers, strict=True):
        if isinstance(answer, BaseException):  # such as a run that has been deleted there
            continue
        info = answer.workflow_execution_info
        share = max(info.history_length / MOST_EVENTS, info.history_size_bytes / MOST_BYTES)
        if share >= FULL:
            full.append(FullHistory(workflow=run.workflow, id=run.workflow_id, share=share))
    return full


#: The numbers of signals and updates of runs, by their ids on the cluster, and the length of the history by then.
_counts: dict[str, tuple[int, dict[str, int]]] = {}


async def _full_inboxes(sdk: Client, runs: Sequence[Instance]) -> list[FullHistory]:
    """Return those of these runs that have received most of the signals or updates that the server accepts.

    The server counts them for itself alone, so the runs are asked, which a worker answers.
    """
    long = [run for run in runs if run.chain.length >= FULL * MOST_UPDATES]  # each message is an event
    new = [run for run in long if run.chain.length - _counts.get(str(run.cluster_run_id), (-_GROWN, {}))[0] >= _GROWN]
    answers = await asyncio.gather(*(_ask_counts(sdk, run) for run in new), return_exceptions=True)
    counts_of_runs = {str(run.cluster_run_id): _counts.get(str(run.cluster_run_id), (0, {})) for run in long}
    for run, answer in zip(new, answers, strict=True):
        if not isinstance(answer, BaseException):  # such as a run that no worker polls
            counts_of_runs[str(run.cluster_run_id)] = (run.chain.length, answer)
    _counts.clear()
    _counts.update(counts_of_runs)
    full: list[FullHistory] = []
    for run in long:
        counts = counts_of_runs[str(run.cluster_run_id)][1]
        kinds: tuple[tuple[FullKind, int], ...] = (("signals", MOST_SIGNALS), ("updates", MOST_UPDATES))
        full += [
            FullHistory(workflow=run.workflow, id=run.workflow_id, share=counts.get(kind, 0) / most, kind=kind)
            for kind, most in kinds
            if counts.get(kind, 0) >= FULL * most
        ]
    return full


async def _ask_counts(sdk: Client, run: Instance) -> dict[str, int]:
    request = service.QueryWorkflowRequest(execution=address_of(run), query=WorkflowQuery(query_type=names.COUNTS))
    answer = await send(sdk, request, timeout=timedelta(seconds=_CALL_SECONDS / 2))
    counts: dict[str, int] = cluster_client().payloads.decode(answer.query_result.payloads[0])
    return counts


def _skew(last_poll: datetime, now: datetime) -> float:
    """Return by how many seconds the clock of the cluster is ahead of the database's, from the last poll of a live one.

    A poll may be as old as polls take, so the clock counts as right within that time.
    """
    ahead = last_poll - now
    if ahead > timedelta():
        return ahead.total_seconds()
    return min(0.0, (ahead + POLL).total_seconds())
