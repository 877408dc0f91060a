"""Other runs: children that this one starts and waits for, and messages to runs that it knows by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalex_django.core.copying import deep_copy
from temporalex_django.core.failures import child_failure, external_failure
from temporalex_django.core.history.events import DELIVERED, Job
from temporalex_django.core.history.inputs import Reader
from temporalex_django.core.ivar import IVar
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.errors import PayloadError

_MAX_ID_LENGTH = 200


def start_child(
    runtime: WorkflowRuntime, attributes: dict[str, Any], decode_result: Callable[[Any], Any], reader: Reader
) -> IVar:
    """Emit StartChild.

    The IVar gives the child's result, ``decode_result`` to its code, or raises ``ChildWorkflowFailure``.

    ``reader``: as what the child reads its input.

    Cancelling the wait asks the child to cancel, unless it is to be abandoned; a child that the parent leaves open when
    it closes gets what its ``parent_close`` says.
    """
    number = runtime.pending_commands.next_number()
    if attributes["id"] is None:
        # the run's own id where the parent's leaves no room: both are recorded, so a replay makes the same
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
                ivar.put(decode_result(deep_copy(job.attributes.get("result"))))
            except PayloadError as exc:
                ivar.fail(exc)
        else:
            ivar.fail(child_failure(job.attributes, name))

    def abandon() -> None:
        if runtime.pending_commands.abandon(number) and attributes["parent_close"] != "abandon":
            runtime.pending_commands.submit("CancelExternal", {"id": workflow_id, "child": number}, lambda _: None)

    ivar.abandon = abandon
    runtime.pending_commands.start_child(number, attributes, resolve, reader)
    return ivar


def send_external(runtime: WorkflowRuntime, kind: str, attributes: dict[str, Any]) -> IVar:
    """Emit SignalExternal or CancelExternal.

    The IVar is filled when the message is in the inbox of an open run, else it raises.
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
