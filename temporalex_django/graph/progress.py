"""What becomes of an instance when something ends: the one place that drives the engine.

The durable run, the projection of a history and the local runner feed it the same things, so they come to the same
instance. It knows no clock and begins nothing itself: what is to be begun is its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.core import payloads
from temporalex_django.core.failures import ReturnedErr, describe, failure_types
from temporalex_django.core.results import Err, Event, Pending
from temporalex_django.errors import PayloadError
from temporalex_django.graph import engine
from temporalex_django.graph.definition.structure import bits
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import events_of, key_of, name_of, timer_of


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that failed by an exception or a timeout: its last attempt."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class TimerEvent(Event):
    """The event of a waiting step that its own timer brought."""


Result = Event | Pending | Err[Any] | Failure
ProgressListener = Callable[[str, dict[str, Any]], None]


class Progress:
    """``instance`` is where it stands; ``failure`` says what closed it, for the history.

    ``tell(name, facts)`` hears what happens; None: nobody listens.
    """

    def __init__(
        self, instance: Instance, *, limit: int = payloads.MAX_BYTES, listener: ProgressListener | None = None
    ) -> None:
        self.instance = instance
        self.listener = listener
        self.failure: dict[str, Any] | None = None
        self._limit = limit
        self._start_times: dict[int, datetime | None] = {}  # when each step became active, or began to wait

    def begin(self, now: datetime | None) -> list[int]:
        """Numbers of the steps to begin: to be executed, or (``Step.waits``) to be waited for."""
        is_new = self.instance.status == "pending"
        instance = engine.advance(self.instance, now=now)
        if is_new:
            self._announce("workflow_started")
        # a snapshot may hold steps that wait already: those begin to wait anew
        waiting_numbers = [i for i in bits(instance.waiting) if instance.graph.steps[i].waits]
        return waiting_numbers + self._enter_steps(instance, [*bits(instance.active)], now)

    def fold(self, results: Iterable[tuple[int, Result]], now: datetime | None) -> list[int]:
        """Steps that ended, in that order; gives the numbers of the steps to begin.

        When one of them failed, what the others gave is kept and nothing follows on it.
        """
        instance, active_numbers = self.instance, list[int]()
        failed: tuple[int, Failure | Err[Any]] | None = None
        for number, result in results:
            step = instance.graph.steps[number]
            try:
                match result:
                    case Event():
                        instance = self._complete_step(instance, number, result, now)
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
            except Exception as exc:  # noqa: BLE001 - a transition is the user's code; its failure is the run's
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
        step = instance.graph.steps[number]
        instance, active_numbers, targets = engine.follow(instance, step, event)
        if self.listener is not None and targets:
            keys = [key_of(target.step) for target in targets]
            facts = {"targets": keys, "count": len(keys), "fan_out": len(keys) > 1}
            self._announce("workflow_transition", step=key_of(step), event=event, **facts)
        return instance, active_numbers

    def _enter_steps(self, instance: Instance, step_numbers: list[int], now: datetime | None) -> list[int]:
        """Let those end that end by themselves; the others are the caller's to begin."""
        remaining: list[int] = []
        for number in step_numbers:  # grows while it is walked
            step = instance.graph.steps[number]
            self._start_times[number] = now
            if self.listener is not None:
                count = instance.active.bit_count()
                self._announce("step_started", step=key_of(step), concurrent=count > 1, active_count=count)
            event = step.instant
            if event is None and step.waits:
                timer = timer_of(step)
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
    """None when one of them is not known."""
    return None if start is None or end is None else (end - start).total_seconds()


def decode_step_result(value: Any) -> Result:
    """What the history has of a step's result, as a result. See ``encode_step_result``."""
    if "event" in value:
        return Event(value["event"], value.get("data"), value.get("metadata") or {})
    if "wrong" in value:
        return Failure("TypeError", value["wrong"])
    return Pending()


def encode_step_result(step: str, events: Iterable[str], value: Any) -> dict[str, Any]:
    """What a step gave, for the history; ``wrong`` says why it is none of what a step may give.

    Raises ``ReturnedErr``: the step's policy decides whether it is tried again.
    """
    match value:
        case Event(name, data, metadata) if name in events:
            result = {"event": str.__str__(name), "data": data}
            return {**result, "metadata": metadata} if metadata else result
        case Event(name):
            event_names = ", ".join(events)
            return {"wrong": f"step {step} emitted {name!r}, which it does not declare (it declares: {event_names})"}
        case Pending():
            return {}
        case Err(reason):
            return _encode_failure(step, reason)
        case _:
            return {
                "wrong": f"step {step} returned {_abbreviate(value)}: it must return Event(name, data), Pending() or Err(reason)"
            }


def _encode_failure(step: str, reason: Any) -> dict[str, Any]:
    types = ["Err"]
    if isinstance(reason, BaseException):
        types += failure_types(reason)
        reason = f"{type(reason).__name__}: {reason}"
    try:
        plain_reason = payloads.to_plain(reason, label=f"the reason of step {step}")
    except PayloadError as exc:
        return {"wrong": exc.message}
    raise ReturnedErr(plain_reason, types)


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "…"
