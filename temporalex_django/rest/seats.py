"""How many requests of this process may wait at a time: long polls must not take all threads of a web server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from temporalex_django.conf import get_settings

_lock = threading.Lock()
_taken = 0


@contextmanager
def seat() -> Iterator[bool]:
    """Whether this request may wait; ``WAITING_REQUESTS`` may at a time."""
    global _taken  # noqa: PLW0603 - of the process
    with _lock:
        granted = _taken < get_settings().WAITING_REQUESTS
        _taken += granted
    try:
        yield granted
    finally:
        with _lock:
            _taken -= granted
