"""The rows of search attributes: two statements for whatever a turn sets, none where nobody sets any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from temporalex_django.core.attributes import search_rows
from temporalex_django.db.dialects.base import Dialect
from temporalex_django.db.rows import RUNS, SEARCHED

Attributes = Sequence[tuple[UUID, Mapping[str, Any]]]

_ROW = SEARCHED.pick("run_id", "name", "place", "text", "moment", number="text")
_INSERT = SEARCHED.insert(
    {
        **{name: f"v.{name}" for name in _ROW.picked},
        "number": "cast(v.number as numeric)",
        "workflow": "o.workflow",
    },
    f"from v join {RUNS.name} o on o.id = v.run_id where o.id {{key}}",
)


def insert_searched(sql: Dialect, runs: Attributes) -> None:
    """Rows of new runs, which are there already."""
    rows = [
        (run, one.name, one.place, one.text, one.moment, one.number)
        for run, attributes in runs
        for one in search_rows(attributes)
    ]
    sql.write(_ROW.columns, _INSERT, rows, key="run_id")


def replace_searched(sql: Dialect, runs: Attributes) -> None:
    """All that these runs have."""
    delete_searched(sql, [run for run, _ in runs])
    insert_searched(sql, runs)


def delete_searched(sql: Dialect, runs: Sequence[UUID]) -> None:
    """They have none any more."""
    if runs:
        test, parameter = sql.among(runs, "uuid")
        sql.execute(f"delete from {SEARCHED.name} where run_id {test}", [parameter])
