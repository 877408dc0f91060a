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
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import StepRef, events_of, from_outside, is_step, key_of, name_of
from temporalex_django.graph.values import frozen

#: Nothing is left to do.
NONE = {"active": 0, "waiting": 0, "requested": 0}


def advance(instance: Instance, *, now: datetime | None = None) -> Instance:
    """Begin a pending instance; complete one in which nothing is left to do. Any other comes back unchanged."""
    if instance.status == "pending":
        begun = instance.changed(status="running", telemetry_start_time=now)
        return request(begun, [instance.graph.initial])[0]
    if instance.closed or instance.live:
        return instance
    return instance.changed(status="completed")


def execute_step(instance: Instance, step: StepRef) -> Any:
    """Call the step with instance, its config and the context; its result as it is."""
    if not is_step(step):
        raise WorkflowDefinitionError(f"{instance.id}: {step!r} is not a step: it has no execute")
    made = step() if isinstance(step, type) else step
    return made.execute(instance, instance.config_of(step) if step in instance.graph.number else None, instance.context)


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
    number = _number(instance, step)
    if instance.closed or instance.completed >> number & 1:
        return instance
    if not (instance.active | instance.waiting) >> number & 1:
        raise TemporalexError(
            f"{instance.id}: step {name_of(step)} is not in progress (in progress: {_shown(instance)})"
        )
    event = declared(instance, step, event)
    what = f"{instance.id}: the data of step {name_of(step)}"
    kept, more = ({}, 2) if data is None else payloads.to_plain_with_size(data, label=what, limit=limit)
    size = instance.size + more
    if size > limit:
        raise PayloadError(
            f"{instance.id}: with the data of step {name_of(step)} the context is {size:,} bytes, more than the {limit:,} allowed: "
            "store it and pass its key"
        )
    entry = ExecutionEntry(step, event, now, frozen(kept))
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
        changes["runtime_metadata"] = frozen({**instance.runtime_metadata, **metadata})
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
    number = _number(instance, step)
    if instance.closed:
        return instance, [], ()
    if not instance.completed >> number & 1:
        raise TemporalexError(f"{instance.id}: step {name_of(step)} has not completed, so nothing follows on it yet")
    targets = chosen(instance, step, event)
    instance, begun = request(instance, targets)
    # those that waited for this step; what does not depend on it is as ready as it was before
    for i in bits(instance.requested & instance.graph.after[number]):
        if not instance.graph.before[i] & instance.live:
            instance = instance.changed(requested=instance.requested & ~(1 << i), active=instance.active | 1 << i)
            begun.append(i)
    return _settled(instance), begun, targets


def request(instance: Instance, targets: Sequence[Target]) -> tuple[Instance, list[int]]:
    """Request targets; those that nothing holds up become active at once, in that order."""
    graph, log = instance.graph, instance.log
    fresh = []
    requested = instance.requested
    for target in targets:
        number = graph.number[target.step]
        if (instance.active | instance.waiting | instance.completed) >> number & 1:
            continue
        if target.config is not None or not requested >> number & 1:
            log = log.with_config(instance.count, number, target.config)
        requested |= 1 << number
        fresh.append(number)
    live = instance.active | instance.waiting | requested
    begun = [number for number in dict.fromkeys(fresh) if not graph.before[number] & live]
    active = 0
    for number in begun:
        active |= 1 << number
    changed = instance.changed(log=log, requested=requested & ~active, active=instance.active | active)
    return changed, begun


def wait_step(instance: Instance, step: StepRef) -> Instance:
    """The step will emit its event later: a resume brings it.

    The instance waits when nothing else is to be executed.
    """
    number = _number(instance, step)
    if instance.closed or instance.waiting >> number & 1:
        return instance
    if not instance.active >> number & 1:
        raise TemporalexError(f"{instance.id}: step {name_of(step)} is not active, so it cannot wait")
    bit = 1 << number
    return _settled(instance.changed(active=instance.active & ~bit, waiting=instance.waiting | bit))


def resume_step(
    instance: Instance,
    step: StepRef,
    event: str,
    data: Any = None,
    *,
    now: datetime | None = None,
) -> Instance:
    """A step that waits emits ``event``. Raises ``ResumeRefused`` when it does not wait or has no such event."""
    number = _number(instance, step)
    if not instance.waiting >> number & 1:
        raise ResumeRefused(
            f"{instance.id}: step {name_of(step)} does not wait (waiting: {_names(instance, instance.waiting)})"
        )
    if event not in events_of(step):
        raise ResumeRefused(
            f"{instance.id}: step {name_of(step)} has no event {event!r} (it has: {', '.join(events_of(step))})"
        )
    return activate_transitions(complete_step(instance, step, event, data, now=now), step, event)


def fail_step(instance: Instance, step: StepRef, reason: Any, *, now: datetime | None = None) -> Instance:
    """The step, and with it the instance, has failed: nothing is active any more."""
    _number(instance, step)
    if instance.closed:
        return instance
    return instance.changed(status="failed", failed_step=step, reason=reason, **NONE)


def cancel(instance: Instance) -> Instance:
    """Cancelled at once; a closed instance stays as it is."""
    if instance.closed:
        return instance
    return instance.changed(status="cancelled", **NONE)


def resumed_by(instance: Instance, event: str, step: StepRef | str | None = None) -> StepRef:
    """The one waiting step that ``event`` is for. ``step`` is a step or a key. Raises ``ResumeRefused``.

    The event of its timer is for none, unless it says so: that comes by itself.
    """
    matching = [ref for ref in instance.graph.refs(instance.waiting) if event in from_outside(ref)]
    if step is not None:
        key = step if isinstance(step, str) else key_of(step)
        matching = [ref for ref in matching if key_of(ref) == key]
    if len(matching) == 1:
        return matching[0]
    of = f" of step {step if isinstance(step, str) else name_of(step)}" if step is not None else ""
    if matching:
        several = ", ".join(name_of(ref) for ref in matching)
        raise ResumeRefused(
            f"{instance.id}: several steps wait for the event {event!r}: {several}; name one with step="
        )
    waits = "; ".join(
        f"{name_of(ref)}: {', '.join(from_outside(ref)) or 'its time'}" for ref in instance.graph.refs(instance.waiting)
    )
    raise ResumeRefused(f"{instance.id}: no step waits for the event {event!r}{of} (waiting: {waits or 'no step'})")


def declared(instance: Instance, step: StepRef, event: str) -> str:
    """The event, as a plain string. Raises ``TemporalexError`` for one that the step does not declare."""
    event = str.__str__(event) if isinstance(event, str) else event
    if (step, event) not in instance.graph.clauses and event not in events_of(step):
        raise TemporalexError(
            f"{instance.id}: step {name_of(step)} emitted {event!r}, which it does not declare "
            f"(it declares: {', '.join(events_of(step)) or 'nothing'})"
        )
    return event


def chosen(instance: Instance, step: StepRef, event: str) -> tuple[Target, ...]:
    """Where the workflow goes from here; a dynamic clause decides by the context."""
    clause = instance.graph.clauses.get((step, str.__str__(event)))
    if clause is None:
        return ()
    if clause.route is None:
        return clause.targets
    where = f"{instance.id}: the transition of {name_of(step)} on {event!r}"
    value = Context().run(clause.route, instance.context)  # whoever follows the graph, now or from its history
    try:
        found = targets_of(value)
    except ValueError as exc:
        raise TemporalexError(f"{where} chose what cannot be a target: {exc}") from None
    allowed = [target.step for target in clause.targets]
    for target in found:
        if target.step not in allowed:
            names = ", ".join(name_of(ref) for ref in allowed)
            raise TemporalexError(f"{where} chose {name_of(target.step)}, which it does not declare (targets: {names})")
    if len(found) > 1 and instance.graph.around([target.step for target in found]):
        raise TemporalexError(f"{where} fans out to branches that do not all meet before Done")
    what = f"{where}: the config of"
    return tuple(Target(t.step, payloads.to_plain(t.config, label=f"{what} {name_of(t.step)}")) for t in found)


def _settled(instance: Instance) -> Instance:
    """Waiting means: something waits and nothing is to be executed."""
    if instance.closed or instance.status == "pending":
        return instance
    status = "waiting" if instance.waiting and not instance.active else "running"
    return instance if instance.status == status else instance.changed(status=status)


def _number(instance: Instance, step: StepRef) -> int:
    number = instance.graph.number.get(step)
    if number is None:
        raise TemporalexError(f"{instance.id}: {name_of(step)} is no step of {instance.workflow.__name__}")
    return number


def _names(instance: Instance, mask: int) -> str:
    return ", ".join(name_of(ref) for ref in instance.graph.refs(mask)) or "no step"


def _shown(instance: Instance) -> str:
    return _names(instance, instance.active | instance.waiting)


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
