"""Reads of runs on the cluster: queries, histories, and how the runs ended."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import HistoryEventFilterType, QueryRejectCondition
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django import errors
from temporalex_django.backends.cluster import calls, failing, mirror, outgoing, server_history
from temporalex_django.backends.cluster.answers import first_value, is_away, is_gone, query_failure, report_unavailable
from temporalex_django.backends.cluster.client import ClusterClient, ClusterUnavailable, cluster_client, send
from temporalex_django.backends.cluster.pending import describe_run
from temporalex_django.backends.cluster.runs import ClusterRun, find_on_cluster, run_of
from temporalex_django.backends.host import inside_transaction
from temporalex_django.backends.protocol import RunQueryCall, RunTarget
from temporalex_django.backends.tables.queries import RowQuery
from temporalex_django.core.history.events import CLOSING, HistoryEvent
from temporalex_django.db.run_reader import read_closing
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import BlockMark
from temporalex_django.errors import (
    ActionNotPossible,
    HistoryGone,
    QueryFailed,
    QueryTimeout,
    TemporalexError,
    UnknownQuery,
    UpdateTimeout,
)
from temporalex_django.models import Instance
from temporalex_django.temporal import names
from temporalex_django.temporal.failures import read_failure

#: Seconds in which a worker has to answer a query.
QUERY_SECONDS: Final = 10.0
#: Seconds without a look after which the caller of a watch has gone. Callers look at least every 0.1 s.
_FORGOTTEN_SECONDS: Final = 10.0
#: Kinds of the events with which the server closes a run without a task, by the status of its row.
_ENDS_OUTSIDE: Final = {"terminated": "WorkflowTerminated", "timed_out": "WorkflowTimedOut"}
#: Errors that a query raises under their own type, by code.
_QUERY_ERRORS: Final[dict[str, type[TemporalexError]]] = {
    cls.code: cls for cls in (errors.UnknownQuery, errors.QueryFailed, errors.PayloadError)
}

#: Part of the text of the error with which a run answers a query that it does not know (``Workflow.answer``).
_UNKNOWN_QUERY: Final = "does not answer the query"


@dataclass(slots=True)
class _Watch:
    """A wait for the end of a run on the cluster, beside the polls of the rows. ``looked_at`` is that of the last."""

    run: ClusterRun
    end: Future[tuple[str, dict[str, Any]] | None]
    looked_at: float


#: The reason with which the row of an open run is closed that the cluster has deleted.
GONE: Final = "the Temporal cluster does not know the run any more"

_watches: dict[UUID, _Watch] = {}  # by chain


def query(call: RunQueryCall) -> Any:
    """Answer the query by a worker, or from the rows of the run.

    The rows answer for a run that has ended, because the cluster may have deleted it, and for a paused one, because the
    cluster passes no query on to it. They also answer a query that is not ``fresh``.

    Before a worker is asked, rows of the outbox that wait for the run are sent, except inside a transaction. Raises
    ``QueryFailed`` if the run has not reached the cluster, and the errors of ``ask``.
    """
    target = call.target
    has_ended = target.closed or target.selected_run_id != target.run_id
    if has_ended or target.paused or not call.fresh:
        return RowQuery(call).answer()
    if not inside_transaction(call.storage.alias):
        outgoing.send_waiting(call.target.chain_id, storage=call.storage)
    run = run_of(call.target, storage=call.storage)
    if run.first_run_id is None:
        raise QueryFailed(f"{run.label} cannot answer queries yet: its start has not reached the Temporal cluster")
    try:
        return ask(run, call.query, call.args)
    except _PausedThere:  # another client of the cluster has paused it
        mirror.copy_pause(target.chain_id, target.run_id, is_paused=True, storage=call.storage)
        return RowQuery(call).answer()


class _PausedThere(QueryFailed):
    """Raised if a run does not answer because it is paused on the cluster."""


def ask(run: ClusterRun, name: str, args: Any = None, *, timeout: float = QUERY_SECONDS) -> Any:
    """Send the query ``name`` to a run and return the answer.

    ``timeout`` is in seconds. Raises ``HistoryGone`` if the cluster no longer has the run, ``UnknownQuery``,
    ``QueryFailed``, and ``QueryTimeout`` if no worker answers in time.
    """
    client = cluster_client()
    arguments = () if args is None else (args,)
    query = WorkflowQuery(query_type=name, query_args=calls.payloads_of(client, *arguments))
    request = calls.make_request(
        service.QueryWorkflowRequest,
        run,
        run_id=run.run_id,
        query=query,
        query_reject_condition=QueryRejectCondition.QUERY_REJECT_CONDITION_NONE,
    )
    label = f"history of {run.label}" if name.startswith("__") else f"query {name!r} of {run.label}"
    try:
        answer = client.ask(request, timeout=timeout)
    except ClusterUnavailable as exc:
        raise QueryTimeout(f"{label}: {exc}. Is a worker polling the task queue of the run?") from exc
    except RPCError as exc:
        raise _query_error(exc, label, client) from exc
    if answer.HasField("query_rejected"):
        raise _PausedThere(f"{label}: the Temporal cluster does not pass queries on to a paused run")
    return first_value(answer.query_result, client.payloads)


def _query_error(error: RPCError, label: str, client: ClusterClient) -> TemporalexError:
    if is_gone(error):
        return HistoryGone(f"{label}: the Temporal cluster no longer has the run")
    if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
        return QueryTimeout(f"{label}: no worker has answered. Is a worker polling the task queue of the run?")
    if is_away(error):
        return QueryTimeout(f"{label}: the Temporal cluster says {error.status.name}: {error.message}")
    failure = query_failure(error, client.payloads)
    # The server may pass on the text of a failure alone.
    if "code" not in failure and _UNKNOWN_QUERY in error.message:
        return UnknownQuery(error.message)
    error_class = _QUERY_ERRORS.get(str(failure.get("code")), QueryFailed)
    return error_class(failure.get("message") or f"{label} failed")


def history(target: RunTarget, *, storage: DjangoStorage, timeout: float | None = None) -> list[HistoryEvent]:
    """Return the events of the selected run in the form of this package.

    The run tells them by a query. One whose task fails cannot, so the history of the server is read in its place.
    ``timeout`` is in seconds (None: ``QUERY_SECONDS``). Raises ``QueryFailed``, and ``QueryTimeout`` if no worker
    answers in time.
    """
    run, timeout = run_of(target, storage=storage), timeout or QUERY_SECONDS
    if run.run_id is None:
        return []
    if run.is_blocked:
        return server_events(run, timeout=timeout)
    try:
        events = events_of(run, timeout=timeout)
    except HistoryGone:
        raise
    except QueryFailed:
        if failing.block_of(run) is None:
            raise
        return server_events(run, timeout=timeout)
    return _with_end(events, target, storage)


def server_events(run: ClusterRun, *, timeout: float) -> list[HistoryEvent]:
    """Return the events of a run as the server has them; see ``server_history``. Raises ``HistoryGone``."""
    client = cluster_client()
    with report_unavailable(f"history of {run.label}", reads=True):
        history = client.call(
            lambda sdk: sdk.get_workflow_handle(run.cluster_id, run_id=run.run_id).fetch_history(), timeout=timeout
        )
    return server_history.read_events(history.events, client.payloads)


def block(target: RunTarget, *, storage: DjangoStorage) -> BlockMark | None:
    """Return why the task of the selected run fails, as the server knows it; None if it does not. See ``failing``."""
    run = run_of(target, storage=storage)
    return None if run.run_id is None else failing.block_of(run)


def _with_end(events: list[HistoryEvent], target: RunTarget, storage: DjangoStorage) -> list[HistoryEvent]:
    """Return the events of a run, and its end if the server alone has closed it, which the run cannot tell."""
    is_open = not target.closed and target.selected_run_id == target.run_id
    if is_open or not events or events[-1].kind in CLOSING:
        return events
    row = Instance.objects.using(storage.alias).filter(pk=target.selected_run_id, status__in=_ENDS_OUTSIDE).first()
    if row is None or row.closed_at is None:
        return events
    last, closing = events[-1], row.closing_value
    attributes = closing if isinstance(closing, dict) else {}
    end = HistoryEvent(last.number + 1, last.activation, _ENDS_OUTSIDE[row.status], row.closed_at, attributes)
    return [*events, end]


def events_of(run: ClusterRun, *, timeout: float = QUERY_SECONDS) -> list[HistoryEvent]:
    """Return the events of a run, which a worker reads from it by a query. Raises the errors of ``ask``."""
    return [
        HistoryEvent(number, activation, kind, datetime.fromisoformat(at), attributes)
        for number, activation, kind, at, attributes in state_of(run, timeout=timeout)["events"]
    ]


def state_of(run: ClusterRun, *, timeout: float = QUERY_SECONDS) -> dict[str, Any]:
    """Return the visible state of a run and its events: the answer to the query ``__tx_state``.

    Raises the errors of ``ask``.
    """
    state: dict[str, Any] = ask(run, names.STATE, timeout=timeout)
    return state


# -- the end of a run -------------------------------------------------------------------------------------------------


def closing(target: RunTarget, *, storage: DjangoStorage) -> tuple[str, Any] | None:
    """Return ``(status of the last run, attributes of its closing event)``; None while the chain is open.

    It reads the rows. If they show an open run, it also asks the cluster, which may have closed the run without a
    worker; the rows are then corrected in a transaction.
    """
    chain_id = target.chain_id
    known_end = read_closing(chain_id, session=storage)
    if known_end is not None and (watch := _watches.pop(chain_id, None)) is not None:
        watch.end.cancel()
    if known_end is not None or inside_transaction(storage.alias):
        return known_end
    watch = _watches.get(chain_id)
    if watch is None:
        _start_watch(chain_id, storage)
        return None
    watch.looked_at = time.monotonic()
    if not watch.end.done():
        return None
    _watches.pop(chain_id, None)
    try:
        end = watch.end.result()
        if end is None or _has_successor(watch.run):
            return None
    except (RPCError, ClusterUnavailable, UpdateTimeout, ActionNotPossible, CancelledError):
        return None  # asked again at the next look
    row = Instance.objects.using(storage.alias).filter(chain=chain_id, cluster_run_id=watch.run.run_id).first()
    if row is not None:
        with suppress(mirror.MirrorBusy), storage.transaction():
            mirror.close(chain_id, *end, run_id=row.pk, storage=storage)
    return read_closing(chain_id, session=storage)


def _start_watch(chain_id: UUID, storage: DjangoStorage) -> None:
    """Ask the cluster for the end of the newest run of a chain, unless that run has no id there yet."""
    now = time.monotonic()
    for other, watch in [*_watches.items()]:
        if now - watch.looked_at > _FORGOTTEN_SECONDS:
            _watches.pop(other, None)
            watch.end.cancel()
    run = find_on_cluster(chain_id, storage=storage)
    if run.run_id is not None:
        wait_for_end = partial(read_end, cluster_id=run.cluster_id, run_id=run.run_id, waits=True)
        _watches[chain_id] = _Watch(run, cluster_client().submit(wait_for_end), now)


def _has_successor(run: ClusterRun) -> bool:
    """Return True if a later run of the chain has the id, such as after a reset that the rows do not show yet."""
    try:
        newest = describe_run(replace(run, run_id=None), label=run.label).workflow_execution_info
    except HistoryGone:
        return False
    return newest.execution.run_id != run.run_id and newest.first_run_id == run.first_run_id


async def read_end(
    sdk: Client, *, cluster_id: str, run_id: str, waits: bool = False
) -> tuple[str, dict[str, Any]] | None:
    """Return ``(status, attributes of the closing event)`` of a closed run.

    If ``waits`` is True, wait until the run has closed, or the cluster has deleted it. Returns None if the rows will
    show how the run ended, or if it has not closed within the time that the server holds a request.
    """
    client = cluster_client()
    request = service.GetWorkflowExecutionHistoryRequest(
        execution=WorkflowExecution(workflow_id=cluster_id, run_id=run_id),
        wait_new_event=waits,
        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
    )
    try:
        answer = await send(sdk, request, retry=True)
    except RPCError as exc:
        if waits and is_gone(exc):
            return "terminated", {"reason": GONE}
        raise
    for event in answer.history.events:
        name = event.WhichOneof("attributes")
        attributes = getattr(event, name)
        match name.removeprefix("workflow_execution_").removesuffix("_event_attributes"):
            case "completed":
                return "completed", {"result": first_value(attributes.result, client.payloads)}
            case "failed":
                return "failed", read_failure(attributes.failure, client.payloads)
            case "canceled":
                return "cancelled", {}
            case "terminated":
                return "terminated", {"reason": attributes.reason}
            case "timed_out":
                return "timed_out", {"timeout": "execution_timeout"}
    return None
