"""The outbox: messages that are committed with the caller's transaction, and sent to another system after it.

A row is one message for one destination. Rows of one chain and one destination are sent in the order in which they were
written; a destination that does not answer keeps no other one waiting. The kind of a row names the code that sends it;
this module knows nothing of what rows carry.

A row is sent at least once. A process *claims* it first: it moves the due time of the row by a lease, and commits that.
If the process dies, the row is due again after the lease. So what a kind sends must take effect once, however often it
is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable
from uuid import UUID

from django.db.models import Exists, Min, OuterRef, QuerySet

from temporalex_django import signals
from temporalex_django.conf import codec
from temporalex_django.core import process
from temporalex_django.core.failures import error_line
from temporalex_django.core.messages.sender import Sender
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.db.start_statement import OUTGOING
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.ids import uuid7
from temporalex_django.errors import TemporalexError
from temporalex_django.models import Instance, Lease, Outbox

#: The notification that wakes the dispatchers of workers. No queue has this name.
OUTBOX_QUEUE: Final = "__outbox"


class DeliveryRefused(Exception):
    """Raised by a kind if its destination has refused a row for good; ``error`` says why."""

    def __init__(self, error: TemporalexError) -> None:
        super().__init__(error.message)
        self.error = error


class DeliveryFailed(Exception):
    """Raised by a kind if a row could not be sent now. Its text is stored with the row, so it must quote no payload.

    ``uses_try`` is False if the destination takes no row now, so that the try does not count. It is None if that is not
    known: the try then counts if other rows are sent to the destination between two tries of this one.
    """

    def __init__(self, text: str, *, uses_try: bool | None = True) -> None:
        super().__init__(text)
        self.uses_try = uses_try


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """A row of the outbox that this process has claimed or holds. ``body`` is decoded, and ``tries`` counts this one.

    ``is_held`` is True if the caller that has inserted it sends it itself.
    """

    id: UUID
    chain_id: UUID
    destination: str
    kind: str
    body: Any = field(repr=False)
    tries: int
    created_at: datetime | None = None
    is_held: bool = False


class OutboxKind(Protocol):
    """The code that sends the rows of one kind. ``max_tries`` is the number of tries after which it gives up."""

    max_tries: int

    def prepare(self, row: OutboxRow, storage: DjangoStorage) -> Any:
        """Read from the database what ``send`` needs, and return it."""

    def send(self, prepared: Any) -> Any:
        """Send the row and return the answer, without the database: it may run in another thread.

        Raises ``DeliveryRefused`` for an answer that will not change. After any other error it is tried again.
        """

    def settle(self, row: OutboxRow, answer: Any, storage: DjangoStorage) -> None:
        """Store the answer, in the transaction that deletes the row.

        If it raises ``DeliveryFailed``, nothing is stored, and the row is tried again.
        """

    def refuse(self, row: OutboxRow, error: TemporalexError, storage: DjangoStorage) -> None:
        """Store that the row was refused, in the transaction that makes it a dead letter or drops it.

        If it raises ``DeliveryFailed``, nothing is stored, and the row is tried again.
        """


@runtime_checkable
class QuickKind(Protocol):
    """An ``OutboxKind`` that may store an answer by SQL, so that a row is settled with one statement."""

    def settling(self, row: OutboxRow, answer: Any, storage: DjangoStorage) -> Sequence[tuple[str, list[Any]]] | None:
        """Return updates that store the answer, with their parameters. Each ends with a condition.

        None: call ``settle``.
        """


_loaders: dict[str, Callable[[str], OutboxKind]] = {}


def register(family: str, load: Callable[[str], OutboxKind]) -> None:
    """Register the code that sends rows of kinds whose names begin with ``family`` and a full stop.

    ``load(name)`` returns the kind for the rest of the name. It is called when a row is sent, so it may import modules.
    """
    _loaders[family] = load


def kind_of(name: str) -> OutboxKind | None:
    """Return the code that sends rows of this kind, or None if this process has none."""
    family, _, rest = name.partition(".")
    load = _loaders.get(family)
    return None if load is None else load(rest)


def insert(
    chain_id: UUID,
    *,
    destination: str,
    kind: str,
    body: Any,
    sender: Sender | None = None,
    due_at: datetime | None = None,
    hold_seconds: float = 0.0,
    storage: DjangoStorage,
) -> OutboxRow:
    """Insert a row and return it; workers are notified after the commit.

    ``body`` is plain data. The row is not sent before ``due_at`` (None: at once). A caller that sends it itself holds
    it for ``hold_seconds``. Nobody is notified then, and a dispatcher sends it after that time, if the caller has died.
    """
    row_id, tries = uuid7(), 1 if hold_seconds else 0
    sender_name = None if sender is None else sender.name[:200]
    now, clock = storage.sql.now_expression(storage.clock, live=True)
    due, due_parameters = now, clock
    if due_at is not None:
        due, due_parameters = storage.sql.placeholder("timestamptz"), [max(storage.now(), due_at)]
    elif clock:
        due_parameters = [clock[0] + timedelta(seconds=hold_seconds)]
    elif hold_seconds:
        due, due_parameters = f"{now} + %s * interval '1 second'", [hold_seconds]
    storage.sql.execute(
        OUTGOING.insert_parameters(storage.sql.placeholder, "", created_at=now, due_at=due),
        [row_id, chain_id, destination, kind, codec().encode(body), sender_name, tries, *clock, *due_parameters],
    )
    if not hold_seconds:
        notify_on_commit(alias=storage.alias, queues=[OUTBOX_QUEUE])
    return OutboxRow(
        id=row_id,
        chain_id=chain_id,
        destination=destination,
        kind=kind,
        body=body,
        tries=tries,
        is_held=bool(hold_seconds),
    )


def make_due(row_id: UUID, *, storage: DjangoStorage) -> None:
    """Let a dispatcher send a row now that the caller had kept for itself. It commits, if no transaction is open."""
    Outbox.objects.using(storage.alias).filter(pk=row_id).update(due_at=storage.now())
    notify_on_commit(alias=storage.alias, queues=[OUTBOX_QUEUE])


def due_rows(storage: DjangoStorage) -> QuerySet[Outbox]:
    """Return the rows that may be sent now: they are due, and the first of their chain and destination."""
    rows = Outbox.objects.using(storage.alias).waiting()
    earlier = rows.filter(chain=OuterRef("chain"), destination=OuterRef("destination"), id__lt=OuterRef("id"))
    return rows.filter(~Exists(earlier), due_at__lte=storage.now())


def due_destinations(storage: DjangoStorage) -> list[str]:
    """Return the destinations that have a row to be sent now. One read."""
    return sorted(set(due_rows(storage).values_list("destination", flat=True).order_by()[: policy.OUTBOX_BATCH]))


def oldest_due(storage: DjangoStorage) -> datetime | None:
    """Return the time since which the oldest row waits that should have been sent, or None. One read.

    A row that is to be sent later does not count, while one that failed before counts from its insert.
    """
    rows = Outbox.objects.using(storage.alias).waiting()
    now = storage.now()
    due = rows.filter(due_at__lte=now) | rows.filter(tries__gt=0)
    oldest: datetime | None = due.aggregate(oldest=Min("created_at"))["oldest"]
    return oldest


def claim(
    storage: DjangoStorage, *, limit: int, destination: str | None = None, chain_id: UUID | None = None
) -> list[OutboxRow]:
    """Claim rows that may be sent now and return them, at most one for each chain and destination. It commits."""
    with storage.transaction("outbox claim"):
        due = due_rows(storage)
        if destination is not None:
            due = due.filter(destination=destination)
        if chain_id is not None:
            due = due.filter(chain=chain_id)
        if storage.sql.writer_lock:
            rows = list(due.order_by("due_at")[:limit])
        else:
            rows = list(due.select_for_update(of=("self",), skip_locked=True).order_by("due_at")[:limit])
        leased_until = storage.now() + timedelta(seconds=policy.OUTBOX_LEASE)
        for row in rows:
            row.due_at, row.tries = leased_until, row.tries + 1
        Outbox.objects.using(storage.alias).bulk_update(rows, ["due_at", "tries"])
    decode = codec().decode
    return [
        OutboxRow(
            id=row.id,
            chain_id=row.chain_id,
            destination=row.destination,
            kind=row.kind,
            body=decode(bytes(row.body)),
            created_at=row.created_at,
            tries=row.tries,
        )
        for row in rows
    ]


def deliver(
    rows: Sequence[OutboxRow], *, storage: DjangoStorage, pool: Executor | None = None, own: Iterable[UUID] = ()
) -> int:
    """Send claimed rows, store what became of each, and return how many were sent.

    With ``pool`` they are sent at the same time, and an answer is stored when it comes. ``own`` are rows of the caller:
    the first of them that is refused is deleted, and its error is raised, since the caller learns of it at once.
    """
    sent, refusal = 0, None
    for row, answer in _answers(rows, pool, storage):
        try:
            value = answer()
        except DeliveryRefused as exc:
            is_own = row.id in set(own)
            _store_refusal(row, exc.error, storage, keep=not is_own)
            refusal = refusal or (exc.error if is_own else None)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the row is tried again
            _store_failure(row, exc, storage)
        else:
            process.reached("send: after")
            _sent[row.destination] += 1
            sent += _store_answer(row, value, storage)
    if refusal is not None:
        raise refusal
    return sent


def _answers(
    rows: Sequence[OutboxRow], pool: Executor | None, storage: DjangoStorage
) -> Iterator[tuple[OutboxRow, Callable[[], Any]]]:
    """Send rows, with ``pool`` all at first; yield each, as answers come, with a function that returns or raises."""
    sent: dict[Future[Any], OutboxRow] = {}
    for row in rows:
        try:
            send = _prepare(row, storage)
        except Exception as exc:  # noqa: BLE001 - it is the error of this row alone
            yield row, partial(_raise, exc)
            continue
        process.reached("send: before")
        if pool is None:
            yield row, send
        else:
            sent[pool.submit(send)] = row
    for future in as_completed(sent):
        yield sent[future], future.result


def _prepare(row: OutboxRow, storage: DjangoStorage) -> Callable[[], Any]:
    """Read what the row needs, and return the function that sends it."""
    kind = kind_of(row.kind)
    if kind is None:
        raise DeliveryFailed(f"this process has no code that sends rows of the kind {row.kind!r}")
    return partial(kind.send, kind.prepare(row, storage))


def _text(error: Exception) -> str:
    """Return the text to store with a row: messages of foreign errors could quote payloads."""
    return (str(error) if isinstance(error, (DeliveryFailed, TemporalexError)) else error_line(error))[:2000]


def _raise(error: Exception) -> Any:
    raise error


def _store_answer(row: OutboxRow, answer: Any, storage: DjangoStorage) -> bool:
    """Delete the row, and let its kind store the answer. Returns False if the kind cannot now: it is tried again."""
    kind = kind_of(row.kind)
    assert kind is not None
    updates = kind.settling(row, answer, storage) if isinstance(kind, QuickKind) else None
    try:
        if updates is not None and storage.sql.chained_writes:
            steps = [_DELETE, *(f"{sql} and exists (select 1 from s0)" for sql, _ in updates)]
            named = ", ".join(f"s{number} as ({sql} returning 1)" for number, sql in enumerate(steps))
            parameters = [value for _, values in updates for value in values]
            storage.sql.select(f"with {named} select count(*) from s0", [row.id, row.tries, *parameters], ("int8",))
            return True
        with storage.transaction("outbox sent"):
            if not _delete(row, storage):
                return True
            if updates is None:
                kind.settle(row, answer, storage)
            for sql, parameters in updates or ():
                storage.sql.execute(sql, parameters)
    except DeliveryFailed as exc:
        _try_later(row, exc, storage)
        return False
    return True


#: Rows that this process has sent, by destination; and that number at the last try of a row, by the id of the row.
_sent: Counter[str] = Counter()
_sent_before: dict[UUID, int] = {}


def _uses_try(row: OutboxRow, error: Exception) -> bool:
    """Return True if a failed try of the row counts; see ``DeliveryFailed``."""
    uses_try = getattr(error, "uses_try", True)
    if uses_try is not None:
        return bool(uses_try)
    if len(_sent_before) >= 100 * policy.OUTBOX_BATCH:  # other processes may have sent most of these rows
        _sent_before.clear()
    now = _sent[row.destination]
    before, _sent_before[row.id] = _sent_before.get(row.id, now), now
    return now > before


def _store_failure(row: OutboxRow, error: Exception, storage: DjangoStorage) -> None:
    """Make the row due again after a pause, or a dead letter if its kind gives up."""
    kind = kind_of(row.kind)
    if not _uses_try(row, error):
        _wait_for_destination(row, error, storage)
        return
    if kind is not None and row.tries >= kind.max_tries:
        gave_up = TemporalexError(f"given up after {row.tries} tries: {_text(error)}")
        _store_refusal(row, gave_up, storage, keep=True, code="gave_up")
        return
    _try_later(row, error, storage)


def _try_later(row: OutboxRow, error: Exception, storage: DjangoStorage) -> None:
    pause = min(policy.OUTBOX_FIRST_PAUSE * 2 ** (row.tries - 1), policy.OUTBOX_LONGEST_PAUSE)
    _own_row(row, storage).update(due_at=storage.now() + timedelta(seconds=pause), error=_text(error))


def _wait_for_destination(row: OutboxRow, error: Exception, storage: DjangoStorage) -> None:
    """Make the row due again after a pause that grows with its age, and take the try back.

    The first try stays counted, since it may have been sent.
    """
    now = storage.now()
    age = (now - (row.created_at or now)).total_seconds()
    pause = min(max(age, policy.OUTBOX_FIRST_PAUSE), policy.OUTBOX_LONGEST_PAUSE)
    changes = {"due_at": now + timedelta(seconds=pause), "tries": max(row.tries - 1, 1), "error": _text(error)}
    _own_row(row, storage).update(**changes)


def _store_refusal(
    row: OutboxRow, error: TemporalexError, storage: DjangoStorage, *, keep: bool, code: str = ""
) -> None:
    """Make the row a dead letter, or delete it, and tell the kind. If it cannot take that now, try again later."""
    try:
        _refuse(row, error, storage, keep=keep, code=code or error.code)
    except DeliveryFailed as exc:
        _try_later(row, exc, storage)


def _refuse(row: OutboxRow, error: TemporalexError, storage: DjangoStorage, *, keep: bool, code: str) -> None:
    with storage.transaction("outbox refused"):
        failed = {"code": code, "error": error.message, "at": storage.now().isoformat()}
        done = _own_row(row, storage).update(failed=failed) if keep else _delete(row, storage)
        if not done:
            return
        if (kind := kind_of(row.kind)) is not None:
            kind.refuse(row, error, storage)
        if keep:
            storage.on_commit(lambda: _announce_refusal(row, code, error.message, storage))


def _announce_refusal(row: OutboxRow, code: str, message: str, storage: DjangoStorage) -> None:
    run = Instance.objects.using(storage.alias).filter(chain=row.chain_id).order_by("-id").first()
    facts = {"workflow": "", "workflow_id": "", "run_id": None}
    if run is not None:
        facts = {"workflow": run.workflow, "workflow_id": run.workflow_id, "run_id": str(run.id)}
    signals.send(
        "delivery_refused",
        facts["workflow"],
        **facts,
        kind=row.kind,
        destination=row.destination,
        code=code,
        error=message,
    )


def _own_row(row: OutboxRow, storage: DjangoStorage) -> QuerySet[Outbox]:
    """Return the row, or nothing if another process has claimed it after the lease."""
    return Outbox.objects.using(storage.alias).filter(pk=row.id, tries=row.tries, failed__isnull=True)


_DELETE: Final = f"delete from {OUTGOING.table.name} where id = %s and tries = %s and failed is null"


def _delete(row: OutboxRow, storage: DjangoStorage) -> bool:
    return bool(_own_row(row, storage).delete()[0])


# --- process leases ---------------------------------------------------------------------------------------------------
#
# Leases on work that one process at a time does for all processes of a project.


def is_lease_free(name: str, *, storage: DjangoStorage, since: float = 0.0) -> bool:
    """Return True if the lease ``name`` has been free for at least ``since`` seconds. One statement, two at the start.

    A lease that nobody has ever taken is free.
    """
    until = Lease.objects.using(storage.alias).filter(name=name).values_list("until", flat=True).first()
    return until is None or until + timedelta(seconds=since) <= storage.now()


def take_lease(name: str, *, seconds: float, storage: DjangoStorage) -> bool:
    """Take the lease ``name`` for ``seconds``, and return True; return False if another process has it.

    It commits at once, unless a transaction is open. Call ``set_lease`` when the work is done.
    """
    now = storage.now()
    leases = Lease.objects.using(storage.alias)
    free = leases.filter(name=name, until__lte=now)
    until = now + timedelta(seconds=seconds)
    if free.update(until=until):
        return True
    # The row of a lease that nobody has ever taken is inserted by the first who wants it; the update decides who gets
    # it.
    leases.bulk_create([Lease(name=name, until=now)], ignore_conflicts=True)
    return bool(free.update(until=until))


def set_lease(name: str, *, seconds: float, notes: Mapping[str, Any] | None = None, storage: DjangoStorage) -> None:
    """Let the lease ``name`` of this process end in ``seconds``.

    ``notes`` are left for the next holder; with None, those of the holder before stay.
    """
    changes: dict[str, Any] = {} if notes is None else {"notes": dict(notes)}
    changes["until"] = storage.now() + timedelta(seconds=seconds)
    Lease.objects.using(storage.alias).filter(name=name).update(**changes)


def lease_notes(name: str, *, storage: DjangoStorage) -> dict[str, Any]:
    """Return what the last holder of the lease ``name`` has left. One read."""
    notes = Lease.objects.using(storage.alias).filter(name=name).values_list("notes", flat=True).first()
    return notes or {}
