"""What a turn tells other runs: child starts, messages, the end of a parent.

Inserts only: a turn locks none but its own chains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.conf import codec
from temporalex_django.core.aliases import all_names
from temporalex_django.db.dialects.base import Dialect
from temporalex_django.db.rows import CHAINS, MESSAGES, NEW_CHAIN, NEW_RUN, RUNS, new_run
from temporalex_django.db.searched import insert_searched
from temporalex_django.engine.external_messages import PARENT_CLOSED, Delivery, NewChild, NewMessage
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.lookup import RunRef, parse_run_id, resolve_run, run_id_taken_error
from temporalex_django.engine.storage import RunWrite
from temporalex_django.errors import AmbiguousId

log = logging.getLogger("temporalex_django.turn")

# Joins name the chain's key, since its current run has no index; "is not null" lets prepared plans use the partial one.
_CHAIN = CHAINS.pick(*NEW_CHAIN.picked, scope="text", workflow_id="text", workflow="text")
_CHAIN_INSERT = (
    _CHAIN.insert + f" where v.scope not in ('global', 'workflow') or not exists (select 1 from {RUNS.name} i"
    f" join {CHAINS.name} c on c.id = i.chain_id and c.run_id = i.id where i.workflow_id = v.workflow_id"
    " and (v.scope = 'global' or i.workflow = v.workflow) and c.open_key is not null)"
    " on conflict (open_key) where open_key is not null do nothing"
)
_RUN_INSERT = NEW_RUN.insert
_TOLD = MESSAGES.pick("chain_id", "run_id", "kind", "name", "body", "request_id", "created_at", place="int4")
# Ids give the order of an inbox, and a join keeps none.
_TOLD_INSERT = MESSAGES.insert(
    {**{name: f"v.{name}" for name in _TOLD.picked}, "queue": "c.queue"},
    f"from v join {CHAINS.name} c on c.id = v.chain_id where c.id {{key}} order by v.place on conflict do nothing",
)
_RAN = RUNS.pick("id", "workflow", "version")
_FOUND = f"c.id, {RUNS.pick('id', 'workflow', 'status').of('i')}, c.closed"


class OtherRuns:
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
        free = [child for child in children if child.workflow_id not in refused]
        held = {id(child): child for child in free if self._under_another_name(child)}
        new = [
            (uuid7(), uuid7(), child)
            for child in sorted(free, key=lambda child: child.open_key or "")
            if id(child) not in held
        ]
        chains = [
            (chain, run, c.queue, c.at, c.deadline(c.at), c.open_key, c.scope, c.workflow_id, c.workflow)
            for chain, run, c in new
        ]
        self._sql.write(_CHAIN.columns, _CHAIN_INSERT, chains)
        test, parameter = self._sql.among([chain for chain, _, _ in new], "uuid")
        found = self._sql.select(f"select id from temporalex_chain where id {test}", [parameter], ("uuid",))
        made = {row[0] for row in found}
        runs = [
            new_run(c, chain, run, {"created_at": c.at, "expires_at": c.expires_at(c.at)})
            for chain, run, c in new
            if chain in made
        ]
        self._sql.write(NEW_RUN.columns, _RUN_INSERT, runs)
        found_by = [(run, c.search_attributes) for chain, run, c in new if c.search_attributes and chain in made]
        insert_searched(self._sql, found_by)
        return [
            *(c.refusal_message(run_id_taken_error(c.workflow_id)) for c in children if c.workflow_id in refused),
            *(child.refusal_message() for child in held.values()),
            *(child.refusal_message() for chain, _, child in new if chain not in made),
        ]

    def _under_another_name(self, child: NewChild) -> bool:
        """Whether an open run keeps it out that its class started when it was called otherwise.

        One statement, and none for a class that was never renamed.
        """
        others = all_names(child.workflow)[1:]
        if not others or child.scope not in ("workflow", "version"):
            return False
        test, parameter = self._sql.among(others, "text")
        version = " and i.version = %s" if child.scope == "version" else ""
        found = self._sql.select(
            f"select 1 from {RUNS.name} i join {CHAINS.name} c on c.id = i.chain_id and c.run_id = i.id"
            f" where i.workflow_id = %s and i.workflow {test}{version} and c.open_key is not null limit 1",
            [child.workflow_id, parameter, *([child.version] if version else [])],
            ("int4",),
        )
        return bool(found)

    def _send(self, messages: Sequence[NewMessage]) -> None:
        by_id = self._by_id(
            {m.workflow_id for m in messages if m.chain_id is None and m.child is None and m.workflow_id}
        )
        children = self._children({m.child[0] for m in messages if m.child is not None})
        now, told = self._now(), []
        for m in messages:
            reached = Delivery(m.chain_id)
            if m.child is not None:
                reached = Delivery(children.get(m.child))
            elif m.chain_id is None:
                reached = by_id[m.workflow_id or ""]
            reached = m.check_delivery(reached)
            chain = reached.chain_id
            if chain is not None:
                told.append((chain, m.run_id, m.kind, m.name, m.payload, m.message_id, now))
            elif m.ask is None:
                log.warning(
                    "a %s for %r found no open run", m.kind, m.workflow_id, extra={"workflow_id": m.workflow_id}
                )
            if m.ask is not None:
                name, body = m.answer(reached)
                told.append((m.ask[0], m.ask[1], "external", name, body, None, now))
        rows = _TOLD.rows((*row, place) for place, row in enumerate(told))
        self._sql.write(_TOLD.columns, _TOLD_INSERT, rows, key="chain_id")

    def _now(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        now, parameters = self._sql.instant(None, live=True)
        moment: datetime = self._sql.select(f"select {now}", parameters, ("timestamptz",))[0][0]
        return moment

    def _by_id(self, ids: Collection[str]) -> dict[str, Delivery]:
        """Where a message to each id goes: to the run of that run id, else to the open run of that business id."""
        reached = self._runs(ids)
        # of each id the newest open run of the last workflow by name, and whether another workflow has one: two looks
        # into an index
        rows = self._sql.write_returning(
            RUNS.pick("workflow_id").columns,
            "select v.workflow_id, x.chain_id, x.workflow, x.version,"
            " exists (select 1 from temporalex_instance i join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and i.workflow < x.workflow and not c.closed),"
            " exists (select 1 from temporalex_instance i where i.workflow_id = v.workflow_id)"
            " from v left join temporalex_instance x on x.id = (select i.id from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and not c.closed order by i.workflow desc, i.id desc limit 1)",
            [(workflow_id,) for workflow_id in sorted(ids) if workflow_id not in reached],
            ("text", "uuid", "text", "int4", "bool", "bool"),
        )
        for workflow_id, chain, workflow, version, several, known in rows:
            one = Delivery(chain, known, workflow=workflow, version=version or 0)
            reached[workflow_id] = self._several(workflow_id) if several else one
        return reached

    def _several(self, workflow_id: str) -> Delivery:
        """Open runs of several workflows have that id."""
        rows = self._sql.select(
            f"select {_FOUND} from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = %s and not c.closed order by i.id desc",
            [workflow_id],
            ("uuid", "uuid", "text", "text", "bool"),
        )
        try:
            found = resolve_run(workflow_id, [RunRef(*row) for row in rows])
        except AmbiguousId as exc:
            return Delivery(None, error=exc)
        return Delivery(None if found is None else found.chain_id)

    def _runs(self, ids: Iterable[str]) -> dict[str, Delivery]:
        """Those of the ids that are ids of runs. No statement where none looks like it."""
        wanted = {run_id: text for text in ids if (run_id := parse_run_id(text)) is not None}
        if not wanted:
            return {}
        test, parameter = self._sql.among(list(wanted), "uuid")
        rows = self._sql.select(
            f"select {_RAN.of('i')}, c.id, c.closed"
            f" from temporalex_instance i join temporalex_chain c on c.id = i.chain_id where i.id {test}",
            [parameter],
            (*_RAN.types, "uuid", "bool"),
        )
        return {
            wanted[run]: Delivery(None if closed else chain, workflow=workflow, version=version)
            for run, workflow, version, chain, closed in rows
        }

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
