"""The only place where workflow code gives up control.

An ``IVar`` is written once and read any number of times. Awaiting an empty one is the single way in which a unit
blocks: activities, timers, signals, phases and branches are all built on it, so "every unit is blocked" is a fact that
the scheduler knows, never a guess (idea: the IVar and ``waitIVar`` of the STM runtime; trio's ``_traps.py`` for keeping
it to one module).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from temporalex_django.core import current
from temporalex_django.errors import NestingError

if TYPE_CHECKING:
    from temporalex_django.core.mailbox import Signal
    from temporalex_django.core.scheduler import Unit
    from temporalex_django.core.shapes import Waits


class IVar:
    """``label`` says what is waited for (``waiting_for``). ``abandon`` is called when its waiter is cancelled.

    ``hand``: the signals that its value is made of, which nobody has taken until somebody goes on with the value.
    ``about`` says what is waited for to programs: see ``core.shapes.Waits``.
    """

    __slots__ = ("abandon", "about", "error", "full", "hand", "label", "value", "waiters")

    def __init__(self, label: str = "", abandon: Callable[[], None] | None = None) -> None:
        self.label = label
        self.abandon = abandon
        self.about: Waits | None = None
        self.full = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.hand: tuple[Signal, ...] = ()
        self.waiters: list[Unit] = []

    @property
    def labels(self) -> Sequence[str]:
        """What to show: one that stands for several things shows each."""
        return (self.label,)

    @property
    def waits(self) -> Sequence[Waits]:
        """What is waited for, for programs; nothing where that is said elsewhere (an activity has a row)."""
        return () if self.about is None else (self.about,)

    def put(self, value: Any = None) -> None:
        """Fill it and wake every waiter; the first value stays, a second put is ignored."""
        if not self.full:
            self.full = True
            self.value = value
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Fill it with an error, which every waiter raises."""
        if not self.full:
            self.full = True
            self.error = error
            self._wake()

    def _wake(self) -> None:
        for unit in self.waiters:
            unit.wake()
        self.waiters.clear()

    def __await__(self) -> Generator[IVar, None, Any]:
        if not self.full:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class Call:
    """A primitive that was called and waits to be awaited.

    Its context is checked at the call, where the mistake is, and again at the await, since a call may be handed to
    another unit (``parallel([charge(1), charge(2)])``). ``begin`` acts, and gives what is waited for.
    """

    __slots__ = ("_begin", "_unit", "name")

    def __init__(self, name: str, begin: Callable[[], Awaitable[Any]]) -> None:
        unit = current.unit_for(name)
        self.name = name
        self._begin: Callable[[], Awaitable[Any]] | None = begin
        self._unit = unit
        unit.unawaited[self] = None

    @property
    def usage(self) -> str:
        return f"await {self.name}(...)"

    def hand_over(self) -> None:
        """The call counts as made in the branch that it was given to."""
        self._unit.unawaited.pop(self, None)

    def __await__(self) -> Generator[Any, None, Any]:
        begin = self._begin
        if begin is None:
            raise NestingError(f"{self.name} was awaited twice: call it again for another one")
        current.unit_for(self.name)
        self._unit.unawaited.pop(self, None)
        self._begin = None
        return begin().__await__()
