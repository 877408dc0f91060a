"""What a turn tells other runs: child starts, messages, the end of a parent.

Inserts only: a turn locks none but its own chains.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.conf import codec
from temporalex_django.errors import AmbiguousId
from temporalex_django.runtime.dialect import Columns, Dialect
from temporalex_django.runtime.ids import uuid7
from temporalex_django.runtime.lookup import Found, as_run_id, run_id_taken, the_one
from temporalex_django.runtime.storage import PARENT_CLOSED, NewChild, NewMessage, Reached, RunWrite

log = logging.getLogger("temporalex_django.turn")

# Joins name the chain's key, since its current run has no index; "is not null" lets prepared plans use the partial one.
_CHAIN: Columns = (
    *(("id", "uuid"), ("run_id", "uuid"), ("queue", "text"), ("due_at", "timestamptz"), ("deadline", "timestamptz")),
    *(("live_key", "text"), ("scope", "text"), ("workflow_id", "text"), ("workflow", "text")),
)
_RUN: Columns = (
    *(("id", "uuid"), ("chain_id", "uuid"), ("workflow_id", "text"), ("workflow", "text"), ("version", "int4")),
    *(("queue", "text"), ("args", "bytea"), ("seed", "int8"), ("parent", "text"), ("parent_chain_id", "uuid")),
    *(("parent_run_id", "uuid"), ("parent_seq", "int4"), ("parent_close", "text"), ("tags", "jsonb")),
    *(("expires_at", "timestamptz"), ("run_timeout", "float8")),
    *(("metadata", "jsonb"), ("created_at", "timestamptz")),
)
_MESSAGE: Columns = (
    *(("chain_id", "uuid"), ("run_id", "uuid"), ("kind", "text"), ("name", "text"), ("body", "bytea")),
    *(("dedupe", "text"), ("created_at", "timestamptz")),
)


class Relatives:
    """One statement a table, however many runs there are; none at all for a turn that has nothing to tell."""

    def __init__(self, sql: Dialect, clock: Callable[[], datetime] | None) -> None:
        self._sql = sql
        self._clock = clock

    def write(self, writes: Sequence[RunWrite]) -> None:
        """Children first, so that a message of the same turn finds them."""
        messages = [m for w in writes for m in w.messages]
        if children := [c for w in writes for c in w.children]:
            messages += self._start(children)
        if messages:
            self._send(messages)
        if closed := [w.run.run_id for w in writes if w.close_children]:
            self._close_children(closed)

    def _start(self, children: Sequence[NewChild]) -> list[NewMessage]:
        """Insert chains and their first runs; gives what the parents of refused ones hear.

        In order of the keys: two turns that start the same ids wait for each other in one direction only.
        """
        refused = self._runs(child.workflow_id for child in children)
        new = [
            (uuid7(), uuid7(), child)
            for child in sorted(children, key=lambda child: child.live_key or "")
            if child.workflow_id not in refused
        ]
        self._sql.write(
            _CHAIN,
            "insert into temporalex_chain (id, run_id, queue, due_at, deadline, live_key)"
            " select v.id, v.run_id, v.queue, v.due_at, v.deadline, v.live_key from v"
            " where v.scope not in ('global', 'workflow') or not exists (select 1 from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id where i.workflow_id = v.workflow_id"
            " and (v.scope = 'global' or i.workflow = v.workflow) and c.live_key is not null)"
            " on conflict (live_key) where live_key is not null do nothing",
            [
                (chain, run, c.queue, c.at, c.deadline, c.live_key, c.scope, c.workflow_id, c.workflow)
                for chain, run, c in new
            ],
        )
        test, parameter = self._sql.among([chain for chain, _, _ in new], "uuid")
        found = self._sql.select(f"select id from temporalex_chain where id {test}", [parameter], ("uuid",))
        made = {row[0] for row in found}
        encode, names = codec().encode, ", ".join(name for name, _ in _RUN)
        self._sql.write(
            _RUN,
            f"insert into temporalex_instance ({names}) select {names} from v",
            [
                (
                    *(run, chain, c.workflow_id, c.workflow, c.version, c.queue, encode(c.args), c.seed, c.parent),
                    *(c.parent_chain, c.parent_run, c.parent_seq, c.parent_close),
                    None if c.tags is None else json.dumps(c.tags),
                    *(c.expires_at, c.run_timeout, None if c.metadata is None else json.dumps(c.metadata), c.at),
                )
                for chain, run, c in new
                if chain in made
            ],
        )
        return [
            *(c.refusal(run_id_taken(c.workflow_id)) for c in children if c.workflow_id in refused),
            *(child.refusal() for chain, _, child in new if chain not in made),
        ]

    def _send(self, messages: Sequence[NewMessage]) -> None:
        by_id = self._by_id(
            {m.workflow_id for m in messages if m.chain_id is None and m.child is None and m.workflow_id}
        )
        children = self._children({m.child[0] for m in messages if m.child is not None})
        encode, now, rows = codec().encode, self._now(), []
        for m in messages:
            reached = Reached(m.chain_id)
            if m.child is not None:
                reached = Reached(children.get(m.child))
            elif m.chain_id is None:
                reached = by_id[m.workflow_id or ""]
            chain = reached.chain_id
            if chain is not None:
                rows.append((chain, m.run_id, m.kind, m.name, encode(m.body), m.dedupe, now))
            elif m.ask is None:
                log.warning(
                    "a %s for %r found no open run", m.kind, m.workflow_id, extra={"workflow_id": m.workflow_id}
                )
            if m.ask is not None:
                name, body = m.answer(reached)
                rows.append((m.ask[0], m.ask[1], "external", name, encode(body), None, now))
        names = ", ".join(name for name, _ in _MESSAGE)
        values = ", ".join(f"v.{name}" for name, _ in _MESSAGE)
        # Ids give the order of an inbox, and a join keeps none.
        self._sql.write(
            (*_MESSAGE, ("place", "int4")),
            f"insert into temporalex_message ({names}, queue) select {values}, c.queue from v"
            " join temporalex_chain c on c.id = v.chain_id where c.id {key} order by v.place on conflict do nothing",
            [(*row, place) for place, row in enumerate(rows)],
            key="chain_id",
        )

    def _now(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        now, parameters = self._sql.instant(None, live=True)
        moment: datetime = self._sql.select(f"select {now}", parameters, ("timestamptz",))[0][0]
        return moment

    def _by_id(self, ids: Collection[str]) -> dict[str, Reached]:
        """Where a message to each id goes: to the run of that run id, else to the open run of that business id."""
        reached = self._runs(ids)
        # of each id the newest open run of the last workflow by name, and whether another workflow has one: two looks into an index
        rows = self._sql.write_returning(
            (("workflow_id", "text"),),
            "select v.workflow_id, x.chain_id,"
            " exists (select 1 from temporalex_instance i join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and i.workflow < x.workflow and not c.closed),"
            " exists (select 1 from temporalex_instance i where i.workflow_id = v.workflow_id)"
            " from v left join temporalex_instance x on x.id = (select i.id from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and not c.closed order by i.workflow desc, i.id desc limit 1)",
            [(workflow_id,) for workflow_id in sorted(ids) if workflow_id not in reached],
            ("text", "uuid", "bool", "bool"),
        )
        for workflow_id, chain, several, known in rows:
            reached[workflow_id] = self._several(workflow_id) if several else Reached(chain, known)
        return reached

    def _several(self, workflow_id: str) -> Reached:
        """Open runs of several workflows have that id."""
        rows = self._sql.select(
            "select c.id, i.id, i.workflow, i.status, c.closed from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = %s and not c.closed order by i.id desc",
            [workflow_id],
            ("uuid", "uuid", "text", "text", "bool"),
        )
        try:
            found = the_one(workflow_id, [Found(*row) for row in rows])
        except AmbiguousId as exc:
            return Reached(None, ambiguous=exc)
        return Reached(None if found is None else found.chain_id)

    def _runs(self, ids: Iterable[str]) -> dict[str, Reached]:
        """Those of the ids that are ids of runs. No statement where none looks like it."""
        wanted = {run_id: text for text in ids if (run_id := as_run_id(text)) is not None}
        if not wanted:
            return {}
        test, parameter = self._sql.among(list(wanted), "uuid")
        rows = self._sql.select(
            "select i.id, c.id, c.closed from temporalex_instance i join temporalex_chain c on c.id = i.chain_id"
            f" where i.id {test}",
            [parameter],
            ("uuid", "uuid", "bool"),
        )
        return {wanted[run]: Reached(None if closed else chain) for run, chain, closed in rows}

    def _children(self, runs: Iterable[UUID]) -> dict[tuple[UUID, int], UUID]:
        """Open chains of the children of these runs, by run and number."""
        wanted = list(runs)
        if not wanted:
            return {}
        test, parameter = self._sql.among(wanted, "uuid")
        rows = self._sql.select(
            "select i.parent_run_id, i.parent_seq, c.id from temporalex_instance i"
            f" join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id where i.parent_run_id {test} and i.parent_run_id is not null and not c.closed",
            [parameter],
            ("uuid", "int4", "uuid"),
        )
        return {(run, seq): chain for run, seq, chain in rows}

    def _close_children(self, runs: Sequence[UUID]) -> None:
        """What ``parent_close`` says, to the open children of runs that close."""
        test, parameter = self._sql.among(runs, "uuid")
        now, clock = self._sql.instant(self._clock, live=True)
        body: Any = codec().encode(dict(PARENT_CLOSED))
        self._sql.execute(
            "insert into temporalex_message (chain_id, queue, kind, name, body, created_at)"
            " select c.id, c.queue, case i.parent_close when 'request_cancel' then 'cancel' else 'terminate' end, '',"
            f" %s, {now} from temporalex_instance i join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            f" where i.parent_run_id {test} and i.parent_run_id is not null and not c.closed"
            " and i.parent_close <> 'abandon'",
            [body, *clock, parameter],
        )
