"""The comparison of the rows with the cluster: ends that no worker has seen, and rows that are lost or differ.

Workers write rows as runs advance. But the server alone terminates runs, lets them time out and deletes them. So one
process at a time, elected by a lease, lists the runs that have closed lately, and looks at a sample of the open ones
from time to time. ``sync`` compares everything. A run that cannot be compared is logged, and the others go on.
"""

from __future__ import annotations

import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db import InterfaceError, OperationalError
from django.db.models import QuerySet
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError

from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.cluster import mirror, reads
from temporalex_django.backends.cluster.answers import is_gone, is_transient
from temporalex_django.backends.cluster.client import DESTINATION, ClusterUnavailable, cluster_client, send
from temporalex_django.backends.cluster.ids import prefix, quoted, task_queue
from temporalex_django.backends.cluster.mirrored_run import COMBINED_AFTER, ObservedRun
from temporalex_django.backends.cluster.rebuild import ReplayedRun, replay
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import counted
from temporalex_django.db.outbox import is_lease_free, lease_notes, set_lease, take_lease
from temporalex_django.db.retention import retention_policies
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.models import Instance, LostWorker, Outbox

T = TypeVar("T")

log = logging.getLogger("temporalex_django.backends")

LEASE: Final = "mirror"
#: Lists of the server lag behind: each look begins so much before the newest end that was seen.
_OVERLAP: Final = timedelta(seconds=60)
#: The first look of a project begins so long ago. The sample finds what closed before.
_FIRST_LOOK: Final = timedelta(hours=1)
_SAMPLE: Final = 200
#: Workers are looked at that were found dead so lately, and runs that were written so long before their last heartbeat.
_LOST_FOR: Final = timedelta(hours=1)
_LEFT_BEHIND: Final = timedelta(seconds=COMBINED_AFTER + 5)
_PAGE: Final = 200
#: Runs that are rebuilt with one call.
_REBUILT: Final = 20
#: Seconds after which a round leaves the pages that are left to the next one.
_ROUND_SECONDS: Final = 60.0
_CALL_SECONDS: Final = 60.0

_PAUSED: Final = 8  # this version of the SDK has no name for it
_OPEN: Final = frozenset({WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING, _PAUSED})
_CONTINUED: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW
_BY_SERVER: Final = frozenset(
    {
        WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED,
        WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
    }
)


@dataclass(slots=True)
class Comparison:
    """A comparison of rows with the cluster, and its numbers: runs compared, rows written, and runs closed here.

    With ``every`` it writes all rows of the runs that it compares, also those that show more than their histories.
    """

    storage: DjangoStorage
    every: bool = False
    compared: int = 0
    written: int = 0
    closed: int = 0

    def look_at_closed(self, notes: dict[str, Any]) -> None:
        """Compare the runs that closed since the mark in ``notes``, page by page, and set the mark.

        The place in the list is stored in the notes of the lease after each page, and the next round continues there.
        """
        now, began_at = self.storage.now(), time.monotonic()
        mark = datetime.fromisoformat(notes["mark"]) if "mark" in notes else now - _FIRST_LOOK
        # The runs may all be old. Then the next look does not begin with them again.
        start = {"since": (mark - _OVERLAP).isoformat(), "mark": max(mark, now - _OVERLAP).isoformat(), "page": ""}
        scan: dict[str, str] = notes.get("scan") or start
        condition = _and_ours(f"CloseTime >= {quoted(scan['since'])} AND ExecutionStatus != 'Running'")
        for infos, token in _pages(condition, b64decode(scan["page"])):
            self.repair(infos)
            ends = [info.close_time.ToDatetime(UTC) for info in infos]
            scan["mark"] = max([datetime.fromisoformat(scan["mark"]), *ends]).isoformat()
            if token:
                scan["page"] = b64encode(token).decode()
                notes["scan"] = scan
                set_lease(LEASE, seconds=2 * _CALL_SECONDS, notes=notes, storage=self.storage)
                if time.monotonic() - began_at > _ROUND_SECONDS:
                    return
        notes["mark"] = scan["mark"]
        notes.pop("scan", None)

    def look_at_lost(self, notes: dict[str, Any]) -> None:
        """Write the rows of runs that a worker may have left behind when it died: it writes some a little later.

        They are among those that were written shortly before its last sign of life. The notes name the workers for
        which this was done.
        """
        since = self.storage.now() - _LOST_FOR
        workers = [*LostWorker.objects.using(self.storage.alias).filter(lost_at__gt=since).order_by("id")]
        for worker in workers:
            if worker.pk in notes.get("lost", ()):
                continue
            rows = _open_rows(self.storage).filter(mirrored_at__range=(worker.beat_at - _LEFT_BEHIND, worker.lost_at))
            infos = [
                WorkflowExecutionInfo(execution=address_of(row), task_queue=task_queue(row.queue))
                for row in rows.only("cluster_id", "cluster_run_id", "queue")
            ]
            for run in _rebuild(infos):
                _try(run.execution.workflow_id, partial(mirror.write, run, storage=self.storage))
        notes["lost"] = [worker.pk for worker in workers]

    def look_at_sample(self, notes: dict[str, Any]) -> None:
        """Compare some of the open runs, if that is due: those that follow the ones of the last time."""
        now, due = self.storage.now(), timedelta(seconds=policy.MIRROR_SAMPLE_SECONDS)
        if "sampled_at" in notes and now - datetime.fromisoformat(notes["sampled_at"]) < due:
            return
        rows = _open_rows(self.storage).order_by("id")
        if "sampled" in notes:
            rows = rows.filter(id__gt=UUID(notes["sampled"]))
        sample = list(rows[:_SAMPLE])
        self.compare_open(sample)
        notes["sampled_at"] = now.isoformat()
        notes.pop("sampled", None)
        if len(sample) == _SAMPLE:
            notes["sampled"] = str(sample[-1].pk)

    def repair(self, infos: Sequence[WorkflowExecutionInfo]) -> None:
        """Write the rows of these runs of the cluster that differ, or of all of them (``every``). Oldest first.

        Runs that a worker ends are rebuilt from their histories. Runs that the server ended alone are closed.
        """
        rows = {str(row.cluster_run_id): row for row in _rows_of(infos, self.storage)}
        wrong = {info.execution.run_id: info for info in infos if self._is_wrong(info, rows.get(info.execution.run_id))}
        read_at = self.storage.now() if self.every else None
        rebuilt = [info for info in wrong.values() if self.every or info.status not in _BY_SERVER]
        for run in _rebuild(rebuilt):
            if run.run_id in rows or not self._is_past_retention(run, wrong[run.run_id]):
                write = partial(self._restore, run, read_at)
                self.written += bool(_try(run.execution.workflow_id, write))
        for info in wrong.values():
            if info.status not in _OPEN and info.status != _CONTINUED:
                self.closed += bool(_try(info.execution.workflow_id, partial(self._close, info)))

    def _is_wrong(self, info: WorkflowExecutionInfo, row: Instance | None) -> bool:
        """Return True if the rows of a run have to be written. A run without a row has to be one of this project."""
        if row is None:
            return info.task_queue.startswith(prefix()) and info.type.name in workflows.registry
        return self.every or (info.status in _OPEN) != (row.closed_at is None)

    def _restore(self, run: ObservedRun, read_at: datetime | None) -> bool:
        """Write the rows of a run, unless a row of the outbox is about to delete it, whose rows are gone already."""
        deletions = Outbox.objects.using(self.storage.alias).filter(kind=f"{DESTINATION}.delete")
        if "chain" in run.facts and deletions.filter(chain=UUID(run.facts["chain"])).exists():
            return False
        mirror.write(run, restores=True, read_at=read_at, storage=self.storage)
        return True

    def _is_past_retention(self, run: ObservedRun, info: WorkflowExecutionInfo) -> bool:
        """Return True if its class does not keep a run so long, so its rows were deleted."""
        rules = retention_policies().get(run.info.workflow, {})
        rule = rules.get(run.info.version) or rules.get(None)
        if rule is None or info.status in _OPEN:
            return False
        limit = rule.shortest if info.status == _CONTINUED else rule.closed
        return limit is not None and info.close_time.ToDatetime(UTC) <= self.storage.now() - timedelta(seconds=limit)

    def compare_open(self, rows: Iterable[Instance]) -> None:
        """Compare rows of open runs with the cluster, each with one question, and correct those that differ."""
        for row in rows:
            _try(row.cluster_id or "", partial(self._compare_open_row, row))

    def _compare_open_row(self, row: Instance) -> None:
        info = _describe(address_of(row))
        if info is None:
            self.closed += self._close_row(row, "terminated", {"reason": reads.GONE})
        elif info.status not in _OPEN:
            self.repair([info])
        else:
            self.written += self.copy_pause(row, info)

    def copy_pause(self, row: Instance, info: WorkflowExecutionInfo) -> bool:
        """Mark the row of an open run as paused if the run is, or as not paused. Returns True if that changed the row.

        No worker does that: a paused run has no activations. If the row is locked, the next round tries it again.
        """
        is_paused = info.status == _PAUSED
        return is_paused != (row.paused is not None) and mirror.copy_pause(
            row.chain_id, row.pk, is_paused=is_paused, storage=self.storage
        )

    def _close(self, info: WorkflowExecutionInfo) -> bool:
        """Close the row of a run that has closed on the cluster; return False if it is closed or there is none."""
        row = _rows_of([info], self.storage).filter(closed_at=None).first()
        if row is None:
            return False
        end = _call(partial(reads.read_end, cluster_id=info.execution.workflow_id, run_id=info.execution.run_id))
        return end is not None and self._close_row(row, *end)

    def _close_row(self, row: Instance, status: str, closing: dict[str, Any]) -> bool:
        with suppress(mirror.MirrorBusy), self.storage.transaction("mirror end"):
            return mirror.close(row.chain_id, status, closing, run_id=row.pk, storage=self.storage)
        return False


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
    comparison, notes = Comparison(storage), lease_notes(LEASE, storage=storage)
    try:
        comparison.look_at_closed(notes)
        comparison.look_at_lost(notes)
        comparison.look_at_sample(notes)
    except (ClusterUnavailable, RPCError) as exc:
        log.warning("could not compare the rows of runs with the cluster, retrying: %s", error_line(exc))
        if isinstance(exc, RPCError) and not is_transient(exc):
            notes.pop("scan", None)  # the server may not know the place in its list any more
    set_lease(LEASE, seconds=policy.MIRROR_SECONDS, notes=notes, storage=storage)
    return False


def sync(cluster_ids: Collection[str] | None = None, *, storage: DjangoStorage) -> Comparison:
    """Write the rows of all runs on the cluster (None), or of those with these ids, as their histories say.

    Rows that no longer have a run on the cluster and are open are closed. Raises ``ClusterUnavailable``.
    """
    comparison, listed = Comparison(storage, every=True), set[str]()
    rows, conditions = _open_rows(storage), [_and_ours("")]
    if cluster_ids is not None:
        conditions = [f"WorkflowId = {quoted(cluster_id)}" for cluster_id in cluster_ids]
        rows = rows.filter(cluster_id__in=list(cluster_ids))
    for condition in conditions:
        infos = [info for page, _ in _pages(condition) for info in page]
        infos.sort(key=lambda info: info.start_time.ToDatetime(UTC))
        comparison.compared += len(infos)
        listed.update(info.execution.run_id for info in infos)
        for start in range(0, len(infos), _PAGE):
            page = infos[start : start + _PAGE]
            comparison.repair(page)
            open_infos = {info.execution.run_id: info for info in page if info.status in _OPEN}
            for row in _rows_of(page, storage):
                if (info := open_infos.get(str(row.cluster_run_id))) is not None:
                    _try(row.cluster_id or "", partial(comparison.copy_pause, row, info))  # its rows are counted
    comparison.compare_open(row for row in rows.iterator() if str(row.cluster_run_id) not in listed)
    return comparison


def _try(cluster_id: str, function: Callable[[], T]) -> T | None:
    """Call a function for one run, and return its result, or None after an error of this run, which is logged.

    Raises what shows that the cluster or the database does not answer.
    """
    try:
        return function()
    except (OperationalError, InterfaceError):
        raise
    except Exception as exc:  # noqa: BLE001 - it is the error of this run alone
        if isinstance(exc, ClusterUnavailable | RPCError):
            next(_pages("", size=1))  # raises if it is the cluster
        log.error("the rows of %s were not compared with the cluster: %s", cluster_id, error_line(exc))
        return None


# -- the cluster ------------------------------------------------------------------------------------------------------


def _call(make: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    return cluster_client().call(make, timeout=_CALL_SECONDS)


def _rebuild(infos: Sequence[WorkflowExecutionInfo]) -> Iterator[ObservedRun]:
    """Yield the state of these runs after a replay of their histories on the cluster, in the order of ``infos``.

    Runs that the cluster does not know any more are left out. Runs that cannot be replayed are logged and left out,
    too.
    """
    for start in range(0, len(infos), _REBUILT):
        part = infos[start : start + _REBUILT]
        try:
            outcomes = _call(partial(replay, executions=[info.execution for info in part]))
        except Exception as exc:  # noqa: BLE001 - each is tried alone, and gets its own error
            log.info("%s rebuilt one by one: %s", counted(len(part), "run is", "runs are"), error_line(exc))
            outcomes = {}
            for info in part:
                alone = partial(replay, executions=[info.execution])
                outcomes |= _try(info.execution.workflow_id, partial(_call, alone)) or {}
        for info in part:
            outcome = outcomes.get(info.execution.run_id, ReplayedRun())
            if outcome.error is not None:
                log.error("the rows of %s cannot be rebuilt: %s", info.execution.workflow_id, error_line(outcome.error))
            elif outcome.state is not None:
                execution = replace(outcome.state.execution, task_queue=info.task_queue)  # a replay knows none
                yield replace(outcome.state, execution=execution)


def _and_ours(condition: str) -> str:
    """Return the condition for runs on task queues of this project for which ``condition`` holds (empty: all)."""
    ours = f"TaskQueue STARTS_WITH {quoted(prefix())}" if prefix() else ""
    return " AND ".join(part for part in (condition, ours) if part)


def _pages(
    condition: str, token: bytes = b"", *, size: int = _PAGE
) -> Iterator[tuple[Sequence[WorkflowExecutionInfo], bytes]]:
    """Yield the pages of a list of the server, each with the token of the next page; it is empty for the last page.

    The list has the runs for which the condition holds (empty: all), in no order. The first page is that of ``token``.
    """
    while True:
        # Not the iterator of the SDK, which raises for a paused run.
        request = service.ListWorkflowExecutionsRequest(query=condition, page_size=size, next_page_token=token)
        answer = _call(partial(send, request=request, retry=True))
        token = answer.next_page_token
        yield answer.executions, token
        if not token:
            return


def _describe(execution: WorkflowExecution) -> WorkflowExecutionInfo | None:
    """Return a run as the cluster describes it, or None if it does not know it."""
    request = service.DescribeWorkflowExecutionRequest(execution=execution)
    try:
        answer: service.DescribeWorkflowExecutionResponse = _call(partial(send, request=request, retry=True))
    except RPCError as exc:
        if is_gone(exc):
            return None
        raise
    return answer.workflow_execution_info


# -- the rows ---------------------------------------------------------------------------------------------------------


def _open_rows(storage: DjangoStorage) -> QuerySet[Instance]:
    """Return the open runs that have reached the cluster."""
    rows = Instance.objects.using(storage.alias).filter(closed_at=None, cluster_run_id__isnull=False)
    return rows.only("id", "cluster_id", "cluster_run_id", "chain_id", "mirrored_at", "paused")


def address_of(row: Instance) -> WorkflowExecution:
    """Return the address on the cluster of a run that has reached it."""
    return WorkflowExecution(workflow_id=row.cluster_id or "", run_id=str(row.cluster_run_id))


def _rows_of(infos: Sequence[WorkflowExecutionInfo], storage: DjangoStorage) -> QuerySet[Instance]:
    ids = [UUID(info.execution.run_id) for info in infos]
    rows = Instance.objects.using(storage.alias).filter(cluster_run_id__in=ids)
    return rows.only("id", "cluster_id", "cluster_run_id", "chain_id", "closed_at", "paused")
