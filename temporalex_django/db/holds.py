"""Holds, which keep back activities of a queue, or of one concurrency key in it, because an activity asked for that.

An activity asks with ``RetryLater(hold=...)``. A hold is a row of the switches with an end, and workers read both
together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from temporalex_django.db.sql_columns import SWITCHES
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import Hold, TaskResult

_COLUMNS = SWITCHES.pick_columns("kind", "name", "key", "since", "by", "reason", "until")
#: A later end wins, so two attempts that ask for the same hold extend it and never shorten it.
_EXTEND = (
    " on conflict (kind, name, key) do update set until = excluded.until, by = excluded.by, reason = excluded.reason"
    f" where {SWITCHES.name}.until < excluded.until"
)


def store_holds(results: Sequence[TaskResult], valid_ids: Collection[int], *, sql: Dialect) -> None:
    """Store the holds for which attempts asked with ``RetryLater``, if their result was still valid.

    ``valid_ids`` has the ids of the activities with a valid result. A hold keeps back activities of a queue or a
    concurrency key until a given time. Without a hold there is no statement. Otherwise holds that are over are deleted,
    and each hold is one upsert, in the order of their names. Runs in the caller's transaction.
    """
    holds = [result.hold for result in results if result.hold is not None and result.task.id in valid_ids]
    if not holds:
        return
    _delete_ended(min(hold.since for hold in holds), sql)
    # Sorted, so that two transactions that store the same holds wait for each other in one direction only.
    for hold in sorted(holds, key=lambda hold: (hold.queue, hold.key or "", hold.until)):
        _store(hold, sql)


def _store(hold: Hold, sql: Dialect) -> None:
    row = ("hold", hold.queue, hold.key or "", hold.since, hold.activity[:200], hold.reason, hold.until)
    statement = _COLUMNS.insert_parameters(sql.placeholder, "where 1 = 1")
    sql.execute(f"{statement}{_EXTEND}", _COLUMNS.encode_row(row))


def _delete_ended(now: datetime, sql: Dialect) -> None:
    """Delete the rows of holds (queues or keys that were kept back for a while) that have ended.

    Otherwise the rows would pile up, and a new hold of the same queue or key would show the start of the old one.
    """
    sql.execute(f"delete from {SWITCHES.name} where until <= {sql.placeholder('timestamptz')}", [now])
