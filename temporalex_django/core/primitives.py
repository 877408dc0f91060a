"""What the primitives of ``api`` do once their place has been checked: each function is one primitive's inside."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from temporalex_django.core import dispatch, guard
from temporalex_django.core.conditions import Condition, wants_state
from temporalex_django.core.executor import Executor
from temporalex_django.core.ivar import IVar
from temporalex_django.core.phase import Phase
from temporalex_django.core.values import copied
from temporalex_django.errors import Cancelled, NestingError


def filled(value: Any = None) -> IVar:
    """An IVar that nobody has to wait for."""
    ivar = IVar()
    ivar.put(value)
    return ivar


def sleep(executor: Executor, duration: float) -> IVar:
    """Zero returns at once, without command or number (D-13)."""
    if duration == 0:
        return filled()
    number = 0

    def abandon() -> None:
        executor.cancel_timer(number)

    due = executor.now + timedelta(seconds=duration)
    ivar = IVar(f"timer {due.isoformat(timespec='seconds')}", abandon)
    number = executor.start_timer(duration, ivar.put)
    return ivar


def wait_for_signal(executor: Executor, name: str) -> IVar:
    """Take the oldest buffered signal, if this unit may have it (D-05), or wait in line.

    One that is there comes later where the host has enough for this activation, and behind units that wait for that already.
    """
    scheduler, mailbox = executor.scheduler, executor.mailbox
    unit = scheduler.current
    assert unit is not None
    ivar = IVar(f"signal {name}")
    if not mailbox.has_signal((name,)) or not dispatch.eligible(executor, name, unit):
        mailbox.wait(name, unit, ivar)
    elif (scheduler.parked and unit is not scheduler.resumed) or executor.has_enough(since=0):
        scheduler.park(name, unit, ivar)
    else:
        if scheduler.on_wait is not None:
            scheduler.on_wait()
        ivar.hand = unit.hand
        dispatch.give(executor, name, unit, ivar)
        unit.hand = ivar.hand
    return ivar


async def phase(executor: Executor, opened: Phase, timeout: float | None) -> Any:
    """Dispatch until a handler stops it, the timeout fires or the run is cancelled; bound units end before it returns."""

    def expire() -> None:
        dispatch.leave(executor, opened, "timeout")
        opened.settle()

    executor.phase = opened
    executor.goes_on = False
    if timeout is not None:
        opened.timer = executor.start_timer(timeout, expire)
    try:
        return await opened.done
    except Cancelled:
        dispatch.leave(executor, opened, "cancel")
        opened.settle()
        await opened.done
        raise
    finally:
        executor.phase = None


def update_state(executor: Executor, fn: Callable[[Any], Any]) -> IVar:
    """At once, or after the sync handler that is in progress, so that neither change is lost (TX-110)."""
    opened = executor.phase
    unit = executor.scheduler.current
    assert opened is not None  # an async handler ends before its phase does
    assert unit is not None
    ivar = IVar("update_state")
    change = partial(opened.change, fn)

    def apply() -> None:
        try:
            with executor.pure("update_state closure"):
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


async def wait_condition(executor: Executor, predicate: Callable[..., Any], timeout: float | None) -> bool:
    """Look at once, then whenever a unit has run, in the order of the waits; a timer is cancelled when it is not needed any more."""
    unit = executor.scheduler.current
    assert unit is not None
    guard.watch(predicate)
    test = predicate
    if wants_state(predicate):
        opened = executor.phase
        if unit.kind != "async handler" or opened is None:
            raise NestingError(
                "wait_condition with the phase state is for async handlers only: take no parameter elsewhere"
            )
        test = lambda: predicate(copied(opened.state))  # noqa: E731 - closes over the phase of this call
    ivar = IVar("condition")
    condition = Condition(unit, test, ivar)
    with executor.pure("predicate"):
        if condition.holds():
            return True
    executor.conditions.open.append(condition)
    executor.scheduler.next_waiter = lambda: dispatch.next_waiter(executor)
    number = None if timeout is None else executor.start_timer(timeout, lambda: ivar.put(False))
    try:
        return bool(await ivar)
    finally:
        if condition in executor.conditions.open:
            executor.conditions.open.remove(condition)
        if number is not None:
            executor.cancel_timer(number)


def wait_cancelled(executor: Executor) -> IVar:
    """Returns when the run is asked to cancel, at once if it was already. Outside of a shield that is how the unit hears of it."""
    unit = executor.scheduler.current
    assert unit is not None
    if executor.cancel_requested:
        executor.scheduler.request_seen = True
        if not unit.shields:
            unit.cancelled = False
    return executor.cancel_notice
