"""Scheduled activities in SQL: ``TaskStorage``.

Fencing: ``(id, attempt, owner)`` names one attempt of one worker. Whoever speaks about an attempt that is no longer that one
changes nothing. Locks: the rows of the activities themselves, skipping those that others have. Each method is one transaction of
its own unless it is called inside one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.conf import codec
from temporalex_django.core.telling import told
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.runtime import activities
from temporalex_django.runtime.dialect import Columns, Dialect
from temporalex_django.runtime.room import Room
from temporalex_django.runtime.storage import TaskResult, TaskState
from temporalex_django.runtime.writing import earliest, insert

log = logging.getLogger("temporalex_django.activity")

#: Among so many that are due first those are looked for which a worker can begin.
_NEAR = 1000
_TASK = (
    "id, chain_id, run_id, workflow_id, workflow, seq, activity, call, options, queue, atomic, attempt, scheduled_at, due_at,"
    " started_at, beat_at, heartbeat, crashes, owner"
)
_TYPES = (
    *("int8", "uuid", "uuid", "text", "text", "int4", "text", "bytea", "bytea", "text", "bool", "int4", "timestamptz"),
    *("timestamptz", "timestamptz", "timestamptz", "bytea", "int4", "int8"),
)
_FENCE = (
    "id {key} and exists (select 1 from v where v.id = temporalex_activity_task.id"
    " and v.attempt = temporalex_activity_task.attempt"
    " and coalesce(v.owner, -1) = coalesce(temporalex_activity_task.owner, -1))"
)
_FENCE_COLUMNS: Columns = (("id", "int8"), ("attempt", "int4"), ("owner", "int8"))
_MESSAGE: Columns = (
    *(
        ("chain_id", "uuid"),
        ("run_id", "uuid"),
        ("queue", "text"),
        ("kind", "text"),
        ("name", "text"),
        ("body", "bytea"),
    ),
    ("created_at", "timestamptz"),
)


class TaskStatements(ABC):
    """``TaskStorage``; see there for what each method promises."""

    sql: Dialect
    clock: Callable[[], datetime] | None
    worker: bool
    absent: set[str]  # names of activities that were found and that this process lacks

    @abstractmethod
    def now(self) -> datetime: ...

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]: ...

    def claim_tasks(
        self, *, room: Room, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """Take due, unowned activities, oldest due first, queue after queue; with ``suspects`` those that a worker died of only.

        One statement a queue on PostgreSQL.
        """
        found: list[TaskState] = []
        which, excluded = self.here()
        if not atomic:
            which += " and not atomic"
        if suspects:
            which += " and crashes > 0"
        with self.transaction():
            for queue in queues:
                if room:
                    take = self._take_sqlite if self.sql.vendor == "sqlite" else self._take
                    found += take(queue, room, owner, which, excluded)
            return self._mine(self._readable(found))

    @property
    def _order(self) -> str:
        """Under a virtual clock much is due at one instant, and the oldest call comes first; a worker need not sort a fan-out for that."""
        return "due_at" if self.clock is None else "due_at, id"

    def here(self) -> tuple[str, list[Any]]:
        """A condition that leaves out what this process lacks, and its parameters; nothing as long as none of it was seen."""
        absent = [name for name in self.absent if name not in activity.registry]
        if not absent:
            return "", []
        test, parameter = self.sql.among(absent, "text")
        return f" and not (activity {test})", [parameter]

    def _mine(self, tasks: list[TaskState]) -> list[TaskState]:
        """Those that this process has the code of. A worker gives the others back uncounted, and leaves them alone from now on."""
        if not self.worker or all(task.activity in activity.registry for task in tasks):
            return tasks
        absent = [task for task in tasks if task.activity not in activity.registry]
        for name in {task.activity for task in absent} - self.absent:
            log.warning("%s is not in this process: left to a worker that has it", name)
            self.absent.add(name)
        self.give_back([(task.id, task.attempt, task.owner or 0) for task in absent])
        return [task for task in tasks if task.activity in activity.registry]

    def _without_key(self, tasks: Sequence[tuple[TaskState, KeyMissing]]) -> None:
        """Give claimed activities back whose payloads only another worker can read: uncounted, to be offered again soon."""
        if not tasks:
            return
        due = self.now() + activities.OFFERED_AGAIN
        self.sql.write(
            (("id", "int8"), ("due_at", "timestamptz"), ("waits_for", "text")),
            "update temporalex_activity_task set owner = null, attempt = attempt - 1, started_at = null, expires_at = close_at,"
            " due_at = v.due_at, waits_for = v.waits_for from v"
            " where temporalex_activity_task.id = v.id and temporalex_activity_task.id {key}",
            [(task.id, due, f"the key {exc.key!r}") for task, exc in tasks],
            key="id",
        )

    def _readable(self, tasks: Sequence[TaskState]) -> list[TaskState]:
        """These with their payloads. One that cannot be read fails for good, here and now: it must not hold up the others."""
        readable, broken, keyless = [], [], []
        for task in tasks:
            try:
                _decode(task)
                readable.append(task)
            except KeyMissing as exc:
                if not self.worker:
                    raise
                keyless.append((task, exc))
            except PayloadError as exc:
                log.error(
                    "an activity fails for good: %s",
                    told(exc),
                    extra={"workflow_id": task.workflow_id, "run_id": str(task.run_id)},
                )
                broken.append(activities.unknown(task, exc))
        self.finish_tasks(broken)
        self._without_key([(task, exc) for task, exc in keyless if task.owner is not None])
        return readable

    def _take(self, queue: str, room: Room, owner: int, which: str, excluded: Sequence[Any]) -> list[TaskState]:
        due, moment = self.sql.instant(self.clock)
        free = f" from temporalex_activity_task where queue = %s and owner is null{which} and due_at <= {due} order by {self._order} limit %s"
        skip = self.sql.skip_locked()
        taken: list[str] = []
        parameters: list[Any] = [owner]

        def take(limit: int, names: Collection[str] = (), test: str = "") -> None:
            """So many of the first; with ``names`` of those among the first few whose activity is one of these, or is not."""
            if limit <= 0:
                return
            if not test:
                taken.append(f"array(select id{free}{skip})")
                parameters.extend([queue, *excluded, *moment, limit])
                return
            among, parameter = self.sql.among(names, "text")
            near = f"select id from (select id, activity{free}) near where {test.format(f'activity {among}')}"
            taken.append(
                f"array(select id from temporalex_activity_task where id = any(array({near})) and owner is null"
                f" order by {self._order} limit %s{skip})"
            )
            parameters.extend([queue, *excluded, *moment, _NEAR, parameter, limit])

        if room.asyncs:
            take(room.threads, room.asyncs, "not ({})")
            take(room.tasks, room.asyncs, "{}")
        else:
            take(room.threads)
        if room.ahead:  # those among them that are taken already are no others
            take(room.most, room.ahead, "{}")
        rows = self.sql.select(
            "update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null"
            f" where id = any({' || '.join(taken)}) returning {_TASK}",
            parameters,
            _TYPES,
        )
        tasks = sorted((_task(row) for row in rows), key=lambda t: (t.due_at, t.id))
        for task in tasks:
            room.takes(task.activity)
        return tasks

    def _take_sqlite(self, queue: str, room: Room, owner: int, which: str, excluded: Sequence[Any]) -> list[TaskState]:
        near = self.sql.select(
            f"select id, activity from temporalex_activity_task where queue = %s and owner is null{which} and due_at <= %s"
            f" order by {self._order} limit %s",
            [queue, *excluded, self.now(), max(room.most, _NEAR if room.asyncs or room.ahead else 0)],
            ("int8", "text"),
        )
        chosen = [task for task, activity in near if room.takes(activity)]
        if not chosen:
            return []
        among, parameter = self.sql.among(chosen, "int8")
        self.sql.execute(
            f"update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null where id {among}",
            [owner, parameter],
        )
        rows = self.sql.select(
            f"select {_TASK} from temporalex_activity_task where id {among} order by due_at, id", [parameter], _TYPES
        )
        return [_task(row) for row in rows]

    def begin_tasks(self, begun: Sequence[TaskState]) -> None:
        """Attempts of these are under way since ``started_at``: their timeouts count from then. One statement."""
        rows = []
        for task in begun:
            passes = activities.expiry(task, started_at=task.started_at, beat_at=None)
            rows.append((task.id, task.attempt, task.owner, task.started_at, passes and passes[0]))
        self.sql.write(
            (*_FENCE_COLUMNS, ("started_at", "timestamptz"), ("expires_at", "timestamptz")),
            "update temporalex_activity_task set started_at = v.started_at, expires_at = v.expires_at from v"
            " where temporalex_activity_task.id {key} and temporalex_activity_task.id = v.id"
            " and temporalex_activity_task.attempt = v.attempt and temporalex_activity_task.owner = v.owner",
            rows,
            key="id",
        )

    def give_back(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Attempts that were taken and never begun: others may take them, the attempt is not counted. One statement."""
        self.sql.write(
            _FENCE_COLUMNS,
            "update temporalex_activity_task set owner = null, attempt = temporalex_activity_task.attempt - 1 from v"
            " where temporalex_activity_task.id {key} and temporalex_activity_task.id = v.id"
            " and temporalex_activity_task.attempt = v.attempt and temporalex_activity_task.owner = v.owner",
            keys,
            key="id",
        )

    def tasks_due(self, *, queues: Sequence[str]) -> bool:
        """Whether an external activity is due: a plain read."""
        now, parameters = self.sql.instant(self.clock)
        test, parameter = self.sql.among(list(queues), "text")
        rows = self.sql.select(
            "select exists (select 1 from temporalex_activity_task where owner is null and not atomic"
            f" and queue {test} and due_at <= {now})",
            [parameter, *parameters],
            ("bool",),
        )
        return bool(rows[0][0])

    def owned_tasks(self, owner: int) -> set[tuple[int, int, int]]:
        """``(id, attempt, owner)`` of everything that is this owner's: a plain read."""
        rows = self.sql.select(
            "select id, attempt, owner from temporalex_activity_task where owner = %s",
            [owner],
            ("int8", "int4", "int8"),
        )
        return {(task, attempt, own) for task, attempt, own in rows}

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store ends of attempts, all with at most three statements; a final one is a message of its chain from then on."""
        final = {r.task.id: r for r in results if r.outcome is not None}
        again = [r for r in results if r.outcome is None]
        if not results:
            return []
        encode = codec().encode
        with self.transaction():
            gone = self.sql.write_returning(
                _FENCE_COLUMNS,
                f"delete from temporalex_activity_task where {_FENCE} returning id, chain_id, run_id, run_queue",
                [_fence(r) for r in final.values()],
                ("int8", "uuid", "uuid", "text"),
                key="id",
            )
            if gone:
                now, messages = self.now(), []
                for task, chain, run, queue in gone:
                    kind, attributes = final[task].outcome or ("", {})
                    body = final[task].body
                    stored = encode(attributes) if body is None else body
                    messages.append((chain, run, queue, "activity", kind, stored, now))
                self.sql.write(_MESSAGE, insert("temporalex_message", _MESSAGE), messages)
            due = self._again(again)
        return [row[0] for row in gone] + due

    def _again(self, results: Sequence[TaskResult]) -> list[int]:
        """Make these due again. What was picked up once is not "never started" any more: ``schedule_to_close`` alone counts."""
        if not results:
            return []
        rows = []
        for r in results:
            assert r.retry_at is not None
            total = r.task.options.get("schedule_to_close")
            attempt = r.task.attempt if r.count else r.task.attempt - 1
            expires = None if r.task.atomic else _later(r.task.scheduled_at, total)
            if attempt == 0 and not r.task.atomic:
                expires = earliest(expires, _later(r.retry_at, r.task.options.get("schedule_to_start")))
            rows.append((*_fence(r), attempt, r.retry_at, expires, r.waits_for))
        columns: Columns = (
            *_FENCE_COLUMNS,
            *(("tries", "int4"), ("due_at", "timestamptz"), ("expires_at", "timestamptz"), ("waits_for", "text")),
        )
        sets = ", ".join(
            f"{column} = (select v.{source} from v where v.id = temporalex_activity_task.id)"
            for column, source in (
                *(("attempt", "tries"), ("due_at", "due_at"), ("expires_at", "expires_at"), ("waits_for", "waits_for")),
            )
        )
        changed = self.sql.write_returning(
            columns,
            f"update temporalex_activity_task set owner = null, started_at = null, beat_at = null, {sets} where {_FENCE}"
            " returning id",
            rows,
            ("int8",),
            key="id",
        )
        return [row[0] for row in changed]

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        now, parameters = self.sql.instant(self.clock)
        rows = self.sql.select(
            f"select {_TASK} from temporalex_activity_task where expires_at <= {now} order by expires_at limit %s",
            [*parameters, limit],
            _TYPES,
        )
        return self._readable([_task(row) for row in rows])

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Atomic activities of a locked chain, in order of ``seq``. ``attempt`` counts the one to come; the row does when it ended."""
        rows = self.sql.select(
            f"select {_TASK} from temporalex_activity_task t where t.atomic"
            " and t.run_id = (select c.run_id from temporalex_chain c where c.id = %s) order by seq",
            [chain_id],
            _TYPES,
        )
        tasks = [_task(row) for row in rows]
        for task in tasks:
            _decode(task)
            task.attempt += 1
        return tasks

    def heartbeat(self, beats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store all details with one statement, then read which attempts are still theirs."""
        if not beats:
            return set()
        encode, now = codec().encode, self.now()
        with self.transaction():
            rows = self.sql.write_returning(
                _FENCE_COLUMNS,
                "select t.id, t.attempt, t.owner, t.start_to_close, t.heartbeat_timeout, t.close_at, t.started_at"
                " from temporalex_activity_task t, v where t.id {key} and t.id = v.id and t.attempt = v.attempt"
                " and t.owner = v.owner",
                list(beats),
                ("int8", "int4", "int8", "float8", "float8", "timestamptz", "timestamptz"),
                key="id",
            )
            changes = []
            for task, attempt, owner, to_close, beat, close_at, started in rows:
                details = beats[task, attempt, owner]
                expires = earliest(close_at, _later(started, to_close), _later(now, beat))
                payload = details if details is None or isinstance(details, bytes) else encode(details)
                changes.append((task, attempt, owner, now, expires, payload))
            self.sql.write(
                (*_FENCE_COLUMNS, ("beat_at", "timestamptz"), ("expires_at", "timestamptz"), ("heartbeat", "bytea")),
                "update temporalex_activity_task set beat_at = v.beat_at, expires_at = v.expires_at,"
                " heartbeat = coalesce(v.heartbeat, temporalex_activity_task.heartbeat) from v"
                " where temporalex_activity_task.id {key} and temporalex_activity_task.id = v.id"
                " and temporalex_activity_task.attempt = v.attempt and temporalex_activity_task.owner = v.owner",
                changes,
                key="id",
            )
        return {(row[0], row[1], row[2]) for row in rows}


def _later(moment: datetime | None, seconds: float | None) -> datetime | None:
    return None if moment is None or seconds is None else moment + timedelta(seconds=seconds)


def _fence(result: TaskResult) -> tuple[int, int, int | None]:
    """An atomic activity was read, not claimed: its row does not count the attempt that ended."""
    task = result.task
    return (task.id, task.attempt - 1 if task.atomic and task.owner is None else task.attempt, task.owner)


def _task(row: tuple[Any, ...]) -> TaskState:
    """The activity of a row, its payloads (``args``, ``options``, ``heartbeat_details``) as they are stored: see ``_decode``."""
    task_id, chain, run, workflow_id, workflow, seq, activity, call, options, queue, atomic, attempt, *times, owner = (
        row
    )
    scheduled, due, started, beat, heartbeat, crashes = times
    return TaskState(
        id=task_id,
        chain_id=chain,
        run_id=run,
        workflow_id=workflow_id,
        workflow=workflow,
        seq=seq,
        activity=activity,
        args=call,
        kwargs={},
        options=options,
        queue=queue,
        atomic=atomic,
        attempt=attempt,
        scheduled_at=scheduled,
        due_at=due,
        started_at=started,
        beat_at=beat,
        heartbeat_details=heartbeat,
        owner=owner,
        crashes=crashes,
    )


def _decode(task: TaskState) -> None:
    """Decode the payloads in place. Raises ``PayloadError``."""
    decode = codec().decode
    call: Any = task.args
    options: Any = task.options
    try:
        task.args, task.kwargs = decode(call)
        task.options = decode(options)
        if task.heartbeat_details is not None:
            task.heartbeat_details = decode(task.heartbeat_details)
    except KeyMissing:
        raise
    except Exception as exc:
        raise PayloadError(f"activity {task.seq} ({task.activity}) cannot be read: {exc}") from exc
