"""Names: of messages, patches, activities. What every database column, log line and URL can hold."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from temporalex_django.errors import InvalidId, PayloadError, WorkflowDefinitionError

MAX_LENGTH = 200
_MAX_QUOTED = 60


def is_name(value: object) -> bool:
    """Whether it is a string of 1 to 200 printable characters."""
    return isinstance(value, str) and 1 <= len(value) <= MAX_LENGTH and value.isprintable()


def quoted(value: Any) -> str:
    """``repr(value)``, cut short: a name that is wrong may be of any size."""
    text = repr(value[: MAX_LENGTH + 1] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 1] + "…"


def check_name(name: object, *, label: str) -> str:
    """The name of a message that comes from outside.

    Raises ``PayloadError``: those with two underscores in front are reserved.
    """
    if not isinstance(name, str) or not is_name(name):
        raise PayloadError(
            f"the name of a {label} is a string of 1 to {MAX_LENGTH} printable characters, not {quoted(name)}"
        )
    if name.startswith("__"):
        raise PayloadError(f"{label} {quoted(name)}: names that begin with two underscores are reserved")
    return name


def key_text(value: Any) -> Any:
    """A business value as text, where it is a whole number or a UUID: keys of models are; anything else is itself."""
    return str(value) if isinstance(value, (int, UUID)) and not isinstance(value, bool) else value


def type_advice(value: object) -> str:
    """What to add to a refusal of an id that is no text."""
    return "" if isinstance(value, str) else f"; a text is wanted, not {type(value).__name__}"


def check_message_id(value: object, *, label: str) -> str:
    """The id of a message, by which it may be sent again.

    Raises ``InvalidId`` unless it is 1 to 200 printable characters.
    """
    if not isinstance(value, str) or not is_name(value):
        raise InvalidId(f"{quoted(value)} is no {label} id: 1 to {MAX_LENGTH} printable characters{type_advice(value)}")
    return value


def check_code_name(name: object, *, label: str, reserved: bool = True) -> str:
    """A name that workflow code gives.

    Raises ``WorkflowDefinitionError``; ``reserved``: also for two underscores in front.
    """
    if not isinstance(name, str) or not is_name(name) or (reserved and name.startswith("__")):
        raise WorkflowDefinitionError(
            f"{label}: {quoted(name)} is no name: 1 to {MAX_LENGTH} printable characters, not beginning with '__'"
        )
    return name


def check_label(label: object, *, owner: str) -> str | None:
    """What people call a thing, where code says so.

    Raises ``WorkflowDefinitionError`` unless it is a line of at most 200 characters.
    """
    if label is not None and not (isinstance(label, str) and is_name(label)):
        raise WorkflowDefinitionError(f"{owner}: {quoted(label)} is no text of 1 to {MAX_LENGTH} printable characters")
    return label


def shorten_title(title: str) -> str:
    """A title of at most 200 characters: code makes it of data, and one that is too long must not fail a run."""
    return title if len(title) <= MAX_LENGTH else f"{title[: MAX_LENGTH - 1]}…"


def is_permission(value: object) -> bool:
    """Whether it has an app and a codename."""
    return isinstance(value, str) and all(value.partition("."))
