"""Units and the rounds in which they are stepped.

A unit is a coroutine of workflow code: ``run``, a handler, a branch. Ready units are stepped in the order of their
creation, each until it blocks; what is woken or created meanwhile joins the next round. Nothing here depends on time,
on hash order or on which wait ended first, so the same inputs give the same order on every host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from operator import attrgetter
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, cast

from temporalex_django.core.determinism import guard
from temporalex_django.core.ivar import IVar
from temporalex_django.core.senders import Sender
from temporalex_django.core.unawaited import Unawaited
from temporalex_django.core.unit_contexts import inherited
from temporalex_django.errors import Cancelled, DeterminismViolation, NestingError

if TYPE_CHECKING:
    from temporalex_django.core.mailbox import Signal

Finished = Callable[[Any, BaseException | None], None]
_number = attrgetter("number")
#: From how many async generators of one unit on those that have ended are looked for.
_GENERATORS = 32


class Unit:
    """One tracked coroutine. ``finished(value, error)`` is called once, in the scheduler, when it ends.

    ``context`` is entered for each step. ``generators`` are the async generators that it began, in that order: they are
    closed before it ends. ``hand`` holds the signals that it took and has not waited since: what is returned with them
    is what takes them.
    """

    __slots__ = (
        "_scheduler",
        "cancelled",
        "children",
        "context",
        "coroutine",
        "error",
        "finished",
        "generators",
        "hand",
        "kind",
        "name",
        "number",
        "parent",
        "queued",
        "requested",
        "sender",
        "shields",
        "told",
        "unawaited",
        "waiting",
    )

    def __init__(self, scheduler: Scheduler, kind: str, name: str, finished: Finished, parent: Unit | None) -> None:
        self._scheduler = scheduler
        self.number = scheduler.new_number()
        self.kind = kind
        self.name = name
        self.finished = finished
        self.parent = parent
        self.sender: Sender | None = None if parent is None else parent.sender  # of the message that it is about
        self.context: Context = Context() if parent is None else inherited(parent.context)
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.generators: list[AsyncGeneratorType[Any, Any]] = []
        self.hand: tuple[Signal, ...] = ()
        self.waiting: IVar | None = None
        self.error: BaseException | None = None  # thrown in at the next step
        self.cancelled = False  # Cancelled is due at the next wait outside of a shield
        self.told = False  # a cancel has reached it: it does so once
        self.requested = False  # that cancel is of the run
        self.shields = 0  # `shield` blocks that it is in
        self.children: dict[int, Unit] = {}  # that it started and that have not ended
        self.queued = False
        self.unawaited = Unawaited()

    def wake(self) -> None:
        if not self.queued:
            self.queued = True
            self._scheduler.ready.append(self)

    def forget(self) -> list[Any]:
        """What it is suspended in; nothing of that is held by it any more, nor what was to happen when it ends."""
        suspended = [*([] if self.coroutine is None else [self.coroutine]), *self.generators]
        self.coroutine, self.generators, self.finished = None, [], unheard
        self.children.clear()
        if self.waiting is not None:
            self.waiting.waiters.clear()
            self.waiting.abandon = None
            self.waiting = None
        return suspended

    def within(self, other: Unit | None) -> bool:
        """Whether this unit is ``other`` or was started, however deep, by it."""
        unit: Unit | None = self
        while unit is not None and other is not None:
            if unit is other:
                return True
            unit = unit.parent
        return False


class Scheduler:
    """Owns the units of one run."""

    def __init__(
        self,
        *,
        complain: Callable[[str, BaseException], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.units: dict[int, Unit] = {}
        self.ready: list[Unit] = []
        self.current: Unit | None = None
        self.on_wait = on_wait  # the host's: a unit has come to a wait, or ended
        self.next_waiter: Callable[[], Unit | None] | None = None  # whose condition holds now; asked after each step
        self.complain = complain or unheard  # of errors that go to nobody
        self.request_seen = False  # a unit has heard that the run is asked to cancel
        self.when_blocked: list[Callable[[], None]] = []  # called once, when every unit is blocked
        # waits for signals that are there, kept from them for a while, in order: such a unit is not blocked, it has not
        # had its turn
        self.parked: deque[tuple[str, Unit, IVar]] = deque()
        self.first: Unit | None = None  # was parked: goes on before the others that are, until its next wait
        self._last = 0

    def new_number(self) -> int:
        self._last += 1
        return self._last

    def spawn(self, unit: Unit, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Let ``unit`` run ``coroutine`` from the next round on."""
        unit.coroutine = coroutine
        self.units[unit.number] = unit
        if unit.parent is not None:
            unit.parent.children[unit.number] = unit
        unit.wake()

    def run(self) -> None:
        """Step units until every one of them is blocked or parked.

        What waited for all being blocked has nothing more to do then, either.
        """
        while True:
            while self.ready:
                turn, self.ready = self.ready, []
                if len(turn) > 1:
                    turn.sort(key=_number)
                for unit in turn:
                    unit.queued = False
                    self._step(unit)
                    if self.on_wait is not None:
                        self.on_wait()
                    if self.next_waiter is not None:
                        self.let_waiters_through()
            if not self.when_blocked or self.parked:
                return
            calls, self.when_blocked = self.when_blocked, []
            for call in calls:
                call()

    def let_waiters_through(self) -> None:
        """Step those whose condition holds, one after the other: each may make it false for the next."""
        while self.next_waiter is not None and (unit := self.next_waiter()) is not None:
            self._step(unit)
            if self.on_wait is not None:
                self.on_wait()

    def ask_after_each(self, next_waiter: Callable[[], Unit | None]) -> None:
        """From here on ``next_waiter`` says after each step who is to go on now."""
        self.next_waiter = next_waiter

    def hear_request(self) -> None:
        """A unit has heard that the run is asked to cancel."""
        self.request_seen = True

    def park(self, name: str, unit: Unit, ivar: IVar) -> None:
        """Keep a wait for the signal ``name`` in line.

        What the unit took before stays in its hand: it has not waited.
        """
        entry = (name, unit, ivar)
        ivar.hand = unit.hand
        ivar.abandon = lambda: self.parked.remove(entry)
        if unit is self.first:
            self.parked.appendleft(entry)
        else:
            self.parked.append(entry)

    def unpark(self, *, first: bool) -> None:
        """The oldest wait is not kept any more. ``first``: its unit goes on before the others that are parked."""
        _, unit, _ = self.parked.popleft()
        if first:
            self.first = unit

    def adopt(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An async generator is begun. Raises ``NestingError`` outside of a unit: nobody could close it there."""
        unit = self.current
        if unit is None:
            raise NestingError("an async generator was begun outside of a unit of the workflow: nothing could close it")
        generators = unit.generators
        count = len(generators)
        if count >= _GENERATORS and count & (count - 1) == 0:  # now and then: at powers of two
            generators[:] = [one for one in generators if one.ag_frame is not None]
        generators.append(cast("AsyncGeneratorType[Any, Any]", generator))

    def cancel(self, root: Unit, *, requested: bool = False, notice: IVar | None = None) -> None:
        """Raise ``Cancelled`` in the unit and in all that it started, at the present wait or else at the next one.

        Once in each.

        A unit in a shield gets it after the shield, and what it started in there does not get it at all. A unit that
        waits for ``notice`` knows of the cancel by that: its wait returns instead. ``requested``: the run is asked to.
        """
        reached = [root]
        while reached:
            unit = reached.pop()
            if unit.told:
                continue
            unit.told = True
            unit.requested = requested
            unit.cancelled = unit.shields > 0 or unit.waiting is None or unit.waiting is not notice
            if unit.shields:
                continue
            reached.extend(unit.children.values())
            if unit.waiting is not None and not unit.queued:
                unit.wake()

    def call(self, unit: Unit, fn: Callable[[], Any]) -> Any:
        """Run plain code as ``unit``, without a coroutine. Raises what ``fn`` raises."""
        outer, self.current = self.current, unit
        try:
            value = unit.context.run(fn)
        finally:
            self.current = outer
        return value

    def drop(self) -> list[Any]:
        """Forget every unit and whoever is to be told; what the units are suspended in. Nothing is run any more."""
        suspended: list[Any] = []
        for unit in self.units.values():
            suspended += unit.forget()
        for kept in (self.units, self.ready, self.when_blocked, self.parked):
            kept.clear()
        self.first = self.next_waiter = None
        self.complain = unheard
        return suspended

    def _step(self, unit: Unit) -> None:
        coroutine = unit.coroutine
        assert coroutine is not None
        waited, unit.waiting = unit.waiting, None
        unit.hand = waited.hand if waited is not None else ()
        error, unit.error = unit.error, None
        if unit.cancelled and not unit.shields and waited is not None and not waited.full:
            unit.cancelled = False
            waited.waiters.remove(unit)
            if waited.abandon is not None:
                waited.abandon()
            self.request_seen = self.request_seen or unit.requested
            error = Cancelled._make("cancelled")
        self.current = unit
        run = unit.context.run
        try:
            trap = run(coroutine.send, None) if error is None else run(coroutine.throw, error)
        except StopIteration as stop:
            self._finish(unit, stop.value, None)
        except KeyboardInterrupt:
            raise  # the process is meant
        except BaseException as exc:  # noqa: BLE001 - whatever user code raises ends its unit
            self._finish(unit, None, guard.explained(exc))
        else:
            self._block(unit, trap)
        finally:
            self.current = None

    def _block(self, unit: Unit, trap: object) -> None:
        if not isinstance(trap, IVar):
            unit.error = DeterminismViolation(
                f"{unit.name} awaited {trap!r}, which is not of this workflow: await activities and api primitives only "
                "(asyncio belongs in an activity)"
            )
            unit.wake()
            return
        unit.waiting = trap
        trap.waiters.append(unit)
        if unit is self.first:
            self.first = None
        if unit.cancelled and not unit.shields:
            unit.wake()

    def _finish(self, unit: Unit, value: Any, error: BaseException | None) -> None:
        if unit.generators and not _is_fatal(error):
            self._close_first(unit, value, error)
            return
        del self.units[unit.number]
        if unit.parent is not None:
            unit.parent.children.pop(unit.number, None)
        unit.coroutine = None
        if error is None:
            error = unit.unawaited.at_end(unit)
        finished, unit.finished = unit.finished, unheard  # whom it refers to is free with it
        finished(value, error)

    def _close_first(self, unit: Unit, value: Any, error: BaseException | None) -> None:
        """Its code is over; async generators that it began and left are closed, shielded, as the last part of it."""
        hand = unit.hand

        def over(_: Any, failure: BaseException | None) -> None:
            unit.hand = hand
            finished(value, failure or error)

        finished, unit.finished = unit.finished, over
        unit.shields += 1
        unit.coroutine = self._close(unit)
        unit.wake()

    async def _close(self, unit: Unit) -> None:
        while unit.generators:
            generator = unit.generators.pop(0)
            if generator.ag_running and unit.parent is not None:  # another unit is in it
                unit.parent.generators.append(generator)
                continue
            try:
                await generator.aclose()
            except (Exception, Cancelled) as exc:
                if _is_fatal(exc):
                    raise
                self.complain(f"{unit.name}: closing the async generator {generator.__qualname__}", exc)


def unheard(_what: object, _error: BaseException | None) -> None:
    """Nobody listens, or does any more."""


def _is_fatal(error: BaseException | None) -> bool:
    """Whether the activation has failed with it, and not the unit."""
    return isinstance(error, (MemoryError, RecursionError))
