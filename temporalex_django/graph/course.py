"""What becomes of an instance when something ends: the one place that drives the engine.

The durable run, the projection of a history and the local runner feed it the same things, so they come to the same instance. It
knows no clock and begins nothing itself: what is to be begun is its answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.core import payloads
from temporalex_django.core.failures import describe
from temporalex_django.core.results import Err, Event, Pending
from temporalex_django.graph import engine
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import key_of, timer_of
from temporalex_django.graph.structure import bits


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that failed by an exception or a timeout: its last attempt."""

    type: str
    message: str


Result = Event | Pending | Err[Any] | Failure


class Course:
    """``instance`` is where it stands; ``failed`` says what closed it, for the history."""

    def __init__(self, instance: Instance, *, limit: int = payloads.MAX_BYTES) -> None:
        self.instance = instance
        self._limit = limit
        self.failed: dict[str, Any] | None = None

    def begin(self, now: datetime | None) -> list[int]:
        """Numbers of the steps to begin: to be executed, or (``Step.waits``) to be waited for."""
        instance = engine.advance(self.instance, now=now)
        # a snapshot may hold steps that wait already: those begin to wait anew
        again = [i for i in bits(instance.waiting) if instance.graph.steps[i].waits]
        return again + self._entered(instance, [*bits(instance.active)], now)

    def fold(self, ended: Iterable[tuple[int, Result]], now: datetime | None) -> list[int]:
        """Steps that ended, in that order; gives the numbers of the steps to begin.

        When one of them failed, what the others gave is kept and nothing follows on it (HE-109).
        """
        instance, begun = self.instance, list[int]()
        failed: tuple[int, Failure | Err[Any]] | None = None
        for number, result in ended:
            step = instance.graph.steps[number]
            try:
                match result:
                    case Event(event, data, metadata):
                        instance = engine.complete_step(
                            instance, step, event, data, now=now, metadata=metadata, limit=self._limit
                        )
                        if failed is None:
                            instance, more = engine.follow(instance, step, event)
                            begun += more
                    case Pending():
                        instance = engine.wait_step(instance, step)
                    case _:
                        failed = failed or (number, result)
            except (MemoryError, RecursionError):
                raise
            except Exception as exc:  # noqa: BLE001 - a transition is the user's code; its failure is the run's
                failed = failed or (number, Failure(**describe(exc)))
        if failed is not None:
            return self._fail(instance, *failed, now)
        return self._entered(instance, begun, now)

    def _entered(self, instance: Instance, begun: list[int], now: datetime | None) -> list[int]:
        """Let those end that end by themselves; the others are the caller's to begin."""
        left: list[int] = []
        for number in begun:  # grows while it is walked
            step = instance.graph.steps[number]
            event = step.instant
            if event is None and step.waits:
                timer = timer_of(step)
                if timer is not None and timer[0] == 0:
                    event = timer[1]
                else:
                    instance = engine.wait_step(instance, step)
            if event is None:
                left.append(number)
                continue
            instance = engine.complete_step(instance, step, event, now=now)
            try:
                instance, more = engine.follow(instance, step, event)
            except (MemoryError, RecursionError):
                raise
            except Exception as exc:  # noqa: BLE001 - as in fold
                return self._fail(instance, number, Failure(**describe(exc)), now)
            begun += more
        self.instance = engine.advance(instance, now=now)
        return left

    def _fail(self, instance: Instance, number: int, result: Failure | Err[Any], now: datetime | None) -> list[int]:
        step = instance.graph.steps[number]
        facts: dict[str, Any] = {"reason": None, "type": None, "message": None, "step": key_of(step)}
        if isinstance(result, Err):
            reason = result.reason
            facts["reason"] = str(reason) if isinstance(reason, BaseException) else reason
        else:
            facts.update(type=result.type, message=result.message)
        self.failed = facts
        self.instance = engine.fail_step(instance, step, facts["reason"] or facts["message"], now=now)
        return []


def as_result(value: Any) -> Result:
    """What the history has of a step's result, as a result. See ``encoded``."""
    if "event" in value:
        return Event(value["event"], value.get("data"), value.get("metadata") or {})
    if "reason" in value:
        return Err(value["reason"])
    if "wrong" in value:
        return Failure("TypeError", value["wrong"])
    return Pending()


def encoded(step: str, events: Iterable[str], value: Any) -> dict[str, Any]:
    """What a step gave, for the history; ``wrong`` says why it is none of what a step may give (HE-082, HE-083)."""
    match value:
        case Event(name, data, metadata) if name in events:
            found = {"event": str(name), "data": data}
            return {**found, "metadata": metadata} if metadata else found
        case Event(name):
            known = ", ".join(events)
            return {"wrong": f"step {step} emitted {name!r}, which it does not declare (it declares: {known})"}
        case Pending():
            return {}
        case Err(reason):
            return {"reason": f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason}
        case _:
            return {
                "wrong": f"step {step} returned {_short(value)}: it must return Event(name, data), Pending() or Err(reason)"
            }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "…"
