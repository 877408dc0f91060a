"""How runs begin and end in their history: ``WorkflowStarted``, closing from outside, and what a parent hears of it.

Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.core.failures import child_result, error_data
from temporalex_django.core.history.events import CLOSING, ENGINE_VERSION, FORMAT
from temporalex_django.engine.other_runs import NewMessage
from temporalex_django.engine.shapes import RowChanges
from temporalex_django.engine.storage import NewEvent, NewRun, Outcome, RunFacts, RunState, RunWrite
from temporalex_django.errors import WorkflowClosed


def started_attributes(facts: RunFacts) -> dict[str, Any]:
    """Attributes of ``WorkflowStarted``."""
    attributes: dict[str, Any] = {
        "workflow": facts.workflow,
        "id": facts.workflow_id,
        "run_id": str(facts.run_id),
        "version": facts.version,
        "args": facts.args,
        "seed": facts.seed,
        "engine": ENGINE_VERSION,
        "format": FORMAT,
        "attempt": facts.attempt,
        "parent": facts.parent,
    }
    if facts.carried_messages is not None:
        attributes["carried"] = len(facts.carried_messages["signals"])
        if failed := facts.carried_messages.get("failed"):
            attributes["failed"] = failed
    if facts.snapshot is not None:
        attributes["snapshot"] = facts.snapshot
    if facts.search_attributes:
        attributes["search_attributes"] = facts.search_attributes
    return attributes


def ending(facts: RunFacts, status: str, closing: dict[str, Any]) -> list[NewMessage]:
    """What the parent of a chain that closed hears."""
    if facts.parent_chain is None or facts.parent_seq is None:
        return []
    kind, attributes = child_result(status, closing)
    body = {"seq": facts.parent_seq, **attributes}
    return [NewMessage(kind="child", name=kind, body=body, chain_id=facts.parent_chain, run_id=facts.parent_run)]


def terminated(run: RunState, *, reason: str, now: datetime, facts: RunFacts) -> RunWrite:
    """Close a locked run from outside, at once; none of its code runs any more."""
    why = f"the run was terminated: {reason}" if reason else "the run was terminated"
    return _closed_from_outside(run, "WorkflowTerminated", {"reason": reason}, why, now=now, facts=facts)


def cancelled(run: RunState, *, reason: str, now: datetime, facts: RunFacts) -> RunWrite:
    """Cancel a locked run from outside, at once; none of its code runs any more."""
    return _closed_from_outside(
        run, "WorkflowCancelled", {"reason": reason, "outside": True}, "the run was cancelled", now=now, facts=facts
    )


#: How somebody outside ends a run, by the status that it has then.
ENDINGS = {"terminated": terminated, "cancelled": cancelled}


def handed_on(run: RunState, *, run_id: UUID, seed: int, now: datetime, facts: RunFacts) -> RunWrite:
    """Close a locked run as continued as new, from outside: its chain goes on with another class, its messages stay."""
    stamp = max(now, run.activated_at) if run.activated_at is not None else now
    run.activated_at = run.due_at = stamp
    run.atomic_due = None
    run.failed_tries = 0
    kind, attributes = "WorkflowContinuedAsNew", {"args": facts.args, "outside": True}
    return RunWrite(
        run=run,
        events=_last_events(run, kind, attributes, stamp, facts),
        drop_tasks=True,
        next_run=NewRun(run_id=run_id, args=facts.args, seed=seed, search_attributes=facts.search_attributes),
        instance=_as_closed(kind, attributes, stamp),
    )


def closed_for_reset(run: RunState, *, new: NewRun, now: datetime, facts: RunFacts) -> RunWrite:
    """Close a locked run, if it is open, for another one of its chain that takes it up.

    The parent hears nothing: the chain goes on. What the run left open in its inbox is the other one's.
    """
    stamp = max(now, run.activated_at) if run.activated_at is not None else now
    was_open, run.closed = not run.closed, False
    run.paused = False
    run.activated_at = run.due_at = stamp
    run.deadline = facts.deadline(stamp)
    if not was_open:
        return RunWrite(run=run, next_run=new)
    kind, attributes = "WorkflowTerminated", {"reason": "reset", "run_id": str(new.run_id)}
    return RunWrite(
        run=run,
        events=_last_events(run, kind, attributes, stamp, facts),
        drop_tasks=True,
        close_children=True,
        next_run=new,
        instance={**_as_closed(kind, attributes, stamp), "paused": None},
    )


def timed_out(run: RunState, *, now: datetime, facts: RunFacts) -> RunWrite:
    """Close a locked run whose deadline has passed; none of its code runs any more."""
    whole = facts.expires_at is not None and run.deadline is not None and facts.expires_at <= run.deadline
    which = "execution_timeout" if whole else "run_timeout"
    why = f"the run ran into its {which}"
    return _closed_from_outside(run, "WorkflowTimedOut", {"timeout": which}, why, now=now, facts=facts)


def _as_closed(kind: str, attributes: dict[str, Any], at: datetime) -> RowChanges:
    """What the row of a run says that somebody outside closed."""
    return {
        "status": CLOSING[kind],
        "waiting_for": [],
        "waits": [],
        "accepts": {"signals": [], "updates": []},
        "closed_at": at,
        "closing": attributes,
        "blocked": None,
        "cause": None,
    }


def _last_events(run: RunState, kind: str, attributes: dict[str, Any], at: datetime, facts: RunFacts) -> list[NewEvent]:
    """The closing event; behind ``WorkflowStarted`` in the history of a run that never had a turn."""
    found = [(kind, attributes)] if run.length else [("WorkflowStarted", started_attributes(facts)), (kind, attributes)]
    events = []
    for name, facts_of in found:
        run.length += 1
        event = NewEvent(number=run.length, activation=max(run.activations, 1), kind=name, at=at, attributes=facts_of)
        events.append(event)
    return events


def _closed_from_outside(
    run: RunState, kind: str, attributes: dict[str, Any], why: str, *, now: datetime, facts: RunFacts
) -> RunWrite:
    stamp = max(now, run.activated_at) if run.activated_at is not None else now
    run.activated_at = stamp
    run.closed = True
    run.paused = False
    run.crashes = 0
    run.due_at = run.deadline = run.atomic_due = None
    events = _last_events(run, kind, attributes, stamp, facts)
    error = WorkflowClosed(why)
    return RunWrite(
        run=run,
        events=events,
        drop_tasks=True,
        close_children=True,
        messages=ending(facts, CLOSING[kind], attributes),
        instance={**_as_closed(kind, attributes, stamp), "paused": None},
        closing=Outcome(status="failed", value=error_data(error)),
    )
