"""Scheduled activities in SQL: ``TaskStorage``.

Fencing: ``(id, attempt, owner)`` names one attempt of one worker. Whoever speaks about an attempt that is no longer
that one changes nothing. Locks: the rows of the activities themselves, skipping those that others have. Each method is
one transaction of its own unless it is called inside one.
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
from temporalex_django.db import lone_tasks
from temporalex_django.db.dialects.base import Dialect
from temporalex_django.db.readable_tasks import decode_task, is_readable
from temporalex_django.db.rows import CAUSE, ENDED, ENDED_INSERT, FAILURE, FENCE, FENCED, MESSAGES, TASKS, failure_row
from temporalex_django.db.turn_writes import earliest
from temporalex_django.engine import activity_policy
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.in_hand import FinishedActivity
from temporalex_django.engine.rotation import NewestAndOldest
from temporalex_django.engine.storage import TaskResult, TaskState
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.models import ActivityTask

log = logging.getLogger("temporalex_django.activity")

#: Among so many that are due first those are looked for which a worker can begin.
_NEAR = 1000
_TASK = TASKS.pick_for(TaskState, args="call", kwargs=None, heartbeat_details="heartbeat")
_ATTEMPT = TASKS.pick(*FENCE)
#: Of whoever hears that an activity has ended.
_HEARS = TASKS.pick("chain_id", "run_id", "run_queue")
_DELETED = f"delete from {TASKS.name} where {FENCED} returning {_ATTEMPT.names}, {_HEARS.names}"
_END = MESSAGES.pick("name", "body", "created_at")
_END_COLUMNS = (*_ATTEMPT.columns, *_END.columns)
_TOLD = {
    "chain_id": "g.chain_id",
    "run_id": "g.run_id",
    "queue": "g.run_queue",
    "kind": "'activity'",
    "name": "v.name",
    "body": "v.body",
    "created_at": "coalesce(v.created_at, clock_timestamp())",
}
_TOLD_FROM = (
    "from gone g join v on v.id = g.id and v.attempt = g.attempt and coalesce(v.owner, -1) = coalesce(g.owner, -1)"
)
_END_AND_TELL = f", gone as ({_DELETED}), told as ({MESSAGES.insert(_TOLD, _TOLD_FROM)}) select id from gone"
_KEYLESS = TASKS.pick("id", "due_at", "waits_for")
_KEYLESS_UPDATE = _KEYLESS.update("id", owner="null", attempt="attempt - 1", started_at="null", expires_at="close_at")
_BEGUN = TASKS.pick(*FENCE, "started_at", "expires_at")
_BEGUN_UPDATE = _BEGUN.update(*FENCE)
_BACK_UPDATE = _ATTEMPT.update(*FENCE, owner="null", attempt=f"{TASKS.name}.attempt - 1")
_NAMED = TASKS.pick("queue", "activity")
_BACK_NAMED = TASKS.update({"owner": "null", "attempt": "attempt - 1"}, f"where {FENCED} returning {_NAMED.names}")
_AGAIN = TASKS.pick("due_at", "expires_at", "waits_for")
_AGAIN_COLUMNS = (*_ATTEMPT.columns, ("tries", "int4"), *_AGAIN.columns)
_AGAIN_UPDATE = TASKS.update(
    {
        **dict.fromkeys(("owner", "started_at", "beat_at"), "null"),
        "attempt": f"(select v.tries from v where v.id = {TASKS.name}.id)",
        **{name: f"(select v.{name} from v where v.id = {TASKS.name}.id)" for name in _AGAIN.picked},
    },
    f"where {FENCED} returning id",
)
_FAILED = TASKS.pick("id", *FAILURE, "heartbeat")
_FAILED_UPDATE = _FAILED.update(
    "id",
    failing_since=f"coalesce({TASKS.name}.failing_since, v.failed_at)",
    cause=CAUSE,
    heartbeat=f"coalesce(v.heartbeat, {TASKS.name}.heartbeat)",
)
_EDITED = TASKS.pick("id", "attempt", "call", "options")
_EDITED_UPDATE = _EDITED.update("id", "attempt", only=f" and {TASKS.name}.owner is null")
_LIMITS = TASKS.pick("start_to_close", "heartbeat_timeout", "close_at", "started_at")
_BEAT = TASKS.pick(*FENCE, "beat_at", "expires_at", "heartbeat")
_BEAT_UPDATE = _BEAT.update(*FENCE, heartbeat=f"coalesce(v.heartbeat, {TASKS.name}.heartbeat)")


class TaskStatements(ABC):
    """``TaskStorage``; see there for what each method promises."""

    sql: Dialect
    alias: str
    clock: Callable[[], datetime] | None
    worker: bool
    backlogs: defaultdict[str, NewestAndOldest]  # by queue
    absent: set[str]  # names of activities that were found and that this process lacks
    switched_off: Collection[str]  # names of activities to leave alone, in an environment; workers have gates
    prioritised: Collection[str]  # queues in which lone ones may have a priority

    @abstractmethod
    def now(self) -> datetime: ...

    @abstractmethod
    def in_turn(self, queues: Sequence[str], what: str) -> Sequence[str]: ...

    @abstractmethod
    def transaction(self, site: str = "") -> AbstractContextManager[None]: ...

    @abstractmethod
    def joined(self) -> AbstractContextManager[None]: ...

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """Take due, unowned activities, queue after queue, oldest due first.

        Where more wait than are taken some of them are the newest (``NewestAndOldest``). Only what waits in the common
        line of its queue; with ``suspects`` only what a worker died of.
        """
        with self.joined():
            with self.sql.together():
                taken = self.ask_tasks(capacity=capacity, queues=queues, owner=owner, atomic=atomic, suspects=suspects)
            return taken()

    def ask_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> Callable[[], list[TaskState]]:
        """``claim_tasks`` in two halves, as ``Dialect.ask``: in a transaction, the second one behind ``together()``.

        The first queue is asked at once, the others for what it leaves.
        """
        which, excluded = self.here()
        if not atomic:
            which += " and not atomic"
        which += " and line is null"
        if suspects:
            which += " and crashes > 0"
        order = self.in_turn(queues, "activities")
        if not order or not capacity:
            return list
        asked = self._ask_queue(order[0], capacity, owner, which, excluded)

        def taken() -> list[TaskState]:
            found = asked()
            for queue in order[1:]:
                if capacity:
                    with self.sql.together():
                        further = self._ask_queue(queue, capacity, owner, which, excluded)
                    found += further()
            return self.mine(self.readable(found))

        return taken

    def _ask_queue(
        self, queue: str, capacity: Capacity, owner: int, which: str, excluded: Sequence[Any]
    ) -> Callable[[], list[TaskState]]:
        """What is taken of one queue, first by priority, where some that wait have one."""
        # a claim for async ones alone says nothing of how many others wait
        most, rank = capacity.total if capacity.threads or capacity.prefetch_limit else 0, self._ask_rank(queue)
        take = self._ask_take(queue, capacity, owner, which, excluded) if self.sql.arrays else None

        def taken() -> list[TaskState]:
            ranked, found = rank(), take() if take is not None else []
            # what is taken is read whatever was said of priorities: another worker may have been there in between
            if not found and (take is None or ranked):
                most_near = max(capacity.total, _NEAR if capacity.async_names or capacity.prefetch else 0)
                near = self.near(queue, most_near, which, excluded, ranked=ranked)
                found = self.take_these([task for task, name in near if capacity.acquire(name)], owner)
            if most:
                self.backlogs[queue].record_claim(len(found), most)
            return found

        return taken

    @property
    def _order(self) -> str:
        """Under a virtual clock much is due at one instant, and the oldest call comes first.

        A worker need not sort a fan-out for that.
        """
        return "due_at" if self.clock is None else "due_at, id"

    def _newest_first(self, queue: str) -> bool:
        return self.clock is None and self.backlogs[queue].starts_with_newest()

    def here(self) -> tuple[str, list[Any]]:
        """A condition that leaves out what this process lacks and what is switched off, and its parameters.

        Nothing as long as there is no such activity.
        """
        absent = [name for name in self.absent if name not in activity.registry] + sorted(self.switched_off)
        if not absent:
            return "", []
        test, parameter = self.sql.among(absent, "text")
        return f" and not (activity {test})", [parameter]

    def mine(self, tasks: list[TaskState]) -> list[TaskState]:
        """Those that this process has the code of.

        A worker gives the others back uncounted, and leaves them alone from now on.
        """
        if not self.worker or all(activity.is_available(task.activity) for task in tasks):
            return tasks
        absent = [task for task in tasks if not activity.is_available(task.activity)]
        for name in {task.activity for task in absent} - self.absent:
            log.warning("%s is not in this process: left to a worker that has it", name)
            self.absent.add(name)
        self.release_tasks([(task.id, task.attempt, task.owner or 0) for task in absent])
        return [task for task in tasks if task.activity in activity.registry]

    def _without_key(self, tasks: Sequence[tuple[TaskState, KeyMissing]]) -> None:
        """Give claimed activities back whose payloads only another worker can read.

        Uncounted, to be offered again soon.
        """
        if not tasks:
            return
        due = self.now() + activity_policy.REOFFER_DELAY
        self.sql.write(
            _KEYLESS.columns,
            _KEYLESS_UPDATE,
            [(task.id, due, f"the key {exc.key!r}") for task, exc in tasks],
            key="id",
        )

    def readable(self, tasks: Sequence[TaskState]) -> list[TaskState]:
        """These with their payloads.

        One that cannot be read fails for good, here and now: it must not hold up the others.
        """
        readable, broken, keyless = [], [], []
        for task in tasks:
            try:
                decode_task(task)
                readable.append(task)
            except KeyMissing as exc:
                if not self.worker:
                    raise
                keyless.append((task, exc))
            except PayloadError as exc:
                log.error(
                    "an activity fails for good: %s",
                    error_line(exc),
                    extra={"workflow_id": task.workflow_id, "run_id": str(task.run_id)},
                )
                unread = replace(task, args=(), kwargs={}, options={})  # some of these are bytes still
                broken.append(activity_policy.unreadable_result(unread, exc))
        self.finish_tasks(broken)
        self._without_key([(task, exc) for task, exc in keyless if task.owner is not None])
        return readable

    # One statement a queue where it can choose from arrays; else what is chosen is read first.

    def _ask_take(
        self, queue: str, capacity: Capacity, owner: int, which: str, excluded: Sequence[Any]
    ) -> Callable[[], list[TaskState]]:
        """Nothing where some have a priority: that is asked beside it."""
        if queue in self.prioritised:
            which, excluded = f"{which} and not ({lone_tasks.RANKED})", [*excluded, queue, queue]
        due, moment = self.sql.instant(self.clock)
        free = f" from temporalex_activity_task where queue = %s and owner is null{which} and due_at <= {due}"
        skip, backlog = self.sql.skip_locked(), self.backlogs[queue]
        taken: list[str] = []
        parameters: list[Any] = [owner]

        def take(lane: str, limit: int, names: Collection[str] = (), test: str = "") -> None:
            newest = backlog.newest_count(limit, lane) if self.clock is None else 0
            if newest > 0:
                take_first(newest, "due_at desc", names, test)
            if limit > newest:
                take_first(limit - newest, self._order, names, test)

        def take_first(limit: int, order: str, names: Collection[str], test: str) -> None:
            """So many of the first.

            With ``names`` of those among the first few whose activity is one of these, or is not.
            """
            if not test:
                taken.append(f"array(select id{free} order by {order} limit {self.sql.few}{skip})")
                parameters.extend([queue, *excluded, *moment, limit])
                return
            among, parameter = self.sql.among(names, "text")
            few = f"select id, activity{free} order by {order} limit {self.sql.few}{skip}"
            near = f"select id from ({few}) near where {test.format(f'activity {among}')}"
            taken.append(
                f"array(select id from temporalex_activity_task where id = any(array({near})) and owner is null"
                f" order by {order} limit %s{skip})"
            )
            parameters.extend([queue, *excluded, *moment, _NEAR, parameter, limit])

        if capacity.async_names:
            take("threads", capacity.threads, capacity.async_names, "not ({})")
            take("tasks", capacity.tasks, capacity.async_names, "{}")
        else:
            take("threads", capacity.threads)
        if capacity.prefetch_limit:  # those among them that are taken already are no others
            left_out = capacity.prefetch_excluded
            take("ahead", capacity.total, *((capacity.prefetch, "{}") if left_out is None else (left_out, "not ({})")))
        answer = self.sql.ask(
            "update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null"
            f" where id = any({' || '.join(taken)}) returning {_TASK.names}",
            parameters,
            _TASK.types,
        )

        def taken_now() -> list[TaskState]:
            tasks = sorted(map(_task, answer()), key=lambda t: (t.due_at, t.id))
            for task in tasks:
                capacity.acquire(task.activity)
            return tasks

        return taken_now

    def take_these(self, chosen: Sequence[int], owner: int) -> list[TaskState]:
        """Those of them that nobody has, claimed, in their order."""
        if not chosen:
            return []
        among, parameter = self.sql.among(chosen, "int8")
        self.sql.execute(
            "update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null"
            f" where id {among} and owner is null",
            [owner, parameter],
        )
        rows = self.sql.select(
            f"select {_TASK.names} from temporalex_activity_task where id {among} and owner = %s",
            [parameter, owner],
            _TASK.types,
        )
        place = {number: i for i, number in enumerate(chosen)}
        return sorted(map(_task, rows), key=lambda task: place[task.id])

    def near(
        self, queue: str, most: int, which: str, excluded: Sequence[Any], *, ranked: bool
    ) -> list[tuple[Any, ...]]:
        """Id and activity of those that come first, by priority if they are ``ranked``; locked, where rows are."""
        now, moment = self.sql.instant(self.clock)
        parameters = [queue, *excluded, *moment, most]

        def first(rank: str, order: str) -> str:
            return (
                f"select id, activity from temporalex_activity_task where queue = %s and owner is null{which}"
                f" and due_at <= {now}{rank} order by {order} limit {self.sql.few}{self.sql.skip_locked()}"
            )

        kinds = ("int8", "text")
        if not ranked:
            order = "due_at desc" if self._newest_first(queue) else self._order
            return self.sql.select(first("", order), parameters, kinds)
        found: list[tuple[Any, ...]] = []
        for rank in (" and priority > 0", " and priority = 0", " and priority < 0"):
            order = self._order if rank.endswith("= 0") else f"priority desc, {self._order}"
            if len(found) < most:
                found += self.sql.select(first(rank, order), [*parameters[:-1], most - len(found)], kinds)
        return found

    def ranks(self, queue: str) -> bool:
        """Whether some that wait there have a priority. One probe of an index that holds those alone."""
        return self._ask_rank(queue)()

    def _ask_rank(self, queue: str) -> Callable[[], bool]:
        return lone_tasks.ask_ranked(queue, sql=self.sql) if queue in self.prioritised else bool

    def mark_tasks_started(self, tasks: Sequence[TaskState]) -> None:
        """Attempts of these are under way since ``started_at``: their timeouts count from then. One statement."""
        rows = []
        for task in tasks:
            passes = activity_policy.next_timeout(task, started_at=task.started_at, heartbeat_at=None)
            rows.append((task.id, task.attempt, task.owner, task.started_at, passes and passes[0]))
        self.sql.write(_BEGUN.columns, _BEGUN_UPDATE, rows, key="id")

    def release_tasks(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Attempts that were taken and never begun: others may take them, the attempt is not counted. One statement."""
        self.sql.write(_ATTEMPT.columns, _BACK_UPDATE, keys, key="id")

    def given_back(self, keys: Collection[tuple[int, int, int]]) -> list[tuple[str, str]]:
        """The same; queue and activity of those that were still theirs."""
        rows = self.sql.write_returning(_ATTEMPT.columns, _BACK_NAMED, keys, _NAMED.types, key="id")
        return [(queue, name) for queue, name in rows]

    def owned_tasks(self, owner: int) -> set[tuple[int, int, int]]:
        """``(id, attempt, owner)`` of everything that is this owner's: a plain read."""
        rows = self.sql.select(_ATTEMPT.select("where owner = %s"), [owner], _ATTEMPT.types)
        return {(task, attempt, own) for task, attempt, own in rows}

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store ends of attempts, all with a statement or two; a final one is a message of its chain from then on."""
        if not results:
            return []
        with self.joined():
            # one attempt ends once; another one of the same activity, which was lost meanwhile, may be beside it
            return self._end(_of_runs(results)) + self._others(results)

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        return self.ask_ends(results)()

    def ask_ends(self, results: Sequence[TaskResult]) -> Callable[[], tuple[list[int], list[FinishedActivity]]]:
        """``finish_undelivered`` in two halves, as ``Dialect.ask``: a statement for those that ended.

        The answer comes with one for those that are due again.
        """
        if not results:
            return lambda: ([], [])
        deleted = self._ask_deleted(_of_runs(results))

        def ends() -> tuple[list[int], list[FinishedActivity]]:
            valid, ended = deleted()
            return valid + self._others(results), ended

        return ends

    def _others(self, results: Sequence[TaskResult]) -> list[int]:
        """Of those of which no chain hears: they are of none, or due again."""
        lone = {r.task.fence: r for r in results if r.outcome is not None and r.task.chain_id is None}
        gone = lone_tasks.end(lone, sql=self.sql, now=self.now()) if lone else []
        return gone + self._again([r for r in results if r.outcome is None])

    def _ask_deleted(
        self, final: Mapping[tuple[int, int, int | None], TaskResult]
    ) -> Callable[[], tuple[list[int], list[FinishedActivity]]]:
        """Delete those that are still theirs."""
        types = (*_ATTEMPT.types, *_HEARS.types)
        rows = self.sql.ask_writing(_ATTEMPT.columns, _DELETED, list(final), types, key="id")

        def deleted() -> tuple[list[int], list[FinishedActivity]]:
            encode, decode = codec().encode, codec().decode
            valid, ended = [], []
            for task, attempt, own, chain, run, queue in rows():
                result = final[task, attempt, own]
                kind, attributes = result.outcome or ("", {})
                body = encode(attributes) if result.encoded is None else result.encoded
                valid.append(task)
                ended.append(
                    FinishedActivity(
                        id=task,
                        chain_id=chain,
                        run_id=run,
                        queue=queue,
                        kind=kind,
                        attributes=decode(body),
                        encoded=body,
                    )
                )
            return valid, ended

        return deleted

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        if not activities:
            return
        now = self.now()
        messages = ((e.chain_id, e.run_id, e.queue, "activity", e.kind, e.encoded, now) for e in activities)
        self.sql.write(ENDED.columns, ENDED_INSERT, messages)

    def _end(self, final: Mapping[tuple[int, int, int | None], TaskResult]) -> list[int]:
        """Delete those that are still theirs, and tell their chains."""
        if not self.sql.chained_writes:
            valid, ended = self._ask_deleted(final)()
            self.deliver(ended)
            return valid
        clock, ends = None if self.clock is None else self.clock(), []
        for r in final.values():
            kind, attributes = r.outcome or ("", {})
            ends.append((kind, attributes if r.encoded is None else r.encoded, clock))
        rows = [(*fence, *end) for fence, end in zip(final, _END.rows(ends), strict=True)]
        gone = self.sql.write_returning(_END_COLUMNS, _END_AND_TELL, rows, ("int8",), key="id")
        return [row[0] for row in gone]

    def _again(self, results: Sequence[TaskResult]) -> list[int]:
        """Make these due again.

        What was picked up once is not "never started" any more: ``schedule_to_close`` alone counts.
        """
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
            rows.append((*r.task.fence, attempt, r.retry_at, expires, r.waits_for))
        changed = self.sql.write_returning(_AGAIN_COLUMNS, _AGAIN_UPDATE, rows, ("int8",), key="id")
        valid = {row[0] for row in changed}
        why = ((r.task.id, *failure_row(r.failure), r.details) for r in results if r.failure and r.task.id in valid)
        self.sql.write(_FAILED.columns, _FAILED_UPDATE, _FAILED.rows(why), key="id")
        if lone := [r for r in results if r.count and r.task.chain_id is None and r.task.id in valid]:
            lone_tasks.log(lone, sql=self.sql)
        return [row[0] for row in changed]

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        now, parameters = self.sql.instant(self.clock)
        rows = self.sql.select(
            f"select {_TASK.names} from temporalex_activity_task where expires_at <= {now} order by expires_at limit %s",
            [*parameters, limit],
            _TASK.types,
        )
        return self.readable([_task(row) for row in rows])

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Atomic activities of a locked chain, in order of ``seq``.

        ``attempt`` counts the one to come; the row does when it ended.
        """
        rows = self.sql.select(
            f"select {_TASK.names} from temporalex_activity_task t where t.atomic"
            " and t.run_id = (select c.run_id from temporalex_chain c where c.id = %s) order by seq",
            [chain_id],
            _TASK.types,
        )
        tasks = [_task(row) for row in rows]
        for task in tasks:
            decode_task(task)
            task.attempt += 1
        return tasks

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        """Through the model: nobody waits for it."""
        rows = ActivityTask.objects.using(self.alias).filter(run_id=run_id).defer("call", "options", "heartbeat")
        return [row.as_open for row in rows.order_by("seq")[:limit]]

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        """The activity of that command, whoever has it. A plain read."""
        found = self._read_tasks("where run_id = %s and seq = %s", [run_id, seq])
        return found[0] if found else None

    def lone_tasks(self, *, owner: int) -> list[TaskState]:
        """The lone activities that somebody has, but those that cannot be read in this process."""
        return self._lone("owner = %s", owner)

    def lone_task(self, number: int) -> TaskState | None:
        """That activity, if it is a lone one, nobody has it, and it can be read in this process."""
        return next(iter(self._lone("owner is null and id = %s", number)), None)

    def _lone(self, which: str, parameter: int) -> list[TaskState]:
        rows = self.sql.select(_TASK.select(f"where chain_id is null and {which}"), [parameter], _TASK.types)
        return [task for task in map(_task, rows) if is_readable(task)]

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        return self._read_tasks("where run_id = %s order by seq", [run_id])

    def _read_tasks(self, which: str, parameters: list[Any]) -> list[TaskState]:
        tasks = [_task(row) for row in self.sql.select(_TASK.select(which), parameters, _TASK.types)]
        for task in tasks:
            decode_task(task)
            task.attempt += task.atomic and task.owner is None
        return tasks

    def edit_task(self, task: TaskState) -> None:
        """Store arguments and options of one that nobody has."""
        row = (task.id, task.fence[1], [list(task.args), dict(task.kwargs)], dict(task.options))
        self.sql.write(_EDITED.columns, _EDITED_UPDATE, _EDITED.rows([row]), key="id")

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store all details with one statement, then read which attempts are still theirs."""
        if not heartbeats:
            return set()
        now = self.now()
        with self.transaction("heartbeat"):
            rows = self.sql.write_returning(
                _ATTEMPT.columns,
                f"select {_ATTEMPT.of('t')}, {_LIMITS.of('t')}"
                " from temporalex_activity_task t, v where t.id {key} and t.id = v.id and t.attempt = v.attempt"
                " and t.owner = v.owner",
                list(heartbeats),
                (*_ATTEMPT.types, *_LIMITS.types),
                key="id",
            )
            changes = []
            for task, attempt, owner, to_close, beat, close_at, started in rows:
                expires = earliest(close_at, _later(started, to_close), _later(now, beat))
                details = heartbeats[task, attempt, owner]
                changes.append((task, attempt, owner, now, expires, details))
            self.sql.write(_BEAT.columns, _BEAT_UPDATE, _BEAT.rows(changes), key="id")
        return {(row[0], row[1], row[2]) for row in rows}


def _of_runs(results: Sequence[TaskResult]) -> dict[tuple[int, int, int | None], TaskResult]:
    """Ends of activities of runs, once each."""
    return {r.task.fence: r for r in results if r.outcome is not None and r.task.chain_id is not None}


def _later(moment: datetime | None, seconds: float | None) -> datetime | None:
    return None if moment is None or seconds is None else moment + timedelta(seconds=seconds)


def _task(row: tuple[Any, ...]) -> TaskState:
    """The activity of a row, its payloads (``args``, ``options``, ``heartbeat_details``) as they are stored.

    See ``decode_task``.
    """
    return TaskState(**_TASK.raw(row), kwargs={})
