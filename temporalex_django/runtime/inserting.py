"""What callers insert: starts and messages. One statement each, in whatever transaction the caller has open.

None of it touches the row of a run that exists (page 3.2): a sender never makes a turn wait, and two requests that signal two
runs cannot deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError, connections, models, transaction

from temporalex_django.conf import codec, get_settings
from temporalex_django.core.senders import Sender
from temporalex_django.errors import AlreadyRunning, WorkflowNotFound
from temporalex_django.runtime.django import DjangoStorage
from temporalex_django.runtime.ids import token, uuid7
from temporalex_django.runtime.lookup import as_run_id, run_id_taken
from temporalex_django.runtime.resent import Sent
from temporalex_django.runtime.storage import Outcome, live_key

CHANNEL = "temporalex"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStart:
    """A run to start. ``scope`` says among which open runs the id is unique: global, workflow, version, or none.

    ``args``, ``tags``, ``metadata``, ``search_attributes`` and ``snapshot`` are plain JSON data. ``timeout`` (seconds) is for
    the whole chain, ``run_timeout`` for each run of it. ``generated`` means that the id was drawn just now: nobody else can have it, so nothing is checked.
    """

    workflow_id: str
    workflow: str
    args: Any
    version: int = 1
    queue: str = "default"
    scope: str = "global"
    generated: bool = False
    seed: int | None = None
    timeout: float | None = None
    run_timeout: float | None = None
    subject: models.Model | None = None
    parent: str | None = None
    parent_chain: UUID | None = None
    parent_run: UUID | None = None
    parent_seq: int | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    search_attributes: Mapping[str, Any] | None = None
    snapshot: Mapping[str, Any] | None = None

    @property
    def first_timeout(self) -> float | None:
        """Seconds until the first run times out."""
        return min((t for t in (self.timeout, self.run_timeout) if t is not None), default=None)

    @property
    def live_key(self) -> str | None:
        return live_key(self.scope, workflow=self.workflow, version=self.version, workflow_id=self.workflow_id)


class Started(NamedTuple):
    """A chain, and its first run."""

    chain_id: UUID
    run_id: UUID


class Inserted(NamedTuple):
    """``new`` is False when a message of that chain and ``dedupe`` was there already: it was sent again."""

    id: int
    new: bool


def insert_start(start: NewStart, *, storage: DjangoStorage) -> Started:
    """Insert a chain that is due now, and its first run.

    Inside the caller's transaction if one is open, and it stays usable whatever happens here. Locks nothing that exists. Waits for
    another open transaction that starts the same id, at most ``START_LOCK_WAIT``. Raises ``AlreadyRunning``, with ``pending=True``
    when that wait was in vain, and ``InvalidId`` for the id of a run.
    """
    chain, run = uuid7(), uuid7()
    taken = None if start.generated else as_run_id(start.workflow_id)
    if taken is not None and storage.sql.select("select 1 from temporalex_instance where id = %s", [taken], ("int4",)):
        raise run_id_taken(start.workflow_id)
    wide = _wider_scope(start)
    try:
        if storage.sql.vendor == "sqlite":
            done = _insert_sqlite(start, chain, run, storage, wide)
        else:
            done = _insert_postgres(start, chain, run, storage, wide)
    except DatabaseError as exc:
        if not storage.transient(exc) or storage.interrupted(exc):
            raise
        wait = get_settings().START_LOCK_WAIT
        raise AlreadyRunning(
            f"{start.workflow} {start.workflow_id!r}: another transaction that has not ended after {wait:g} s starts this id; "
            "try again when it has",
            pending=True,
        ) from exc
    if not done:
        raise AlreadyRunning(f"{start.workflow} {start.workflow_id!r} is open already: use its handle, or another id")
    return Started(chain, run)


def _wider_scope(start: NewStart) -> tuple[str, list[Any]]:
    """A start of wider scope sees open runs that hold a narrower key: a plain read, and its parameters."""
    if start.generated or start.scope not in {"global", "workflow"}:
        return "", []
    own = "" if start.scope == "global" else " and i.workflow = %s"
    test = (
        "not exists (select 1 from temporalex_instance i join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
        f" where i.workflow_id = %s{own} and c.live_key is not null)"
    )
    return (
        test,
        [start.workflow_id, *([] if start.scope == "global" else [start.workflow])],
    )


_RUN_COLUMNS = (
    "id, chain_id, workflow_id, workflow, version, queue, args, seed, parent, parent_chain_id, parent_run_id,"
    " parent_seq, subject_type_id, subject_id, tags, metadata, search_attributes, run_timeout, snapshot"
)


def _run_values(start: NewStart, chain: UUID, run: UUID, alias: str) -> list[Any]:
    encode = codec().encode
    subject_type = subject_id = None
    if start.subject is not None:
        subject_type = ContentType.objects.db_manager(alias).get_for_model(start.subject).pk
        subject_id = str(start.subject.pk)
    return [
        *(run, chain, start.workflow_id, start.workflow, start.version, start.queue, encode(start.args)),
        start.seed if start.seed is not None else token(),
        *(start.parent, start.parent_chain, start.parent_run, start.parent_seq, subject_type, subject_id),
        *(None if v is None else json.dumps(v) for v in (start.tags, start.metadata, start.search_attributes)),
        *(start.run_timeout, None if start.snapshot is None else encode(dict(start.snapshot))),
    ]


_RUN_KINDS = (
    *(
        "uuid",
        "uuid",
        "text",
        "text",
        "int4",
        "text",
        "bytea",
        "int8",
        "text",
        "uuid",
        "uuid",
        "int4",
        "int4",
        "text",
    ),
    *("jsonb", "jsonb", "jsonb", "float8", "bytea"),
)


def _insert_postgres(
    start: NewStart, chain: UUID, run: UUID, storage: DjangoStorage, wide: tuple[str, list[Any]]
) -> bool:
    """Chain and run in one statement. With a key that others may hold, a savepoint and a lock timeout around it."""
    test, test_parameters = wide
    now, clock = storage.sql.instant(storage.clock, live=True)
    later = f"{now} + %s * interval '1 second'"
    deadline = "null::timestamptz" if start.first_timeout is None else later
    expires = "null::timestamptz" if start.timeout is None else later
    values = ", ".join(f"%s::{kind}" for kind in _RUN_KINDS)
    sql = (
        "with c as (insert into temporalex_chain (id, run_id, queue, due_at, deadline, live_key)"
        f" select %s::uuid, %s::uuid, %s::text, {now}, {deadline}, %s::text{f' where {test}' if test else ''}"
        " on conflict (live_key) where live_key is not null do nothing returning id)"
        f" insert into temporalex_instance ({_RUN_COLUMNS}, created_at, expires_at) select {values}, {now}, {expires} from c"
    )
    timeout = [] if start.first_timeout is None else [*clock, start.first_timeout]
    parameters = [chain, run, start.queue, *clock, *timeout, start.live_key, *test_parameters]
    parameters += [*_run_values(start, chain, run, storage.alias), *clock]
    parameters += [] if start.timeout is None else [*clock, start.timeout]
    if start.generated or start.live_key is None:
        return storage.sql.execute(sql, parameters) == 1
    wait = f"{max(1, int(get_settings().START_LOCK_WAIT * 1000))}ms"
    with transaction.atomic(using=storage.alias):
        # current_setting first: inside the caller's transaction the setting must be as it was
        before = storage.sql.select(
            "select current_setting('lock_timeout'), set_config('lock_timeout', %s, true)", [wait], ("text", "text")
        )[0][0]
        done = storage.sql.execute(sql, parameters) == 1
        storage.sql.execute("select set_config('lock_timeout', %s, true)", [before])
    return done


def _insert_sqlite(
    start: NewStart, chain: UUID, run: UUID, storage: DjangoStorage, wide: tuple[str, list[Any]]
) -> bool:
    test, test_parameters = wide
    with storage.transaction():
        now = storage.now()
        deadline, expires = (
            None if seconds is None else now + timedelta(seconds=seconds)
            for seconds in (start.first_timeout, start.timeout)
        )
        done = storage.sql.execute(
            "insert or ignore into temporalex_chain (id, run_id, queue, due_at, deadline, live_key)"
            f" select %s, %s, %s, %s, %s, %s where {test or '1'}",
            [chain, run, start.queue, now, deadline, start.live_key, *test_parameters],
        )
        if done == 1:
            marks = ", ".join("%s" for _ in _RUN_KINDS)
            storage.sql.execute(
                f"insert into temporalex_instance ({_RUN_COLUMNS}, created_at, expires_at) values ({marks}, %s, %s)",
                [*_run_values(start, chain, run, storage.alias), now, expires],
            )
    return done == 1


def insert_message(
    chain: UUID,
    *,
    kind: str,
    name: str,
    body: Any,
    dedupe: str | None = None,
    sender: Sender | None = None,
    exact: bool = False,
    storage: DjangoStorage,
) -> Inserted:
    """Put a message into a chain's inbox: one INSERT that locks nothing of the run.

    With ``dedupe`` (its id) a second one of that chain gives the first one's row back; one that was rejected or never delivered is
    sent anew, since only what was accepted occupies its id. Raises ``WorkflowNotFound`` for an unknown chain, and ``MessageIdTaken`` for
    an id that another message has (``exact``: one with another body is another one).
    """
    now, clock = storage.sql.instant(storage.clock, live=True)
    sql = (
        "insert into temporalex_message (chain_id, queue, kind, name, body, dedupe, sender_key, sender_name, created_at)"
        f" select c.id, c.queue, %s, %s, %s, %s, %s, %s, {now} from temporalex_chain c where c.id = %s"
    )
    who = (None, None) if sender is None else (sender.key, sender.name)
    parameters = [kind, name, codec().encode(body), dedupe, *who, *clock, chain]
    if dedupe is None:
        rows = storage.sql.select(f"{sql} returning id", parameters, ("int8",))
        if not rows:
            raise WorkflowNotFound(f"no run has the chain {chain}")
        return Inserted(rows[0][0], True)
    sql += " on conflict (chain_id, dedupe) where dedupe is not null do nothing returning id"
    rows = storage.sql.select(sql, parameters, ("int8",))
    if not rows and storage.sql.execute(
        "delete from temporalex_message where chain_id = %s and dedupe = %s and settled"
        " and outcome_status in ('rejected', 'undelivered')",
        [chain, dedupe],
    ):
        rows = storage.sql.select(sql, parameters, ("int8",))
    if rows:
        return Inserted(rows[0][0], True)
    before = sent_before(chain, dedupe, storage=storage)
    if before is None:
        raise WorkflowNotFound(f"no run has the chain {chain}")
    number, sent = before
    sent.require_same(dedupe, Sent(kind, name, body, sender), exact=exact)
    return Inserted(number, False)


def sent_before(chain: UUID, dedupe: str, *, storage: DjangoStorage) -> tuple[int, Sent] | None:
    """The message of a chain that has this id, and its number."""
    rows = storage.sql.select(
        "select id, kind, name, body, sender_key, sender_name from temporalex_message where chain_id = %s and dedupe = %s",
        [chain, dedupe],
        ("int8", "text", "text", "bytea", "text", "text"),
    )
    if not rows:
        return None
    number, kind, name, body, key, who = rows[0]
    return number, Sent(kind, name, codec().decode(body), None if key is None else Sender(key, who))


def message_outcome(message: int, *, storage: DjangoStorage) -> Outcome | None:
    """What became of a message; None while nothing has. ``accepted`` is an outcome that another one follows."""
    rows = storage.sql.select(
        "select outcome_status, outcome from temporalex_message where id = %s", [message], ("text", "bytea")
    )
    return _outcome(rows)


def update_outcome(chain: UUID, dedupe: str, *, storage: DjangoStorage) -> Outcome | None:
    """The same by update id."""
    rows = storage.sql.select(
        "select outcome_status, outcome from temporalex_message where chain_id = %s and dedupe = %s",
        [chain, dedupe],
        ("text", "bytea"),
    )
    return _outcome(rows)


def _outcome(rows: Sequence[tuple[Any, ...]]) -> Outcome | None:
    if not rows or rows[0][0] is None:
        return None
    status, value = rows[0]
    return Outcome(status=status, value=None if value is None else codec().decode(value))


def ring(*, alias: str, queues: Iterable[str] = ()) -> None:
    """Wake idle workers: a hint, sent now, as a statement of its own (inside a transaction it would serialise commits).

    Call it from ``on_commit``. Nothing on SQLite, in a transaction, or behind a pooler; what goes wrong is nobody's business.
    """
    connection = connections[alias]
    if connection.vendor != "postgresql" or connection.in_atomic_block or get_settings().POOLED:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("select pg_notify(%s, %s)", [CHANNEL, ",".join(sorted(set(queues)))])
    except DatabaseError:
        return


def ring_on_commit(*, alias: str, queues: Iterable[str] = ()) -> None:
    """Ring once after the commit of the open transaction, however often it is asked; at once if none is open."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return
    wanted = frozenset(queues)
    for waiting in connection.run_on_commit:
        callback = waiting[1]
        if isinstance(callback, _Ring) and callback.alias == alias:
            callback.queues |= wanted
            return
    transaction.on_commit(_Ring(alias, wanted), using=alias, robust=True)


class _Ring:
    def __init__(self, alias: str, queues: frozenset[str]) -> None:
        self.alias = alias
        self.queues = queues

    def __call__(self) -> None:
        ring(alias=self.alias, queues=self.queues)
