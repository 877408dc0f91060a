"""Scheduled activities in memory, for test environments.

As in the database, the report of an attempt that is no longer the present one changes nothing.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.payloads.codec import JsonCodec, deep_copy
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import Hold, NewTask, Retry, TaskResult, TaskState
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.memory.tables import MemoryTables, Table
from temporalex_django.engine.scheduling.capacity import Capacity

#: When an activity is due, and its number.
Due = tuple[datetime, int]


class MemoryTasks(MemoryTables):
    """The storage of scheduled activities in memory. It implements the protocol ``TaskStorage``."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.open_tasks: Table[int, TaskState] = Table(self.undo_log)
        self._failures: Table[int, AttemptFailure] = Table(self.undo_log)
        self._holds: Table[tuple[str, str], datetime] = Table(self.undo_log)  # their ends, by queue and key
        # By run and command number: the numbers of open activities.
        self._task_ids_by_run: defaultdict[UUID, Table[int, int]] = defaultdict(lambda: Table(self.undo_log))
        # Heaps by queue and by whether the activities are atomic. They hold all that have no owner, and entries of some
        # that are gone or due at another time, which a claim skips.
        self._due_tasks: defaultdict[tuple[str, bool], list[Due]] = defaultdict(list)

    # -- what a turn writes -------------------------------------------------------------------------------------------

    def _schedule(self, task: NewTask) -> None:
        """Store a new activity as a row under the next number."""
        number = next(self._ids)
        self.queues.add(task.queue)
        self._task_ids_by_run[task.run_id][task.seq] = number
        call: dict[str, Any] = {"args": deep_copy(list(task.args)), "kwargs": deep_copy(dict(task.kwargs))}
        due_at = task.due_at or task.scheduled_at
        self._record_failure(number, task.failure)
        self._make_available(
            task.as_state(number, attempt=task.attempt, due_at=due_at, options=deep_copy(dict(task.options)), **call)
        )

    def _retry(self, run_id: UUID, seq: int, retry: Retry) -> None:
        """Schedule another try of the atomic activity of command ``seq``, which failed in a turn of its run."""
        if (number := self._task_ids_by_run[run_id].get(seq)) is not None:
            self._record_failure(number, retry.failure)
            self._make_available(replace(self.open_tasks[number], attempt=retry.attempt, due_at=retry.due_at))

    def _record_failure(self, number: int, failure: AttemptFailure | None) -> None:
        """Store the failure for which the activity ``number`` is tried again, with the time of its first failure."""
        if failure is not None:
            previous_failure = self._failures.get(number)
            since = failure.at if previous_failure is None else previous_failure.since
            self._failures[number] = replace(failure, since=since)

    def _failure_payload(self, number: int) -> dict[str, Any] | None:
        """Return the stored failure of the last attempt of the activity ``number``, or None."""
        failure = self._failures.get(number)
        return None if failure is None else failure.payload()

    def _drop_tasks(self, run_id: UUID, seqs: Iterable[int] | None = None) -> None:
        """Delete the activities of a run with these command numbers, or all of them (None)."""
        of_run = self._task_ids_by_run[run_id]
        for seq in list(of_run) if seqs is None else seqs:
            if (number := of_run.discard(seq)) is not None:
                del self.open_tasks[number]
                self._failures.discard(number)

    def _make_available(self, task: TaskState) -> None:
        """Add an activity to the heap of its queue, so that a claim gets it once it is due."""
        self.open_tasks[task.id] = task
        heapq.heappush(self._due_tasks[task.queue, task.atomic], (task.due_at, task.id))

    # -- TaskStorage --------------------------------------------------------------------------------------------------

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False
    ) -> list[TaskState]:
        heaps = [self._due_tasks[queue, kind] for queue in dict.fromkeys(queues) for kind in {False, atomic}]
        claimed_tasks: list[TaskState] = []
        skipped_tasks: list[TaskState] = []
        while capacity and (heap := min((heap for heap in heaps if heap), default=None)) and heap[0][0] <= self.clock:
            due_at, number = entry = heapq.heappop(heap)
            # A heap is no table, so a rollback has to put the entry back; a second one for the same activity does no
            # harm.
            self.undo_log.add_undo(partial(heapq.heappush, heap, entry))
            task = self.open_tasks.get(number)
            if task is None or task.owner is not None or task.due_at != due_at:
                continue
            if not capacity.acquire(task.activity):
                skipped_tasks.append(task)
                continue
            failure = self._failure_payload(number)
            task = replace(task, owner=owner, attempt=task.attempt + 1, beat_at=None, previous_failure=failure)
            self.open_tasks[number] = task
            claimed_tasks.append(_copy_task(task))
        for task in skipped_tasks:
            self._make_available(task)
        return claimed_tasks

    def _fenced_task(self, number: int, attempt: int, owner: int | None) -> TaskState | None:
        """Return the activity ``number`` if its present attempt has the number ``attempt`` and the worker ``owner``.

        Else return None: the attempt was lost, and its result must not change anything.
        """
        task = self.open_tasks.get(number)
        if task is not None and (task.attempt, task.owner) == (attempt, owner):
            return task
        return None

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        with self.undo_log.block():
            valid, activities = self.finish_undelivered(results)
            self.deliver(activities)
        return valid

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        for activity in activities:
            self._add_message(
                *(activity.chain_id, "activity", activity.kind, activity.attributes),
                run_id=activity.run_id,
                headers=activity.headers,
            )

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        valid, activities = [], []
        with self.undo_log.block():
            for result in results:
                task = self._fenced_task(*result.task.fence)
                if task is None:
                    continue
                valid.append(task.id)
                self._store_hold(result.hold)
                if result.outcome is not None:
                    assert task.chain_id is not None  # there are no background tasks here
                    self._drop_tasks(task.run_id, [task.seq])
                    kind, attributes = result.outcome
                    queue = self.chains[task.chain_id].queue
                    activity = FinishedActivity(
                        id=task.id,
                        chain_id=task.chain_id,
                        run_id=task.run_id,
                        queue=queue,
                        kind=kind,
                        attributes=deep_copy(attributes),
                        headers=task.headers,
                    )
                    activities.append(activity)
                elif result.retry_at is not None:
                    if result.count:
                        attempt = result.task.attempt
                    else:
                        attempt = result.task.attempt - 1
                    self._record_failure(task.id, result.failure)
                    released_task = replace(task, owner=None, started_at=None, beat_at=None, attempt=attempt)
                    self._make_available(replace(released_task, due_at=result.retry_at))
        return valid, activities

    def _store_hold(self, hold: Hold | None) -> None:
        if hold is not None:
            name = (hold.queue, hold.key or "")
            self._holds[name] = max(hold.until, self._holds.get(name) or hold.until)

    def held_until(self, task: TaskState) -> datetime | None:
        """Return when the hold on the activity's queue or concurrency key ends, or None if there is none.

        A hold keeps activities back after an attempt has raised ``RetryLater`` with ``hold``.
        """
        names = ((task.queue, ""), (task.queue, task.options.get("concurrency_key") or ""))
        ends = [end for name in names if (end := self._holds.get(name)) is not None and end > self.clock]
        return None if task.atomic else max(ends, default=None)

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        expired = []
        for task in self.open_tasks.values():
            timeout = self.next_timeout(task)
            if timeout is not None and timeout <= self.clock:
                expired.append((timeout, task.id))
        return [_copy_task(self.open_tasks[number]) for _, number in sorted(expired)[:limit]]

    def next_timeout(self, task: TaskState) -> datetime | None:
        """Return when the next timeout of the activity passes, or None.

        Atomic activities have no timeouts, since they run inside a turn of their run.
        """
        if task.atomic:
            return None
        timeout = activity_policy.next_timeout(task, started_at=task.started_at, heartbeat_at=task.beat_at)
        if timeout is None:
            return None
        return timeout[0]

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        run = self.chains.get(chain_id)
        of_run = {} if run is None else self._task_ids_by_run[run.run_id]
        tasks = [self.open_tasks[number] for _, number in sorted(of_run.items())]
        return [
            _copy_task(replace(task, attempt=task.attempt + 1, previous_failure=self._failure_payload(task.id)))
            for task in tasks
            if task.atomic
        ]

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        numbers = [number for _, number in sorted(self._task_ids_by_run[run_id].items())[:limit]]
        return [
            OpenActivity(
                seq=task.seq,
                activity=task.activity,
                queue=task.queue,
                owner=task.owner,
                attempt=task.attempt,
                max_attempts=int((task.options.get("retry") or {}).get("max_attempts") or 0),
                scheduled_at=task.scheduled_at,
                due_at=task.due_at,
                started_at=task.started_at,
                beat_at=task.beat_at,
                expires_at=self.next_timeout(task),
                heartbeat_timeout=task.options.get("heartbeat"),
                last_failure=self._failures.get(task.id),
            )
            for task in map(self.open_tasks.__getitem__, numbers)
        ]

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        return next((task for task in self.tasks_of_run(run_id) if task.seq == seq), None)

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        tasks = [self.open_tasks[number] for _, number in sorted(self._task_ids_by_run[run_id].items())]
        return [_copy_task(replace(t, attempt=t.attempt + (t.atomic and t.owner is None))) for t in tasks]

    def edit_task(self, task: TaskState) -> None:
        existing_task = self._fenced_task(*task.fence)
        if existing_task is not None and existing_task.owner is None:
            call: dict[str, Any] = {"args": deep_copy(list(task.args)), "kwargs": deep_copy(dict(task.kwargs))}
            self.open_tasks[task.id] = replace(existing_task, options=deep_copy(dict(task.options)), **call)

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        valid = set()
        for key, details in heartbeats.items():
            if (task := self._fenced_task(*key)) is None:
                continue
            if isinstance(details, bytes):
                plain = JsonCodec().decode(details)
            else:
                plain = deep_copy(details)
            if plain is None:
                latest_details = task.heartbeat_details
            else:
                latest_details = plain
            self.open_tasks[task.id] = replace(task, beat_at=self.clock, heartbeat_details=latest_details)
            valid.add(key)
        return valid


def _copy_task(task: TaskState) -> TaskState:
    """Return a copy of the activity, which the caller may change."""
    return replace(task, args=deep_copy(task.args), kwargs=deep_copy(task.kwargs))
