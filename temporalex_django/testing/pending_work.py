"""The work that waits in the database of a ``DjangoEnvironment``, read with one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.core.limits import interleave
from temporalex_django.db.claims.limited import Switches, build_switches
from temporalex_django.db.session import StorageSession

# The queues are read by a loose scan of an index, so that runs and activities that are not due cost nothing.
_QUEUES = (
    "{name}(queue) as (select (select min(queue) from {table} where {test})"
    " union all select (select min(queue) from {table} where {test} and queue > {name}.queue)"
    " from {name} where {name}.queue is not null)"
)
_RUN_QUEUES = _QUEUES.format(name="run_queue", table="temporalex_chain", test="due_at is not null")
_HAS_MESSAGES = "case when exists (select 1 from temporalex_message m where m.chain_id = c.id and not m.settled) then 'messages' else '' end"
_NO_TIME, _NO_ID = "cast(null as timestamptz)", "cast(null as uuid)"
_TYPES = ("text", "text", "text", "timestamptz", "uuid")


class PendingWork:
    """The work that waits in a database, as it was read at a time of the virtual clock.

    It has the runs that are due next, so it answers also for that time. Work that is switched off is left out. It is
    out of date when something is written.

    - ``switches``: what is switched off.
    - ``has_blocked_runs``: True if runs are blocked, if that was asked for.
    - ``has_schedules``: True if there are any schedules.
    - ``priority_queues``: the queues in which background tasks with a priority wait.
    - ``next_expiry``: when the first timeout of an activity passes.
    """

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        by_kind: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for kind, *values in rows:
            by_kind[kind].append((kind, *values))
        self._due_runs = sorted((queue, at, chain, bool(key)) for _, queue, key, at, chain in by_kind.pop("run", ()))
        self._unread = sorted((queue, chain) for _, queue, _, _, chain in by_kind.pop("message", ()))
        activities = [row for row in by_kind.pop("activity due", ()) if row[3] is not None]
        self._activities: dict[str, datetime] = {queue: at for _, queue, _, at, _ in activities}
        self.priority_queues = {queue for _, queue, key, *_ in activities if key}
        schedules = by_kind.pop("schedule due", [])
        self.has_schedules = bool(schedules)
        self._next_slot: datetime | None = schedules[0][3] if schedules else None
        self.next_expiry: datetime | None = next((row[3] for row in by_kind.pop("expiry", ())), None)
        self.has_blocked_runs = bool(by_kind.pop("blocked", ()))
        self.switches = build_switches([row[:4] for rows in by_kind.values() for row in rows])

    def next_due(self) -> datetime | None:
        """Return the time at which the next run, activity, timeout or schedule is due; None if there is none."""
        times = [at for _, at, _, _ in self._due_runs] + [*self._activities.values()]
        times += [at for at in (self.next_expiry, self._next_slot) if at is not None]
        return min(times, default=None)

    def activity_queues(self, now: datetime) -> list[str]:
        """Return the queues with activities that are due at ``now``."""
        return sorted(queue for queue, at in self._activities.items() if at <= now)

    def runs(self, now: datetime) -> dict[UUID, bool]:
        """Return the chains that have work at ``now``, in the order in which a turn takes them.

        The value of a chain is True if it has messages.
        """
        by_queue: defaultdict[str, tuple[list[UUID], list[UUID]]] = defaultdict(lambda: ([], []))
        has_messages = {}
        for queue, at, chain, with_messages in self._due_runs:
            if at <= now:
                by_queue[queue][0].append(chain)
                has_messages[chain] = with_messages
        for queue, chain in self._unread:
            if chain not in has_messages:
                by_queue[queue][1].append(chain)
            has_messages[chain] = True
        order = [chain for queue in sorted(by_queue) for chain in interleave(by_queue[queue])]
        return {chain: has_messages[chain] for chain in order}


def read_pending_work(
    storage: StorageSession, now: datetime, switches: Switches, *, held_ids: Collection[int], blocked: bool = False
) -> PendingWork:
    """Read the work that waits, with one statement. Locks nothing.

    Work of queues and activities that ``switches`` has is left out, and timeouts of the activities ``held_ids``.
    ``blocked`` asks also if there are blocked runs.
    """
    sql = storage.sql

    def without(column: str, names: Collection[Any], kind: str) -> tuple[str, list[Any]]:
        """Return ``(SQL condition, parameters)`` that excludes rows with these values."""
        if not names:
            return "", []
        test, parameter = sql.in_array(sorted(names), kind)
        return f" and not ({column} {test})", [parameter]

    on_run, off_runs = without("c.queue", switches.queues, "text")
    on_message, off_messages = without("queue", switches.queues, "text")
    on_queue, off_queues = without("queue", switches.queues, "text")
    on_activity, off_activities = without("activity", switches.activities, "text")
    free, excluded_ids = without("id", held_ids, "int8")
    waiting = f"owner is null{on_queue}{on_activity}"
    query = (
        f"with recursive {_RUN_QUEUES},"
        # The runs that are due at the first due time in the future are read, too, because the clock goes there next.
        " first_due(at) as (select min((select min(c.due_at) from temporalex_chain c where c.queue = run_queue.queue"
        f" and c.due_at is not null{on_run})) from run_queue)"
        f" select 'run', c.queue, {_HAS_MESSAGES}, c.due_at, c.id from run_queue cross join first_due"
        " cross join temporalex_chain c where c.queue = run_queue.queue"
        f" and c.due_at <= case when first_due.at > %s then first_due.at else %s end{on_run}"
        f" union all select distinct 'message', queue, '', {_NO_TIME}, chain_id from temporalex_message where fresh{on_message}"
        f" union all select 'activity due', queue, max(case when priority = 0 then '' else 'priority' end), min(due_at), {_NO_ID} from temporalex_activity_task"
        f" where {waiting} group by queue"
        f" union all select 'expiry', '', '', min(expires_at), {_NO_ID} from temporalex_activity_task"
        f" where expires_at is not null{on_queue}{on_activity}{free}"
        f" union all select 'schedule due', '', '', (select min(next_at) from temporalex_schedule), {_NO_ID}"
        " where exists (select 1 from temporalex_schedule)"
        f" union all select kind, name, key, until, {_NO_ID} from temporalex_switched_off where until is null or until > %s"
    )
    parameters = [
        *(*off_runs, now, now, *off_runs, *off_messages),
        *(*off_queues, *off_activities) * 2,
        *(*excluded_ids, now),
    ]
    if blocked:
        query += f" union all select 'blocked', '', '', {_NO_TIME}, {_NO_ID} where exists (select 1 from temporalex_chain where failed_tries > 0 and not closed)"
    return PendingWork(sql.select(query, parameters, _TYPES))
