"""Claims of activities that are under a limit, or wait in a partition of their queue.

A limit bounds how many activities of a queue or a name run at a time, or start within a period (its rate). A partition
holds the activities of a queue that share a key or a limit, so that they wait only for each other. To claim an activity
is to store this worker as its owner.

A claim locks the rows of the limits, in the order of their names. It counts the running activities by their own rows,
so no capacity is lost when a worker dies. Each claim is one transaction.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from temporalex_django.authoring import activity
from temporalex_django.conf import queue_limits
from temporalex_django.core import names as aliases
from temporalex_django.core.limits import NO_LIMITS, Limits, QueuePartition, StartSlices, interleave
from temporalex_django.db.activity_tasks import ActivityTasks
from temporalex_django.db.claims.activities import TaskClaims
from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import LIMITS
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.engine.scheduling import (
    Capacity,
    LimitedClaim,
    LimitUsage,
    LiveCounts,
    activity_limit_name,
    queue_limit_name,
)

_FREE = "from temporalex_activity_task where queue = %s and owner is null and not atomic"
_STARTS = LIMITS.pick_columns("name", "starts")


class LimitedClaims:
    """The part of a database storage that claims activities under limits. It remembers which partitions come next."""

    def __init__(self, session: StorageSession, *, tasks: ActivityTasks, task_claims: TaskClaims) -> None:
        self._session = session
        self._sql = session.sql
        self._tasks = tasks
        self._task_claims = task_claims
        self._cursors: dict[str, str] = {}
        self._suspects = False

    def claim_limited(
        self,
        queue: str,
        *,
        capacity: Capacity,
        owner: int,
        off: Collection[str],
        unpartitioned: bool,
        held_keys: Collection[str] = (),
        suspects: bool = False,
    ) -> LimitedClaim:
        """Claim the activities of a queue that may start now under their limits, in one transaction.

        ``capacity`` is that of the worker, from which each claimed activity is subtracted, and ``owner`` its epoch (the
        number under which it owns what it claims). ``off`` has the names of activities that are switched off, and
        ``held_keys`` the concurrency keys whose activities are kept back for now. With ``unpartitioned`` it also claims
        activities that are in no partition. A partition holds activities that wait for each other because of a key, a
        limit or a switch. With ``suspects`` it claims only those during which a worker has died. If no activity waits,
        nothing is locked. The result has the claimed activities, and says why others have to wait.
        """
        self._suspects = suspects
        limits = queue_limits().get(queue, NO_LIMITS)
        if not self._has_due(queue, unpartitioned=unpartitioned):
            return LimitedClaim()
        with self._session.transaction("limited"):
            names = self._next_partitions(queue)
            claim = LimitedClaim(has_due=True, has_partitions=bool(names))
            free_names = [name for name in names if QueuePartition.from_name(name).key not in held_keys]
            partitions = [
                partition
                for name in free_names
                if (partition := self._usable_partition(queue, name, limits, off, claim))
            ]
            groups = []
            if unpartitioned:
                groups = [self._common_candidates(queue, off, capacity.total, claim)]
            activity_limits = {
                partition.activity: activity.limits_by_name[partition.activity]
                for partition in partitions
                if partition.activity
            }
            if not partitions and not any(groups):
                return claim
            locks = {
                *([queue_limit_name(queue)] if limits.is_limited else []),
                *map(activity_limit_name, activity_limits),
            }
            # Sorted, so that two claims that need the same limits wait for each other in one direction only.
            starts = lock_recent_starts(self._sql, sorted(locks))
            groups += self._partition_candidates(queue, partitions, capacity.total)
            self._choose_tasks(queue, limits, activity_limits, starts, groups, capacity, owner, claim)
        return claim

    @property
    def _free_condition(self) -> str:
        if self._suspects:
            return f"{_FREE} and crashes > 0"
        return _FREE

    def _has_due(self, queue: str, *, unpartitioned: bool) -> bool:
        """Return True if activities in partitions are due or, with ``unpartitioned``, any others."""
        now, moment = self._sql.now_expression(None)
        tests = [f"exists (select 1 {self._free_condition} and line is not null and due_at <= {now})"]
        if unpartitioned:
            tests.append(f"exists (select 1 {self._free_condition} and line is null and due_at <= {now})")
        return bool(self._sql.select(f"select {' or '.join(tests)}", [queue, *moment] * len(tests), ("bool",))[0][0])

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _next_partitions(self, queue: str) -> list[str]:
        """Return partitions in which activities wait: each call the next ones by name, then the first ones again."""
        names = self._partitions_after(queue, self._cursors.get(queue, ""), policy.PARTITION_PAGE)
        if len(names) < policy.PARTITION_PAGE and self._cursors.pop(queue, None) is not None:
            names += [
                name
                for name in self._partitions_after(queue, "", policy.PARTITION_PAGE - len(names))
                if name not in names
            ]
        elif len(names) >= policy.PARTITION_PAGE:
            self._cursors[queue] = names[-1]
        return names

    def _partitions_after(self, queue: str, cursor: str, limit: int) -> list[str]:
        """Return partitions in which activities wait, in order of their names. One index look-up for each."""
        first = f"select line {self._free_condition} and line is not null and line > %s order by line limit 1"
        # A loose scan of the index: each step jumps to the next partition, however many activities wait in one.
        then = first.replace("line > %s", "line > r.line")
        rows = self._sql.select(
            f"with recursive r(line) as (select ({first}) union all select ({then}) from r where r.line is not null)"
            " select line from r where line is not null limit %s",
            [queue, cursor, queue, limit],
            ("text",),
        )
        return [row[0] for row in rows]

    def _usable_partition(
        self, queue: str, name: str, limits: Limits, off: Collection[str], claim: LimitedClaim
    ) -> QueuePartition | None:
        """Return the partition if this worker may claim from it now. Move the activities of one that nothing needs."""
        partition = QueuePartition.from_name(name)
        if partition.activity is None:
            if limits.concurrency_per_key is not None:
                return partition
            claim.moved += self._move_tasks(queue, "line = %s", [name], None)
            return None
        if partition.activity in off or not activity.is_available(partition.activity):
            return None
        if partition.activity not in activity.limits_by_name:
            claim.moved += self._move_tasks(queue, "line = %s", [name], QueuePartition(None, partition.key).name)
            return None
        return partition

    def _move_tasks(self, queue: str, condition: str, parameters: Sequence[Any], partition: str | None) -> int:
        """Move at most ``policy.MOVE_PAGE`` waiting activities into a partition (None: into none); return how many."""
        free_tasks = (
            f"select id {_FREE} and {condition} order by due_at limit {self._sql.hidden_limit}{self._sql.skip_locked()}"
        )
        ids = [row[0] for row in self._sql.select(free_tasks, [queue, *parameters, policy.MOVE_PAGE], ("int8",))]
        membership, parameter = self._sql.in_array(ids, "int8")
        if ids:
            return self._sql.execute(
                f"update temporalex_activity_task set line = %s where id {membership}", [partition, parameter]
            )
        return 0

    def repartition(self, queue: str, names: Collection[str]) -> int:
        """Move waiting activities with these names to one partition for each name; return the number that moved.

        The activities in a partition wait only for each other, so that a limit or a switch delays no others.
        """
        return sum(
            self._move_tasks(queue, "line is null and activity = %s", [name], QueuePartition(name, None).name)
            for name in names
        )

    def move_to_partitions(self, tasks: Sequence[TaskState]) -> None:
        """Move waiting activities to the partitions of their concurrency keys, because a hold keeps these keys back.

        Other activities of the queue are then claimed without them.
        """
        ids_by_partition: defaultdict[str | None, list[int]] = defaultdict(list)
        for task in tasks:
            name = task.activity if task.activity in activity.limits_by_name else None
            ids_by_partition[QueuePartition(name, task.options["concurrency_key"]).name].append(task.id)
        for partition, ids in ids_by_partition.items():
            membership, parameter = self._sql.in_array(ids, "int8")
            self._sql.execute(
                f"update temporalex_activity_task set line = %s where id {membership} and owner is null",
                [partition, parameter],
            )

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _common_candidates(self, queue: str, off: Collection[str], limit: int, claim: LimitedClaim) -> list[_Candidate]:
        """Return ``limit`` due activities or more. Activities that have a limit, or are off, move to partitions."""
        availability, absent = self._task_claims.availability_filter()
        condition = f"{availability} and not atomic and line is null{' and crashes > 0' if self._suspects else ''}"
        ranked = self._task_claims.has_priorities(queue)
        rows = self._task_claims.due_candidates(
            queue, max(limit, policy.PARTITION_PAGE), condition, absent, ranked=ranked
        )
        limited_names = {name for _, name in rows if name in off or name in activity.limits_by_name}
        claim.moved += self.repartition(queue, limited_names)
        return [(task, name, None) for task, name in rows if name not in limited_names]

    def _partition_candidates(
        self, queue: str, partitions: Sequence[QueuePartition], limit: int
    ) -> list[list[_Candidate]]:
        """Return at most ``limit`` due activities of each partition, the longest due first."""
        if not partitions:
            return []
        now, moment = self._sql.now_expression(None)
        query = f"select * from (select id, activity, line {self._free_condition} and line = %s and due_at <= {now} order by due_at limit {self._sql.hidden_limit}) x"
        parameters = [value for partition in partitions for value in (queue, partition.name, *moment, limit)]
        rows = self._sql.select(" union all ".join([query] * len(partitions)), parameters, ("int8", "text", "text"))
        groups: dict[str, list[_Candidate]] = {}
        for task, name, partition in rows:
            groups.setdefault(partition, []).append((task, name, QueuePartition.from_name(partition).key))
        return list(groups.values())

    def _choose_tasks(
        self,
        queue: str,
        limits: Limits,
        activity_limits: Mapping[str, Limits],
        starts: Mapping[str, StartSlices],
        groups: Sequence[Sequence[_Candidate]],
        capacity: Capacity,
        owner: int,
        claim: LimitedClaim,
    ) -> None:
        """Claim one activity of each partition, then another one of each, while limits and capacity allow it."""
        rates = {name: limit.rate for name, limit in self._rate_limits(queue, limits, activity_limits)}
        now = 0.0
        if rates:
            now = self._session.now().timestamp()
        # Read after the locks: a claim that had them before has committed, so its activities are counted here.
        usage = LimitUsage(queue, limits, activity_limits, count_live(self._sql), starts, now)
        task_ids = []
        for task, name, key in interleave(groups):
            if (wait := usage.wait_seconds(name, key)) is not None:
                claim.retry_after = wait if claim.retry_after is None else min(claim.retry_after, wait)
                claim.is_rate_limited = claim.is_rate_limited or usage.is_rate_limited(name)
            elif capacity.acquire(name):
                usage.acquire(name, key)
                task_ids.append(task)
            else:
                claim.lacks_capacity = True
        claim.tasks = self._task_claims.filter_runnable(
            self._tasks.decode_tasks(self._task_claims.claim_by_ids(task_ids, owner))
        )
        start_counts = Counter(
            name for task in claim.tasks for name in (queue_limit_name(queue), activity_limit_name(task.activity))
        )
        for name, rate in rates.items():
            if rate is not None and start_counts[name]:
                store_starts(self._sql, name, rate.with_starts(starts[name], now, start_counts[name]))

    @staticmethod
    def _rate_limits(queue: str, limits: Limits, activity_limits: Mapping[str, Limits]) -> list[tuple[str, Limits]]:
        limits_by_name = [
            (queue_limit_name(queue), limits),
            *((activity_limit_name(name), limit) for name, limit in activity_limits.items()),
        ]
        return [(name, limit) for name, limit in limits_by_name if limit.rate is not None]

    # -- releasing ----------------------------------------------------------------------------------------------------

    def release_unstarted(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Release activities that were claimed and never started, and subtract them from the starts that rates count.

        ``keys`` are triples of id, attempt and owner (the epoch of the worker). One statement if no limit has a rate.
        Otherwise it also locks the limits with a rate, in the order of their names.
        """
        rated = {queue_limit_name(name): limit.rate for name, limit in queue_limits().items() if limit.rate is not None}
        rated |= {
            activity_limit_name(name): limit.rate
            for name, limit in activity.limits_by_name.items()
            if limit.rate is not None
        }
        if not keys or not rated:
            self._tasks.release_tasks(keys)
            return
        with self._session.join_transaction():
            counts: Counter[str] = Counter()
            for queue, name in self._tasks.release_with_names(keys):
                counts.update(limit for limit in (queue_limit_name(queue), activity_limit_name(name)) if limit in rated)
            for name, starts in lock_recent_starts(self._sql, sorted(counts)).items():
                store_starts(self._sql, name, rated[name].without_starts(starts, counts[name]))


def lock_recent_starts(sql: Dialect, names: Sequence[str]) -> dict[str, StartSlices]:
    """Lock the rows of the limits with these names, and return the recent starts that each has counted, by name.

    Rates are computed from them: how many activities may start within a period. A limit without a row gets one.
    """
    starts: dict[str, StartSlices] = {}
    while len(starts) < len(names):
        membership, parameter = sql.in_array(names, "text")
        lock = ""
        if not sql.writer_lock:
            lock = " for no key update"
        rows = sql.select(_STARTS.select(f"where name {membership} order by name{lock}"), [parameter], _STARTS.types)
        starts = {name: _read_slices(text) for name, text in rows}
        # Another claim may insert the same row at the same time. The loop then locks whichever row exists.
        for name in [name for name in names if name not in starts]:
            statement = _STARTS.insert_parameters(sql.placeholder, "where 1 = 1")
            sql.execute(f"{statement} on conflict do nothing", _STARTS.encode_row((name, [])))
    return starts


def read_recent_starts(sql: Dialect) -> dict[str, StartSlices]:
    """Return the recent starts that each limit has counted, by the name of the limit. Locks nothing."""
    rows = sql.select(_STARTS.select(""), [], _STARTS.types)
    return {name: _read_slices(text) for name, text in rows}


def _read_slices(text: str | None) -> StartSlices:
    """Return recent starts without damaged entries, which must not stop the activities of the limit for ever."""
    return [
        entry
        for entry in LIMITS.read_json("starts", text)
        if isinstance(entry, list) and len(entry) == 2 and all(type(value) in (int, float) for value in entry)
    ]


def count_live(sql: Dialect) -> LiveCounts:
    """Return the numbers of running activities, those of a cluster included: ``(queue, activity, partition, number)``.

    For a claim, call it after the locks of the limits.
    """
    return sql.select(
        "select queue, activity, line, count(*) from temporalex_activity_task where owner is not null group by 1, 2, 3"
        " union all"
        " select queue, activity, line, count(*) from temporalex_permit where started group by 1, 2, 3",
        [],
        ("text", "text", "text", "int8"),
    )


def store_starts(sql: Dialect, name: str, starts: StartSlices) -> None:
    """Store the recent starts of a limit whose row is locked."""
    sql.execute(
        f"update temporalex_limit set starts = {sql.placeholder('jsonb')} where name = %s", [json.dumps(starts), name]
    )


#: Id, activity and key of an activity that waits.
_Candidate = tuple[int, str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """The present switches: names of queues, activities and workflow classes that are off, former names included.

    ``holds`` has the times until which activities of a queue are kept back, by queue and concurrency key; the key is
    empty for a whole queue. ``has_partitions`` is True if activities wait in partitions of their queues.
    """

    queues: frozenset[str] = frozenset()
    activities: frozenset[str] = frozenset()
    workflows: frozenset[str] = frozenset()
    holds: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    has_partitions: bool = False

    @property
    def held_queues(self) -> frozenset[str]:
        """The queues of which no activity may start for now, because one asked for that. Their runs may continue."""
        return frozenset(queue for queue, key in self.holds if not key)

    def holds_keys_of(self, queue: str) -> bool:
        """Return True if activities of the queue with some concurrency key are kept back."""
        return any(key and name == queue for name, key in self.holds)

    def held_until(self, queue: str, key: str | None) -> datetime | None:
        """Return the time until which an activity of the queue with this concurrency key is kept back, or None."""
        ends = (self.holds.get((queue, "")), self.holds.get((queue, key or "")))
        return max((end for end in ends if end is not None), default=None)


def read_switches(sql: Dialect, clock: Callable[[], datetime] | None = None) -> Switches:
    """Read which queues, activities and classes are switched off or held now. Locks nothing.

    ``clock`` replaces the clock of the database for the end of holds; None: it does not.
    """
    now, moment = sql.now_expression(clock)
    rows = sql.select(
        f"select kind, name, key, until from temporalex_switched_off where until is null or until > {now}"
        " union all select 'line', '', '', null where exists (select 1 from"
        " temporalex_activity_task where line is not null and owner is null and not atomic)",
        moment,
        ("text", "text", "text", "timestamptz"),
    )
    return build_switches(rows)


def build_switches(rows: Sequence[tuple[Any, ...]]) -> Switches:
    """Return the switches of these rows: the kind, the name, the concurrency key, and the end of a hold."""

    def names_of(kind: str, aliases: Mapping[str, str] = MappingProxyType({})) -> frozenset[str]:
        names = {name for its_kind, name, _key, _until in rows if its_kind == kind}
        # Rows of old code carry the former name, so a switch by the present name has to stop them, too.
        return frozenset(names | {old for old, new in aliases.items() if new in names})

    return Switches(
        queues=names_of("queue"),
        activities=names_of("activity", aliases.ACTIVITIES),
        workflows=names_of("workflow", aliases.WORKFLOWS),
        holds={(name, key): until for kind, name, key, until in rows if kind == "hold"},
        has_partitions=bool(names_of("line")),
    )
