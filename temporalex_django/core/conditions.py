"""``wait_condition``: predicates that are looked at again whenever a unit has run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from temporalex_django.core.ivar import IVar
from temporalex_django.core.scheduler import Unit
from temporalex_django.errors import NestingError


class Condition:
    """One call of ``wait_condition`` that waits."""

    __slots__ = ("ivar", "predicate", "unit")

    def __init__(self, unit: Unit, predicate: Callable[[], Any], ivar: IVar) -> None:
        self.unit = unit
        self.predicate = predicate
        self.ivar = ivar


class Conditions:
    """Open conditions in the order in which they were waited for. A predicate that raises fails its own waiter only."""

    def __init__(self) -> None:
        self.open: list[Condition] = []

    def look(self) -> None:
        for condition in list(self.open):
            if condition.ivar.full:
                self.open.remove(condition)
                continue
            try:
                true = holds(condition.predicate)
            except Exception as exc:  # noqa: BLE001 - user code; its waiter gets the error
                self.open.remove(condition)
                condition.ivar.fail(exc)
                continue
            if true:
                self.open.remove(condition)
                condition.ivar.put(True)


def holds(predicate: Callable[[], Any]) -> bool:
    """Whether it is true. An async predicate would be true for ever: it raises ``NestingError``."""
    verdict = predicate()
    if inspect.isawaitable(verdict):
        getattr(verdict, "close", lambda: None)()
        raise NestingError("wait_condition needs a plain predicate: this one gave an awaitable")
    return bool(verdict)


def wants_state(predicate: Callable[..., Any]) -> bool:
    """Whether the predicate takes the phase state (D-30)."""
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1
