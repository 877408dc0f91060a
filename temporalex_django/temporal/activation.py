"""Workflow activations of the SDK, read as the jobs that the executor takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.child_workflow import StartChildWorkflowExecutionFailedCause
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow, QueryWorkflow, WorkflowActivation

from temporalex_django.core.history.activation import NO_DELIVERY, DeliveryRecord
from temporalex_django.core.history.events import DELIVERED, Job
from temporalex_django.core.payloads import codec
from temporalex_django.core.process import REQUESTED
from temporalex_django.errors import PayloadError, TemporalexError
from temporalex_django.temporal import names
from temporalex_django.temporal.failures import activity_job, child_job
from temporalex_django.temporal.payloads import Payloads

_IS_KNOWN_ID: Final = (
    StartChildWorkflowExecutionFailedCause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS
)
#: The SDK sends the arguments of an update back with its rejection, and fails a task that sends more than 2 MiB.
_MOST_ECHOED: Final = 2**21 - 2**14
logger = logging.getLogger("temporalex_django.temporal")


@dataclass(slots=True)
class Inbound:
    """The content of one activation of the SDK, read by ``ActivationReader``.

    ``answers`` are the results of commands, in the order in which they came, and ``messages`` are signals, updates and
    requests. ``skips`` are the payloads of signals by which a person lets a timer fire early. ``record`` is the
    delivery record that a marker holds for a replay of the activation, and ``protocol_ids`` are the ids under which the
    SDK takes answers to updates, by update id. ``refused_updates`` are those that are too large, each with the error
    for its sender. An update that is even too large for a rejection gets no answer.
    """

    start: InitializeWorkflow | None = None
    seed: int | None = None
    patches: list[str] = field(default_factory=list)
    record: DeliveryRecord = NO_DELIVERY
    answers: list[Job] = field(default_factory=list)
    cancel: Job | None = None
    skips: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Job] = field(default_factory=list)
    protocol_ids: dict[str, str] = field(default_factory=dict)
    refused_updates: list[tuple[str, TemporalexError]] = field(default_factory=list)
    queries: list[QueryWorkflow] = field(default_factory=list)


class ActivationReader:
    """Reads the activations of one run.

    ``command_of(number)`` returns the attributes of the command with that number: an activity, a child or a message.
    """

    def __init__(self, payloads: Payloads, command_of: Callable[[int], Mapping[str, Any]]) -> None:
        self._payloads = payloads
        self._command_of = command_of

    def read(self, activation: WorkflowActivation) -> Inbound:
        """Return the content of an activation. Raises ``TemporalexError`` for a job of an unknown kind."""
        inbound = Inbound()
        for job in activation.jobs:
            variant = job.WhichOneof("variant")
            read = self.readers.get(variant or "")
            if read is None:
                raise TemporalexError(
                    f"the SDK delivered a job of the kind {variant!r}, which this version of temporalex_django does not "
                    "know: the task will be retried; use compatible versions of both"
                )
            read(self, inbound, getattr(job, variant or ""))
        return inbound

    # -- jobs, in the order of ``readers`` ----------------------------------------------------------------------------

    def _initialize(self, inbound: Inbound, job: Any) -> None:
        inbound.start = job

    def _fire_timer(self, inbound: Inbound, job: Any) -> None:
        inbound.answers.append(Job("TimerFired", {"seq": job.seq}))

    def _update_seed(self, inbound: Inbound, job: Any) -> None:
        inbound.seed = job.randomness_seed

    def _query(self, inbound: Inbound, job: Any) -> None:
        inbound.queries.append(job)

    def _cancel(self, inbound: Inbound, job: Any) -> None:
        inbound.cancel = Job("CancelRequested", {"reason": job.reason})

    def _signal(self, inbound: Inbound, job: Any) -> None:
        payload = self._single(job.input)
        if job.signal_name == names.SKIP_TIMER:
            inbound.skips.append(payload)
            return
        attributes = {"name": job.signal_name, "payload": payload, **self._origin(job.headers)}
        if names.MESSAGE_ID in job.headers:
            attributes["id"] = self._payloads.decode(job.headers[names.MESSAGE_ID])
        inbound.messages.append(Job("SignalReceived", attributes))

    def _resolve_activity(self, inbound: Inbound, job: Any) -> None:
        result, status = job.result, job.result.WhichOneof("status")
        if status == "completed":
            payload = result.completed.result
            attributes = {"seq": job.seq, "result": self._payloads.decode(payload) if payload.metadata else None}
            if "attempts" in payload.metadata:
                attributes["attempts"] = int(payload.metadata["attempts"])
            inbound.answers.append(Job("ActivityCompleted", attributes))
        elif status == "failed":
            options = self._command_of(job.seq).get("options", {})
            inbound.answers.append(activity_job(job.seq, result.failed.failure, options, self._payloads))
        elif status != "cancelled":  # the run no longer waits for an activity that it has cancelled
            raise TemporalexError(f"the SDK resolved an activity as {status!r}, which temporalex_django does not know")

    def _notify_patch(self, inbound: Inbound, job: Any) -> None:
        if not job.patch_id.startswith(names.RECORD):
            inbound.patches.append(job.patch_id)
            return
        inbound.record = DeliveryRecord.from_data(json.loads(job.patch_id.removeprefix(names.RECORD).partition(":")[2]))

    def _resolve_child_start(self, inbound: Inbound, job: Any) -> None:
        if job.WhichOneof("status") != "failed":
            return
        child, failed = self._command_of(job.seq), job.failed
        kind, message = "ChildStartFailed", f"the child {failed.workflow_id!r} could not be started"
        if failed.cause == _IS_KNOWN_ID:
            kind, message = "AlreadyRunning", f"{child['workflow']} {failed.workflow_id!r} is open already"
        inbound.answers.append(Job("ChildFailed", {"seq": job.seq, "type": kind, "message": message}))

    def _resolve_child(self, inbound: Inbound, job: Any) -> None:
        status = job.result.WhichOneof("status")
        if status == "completed":
            payload = job.result.completed.result
            result = self._payloads.decode(payload) if payload.metadata else None
            inbound.answers.append(Job("ChildCompleted", {"seq": job.seq, "result": result}))
        else:
            inbound.answers.append(child_job(job.seq, getattr(job.result, status).failure, self._payloads))

    def _resolve_external(self, inbound: Inbound, job: Any) -> None:
        if not job.HasField("failure"):
            inbound.answers.append(Job(DELIVERED, {"seq": job.seq}))
            return
        message = f"no open run has the id {self._command_of(job.seq).get('id')!r}"
        inbound.answers.append(Job("ExternalFailed", {"seq": job.seq, "type": "WorkflowNotFound", "message": message}))

    def _update(self, inbound: Inbound, job: Any) -> None:
        inbound.protocol_ids[job.id] = job.protocol_instance_id
        size = sum(len(payload.data) for payload in job.input)
        if job.run_validator and size > codec.MAX_BYTES:
            error = PayloadError(
                f"the arguments of update {job.name!r} have {size:,} bytes, more than the {codec.MAX_BYTES:,} allowed"
            )
            if size <= _MOST_ECHOED:
                inbound.refused_updates.append((job.id, error))
            else:
                logger.warning("%s; it gets no answer, so the server rejects it", error)
            return
        marks = {**self._origin(job.headers), **({} if job.run_validator else {"accepted": True})}
        payload = self._single(job.input)
        if job.name == names.RESUME:
            inbound.messages.append(Job(REQUESTED, {"id": job.id, "request": payload, **marks}))
        else:
            update = {"id": job.id, "name": job.name, "args": payload, "after": None}
            inbound.messages.append(Job("UpdateRequested", {**update, **marks}))

    # -- payloads -----------------------------------------------------------------------------------------------------

    def _single(self, payloads: Any) -> Any:
        """Return the payload of a message, which the SDK has as a list: its only item, None if it is empty, or all."""
        values = [*map(self._payloads.decode, payloads)]
        return values[0] if len(values) == 1 else (values or None)

    def _origin(self, headers: Mapping[str, Payload]) -> dict[str, Any]:
        header_names = {"sender": names.SENDER, "headers": names.HEADERS}
        return {key: self._payloads.decode(headers[name]) for key, name in header_names.items() if name in headers}

    #: The method that reads a job, by the variant of the job. A removal from the cache is no job for a run.
    readers: ClassVar[Mapping[str, Callable[[ActivationReader, Inbound, Any], None]]] = {
        "initialize_workflow": _initialize,
        "fire_timer": _fire_timer,
        "update_random_seed": _update_seed,
        "query_workflow": _query,
        "cancel_workflow": _cancel,
        "signal_workflow": _signal,
        "resolve_activity": _resolve_activity,
        "notify_has_patch": _notify_patch,
        "resolve_child_workflow_execution_start": _resolve_child_start,
        "resolve_child_workflow_execution": _resolve_child,
        "resolve_signal_external_workflow": _resolve_external,
        "resolve_request_cancel_external_workflow": _resolve_external,
        "do_update": _update,
    }
