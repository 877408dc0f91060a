"""Calls of primitives that workflow code has made and has not used yet, by unit.

A call that nothing refers to any more can never act. Its unit gets an error at its next wait, before that wait issues a
command. Only calls that reference counting frees are reported in this way. A call that the garbage collector frees
counts as held, because the moment of a collection differs between processes. Calls that are held are judged when the
unit ends.
"""

from __future__ import annotations

import gc
from threading import get_ident
from typing import TYPE_CHECKING

from temporalex_django.core import current
from temporalex_django.errors import NotAwaited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalex_django.core.primitive_table import Primitive
    from temporalex_django.core.units.scheduler import Unit

#: The name of a call, and the code that uses it; ``{}`` stands for the name.
Entry = tuple[str, str]
#: The thread in which the garbage collector runs now, or None.
_collector: int | None = None


def _track_collector(phase: str, _: object) -> None:
    global _collector  # noqa: PLW0603 - the interpreter has one collector
    _collector = get_ident() if phase == "start" else None


gc.callbacks.append(_track_collector)


class Unawaited:
    """The calls of primitives by one unit that it has not used yet.

    - ``call_count`` counts all of its calls.
    - ``unused_calls`` has the calls that may still be used, by number.
    - ``dropped`` has calls that cannot be used any more, for which the unit has not got an error yet.
    - ``lost`` has calls that cannot be used any more either. The unit has got an error for them, or gets one at its
      end.
    """

    __slots__ = ("call_count", "dropped", "lost", "unused_calls")

    def __init__(self) -> None:
        self.call_count = 0
        self.unused_calls: dict[int, Entry] = {}
        self.dropped: tuple[Entry, ...] = ()
        self.lost: tuple[Entry, ...] = ()

    def wait_error(self, unit: Unit) -> NotAwaited:
        """Return the error for a coroutine (``unit``) that is about to wait after it dropped calls without an await.

        Each call is reported once.
        """
        dropped, self.dropped = self.dropped, ()
        self.lost += dropped
        return _not_awaited_error(unit, dropped)

    def end_error(self, unit: Unit) -> NotAwaited | None:
        """Return the error for a coroutine (``unit``) that ends with calls of primitives it never used, or None."""
        entries = [*self.lost, *self.dropped, *self.unused_calls.values()]
        self.unused_calls.clear()
        self.lost = self.dropped = ()
        return _not_awaited_error(unit, entries) if entries else None


class PendingCall:
    """A primitive that was called and waits to be used."""

    __slots__ = ("_number", "_owner", "name", "primitive")

    def __init__(self, primitive: Primitive, name: str | None = None) -> None:
        """Register the call with the coroutine of workflow code that runs now (the active unit).

        ``name`` stands for the primitive in messages. Pass it for the call of an activity. Raises ``OutsideWorkflow``
        and ``NestingError`` as ``current.unit_for`` does.
        """
        owner = current.unit_for(primitive, name).unawaited
        self.primitive = primitive
        self.name = name or primitive.name
        self._owner: Unawaited | None = owner
        self._number = owner.call_count = owner.call_count + 1
        owner.unused_calls[self._number] = self.name, primitive.usage

    @property
    def usage(self) -> str:
        """The code that the author should have written to use the call, such as ``await sleep(…)``, for messages."""
        return self.primitive.usage.format(self.name)

    def settle(self) -> None:
        """Record that the call has been used, or passed to another coroutine: it is not reported as forgotten."""
        owner = self._owner
        if owner is not None:
            self._owner = None
            owner.unused_calls.pop(self._number, None)

    def __del__(self) -> None:
        try:
            owner = self._owner
        except AttributeError:  # ``__init__`` raised before it set the owner
            return
        if owner is not None and (entry := owner.unused_calls.pop(self._number, None)) is not None:
            # Freed by the collector, at a moment that differs between processes: the unit gets its error at its end.
            if _collector is not None and _collector == get_ident():
                owner.lost += (entry,)
            else:
                owner.dropped += (entry,)


def _not_awaited_error(unit: Unit, entries: Sequence[Entry]) -> NotAwaited:
    """Return the error for calls that ``unit`` never awaited. ``entries`` has at least one call."""
    names = ", ".join(name for name, _ in entries)
    name, form = entries[0]
    return NotAwaited(f"{unit.name} called {names} and never awaited it: write `{form.format(name)}`")
