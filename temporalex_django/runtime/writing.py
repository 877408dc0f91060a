"""What a turn stores: one statement a table, however many runs it advanced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from temporalex_django.authoring import activity
from temporalex_django.conf import codec
from temporalex_django.runtime.dialect import Columns, Dialect
from temporalex_django.runtime.judging import audit_refused
from temporalex_django.runtime.relatives import Relatives
from temporalex_django.runtime.room import Room
from temporalex_django.runtime.storage import NewTask, RunWrite, TaskState

_json = msgspec.json.Encoder().encode

_EVENT: Columns = (
    *(("run_id", "uuid"), ("seq", "int4"), ("activation", "int4"), ("kind", "text"), ("at", "timestamptz")),
    ("attributes", "bytea"),
)
_TASK: Columns = (
    *(("chain_id", "uuid"), ("run_id", "uuid"), ("workflow_id", "text"), ("workflow", "text"), ("seq", "int4")),
    *(("activity", "text"), ("call", "bytea"), ("options", "bytea"), ("queue", "text"), ("run_queue", "text")),
    *(("atomic", "bool"), ("max_attempts", "int4"), ("scheduled_at", "timestamptz"), ("due_at", "timestamptz")),
    *(("close_at", "timestamptz"), ("schedule_to_start", "float8"), ("start_to_close", "float8")),
    *(("heartbeat_timeout", "float8"), ("tags", "jsonb"), ("metadata", "jsonb"), ("expires_at", "timestamptz")),
)
_CHAIN: Columns = (
    *(("id", "uuid"), ("run_id", "uuid"), ("due_at", "timestamptz"), ("deadline", "timestamptz"), ("head", "int8")),
    *(
        ("length", "int4"),
        ("activations", "int4"),
        ("stamp", "timestamptz"),
        ("attempt", "int4"),
        ("atomic_due", "timestamptz"),
    ),
    *(("closed", "bool"), ("paused", "bool"), ("crashes", "int4")),
)
_RUN: Columns = (
    *(("id", "uuid"), ("previous", "uuid"), ("args", "bytea"), ("seed", "int8"), ("carried", "bytea")),
    ("created_at", "timestamptz"),
)
#: Columns of a run that a turn may change, and how their values are stored.
_INSTANCE = {
    "status": "text",
    "published": "bytea",
    "accepts": "jsonb",
    "waiting_for": "jsonb",
    "started_at": "timestamptz",
    "closed_at": "timestamptz",
    "closing": "bytea",
    "blocked": "jsonb",
}
#: A run's own columns that its successor inherits.
_INHERITED = (
    "chain_id, workflow_id, workflow, version, queue, parent, parent_chain_id, parent_run_id, parent_seq, parent_close, expires_at, run_timeout,"
    " subject_type_id, subject_id, tags, metadata, search_attributes"
)


def insert(table: str, columns: Columns) -> str:
    """The body of a statement that inserts ``v``."""
    names = ", ".join(name for name, _ in columns)
    return f"insert into {table} ({names}) select {names} from v"


_TAKEN: Columns = (*_TASK, ("owner", "int8"), ("attempt", "int4"))
_TASK_CALL = [name for name, _ in _TASK].index("call")


#: Local activities of one turn that begin at once, however busy the worker is.
_MOST_LOCAL = 400


@dataclass(slots=True)
class _Taking:
    """New activities that are claimed while they are written; see ``TurnStatements.taking``."""

    owner: int
    room: Room
    locals: int
    queues: frozenset[str]
    taken: list[TaskState]
    chosen: set[tuple[UUID, int]] = field(default_factory=set)


class TurnStatements(ABC):
    """The writing half of ``Storage``. All of it runs inside the turn's transaction, on chains that it has locked."""

    sql: Dialect
    clock: Callable[[], datetime] | None
    alias: str
    _taking: _Taking | None = None

    @abstractmethod
    def now(self) -> datetime: ...

    def write(self, writes: Sequence[RunWrite]) -> None:
        """Store what a turn produced. Locks: the messages and activities that it names, nothing of other runs."""
        Relatives(self.sql, self.clock).write(writes)
        self._write_taken(writes)
        self._warn_of_unfinished([w for w in writes if w.cut_off])
        with self.sql.together():
            encode = codec().encode
            self.sql.write(
                _EVENT,
                insert("temporalex_history_event", _EVENT),
                [
                    (w.run.run_id, e.seq, e.activation, e.kind, e.at, encode(e.attributes))
                    for w in writes
                    for e in w.events
                ],
            )
            self._write_tasks(writes)
            self._write_inbox(writes)
            if refused := [refused for w in writes for refused in w.refused]:
                audit_refused(refused, alias=self.alias)
            self._write_runs(writes)
            self._write_chains(writes)

    def _warn_of_unfinished(self, writes: Sequence[RunWrite]) -> None:
        for write in writes:
            rows = self.sql.select(
                "select name from temporalex_message where chain_id = %s and kind = 'update' and outcome_status = 'accepted'"
                " order by id",
                [write.run.chain_id],
                ("text",),
            )
            write.warn_of_unfinished([name for (name,) in rows])

    def _write_chains(self, writes: Sequence[RunWrite]) -> None:
        self.sql.write(
            _CHAIN,
            "update temporalex_chain set run_id = v.run_id, due_at = v.due_at, deadline = v.deadline, head = v.head,"
            " length = v.length, activations = v.activations, stamp = v.stamp, attempt = v.attempt,"
            " atomic_due = v.atomic_due, closed = v.closed, paused = v.paused, crashes = v.crashes,"
            " live_key = case when v.closed then null else live_key end"
            " from v where temporalex_chain.id = v.id and temporalex_chain.id {key}",
            [_chain_row(w) for w in writes],
            key="id",
        )

    @contextmanager
    def taking(self, *, owner: int, room: Room, queues: Collection[str]) -> Iterator[list[TaskState]]:
        """While inside, new activities of ``queues`` for which there is ``room`` are written as claimed by ``owner``, and given here.

        Local ones come first, and without regard to ``room`` up to a limit: what is beyond it waits like any other in the queue of
        its run. Spares the claim. Whoever takes them must not begin before the commit. Only where an insert gives its ids back together:
        elsewhere (SQLite) the list stays empty.
        """
        able = self.sql.vendor == "postgresql"
        self._taking = _Taking(owner, room if able else Room(), _MOST_LOCAL if able else 0, frozenset(queues), [])
        try:
            yield self._taking.taken
        finally:
            self._taking = None

    def _write_tasks(self, writes: Sequence[RunWrite]) -> None:
        encode = codec().encode
        self.sql.write(
            _TASK,
            insert("temporalex_activity_task", _TASK),
            [task_row(t, run_queue=w.run.queue, encode=encode) for w in writes for t in w.tasks if not self._takes(t)],
        )
        again = [(w.run.run_id, seq, attempt, due) for w in writes for seq, (attempt, due) in w.retried_tasks.items()]
        again += [(t.run_id, t.seq, t.attempt, t.due_at) for w in writes for t in w.tasks if t.due_at is not None]
        self.sql.write(
            (("run_id", "uuid"), ("seq", "int4"), ("attempt", "int4"), ("due_at", "timestamptz")),
            "update temporalex_activity_task set attempt = v.attempt, due_at = v.due_at from v"
            " where temporalex_activity_task.run_id = v.run_id and temporalex_activity_task.seq = v.seq"
            " and temporalex_activity_task.run_id {key}",
            again,
            key="run_id",
        )
        self.sql.write(
            (("run_id", "uuid"), ("seq", "int4")),
            "delete from temporalex_activity_task where run_id {key} and (run_id, seq) in (select run_id, seq from v)",
            [(w.run.run_id, seq) for w in writes for seq in w.cancelled_tasks],
            key="run_id",
        )
        dropped = [w.run.run_id for w in writes if w.drop_tasks]
        if dropped:
            test, parameter = self.sql.among(dropped, "uuid")
            self.sql.execute(f"delete from temporalex_activity_task where run_id {test}", [parameter])

    def _takes(self, task: NewTask) -> bool:
        return self._taking is not None and (task.run_id, task.seq) in self._taking.chosen

    def _write_taken(self, writes: Sequence[RunWrite]) -> None:
        """Insert the activities that this worker takes at once, as claimed in their first attempt."""
        taking = self._taking
        if taking is None:
            return
        every = [(w, t) for w in writes for t in w.tasks if not t.atomic and t.activity in activity.registry]
        local = [(w, t) for w, t in every if t.local][: taking.locals]
        taking.locals -= len(local)
        for _, t in local:
            taking.room.takes(t.activity)
        new = [(w, t) for w, t in every if not t.local and t.queue in taking.queues and taking.room.takes(t.activity)]
        new = local + new
        if not new:
            return
        encode, rows = codec().encode, []
        for w, t in new:
            rows.append((*task_row(t, run_queue=w.run.queue, encode=encode), taking.owner, 1))
        ids = self.sql.write_returning(
            _TAKEN,
            insert("temporalex_activity_task", _TAKEN) + " returning id, run_id, seq",
            rows,
            ("int8", "uuid", "int4"),
        )
        by_command = {(run, seq): task for task, run, seq in ids}
        taking.chosen.update(by_command)
        decode = codec().decode
        # a copy of the arguments: an activity may change what it is given
        for (_, t), stored in zip(new, rows, strict=True):
            args, kwargs = decode(stored[_TASK_CALL])
            taking.taken.append(_taken(t, args, kwargs, by_command[t.run_id, t.seq], taking.owner))

    def _write_inbox(self, writes: Sequence[RunWrite]) -> None:
        encode = codec().encode
        consumed = [i for w in writes for i in w.consumed]
        if consumed:
            test, parameter = self.sql.among(consumed, "int8")
            self.sql.execute(f"delete from temporalex_message where id {test}", [parameter])
        parked = [i for w in writes for i in w.parked]
        if parked:
            test, parameter = self.sql.among(parked, "int8")
            self.sql.execute(f"update temporalex_message set fresh = false where id {test}", [parameter])
        self.sql.write(
            (("id", "int8"), ("status", "text"), ("outcome", "bytea")),
            "update temporalex_message set fresh = false, settled = true, outcome_status = v.status, outcome = v.outcome"
            " from v where temporalex_message.id = v.id and temporalex_message.id {key}",
            [(i, outcome.status, encode(outcome.value)) for w in writes for i, outcome in w.settled.items()],
            key="id",
        )
        self.sql.write(
            (("chain_id", "uuid"), ("dedupe", "text"), ("status", "text"), ("outcome", "bytea")),
            "update temporalex_message set outcome_status = v.status, outcome = v.outcome from v"
            " where temporalex_message.chain_id = v.chain_id and temporalex_message.dedupe = v.dedupe"
            " and temporalex_message.chain_id {key}",
            [(w.run.chain_id, i, o.status, encode(o.value)) for w in writes for i, o in w.outcomes.items()],
            key="chain_id",
        )
        self.sql.write(
            (("chain_id", "uuid"), ("status", "text"), ("outcome", "bytea")),
            "update temporalex_message set outcome_status = v.status, outcome = v.outcome from v"
            " where temporalex_message.chain_id = v.chain_id and temporalex_message.chain_id {key}"
            " and temporalex_message.kind = 'update' and temporalex_message.outcome_status = 'accepted'",
            [(w.run.chain_id, w.closing.status, encode(w.closing.value)) for w in writes if w.closing is not None],
            key="chain_id",
        )
        ended = [w.run.chain_id for w in writes if w.closing is not None]
        if ended:  # what waited behind a handler, a pause or a block is answered by a turn that finds the run closed
            test, parameter = self.sql.among(ended, "uuid")
            self.sql.execute(
                f"update temporalex_message set fresh = true where chain_id {test} and not settled and not fresh",
                [parameter],
            )
        self.sql.write(
            (("id", "int8"), ("after", "int4")),
            "update temporalex_message set fresh = false, after = v.after from v"
            " where temporalex_message.id = v.id and temporalex_message.id {key}",
            [(i, after) for w in writes for i, after in w.waiting.items()],
            key="id",
        )

    def _write_runs(self, writes: Sequence[RunWrite]) -> None:
        changes = [(w.run.run_id, w.instance) for w in writes if w.instance]
        encode = codec().encode
        if changes:
            names = tuple(name for name in _INSTANCE if any(name in values for _, values in changes))
            columns: Columns = (
                ("id", "uuid"),
                *((name, _INSTANCE[name]) for name in names),
                *((f"has_{name}", "bool") for name in names),
            )
            sets = ", ".join(
                f"{name} = case when v.has_{name} then v.{name} else temporalex_instance.{name} end" for name in names
            )
            self.sql.write(
                columns,
                f"update temporalex_instance set {sets} from v"
                " where temporalex_instance.id = v.id and temporalex_instance.id {key}",
                [
                    (
                        run,
                        *(_stored(n, values[n], encode) if n in values else None for n in names),
                        *(n in values for n in names),
                    )
                    for run, values in changes
                ],
                key="id",
            )
        successors = [w for w in writes if w.next_run is not None]
        if successors:
            now = max(w.run.stamp for w in successors if w.run.stamp is not None)
            inherited = ", ".join(f"o.{name.strip()}" for name in _INHERITED.split(","))
            self.sql.write(
                _RUN,
                f"insert into temporalex_instance (id, args, seed, carried, created_at, {_INHERITED})"
                f" select v.id, v.args, v.seed, v.carried, v.created_at, {inherited}"
                " from v join temporalex_instance o on o.id = v.previous where o.id {key}",
                [
                    (
                        n.run_id,
                        w.run.run_id,
                        encode(n.args),
                        n.seed,
                        None if n.carried is None else encode(n.carried),
                        now,
                    )
                    for w in successors
                    if (n := w.next_run) is not None
                ],
                key="previous",
            )


def _chain_row(w: RunWrite) -> tuple[Any, ...]:
    run = w.run
    if w.next_run is not None:  # the chain goes on with a run that has no history yet; time does not go back
        due = run.due_at or run.stamp
        return (
            run.chain_id,
            w.next_run.run_id,
            due,
            run.deadline,
            None,
            0,
            0,
            run.stamp,
            0,
            None,
            False,
            run.paused,
            0,
        )
    due, deadline = (None, None) if run.closed else (run.due_at, run.deadline)
    counts = (run.length, run.activations, run.stamp, run.attempt, run.atomic_due)
    crashes = 0 if w.executed else run.crashes
    return (run.chain_id, run.run_id, due, deadline, run.head, *counts, run.closed, run.paused, crashes)


def _stored(name: str, value: Any, encode: Callable[[Any], bytes]) -> Any:
    kind = _INSTANCE[name]
    if kind == "bytea":
        return encode(value)
    return _text(value) if kind == "jsonb" else value


def _text(value: Any) -> str | None:
    return None if value is None else _json(value).decode()


def task_row(task: NewTask, *, run_queue: str, encode: Callable[[Any], bytes]) -> tuple[Any, ...]:
    """The row of a scheduled activity, in the order of ``_TASK``."""
    options = task.options
    to_start = options.get("schedule_to_start")
    total = options.get("schedule_to_close")
    close_at = None if total is None else task.scheduled_at + timedelta(seconds=total)
    expires = None
    if not task.atomic:  # atomic ones run inside a turn of their own run: nobody but the turn can time them out
        start_by = None if to_start is None else task.scheduled_at + timedelta(seconds=to_start)
        expires = earliest(close_at, start_by)
    return (
        *(task.chain_id, task.run_id, task.workflow_id, task.workflow, task.seq, task.activity),
        *(encode([list(task.args), dict(task.kwargs)]), encode(dict(options)), task.queue, run_queue, task.atomic),
        *(int((options.get("retry") or {}).get("max_attempts") or 0), task.scheduled_at, task.scheduled_at, close_at),
        *(
            to_start,
            options.get("start_to_close"),
            options.get("heartbeat"),
            _text(task.tags),
            _text(task.metadata),
            expires,
        ),
    )


def _taken(task: NewTask, args: Any, kwargs: Any, task_id: int, owner: int) -> TaskState:
    return TaskState(
        id=task_id,
        chain_id=task.chain_id,
        run_id=task.run_id,
        workflow_id=task.workflow_id,
        workflow=task.workflow,
        seq=task.seq,
        activity=task.activity,
        args=args,
        kwargs=kwargs,
        options=task.options,
        queue=task.queue,
        atomic=False,
        attempt=1,
        scheduled_at=task.scheduled_at,
        due_at=task.scheduled_at,
        owner=owner,
    )


def earliest(*moments: datetime | None) -> datetime | None:
    """The first of those that there are."""
    return min((m for m in moments if m is not None), default=None)
