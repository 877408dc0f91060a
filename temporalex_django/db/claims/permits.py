"""Permits: attempts on a Temporal cluster under the limits of the tables.

An attempt there has no row of an activity. It runs under the same limits by a permit, which is counted with those rows.
A place is a permit for an attempt that does not exist yet: a worker keeps it while it waits for a task of the queue, so
that the workers together take no more tasks than may start. Only started permits bind others that run on the tables.

All functions are called inside a transaction that has locked the limits, by ``lock_limits``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from temporalex_django.authoring import activity
from temporalex_django.conf import queue_limits
from temporalex_django.core.limits import NO_LIMITS, Limits, QueuePartition
from temporalex_django.db.claims.limited import count_live, lock_recent_starts, store_starts
from temporalex_django.db.sql_columns import PERMITS
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.scheduling import LimitUsage, activity_limit_name, queue_limit_name

_NEW = PERMITS.pick_columns("queue", "activity", "line", "owner", "started")


def limits_of(queue: str, name: str | None = None) -> dict[str, Limits]:
    """Return the limits that apply to an activity of this name in a queue (None: to the queue), by their names."""
    limits = {queue_limit_name(queue): queue_limits().get(queue, NO_LIMITS)}
    if name is not None:
        limits[activity_limit_name(name)] = activity.limits_by_name.get(name, NO_LIMITS)
    return {limit_name: limit for limit_name, limit in limits.items() if limit.is_limited}


def lock_limits(names: Collection[str], *, storage: DjangoStorage) -> None:
    """Lock the limits with these names in their order, which is that of all other claims."""
    lock_recent_starts(storage.sql, sorted(names))


def keep_place(queue: str, *, owner: int, storage: DjangoStorage) -> int | None:
    """Keep a place for the next attempt of a queue, and return its id; None if its limits leave none.

    ``owner`` is the epoch of the worker. Places count only for places.
    """
    usage, _ = _read_usage(queue, None, storage)
    rows = storage.sql.select(
        "select count(*) from temporalex_permit where queue = %s and not started", [queue], ("int8",)
    )
    for _ in range(rows[0][0]):
        usage.acquire("", None)
    if usage.wait_seconds("", None) is not None:
        return None
    return _insert(queue, "", None, owner=owner, started=False, storage=storage)


def start(queue: str, name: str, key: str | None, *, owner: int, storage: DjangoStorage) -> tuple[int | None, float]:
    """Return ``(id of a new permit, 0)`` if an attempt may start now, else ``(None, seconds until the next look)``.

    ``name`` is that of the activity, and ``key`` its concurrency key.
    """
    usage, starts = _read_usage(queue, name, storage)
    if (wait := usage.wait_seconds(name, key)) is not None:
        return None, wait
    now = storage.now().timestamp()
    for limit_name, limit in limits_of(queue, name).items():
        if limit.rate is not None:
            store_starts(storage.sql, limit_name, limit.rate.with_starts(starts[limit_name], now, 1))
    return _insert(queue, name, key, owner=owner, started=True, storage=storage), 0.0


def _read_usage(
    queue: str, name: str | None, storage: DjangoStorage
) -> tuple[LimitUsage, Mapping[str, Sequence[Sequence[float]]]]:
    """Lock the limits, and return their use and the recent starts by the name of the limit."""
    limits = limits_of(queue, name)
    own_limits = None if name is None else limits.get(activity_limit_name(name))
    starts = lock_recent_starts(storage.sql, sorted(limits))
    usage = LimitUsage(
        queue,
        limits.get(queue_limit_name(queue), NO_LIMITS),
        {} if own_limits is None or name is None else {name: own_limits},
        count_live(storage.sql),
        starts,
        storage.now().timestamp(),
    )
    return usage, starts


def _insert(queue: str, name: str, key: str | None, *, owner: int, started: bool, storage: DjangoStorage) -> int:
    line = None if key is None else QueuePartition(None, key).name
    statement = _NEW.insert_parameters(storage.sql.placeholder, "returning id")
    rows = storage.sql.select(statement, _NEW.encode_row((queue, name, line, owner, started)), ("int8",))
    return int(rows[0][0])


def give_back(permits: Sequence[int], *, storage: DjangoStorage) -> None:
    """Delete permits of attempts that have ended, or places that nobody needs. One statement, which needs no locks."""
    membership, parameter = storage.sql.in_array(list(permits), "int8")
    storage.sql.execute(f"delete from temporalex_permit where id {membership}", [parameter])
