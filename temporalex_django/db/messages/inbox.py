"""The inbox of runs, and messages that failed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from uuid import UUID, uuid4

from django.db.models import QuerySet
from django.utils import timezone

from temporalex_django.conf import codec
from temporalex_django.core.history.prefix import EXTERNAL_KINDS, PendingMessage
from temporalex_django.core.payloads.codec import digest
from temporalex_django.core.process import REQUEST
from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import MESSAGES, json_value, sender_columns, sender_from_columns
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import INBOX_KINDS, Inbox, InboxMessage, Outcome, RunWrite
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.models import Chain, Instance, Message

# --- inbox ------------------------------------------------------------------------------------------------------------
#
# Inboxes in SQL: the part of an inbox that a turn reads, however long the inbox is.


_HEAD = MESSAGES.pick_columns(
    *("chain_id", "id", "kind", "name", "request_id", "run_id", "after", "redelivered", "sender_key", "sender_name"),
    "headers",
)
_MESSAGE = ", ".join(f"m.{name}" for name in (*_HEAD.column_names, "body"))
_READ = f"{_HEAD.with_alias('m')}, case when length(m.body) <= {policy.LARGE_PAYLOAD_BYTES} then m.body end as body, length(m.body)"
_MESSAGE_TYPES = (*_HEAD.types, "bytea", "int8")


class Inboxes:
    """The part of a database storage that reads and fills inboxes: the messages of chains that have no outcome yet.

    The methods for turns lock nothing, since the caller has locked the chains.
    """

    def __init__(self, session: StorageSession) -> None:
        self._session = session
        self._sql = session.sql

    def inbox(
        self, chains: Collection[UUID], *, waiting: Collection[UUID] = (), page: int | None = None
    ) -> dict[UUID, Inbox]:
        """Return the messages of locked chains that have no outcome yet, oldest first, by chain.

        Call it after the lock: as a statement of its own, it sees everything that was committed until then. Of chains
        in ``waiting`` it returns only messages that no turn has read yet. ``page`` limits how many of the oldest unread
        messages of a chain are read, within the limits of the policy; None: as many as these allow.
        """
        return self.submit_inbox(chains, waiting=waiting, page=page)(chains)

    def submit_inbox(
        self, chains: Collection[UUID], *, waiting: Collection[UUID] = (), page: int | None = None
    ) -> Callable[[Collection[UUID]], dict[UUID, Inbox]]:
        """Send the query for the messages of chains, and return a function that returns them by chain.

        The function waits for the answer, and takes the chains whose messages the caller still wants. Messages of other
        chains are not decoded, so an unreadable payload among them does no harm. ``waiting`` and ``page`` are the
        arguments of ``inbox``.
        """
        inboxes = {chain: Inbox() for chain in chains}
        if not chains:
            return lambda _: {}
        page = min(self._session.inbox_page // len(inboxes), page or self._session.inbox_page)
        page = max(page, min(policy.SMALLEST_INBOX_PAGE, self._session.inbox_page))
        test, parameter = self._sql.in_array(chains, "uuid")
        condition, parameters = "not m.settled", []
        if waiting:
            still, parked = self._sql.in_array(waiting, "uuid")
            condition, parameters = f"{condition} and (m.fresh or not (m.chain_id {still}))", [parked]
        if not self._sql.lateral:
            numbered = "row_number() over (partition by m.chain_id order by m.id) as number"
            source = (
                f"(select {_MESSAGE}, {numbered} from temporalex_message m where {condition} and m.chain_id {test}) m"
            )
            source += f" where m.number <= {page}"
        else:
            # One scan of the index for each chain, which ends at the limit. The planner must not see how many chains
            # there are. For few it would find a plan of its own cheaper than the prepared one, and plan each time (0.17
            # ms).
            source = (
                f"temporalex_chain c cross join lateral (select {_MESSAGE} from temporalex_message m"
                f" where m.chain_id = c.id and {condition} order by m.id limit {page}) m"
                " where c.id = any(array(select unnest(%s::uuid[])))"
            )
        rows = self._sql.submit(
            f"select {_READ} from {source} order by m.chain_id, m.id", [*parameters, parameter], _MESSAGE_TYPES
        )

        def fetch_inboxes(counts: Collection[UUID]) -> dict[UUID, Inbox]:
            by_chain: dict[UUID, list[tuple[Any, ...]]] = {chain: [] for chain in counts if chain in inboxes}
            for row in rows():
                if row[0] in by_chain:
                    by_chain[row[0]].append(row)
            for chain, of_chain in by_chain.items():
                if len(of_chain) == page:  # a full page, so there may be more
                    if chain in waiting:
                        condition = "m.fresh"
                    else:
                        condition = "true"
                    by_chain[chain], inboxes[chain].has_more = self._read_backlog(chain, page, condition=condition)
            self._fill_inboxes(inboxes, by_chain)
            return {chain: inboxes[chain] for chain in by_chain}

        return fetch_inboxes

    def _read_backlog(self, chain: UUID, page: int, *, condition: str) -> tuple[list[tuple[Any, ...]], bool]:
        """Read the ``page`` oldest messages of a long inbox; return rows, and True if there may be more.

        Results and waiting messages are read wherever they are: they let the run continue. Each kind has its own limit.
        """
        of_chain = f"from temporalex_message m where m.chain_id = %s and not m.settled and {condition}"
        from_outside = "m.kind in ('signal', 'update', 'resume')"
        new, waiting, results = (
            self._sql.select(
                f"select {_READ} {of_chain} and {test} order by m.id limit {most}", [chain], _MESSAGE_TYPES
            )
            for test, most in (
                (f"m.after is null and {from_outside}", page),
                (f"m.after is not null and {from_outside}", page * 10),
                (f"not ({from_outside})", page * 10),
            )
        )
        return sorted([*new, *waiting, *results], key=itemgetter(1)), len(new) == page or len(results) == page * 10

    def _fill_inboxes(self, inboxes: dict[UUID, Inbox], by_chain: Mapping[UUID, list[tuple[Any, ...]]]) -> None:
        """Decode rows and add the messages to ``inboxes``. Large payloads take one more statement.

        A turn reads a limited number of their bytes, but one payload of each chain in any case. Messages behind the
        limit are removed from ``by_chain`` and left for another turn.
        """
        byte_budget, large_ids = policy.MAX_READ_BYTES, set()
        for chain, rows in by_chain.items():
            first = True
            for number, (_, message, *_, body, size) in enumerate(rows):
                if body is not None:
                    continue
                if size > byte_budget and not first:
                    by_chain[chain][number:] = []
                    inboxes[chain].has_more = True
                    break
                large_ids.add(message)
                byte_budget, first = byte_budget - size, False
        large: dict[int, Any] = {}
        if large_ids:
            test, parameter = self._sql.in_array(large_ids, "int8")
            sql = f"select m.id, m.body from temporalex_message m where m.id {test}"
            large = dict(self._sql.select(sql, [parameter], ("int8", "bytea")))
        decode = codec().decode
        for chain, rows in by_chain.items():
            for (
                _,
                message,
                kind,
                name,
                request_id,
                run,
                after,
                redelivered,
                key,
                sender_name,
                headers,
                body,
                size,
            ) in rows:
                try:
                    if kind not in INBOX_KINDS:
                        raise ValueError("no code knows this kind of message")
                    plain = decode(large[message] if body is None else body)
                except Exception:
                    with report_unreadable(f"message {message} ({kind} {name})", chain=chain):
                        raise
                inboxes[chain].append(
                    InboxMessage(
                        id=message,
                        kind=kind,
                        name=name,
                        payload=plain,
                        message_id=request_id,
                        run_id=run,
                        after=after,
                        redelivered=redelivered,
                        size=size,
                        sender=sender_from_columns(key, sender_name),
                        headers=json_value(headers),
                    )
                )

    # -- for a reset or fork: called seldom, so by the ORM ------------------------------------------------------------

    def prepend_messages(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """Put messages at the head of the inbox of a locked chain, before its unread messages.

        A reset or fork uses it to deliver messages again. The unread messages are deleted and inserted again behind the
        new ones. ``received`` is the number of signals in the history of the run; an update that waited behind a later
        signal counts as unread.
        """
        rows = Message.objects.using(self._session.alias).filter(chain_id=chain)
        unread_rows = list(rows.filter(settled=False, kind__in=EXTERNAL_KINDS).order_by("pk"))
        unread_ids = {row.request_id for row in unread_rows} - {None}
        messages = [message for message in messages if message.message_id not in unread_ids]
        message_ids = [message.message_id for message in messages if message.message_id is not None]
        # The unread messages are deleted and inserted again behind the new ones, with higher ids.
        rows.filter(pk__in=[row.pk for row in unread_rows]).delete()
        rows.filter(request_id__in=message_ids).delete()
        queue = Chain.objects.using(self._session.alias).values_list("queue", flat=True).get(pk=chain)
        new = [self._message_row(chain, queue, message) for message in messages]
        for row in unread_rows:
            row.pk, row.fresh, row.queue = None, True, queue
            row.after = row.after if row.after is not None and row.after <= received else None
        Message.objects.using(self._session.alias).bulk_create([*new, *unread_rows], batch_size=500)

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """Return the statuses of messages of a chain by message id: ``unread``, or the status of the outcome.

        Unknown ids are left out.
        """
        rows = Message.objects.using(self._session.alias).filter(chain_id=chain, request_id__in=[*ids])
        statuses = rows.values_list("request_id", "settled", "outcome_status") if ids else ()
        return {str(message): status or "" if settled else "unread" for message, settled, status in statuses}

    def copy_failed_messages(self, source_chain: UUID, target_chain: UUID, ids: Collection[str]) -> None:
        """Copy the signals whose handler failed and that have one of these message ids from one chain to another.

        A fork uses it. The target chain must be locked, and must not have messages with these ids.
        """
        if not ids:
            return
        rows = [
            *Message.objects.using(self._session.alias)
            .failed()
            .filter(chain_id=source_chain, request_id__in=[*ids])
            .order_by("pk")
        ]
        queue = Chain.objects.using(self._session.alias).values_list("queue", flat=True).get(pk=target_chain)
        for row in rows:
            row.pk, row.chain_id, row.queue = None, target_chain, queue
        Message.objects.using(self._session.alias).bulk_create(rows, batch_size=500)

    def store_settled_messages(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        """Store messages from the history of a run, with their outcomes, in a locked chain that has none of them.

        So a message that is sent again to a fork does not count twice. No turn reads these rows.
        """
        queue = Chain.objects.using(self._session.alias).values_list("queue", flat=True).get(pk=chain)
        rows = []
        for message, outcome in messages:
            row = self._message_row(chain, queue, message)
            row.fresh, row.settled, row.outcome_status = False, True, outcome.status
            row.outcome = codec().encode(outcome.value)
            rows.append(row)
        Message.objects.using(self._session.alias).bulk_create(rows, batch_size=500)

    def _message_row(self, chain: UUID, queue: str, message: PendingMessage) -> Message:
        """Return an unread message, not saved yet."""
        sender_key, sender_name = sender_columns(message.sender)
        return Message(
            chain_id=chain,
            queue=queue,
            kind=message.kind,
            name=message.name,
            body=codec().encode(message.payload),
            request_id=str(uuid4()) if message.kind == REQUEST else message.message_id,
            redelivered=message.kind != "signal",  # signals wait for their consumer in any case
            sender_key=sender_key,
            sender_name=sender_name,
            headers=message.headers,
            fresh=True,
            settled=False,
            created_at=self._session.now(),
        )


@contextmanager
def report_unreadable(description: str, *, run: UUID | None = None, chain: UUID | None = None) -> Iterator[None]:
    """Turn an error of the block into a ``PayloadError`` with the run or chain whose payload cannot be read.

    ``KeyMissing`` keeps its type. The turn blocks that run alone, by ``run_id`` or ``chain_id`` of the error.
    ``description`` names the payload in the error.
    """
    try:
        yield
    except KeyMissing as exc:
        exc.run_id, exc.chain_id = run, chain  # type: ignore[attr-defined] # as below
        raise
    except Exception as exc:
        error = PayloadError(f"{description} cannot be read: {exc}")
        error.run_id, error.chain_id = run, chain  # type: ignore[attr-defined] # by these the turn isolates the run
        raise error from exc


# --- failed messages --------------------------------------------------------------------------------------------------
#
# Failed messages in the database: signals whose handler failed. They are kept until redelivered or discarded.
#
# A failed message is the row of its signal, settled with the outcome ``failed``. If the sender gave the signal no
# message id, it has the id ``<run id>:<number>`` from then on. See decision 46.


@dataclass(frozen=True, slots=True)
class HandledMessage:
    """A failed message that somebody has delivered again or discarded.

    ``id`` is its message id, ``name`` the name of the signal, and ``digest`` the digest of its payload.
    """

    id: str
    name: str
    digest: str


def write_failed_messages(writes: Iterable[RunWrite], *, alias: str) -> None:
    """Store the signals that failed in these turns, in the open transaction. Their chains are locked."""
    for write in writes:
        for failed in write.failed_signals:
            outcome = {
                "fresh": False,
                "settled": True,
                "outcome_status": "failed",
                "outcome": codec().encode({**failed.failure, "run": str(write.run.run_id), "number": failed.number}),
                "answered_at": write.run.activated_at,
            }
            rows = Message.objects.using(alias).filter(chain_id=write.run.chain_id, request_id=failed.id)
            # A signal with a message id still has its row. One without an id was deleted when a turn consumed it.
            if rows.update(**outcome):
                continue
            sender_key, sender_name = sender_columns(failed.sender)
            Message.objects.using(alias).create(
                chain_id=write.run.chain_id,
                queue=write.run.queue,
                kind="signal",
                name=failed.name,
                body=codec().encode(failed.payload),
                request_id=failed.id,
                sender_key=sender_key,
                sender_name=sender_name,
                headers=failed.headers,
                created_at=write.run.activated_at or timezone.now(),
                **outcome,
            )


def failed_messages(chain: UUID, *, alias: str) -> QuerySet[Message]:
    """Return the failed messages (signals whose handler failed) of a chain, oldest first."""
    return Message.objects.using(alias).failed().filter(chain_id=chain).order_by("pk")


def failed_count(run: Instance) -> int:
    """Return the number of failed messages (signals whose handler failed) of the chain of ``run``.

    The object keeps the number, so a second call with it sends no statement.
    """
    if "failed_count" not in run.__dict__:
        alias = run._state.db or "default"  # noqa: SLF001 - Django documents it
        run.__dict__["failed_count"] = failed_messages(run.chain_id, alias=alias).count()
    count: int = run.__dict__["failed_count"]
    return count


def redeliver(chain: UUID, message_id: str, *, alias: str) -> HandledMessage | None:
    """Put a failed message (a signal) at the end of its inbox again, in the open transaction. Locks its row.

    ``message_id`` is its message id. Returns None if the chain has no failed message with that id.
    """
    row = failed_messages(chain, alias=alias).select_for_update().filter(request_id=message_id).first()
    if row is None:
        return None
    message = handled_message(row)
    # Deleted and inserted anew: the id of the row gives the position in the inbox.
    row.delete()
    row.pk, row.fresh, row.settled = None, True, False
    row.outcome_status = row.outcome = row.answered_at = row.after = None
    row.queue = Chain.objects.using(alias).values_list("queue", flat=True).get(pk=chain)
    row.save(force_insert=True, using=alias)
    return message


def take_failed(chain: UUID, message_id: str, *, alias: str) -> Message | None:
    """Mark a failed message as sent again, in the open transaction, and return its row. Locks it.

    ``message_id`` is its message id. Returns None if the chain has no failed message with that id.
    """
    row = failed_messages(chain, alias=alias).select_for_update().filter(request_id=message_id).first()
    if row is not None:
        row.outcome_status, row.outcome, row.answered_at = "sent", None, None
        row.save(update_fields=["outcome_status", "outcome", "answered_at"])
    return row


def discard(chain: UUID, message_id: str, *, alias: str) -> HandledMessage | None:
    """Settle a failed message as discarded, in the open transaction. Locks its row.

    No other message of the chain can get its message id. Returns None if the chain has no failed message with that id.
    """
    row = failed_messages(chain, alias=alias).select_for_update().filter(request_id=message_id).first()
    if row is None:
        return None
    row.outcome_status = "discarded"
    row.save(update_fields=["outcome_status"])
    return handled_message(row)


def handled_message(row: Message) -> HandledMessage:
    """Return a failed message as the audit log records it."""
    return HandledMessage(id=str(row.request_id), name=row.name, digest=digest(codec().decode(bytes(row.body))))
