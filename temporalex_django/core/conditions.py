"""``wait_condition``: predicates that are looked at again whenever a unit has run.

One waiter at a time is let through, and goes on at once: so its condition holds when it goes on, whatever those before
it did.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from temporalex_django.core.ivar import IVar
from temporalex_django.core.journal import Journal
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.scheduler import Scheduler, Unit
from temporalex_django.core.unit_contexts import inherit_context
from temporalex_django.errors import NestingError


class Condition:
    """One call of ``wait_condition`` that waits."""

    __slots__ = ("ivar", "predicate", "unit")

    def __init__(self, unit: Unit, predicate: Callable[[], Any], ivar: IVar) -> None:
        self.unit = unit
        self.predicate = predicate
        self.ivar = ivar

    def is_true(self) -> bool:
        """Whether it is true. An async predicate would be true for ever: it raises ``NestingError``."""
        verdict = inherit_context(self.unit.context).run(self.predicate)
        if inspect.isawaitable(verdict):
            getattr(verdict, "close", lambda: None)()
            raise NestingError("wait_condition needs a plain predicate: this one gave an awaitable")
        return bool(verdict)

    def resolve(self, error: BaseException | None) -> None:
        """Fill the wait without waking its unit, which is stepped by whoever asked."""
        self.ivar.waiters.clear()
        if error is None:
            self.ivar.put(True)
        else:
            self.ivar.fail(error)


class Conditions:
    """Open conditions of a run in the order in which they began to wait.

    A predicate that raises fails its own waiter only.
    """

    __slots__ = ("_journal", "_open_conditions", "_run_context", "_scheduler")

    def __init__(self, run_context: RunContext, journal: Journal, scheduler: Scheduler) -> None:
        self._run_context = run_context
        self._journal = journal
        self._scheduler = scheduler
        self._open_conditions: list[Condition] = []

    def watch(self, condition: Condition) -> None:
        """Look at it whenever a unit has run, until it is forgotten."""
        self._open_conditions.append(condition)
        self._scheduler.set_next_waiter(self._next_unit)

    def remove(self, condition: Condition) -> None:
        """Nobody waits for it any more, if anybody did."""
        with suppress(ValueError):
            self._open_conditions.remove(condition)

    def clear(self) -> None:
        """The run is dropped."""
        self._open_conditions.clear()

    def _next_unit(self) -> Unit | None:
        """Whose condition holds.

        Nobody while there is nothing to record: a refused update must not move a run (its time could).
        """
        if not self._open_conditions or not self._journal.is_recording:
            return None
        with self._run_context.pure_section("predicate"):
            return self._resolve_first()

    def _resolve_first(self) -> Unit | None:
        """The one that is to go on now. Units that go on anyway, by their timer or a cancel, are left alone."""
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
    """Whether the predicate takes the phase state."""
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1
