"""The commands of an activation that lead outside of its run, as activities, children and messages to store."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import uuid5

from temporalex_django.core.history import events
from temporalex_django.core.history.activation import Definition
from temporalex_django.core.history.events import Command
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.engine.cache import CachedRun
from temporalex_django.engine.contracts.records import NewTask, RunRecord, RunState
from temporalex_django.engine.external_messages import NewChild, NewMessage
from temporalex_django.interceptors import Outgoing
from temporalex_django.interceptors.chain import chain


def outgoing_headers(record: RunRecord, kind: str, name: str, workflow_id: str | None = None) -> Headers | None:
    """Return the headers of something that a run sends: its own, with those that interceptors add.

    For ``kind``, ``name`` and ``workflow_id`` see ``Outgoing``. Raises ``InterceptorFailed`` and ``InvalidHeaders``.
    """
    if not chain.outgoing:
        return record.headers
    outgoing = Outgoing(kind=kind, name=name, workflow_id=workflow_id, headers=dict(record.headers or {}))
    chain.prepare(outgoing)
    return check_headers(outgoing.headers, label=f"the {kind} {name} with interceptors")


def new_task(command: Command, run: RunState, record: RunRecord, definition: Definition, *, now: datetime) -> NewTask:
    """Return the activity that a command of the run schedules at ``now``.

    ``definition`` describes the workflow class of the run.
    """
    assert command.seq is not None
    attributes = events.ACTIVITY_SCHEDULED.read(command)
    options = attributes.get("options", {})
    return NewTask(
        run_id=run.run_id,
        chain_id=run.chain_id,
        workflow_id=record.workflow_id,
        workflow=record.workflow,
        seq=command.seq,
        activity=attributes["activity"],
        args=attributes["args"],
        kwargs=attributes.get("kwargs", {}),
        options=options,
        queue=options.get("queue") or run.queue,
        atomic=bool(options.get("atomic")),
        scheduled_at=now,
        headers=outgoing_headers(record, "activity", attributes["activity"]),
        tags=definition.tags,
        metadata=definition.metadata,
    )


def new_child(command: Command, run: RunState, entry: CachedRun, *, now: datetime) -> NewChild:
    """Return the child that a command of the run starts at ``now``. ``entry`` has the executor of the run."""
    attributes, record = command.attributes, entry.record
    assert command.seq is not None
    options: dict[str, Any] = {name: value for name, value in attributes.items() if name != "id"}
    for name in ("start_at", "start_before"):
        if name in options:
            options[name] = datetime.fromisoformat(options[name])
    return NewChild(
        workflow_id=attributes["id"],
        seed=uuid5(run.run_id, str(command.seq)).int >> 66,
        at=now,
        parent=record.workflow_id,
        parent_chain=run.chain_id,
        parent_run=run.run_id,
        parent_seq=command.seq,
        snapshot=entry.executor.four_eyes_snapshot(child=True),
        headers=outgoing_headers(record, "child", attributes["workflow"], attributes["id"]),
        **options,
    )


def new_message(command: Command, run: RunState, record: RunRecord) -> NewMessage:
    """Return the message to another run that a command sends, a signal or a cancel request."""
    assert command.seq is not None
    ask = (run.chain_id, run.run_id, command.seq)
    if command.kind == "SignalExternal":
        signal = events.EXTERNAL_SIGNAL_SENT.read(command)
        return NewMessage(
            kind="signal",
            name=signal["name"],
            payload=signal["payload"],
            workflow_id=signal["id"],
            ask=ask,
            headers=outgoing_headers(record, "signal", signal["name"], signal["id"]),
        )
    request = events.EXTERNAL_CANCEL_SENT.read(command)
    payload = {"reason": f"requested by {record.workflow_id}"}
    target = None
    if command.kind == "CancelChild":
        target = (run.run_id, request["child"])
    return NewMessage(
        kind="cancel",
        name="",
        payload=payload,
        workflow_id=request["id"],
        child=target,
        ask=ask,
        headers=outgoing_headers(record, "cancel", "cancel", request["id"]),
    )
