"""Reset and fork: a new run continues from a point of another run's history, in the same chain or in a new one.

The new run has the history up to the point, and then an event that gives it a new seed and names the source. Everything
that was open at the point is open again: activities are scheduled again with their idempotency keys, and timers keep
their time. Results that had come and were never read come again, since a person may have given them. Children stay with
the run that started them: the result of one that ended is given again, and one that has not ended counts as failed. All
of it happens inside the open transaction, on chains that it has locked. See decisions 42 and 43.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.core.failures import error_data
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.history.events import DELIVERED, HistoryEvent, end_kinds_of
from temporalex_django.core.history.prefix import COPIED, HistoryPrefix, PendingMessage, build_copy_mark
from temporalex_django.engine.contracts.records import (
    RESULT_KINDS,
    InboxMessage,
    NewEvent,
    NewRun,
    NewTask,
    Outcome,
    RunRecord,
    RunState,
    RunWrite,
)
from temporalex_django.engine.contracts.storage import RunStorage
from temporalex_django.engine.external_messages import NewMessage
from temporalex_django.engine.operator_overrides import pending_timers, skip_message_id
from temporalex_django.engine.outcomes import failed_outcome
from temporalex_django.engine.reset.plan import ResetPlan
from temporalex_django.engine.run_closing import close_for_reset
from temporalex_django.errors import WorkflowClosed

#: Type of the failure of a child that had not ended when its parent was reset or forked.
CHILD_LEFT = "ChildLeft"


def reset(storage: RunStorage, run: RunState, plan: ResetPlan, *, run_id: UUID) -> list[RunWrite]:
    """Close a locked run as terminated, if it is open, and continue its chain with a new run.

    Returns the changes (``RunWrite``) that were stored. The new run gets the id ``run_id`` and continues from the point
    of the history that ``plan`` names. If the chain was closed, it is open again, and the caller has to reserve its
    business id (``reopen``).
    """
    record, now = plan.record, storage.now()
    current_record = storage.run_records([run.run_id])[run.run_id]
    pending_results = _pending_results(storage.inbox([run.chain_id])[run.chain_id], plan)
    failed_signals = _failed_to_copy(storage, run.chain_id, plan, excluded_statuses=("unread", "failed"))
    closing_write = close_for_reset(run, new=_successor_run(plan, run_id), now=now, record=current_record)
    closing_write.outcomes.update(_unfinished_updates(storage, run, plan))
    storage.write([closing_write])
    new_state = _initial_state(run, run_id, closing_write.run.activated_at or now, record)
    writes = [closing_write]
    if plan.prefix.activation:
        identity: dict[str, Any] = {"id": record.workflow_id, "parent": record.parent, "snapshot": record.snapshot}
        writes.append(
            _write_restored_run(
                storage,
                new_state,
                plan,
                "reset",
                pending_results=pending_results,
                failed_signals=failed_signals,
                **identity,
            )
        )
    storage.prepend_messages(
        run.chain_id, plan.prefix.later_messages if plan.redeliver else (), received=plan.prefix.signal_count
    )
    return writes


def fork(
    storage: RunStorage,
    run: RunState,
    plan: ResetPlan,
    *,
    source_chain: UUID,
    id: str,
    snapshot: Mapping[str, Any] | None,
) -> list[RunWrite]:
    """Let ``run``, which the open transaction has just started, continue from a point of another run's history.

    Returns the changes (``RunWrite``) that were stored. ``id`` (business id) and ``snapshot`` are those of ``run``. The
    other run (``plan.record``, of the chain ``source_chain``) stays as it is.
    """
    pending_results, writes = _pending_results(storage.inbox([source_chain])[source_chain], plan), []
    failed_signals, carried_ids = _failed_to_copy(storage, source_chain, plan), plan.prefix.carried
    if plan.prefix.activation:
        identity: dict[str, Any] = {"id": id, "parent": None, "snapshot": snapshot}
        writes.append(
            _write_restored_run(
                storage, run, plan, "fork", pending_results=pending_results, failed_signals=failed_signals, **identity
            )
        )
    # From its start the fork has no copied history that names failed messages, but it carries those of the source.
    elif plan.record.carried_messages is not None:
        carried_ids = {message["id"] for message in plan.record.carried_messages.get("failed", ())}
    storage.copy_failed_messages(source_chain, run.chain_id, carried_ids)
    storage.store_settled_messages(run.chain_id, _settled_messages(plan.prefix))
    storage.prepend_messages(
        run.chain_id, plan.prefix.later_messages if plan.redeliver else (), received=plan.prefix.signal_count
    )
    return writes


def _failed_to_copy(
    storage: RunStorage, chain: UUID, plan: ResetPlan, *, excluded_statuses: Sequence[str] = ()
) -> list[FailedSignal]:
    """Return the failed messages of the history up to the point that the chain of the new run has to get.

    A message that was discarded in ``chain``, or has one of ``excluded_statuses`` there, is left out. Discarded
    messages that came after the point are removed from the plan, so that they are not delivered again (see decision
    46).
    """
    prefix = plan.prefix
    ids = {
        message.message_id for message in prefix.later_messages if message.message_id is not None
    } | prefix.failed.keys()
    statuses = storage.message_statuses(chain, ids)
    prefix.later_messages = [
        m for m in prefix.later_messages if m.message_id is None or statuses.get(m.message_id) != "discarded"
    ]
    excluded_statuses = ("discarded", *excluded_statuses)
    return [failed for message, failed in prefix.failed.items() if statuses.get(message) not in excluded_statuses]


def _settled_messages(prefix: HistoryPrefix) -> list[tuple[PendingMessage, Outcome]]:
    """Return ``(message, outcome)`` of the updates, and of the signals with ids, in the history up to the point.

    The chain of a fork has no rows of them. Failed messages are not among them.
    """
    outcomes: dict[str, Outcome] = {}
    for event in prefix.events:
        match event.kind:
            case "UpdateCompleted":
                answer = kinds.UPDATE_COMPLETED.read(event)
                outcomes[answer["id"]] = Outcome(status="completed", value=answer["result"])
            case "UpdateFailed":
                outcomes[kinds.UPDATE_FAILED.read(event)["id"]] = failed_outcome(event.attributes)
    updates = [
        (update, outcomes.get(update_id, Outcome(status="accepted"))) for update_id, update in prefix.updates.items()
    ]
    return updates + [(signal, Outcome(status="completed")) for signal in prefix.signals.values()]


def _pending_results(unread: Iterable[InboxMessage], plan: ResetPlan) -> dict[int, InboxMessage]:
    """Return, by command number, the results that the source run has received and not read.

    Only results of activities, timers, children and messages that were open at the point are returned. An activity
    whose input the plan edits has none.
    """
    prefix = plan.prefix
    timers = pending_timers((event.kind, event.attributes) for event in prefix.events)
    open_numbers = {*prefix.activities, *timers, *prefix.children, *prefix.unconfirmed} - set(plan.edited_inputs)
    results = (m for m in (*plan.unread, *unread) if m.kind in RESULT_KINDS and m.run_id == plan.record.run_id)
    return {m.payload["seq"]: m for m in results if m.payload["seq"] in open_numbers}


def _successor_run(plan: ResetPlan, run_id: UUID) -> NewRun:
    """Return the new run of a reset. It has the seed of the old run if it copies history, else the seed of the plan."""
    record = plan.record
    return NewRun(
        run_id=run_id,
        args=record.args,
        seed=record.seed if plan.prefix.activation else plan.seed,
        carried_messages=record.carried_messages,
        snapshot=record.snapshot,
        source_run_id=record.run_id,
        search_attributes=plan.search_attributes,
    )


def _initial_state(run: RunState, run_id: UUID, now: datetime, record: RunRecord) -> RunState:
    """Return the state of the chain of ``run`` with the new run ``run_id``, which has no history and is due now.

    ``record`` is the record of the new run, and ``now`` the time of the turn.
    """
    return RunState(
        chain_id=run.chain_id,
        run_id=run_id,
        queue=run.queue,
        head_token=None,
        length=0,
        activations=0,
        activated_at=now,
        due_at=now,
        deadline=record.deadline(now),
    )


def _unfinished_updates(storage: RunStorage, run: RunState, plan: ResetPlan) -> dict[str, Outcome]:
    """Return the outcome "failed", by update id, for each accepted update that had no answer when a reset drops it.

    Their senders wait for an outcome, which the new run would never give.
    """
    events = storage.histories({run.run_id: 0})[run.run_id]
    open_ids = {kinds.UPDATE_ACCEPTED.read(event)["id"] for event in events if event.kind == "UpdateAccepted"}
    open_ids -= {event.attributes["id"] for event in events if event.kind in end_kinds_of("update")}
    visible_ids = plan.prefix.updates.keys() | {
        message.message_id for message in plan.prefix.later_messages if plan.redeliver
    }
    error = WorkflowClosed(
        f"{plan.record.workflow} {plan.record.workflow_id} was reset to a point before the update, which is dropped"
    )
    return {
        update: Outcome(status="failed", value=error_data(error)) for update in open_ids if update not in visible_ids
    }


def _write_restored_run(
    storage: RunStorage,
    run: RunState,
    plan: ResetPlan,
    mode: str,
    *,
    pending_results: Mapping[int, InboxMessage],
    failed_signals: Sequence[FailedSignal],
    id: str,
    parent: str | None,
    snapshot: Mapping[str, Any] | None,
) -> RunWrite:
    """Store the copied history, the event that marks the copy, and everything that was open.

    Returns the ``RunWrite`` that was stored. ``mode`` is "reset" or "fork". ``pending_results`` are the unread results
    by command number, and ``failed_signals`` the failed messages to copy. ``id`` (business id), ``parent`` and
    ``snapshot`` are those of the new run.
    """
    prefix, now = plan.prefix, max(storage.now(), plan.prefix.events[-1].at)
    copy_mark = build_copy_mark(
        mode=mode,
        source_run_id=str(plan.record.run_id),
        activation=prefix.activation,
        run_id=str(run.run_id),
        id=id,
        parent=parent,
        snapshot=snapshot,
    )
    rescheduled = {number: activity for number, activity in prefix.activities.items() if number not in pending_results}
    inputs = {
        number: plan.edited_inputs.get(number) or activity.edited_input for number, activity in rescheduled.items()
    }
    if edited_calls := {str(number): dict(call) for number, call in inputs.items() if call is not None}:
        copy_mark["edited"] = edited_calls
    # The mark is an activation of its own behind the copied history: a replay draws from the new seed after it.
    run.length = len(prefix.events) + 1
    run.activations = prefix.activation + 1
    run.activated_at = run.due_at = now
    run.head_token = storage.new_token()
    stamp = {"head": run.head_token, "seed": plan.seed, COPIED: copy_mark}
    events = [_copy_event(number, event) for number, event in enumerate(prefix.events, 1)]
    events.append(
        NewEvent(number=run.length, activation=run.activations, kind="ActivationStarted", at=now, attributes=stamp)
    )
    tasks = [_new_task(run, plan, number, id, now) for number in rescheduled]
    if plan.atomic and any(task.atomic for task in tasks):
        run.atomic_due = now
    write = RunWrite(run=run, events=events, tasks=tasks, messages=_result_messages(run, prefix, pending_results))
    write.instance = {"started_at": now}
    write.failed_signals = [*failed_signals]
    storage.write([write])
    return write


def _copy_event(number: int, event: HistoryEvent) -> NewEvent:
    return NewEvent(
        number=number, activation=event.activation, kind=event.kind, at=event.at, attributes=event.attributes
    )


def _new_task(run: RunState, plan: ResetPlan, number: int, id: str, now: datetime) -> NewTask:
    """Return the activity of command ``number``, which was open in the copied history, to schedule it again at ``now``.

    ``id`` is the business id of the new run.
    """
    activity = plan.prefix.activities[number]
    edited = plan.edited_inputs.get(number)
    attributes = {**activity.attributes, **(edited or {})}
    options: dict[str, Any] = dict(attributes.get("options") or {})
    if edited is not None:
        options["edited"] = True
    else:
        # The key of the source: what it has done once under that key is not to be done again.
        options |= {"key": activity.key, **({"edited": activity.edited} if activity.edited else {})}
    return NewTask(
        run_id=run.run_id,
        chain_id=run.chain_id,
        workflow_id=id,
        workflow=plan.record.workflow,
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
        headers=plan.record.headers,
    )


def _result_messages(
    run: RunState, prefix: HistoryPrefix, pending_results: Mapping[int, InboxMessage]
) -> list[NewMessage]:
    """Return messages to the new run with the results of what was open in the copied history.

    A child without a result counts as failed, and a message to another run without an answer as delivered: the new run
    sends or starts neither of them again.
    """
    results = [(m.kind, m.name, m.payload) for m in pending_results.values()]
    for number, child in prefix.children.items():
        if number not in pending_results:
            results.append(("child", *(prefix.later_results.get(number) or _child_left_result(number, child))))
    sent_numbers = sorted(prefix.unconfirmed - set(pending_results))
    results += [
        ("external", *(prefix.later_results.get(number) or (DELIVERED, {"seq": number}))) for number in sent_numbers
    ]
    return [
        NewMessage(
            kind=kind,
            name=name,
            payload=payload,
            chain_id=run.chain_id,
            run_id=run.run_id,
            message_id=skip_message_id(run.run_id, payload["seq"]) if kind == "timer" else None,
        )
        for kind, name, payload in results
    ]


def _child_left_result(number: int, child: str) -> tuple[str, dict[str, Any]]:
    message = "it belongs to the run that was reset or forked; start another child if you need its result"
    return "ChildFailed", {"seq": number, "type": CHILD_LEFT, "message": f"child {child}: {message}", "status": "left"}
