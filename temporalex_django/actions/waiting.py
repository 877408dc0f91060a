"""Waiting for an outcome: looks when a hint comes and after growing pauses, with no transaction open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

from temporalex_django.db.listen import WaitFunction

T = TypeVar("T")

#: Seconds of the first pause, and of the longest. An answer is noticed about an eighth of the time that it took too
#: late: it is there between two looks.
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_PAUSE_GROWTH = 1.25
#: Whoever hears hints looks that much less often, and hears them for so long: from then on a pause is short beside what
#: has been waited, and the hints of a busy system would wake him more often than he looks.
_FIRST_LISTENING_PAUSE = 0.02
_LISTENING_SECONDS = 1.0


class Deadline:
    """So many seconds from now; None is never."""

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    @property
    def seconds_left(self) -> float:
        return float("inf") if self._at is None else max(0.0, self._at - time.monotonic())


class WaitStrategy:
    """How it is to wait in this process: others work meanwhile, and are seen by who has no transaction open.

    A test environment that stands under an application puts its own in place.
    """

    #: Does all that others would do while somebody waits; None: there are others.
    run_pending: Callable[[], None] | None = None

    def in_transaction(self, alias: str) -> bool:
        """Whether the caller has a transaction open: what he waits for would not come before it ends."""
        return connections[alias].in_atomic_block


wait_strategy = WaitStrategy()


def inside_transaction(alias: str) -> bool:
    """Whether the caller has a transaction open, in which nothing that others do can be waited for."""
    return wait_strategy.in_transaction(alias)


#: Gives for as long as somebody waits whether he may.
WaitSlot = Callable[[], AbstractContextManager[bool]]


#: Listens for as long as somebody waits, and gives what he rests with, which ends earlier when there may be something.
Listen = Callable[[], AbstractContextManager[WaitFunction]]


def unlimited_wait() -> AbstractContextManager[bool]:
    """Everybody may wait."""
    return nullcontext(enter_result=True)


def no_listen() -> AbstractContextManager[WaitFunction]:
    """Nothing tells."""
    return nullcontext(time.sleep)


def wait_for(
    poll: Callable[[], T | None],
    deadline: Deadline,
    *,
    wait_slot: WaitSlot = unlimited_wait,
    listen: Listen = no_listen,
) -> T | None:
    """What ``poll`` gives as soon as that is not None; None when the time is over, or there is no seat.

    Looks once at least, and when the ``listen`` hears that there may be something.
    """
    if (result := poll()) is not None or deadline.seconds_left <= 0:
        return result
    with wait_slot() as is_granted:
        if is_granted and wait_strategy.run_pending is not None:
            wait_strategy.run_pending()
            return poll()
        return _poll_until(poll, deadline, listen) if is_granted else None


def _poll_until(poll: Callable[[], T | None], deadline: Deadline, listen: Listen) -> T | None:
    pauses, listen_deadline = _pauses(_FIRST_PAUSE), Deadline(_LISTENING_SECONDS)
    with listen() as rest:
        if rest is not time.sleep:
            pauses = _pauses(_FIRST_LISTENING_PAUSE)
            if (result := poll()) is not None:  # it may have come before anybody listened
                return result
        while deadline.seconds_left > 0 and listen_deadline.seconds_left > 0:
            rest(min(next(pauses), deadline.seconds_left))
            if (result := poll()) is not None:
                return result
    while deadline.seconds_left > 0:
        time.sleep(min(next(pauses), deadline.seconds_left))
        if (result := poll()) is not None:
            return result
    return None


async def await_for(poll: Callable[[], T | None], deadline: Deadline) -> T | None:
    """The same without holding a thread between two looks."""
    for pause in _pauses(_FIRST_PAUSE):
        if (result := await sync_to_async(poll)()) is not None:
            return result
        if deadline.seconds_left <= 0:
            return None
        if wait_strategy.run_pending is not None:
            await sync_to_async(wait_strategy.run_pending)()
            return await sync_to_async(poll)()
        await asyncio.sleep(min(pause, deadline.seconds_left))
    raise AssertionError("unreachable")


def _pauses(pause: float) -> Iterator[float]:
    while True:
        yield pause
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)
