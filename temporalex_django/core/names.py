"""Names of workflows, activities and messages, with their aliases."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from temporalex_django.errors import InvalidId, PayloadError, WorkflowDefinitionError

# --- names ------------------------------------------------------------------------------------------------------------
#
# Names of messages, patches and activities, in a form that every database column, log line and URL can hold.


MAX_LENGTH = 200
#: Names of the backends on which runs live: the tables of this package, and a Temporal cluster.
TABLES = "tables"
TEMPORAL = "temporal"
_MAX_QUOTED = 60
#: Longest reason or comment; a longer one is shortened.
MAX_NOTE_LENGTH = 10_000
_WHITE_SPACE = re.compile(r"\s+")
#: Control characters that are not white space, and halves of surrogate pairs, which no column can hold.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]+")


def gettext_noop(text: str) -> str:
    """Return ``text``, which is marked for translation; code that shows it to people translates it."""
    return text


def is_name(value: object) -> bool:
    """Return True for a string of 1 to 200 printable characters."""
    return isinstance(value, str) and 1 <= len(value) <= MAX_LENGTH and value.isprintable()


def quoted(value: Any) -> str:
    """Return ``repr(value)``, cut short: an invalid name may have any size.

    The first unprintable character of a text is named, with its position, because people cannot see it.
    """
    try:
        text = repr(value[: MAX_LENGTH + 1] if isinstance(value, (str, bytes)) else value)
    except Exception:  # noqa: BLE001 - an int of many thousand digits, or code of the project
        text = f"a value of the type {type(value).__name__}"
    if len(text) > _MAX_QUOTED:
        text = f"{text[: _MAX_QUOTED - 1]}…"
    if not isinstance(value, str) or value.isprintable():
        return text
    position, letter = next((i, c) for i, c in enumerate(value, 1) if not c.isprintable())
    default = "CONTROL CHARACTER" if unicodedata.category(letter) == "Cc" else "WITHOUT A NAME"
    letter_name = unicodedata.name(letter, default)
    return f"{text} (U+{ord(letter):04X} {letter_name} at position {position})"


def fit_text(text: str, *, limit: int = MAX_LENGTH) -> str:
    """Return ``text``, which people read, in a form that every column, log line and page can hold.

    Code builds such texts from data, and people paste them, so a strange character must not fail a run. White space of
    any kind becomes one blank. Control characters are removed; format characters, which some scripts and emoji need,
    stay. A text of more than ``limit`` characters is cut and ends with "…".

    A printable text is not changed otherwise: histories have such texts, and a replay compares them.
    """
    # The cut comes first: in the past, a title of which only the end is unprintable was cut at the same place.
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    if text.isprintable():
        return text
    return _WHITE_SPACE.sub(_as_blank, _CONTROLS.sub("", text))


def _as_blank(match: re.Match[str]) -> str:
    space = match[0]
    return space if space.isprintable() else " "


def fit_note(value: object, *, label: str) -> str:
    """Return a reason or comment, which a person gives, in the form of ``fit_text``. ``label`` names it in errors.

    Raises ``PayloadError`` for anything that is not a string.
    """
    if not issubclass(type(value), str):  # ``isinstance`` would call its ``__class__``, which may raise
        raise PayloadError(f"{label} must be a string, not {type(value).__name__}")
    return fit_text(cast("str", value), limit=MAX_NOTE_LENGTH)


def check_name(name: object, *, label: str) -> str:
    """Return ``name``, the name of a message that comes from outside, if it is valid.

    ``label`` says in the error what kind of message it is. Raises ``PayloadError`` for an invalid name, and for one
    that starts with two underscores, because such names are reserved.
    """
    if not isinstance(name, str) or not is_name(name):
        raise PayloadError(
            f"the name of a {label} must be a string of 1 to {MAX_LENGTH} printable characters, not {quoted(name)}"
        )
    if name.startswith("__"):
        raise PayloadError(f"{label} {quoted(name)}: names that begin with two underscores are reserved")
    return name


def key_text(value: Any) -> Any:
    """Return a whole number or a UUID as text, and any other value unchanged.

    Keys of models have these types, and ids of runs are texts.
    """
    return str(value) if isinstance(value, (int, UUID)) and not isinstance(value, bool) else value


def counted(count: int, singular: str, plural: str) -> str:
    """Return a number with its words, such as "1 run is due" or "1,200 runs are due"."""
    return f"{count:,} {singular if count == 1 else plural}"


def type_advice(value: object) -> str:
    """Return advice to append to the error about an id: its type if ``value`` is not a string, otherwise ""."""
    if isinstance(value, str):
        return ""
    row = ": pass its pk" if hasattr(type(value), "_meta") and hasattr(value, "pk") else ""
    return f"; it must be a string, not {type(value).__name__}{row}"


def check_message_id(value: object, *, label: str) -> str:
    """Return ``value``, the id of a message, if it is valid. A message with an id can be sent again and counts once.

    ``label`` says in the error what kind of message it is. Raises ``InvalidId`` unless it has 1 to 200 printable
    characters.
    """
    if not isinstance(value, str) or not is_name(value):
        raise InvalidId(
            f"{quoted(value)} is not a valid {label} id: use 1 to {MAX_LENGTH} printable characters{type_advice(value)}"
        )
    return value


def check_code_name(name: object, *, label: str, reserved: bool = True) -> str:
    """Return ``name``, which workflow code declares, if it is valid. ``label`` begins the error message.

    Raises ``WorkflowDefinitionError`` for an invalid name; with ``reserved``, also for one that starts with two
    underscores.
    """
    if not isinstance(name, str) or not is_name(name) or (reserved and name.startswith("__")):
        raise WorkflowDefinitionError(
            f"{label}: {quoted(name)} is not a valid name: use 1 to {MAX_LENGTH} printable characters, without '__' at "
            "the start"
        )
    return name


def fit_label(label: object, *, owner: str) -> str:
    """Return ``label``, a text for people from code, in the form of ``fit_text``.

    ``owner`` begins the error message. Raises ``WorkflowDefinitionError`` for anything that is not a string, and for a
    text without a character that can be shown.
    """
    if not isinstance(label, str) or not (text := fit_text(label)):
        raise WorkflowDefinitionError(f"{owner}: {quoted(label)} is not a text of at least one printable character")
    return text


def fit_optional_label(label: object, *, owner: str) -> str | None:
    """Return None for None, and otherwise the result of ``fit_label``, which has the same arguments and errors."""
    return None if label is None else fit_label(label, owner=owner)


def is_permission(value: object) -> bool:
    """Return True if the value has the form of a permission: ``app.codename``."""
    return isinstance(value, str) and all(value.partition("."))


#: About a hundred years. A longer duration is a mistake, and date arithmetic would overflow.
MAX_SECONDS = 100 * 366 * 86400.0


def to_seconds(value: Any, *, label: str = "duration", instant: str = "") -> float:
    """Return ``value``, a timedelta or a number of seconds, in seconds. ``label`` names it in errors.

    ``instant`` says in the error about a date or datetime what takes an instant instead.
    Raises ``TypeError`` for a value that is not a duration, and ``ValueError`` for one that is not finite or too long.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an int that no float can hold
            number = math.inf
    else:
        advice = f"; write {instant}" if instant and isinstance(value, date) else ""
        raise TypeError(f"{label} must be a timedelta or a number of seconds, not {quoted(value)}{advice}")
    # ``isfinite`` comes first: every comparison with NaN is False, so the second test alone would let NaN pass.
    if not math.isfinite(number) or number > MAX_SECONDS:
        raise ValueError(f"{label} of {quoted(value)} is longer than 100 years")
    return number


def wait_seconds(value: Any, *, label: str, instant: str = "") -> float:
    """Return a time to wait in seconds. Arguments and errors are those of ``to_seconds``.

    Also raises ``ValueError`` if the time is negative.
    """
    number = to_seconds(value, label=label, instant=instant)
    if number < 0:
        raise ValueError(f"{label} must not be negative: {quoted(value)}")
    return number


def timeout_seconds(value: Any, *, label: str, instant: str = "") -> float:
    """Return the duration of a timeout in seconds: a negative one, which has passed, is zero.

    Arguments and errors are those of ``to_seconds``.
    """
    return max(to_seconds(value, label=label, instant=instant), 0.0)


def seconds_until(deadline: datetime, now: datetime) -> float:
    """Return the seconds from ``now`` to a deadline, both with a time zone: zero if it has passed."""
    return max((deadline - now).total_seconds(), 0.0)


#: Years of the times that enter from anywhere. Others have no equivalent in some time zones, and a database that stores
#: one of them may return a row that no process can read.
FIRST_YEAR, LAST_YEAR = 2, 9998
#: The times that are read in place of stored ones that lie before or after these years, or are no times.
BEFORE_ALL, AFTER_ALL = datetime(FIRST_YEAR - 1, 12, 31, tzinfo=UTC), datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)


def check_time(moment: datetime, *, label: str) -> datetime:
    """Return ``moment``, aware or naive, if it lies in the years 2 to 9998 in UTC. ``label`` names it in errors.

    A naive time is compared as it is. Every time that enters from outside passes this function. Raises ``ValueError``.
    """
    offset = moment.utcoffset() or timedelta()
    try:
        year = (moment.replace(tzinfo=None) - offset).year
    except OverflowError:
        year = 0
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise ValueError(f"{label} must be in a year from {FIRST_YEAR} to {LAST_YEAR} in UTC, not {moment.isoformat()}")
    return moment


def is_readable_time(moment: datetime | None) -> bool:
    """Return True for a time that a row may have: None, or one that is not in place of a stored time.

    A process that reads a time outside of the bounds cannot know what was stored, so it must not act on it.
    """
    return moment is None or FIRST_YEAR <= moment.year <= LAST_YEAR


def aware_datetime(value: Any, *, label: str) -> datetime:
    """Return ``value`` if it is a datetime with a time zone. ``label`` names it in errors.

    Raises ``TypeError`` for a value that is not a datetime, and ``ValueError`` for one without a time zone and for one
    outside of the years 2 to 9998.
    """
    if not isinstance(value, datetime):
        raise TypeError(f"{label} must be a datetime with a time zone, not {quoted(value)}")
    if value.utcoffset() is None:
        parts = (value.year, value.month, value.day, value.hour, value.minute, value.second)
        arguments = ", ".join(str(part) for part in (parts if value.second else parts[:-1]))
        raise ValueError(
            f"{label} has no time zone: write datetime({arguments}, tzinfo=ZoneInfo('Europe/Berlin')), with the zone "
            "that you mean"
        )
    return check_time(value, label=label)


def check_wait(timeout: Any, mode: str = "auto") -> float | None:
    """Return the timeout of a handle's method in seconds; None means to wait without a limit.

    ``mode`` is the option of that method: "auto" or "worker". Raises ``TypeError`` or ``ValueError`` for an invalid
    timeout, and ``ValueError`` for an unknown ``mode``.
    """
    if mode not in ("auto", "worker"):
        raise ValueError(f"mode must be 'auto' or 'worker', not {quoted(mode)}")
    return None if timeout is None else wait_seconds(timeout, label="timeout")


# --- aliases ----------------------------------------------------------------------------------------------------------
#
# Former names of activities and workflow classes.
#
# Runs and histories keep the name under which they were recorded. These tables map such a name to its present name.


#: The present name by each former name. ``authoring`` fills both tables from the ``aliases`` that code declares.
ACTIVITIES: dict[str, str] = {}
WORKFLOWS: dict[str, str] = {}
_ALIASES_BY_ATTRIBUTE = {"activity": ACTIVITIES, "workflow": WORKFLOWS}


def is_same_name(attribute: str, recorded: object, produced: object) -> bool:
    """Return True if the recorded value of an event attribute equals the produced one, or is a former name of it.

    ``attribute`` is "activity" or "workflow"; the values of any other attribute have no former names. ``recorded``
    comes from the history, and ``produced`` from the command that the code issues in a replay.
    """
    if recorded == produced:
        return True
    current_names = _ALIASES_BY_ATTRIBUTE.get(attribute)
    return current_names is not None and isinstance(recorded, str) and current_names.get(recorded) == produced


def current_name(workflow: str) -> str:
    """Return the present name of a workflow class, given its present or a former name."""
    return WORKFLOWS.get(workflow, workflow)


def original_name(workflow: str) -> str:
    """Return the first alias that a class declares, or its own name if it declares none.

    Business ids are unique under this name, so old and new code that start a run agree on the scope.
    """
    return next((old for old, new in WORKFLOWS.items() if new == workflow), workflow)


def all_names(workflow: str) -> list[str]:
    """Return the name of a class, followed by its former names."""
    return [workflow, *(old for old, new in WORKFLOWS.items() if new == workflow)]
