"""The pure engine: each function takes an instance and gives a new one. No storage, no clock, no I/O.

    instance = engine.advance(Instance.new(id="orderid::42", workflow=OrderFlow, initial={"order": 42}), now=now)
    result = engine.execute_step(instance, ValidateOrder)            # Event("valid", {"total": 12})
    instance = engine.complete_step(instance, ValidateOrder, "valid", {"total": 12}, now=now)
    instance = engine.activate_transitions(instance, ValidateOrder, "valid")

Joins: a target is *requested* by a transition and becomes active when nothing that leads to it is active, waiting or
requested any more. So branches that were never taken hold nobody up. That the test is one ``and`` rests on this:
whatever leads to a step that has begun has ended for good, since a step becomes live only through one that leads to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Context
from datetime import datetime
from typing import Any

from temporalex_django.core import payloads
from temporalex_django.errors import PayloadError, ResumeRefused, TemporalexError, WorkflowDefinitionError
from temporalex_django.graph.context import ExecutionEntry
from temporalex_django.graph.definition.structure import bits
from temporalex_django.graph.definition.transitions import Target, targets_of
from temporalex_django.graph.frozen_data import freeze
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import StepRef, events_of, external_events, is_step, key_of, name_of

#: Nothing is left to do.
NO_STEPS = {"active": 0, "waiting": 0, "requested": 0}


def advance(instance: Instance, *, now: datetime | None = None) -> Instance:
    """Begin a pending instance; complete one in which nothing is left to do. Any other comes back unchanged."""
    if instance.status == "pending":
        running_instance = instance.changed(status="running", telemetry_start_time=now)
        return request_targets(running_instance, [instance.graph.initial])[0]
    if instance.closed or instance.live:
        return instance
    return instance.changed(status="completed")


def execute_step(instance: Instance, step: StepRef) -> Any:
    """Call the step with instance, its config and the context; its result as it is."""
    if not is_step(step):
        raise WorkflowDefinitionError(f"{instance.id}: {step!r} is not a step: it has no execute")
    step_instance = step() if isinstance(step, type) else step
    return step_instance.execute(
        instance, instance.config_of(step) if step in instance.graph.number else None, instance.context
    )


def complete_step(
    instance: Instance,
    step: StepRef,
    event: str,
    data: Any = None,
    *,
    now: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    limit: int = payloads.MAX_BYTES,
) -> Instance:
    """The step has emitted ``event``: its data goes into the context, its entry into the execution history.

    A step that has ended, and a closed instance, stay as they are (late and double deliveries). Raises
    ``TemporalexError`` for a step that is not in progress or has no such event, ``PayloadError`` for data that cannot
    be kept, or that makes the whole context larger than ``limit`` bytes.
    """
    number = _step_number(instance, step)
    if instance.closed or instance.completed >> number & 1:
        return instance
    if not (instance.active | instance.waiting) >> number & 1:
        raise TemporalexError(
            f"{instance.id}: step {name_of(step)} is not in progress (in progress: {_names_in_progress(instance)})"
        )
    event = require_declared(instance, step, event)
    label = f"{instance.id}: the data of step {name_of(step)}"
    plain_data, data_size = ({}, 2) if data is None else payloads.to_plain_with_size(data, label=label, limit=limit)
    size = instance.size + data_size
    if size > limit:
        raise PayloadError(
            f"{instance.id}: with the data of step {name_of(step)} the context is {size:,} bytes, more than the {limit:,} allowed: "
            "store it and pass its key"
        )
    entry = ExecutionEntry(step, event, now, freeze(plain_data))
    bit = 1 << number
    changes: dict[str, Any] = {
        "active": instance.active & ~bit,
        "waiting": instance.waiting & ~bit,
        "completed": instance.completed | bit,
        "log": instance.log.with_entry(instance.count, instance.graph.keys[number], entry),
        "count": instance.count + 1,
        "size": size,
        "status": "running",
    }
    if metadata:
        changes["runtime_metadata"] = freeze({**instance.runtime_metadata, **metadata})
    return instance.changed(**changes)


def activate_transitions(instance: Instance, step: StepRef, event: str) -> Instance:
    """Activate what follows on ``event`` of a completed step, and what waited for it alone.

    Raises what a dynamic transition raises, and ``TemporalexError`` when it chooses what it did not declare.
    """
    return follow(instance, step, event)[0]


def follow(instance: Instance, step: StepRef, event: str) -> tuple[Instance, list[int], Sequence[Target]]:
    """``activate_transitions``, with the numbers of the steps that became active and the targets.

    The numbers are in the order in which the steps start.
    """
    number = _step_number(instance, step)
    if instance.closed:
        return instance, [], ()
    if not instance.completed >> number & 1:
        raise TemporalexError(f"{instance.id}: step {name_of(step)} has not completed, so nothing follows on it yet")
    targets = choose_targets(instance, step, event)
    instance, active_numbers = request_targets(instance, targets)
    # those that waited for this step; what does not depend on it is as ready as it was before
    for i in bits(instance.requested & instance.graph.after[number]):
        if not instance.graph.before[i] & instance.live:
            instance = instance.changed(requested=instance.requested & ~(1 << i), active=instance.active | 1 << i)
            active_numbers.append(i)
    return _update_status(instance), active_numbers, targets


def request_targets(instance: Instance, targets: Sequence[Target]) -> tuple[Instance, list[int]]:
    """Request targets; those that nothing holds up become active at once, in that order."""
    graph, log = instance.graph, instance.log
    new_numbers = []
    requested = instance.requested
    for target in targets:
        number = graph.number[target.step]
        if (instance.active | instance.waiting | instance.completed) >> number & 1:
            continue
        if target.config is not None or not requested >> number & 1:
            log = log.with_config(instance.count, number, target.config)
        requested |= 1 << number
        new_numbers.append(number)
    live = instance.active | instance.waiting | requested
    active_numbers = [number for number in dict.fromkeys(new_numbers) if not graph.before[number] & live]
    active = 0
    for number in active_numbers:
        active |= 1 << number
    new_instance = instance.changed(log=log, requested=requested & ~active, active=instance.active | active)
    return new_instance, active_numbers


def wait_step(instance: Instance, step: StepRef) -> Instance:
    """The step will emit its event later: a resume brings it.

    The instance waits when nothing else is to be executed.
    """
    number = _step_number(instance, step)
    if instance.closed or instance.waiting >> number & 1:
        return instance
    if not instance.active >> number & 1:
        raise TemporalexError(f"{instance.id}: step {name_of(step)} is not active, so it cannot wait")
    bit = 1 << number
    return _update_status(instance.changed(active=instance.active & ~bit, waiting=instance.waiting | bit))


def resume_step(
    instance: Instance,
    step: StepRef,
    event: str,
    data: Any = None,
    *,
    now: datetime | None = None,
) -> Instance:
    """A step that waits emits ``event``. Raises ``ResumeRefused`` when it does not wait or has no such event."""
    number = _step_number(instance, step)
    if not instance.waiting >> number & 1:
        raise ResumeRefused(
            f"{instance.id}: step {name_of(step)} does not wait (waiting: {_step_names(instance, instance.waiting)})"
        )
    if event not in events_of(step):
        raise ResumeRefused(
            f"{instance.id}: step {name_of(step)} has no event {event!r} (it has: {', '.join(events_of(step))})"
        )
    return activate_transitions(complete_step(instance, step, event, data, now=now), step, event)


def fail_step(instance: Instance, step: StepRef, reason: Any, *, now: datetime | None = None) -> Instance:
    """The step, and with it the instance, has failed: nothing is active any more."""
    _step_number(instance, step)
    if instance.closed:
        return instance
    return instance.changed(status="failed", failed_step=step, reason=reason, **NO_STEPS)


def cancel(instance: Instance) -> Instance:
    """Cancelled at once; a closed instance stays as it is."""
    if instance.closed:
        return instance
    return instance.changed(status="cancelled", **NO_STEPS)


def resumed_by(instance: Instance, event: str, step: StepRef | str | None = None) -> StepRef:
    """The one waiting step that ``event`` is for. ``step`` is a step or a key. Raises ``ResumeRefused``.

    The event of its timer is for none, unless it says so: that comes by itself.
    """
    matching = [ref for ref in instance.graph.refs(instance.waiting) if event in external_events(ref)]
    if step is not None:
        key = step if isinstance(step, str) else key_of(step)
        matching = [ref for ref in matching if key_of(ref) == key]
    if len(matching) == 1:
        return matching[0]
    step_text = f" of step {step if isinstance(step, str) else name_of(step)}" if step is not None else ""
    if matching:
        step_names = ", ".join(name_of(ref) for ref in matching)
        raise ResumeRefused(
            f"{instance.id}: several steps wait for the event {event!r}: {step_names}; name one with step="
        )
    waits = "; ".join(
        f"{name_of(ref)}: {', '.join(external_events(ref)) or 'its time'}"
        for ref in instance.graph.refs(instance.waiting)
    )
    raise ResumeRefused(
        f"{instance.id}: no step waits for the event {event!r}{step_text} (waiting: {waits or 'no step'})"
    )


def require_declared(instance: Instance, step: StepRef, event: str) -> str:
    """The event, as a plain string. Raises ``TemporalexError`` for one that the step does not declare."""
    event = str.__str__(event) if isinstance(event, str) else event
    if (step, event) not in instance.graph.clauses and event not in events_of(step):
        raise TemporalexError(
            f"{instance.id}: step {name_of(step)} emitted {event!r}, which it does not declare "
            f"(it declares: {', '.join(events_of(step)) or 'nothing'})"
        )
    return event


def choose_targets(instance: Instance, step: StepRef, event: str) -> tuple[Target, ...]:
    """Where the workflow goes from here; a dynamic clause decides by the context."""
    clause = instance.graph.clauses.get((step, str.__str__(event)))
    if clause is None:
        return ()
    if clause.route is None:
        return clause.targets
    location = f"{instance.id}: the transition of {name_of(step)} on {event!r}"
    value = Context().run(clause.route, instance.context)  # whoever follows the graph, now or from its history
    try:
        targets = targets_of(value)
    except ValueError as exc:
        raise TemporalexError(f"{location} chose what cannot be a target: {exc}") from None
    allowed = [target.step for target in clause.targets]
    for target in targets:
        if target.step not in allowed:
            names = ", ".join(name_of(ref) for ref in allowed)
            raise TemporalexError(
                f"{location} chose {name_of(target.step)}, which it does not declare (targets: {names})"
            )
    if len(targets) > 1 and instance.graph.can_miss_join([target.step for target in targets]):
        raise TemporalexError(f"{location} fans out to branches that do not all meet before Done")
    label = f"{location}: the config of"
    return tuple(Target(t.step, payloads.to_plain(t.config, label=f"{label} {name_of(t.step)}")) for t in targets)


def _update_status(instance: Instance) -> Instance:
    """Waiting means: something waits and nothing is to be executed."""
    if instance.closed or instance.status == "pending":
        return instance
    status = "waiting" if instance.waiting and not instance.active else "running"
    return instance if instance.status == status else instance.changed(status=status)


def _step_number(instance: Instance, step: StepRef) -> int:
    number = instance.graph.number.get(step)
    if number is None:
        raise TemporalexError(f"{instance.id}: {name_of(step)} is no step of {instance.workflow.__name__}")
    return number


def _step_names(instance: Instance, mask: int) -> str:
    return ", ".join(name_of(ref) for ref in instance.graph.refs(mask)) or "no step"


def _names_in_progress(instance: Instance) -> str:
    return _step_names(instance, instance.active | instance.waiting)


__all__ = [
    "activate_transitions",
    "advance",
    "cancel",
    "complete_step",
    "execute_step",
    "fail_step",
    "resume_step",
    "resumed_by",
    "wait_step",
]
