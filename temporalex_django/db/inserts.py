"""Inserts of callers: starts and messages. Each is one statement, in the transaction that the caller has open, if any.

No insert touches the row of a run that exists. So a sender never makes a turn wait, and two requests that signal two
runs cannot deadlock (decision 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError, IntegrityError, connections, transaction

from temporalex_django.authoring.run_columns import RUN_COLUMNS
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.names import TABLES, TEMPORAL, all_names
from temporalex_django.core.payloads import codec as payloads
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.db.sql_columns import (
    CHAINS,
    MESSAGES,
    NEW_CHAIN,
    NEW_RUN,
    RUNS,
    json_text,
    new_run_row,
    sender_columns,
    sender_from_columns,
)
from temporalex_django.db.start_statement import (
    OUTGOING,
    SCOPED_CHAIN,
    SCOPED_CHAIN_INSERT,
    UNLESS_OPEN,
    StartShape,
    delay_kind,
    delay_parameters,
    start_statement,
)
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.turn_writes import insert_search_attributes
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.dialect import Placeholder
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.engine.ids import parse_run_id, run_id_taken_error, token, uuid7
from temporalex_django.engine.run_start import RunStart, open_already_error
from temporalex_django.errors import AlreadyRunning, WorkflowNotFound
from temporalex_django.models import Instance

CHANNEL = "temporalex"
#: A notification, for a transaction of its own. Its commit does not wait for the disk, since nothing depends on it.
NOTIFY = "select set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"

_MESSAGE = MESSAGES.pick_columns(
    *("kind", "name", "body", "request_id", "sender_key", "sender_name", "headers", "chain_id", "queue", "created_at")
)
#: Sender and headers of a message that code sends without headers, as most are.
_FROM_CODE: Final = (*sender_columns(None), json_text(None))
_CHAIN: Final = CHAINS.pick_columns(*NEW_CHAIN.column_names, "backend")
_INSERTED = MESSAGES.pick_columns("id", "created_at")
_FINGERPRINT = MESSAGES.pick_columns("id", "kind", "name", "body", "sender_key", "sender_name")


class StartedRun(NamedTuple):
    """The ids of a chain and of its first run."""

    chain_id: UUID
    run_id: UUID


class RemoteStart(NamedTuple):
    """The start of a run on a cluster: its id there, and the row of the outbox that starts it.

    ``hold_seconds`` is the number of seconds for which the caller keeps the row, to send it itself.
    """

    cluster_id: str
    row_id: UUID
    destination: str
    hold_seconds: float

    def row(self, chain_id: UUID) -> list[Any]:
        """Return the columns ``OUTGOING`` of the row, without its times."""
        tries = 1 if self.hold_seconds else 0
        return [self.row_id, chain_id, self.destination, f"{self.destination}.start", codec().encode({}), None, tries]


class InsertedMessage(NamedTuple):
    """The outcome of inserting a message; ``id`` is the primary key of its row.

    ``new`` is False if the chain had a message with this ``request_id`` already, because it was sent twice. ``at`` is
    the database's time of the insert, or None if the message is not new. ``replaced`` is None unless the message
    replaces a failed one; then it is the digest of the payload of that one.
    """

    id: int
    new: bool
    at: datetime | None = None
    replaced: str | None = None


def copy_forked_columns(run_id: UUID, source_run_id: UUID, *, alias: str) -> None:
    """Give the fork ``run_id`` the columns that it takes from the run ``source_run_id``, of which it is a fork.

    The key of the subject is one of them; the subject itself may be gone.
    """
    runs = Instance.objects.using(alias)
    names = [column.name for column in RUN_COLUMNS if column.forked]
    runs.filter(pk=run_id).update(**runs.values(*names).get(pk=source_run_id))


def insert_start(
    start: RunStart, *, ids: StartedRun | None = None, remote: RemoteStart | None = None, storage: DjangoStorage
) -> StartedRun:
    """Insert a chain that is due when its run begins, and that run; return their ids.

    ``ids`` are those that they get; None: new ones. With ``remote``, the run lives on a cluster: a row of the outbox is
    inserted, too, and no worker is notified.

    If the caller has a transaction open, this is part of it, and the transaction stays usable after an error. Workers
    are notified after the commit. It locks no row that exists. It waits at most ``START_LOCK_WAIT`` for another open
    transaction that starts the same id.

    Raises ``AlreadyRunning`` if an open run has the id, with ``pending=True`` if that other transaction is still open
    after the wait. On SQLite it raises Django's ``OperationalError`` then, since the writer lock says nothing about
    ids. Raises ``InvalidId`` if the id is the run id of another run.
    """
    started = ids or StartedRun(uuid7(), uuid7())
    _require_free_run_id(start, storage)
    notifies = storage.clock is None and remote is None
    notifies_with_insert = notifies and not start.search_attributes and _can_notify(storage.alias)
    try:
        with _notification_with_next(start.queue, storage) if notifies_with_insert else nullcontext():
            done = _insert_with_attributes(start, started, storage, remote)
    except DatabaseError as exc:
        # Where one lock keeps all writers out, a wait for it says nothing about this id.
        if storage.sql.writer_lock or not storage.is_transient(exc) or storage.is_interrupted(exc):
            raise
        raise pending_error(start) from exc
    if not done:
        raise open_already_error(start)
    if notifies and not notifies_with_insert:
        notify_on_commit(alias=storage.alias, queues=[start.queue])
    return started


def _require_free_run_id(start: RunStart, storage: DjangoStorage) -> None:
    """Raise ``InvalidId`` if the id that a caller has chosen is the run id of another run."""
    run_id = None if start.generated else parse_run_id(start.workflow_id)
    sql = "select 1 from temporalex_instance where id = %s"
    if run_id is not None and storage.sql.select(sql, [run_id], ("int4",)):
        raise run_id_taken_error(start.workflow_id)


def pending_error(start: RunStart) -> AlreadyRunning:
    """Return the ``AlreadyRunning`` (``pending``) for a start whose id an unfinished transaction is starting."""
    wait = get_settings().START_LOCK_WAIT
    return AlreadyRunning(
        f"{start.workflow} {start.workflow_id!r}: another transaction is starting this id and has not ended after "
        f"{wait:g} s; try again when it has",
        pending=True,
    )


@contextmanager
def _notification_with_next(queue: str, storage: DjangoStorage) -> Iterator[None]:
    """Send a notification together with the next statement that the block sends."""
    take_back = storage.sql.send_with_next(NOTIFY, [CHANNEL, queue])
    try:
        yield
    finally:
        # If nothing was sent, the notification must not wait for a statement of some other code.
        take_back()


def _insert_with_attributes(
    start: RunStart, started: StartedRun, storage: DjangoStorage, remote: RemoteStart | None
) -> bool:
    """Insert chain, run and search attributes; return False if an open run has the business id."""
    if storage.sql.chained_writes:
        insert = _insert_chain_and_run
    else:
        insert = _insert_separately
    wide = ("", []) if start.generated else _wider_scope_test(start)
    if not start.search_attributes:
        return insert(start, started, storage, wide, remote)
    with storage.transaction():
        done = insert(start, started, storage, wide, remote)
        if done:
            insert_search_attributes(storage.sql, [(started.run_id, start.search_attributes)])
    return done


def _wider_scope_test(start: RunStart) -> tuple[str, list[Any]]:
    """Return ``(SQL test, parameters)`` that no open run has the id in a wider scope; empty if none is needed.

    The unique key does not cover runs that were started with another scope, or under a former name of the class.
    """
    own, parameters = "", list[Any]()
    if start.scope == "global":
        names = []
    else:
        names = all_names(start.workflow)
    if start.scope == "none" or (start.scope == "version" and len(names) == 1):
        return "", []
    if names:
        own, parameters = f" and i.workflow in ({', '.join(['%s'] * len(names))})", [*names]
    if start.scope == "version":
        own, parameters = f"{own} and i.version = %s", [*parameters, start.version]
    test = (
        "not exists (select 1 from temporalex_instance i join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
        f" where i.workflow_id = %s{own} and c.open_key is not null)"
    )
    return test, [start.workflow_id, *parameters]


def reopen_chain(chain_id: UUID, start: RunStart, *, storage: DjangoStorage) -> bool:
    """Make a closed chain open again: store the key that keeps its id unique among open runs.

    The open transaction has locked the chain. ``start`` has the values of the chain's run, from which the key is made.
    Returns False if another open run has the id. Waits for another transaction that starts the id.
    """
    test, parameters = _wider_scope_test(start)
    try:
        with storage.savepoint():
            done = storage.sql.execute(
                f"update temporalex_chain set open_key = %s where id = %s and {test or '1 = 1'}",
                [start.open_key, chain_id, *parameters],
            )
    except IntegrityError:
        return False
    return done == 1


def subject_columns(start: RunStart, alias: str) -> dict[str, Any]:
    """Return the columns of a run that name its subject; empty if it has none."""
    if start.subject is None:
        return {}
    kind = ContentType.objects.db_manager(alias).get_for_model(start.subject)
    return {"subject_type_id": kind.pk, "subject_id": str(start.subject.pk)}


def _run_row(start: RunStart, started: StartedRun, alias: str, **when: datetime | None) -> dict[str, Any]:
    """Return the values of the first run by column, without those that are None."""
    subject = subject_columns(start, alias)
    if start.seed is not None:
        seed = start.seed
    else:
        seed = token()
    extra = {"seed": seed, **subject, **when}
    row = zip(NEW_RUN.column_names, new_run_row(start, *started, extra), strict=True)
    return {name: value for name, value in row if value is not None}


def _insert_chain_and_run(
    start: RunStart,
    started: StartedRun,
    storage: DjangoStorage,
    wide: tuple[str, list[Any]],
    remote: RemoteStart | None,
) -> bool:
    """Insert chain and run with one statement; return False if an open run has the business id.

    ``wide`` is an SQL test and its parameters. The wait for another transaction with the same open key is limited. In
    an open transaction that takes a savepoint and a lock timeout.
    """
    test, test_parameters = wide
    sql, key = storage.sql, start.open_key
    now, clock = sql.now_expression(storage.clock, live=True)
    shared = not start.generated and key is not None
    inside = shared and connections[storage.alias].in_atomic_block and not storage.disposable
    run = _run_row(start, started, storage.alias)
    run |= _remote_columns(remote)
    shape = StartShape(
        columns=tuple(run),
        test=test,
        now=now,
        delay=delay_kind(start),
        keyed=key is not None,
        shared=shared,
        bounded=shared and not inside,
        **_chain_limits(start, remote),
        expires=start.execution_timeout is not None,
        remote=remote is not None,
    )
    begin = [*clock, *delay_parameters(start)]
    parameters: list[Any] = [*started, start.queue, *([TEMPORAL] if shape.remote else begin)]
    if shape.limited:
        parameters += [start.start_before]
    if shape.ends:
        parameters += [*begin, start.first_timeout]
    if shape.limited:
        parameters += [start.start_before]
    if shape.keyed:
        parameters += [key]
    if shape.bounded:
        parameters += [f"{max(1, int(get_settings().START_LOCK_WAIT * 1000))}ms"]
    parameters += [*test_parameters, *run.values(), *clock]
    if shape.delay:
        parameters += begin
    if shape.expires:
        parameters += [*begin, start.execution_timeout]
    parameters += _outbox_parameters(remote, started, clock, begin if shape.delay else None)
    if not inside:
        return sql.execute(start_statement(sql.placeholder, shape), parameters) == 1
    # The savepoint keeps the caller's transaction usable after a lock timeout.
    with transaction.atomic(using=storage.alias), sql.lock_timeout(get_settings().START_LOCK_WAIT):
        return sql.execute(start_statement(sql.placeholder, shape), parameters) == 1


def _chain_limits(start: RunStart, remote: RemoteStart | None) -> dict[str, bool]:
    """Return the fields of ``StartShape`` about the time at which a turn ends the run. A cluster ends its own runs."""
    is_local = remote is None
    return {
        "ends": is_local and start.first_timeout is not None,
        "limited": is_local and start.start_before is not None,
    }


def _remote_columns(remote: RemoteStart | None) -> dict[str, Any]:
    """Return the columns of a run that say where it is on a cluster."""
    return {} if remote is None else {"cluster_id": remote.cluster_id}


def _outbox_parameters(
    remote: RemoteStart | None, started: StartedRun, clock: Sequence[Any], begin: Sequence[Any] | None
) -> list[Any]:
    """Return the parameters of the row of the outbox. ``begin`` are those of the time at which a later run begins."""
    if remote is None:
        return []
    due_at = [*clock, remote.hold_seconds] if begin is None else begin
    return [*clock, *remote.row(started.chain_id), *clock, *due_at]


def _insert_separately(
    start: RunStart,
    started: StartedRun,
    storage: DjangoStorage,
    wide: tuple[str, list[Any]],
    remote: RemoteStart | None,
) -> bool:
    """Insert with a statement for each row, for SQLite; return False if an open run has the business id."""
    test, test_parameters = wide
    with storage.transaction():
        now = storage.now()
        chain = [*started, start.queue, start.due_at(now), start.deadline(now), start.open_key, TABLES]
        if remote is not None:
            chain[3:] = [None, None, start.open_key, TEMPORAL]
        done = storage.sql.execute(
            f"{_CHAIN.insert_parameters(storage.sql.placeholder, f'where {test or 1}')} {UNLESS_OPEN}",
            [*chain, *test_parameters],
        )
        if done == 1:
            values = _run_row(
                start,
                started,
                storage.alias,
                created_at=now,
                starts_at=start.starts_at(now),
                expires_at=start.expires_at(now),
            )
            if remote is not None:
                values |= {**_remote_columns(remote), "mirrored_at": now}
                due_at = start.starts_at(now) or now + timedelta(seconds=remote.hold_seconds)
                row = OUTGOING.insert_parameters(storage.sql.placeholder, "")
                storage.sql.execute(row, [*remote.row(started.chain_id), now, due_at])
            storage.sql.execute(_run_insert_statement(storage.sql.placeholder, tuple(values)), list(values.values()))
    return done == 1


@lru_cache(maxsize=128)
def _run_insert_statement(placeholder: Placeholder, columns: tuple[str, ...]) -> str:
    return RUNS.pick_columns(*columns).insert_parameters(placeholder, "")


def insert_message(
    chain: UUID,
    *,
    kind: str,
    name: str,
    body: Any,
    request_id: str | None = None,
    sender: Sender | None = None,
    headers: Headers | None = None,
    exact: bool = False,
    storage: DjangoStorage,
) -> InsertedMessage:
    """Insert a message into the inbox of a chain: one INSERT that locks nothing of the run.

    ``kind`` is ``signal``, ``update``, ``cancel`` or another kind of ``InboxMessage``. ``name`` is the name of the
    signal, update or event, and ``body`` its plain payload. ``sender`` None means that code sent the message.
    ``headers`` are checked already.

    ``request_id`` is its message id. A second message with the same id returns the row of the first one. A message that
    was rejected or never delivered is sent again, since only an accepted one occupies its id. So is a signal that has
    become a failed message, with its new payload; ``InsertedMessage.replaced`` is then the digest of the old one.

    Raises ``WorkflowNotFound`` for an unknown chain. Raises ``MessageIdTaken`` if a different message has the id; with
    ``exact``, a message with another payload is different, too.
    """
    now, clock = storage.sql.now_expression(storage.clock, live=True)
    sql = _message_insert(storage.sql.placeholder, now)
    stored = _FROM_CODE if sender is None and headers is None else (*sender_columns(sender), json_text(headers))
    parameters = [kind, name, codec().encode(body), request_id, *stored, *clock, chain]
    if request_id is None:
        rows = storage.sql.select(f"{sql} returning {_INSERTED.names}", parameters, _INSERTED.types)
        if not rows:
            raise WorkflowNotFound(f"no run has the chain {chain}")
        return InsertedMessage(rows[0][0], True, rows[0][1])
    sql += f" on conflict (chain_id, request_id) where request_id is not null do nothing returning {_INSERTED.names}"
    rows = storage.sql.select(sql, parameters, _INSERTED.types)
    replaced = None
    if (
        not rows
        and storage.sql.execute(
            "delete from temporalex_message where chain_id = %s and request_id = %s and settled"
            " and outcome_status in ('rejected', 'undelivered', 'fault')",
            [chain, request_id],
        )
    ) or (
        not rows
        and (
            replaced := delete_replaced(
                chain, request_id, MessageFingerprint(kind, name, body, sender), storage=storage
            )
        )
    ):
        rows = storage.sql.select(sql, parameters, _INSERTED.types)
    if rows:
        return InsertedMessage(rows[0][0], True, rows[0][1], replaced)
    before = find_message(chain, request_id, storage=storage)
    if before is None:
        raise WorkflowNotFound(f"no run has the chain {chain}")
    number, sent = before
    sent.require_same(request_id, MessageFingerprint(kind, name, body, sender), exact=exact)
    return InsertedMessage(number, False)


def delete_replaced(chain: UUID, request_id: str, sent: MessageFingerprint, *, storage: DjangoStorage) -> str | None:
    """Delete the failed message that a new one replaces, and return the digest of its payload (None: there is none).

    Its row is locked, so only one of two senders replaces it. ``sent`` is the new message; only a failed signal of the
    same name and sender is deleted.
    """
    if sent.kind != "signal":
        return None
    sender_key = None
    if sent.sender is not None:
        sender_key = sent.sender.key
    rows = storage.sql.select(
        "delete from temporalex_message where chain_id = %s and request_id = %s and kind = 'signal' and name = %s"
        f" and outcome_status = 'failed' and {'sender_key is null' if sender_key is None else 'sender_key = %s'} returning body",
        [chain, request_id, sent.name, *([] if sender_key is None else [sender_key])],
        ("bytea",),
    )
    if rows:
        return payloads.digest(codec().decode(rows[0][0]))
    return None


@lru_cache(maxsize=8)
def _message_insert(placeholder: Placeholder, now: str) -> str:
    source = f"from {CHAINS.name} c where c.id = %s"
    return _MESSAGE.insert_parameters(placeholder, source, chain_id="c.id", queue="c.queue", created_at=now)


def find_message(chain: UUID, request_id: str, *, storage: DjangoStorage) -> tuple[int, MessageFingerprint] | None:
    """Return the message of a chain with this message id, as ``(primary key, fingerprint)``, or None.

    The fingerprint has its kind, name, payload and sender, by which it is compared with a message that is sent again.
    """
    rows = storage.sql.select(
        _FINGERPRINT.select("where chain_id = %s and request_id = %s"), [chain, request_id], _FINGERPRINT.types
    )
    if not rows:
        return None
    number, kind, name, body, key, sender_name = rows[0]
    return number, MessageFingerprint(kind, name, codec().decode(body), sender_from_columns(key, sender_name))


def message_outcome(message: int, *, storage: DjangoStorage) -> Outcome | None:
    """Return the outcome of the message with the primary key ``message``, or None while it has none.

    The outcome of an update may be ``accepted``, which a later outcome replaces.
    """
    rows = storage.sql.select(
        "select outcome_status, outcome from temporalex_message where id = %s", [message], ("text", "bytea")
    )
    return _decode_outcome(rows)


#: The outcome status of a message to a run on a cluster that was sent, and not judged as far as its row knows.
SENT: Final = "sent"


def update_outcome(chain: UUID, request_id: str, *, storage: DjangoStorage) -> Outcome | None:
    """Return the outcome of the update with the message id ``request_id``, or None while it has none.

    It may be ``accepted``, which a later outcome replaces.
    """
    rows = storage.sql.select(
        "select outcome_status, outcome from temporalex_message where chain_id = %s and request_id = %s",
        [chain, request_id],
        ("text", "bytea"),
    )
    return _decode_outcome(rows)


def _decode_outcome(rows: Sequence[tuple[Any, ...]]) -> Outcome | None:
    # What was sent to a cluster has no outcome until the run there has judged it.
    if not rows or rows[0][0] in (None, SENT):
        return None
    status, value = rows[0]
    return Outcome(status=status, value=None if value is None else codec().decode(value))


def notify(*, alias: str, queues: Iterable[str] = ()) -> None:
    """Wake idle workers of ``queues`` with a notification that is sent now, as a statement of its own.

    Inside a transaction it would make commits wait for each other, so call it from ``on_commit``. It does nothing on
    SQLite, in a transaction, or behind a pooler. Errors are ignored, since nothing depends on a notification.
    """
    if not _can_notify(alias):
        return
    try:
        get_dialect(alias).execute(NOTIFY, [CHANNEL, ",".join(sorted(set(queues)))])
    except DatabaseError:
        return


def _can_notify(alias: str) -> bool:
    """Return True if a notification reaches workers at once. A transaction would hold it back until its commit."""
    connection = connections[alias]
    if connection.in_atomic_block or not get_dialect(alias).listens or get_settings().POOLED:
        return False
    return bool(connection.get_autocommit())


def notify_on_commit(*, alias: str, queues: Iterable[str] = ()) -> None:
    """Notify workers of ``queues`` after the commit of the open transaction, once however often this is called.

    If no transaction is open, it notifies at once. It does nothing if the caller commits by hand: the time of that
    commit is unknown, and workers find due work by themselves.
    """
    connection = connections[alias]
    if not get_dialect(alias).listens or not (connection.in_atomic_block or connection.get_autocommit()):
        return
    queue_names = frozenset(queues)
    # Many starts in one transaction share one notification.
    for waiting in connection.run_on_commit:
        callback = waiting[1]
        if isinstance(callback, _Notification) and callback.alias == alias:
            callback.queues |= queue_names
            return
    connection.on_commit(_Notification(alias, queue_names), robust=True)


class _Notification:
    """A callback for after the commit, which notifies the workers of ``queues``; more queues can be added before."""

    def __init__(self, alias: str, queues: frozenset[str]) -> None:
        self.alias = alias
        self.queues = queues

    def __call__(self) -> None:
        notify(alias=self.alias, queues=self.queues)


# --- many -------------------------------------------------------------------------------------------------------------
#
# Starts of many runs: one statement for the chains and one for the runs, for a thousand of them.


T = TypeVar("T")
#: The number of a start in the call, the start, and the ids of its new rows.
_Entry = tuple[int, RunStart, StartedRun]


def insert_many(starts: Sequence[RunStart], *, storage: DjangoStorage) -> list[StartedRun | AlreadyRunning]:
    """Insert the chains and the first runs of these starts, in the open transaction.

    Returns, in the order of the starts, the ids of a run, or the error if an open run has its id. Of two starts with
    the same id, the first one is inserted. It locks no row that exists. Workers are notified after the commit.

    The chains are inserted in the order of their keys, so that two callers wait for each other in one direction only.
    If another transaction that starts one of the ids does not end within ``START_LOCK_WAIT``, the runs of that
    statement are inserted one by one.
    """
    results: dict[int, StartedRun | AlreadyRunning] = {}
    # Lists are in the order of the ids, so that of the starts is kept.
    numbered = [(number, start, StartedRun(uuid7(), uuid7())) for number, start in enumerate(starts)]
    numbered.sort(key=lambda entry: entry[1].open_key or "")
    for number, start, _ in numbered:
        if _needs_checks(start):
            results[number] = _insert_alone(start, storage)
    now = storage.now()
    for chunk in _chunks((entry for entry in numbered if entry[0] not in results), policy.STARTS_TOGETHER):
        results |= _insert_chunk(chunk, now, storage)
    queues = {start.queue for start in starts}
    if queues and storage.clock is None:
        notify_on_commit(alias=storage.alias, queues=queues)
    return [results[number] for number in range(len(starts))]


def _needs_checks(start: RunStart) -> bool:
    """Return True for an id like a run id, or a class with former names. Only a single insert checks these."""
    return not start.generated and (parse_run_id(start.workflow_id) is not None or len(all_names(start.workflow)) > 1)


def _insert_alone(start: RunStart, storage: DjangoStorage) -> StartedRun | AlreadyRunning:
    try:
        return insert_start(start, storage=storage)
    except AlreadyRunning as exc:
        return exc


def _insert_chunk(
    chunk: Sequence[_Entry], now: datetime, storage: DjangoStorage
) -> dict[int, StartedRun | AlreadyRunning]:
    """Insert runs with few statements, or one by one if that waits for too long. Return outcomes by number."""
    wait = nullcontext() if storage.sql.writer_lock else storage.sql.lock_timeout(get_settings().START_LOCK_WAIT)
    try:
        with storage.savepoint(), wait:
            return _write_chunk(chunk, now, storage)
    except DatabaseError as exc:
        if storage.sql.writer_lock or not storage.is_transient(exc) or storage.is_interrupted(exc):
            raise
    return {number: _insert_alone(start, storage) for number, start, _ in chunk}


def _write_chunk(
    chunk: Sequence[_Entry], now: datetime, storage: DjangoStorage
) -> dict[int, StartedRun | AlreadyRunning]:
    storage.sql.write(
        SCOPED_CHAIN.columns,
        SCOPED_CHAIN_INSERT,
        [
            (*ids, s.queue, s.due_at(now), s.deadline(now), s.open_key, s.scope, s.workflow_id, s.workflow)
            for _, s, ids in chunk
        ],
    )
    inserted = _existing_chains([ids.chain_id for _, _, ids in chunk], storage)
    rows = [_start_row(start, ids, now, storage.alias) for _, start, ids in chunk if ids.chain_id in inserted]
    storage.sql.write(NEW_RUN.columns, NEW_RUN.insert, rows)
    insert_search_attributes(
        storage.sql,
        [(i.run_id, s.search_attributes) for _, s, i in chunk if s.search_attributes and i.chain_id in inserted],
    )
    return {number: ids if ids.chain_id in inserted else open_already_error(start) for number, start, ids in chunk}


def _existing_chains(chains: Sequence[UUID], storage: DjangoStorage) -> set[UUID]:
    """Return the ids for which there is a row: those that an insert did not skip as a conflict."""
    test, parameter = storage.sql.in_array(chains, "uuid")
    rows = storage.sql.select(f"select id from temporalex_chain where id {test}", [parameter], ("uuid",))
    return {row[0] for row in rows}


def _start_row(start: RunStart, ids: StartedRun, now: datetime, alias: str) -> Sequence[Any]:
    extra = {
        "seed": token() if start.seed is None else start.seed,
        "created_at": now,
        "starts_at": start.starts_at(now),
        "expires_at": start.expires_at(now),
        **subject_columns(start, alias),
    }
    return new_run_row(start, *ids, extra)


def _chunks(entries: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(entries)
    while chunk := [*islice(iterator, size)]:
        yield chunk
