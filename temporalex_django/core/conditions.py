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
from temporalex_django.core.scheduler import Scheduler, Unit
from temporalex_django.core.standing import Standing
from temporalex_django.core.unit_contexts import inherited
from temporalex_django.errors import NestingError


class Condition:
    """One call of ``wait_condition`` that waits."""

    __slots__ = ("ivar", "predicate", "unit")

    def __init__(self, unit: Unit, predicate: Callable[[], Any], ivar: IVar) -> None:
        self.unit = unit
        self.predicate = predicate
        self.ivar = ivar

    def holds(self) -> bool:
        """Whether it is true. An async predicate would be true for ever: it raises ``NestingError``."""
        verdict = inherited(self.unit.context).run(self.predicate)
        if inspect.isawaitable(verdict):
            getattr(verdict, "close", lambda: None)()
            raise NestingError("wait_condition needs a plain predicate: this one gave an awaitable")
        return bool(verdict)

    def let_through(self, error: BaseException | None) -> None:
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

    __slots__ = ("_journal", "_open", "_scheduler", "_standing")

    def __init__(self, standing: Standing, journal: Journal, scheduler: Scheduler) -> None:
        self._standing = standing
        self._journal = journal
        self._scheduler = scheduler
        self._open: list[Condition] = []

    def watch(self, condition: Condition) -> None:
        """Look at it whenever a unit has run, until it is forgotten."""
        self._open.append(condition)
        self._scheduler.ask_after_each(self._next)

    def forget(self, condition: Condition) -> None:
        """Nobody waits for it any more, if anybody did."""
        with suppress(ValueError):
            self._open.remove(condition)

    def clear(self) -> None:
        """The run is dropped."""
        self._open.clear()

    def _next(self) -> Unit | None:
        """Whose condition holds.

        Nobody while there is nothing to record: a refused update must not move a run (its time could).
        """
        if not self._open or not self._journal.recording:
            return None
        with self._standing.pure("predicate"):
            return self._first()

    def _first(self) -> Unit | None:
        """The one that is to go on now. Units that go on anyway, by their timer or a cancel, are left alone."""
        error: BaseException | None = None
        for condition in self._open:
            if condition.unit.queued:
                continue
            try:
                if not condition.holds():
                    continue
            except Exception as exc:  # noqa: BLE001 - user code; its waiter gets the error
                error = exc
            condition.let_through(error)
            return condition.unit
        return None


def wants_state(predicate: Callable[..., Any]) -> bool:
    """Whether the predicate takes the phase state."""
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1
