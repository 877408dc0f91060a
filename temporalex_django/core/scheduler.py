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
from temporalex_django.core.unit_contexts import inherit_context
from temporalex_django.errors import Cancelled, DeterminismViolation, NestingError

if TYPE_CHECKING:
    from temporalex_django.core.mailbox import Signal

FinishCallback = Callable[[Any, BaseException | None], None]
_number = attrgetter("number")
#: From how many async generators of one unit on those that have ended are looked for.
_GENERATORS = 32


class Unit:
    """One tracked coroutine. ``finished(value, error)`` is called once, in the scheduler, when it ends.

    ``context`` is entered for each step. ``generators`` are the async generators that it began, in that order: they are
    closed before it ends. ``taken_signals`` holds the signals that it took and has not waited since: what is returned
    with them is what takes them.
    """

    __slots__ = (
        "_scheduler",
        "cancelled",
        "children",
        "context",
        "coroutine",
        "error",
        "generators",
        "is_cancel_delivered",
        "kind",
        "name",
        "number",
        "on_finish",
        "parent",
        "queued",
        "requested",
        "sender",
        "shields",
        "taken_signals",
        "unawaited",
        "waiting",
    )

    def __init__(
        self, scheduler: Scheduler, kind: str, name: str, on_finish: FinishCallback, parent: Unit | None
    ) -> None:
        self._scheduler = scheduler
        self.number = scheduler.next_number()
        self.kind = kind
        self.name = name
        self.on_finish = on_finish
        self.parent = parent
        self.sender: Sender | None = None if parent is None else parent.sender  # of the message that it is about
        self.context: Context = Context() if parent is None else inherit_context(parent.context)
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.generators: list[AsyncGeneratorType[Any, Any]] = []
        self.taken_signals: tuple[Signal, ...] = ()
        self.waiting: IVar | None = None
        self.error: BaseException | None = None  # thrown in at the next step
        self.cancelled = False  # Cancelled is due at the next wait outside of a shield
        self.is_cancel_delivered = False  # a cancel has reached it: it does so once
        self.requested = False  # that cancel is of the run
        self.shields = 0  # `shield` blocks that it is in
        self.children: dict[int, Unit] = {}  # that it started and that have not ended
        self.queued = False
        self.unawaited = Unawaited()

    def wake(self) -> None:
        if not self.queued:
            self.queued = True
            self._scheduler.ready.append(self)

    def release(self) -> list[Any]:
        """What it is suspended in; nothing of that is held by it any more, nor what was to happen when it ends."""
        suspended = [*([] if self.coroutine is None else [self.coroutine]), *self.generators]
        self.coroutine, self.generators, self.on_finish = None, [], ignore_failure
        self.children.clear()
        if self.waiting is not None:
            self.waiting.waiters.clear()
            self.waiting.abandon = None
            self.waiting = None
        return suspended

    def is_within(self, other: Unit | None) -> bool:
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
        log_failure: Callable[[str, BaseException], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.units: dict[int, Unit] = {}
        self.ready: list[Unit] = []
        self.current: Unit | None = None
        self.on_wait = on_wait  # the host's: a unit has come to a wait, or ended
        self.next_waiter: Callable[[], Unit | None] | None = None  # whose condition holds now; asked after each step
        self.log_failure = log_failure or ignore_failure  # of errors that go to nobody
        self.request_seen = False  # a unit has heard that the run is asked to cancel
        self.when_blocked: list[Callable[[], None]] = []  # called once, when every unit is blocked
        # waits for signals that are there, kept from them for a while, in order: such a unit is not blocked, it has not
        # had its turn
        self.parked: deque[tuple[str, Unit, IVar]] = deque()
        self.unparked_unit: Unit | None = None  # was parked: goes on before the others that are, until its next wait
        self._last_number = 0

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

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
                batch, self.ready = self.ready, []
                if len(batch) > 1:
                    batch.sort(key=_number)
                for unit in batch:
                    unit.queued = False
                    self._step(unit)
                    if self.on_wait is not None:
                        self.on_wait()
                    if self.next_waiter is not None:
                        self.step_waiters()
            if not self.when_blocked or self.parked:
                return
            calls, self.when_blocked = self.when_blocked, []
            for call in calls:
                call()

    def step_waiters(self) -> None:
        """Step those whose condition holds, one after the other: each may make it false for the next."""
        while self.next_waiter is not None and (unit := self.next_waiter()) is not None:
            self._step(unit)
            if self.on_wait is not None:
                self.on_wait()

    def set_next_waiter(self, next_waiter: Callable[[], Unit | None]) -> None:
        """From here on ``next_waiter`` says after each step who is to go on now."""
        self.next_waiter = next_waiter

    def acknowledge_request(self) -> None:
        """A unit has heard that the run is asked to cancel."""
        self.request_seen = True

    def park(self, name: str, unit: Unit, ivar: IVar) -> None:
        """Keep a wait for the signal ``name`` in line.

        What the unit took before stays in its hand: it has not waited.
        """
        entry = (name, unit, ivar)
        ivar.taken_signals = unit.taken_signals
        ivar.abandon = lambda: self.parked.remove(entry)
        if unit is self.unparked_unit:
            self.parked.appendleft(entry)
        else:
            self.parked.append(entry)

    def unpark(self, *, first: bool) -> None:
        """The oldest wait is not kept any more. ``first``: its unit goes on before the others that are parked."""
        _, unit, _ = self.parked.popleft()
        if first:
            self.unparked_unit = unit

    def adopt_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An async generator is begun. Raises ``NestingError`` outside of a unit: nobody could close it there."""
        unit = self.current
        if unit is None:
            raise NestingError("an async generator was begun outside of a unit of the workflow: nothing could close it")
        generators = unit.generators
        count = len(generators)
        if count >= _GENERATORS and count & (count - 1) == 0:  # now and then: at powers of two
            generators[:] = [open_generator for open_generator in generators if open_generator.ag_frame is not None]
        generators.append(cast("AsyncGeneratorType[Any, Any]", generator))

    def cancel(self, root: Unit, *, requested: bool = False, notice: IVar | None = None) -> None:
        """Raise ``Cancelled`` in the unit and in all that it started, at the present wait or else at the next one.

        Once in each.

        A unit in a shield gets it after the shield, and what it started in there does not get it at all. A unit that
        waits for ``notice`` knows of the cancel by that: its wait returns instead. ``requested``: the run is asked to.
        """
        pending = [root]
        while pending:
            unit = pending.pop()
            if unit.is_cancel_delivered:
                continue
            unit.is_cancel_delivered = True
            unit.requested = requested
            unit.cancelled = unit.shields > 0 or unit.waiting is None or unit.waiting is not notice
            if unit.shields:
                continue
            pending.extend(unit.children.values())
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
            suspended += unit.release()
        for collection in (self.units, self.ready, self.when_blocked, self.parked):
            collection.clear()
        self.unparked_unit = self.next_waiter = None
        self.log_failure = ignore_failure
        return suspended

    def _step(self, unit: Unit) -> None:
        coroutine = unit.coroutine
        assert coroutine is not None
        waited, unit.waiting = unit.waiting, None
        unit.taken_signals = waited.taken_signals if waited is not None else ()
        error, unit.error = unit.error, None
        if unit.cancelled and not unit.shields and waited is not None and not waited.is_full:
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
            self._finish(unit, None, guard.explain(exc))
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
        if unit is self.unparked_unit:
            self.unparked_unit = None
        if unit.cancelled and not unit.shields:
            unit.wake()

    def _finish(self, unit: Unit, value: Any, error: BaseException | None) -> None:
        if unit.generators and not _is_fatal(error):
            self._close_generators_first(unit, value, error)
            return
        del self.units[unit.number]
        if unit.parent is not None:
            unit.parent.children.pop(unit.number, None)
        unit.coroutine = None
        if error is None:
            error = unit.unawaited.end_error(unit)
        on_finish, unit.on_finish = unit.on_finish, ignore_failure  # whom it refers to is free with it
        on_finish(value, error)

    def _close_generators_first(self, unit: Unit, value: Any, error: BaseException | None) -> None:
        """Its code is over; async generators that it began and left are closed, shielded, as the last part of it."""
        taken_signals = unit.taken_signals

        def on_close(_: Any, failure: BaseException | None) -> None:
            unit.taken_signals = taken_signals
            on_finish(value, failure or error)

        on_finish, unit.on_finish = unit.on_finish, on_close
        unit.shields += 1
        unit.coroutine = self._close_generators(unit)
        unit.wake()

    async def _close_generators(self, unit: Unit) -> None:
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
                self.log_failure(f"{unit.name}: closing the async generator {generator.__qualname__}", exc)


def ignore_failure(_label: object, _error: BaseException | None) -> None:
    """Nobody listens, or does any more."""


def _is_fatal(error: BaseException | None) -> bool:
    """Whether the activation has failed with it, and not the unit."""
    return isinstance(error, (MemoryError, RecursionError))
