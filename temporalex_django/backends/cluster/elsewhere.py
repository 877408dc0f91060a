"""Messages of runs on the cluster to runs that the cluster does not know: those on the tables, and those not begun.

The server says that it has no open run of the id. Then the rows say where the message goes. A marker in the history of
the sender keeps the answer for replays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from django.db import close_old_connections
from django.db.models import Q
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand

from temporalex_django.backends.host import host
from temporalex_django.core.history.activation import RunInfo
from temporalex_django.core.history.events import DELIVERED
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.turn_writes import ExternalRunWriter
from temporalex_django.engine.external_messages import NewMessage
from temporalex_django.engine.ids import parse_run_id
from temporalex_django.models import Instance, Message

#: Ids of patch markers that hold an answer begin with this text. The number of the command, a colon and JSON follow.
_MARKER: Final = "__tx_elsewhere:"

#: For the number of a command, the kind and the attributes of the job that answers it.
Answers = dict[int, tuple[str, dict[str, Any]]]


def failed_messages(act: WorkflowActivation) -> dict[int, str]:
    """Return the kinds of the messages that the cluster could not deliver, by the number of their commands."""
    failed = {}
    for job in act.jobs:
        signal, cancel = job.resolve_signal_external_workflow, job.resolve_request_cancel_external_workflow
        if signal.HasField("failure"):
            failed[signal.seq] = "signal"
        elif cancel.HasField("failure"):
            failed[cancel.seq] = "cancel"
    return failed


def take_answers(act: WorkflowActivation) -> Answers:
    """Remove the markers with answers from an activation that is replayed, and return the answers."""
    answers: Answers = {}
    for number in reversed(range(len(act.jobs))):
        marker = act.jobs[number].notify_has_patch.patch_id
        if marker.startswith(_MARKER):
            seq, _, answer = marker.removeprefix(_MARKER).partition(":")
            answers[int(seq)] = tuple(json.loads(answer))
            del act.jobs[number]
    return answers


def deliver(
    kind: str, seq: int, attributes: Mapping[str, Any], info: RunInfo, *, sent_by: str
) -> tuple[str, dict[str, Any]]:
    """Insert a message into the inbox of a run on the tables, or into the outbox, and return the answer for its sender.

    ``kind`` is "signal" or "cancel"; ``seq`` and ``attributes`` are those of the command, and ``info`` that of the run
    that sends. ``sent_by`` is the id of that run on the cluster: the message has an id made of it, so that it is
    delivered once if the activation is done again, also if the run there has closed meanwhile.
    """
    close_old_connections()
    try:
        storage, run_id = host().storage(), UUID(sent_by)
        message = NewMessage(
            kind=kind,
            name=attributes.get("name", ""),
            payload=attributes.get("payload") if kind == "signal" else {"reason": f"requested by {info.id}"},
            workflow_id=attributes["id"],
            message_id=f"{sent_by}:{seq}",
            ask=(run_id, run_id, seq),
            headers=info.headers,
        )
        with storage.transaction():
            if _is_stored(message, storage):
                return DELIVERED, {"seq": seq}
            return ExternalRunWriter(storage.sql, storage.clock).deliver(message)
    finally:
        close_old_connections()


def _is_stored(message: NewMessage, storage: DjangoStorage) -> bool:
    """Return True if a run with the id to which this message goes has it already, open or not."""
    assert message.workflow_id is not None
    receivers = Q(workflow_id=message.workflow_id) | Q(pk=parse_run_id(message.workflow_id))
    chains = Instance.objects.using(storage.alias).filter(receivers).values("chain")
    return Message.objects.using(storage.alias).filter(chain__in=chains, request_id=message.message_id).exists()


def write_marker(seq: int, answer: tuple[str, dict[str, Any]]) -> WorkflowCommand:
    """Return the marker that keeps the answer to a message for replays."""
    written = WorkflowCommand()
    written.set_patch_marker.patch_id = f"{_MARKER}{seq}:{json.dumps(answer, sort_keys=True)}"
    return written
