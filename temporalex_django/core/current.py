"""The places where a primitive may be called: the nesting matrix and the active executor of this thread.

The rows of the matrix are the kinds of units. Everything that ``FORBIDDEN`` does not list is allowed. The executor
calls validators, predicates and ``update_state`` closures outside of any unit. These functions and queries run in a
*pure context*. A replay does not run them again, or runs them at other moments. A random number or a command in them
would make live and rebuilt runs differ.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from temporalex_django.errors import NestingError, OutsideWorkflow

if TYPE_CHECKING:
    from temporalex_django.core.runtime_protocol import WorkflowRuntime
    from temporalex_django.core.units.scheduler import Unit

UNIT_KINDS: Final = ("run", "sync handler", "async handler", "branch")
FORBIDDEN: Final = {
    ("phase", "sync handler"): "a handler is itself part of a phase; return Stop(state) and open the next phase in run",
    (
        "phase",
        "async handler",
    ): "a handler is itself part of a phase; return Stop(state) and open the next phase in run",
    ("phase", "branch"): "open the phase in run, before or after the parallel part",
    ("update_state", "run"): "in run, use the state that phase returns",
    ("update_state", "sync handler"): "a sync handler gets the state as an argument and returns the new one",
    ("update_state", "branch"): "collect the branches' results and call it once in the async handler itself",
}
#: Primitives that a pure context may call: they read and change nothing.
READS: Final = frozenset({"now", "info", "cancel_requested"})
#: Contexts that may not call them either. A closure gets all that it needs as its argument. A transition runs again
#: when a process is read from its history.
_ISOLATED_CONTEXTS: Final = frozenset({"update_state closure", "transition"})
#: The sender of an update is known in its validator. A predicate belongs to no message, so it has no sender.
_ALLOWED_PAIRS: Final = frozenset({("sender", "validator")})


class _ThreadState(threading.local):
    """The state of this thread.

    These are no context variables, because workflow code has contexts of its own, which are empty at first.
    """

    runtime: WorkflowRuntime | None = None
    pure_context: str | None = None


_thread_state = _ThreadState()
#: On Python 3.11: turns the watch of the determinism guard on (True) or off for this thread, and returns the function
#: that restores the previous state.
switch: Callable[[bool], Callable[[], None] | None] | None = None


def runtime_for(name: str) -> WorkflowRuntime:
    """Return the active executor. Raises ``OutsideWorkflow``, or ``NestingError`` in a pure context."""
    runtime = _thread_state.runtime
    context = _thread_state.pure_context if runtime is None else runtime.run_context.pure_context
    if (
        context is not None
        and (name not in READS or context in _ISOLATED_CONTEXTS)
        and (name, context) not in _ALLOWED_PAIRS
    ):
        raise NestingError(
            f"{_display_name(name)} is not allowed in a {context}, which may only read its arguments and return a value"
        )
    if runtime is None:
        raise OutsideWorkflow(
            f"{_display_name(name)} was called outside a running workflow: call it from run(), a handler or a branch "
            "of a workflow (in a test, use WorkflowEnvironment)"
        )
    return runtime


def unit_for(name: str) -> Unit:
    """Return the active unit, if ``name`` is allowed in it. Raises ``OutsideWorkflow`` or ``NestingError``."""
    unit = runtime_for(name).scheduler.current
    if unit is None:
        raise OutsideWorkflow(f"{name} was called outside of a unit of the workflow")
    reason = FORBIDDEN.get((name, unit.kind))
    if reason is not None:
        raise NestingError(f"{_display_name(name)} is not allowed in a {unit.kind} ({unit.name}): {reason}")
    return unit


@contextmanager
def use_runtime(runtime: WorkflowRuntime) -> Iterator[None]:
    """Make the code of the block workflow code of the run of ``runtime``.

    An async generator that starts inside belongs to the unit that started it.
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
def outside_workflow(pure_context: str | None) -> Iterator[None]:
    """Run user code inside as part of no workflow (activities: None) or of a pure context (queries)."""
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
    """Return True if workflow code or a pure context runs in this thread."""
    return _thread_state.runtime is not None or _thread_state.pure_context is not None


def current_runtime() -> WorkflowRuntime | None:
    """Return the executor whose workflow code runs in this thread, or None."""
    return _thread_state.runtime


def _display_name(name: str) -> str:
    """Return the name for messages: activities have dotted names, primitives belong to ``api``."""
    return name if "." in name else f"api.{name}"
