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
class Fired(Event):
    """The event of a waiting step that its own timer brought."""


Result = Event | Pending | Err[Any] | Failure
Tell = Callable[[str, dict[str, Any]], None]


class Progress:
    """``instance`` is where it stands; ``failed`` says what closed it, for the history.

    ``tell(name, facts)`` hears what happens; None: nobody listens.
    """

    def __init__(self, instance: Instance, *, limit: int = payloads.MAX_BYTES, tell: Tell | None = None) -> None:
        self.instance = instance
        self.tell = tell
        self.failed: dict[str, Any] | None = None
        self._limit = limit
        self._since: dict[int, datetime | None] = {}  # when each step became active, or began to wait

    def begin(self, now: datetime | None) -> list[int]:
        """Numbers of the steps to begin: to be executed, or (``Step.waits``) to be waited for."""
        fresh = self.instance.status == "pending"
        instance = engine.advance(self.instance, now=now)
        if fresh:
            self._say("workflow_started")
        # a snapshot may hold steps that wait already: those begin to wait anew
        again = [i for i in bits(instance.waiting) if instance.graph.steps[i].waits]
        return again + self._entered(instance, [*bits(instance.active)], now)

    def fold(self, ended: Iterable[tuple[int, Result]], now: datetime | None) -> list[int]:
        """Steps that ended, in that order; gives the numbers of the steps to begin.

        When one of them failed, what the others gave is kept and nothing follows on it.
        """
        instance, begun = self.instance, list[int]()
        failed: tuple[int, Failure | Err[Any]] | None = None
        for number, result in ended:
            step = instance.graph.steps[number]
            try:
                match result:
                    case Event():
                        instance = self._completed(instance, number, result, now)
                        if failed is None:
                            instance, more = self._followed(instance, number, result.name)
                            begun += more
                    case Pending():
                        instance = engine.wait_step(instance, step)
                        self._say("step_waiting", step=key_of(step), events=list(events_of(step)))
                    case _:
                        failed = failed or (number, result)
            except (MemoryError, RecursionError):
                raise
            except Exception as exc:  # noqa: BLE001 - a transition is the user's code; its failure is the run's
                failed = failed or (number, Failure(**describe(exc)))
        if failed is not None:
            return self._fail(instance, *failed, now)
        return self._entered(instance, begun, now)

    def _completed(self, instance: Instance, number: int, result: Event, now: datetime | None) -> Instance:
        step, waited = instance.graph.steps[number], instance.waiting >> number & 1
        instance = engine.complete_step(
            instance, step, result.name, result.data, now=now, metadata=result.metadata, limit=self._limit
        )
        lasted = seconds_between(self._since.pop(number, None), now)
        if self.tell is not None:
            if waited:
                source = "timeout" if isinstance(result, Fired) else "external"
                self._say("step_resumed", step=key_of(step), event=result.name, source=source, wait_duration=lasted)
            self._say("step_stopped", step=key_of(step), event=result.name, duration=lasted)
        return instance

    def _followed(self, instance: Instance, number: int, event: str) -> tuple[Instance, list[int]]:
        step = instance.graph.steps[number]
        instance, begun, targets = engine.follow(instance, step, event)
        if self.tell is not None and targets:
            keys = [key_of(target.step) for target in targets]
            facts = {"targets": keys, "count": len(keys), "fan_out": len(keys) > 1}
            self._say("workflow_transition", step=key_of(step), event=event, **facts)
        return instance, begun

    def _entered(self, instance: Instance, begun: list[int], now: datetime | None) -> list[int]:
        """Let those end that end by themselves; the others are the caller's to begin."""
        left: list[int] = []
        for number in begun:  # grows while it is walked
            step = instance.graph.steps[number]
            self._since[number] = now
            if self.tell is not None:
                count = instance.active.bit_count()
                self._say("step_started", step=key_of(step), concurrent=count > 1, active_count=count)
            event = step.instant
            if event is None and step.waits:
                timer = timer_of(step)
                if timer is not None and timer[0] == 0:
                    event = timer[1]
                else:
                    instance = engine.wait_step(instance, step)
                    self._say("step_waiting", step=key_of(step), events=list(events_of(step)))
            if event is None:
                left.append(number)
                continue
            try:
                instance = self._completed(instance, number, Event(event), now)
                instance, more = self._followed(instance, number, event)
            except (MemoryError, RecursionError):
                raise
            except Exception as exc:  # noqa: BLE001 - as in fold
                return self._fail(instance, number, Failure(**describe(exc)), now)
            begun += more
        self.instance = instance = engine.advance(instance, now=now)
        if self.tell is not None:
            counts = {"active_count": instance.active.bit_count(), "completed_count": instance.completed.bit_count()}
            self._say("engine_advanced", status=instance.status, **counts)
            if instance.closed:
                self._say("workflow_stopped", status=instance.status, duration=self._lasted(now))
        return left

    def _fail(self, instance: Instance, number: int, result: Failure | Err[Any], now: datetime | None) -> list[int]:
        step = instance.graph.steps[number]
        facts: dict[str, Any] = {"reason": None, "type": None, "message": None, "step": key_of(step)}
        facts["step_name"] = name_of(step)
        if isinstance(result, Err):
            reason = result.reason
            facts["reason"] = str(reason) if isinstance(reason, BaseException) else reason
        else:
            facts.update(type=result.type, message=result.message)
        self.failed = facts
        said = facts["reason"] if isinstance(result, Err) else facts["message"]
        self.instance = engine.fail_step(instance, step, said, now=now)
        lasted = seconds_between(self._since.pop(number, None), now)
        self._say("step_failed", step=facts["step"], type=facts["type"], message=facts["message"], duration=lasted)
        ended = {name: facts[name] for name in ("step", "type", "reason")}
        self._say("workflow_failed", **ended, duration=self._lasted(now))
        return []

    def _lasted(self, now: datetime | None) -> float | None:
        return seconds_between(self.instance.telemetry_start_time, now)

    def _say(self, name: str, **facts: Any) -> None:
        if self.tell is not None:
            self.tell(name, facts)


def seconds_between(begun: datetime | None, ended: datetime | None) -> float | None:
    """None when one of them is not known."""
    return None if begun is None or ended is None else (ended - begun).total_seconds()


def as_result(value: Any) -> Result:
    """What the history has of a step's result, as a result. See ``encoded``."""
    if "event" in value:
        return Event(value["event"], value.get("data"), value.get("metadata") or {})
    if "wrong" in value:
        return Failure("TypeError", value["wrong"])
    return Pending()


def encoded(step: str, events: Iterable[str], value: Any) -> dict[str, Any]:
    """What a step gave, for the history; ``wrong`` says why it is none of what a step may give.

    Raises ``ReturnedErr``: the step's policy decides whether it is tried again.
    """
    match value:
        case Event(name, data, metadata) if name in events:
            found = {"event": str.__str__(name), "data": data}
            return {**found, "metadata": metadata} if metadata else found
        case Event(name):
            known = ", ".join(events)
            return {"wrong": f"step {step} emitted {name!r}, which it does not declare (it declares: {known})"}
        case Pending():
            return {}
        case Err(reason):
            return _failed(step, reason)
        case _:
            return {
                "wrong": f"step {step} returned {_short(value)}: it must return Event(name, data), Pending() or Err(reason)"
            }


def _failed(step: str, reason: Any) -> dict[str, Any]:
    types = ["Err"]
    if isinstance(reason, BaseException):
        types += failure_types(reason)
        reason = f"{type(reason).__name__}: {reason}"
    try:
        plain = payloads.to_plain(reason, label=f"the reason of step {step}")
    except PayloadError as exc:
        return {"wrong": exc.message}
    raise ReturnedErr(plain, types)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "…"
