"""What the primitives of ``api`` do once their context has been checked: each function is one primitive's inside."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from temporalex_django.core.conditions import Condition, wants_state
from temporalex_django.core.copying import copied
from temporalex_django.core.determinism import guard
from temporalex_django.core.ivar import IVar
from temporalex_django.core.phase import Phase
from temporalex_django.core.port import Port
from temporalex_django.core.shapes import Waits
from temporalex_django.errors import Cancelled, NestingError


def filled(value: Any = None) -> IVar:
    """An IVar that nobody has to wait for."""
    ivar = IVar()
    ivar.put(value)
    return ivar


def _about(port: Port, kind: str, timeout: float | None) -> Waits:
    """What is waited for from now on, until a timeout passes."""
    now = port.standing.now
    about: Waits = {"kind": kind, "since": now.isoformat()}
    if timeout is not None:
        about["until"] = (now + timedelta(seconds=timeout)).isoformat()
    return about


def sleep(port: Port, duration: float, then: str | None = None) -> IVar:
    """Zero returns at once, without command or number. ``then`` is said of it, to people."""
    if duration == 0:
        return filled()
    number = 0

    def abandon() -> None:
        port.calls.cancel_timer(number)

    now = port.standing.now
    due = now + timedelta(seconds=duration)
    ivar = IVar(f"timer {due.isoformat(timespec='seconds')}", abandon)
    more = {} if then is None else {"then": then}
    number = port.calls.start_timer(duration, ivar.put, **more)
    ivar.about = {"kind": "timer", "seq": number, "since": now.isoformat(), "until": due.isoformat()}
    if then is not None:
        ivar.about["then"] = then
    return ivar


async def phase(port: Port, opened: Phase, timeout: float | None) -> Any:
    """Dispatch until a handler stops it, the timeout fires or the run is cancelled.

    Bound units end before it returns.
    """

    def expire() -> None:
        port.dispatcher.leave(opened, "timeout")
        opened.settle()

    port.dispatcher.open(opened)
    about = _about(port, "phase", timeout)
    if opened.label is not None:
        about["label"] = opened.label
    if labels := opened.labels:
        about["labels"] = labels
    opened.done.about = about
    if timeout is not None:
        opened.timer = port.calls.start_timer(timeout, expire)
    try:
        return await opened.done
    except Cancelled:
        port.dispatcher.leave(opened, "cancel")
        opened.settle()
        await opened.done
        raise
    finally:
        port.dispatcher.close()


def update_state(port: Port, fn: Callable[[Any], Any]) -> IVar:
    """At once, or after the sync handler that is in progress, so that neither change is lost."""
    opened = port.dispatcher.phase
    unit = port.scheduler.current
    assert opened is not None  # an async handler ends before its phase does
    assert unit is not None
    ivar = IVar("update_state")
    change = partial(opened.change, fn)

    def apply() -> None:
        try:
            with port.standing.pure("update_state closure"):
                ivar.put(change())
        except (MemoryError, RecursionError):
            raise
        except Exception as exc:  # noqa: BLE001 - the caller of update_state gets it
            ivar.fail(exc)

    if opened.busy is None:
        apply()
    else:
        change = partial(unit.context.run, change)  # which the unit itself is in now, and later nobody
        opened.delayed.append(apply)
        ivar.abandon = lambda: opened.delayed.remove(apply)
    return ivar


async def wait_condition(port: Port, predicate: Callable[..., Any], timeout: float | None) -> bool:
    """Look at once, then whenever a unit has run, in the order of the waits.

    A timer is cancelled when it is not needed any more.
    """
    unit = port.scheduler.current
    assert unit is not None
    guard.watch(predicate)
    test = predicate
    if wants_state(predicate):
        opened = port.dispatcher.phase
        if unit.kind != "async handler" or opened is None:
            raise NestingError(
                "wait_condition with the phase state is for async handlers only: take no parameter elsewhere"
            )
        test = lambda: predicate(copied(opened.state))  # noqa: E731 - closes over the phase of this call
    ivar = IVar("condition")
    ivar.about = _about(port, "condition", timeout)
    condition = Condition(unit, test, ivar)
    with port.standing.pure("predicate"):
        if condition.holds():
            return True
    port.conditions.watch(condition)
    number = None if timeout is None else port.calls.start_timer(timeout, lambda: ivar.put(False))
    try:
        return bool(await ivar)
    finally:
        port.conditions.forget(condition)
        if number is not None:
            port.calls.cancel_timer(number)


def wait_cancelled(port: Port) -> IVar:
    """Returns when the run is asked to cancel, at once if it was already.

    Outside of a shield that is how the unit hears of it.
    """
    unit = port.scheduler.current
    assert unit is not None
    if port.cancellation.requested:
        port.cancellation.heard()
        if not unit.shields:
            unit.cancelled = False
    return port.cancellation.notice
