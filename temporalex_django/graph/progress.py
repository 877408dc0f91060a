"""The progress of an instance: the results of its steps are recorded, and the steps that follow are activated.

All changes of an instance go through here. The durable run, the projection of a history and the local runner pass the
same results, so they get the same instance. This module has no clock and starts nothing itself: it returns the steps
that the caller has to start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.core.failures import ReturnedErr, describe, failure_types
from temporalex_django.core.payloads import codec
from temporalex_django.core.results import Err, Event, Pending
from temporalex_django.errors import PayloadError
from temporalex_django.graph import engine
from temporalex_django.graph.definition import bits
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import events_of, key_of, name_of, timer_of


@dataclass(frozen=True, slots=True)
class Failure:
    """The result of a step whose last attempt failed, by an exception or a timeout.

    ``type`` is the class name of the exception, and ``message`` its text.
    """

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class TimerEvent(Event):
    """The result of a waiting step whose own timer emitted the event."""


Result = Event | Pending | Err[Any] | Failure
ProgressListener = Callable[[str, dict[str, Any]], None]


class Progress:
    """The current state of one instance (``instance``), with methods that record the results of its steps.

    ``failure`` has the attributes of the failure that closed the instance, for the history, or is None. ``limit`` is
    the largest size of the whole context in bytes. ``listener(name, facts)`` is called for each thing that a Django
    signal reports, such as ``step_stopped``; with None nothing is reported.
    """

    def __init__(
        self, instance: Instance, *, limit: int = codec.MAX_BYTES, listener: ProgressListener | None = None
    ) -> None:
        self.instance = instance
        self.listener = listener
        self.failure: dict[str, Any] | None = None
        self._limit = limit
        self._start_times: dict[int, datetime | None] = {}  # time at which a step became active or started to wait

    def begin(self, now: datetime | None) -> list[int]:
        """Start the instance at the time ``now`` and return the numbers of the steps that the caller has to start.

        The caller executes such a step, or only waits for its event if the step has ``Step.waits``.
        """
        is_new = self.instance.status == "pending"
        instance = engine.advance(self.instance, now=now)
        if is_new:
            self._announce("workflow_started")
        # The snapshot of a moved run may hold waiting steps. Their timers belong to the old run, so they start again.
        waiting_numbers = [i for i in bits(instance.waiting) if instance.graph.steps[i].waits]
        return waiting_numbers + self._enter_steps(instance, [*bits(instance.active)], now)

    def fold(self, results: Iterable[tuple[int, Result]], now: datetime | None) -> list[int]:
        """Record the results of steps, in that order, and return the numbers of the steps that the caller has to start.

        ``results`` has pairs of step number and result. ``now`` is the time of the entries in the execution history. If
        one of the steps failed, the results of the others are recorded, but no further step starts.
        """
        instance, active_numbers = self.instance, list[int]()
        failed: tuple[int, Failure | Err[Any]] | None = None
        for number, result in results:
            step = instance.graph.steps[number]
            try:
                match result:
                    case Event():
                        instance = self._complete_step(instance, number, result, now)
                        # The siblings of a failed step keep their data, but nothing starts after them, see decision 32.
                        if failed is None:
                            instance, new_numbers = self._follow_step(instance, number, result.name)
                            active_numbers += new_numbers
                    case Pending():
                        instance = engine.wait_step(instance, step)
                        self._announce("step_waiting", step=key_of(step), events=list(events_of(step)))
                    case _:
                        failed = failed or (number, result)
            except (MemoryError, RecursionError):
                raise
            except Exception as exc:  # noqa: BLE001 - a transition is user code, and its error fails the run
                failed = failed or (number, Failure(**describe(exc)))
        if failed is not None:
            return self._fail_step(instance, *failed, now)
        return self._enter_steps(instance, active_numbers, now)

    def _complete_step(self, instance: Instance, number: int, result: Event, now: datetime | None) -> Instance:
        step, was_waiting = instance.graph.steps[number], instance.waiting >> number & 1
        instance = engine.complete_step(
            instance, step, result.name, result.data, now=now, metadata=result.metadata, limit=self._limit
        )
        duration = seconds_between(self._start_times.pop(number, None), now)
        if self.listener is not None:
            if was_waiting:
                source = "timeout" if isinstance(result, TimerEvent) else "external"
                self._announce(
                    "step_resumed", step=key_of(step), event=result.name, source=source, wait_duration=duration
                )
            self._announce("step_stopped", step=key_of(step), event=result.name, duration=duration)
        return instance

    def _follow_step(self, instance: Instance, number: int, event: str) -> tuple[Instance, list[int]]:
        """Return ``(new instance, numbers of the activated steps)``."""
        step = instance.graph.steps[number]
        instance, active_numbers, targets = engine.follow(instance, step, event)
        if self.listener is not None and targets:
            keys = [key_of(target.step) for target in targets]
            facts = {"targets": keys, "count": len(keys), "fan_out": len(keys) > 1}
            self._announce("workflow_transition", step=key_of(step), event=event, **facts)
        return instance, active_numbers

    def _enter_steps(self, instance: Instance, step_numbers: list[int], now: datetime | None) -> list[int]:
        """Complete steps that end at once, and let others wait. Returns the steps that the caller has to start."""
        remaining: list[int] = []
        # The list grows in the loop: a step that ends at once activates others. Graphs have no cycles, so it ends.
        for number in step_numbers:
            step = instance.graph.steps[number]
            self._start_times[number] = now
            if self.listener is not None:
                count = instance.active.bit_count()
                self._announce("step_started", step=key_of(step), concurrent=count > 1, active_count=count)
            event = step.instant
            if event is None and step.waits:
                timer = timer_of(step, now)
                # A timer of no seconds would cost a command and an activation.
                if timer is not None and timer[0] == 0:
                    event = timer[1]
                else:
                    instance = engine.wait_step(instance, step)
                    self._announce("step_waiting", step=key_of(step), events=list(events_of(step)))
            if event is None:
                remaining.append(number)
                continue
            try:
                instance = self._complete_step(instance, number, Event(event), now)
                instance, new_numbers = self._follow_step(instance, number, event)
            except (MemoryError, RecursionError):
                raise
            except Exception as exc:  # noqa: BLE001 - as in fold
                return self._fail_step(instance, number, Failure(**describe(exc)), now)
            step_numbers += new_numbers
        self.instance = instance = engine.advance(instance, now=now)
        if self.listener is not None:
            counts = {"active_count": instance.active.bit_count(), "completed_count": instance.completed.bit_count()}
            self._announce("engine_advanced", status=instance.status, **counts)
            if instance.closed:
                self._announce("workflow_stopped", status=instance.status, duration=self._run_duration(now))
        return remaining

    def _fail_step(
        self, instance: Instance, number: int, result: Failure | Err[Any], now: datetime | None
    ) -> list[int]:
        """Store the failed instance. The list is empty, because no step is to be started."""
        step = instance.graph.steps[number]
        facts: dict[str, Any] = {"reason": None, "type": None, "message": None, "step": key_of(step)}
        facts["step_name"] = name_of(step)
        if isinstance(result, Err):
            reason = result.reason
            facts["reason"] = str(reason) if isinstance(reason, BaseException) else reason
        else:
            facts.update(type=result.type, message=result.message)
        self.failure = facts
        failure_reason = facts["reason"] if isinstance(result, Err) else facts["message"]
        self.instance = engine.fail_step(instance, step, failure_reason, now=now)
        duration = seconds_between(self._start_times.pop(number, None), now)
        self._announce(
            "step_failed", step=facts["step"], type=facts["type"], message=facts["message"], duration=duration
        )
        error_fields = {name: facts[name] for name in ("step", "type", "reason")}
        self._announce("workflow_failed", **error_fields, duration=self._run_duration(now))
        return []

    def _run_duration(self, now: datetime | None) -> float | None:
        return seconds_between(self.instance.telemetry_start_time, now)

    def _announce(self, name: str, **facts: Any) -> None:
        if self.listener is not None:
            self.listener(name, facts)


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from start to end; None if one of them is not known."""
    if start is None or end is None:
        return None
    return (end - start).total_seconds()


def decode_step_result(value: Any) -> Result:
    """Return the result of a step from the form in which ``encode_step_result`` wrote it."""
    if "event" in value:
        return Event(value["event"], value.get("data"), value.get("metadata") or {})
    if "wrong" in value:
        return Failure("TypeError", value["wrong"])
    return Pending()


def encode_step_result(step: str, events: Iterable[str], value: Any) -> dict[str, Any]:
    """Return the result of a step in its form for the history; ``decode_step_result`` reads it.

    ``step`` is the name of the step for messages, and ``events`` are the events that it declares. The key ``wrong``
    holds the reason for a value that a step may not return. Raises ``ReturnedErr`` for an ``Err``: the retry policy of
    the step decides whether it is tried again.
    """
    match value:
        case Event(name, data, metadata) if name in events:
            result = {"event": str.__str__(name), "data": data}
            # Most steps have no metadata: leave the key out of their histories.
            if metadata:
                return {**result, "metadata": metadata}
            return result
        case Event(name):
            event_names = ", ".join(events)
            return {"wrong": f"step {step} emitted {name!r}, which it does not declare (it declares: {event_names})"}
        case Pending():
            return {}
        case Err(reason):
            return _encode_failure(step, reason)
        case _:
            return {
                "wrong": f"step {step} returned {_abbreviate(value)}: "
                "it must return Event(name, data), Pending() or Err(reason)"
            }


def _encode_failure(step: str, reason: Any) -> dict[str, Any]:
    """Raise ``ReturnedErr``, or return why the reason is no payload under the key ``wrong``."""
    types = ["Err"]
    if isinstance(reason, BaseException):
        types += failure_types(reason)
        reason = f"{type(reason).__name__}: {reason}"
    try:
        plain_reason = codec.to_plain(reason, label=f"the reason of step {step}")
    except PayloadError as exc:
        return {"wrong": exc.message}
    raise ReturnedErr(plain_reason, types)


def _abbreviate(value: Any) -> str:
    text = repr(value)
    if len(text) <= 200:
        return text
    return text[:197] + "…"
