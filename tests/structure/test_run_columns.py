"""Each column of runs is in every place that carries or shows columns, or is left out there on purpose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Final

import pytest

from temporalex_django.authoring.backend import Description
from temporalex_django.db import sql_columns, turn_writes
from temporalex_django.engine.contracts.records import RunRecord
from temporalex_django.engine.memory.tables import MemoryRun
from temporalex_django.management.cli.outputs import RunListed
from temporalex_django.models import Instance
from temporalex_django.rest.serializers import InstanceOut

COLUMNS: Final = tuple(field.column for field in Instance._meta.local_concrete_fields)
#: Names under which outputs and memory have a column.
OUTPUT_NAMES: Final = {"id": "run_id", "workflow_id": "id", "subject_id": "subject"}
MEMORY_NAMES: Final = {"id": "run_id"}


def names_of(*classes: type) -> set[str]:
    return {field.name for cls in classes for field in fields(cls)}


def rest_names() -> set[str]:
    return {name for name, field in InstanceOut().fields.items() if field.source != "*"}


def columns_named(names: Collection[str], renamed: Mapping[str, str]) -> set[str]:
    return {column for column in COLUMNS if renamed.get(column, column) in names}


#: Places and the columns that each of them has.
PLACES: Final[dict[str, set[str]]] = {
    "NEW_RUN of db/sql_columns.py": {*sql_columns.NEW_RUN.column_names},
    "_NEXT, _INHERITED or _CONTINUED of db/turn_writes.py": {
        *turn_writes._NEXT.column_names,
        *turn_writes._INHERITED,
        *turn_writes._CONTINUED,
    },
    "MemoryRun of engine/memory/tables.py": columns_named(names_of(MemoryRun, RunRecord), MEMORY_NAMES),
    "Description of authoring/backend.py": columns_named(names_of(Description), OUTPUT_NAMES),
    "RunListed of management/cli/outputs.py": columns_named(names_of(RunListed), OUTPUT_NAMES),
    "InstanceOut of rest/serializers.py": columns_named(rest_names(), OUTPUT_NAMES),
}
#: What a turn writes: a new run has none of it, and neither has the next run of a chain.
_OF_TURNS: Final = {
    *("status", "blocked", "waiting_for", "waits", "accepts", "published", "closing", "cause", "attempt"),
    *("started_at", "closed_at", "ended"),
}
#: Keys and payloads, which outputs show in another form or under permissions of their own.
_NOT_SHOWN: Final = {
    *("chain_id", "waits", "args", "seed", "carried_messages", "snapshot", "published", "stored", "closing", "cause"),
    *("attempt", "parent", "parent_chain_id", "parent_seq", "parent_close", "expires_at", "run_timeout"),
    *("subject_type_id", "metadata", "ended"),
}
#: Columns that a place leaves out on purpose.
LEFT_OUT: Final[dict[str, set[str]]] = {
    "NEW_RUN of db/sql_columns.py": {*_OF_TURNS, "paused", "stored", "carried_messages"},
    "_NEXT, _INHERITED or _CONTINUED of db/turn_writes.py": _OF_TURNS,
    # Memory finds chains and subjects by other keys, and computes ``ended`` from the status.
    "MemoryRun of engine/memory/tables.py": {
        *("chain_id", "parent_chain_id", "parent_run_id", "subject_type_id", "subject_id", "metadata", "queue"),
        "ended",
    },
    "Description of authoring/backend.py": {*_NOT_SHOWN, "queue", "parent_run_id", "subject_id", "created_at"},
    "RunListed of management/cli/outputs.py": {
        *_NOT_SHOWN,
        *("blocked", "paused", "waiting_for", "accepts", "parent_run_id", "subject_id", "search_attributes"),
    },
    "InstanceOut of rest/serializers.py": _NOT_SHOWN,
}


def differences(place: str, present: Collection[str], left_out: Collection[str]) -> list[str]:
    """Say which column a place lacks, and which one it has although the table leaves it out."""
    missing = [column for column in COLUMNS if column not in present and column not in left_out]
    surplus = [column for column in left_out if column in present or column not in COLUMNS]
    return [f"the column {column} is not in {place}: add it, or name it in LEFT_OUT" for column in missing] + [
        f"LEFT_OUT names {column}, which is in {place} or is no column" for column in sorted(surplus)
    ]


@pytest.mark.parametrize("place", PLACES)
def test_each_column_is_there_or_is_left_out(place: str) -> None:
    assert differences(place, PLACES[place], LEFT_OUT[place]) == []


def test_what_is_missing_is_named() -> None:
    assert differences("REST", {*COLUMNS} - {"queue"}, {"status"}) == [
        "the column queue is not in REST: add it, or name it in LEFT_OUT",
        "LEFT_OUT names status, which is in REST or is no column",
    ]
