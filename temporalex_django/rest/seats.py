"""How many requests of this process may wait at a time: long polls must not take all threads of a web server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from temporalex_django.conf import get_settings

_lock = threading.Lock()
#: Requests that wait, by the key of the user.
_taken: Counter[str] = Counter()


@contextmanager
def seat(user: str) -> Iterator[bool]:
    """Whether this request may wait. ``WAITING_REQUESTS`` may at a time, half as many of one user (by the key)."""
    most = get_settings().WAITING_REQUESTS
    with _lock:
        granted = _taken.total() < most and _taken[user] < max(1, most // 2)
        _taken[user] += granted
    try:
        yield granted
    finally:
        with _lock:
            _taken[user] -= granted
            if not _taken[user]:
                del _taken[user]
