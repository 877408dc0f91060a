"""Queries that the published state in the row of a run answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import host, inside_transaction
from temporalex_django.backends.protocol import RunQueryCall
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.engine import policy
from temporalex_django.engine.refusals import nothing_published_error
from temporalex_django.errors import QueryFailed

#: Facts about a run, as ``RowQuery._read_row`` returns them.
_Row = tuple[str, bytes | None, bool, bool, int, datetime | None]


class RowQuery:
    """A query that is answered from the rows of a run, in this process.

    ``answer()`` computes the answer from the state that the run has published. ``call`` is the operation that asks.
    """

    def __init__(self, call: RunQueryCall) -> None:
        self.call = call
        self.target, self.storage = call.target, call.storage

    def answer(self) -> Any:
        """Return the answer from the rows as they are. Raises ``UnknownWorkflow`` if this process lacks the class."""
        return self._answer(self._find_class(), self._read_row())

    def _find_class(self) -> type[Workflow]:
        return host().find_class(self.target.chain_id, self.target.workflow, self.target.version)

    def _answer(self, cls: type[Workflow], row: _Row) -> Any:
        if isinstance(self.call.query, str) and self.call.query.startswith("__"):
            return self.call.answer_built_in()
        if row[5] is not None:
            raise nothing_published_error(self.target.workflow, self.target.workflow_id, starts_at=row[5])
        published = None
        if row[1] is not None:
            published = codec().decode(row[1])
        # In the gap after a continue-as-new, the state of the previous run is the best answer (see decision 13).
        if published is None and self.target.pinned is None and row[0] not in CLOSED_STATUSES:
            published = self._previous_state()
        return self._call(cls, row, published)

    def _call(self, cls: type[Workflow], row: _Row, published: Any) -> Any:
        del row
        return cls.answer(self.call.query, self.call.args, published)

    def _read_row(self) -> _Row:
        """Return ``(status, published state, blocked, has unread messages, crashes, future begin)``. One read.

        ``crashes`` counts the processes in a row that died while they ran the code.
        """
        run = "c.run_id" if self.target.pinned is None else "%s"
        pinned = [] if self.target.pinned is None else [self.target.pinned]
        now, clock = self.storage.sql.now_expression(self.storage.clock)
        rows = self.storage.sql.select(
            "select i.status, i.published, i.blocked is not null,"  # noqa: S608 - one of two constants
            " exists (select 1 from temporalex_message m where m.chain_id = c.id and not m.settled and m.fresh), c.crashes,"
            f" case when i.status = 'pending' and i.starts_at > {now} then i.starts_at end"
            f" from temporalex_chain c join temporalex_instance i on i.id = {run} where c.id = %s",
            [*clock, *pinned, self.target.chain_id],
            ("text", "bytea", "bool", "bool", "int4", "timestamptz"),
        )
        status, published, blocked, has_undelivered, crashes, starts_at = rows[0]
        return status, published, blocked, has_undelivered, crashes, starts_at

    def _previous_state(self) -> Any:
        """Return the state of the run that continued as this one, or None. It answers until this run publishes.

        The state of a run that was reset is not used, because it describes what no longer happened.
        """
        rows = self.storage.sql.select(
            "select o.id, o.published, o.status from temporalex_instance o where o.chain_id = %s order by o.id desc limit 2",
            [self.target.chain_id],
            ("uuid", "bytea", "text"),
        )
        runs: list[tuple[UUID, bytes | None, str]] = [(row[0], row[1], row[2]) for row in rows]
        if len(runs) < 2 or runs[1][1] is None or runs[1][2] != "continued_as_new":
            return None
        return codec().decode(runs[1][1])


class TablesQuery(RowQuery):
    """A query to a run that lives on the tables. Its state in the row may be older than its messages."""

    def answer(self) -> Any:
        """Return the answer, after a turn of the run if it has unread messages or has not begun to run."""
        inline_turn.refuse_own_run(self.target, "query()", storage=self.storage)
        cls = self._find_class()
        row = self._read_row()
        if self._may_advance(row) and self._advance_run():
            row = self._read_row()
        return self._answer(cls, row)

    def _call(self, cls: type[Workflow], row: _Row, published: Any) -> Any:
        # The query runs code of the class too, and may end this process as turns have ended others.
        if row[4] >= policy.MOST_CRASHES:
            raise QueryFailed(
                f"{self.target.workflow} {self.target.workflow_id} cannot answer queries: {row[4]} processes "
                "in a row died while running its code. Terminate it, or fix its code and move it"
            )
        with inline_turn.crash_marker(self.storage).record_work("run", self.target.run_id):
            return super()._call(cls, row, published)

    def _may_advance(self, row: _Row) -> bool:
        """Return True if the state is stale, by unread messages or no first turn, and a turn here may update it."""
        status, _, blocked, has_undelivered, _, starts_at = row
        if starts_at is not None:
            return False
        is_stale = has_undelivered or (status == "pending" and not blocked)
        may_run = self.call.fresh and host().runs_turns and self.target.workflow_class is not None
        return is_stale and may_run and status not in CLOSED_STATUSES

    def _advance_run(self) -> bool:
        """Run a turn if the lock is free in time, and return True if the state may have changed."""
        in_transaction = inside_transaction(self.storage.alias)
        if in_transaction and self.storage.sql.fixed_snapshot():
            # The snapshot of the transaction may be older than the row that it would lock. Answer from the row instead.
            return False
        try:
            with self.storage.savepoint() if in_transaction else self.storage.transaction():
                run = inline_turn.try_lock_run(self.target, storage=self.storage, wait=get_settings().UPDATE_LOCK_WAIT)
                if run is None or run.closed:
                    return True
                inline_turn.advance(self.target, storage=self.storage)
        except DatabaseError as exc:
            if in_transaction or not self.storage.is_transient(exc):
                raise
        return True
