"""The events that start and close a run, and the message by which its parent learns of its end. No I/O."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.core.failures import child_result, error_data, run_failure_cause
from temporalex_django.core.history import activation
from temporalex_django.core.history.events import CLOSING
from temporalex_django.engine.contracts.records import (
    NewEvent,
    Outcome,
    RowChanges,
    RunRecord,
    RunState,
    RunWrite,
)
from temporalex_django.engine.external_messages import NewMessage
from temporalex_django.errors import WorkflowClosed

_NO_CAUSE: RowChanges = {"cause": None, "fault": None}


def started_attributes(record: RunRecord) -> dict[str, Any]:
    """Return the attributes of the event ``WorkflowStarted`` of a run."""
    return activation.started_attributes(
        record.info,
        args=record.args,
        seed=record.seed,
        carried=record.carried_messages,
        snapshot=record.snapshot,
        search_attributes=record.search_attributes,
    )


def parent_messages(record: RunRecord, status: str, closing: dict[str, Any]) -> list[NewMessage]:
    """Return the message by which the parent of a chain learns of its end, or an empty list without a parent.

    ``status`` is the status of the closed run, and ``closing`` has the attributes of its closing event.
    """
    if record.parent_chain is None or record.parent_seq is None:
        return []
    kind, attributes = child_result(status, closing)
    payload = {"seq": record.parent_seq, **attributes}
    return [
        NewMessage(
            kind="child",
            name=kind,
            payload=payload,
            chain_id=record.parent_chain,
            run_id=record.parent_run,
            headers=record.headers,
        )
    ]


def terminate(run: RunState, *, reason: str, now: datetime, record: RunRecord) -> RunWrite:
    """Return the ``RunWrite`` that closes a locked run as terminated, without running any of its code."""
    if reason:
        message = f"the run was terminated: {reason}"
    else:
        message = "the run was terminated"
    return _close_externally(run, "WorkflowTerminated", {"reason": reason}, message, now=now, record=record)


def cancel(run: RunState, *, reason: str, now: datetime, record: RunRecord) -> RunWrite:
    """Return the ``RunWrite`` that closes a locked run as cancelled, without running any of its code."""
    return _close_externally(
        run, "WorkflowCancelled", {"reason": reason, "outside": True}, "the run was cancelled", now=now, record=record
    )


#: Functions that close a run from outside, by the status that it has then.
CLOSERS = {"terminated": terminate, "cancelled": cancel}


def close_for_move(run: RunState, *, run_id: UUID, seed: int, now: datetime, record: RunRecord) -> RunWrite:
    """Return the ``RunWrite`` that closes a locked run as continued as new, when it moves to another version.

    None of its code runs. ``run_id`` and ``seed`` are those of the next run. Unread messages stay with the chain.
    """
    stamp = run.next_moment(now)
    run.activated_at = run.due_at = stamp
    run.atomic_due = None
    run.failed_tries = 0
    kind, attributes = "WorkflowContinuedAsNew", {"args": record.args, "outside": True}
    return RunWrite(
        run=run,
        events=_closing_events(run, kind, attributes, stamp, record),
        drop_tasks=True,
        next_run=record.successor(run_id, seed=seed),
        instance=closed_row(kind, attributes, stamp),
    )


def close_for_reset(run: RunState, *, new: RunRecord, reset_run_id: UUID, now: datetime, record: RunRecord) -> RunWrite:
    """Return the ``RunWrite`` that continues a chain with the run ``new``, and closes its present run if it is open.

    ``reset_run_id`` is the run from whose history ``new`` starts.

    The parent gets no message, since the chain continues. The messages in its inbox go to the new run.
    """
    stamp = run.next_moment(now)
    was_open, run.closed = not run.closed, False
    run.paused = False
    run.activated_at = run.due_at = stamp
    run.deadline = record.deadline(stamp)
    if not was_open:
        return RunWrite(run=run, next_run=new, reset_run_id=reset_run_id)
    kind, attributes = "WorkflowTerminated", {"reason": "reset", "run_id": str(new.run_id)}
    return RunWrite(
        run=run,
        events=_closing_events(run, kind, attributes, stamp, record),
        drop_tasks=True,
        close_children=True,
        next_run=new,
        reset_run_id=reset_run_id,
        instance={**closed_row(kind, attributes, stamp), "paused": None},
    )


def time_out(run: RunState, *, now: datetime, record: RunRecord) -> RunWrite:
    """Return the ``RunWrite`` that closes a locked run as timed out, without running any of its code."""
    is_unbegun = run.head_token is None and record.start_before is not None and record.start_before <= now
    is_whole_chain = record.expires_at is not None and run.deadline is not None and record.expires_at <= run.deadline
    if is_unbegun:
        timeout_name, message = "start_before", "the run had not begun by its start_before"
    elif is_whole_chain:
        timeout_name, message = "execution_timeout", "the run exceeded its execution_timeout"
    else:
        timeout_name, message = "run_timeout", "the run exceeded its run_timeout"
    return _close_externally(run, "WorkflowTimedOut", {"timeout": timeout_name}, message, now=now, record=record)


def closed_row(kind: str, attributes: dict[str, Any], at: datetime) -> RowChanges:
    """Return the columns of the row of a run that was closed at ``at`` by an event with this kind and attributes."""
    return {
        "status": CLOSING[kind],
        "waiting_for": [],
        "waits": [],
        "accepts": {"signals": [], "updates": []},
        "closed_at": at,
        "closing": attributes,
        "blocked": None,
        **(cause_columns(attributes) if CLOSING[kind] == "failed" else _NO_CAUSE),
    }


def cause_columns(closing: dict[str, Any]) -> RowChanges:
    """Return the columns with the cause of a failure, from the attributes of the event that has closed the run."""
    cause = run_failure_cause(closing)
    return _NO_CAUSE if cause is None else {"cause": cause.text, "fault": cause.fault}


def _closing_events(
    run: RunState, kind: str, attributes: dict[str, Any], at: datetime, record: RunRecord
) -> list[NewEvent]:
    """Return the closing event, preceded by ``WorkflowStarted`` if the run never had a turn."""
    if run.length:
        entries = [(kind, attributes)]
    else:
        entries = [("WorkflowStarted", started_attributes(record)), (kind, attributes)]
    events = []
    for name, event_attributes in entries:
        run.length += 1
        event = NewEvent(
            number=run.length, activation=max(run.activations, 1), kind=name, at=at, attributes=event_attributes
        )
        events.append(event)
    return events


def _close_externally(
    run: RunState, kind: str, attributes: dict[str, Any], message: str, *, now: datetime, record: RunRecord
) -> RunWrite:
    """Close a locked run without running its code. ``message`` is for senders of unfinished updates."""
    stamp = run.next_moment(now)
    run.activated_at = stamp
    run.closed = True
    run.paused = False
    run.crashes = 0
    run.due_at = run.deadline = run.atomic_due = None
    events = _closing_events(run, kind, attributes, stamp, record)
    error = WorkflowClosed(message)
    return RunWrite(
        run=run,
        events=events,
        drop_tasks=True,
        close_children=True,
        messages=parent_messages(record, CLOSING[kind], attributes),
        instance={**closed_row(kind, attributes, stamp), "paused": None},
        closing=Outcome(status="failed", value=error_data(error)),
    )
