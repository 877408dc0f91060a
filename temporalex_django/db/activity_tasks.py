"""Scheduled activities in SQL: the database's form of ``TaskStorage``.

Fencing: ``(id, attempt, owner)`` identifies one attempt of one worker, whose epoch is ``owner``. A report about an
attempt that no longer matches changes nothing. Locks: the rows of the activities themselves; rows that are locked
elsewhere are skipped. Each method is one transaction of its own unless it is called inside one.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from temporalex_django.authoring.backend import EndedAttempt, OpenActivity
from temporalex_django.conf import codec
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import is_readable_time
from temporalex_django.db import background_tasks
from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import (
    CAUSE,
    FAILED_ATTEMPTS,
    FAILURE,
    FENCE,
    FENCED,
    MESSAGES,
    RESULT,
    RESULT_INSERT,
    SWITCHES,
    TASKS,
    failure_row,
    json_value,
)
from temporalex_django.engine import activity_policy, policy
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import Hold, TaskResult, TaskState
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.models import ActivityTask, FailedAttempt

log = logging.getLogger("temporalex_django.db")

#: The columns of an activity that a worker or a turn reads.
TASK = TASKS.pick_fields(TaskState, args="call", kwargs=None, heartbeat_details="heartbeat", previous_failure="failure")
_ATTEMPT = TASKS.pick_columns(*FENCE)
_OWNED = TASKS.pick_columns(*FENCE, "cancelled_at")
#: The chain, run and queue that get the result of an activity.
_RECIPIENT = TASKS.pick_columns("chain_id", "run_id", "run_queue")
_DELETED = f"delete from {TASKS.name} where {FENCED} returning {_ATTEMPT.names}, {_RECIPIENT.names}"
_RESULT = MESSAGES.pick_columns("name", "body", "created_at")
_RESULT_COLUMNS = (*_ATTEMPT.columns, *_RESULT.columns)
_MESSAGE_VALUES = {
    "chain_id": "g.chain_id",
    "run_id": "g.run_id",
    "queue": "g.run_queue",
    "kind": "'activity'",
    "name": "v.name",
    "body": "v.body",
    "headers": "g.headers",
    "created_at": "coalesce(v.created_at, clock_timestamp())",
}
_MESSAGE_SOURCE = (
    "from gone g join v on v.id = g.id and v.attempt = g.attempt and coalesce(v.owner, -1) = coalesce(g.owner, -1)"
)
# Delete and insert are one statement, so that either the activity or its result exists.
_FINISH_AND_DELIVER = f", gone as ({_DELETED}, headers), told as ({MESSAGES.insert(_MESSAGE_VALUES, _MESSAGE_SOURCE)}) select id from gone"
_KEYLESS = TASKS.pick_columns("id", "due_at", "waits_for")
_KEYLESS_UPDATE = _KEYLESS.update("id", owner="null", attempt="attempt - 1", started_at="null", expires_at="close_at")
_STARTED = TASKS.pick_columns(*FENCE, "started_at", "expires_at")
_STARTED_UPDATE = _STARTED.update(*FENCE)
_RELEASE_UPDATE = _ATTEMPT.update(*FENCE, owner="null", attempt=f"{TASKS.name}.attempt - 1")
_RELEASED = TASKS.pick_columns("queue", "activity")
_RELEASE_RETURNING = TASKS.update(
    {"owner": "null", "attempt": "attempt - 1"}, f"where {FENCED} returning {_RELEASED.names}"
)
_RETRY = TASKS.pick_columns("due_at", "expires_at", "waits_for")
_RETRY_COLUMNS = (*_ATTEMPT.columns, ("tries", "int4"), *_RETRY.columns)
_RETRY_UPDATE = TASKS.update(
    {
        **dict.fromkeys(("owner", "started_at", "beat_at"), "null"),
        "attempt": f"(select v.tries from v where v.id = {TASKS.name}.id)",
        **{name: f"(select v.{name} from v where v.id = {TASKS.name}.id)" for name in _RETRY.column_names},
        # A background task that was cancelled meanwhile is due at once: a worker ends it without another attempt.
        "due_at": f"case when cancelled_at is null then (select v.due_at from v where v.id = {TASKS.name}.id) else scheduled_at end",
    },
    f"where {FENCED} returning id",
)
_FAILED = TASKS.pick_columns("id", *FAILURE, "heartbeat")
_FAILED_UPDATE = _FAILED.update(
    "id",
    failing_since=f"coalesce({TASKS.name}.failing_since, v.failed_at)",
    **CAUSE,
    heartbeat=f"coalesce(v.heartbeat, {TASKS.name}.heartbeat)",
)
_EDITED = TASKS.pick_columns("id", "attempt", "call", "options")
_EDITED_UPDATE = _EDITED.update("id", "attempt", only=f" and {TASKS.name}.owner is null")
_LIMITS = TASKS.pick_columns("start_to_close", "heartbeat_timeout", "close_at", "started_at")
_HEARTBEAT = TASKS.pick_columns(*FENCE, "beat_at", "expires_at", "heartbeat")
_PROGRESS = TASKS.pick_columns(*FENCE, "progress")
_PROGRESS_UPDATE = _PROGRESS.update(*FENCE)
_HEARTBEAT_UPDATE = _HEARTBEAT.update(*FENCE, heartbeat=f"coalesce(v.heartbeat, {TASKS.name}.heartbeat)")


def open_tasks(run_id: UUID, *, limit: int, alias: str) -> list[ActivityTask]:
    """Return the rows of the open activities of a run for display. It uses the ORM, since no turn waits for it."""
    rows = ActivityTask.objects.using(alias).filter(run_id=run_id).defer("call", "options", "heartbeat")
    return [*rows.order_by("seq")[:limit]]


class ActivityTasks:
    """The part of a database storage that stores results and heartbeats of activities, releases them and reads them.

    The methods are those of the contract ``TaskStorage``, which documents them.
    """

    def __init__(self, session: StorageSession) -> None:
        self._session = session
        self._sql = session.sql

    def _release_keyless(self, tasks: Sequence[tuple[TaskState, KeyMissing]]) -> None:
        """Make activities that only another worker can read due again soon. The attempt does not count."""
        if not tasks:
            return
        due = self._session.now() + policy.REOFFER_DELAY
        self._sql.write(
            _KEYLESS.columns,
            _KEYLESS_UPDATE,
            [(task.id, due, f"the key {exc.key!r}") for task, exc in tasks],
            key="id",
        )

    def decode_tasks(self, tasks: Sequence[TaskState]) -> list[TaskState]:
        """Decode the payloads of activities and return those that could be read.

        An activity whose payloads cannot be decoded fails for good. In a worker that lacks a key, a claimed activity is
        released to another worker; in any other process ``KeyMissing`` is raised.
        """
        decoded_tasks, broken, keyless = [], [], []
        for task in tasks:
            try:
                decode_task(task)
                decoded_tasks.append(task)
            except KeyMissing as exc:
                if not self._session.worker:
                    raise
                keyless.append((task, exc))
            except PayloadError as exc:
                log.error(
                    "an activity failed permanently: %s",
                    error_line(exc),
                    extra={"workflow_id": task.workflow_id, "run_id": str(task.run_id)},
                )
                unread = replace(task, args=(), kwargs={}, options={})  # some of these are still bytes
                broken.append(activity_policy.unreadable_result(unread, exc))
        self.finish_tasks(broken)
        self._release_keyless([(task, exc) for task, exc in keyless if task.owner is not None])
        return decoded_tasks

    def mark_tasks_started(self, tasks: Sequence[TaskState]) -> None:
        """Store that these attempts run since ``started_at``; their timeouts count from then. One statement."""
        rows = []
        for task in tasks:
            timeout = activity_policy.next_timeout(task, started_at=task.started_at, heartbeat_at=None)
            rows.append((task.id, task.attempt, task.owner, task.started_at, timeout and timeout[0]))
        self._sql.write(_STARTED.columns, _STARTED_UPDATE, rows, key="id")

    def release_tasks(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Release activities that were claimed and never started. The attempts do not count.

        ``keys`` are triples of the id of the activity, the attempt, and the owner (the epoch of the worker). A key that
        no longer matches its row changes nothing.
        """
        self._sql.write(_ATTEMPT.columns, _RELEASE_UPDATE, keys, key="id")

    def release_with_names(self, keys: Collection[tuple[int, int, int]]) -> list[tuple[str, str]]:
        """Release activities that were claimed and never started, and return the queue and the name of each.

        ``keys`` are triples of the id of the activity, the attempt, and the owner (the epoch of the worker). An
        activity that this owner has lost stays as it is and is not returned. The attempts do not count.
        """
        rows = self._sql.write_returning(_ATTEMPT.columns, _RELEASE_RETURNING, keys, _RELEASED.types, key="id")
        return [(queue, name) for queue, name in rows]

    def owned_tasks(self, owner: int) -> dict[tuple[int, int, int], datetime | None]:
        """Return the attempts that the worker with the epoch ``owner`` has claimed. Locks nothing.

        The epoch is the number under which a worker owns what it claims. An attempt is ``(id of the task, attempt,
        owner)``, which ``release_tasks`` takes. Its value is when somebody has cancelled it, or None.
        """
        rows = self._sql.select(_OWNED.select("where owner = %s"), [owner], _OWNED.types)
        return {(task, attempt, own): cancelled_at for task, attempt, own, cancelled_at in rows}

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store the results of attempts, and send each final one as a message to the run of its activity.

        An attempt that did not end its activity makes it due again. Returns the ids of the activities whose attempt was
        still valid.
        """
        if not results:
            return []
        with self._session.join_transaction():
            # One attempt has one result. A lost attempt of the same activity may be beside it.
            valid_ids = self._finish_and_deliver(_results_of_runs(results)) + self._finish_others(results)
            store_holds(results, valid_ids, sql=self._sql)
            keep_failed_attempts(results, valid_ids, now=self._session.now, sql=self._sql)
            return valid_ids

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        return self.submit_finish(results)()

    def submit_finish(self, results: Sequence[TaskResult]) -> Callable[[], tuple[list[int], list[FinishedActivity]]]:
        """Send the statements that store the results of attempts, and return a function that completes it.

        The results are not delivered: the turn that calls it does that. The function waits for the database, and
        returns the ids of the activities whose attempt was still valid, and their final results.
        """
        if not results:
            return lambda: ([], [])
        fetch_deleted = self._submit_delete(_results_of_runs(results))

        def fetch_finished() -> tuple[list[int], list[FinishedActivity]]:
            valid, activities = fetch_deleted()
            valid += self._finish_others(results)
            store_holds(results, valid, sql=self._sql)
            keep_failed_attempts(results, valid, now=self._session.now, sql=self._sql)
            return valid, activities

        return fetch_finished

    def _finish_others(self, results: Sequence[TaskResult]) -> list[int]:
        """Store results that go to no run: of background tasks, and of retries. Return the ids that were valid."""
        background_results = {r.task.fence: r for r in results if r.outcome is not None and r.task.chain_id is None}
        finished: list[int] = []
        if background_results:
            finished = background_tasks.finish_tasks(background_results, sql=self._sql, now=self._session.now())
        return finished + self._schedule_retries([r for r in results if r.outcome is None])

    def _submit_delete(
        self, final: Mapping[tuple[int, int, int | None], TaskResult]
    ) -> Callable[[], tuple[list[int], list[FinishedActivity]]]:
        """Send the deletion of ended activities. A row that has another attempt or owner by now stays."""
        types = (*_ATTEMPT.types, *_RECIPIENT.types)
        rows = self._sql.submit_write(_ATTEMPT.columns, _DELETED, list(final), types, key="id")

        def fetch_deleted() -> tuple[list[int], list[FinishedActivity]]:
            encode, decode = codec().encode, codec().decode
            valid, activities = [], []
            for task, attempt, own, chain, run, queue in rows():
                result = final[task, attempt, own]
                kind, attributes = result.outcome or ("", {})
                if result.encoded is None:
                    body = encode(attributes)
                else:
                    body = result.encoded
                valid.append(task)
                recipient = {"chain_id": chain, "run_id": run, "queue": queue, "headers": result.task.headers}
                activities.append(
                    FinishedActivity(id=task, kind=kind, attributes=decode(body), encoded=body, **recipient)
                )
            return valid, activities

        return fetch_deleted

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        if not activities:
            return
        now = self._session.now()
        messages = ([e.chain_id, e.run_id, e.queue, "activity", e.kind, e.encoded, e.headers, now] for e in activities)
        self._sql.write(RESULT.columns, RESULT_INSERT, RESULT.encode_rows(messages))

    def _finish_and_deliver(self, final: Mapping[tuple[int, int, int | None], TaskResult]) -> list[int]:
        """Delete ended activities and send their results. A row with another attempt or owner by now stays."""
        if not self._sql.chained_writes:
            valid, activities = self._submit_delete(final)()
            self.deliver(activities)
            return valid
        clock, result_values = None if self._session.clock is None else self._session.clock(), []
        for r in final.values():
            kind, attributes = r.outcome or ("", {})
            result_values.append((kind, attributes if r.encoded is None else r.encoded, clock))
        rows = [(*fence, *end) for fence, end in zip(final, _RESULT.encode_rows(result_values), strict=True)]
        deleted_rows = self._sql.write_returning(_RESULT_COLUMNS, _FINISH_AND_DELIVER, rows, ("int8",), key="id")
        return [row[0] for row in deleted_rows]

    def _schedule_retries(self, results: Sequence[TaskResult]) -> list[int]:
        """Make activities due again; return the ids of those whose attempt was still valid."""
        if not results:
            return []
        rows = [_retry_row(result) for result in results]
        changed = self._sql.write_returning(_RETRY_COLUMNS, _RETRY_UPDATE, rows, ("int8",), key="id")
        valid = {row[0] for row in changed}
        failure_rows = (
            (r.task.id, *failure_row(r.failure), r.details) for r in results if r.failure and r.task.id in valid
        )
        self._sql.write(_FAILED.columns, _FAILED_UPDATE, _FAILED.encode_rows(failure_rows), key="id")
        if background_results := [r for r in results if r.count and r.task.chain_id is None and r.task.id in valid]:
            background_tasks.log_attempts(background_results, sql=self._sql)
        return [row[0] for row in changed]

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        now, parameters = self._sql.now_expression(self._session.clock)
        rows = self._sql.select(
            f"select {TASK.names} from temporalex_activity_task where expires_at <= {now} order by expires_at limit %s",
            [*parameters, limit],
            TASK.types,
        )
        return self.decode_tasks([task_state(row) for row in rows])

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Return the atomic activities of a locked chain, in order of ``seq`` (the number of their command).

        ``attempt`` is the number of the next attempt.
        """
        rows = self._sql.select(
            f"select {TASK.names} from temporalex_activity_task t where t.atomic"
            " and t.run_id = (select c.run_id from temporalex_chain c where c.id = %s) order by seq",
            [chain_id],
            TASK.types,
        )
        tasks = [task_state(row) for row in rows]
        for task in tasks:
            decode_task(task)
            task.attempt += 1
        return tasks

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        """Return the open activities of a run for display."""
        return [row.as_open for row in open_tasks(run_id, limit=limit, alias=self._session.alias)]

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        """Return the activity that command ``seq`` of the run scheduled, claimed or not, or None. Locks nothing."""
        tasks = self._read_tasks("where run_id = %s and seq = %s", [run_id, seq])
        if tasks:
            return tasks[0]
        return None

    def owned_background_tasks(self, *, owner: int) -> list[TaskState]:
        """Return the background tasks that the worker with the epoch ``owner`` (its number) has claimed.

        Tasks that this process cannot read, because it lacks an encryption key, are left out.
        """
        return self._select_background_tasks("owner = %s", owner)

    def free_background_task(self, task_id: int) -> TaskState | None:
        """Return a background task if no worker has it and this process can read it, else None."""
        return next(iter(self._select_background_tasks("owner is null and id = %s", task_id)), None)

    def _select_background_tasks(self, condition: str, parameter: int) -> list[TaskState]:
        rows = self._sql.select(TASK.select(f"where chain_id is null and {condition}"), [parameter], TASK.types)
        return [task for task in map(task_state, rows) if is_readable(task)]

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        return self._read_tasks("where run_id = %s order by seq", [run_id])

    def _read_tasks(self, condition: str, parameters: list[Any]) -> list[TaskState]:
        """Return decoded activities. Locks nothing. ``attempt`` of an atomic one is the number of its next attempt."""
        tasks = [task_state(row) for row in self._sql.select(TASK.select(condition), parameters, TASK.types)]
        for task in tasks:
            decode_task(task)
            task.attempt += task.atomic and task.owner is None
        return tasks

    def edit_task(self, task: TaskState) -> None:
        """Store the arguments and options of ``task``, if no worker has it and its attempt is still the present one."""
        row = (task.id, task.fence[1], [list(task.args), dict(task.kwargs)], dict(task.options))
        self._sql.write(_EDITED.columns, _EDITED_UPDATE, _EDITED.encode_rows([row]), key="id")

    def record_progress(self, progress: Mapping[tuple[int, int, int], Mapping[str, Any]]) -> None:
        """Store the progress that attempts have reported, by ``(id, attempt, owner)``. One statement."""
        rows = [(*key, dict(values)) for key, values in progress.items()]
        self._sql.write(_PROGRESS.columns, _PROGRESS_UPDATE, _PROGRESS.encode_rows(rows), key="id")

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store heartbeats, and return the keys of the attempts that the worker still owns.

        ``heartbeats`` maps ``(id, attempt, owner)`` to the details of a heartbeat; the owner is the epoch of the
        worker. An attempt whose key is not returned has lost its activity and should end.
        """
        if not heartbeats:
            return set()
        now = self._session.now()
        with self._session.transaction("heartbeat"):
            rows = self._sql.write_returning(
                _ATTEMPT.columns,
                f"select {_ATTEMPT.with_alias('t')}, {_LIMITS.with_alias('t')}"
                " from temporalex_activity_task t, v where t.id {key} and t.id = v.id and t.attempt = v.attempt"
                " and t.owner = v.owner",
                list(heartbeats),
                (*_ATTEMPT.types, *_LIMITS.types),
                key="id",
            )
            changes = []
            for task, attempt, owner, to_close, heartbeat_timeout, close_at, started in rows:
                expires = earliest_moment(
                    close_at, _add_seconds(started, to_close), _add_seconds(now, heartbeat_timeout)
                )
                details = heartbeats[task, attempt, owner]
                changes.append((task, attempt, owner, now, expires, details))
            self._sql.write(_HEARTBEAT.columns, _HEARTBEAT_UPDATE, _HEARTBEAT.encode_rows(changes), key="id")
        return {(row[0], row[1], row[2]) for row in rows}


def _results_of_runs(results: Sequence[TaskResult]) -> dict[tuple[int, int, int | None], TaskResult]:
    """Return final results by ``(id, attempt, owner)``, without those of background tasks: no run waits for them."""
    return {r.task.fence: r for r in results if r.outcome is not None and r.task.chain_id is not None}


def _retry_row(result: TaskResult) -> tuple[Any, ...]:
    task, retry_at = result.task, result.retry_at
    assert retry_at is not None
    if result.count:
        attempt = task.attempt
    else:
        attempt = task.attempt - 1
    expires = None
    if not task.atomic:
        expires = _add_seconds(task.scheduled_at, task.options.get("schedule_to_close"))
        if attempt == 0:
            expires = earliest_moment(expires, _add_seconds(retry_at, task.options.get("schedule_to_start")))
    return (*task.fence, attempt, retry_at, expires, result.waits_for)


def _add_seconds(moment: datetime | None, seconds: float | None) -> datetime | None:
    if moment is None or seconds is None:
        return None
    return moment + timedelta(seconds=seconds)


#: Times from which timeouts are computed. A due time has done its work once the activity is claimed, and a worker that
#: has not read the clock of the database yet writes one in the first year.
_TIMES = ("scheduled_at", "started_at", "beat_at")


def task_state(row: tuple[Any, ...]) -> TaskState:
    """Return the activity of a row with the columns of ``TASK``.

    Its payloads are still encoded; ``decode_task`` decodes them.
    """
    values = TASK.row_fields(row)
    values["headers"] = json_value(values["headers"])
    return TaskState(**values, kwargs={})


def earliest_moment(*moments: datetime | None) -> datetime | None:
    """Return the earliest of the moments that are not None, or None."""
    return min((m for m in moments if m is not None), default=None)


def is_readable(task: TaskState) -> bool:
    """Decode the payloads of an activity in place and return True; return False if this process cannot read them."""
    try:
        decode_task(task)
    except (KeyMissing, PayloadError) as exc:
        log.warning("an activity is deferred to a worker that can read it: %s", error_line(exc))
        return False
    return True


def decode_task(task: TaskState) -> None:
    """Decode the payloads of an activity in place.

    Raises ``KeyMissing`` if this process lacks a key, and ``PayloadError`` if they cannot be read for another reason.
    """
    decode = codec().decode
    call: Any = task.args
    options: Any = task.options
    try:
        task.args, task.kwargs = decode(call)
        task.options = decode(options)
        if task.heartbeat_details is not None:
            task.heartbeat_details = decode(task.heartbeat_details)
        if task.previous_failure is not None:
            task.previous_failure = decode(task.previous_failure)
        if not (
            isinstance(task.args, list | tuple) and isinstance(task.kwargs, dict) and isinstance(task.options, dict)
        ):
            raise PayloadError(f"its columns call and options in {TASKS.name} are not a list and a dict")
        if not isinstance(task.previous_failure, dict | None):
            raise PayloadError(f"its column failure in {TASKS.name} is not a dict")
        for name in _TIMES:
            if not is_readable_time(getattr(task, name)):
                raise PayloadError(f"its time {name} (column of {TASKS.name}) is not in the years 2 to 9998")
    except KeyMissing:
        raise
    except Exception as exc:
        raise PayloadError(f"activity {task.seq} ({task.activity}) cannot be read: {exc}") from exc


# --- holds ------------------------------------------------------------------------------------------------------------
#
# Holds, which keep back activities of a queue, or of one concurrency key in it, because an activity asked for that.
#
# An activity asks with ``RetryLater(hold=...)``. A hold is a row of the switches with an end, and workers read both
# together.


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
    """Delete holds that have ended. A new hold of the same queue or key would show the start of the old one."""
    sql.execute(f"delete from {SWITCHES.name} where until <= {sql.placeholder('timestamptz')}", [now])


# --- failed attempts --------------------------------------------------------------------------------------------------
#
# Attempts of activities that failed, timed out or were lost. The last ones of each activity are kept with its run.
#
# A successful attempt leaves no row: the event of its result says when it began, and on which worker.


#: The name of a worker, by its epoch: the row of a dead one is gone.
_WORKER: Final = (
    "coalesce((select host || ':' || pid from temporalex_worker where epoch = {owner}),"
    " (select name from temporalex_lost_worker where epoch = {owner}))"
)
_FAILED_ATTEMPT: Final = FAILED_ATTEMPTS.pick_columns(
    *("run_id", "seq", "activity", "attempt", "outcome", "began_at", "ended_at", "failure"),
    owner="int8",
    process="text",
)
_INSERT: Final = FAILED_ATTEMPTS.insert(
    {
        **{name: name for name in _FAILED_ATTEMPT.column_names},
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
    sql.write(_FAILED_ATTEMPT.columns, _INSERT, _FAILED_ATTEMPT.encode_rows(rows))
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
    """Return the values of ``_FAILED_ATTEMPT``."""
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
    if result.failure is not None:
        return result.failure.payload()
    attributes: dict[str, Any] = {} if result.outcome is None else result.outcome[1]
    return {name: attributes.get(name) for name in ("type", "message", "traceback", "details") if name in attributes}


def _outcome_of(failure: dict[str, Any]) -> str:
    if failure.get("type") == "WorkerLost":
        return "lost"
    is_timeout = failure.get("type") == "TimeoutError" and failure.get("traceback") is None
    return "timed_out" if is_timeout else "failed"
