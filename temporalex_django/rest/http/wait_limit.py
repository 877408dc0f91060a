"""A limit on the requests of this process that may wait, so that long polls do not take all threads of a web server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from temporalex_django.conf import get_settings

_lock = threading.Lock()
#: Number of waiting requests by the key of the user.
_waiting_by_user: Counter[str] = Counter()


@contextmanager
def wait_slot(user_key: str) -> Iterator[bool]:
    """Take a wait slot for this request, and yield True if there is one.

    A process has ``WAITING_REQUESTS`` slots, and one user at most half of them. ``user_key`` is the key of the user.
    """
    limit = get_settings().WAITING_REQUESTS
    with _lock:
        is_granted = _waiting_by_user.total() < limit and _waiting_by_user[user_key] < max(1, limit // 2)
        # True counts as 1: a request that is not granted changes nothing, here and below.
        _waiting_by_user[user_key] += is_granted
    try:
        yield is_granted
    finally:
        with _lock:
            _waiting_by_user[user_key] -= is_granted
            # Entries at zero are removed: the counter must not grow with every user that ever came.
            if not _waiting_by_user[user_key]:
                del _waiting_by_user[user_key]
