"""A history, split into the activations that wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from temporalex_django.core.history import kinds
from temporalex_django.core.history.activation import NO_DELIVERY, Activation, DeliveryRecord
from temporalex_django.core.history.attributes import (
    ActivationStartedAttributes,
    SignalFailedAttributes,
    WorkflowStartedAttributes,
)
from temporalex_django.core.history.events import (
    DELIVERED,
    INPUTS,
    SUGGEST_CONTINUE_AS_NEW,
    HistoryEvent,
    Job,
    is_external_close,
)


@dataclass(slots=True)
class RecordedActivation:
    """One past activation: its input, and its ``outputs``, the events of its commands in order."""

    activation: Activation
    outputs: list[HistoryEvent] = field(default_factory=list)


def split_activations(events: Sequence[HistoryEvent]) -> Iterator[RecordedActivation]:
    """Group ``events``, which begin at an activation boundary, into the activations that the executor takes."""
    group: list[HistoryEvent] = []
    for event in events:
        if is_external_close(event.kind, event.attributes):
            continue
        if group and event.activation != group[0].activation:
            yield _build_activation(group)
            group = []
        group.append(event)
    # A run that was closed before its first turn has a start, but no activation.
    if group and not (len(group) == 1 and group[0].kind == "WorkflowStarted"):
        yield _build_activation(group)


def _build_activation(group: Sequence[HistoryEvent]) -> RecordedActivation:
    start: WorkflowStartedAttributes | None = None
    stamp: ActivationStartedAttributes = {"head": 0}  # until that of the activation is read
    jobs: list[Job] = []
    outputs: list[HistoryEvent] = []
    failed: dict[int, SignalFailedAttributes] = {}
    for event in group:
        match event.kind:
            case "WorkflowStarted":
                start = kinds.WORKFLOW_STARTED.read(event)
            case "ActivationStarted":
                stamp = kinds.ACTIVATION_STARTED.read(event)
                jobs.extend(Job(DELIVERED, {"seq": number}) for number in stamp.get("delivered", ()))
            case "SignalFailed":
                failure = kinds.SIGNAL_FAILED.read(event)
                failed[failure["number"]] = failure
            case kind if kind in INPUTS:
                jobs.append(Job(kind, event.attributes))
            case _:
                outputs.append(event)
    length = group[0].number - 1
    activation = Activation(
        now=group[0].at,
        jobs=tuple(jobs),
        start=start,
        history_length=length,
        suggests_continue_as_new=length >= SUGGEST_CONTINUE_AS_NEW,
        seed=stamp.get("seed"),
        replaying=True,
        copied=stamp.get("copied"),
        admit_updates=stamp.get("admit_updates", False),
        max_pending=stamp.get("max_pending"),
        delivery=_delivery_record(stamp, failed),
    )
    return RecordedActivation(activation, outputs)


def _delivery_record(stamp: ActivationStartedAttributes, failed: dict[int, SignalFailedAttributes]) -> DeliveryRecord:
    """Return the delivery record of an activation. ``failed`` has its failed signals."""
    refused, dispatched = stamp.get("refused", ()), stamp.get("dispatched")
    if not refused and not failed and dispatched is None:
        return NO_DELIVERY
    return DeliveryRecord(refused=tuple(refused), failed=failed, dispatched=dispatched)
