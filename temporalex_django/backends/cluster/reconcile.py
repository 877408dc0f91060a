"""The comparison of the rows with the cluster: ends that no worker has seen, and rows that are lost or differ.

Workers write rows as runs advance. But the server alone terminates runs, lets them time out and deletes them. So one
process at a time, elected by a lease, lists the runs that have closed lately, and looks at a sample of the open ones
from time to time. ``sync`` compares everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db.models import QuerySet
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError

from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.cluster import mirror, reads
from temporalex_django.backends.cluster.answers import is_gone
from temporalex_django.backends.cluster.client import DESTINATION, ClusterUnavailable, cluster_client
from temporalex_django.backends.cluster.ids import prefix, quoted
from temporalex_django.backends.cluster.rebuild import Execution, rebuild
from temporalex_django.core.error_text import error_line
from temporalex_django.db.process_leases import is_lease_free, lease_notes, set_lease, take_lease
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.scheduling import policy
from temporalex_django.models import Instance, Outbox

T = TypeVar("T")

log = logging.getLogger("temporalex_django.backends")

LEASE: Final = "mirror"
#: Lists of the server lag behind: each look begins so much before the newest end that was seen.
_OVERLAP: Final = timedelta(seconds=60)
#: The first look of a project begins so long ago. The sample finds what closed before.
_FIRST_LOOK: Final = timedelta(hours=1)
_SAMPLE: Final = 200
_PAGE: Final = 200
_CALL_SECONDS: Final = 60.0

_OPEN: Final = frozenset(
    {
        WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
        8,  # paused: this version of the SDK has no name for it
    }
)
_CONTINUED: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW
_BY_SERVER: Final = frozenset(
    {
        WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED,
        WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
    }
)


@dataclass(slots=True, kw_only=True)
class Repairs:
    """The numbers of a comparison: runs that were compared, rows that were written, and runs that were closed here."""

    compared: int = 0
    written: int = 0
    closed: int = 0


def is_due(alias: str) -> bool:
    """Return True if no process has compared lately. One read."""
    return is_lease_free(LEASE, storage=DjangoStorage(alias, worker=True))


def run_round(alias: str) -> bool:
    """Close the rows of runs that the server has closed lately; return False: there is no more to do now.

    Every ``policy.MIRROR_SAMPLE_SECONDS`` it also looks at a sample of the open runs. Only one process at a time does
    this. If the cluster does not answer, the next round tries again.
    """
    storage = DjangoStorage(alias, worker=True)
    if not take_lease(LEASE, seconds=2 * _CALL_SECONDS, storage=storage):
        return False
    notes = lease_notes(LEASE, storage=storage)
    try:
        notes |= _look(notes, storage)
    except (ClusterUnavailable, RPCError) as exc:
        log.warning("the rows of runs on the cluster are compared later: %s", error_line(exc))
    set_lease(LEASE, seconds=policy.MIRROR_SECONDS, notes=notes, storage=storage)
    return False


def _look(notes: dict[str, Any], storage: DjangoStorage) -> dict[str, Any]:
    """Compare what closed since the mark in ``notes``, and perhaps a sample; return the notes that changed."""
    now, changes = storage.now(), dict[str, Any]()
    mark = datetime.fromisoformat(notes["mark"]) if "mark" in notes else now - _FIRST_LOOK
    since = (mark - _OVERLAP).isoformat()
    closed = _list(f"CloseTime >= {quoted(since)} AND ExecutionStatus != 'Running'")
    if closed:
        repair(closed, storage=storage)
        mark = max(mark, *(info.close_time.ToDatetime(UTC) for info in closed))
    changes["mark"] = mark.isoformat()
    sampled_at = datetime.fromisoformat(notes["sampled_at"]) if "sampled_at" in notes else None
    if sampled_at is None or now - sampled_at >= timedelta(seconds=policy.MIRROR_SAMPLE_SECONDS):
        compare_open(_open_rows(storage).order_by("mirrored_at")[:_SAMPLE], storage=storage)
        changes["sampled_at"] = now.isoformat()
    return changes


def sync(cluster_ids: Collection[str] | None = None, *, storage: DjangoStorage) -> Repairs:
    """Write the rows of all runs on the cluster (None), or of those with these ids, as their histories say.

    Rows that no longer have a run on the cluster and are open are closed. Raises ``ClusterUnavailable``.
    """
    repairs = Repairs()
    conditions = [None] if cluster_ids is None else [f"WorkflowId = {quoted(cluster_id)}" for cluster_id in cluster_ids]
    for condition in conditions:
        infos = _list(condition)
        infos.sort(key=lambda info: info.start_time.ToDatetime(UTC))
        repairs.compared += len(infos)
        for start in range(0, len(infos), _PAGE):
            repair(infos[start : start + _PAGE], every=True, repairs=repairs, storage=storage)
    rows = _open_rows(storage)
    if cluster_ids is not None:
        rows = rows.filter(cluster_id__in=list(cluster_ids))
    compare_open(rows.iterator(), repairs=repairs, storage=storage)
    return repairs


def repair(
    infos: Sequence[WorkflowExecutionInfo],
    *,
    every: bool = False,
    repairs: Repairs | None = None,
    storage: DjangoStorage,
) -> Repairs:
    """Write the rows of these runs of the cluster that differ, or of all of them (``every``). Oldest first.

    Runs that a worker ends are rebuilt from their histories. Runs that the server ended alone are closed.
    """
    repairs = repairs or Repairs()
    rows = {str(row.cluster_run_id): row for row in _rows_of(infos, storage)}
    wrong = [
        info for info in infos if (every or _differs(info, rows.get(info.execution.run_id))) and _is_ours(info, rows)
    ]
    _rebuild_rows([info for info in wrong if every or info.status not in _BY_SERVER], repairs, storage)
    for info in wrong:
        if info.status not in _OPEN and info.status != _CONTINUED:
            repairs.closed += _close(info, storage)
    return repairs


def _rebuild_rows(infos: Sequence[WorkflowExecutionInfo], repairs: Repairs, storage: DjangoStorage) -> None:
    executions = [_execution(info) for info in infos]
    for run in _call(lambda sdk: rebuild(sdk, executions)) if executions else ():
        if not _is_being_deleted(run.facts.get("chain"), storage):
            mirror.write(run, restores=True, storage=storage)
            repairs.written += 1


def compare_open(rows: Iterable[Instance], *, repairs: Repairs | None = None, storage: DjangoStorage) -> Repairs:
    """Compare rows of open runs with the cluster, each with one question, and correct those that differ."""
    repairs = repairs or Repairs()
    for row in rows:
        info = _call(partial(_describe, run_id=str(row.cluster_run_id), cluster_id=row.cluster_id or ""))
        if info is None:
            closing = {"reason": "the Temporal cluster does not know the run any more"}
            repairs.closed += _close_row(row.pk, "terminated", closing, storage)
        elif info.status not in _OPEN:
            repair([info], repairs=repairs, storage=storage)
    return repairs


# -- the cluster ------------------------------------------------------------------------------------------------------


def _call(make: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    return cluster_client().call(make, timeout=_CALL_SECONDS)


def _list(condition: str | None) -> list[WorkflowExecutionInfo]:
    """Return the runs on the cluster for which the condition holds (None: all), in no order."""
    return _call(lambda sdk: _list_pages(sdk, condition or ""))


async def _list_pages(sdk: Client, condition: str) -> list[WorkflowExecutionInfo]:
    # Not the iterator of the SDK, which raises for a paused run.
    infos: list[WorkflowExecutionInfo] = []
    request = service.ListWorkflowExecutionsRequest(namespace=sdk.namespace, query=condition, page_size=1000)
    while True:
        answer = await sdk.workflow_service.list_workflow_executions(request, retry=True)
        infos += answer.executions
        if not answer.next_page_token:
            return infos
        request.next_page_token = answer.next_page_token


async def _describe(sdk: Client, *, cluster_id: str, run_id: str) -> WorkflowExecutionInfo | None:
    """Return a run as the cluster describes it, or None if it does not know it."""
    request = service.DescribeWorkflowExecutionRequest(
        namespace=sdk.namespace, execution=WorkflowExecution(workflow_id=cluster_id, run_id=run_id)
    )
    try:
        answer = await sdk.workflow_service.describe_workflow_execution(request, retry=True)
    except RPCError as exc:
        if is_gone(exc):
            return None
        raise
    return answer.workflow_execution_info


def _execution(info: WorkflowExecutionInfo) -> Execution:
    return Execution(cluster_id=info.execution.workflow_id, run_id=info.execution.run_id, queue=info.task_queue)


# -- the rows ---------------------------------------------------------------------------------------------------------


def _open_rows(storage: DjangoStorage) -> QuerySet[Instance]:
    """Return the open runs that have reached the cluster."""
    rows = Instance.objects.using(storage.alias).filter(closed_at=None, cluster_run_id__isnull=False)
    return rows.only("id", "cluster_id", "cluster_run_id", "chain_id", "mirrored_at")


def _rows_of(infos: Sequence[WorkflowExecutionInfo], storage: DjangoStorage) -> QuerySet[Instance]:
    ids = [UUID(info.execution.run_id) for info in infos]
    return (
        Instance.objects.using(storage.alias).filter(cluster_run_id__in=ids).only("id", "cluster_run_id", "closed_at")
    )


def _differs(info: WorkflowExecutionInfo, row: Instance | None) -> bool:
    return row is None or (info.status in _OPEN) != (row.closed_at is None)


def _is_ours(info: WorkflowExecutionInfo, rows: Collection[str]) -> bool:
    """Return True for a run that has a row, and for one of a class of this project on a task queue of it."""
    if info.execution.run_id in rows:
        return True
    return info.task_queue.startswith(prefix()) and info.type.name in workflows.registry


def _is_being_deleted(chain_id: str | None, storage: DjangoStorage) -> bool:
    """Return True if a row of the outbox is about to delete the runs of a chain, whose rows are gone already."""
    if chain_id is None:
        return False
    return Outbox.objects.using(storage.alias).filter(chain=UUID(chain_id), kind=f"{DESTINATION}.delete").exists()


def _close(info: WorkflowExecutionInfo, storage: DjangoStorage) -> bool:
    """Close the row of a run that has closed on the cluster; return False if it is closed or there is none."""
    rows = Instance.objects.using(storage.alias).filter(cluster_run_id=UUID(info.execution.run_id), closed_at=None)
    row = rows.only("pk").first()
    if row is None:
        return False
    end = _call(partial(reads.read_end, cluster_id=info.execution.workflow_id, run_id=info.execution.run_id))
    return end is not None and _close_row(row.pk, *end, storage)


def _close_row(run_id: UUID, status: str, closing: dict[str, Any], storage: DjangoStorage) -> bool:
    with storage.transaction("mirror end"):
        return mirror.close_run(run_id, status, closing, storage=storage)
