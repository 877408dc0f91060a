"""Replays of a history against code, to see whether the code still issues the commands that the run issued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Definition, RunInfo
from temporalex_django.core.history.events import HistoryEvent, ReplayDifference
from temporalex_django.core.history.tracing import TracingExecutor
from temporalex_django.core.messages.headers import headers_from
from temporalex_django.core.messages.signal_failures import HandlerFixed
from temporalex_django.errors import NondeterminismError


def replay(
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    run: Callable[[Callable[[], None]], None] | None = None,
    strict: bool = False,
) -> list[ReplayDifference]:
    """Run ``definition`` through ``history``, and return the inputs and durations that differ.

    An empty history fits any code. Each difference has the file and line of the code. With ``strict``, an input that
    differs raises an error. ``run(function)`` calls the function, for example within a time limit; None calls it
    directly.

    Raises ``NondeterminismError`` if code and history differ, with the file and line of the code in ``place``. Also
    raises any error of ``run``.
    """
    if not history:
        return []
    run, differences = run or _call_directly, list[ReplayDifference]()
    try:
        run(partial(_replay_history, Executor, definition, history, strict, differences))
    except NondeterminismError:
        # Replay again with a tracing executor, which is slower and knows the place.
        run(partial(_replay_history, TracingExecutor, definition, history, strict, differences))
        raise
    if differences:
        run(partial(_replay_history, TracingExecutor, definition, history, strict, differences))
    return differences


def _call_directly(call: Callable[[], None]) -> None:
    call()


def try_replay(
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    run: Callable[[Callable[[], None]], None] | None = None,
    on_activation: Callable[[], None] | None = None,
) -> tuple[int, BaseException | None]:
    """Return ``(number of activations that could be replayed, error in the next one or None)``.

    ``run(function)`` calls the function, for example within a time limit. ``on_activation`` is called after each
    activation.
    """
    activation_count = 0

    def replay_steps() -> None:
        nonlocal activation_count
        for _ in executor.replay_in_steps(list(history)):
            activation_count += 1
            if on_activation is not None:
                on_activation()

    for skip_failed in (False, True):
        # A handler that was corrected asks for a second replay, which skips the failed handlers. See decision 46.
        activation_count, executor = 0, _new_executor(Executor, definition, history, skip_failed=skip_failed)
        try:
            (run or _call_directly)(replay_steps)
        except HandlerFixed:
            continue
        except Exception as exc:  # noqa: BLE001 - whatever the code raises, it does not fit
            return activation_count, exc
        finally:
            executor.evict()
        break
    return activation_count, None


def _replay_history(
    kind: type[Executor],
    definition: Definition,
    history: Sequence[HistoryEvent],
    strict: bool,  # noqa: FBT001 - called by `partial` alone
    differences: list[ReplayDifference],
) -> None:
    """Replay ``history`` with an executor of the class ``kind``, and put what differs into ``differences``."""
    for skip_failed in (False, True):
        executor = _new_executor(kind, definition, history, strict=strict, skip_failed=skip_failed)
        try:
            executor.replay(list(history))
        except HandlerFixed:
            continue
        finally:
            differences[:] = executor.differences
            executor.evict()
        return


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromisoformat(text)


def _new_executor(
    kind: type[Executor],
    definition: Definition,
    history: Sequence[HistoryEvent],
    *,
    strict: bool = False,
    skip_failed: bool = False,
) -> Executor:
    """Return an executor of the class ``kind`` for the run that ``history`` begins."""
    facts = history[0].attributes if history else {}
    info = RunInfo(
        workflow=facts.get("workflow", definition.name),
        id=facts.get("id", ""),
        run_id=facts.get("run_id", ""),
        version=facts.get("version", 1),
        attempt=facts.get("attempt", 1),
        parent=facts.get("parent"),
        scheduled_for=_parse_time(facts.get("scheduled_for")),
        headers=headers_from(facts),
    )
    return kind(definition, info, strict=strict, skip_failed=skip_failed)
