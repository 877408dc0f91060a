"""Claims of activities that are under a limit, or wait in a line of their own.

Whoever claims them holds the locks of the limits, in the order of their names, and counts what is under way by the rows
of the activities themselves: whatever became of those who had them, no room is lost. Each claim is one transaction.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from temporalex_django.authoring import activity
from temporalex_django.conf import queue_limits
from temporalex_django.core.limits import NO_LIMITS, Limits, QueuePartition, StartSlices, interleave
from temporalex_django.db.rows import LIMITS
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.room import LimitUsage, activity_limit_name, queue_limit_name
from temporalex_django.engine.storage import TaskState

if TYPE_CHECKING:
    from temporalex_django.db.dialects.base import Dialect
    from temporalex_django.db.storage import DjangoStorage

#: Lines of a queue that one claim looks at, the next claim at the next ones.
_LINES = 100
#: Activities that are moved from one line to another at a time.
_MOVED = 1000
_FREE = "from temporalex_activity_task where queue = %s and owner is null and not atomic"
_STARTS = LIMITS.pick("name", "starts")


@dataclass(slots=True)
class LimitedClaim:
    """What a claim took; ``moved`` others to their line.

    ``looked``: something is due. ``lines``: some wait in lines of their own. ``again``: there is no room for what is
    due, and may be after so many seconds; ``rated``: for some of it by a rate. ``short``: the worker has no room for
    some that may begin.
    """

    tasks: list[TaskState] = field(default_factory=list)
    moved: int = 0
    looked: bool = False
    lines: bool = False
    again: float | None = None
    rated: bool = False
    short: bool = False


class LimitedClaims:
    """Those of one worker. ``off``: activities that are switched off."""

    def __init__(self, storage: DjangoStorage) -> None:
        self._storage = storage
        self._sql = storage.sql
        self._cursors: dict[str, str] = {}
        self._suspects = False

    def claim(
        self,
        queue: str,
        *,
        capacity: Capacity,
        owner: int,
        off: Collection[str],
        common: bool,
        suspects: bool = False,
    ) -> LimitedClaim:
        """Take what may begin; of its ``common`` line, too. Nothing is locked where nothing waits.

        With ``suspects`` only what a worker died of.
        """
        self._suspects = suspects
        limits = queue_limits().get(queue, NO_LIMITS)
        if not self._waits(queue, common=common):
            return LimitedClaim()
        with self._storage.transaction("limited"):
            names = self._lines(queue)
            found = LimitedClaim(looked=True, lines=bool(names))
            lines = [line for name in names if (line := self._judged(queue, name, limits, off, found))]
            groups = [self._of_common(queue, off, capacity.total, found)] if common else []
            own = {line.activity: activity.limits_by_name[line.activity] for line in lines if line.activity}
            if not lines and not any(groups):
                return found
            locks = {*([queue_limit_name(queue)] if limits.is_limited else []), *map(activity_limit_name, own)}
            starts = locked_starts(self._sql, sorted(locks))
            groups += self._of_lines(queue, lines, capacity.total)
            self._choose(queue, limits, own, starts, groups, capacity, owner, found)
        return found

    @property
    def _free(self) -> str:
        return f"{_FREE} and crashes > 0" if self._suspects else _FREE

    def _waits(self, queue: str, *, common: bool) -> bool:
        now, moment = self._sql.instant(None)
        tests = [f"exists (select 1 {self._free} and line is not null and due_at <= {now})"]
        if common:
            tests.append(f"exists (select 1 {self._free} and line is null and due_at <= {now})")
        return bool(self._sql.select(f"select {' or '.join(tests)}", [queue, *moment] * len(tests), ("bool",))[0][0])

    # -- lines --------------------------------------------------------------------------------------------------------

    def _lines(self, queue: str) -> list[str]:
        """The next ones of those in which somebody waits: one probe of the index each."""
        found = self._after(queue, self._cursors.get(queue, ""), _LINES)
        if len(found) < _LINES and self._cursors.pop(queue, None) is not None:
            found += [name for name in self._after(queue, "", _LINES - len(found)) if name not in found]
        elif len(found) >= _LINES:
            self._cursors[queue] = found[-1]
        return found

    def _after(self, queue: str, cursor: str, most: int) -> list[str]:
        first = f"select line {self._free} and line is not null and line > %s order by line limit 1"
        then = first.replace("line > %s", "line > r.line")
        rows = self._sql.select(
            f"with recursive r(line) as (select ({first}) union all select ({then}) from r where r.line is not null)"
            " select line from r where line is not null limit %s",
            [queue, cursor, queue, most],
            ("text",),
        )
        return [row[0] for row in rows]

    def _judged(
        self, queue: str, name: str, limits: Limits, off: Collection[str], found: LimitedClaim
    ) -> QueuePartition | None:
        """The line, if something may be taken of it here. One that nothing asks for any more is dissolved."""
        line = QueuePartition.from_name(name)
        if line.activity is None:
            if limits.concurrency_per_key is not None:
                return line
            found.moved += self._move(queue, "line = %s", [name], None)
            return None
        if line.activity in off or not activity.is_available(line.activity):
            return None
        if line.activity not in activity.limits_by_name:
            found.moved += self._move(queue, "line = %s", [name], QueuePartition(None, line.key).name)
            return None
        return line

    def _move(self, queue: str, which: str, parameters: Sequence[Any], to: str | None) -> int:
        some = f"select id {_FREE} and {which} order by due_at limit {self._sql.few}{self._sql.skip_locked()}"
        ids = [row[0] for row in self._sql.select(some, [queue, *parameters, _MOVED], ("int8",))]
        among, parameter = self._sql.among(ids, "int8")
        return (
            self._sql.execute(f"update temporalex_activity_task set line = %s where id {among}", [to, parameter])
            if ids
            else 0
        )

    def move_apart(self, queue: str, names: Collection[str]) -> int:
        """Move what waits of these activities in the common line to lines of their own. The number of those."""
        return sum(
            self._move(queue, "line is null and activity = %s", [name], QueuePartition(name, None).name)
            for name in names
        )

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _of_common(self, queue: str, off: Collection[str], most: int, found: LimitedClaim) -> list[_Candidate]:
        here, absent = self._storage.here()
        which = f"{here} and not atomic and line is null{' and crashes > 0' if self._suspects else ''}"
        ranked = self._storage.ranks(queue)
        rows = self._storage.near(queue, max(most, _LINES), which, absent, ranked=ranked)
        apart = {name for _, name in rows if name in off or name in activity.limits_by_name}
        found.moved += self.move_apart(queue, apart)
        return [(task, name, None) for task, name in rows if name not in apart]

    def _of_lines(self, queue: str, lines: Sequence[QueuePartition], most: int) -> list[list[_Candidate]]:
        """The first of each line that are due."""
        if not lines:
            return []
        now, moment = self._sql.instant(None)
        one = f"select * from (select id, activity, line {self._free} and line = %s and due_at <= {now} order by due_at limit {self._sql.few}) x"
        parameters = [value for line in lines for value in (queue, line.name, *moment, most)]
        rows = self._sql.select(" union all ".join([one] * len(lines)), parameters, ("int8", "text", "text"))
        groups: dict[str, list[_Candidate]] = {}
        for task, name, line in rows:
            groups.setdefault(line, []).append((task, name, QueuePartition.from_name(line).key))
        return list(groups.values())

    def _choose(
        self,
        queue: str,
        limits: Limits,
        own: Mapping[str, Limits],
        starts: Mapping[str, StartSlices],
        groups: Sequence[Sequence[_Candidate]],
        capacity: Capacity,
        owner: int,
        found: LimitedClaim,
    ) -> None:
        """One of each line, then another one of each, as far as room and capacity go."""
        rates = {name: one.rate for name, one in self._rated(queue, limits, own)}
        now = self._storage.now().timestamp() if rates else 0.0
        live = self._sql.select(
            "select queue, activity, line, count(*) from temporalex_activity_task where owner is not null group by 1, 2, 3",
            [],
            ("text", "text", "text", "int8"),
        )
        room = LimitUsage(queue, limits, own, live, starts, now)
        chosen = []
        for task, name, key in interleave(groups):
            if (wait := room.wait_seconds(name, key)) is not None:
                found.again = wait if found.again is None else min(found.again, wait)
                found.rated = found.rated or room.is_rate_limited(name)
            elif capacity.acquire(name):
                room.acquire(name, key)
                chosen.append(task)
            else:
                found.short = True
        found.tasks = self._storage.mine(self._storage.readable(self._storage.take_these(chosen, owner)))
        begun = Counter(
            name for task in found.tasks for name in (queue_limit_name(queue), activity_limit_name(task.activity))
        )
        for name, rate in rates.items():
            if rate is not None and begun[name]:
                _keep(self._sql, name, rate.with_starts(starts[name], now, begun[name]))

    @staticmethod
    def _rated(queue: str, limits: Limits, own: Mapping[str, Limits]) -> list[tuple[str, Limits]]:
        named = [(queue_limit_name(queue), limits), *((activity_limit_name(name), one) for name, one in own.items())]
        return [(name, one) for name, one in named if one.rate is not None]


def locked_starts(sql: Dialect, names: Sequence[str]) -> dict[str, StartSlices]:
    """The limits of these names under their locks, with what began of late. There is a row of each from now on."""
    found: dict[str, StartSlices] = {}
    while len(found) < len(names):
        among, parameter = sql.among(names, "text")
        lock = "" if sql.writer_lock else " for no key update"
        rows = sql.select(_STARTS.select(f"where name {among} order by name{lock}"), [parameter], _STARTS.types)
        found = {name: json.loads(text) for name, text in rows}
        for name in [name for name in names if name not in found]:
            statement = _STARTS.insert_marked(sql.mark, "where 1 = 1")
            sql.execute(f"{statement} on conflict do nothing", _STARTS.stored((name, [])))
    return found


def give_back(storage: DjangoStorage, keys: Collection[tuple[int, int, int]]) -> None:
    """``TaskStorage.give_back`` of what was taken to begin, and did not: it does not count for a rate, either.

    A statement where nothing has a rate. Else the locks of these rates, in the order of their names, too.
    """
    rated = {queue_limit_name(name): one.rate for name, one in queue_limits().items() if one.rate is not None}
    rated |= {
        activity_limit_name(name): one.rate for name, one in activity.limits_by_name.items() if one.rate is not None
    }
    if not keys or not rated:
        storage.release_tasks(keys)
        return
    with storage.joined():
        begun: Counter[str] = Counter()
        for queue, name in storage.given_back(keys):
            begun.update(one for one in (queue_limit_name(queue), activity_limit_name(name)) if one in rated)
        for name, starts in locked_starts(storage.sql, sorted(begun)).items():
            _keep(storage.sql, name, rated[name].without_starts(starts, begun[name]))


def _keep(sql: Dialect, name: str, starts: StartSlices) -> None:
    sql.execute(f"update temporalex_limit set starts = {sql.mark('jsonb')} where name = %s", [json.dumps(starts), name])


#: Id, activity and key of one that waits.
_Candidate = tuple[int, str, str | None]
