"""Each column of runs has a row in the table of columns, and each place has the columns that their rows give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any, ClassVar, Final

import pytest
from django.db import models

from temporalex_django.admin.schedules.schedule_form import ScheduleForm
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.run_columns import (
    RUN_COLUMNS,
    ColumnType,
    NextRun,
    Origin,
    Place,
    RunColumn,
)
from temporalex_django.authoring.schedules.schedule import OPTIONS, Schedule
from temporalex_django.authoring.workflow import Workflow, start_options
from temporalex_django.core.history.attributes import ChildStartedAttributes
from temporalex_django.db import sql_columns, turn_writes
from temporalex_django.engine.contracts.records import RunRecord
from temporalex_django.engine.memory.tables import _LABEL_NAMES, RunRow
from temporalex_django.engine.run_start import RunStart
from temporalex_django.management.outputs import RunListed
from temporalex_django.models import Instance
from temporalex_django.models import Schedule as ScheduleRow
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.describe import ScheduleDescription
from temporalex_django.rest.schedules import ScheduleChangeBody, ScheduleDetail
from temporalex_django.rest.serializers import InstanceDetail, InstanceOut

FIELDS: Final[dict[str, models.Field[Any, Any]]] = {
    field.column: field for field in Instance._meta.local_concrete_fields if field.column
}
#: The fields of models for a type. A key may be a UUID or a relation.
MODEL_FIELDS: Final[dict[ColumnType, tuple[type[Any], ...]]] = {
    ColumnType.TEXT: (models.CharField, models.TextField, models.GeneratedField),
    ColumnType.INTEGER: (models.IntegerField,),
    ColumnType.NUMBER: (models.FloatField,),
    ColumnType.TIME: (models.DateTimeField,),
    ColumnType.KEY: (models.UUIDField, models.ForeignKey),
    ColumnType.TEXTS: (models.JSONField,),
    ColumnType.ATTRIBUTES: (models.JSONField,),
    ColumnType.JSON: (models.JSONField,),
    ColumnType.PAYLOAD: (models.BinaryField,),
}
#: Columns of memory that have another form there: it finds chains and subjects by other keys, and computes ``ended``.
NOT_IN_MEMORY: Final = {
    *("chain_id", "ended", "subject_type_id", "subject_id", "attempt"),
    *("cluster_id", "cluster_run_id", "cluster_task_at", "mirrored_at"),  # nothing in memory lives on a cluster
}
#: What a description computes from a column and from other rows.
COMPUTED: Final = {"waiting_for"}


class Labelled(Workflow):
    """A class that declares all that a class can determine of a run."""

    tags: ClassVar[list[str]] = ["a"]
    metadata: ClassVar[dict[str, Any]] = {"b": 1}
    run_timeout = timedelta(seconds=1)

    async def run(self, args: None) -> None: ...


def names_of(*classes: type) -> set[str]:
    return {field.name for cls in classes for field in fields(cls)}


def shown_in(place: Place) -> Callable[[RunColumn], bool]:
    return lambda column: place in column.places


def next_run(rule: NextRun) -> Callable[[RunColumn], bool]:
    return lambda column: column.next_run is rule


#: Places: the columns that belong there, the attribute of a row that names them there, and the names there.
PLACES: Final[dict[str, tuple[Callable[[RunColumn], bool], str, set[str]]]] = {
    "RunStart of engine/run_start.py": (
        lambda column: column.origin is Origin.START,
        "engine_name",
        names_of(RunStart),
    ),
    "_NEXT of db/turn_writes.py": (next_run(NextRun.NEW), "name", {*turn_writes._NEXT.column_names}),
    "NEW_RUN of db/sql_columns.py": (
        lambda column: column.origin is not Origin.TURN,
        "name",
        {*sql_columns.NEW_RUN.column_names},
    ),
    "RunRow or RunRecord": (
        lambda column: column.name not in NOT_IN_MEMORY,
        "engine_name",
        names_of(RunRow, RunRecord) | {*_LABEL_NAMES},
    ),
    "Description of authoring/backend.py": (shown_in(Place.DESCRIPTION), "output_name", names_of(Description)),
    "RunListed of management/outputs.py": (shown_in(Place.LIST), "output_name", names_of(RunListed)),
    "InstanceOut of rest/serializers.py": (shown_in(Place.REST), "output_name", {*InstanceOut().fields}),
    "ChildStartedAttributes of core/history/attributes.py": (
        lambda column: column.of_class,
        "engine_name",
        {*ChildStartedAttributes.__annotations__},
    ),
    "start_options of authoring/workflow.py, for the class of this test": (
        lambda column: column.of_class,
        "engine_name",
        {*start_options(Labelled)},
    ),
}


def missing_columns(place: str, names: set[str] | None = None) -> list[str]:
    """Say which columns a place lacks."""
    belongs, attribute, present = PLACES[place]
    present = present if names is None else names
    return [
        f"the column {column.name} is not in {place}: add it there, or change its row in RUN_COLUMNS"
        for column in RUN_COLUMNS
        if belongs(column) and getattr(column, attribute) not in present
    ]


@pytest.mark.parametrize("place", PLACES)
def test_each_place_has_its_columns(place: str) -> None:
    assert missing_columns(place) == []


def test_each_column_has_a_row() -> None:
    rows = {column.name for column in RUN_COLUMNS}
    missing = [f"{name} has no row in RUN_COLUMNS of authoring/run_columns.py" for name in FIELDS if name not in rows]
    assert missing + [f"RUN_COLUMNS has {name}, which is no column" for name in sorted(rows - {*FIELDS})] == []
    assert len(rows) == len(RUN_COLUMNS)


def test_each_row_has_the_type_of_its_field() -> None:
    for column in RUN_COLUMNS:
        field = FIELDS[column.name]
        assert isinstance(field, MODEL_FIELDS[column.type]), column.name
        assert column.nullable is (field.null or field.generated), column.name


@pytest.mark.parametrize("name", ["Description", "RunListed"])
def test_outputs_have_no_column_that_its_row_leaves_out(name: str) -> None:
    cls, place = {"Description": (Description, Place.DESCRIPTION), "RunListed": (RunListed, Place.LIST)}[name]
    left_out = {column.output_name for column in RUN_COLUMNS if place not in column.places}
    assert names_of(cls) & left_out == (COMPUTED if cls is Description else set())


def test_a_text_has_a_heading() -> None:
    without = [
        column.name for column in RUN_COLUMNS if column.places & {Place.TEXT, Place.ADMIN} and not column.heading
    ]
    assert without == []


def test_what_is_redacted_is_shown_only_by_places_that_redact() -> None:
    redacted = [column for column in RUN_COLUMNS if column.redact is not None]
    assert [column.name for column in redacted if column.places & {Place.LIST, Place.ADMIN}] == []
    assert all(InstanceDetail().fields[column.output_name].source_attrs[0] == "description" for column in redacted)
    assert all(Place.DESCRIPTION in column.places for column in redacted)


def test_what_is_missing_is_named() -> None:
    place = "RunListed of management/outputs.py"
    assert f"the column queue is not in {place}: add it there, or change its row in RUN_COLUMNS" in missing_columns(
        place, names_of(RunListed) - {"queue"}
    )


def test_each_place_has_the_options_of_schedules() -> None:
    """A change over REST replaces the whole definition: an option that is missing there would be cleared."""
    places = {
        "Schedule of authoring/schedules/schedule.py": names_of(Schedule),
        "Schedule of models/schedules.py": {field.name for field in ScheduleRow._meta.get_fields()},
        "ScheduleDefinition of operations/schedules/definition.py": names_of(ScheduleDefinition),
        "ScheduleDescription of operations/schedules/describe.py": names_of(ScheduleDescription),
        "ScheduleForm of admin/schedules/schedule_form.py": {*ScheduleForm.base_fields},
        "ScheduleChangeBody of rest/schedules.py": {*ScheduleChangeBody().get_fields()},
        "ScheduleDetail of rest/schedules.py": {*ScheduleDetail().get_fields()},
    }
    missing = {place: sorted({*OPTIONS} - names) for place, names in places.items() if {*OPTIONS} - names}

    assert missing == {}, "add the options there, or leave them out of OPTIONS"
