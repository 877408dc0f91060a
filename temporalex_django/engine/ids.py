"""Ids and tokens made in this process, so that no database statement is needed for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID, uuid5

from temporalex_django.core.names import current_name, quoted
from temporalex_django.errors import AmbiguousId, InvalidId

#: Returns nanoseconds since 1970; ids of runs begin with it.
_clock: Callable[[], int] = time.time_ns


@contextmanager
def use_clock(clock: Callable[[], int]) -> Iterator[None]:
    """Return a context manager in whose block ids are made with another clock, in all threads: a virtual one in tests.

    ``clock`` returns nanoseconds since 1970.
    """
    global _clock  # noqa: PLW0603 - ids are drawn by one clock
    previous_clock, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = previous_clock


def uuid7() -> UUID:
    """Return a UUIDv7, which sorts by time, also within a millisecond.

    RFC 9562, method 3: twelve bits hold the fraction of the millisecond.
    """
    return _uuid7(_clock(), token())


def _uuid7(nanoseconds: int, number: int) -> UUID:
    millis, rest = divmod(nanoseconds, 1_000_000)
    fraction = rest * 4096 // 1_000_000
    tail = number & ((1 << 62) - 1)
    return UUID(int=(millis & ((1 << 48) - 1)) << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | tail)


def next_run_id(source: str, *, at: datetime, after: UUID | None) -> UUID:
    """Return the id of the run as which the run ``source`` continues at a time. Equal arguments give an equal id.

    It sorts after the id ``after``, whatever the clock was that made it.
    """
    earliest = 0 if after is None else ((after.int >> 80) + 1) * 1_000_000
    digest = blake2b(source.encode(), digest_size=8).digest()
    return _uuid7(max(round(at.timestamp() * 1_000_000) * 1_000, earliest), int.from_bytes(digest, "big"))


def human_task_id(run_id: UUID, key: str) -> UUID:
    """Return the id of the human task with the key ``key`` in a run; equal arguments give an equal id."""
    return uuid5(run_id, f"human task {key}")


def token() -> int:
    """Return a random number from 1 to 2**63 - 1, which is never drawn twice.

    It serves as the token of an activation, as the epoch of a worker (the number under which it owns what it claims),
    or as the random seed of a run.
    """
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


class RunRef(NamedTuple):
    """The current run of a chain with the fields that a search for a run by its business id compares."""

    chain_id: UUID
    run_id: UUID
    workflow: str
    status: str
    closed: bool


def parse_run_id(text: str) -> UUID | None:
    """Return the run id in ``text``, a UUID in any of its spellings, or None."""
    try:
        return UUID(text)
    except ValueError:
        return None


def resolve_run(ref: str, candidates: Iterable[RunRef]) -> RunRef | None:
    """Return the run that the business id ``ref`` means, or None.

    ``candidates`` are the current runs of the chains with that id, newest first. The result is the newest one. If
    several workflows used the id, it is the one that is open. A renamed class counts as one workflow. Raises
    ``AmbiguousId`` when several workflows used the id and not exactly one of them has an open run.
    """
    newest: dict[str, RunRef] = {}
    open_runs: dict[str, RunRef] = {}
    for run in candidates:
        name = current_name(run.workflow)
        newest.setdefault(name, run)
        if not run.closed:
            open_runs.setdefault(name, run)
    if len(newest) <= 1:
        return next(iter(newest.values()), None)
    if len(open_runs) == 1:
        return next(iter(open_runs.values()))
    raise ambiguous_id_error(ref, [open_runs.get(name) or newest[name] for name in sorted(newest)])


def ambiguous_id_error(ref: str, candidates: Sequence[RunRef]) -> AmbiguousId:
    """Return the error for a business id that several workflows have used; it lists the runs in ``candidates``."""
    descriptions = ", ".join(f"{run.workflow} ({run.status}, run {run.run_id})" for run in candidates)
    return AmbiguousId(
        f"several workflows have used the id {quoted(ref)}: {descriptions}. Name the workflow, or pass the run id "
        "instead",
        candidates=[{"workflow": run.workflow, "run_id": str(run.run_id), "status": run.status} for run in candidates],
    )


def run_id_taken_error(workflow_id: str) -> InvalidId:
    """Return the error for a start whose business id is the run id of another run."""
    return InvalidId(
        f"{quoted(workflow_id)} is the id of a run, and looking up that run would find this one instead. "
        "Choose another id"
    )
