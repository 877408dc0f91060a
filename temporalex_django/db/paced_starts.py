"""Starts that wait: debouncing and throttling."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from temporalex_django.authoring.requests import Throttle
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.human_tasks import add_starter
from temporalex_django.core.messages.sender import Sender
from temporalex_django.db.inserts import StartedRun, pending_error
from temporalex_django.db.sql_columns import LIMITS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart, throttled_start
from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import Instance

# --- debounce ---------------------------------------------------------------------------------------------------------
#
# Debounced starts: a start replaces the input of an open run with its id that has not begun.


#: Condition: the run ``i`` was started with ``debounce``. The text of JSON differs between databases.
_IS_DEBOUNCED = "length(replace(cast(i.start_limit as text), 'debounce', '')) < length(cast(i.start_limit as text))"


def replace_waiting_input(start: RunStart, sender: Sender | None, *, storage: DjangoStorage) -> StartedRun | None:
    """Give the open run that has the id of ``start`` the input and the times of this start, if that run has not begun.

    ``sender`` is the person who starts, or None; all who did so count as people who started the run. Returns the ids of
    the run, or None if there is no such run of the class and version. It locks the chain in the open transaction, and
    waits at most ``START_LOCK_WAIT`` for the lock. Raises ``AlreadyRunning`` (``pending``) then.
    """
    bound = nullcontext() if storage.sql.writer_lock else storage.sql.lock_timeout(get_settings().START_LOCK_WAIT)
    now = storage.now()
    try:
        with storage.savepoint(), bound:
            ids = _move_begin(start, now, storage)
            if ids is not None:
                write_waiting_run(ids.run_id, start, sender, now, storage.alias)
    except DatabaseError as exc:
        if storage.sql.writer_lock or not storage.is_transient(exc) or storage.is_interrupted(exc):
            raise
        raise pending_error(start) from exc
    return ids


def _move_begin(start: RunStart, now: datetime, storage: DjangoStorage) -> StartedRun | None:
    """Set when a debounced run begins, if it has not begun, and return its ids. None: there is no such run."""
    moment = storage.sql.placeholder("timestamptz")
    rows = storage.sql.select(
        f"update temporalex_chain set due_at = case when paused then due_at else {moment} end, deadline = {moment}"
        # After the wait for a lock, PostgreSQL tests the row again: a run that has begun meanwhile has a token.
        " where open_key = %s and not closed and head_token is null and failed_tries = 0"
        " and exists (select 1 from temporalex_instance i where i.id = temporalex_chain.run_id and i.workflow = %s"
        " and i.version = %s"
        # A run that was started with another delay, or is throttled, keeps its input.
        f" and {_IS_DEBOUNCED}) returning id, run_id",
        [start.due_at(now), start.deadline(now), start.open_key, start.workflow, start.version],
        ("uuid", "uuid"),
    )
    if not rows:
        return None
    return StartedRun(*rows[0])


def write_waiting_run(run_id: UUID, start: RunStart, sender: Sender | None, now: datetime, alias: str) -> None:
    """Give the row of a run that has not begun the input, the times and the headers of ``start``.

    ``sender`` counts as a person who started the run. The caller has made sure that the run does not begin meanwhile.
    """
    runs = Instance.objects.using(alias).filter(pk=run_id)
    changes: dict[str, Any] = {
        "args": codec().encode(start.args),
        "starts_at": start.begins_at(now),
        "start_before": start.start_before,
        "expires_at": start.expires_at(now),
        "headers": start.headers,
    }
    if sender is not None:
        encoded = runs.values_list("snapshot", flat=True).get()
        snapshot = None if encoded is None else codec().decode(bytes(encoded))
        changes["snapshot"] = codec().encode(add_starter(snapshot, sender))
    runs.update(**changes)


# --- throttle ---------------------------------------------------------------------------------------------------------
#
# Throttled starts: a start gets the time at which its run may begin, from the times of the last runs under its key.


_LIMIT = LIMITS.pick_columns("name", "starts")


def throttle_start(start: RunStart, throttle: Throttle, *, storage: DjangoStorage) -> RunStart:
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
    start, times = throttled_start(start, throttle, times, now)
    storage.sql.execute(
        f"update temporalex_limit set starts = {storage.sql.placeholder('jsonb')} where name = %s",
        [json.dumps(times), name],
    )
    return start


def _lock_times(name: str, storage: DjangoStorage) -> list[float]:
    """Lock the row of a key, which is created if missing, and return its times in seconds since 1970."""
    insert = _LIMIT.insert_parameters(storage.sql.placeholder, "")
    storage.sql.execute(f"{insert} on conflict (name) do nothing", [name, "[]"])
    lock = "" if storage.sql.writer_lock else " for update"
    rows = storage.sql.select(
        f"select cast(starts as text) from temporalex_limit where name = %s{lock}",
        [name],
        ("text",),
    )
    return [float(moment) for moment in LIMITS.read_json("starts", rows[0][0])]
