"""Storage on Django's database: the contract of ``engine.contracts.run_storage``, in SQL.

Locks: a turn locks only the rows of ``temporalex_chain`` that it claimed (``FOR NO KEY UPDATE``, which lets inserts
refer to them) and its own activity rows. Messages to another run are inserts into that run's inbox. On SQLite the
writer lock of the database takes the place of these locks. Nothing here commits by itself unless a docstring says so.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2s
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.conf import codec, get_settings, weight_of
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.limits import interleave
from temporalex_django.db.activity_tasks import TaskStatements
from temporalex_django.db.dialects.base import Answer
from temporalex_django.db.messages.inbox import InboxInserts, InboxStatements, report_unreadable
from temporalex_django.db.sql_columns import CHAINS, EVENTS, RUNS
from temporalex_django.db.transactions import Transactions
from temporalex_django.db.turn_writes import TurnStatements
from temporalex_django.engine.contracts.records import Inbox, RunRecord, RunState
from temporalex_django.engine.contracts.task_storage import WorkerStorage
from temporalex_django.engine.contracts.typed_dicts import BlockMark
from temporalex_django.engine.ids import token, uuid7
from temporalex_django.engine.scheduling.queue_rotation import NewestAndOldest, QueueRotation
from temporalex_django.engine.turn_report import ClaimedRuns

#: Rows that became due longer ago than this are looked for once a second only. Under an old snapshot the index still
#: holds dead entries of earlier rows, and every claim would crawl over them (60 ms against 0.3).
_RECENT = timedelta(seconds=5)
_FULL_EVERY = 1.0
#: Of every so many runs of a turn at least one has been due longest, one is the newest, and one has messages.
_MIN_SHARE = 12
#: Seconds for which the versions of live workers are cached: a turn may ask for each of its runs.
_LIVE_CACHE_SECONDS = 1.0
#: Seconds that a caller waits for a chain at a time, and after which it checks whether the holder waits for it in turn.
_SLICE = 0.8
_YIELD_SLICE = 0.1

_STATE = CHAINS.pick_fields(RunState, chain_id="id")
_BLOCKED = RUNS.pick_columns("blocked")
_FACTS = RUNS.pick_fields(RunRecord, run_id="id", parent_chain="parent_chain_id", parent_run="parent_run_id")
_RUN_SEQ = EVENTS.pick_columns("run_id", "seq")
_EVENT = EVENTS.pick_columns("seq", "activation", "kind", "at", "attributes")


class _QueueScan:
    """The position of claims in one queue, which the next claim continues."""

    __slots__ = ("backlog", "cursor", "fresh", "full_at", "low")

    def __init__(self) -> None:
        self.backlog = NewestAndOldest()
        self.cursor: UUID | None = None  # messages of chains after this one come first
        self.fresh = 0  # the number of chains that had messages
        self.low: datetime | None = None
        self.full_at = 0.0


class DjangoStorage(Transactions, InboxStatements, InboxInserts, TaskStatements, TurnStatements, WorkerStorage):
    """``WorkerStorage`` on one database alias.

    ``clock`` (a callable that returns an aware datetime) replaces the database's clock everywhere: virtual time in
    tests. ``worker`` is True in worker processes; only they claim runs whose code ended a process. One thread at a time
    may use an object. Its connection is that of the calling thread.
    """

    def __init__(
        self, alias: str | None = None, clock: Callable[[], datetime] | None = None, *, worker: bool = False
    ) -> None:
        super().__init__(alias or get_settings().DATABASE, worker=worker)
        self.clock = clock
        self._scans: dict[str, _QueueScan] = {}
        self._deferred: dict[UUID, float] = {}
        self.missing_activities: set[str] = set()
        self.switched_off: Collection[str] = ()
        self.priority_queues: Collection[str] = ()
        # The time until which the cached answer is valid, and the versions of live workers.
        self._live_versions: tuple[float, set[tuple[str, int]]] = (0.0, set())
        self.backlogs: defaultdict[str, NewestAndOldest] = defaultdict(NewestAndOldest)
        self._rotations: defaultdict[str, QueueRotation] = defaultdict(QueueRotation)

    @property
    def domain(self) -> str:
        """A digest of the database's address. It tells databases apart in the names of marker and health files."""
        database = connections[self.alias].settings_dict
        which = "|".join([self.sql.name, *(str(database.get(key) or "") for key in ("HOST", "PORT", "NAME"))])
        return blake2s(which.encode(), digest_size=8).hexdigest()

    @property
    def turn_size(self) -> int:
        return get_settings().TURN_SIZE or self.sql.turn_size

    # --- claiming ----------------------------------------------------------------------------------------------------

    def claim(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), first: Collection[UUID] = ()
    ) -> ClaimedRuns:
        """Claim due runs and runs with unread messages, lock them, and return them.

        The runs of ``first`` come first, if no other process has them locked. With ``chains`` exactly these are
        claimed, under the same condition. A run whose code ended a process is claimed by name only in workers.
        """
        if chains:
            return ClaimedRuns(s for s in map(_run_state, self._submit_lock(chains)()) if self.worker or not s.crashes)
        with self.sql.pipeline():
            claimed = self.submit_claim(limit=limit, queues=queues, first=first)
        return claimed(first)

    def submit_claim(
        self, *, limit: int, queues: Sequence[str], first: Collection[UUID] = (), due: int | None = None
    ) -> Callable[[Collection[UUID]], ClaimedRuns]:
        """Send the statements of ``claim`` and return a function that completes it; call that after ``pipeline()``.

        The function takes those chains of ``first`` that the caller still wants and returns ``ClaimedRuns``. The other
        chains of ``first`` are locked, but not returned. Their inboxes are read after the locks.

        ``due`` limits the runs of a queue that are claimed for their due time alone. The first queue is asked at once,
        and the others for the capacity that it leaves.
        """
        order = self.queue_order(queues, "runs")
        if not order:
            return lambda _: ClaimedRuns()
        chain_ids = [chain for chain in first if not self.is_deferred(chain)]
        fetch_locked = self._submit_lock(chain_ids)
        fetch_first = self._submit_run_queue(order[0], limit, capacity=limit - len(chain_ids), due=due)
        inboxes = self.submit_inbox(chain_ids)

        def fetch_claimed(counts: Collection[UUID]) -> ClaimedRuns:
            claimed: dict[UUID, RunState] = {}
            locked_states = [*map(_run_state, fetch_locked())]
            finished_states = [state for state in locked_states if state.queue in queues and state.chain_id in counts]
            moment = fetch_first(claimed, finished_states)
            for queue in order[1:]:
                if len(claimed) >= limit:
                    break
                left = limit - len(claimed)
                with self.sql.pipeline():
                    fetch_more = self._submit_run_queue(queue, left, capacity=left, due=due)
                moment = fetch_more(claimed, ())

            def inbox(chains: Collection[UUID]) -> dict[UUID, Inbox]:
                """Return the inboxes of those chains that were locked when the inboxes were read.

                Other inboxes may have changed since.
                """
                locked_ids = {state.chain_id for state in locked_states}
                return inboxes([chain for chain in chains if chain in locked_ids])

            return ClaimedRuns(claimed.values(), now=moment, inbox=inbox)

        return fetch_claimed

    def _submit_run_queue(
        self, queue: str, limit: int, *, capacity: int, due: int | None
    ) -> Callable[[dict[UUID, RunState], Sequence[RunState]], datetime | None]:
        """Send a claim of at most ``limit`` runs of one queue, for a worker with this ``capacity``; return a function.

        The function takes the runs claimed so far, to which it adds its own, and the runs with results
        (``finished_states``). The order is that in which they are to be activated: a few of each kind come first, since
        the time may not suffice for all. It returns the time after the locks, or None if it had to lock more runs after
        that. ``due`` limits the number of runs that are due; None: only ``limit`` does.
        """
        scan = self._scans.setdefault(queue, _QueueScan())
        # Messages first: they go to runs that are in memory. Each kind gets a share even if those before it would fill
        # the turn. The number of runs with messages is not known yet, so the last one is used.
        messages = max(capacity, limit // 4, 1)
        fetch_fresh = self._submit_fresh_chains(queue, scan.cursor, messages)
        fetch_due = self._submit_due(
            queue, scan, min(max(capacity - scan.fresh, limit // 4, 1), limit if due is None else due)
        )
        fetch_now = self._submit_now()

        def add_claimed(claimed: dict[UUID, RunState], finished_states: Sequence[RunState]) -> datetime | None:
            newest, oldest = fetch_due()
            states_by_chain = {state.chain_id: state for state in (*finished_states, *newest, *oldest)}
            with_messages, late = self._lock_fresh_chains(
                queue, scan, fetch_fresh(), messages, claimed.keys() | states_by_chain.keys()
            )
            few = max(limit // _MIN_SHARE, 1)
            first_states = interleave([newest[:few], oldest[:few], with_messages[:few]])
            for state in (*first_states, *finished_states, *with_messages, *newest, *oldest):
                claimed.setdefault(state.chain_id, state)
            return None if late else fetch_now()

        return add_claimed

    def queue_order(self, queues: Sequence[str], kind: str) -> Sequence[str]:
        """Return the queues in the order in which to look for work of this ``kind``.

        The first place rotates, so that no queue starves the others. Under a virtual clock the order stays.
        """
        return self._rotations[kind].order(queues, weight_of) if self.clock is None else queues

    def _submit_due(
        self, queue: str, scan: _QueueScan, limit: int
    ) -> Callable[[], tuple[list[RunState], list[RunState]]]:
        """Send a query that locks due runs; return a function for the newest ones and the oldest ones.

        There are newest ones only if more runs wait than it takes.
        """
        started = time.monotonic()
        newest = scan.backlog.newest_count(limit) if self.clock is None else 0
        low = scan.low
        if newest < limit and (started - scan.full_at >= _FULL_EVERY or self.clock is not None):
            low, scan.full_at = None, started
        latest = self._submit_due_rows(queue, "due_at desc", low, newest)
        first = self._submit_due_rows(queue, "due_at", low, limit - newest)

        def fetch_locked() -> tuple[list[RunState], list[RunState]]:
            new, old = [_run_state(row) for row in latest()], [_run_state(row) for row in first()]
            # A run may be in both halves when few are due.
            scan.backlog.record_claim(len({state.chain_id for state in (*new, *old)}), limit)
            if old and old[0].due_at is not None and old[-1].due_at is not None:
                if len(old) == limit - newest:
                    scan.low = old[0].due_at - _RECENT
                elif low is None:
                    scan.low = old[-1].due_at - _RECENT
            return new, old

        return fetch_locked

    def _submit_due_rows(self, queue: str, order: str, low: datetime | None, limit: int) -> Answer:
        if not limit:
            return list
        now, parameters = self.sql.now_expression(self.clock)
        above = "" if low is None else " and due_at > %s"
        deferred, excluded = self._deferred_filter("id")
        return self.sql.submit(
            f"select {_STATE.names} from temporalex_chain where queue = %s{above} and due_at <= {now}{deferred}"
            f" order by {order} limit {self.sql.hidden_limit}{self.sql.skip_locked()}",
            [queue, *([] if low is None else [low]), *parameters, *excluded, limit],
            _STATE.types,
        )

    def _lock_fresh_chains(
        self, queue: str, scan: _QueueScan, rows: Sequence[tuple[Any, ...]], limit: int, claimed: Collection[UUID]
    ) -> tuple[list[RunState], bool]:
        """Lock the chains of ``rows``, which have unread messages, except those in ``claimed``.

        Chains that another transaction has locked are skipped. Returns the states of the locked ones, and True if it
        had to send a statement, so that a time that was read before is too old.
        """
        chain_ids = [row[0] for row in rows]
        # The scan reached the end of the index: continue at its beginning.
        if scan.cursor is not None and len(chain_ids) < limit:
            first_rows = self._submit_fresh_chains(queue, None, limit - len(chain_ids))()
            chain_ids += [row[0] for row in first_rows if row[0] not in set(chain_ids)]
            scan.cursor = None
        if len(chain_ids) >= limit:
            scan.cursor = chain_ids[-1]
        scan.fresh = len(chain_ids)
        free_ids = [c for c in chain_ids if c not in claimed and not self.is_deferred(c)]
        if not free_ids:
            return [], False
        locked = {state.chain_id: state for state in map(_run_state, self._submit_lock(free_ids)())}
        return [locked[c] for c in free_ids if c in locked], True

    def _submit_fresh_chains(self, queue: str, cursor: UUID | None, limit: int) -> Answer:
        """Send a query for at most ``limit`` chains with unread messages, those after the chain ``cursor``.

        It looks into the index once for each chain, however many messages the chain has.
        """
        after = "" if cursor is None else " and chain_id > %s"
        return self.sql.submit(
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
        test, parameter = self.sql.in_array(chains, "uuid")
        now, parameters = self.sql.now_expression(self.clock)
        return self.sql.submit(
            # A run that is blocked for its crashes is due at its deadline. It may be locked, so that its messages can
            # be parked.
            f"select {_STATE.names} from temporalex_chain where id {test}"
            f" and (crashes = 0 or failed_tries > 0 or due_at is null or due_at <= {now}){self.sql.skip_locked()}",
            [parameter, *parameters],
            _STATE.types,
        )

    def wait_for_locks(self, chain: UUID, *, timeout: float) -> None:
        """Wait for a chain, then for the rows that its atomic activities lock, ``timeout`` seconds each.

        The limit holds until the transaction ends. An advisory lock announces the wait, so that a caller who holds such
        a row and waits for the chain gives way (see ``lock_chain``).
        """
        self.sql.announce_wait(_lock_number(chain))
        self.lock_chain(chain, wait=timeout)
        self.sql.set_lock_timeout(timeout)

    def lock_chain(self, chain: UUID, *, wait: float, yields: bool = False) -> bool:
        """Lock one chain; return False if it is not free within ``wait`` seconds.

        ``claim(chains=[chain])`` then returns it. With ``yields`` the transaction may hold rows that the worker with
        that chain waits for (``wait_for_locks``). If so, it stops waiting.

        Call it inside a transaction. It waits in slices of under one second. Each slice is a savepoint, and the
        session's ``lock_timeout`` is restored, so the transaction stays usable when it returns False. Returns True at
        once on SQLite, where the transaction has the writer lock.
        """
        if self.sql.writer_lock:
            return True
        deadline = time.monotonic() + wait
        while True:
            if yields and self.sql.is_waited_for(_lock_number(chain)):
                return False
            slice_ = min(_YIELD_SLICE if yields else _SLICE, deadline - time.monotonic())
            try:
                with self.savepoint(), self.sql.lock_timeout(slice_):
                    self.sql.select(
                        "select id from temporalex_chain where id = %s for no key update", [chain], ("uuid",)
                    )
                return True
            except DatabaseError as exc:
                if not self.sql.is_transient(exc):
                    raise
                if deadline - time.monotonic() <= 0:
                    return False

    def lock_run(self, chain: UUID, *, wait: float) -> RunState | None:
        """Lock one chain, whatever its state is, and return it; wait at most ``wait`` seconds for it.

        Returns None if it is not free in time or does not exist. Call it inside a transaction, which stays usable.
        """
        if not self.lock_chain(chain, wait=wait):
            return None
        rows = self.sql.select(_STATE.select("where id = %s"), [chain], _STATE.types)
        return _run_state(rows[0]) if rows else None

    def defer(self, chains: Iterable[UUID], *, seconds: float) -> None:
        """Do not claim these runs for ``seconds``. This is kept in memory; nothing is written.

        A later call for a run replaces the earlier one, and 0 ends the pause.
        """
        until = time.monotonic() + seconds
        for chain in chains:
            if seconds:
                self._deferred[chain] = until
            else:
                self._deferred.pop(chain, None)

    def is_deferred(self, chain: UUID) -> bool:
        return bool(self._deferred) and self._deferred.get(chain, 0.0) > time.monotonic()

    def _deferred_filter(self, column: str) -> tuple[str, list[Any]]:
        if not self._deferred:
            return "", []
        now = time.monotonic()
        # Every claim calls this, so pauses that have ended are dropped here.
        self._deferred = {chain: until for chain, until in self._deferred.items() if until > now}
        test, parameter = self.sql.in_array(list(self._deferred), "uuid")
        return f" and not ({column} {test})", [parameter]

    # --- reading -----------------------------------------------------------------------------------------------------

    def load_turn_input(
        self,
        chains: Collection[UUID],
        *,
        waiting: Collection[UUID] = (),
        page: int | None = None,
        runs: Collection[UUID] = (),
    ) -> tuple[dict[UUID, Inbox], dict[UUID, RunRecord]]:
        with self.sql.pipeline():
            fetch_inboxes, fetch_records = (
                self.submit_inbox(chains, waiting=waiting, page=page),
                self._submit_run_records(runs),
            )
        return fetch_inboxes(chains), fetch_records()

    def run_records(self, runs: Collection[UUID]) -> dict[UUID, RunRecord]:
        return self._submit_run_records(runs)()

    def _submit_run_records(self, runs: Collection[UUID]) -> Callable[[], dict[UUID, RunRecord]]:
        if not runs:
            return dict
        test, parameter = self.sql.in_array(runs, "uuid")
        rows = self.sql.submit(_FACTS.select(f"where id {test}"), [parameter], _FACTS.types)

        def fetch_records() -> dict[UUID, RunRecord]:
            records = {}
            for row in rows():
                try:
                    record = _run_record(_FACTS.decode_row(row))
                except Exception:
                    stored = _FACTS.row_fields(row)
                    with report_unreadable(
                        f"the input of {stored['workflow']} {stored['workflow_id']}", run=stored["run_id"]
                    ):
                        raise
                records[record.run_id] = record
            return records

        return fetch_records

    def block_reason(self, run_id: UUID) -> BlockMark | None:
        ((mark,),) = self.sql.select(_BLOCKED.select("where id = %s"), [run_id], _BLOCKED.types)
        block_mark: BlockMark | None = None if mark is None else json.loads(mark)
        return block_mark

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        events_by_run: dict[UUID, list[HistoryEvent]] = {run: [] for run in after}
        new = f"from {EVENTS.name} h where h.run_id = v.run_id and h.seq > v.seq"
        # For each run by itself: a join over many runs would read the known part of their histories, too.
        if self.sql.lateral:
            new = f"from v cross join lateral (select * {new} offset 0) h"
        else:
            new = new.replace("from", "from v cross join", 1)
        rows = self.sql.write_returning(
            _RUN_SEQ.columns,
            f"select h.run_id, {_EVENT.with_alias('h')} {new} order by h.run_id, h.seq",
            after.items(),
            ("uuid", *_EVENT.types),
        )
        for run, *event in rows:
            events_by_run[run].append(_history_event(run, event))
        return events_by_run

    def history_page(self, run_id: UUID, *, after: int, limit: int) -> list[HistoryEvent]:
        rows = self.sql.select(
            _EVENT.select("where run_id = %s and seq > %s order by seq limit %s"), [run_id, after, limit], _EVENT.types
        )
        return [_history_event(run_id, row) for row in rows]

    def patch_markers(self, run_id: UUID) -> set[str]:
        rows = self.sql.select(
            "select attributes from temporalex_history_event where run_id = %s and kind = 'PatchMarked'",
            [run_id],
            ("bytea",),
        )
        decode = codec().decode
        with report_unreadable(f"a marker of run {run_id}", run=run_id):
            return {decode(attributes)["id"] for (attributes,) in rows}

    def now(self) -> datetime:
        return self._submit_now()()

    def _submit_now(self) -> Callable[[], datetime]:
        if self.clock is not None:
            return self.clock
        now, parameters = self.sql.now_expression(None, live=True)
        answer = self.sql.submit(f"select {now}", parameters, ("timestamptz",))

        def fetch_now() -> datetime:
            timestamp: datetime = answer()[0][0]
            return timestamp

        return fetch_now

    def new_token(self) -> int:
        return token()

    def new_run_id(self) -> UUID:
        return uuid7()

    def next_due(self, *, queues: Sequence[str], activity_queues: Sequence[str] | None = None) -> float | None:
        """Return the seconds until a run or an activity of these queues is due.

        0.0 means now, or that there are unread messages. None means that nothing will be due. ``activity_queues`` are
        the queues of the activities, if they differ from ``queues``.
        """
        now, parameters = self.sql.now_expression(self.clock)
        deferred, excluded = self._deferred_filter("id")
        # One probe of an index for each queue. A membership test would read every row that waits.
        runs, tasks, fresh = [], [], []
        for queue in queues:
            runs.append(
                "(select due_at from temporalex_chain where queue = %s and due_at is not null"
                f"{deferred} order by due_at limit 1)"
            )
            parameters += [queue, *excluded]
        availability, unavailable = self.availability_filter()
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
        rows = self.sql.select(
            f"select {', '.join([now, *runs, *tasks, expiry])}, {' or '.join(fresh)}",
            parameters,
            ("timestamptz", *("timestamptz" for _ in (*runs, *tasks)), "timestamptz", "bool"),
        )
        moment, *dues, has_messages = rows[0]
        if has_messages:
            return 0.0
        waits = [max(0.0, (due - moment).total_seconds()) for due in dues if due is not None]
        # Deferred runs may be due when their pause ends.
        if self._deferred:
            waits.append(max(0.01, min(self._deferred.values()) - time.monotonic()))
        return min(waits, default=None)

    def has_live_worker(self, workflow: str, version: int) -> bool:
        """Return True if a worker with a valid lease has registered that version of the class.

        The answer may be ``_LIVE_CACHE_SECONDS`` old.
        """
        until, live_versions = self._live_versions
        if self.clock is None and time.monotonic() < until:
            return (workflow, version) in live_versions
        now, parameters = self.sql.now_expression(self.clock)
        rows = self.sql.select(
            f"select cast(workflows as text) from temporalex_worker where expires_at > {now}"
            " and buried_at is null and drained_at is null",
            parameters,
            ("text",),
        )
        import json  # noqa: PLC0415 - the column is JSON in both dialects, the codec is not for it

        live_versions = {
            (name, number) for (text,) in rows for name, numbers in json.loads(text).items() for number in numbers
        }
        self._live_versions = (time.monotonic() + _LIVE_CACHE_SECONDS, live_versions)
        return (workflow, version) in live_versions


def _lock_number(chain: UUID) -> int:
    """Return the number that identifies a chain in ``Dialect.announce_wait``."""
    return chain.int & 0x7FFFFFFF


def _run_state(row: tuple[Any, ...]) -> RunState:
    return RunState(**_STATE.row_fields(row))


def _run_record(row_values: dict[str, Any]) -> RunRecord:
    """Return the record of a run from the values of its row, whose JSON is text."""
    if (attributes := row_values["search_attributes"]) is not None:
        row_values["search_attributes"] = json.loads(attributes)
    return RunRecord(**row_values)


def _history_event(run: UUID, row: Sequence[Any]) -> HistoryEvent:
    seq, activation, kind, at, attributes = row
    try:
        return HistoryEvent(seq, activation, kind, at, codec().decode(attributes), len(attributes))
    except Exception:
        with report_unreadable(f"event {seq} ({kind}) of run {run}", run=run):
            raise
