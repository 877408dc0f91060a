"""Claims of runs: the search for runs that are due or have unread messages, and the locks of their chains.

A run is due when the ``due_at`` of its chain has come: a timer has fired, or a retry or new work is to begin. A message
is fresh until a turn has read it. A claim locks the rows of the chains until the end of the transaction, and skips
chains that others have locked or that this worker has deferred.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError

from temporalex_django.conf import weight_of
from temporalex_django.core.limits import interleave
from temporalex_django.core.names import BEFORE_ALL
from temporalex_django.db.messages.inbox import Inboxes
from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import CHAINS
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.dialect import Answer, Dialect
from temporalex_django.engine.contracts.records import Inbox, RunState
from temporalex_django.engine.scheduling import NewestAndOldest, QueueRotation
from temporalex_django.engine.turn_report import ClaimedRuns

_STATE = CHAINS.pick_fields(RunState, chain_id="id")


class _QueueScan:
    """The place in one queue at which a claim of runs ended, so that the next claim continues there.

    - ``cursor``: the last chain whose messages were found; the next claim looks behind it. None: at the beginning.
    - ``fresh``: the number of chains with unread messages that the last claim found.
    - ``low``: rows that were due before this time are looked for only in a full scan. None: there is no such time.
    - ``full_at``: when the last full scan was (``time.monotonic``).
    """

    __slots__ = ("backlog", "cursor", "fresh", "full_at", "low")

    def __init__(self) -> None:
        self.backlog = NewestAndOldest()
        self.cursor: UUID | None = None  # messages of chains after this one come first
        self.fresh = 0  # the number of chains that had messages
        self.low: datetime | None = None
        self.full_at = 0.0


class QueueOrder:
    """The order in which a worker looks at its queues for runs and for activities.

    It rotates from look to look, by the weights in the settings.
    """

    __slots__ = ("_rotations", "_session")

    def __init__(self, session: StorageSession) -> None:
        self._session = session
        self._rotations: defaultdict[str, QueueRotation] = defaultdict(QueueRotation)

    def queue_order(self, queues: Sequence[str], kind: str) -> Sequence[str]:
        """Return the queues in the order in which to look for work of this ``kind`` ("runs" or "activities").

        The first place rotates, so that no queue starves the others. Under a virtual clock the order stays.
        """
        if self._session.clock is None:
            return self._rotations[kind].order(queues, weight_of)
        return queues


class Deferrals:
    """The runs that one storage does not claim for a while, each with the end of its pause (``time.monotonic``).

    They are kept in memory; nothing is written, so other workers may claim them. A run is deferred, for example, while
    others have locked rows that it needs.
    """

    __slots__ = ("_sql", "_until")

    def __init__(self, sql: Dialect) -> None:
        self._sql = sql
        self._until: dict[UUID, float] = {}

    def defer(self, chains: Iterable[UUID], *, seconds: float) -> None:
        """Do not claim the runs of these chains for ``seconds``; other workers may claim them.

        A later call for a chain replaces an earlier one, and 0 ends the pause.
        """
        until = time.monotonic() + seconds
        for chain in chains:
            if seconds:
                self._until[chain] = until
            else:
                self._until.pop(chain, None)

    def is_deferred(self, chain: UUID) -> bool:
        return bool(self._until) and self._until.get(chain, 0.0) > time.monotonic()

    def filter(self, column: str) -> tuple[str, list[Any]]:
        """Return ``(SQL condition, parameters)``, which excludes the deferred runs.

        ``column`` is the SQL name of the column with the ids of their chains. The condition is empty if nothing is
        deferred.
        """
        if not self._until:
            return "", []
        now = time.monotonic()
        # Every claim calls this, so pauses that have ended are dropped here.
        self._until = {chain: until for chain, until in self._until.items() if until > now}
        test, parameter = self._sql.in_array(list(self._until), "uuid")
        return f" and not ({column} {test})", [parameter]

    def wait_seconds(self) -> float | None:
        """Return the seconds until a run may be claimed again that is deferred now, or None if no run is deferred."""
        if self._until:
            return max(0.01, min(self._until.values()) - time.monotonic())
        return None


class RunClaims:
    """The part of a database storage that claims runs which are due or have unread messages.

    Each claim continues where the one before ended, so that no run is left out for ever.
    """

    def __init__(
        self, session: StorageSession, *, inboxes: Inboxes, deferrals: Deferrals, queue_order: QueueOrder
    ) -> None:
        self._session = session
        self._sql = session.sql
        self._inboxes = inboxes
        self._deferrals = deferrals
        self._queue_order = queue_order
        self._scans: dict[str, _QueueScan] = {}

    def claim(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), first: Collection[UUID] = ()
    ) -> ClaimedRuns:
        """Claim due runs and runs with unread messages, lock them, and return them.

        The runs of ``first`` (chains) come first, due or not. With ``chains`` only these are claimed. A chain that
        another process has locked is left out in either case. A run whose code has ended a process is returned only to
        a worker that names it in ``chains``.
        """
        if chains:
            return ClaimedRuns(
                s for s in map(_run_state, self._submit_lock(chains)()) if self._session.worker or not s.crashes
            )
        with self._sql.pipeline():
            claimed = self.submit_claim(limit=limit, queues=queues, first=first)
        return claimed(first)

    def submit_claim(
        self, *, limit: int, queues: Sequence[str], first: Collection[UUID] = (), due: int | None = None
    ) -> Callable[[Collection[UUID]], ClaimedRuns]:
        """Send the statements that claim runs, and return a function that returns the claimed ones.

        Call it inside a ``pipeline()`` block, and the function after that block. The function takes those chains of
        ``first`` that the caller still wants, and returns ``ClaimedRuns``. The other chains of ``first`` are locked,
        but not returned. Their inboxes are read after the locks.

        ``limit``, ``queues`` and ``first`` are the arguments of ``claim``. ``due`` limits the runs of a queue that are
        claimed because they are due, and not for a message (None: only ``limit`` does). The first queue is asked at
        once, and the others for the number that it leaves.
        """
        order = self._queue_order.queue_order(queues, "runs")
        if not order:
            return lambda _: ClaimedRuns()
        chain_ids = [chain for chain in first if not self._deferrals.is_deferred(chain)]
        fetch_locked = self._submit_lock(chain_ids)
        fetch_first = self._submit_run_queue(order[0], limit, capacity=limit - len(chain_ids), due=due)
        inboxes = self._inboxes.submit_inbox(chain_ids)

        def fetch_claimed(counts: Collection[UUID]) -> ClaimedRuns:
            claimed: dict[UUID, RunState] = {}
            locked_states = [*map(_run_state, fetch_locked())]
            finished_states = [state for state in locked_states if state.queue in queues and state.chain_id in counts]
            moment = fetch_first(claimed, finished_states)
            for queue in order[1:]:
                if len(claimed) >= limit:
                    break
                left = limit - len(claimed)
                with self._sql.pipeline():
                    fetch_more = self._submit_run_queue(queue, left, capacity=left, due=due)
                moment = fetch_more(claimed, ())

            def inbox(chains: Collection[UUID]) -> dict[UUID, Inbox]:
                """Return the inboxes of chains that were locked when they were read. Others may have changed since."""
                locked_ids = {state.chain_id for state in locked_states}
                return inboxes([chain for chain in chains if chain in locked_ids])

            return ClaimedRuns(claimed.values(), now=moment, inbox=inbox)

        return fetch_claimed

    def _submit_run_queue(
        self, queue: str, limit: int, *, capacity: int, due: int | None
    ) -> Callable[[dict[UUID, RunState], Sequence[RunState]], datetime | None]:
        """Send a claim of runs, and return a function that adds them to those claimed so far.

        Runs are in the order of activation: a few of each kind first, since the time may not suffice for all. The
        function returns the database's time, read after the locks, or None if it had to lock more runs later.
        """
        scan = self._scans.setdefault(queue, _QueueScan())
        # Messages first: they go to runs that are in memory. Each kind gets a share even if those before it would fill
        # the turn. The number of runs with messages is not known yet, so the last one is used.
        messages = max(capacity, limit // 4, 1)
        fetch_fresh = self._submit_fresh_chains(queue, scan.cursor, messages)
        fetch_due = self._submit_due(
            queue, scan, min(max(capacity - scan.fresh, limit // 4, 1), limit if due is None else due)
        )
        fetch_now = self._session.submit_now()

        def add_claimed(claimed: dict[UUID, RunState], finished_states: Sequence[RunState]) -> datetime | None:
            newest, oldest = fetch_due()
            states_by_chain = {state.chain_id: state for state in (*finished_states, *newest, *oldest)}
            with_messages, late = self._lock_fresh_chains(
                queue, scan, fetch_fresh(), messages, claimed.keys() | states_by_chain.keys()
            )
            few = max(limit // policy.MIN_KIND_SHARE, 1)
            first_states = interleave([newest[:few], oldest[:few], with_messages[:few]])
            for state in (*first_states, *finished_states, *with_messages, *newest, *oldest):
                claimed.setdefault(state.chain_id, state)
            if late:
                return None
            return fetch_now()

        return add_claimed

    def _submit_due(
        self, queue: str, scan: _QueueScan, limit: int
    ) -> Callable[[], tuple[list[RunState], list[RunState]]]:
        """Lock due runs: ``(newest, oldest)``. Newest ones are taken only while more wait than one claim takes."""
        started = time.monotonic()
        newest = 0
        if self._session.clock is None:
            newest = scan.backlog.newest_count(limit)
        low = scan.low
        if newest < limit and (started - scan.full_at >= policy.FULL_SCAN_SECONDS or self._session.clock is not None):
            low, scan.full_at = None, started
        latest = self._submit_due_rows(queue, "due_at desc", low, newest)
        first = self._submit_due_rows(queue, "due_at", low, limit - newest)

        def fetch_locked() -> tuple[list[RunState], list[RunState]]:
            new, old = [_run_state(row) for row in latest()], [_run_state(row) for row in first()]
            # A run may be in both halves when few are due.
            scan.backlog.record_claim(len({state.chain_id for state in (*new, *old)}), limit)
            if old and old[0].due_at is not None and old[-1].due_at is not None:
                # A time in the first year, which only other programs write, has no time before it.
                if len(old) == limit - newest:
                    scan.low = max(old[0].due_at, BEFORE_ALL) - policy.RECENT_DUE
                elif low is None:
                    scan.low = max(old[-1].due_at, BEFORE_ALL) - policy.RECENT_DUE
            return new, old

        return fetch_locked

    def _submit_due_rows(self, queue: str, order: str, low: datetime | None, limit: int) -> Answer:
        """Send a query that locks the first due runs in an SQL order, without those due at ``low`` or before."""
        if not limit:
            return list
        now, parameters = self._sql.now_expression(self._session.clock)
        above = ""
        if low is not None:
            above = " and due_at > %s"
        deferred, excluded = self._deferrals.filter("id")
        return self._sql.submit(
            f"select {_STATE.names} from temporalex_chain where queue = %s{above} and due_at <= {now}{deferred}"
            f" order by {order} limit {self._sql.hidden_limit}{self._sql.skip_locked()}",
            [queue, *([] if low is None else [low]), *parameters, *excluded, limit],
            _STATE.types,
        )

    def _lock_fresh_chains(
        self, queue: str, scan: _QueueScan, rows: Sequence[tuple[Any, ...]], limit: int, claimed: Collection[UUID]
    ) -> tuple[list[RunState], bool]:
        """Lock chains with unread messages; return them, and True if it sent a statement: older times are stale."""
        chain_ids = [row[0] for row in rows]
        # The scan reached the end of the index: continue at its beginning.
        if scan.cursor is not None and len(chain_ids) < limit:
            first_rows = self._submit_fresh_chains(queue, None, limit - len(chain_ids))()
            chain_ids += [row[0] for row in first_rows if row[0] not in set(chain_ids)]
            scan.cursor = None
        if len(chain_ids) >= limit:
            scan.cursor = chain_ids[-1]
        scan.fresh = len(chain_ids)
        free_ids = [c for c in chain_ids if c not in claimed and not self._deferrals.is_deferred(c)]
        if not free_ids:
            return [], False
        locked = {state.chain_id: state for state in map(_run_state, self._submit_lock(free_ids)())}
        return [locked[c] for c in free_ids if c in locked], True

    def _submit_fresh_chains(self, queue: str, cursor: UUID | None, limit: int) -> Answer:
        """Send a query for chains with unread messages, by id. One index look-up each, however many messages."""
        after = ""
        if cursor is not None:
            after = " and chain_id > %s"
        return self._sql.submit(
            "with recursive r(chain_id) as ("
            f" select (select chain_id from temporalex_message where fresh and queue = %s{after} order by chain_id limit 1)"
            " union all"
            " select (select m.chain_id from temporalex_message m where m.fresh and m.queue = %s and m.chain_id > r.chain_id"
            " order by m.chain_id limit 1) from r where r.chain_id is not null"
            ") select chain_id from r where chain_id is not null limit %s",
            [queue, *([] if cursor is None else [cursor]), queue, limit],
            ("uuid",),
        )

    def _submit_lock(self, chains: Collection[UUID]) -> Answer:
        """Send a query that locks those of the chains that no other transaction has locked."""
        if not chains:
            return list
        test, parameter = self._sql.in_array(chains, "uuid")
        now, parameters = self._sql.now_expression(self._session.clock)
        return self._sql.submit(
            # A run that is blocked for its crashes is due at its deadline. It may be locked, so that its messages can
            # be parked.
            f"select {_STATE.names} from temporalex_chain where id {test}"
            f" and (crashes = 0 or failed_tries > 0 or due_at is null or due_at <= {now}){self._sql.skip_locked()}",
            [parameter, *parameters],
            _STATE.types,
        )

    def wait_for_locks(self, chain: UUID, *, timeout: float) -> None:
        """Wait for the lock of a chain, then for the rows that its atomic activities lock.

        Each wait lasts up to ``timeout`` seconds; the limit applies until the transaction ends. The wait is announced
        by an advisory lock. So another transaction that has such a row and waits for the chain sees it, and gives up
        its wait (see ``lock_chain``).
        """
        self._sql.announce_wait(_lock_number(chain))
        self.lock_chain(chain, wait=timeout)
        self._sql.set_lock_timeout(timeout)

    def lock_chain(self, chain: UUID, *, wait: float, yields: bool = False) -> bool:
        """Lock one chain; return False if it is not free within ``wait`` seconds.

        ``claim(chains=[chain])`` then returns it. With ``yields`` the caller's transaction may hold rows for which the
        worker that has the chain waits (``wait_for_locks``). If that worker does, this returns False before the time is
        over.

        Call it inside a transaction. It waits in slices of under one second. Each slice is a savepoint, and the
        session's ``lock_timeout`` is restored, so the transaction stays usable when it returns False. Returns True at
        once on SQLite, where the transaction has the writer lock.
        """
        if self._sql.writer_lock:
            return True
        deadline = time.monotonic() + wait
        while True:
            if yields and self._sql.is_waited_for(_lock_number(chain)):
                return False
            slice_ = min(policy.YIELD_SECONDS if yields else policy.CHAIN_WAIT_SECONDS, deadline - time.monotonic())
            try:
                with self._session.savepoint(), self._sql.lock_timeout(slice_):
                    self._sql.select(
                        "select id from temporalex_chain where id = %s for no key update", [chain], ("uuid",)
                    )
                return True
            except DatabaseError as exc:
                if not self._sql.is_transient(exc):
                    raise
                if deadline - time.monotonic() <= 0:
                    return False

    def lock_run(self, chain: UUID, *, wait: float) -> RunState | None:
        """Lock one chain, whatever its state is, and return it; wait at most ``wait`` seconds for it.

        Returns None if it is not free in time or does not exist. Call it inside a transaction, which stays usable.
        """
        if not self.lock_chain(chain, wait=wait):
            return None
        rows = self._sql.select(_STATE.select("where id = %s"), [chain], _STATE.types)
        if rows:
            return _run_state(rows[0])
        return None

    def lock_runs(self, chains: Collection[UUID]) -> dict[UUID, RunState]:
        """Lock those of the chains that no other transaction has locked, whatever their states are; return them by id.

        One statement, inside a transaction.
        """
        test, parameter = self._sql.in_array(chains, "uuid")
        select = _STATE.select(f"where id {test}{self._sql.skip_locked()}")
        rows = self._sql.select(select, [parameter], _STATE.types)
        return {state.chain_id: state for state in map(_run_state, rows)}


def _lock_number(chain: UUID) -> int:
    """Return the number by which transactions announce to each other that they wait for a chain."""
    return chain.int & 0x7FFFFFFF


def _run_state(row: tuple[Any, ...]) -> RunState:
    return RunState(**_STATE.row_fields(row))
