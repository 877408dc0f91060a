"""Scheduled activities in memory: ``TaskStorage``, fenced by attempt and owner as that of the database."""

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
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.payloads import JsonCodec
from temporalex_django.engine import activity_policy
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.in_hand import TaskInHand
from temporalex_django.engine.memory.tables import MemoryTables
from temporalex_django.engine.memory.undo import Table
from temporalex_django.engine.storage import NewTask, Retry, TaskResult, TaskState

#: When it is due, and its number.
Due = tuple[datetime, int]


class MemoryTasks(MemoryTables):
    """``TaskStorage``; see there for what each method promises."""

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.open_tasks: Table[int, TaskState] = Table(self.undo_log)
        self._failures: Table[int, AttemptFailure] = Table(self.undo_log)
        # Numbers of the open ones of a run, by that of the command.
        self._tasks_of: defaultdict[UUID, Table[int, int]] = defaultdict(lambda: Table(self.undo_log))
        # Heaps by queue and whether it is atomic: those that nobody has, and some that are gone or due at another time.
        self._due_tasks: defaultdict[tuple[str, bool], list[Due]] = defaultdict(list)

    # -- what a turn writes -------------------------------------------------------------------------------------------

    def _schedule(self, task: NewTask) -> None:
        number = next(self._ids)
        self.queues.add(task.queue)
        self._tasks_of[task.run_id][task.seq] = number
        call: dict[str, Any] = {"args": deep_copy(list(task.args)), "kwargs": deep_copy(dict(task.kwargs))}
        due_at = task.due_at or task.scheduled_at
        self._fails(number, task.failure)
        self._offer(
            task.as_state(number, attempt=task.attempt, due_at=due_at, options=deep_copy(dict(task.options)), **call)
        )

    def _retry(self, run_id: UUID, seq: int, retry: Retry) -> None:
        """An atomic one failed in a turn of its run."""
        if (number := self._tasks_of[run_id].get(seq)) is not None:
            self._fails(number, retry.failure)
            self._offer(replace(self.open_tasks[number], attempt=retry.attempt, due_at=retry.due_at))

    def _fails(self, number: int, failure: AttemptFailure | None) -> None:
        """Keep why it is tried again, with when its first attempt failed."""
        if failure is not None:
            before = self._failures.get(number)
            since = failure.at if before is None else before.since
            self._failures[number] = replace(failure, since=since)

    def _drop(self, run_id: UUID, seqs: Iterable[int] | None = None) -> None:
        """Forget these of a run, or all."""
        of_run = self._tasks_of[run_id]
        for seq in list(of_run) if seqs is None else seqs:
            if (number := of_run.discard(seq)) is not None:
                del self.open_tasks[number]
                self._failures.discard(number)

    def _offer(self, task: TaskState) -> None:
        """Whoever claims activities may have it once it is due."""
        self.open_tasks[task.id] = task
        heapq.heappush(self._due_tasks[task.queue, task.atomic], (task.due_at, task.id))

    # -- TaskStorage --------------------------------------------------------------------------------------------------

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False
    ) -> list[TaskState]:
        heaps = [self._due_tasks[queue, kind] for queue in dict.fromkeys(queues) for kind in {False, atomic}]
        taken: list[TaskState] = []
        passed: list[TaskState] = []
        while capacity and (heap := min((heap for heap in heaps if heap), default=None)) and heap[0][0] <= self.clock:
            due_at, number = entry = heapq.heappop(heap)
            self.undo_log.undo_by(partial(heapq.heappush, heap, entry))
            task = self.open_tasks.get(number)
            if task is None or task.owner is not None or task.due_at != due_at:
                continue
            if not capacity.takes(task.activity):
                passed.append(task)
                continue
            task = replace(task, owner=owner, attempt=task.attempt + 1, beat_at=None)
            self.open_tasks[number] = task
            taken.append(_copy(task))
        for task in passed:
            self._offer(task)
        return taken

    def _fenced(self, number: int, attempt: int, owner: int | None) -> TaskState | None:
        """The activity, if this is still its attempt and its owner."""
        task = self.open_tasks.get(number)
        return task if task is not None and (task.attempt, task.owner) == (attempt, owner) else None

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        with self.undo_log.block():
            valid, ended = self.end_tasks(results)
            self.tell(ended)
        return valid

    def tell(self, ended: Sequence[TaskInHand]) -> None:
        for one in ended:
            self._deliver(one.chain_id, "activity", one.kind, one.attributes, run_id=one.run_id)

    def end_tasks(self, results: Sequence[TaskResult]) -> tuple[list[int], list[TaskInHand]]:
        valid, ended = [], []
        with self.undo_log.block():
            for result in results:
                task = self._fenced(*result.task.fence)
                if task is None:
                    continue
                valid.append(task.id)
                if result.outcome is not None:
                    assert task.chain_id is not None  # there are no lone ones here
                    self._drop(task.run_id, [task.seq])
                    kind, attributes = result.outcome
                    queue = self.chains[task.chain_id].queue
                    one = TaskInHand(
                        id=task.id,
                        chain_id=task.chain_id,
                        run_id=task.run_id,
                        queue=queue,
                        kind=kind,
                        attributes=deep_copy(attributes),
                    )
                    ended.append(one)
                elif result.retry_at is not None:
                    attempt = result.task.attempt if result.count else result.task.attempt - 1
                    self._fails(task.id, result.failure)
                    free = replace(task, owner=None, started_at=None, beat_at=None, attempt=attempt)
                    self._offer(replace(free, due_at=result.retry_at))
        return valid, ended

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        over = []
        for task in self.open_tasks.values():
            passes = self.expiry(task)
            if passes is not None and passes <= self.clock:
                over.append((passes, task.id))
        return [_copy(self.open_tasks[number]) for _, number in sorted(over)[:limit]]

    def expiry(self, task: TaskState) -> datetime | None:
        """When the next timeout passes. Atomic ones have none: they run inside a turn of their own run."""
        if task.atomic:
            return None
        passes = activity_policy.expiry(task, started_at=task.started_at, beat_at=task.beat_at)
        return None if passes is None else passes[0]

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        run = self.chains.get(chain_id)
        of_run = {} if run is None else self._tasks_of[run.run_id]
        tasks = [self.open_tasks[number] for _, number in sorted(of_run.items())]
        return [_copy(replace(task, attempt=task.attempt + 1)) for task in tasks if task.atomic]

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        numbers = [number for _, number in sorted(self._tasks_of[run_id].items())[:limit]]
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
                expires_at=self.expiry(task),
                heartbeat_timeout=task.options.get("heartbeat"),
                last_failure=self._failures.get(task.id),
            )
            for task in map(self.open_tasks.__getitem__, numbers)
        ]

    def task_of(self, run_id: UUID, seq: int) -> TaskState | None:
        return next((task for task in self.tasks_of(run_id) if task.seq == seq), None)

    def tasks_of(self, run_id: UUID) -> list[TaskState]:
        tasks = [self.open_tasks[number] for _, number in sorted(self._tasks_of[run_id].items())]
        return [_copy(replace(t, attempt=t.attempt + (t.atomic and t.owner is None))) for t in tasks]

    def edit_task(self, task: TaskState) -> None:
        kept = self._fenced(*task.fence)
        if kept is not None and kept.owner is None:
            call: dict[str, Any] = {"args": deep_copy(list(task.args)), "kwargs": deep_copy(dict(task.kwargs))}
            self.open_tasks[task.id] = replace(kept, options=deep_copy(dict(task.options)), **call)

    def heartbeat(self, beats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        valid = set()
        for key, details in beats.items():
            if (task := self._fenced(*key)) is None:
                continue
            plain = JsonCodec().decode(details) if isinstance(details, bytes) else deep_copy(details)
            kept = task.heartbeat_details if plain is None else plain
            self.open_tasks[task.id] = replace(task, beat_at=self.clock, heartbeat_details=kept)
            valid.add(key)
        return valid


def _copy(task: TaskState) -> TaskState:
    """For the outside, where it is worked on."""
    return replace(task, args=deep_copy(task.args), kwargs=deep_copy(task.kwargs))
