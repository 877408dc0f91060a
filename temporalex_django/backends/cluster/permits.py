"""Permits for the attempts of a worker on a cluster: they run under the limits of the tables, over all workers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from django.db import DatabaseError, close_old_connections, connections
from temporalio.worker import (
    CustomSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
)

from temporalex_django.backends.cluster.places import ActivitySlots
from temporalex_django.conf import queue_limits
from temporalex_django.core.failures import error_line
from temporalex_django.core.limits import NO_LIMITS
from temporalex_django.db.claims import permits
from temporalex_django.db.storage import DjangoStorage

log = logging.getLogger("temporalex_django.backends")

#: Seconds between two looks at limits that leave nothing: nobody announces the end of an attempt.
_LOOK_AGAIN: Final = 0.1
#: Seconds between two tries while the database is away.
_PAUSE: Final = 2.0
#: So many attempts of a queue may wait in a worker for their permits. The worker takes no more tasks of it meanwhile.
_MAX_WAITING: Final = 10
#: Most requests in one transaction.
_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the thread: ``function(storage=…)`` under the limits with these names."""

    names: Collection[str]
    function: Callable[..., Any]
    answer: Future[Any] = field(default_factory=Future)


class PermitThread:
    """A thread that takes permits and gives them back; what comes meanwhile shares the next transaction."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="temporalex-cluster-permits", daemon=True)
        self._thread.start()

    def submit(self, names: Collection[str], function: Callable[..., Any]) -> Future[Any]:
        """Call ``function(storage=…)`` in a transaction that has locked the limits with these names."""
        request = _Request(names, function)
        self._requests.put(request)
        return request.answer

    def close(self) -> None:
        """End the thread after all requests."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            batch = [self._requests.get()]
            with suppress(Empty):
                while len(batch) < _BATCH:
                    batch.append(self._requests.get_nowait())
            is_ending = None in batch
            self._answer([request for request in batch if request is not None])
        connections.close_all()

    def _answer(self, batch: list[_Request]) -> None:
        storage = DjangoStorage(self._alias, worker=True)
        names = {name for request in batch for name in request.names}
        answers: list[Any] = []
        try:
            close_old_connections()
            with storage.transaction():
                permits.lock_limits(names, storage=storage)
                answers = [request.function(storage=storage) for request in batch]
        except Exception as exc:  # noqa: BLE001 - those who wait get it
            for request in batch:
                request.answer.set_exception(exc)
        else:
            for request, answer in zip(batch, answers, strict=True):
                request.answer.set_result(answer)


class Permits:
    """The permits of one worker process. ``alias`` is the database, and ``owner()`` the epoch of the worker.

    All methods but ``close`` are called on the event loop of the worker.
    """

    def __init__(self, alias: str, owner: Callable[[], int]) -> None:
        self._owner = owner
        self._thread = PermitThread(alias)
        self._places: defaultdict[str, list[int]] = defaultdict(list)  # by queue
        self._waiting: Counter[str] = Counter()
        self._is_suspended = False

    async def keep_place(self, queue: str) -> bool:
        """Reserve a place for another attempt of a queue, and return True if the limits of the queue leave one.

        Otherwise, and while the places are suspended, return False after a pause.
        """
        if self._waiting[queue] < _MAX_WAITING and not self._is_suspended:
            function = partial(permits.keep_place, queue, owner=self._owner())
            place = await self._ask(permits.limits_of(queue), function)
            if place is not None:
                self._places[queue].append(place)
                if self._is_suspended:  # meanwhile
                    self.suspend()
                return True
        await asyncio.sleep(_LOOK_AGAIN)
        return False

    def drop_place(self, queue: str) -> None:
        """Release a reserved place of a queue for which no activity has come."""
        if self._places[queue]:
            self._give_back(self._places[queue].pop())

    def suspend(self) -> None:
        """Release all places, and reserve no others until ``resume``: no task can come while the cluster is away.

        Otherwise workers that do reach the cluster would have to wait for these places. A poll that is open on the
        cluster continues without a place: its attempt waits for a permit, as every attempt does.
        """
        self._is_suspended = True
        for queue, places in self._places.items():
            if places:
                log.warning("the places of the queue %s are given back: the cluster does not answer", queue)
            while places:
                self._give_back(places.pop())

    def resume(self) -> None:
        """Reserve places again, after ``suspend``."""
        self._is_suspended = False

    @asynccontextmanager
    async def hold_permit(
        self, queue: str, activity: str, key: str | None, beat: Callable[[], Any]
    ) -> AsyncIterator[None]:
        """Wait until an attempt may start under all limits that apply, and count it as running in the block.

        ``beat()`` is called now and then while it waits. An activity without limits neither waits nor counts.
        """
        limits = permits.limits_of(queue, activity)
        if not limits:
            yield
            return
        function = partial(permits.start, queue, activity, key, owner=self._owner())
        self._waiting[queue] += 1
        try:
            while (answer := await self._ask(limits, function))[0] is None:
                beat()
                await asyncio.sleep(max(answer[1], _LOOK_AGAIN))
        finally:
            self._waiting[queue] -= 1
            self.drop_place(queue)
        try:
            yield
        finally:
            self._give_back(answer[0])

    async def _ask(self, names: Collection[str], function: Callable[..., Any]) -> Any:
        """Call a function that takes a permit in the thread, and again while the database is away."""
        while True:
            call = self._thread.submit(names, function)
            try:
                return await asyncio.shield(asyncio.wrap_future(call))
            except asyncio.CancelledError:
                call.add_done_callback(self._undo)
                raise
            except DatabaseError as exc:
                log.warning("attempts under limits wait for the database: %s", error_line(exc))
                await asyncio.sleep(_PAUSE)

    def _undo(self, call: Future[Any]) -> None:
        """Give back the permit that a call has taken for nobody."""
        if call.exception() is not None:
            return
        answer = call.result()
        permit = answer[0] if isinstance(answer, tuple) else answer
        if permit is not None:
            self._give_back(permit)

    def _give_back(self, permit: int) -> None:
        """Delete a permit, without a wait for it. After an error it is tried again, until the worker ends."""
        call = self._thread.submit((), partial(permits.give_back, [permit]))
        call.add_done_callback(partial(self._give_back_again, permit))

    def _give_back_again(self, permit: int, call: Future[Any]) -> None:
        """Give back a permit after a pause if ``call`` has failed: with a limit of one, all others wait for it."""
        if (error := call.exception()) is None:
            return
        log.warning("could not delete the permit of an attempt that has ended, retrying: %s", error_line(error))
        timer = threading.Timer(_PAUSE, self._give_back, [permit])
        timer.daemon = True  # the end of the worker deletes its permits
        timer.start()

    def close(self) -> None:
        """Give back all places, and end the thread. No attempt runs any more."""
        for places in self._places.values():
            for place in places:
                self._give_back(place)
        self._thread.close()


class LimitedSlots(CustomSlotSupplier):
    """The slots of a queue with limits: its worker polls only while another attempt may start.

    ``slots`` are those of all queues of the process, and ``permits`` those of its worker.
    """

    def __init__(self, queue: str, slots: ActivitySlots, permits: Permits) -> None:
        self._queue = queue
        self._slots = slots
        self._permits = permits
        self._unused: set[int] = set()

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait until a thread is free and the limits of the queue leave a place; then return a new permit."""
        while True:
            permit = await self._slots.reserve_slot(ctx)  # first, so that no place waits for a thread
            if await self._permits.keep_place(self._queue):
                self._unused.add(id(permit))
                return permit

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return None, because the limits cannot be checked without a read of the database."""
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Count the activity of a permit as running. Its attempt releases the place when it may start."""
        self._unused.discard(id(ctx.permit))
        self._slots.mark_slot_used(ctx)

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Count the activity of a permit as ended. If no activity used the permit, release its place."""
        if id(ctx.permit) in self._unused:
            self._unused.discard(id(ctx.permit))
            self._permits.drop_place(self._queue)
        self._slots.release_slot(ctx)


def slots_of(queue: str, slots: ActivitySlots, permits: Permits) -> CustomSlotSupplier:
    """Return the slots for the worker of a queue."""
    limits = queue_limits().get(queue, NO_LIMITS)
    if limits.concurrency is None and limits.rate is None:
        return slots
    return LimitedSlots(queue, slots, permits)
