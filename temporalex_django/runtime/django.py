"""Storage on Django's database: what ``runtime.storage`` promises, in SQL.

Locks: a turn locks only the rows of ``temporalex_chain`` that it claimed (``FOR NO KEY UPDATE``, which lets inserts refer to
them) and its own activity rows. Whatever it tells another run is an insert into that run's inbox. On SQLite the one writer lock
of the database takes their place. Nothing here commits by itself except where a docstring says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import blake2s
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError, connections, transaction

from temporalex_django.conf import codec, get_settings
from temporalex_django.core.events import HistoryEvent
from temporalex_django.runtime.connections import limit_transaction, worker_statement_timeout
from temporalex_django.runtime.dialect import Dialect, dialect_for
from temporalex_django.runtime.ids import token, uuid7
from temporalex_django.runtime.inbox import InboxStatements, reading
from temporalex_django.runtime.storage import RunFacts, RunState
from temporalex_django.runtime.tasks import TaskStatements
from temporalex_django.runtime.writing import TurnStatements

#: Rows that became due longer ago than this are looked for once a second only: under an old snapshot the index holds their dead
#: entries, and every claim would crawl over them (60 ms against 0.3).
_RECENT = timedelta(seconds=5)
_FULL_EVERY = 1.0
#: For how long the answer which classes live workers have is good: a turn may ask for each of its runs.
_LIVING_FOR = 1.0
#: Of advisory locks: who has this one stands in line for the rows of a chain. How long a caller waits until it looks for such a one.
_IN_LINE = 0x7E4A1EC
_GIVING_WAY_MS = 100
#: Runs in a turn of SQLite are few: a long transaction keeps every other writer out.
TURN_SIZE = {"postgresql": 200, "sqlite": 20}

_CHAIN = "id, run_id, queue, head, length, activations, stamp, due_at, deadline, attempt, crashes, closed, paused, atomic_due"
_CHAIN_TYPES = (
    *("uuid", "uuid", "text", "int8", "int4", "int4", "timestamptz", "timestamptz", "timestamptz"),
    *("int4", "int4", "bool", "bool", "timestamptz"),
)


class _Look:
    """What a claim remembers of a queue from one call to the next."""

    __slots__ = ("cursor", "full_at", "low")

    def __init__(self) -> None:
        self.cursor: UUID | None = None  # messages of chains after this one are looked at first
        self.low: datetime | None = None
        self.full_at = 0.0


class DjangoStorage(InboxStatements, TaskStatements, TurnStatements):
    """``Storage`` and ``TaskStorage`` on one database alias.

    ``clock`` (a callable that gives an aware datetime) replaces the database's clock everywhere: virtual time in tests.
    ``worker`` is True in worker processes: they alone take runs whose code ended a process.
    An object serves one thread at a time; its connection is that of the calling thread.
    """

    def __init__(
        self, alias: str | None = None, clock: Callable[[], datetime] | None = None, *, worker: bool = False
    ) -> None:
        self.alias = alias or get_settings().DATABASE
        self.clock = clock
        self.worker = worker
        self.sql: Dialect = dialect_for(self.alias)
        self._looks: dict[str, _Look] = {}
        self._declined: dict[UUID, float] = {}
        self.absent: set[str] = set()
        # until when it is believed, and what live workers have
        self._living: tuple[float, set[tuple[str, int]]] = (0.0, set())
        self._turn = 0
        self.last_claimed: list[UUID] = []
        self.suspects: list[UUID] = []  # due, and left out of the last claim: each is to be taken by itself

    @property
    def domain(self) -> str:
        """Tells this database from others, in names of files."""
        found = connections[self.alias].settings_dict
        which = "|".join([self.sql.vendor, *(str(found.get(key) or "") for key in ("HOST", "PORT", "NAME"))])
        return blake2s(which.encode(), digest_size=8).hexdigest()

    @property
    def turn_size(self) -> int:
        return get_settings().TURN_SIZE or TURN_SIZE[self.sql.vendor]

    # --- transactions ------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of the alias, or a savepoint inside one that is open. On SQLite the writer lock is taken at once."""
        outermost = not connections[self.alias].in_atomic_block
        with transaction.atomic(using=self.alias):
            if outermost and self.sql.vendor == "sqlite":
                # Without transaction_mode=IMMEDIATE a transaction that reads first cannot always go on to write.
                self.sql.execute("update temporalex_chain set due_at = due_at where 0 = 1")
            elif outermost and self.worker:
                limit_transaction(self.alias)
            yield

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with transaction.atomic(using=self.alias):
            yield

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A savepoint for an atomic activity. Its end raises what deferred constraints (Django's foreign keys) would raise at the commit.

        On PostgreSQL; the ``statement_timeout`` is put back that user code set for its own statements. SQLite could only be asked about
        whole tables; there such a run is blocked with the error of the commit.
        """
        if self.sql.vendor != "postgresql":
            with self.savepoint():
                yield
            return
        limit = worker_statement_timeout(self.alias)
        if limit is None:  # somebody else's transaction, with a limit of its own
            limit = self.sql.select("select current_setting('statement_timeout')", [], ("text",))[0][0]
        with self.savepoint():
            yield
            with connections[self.alias].cursor() as cursor:
                cursor.execute(
                    f"set constraints all immediate; set constraints all deferred; set local statement_timeout = '{limit}'"
                )

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call it after the commit of the transaction that is open, or now if none is; what it raises is logged."""
        transaction.on_commit(callback, using=self.alias, robust=True)

    def transient(self, exc: BaseException) -> bool:
        """Whether the same work may succeed on another try: lock timeout, deadlock, serialization failure, a cancelled statement."""
        return self.sql.transient(exc)

    def interrupted(self, exc: BaseException) -> bool:
        """Whether a statement was cancelled, by its ``statement_timeout`` or by somebody."""
        return self.sql.interrupted(exc)

    def lost(self, exc: BaseException) -> bool:
        """Whether the connection is gone: nothing was committed, and the caller should reconnect."""
        if isinstance(exc, InterfaceError):
            return True
        return isinstance(exc, OperationalError) and not self.sql.transient(exc) and self.sql.over(exc)

    # --- claiming ----------------------------------------------------------------------------------------------------

    def ready(self, *, queues: Sequence[str]) -> bool:
        """Whether anything is due or fresh, by a plain read that locks nothing (SQLite: before a turn takes the writer lock)."""
        return self.next_due(queues=queues) == 0.0

    def claim(self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = ()) -> list[RunState]:
        """Lock runs that are due or have fresh messages; with ``chains`` exactly these, as far as nobody else has them locked.

        A run whose code ended a process comes only to workers, and only by its name: a claim without ``chains`` puts it into
        ``suspects``.
        """
        if chains:
            return [s for s in self._lock(chains) if self.worker or not s.crashes]
        claimed: dict[UUID, RunState] = {}
        self._turn += 1
        for i in range(len(queues)):  # the first queue takes turns, so that none starves the others
            queue = queues[(self._turn + i) % len(queues)]
            if len(claimed) >= limit:
                break
            # Messages first: they go to runs that are in memory. Due runs get a share even where messages would fill the turn.
            self._claim_fresh(queue, limit - len(claimed), claimed)
            self._claim_due(queue, max(limit - len(claimed), limit // 4, 1), claimed)
        chosen = [state for state in claimed.values() if not state.crashes]
        self.suspects = [state.chain_id for state in claimed.values() if state.crashes]
        self.last_claimed = [state.chain_id for state in chosen]
        return chosen

    def _claim_due(self, queue: str, limit: int, claimed: dict[UUID, RunState]) -> None:
        look = self._looks.setdefault(queue, _Look())
        started = time.monotonic()
        low = look.low
        if started - look.full_at >= _FULL_EVERY or self.clock is not None:
            low, look.full_at = None, started
        now, parameters = self.sql.instant(self.clock)
        above = "" if low is None else " and due_at > %s"
        declined, excluded = self._exclusion("id")
        rows = self.sql.select(
            f"select {_CHAIN} from temporalex_chain where queue = %s{above} and due_at <= {now}{declined}"
            f" order by due_at limit %s{self.sql.skip_locked()}",
            [queue, *([] if low is None else [low]), *parameters, *excluded, limit],
            _CHAIN_TYPES,
        )
        states = [_state(row) for row in rows]
        claimed.update((s.chain_id, s) for s in states)
        if len(states) == limit and states[0].due_at is not None:
            look.low = states[0].due_at - _RECENT
        elif low is None and states and states[-1].due_at is not None:
            look.low = states[-1].due_at - _RECENT

    def _claim_fresh(self, queue: str, limit: int, claimed: dict[UUID, RunState]) -> None:
        look = self._looks.setdefault(queue, _Look())
        found = self._fresh_chains(queue, look.cursor, limit)
        if look.cursor is not None and len(found) < limit:  # the end of the circle: go on at its beginning
            found += [c for c in self._fresh_chains(queue, None, limit - len(found)) if c not in set(found)]
            look.cursor = None
        if len(found) >= limit:
            look.cursor = found[-1]
        wanted = [c for c in found if c not in claimed and not self.is_declined(c)]
        if wanted:
            locked = {state.chain_id: state for state in self._lock(wanted)}
            claimed.update((c, locked[c]) for c in wanted if c in locked)

    def _fresh_chains(self, queue: str, cursor: UUID | None, limit: int) -> list[UUID]:
        """Distinct chains with fresh messages, by a loose scan of the index: one probe a chain, however many messages it has."""
        after = "" if cursor is None else " and chain_id > %s"
        rows = self.sql.select(
            "with recursive r(chain_id) as ("
            f" select (select chain_id from temporalex_message where fresh and queue = %s{after} order by chain_id limit 1)"
            " union all"
            " select (select m.chain_id from temporalex_message m where m.fresh and m.queue = %s and m.chain_id > r.chain_id"
            " order by m.chain_id limit 1) from r where r.chain_id is not null"
            ") select chain_id from r where chain_id is not null limit %s",
            [queue, *([] if cursor is None else [cursor]), queue, limit],
            ("uuid",),
        )
        return [row[0] for row in rows]

    def _lock(self, chains: Collection[UUID]) -> list[RunState]:
        test, parameter = self.sql.among(chains, "uuid")
        now, parameters = self.sql.instant(self.clock)
        rows = self.sql.select(
            # one that is blocked for its crashes has no due time: it may be locked, for its messages to be parked
            f"select {_CHAIN} from temporalex_chain where id {test} and (crashes = 0 or due_at is null or due_at <= {now})"
            f"{self.sql.skip_locked()}",
            [parameter, *parameters],
            _CHAIN_TYPES,
        )
        return [_state(row) for row in rows]

    def queue_for(self, chain: UUID, *, patience: float) -> None:
        """Stand in line for a chain, then for the rows that its atomic activities lock, each so long; until the transaction ends.

        A lock of its own says so to callers that have such a row and wait for the chain: see ``lock``. Does nothing on SQLite.
        """
        if self.sql.vendor == "sqlite":
            return
        self.sql.execute("select pg_advisory_xact_lock(%s::int4, %s::int4)", _queued(chain))
        self.lock(chain, wait=patience)
        self.sql.execute("select set_config('lock_timeout', %s, true)", [f"{int(patience * 1000)}ms"])

    def lock(self, chain: UUID, *, wait: float, gives_way: bool = False) -> bool:
        """Lock one chain, waiting at most ``wait`` seconds in slices of under one second; ``claim(chains=[chain])`` then gets it.

        ``gives_way``: the transaction may hold what a worker stands in line for that has the chain (``queue_for``); no more waiting then.

        Inside a transaction only. Each slice is a savepoint, and the session's ``lock_timeout`` is put back, so a wait in vain
        leaves the caller's transaction whole. SQLite: True at once, the writer lock is held.
        """
        if self.sql.vendor == "sqlite":
            return True
        deadline = time.monotonic() + wait
        while True:
            if gives_way and self._is_waited_for(chain):
                return False
            left = deadline - time.monotonic()
            slice_ms = max(1, min(_GIVING_WAY_MS if gives_way else 800, int(left * 1000)))
            try:
                with self.savepoint():
                    before = self.sql.select("select current_setting('lock_timeout')", [], ("text",))[0][0]
                    self.sql.execute("select set_config('lock_timeout', %s, true)", [f"{slice_ms}ms"])
                    self.sql.select(
                        "select id from temporalex_chain where id = %s for no key update", [chain], ("uuid",)
                    )
                    self.sql.execute("select set_config('lock_timeout', %s, true)", [before])
                return True
            except DatabaseError as exc:
                if not self.sql.transient(exc):
                    raise
                if deadline - time.monotonic() <= 0:
                    return False

    def _is_waited_for(self, chain: UUID) -> bool:
        """Whether a worker has the chain, or is next, and waits for a lock itself."""
        rows = self.sql.select(
            "select exists (select 1 from pg_locks q join pg_locks w on w.pid = q.pid and not w.granted"
            " where q.locktype = 'advisory' and q.granted and q.objsubid = 2"
            " and q.database = (select oid from pg_database where datname = current_database())"
            " and q.classid = %s::int8::oid and q.objid = %s::int8::oid)",
            _queued(chain),
            ("bool",),
        )
        return bool(rows[0][0])

    def decline(self, chains: Iterable[UUID], *, seconds: float) -> None:
        """Leave these runs alone for so long: kept in memory, nothing is written. The last word counts; 0: no longer."""
        until = time.monotonic() + seconds
        for chain in chains:
            if seconds:
                self._declined[chain] = until
            else:
                self._declined.pop(chain, None)

    def is_declined(self, chain: UUID) -> bool:
        return bool(self._declined) and self._declined.get(chain, 0.0) > time.monotonic()

    def _exclusion(self, column: str) -> tuple[str, list[Any]]:
        if not self._declined:
            return "", []
        now = time.monotonic()
        self._declined = {chain: until for chain, until in self._declined.items() if until > now}
        test, parameter = self.sql.among(list(self._declined), "uuid")
        return f" and not ({column} {test})", [parameter]

    # --- reading -----------------------------------------------------------------------------------------------------

    def facts(self, runs: Collection[UUID]) -> dict[UUID, RunFacts]:
        if not runs:
            return {}
        test, parameter = self.sql.among(runs, "uuid")
        rows = self.sql.select(
            "select id, workflow_id, workflow, version, args, seed, carried, attempt, parent, parent_chain_id, parent_seq,"
            f" parent_run_id, parent_close, expires_at, run_timeout, started_at, snapshot from temporalex_instance where id {test}",
            [parameter],
            (
                *("uuid", "text", "text", "int4", "bytea", "int8", "bytea", "int4", "text", "uuid", "int4"),
                *("uuid", "text", "timestamptz", "float8", "timestamptz", "bytea"),
            ),
        )
        decode = codec().decode
        found = {}
        for (
            run,
            wid,
            workflow,
            version,
            args,
            seed,
            carried,
            attempt,
            parent,
            p_chain,
            p_seq,
            p_run,
            p_close,
            expires,
            run_timeout,
            started,
            snapshot,
        ) in rows:
            with reading(f"the input of {workflow} {wid}", run=run):
                found[run] = RunFacts(
                    run_id=run,
                    workflow_id=wid,
                    workflow=workflow,
                    version=version,
                    args=decode(args),
                    seed=seed,
                    carried=None if carried is None else decode(carried),
                    attempt=attempt,
                    parent=parent,
                    parent_chain=p_chain,
                    parent_seq=p_seq,
                    parent_run=p_run,
                    parent_close=p_close,
                    expires_at=expires,
                    run_timeout=run_timeout,
                    started_at=started,
                    snapshot=None if snapshot is None else decode(snapshot),
                )
        return found

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        found: dict[UUID, list[HistoryEvent]] = {run: [] for run in after}
        rows = self.sql.write_returning(
            (("run_id", "uuid"), ("seq", "int4")),
            "select h.run_id, h.seq, h.activation, h.kind, h.at, h.attributes from temporalex_history_event h, v"
            " where h.run_id {key} and h.run_id = v.run_id and h.seq > v.seq order by h.run_id, h.seq",
            after.items(),
            ("uuid", "int4", "int4", "text", "timestamptz", "bytea"),
            key="run_id",
        )
        decode = codec().decode
        for run, seq, activation, kind, at, attributes in rows:
            with reading(f"event {seq} ({kind}) of run {run}", run=run):
                found[run].append(HistoryEvent(seq, activation, kind, at, decode(attributes), len(attributes)))
        return found

    def page(self, run_id: UUID, *, after: int, most: int) -> list[HistoryEvent]:
        rows = self.sql.select(
            "select seq, activation, kind, at, attributes from temporalex_history_event where run_id = %s and seq > %s"
            " order by seq limit %s",
            [run_id, after, most],
            ("int4", "int4", "text", "timestamptz", "bytea"),
        )
        decode, events = codec().decode, []
        for seq, activation, kind, at, attributes in rows:
            with reading(f"event {seq} ({kind}) of run {run_id}", run=run_id):
                events.append(HistoryEvent(seq, activation, kind, at, decode(attributes), len(attributes)))
        return events

    def markers(self, run_id: UUID) -> set[str]:
        rows = self.sql.select(
            "select attributes from temporalex_history_event where run_id = %s and kind = 'PatchMarked'",
            [run_id],
            ("bytea",),
        )
        decode = codec().decode
        with reading(f"a marker of run {run_id}", run=run_id):
            return {decode(attributes)["id"] for (attributes,) in rows}

    def now(self) -> datetime:
        if self.clock is not None:
            return self.clock()
        now, parameters = self.sql.instant(None, live=True)
        moment: datetime = self.sql.select(f"select {now}", parameters, ("timestamptz",))[0][0]
        return moment

    def new_token(self) -> int:
        return token()

    def new_run_id(self) -> UUID:
        return uuid7()

    def next_due(self, *, queues: Sequence[str]) -> float | None:
        """Seconds until a run or an activity of these queues is due: 0.0 now (or fresh messages), None nothing ever."""
        now, parameters = self.sql.instant(self.clock)
        declined, excluded = self._exclusion("id")
        # one probe of an index for each queue: a membership test would read every row that waits
        runs, tasks, fresh = [], [], []
        for queue in queues:
            runs.append(
                "(select due_at from temporalex_chain where queue = %s and due_at is not null"
                f"{declined} order by due_at limit 1)"
            )
            parameters += [queue, *excluded]
        here, absent = self.here()
        for queue in queues:
            tasks.append(
                f"(select due_at from temporalex_activity_task where queue = %s{here} and owner is null and not atomic"
                " order by due_at limit 1)"
            )
            parameters += [queue, *absent]
        for queue in queues:
            fresh.append("exists (select 1 from temporalex_message where fresh and queue = %s)")
            parameters.append(queue)
        expiry = "(select min(expires_at) from temporalex_activity_task where expires_at is not null)"
        rows = self.sql.select(
            f"select {', '.join([now, *runs, *tasks, expiry])}, {' or '.join(fresh)}",
            parameters,
            ("timestamptz", *("timestamptz" for _ in (*runs, *tasks)), "timestamptz", "bool"),
        )
        moment, *dues, rung = rows[0]
        if rung:
            return 0.0
        waits = [max(0.0, (due - moment).total_seconds()) for due in dues if due is not None]
        if self._declined:  # those that are left alone may be due when that is over
            waits.append(max(0.01, min(self._declined.values()) - time.monotonic()))
        return min(waits, default=None)

    def live_workers_with(self, workflow: str, version: int) -> bool:
        """Whether some worker with a valid lease has registered that version of the class, as of a moment ago."""
        until, there = self._living
        if self.clock is None and time.monotonic() < until:
            return (workflow, version) in there
        now, parameters = self.sql.instant(self.clock)
        rows = self.sql.select(
            f"select cast(workflows as text) from temporalex_worker where expires_at > {now} and buried_at is null",
            parameters,
            ("text",),
        )
        import json  # noqa: PLC0415 - the column is JSON in both dialects, the codec is not for it

        there = {(name, number) for (text,) in rows for name, numbers in json.loads(text).items() for number in numbers}
        self._living = (time.monotonic() + _LIVING_FOR, there)
        return (workflow, version) in there


def _queued(chain: UUID) -> list[int]:
    """The two numbers of the advisory lock of whoever stands in line for a chain."""
    return [_IN_LINE, chain.int & 0x7FFFFFFF]


def _state(row: tuple[Any, ...]) -> RunState:
    chain, run, queue, head, length, activations, stamp, due, deadline, attempt, crashes, closed, paused, atomic = row
    return RunState(
        chain_id=chain,
        run_id=run,
        queue=queue,
        head=head,
        length=length,
        activations=activations,
        stamp=stamp,
        due_at=due,
        deadline=deadline,
        attempt=attempt,
        crashes=crashes,
        closed=closed,
        paused=paused,
        atomic_due=atomic,
    )
