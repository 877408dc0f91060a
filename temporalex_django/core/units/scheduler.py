"""The scheduler of an activation: its units, their cancellation and their end."""

from __future__ import annotations

import contextlib
import ctypes
import decimal
import gc
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import Context, ContextVar
from operator import attrgetter
from types import AsyncGeneratorType
from typing import Any, cast

from temporalex_django.core import current
from temporalex_django.core.determinism import guard
from temporalex_django.core.failures import is_error
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.units.ivar import Halt, IVar, Unawaited
from temporalex_django.errors import Cancelled, DeterminismViolation, NestingError

# --- scheduler --------------------------------------------------------------------------------------------------------
#
# The scheduler: units and the rounds in which they are stepped. See decision 10.
#
# A unit is a coroutine of workflow code: ``run``, a handler, a branch. Ready units are stepped in the order in which
# they were created, each until it blocks. Units that are woken or created meanwhile join the next round. Nothing here
# depends on time, on hash order or on which wait ended first. So the same inputs give the same order on every host.


FinishCallback = Callable[[Any, BaseException | None], None]
_number = attrgetter("number")
#: Number of async generators of one unit from which on the ended ones are removed.
_GENERATORS = 32


class Unit:
    """One coroutine of workflow code that the scheduler steps.

    ``on_finish(value, error)`` is called once, when it ends.

    - ``number`` orders the units of a run by their creation.
    - ``kind`` is one of ``primitive_table.UNIT_KINDS``, and ``name`` is for messages.
    - ``context`` holds the context variables, and is entered for each step.
    - ``generators`` are the async generators that it started, in order. They are closed before it ends.
    - ``taken_signals`` are the signals that it took since its last wait. They count as taken by the value that it
      returns.
    """

    __slots__ = (
        "_scheduler",
        "cancelled",
        "children",
        "context",
        "coroutine",
        "error",
        "generators",
        "headers",
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
        # Those of the message that it handles; no headers means that it handles none.
        self.sender: Sender | None = None if parent is None else parent.sender
        self.headers: Headers | None = None if parent is None else parent.headers
        self.context: Context = Context() if parent is None else inherit_context(parent.context)
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.generators: list[AsyncGeneratorType[Any, Any]] = []
        self.taken_signals: tuple[Any, ...] = ()
        self.waiting: IVar | None = None
        self.error: BaseException | None = None  # thrown into the coroutine at the next step
        self.cancelled = False  # Cancelled is due at the next wait outside of a shield
        self.is_cancel_delivered = False  # a cancel has reached it; a second one does nothing
        self.requested = False  # that cancel is the cancel request of the run
        self.shields = 0  # number of open ``shield`` blocks
        self.children: dict[int, Unit] = {}  # units that it started and that have not ended
        self.queued = False
        self.unawaited = Unawaited()

    def wake(self) -> None:
        """Put this coroutine of workflow code into the next round of the scheduler, unless it is there already."""
        if not self.queued:
            self.queued = True
            self._scheduler.ready.append(self)

    def release(self) -> list[Any]:
        """Return the objects in which the coroutine is suspended, and drop the references to them and its callback."""
        suspended = [*([] if self.coroutine is None else [self.coroutine]), *self.generators]
        self.coroutine, self.generators, self.on_finish = None, [], ignore_failure
        self.children.clear()
        if self.waiting is not None:
            self.waiting.waiters.clear()
            self.waiting.abandon = None
            self.waiting = None
        return suspended

    def is_within(self, other: Unit | None) -> bool:
        """Return True if this unit is ``other``, or was started by it or by one of its descendants."""
        unit: Unit | None = self
        while unit is not None and other is not None:
            if unit is other:
                return True
            unit = unit.parent
        return False


class Scheduler:
    """The part that owns the units (coroutines of workflow code) of one run and steps them.

    ``log_failure(label, error)`` logs errors that no code receives. ``on_wait()`` is called when a unit has come to a
    wait, or has ended.
    """

    def __init__(
        self,
        *,
        log_failure: Callable[[str, BaseException], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.units: dict[int, Unit] = {}
        self.ready: list[Unit] = []
        self.current: Unit | None = None
        self.on_wait = on_wait  # called when a unit has come to a wait, or has ended
        self.next_waiter: Callable[[], Unit | None] | None = None  # the next unit whose condition holds
        self.log_failure = log_failure or ignore_failure  # for errors that no code receives
        self.request_seen = False  # a unit has noticed the cancel request
        self.when_blocked: list[Callable[[], None]] = []  # called once, when every unit is blocked
        # Waits whose signal is buffered but not given yet, in order. Such a unit is not blocked: its signal is there,
        # and the budget or the units before it decide when it continues.
        self.parked: deque[tuple[str, Unit, IVar]] = deque()
        self.unparked_unit: Unit | None = None  # continues before the parked units, until its next wait
        self._last_number = 0

    def next_number(self) -> int:
        """Take and return the number for a new unit (coroutine of workflow code), from 1 in the order of creation."""
        self._last_number += 1
        return self._last_number

    def spawn(self, unit: Unit, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run ``coroutine`` as ``unit`` from the next round on, in which every unit that is ready is stepped once."""
        unit.coroutine = coroutine
        self.units[unit.number] = unit
        if unit.parent is not None:
            unit.parent.children[unit.number] = unit
        unit.wake()

    def run(self) -> None:
        """Step units (coroutines) until each waits for something (blocked) or for its turn to take a signal (parked).

        When all are blocked and none is parked, the callbacks in ``when_blocked`` are called once. Units that they make
        ready are stepped as well.
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
            # A parked unit may still end in this activation, so nothing that needs all units blocked is decided yet.
            if not self.when_blocked or self.parked:
                return
            calls, self.when_blocked = self.when_blocked, []
            for call in calls:
                call()

    def step_waiters(self) -> None:
        """Step the coroutines whose ``wait_condition`` holds, one by one: each may make the next condition false."""
        while self.next_waiter is not None and (unit := self.next_waiter()) is not None:
            self._step(unit)
            if self.on_wait is not None:
                self.on_wait()

    def set_next_waiter(self, next_waiter: Callable[[], Unit | None]) -> None:
        """Call ``next_waiter`` after each step of a coroutine.

        It returns the next unit (coroutine) whose ``wait_condition`` holds, or None. The executor passes a method of
        ``Conditions``.
        """
        self.next_waiter = next_waiter

    def acknowledge_request(self) -> None:
        """Record that the code of the run has noticed the cancel request, so that the next run does not get it."""
        self.request_seen = True

    def park(self, name: str, unit: Unit, ivar: IVar) -> None:
        """Park ``unit``, a coroutine that waits with ``ivar`` for the signal ``name``, which is in the mailbox.

        It cannot have the signal yet, because other units come first or the budget of the activation is spent. A parked
        unit is not blocked: it gets the signal when its turn comes and the budget allows it. It keeps the signals that
        it took before, because it has not waited.
        """
        entry = (name, unit, ivar)
        ivar.taken_signals = unit.taken_signals
        ivar.abandon = lambda: self.parked.remove(entry)
        if unit is self.unparked_unit:
            self.parked.appendleft(entry)
        else:
            self.parked.append(entry)

    def unpark(self, *, first: bool) -> None:
        """Remove the oldest parked wait: its unit (coroutine) gets the signal, or waits for another one.

        With ``first``, the unit may take further signals before the other parked units.
        """
        _, unit, _ = self.parked.popleft()
        if first:
            self.unparked_unit = unit

    def adopt_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Record that the coroutine that runs now, the active unit, has started an async generator.

        The unit closes the generator before it ends. This is the ``firstiter`` hook of ``sys.set_asyncgen_hooks`` while
        workflow code runs. Raises ``NestingError`` if no unit runs, where nothing could close the generator.
        """
        unit = self.current
        if unit is None:
            raise NestingError("an async generator was started outside a unit of the workflow: nothing could close it")
        generators = unit.generators
        count = len(generators)
        if count >= _GENERATORS and count & (count - 1) == 0:  # at powers of two, so that it costs little
            generators[:] = [open_generator for open_generator in generators if open_generator.ag_frame is not None]
        generators.append(cast("AsyncGeneratorType[Any, Any]", generator))

    def cancel(self, root: Unit, *, requested: bool = False, notice: IVar | None = None) -> None:
        """Raise ``Cancelled`` in the coroutine ``root`` and in those that it started, once in each, at a wait.

        It is the present wait, or the next one if the unit is not waiting. A unit (coroutine) in a shield gets it after
        the shield; the units that it started inside do not get it. A unit that waits for ``notice`` learns of the
        cancel from that wait, which returns. ``requested`` is True for the cancel request of the run.
        """
        pending = [root]
        while pending:
            unit = pending.pop()
            if unit.is_cancel_delivered:
                continue
            unit.is_cancel_delivered = True
            unit.requested = requested
            # The flag stays set until the unit waits outside a shield; ``_step`` then raises instead of resuming.
            unit.cancelled = unit.shields > 0 or unit.waiting is None or unit.waiting is not notice
            if unit.shields:
                continue
            pending.extend(unit.children.values())
            if unit.waiting is not None and not unit.queued:
                unit.wake()

    def call(self, unit: Unit, fn: Callable[[], Any]) -> Any:
        """Run the plain function ``fn`` as ``unit``: primitives that it calls see that unit as the active one.

        Returns the value of ``fn``, and raises what it raises.
        """
        outer, self.current = self.current, unit
        try:
            value = unit.context.run(fn)
        finally:
            self.current = outer
        return value

    def drop(self) -> list[Any]:
        """Forget all units (coroutines of workflow code) and callbacks; return the objects in which they are suspended.

        No code of the units runs any more. The caller discards the returned objects.
        """
        suspended: list[Any] = []
        for unit in self.units.values():
            suspended += unit.release()
        for collection in (self.units, self.ready, self.when_blocked, self.parked):
            collection.clear()
        self.unparked_unit = self.next_waiter = None
        self.log_failure = ignore_failure
        return suspended

    def _step(self, unit: Unit) -> None:
        """Run the unit until it waits or ends, or raise in it the error that it has to get."""
        coroutine = unit.coroutine
        assert coroutine is not None
        waited, unit.waiting = unit.waiting, None
        unit.taken_signals = waited.taken_signals if waited is not None else ()
        error, unit.error = unit.error, None
        # A wait that was filled meanwhile returns its value, and the cancel comes at the next one: no result is lost.
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
            raise  # it is for the process, not for the unit
        except BaseException as exc:  # noqa: BLE001 - whatever user code raises ends its unit
            self._finish(unit, None, guard.explain(exc))
        else:
            self._block(unit, trap)
        finally:
            self.current = None

    def _block(self, unit: Unit, trap: object) -> None:
        """Raise the error of a ``Halt`` here, and in the coroutine an error for an object that is no IVar."""
        if not isinstance(trap, IVar):
            if isinstance(trap, Halt):
                raise trap.error
            # The error is thrown into the coroutine at its next step, so that the traceback shows the await.
            unit.error = DeterminismViolation(
                f"{unit.name} awaited an object of the type {type(trap).__name__}, which does not belong to this workflow: await only activities and api "
                "primitives (use asyncio in an activity)"
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
        """End the unit after its generators are closed."""
        # Before the unit counts as ended: its generators run code, and the same code must run in every rebuild.
        if unit.generators and not _is_fatal(error):
            self._close_generators_first(unit, value, error)
            return
        del self.units[unit.number]
        if unit.parent is not None:
            unit.parent.children.pop(unit.number, None)
        unit.coroutine = None
        if error is None:
            error = unit.unawaited.end_error(unit)
        on_finish, unit.on_finish = unit.on_finish, ignore_failure  # so that the objects it refers to are freed
        on_finish(value, error)

    def _close_generators_first(self, unit: Unit, value: Any, error: BaseException | None) -> None:
        """Close the open generators as a last part of the unit, in which no cancel is raised."""
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
            if generator.ag_running and unit.parent is not None:  # another unit is inside it
                unit.parent.generators.append(generator)
                continue
            try:
                await generator.aclose()
            except (Exception, Cancelled) as exc:
                if _is_fatal(exc):
                    raise
                self.log_failure(f"{unit.name}: closing the async generator {generator.__qualname__}", exc)


def ignore_failure(_label: object, _error: BaseException | None) -> None:
    """Do nothing with an error that no code receives."""


def _is_fatal(error: BaseException | None) -> bool:
    """Return True for an error that fails the whole activation, which is then repeated."""
    return is_error(error, MemoryError, RecursionError)


# --- eviction ---------------------------------------------------------------------------------------------------------
#
# Eviction: drop suspended coroutines without running their code. See decision 29.
#
# ``coroutine.close()`` and the garbage collector throw ``GeneratorExit`` into a suspended coroutine. Its ``finally``
# blocks and context managers would run, in any thread and at any moment, as if they were part of another run. A
# coroutine whose FINALIZED bit is set in its GC header is freed like any other object instead. That header is an
# implementation detail of CPython with the GIL. ``SAFE`` is True if a probe at import found that it works.


_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")


def _mark_finalized(target: object) -> None:
    """Mark ``target`` as finalized: set bit 0 of ``_gc_prev``, the word before the object."""
    ctypes.c_size_t.from_address(id(target) - 8).value |= 1


def suspended_parts(coroutine: Any) -> Iterable[Any]:
    """Yield the coroutine and all coroutines and generators that it is suspended in, from the outermost inwards.

    A wrapper (``coroutine.__await__()``) has no attribute for the coroutine in it, so ``gc`` is asked for that.
    """
    # The limit on ``seen`` ends the loop if coroutines await each other in a cycle.
    seen = 0
    while coroutine is not None and seen < 10_000:
        seen += 1
        if type(coroutine).__name__ in ("coroutine", "generator", "async_generator"):
            yield coroutine
        inner = getattr(coroutine, "cr_await", None)
        if inner is None:
            inner = getattr(coroutine, "gi_yieldfrom", None)
        if inner is None:
            inner = getattr(coroutine, "ag_await", None)
        if inner is None and type(coroutine).__name__ in _WRAPPERS:
            inner = next(iter(gc.get_referents(coroutine)), None)
        coroutine = inner


def _can_mark_finalized() -> bool:
    if (
        sys.implementation.name != "cpython"
        or ctypes.sizeof(ctypes.c_size_t) != 8
        or not getattr(sys, "_is_gil_enabled", lambda: True)()
    ):
        return False
    ran: list[int] = []

    class Trap:
        def __await__(self) -> Any:
            return iter((None,))

    async def probe() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(ran.append, 1)
            await Trap()

    # The probe suspends inside a context manager. If its exit runs nevertheless, this interpreter ignores the bit.
    coroutine = probe()
    coroutine.send(None)
    _mark_finalized(coroutine)
    del coroutine
    return not ran


SAFE = _can_mark_finalized()


def discard(coroutines: Iterable[Any]) -> None:
    """Drop suspended coroutines and async generators, without running their code if ``SAFE`` is True.

    If ``SAFE`` is False, the coroutines are closed while every primitive refuses to act.

    The safe path touches no context variable. A finalizer may run at any moment. On Python 3.11 the collector runs
    inside allocations, and so also inside ``ContextVar.set``, which cannot be entered again.
    """
    if SAFE:
        for coroutine in coroutines:
            for part in list(suspended_parts(coroutine)):
                _mark_finalized(part)
        return
    with current.outside_workflow("workflow that is being evicted"):
        for coroutine in coroutines:
            with contextlib.suppress(BaseException):  # the run is gone, so nothing can handle the error
                Context().run(coroutine.close)


# --- contexts ---------------------------------------------------------------------------------------------------------
#
# Context variables of workflow code. Each unit has a context of its own, isolated from other runs. See decision 30.
#
# ``run`` begins in an empty context, every other unit in a copy of its parent's. Predicates and validators are
# evaluated for a unit but are no part of it. They get a copy that is discarded.


def _decimal_variable() -> ContextVar[Any]:
    """Return the context variable in which ``decimal`` keeps its context. The module has no name for it."""
    # In an empty context, ``getcontext`` creates the variable, and it is the only one there.
    context = Context()
    context.run(decimal.getcontext)
    (variable,) = context
    return variable


_DECIMAL = _decimal_variable()


def inherit_context(context: Context) -> Context:
    """Return a copy of the context, with a copy of the mutable context object of ``decimal``."""
    own = context.copy()
    # A plain copy would share that object: a precision set in one branch would change the results of another one.
    if _DECIMAL in own:
        own.run(_DECIMAL.set, own[_DECIMAL].copy())
    return own


# --- cancellation -----------------------------------------------------------------------------------------------------
#
# The cancel request of a run, and which of its units it has reached.


class Cancellation:
    """The cancel request of a run, as far as there is one.

    ``requested`` becomes True, and the IVar ``notice`` is set, when the request arrives.
    """

    __slots__ = ("_attributes", "_scheduler", "notice", "requested")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._attributes: dict[str, Any] = {}
        self.requested = False
        self.notice = IVar("a cancel request")

    def request(self, attributes: dict[str, Any]) -> None:
        """Record the cancel request, and raise ``Cancelled`` in every coroutine of the run that is not in a shield.

        It is raised at the present wait of the coroutine, or at its next one. A coroutine that waits for the request
        itself (``wait_cancelled``) continues without an error. ``attributes`` are those of the job that delivers the
        request.
        """
        self.requested = True
        self._attributes = attributes
        for unit in list(self._scheduler.units.values()):
            if unit.parent is None:
                self._scheduler.cancel(unit, requested=True, notice=self.notice)
        # A unit that waits for the notice continues without an error, so it counts as a unit that knows of the request.
        if self.notice.waiters:
            self._scheduler.acknowledge_request()
        self.notice.put()

    def acknowledge(self) -> None:
        """Note that workflow code has noticed the cancel request, because it asked whether there is one."""
        self._scheduler.acknowledge_request()

    @property
    def unseen_request(self) -> dict[str, Any] | None:
        """The attributes of a cancel request that the code of the run has not noticed; None if there is none."""
        return self._attributes if self.requested and not self._scheduler.request_seen else None
