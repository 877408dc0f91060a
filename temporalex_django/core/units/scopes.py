"""``async with`` blocks of workflow code: ``shield`` and ``saga``. Neither of them suspends by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from temporalex_django.core import current
from temporalex_django.core.determinism import guard
from temporalex_django.core.error_text import is_error
from temporalex_django.core.failures import unexpected_error
from temporalex_django.core.messages.phase import accepts_arguments, signature_text
from temporalex_django.core.names import counted
from temporalex_django.core.primitive_table import SAGA, SHIELD, Primitive
from temporalex_django.core.units.ivar import Halt
from temporalex_django.core.units.scheduler import Unit
from temporalex_django.core.units.unawaited import PendingCall
from temporalex_django.errors import Cancelled, NestingError, WorkflowDefinitionError


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
        """Check that the block is allowed here, record that it is entered, and return the coroutine that runs now."""
        unit = current.unit_for(self.primitive)
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
        """End the activation if ``error``, which leaves the block, is one that blocks the run.

        Compensations would be commands of the bug, which the corrected code does not issue. In a replay they are what
        the history records.
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
        """Run one compensation, ``undo(*args)``, and log the error that it raises."""
        try:
            value = undo(*args)
            if inspect.isawaitable(value):
                await value
        except (MemoryError, RecursionError):
            raise
        except (Exception, Cancelled) as exc:  # noqa: BLE001 - user code; no caller waits for its result
            self.runtime.run_context.log_failure(f"the compensation {getattr(undo, '__name__', repr(undo))}", exc)
