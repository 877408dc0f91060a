"""The writes of a turn for other runs: new children, messages, and cancel requests to children whose parent has closed.

Inserts only: a turn locks no chains but its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.conf import codec
from temporalex_django.core.names import TABLES, TEMPORAL, all_names
from temporalex_django.db.search_attributes import insert_search_attributes
from temporalex_django.db.sql_columns import CHAINS, MESSAGES, NEW_RUN, OUTBOX, RUNS, new_run_row
from temporalex_django.db.start_statement import SCOPED_CHAIN, SCOPED_CHAIN_INSERT
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import RunWrite
from temporalex_django.engine.external_messages import PARENT_CLOSED, Delivery, NewChild, NewMessage
from temporalex_django.engine.ids import RunRef, parse_run_id, resolve_run, run_id_taken_error, uuid7
from temporalex_django.errors import AmbiguousId

log = logging.getLogger("temporalex_django.db")

# Joins name the key of the chain, since its current run has no index. "is not null" lets prepared plans use the partial
# index.
_RUN_INSERT = NEW_RUN.insert
_MESSAGE = MESSAGES.pick_columns(
    "chain_id", "run_id", "kind", "name", "body", "request_id", "headers", "created_at", place="int4"
)
# The ids of the rows are the order of an inbox, and a join keeps none.
_MESSAGE_INSERT = MESSAGES.insert(
    {**{name: f"v.{name}" for name in _MESSAGE.column_names}, "queue": "c.queue"},
    f"from v join {CHAINS.name} c on c.id = v.chain_id where c.id {{key}} and c.backend = '{TABLES}' order by v.place on conflict do nothing",
)
#: A message to a run on a Temporal cluster, which the outbox sends.
_OUTGOING = OUTBOX.pick_columns("id", "chain_id", "destination", "kind", "body", "created_at", "due_at")
_RUN = RUNS.pick_columns("id", "workflow", "version")
_RUN_COLUMNS = f"c.id, {RUNS.pick_columns('id', 'workflow', 'status').with_alias('i')}, c.closed"


class ExternalRunWriter:
    """Stores what a turn has for other runs, new children and messages, with one statement for each table.

    A turn that has nothing for other runs sends no statement. ``clock`` replaces the database's clock; None: it does
    not.
    """

    def __init__(self, sql: Dialect, clock: Callable[[], datetime] | None) -> None:
        self._sql = sql
        self._clock = clock

    def write(self, writes: Sequence[RunWrite]) -> None:
        """Store new children, then messages to other runs, so that a message of the same turn finds its child."""
        messages = [m for w in writes for m in w.messages]
        if children := [c for w in writes for c in w.children]:
            messages += self._start_children(children)
        if messages:
            self._send_messages(messages)
        if closed := [w.run.run_id for w in writes if w.close_children]:
            self._close_children(closed)

    def _start_children(self, children: Sequence[NewChild]) -> list[NewMessage]:
        """Insert chains and their first runs, and return the messages to the parents of children that could not start.

        The chains are inserted in the order of their open keys. So two turns that start the same ids wait for each
        other in one direction only.
        """
        refused = self._resolve_run_ids(child.workflow_id for child in children)
        messages, free, colliding_children = list[NewMessage](), list[NewChild](), list[NewChild]()
        for child in children:
            if child.workflow_id in refused:
                messages.append(child.refusal_message(run_id_taken_error(child.workflow_id)))
            elif self._has_open_alias(child):
                colliding_children.append(child)
            else:
                free.append(child)
        new = [(uuid7(), uuid7(), child) for child in sorted(free, key=lambda child: child.open_key or "")]
        chains = [
            (chain, run, c.queue, c.due_at(c.at), c.deadline(c.at), c.open_key, c.scope, c.workflow_id, c.workflow)
            for chain, run, c in new
        ]
        self._sql.write(SCOPED_CHAIN.columns, SCOPED_CHAIN_INSERT, chains)
        inserted_ids = self._existing_chains([chain for chain, _, _ in new])
        self._insert_first_runs([entry for entry in new if entry[0] in inserted_ids])
        colliding_children += [child for chain, _, child in new if chain not in inserted_ids]
        return messages + [child.refusal_message() for child in colliding_children]

    def _existing_chains(self, chains: Sequence[UUID]) -> set[UUID]:
        """Return the ids among ``chains`` for which there is a row: those that an insert did not skip as a conflict."""
        test, parameter = self._sql.in_array(chains, "uuid")
        rows = self._sql.select(f"select id from temporalex_chain where id {test}", [parameter], ("uuid",))
        return {row[0] for row in rows}

    def _insert_first_runs(self, new: Sequence[tuple[UUID, UUID, NewChild]]) -> None:
        """Insert the first runs of new chains, given as triples of chain, run and child."""
        runs = [
            new_run_row(
                c,
                chain,
                run,
                {"created_at": c.at, "starts_at": c.starts_at(c.at), "expires_at": c.expires_at(c.at)},
            )
            for chain, run, c in new
        ]
        self._sql.write(NEW_RUN.columns, _RUN_INSERT, runs)
        search_attributes = [(run, c.search_attributes) for _, run, c in new if c.search_attributes]
        insert_search_attributes(self._sql, search_attributes)

    def _has_open_alias(self, child: NewChild) -> bool:
        """Return True if an open run, started under a former name of the class, has the business id of the child.

        One statement, and none for a class that was never renamed.
        """
        aliases = all_names(child.workflow)[1:]
        if not aliases or child.scope not in ("workflow", "version"):
            return False
        test, parameter = self._sql.in_array(aliases, "text")
        version = " and i.version = %s" if child.scope == "version" else ""
        rows = self._sql.select(
            f"select 1 from {RUNS.name} i join {CHAINS.name} c on c.id = i.chain_id and c.run_id = i.id"
            f" where i.workflow_id = %s and i.workflow {test}{version} and c.open_key is not null limit 1",
            [child.workflow_id, parameter, *([child.version] if version else [])],
            ("int4",),
        )
        return bool(rows)

    def deliver(self, message: NewMessage) -> tuple[str, dict[str, Any]]:
        """Insert a message whose sender waits to learn if it was stored, and return ``(name, payload)`` of the answer.

        ``NewMessage.answer`` makes the answer. The caller passes it on to the sender.
        """
        answers: list[tuple[str, dict[str, Any]]] = []
        self._send_messages([message], tell=answers.append)
        return answers[0]

    def _send_messages(
        self, messages: Sequence[NewMessage], *, tell: Callable[[tuple[str, dict[str, Any]]], None] | None = None
    ) -> None:
        """Find the receiver of each message and insert the message there.

        A sender that asked gets an answer, which says whether the message was stored. ``tell`` takes the answers
        instead of the inboxes of the senders.
        """
        by_id = self._resolve_ids(
            {m.workflow_id for m in messages if m.chain_id is None and m.child is None and m.workflow_id}
        )
        children = self._open_children({m.child[0] for m in messages if m.child is not None})
        now, message_rows, outgoing_rows = self._now(), list[Any](), list[Any]()
        for m in messages:
            delivery = m.check_delivery(_delivery_of(m, children, by_id))
            chain = delivery.chain_id
            if chain is not None:
                row = (chain, m.run_id, m.kind, m.name, m.payload, m.message_id, m.headers, now)
                (outgoing_rows if delivery.is_elsewhere else message_rows).append(row)
            elif m.ask is None:
                log.warning(
                    "a %s for %r found no open run", m.kind, m.workflow_id, extra={"workflow_id": m.workflow_id}
                )
            if m.ask is not None and tell is not None:
                tell(m.answer(delivery))
            elif m.ask is not None:
                name, body = m.answer(delivery)
                message_rows.append((m.ask[0], m.ask[1], "external", name, body, None, m.headers, now))
        rows = _MESSAGE.encode_rows((*row, place) for place, row in enumerate(message_rows))
        self._sql.write(_MESSAGE.columns, _MESSAGE_INSERT, rows, key="chain_id")
        self._sql.write(_OUTGOING.columns, _OUTGOING.insert, _OUTGOING.encode_rows(map(_outgoing_row, outgoing_rows)))

    def _now(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        now, parameters = self._sql.now_expression(None, live=True)
        moment: datetime = self._sql.select(f"select {now}", parameters, ("timestamptz",))[0][0]
        return moment

    def _resolve_ids(self, ids: Collection[str]) -> dict[str, Delivery]:
        """Return, for each id to which runs send messages, the chain that receives them, or why there is none.

        The id may be the run id of a run, or the business id of an open run.
        """
        deliveries = self._resolve_run_ids(ids)
        # For each id: the newest open run of the last workflow by name, and if another workflow has an open one. That
        # is two looks into an index.
        rows = self._sql.write_returning(
            RUNS.pick_columns("workflow_id").columns,
            "select v.workflow_id, x.chain_id, x.workflow, x.version,"
            " exists (select 1 from temporalex_instance i join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and i.workflow < x.workflow and not c.closed),"
            " exists (select 1 from temporalex_instance i where i.workflow_id = v.workflow_id), x.mirrored_at is not null"
            " from v left join temporalex_instance x on x.id = (select i.id from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and not c.closed order by i.workflow desc, i.id desc limit 1)",
            [(workflow_id,) for workflow_id in sorted(ids) if workflow_id not in deliveries],
            ("text", "uuid", "text", "int4", "bool", "bool", "bool"),
        )
        for workflow_id, chain, workflow, version, several, exists, is_elsewhere in rows:
            delivery = Delivery(chain, exists, workflow=workflow, version=version or 0, is_elsewhere=bool(is_elsewhere))
            deliveries[workflow_id] = self._resolve_ambiguous(workflow_id) if several else delivery
        return deliveries

    def _resolve_ambiguous(self, workflow_id: str) -> Delivery:
        """Return the receiver of a message to a business id that open runs of several workflows have.

        It may be a ``Delivery`` with an ``AmbiguousId`` error and no chain.
        """
        rows = self._sql.select(
            f"select {_RUN_COLUMNS}, i.version, c.backend <> '{TABLES}' from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = %s and not c.closed order by i.id desc",
            [workflow_id],
            ("uuid", "uuid", "text", "text", "bool", "int4", "bool"),
        )
        candidates = {RunRef(*row): (version, is_elsewhere) for *row, version, is_elsewhere in rows}
        try:
            run = resolve_run(workflow_id, candidates)
        except AmbiguousId as exc:
            return Delivery(None, error=exc)
        if run is None:
            return Delivery(None)
        version, is_elsewhere = candidates[run]
        return Delivery(run.chain_id, workflow=run.workflow, version=version, is_elsewhere=bool(is_elsewhere))

    def _resolve_run_ids(self, ids: Iterable[str]) -> dict[str, Delivery]:
        """Return the receiver (``Delivery``) for each of the ids that is the run id of a run; the others are left out.

        No statement if none has the form of a run id.
        """
        run_ids = {run_id: text for text in ids if (run_id := parse_run_id(text)) is not None}
        if not run_ids:
            return {}
        test, parameter = self._sql.in_array(list(run_ids), "uuid")
        rows = self._sql.select(
            f"select {_RUN.with_alias('i')}, c.id, c.closed, c.backend <> '{TABLES}'"
            f" from temporalex_instance i join temporalex_chain c on c.id = i.chain_id where i.id {test}",
            [parameter],
            (*_RUN.types, "uuid", "bool", "bool"),
        )
        return {
            run_ids[run]: Delivery(
                None if closed else chain, workflow=workflow, version=version, is_elsewhere=bool(is_elsewhere)
            )
            for run, workflow, version, chain, closed, is_elsewhere in rows
        }

    def _open_children(self, runs: Iterable[UUID]) -> dict[tuple[UUID, int], UUID]:
        """Return the chains of the open children of these runs.

        The keys are pairs of the run and the number of the command that started the child.
        """
        run_ids = list(runs)
        if not run_ids:
            return {}
        test, parameter = self._sql.in_array(run_ids, "uuid")
        rows = self._sql.select(
            "select i.parent_run_id, i.parent_seq, c.id from temporalex_instance i"
            f" join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id where i.parent_run_id {test} and i.parent_run_id is not null and not c.closed",
            [parameter],
            ("uuid", "int4", "uuid"),
        )
        return {(run, seq): chain for run, seq, chain in rows}

    def _close_children(self, runs: Sequence[UUID]) -> None:
        """Send the open children of these closed runs a cancel or terminate message, as their ``parent_close`` says."""
        test, parameter = self._sql.in_array(runs, "uuid")
        now, clock = self._sql.now_expression(self._clock, live=True)
        body: Any = codec().encode(dict(PARENT_CLOSED))
        self._sql.execute(
            MESSAGES.insert(
                {
                    "chain_id": "c.id",
                    "queue": "c.queue",
                    "kind": "case i.parent_close when 'request_cancel' then 'cancel' else 'terminate' end",
                    "name": "''",
                    "body": "%s",
                    "created_at": now,
                },
                f"from {RUNS.name} i join {CHAINS.name} c on c.id = i.chain_id and c.run_id = i.id"
                f" where i.parent_run_id {test} and i.parent_run_id is not null and not c.closed"
                " and i.parent_close <> 'abandon'",
            ),
            [body, *clock, parameter],
        )


def _outgoing_row(message_row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row of the outbox for the row of a signal or a cancel request to a run on a Temporal cluster."""
    chain, _, kind, name, payload, message_id, headers, now = message_row
    body: dict[str, Any] = {"name": name, "payload": payload, "id": message_id, "sender": None, "headers": headers}
    if kind == "cancel":
        body = {"reason": (payload or {}).get("reason", "")}
    return uuid7(), chain, TEMPORAL, f"{TEMPORAL}.{kind}", body, now, now


def _delivery_of(message: NewMessage, children: dict[tuple[UUID, int], UUID], by_id: dict[str, Delivery]) -> Delivery:
    """Return where a message goes: to the chain that it names, to a child of its run, or to the run with an id."""
    if message.child is not None:
        return Delivery(children.get(message.child))
    if message.chain_id is None:
        return by_id[message.workflow_id or ""]
    return Delivery(message.chain_id)
