"""Variables that are set once and awaited, and calls that nobody awaited."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from temporalex_django.core import current
from temporalex_django.errors import NestingError, NotAwaited

if TYPE_CHECKING:
    from temporalex_django.core.primitive_table import Primitive
    from temporalex_django.core.typed_dicts import WaitInfo


# --- unawaited --------------------------------------------------------------------------------------------------------
#
# Calls of primitives that workflow code has made and has not used yet, by unit.
#
# A call that nothing refers to any more can never act. Its unit gets an error at its next wait, before that wait issues
# a command. Only calls that reference counting frees are reported in this way. A call that the garbage collector frees
# counts as held, because the moment of a collection differs between processes. Calls that are held are judged when the
# unit ends.


#: The name of a call, and the code that uses it; ``{}`` stands for the name.
Entry = tuple[str, str]
#: The thread in which the garbage collector runs now, or None.
_collector: int | None = None


def _track_collector(phase: str, _: object) -> None:
    global _collector  # noqa: PLW0603 - the interpreter has one collector
    _collector = get_ident() if phase == "start" else None


gc.callbacks.append(_track_collector)


class WaitingUnit(Protocol):
    """A unit of workflow code, as the variables that it waits for see it."""

    @property
    def name(self) -> str: ...

    def wake(self) -> None:
        """Let the unit run again."""


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

    def wait_error(self, unit: WaitingUnit) -> NotAwaited:
        """Return the error for a coroutine (``unit``) that is about to wait after it dropped calls without an await.

        Each call is reported once.
        """
        dropped, self.dropped = self.dropped, ()
        self.lost += dropped
        return _not_awaited_error(unit, dropped)

    def end_error(self, unit: WaitingUnit) -> NotAwaited | None:
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


def _not_awaited_error(unit: WaitingUnit, entries: Sequence[Entry]) -> NotAwaited:
    names = ", ".join(name for name, _ in entries)
    name, form = entries[0]
    return NotAwaited(f"{unit.name} called {names} and never awaited it: write `{form.format(name)}`")


if TYPE_CHECKING:
    T = TypeVar("T")
    #: The type of a ``Call`` with the result ``T``. Type checkers report a coroutine that nobody awaits. Its other
    #: types are not Any, because mypy does not choose between overloads by a type with Any in it.
    AwaitableCall = Coroutine[object, None, T]
else:
    AwaitableCall = Awaitable


# --- ivar -------------------------------------------------------------------------------------------------------------
#
# The IVar: the only thing that a unit of workflow code can wait for (see decision 10). A ``Halt`` ends the activation.
#
# An ``IVar`` is written once and read any number of times. A unit blocks only by awaiting an empty one. Activities,
# timers, signals, phases and branches are all built on it. So the scheduler knows for certain when every unit is
# blocked.
#
# The idea comes from the IVar and ``waitIVar`` of the STM runtime. Keeping it to one module follows ``_traps.py`` of
# trio.


class IVar:
    """A variable that is set once, to a value or to an error.

    - ``label`` names for people what is waited for (``waiting_for``).
    - ``abandon()`` is called when the unit that waits for it is cancelled.
    - ``taken_signals`` are the signals that went into its value. They count as taken when a unit continues with the
      value.
    - ``wait_info`` describes the wait for programs; see ``core.typed_dicts.WaitInfo``.
    """

    __slots__ = ("abandon", "error", "is_full", "label", "taken_signals", "value", "wait_info", "waiters")

    def __init__(self, label: str = "", abandon: Callable[[], None] | None = None) -> None:
        self.label = label
        self.abandon = abandon
        self.wait_info: WaitInfo | None = None
        self.is_full = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.taken_signals: tuple[Any, ...] = ()
        self.waiters: list[WaitingUnit] = []

    @property
    def labels(self) -> Sequence[str]:
        """The texts by which people see what is waited for; one for each wait that this IVar stands for."""
        return (self.label,)

    @property
    def wait_infos(self) -> Sequence[WaitInfo]:
        """The waits as data for programs. Empty if a row elsewhere describes the wait, as for an activity."""
        return () if self.wait_info is None else (self.wait_info,)

    def put(self, value: Any = None) -> None:
        """Set the value and wake every coroutine that waits for it. Does nothing if the IVar is set already."""
        if not self.is_full:
            self.is_full = True
            self.value = value
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Set an error, which is raised in every coroutine that waits for it. Does nothing if the IVar is set."""
        if not self.is_full:
            self.is_full = True
            self.error = error
            self._wake()

    def _wake(self) -> None:
        for unit in self.waiters:
            unit.wake()
        self.waiters.clear()

    def __await__(self) -> Generator[IVar, None, Any]:
        if not self.is_full:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class Halt:
    """A thing to await that ends the activation with ``error``. The code that awaits it does not continue.

    An exception could be caught on its way out, and would run ``finally`` blocks.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __await__(self) -> Generator[Halt, None, None]:
        yield self


class Call(PendingCall):
    """A primitive that was called and waits to be awaited. You can keep it, display it and compare it by identity.

    The place of the call is checked at once, where the mistake is. It is checked again at the await, because a call may
    be passed to another unit (``parallel([charge(1), charge(2)])``). ``begin()`` starts the action and returns the
    awaitable. Code that uses the call as its result gets ``NotAwaited``.
    """

    __slots__ = ("_begin",)

    def __init__(self, primitive: Primitive, begin: Callable[[], Awaitable[Any]], name: str | None = None) -> None:
        # A copy of ``PendingCall.__init__`` without the call of ``super()``: each activity creates such an object.
        owner = current.unit_for(primitive, name).unawaited
        self.primitive = primitive
        self.name = name or primitive.name
        self._owner: Unawaited | None = owner
        self._begin: Callable[[], Awaitable[Any]] | None = begin
        number = self._number = owner.call_count = owner.call_count + 1
        owner.unused_calls[number] = self.name, primitive.usage

    def __await__(self) -> Generator[Any, None, Any]:
        begin = self._begin
        if begin is None:
            raise NestingError(f"{self.name} was awaited twice: call it again for a second result")
        unit = current.unit_for(self.primitive, self.name)
        self.settle()
        # Before ``begin``: a unit that lost a call must not issue another command first. See ``core.units.unawaited``.
        if unit.unawaited.dropped:
            raise unit.unawaited.wait_error(unit)
        self._begin = None
        return begin().__await__()

    def not_awaited_error(self) -> NotAwaited:
        """Return the error for code that uses the call as its result."""
        return NotAwaited(f"{self.name} was called but not awaited, so there is no result yet: write `{self.usage}`")

    def __getattr__(self, name: str) -> Any:
        # Private names stay absent: ``copy``, ``inspect`` and debuggers probe for them.
        if name.startswith("_"):
            raise AttributeError(name)
        raise self.not_awaited_error()

    def __repr__(self) -> str:
        return f"<call of {self.name}, {'not awaited' if self._begin is not None else 'awaited'}>"

    __hash__ = object.__hash__


def _raise_not_awaited(call: Call, *_: object) -> Any:
    raise call.not_awaited_error()


#: Special methods of results, which all raise. Identity, hash and ``repr()`` are those of the call itself.
_RESULT_METHODS = (
    *("bool", "str", "bytes", "format", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"),
    *("iter", "next", "reversed", "len", "contains", "getitem", "setitem", "delitem", "aiter", "anext"),
    *("enter", "exit", "aenter", "aexit", "fspath", "reduce_ex"),
    *(
        f"{side}{name}"
        for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod")
        for side in ("", "r")
    ),
    *(f"{side}{name}" for name in ("pow", "lshift", "rshift", "and", "xor", "or") for side in ("", "r")),
)
for _name in _RESULT_METHODS:
    setattr(Call, f"__{_name}__", _raise_not_awaited)
