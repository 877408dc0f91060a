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
_FIRST = 0.002
_LONGEST = 0.1
_GROWTH = 1.25
#: Whoever hears hints looks that much less often, and hears them for so long: from then on a pause is short beside what
#: has been waited, and the hints of a busy system would wake him more often than he looks.
_FIRST_HEARING = 0.02
_HEARS_FOR = 1.0


class Deadline:
    """So many seconds from now; None is never."""

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float:
        return float("inf") if self._at is None else max(0.0, self._at - time.monotonic())


class Circumstances:
    """How it is to wait in this process: others work meanwhile, and are seen by who has no transaction open.

    A test environment that stands under an application puts its own in place.
    """

    #: Does all that others would do while somebody waits; None: there are others.
    meanwhile: Callable[[], None] | None = None

    def inside(self, alias: str) -> bool:
        """Whether the caller has a transaction open: what he waits for would not come before it ends."""
        return connections[alias].in_atomic_block


here = Circumstances()


def inside_transaction(alias: str) -> bool:
    """Whether the caller has a transaction open, in which nothing that others do can be waited for."""
    return here.inside(alias)


#: Gives for as long as somebody waits whether he may.
Seat = Callable[[], AbstractContextManager[bool]]


#: Listens for as long as somebody waits, and gives what he rests with, which ends earlier when there may be something.
Ear = Callable[[], AbstractContextManager[WaitFunction]]


def free_seat() -> AbstractContextManager[bool]:
    """Everybody may wait."""
    return nullcontext(enter_result=True)


def deaf() -> AbstractContextManager[WaitFunction]:
    """Nothing tells."""
    return nullcontext(time.sleep)


def wait_for(look: Callable[[], T | None], deadline: Deadline, *, seat: Seat = free_seat, ear: Ear = deaf) -> T | None:
    """What ``look`` gives as soon as that is not None; None when the time is over, or there is no seat.

    Looks once at least, and when the ``ear`` hears that there may be something.
    """
    if (first := look()) is not None or deadline.left <= 0:
        return first
    with seat() as granted:
        if granted and here.meanwhile is not None:
            here.meanwhile()
            return look()
        return _looked(look, deadline, ear) if granted else None


def _looked(look: Callable[[], T | None], deadline: Deadline, ear: Ear) -> T | None:
    pauses, hears = _pauses(_FIRST), Deadline(_HEARS_FOR)
    with ear() as rest:
        if rest is not time.sleep:
            pauses = _pauses(_FIRST_HEARING)
            if (found := look()) is not None:  # it may have come before anybody listened
                return found
        while deadline.left > 0 and hears.left > 0:
            rest(min(next(pauses), deadline.left))
            if (found := look()) is not None:
                return found
    while deadline.left > 0:
        time.sleep(min(next(pauses), deadline.left))
        if (found := look()) is not None:
            return found
    return None


async def await_for(look: Callable[[], T | None], deadline: Deadline) -> T | None:
    """The same without holding a thread between two looks."""
    for pause in _pauses(_FIRST):
        if (found := await sync_to_async(look)()) is not None:
            return found
        if deadline.left <= 0:
            return None
        if here.meanwhile is not None:
            await sync_to_async(here.meanwhile)()
            return await sync_to_async(look)()
        await asyncio.sleep(min(pause, deadline.left))
    raise AssertionError("unreachable")


def _pauses(pause: float) -> Iterator[float]:
    while True:
        yield pause
        pause = min(pause * _GROWTH, _LONGEST)
