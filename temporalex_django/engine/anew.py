"""A run that takes up another one behind one of its activations: a reset in the same chain, or a fork in a new one.

It has the history up to there, and then a mark, which seeds it anew and says from whom it has all that. What was open
there is open again: activities are scheduled anew with the idempotency key that they had, timers keep their time. What
has come already of them, and nobody has read, comes again: somebody may have given it by hand. Children stay with the
run that started them: what one gave is given again, and one that has not ended counts as failed. All of it inside the
open transaction, on chains that it has locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.core.failures import error_data
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.history.events import DELIVERED, HistoryEvent
from temporalex_django.core.history.prefix import COPIED, HistoryPrefix, PendingMessage, build_copy_mark
from temporalex_django.engine.by_hand import pending_timers, skip_id
from temporalex_django.engine.endings import closed_for_reset
from temporalex_django.engine.other_runs import NewMessage
from temporalex_django.engine.outcomes import update_failed
from temporalex_django.engine.points import Plan
from temporalex_django.engine.storage import (
    InboxMessage,
    NewEvent,
    NewRun,
    NewTask,
    Outcome,
    RunFacts,
    RunState,
    RunStorage,
    RunWrite,
)
from temporalex_django.errors import WorkflowClosed

#: What a wait for a child gives that had not ended when its parent was taken up.
LEFT = "ChildLeft"


def reset(storage: RunStorage, run: RunState, plan: Plan, *, run_id: UUID) -> list[RunWrite]:
    """The chain of a locked run goes on with a new one; the present one is closed as terminated, if it is open.

    A closed chain is open again; its key is the caller's business. Gives what was written.
    """
    facts, now = plan.facts, storage.now()
    present = storage.facts([run.run_id])[run.run_id]
    known = _known(storage.inbox([run.chain_id])[run.chain_id], plan)
    failed = _still_failed(storage, run.chain_id, plan, gone=("unread", "failed"))
    first = closed_for_reset(run, new=_next(plan, run_id), now=now, facts=present)
    first.outcomes.update(_not_done(storage, run, plan))
    storage.write([first])
    new = _begun(run, run_id, first.run.activated_at or now, facts)
    written = [first]
    if plan.prefix.activation:
        named: dict[str, Any] = {"id": facts.workflow_id, "parent": facts.parent, "snapshot": facts.snapshot}
        written.append(_take_up(storage, new, plan, "reset", known=known, failed=failed, **named))
    storage.put_first(run.chain_id, plan.prefix.later_messages if plan.again else (), received=plan.prefix.signal_count)
    return written


def fork(
    storage: RunStorage, run: RunState, plan: Plan, *, of: UUID, id: str, snapshot: Mapping[str, Any] | None
) -> list[RunWrite]:
    """``run``, which was started a moment ago in this transaction with that id and snapshot, takes up another one.

    That one (``plan.facts``, of the chain ``of``) stays as it is. Gives what was written.
    """
    known, written = _known(storage.inbox([of])[of], plan), []
    failed, carried = _still_failed(storage, of, plan), plan.prefix.carried
    if plan.prefix.activation:
        named: dict[str, Any] = {"id": id, "parent": None, "snapshot": snapshot}
        written.append(_take_up(storage, run, plan, "fork", known=known, failed=failed, **named))
    elif plan.facts.carried_messages is not None:
        carried = {message["id"] for message in plan.facts.carried_messages.get("failed", ())}
    storage.copy_failed(of, run.chain_id, carried)
    storage.keep_taken(run.chain_id, _taken(plan.prefix))
    storage.put_first(run.chain_id, plan.prefix.later_messages if plan.again else (), received=plan.prefix.signal_count)
    return written


def _still_failed(storage: RunStorage, chain: UUID, plan: Plan, *, gone: Sequence[str] = ()) -> list[FailedSignal]:
    """The failed messages at the point that the run which takes it up has none of yet.

    Without those that have such a status in ``chain`` (``gone``), and those that somebody discarded there.

    Nobody delivers a discarded one again: the plan loses those that lie behind the point, too.
    """
    point = plan.prefix
    ids = {
        message.message_id for message in point.later_messages if message.message_id is not None
    } | point.failed.keys()
    statuses = storage.message_statuses(chain, ids)
    point.later_messages = [
        m for m in point.later_messages if m.message_id is None or statuses.get(m.message_id) != "discarded"
    ]
    gone = ("discarded", *gone)
    return [failed for message, failed in point.failed.items() if statuses.get(message) not in gone]


def _taken(point: HistoryPrefix) -> list[tuple[PendingMessage, Outcome]]:
    """The updates and the signals with ids in the history up to the point, with their outcomes.

    The chain of a fork has no rows of them. Failed messages are not among them.
    """
    outcomes: dict[str, Outcome] = {}
    for event in point.events:
        match event.kind:
            case "UpdateCompleted":
                outcomes[event.attributes["id"]] = Outcome(status="completed", value=event.attributes["result"])
            case "UpdateFailed":
                outcomes[event.attributes["id"]] = update_failed(event.attributes)
    updates = [(update, outcomes.get(known, Outcome(status="accepted"))) for known, update in point.updates.items()]
    return updates + [(signal, Outcome(status="completed")) for signal in point.signals.values()]


_RESULTS = ("activity", "timer", "child", "external")


def _known(unread: Iterable[InboxMessage], plan: Plan) -> dict[int, InboxMessage]:
    """By number what the run that is taken up would read next of what is open at the point.

    Of an activity whose input is edited now nothing is known.
    """
    point = plan.prefix
    timers = pending_timers((event.kind, event.attributes) for event in point.events)
    open_ones = {*point.activities, *timers, *point.children, *point.unconfirmed} - set(plan.edited)
    results = (m for m in (*plan.unread, *unread) if m.kind in _RESULTS and m.run_id == plan.facts.run_id)
    return {m.body["seq"]: m for m in results if m.body["seq"] in open_ones}


def _next(plan: Plan, run_id: UUID) -> NewRun:
    """What the new run begins with; one that takes nothing up begins with a seed of its own."""
    facts = plan.facts
    return NewRun(
        run_id=run_id,
        args=facts.args,
        seed=facts.seed if plan.prefix.activation else plan.seed,
        carried_messages=facts.carried_messages,
        snapshot=facts.snapshot,
        like=facts.run_id,
        search_attributes=plan.search_attributes,
    )


def _begun(run: RunState, run_id: UUID, now: datetime, facts: RunFacts) -> RunState:
    return RunState(
        chain_id=run.chain_id,
        run_id=run_id,
        queue=run.queue,
        head_token=None,
        length=0,
        activations=0,
        activated_at=now,
        due_at=now,
        deadline=facts.deadline(now),
    )


def _not_done(storage: RunStorage, run: RunState, plan: Plan) -> dict[str, Outcome]:
    """Updates that the present run accepted and did not finish, and that the new one will not see."""
    events = storage.histories({run.run_id: 0})[run.run_id]
    open_ones = {event.attributes["id"] for event in events if event.kind == "UpdateAccepted"}
    open_ones -= {event.attributes["id"] for event in events if event.kind in ("UpdateCompleted", "UpdateFailed")}
    seen = plan.prefix.updates.keys() | {message.message_id for message in plan.prefix.later_messages if plan.again}
    error = WorkflowClosed(
        f"{plan.facts.workflow} {plan.facts.workflow_id} was reset to before the update: it is dropped"
    )
    return {update: Outcome(status="failed", value=error_data(error)) for update in open_ones if update not in seen}


def _take_up(
    storage: RunStorage,
    run: RunState,
    plan: Plan,
    how: str,
    *,
    known: Mapping[int, InboxMessage],
    failed: Sequence[FailedSignal],
    id: str,
    parent: str | None,
    snapshot: Mapping[str, Any] | None,
) -> RunWrite:
    """The history up to the point, the mark, and what is open there."""
    point, now = plan.prefix, max(storage.now(), plan.prefix.events[-1].at)
    copied = build_copy_mark(
        mode=how,
        source_run_id=str(plan.facts.run_id),
        activation=point.activation,
        run_id=str(run.run_id),
        id=id,
        parent=parent,
        snapshot=snapshot,
    )
    anew = {number: activity for number, activity in point.activities.items() if number not in known}
    inputs = {number: plan.edited.get(number) or activity.edited_input for number, activity in anew.items()}
    if edited := {str(number): dict(call) for number, call in inputs.items() if call is not None}:
        copied["edited"] = edited
    run.length = len(point.events) + 1
    run.activations = point.activation + 1
    run.activated_at = run.due_at = now
    run.head_token = storage.new_token()
    stamp = {"head": run.head_token, "seed": plan.seed, COPIED: copied}
    events = [_copy(number, event) for number, event in enumerate(point.events, 1)]
    events.append(
        NewEvent(number=run.length, activation=run.activations, kind="ActivationStarted", at=now, attributes=stamp)
    )
    tasks = [_task(run, plan, number, id, now) for number in anew]
    if plan.atomic and any(task.atomic for task in tasks):
        run.atomic_due = now
    write = RunWrite(run=run, events=events, tasks=tasks, messages=_answers(run, point, known))
    write.instance = {"started_at": now}
    write.failed = [*failed]
    storage.write([write])
    return write


def _copy(number: int, event: HistoryEvent) -> NewEvent:
    return NewEvent(
        number=number, activation=event.activation, kind=event.kind, at=event.at, attributes=event.attributes
    )


def _task(run: RunState, plan: Plan, number: int, id: str, now: datetime) -> NewTask:
    activity = plan.prefix.activities[number]
    edited = plan.edited.get(number)
    attributes = {**activity.attributes, **(edited or {})}
    options: dict[str, Any] = dict(attributes.get("options") or {})
    if edited is not None:
        options["edited"] = True
    else:
        options |= {"key": activity.key, **({"edited": activity.edited} if activity.edited else {})}
    return NewTask(
        run_id=run.run_id,
        chain_id=run.chain_id,
        workflow_id=id,
        workflow=plan.facts.workflow,
        seq=number,
        activity=attributes["activity"],
        args=attributes["args"],
        kwargs=attributes.get("kwargs", {}),
        options=options,
        queue=options.get("queue") or run.queue,
        atomic=bool(options.get("atomic")),
        scheduled_at=now,
        tags=plan.tags,
        metadata=plan.metadata,
    )


def _answers(run: RunState, point: HistoryPrefix, known: Mapping[int, InboxMessage]) -> list[NewMessage]:
    """What has come already, and what waits for children and messages to other runs get: none of it happens again."""
    found = [(m.kind, m.name, m.body) for m in known.values()]
    for number, child in point.children.items():
        if number not in known:
            found.append(("child", *(point.later_results.get(number) or _left(number, child))))
    sent = sorted(point.unconfirmed - set(known))
    found += [("external", *(point.later_results.get(number) or (DELIVERED, {"seq": number}))) for number in sent]
    return [
        NewMessage(
            kind=kind,
            name=name,
            body=body,
            chain_id=run.chain_id,
            run_id=run.run_id,
            request_id=skip_id(run.run_id, body["seq"]) if kind == "timer" else None,
        )
        for kind, name, body in found
    ]


def _left(number: int, child: str) -> tuple[str, dict[str, Any]]:
    message = "it stays with the run that this one takes up; start another one if its result is needed"
    return "ChildFailed", {"seq": number, "type": LEFT, "message": f"child {child}: {message}", "status": "left"}
