"""The active executor of this thread, and the check that a primitive of ``api`` is allowed in the present place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from temporalex_django.core.primitive_table import Primitive, PureContext
from temporalex_django.errors import NestingError, OutsideWorkflow


class _ThreadState(threading.local):
    """The executor whose workflow code runs in this thread, and the pure context (such as a query) that runs in it.

    Both are None while neither runs. They are attributes of a ``threading.local`` and no context variables: each unit
    (coroutine) of workflow code runs in its own context, in which such variables would be empty.
    """

    runtime: Any = None  # a ``WorkflowRuntime``; its parts ask this module, so it imports none of their types
    pure_context: PureContext | None = None


_thread_state = _ThreadState()
#: On Python 3.11: turns the watch of the determinism guard on (True) or off for this thread, and returns the function
#: that restores the previous state.
switch: Callable[[bool], Callable[[], None] | None] | None = None

#: Returns True in the code of an activity; the module of activity contexts sets it.
is_in_activity: Callable[[], bool] = bool


def active_runtime(name: str) -> Any:
    """Return the active executor, for the call of ``name`` (a primitive, or the dotted name of an activity).

    Raises ``OutsideWorkflow``, whose message has that name, if no workflow code runs in this thread.
    """
    runtime = _thread_state.runtime
    if runtime is None and is_in_activity():
        advice = f"call its function, `{name.rpartition('.')[2]}.__wrapped__(...)`, or await" if "." in name else "call"
        raise OutsideWorkflow(
            f"{_display_name(name)} was called in an activity, and only workflow code may call it: {advice} it in "
            "run() before or after this activity"
        )
    if runtime is None:
        raise OutsideWorkflow(
            f"{_display_name(name)} was called outside a running workflow: call it from run(), a handler or a branch "
            "of a workflow (in a test, use WorkflowEnvironment)"
        )
    return runtime


def runtime_for(primitive: Primitive, name: str | None = None) -> Any:
    """Return the active executor, if ``primitive`` may be called in the present place.

    ``name`` stands for the primitive in error messages. Pass it for the call of an activity. Raises ``OutsideWorkflow``
    if no workflow code runs in this thread, and ``NestingError`` if the place refuses the primitive.
    """
    runtime = _thread_state.runtime
    context = _thread_state.pure_context if runtime is None else runtime.run_context.pure_context
    if context is not None and context not in primitive.pure_contexts:
        raise NestingError(
            f"{_display_name(name or primitive.name)} is not allowed in a {context}, which may only read its arguments "
            "and return a value"
        )
    if runtime is None:
        return active_runtime(name or primitive.name)
    if primitive.acts:
        _check_unit(runtime.scheduler.current, primitive, name)
    return runtime


def unit_for(primitive: Primitive, name: str | None = None) -> Any:
    """Return the active unit (the coroutine of workflow code that runs now), if it may call ``primitive``.

    The arguments and the errors are those of ``runtime_for``.
    """
    runtime = runtime_for(primitive, name)
    unit = runtime.scheduler.current
    # A primitive that acts has been checked there.
    return unit if unit is not None and primitive.acts else _check_unit(unit, primitive, name)


def _check_unit(unit: Any, primitive: Primitive, name: str | None) -> Any:
    """Raise ``NestingError`` if ``unit`` may not call ``primitive``, and ``OutsideWorkflow`` if there is no unit."""
    if unit is None:
        raise OutsideWorkflow(f"{name or primitive.name} was called outside a unit of the workflow")
    reason = primitive.refusals.get(unit.kind) if primitive.refusals else None
    if reason is not None:
        raise NestingError(
            f"{_display_name(name or primitive.name)} is not allowed in a {unit.kind} ({unit.name}): {reason}"
        )
    return unit


@contextmanager
def use_runtime(runtime: Any) -> Iterator[None]:
    """Return a context manager whose block runs as workflow code of the run of ``runtime``.

    An async generator that starts inside belongs to the unit (coroutine of workflow code) that started it, which closes
    it.
    """
    adopt, hooks = runtime.scheduler.adopt_generator, sys.get_asyncgen_hooks()
    outer, _thread_state.runtime = _thread_state.runtime, runtime
    # The hooks are those of the thread, so the previous ones come back below: the host may run in an event loop.
    sys.set_asyncgen_hooks(adopt, _ignore_generator)
    undo = switch(runtime.is_suspect) if switch is not None else None
    try:
        yield
    finally:
        if undo is not None:
            undo()
        sys.set_asyncgen_hooks(*hooks)
        _thread_state.runtime = outer


def _ignore_generator(generator: object) -> None:
    """Ignore an async generator that the collector finds after its run is gone, so that none of its code runs."""


@contextmanager
def outside_workflow(pure_context: PureContext | None) -> Iterator[None]:
    """Return a context manager whose block runs as code of no workflow.

    ``pure_context`` names the pure context that the block is instead, such as a query. It is None for activities.
    """
    outer = _thread_state.runtime, _thread_state.pure_context
    _thread_state.runtime, _thread_state.pure_context = None, pure_context
    undo = switch(pure_context is not None) if switch is not None else None
    try:
        yield
    finally:
        if undo is not None:
            undo()
        _thread_state.runtime, _thread_state.pure_context = outer


def is_inside_workflow() -> bool:
    """Return True if workflow code runs in this thread."""
    return _thread_state.runtime is not None


def is_guarded() -> bool:
    """Return True if workflow code or a pure context (such as a query) runs in this thread."""
    return _thread_state.runtime is not None or _thread_state.pure_context is not None


def current_runtime() -> Any:
    """Return the executor whose workflow code runs in this thread, or None."""
    return _thread_state.runtime


def _display_name(name: str) -> str:
    """Keep the dotted name of an activity, and prefix the name of a primitive."""
    return name if "." in name else f"api.{name}"
