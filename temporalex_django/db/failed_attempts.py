"""Attempts of activities that failed, timed out or were lost. The last ones of each activity are kept with its run.

A successful attempt leaves no row: the event of its result says when it began, and on which worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from temporalex_django.authoring.backend import EndedAttempt
from temporalex_django.conf import codec
from temporalex_django.db.sql_columns import FAILED_ATTEMPTS
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import TaskResult
from temporalex_django.models import FailedAttempt

#: Attempts of an activity that are kept.
KEPT_ATTEMPTS: Final = 20
#: The name of a worker, by its epoch: the row of a dead one is gone.
_WORKER: Final = (
    "coalesce((select host || ':' || pid from temporalex_worker where epoch = {owner}),"
    " (select name from temporalex_lost_worker where epoch = {owner}))"
)
_ATTEMPT: Final = FAILED_ATTEMPTS.pick_columns(
    *("run_id", "seq", "activity", "attempt", "outcome", "began_at", "ended_at", "failure"), owner="int8"
)
_INSERT: Final = FAILED_ATTEMPTS.insert(
    {**{name: name for name in _ATTEMPT.column_names}, "worker": _WORKER.format(owner="v.owner")}, "from v"
)
_INSERT_LOST: Final = FAILED_ATTEMPTS.insert(
    {
        **{name: name for name in ("run_id", "seq", "activity", "attempt")},
        "outcome": "'lost'",
        "began_at": "started_at",
        "ended_at": "%s",
        "failure": "%s",
        "worker": _WORKER.format(owner="owner"),
    },
    "from temporalex_activity_task where owner = %s and chain_id is not null",
)
_TRIM: Final = (
    "delete from temporalex_failed_attempt where run_id = %s and seq = %s and id <= (select id from"
    f" temporalex_failed_attempt where run_id = %s and seq = %s order by id desc limit 1 offset {KEPT_ATTEMPTS})"
)


def keep_failed_attempts(results: Iterable[TaskResult], valid_ids: Iterable[int], *, now: Any, sql: Dialect) -> None:
    """Store those of the results of activities of runs that are failures, in the open transaction.

    ``valid_ids`` are the ids of the activities whose attempt was still valid. ``now()`` returns the database's time. No
    statement if nothing failed, and otherwise one, and one more for each failed attempt.
    """
    failed = [result for result in results if result.task.chain_id is not None and _failure_of(result) is not None]
    if not failed:
        return
    valid, at = {*valid_ids}, now()
    rows = [_row(result, at) for result in failed if result.task.id in valid]
    sql.write(_ATTEMPT.columns, _INSERT, _ATTEMPT.encode_rows(rows))
    for run, seq, *_values in rows:
        sql.execute(_TRIM, [run, seq, run, seq])


def keep_lost_attempts(epoch: int, failure: dict[str, Any], *, now: Any, sql: Dialect) -> None:
    """Store the attempts that the dead worker ``epoch`` owns, before its activities are released. One statement."""
    sql.execute(_INSERT_LOST, [now, codec().encode(failure), epoch])


def failed_attempts(run: UUID, *, alias: str, limit: int) -> list[EndedAttempt]:
    """Return the kept attempts of a run, oldest first, but at most ``limit`` of the newest. One read."""
    rows = FailedAttempt.objects.using(alias).filter(run=run).order_by("-id")[:limit]
    return [row.as_record for row in reversed([*rows])]


def _row(result: TaskResult, now: Any) -> tuple[Any, ...]:
    """Return the values of ``_ATTEMPT`` for the result of a failed attempt."""
    task, failure = result.task, _failure_of(result)
    assert failure is not None
    ended_at = now if result.failure is None else result.failure.at
    began_at = task.started_at
    if result.seconds is not None:
        began_at = ended_at - timedelta(seconds=result.seconds)
    return (
        *(task.run_id, task.seq, task.activity, task.attempt, _outcome_of(failure)),
        *(began_at, ended_at, failure, task.owner),
    )


def _failure_of(result: TaskResult) -> dict[str, Any] | None:
    """Return the type, the message and the traceback of the failure of an attempt, or None if it has none."""
    if result.failure is not None:
        return result.failure.payload()
    if result.outcome is None or result.outcome[0] == "ActivityCompleted":
        return None
    attributes = result.outcome[1]
    return {name: attributes.get(name) for name in ("type", "message", "traceback", "details") if name in attributes}


def _outcome_of(failure: dict[str, Any]) -> str:
    if failure.get("type") == "WorkerLost":
        return "lost"
    is_timeout = failure.get("type") == "TimeoutError" and failure.get("traceback") is None
    return "timed_out" if is_timeout else "failed"
