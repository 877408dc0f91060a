"""Branches: concurrent parts of a run, and the scopes around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from temporalex_django.core import current
from temporalex_django.core.determinism import guard
from temporalex_django.core.failures import exception_message, exception_name, is_error, unexpected_error
from temporalex_django.core.messages.mailbox import Signal
from temporalex_django.core.messages.phase import accepts_arguments, invoke, signature_text
from temporalex_django.core.names import counted
from temporalex_django.core.primitive_table import SAGA, SHIELD, Primitive
from temporalex_django.core.results import Async, Err
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.units.ivar import Call, Halt, IVar, PendingCall
from temporalex_django.core.units.scheduler import Unit
from temporalex_django.errors import Cancelled, NestingError, WorkflowDefinitionError

# --- branches ---------------------------------------------------------------------------------------------------------
#
# The primitives ``parallel`` and ``race``, which run units (branches) side by side.
#
# ``parallel`` waits for all of them. ``race`` waits for the first and cancels the others.


TakenSignals = tuple[Signal, ...]
BranchCallback = Callable[[int, Any, BaseException | None, TakenSignals], None]


def branch_list(primitive: str, branches: Sequence[Any]) -> list[Any]:
    """Return the branches of a call of ``primitive``, which are its arguments or the items of the only one.

    Raises ``WorkflowDefinitionError`` for an only argument that is neither a branch nor a list of branches.
    """
    if len(branches) != 1 or callable(branches[0]) or inspect.isawaitable(branches[0]):
        return [*branches]
    (only,) = branches
    if isinstance(only, (str, bytes, Mapping)) or not hasattr(only, "__iter__"):
        raise WorkflowDefinitionError(f"{primitive}: branches must be a list of functions or awaitables, not {only!r}")
    # The order of calls in a set depends on where they are in memory, so a replay would start them in another one.
    if isinstance(only, (set, frozenset)):
        raise WorkflowDefinitionError(
            f"{primitive}: a set of branches has no order that a replay repeats: write a list"
        )
    return [*only]


def _branch_problem(branch: Any) -> str | None:
    if inspect.isawaitable(branch):
        return None
    if not callable(branch):
        return f"{branch!r} is neither a function without arguments nor an awaitable (in a loop, use functools.partial)"
    code = getattr(branch, "__code__", None)
    # A look at the code is a tenth of a look at the signature, which a function without parameters does not need.
    if isinstance(branch, partial) or (code is not None and not code.co_argcount and not code.co_kwonlyargcount):
        return None
    if accepts_arguments(branch, 0):
        return None
    return f"a branch is a function without arguments: {signature_text(branch)}. Pass `lambda: fn(...)`, or the call fn(...)"


class _BranchGroup:
    """The branches of one call of ``parallel`` or ``race``.

    The run knows of them from the call on, and they start when the call is awaited. A signal that a branch took counts
    as taken only if the caller continues with the value of that branch. If the branch lost or failed, the signal goes
    back to the mailbox.
    """

    def __init__(self, runtime: WorkflowRuntime, name: str, branches: Sequence[Any]) -> None:
        once: set[int] = set()
        for branch in branches:
            if (problem := _branch_problem(branch)) is not None:
                raise WorkflowDefinitionError(f"{name}: {problem}")
            if isinstance(branch, Call) or inspect.iscoroutine(branch):
                if id(branch) in once:
                    raise WorkflowDefinitionError(f"{name}: {branch!r} is there twice: call it again for each branch")
                once.add(id(branch))
        for branch in branches:
            if isinstance(branch, Call):
                branch.settle()
            elif inspect.iscoroutine(branch):
                runtime.track_coroutine(branch)
        self.runtime = runtime
        self.branches = branches
        self.running = 0

    def start_branch(self, index: int, host: Unit | None, on_end: BranchCallback) -> Unit:
        """Start a unit below ``host``. ``on_end`` gets the index, value, error or None, and taken signals."""

        def on_finish(value: Any, error: BaseException | None) -> None:
            self.running -= 1
            self._untrack(index)
            # These fail the activation, not the branch: the worker repeats the activation as a whole.
            if is_error(error, MemoryError, RecursionError):
                raise error
            if error is None and isinstance(value, Async):
                error = NestingError(f"branch {index} returned Async: only a handler of a phase may return it")
            on_end(index, value, error, unit.taken_signals if error is None else ())

        self.running += 1
        scheduler = self.runtime.scheduler
        unit = Unit(scheduler, "branch", f"branch {index}", on_finish, host)
        scheduler.spawn(unit, invoke(self.branches[index]))
        return unit

    def return_signals(self, taken_signals: TakenSignals) -> None:
        """Put signals that a branch took back into the mailbox, because the caller continues without its value."""
        unit = self.runtime.scheduler.current
        assert unit is not None
        unit.taken_signals = ()
        self.runtime.dispatcher.return_signals(taken_signals)

    def close_unstarted(self, first_index: int) -> None:
        for index in range(first_index, len(self.branches)):
            if inspect.iscoroutine(self.branches[index]):
                self.branches[index].close()
                self._untrack(index)

    def _untrack(self, index: int) -> None:
        self.runtime.untrack_coroutine(self.branches[index])


class Parallel(_BranchGroup):
    """The branches of one ``parallel`` call. All of them end before the caller continues, even if one fails.

    At most ``limit`` of them run at a time; None means all. With ``raise_errors``, the first error in order is raised.
    """

    def __init__(
        self, runtime: WorkflowRuntime, branches: Sequence[Any], limit: int | None, *, raise_errors: bool = False
    ) -> None:
        super().__init__(runtime, "parallel", branches)
        self._raise_errors = raise_errors
        self._errors: dict[int, BaseException] = {}
        self._limit = limit or len(branches)
        self._results: list[Any] = [None] * len(branches)
        self._taken_signals: TakenSignals = ()
        self._next_index = 0
        self._cancel_error: Cancelled | None = None
        self._done = IVar(f"parallel of {len(branches)}")

    async def run(self) -> list[Any]:
        """Run the branches and return their values in order, with ``Err`` for a branch that raised."""
        self._host = self.runtime.scheduler.current
        self._start_branches()
        try:
            if self.branches:
                await self._done
        except Cancelled:
            # The scheduler cancels the running branches together with this unit. Only branches that have not started
            # need to be closed here; then the running ones may finish their clean-up.
            self.close_unstarted(self._next_index)
            self._next_index = len(self.branches)
            await self._done
            self.return_signals(self._taken_signals)
            raise
        if self._cancel_error is not None:
            self.return_signals(self._taken_signals)
            raise self._cancel_error
        if self._raise_errors and self._errors:
            self.return_signals(self._taken_signals)
            raise self._first_error()
        return self._results

    def _first_error(self) -> BaseException:
        """Return the error of the first failed branch, with a note about each of the others."""
        (_, first), *others = sorted(self._errors.items())
        for index, error in others:
            with suppress(Exception):  # an error of the project may have no list of notes
                text = f"{exception_name(type(error))}: {exception_message(error)}"
                first.add_note(f"branch {index} of parallel failed, too: {text}")
        return first

    def _start_branches(self) -> None:
        while self._next_index < len(self.branches) and self.running < self._limit:
            self._next_index += 1
            self.start_branch(self._next_index - 1, self._host, self._on_branch_end)

    def _on_branch_end(self, index: int, value: Any, error: BaseException | None, taken_signals: TakenSignals) -> None:
        if is_error(error, Cancelled):
            self._cancel_error = self._cancel_error or error
        self._taken_signals += taken_signals
        self._results[index] = value if error is None else Err(error)
        if error is not None:
            self._errors[index] = error
        self._start_branches()
        if not self.running:
            self._done.taken_signals = self._taken_signals
            self._done.put()


class Race(_BranchGroup):
    """The branches of one ``race`` call.

    The winner is chosen when all code of the run waits. Among branches that end in the same activation the lowest index
    wins, whatever the order in which they were stepped. The others are cancelled. All have ended before the caller
    continues.
    """

    def __init__(self, runtime: WorkflowRuntime, branches: Sequence[Any]) -> None:
        super().__init__(runtime, "race", branches)
        self._units: list[Unit] = []
        self._outcomes: dict[int, tuple[Any, BaseException | None, TakenSignals]] = {}
        self._winner: int | None = None
        self._done = IVar(f"race of {len(branches)}")

    async def run(self) -> tuple[int, Any]:
        """Run the branches, and return ``(index, value)`` of the winner.

        Raises the error of a winner that raised.
        """
        host = self.runtime.scheduler.current
        self._units = [self.start_branch(index, host, self._on_branch_end) for index in range(len(self.branches))]
        try:
            await self._done
        except Cancelled:
            await self._done  # the same cancel has reached the branches, which may still clean up
            self.return_signals(self._done.taken_signals)
            raise
        assert self._winner is not None
        value, error, taken_signals = self._outcomes[self._winner]
        if error is not None:
            self.return_signals(taken_signals)
            raise error
        return self._winner, value

    def _on_branch_end(self, index: int, value: Any, error: BaseException | None, taken_signals: TakenSignals) -> None:
        self._outcomes[index] = value, error, taken_signals
        if self._winner is None:
            # Do not choose yet: a branch with a lower index may still end in this round. See decision 10.
            if len(self._outcomes) == 1:
                self.runtime.scheduler.when_blocked.append(self._pick_winner)
        else:
            self._discard_loser(index, error, taken_signals)
            if not self.running:
                self._done.put()

    def _pick_winner(self) -> None:
        self._winner = min(self._outcomes)
        self._done.taken_signals = self._outcomes[self._winner][2]
        for index, (_, error, taken_signals) in self._outcomes.items():
            if index != self._winner:
                self._discard_loser(index, error, taken_signals)
        for unit in self._units:
            if unit.coroutine is not None:
                self.runtime.scheduler.cancel(unit)
        if not self.running:
            self._done.put()

    def _discard_loser(self, index: int, error: BaseException | None, taken_signals: TakenSignals) -> None:
        """Put back the signals that the branch took, and log its error."""
        self.runtime.dispatcher.return_signals(taken_signals)
        if error is not None and not is_error(error, Cancelled):
            self.runtime.run_context.log_failure(f"branch {index} lost its race and", error)


# --- scopes -----------------------------------------------------------------------------------------------------------
#
# ``async with`` blocks of workflow code: ``shield`` and ``saga``. Neither of them suspends by itself.


class _Scope(PendingCall):
    """A block (``async with``) of a primitive, whose place is checked at the call and again when the block is entered.

    A call without ``async with`` is reported like a forgotten await.
    """

    def __init__(self, primitive: Primitive) -> None:
        self.runtime = current.runtime_for(primitive)
        super().__init__(primitive)
        self._entered = False

    if not TYPE_CHECKING:  # type checkers report a plain `with` themselves

        def __enter__(self) -> None:
            self.settle()
            raise TypeError(
                f"write `async with api.{self.name}()`: a plain `with` cannot wait for what the block waits for"
            )

        def __exit__(self, *_: object) -> None:
            """Exist, so that ``with`` calls ``__enter__``, which raises."""

    def enter(self) -> Unit:
        """Check that the block is allowed here, record that it is entered, and return the current unit."""
        unit: Unit = current.unit_for(self.primitive)
        if self._entered:
            raise NestingError(f"{self.name} was entered twice: call it again for a second block")
        self._entered = True
        self.settle()
        return unit


class Shield(_Scope):
    """A block in which no cancel is raised. A cancel that arrives inside is raised at the first wait after it."""

    def __init__(self) -> None:
        super().__init__(SHIELD)

    async def __aenter__(self) -> None:
        self._unit = self.enter()
        self._unit.shields += 1

    async def __aexit__(self, *_: object) -> None:
        self._unit.shields -= 1


class Saga(_Scope):
    """A block whose compensations run in reverse order, shielded, when it raises.

    The error of a compensation is logged, the others still run, and the error of the block is raised in the end. Where
    unexpected errors block the run, such an error ends the activation instead, before a compensation (see decision 48).
    """

    def __init__(self) -> None:
        super().__init__(SAGA)
        self._compensations: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._open = False

    def add(self, undo: Callable[..., Any], *args: Any) -> None:
        """Run ``undo(*args)`` when the block raises, and await its value if it is awaitable."""
        if not callable(undo):
            raise WorkflowDefinitionError(
                f"saga: {undo!r} is not a function: write saga.add(undo, *args), without calling it"
            )
        if not self._open:
            raise NestingError("saga: call add inside `async with api.saga() as saga:`")
        # A compensation that cannot be called would be seen when it is needed, and in the log alone.
        if not accepts_arguments(undo, len(args)):
            raise WorkflowDefinitionError(
                f"saga: a compensation cannot be called with {counted(len(args), 'argument', 'arguments')}: {signature_text(undo)}; "
                "write saga.add(undo, *args)"
            )
        guard.watch(undo)
        self._compensations.append((undo, args))

    async def __aenter__(self) -> Self:
        self._unit = self.enter()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._open = False
        if error is None or is_error(error, GeneratorExit, KeyboardInterrupt):
            return  # nothing to undo, or the code is being discarded
        await self._halt_if_unexpected(error)
        if not is_error(error, Exception, Cancelled) or is_error(error, MemoryError, RecursionError):
            return  # the activation fails and will be repeated as a whole
        self._unit.shields += 1
        try:
            for undo, args in reversed(self._compensations):
                await self._compensate(undo, args)
        finally:
            self._unit.shields -= 1

    async def _halt_if_unexpected(self, error: BaseException) -> None:
        """End the activation for an error that blocks the run: compensations would be commands of the bug.

        In a replay they are what the history records.
        """
        context = self.runtime.run_context
        if not context.blocks_on_error or context.replaying:
            return
        unexpected = unexpected_error(guard.explain(error), "the block of api.saga()")
        if unexpected is None:
            return
        # These two say that the process lacks memory or stack, as where they escape ``run``.
        if not isinstance(unexpected, (MemoryError, RecursionError)):
            context.set_blocking_error(unexpected)
        await Halt(unexpected)

    async def _compensate(self, undo: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Log the error that a compensation raises."""
        try:
            value = undo(*args)
            if inspect.isawaitable(value):
                await value
        except (MemoryError, RecursionError):
            raise
        except (Exception, Cancelled) as exc:  # noqa: BLE001 - user code; no caller waits for its result
            self.runtime.run_context.log_failure(f"the compensation {getattr(undo, '__name__', repr(undo))}", exc)
