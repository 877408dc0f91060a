"""A history against code: does the code still do what the run did?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Definition, RunInfo
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.tracing import TracingExecutor
from temporalex_django.errors import NondeterminismError


def replay(
    definition: Definition, history: Sequence[HistoryEvent], *, run: Callable[[Callable[[], None]], None] | None = None
) -> None:
    """Run ``definition`` through ``history`` and drop it. An empty history fits any code.

    ``run`` calls what it is given, within a time limit for instance. Raises ``NondeterminismError`` where they part,
    with the file and line of the code in ``place``, and what ``run`` raises.
    """
    if not history:
        return
    run = run or _call
    try:
        run(partial(_through, Executor, definition, history))
    except NondeterminismError:
        run(partial(_through, TracingExecutor, definition, history))  # again, slower, by one that can say where
        raise


def _call(call: Callable[[], None]) -> None:
    call()


def _through(kind: type[Executor], definition: Definition, history: Sequence[HistoryEvent]) -> None:
    facts = history[0].attributes
    info = RunInfo(
        workflow=facts.get("workflow", definition.name),
        id=facts.get("id", ""),
        run_id=facts.get("run_id", ""),
        version=facts.get("version", 1),
        attempt=facts.get("attempt", 1),
        parent=facts.get("parent"),
    )
    executor = kind(definition, info)
    try:
        executor.replay(list(history))
    finally:
        executor.evict()
