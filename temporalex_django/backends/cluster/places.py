"""Places for activities of a cluster: the threads of a worker's pool, which activities of the tables use as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from temporalio import activity as sdk
from temporalio.worker import (
    CustomSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
)

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds between two looks for a free thread while all are in use.
_PAUSE: Final = 0.05


class Threads(Protocol):
    """The threads in which plain functions run: those of the pool of a worker."""

    def call(self, workflow: str, function: Callable[[], Any]) -> Future[Any]:
        """Run ``function`` in a thread, and return the future of its result.

        ``workflow`` is the class name of the run that calls the activity. Threads are shared fairly among classes.
        """

    @property
    def has_free_thread(self) -> bool:
        """True if a plain function can start at once."""


class PoolExecutor(Executor):
    """An executor for the SDK that uses the threads of a worker's pool. Call ``submit`` in an activity of the SDK."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._threads.call(sdk.info().workflow_type or "", partial(fn, *args, **kwargs))


class ActivitySlots(CustomSlotSupplier):
    """The slots of activities: a worker of the SDK takes an activity only while a thread is free.

    At most ``limit`` activities run at a time. A poller that waits for an activity does not occupy a slot. So the
    worker may take a few more activities than there are threads; these wait for a thread.
    """

    def __init__(self, threads: Threads, *, limit: int) -> None:
        self._threads = threads
        self._limit = limit
        self._used: set[int] = set()  # ids of the permits of activities that run

    @property
    def _is_free(self) -> bool:
        return len(self._used) < self._limit and self._threads.has_free_thread

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait until an activity can start, and return a new permit."""
        del ctx
        while not self._is_free:  # noqa: ASYNC110 - the threads serve the tables, too, and announce nothing
            await asyncio.sleep(_PAUSE)
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return a new permit if an activity can start at once, else None."""
        del ctx
        return SlotPermit() if self._is_free else None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Count the activity of a permit as running."""
        self._used.add(id(ctx.permit))

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Count the activity of a permit as ended."""
        self._used.discard(id(ctx.permit))
