"""Scheduled activities in SQL: ``TaskStorage``.

Fencing: ``(id, attempt, owner)`` identifies one attempt of one worker. A report about an attempt that no longer matches
changes nothing. Locks: the rows of the activities themselves; rows that are locked elsewhere are skipped. Each method
is one transaction of its own unless it is called inside one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.conf import codec
from temporalex_django.core.error_text import error_line
from temporalex_django.db import background_tasks
from temporalex_django.db.dialects.base import Dialect
from temporalex_django.db.readable_tasks import decode_task, is_readable
from temporalex_django.db.sql_columns import (
    CAUSE,
    FAILURE,
    FENCE,
    FENCED,
    MESSAGES,
    RESULT,
    RESULT_INSERT,
    TASKS,
    failure_row,
)
from temporalex_django.db.turn_writes import earliest_moment
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.scheduling.capacity import Capacity
from temporalex_django.engine.scheduling.queue_rotation import NewestAndOldest
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.models import ActivityTask

log = logging.getLogger("temporalex_django.db")

#: Number of due activities among which it looks for those that this worker can start.
_LOOKAHEAD = 1000
_TASK = TASKS.pick_fields(TaskState, args="call", kwargs=None, heartbeat_details="heartbeat")
_ATTEMPT = TASKS.pick_columns(*FENCE)
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
    "created_at": "coalesce(v.created_at, clock_timestamp())",
}
_MESSAGE_SOURCE = (
    "from gone g join v on v.id = g.id and v.attempt = g.attempt and coalesce(v.owner, -1) = coalesce(g.owner, -1)"
)
# Delete and insert are one statement, so that either the activity or its result exists.
_FINISH_AND_DELIVER = (
    f", gone as ({_DELETED}), told as ({MESSAGES.insert(_MESSAGE_VALUES, _MESSAGE_SOURCE)}) select id from gone"
)
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
    },
    f"where {FENCED} returning id",
)
_FAILED = TASKS.pick_columns("id", *FAILURE, "heartbeat")
_FAILED_UPDATE = _FAILED.update(
    "id",
    failing_since=f"coalesce({TASKS.name}.failing_since, v.failed_at)",
    cause=CAUSE,
    heartbeat=f"coalesce(v.heartbeat, {TASKS.name}.heartbeat)",
)
_EDITED = TASKS.pick_columns("id", "attempt", "call", "options")
_EDITED_UPDATE = _EDITED.update("id", "attempt", only=f" and {TASKS.name}.owner is null")
_LIMITS = TASKS.pick_columns("start_to_close", "heartbeat_timeout", "close_at", "started_at")
_HEARTBEAT = TASKS.pick_columns(*FENCE, "beat_at", "expires_at", "heartbeat")
_HEARTBEAT_UPDATE = _HEARTBEAT.update(*FENCE, heartbeat=f"coalesce(v.heartbeat, {TASKS.name}.heartbeat)")


class TaskStatements(ABC):
    """The implementation of ``TaskStorage`` in SQL; the protocol documents the contract of each method."""

    sql: Dialect
    alias: str
    clock: Callable[[], datetime] | None
    worker: bool
    backlogs: defaultdict[str, NewestAndOldest]  # by queue
    # Names of activities that were found and that this process lacks.
    missing_activities: set[str]
    # Names of activities to leave alone in test environments. Workers use their admission instead.
    switched_off: Collection[str]
    priority_queues: Collection[str]  # queues in which background tasks may have a priority

    @abstractmethod
    def now(self) -> datetime: ...

    @abstractmethod
    def queue_order(self, queues: Sequence[str], kind: str) -> Sequence[str]: ...

    @abstractmethod
    def transaction(self, site: str = "") -> AbstractContextManager[None]: ...

    @abstractmethod
    def join_transaction(self) -> AbstractContextManager[None]: ...

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """Claim due activities that no worker has, queue after queue, oldest due first.

        If more wait than are claimed, some of them are the newest (``NewestAndOldest``). Activities in partitions are
        not claimed here. With ``suspects`` only activities that may have ended a worker are claimed.
        """
        with self.join_transaction():
            with self.sql.pipeline():
                fetch_tasks = self.submit_task_claim(
                    capacity=capacity, queues=queues, owner=owner, atomic=atomic, suspects=suspects
                )
            return fetch_tasks()

    def submit_task_claim(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Send the statements of ``claim_tasks`` and return a function that completes it; call it after ``pipeline()``.

        Inside a transaction only. The first queue is asked at once, and the others for the capacity that it leaves.
        """
        condition, excluded = self.availability_filter()
        if not atomic:
            condition += " and not atomic"
        condition += " and line is null"
        if suspects:
            condition += " and crashes > 0"
        order = self.queue_order(queues, "activities")
        if not order or not capacity:
            return list
        fetch_first = self._submit_task_queue(order[0], capacity, owner, condition, excluded)

        def fetch_tasks() -> list[TaskState]:
            tasks = fetch_first()
            for queue in order[1:]:
                if capacity:
                    with self.sql.pipeline():
                        fetch_more = self._submit_task_queue(queue, capacity, owner, condition, excluded)
                    tasks += fetch_more()
            return self.filter_runnable(self.decode_tasks(tasks))

        return fetch_tasks

    def _submit_task_queue(
        self, queue: str, capacity: Capacity, owner: int, condition: str, excluded: Sequence[Any]
    ) -> Callable[[], list[TaskState]]:
        """Submit a claim of one queue, by priority if some have one. ``condition``: see ``due_candidates``."""
        # A claim for async activities alone does not show how many others wait, so it does not count.
        limit, fetch_ranked = (
            capacity.total if capacity.threads or capacity.prefetch_limit else 0,
            self._submit_priority_check(queue),
        )
        fetch_claimed = self._submit_take(queue, capacity, owner, condition, excluded) if self.sql.arrays else None

        def fetch_tasks() -> list[TaskState]:
            ranked, tasks = fetch_ranked(), fetch_claimed() if fetch_claimed is not None else []
            # The claim is read in any case: another worker may have changed the priorities between the two statements.
            if not tasks and (fetch_claimed is None or ranked):
                candidate_limit = max(capacity.total, _LOOKAHEAD if capacity.async_names or capacity.prefetch else 0)
                candidates = self.due_candidates(queue, candidate_limit, condition, excluded, ranked=ranked)
                tasks = self.claim_by_ids([task for task, name in candidates if capacity.acquire(name)], owner)
            if limit:
                self.backlogs[queue].record_claim(len(tasks), limit)
            return tasks

        return fetch_tasks

    @property
    def _due_order(self) -> str:
        """The ``order by`` of due activities; with a virtual clock also by id, since many are due at one time there."""
        return "due_at" if self.clock is None else "due_at, id"

    def _starts_with_newest(self, queue: str) -> bool:
        return self.clock is None and self.backlogs[queue].starts_with_newest()

    def availability_filter(self) -> tuple[str, list[Any]]:
        """Return a condition, with its parameters, that excludes activities without code here or switched off."""
        unavailable = [name for name in self.missing_activities if name not in activity.registry] + sorted(
            self.switched_off
        )
        if not unavailable:
            return "", []
        test, parameter = self.sql.in_array(unavailable, "text")
        return f" and not (activity {test})", [parameter]

    def filter_runnable(self, tasks: list[TaskState]) -> list[TaskState]:
        """Return the tasks whose code this process has. Releases the others uncounted, and skips them from now on."""
        if not self.worker or all(activity.is_available(task.activity) for task in tasks):
            return tasks
        unavailable = [task for task in tasks if not activity.is_available(task.activity)]
        for name in {task.activity for task in unavailable} - self.missing_activities:
            log.warning("%s is not in this process: deferred to a worker that has it", name)
            self.missing_activities.add(name)
        self.release_tasks([(task.id, task.attempt, task.owner or 0) for task in unavailable])
        return [task for task in tasks if task.activity in activity.registry]

    def _release_keyless(self, tasks: Sequence[tuple[TaskState, KeyMissing]]) -> None:
        """Release activities whose payloads only another worker can read: uncounted, and due again soon."""
        if not tasks:
            return
        due = self.now() + activity_policy.REOFFER_DELAY
        self.sql.write(
            _KEYLESS.columns,
            _KEYLESS_UPDATE,
            [(task.id, due, f"the key {exc.key!r}") for task, exc in tasks],
            key="id",
        )

    def decode_tasks(self, tasks: Sequence[TaskState]) -> list[TaskState]:
        """Decode the payloads of tasks. A task that cannot be read fails at once; the others continue."""
        decoded_tasks, broken, keyless = [], [], []
        for task in tasks:
            try:
                decode_task(task)
                decoded_tasks.append(task)
            except KeyMissing as exc:
                if not self.worker:
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

    # One statement for each queue if it can choose from arrays. Otherwise the choice is read first.

    def _submit_take(
        self, queue: str, capacity: Capacity, owner: int, condition: str, excluded: Sequence[Any]
    ) -> Callable[[], list[TaskState]]:
        """Submit a claim of one queue in one statement. It claims nothing if activities there have priorities."""
        if queue in self.priority_queues:
            condition, excluded = f"{condition} and not ({background_tasks.HAS_PRIORITY})", [*excluded, queue, queue]
        due, moment = self.sql.now_expression(self.clock)
        free = f" from temporalex_activity_task where queue = %s and owner is null{condition} and due_at <= {due}"
        skip, backlog = self.sql.skip_locked(), self.backlogs[queue]
        id_arrays: list[str] = []
        parameters: list[Any] = [owner]

        def add_arrays(lane: str, limit: int, names: Collection[str] = (), test: str = "") -> None:
            newest = backlog.newest_count(limit, lane) if self.clock is None else 0
            if newest > 0:
                add_array(newest, "due_at desc", names, test)
            if limit > newest:
                add_array(limit - newest, self._due_order, names, test)

        def add_array(limit: int, order: str, names: Collection[str], test: str) -> None:
            """Add a query for the first ``limit`` ids; with ``names``, of activities whose name passes ``test``."""
            if not test:
                id_arrays.append(f"array(select id{free} order by {order} limit {self.sql.hidden_limit}{skip})")
                parameters.extend([queue, *excluded, *moment, limit])
                return
            # Two steps: read the first rows of the index by due time, then filter them by name. A filter in the index
            # scan itself would read on through a whole backlog of other activities.
            membership, parameter = self.sql.in_array(names, "text")
            first_rows = f"select id, activity{free} order by {order} limit {self.sql.hidden_limit}{skip}"
            matching_ids = f"select id from ({first_rows}) near where {test.format(f'activity {membership}')}"
            id_arrays.append(
                f"array(select id from temporalex_activity_task where id = any(array({matching_ids})) and owner is null"
                f" order by {order} limit %s{skip})"
            )
            parameters.extend([queue, *excluded, *moment, _LOOKAHEAD, parameter, limit])

        if capacity.async_names:
            add_arrays("threads", capacity.threads, capacity.async_names, "not ({})")
            add_arrays("tasks", capacity.tasks, capacity.async_names, "{}")
        else:
            add_arrays("threads", capacity.threads)
        if capacity.prefetch_limit:  # ids that the arrays share are claimed once
            left_out = capacity.prefetch_excluded
            add_arrays(
                "ahead", capacity.total, *((capacity.prefetch, "{}") if left_out is None else (left_out, "not ({})"))
            )
        # The claim itself counts the attempt, so that ``max_attempts=1`` means at most once (decision 35).
        answer = self.sql.submit(
            "update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null"
            f" where id = any({' || '.join(id_arrays)}) returning {_TASK.names}",
            parameters,
            _TASK.types,
        )

        def fetch_tasks() -> list[TaskState]:
            tasks = sorted(map(_task_state, answer()), key=lambda t: (t.due_at, t.id))
            for task in tasks:
                capacity.acquire(task.activity)
            return tasks

        return fetch_tasks

    def claim_by_ids(self, task_ids: Sequence[int], owner: int) -> list[TaskState]:
        """Claim those of the activities that no worker has, and return them in the order of ``task_ids``."""
        if not task_ids:
            return []
        membership, parameter = self.sql.in_array(task_ids, "int8")
        self.sql.execute(
            "update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null"
            f" where id {membership} and owner is null",
            [owner, parameter],
        )
        rows = self.sql.select(
            f"select {_TASK.names} from temporalex_activity_task where id {membership} and owner = %s",
            [parameter, owner],
            _TASK.types,
        )
        positions = {number: i for i, number in enumerate(task_ids)}
        return sorted(map(_task_state, rows), key=lambda task: positions[task.id])

    def due_candidates(
        self, queue: str, limit: int, condition: str, excluded: Sequence[Any], *, ranked: bool
    ) -> list[tuple[Any, ...]]:
        """Return id and name of the first due activities, by priority if ``ranked``, and lock them (not on SQLite).

        ``condition`` is SQL that their rows must meet, and ``excluded`` has the values of its placeholders.
        """
        now, moment = self.sql.now_expression(self.clock)
        parameters = [queue, *excluded, *moment, limit]

        def first_query(rank: str, order: str) -> str:
            return (
                f"select id, activity from temporalex_activity_task where queue = %s and owner is null{condition}"
                f" and due_at <= {now}{rank} order by {order} limit {self.sql.hidden_limit}{self.sql.skip_locked()}"
            )

        kinds = ("int8", "text")
        if not ranked:
            order = "due_at desc" if self._starts_with_newest(queue) else self._due_order
            return self.sql.select(first_query("", order), parameters, kinds)
        rows: list[tuple[Any, ...]] = []
        # Three reads in this order, each by an index: the one of priorities does not hold 0.
        for rank in (" and priority > 0", " and priority = 0", " and priority < 0"):
            order = self._due_order if rank.endswith("= 0") else f"priority desc, {self._due_order}"
            if len(rows) < limit:
                rows += self.sql.select(first_query(rank, order), [*parameters[:-1], limit - len(rows)], kinds)
        return rows

    def has_priorities(self, queue: str) -> bool:
        """Return True if activities that wait in the queue have a priority. One index look-up."""
        return self._submit_priority_check(queue)()

    def _submit_priority_check(self, queue: str) -> Callable[[], bool]:
        return background_tasks.submit_priority_check(queue, sql=self.sql) if queue in self.priority_queues else bool

    def mark_tasks_started(self, tasks: Sequence[TaskState]) -> None:
        """Store that these attempts run since ``started_at``; their timeouts count from then. One statement."""
        rows = []
        for task in tasks:
            timeout = activity_policy.next_timeout(task, started_at=task.started_at, heartbeat_at=None)
            rows.append((task.id, task.attempt, task.owner, task.started_at, timeout and timeout[0]))
        self.sql.write(_STARTED.columns, _STARTED_UPDATE, rows, key="id")

    def release_tasks(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Release activities that were claimed and never started, by (id, attempt, owner). No attempt is counted."""
        self.sql.write(_ATTEMPT.columns, _RELEASE_UPDATE, keys, key="id")

    def release_with_names(self, keys: Collection[tuple[int, int, int]]) -> list[tuple[str, str]]:
        """Release activities as ``release_tasks`` does; return queue and name of each whose claim was still valid."""
        rows = self.sql.write_returning(_ATTEMPT.columns, _RELEASE_RETURNING, keys, _RELEASED.types, key="id")
        return [(queue, name) for queue, name in rows]

    def owned_tasks(self, owner: int) -> set[tuple[int, int, int]]:
        """Return ``(id, attempt, owner)`` of each activity that this owner has claimed. Locks nothing."""
        rows = self.sql.select(_ATTEMPT.select("where owner = %s"), [owner], _ATTEMPT.types)
        return {(task, attempt, own) for task, attempt, own in rows}

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store the results of attempts, and send the final ones to their chains; return the ids that were valid."""
        if not results:
            return []
        with self.join_transaction():
            # One attempt has one result. A lost attempt of the same activity may be beside it.
            return self._finish_and_deliver(_results_of_runs(results)) + self._finish_others(results)

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        return self.submit_finish(results)()

    def submit_finish(self, results: Sequence[TaskResult]) -> Callable[[], tuple[list[int], list[FinishedActivity]]]:
        """Send the statements of ``finish_undelivered``; return a function that waits for its result."""
        if not results:
            return lambda: ([], [])
        fetch_deleted = self._submit_delete(_results_of_runs(results))

        def fetch_finished() -> tuple[list[int], list[FinishedActivity]]:
            valid, activities = fetch_deleted()
            return valid + self._finish_others(results), activities

        return fetch_finished

    def _finish_others(self, results: Sequence[TaskResult]) -> list[int]:
        """Store the results of background tasks and of attempts to retry: none of them goes to a chain."""
        background_results = {r.task.fence: r for r in results if r.outcome is not None and r.task.chain_id is None}
        finished: list[int] = []
        if background_results:
            finished = background_tasks.finish_tasks(background_results, sql=self.sql, now=self.now())
        return finished + self._schedule_retries([r for r in results if r.outcome is None])

    def _submit_delete(
        self, final: Mapping[tuple[int, int, int | None], TaskResult]
    ) -> Callable[[], tuple[list[int], list[FinishedActivity]]]:
        """Send the deletion of the activities that the attempts still own; return a function for ids and messages."""
        types = (*_ATTEMPT.types, *_RECIPIENT.types)
        rows = self.sql.submit_write(_ATTEMPT.columns, _DELETED, list(final), types, key="id")

        def fetch_deleted() -> tuple[list[int], list[FinishedActivity]]:
            encode, decode = codec().encode, codec().decode
            valid, activities = [], []
            for task, attempt, own, chain, run, queue in rows():
                result = final[task, attempt, own]
                kind, attributes = result.outcome or ("", {})
                body = encode(attributes) if result.encoded is None else result.encoded
                valid.append(task)
                recipient = {"chain_id": chain, "run_id": run, "queue": queue}
                activities.append(
                    FinishedActivity(id=task, kind=kind, attributes=decode(body), encoded=body, **recipient)
                )
            return valid, activities

        return fetch_deleted

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        if not activities:
            return
        now = self.now()
        messages = ((e.chain_id, e.run_id, e.queue, "activity", e.kind, e.encoded, now) for e in activities)
        self.sql.write(RESULT.columns, RESULT_INSERT, messages)

    def _finish_and_deliver(self, final: Mapping[tuple[int, int, int | None], TaskResult]) -> list[int]:
        """Delete the activities that the attempts still own, and send the results to their chains."""
        if not self.sql.chained_writes:
            valid, activities = self._submit_delete(final)()
            self.deliver(activities)
            return valid
        clock, result_values = None if self.clock is None else self.clock(), []
        for r in final.values():
            kind, attributes = r.outcome or ("", {})
            result_values.append((kind, attributes if r.encoded is None else r.encoded, clock))
        rows = [(*fence, *end) for fence, end in zip(final, _RESULT.encode_rows(result_values), strict=True)]
        deleted_rows = self.sql.write_returning(_RESULT_COLUMNS, _FINISH_AND_DELIVER, rows, ("int8",), key="id")
        return [row[0] for row in deleted_rows]

    def _schedule_retries(self, results: Sequence[TaskResult]) -> list[int]:
        """Make activities whose attempt failed due again, and return the ids that were still valid."""
        if not results:
            return []
        rows = []
        for r in results:
            assert r.retry_at is not None
            total = r.task.options.get("schedule_to_close")
            attempt = r.task.attempt if r.count else r.task.attempt - 1
            expires = None if r.task.atomic else _add_seconds(r.task.scheduled_at, total)
            if attempt == 0 and not r.task.atomic:
                expires = earliest_moment(expires, _add_seconds(r.retry_at, r.task.options.get("schedule_to_start")))
            rows.append((*r.task.fence, attempt, r.retry_at, expires, r.waits_for))
        changed = self.sql.write_returning(_RETRY_COLUMNS, _RETRY_UPDATE, rows, ("int8",), key="id")
        valid = {row[0] for row in changed}
        failure_rows = (
            (r.task.id, *failure_row(r.failure), r.details) for r in results if r.failure and r.task.id in valid
        )
        self.sql.write(_FAILED.columns, _FAILED_UPDATE, _FAILED.encode_rows(failure_rows), key="id")
        if background_results := [r for r in results if r.count and r.task.chain_id is None and r.task.id in valid]:
            background_tasks.log_attempts(background_results, sql=self.sql)
        return [row[0] for row in changed]

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        now, parameters = self.sql.now_expression(self.clock)
        rows = self.sql.select(
            f"select {_TASK.names} from temporalex_activity_task where expires_at <= {now} order by expires_at limit %s",
            [*parameters, limit],
            _TASK.types,
        )
        return self.decode_tasks([_task_state(row) for row in rows])

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Return the atomic activities of a locked chain by ``seq``; ``attempt`` includes the one to come."""
        rows = self.sql.select(
            f"select {_TASK.names} from temporalex_activity_task t where t.atomic"
            " and t.run_id = (select c.run_id from temporalex_chain c where c.id = %s) order by seq",
            [chain_id],
            _TASK.types,
        )
        tasks = [_task_state(row) for row in rows]
        for task in tasks:
            decode_task(task)
            task.attempt += 1
        return tasks

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        """Return the open activities of a run for display. It uses the ORM, since no turn waits for it."""
        rows = ActivityTask.objects.using(self.alias).filter(run_id=run_id).defer("call", "options", "heartbeat")
        return [row.as_open for row in rows.order_by("seq")[:limit]]

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        """Return the activity that command ``seq`` of the run scheduled, claimed or not, or None. Locks nothing."""
        tasks = self._read_tasks("where run_id = %s and seq = %s", [run_id, seq])
        return tasks[0] if tasks else None

    def owned_background_tasks(self, *, owner: int) -> list[TaskState]:
        """Return the background tasks of an owner, except those that this process cannot read."""
        return self._select_background_tasks("owner = %s", owner)

    def free_background_task(self, task_id: int) -> TaskState | None:
        """Return a background task if no worker has it and this process can read it, else None."""
        return next(iter(self._select_background_tasks("owner is null and id = %s", task_id)), None)

    def _select_background_tasks(self, condition: str, parameter: int) -> list[TaskState]:
        rows = self.sql.select(_TASK.select(f"where chain_id is null and {condition}"), [parameter], _TASK.types)
        return [task for task in map(_task_state, rows) if is_readable(task)]

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        return self._read_tasks("where run_id = %s order by seq", [run_id])

    def _read_tasks(self, condition: str, parameters: list[Any]) -> list[TaskState]:
        tasks = [_task_state(row) for row in self.sql.select(_TASK.select(condition), parameters, _TASK.types)]
        for task in tasks:
            decode_task(task)
            task.attempt += task.atomic and task.owner is None
        return tasks

    def edit_task(self, task: TaskState) -> None:
        """Store arguments and options of an activity that no worker has and that is still at this attempt."""
        row = (task.id, task.fence[1], [list(task.args), dict(task.kwargs)], dict(task.options))
        self.sql.write(_EDITED.columns, _EDITED_UPDATE, _EDITED.encode_rows([row]), key="id")

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store the details of all heartbeats, and return the attempts that the worker still owns."""
        if not heartbeats:
            return set()
        now = self.now()
        with self.transaction("heartbeat"):
            rows = self.sql.write_returning(
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
            self.sql.write(_HEARTBEAT.columns, _HEARTBEAT_UPDATE, _HEARTBEAT.encode_rows(changes), key="id")
        return {(row[0], row[1], row[2]) for row in rows}


def _results_of_runs(results: Sequence[TaskResult]) -> dict[tuple[int, int, int | None], TaskResult]:
    """Return the final results of activities of runs by (id, attempt, owner), without those of background tasks."""
    return {r.task.fence: r for r in results if r.outcome is not None and r.task.chain_id is not None}


def _add_seconds(moment: datetime | None, seconds: float | None) -> datetime | None:
    return None if moment is None or seconds is None else moment + timedelta(seconds=seconds)


def _task_state(row: tuple[Any, ...]) -> TaskState:
    """Return the activity of a row. Its payloads are still encoded; see ``decode_task``."""
    return TaskState(**_TASK.row_fields(row), kwargs={})
