"""Waiting for an outcome that another process writes: polls with growing pauses, and sooner after a notification.

No transaction is open between two polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from asgiref.sync import sync_to_async

from temporalex_django.backends.host import host
from temporalex_django.db.messages.notify import WaitFunction

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
    """A moment that is ``timeout`` seconds after the creation of the object.

    With None as ``timeout`` it never comes, and ``seconds_left`` is infinite.
    """

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    @property
    def seconds_left(self) -> float:
        if self._at is None:
            return float("inf")
        return max(0.0, self._at - time.monotonic())


def inside_transaction(alias: str) -> bool:
    """Return True if the caller has a transaction open.

    Other processes do not see its writes before it ends, so the caller must not wait for an outcome. The host decides.
    """
    return host().in_transaction(alias)


#: Opens a wait slot for the time of the wait; its value is True if the slot was granted.
WaitSlot = Callable[[], AbstractContextManager[bool]]


#: Listens for the time of the wait. Its value is a sleep function that returns early when there may be a result.
Listen = Callable[[], AbstractContextManager[WaitFunction]]


def unlimited_wait() -> AbstractContextManager[bool]:
    """Return a wait slot that is always granted: the number of callers that wait is not limited.

    It is a context manager whose value is True: the caller may wait.
    """
    return nullcontext(enter_result=True)


def no_listen() -> AbstractContextManager[WaitFunction]:
    """Return a context manager whose value is ``time.sleep``: the wait receives no notifications."""
    return nullcontext(time.sleep)


def wait_for(
    poll: Callable[[], T | None],
    deadline: Deadline,
    *,
    wait_slot: WaitSlot = unlimited_wait,
    listen: Listen = no_listen,
) -> T | None:
    """Call ``poll`` until it returns something other than None, and return that; None when the deadline has passed.

    It polls at least once, then after growing pauses, and sooner when ``listen`` is notified. ``wait_slot()`` returns a
    context manager that limits how many callers wait at a time. Its value is False if too many wait already; then None
    is returned after the first poll.

    A host that does the work of workers itself does it after the first poll, whatever the deadline is: its clock is not
    the one of the deadline.
    """
    run_pending = host().run_pending
    if (result := poll()) is not None or (run_pending is None and deadline.seconds_left <= 0):
        return result
    with wait_slot() as is_granted:
        if not is_granted:
            return None
        if run_pending is None:
            return _poll_until(poll, deadline, listen)
        run_pending()
        return poll()


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
    """Call ``poll`` in a thread until it returns something other than None, and return that, or None at the deadline.

    Between two polls no thread is held. Unlike ``wait_for`` it receives no notifications.
    """
    for pause in _pauses(_FIRST_PAUSE):
        if (result := await sync_to_async(poll)()) is not None:
            return result
        run_pending = host().run_pending
        if run_pending is not None:
            await sync_to_async(run_pending)()
            return await sync_to_async(poll)()
        if deadline.seconds_left <= 0:
            return None
        await asyncio.sleep(min(pause, deadline.seconds_left))
    raise AssertionError("unreachable")


def _pauses(pause: float) -> Iterator[float]:
    while True:
        yield pause
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)
