"""Other runs: children that this run starts and waits for, and messages to runs that it knows by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalex_django.core.failures import child_failure, external_failure
from temporalex_django.core.history.events import DELIVERED, Job, Reader
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.units.ivar import IVar
from temporalex_django.errors import PayloadError

_MAX_ID_LENGTH = 200


def start_child(
    runtime: WorkflowRuntime, attributes: dict[str, Any], decode_result: Callable[[Any], Any], reader: Reader
) -> IVar:
    """Emit ``StartChild`` and return the IVar (a value to await) of the child.

    ``attributes`` are those of the event ``ChildStarted``; if their ``id`` is None, one is made. The IVar holds the
    result of the child, converted by ``decode_result``, or raises ``ChildWorkflowFailure``. A replay uses ``reader`` to
    read the input as the child does.

    A cancelled wait asks the child to cancel, unless ``parent_close`` is "abandon". When the parent closes, a child
    that is still open gets what ``parent_close`` says.
    """
    number = runtime.pending_commands.next_number()
    if attributes["id"] is None:
        # The run id is used where the business id leaves no space for the number. Both are in the history, so a replay
        # makes the same id.
        generated_id = f"{runtime.run_context.info.id}:{number}"
        attributes = {
            **attributes,
            "id": generated_id
            if len(generated_id) <= _MAX_ID_LENGTH
            else f"{runtime.run_context.info.run_id}:{number}",
        }
    workflow_id = attributes["id"]
    name = f"{attributes['workflow']} {workflow_id}"
    ivar = IVar(f"child {name}")
    since = runtime.run_context.now.isoformat()
    ivar.wait_info = {"kind": "child", "seq": number, "name": attributes["workflow"], "id": workflow_id, "since": since}

    def resolve(job: Job) -> None:
        if job.kind == "ChildCompleted":
            try:
                # A copy, because the job goes into the history and user code may change its result.
                ivar.put(decode_result(deep_copy(job.attributes.get("result"))))
            except PayloadError as exc:
                ivar.fail(exc)
        else:
            ivar.fail(child_failure(job.attributes, name))

    def abandon() -> None:
        if runtime.pending_commands.abandon(number) and attributes["parent_close"] != "abandon":
            runtime.pending_commands.cancel_child(number, workflow_id)

    ivar.abandon = abandon
    runtime.pending_commands.start_child(number, attributes, resolve, reader)
    return ivar


def send_external(runtime: WorkflowRuntime, kind: str, attributes: dict[str, Any]) -> IVar:
    """Emit a message to another run and return its IVar, a value to await.

    ``kind`` is "SignalExternal" or "CancelExternal", and ``attributes`` are those of its event. The IVar is set when
    the message is in the inbox of an open run. If no open run gets the message, it raises the error of
    ``external_failure``.
    """
    label = f"signal {attributes['name']}" if kind == "SignalExternal" else "cancel request"
    ivar = IVar(f"{label} to {attributes['id']}")

    def resolve(job: Job) -> None:
        if job.kind == DELIVERED:
            ivar.put()
        else:
            ivar.fail(external_failure(job.attributes))

    def abandon() -> None:
        runtime.pending_commands.abandon(number)

    ivar.abandon = abandon
    number = runtime.pending_commands.submit(kind, attributes, resolve)
    return ivar
