"""Polling for an outcome, on notifications and after growing pauses, with no transaction open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

from temporalex_django.db.messages.listen import WaitFunction

T = TypeVar("T")

#: Seconds of the first and of the longest pause. A result arrives between two polls, so on average it is noticed late
#: by an eighth of the time that it took.
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_PAUSE_GROWTH = 1.25
#: A caller that gets notifications polls less often, and listens for this many seconds. After that, a pause is short
#: compared with the time waited, and the notifications of a busy system would wake the caller more often than its
#: polls.
_FIRST_LISTENING_PAUSE = 0.02
_LISTENING_SECONDS = 1.0


class Deadline:
    """A moment that is ``timeout`` seconds from now; with None it never comes."""

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    @property
    def seconds_left(self) -> float:
        return float("inf") if self._at is None else max(0.0, self._at - time.monotonic())


class WaitStrategy:
    """The way in which this process waits.

    By default, other processes work meanwhile, and their changes are visible to callers that have no transaction open.
    A test environment under an application installs its own strategy.
    """

    #: Does all work that others would do during the wait; None if there are other processes for that.
    run_pending: Callable[[], None] | None = None

    def in_transaction(self, alias: str) -> bool:
        """Return True if the caller has a transaction open.

        An outcome that the caller waits for could not arrive before the transaction ends.
        """
        return connections[alias].in_atomic_block


wait_strategy = WaitStrategy()


def inside_transaction(alias: str) -> bool:
    """Return True if the caller has a transaction open.

    Inside it, the caller cannot wait for anything that others do.
    """
    return wait_strategy.in_transaction(alias)


#: Opens a wait slot for the time of the wait; its value is True if the slot was granted.
WaitSlot = Callable[[], AbstractContextManager[bool]]


#: Listens for the time of the wait. Its value is a sleep function that returns early when there may be a result.
Listen = Callable[[], AbstractContextManager[WaitFunction]]


def unlimited_wait() -> AbstractContextManager[bool]:
    """Return a wait slot that is always granted."""
    return nullcontext(enter_result=True)


def no_listen() -> AbstractContextManager[WaitFunction]:
    """Return a listener that receives no notifications and only sleeps."""
    return nullcontext(time.sleep)


def wait_for(
    poll: Callable[[], T | None],
    deadline: Deadline,
    *,
    wait_slot: WaitSlot = unlimited_wait,
    listen: Listen = no_listen,
) -> T | None:
    """Return the first result of ``poll`` that is not None.

    Returns None if the time is over, or if no wait slot is free. It polls at least once, and again when ``listen``
    reports that there may be a result.
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
            # Poll once more after the subscription: the result may have arrived before it, without a notification.
            if (result := poll()) is not None:
                return result
        while deadline.seconds_left > 0 and listen_deadline.seconds_left > 0:
            rest(min(next(pauses), deadline.seconds_left))
            if (result := poll()) is not None:
                return result
    # From here on notifications are ignored: a pause is short compared with the time waited (``_LISTENING_SECONDS``).
    while deadline.seconds_left > 0:
        time.sleep(min(next(pauses), deadline.seconds_left))
        if (result := poll()) is not None:
            return result
    return None


async def await_for(poll: Callable[[], T | None], deadline: Deadline) -> T | None:
    """Wait as ``wait_for`` does, without holding a thread between two polls."""
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
