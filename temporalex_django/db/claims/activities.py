"""Claims of activities outside of partitions, and the time until runs and activities are due.

To claim an activity is to store the epoch of this worker as its owner and to count the attempt. An activity is in a
partition of its queue only if a limit, a key or a switch may hold it back. The module ``limited`` claims such
activities.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from temporalex_django.authoring import activity
from temporalex_django.db import background_tasks
from temporalex_django.db.activity_tasks import TASK, ActivityTasks, task_state
from temporalex_django.db.claims.runs import Deferrals, QueueOrder
from temporalex_django.db.session import StorageSession
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.engine.scheduling import Capacity, NewestAndOldest

log = logging.getLogger("temporalex_django.db")


class TaskClaims:
    """The part of a database storage that claims due activities for a worker, except those in partitions.

    A partition is a part of a queue whose activities wait for each other because of a key, a limit or a switch. It
    locks the rows of the activities, and skips locked ones. It knows the names of activities whose code this process
    lacks, and does not claim these.
    """

    def __init__(self, session: StorageSession, *, tasks: ActivityTasks, queue_order: QueueOrder) -> None:
        self._session = session
        self._sql = session.sql
        self._tasks = tasks
        self._queue_order = queue_order
        self._backlogs: defaultdict[str, NewestAndOldest] = defaultdict(NewestAndOldest)  # by queue
        self._missing_activities: set[str] = set()  # names that were found and that this process lacks

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """Claim due activities that no worker has, queue after queue, the longest due first.

        ``capacity`` is that of the worker, from which each claimed activity is subtracted, and ``owner`` its epoch (the
        number under which it owns what it claims). With ``atomic`` it also claims atomic activities. With ``suspects``
        it claims only activities during which a worker has died.

        If more wait than are claimed, a quarter of the claimed ones are the newest, so that new work does not wait for
        a whole backlog. Activities in partitions (which a key, a limit or a switch may hold back) are not claimed here.
        """
        with self._session.join_transaction():
            with self._sql.pipeline():
                fetch_tasks = self.submit_task_claim(
                    capacity=capacity, queues=queues, owner=owner, atomic=atomic, suspects=suspects
                )
            return fetch_tasks()

    def submit_task_claim(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Send the statements that claim due activities, and return a function that returns the claimed ones.

        Call it inside a transaction and a ``pipeline()`` block, and the function after that block. The first queue is
        asked at once, and the others for the capacity that it leaves. The arguments are those of ``claim_tasks``.
        """
        condition, excluded = self.availability_filter()
        if not atomic:
            condition += " and not atomic"
        condition += " and line is null"
        if suspects:
            condition += " and crashes > 0"
        order = self._queue_order.queue_order(queues, "activities")
        if not order or not capacity:
            return list
        fetch_first = self._submit_task_queue(order[0], capacity, owner, condition, excluded)

        def fetch_tasks() -> list[TaskState]:
            tasks = fetch_first()
            for queue in order[1:]:
                if capacity:
                    with self._sql.pipeline():
                        fetch_more = self._submit_task_queue(queue, capacity, owner, condition, excluded)
                    tasks += fetch_more()
            return self.filter_runnable(self._tasks.decode_tasks(tasks))

        return fetch_tasks

    def _submit_task_queue(
        self, queue: str, capacity: Capacity, owner: int, condition: str, excluded: Sequence[Any]
    ) -> Callable[[], list[TaskState]]:
        """Send a claim of due activities, by priority if some have one. ``excluded`` has values for ``condition``."""
        # A claim for async activities alone does not show how many others wait, so it does not count.
        limit = 0
        if capacity.threads or capacity.prefetch_limit:
            limit = capacity.total
        fetch_ranked, fetch_claimed = self._submit_priority_check(queue), None
        if self._sql.arrays:
            fetch_claimed = self._submit_take(queue, capacity, owner, condition, excluded)

        def fetch_tasks() -> list[TaskState]:
            ranked, tasks = fetch_ranked(), fetch_claimed() if fetch_claimed is not None else []
            # The claim is read in any case: another worker may have changed the priorities between the two statements.
            if not tasks and (fetch_claimed is None or ranked):
                candidate_limit = capacity.total
                if capacity.async_names or capacity.prefetch:
                    candidate_limit = max(candidate_limit, policy.LOOKAHEAD)
                candidates = self.due_candidates(queue, candidate_limit, condition, excluded, ranked=ranked)
                tasks = self.claim_by_ids([task for task, name in candidates if capacity.acquire(name)], owner)
            if limit:
                self._backlogs[queue].record_claim(len(tasks), limit)
            return tasks

        return fetch_tasks

    @property
    def _due_order(self) -> str:
        """Return the SQL order. It has the id with a virtual clock, since many are due at one time there."""
        if self._session.clock is None:
            return "due_at"
        return "due_at, id"

    def _starts_with_newest(self, queue: str) -> bool:
        """Return True for every other claim while more wait than one takes, but never with a virtual clock."""
        return self._session.clock is None and self._backlogs[queue].starts_with_newest()

    def availability_filter(self) -> tuple[str, list[Any]]:
        """Return ``(SQL condition, parameters)``, which excludes activities that this worker must not claim.

        They are the activities whose code this process lacks, and those that are switched off. The condition is empty
        if there are none.
        """
        unavailable = [name for name in self._missing_activities if name not in activity.registry] + sorted(
            self._session.switched_off
        )
        if not unavailable:
            return "", []
        test, parameter = self._sql.in_array(unavailable, "text")
        return f" and not (activity {test})", [parameter]

    def filter_runnable(self, tasks: list[TaskState]) -> list[TaskState]:
        """Return the claimed tasks whose code this process has.

        In workers it releases the others, whose attempts do not count, and does not claim such activities from now on.
        """
        if not self._session.worker or all(activity.is_available(task.activity) for task in tasks):
            return tasks
        unavailable = [task for task in tasks if not activity.is_available(task.activity)]
        for name in {task.activity for task in unavailable} - self._missing_activities:
            log.warning("%s is not in this process: deferred to a worker that has it", name)
            self._missing_activities.add(name)
        self._tasks.release_tasks([(task.id, task.attempt, task.owner or 0) for task in unavailable])
        return [task for task in tasks if task.activity in activity.registry]

    def _submit_take(
        self, queue: str, capacity: Capacity, owner: int, condition: str, excluded: Sequence[Any]
    ) -> Callable[[], list[TaskState]]:
        """Send one statement that claims due activities. It claims nothing if activities there have priorities."""
        if queue in self._session.priority_queues:
            condition, excluded = f"{condition} and not ({background_tasks.HAS_PRIORITY})", [*excluded, queue, queue]
        due, moment = self._sql.now_expression(self._session.clock)
        free = f" from temporalex_activity_task where queue = %s and owner is null{condition} and due_at <= {due}"
        skip, backlog = self._sql.skip_locked(), self._backlogs[queue]
        id_arrays: list[str] = []
        parameters: list[Any] = [owner]

        def add_arrays(lane: str, limit: int, names: Collection[str] = (), test: str = "") -> None:
            """Add SQL arrays of ids to claim: while many activities wait, a quarter of them are the newest."""
            newest = 0
            if self._session.clock is None:
                newest = backlog.newest_count(limit, lane)
            if newest > 0:
                add_array(newest, "due_at desc", names, test)
            if limit > newest:
                add_array(limit - newest, self._due_order, names, test)

        def add_array(limit: int, order: str, names: Collection[str], test: str) -> None:
            """Add an SQL array of ids. In ``test``, ``{}`` stands for "the name is among ``names``"."""
            if not test:
                id_arrays.append(f"array(select id{free} order by {order} limit {self._sql.hidden_limit}{skip})")
                parameters.extend([queue, *excluded, *moment, limit])
                return
            # Two steps: read the first rows of the index by due time, then filter them by name. A filter in the index
            # scan itself would read on through a whole backlog of other activities.
            membership, parameter = self._sql.in_array(names, "text")
            first_rows = f"select id, activity{free} order by {order} limit {self._sql.hidden_limit}{skip}"
            matching_ids = f"select id from ({first_rows}) near where {test.format(f'activity {membership}')}"
            id_arrays.append(
                f"array(select id from temporalex_activity_task where id = any(array({matching_ids})) and owner is null"
                f" order by {order} limit %s{skip})"
            )
            parameters.extend([queue, *excluded, *moment, policy.LOOKAHEAD, parameter, limit])

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
        answer = self._sql.submit(
            "update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null"
            f" where id = any({' || '.join(id_arrays)}) returning {TASK.names}",
            parameters,
            TASK.types,
        )

        def fetch_tasks() -> list[TaskState]:
            tasks = sorted(map(task_state, answer()), key=lambda t: (t.due_at, t.id))
            for task in tasks:
                capacity.acquire(task.activity)
            return tasks

        return fetch_tasks

    def claim_by_ids(self, task_ids: Sequence[int], owner: int) -> list[TaskState]:
        """Claim those of the activities that no worker has, and return them in the order of ``task_ids``.

        ``owner`` is the epoch of the worker, the number under which it owns what it claims.
        """
        if not task_ids:
            return []
        membership, parameter = self._sql.in_array(task_ids, "int8")
        rows = self._sql.select(
            "update temporalex_activity_task set owner = %s, attempt = attempt + 1, beat_at = null"
            f" where id {membership} and owner is null returning {TASK.names}",
            [owner, parameter],
            TASK.types,
        )
        positions = {number: i for i, number in enumerate(task_ids)}
        return sorted(map(task_state, rows), key=lambda task: positions[task.id])

    def due_candidates(
        self, queue: str, limit: int, condition: str, excluded: Sequence[Any], *, ranked: bool
    ) -> list[tuple[Any, ...]]:
        """Return the first due activities as pairs of id and name, and lock them (not on SQLite).

        They come by priority if ``ranked``, else by due time. ``condition`` is SQL that their rows must meet, and
        ``excluded`` has the values of its placeholders. ``limit`` is the most of them.
        """
        now, moment = self._sql.now_expression(self._session.clock)
        parameters = [queue, *excluded, *moment, limit]

        def first_query(rank: str, order: str) -> str:
            return (
                f"select id, activity from temporalex_activity_task where queue = %s and owner is null{condition}"
                f" and due_at <= {now}{rank} order by {order} limit {self._sql.hidden_limit}{self._sql.skip_locked()}"
            )

        kinds = ("int8", "text")
        if not ranked:
            if self._starts_with_newest(queue):
                order = "due_at desc"
            else:
                order = self._due_order
            return self._sql.select(first_query("", order), parameters, kinds)
        rows: list[tuple[Any, ...]] = []
        # Three reads in this order, each by an index: the one of priorities does not hold 0.
        for rank in (" and priority > 0", " and priority = 0", " and priority < 0"):
            if rank.endswith("= 0"):
                order = self._due_order
            else:
                order = f"priority desc, {self._due_order}"
            if len(rows) < limit:
                rows += self._sql.select(first_query(rank, order), [*parameters[:-1], limit - len(rows)], kinds)
        return rows

    def has_priorities(self, queue: str) -> bool:
        """Return True if activities that wait in the queue have a priority. One index look-up."""
        return self._submit_priority_check(queue)()

    def _submit_priority_check(self, queue: str) -> Callable[[], bool]:
        if queue in self._session.priority_queues:
            return background_tasks.submit_priority_check(queue, sql=self._sql)
        return bool


class DueTimes:
    """The part of a database storage that finds out, with one statement, when runs and activities are due.

    It locks nothing.
    """

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
