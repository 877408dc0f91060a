"""What dead workers left behind, and runs that cannot be taken with others.

Dead is a worker whose process has ended on this very machine, or whose beat is late and, where it holds a session lock, whose lock
is absent in two probes at least two seconds apart: a dropped connection alone must not double every effect that is running.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from temporalex_django.conf import codec, get_settings
from temporalex_django.errors import TemporalexError
from temporalex_django.runtime import activities
from temporalex_django.runtime.django import DjangoStorage
from temporalex_django.runtime.places import is_gone, is_neighbour
from temporalex_django.runtime.slots import chain_in, remove_slot
from temporalex_django.runtime.writing import insert

log = logging.getLogger("temporalex_django.recovery")

_PROBES_APART = timedelta(seconds=2)
_CRASHES_BEFORE_BLOCK = 3
_LONGEST_BACKOFF = 300.0


@dataclass(slots=True)
class Recovered:
    """``workers`` that were found dead, ``due`` activities that are due again, ``failed`` ones that had no attempt left."""

    workers: list[UUID] = field(default_factory=list)
    due: int = 0
    failed: int = 0

    def __bool__(self) -> bool:
        return bool(self.workers)


def recover(storage: DjangoStorage, *, own: UUID | None = None) -> Recovered:
    """Find dead workers and give what they held to others. One transaction a dead worker; a plain read when there is none."""
    found = Recovered()
    now = storage.now()
    rows = storage.sql.select(
        "select id, epoch, place, slot, session_lock, suspected_at, expires_at from temporalex_worker",
        [],
        ("uuid", "int8", "text", "text", "bool", "timestamptz", "timestamptz"),
    )
    for worker, epoch, place, slot, session_lock, suspected, expires in rows:
        if worker == own:
            continue
        ended = is_gone(place)
        late = expires <= now
        if ended or (late and _is_dead(storage, worker, epoch, suspected, now, session_lock=session_lock)):
            _bury(storage, worker, epoch, slot if is_neighbour(place) else "", found)
    return found


def release_orphans(storage: DjangoStorage) -> None:
    """Activities of an owner without a row: nobody is left who could finish them, or be judged. Looked for now and then."""
    rows = storage.sql.select(
        "select distinct owner from temporalex_activity_task where owner is not null"
        " and not exists (select 1 from temporalex_worker w where w.epoch = owner)",
        [],
        ("int8",),
    )
    for (owner,) in rows:
        with storage.transaction():
            release(storage, owner)


def _is_dead(
    storage: DjangoStorage, worker: UUID, epoch: int, suspected: datetime | None, now: datetime, *, session_lock: bool
) -> bool:
    if not session_lock or storage.sql.vendor != "postgresql" or get_settings().POOLED:
        return True
    with storage.transaction():
        absent = storage.sql.select("select pg_try_advisory_xact_lock(%s::int8)", [epoch], ("bool",))[0][0]
    if not absent:  # alive and late: starved, or its database connection is
        storage.sql.execute("update temporalex_worker set suspected_at = null where id = %s", [worker])
        return False
    if suspected is None:
        storage.sql.execute("update temporalex_worker set suspected_at = %s where id = %s", [now, worker])
        return False
    return now - suspected >= _PROBES_APART


def _bury(storage: DjangoStorage, worker: UUID, epoch: int, slot: str, found: Recovered) -> None:
    """Whoever deletes the row does the rest, in the same transaction."""
    chain = chain_in(slot) if slot else None
    with storage.transaction():
        if not storage.sql.execute("delete from temporalex_worker where id = %s and epoch = %s", [worker, epoch]):
            return
        due, failed = release(storage, epoch)
        if chain is not None:
            mark_crash(storage, chain)
    if slot:
        remove_slot(slot)
    found.workers.append(worker)
    found.due += due
    found.failed += failed
    log.warning(
        "a worker died: %d activities are due again, %d had no attempt left", due, failed, extra={"worker": str(worker)}
    )


def release(storage: DjangoStorage, epoch: int) -> tuple[int, int]:
    """Take everything from an epoch: due again at once, the attempt stays counted; failed where none is left.

    So ``max_attempts=1`` means at most once. Inside a transaction; locks those activities. Gives both numbers.
    """
    now = storage.now()
    lost = storage.sql.select(
        "delete from temporalex_activity_task where owner = %s and max_attempts > 0 and attempt >= max_attempts"
        " returning chain_id, run_id, run_queue, seq, attempt",
        [epoch],
        ("uuid", "uuid", "text", "int4", "int4"),
    )
    encode = codec().encode
    columns = (
        *(("chain_id", "uuid"), ("run_id", "uuid"), ("queue", "text"), ("kind", "text"), ("name", "text")),
        *(("body", "bytea"), ("created_at", "timestamptz")),
    )
    storage.sql.write(
        columns,
        insert("temporalex_message", columns),
        [
            (chain, run, queue, "activity", "ActivityFailed", encode(activities.worker_lost(seq, attempt)), now)
            for chain, run, queue, seq, attempt in lost
        ],
    )
    due = storage.sql.execute(
        "update temporalex_activity_task set owner = null, started_at = null, beat_at = null, expires_at = close_at, due_at = %s"
        " where owner = %s",
        [now, epoch],
    )
    return due, len(lost)


def mark_crash(storage: DjangoStorage, chain: UUID) -> None:
    """A worker died while it activated this run: alone next time and after a wait, blocked after three. Inside a transaction."""
    now = storage.now()
    rows = storage.sql.select(
        "update temporalex_chain set crashes = crashes + 1 where id = %s and not closed returning crashes, run_id",
        [chain],
        ("int4", "uuid"),
    )
    if not rows:
        return
    crashes, run = rows[0]
    if crashes < _CRASHES_BEFORE_BLOCK:
        due = now + timedelta(seconds=float(2**crashes))
        storage.sql.execute("update temporalex_chain set due_at = %s where id = %s", [due, chain])
        return
    why = f"{crashes} workers in a row died while they activated this run; look for a segfault, a memory blow-up or os._exit"
    _block(storage, chain, run, code="crash", error=why, attempt=crashes, now=now, due=None)


def block_alone(storage: DjangoStorage, chain: UUID, error: BaseException) -> bool:
    """Block a run whose turn raises even when it is alone, with backoff. One transaction; False when somebody has it locked."""
    with storage.transaction():
        claimed = storage.claim(limit=1, queues=[], chains=[chain])
        if not claimed or claimed[0].closed:
            return False
        run, now = claimed[0], storage.now()
        attempt = run.attempt + 1
        due = now + timedelta(seconds=min(2.0 ** min(attempt, 16), _LONGEST_BACKOFF))
        code = error.code if isinstance(error, TemporalexError) else type(error).__name__
        text = f"{type(error).__name__}: {error}"
        _block(storage, chain, run.run_id, code=code, error=text, attempt=attempt, now=now, due=due)
    log.error("run %s is blocked: %s", run.run_id, text, extra={"run_id": str(run.run_id)})
    return True


def _block(
    storage: DjangoStorage,
    chain: UUID,
    run: UUID,
    *,
    code: str,
    error: str,
    attempt: int,
    now: datetime,
    due: datetime | None,
) -> None:
    mark = {"code": code, "error": error, "since": now.isoformat(), "attempt": attempt}
    storage.sql.execute("update temporalex_chain set attempt = %s, due_at = %s where id = %s", [attempt, due, chain])
    storage.sql.execute("update temporalex_message set fresh = false where chain_id = %s and fresh", [chain])
    cast = "%s::jsonb" if storage.sql.vendor == "postgresql" else "%s"
    storage.sql.execute(f"update temporalex_instance set blocked = {cast} where id = %s", [json.dumps(mark), run])
