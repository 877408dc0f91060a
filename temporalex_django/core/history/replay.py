"""A history against code: does the code still do what the run did?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Definition, RunInfo
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.inputs import ReplayDifference
from temporalex_django.core.history.tracing import TracingExecutor
from temporalex_django.core.signal_failures import HandlerPutRight
from temporalex_django.errors import NondeterminismError


def replay(
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    run: Callable[[Callable[[], None]], None] | None = None,
    strict: bool = False,
) -> list[ReplayDifference]:
    """Run ``definition`` through ``history`` and drop it. An empty history fits any code.

    Gives the inputs and durations that differ from the history, with the file and line of the code. ``strict``: an
    input that differs raises, too. ``run`` calls what it is given, within a time limit for instance. Raises
    ``NondeterminismError`` where they part, with the file and line of the code in ``place``, and what ``run`` raises.
    """
    if not history:
        return []
    run, found = run or _call, list[ReplayDifference]()
    try:
        run(partial(_through, Executor, definition, history, strict, found))
    except NondeterminismError:
        # again, slower, by one that can say where
        run(partial(_through, TracingExecutor, definition, history, strict, found))
        raise
    if found:
        run(partial(_through, TracingExecutor, definition, history, strict, found))
    return found


def _call(call: Callable[[], None]) -> None:
    call()


def fits(
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    run: Callable[[Callable[[], None]], None] | None = None,
    between: Callable[[], None] | None = None,
) -> tuple[int, BaseException | None]:
    """How many activations ``definition`` goes through as they are recorded, and what it raises in the next one.

    ``run``: as above. ``between`` is called behind each of them.
    """
    done = 0

    def through() -> None:
        nonlocal done
        for _ in executor.replay_in_steps(list(history)):
            done += 1
            if between is not None:
                between()

    for skip_failed in (False, True):
        done, executor = 0, _executor(Executor, definition, history, skip_failed=skip_failed)
        try:
            (run or _call)(through)
        except HandlerPutRight:
            continue
        except Exception as exc:  # noqa: BLE001 - whatever the code raises, it does not fit
            return done, exc
        finally:
            executor.evict()
        break
    return done, None


def _through(
    kind: type[Executor],
    definition: Definition,
    history: Sequence[HistoryEvent],
    strict: bool,  # noqa: FBT001 - called by `partial` alone
    found: list[ReplayDifference],
) -> None:
    for skip_failed in (False, True):
        executor = _executor(kind, definition, history, strict=strict, skip_failed=skip_failed)
        try:
            executor.replay(list(history))
        except HandlerPutRight:
            continue
        finally:
            found[:] = executor.differences
            executor.evict()
        return


def _executor(
    kind: type[Executor],
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    strict: bool = False,
    skip_failed: bool = False,
) -> Executor:
    facts = history[0].attributes if history else {}
    info = RunInfo(
        workflow=facts.get("workflow", definition.name),
        id=facts.get("id", ""),
        run_id=facts.get("run_id", ""),
        version=facts.get("version", 1),
        attempt=facts.get("attempt", 1),
        parent=facts.get("parent"),
    )
    return kind(definition, info, strict=strict, skip_failed=skip_failed)
