"""Attempts of activities that failed, timed out or were lost. The last ones of each activity are kept with its run.

A successful attempt leaves no row: the event of its result says when it began, and on which worker.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from temporalex_django.authoring.backend import EndedAttempt
from temporalex_django.conf import codec
from temporalex_django.db.sql_columns import FAILED_ATTEMPTS
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import TaskResult
from temporalex_django.models import FailedAttempt

#: The name of a worker, by its epoch: the row of a dead one is gone.
_WORKER: Final = (
    "coalesce((select host || ':' || pid from temporalex_worker where epoch = {owner}),"
    " (select name from temporalex_lost_worker where epoch = {owner}))"
)
_ATTEMPT: Final = FAILED_ATTEMPTS.pick_columns(
    *("run_id", "seq", "activity", "attempt", "outcome", "began_at", "ended_at", "failure"),
    owner="int8",
    process="text",
)
_INSERT: Final = FAILED_ATTEMPTS.insert(
    {
        **{name: name for name in _ATTEMPT.column_names},
        "worker": f"coalesce({_WORKER.format(owner='v.owner')}, v.process)",
    },
    "from v",
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
    f" temporalex_failed_attempt where run_id = %s and seq = %s order by id desc limit 1 offset {policy.KEPT_ATTEMPTS})"
)
_TRIM_LOST: Final = (
    "delete from temporalex_failed_attempt where id in (select id from (select kept.id, row_number() over"
    " (partition by kept.run_id, kept.seq order by kept.id desc) as place from temporalex_activity_task task"
    " join temporalex_failed_attempt kept on kept.run_id = task.run_id and kept.seq = task.seq"
    f" where task.owner = %s) numbered where place > {policy.KEPT_ATTEMPTS})"
)


def process_name() -> str:
    """Return the name of this process as that of a worker: the machine and the process id."""
    return f"{_machine_name()}:{os.getpid()}"


@cache
def _machine_name() -> str:
    return socket.gethostname()[:255]


def keep_failed_attempts(results: Iterable[TaskResult], valid_ids: Iterable[int], *, now: Any, sql: Dialect) -> None:
    """Store those of the results of activities of runs that are failures, in the open transaction.

    ``valid_ids`` are the ids of the activities whose attempt was still valid. The other arguments are those of
    ``store_failed_attempts``.
    """
    failed = [result for result in results if result.is_failure and result.task.chain_id is not None]
    if failed:
        valid = {*valid_ids}
        store_failed_attempts([result for result in failed if result.task.id in valid], now=now, sql=sql)


def store_failed_attempts(failed: Sequence[TaskResult], *, now: Any, sql: Dialect, worker: str | None = None) -> None:
    """Store attempts of activities of runs that failed, in the open transaction.

    ``now()`` returns the database's time. ``worker`` is the name of the worker if no row of an activity says it. No
    statement if nothing failed, and otherwise one, and one more for each failed attempt.
    """
    if not failed:
        return
    at = now()
    rows = [_row(result, at, worker) for result in failed]
    sql.write(_ATTEMPT.columns, _INSERT, _ATTEMPT.encode_rows(rows))
    for run, seq, *_values in rows:
        sql.execute(_TRIM, [run, seq, run, seq])


def keep_lost_attempts(epoch: int, failure: dict[str, Any], *, now: Any, sql: Dialect) -> None:
    """Store the attempts that the dead worker ``epoch`` owns, before its activities are released.

    One statement, and one more if it owns any.
    """
    if sql.execute(_INSERT_LOST, [now, codec().encode(failure), epoch]):
        sql.execute(_TRIM_LOST, [epoch])


def failed_attempts(run: UUID, *, alias: str, limit: int) -> list[EndedAttempt]:
    """Return the kept attempts of a run, oldest first, but at most ``limit`` of the newest. One read."""
    rows = FailedAttempt.objects.using(alias).filter(run=run).order_by("-id")[:limit]
    return [row.as_record for row in reversed([*rows])]


def _row(result: TaskResult, now: Any, worker: str | None) -> tuple[Any, ...]:
    """Return the values of ``_ATTEMPT`` for the result of a failed attempt."""
    task, failure = result.task, _failure_of(result)
    ended_at = now if result.failure is None else result.failure.at
    began_at = task.started_at
    if result.seconds is not None:
        began_at = ended_at - timedelta(seconds=result.seconds)
    return (
        *(task.run_id, task.seq, task.activity, task.attempt, _outcome_of(failure)),
        *(began_at, ended_at, failure, task.owner, worker),
    )


def _failure_of(result: TaskResult) -> dict[str, Any]:
    """Return the type, the message and the traceback of the failure of an attempt."""
    if result.failure is not None:
        return result.failure.payload()
    attributes: dict[str, Any] = {} if result.outcome is None else result.outcome[1]
    return {name: attributes.get(name) for name in ("type", "message", "traceback", "details") if name in attributes}


def _outcome_of(failure: dict[str, Any]) -> str:
    if failure.get("type") == "WorkerLost":
        return "lost"
    is_timeout = failure.get("type") == "TimeoutError" and failure.get("traceback") is None
    return "timed_out" if is_timeout else "failed"
