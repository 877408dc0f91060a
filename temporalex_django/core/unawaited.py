"""Calls that workflow code made and has not used yet, by unit.

A call that nothing refers to any more acts nowhere: its unit is told at its next wait, before that wait asks for
anything. Only reference counts decide when that is. A call that the garbage collector frees counts as held, because
the moment of a collection differs from one process to the next. Calls that are held are judged when the unit ends.
"""

from __future__ import annotations

import gc
from threading import get_ident
from typing import TYPE_CHECKING, ClassVar

from temporalex_django.core import current
from temporalex_django.errors import NotAwaited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalex_django.core.scheduler import Unit

#: The name of a call, and the code that uses it: ``{}`` stands for the name.
Entry = tuple[str, str]
#: The thread in which the garbage collector runs now.
_collector: int | None = None


def _track_collector(phase: str, _: object) -> None:
    global _collector  # noqa: PLW0603 - the interpreter has one collector
    _collector = get_ident() if phase == "start" else None


gc.callbacks.append(_track_collector)


class Unawaited:
    """Calls of one unit.

    ``call_count`` counts all of them. ``unused_calls`` may still be used, by number. ``dropped`` cannot be, and the
    unit has not been told. ``lost`` cannot be either; the unit has been told, or hears of it when it ends.
    """

    __slots__ = ("call_count", "dropped", "lost", "unused_calls")

    def __init__(self) -> None:
        self.call_count = 0
        self.unused_calls: dict[int, Entry] = {}
        self.dropped: tuple[Entry, ...] = ()
        self.lost: tuple[Entry, ...] = ()

    def wait_error(self, unit: Unit) -> NotAwaited:
        """The error for a unit that is about to wait and has dropped calls; it is told once."""
        dropped, self.dropped = self.dropped, ()
        self.lost += dropped
        return _not_awaited_error(unit, dropped)

    def end_error(self, unit: Unit) -> NotAwaited | None:
        """The error for a unit that ends with calls which it never used."""
        entries = [*self.lost, *self.dropped, *self.unused_calls.values()]
        self.unused_calls.clear()
        self.lost = self.dropped = ()
        return _not_awaited_error(unit, entries) if entries else None


class PendingCall:
    """A primitive that was called and waits to be used."""

    __slots__ = ("_number", "_owner", "name")

    #: The code that uses it.
    form: ClassVar[str] = "await {}(...)"

    def __init__(self, name: str) -> None:
        """Note the call with the unit at work. Raises ``OutsideWorkflow`` or ``NestingError``."""
        owner = current.unit_for(name).unawaited
        self.name = name
        self._owner: Unawaited | None = owner
        self._number = owner.call_count = owner.call_count + 1
        owner.unused_calls[self._number] = name, self.form

    @property
    def usage(self) -> str:
        """The code that uses it."""
        return self.form.format(self.name)

    def settle(self) -> None:
        """It has been used, or is in the hands of another unit."""
        owner = self._owner
        if owner is not None:
            self._owner = None
            owner.unused_calls.pop(self._number, None)

    def __del__(self) -> None:
        try:
            owner = self._owner
        except AttributeError:  # it was refused when it was called
            return
        if owner is not None and (entry := owner.unused_calls.pop(self._number, None)) is not None:
            if _collector is not None and _collector == get_ident():
                owner.lost += (entry,)
            else:
                owner.dropped += (entry,)


def _not_awaited_error(unit: Unit, entries: Sequence[Entry]) -> NotAwaited:
    names = ", ".join(name for name, _ in entries)
    name, form = entries[0]
    return NotAwaited(f"{unit.name} called {names} and never awaited it: write `{form.format(name)}`")
