"""Reads of runs for the engine: their records, their histories, and why blocked ones are blocked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import BooleanField, F, Func, IntegerField, Model, QuerySet, Subquery, Value

from temporalex_django.conf import codec
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.names import is_readable_time
from temporalex_django.db.dialects.base import find_dialect
from temporalex_django.db.messages.inbox import Inboxes, report_unreadable
from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import EVENTS, RUNS, WORKERS, json_value
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import BlockMark, Inbox, RunRecord
from temporalex_django.errors import KeyMissing, PayloadError

_BLOCKED = RUNS.pick_columns("blocked")
_FACTS = RUNS.pick_fields(RunRecord, run_id="id", parent_chain="parent_chain_id", parent_run="parent_run_id")
_RUN_SEQ = EVENTS.pick_columns("run_id", "seq")
_EVENT = EVENTS.pick_columns("seq", "activation", "kind", "at", "attributes")


class RunReader:
    """The part of a database storage that reads runs and their histories.

    The methods are those of the contract ``RunStorage``, which documents them. They lock nothing, since the caller has
    locked the chains where that matters.
    """

    def __init__(self, session: StorageSession, *, inboxes: Inboxes) -> None:
        self._session = session
        self._sql = session.sql
        self._inboxes = inboxes
        # The time until which the cached answer is valid, and the versions of live workers.
        self._live_versions: tuple[float, set[tuple[str, int]]] = (0.0, set())

    def load_turn_input(
        self,
        chains: Collection[UUID],
        *,
        waiting: Collection[UUID] = (),
        page: int | None = None,
        runs: Collection[UUID] = (),
    ) -> tuple[dict[UUID, Inbox], dict[UUID, RunRecord]]:
        with self._sql.pipeline():
            fetch_inboxes, fetch_records = (
                self._inboxes.submit_inbox(chains, waiting=waiting, page=page),
                self._submit_run_records(runs),
            )
        return fetch_inboxes(chains), fetch_records()

    def run_records(self, runs: Collection[UUID]) -> dict[UUID, RunRecord]:
        return self._submit_run_records(runs)()

    def closing_record(self, run_id: UUID) -> RunRecord:
        """Return the record of a run that a person ends. What cannot be read in it is None, and stays stored."""
        try:
            return self.run_records([run_id])[run_id]
        except (KeyMissing, PayloadError):
            (row,) = self._sql.select(_FACTS.select("where id = %s"), [run_id], _FACTS.types)
        values = _FACTS.row_fields(row)
        for name in ("args", "carried_messages", "snapshot"):
            values[name] = None
        for name in _RECORD_TIMES:
            values[name] = values[name] if is_readable_time(values[name]) else None
        return _run_record(values)

    def _submit_run_records(self, runs: Collection[UUID]) -> Callable[[], dict[UUID, RunRecord]]:
        if not runs:
            return dict
        test, parameter = self._sql.in_array(runs, "uuid")
        rows = self._sql.submit(_FACTS.select(f"where id {test}"), [parameter], _FACTS.types)

        def fetch_records() -> dict[UUID, RunRecord]:
            records = {}
            for row in rows():
                try:
                    record = _run_record(_FACTS.decode_row(row))
                    _check_times(record)
                except Exception:
                    stored = _FACTS.row_fields(row)
                    with report_unreadable(
                        f"the input of {stored['workflow']} {stored['workflow_id']}", run=stored["run_id"]
                    ):
                        raise
                records[record.run_id] = record
            return records

        return fetch_records

    def block_reason(self, run_id: UUID) -> BlockMark | None:
        # Somebody may have deleted the row of the run and left that of its chain.
        rows = self._sql.select(_BLOCKED.select("where id = %s"), [run_id], _BLOCKED.types)
        block_mark: BlockMark | None = None
        for (mark,) in rows:
            if mark is not None:
                block_mark = RUNS.read_json("blocked", mark)
        return block_mark

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        events_by_run: dict[UUID, list[HistoryEvent]] = {run: [] for run in after}
        new = f"from {EVENTS.name} h where h.run_id = v.run_id and h.seq > v.seq"
        # For each run by itself: a join over many runs would read the known part of their histories, too.
        if self._sql.lateral:
            new = f"from v cross join lateral (select * {new} offset 0) h"
        else:
            new = new.replace("from", "from v cross join", 1)
        rows = self._sql.write_returning(
            _RUN_SEQ.columns,
            f"select h.run_id, {_EVENT.with_alias('h')} {new} order by h.run_id, h.seq",
            after.items(),
            ("uuid", *_EVENT.types),
        )
        for run, *event in rows:
            events_by_run[run].append(_history_event(run, event))
        return events_by_run

    def history_page(self, run_id: UUID, *, after: int, limit: int) -> list[HistoryEvent]:
        rows = self._sql.select(
            _EVENT.select("where run_id = %s and seq > %s order by seq limit %s"), [run_id, after, limit], _EVENT.types
        )
        return [_history_event(run_id, row) for row in rows]

    def patch_markers(self, run_id: UUID) -> set[str]:
        rows = self._sql.select(
            "select attributes from temporalex_history_event where run_id = %s and kind = 'PatchMarked'",
            [run_id],
            ("bytea",),
        )
        decode = codec().decode
        with report_unreadable(f"a marker of run {run_id}", run=run_id):
            return {decode(attributes)["id"] for (attributes,) in rows}

    def has_live_worker(self, workflow: str, version: int) -> bool:
        """Return True if a worker with a valid lease has registered that version of the class.

        The answer may be ``policy.LIVE_VERSIONS_SECONDS`` old.
        """
        until, live_versions = self._live_versions
        if self._session.clock is None and time.monotonic() < until:
            return (workflow, version) in live_versions
        now, parameters = self._sql.now_expression(self._session.clock)
        rows = self._sql.select(
            f"select cast(workflows as text) from temporalex_worker where expires_at > {now}"
            " and buried_at is null and drained_at is null",
            parameters,
            ("text",),
        )
        live_versions = {
            (name, number)
            for (text,) in rows
            for name, numbers in WORKERS.read_json("workflows", text).items()
            for number in numbers
        }
        self._live_versions = (time.monotonic() + policy.LIVE_VERSIONS_SECONDS, live_versions)
        return (workflow, version) in live_versions


def read_closing(chain_id: UUID, *, session: StorageSession) -> tuple[str, Any] | None:
    """Return ``(status, attributes of the closing event)`` of the last run of a chain; None while it is open.

    One read.
    """
    rows = session.sql.select(
        "select i.status, i.closing from temporalex_chain c join temporalex_instance i on i.id = c.run_id"
        " where c.id = %s and c.closed",
        [chain_id],
        ("text", "bytea"),
    )
    if not rows:
        return None
    status, closing = rows[0]
    return status, None if closing is None else codec().decode(closing)


def _run_record(row_values: dict[str, Any]) -> RunRecord:
    """Return the record of a row. Its JSON columns are still text."""
    for name in ("search_attributes", "headers"):
        row_values[name] = json_value(row_values[name])
    return RunRecord(**row_values)


_RECORD_TIMES = ("scheduled_for", "expires_at", "started_at", "starts_at", "start_before")


def _check_times(record: RunRecord) -> None:
    for name in _RECORD_TIMES:
        if not is_readable_time(getattr(record, name)):
            raise PayloadError(f"its time {name} (column of temporalex_instance) is not in the years 2 to 9998")


def _history_event(run: UUID, row: Sequence[Any]) -> HistoryEvent:
    """Return the event. Raises ``PayloadError`` if its attributes cannot be read."""
    seq, activation, kind, at, attributes = row
    try:
        if at is None or not is_readable_time(at):
            raise PayloadError("its time (column at of temporalex_history_event) is not in the years 2 to 9998")
        return HistoryEvent(seq, activation, kind, at, codec().decode(attributes), len(attributes))
    except Exception:
        with report_unreadable(f"event {seq} ({kind}) of run {run}", run=run):
            raise


# --- querying ---------------------------------------------------------------------------------------------------------
#
# Queries over many rows: reading in pages, and a semi-join that uses indexes.
#
# No statement returns all rows, and no cursor stays open on the server, where a pooler would lose it.


_SIZE = 500


def iterate_pages(rows: QuerySet[Any, Any], *, by: str, size: int = _SIZE) -> Iterator[Any]:
    """Yield all rows in the order of the column ``by`` (``-id``: descending), ``size`` rows a statement.

    The column must be unique among the rows, and an attribute of each object.
    """
    column, lookup = by.lstrip("-"), "lt" if by.startswith("-") else "gt"
    rows, page = rows.order_by(by), list(rows.order_by(by)[:size])
    while page:
        yield from page
        if len(page) < size:
            return
        # By key, not by offset: rows that are deleted meanwhile must not shift the next page.
        page = list(rows.filter(**{f"{column}__{lookup}": getattr(page[-1], column)})[:size])


M = TypeVar("M", bound=Model)


class _ArraySubquery(Subquery):
    """A subquery whose rows become one array."""

    template = "array(%(subquery)s)"


class _EqualsAny(Func):
    """The SQL expression that tests if a value is among the elements of an array."""

    template = "%(expressions)s)"
    arg_joiner = " = any("
    output_field = BooleanField()


def semi_join(rows: QuerySet[M], ids: QuerySet[Any, Any], *, column: str = "pk") -> QuerySet[M]:
    """Return the queryset of those ``rows`` whose ``column`` is among ``ids``, a queryset of one column.

    Nothing is read yet. On PostgreSQL the ids become an array, so that the database looks them up by an index.
    """
    dialect = find_dialect(rows.db)
    if dialect is None or not dialect.arrays:
        return rows.filter(**{f"{column}__in": ids})
    return rows.filter(_EqualsAny(F(column), _ArraySubquery(ids if ids.query.is_sliced else ids.order_by())))


class BoundedCount(Subquery):
    """The number of the rows of a queryset, counted up to a bound, as a value of another query.

    The rows are counted where the database finds them: none is looked up again.
    """

    template = "(SELECT COUNT(*) FROM (%(subquery)s) counted)"

    def __init__(self, rows: QuerySet[Any, Any], most: int) -> None:
        """Count ``rows``, ``most`` of them at most."""
        super().__init__(rows.order_by().values(counted=Value(1))[:most], output_field=IntegerField())
