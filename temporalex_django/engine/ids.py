"""Ids and tokens drawn in Python, which costs no statement."""

from __future__ import annotations

import os
import time
from uuid import UUID, uuid5


def uuid7() -> UUID:
    """Return a UUIDv7, which sorts by time, also within a millisecond.

    RFC 9562, method 3: twelve bits hold the fraction of the millisecond.
    """
    now = time.time_ns()
    millis, rest = divmod(now, 1_000_000)
    fraction = rest * 4096 // 1_000_000
    tail = token() & ((1 << 62) - 1)
    return UUID(int=(millis & ((1 << 48) - 1)) << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | tail)


def human_task_id(run_id: UUID, key: str) -> UUID:
    """Return the id of the human task that has this key in a run."""
    return uuid5(run_id, f"human task {key}")


def token() -> int:
    """Return a number from 1 to 2**63 - 1 that is never drawn twice: a ``head`` token, a worker's epoch, a seed."""
    try:
        return _token_pool.pop()
    except IndexError:
        random_bytes = os.urandom(8 * _POOL_SIZE)
        _token_pool.extend(
            (int.from_bytes(random_bytes[i : i + 8], "big") >> 1) or 1 for i in range(0, len(random_bytes), 8)
        )
        return _token_pool.pop()


#: Tokens drawn with one system call, since a turn needs one for each run. ``pop`` is atomic, and a forked child must
#: not draw the tokens of its parent.
_POOL_SIZE = 256
_token_pool: list[int] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_token_pool.clear)
