"""The implementations of the ``api`` primitives. The callers check first that the place of the call is allowed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from temporalex_django.core.determinism import guard
from temporalex_django.core.messages.phase import Phase
from temporalex_django.core.names import to_seconds
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.typed_dicts import WaitInfo
from temporalex_django.core.units.conditions import Condition, takes_state
from temporalex_django.core.units.ivar import IVar
from temporalex_django.errors import Cancelled, NestingError


def filled_ivar(value: Any = None) -> IVar:
    """Return an IVar (a value to await) that is set to ``value`` already, so that a wait for it does not suspend."""
    ivar = IVar()
    ivar.put(value)
    return ivar


def _build_wait_info(runtime: WorkflowRuntime, kind: str, timeout: float | None) -> WaitInfo:
    """Return the data of a wait that begins now. ``timeout`` is in seconds; None has no end."""
    now = runtime.run_context.now
    wait_info: WaitInfo = {"kind": kind, "since": now.isoformat()}
    if timeout is not None:
        wait_info["until"] = (now + timedelta(seconds=timeout)).isoformat()
    return wait_info


def sleep(runtime: WorkflowRuntime, duration: float, then: str | None = None) -> IVar:
    """Start a timer of ``duration`` seconds and return its IVar, a value to await. With zero, it is set already.

    Zero seconds emit no command. ``then`` is a text for people that says what follows.
    """
    if duration == 0:
        return filled_ivar()
    number = 0

    def abandon() -> None:
        runtime.pending_commands.cancel_timer(number)

    now = runtime.run_context.now
    due = now + timedelta(seconds=duration)
    ivar = IVar(f"timer {due.isoformat(timespec='seconds')}", abandon)
    purpose = {} if then is None else {"then": then}
    number = runtime.pending_commands.start_timer(duration, ivar.put, **purpose)
    ivar.wait_info = {"kind": "timer", "seq": number, "since": now.isoformat(), "until": due.isoformat()}
    if then is not None:
        ivar.wait_info["then"] = then
    return ivar


def sleep_until(runtime: WorkflowRuntime, until: datetime, then: str | None = None) -> IVar:
    """Start a timer that ends at ``until``, as ``sleep`` does. A time that has passed returns at once."""
    # The clock of the run, and not that of the call: the call may be awaited in a later activation.
    duration = (until - runtime.run_context.now).total_seconds()
    return sleep(runtime, to_seconds(max(0.0, duration), label="sleep_until"), then)


async def phase(runtime: WorkflowRuntime, open_phase: Phase, timeout: float | None) -> Any:
    """Open ``open_phase``, dispatch messages until it ends, and return its state (in ``TimedOut`` after the timeout).

    A handler, ``timeout`` (in seconds, or None) or the cancel of the run ends the phase. All coroutines that its
    handlers have started end before this returns. Raises ``PayloadError`` if the phase cannot publish its state.
    """

    def expire() -> None:
        runtime.dispatcher.leave_phase(open_phase, "timeout")
        open_phase.settle()

    open_phase.publish_state()
    runtime.dispatcher.enter_phase(open_phase)
    wait_info = _build_wait_info(runtime, "phase", timeout)
    if open_phase.label is not None:
        wait_info["label"] = open_phase.label
    if labels := open_phase.labels:
        wait_info["labels"] = labels
    open_phase.done.wait_info = wait_info
    if timeout is not None:
        open_phase.timer = runtime.pending_commands.start_timer(timeout, expire)
    try:
        return await open_phase.done
    except Cancelled:
        runtime.dispatcher.leave_phase(open_phase, "cancel")
        open_phase.settle()
        await open_phase.done
        raise
    finally:
        runtime.dispatcher.close_phase()


def update_state(runtime: WorkflowRuntime, fn: Callable[[Any], Any]) -> IVar:
    """Change the phase state by ``fn(state) -> (result, new state)``, and return its result as an IVar.

    An IVar is a value to await. The change happens at once or, while a sync handler runs, after that handler, whose
    state would overwrite it.
    """
    open_phase = runtime.dispatcher.phase
    unit = runtime.scheduler.current
    assert open_phase is not None  # an async handler ends before its phase does
    assert unit is not None
    ivar = IVar("update_state")
    change = partial(open_phase.change_state, fn)

    def apply() -> None:
        try:
            with runtime.run_context.pure_section("update_state closure"):
                ivar.put(change())
        except (MemoryError, RecursionError):
            raise
        except Exception as exc:  # noqa: BLE001 - the caller of update_state gets it
            ivar.fail(exc)

    if open_phase.busy is None:
        apply()
    else:
        # Later no unit is active, so the closure needs the context of this unit. Now the unit is in it already.
        change = partial(unit.context.run, change)
        open_phase.delayed_changes.append(apply)
        ivar.abandon = lambda: open_phase.delayed_changes.remove(apply)
    return ivar


async def wait_condition(runtime: WorkflowRuntime, predicate: Callable[..., Any], timeout: float | None) -> bool:
    """Wait until the predicate is true; return False after ``timeout`` seconds (None: no limit).

    The predicate is evaluated at once, then whenever a coroutine of the run has come to a wait, in the order of the
    waits. A timer that is not needed any more is cancelled.
    """
    unit = runtime.scheduler.current
    assert unit is not None
    guard.watch(predicate)
    test = predicate
    if takes_state(predicate):
        open_phase = runtime.dispatcher.phase
        if unit.kind != "async handler" or open_phase is None:
            raise NestingError(
                "wait_condition passes the phase state only in async handlers: elsewhere, the predicate must take no "
                "parameter"
            )
        test = lambda: predicate(deep_copy(open_phase.state))  # noqa: E731 - closes over the phase of this call
    ivar = IVar("condition")
    ivar.wait_info = _build_wait_info(runtime, "condition", timeout)
    condition = Condition(unit, test, ivar)
    with runtime.run_context.pure_section("predicate"):
        if condition.is_true():
            return True
    runtime.conditions.watch(condition)
    number = None if timeout is None else runtime.pending_commands.start_timer(timeout, lambda: ivar.put(False))
    try:
        return bool(await ivar)
    finally:
        runtime.conditions.remove(condition)
        if number is not None:
            runtime.pending_commands.cancel_timer(number)


def wait_cancelled(runtime: WorkflowRuntime) -> IVar:
    """Return an IVar (a value to await) that is set when the run is asked to cancel; it may be set already.

    A coroutine that waits in this way outside ``shield`` learns of the request by the wait, so ``Cancelled`` is not
    raised in it.
    """
    unit = runtime.scheduler.current
    assert unit is not None
    if runtime.cancellation.requested:
        runtime.cancellation.acknowledge()
        if not unit.shields:
            unit.cancelled = False
    return runtime.cancellation.notice
