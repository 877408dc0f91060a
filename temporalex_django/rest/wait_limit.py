"""How many requests of this process may wait at a time: long polls must not take all threads of a web server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from temporalex_django.conf import get_settings

_lock = threading.Lock()
#: Requests that wait, by the key of the user.
_waiting_by_user: Counter[str] = Counter()


@contextmanager
def wait_slot(user_key: str) -> Iterator[bool]:
    """Whether this request may wait. ``WAITING_REQUESTS`` may at a time, half as many of one user (by the key)."""
    limit = get_settings().WAITING_REQUESTS
    with _lock:
        is_granted = _waiting_by_user.total() < limit and _waiting_by_user[user_key] < max(1, limit // 2)
        _waiting_by_user[user_key] += is_granted
    try:
        yield is_granted
    finally:
        with _lock:
            _waiting_by_user[user_key] -= is_granted
            if not _waiting_by_user[user_key]:
                del _waiting_by_user[user_key]
