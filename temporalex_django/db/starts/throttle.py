"""Throttled starts: a start gets the time at which its run may begin, from the times of the last runs under its key."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

from django.db import DatabaseError

from temporalex_django.authoring.requests import Throttle
from temporalex_django.conf import get_settings
from temporalex_django.db.inserts import NewStart
from temporalex_django.db.sql_columns import LIMITS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import ActionNotPossible

_LIMIT = LIMITS.pick_columns("name", "starts")


def throttle_start(start: NewStart, throttle: Throttle, *, storage: DjangoStorage) -> NewStart:
    """Return the start with the time at which its run may begin under the throttle, and count it.

    It locks the row of the key until the open transaction ends, so starts under one key are counted one after the
    other. Raises ``ActionNotPossible`` if the lock is not free within ``START_LOCK_WAIT``.
    """
    name = throttle.name_for(start.workflow)
    bound = nullcontext() if storage.sql.writer_lock else storage.sql.lock_timeout(get_settings().START_LOCK_WAIT)
    try:
        with storage.savepoint(), bound:
            times = _lock_times(name, storage)
    except DatabaseError as exc:
        if storage.sql.writer_lock or not storage.is_transient(exc) or storage.is_interrupted(exc):
            raise
        raise ActionNotPossible(
            f"{start.workflow}: another transaction is starting runs under the same throttle and has not ended after "
            f"{get_settings().START_LOCK_WAIT:g} s; try again when it has"
        ) from exc
    now = storage.now()
    begin, times = throttle.next_begin(times, now.timestamp())
    storage.sql.execute(
        f"update temporalex_limit set starts = {storage.sql.placeholder('jsonb')} where name = %s",
        [json.dumps(times), name],
    )
    if begin <= now.timestamp():
        return start
    return replace(start, start_at=datetime.fromtimestamp(begin, UTC), start_limit=throttle.as_limit())


def _lock_times(name: str, storage: DjangoStorage) -> list[float]:
    """Lock the row of a key, which is created if it is missing, and return its times in seconds since 1970."""
    insert = _LIMIT.insert_parameters(storage.sql.placeholder, "")
    storage.sql.execute(f"{insert} on conflict (name) do nothing", [name, "[]"])
    lock = "" if storage.sql.writer_lock else " for update"
    rows = storage.sql.select(
        f"select cast(starts as text) from temporalex_limit where name = %s{lock}",
        [name],
        ("text",),
    )
    return [float(moment) for moment in LIMITS.read_json("starts", rows[0][0])]
