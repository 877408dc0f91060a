"""``wait_condition``: predicates that are evaluated again after each step of a unit.

One waiter at a time continues, at once. So its condition holds when it continues, whatever other waiters did before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from temporalex_django.core.pending_commands import Journal
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Scheduler, Unit, inherit_context
from temporalex_django.errors import NestingError


class Condition:
    """A coroutine (``unit``) that waits in ``wait_condition``, with its predicate and the IVar that it awaits."""

    __slots__ = ("ivar", "predicate", "unit")

    def __init__(self, unit: Unit, predicate: Callable[[], Any], ivar: IVar) -> None:
        self.unit = unit
        self.predicate = predicate
        self.ivar = ivar

    def is_true(self) -> bool:
        """Evaluate the predicate and return its truth.

        The awaitable of an async predicate would always be true, so such a predicate raises ``NestingError``.
        """
        # In a copy of the unit's context: a predicate may read context variables, but what it sets is discarded.
        verdict = inherit_context(self.unit.context).run(self.predicate)
        if inspect.isawaitable(verdict):
            getattr(verdict, "close", lambda: None)()
            raise NestingError("wait_condition needs a plain predicate: this one returned an awaitable")
        return bool(verdict)

    def resolve(self, error: BaseException | None) -> None:
        """Fill the IVar with True, or with ``error``.

        It does not schedule the coroutine that waits, because the caller continues that coroutine itself.
        """
        self.ivar.waiters.clear()
        if error is None:
            self.ivar.put(True)
        else:
            self.ivar.fail(error)


class Conditions:
    """Open conditions of a run, in the order in which they began to wait.

    A predicate that raises fails its own waiter only.
    """

    __slots__ = ("_journal", "_open_conditions", "_run_context", "_scheduler")

    def __init__(self, run_context: RunContext, journal: Journal, scheduler: Scheduler) -> None:
        self._run_context = run_context
        self._journal = journal
        self._scheduler = scheduler
        self._open_conditions: list[Condition] = []

    def watch(self, condition: Condition) -> None:
        """Evaluate the condition whenever a coroutine of the run has come to a wait, until it is removed."""
        self._open_conditions.append(condition)
        self._scheduler.set_next_waiter(self._next_unit)

    def remove(self, condition: Condition) -> None:
        """Stop evaluating the condition. Does nothing if it is not watched."""
        with suppress(ValueError):
            self._open_conditions.remove(condition)

    def clear(self) -> None:
        """Discard all conditions. Call it when the run is evicted."""
        self._open_conditions.clear()

    def _next_unit(self) -> Unit | None:
        """Return the first unit whose condition holds now, but None before the activation has an effect.

        An activation that only refuses an update leaves no event, so a replay could not advance the run in it.
        """
        if not self._open_conditions or not self._journal.is_recording:
            return None
        with self._run_context.pure_section("predicate"):
            return self._resolve_first()

    def _resolve_first(self) -> Unit | None:
        """Count a predicate that raises as one that holds. Skip units that continue anyway."""
        error: BaseException | None = None
        for condition in self._open_conditions:
            if condition.unit.queued:
                continue
            try:
                if not condition.is_true():
                    continue
            except Exception as exc:  # noqa: BLE001 - user code; its waiter gets the error
                error = exc
            condition.resolve(error)
            return condition.unit
        return None


def takes_state(predicate: Callable[..., Any]) -> bool:
    """Return True if ``predicate`` takes the phase state: it has exactly one required positional parameter."""
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1
