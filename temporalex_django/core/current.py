"""Where a primitive may be called: the nesting matrix and the way to the executor at work.

Rows are the kinds of unit; whatever is not listed in ``FORBIDDEN`` is allowed. Functions that the executor calls
outside of any unit (validators, predicates, ``update_state`` closures) and queries run in a *pure context*: they are
not run again on replay, or run at other moments, so a draw or a command there would part live runs from rebuilt ones.
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
    from temporalex_django.core.scheduler import Unit

UNIT_KINDS: Final = ("run", "sync handler", "async handler", "branch")
FORBIDDEN: Final = {
    ("phase", "sync handler"): "a handler is itself part of a phase; return Stop(state) and open the next phase in run",
    (
        "phase",
        "async handler",
    ): "a handler is itself part of a phase; return Stop(state) and open the next phase in run",
    ("phase", "branch"): "open the phase in run, before or after the parallel part",
    ("update_state", "run"): "run has the state as the value that phase returns",
    ("update_state", "sync handler"): "a sync handler gets the state as an argument and returns the new one",
    ("update_state", "branch"): "collect the branches' results and call it once in the async handler itself",
}
#: What a pure context may still ask: it reads and changes nothing.
READS: Final = frozenset({"now", "info", "cancel_requested"})
#: Except here: a closure gets all that it may know, and a transition is run again by whoever reads a process from its
#: history.
_ISOLATED_CONTEXTS: Final = frozenset({"update_state closure", "transition"})
#: Who sent an update is known where it is judged; a predicate is about no message.
_ALLOWED_PAIRS: Final = frozenset({("sender", "validator")})


class _ThreadState(threading.local):
    """Where this thread is. No context variables: the contexts of workflow code are its own, and empty at first."""

    runtime: WorkflowRuntime | None = None
    pure_context: str | None = None


_thread_state = _ThreadState()
#: Python 3.11: the determinism guard looks at calls from here on (True) or not; gives what undoes it.
switch: Callable[[bool], Callable[[], None] | None] | None = None


def runtime_for(name: str) -> WorkflowRuntime:
    """The executor at work. Raises ``OutsideWorkflow``, or ``NestingError`` in a pure context."""
    runtime = _thread_state.runtime
    context = _thread_state.pure_context if runtime is None else runtime.run_context.pure_context
    if (
        context is not None
        and (name not in READS or context in _ISOLATED_CONTEXTS)
        and (name, context) not in _ALLOWED_PAIRS
    ):
        raise NestingError(
            f"{_display_name(name)} is not allowed in a {context}: it must only look at what it is given and return"
        )
    if runtime is None:
        raise OutsideWorkflow(
            f"{_display_name(name)} was called outside a running workflow: call it from run(), a handler or a branch of one "
            "(in a test: through WorkflowEnvironment)"
        )
    return runtime


def unit_for(name: str) -> Unit:
    """The unit at work, if ``name`` is allowed in it. Raises ``OutsideWorkflow`` or ``NestingError``."""
    unit = runtime_for(name).scheduler.current
    if unit is None:
        raise OutsideWorkflow(f"{name} was called outside of a unit of the workflow")
    reason = FORBIDDEN.get((name, unit.kind))
    if reason is not None:
        raise NestingError(f"{_display_name(name)} is not allowed in a {unit.kind} ({unit.name}): {reason}")
    return unit


@contextmanager
def use_runtime(runtime: WorkflowRuntime) -> Iterator[None]:
    """Workflow code that runs inside belongs to the run of ``runtime``.

    Async generators that it begins to its units.
    """
    adopt, hooks = runtime.scheduler.adopt_generator, sys.get_asyncgen_hooks()
    outer, _thread_state.runtime = _thread_state.runtime, runtime
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
    """The collector has an async generator of a run that is gone: with this hook it runs nothing of it."""


@contextmanager
def outside_workflow(pure_context: str | None) -> Iterator[None]:
    """User code that runs inside belongs to no workflow (activities: None) or to a pure context (queries)."""
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
    """Whether workflow code is running here."""
    return _thread_state.runtime is not None


def is_guarded() -> bool:
    """Whether what runs here is workflow code, that of a pure context included."""
    return _thread_state.runtime is not None or _thread_state.pure_context is not None


def current_runtime() -> WorkflowRuntime | None:
    """The executor whose workflow code is running here."""
    return _thread_state.runtime


def _display_name(name: str) -> str:
    """Activities have dotted names; primitives are of ``api``."""
    return name if "." in name else f"api.{name}"
