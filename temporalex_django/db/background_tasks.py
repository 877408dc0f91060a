"""Background tasks in SQL: one INSERT enqueues one, and a transaction moves it to the ended tasks.

See decision 44.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils.module_loading import import_string

from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import ENDED_TASKS, FENCE, FENCED, TASKS
from temporalex_django.engine import background_task
from temporalex_django.engine.contracts.dialect import Dialect, Placeholder
from temporalex_django.engine.contracts.records import TaskResult
from temporalex_django.engine.ids import uuid7

_NEW = TASKS.pick_columns(
    *("run_id", "workflow_id", "workflow", "seq", "activity", "call", "options", "queue", "run_queue", "priority"),
    *("max_attempts", "start_to_close", "heartbeat_timeout", "enqueued_by_id", "scheduled_at", "due_at"),
)
_SOME = f"exists (select 1 from {TASKS.name} where queue = %s and owner is null and priority"
#: Condition: some activities that wait in a queue (given twice) have a priority. One probe of an index that holds only
#: those.
HAS_PRIORITY = f"{_SOME} > 0) or {_SOME} < 0)"
_OPTIONS = TASKS.pick_columns("id", "options")
_OPTIONS_UPDATE = _OPTIONS.update("id")
_ATTEMPT = TASKS.pick_columns(*FENCE)
#: Columns of an ended task, and the columns of the activity that they come from.
_SHARED = {
    "id": "run_id",
    "enqueued_at": "scheduled_at",
    **{name: name for name in ("queue", "priority", "call", "progress", "enqueued_by_id")},
}
_DELETED_COLUMNS = TASKS.pick_columns(*_SHARED.values())
_RESULT = ENDED_TASKS.pick_columns(*background_task.TaskEnd._fields)
_FINISHED = ENDED_TASKS.pick_columns(*_SHARED, *_RESULT.column_names)
_DELETED = f"delete from {TASKS.name} where {FENCED} returning {_ATTEMPT.names}, {_DELETED_COLUMNS.names}"
_FINISH_COLUMNS = (*_ATTEMPT.columns, *_RESULT.columns)
_FINISHED_INSERT = ENDED_TASKS.insert(
    {**{name: f"g.{own}" for name, own in _SHARED.items()}, **{name: f"v.{name}" for name in _RESULT.column_names}},
    "from gone g join v on v.id = g.id and v.attempt = g.attempt and coalesce(v.owner, -1) = coalesce(g.owner, -1)",
)
_FINISH = f", gone as ({_DELETED}), kept as ({_FINISHED_INSERT}) select id from gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBackgroundTask:
    """A Django task to enqueue; ``activity`` is the name under which its function is registered.

    ``options`` are the retry policy, the timeouts in seconds and so on, as ``engine.background_task`` describes them.
    Tasks with a higher ``priority`` come first. ``run_after`` is the earliest time for its start, or None for now.
    ``enqueued_by`` is the run whose activity enqueues it, or None.
    """

    activity: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    queue: str
    priority: int
    run_after: datetime | None
    enqueued_by: UUID | None


def insert_task(new: NewBackgroundTask, *, storage: StorageSession) -> tuple[UUID, datetime]:
    """Enqueue a background task with one INSERT on the caller's connection; return ``(id, time)``.

    ``time`` is the database's time of the insert. If a transaction is open, the task commits or rolls back with it.
    """
    task_id, sql = uuid7(), storage.sql
    now, clock = sql.now_expression(storage.clock, live=True)
    if new.run_after is None:
        due = [*clock]
    else:
        due = [new.run_after]
    limit = int((new.options.get("retry") or {}).get("max_attempts") or 0)
    row = _NEW.encode_row(
        (
            *(task_id, "", "", 0, new.activity, [list(new.args), dict(new.kwargs)], dict(new.options), new.queue),
            *(new.queue, new.priority, limit, new.options.get("start_to_close"), new.options.get("heartbeat")),
            *(new.enqueued_by, None, None),
        )
    )
    statement = _insert_statement(sql.placeholder, now, deferred=new.run_after is not None)
    ((at,),) = sql.select(statement, [*row[:-2], *clock, *due], ("timestamptz",))
    return task_id, at


@lru_cache(maxsize=8)
def _insert_statement(mark: Placeholder, now: str, *, deferred: bool) -> str:
    """Return the SQL that enqueues a task. With ``deferred``, its due time is one more parameter."""
    due = {}
    if not deferred:
        due = {"due_at": now}
    return f"{_NEW.insert_parameters(mark, '', scheduled_at=now, **due)} returning scheduled_at"


def finish_tasks(final: Mapping[tuple[int, int, int | None], TaskResult], *, sql: Dialect, now: datetime) -> list[int]:
    """Move background tasks to the ended tasks, with their results; return the ids of their rows.

    ``final`` maps an attempt, as ``(id, attempt, owner)``, to its result; the owner is the epoch of the worker. An
    attempt whose owner has lost the task changes nothing. Call it inside a transaction.
    """
    result_rows = _RESULT.encode_rows([*background_task.task_end(result, now)] for result in final.values())
    rows = [(*fence, *result_values) for fence, result_values in zip(final, result_rows, strict=True)]
    if sql.chained_writes:
        return [row[0] for row in sql.write_returning(_FINISH_COLUMNS, _FINISH, rows, ("int8",), key="id")]
    types = (*_ATTEMPT.types, *_DELETED_COLUMNS.types)
    deleted_rows = sql.write_returning(_ATTEMPT.columns, _DELETED, list(final), types, key="id")
    results = {row[:3]: row[3:] for row in rows}
    sql.write(_FINISHED.columns, _FINISHED.insert, [(*row[3:], *results[row[:3]]) for row in deleted_rows])
    return [row[0] for row in deleted_rows]


def submit_priority_check(queue: str, *, sql: Dialect) -> Callable[[], bool]:
    """Ask the database if background tasks that wait in the queue have a priority other than 0.

    Returns a function that waits for the answer and returns True or False.
    """
    answer = sql.submit(f"select {HAS_PRIORITY}", [queue, queue], ("bool",))
    return lambda: bool(answer()[0][0])


def log_attempts(results: Sequence[TaskResult], *, sql: Dialect) -> None:
    """Add failed attempts to the log that each background task keeps in its options.

    Call it inside the transaction that made the tasks due again, in which the attempts still own them.
    """
    sql.write(
        _OPTIONS.columns,
        _OPTIONS_UPDATE,
        _OPTIONS.encode_rows([r.task.id, background_task.options_with_log(r)] for r in results),
        key="id",
    )


# --- backends of the project ------------------------------------------------------------------------------------------


def backend_queues() -> frozenset[str] | None:
    """Return the queues that the project's task backends of this package accept.

    None means that one of them accepts any queue.
    """
    names: set[str] = set()
    for params in (getattr(settings, "TASKS", None) or {}).values():
        try:
            is_own_backend = getattr(import_string(params["BACKEND"]), "runs_on_temporalex", False)
        except (ImportError, KeyError, TypeError):
            continue  # Django reports it where the backend is used
        if is_own_backend:
            backend_names = params.get("QUEUES", ["default"])
            if not backend_names:
                return None
            names.update(backend_names)
    return frozenset(names)


def priority_queues(worker_queues: Collection[str]) -> frozenset[str]:
    """Return those queues of a worker in which background tasks may have a priority."""
    backend_names = backend_queues()
    if backend_names is None:
        return frozenset(worker_queues)
    return backend_names & frozenset(worker_queues)
