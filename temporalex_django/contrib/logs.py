"""Formatters for ``logging``: each record is one line, with the ids of its run and without payloads.

    LOGGING = {
        ...
        "formatters": {"json": {"()": "temporalex_django.contrib.logs.JsonFormatter"}},
    }

A record of another library is formatted, too. The text of an exception may quote a payload, so a line has its type and
the code locations that it passed instead.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from temporalex_django.contrib.request_id import current_request_id
from temporalex_django.core.failures import error_line

__all__ = ["JsonFormatter", "PlainFormatter"]

#: Extra attributes of records that a line contains, in this order. All others are left out: they may be payloads.
FACTS = (
    *("event", "workflow", "workflow_id", "run_id", "activity", "seq", "attempt", "action", "denied", "reference"),
    *("worker", "queue", "schedule", "request_id", "otelTraceID", "otelSpanID"),
)
_TIME_DIGITS = "milliseconds"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: ``time`` (UTC), ``level``, ``logger``, ``message``, and its facts.

    Facts are the extra attributes in ``FACTS`` and those in the ``facts`` of a ``LogHandler``. ``error`` is the type of
    the exception with its code locations. ``constants`` are items that each line contains, such as the name of the
    service.
    """

    def __init__(self, constants: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._constants = constants or {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **facts_of(record),
            **self._constants,
        }
        if (error := _error_of(record)) is not None:
            line["error"] = error
        # All but ASCII is escaped: some readers of logs take U+2028 for the end of a line.
        return json.dumps(line, default=str)


class PlainFormatter(logging.Formatter):
    """Formats a record as one line of text: time (UTC), level, logger and message, then its facts as ``name=value``.

    Line breaks and other unprintable characters are escaped, so that no value can begin a line of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        parts = [f"{_time_of(record)} {record.levelname} {record.name}: {record.getMessage()}"]
        parts += [f"{name}={value}" for name, value in facts_of(record).items()]
        if (error := _error_of(record)) is not None:
            parts.append(f"error={error}")
        return _escape(" ".join(parts))


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts of a record by name: ids and names, and no payloads."""
    facts = {name: value for name in FACTS if (value := getattr(record, name, None)) is not None}
    if "request_id" not in facts and (request_id := current_request_id(facts.get("run_id"))):
        facts["request_id"] = request_id
    listed = getattr(record, "facts", None)
    if isinstance(listed, dict) and record.name.startswith("temporalex_django."):
        facts |= {name: value for name, value in listed.items() if value is not None}
    return facts


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec=_TIME_DIGITS).replace("+00:00", "Z")


def _error_of(record: logging.LogRecord) -> str | None:
    """Return the exception of a record as a text without its message."""
    if not record.exc_info or record.exc_info[1] is None:
        return None
    return error_line(record.exc_info[1])


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
