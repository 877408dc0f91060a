"""Other runs: children that this one starts and waits for, and messages to runs that it knows by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalex_django.core.copying import copied
from temporalex_django.core.failures import child_failure, external_failure
from temporalex_django.core.history.events import DELIVERED, Job
from temporalex_django.core.history.inputs import Reader
from temporalex_django.core.ivar import IVar
from temporalex_django.core.port import Port
from temporalex_django.errors import PayloadError

_LONGEST_ID = 200


def child(port: Port, attributes: dict[str, Any], fitted: Callable[[Any], Any], reader: Reader) -> IVar:
    """Emit StartChild; the IVar gives the child's result, ``fitted`` to its code, or raises ``ChildWorkflowFailure``.

    ``reader``: as what the child reads its input.

    Cancelling the wait asks the child to cancel, unless it is to be abandoned; a child that the parent leaves open when
    it closes gets what its ``parent_close`` says.
    """
    number = port.calls.new_number()
    if attributes["id"] is None:
        # the run's own id where the parent's leaves no room: both are recorded, so a replay makes the same
        made = f"{port.standing.info.id}:{number}"
        attributes = {**attributes, "id": made if len(made) <= _LONGEST_ID else f"{port.standing.info.run_id}:{number}"}
    workflow_id = attributes["id"]
    name = f"{attributes['workflow']} {workflow_id}"
    ivar = IVar(f"child {name}")
    since = port.standing.now.isoformat()
    ivar.about = {"kind": "child", "seq": number, "name": attributes["workflow"], "id": workflow_id, "since": since}

    def resolve(job: Job) -> None:
        if job.kind == "ChildCompleted":
            try:
                ivar.put(fitted(copied(job.attributes.get("result"))))
            except PayloadError as exc:
                ivar.fail(exc)
        else:
            ivar.fail(child_failure(job.attributes, name))

    def abandon() -> None:
        if port.calls.withdraw(number) and attributes["parent_close"] != "abandon":
            port.calls.ask("CancelExternal", {"id": workflow_id, "child": number}, lambda _: None)

    ivar.abandon = abandon
    port.calls.start_child(number, attributes, resolve, reader)
    return ivar


def external(port: Port, kind: str, attributes: dict[str, Any]) -> IVar:
    """Emit SignalExternal or CancelExternal.

    The IVar is filled when the message is in the inbox of an open run, else it raises.
    """
    what = f"signal {attributes['name']}" if kind == "SignalExternal" else "cancel request"
    ivar = IVar(f"{what} to {attributes['id']}")

    def resolve(job: Job) -> None:
        if job.kind == DELIVERED:
            ivar.put()
        else:
            ivar.fail(external_failure(job.attributes))

    def abandon() -> None:
        port.calls.withdraw(number)

    ivar.abandon = abandon
    number = port.calls.ask(kind, attributes, resolve)
    return ivar
