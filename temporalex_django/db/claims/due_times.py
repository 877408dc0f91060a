"""The time until a storage has work that is due."""

from __future__ import annotations

from collections.abc import Sequence

from temporalex_django.db.claims.activities import TaskClaims
from temporalex_django.db.claims.runs import Deferrals
from temporalex_django.db.session import StorageSession


class DueTimes:
    """Reads when runs and activities are due, by one statement. Locks nothing."""

    def __init__(self, session: StorageSession, *, deferrals: Deferrals, task_claims: TaskClaims) -> None:
        self._session = session
        self._sql = session.sql
        self._deferrals = deferrals
        self._task_claims = task_claims

    def next_due(self, *, queues: Sequence[str], activity_queues: Sequence[str] | None = None) -> float | None:
        """Return the seconds until a run or an activity of these queues is due.

        0.0 means now, or that there are unread messages. None means that nothing will be due. ``activity_queues`` are
        the queues of the activities, if they differ from ``queues``.
        """
        now, parameters = self._sql.now_expression(self._session.clock)
        deferred, excluded = self._deferrals.filter("id")
        # One probe of an index for each queue. A membership test would read every row that waits.
        runs, tasks, fresh = [], [], []
        for queue in queues:
            runs.append(
                "(select due_at from temporalex_chain where queue = %s and due_at is not null"
                f"{deferred} order by due_at limit 1)"
            )
            parameters += [queue, *excluded]
        availability, unavailable = self._task_claims.availability_filter()
        for queue in queues if activity_queues is None else activity_queues:
            tasks.append(
                f"(select due_at from temporalex_activity_task where queue = %s{availability} and owner is null and not atomic"
                " and line is null order by due_at limit 1)"
            )
            parameters += [queue, *unavailable]
        for queue in queues:
            fresh.append("exists (select 1 from temporalex_message where fresh and queue = %s)")
            parameters.append(queue)
        if not queues:
            fresh.append("1 = 0")
        expiry = "(select min(expires_at) from temporalex_activity_task where expires_at is not null)"
        rows = self._sql.select(
            f"select {', '.join([now, *runs, *tasks, expiry])}, {' or '.join(fresh)}",
            parameters,
            ("timestamptz", *("timestamptz" for _ in (*runs, *tasks)), "timestamptz", "bool"),
        )
        moment, *dues, has_messages = rows[0]
        if has_messages:
            return 0.0
        waits = [max(0.0, (due - moment).total_seconds()) for due in dues if due is not None]
        # Deferred runs may be due when their pause ends.
        if (pause := self._deferrals.wait_seconds()) is not None:
            waits.append(pause)
        return min(waits, default=None)
