"""Where a primitive may be called: the nesting matrix (D-04, D-28) and the way to the executor at work.

Rows are the kinds of unit; whatever is not listed in ``FORBIDDEN`` is allowed. Functions that the executor calls outside of any
unit (validators, predicates, ``update_state`` closures) and queries run in a *pure place*: they are not run again on replay, or
run at other moments, so a draw or a command there would part live runs from rebuilt ones.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from temporalex_django.errors import NestingError, OutsideWorkflow

if TYPE_CHECKING:
    from temporalex_django.core.executor import Executor
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
#: What a pure place may still ask: it reads and changes nothing.
READS: Final = frozenset({"now", "info", "cancel_requested"})
#: Except here: a closure gets all that it may know, and a transition is run again by whoever reads a graph from its history.
_BLIND: Final = frozenset({"update_state closure", "transition"})
#: Who sent an update is known where it is judged; a predicate is about no message.
_BESIDE: Final = frozenset({("sender", "validator")})


class _Here(threading.local):
    """Where this thread is. No context variables: the contexts of workflow code are its own, and empty at first."""

    executor: Executor | None = None
    place: str | None = None


_here = _Here()
#: Python 3.11: the determinism guard looks at calls from here on (True) or not; gives what undoes it.
switch: Callable[[bool], Callable[[], None] | None] | None = None


def executor_for(name: str) -> Executor:
    """The executor at work. Raises ``OutsideWorkflow``, or ``NestingError`` in a pure place."""
    executor = _here.executor
    place = _here.place if executor is None else executor.place
    if place is not None and (name not in READS or place in _BLIND) and (name, place) not in _BESIDE:
        raise NestingError(
            f"{_shown(name)} is not allowed in a {place}: it must only look at what it is given and return"
        )
    if executor is None:
        raise OutsideWorkflow(
            f"{_shown(name)} was called outside a running workflow: call it from run(), a handler or a branch of one "
            "(in a test: through WorkflowEnvironment)"
        )
    return executor


def unit_for(name: str) -> Unit:
    """The unit at work, if ``name`` is allowed in it. Raises ``OutsideWorkflow`` or ``NestingError``."""
    unit = executor_for(name).scheduler.current
    if unit is None:
        raise OutsideWorkflow(f"{name} was called outside of a unit of the workflow")
    reason = FORBIDDEN.get((name, unit.kind))
    if reason is not None:
        raise NestingError(f"{_shown(name)} is not allowed in a {unit.kind} ({unit.name}): {reason}")
    return unit


@contextmanager
def active(executor: Executor) -> Iterator[None]:
    """Workflow code that runs inside belongs to ``executor``; async generators that it begins belong to its units."""
    adopt, hooks = executor.scheduler.adopt, sys.get_asyncgen_hooks()
    outer, _here.executor = _here.executor, executor
    sys.set_asyncgen_hooks(adopt, _left_alone)
    undo = switch(executor.suspect) if switch is not None else None
    try:
        yield
    finally:
        if undo is not None:
            undo()
        sys.set_asyncgen_hooks(*hooks)
        _here.executor = outer


def _left_alone(generator: object) -> None:
    """The collector has an async generator of a run that is gone: with this hook it runs nothing of it."""


@contextmanager
def nowhere(place: str | None) -> Iterator[None]:
    """User code that runs inside belongs to no workflow (activities: None) or to a pure place (queries)."""
    outer = _here.executor, _here.place
    _here.executor, _here.place = None, place
    undo = switch(place is not None) if switch is not None else None
    try:
        yield
    finally:
        if undo is not None:
            undo()
        _here.executor, _here.place = outer


def inside_workflow() -> bool:
    """Whether workflow code is running here."""
    return _here.executor is not None


def guarded() -> bool:
    """Whether what runs here is workflow code, that of a pure place included."""
    return _here.executor is not None or _here.place is not None


def current() -> Executor | None:
    """The executor whose workflow code is running here."""
    return _here.executor


def _shown(name: str) -> str:
    """Activities have dotted names; primitives are of ``api``."""
    return name if "." in name else f"api.{name}"
