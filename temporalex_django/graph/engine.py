"""The pure engine: each function takes an instance and returns a new one. No storage, no clock, no I/O.

    instance = engine.advance(Instance.new(id="orderid::42", workflow=OrderFlow, initial={"order": 42}), now=now)
    result = engine.execute_step(instance, ValidateOrder)            # Event("valid", {"total": 12})
    instance = engine.complete_step(instance, ValidateOrder, "valid", {"total": 12}, now=now)
    instance = engine.activate_transitions(instance, ValidateOrder, "valid")

Joins: a transition *requests* a target. The target becomes active when nothing that leads to it is active, waiting or
requested any more. So branches that were never taken delay no join.

The test for this is one ``and`` of bit masks. That is enough because of one fact: whatever leads to a step that has
started has ended for good. A step becomes live only through a step that leads to it.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalex_django.core import names
from temporalex_django.core.determinism import guard
from temporalex_django.core.failures import refusal_reason
from temporalex_django.core.messages.phase import accepts_arguments
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.results import Err, Ok
from temporalex_django.errors import (
    PayloadError,
    ResumeRefused,
    TemporalexError,
    UpdateRejected,
    WorkflowDefinitionError,
)
from temporalex_django.graph.context import ExecutionEntry, freeze
from temporalex_django.graph.definition import Target, bits, targets_of
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import StepRef, events_of, external_events, is_step, key_of, name_of

if TYPE_CHECKING:
    from temporalex_django.graph.context import Context

#: The masks of an instance in which no step is left to do.
NO_STEPS = {"active": 0, "waiting": 0, "requested": 0}


def advance(instance: Instance, *, now: datetime | None = None) -> Instance:
    """Start a pending instance at the time ``now``, or complete one in which nothing is left to do.

    Any other instance is returned unchanged.
    """
    if instance.status == "pending":
        running_instance = instance.changed(status="running", telemetry_start_time=now)
        return request_targets(running_instance, [instance.graph.initial])[0]
    if instance.closed or instance.live:
        return instance
    return instance.changed(status="completed")


def execute_step(instance: Instance, step: StepRef) -> Any:
    """Call ``execute`` of the step with the instance, its config and the context. Return the result unchanged.

    Raises ``WorkflowDefinitionError`` for a value that is not a step.
    """
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
    limit: int = codec.MAX_BYTES,
) -> Instance:
    """Record that a step has emitted ``event``, with its data in the context and an entry in the execution history.

    ``now`` is the time of the entry. ``metadata`` is merged into the ``runtime_metadata`` of the instance. The instance
    is returned unchanged if it is closed or the step has ended, because results may be late or delivered twice. Raises
    ``TemporalexError`` if the step has not started or has no such event. Raises ``PayloadError`` for data that cannot
    be stored, or that makes the whole context larger than ``limit`` bytes.
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
    plain_data, data_size = ({}, 2) if data is None else codec.to_plain_with_size(data, label=label, limit=limit)
    size = instance.size + data_size
    if size > limit:
        raise PayloadError(
            f"{instance.id}: with the data of step {name_of(step)} the context is {size:,} bytes, "
            f"more than the {limit:,} allowed: store it and pass its key"
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
    """Activate the steps that follow on ``event`` of a completed step, and the joins that waited for this step alone.

    Raises the errors of a dynamic transition, and ``TemporalexError`` when one chooses a target that it did not
    declare.
    """
    return follow(instance, step, event)[0]


def follow(instance: Instance, step: StepRef, event: str) -> tuple[Instance, list[int], Sequence[Target]]:
    """Activate the steps that follow on ``event`` of a completed step, and the joins that waited for this step alone.

    Returns ``(new instance, numbers of the activated steps, targets of the event)``; the numbers are in the order in
    which the steps start. Raises the errors of a dynamic transition, and ``TemporalexError`` for a step that has not
    completed.
    """
    number = _step_number(instance, step)
    if instance.closed:
        return instance, [], ()
    if not instance.completed >> number & 1:
        raise TemporalexError(f"{instance.id}: step {name_of(step)} has not completed, so nothing follows it yet")
    targets = choose_targets(instance, step, event)
    instance, active_numbers = request_targets(instance, targets)
    # Look only at requested steps behind this one: the others do not depend on it. See decision 32.
    for i in bits(instance.requested & instance.graph.after[number]):
        if not instance.graph.before[i] & instance.live:
            instance = instance.changed(requested=instance.requested & ~(1 << i), active=instance.active | 1 << i)
            active_numbers.append(i)
    return _update_status(instance), active_numbers, targets


def request_targets(instance: Instance, targets: Sequence[Target]) -> tuple[Instance, list[int]]:
    """Mark the targets of an event as requested, and activate those to which no unfinished step leads any more.

    Returns ``(new instance, numbers of the activated steps)``, with the numbers in the order of ``targets``. The other
    targets stay requested: they are joins that wait for steps before them. A target that has started before is skipped.
    """
    graph, log = instance.graph, instance.log
    new_numbers = []
    requested = instance.requested
    for target in targets:
        number = graph.number[target.step]
        # Several paths may lead here; a step runs once.
        if (instance.active | instance.waiting | instance.completed) >> number & 1:
            continue
        # A path without a config must not remove the config that an earlier path gave.
        if target.config is not None or not requested >> number & 1:
            log = log.with_config(instance.count, number, target.config)
        requested |= 1 << number
        new_numbers.append(number)
    # Collect all targets of the event first: one of them may lead to another, which then has to wait for it.
    live = instance.active | instance.waiting | requested
    active_numbers = [number for number in dict.fromkeys(new_numbers) if not graph.before[number] & live]
    active = 0
    for number in active_numbers:
        active |= 1 << number
    new_instance = instance.changed(log=log, requested=requested & ~active, active=instance.active | active)
    return new_instance, active_numbers


def wait_step(instance: Instance, step: StepRef) -> Instance:
    """Let an active step wait for an event from outside (see ``resume_step``).

    The instance has the status ``waiting`` when no other step is active.
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
    """Let a waiting step emit ``event`` with ``data`` at the time ``now``, and activate what follows.

    Raises ``ResumeRefused`` if the step does not wait or has no such event.
    """
    number = _step_number(instance, step)
    if not instance.waiting >> number & 1:
        raise ResumeRefused(
            f"{instance.id}: step {name_of(step)} is not waiting (waiting: {_step_names(instance, instance.waiting)})"
        )
    if event not in events_of(step):
        raise ResumeRefused(
            f"{instance.id}: step {name_of(step)} has no event {event!r} (it has: {', '.join(events_of(step))})"
        )
    return activate_transitions(complete_step(instance, step, event, data, now=now), step, event)


def fail_step(instance: Instance, step: StepRef, reason: Any, *, now: datetime | None = None) -> Instance:
    """Return the instance as failed, because ``step`` failed for ``reason``; no step is active afterwards.

    A closed instance is returned unchanged. ``now`` has no effect. Raises ``TemporalexError`` if ``step`` is not a step
    of the graph.
    """
    _step_number(instance, step)
    if instance.closed:
        return instance
    return instance.changed(status="failed", failed_step=step, reason=reason, **NO_STEPS)


def cancel(instance: Instance) -> Instance:
    """Cancel the instance at once. A closed instance is returned unchanged."""
    if instance.closed:
        return instance
    return instance.changed(status="cancelled", **NO_STEPS)


def resumed_by(instance: Instance, event: str, step: StepRef | str | None = None) -> StepRef:
    """Return the one waiting step of the instance that takes ``event`` from outside.

    ``step`` (a step or a key) selects the step if several wait for the event. The event of a step's timer comes by
    itself, so it can be sent only to a step that allows it (``outside``). Raises ``ResumeRefused`` if no step or
    several steps match.
    """
    matching = [ref for ref in instance.graph.refs(instance.waiting) if event in external_events(ref)]
    if step is not None:
        key = step if isinstance(step, str) else key_of(step)
        matching = [ref for ref in matching if key_of(ref) == key]
    if len(matching) == 1:
        return matching[0]
    step_text = ""
    if step is not None:
        step_text = f" of step {step if isinstance(step, str) else name_of(step)}"
    if matching:
        step_names = ", ".join(name_of(ref) for ref in matching)
        raise ResumeRefused(
            f"{instance.id}: several steps are waiting for the event {event!r}: {step_names}; name one with step="
        )
    waits = "; ".join(
        f"{name_of(ref)}: {', '.join(external_events(ref)) or 'its timer'}"
        for ref in instance.graph.refs(instance.waiting)
    )
    raise ResumeRefused(
        f"{instance.id}: no step is waiting for the event {event!r}{step_text} (waiting: {waits or 'no step'})"
    )


def require_declared(instance: Instance, step: StepRef, event: str) -> str:
    """Return ``event``, which may be a member of an Enum, as a plain string, if the step declares it.

    Raises ``TemporalexError`` for an event that the step does not declare.
    """
    # A member of an Enum compares with plain names and hashes differently, so look-ups need the plain string.
    if isinstance(event, str):
        event = str.__str__(event)
    if (step, event) not in instance.graph.clauses and event not in events_of(step):
        raise TemporalexError(
            f"{instance.id}: step {name_of(step)} emitted {event!r}, which it does not declare "
            f"(it declares: {', '.join(events_of(step)) or 'nothing'})"
        )
    return event


def choose_targets(instance: Instance, step: StepRef, event: str) -> tuple[Target, ...]:
    """Return the targets that follow when the step emits ``event``; a dynamic transition chooses them by the context.

    The result is empty if no transition starts from the event. Raises the errors of the user's function, and
    ``TemporalexError`` for targets that it may not choose.
    """
    clause = instance.graph.clauses.get((step, str.__str__(event)))
    if clause is None:
        return ()
    if clause.route is None:
        return clause.targets
    location = f"{instance.id}: the transition of {name_of(step)} on {event!r}"
    # An empty contextvars.Context, so that the choice is the same in a worker, in a replay and in a request.
    value = contextvars.Context().run(clause.route, instance.context)
    try:
        targets = targets_of(value)
    except ValueError as exc:
        raise TemporalexError(f"{location} chose an invalid target: {exc}") from None
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
    return tuple(Target(t.step, codec.to_plain(t.config, label=f"{label} {name_of(t.step)}")) for t in targets)


def _update_status(instance: Instance) -> Instance:
    """Set ``waiting`` if a step waits and none is active, else ``running``, on an open instance that has begun."""
    if instance.closed or instance.status == "pending":
        return instance
    status = "waiting" if instance.waiting and not instance.active else "running"
    if instance.status == status:
        return instance
    return instance.changed(status=status)


def _step_number(instance: Instance, step: StepRef) -> int:
    """Raise ``TemporalexError`` for a step of another graph."""
    number = instance.graph.number.get(step)
    if number is None:
        raise TemporalexError(f"{instance.id}: {name_of(step)} is not a step of {instance.workflow.__name__}")
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


# --- events -----------------------------------------------------------------------------------------------------------
#
# ``event(...)``: an event of a step, with the type of its data, a permission and a validator.
#
# An event is a string, so it can be used wherever a plain name can.


Validator = Callable[[Any, "Context"], Any]


class DeclaredEvent(str):
    """The name of an event, with the other arguments of ``event`` as attributes. It is equal to the plain name."""

    __slots__ = ("data_type", "permission", "validator")

    data_type: Any
    permission: str | None
    validator: Validator | None


def event(
    name: str, *, data: Any = Any, validator: Validator | None = None, permission: str | None = None
) -> DeclaredEvent:
    """Return the event ``name`` of a step, for ``events`` of a step and for ``WaitForEvent``.

    - ``data`` is the type of the data: a dataclass, TypedDict or msgspec type. Data that do not fit are refused. For
      ``resume`` this happens where it is called, with ``PayloadError``.
    - ``validator(data, context)`` checks a ``resume`` before it counts. It accepts by returning ``None`` or
      ``Ok(...)``. It refuses by returning ``Err(reason)`` or by raising. The sender then gets ``UpdateRejected`` with
      the ``reason``.
    - ``permission`` (``app.codename``) is the permission that a person needs to send the event, instead of the
      permission to signal runs. Code needs none.

    Raises ``WorkflowDefinitionError``.
    """
    names.check_code_name(name, label="event")
    if validator is not None and not (callable(validator) and accepts_arguments(validator, 2)):
        raise WorkflowDefinitionError(f"event {name!r}: the validator must be callable as (data, context)")
    if permission is not None and not names.is_permission(permission):
        raise WorkflowDefinitionError(
            f"event {name!r}: permission must be of the form app.codename, not {permission!r}"
        )
    declared_event = DeclaredEvent(name)
    declared_event.data_type, declared_event.validator, declared_event.permission = data, validator, permission
    return declared_event


def find_declared_event(step: StepRef, name: str) -> DeclaredEvent | None:
    """Return the step's declaration of an event; None for an event that is a plain name."""
    return next(
        (step_event for step_event in step.events if isinstance(step_event, DeclaredEvent) and step_event == name), None
    )


def validate_event_data(declared: DeclaredEvent, data: Any, context: Context) -> None:
    """Check the data of an event that somebody sends, against its type and by its validator.

    ``data`` is plain data. The validator also gets ``context``, the context of the graph. Raises ``PayloadError`` if
    the type does not fit, and ``UpdateRejected`` if the validator refuses.
    """
    typed_data = codec.convert(
        deep_copy(data), declared.data_type, label=f"the data of the event {str.__str__(declared)!r}"
    )
    if declared.validator is None:
        return
    # Validators are workflow code: no clock, no randomness, no outside world (see decision 18).
    guard.watch(declared.validator)
    try:
        verdict = declared.validator(typed_data, context)
    except (MemoryError, RecursionError):
        raise
    except Exception as exc:
        reason = refusal_reason(exc)
        raise UpdateRejected(reason, reason=reason) from exc
    if verdict is None or isinstance(verdict, Ok):
        return
    if isinstance(verdict, Err):
        refusal = verdict.reason
        raise UpdateRejected(
            refusal if isinstance(refusal, str) and refusal else repr(refusal), reason=_plain_reason(refusal)
        )
    # Close it, or Python warns that it was never awaited.
    if inspect.iscoroutine(verdict):
        verdict.close()
    raise UpdateRejected(
        f"the validator of the event {str.__str__(declared)!r} returned {verdict!r}; it must return None, Ok(...) or "
        "Err(reason), and not be async"
    )


def _plain_reason(reason: Any) -> Any:
    """Return plain data, or the ``repr`` if the reason cannot be encoded."""
    try:
        return codec.to_plain(reason, label="the reason of a validator")
    except PayloadError:
        return repr(reason)
