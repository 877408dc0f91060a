"""The events that an activation adds to the history of its run. Every host makes them here, from its completion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any

from temporalex_django.core.history.activation import NO_DELIVERY, Completion, RunInfo
from temporalex_django.core.history.events import DELIVERED, ENGINE_VERSION, FORMAT
from temporalex_django.core.messages.headers import headers_attributes
from temporalex_django.core.typed_dicts import CarriedMessages


def started_attributes(
    info: RunInfo,
    *,
    args: Any,
    seed: int,
    carried: CarriedMessages | None = None,
    snapshot: Mapping[str, Any] | None = None,
    search_attributes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the attributes of the event ``WorkflowStarted`` of a run, which are ``Activation.start``, too.

    ``carried`` are the messages that the previous run of the chain passed on; None if the run continues no other.
    """
    attributes: dict[str, Any] = {
        "workflow": info.workflow,
        "id": info.id,
        "run_id": info.run_id,
        "version": info.version,
        "args": args,
        "seed": seed,
        "engine": ENGINE_VERSION,
        "format": FORMAT,
        "attempt": info.attempt,
        "parent": info.parent,
    }
    if info.scheduled_for is not None:
        attributes["scheduled_for"] = info.scheduled_for.astimezone(UTC).isoformat()
    if carried is not None:
        attributes["carried"] = len(carried["signals"])
        if failed := carried.get("failed"):
            attributes["failed"] = failed
    if snapshot is not None:
        attributes["snapshot"] = snapshot
    if search_attributes:
        attributes["search_attributes"] = search_attributes
    attributes |= headers_attributes(info.headers)
    return attributes


def activation_events(
    completion: Completion, *, start: dict[str, Any] | None, stamp: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(kind, attributes)`` of each event that an activation adds, in the order of the history.

    ``start`` are the attributes of ``WorkflowStarted``, or None for a run that has started. ``stamp`` has the
    attributes of ``ActivationStarted`` that are the host's: its limits, and what it identifies the activation by. The
    attributes of inputs are those of the jobs themselves. Call this for a completion that has ``changed``.
    """
    if start is not None:
        yield "WorkflowStarted", start
    stamp = dict(stamp)
    if delivered_numbers := [job.attributes["seq"] for job in completion.jobs if job.kind == DELIVERED]:
        stamp["delivered"] = delivered_numbers
    delivery = completion.delivery
    if delivery is not NO_DELIVERY:
        stamp |= delivery.stamp()
    yield "ActivationStarted", stamp
    for job in completion.jobs:
        if job.kind != DELIVERED:
            yield job.kind, job.attributes
    # From the record and not from ``completion.failed``, which is empty in a replay.
    for failed in delivery.failed.values():
        yield "SignalFailed", dict(failed)
    for command in completion.commands:
        yield command.event_kind, command.event_attributes()
