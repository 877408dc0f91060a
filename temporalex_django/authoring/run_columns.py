"""The table of the columns of runs: where a value comes from, which later runs get it, and where it is shown.

Storages, descriptions, REST, commands and the admin take their columns from ``RUN_COLUMNS``, which has a row for each
field of ``models.Instance``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final
from uuid import UUID

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.payloads.search_attributes import decode_all


class ColumnType(Enum):
    """The type of the values of a column of runs.

    Each interface has one kind of field, or one text form, for a type.
    """

    TEXT = auto()
    INTEGER = auto()
    NUMBER = auto()
    TIME = auto()
    #: A key: a UUID, or the key of a row of another table.
    KEY = auto()
    #: A list of texts.
    TEXTS = auto()
    #: Search attributes in their stored form.
    ATTRIBUTES = auto()
    JSON = auto()
    #: A value that the codec encodes. Lists of runs do not read it.
    PAYLOAD = auto()


class Origin(Enum):
    """The moment at which a column of a run's row gets its first value."""

    #: The start of the run: the column is a field of ``RunStart``.
    START = auto()
    #: The insert of the row: ids, the time, and the key of the subject.
    INSERT = auto()
    #: A turn or an operation, later. It is empty in a new row.
    TURN = auto()


class NextRun(Enum):
    """The rule for the value with which a column of the next run begins, after continue-as-new, a move or a reset."""

    #: That of the run before, or of the run from whose history a reset starts.
    COPIED = auto()
    #: The same, but empty after a reset, which ends a pause and publishes anew.
    CONTINUED = auto()
    #: A new one, from ``RunRecord.successor``, or the time.
    NEW = auto()
    EMPTY = auto()


class Place(Enum):
    """The places that show columns of runs, such as descriptions, REST, the command line and the admin."""

    #: ``handle.describe()``, and the command ``describe`` with ``--json``.
    DESCRIPTION = auto()
    #: A run in REST, alone and in lists.
    REST = auto()
    #: A line of the command ``list`` with ``--json``.
    LIST = auto()
    #: A line of the command ``describe``, under ``heading``.
    TEXT = auto()
    #: The data on the page of a run in the admin, under ``heading``.
    ADMIN = auto()


def _as_stored(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumn:
    """A column of runs: where its value comes from, and where and how it is shown.

    ``name`` is the column of the table. It has the name ``engine_name`` in the records of the engine, and
    ``output_name`` in all that is shown; both are ``name`` by default. ``places`` are those that show the column, and
    ``heading`` is its name there. ``describe(value)`` returns the value as a description shows it. ``redact(redactor,
    value)`` hides what not every user may see; None hides nothing.
    """

    name: str
    type: ColumnType
    origin: Origin
    next_run: NextRun
    nullable: bool = True
    engine_name: str = ""
    output_name: str = ""
    #: The class of the run determines it, so a move to another version sets it anew.
    of_class: bool = False
    #: A fork gets the value of the run that it continues.
    forked: bool = False
    places: frozenset[Place] = frozenset()
    heading: str = ""
    describe: Callable[[Any], Any] = _as_stored
    redact: Callable[[Redactor, Any], Any] | None = None

    def __post_init__(self) -> None:
        for alias in ("engine_name", "output_name"):
            object.__setattr__(self, alias, getattr(self, alias) or self.name)


def _start(name: str, kind: ColumnType, next_run: NextRun = NextRun.COPIED, **options: Any) -> RunColumn:
    return RunColumn(name=name, type=kind, origin=Origin.START, next_run=next_run, **options)


def _inserted(name: str, kind: ColumnType, next_run: NextRun, **options: Any) -> RunColumn:
    return RunColumn(name=name, type=kind, origin=Origin.INSERT, next_run=next_run, **options)


def _turn(name: str, kind: ColumnType, next_run: NextRun = NextRun.EMPTY, **options: Any) -> RunColumn:
    return RunColumn(name=name, type=kind, origin=Origin.TURN, next_run=next_run, **options)


def _or_no_names(names: Any) -> Any:
    return names or {"signals": [], "updates": []}


def _or_no_tags(tags: Any) -> Any:
    return tags or []


def _or_no_headers(headers: Any) -> Any:
    return headers or {}


_TEXT, _INTEGER, _TIME, _KEY = ColumnType.TEXT, ColumnType.INTEGER, ColumnType.TIME, ColumnType.KEY
_JSON, _PAYLOAD = ColumnType.JSON, ColumnType.PAYLOAD
_EVERYWHERE = frozenset(Place)
#: Places for columns that say which run it is. The page in the admin and the text of a command have headings for them.
_IDENTITY = frozenset({Place.DESCRIPTION, Place.REST, Place.LIST})
_ONE_RUN = frozenset({Place.DESCRIPTION, Place.REST})

#: The columns, in the order in which interfaces show them.
RUN_COLUMNS: Final[tuple[RunColumn, ...]] = (
    _start("workflow_id", _TEXT, nullable=False, output_name="id", places=_IDENTITY),
    _inserted(
        "id",
        _KEY,
        NextRun.NEW,
        nullable=False,
        engine_name="run_id",
        output_name="run_id",
        places=_IDENTITY,
        describe=str,
    ),
    _start("workflow", _TEXT, nullable=False, places=_IDENTITY),
    _start("version", _INTEGER, nullable=False, of_class=True, places=_IDENTITY),
    _start("queue", _TEXT, nullable=False, of_class=True, places=frozenset({Place.REST, Place.LIST})),
    _turn("status", _TEXT, nullable=False, places=_IDENTITY),
    _turn("blocked", _JSON, places=_ONE_RUN, redact=Redactor.redact_blocked),
    _turn("paused", _JSON, NextRun.CONTINUED, places=_ONE_RUN),
    _inserted(
        "created_at",
        _TIME,
        NextRun.NEW,
        nullable=False,
        places=frozenset({Place.REST, Place.LIST, Place.TEXT}),
        heading="Created",
    ),
    # In the admin, the sentence about the run names the time.
    _inserted("starts_at", _TIME, NextRun.EMPTY, places=_EVERYWHERE - {Place.ADMIN}, heading="Starts"),
    _start("start_before", _TIME, NextRun.EMPTY, places=_ONE_RUN),
    _turn("started_at", _TIME, places=_EVERYWHERE - {Place.ADMIN}, heading="Started"),
    _turn("closed_at", _TIME, places=_EVERYWHERE - {Place.ADMIN}, heading="Closed"),
    # A description also names what the run lacks, so its texts are computed and not taken from the column alone.
    _turn("waiting_for", ColumnType.TEXTS, places=frozenset({Place.REST, Place.TEXT}), heading="Waiting for"),
    _turn("accepts", _JSON, places=_ONE_RUN, describe=_or_no_names),
    _start(
        "search_attributes",
        ColumnType.ATTRIBUTES,
        NextRun.NEW,
        places=_EVERYWHERE - {Place.LIST},
        heading="Search attributes",
        describe=decode_all,
    ),
    _start("tags", ColumnType.TEXTS, of_class=True, places=_EVERYWHERE, heading="Tags", describe=_or_no_tags),
    _start("metadata", _JSON, of_class=True, places=frozenset({Place.ADMIN}), heading="Metadata"),
    _start(
        "scheduled_for",
        _TIME,
        forked=True,
        places=_EVERYWHERE - {Place.LIST, Place.ADMIN},
        heading="Scheduled for",
    ),
    _start(
        "headers",
        _JSON,
        forked=True,
        places=frozenset({Place.DESCRIPTION}),
        describe=_or_no_headers,
        redact=Redactor.redact_headers,
    ),
    _start("parent_run_id", _KEY, engine_name="parent_run", places=frozenset({Place.REST})),
    # -- shown in another form, or not at all --------------------------------------------------------------------------
    _inserted("chain_id", _KEY, NextRun.COPIED, nullable=False),
    _start("args", _PAYLOAD, NextRun.NEW, nullable=False),
    _start("seed", _INTEGER, NextRun.NEW, nullable=False),
    _start("snapshot", _PAYLOAD, NextRun.NEW),
    _turn("carried_messages", _PAYLOAD, NextRun.NEW),
    _turn("published", _PAYLOAD),
    # In the admin, the title of the published state names the time.
    _turn("published_at", _TIME, places=frozenset({Place.REST})),
    _turn("stored", _JSON, NextRun.CONTINUED),
    _turn("closing", _PAYLOAD),
    _turn("waits", _JSON),
    _turn("cause", _TEXT),
    _turn("fault", _TEXT),
    _turn("ended", _TEXT),
    _turn("attempt", _INTEGER, nullable=False),
    _start("parent", _TEXT),
    _start("parent_chain_id", _KEY, engine_name="parent_chain"),
    _start("parent_seq", _INTEGER),
    _start("parent_close", _TEXT),
    _inserted("expires_at", _TIME, NextRun.COPIED),
    _start("start_limit", _JSON, NextRun.EMPTY),
    _start("run_timeout", ColumnType.NUMBER),
    _turn("cluster_id", _TEXT, NextRun.COPIED),
    _turn("cluster_run_id", _KEY),
    _turn("cluster_task_at", _TIME),
    _turn("mirrored_at", _TIME, NextRun.COPIED, places=frozenset({Place.REST})),
    _inserted("subject_type_id", _KEY, NextRun.COPIED, forked=True),
    _inserted("subject_id", _TEXT, NextRun.COPIED, forked=True),
)

#: Names of columns that lists of runs leave in the database.
PAYLOAD_COLUMNS: Final = tuple(column.name for column in RUN_COLUMNS if column.type is ColumnType.PAYLOAD)
#: Names of columns that are left in the database where neither payloads nor labels of runs are shown.
UNREAD_COLUMNS: Final = (*PAYLOAD_COLUMNS, "metadata", "search_attributes")


def names_for_next_run(rule: NextRun) -> tuple[str, ...]:
    """Return the names of the columns for which ``rule`` says what the next run of a chain begins with."""
    return tuple(column.name for column in RUN_COLUMNS if column.next_run is rule)


def columns_shown_in(place: Place) -> list[RunColumn]:
    """Return the columns that ``place`` shows, in the order in which it shows them."""
    return [column for column in RUN_COLUMNS if place in column.places]


def describe_columns(read: Callable[[str], Any], redactor: Redactor) -> dict[str, Any]:
    """Return the fields of a ``Description`` that are columns, by their output names.

    ``read(name)`` returns the stored value of a column, and ``redactor`` hides what the user may not see.
    """
    description = {}
    for column in columns_shown_in(Place.DESCRIPTION):
        value = column.describe(read(column.name))
        description[column.output_name] = value if column.redact is None else column.redact(redactor, value)
    return description


def stored_columns(read: Callable[[str], Any], place: Place) -> dict[str, Any]:
    """Return the columns that a place shows as they are stored, by output name; ids are texts.

    ``read(name)`` returns the stored value of a column.
    """
    values = {column.output_name: read(column.name) for column in columns_shown_in(place)}
    return {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}
