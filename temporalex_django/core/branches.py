"""Units side by side: ``parallel`` waits for all of them, ``race`` for the first and cancels the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from temporalex_django.core.invoking import invoke
from temporalex_django.core.ivar import Call, IVar
from temporalex_django.core.mailbox import Signal
from temporalex_django.core.port import Port
from temporalex_django.core.results import Async, Err
from temporalex_django.core.scheduler import Unit
from temporalex_django.errors import Cancelled, NestingError, WorkflowDefinitionError

Hand = tuple[Signal, ...]
Ended = Callable[[int, Any, BaseException | None, Hand], None]


class _Branches:
    """What the two have in common: branches are taken over when the primitive is called and started when it is awaited.

    A signal that a branch took and returned is taken when the caller goes on with that value; else it stays in the
    mailbox.
    """

    def __init__(self, port: Port, name: str, branches: Sequence[Any]) -> None:
        for branch in branches:
            if not callable(branch) and not inspect.isawaitable(branch):
                raise WorkflowDefinitionError(
                    f"{name}: {branch!r} is neither a function without arguments nor an awaitable (a loop needs functools.partial)"
                )
        for branch in branches:
            if isinstance(branch, Call):
                branch.settle()
            elif inspect.iscoroutine(branch):
                port.take_over(branch)
        self.port = port
        self.branches = branches
        self.running = 0

    def start(self, index: int, host: Unit | None, ended: Ended) -> Unit:
        """Spawn one branch as a unit; ``ended(index, value, error, hand)`` is called when it is over."""

        def finished(value: Any, error: BaseException | None) -> None:
            self.running -= 1
            self._forget(index)
            if isinstance(error, (MemoryError, RecursionError)):
                raise error
            if error is None and isinstance(value, Async):
                error = NestingError(f"branch {index} returned Async: only a handler of a phase may")
            ended(index, value, error, unit.hand if error is None else ())

        self.running += 1
        scheduler = self.port.scheduler
        unit = Unit(scheduler, "branch", f"branch {index}", finished, host)
        scheduler.spawn(unit, invoke(self.branches[index]))
        return unit

    def give_up(self, hand: Hand) -> None:
        """The caller goes on without the value that those signals went into."""
        unit = self.port.scheduler.current
        assert unit is not None
        unit.hand = ()
        self.port.dispatcher.put_back(hand)

    def drop(self, first: int) -> None:
        """Branches from ``first`` on will never be started."""
        for index in range(first, len(self.branches)):
            if inspect.iscoroutine(self.branches[index]):
                self.branches[index].close()
                self._forget(index)

    def _forget(self, index: int) -> None:
        self.port.give_back(self.branches[index])


class Parallel(_Branches):
    """Branches of one ``parallel`` call. All end before the caller goes on, whatever happens to one of them."""

    def __init__(self, port: Port, branches: Sequence[Any], limit: int | None) -> None:
        super().__init__(port, "parallel", branches)
        self._limit = limit or len(branches)
        self._results: list[Any] = [None] * len(branches)
        self._hand: Hand = ()
        self._next = 0
        self._cancelled: Cancelled | None = None
        self._done = IVar(f"parallel of {len(branches)}")

    async def run(self) -> list[Any]:
        self._host = self.port.scheduler.current
        self._fill()
        try:
            if self.branches:
                await self._done
        except Cancelled:
            self.drop(self._next)
            self._next = len(self.branches)
            await self._done
            self.give_up(self._hand)
            raise
        if self._cancelled is not None:
            self.give_up(self._hand)
            raise self._cancelled
        return self._results

    def _fill(self) -> None:
        while self._next < len(self.branches) and self.running < self._limit:
            self._next += 1
            self.start(self._next - 1, self._host, self._ended)

    def _ended(self, index: int, value: Any, error: BaseException | None, hand: Hand) -> None:
        if isinstance(error, Cancelled):
            self._cancelled = self._cancelled or error
        self._hand += hand
        self._results[index] = value if error is None else Err(error)
        self._fill()
        if not self.running:
            self._done.hand = self._hand
            self._done.put()


class Race(_Branches):
    """Branches of one ``race`` call.

    Who won is decided when every unit is blocked, so that of those that ended in the same activation the lowest index
    wins, whatever the order in which they were stepped. The others are cancelled, and all have ended before the caller
    goes on.
    """

    def __init__(self, port: Port, branches: Sequence[Any]) -> None:
        super().__init__(port, "race", branches)
        self._units: list[Unit] = []
        self._ends: dict[int, tuple[Any, BaseException | None, Hand]] = {}
        self._winner: int | None = None
        self._done = IVar(f"race of {len(branches)}")

    async def run(self) -> tuple[int, Any]:
        host = self.port.scheduler.current
        self._units = [self.start(index, host, self._ended) for index in range(len(self.branches))]
        try:
            await self._done
        except Cancelled:
            await self._done  # the same cancel has reached the branches
            self.give_up(self._done.hand)
            raise
        assert self._winner is not None
        value, error, hand = self._ends[self._winner]
        if error is not None:
            self.give_up(hand)
            raise error
        return self._winner, value

    def _ended(self, index: int, value: Any, error: BaseException | None, hand: Hand) -> None:
        self._ends[index] = value, error, hand
        if self._winner is None:
            if len(self._ends) == 1:
                self.port.scheduler.when_blocked.append(self._decide)
        else:
            self._lost(index, error, hand)
            if not self.running:
                self._done.put()

    def _decide(self) -> None:
        self._winner = min(self._ends)
        self._done.hand = self._ends[self._winner][2]
        for index, (_, error, hand) in self._ends.items():
            if index != self._winner:
                self._lost(index, error, hand)
        for unit in self._units:
            if unit.coroutine is not None:
                self.port.scheduler.cancel(unit)
        if not self.running:
            self._done.put()

    def _lost(self, index: int, error: BaseException | None, hand: Hand) -> None:
        """An error of a loser goes to nobody; what it took stays for others."""
        self.port.dispatcher.put_back(hand)
        if error is not None and not isinstance(error, Cancelled):
            self.port.standing.complain(f"branch {index} lost its race and", error)
