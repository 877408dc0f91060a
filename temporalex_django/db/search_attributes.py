"""Writes of search attributes: two statements for all that a turn sets, and none if it sets nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from temporalex_django.core.payloads.search_attributes import search_rows
from temporalex_django.db.sql_columns import RUNS, SEARCH_ATTRIBUTES
from temporalex_django.engine.contracts.dialect import Dialect

RunAttributes = Sequence[tuple[UUID, Mapping[str, Any]]]

_ROW = SEARCH_ATTRIBUTES.pick_columns("run_id", "name", "place", "text", "moment", number="text")
_INSERT = SEARCH_ATTRIBUTES.insert(
    {
        **{name: f"v.{name}" for name in _ROW.column_names},
        "number": "cast(v.number as numeric)",
        "workflow": "o.workflow",
    },
    f"from v join {RUNS.name} o on o.id = v.run_id where o.id {{key}}",
)


def insert_search_attributes(sql: Dialect, runs: RunAttributes) -> None:
    """Insert the search attributes of new runs, whose rows exist already.

    ``runs`` are pairs of a run id and its attributes by name.
    """
    rows = [
        (run, attribute.name, attribute.place, attribute.text, attribute.moment, attribute.number)
        for run, attributes in runs
        for attribute in search_rows(attributes)
    ]
    sql.write(_ROW.columns, _INSERT, rows, key="run_id")


def replace_search_attributes(sql: Dialect, runs: RunAttributes) -> None:
    """Replace all search attributes of these runs; ``runs`` are pairs of a run id and its attributes by name."""
    delete_search_attributes(sql, [run for run, _ in runs])
    insert_search_attributes(sql, runs)


def delete_search_attributes(sql: Dialect, runs: Sequence[UUID]) -> None:
    """Delete all search attributes of these runs."""
    if runs:
        test, parameter = sql.in_array(runs, "uuid")
        sql.execute(f"delete from {SEARCH_ATTRIBUTES.name} where run_id {test}", [parameter])
