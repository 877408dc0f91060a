"""Histories as JSON text: exported from one database, replayed against code anywhere, kept in a repository.

The text is one object: ``{"temporalex_history": format, "workflow", "id", "run_id", "events": [{"seq", "activation",
"kind", "at", "attributes", "check"}]}``. ``check`` chains the events: it is eight hexadecimal digits of a hash over the
previous check and this event. So a change, a gap or a missing end is found, with its place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.events import ENGINE_VERSION, FORMAT, HistoryEvent
from temporalex_django.errors import PayloadError

_HEADER = ("temporalex_history", "workflow", "id", "run_id", "events")
_EVENT = {"seq": int, "activation": int, "kind": str, "at": str, "attributes": dict, "check": str}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """The history of one run, read from text. ``workflow`` is the name of its class, and ``id`` its business id."""

    workflow: str
    id: str
    run_id: str
    events: list[HistoryEvent]


def dump(events: Sequence[HistoryEvent]) -> str:
    """Return all events of one run as text. Its payloads are neither redacted nor encrypted."""
    start_attributes = events[0].attributes
    rows, check = [], ""
    for event in events:
        row = {
            "seq": event.number,
            "activation": event.activation,
            "kind": event.kind,
            "at": event.at.isoformat(),
            "attributes": event.attributes,
        }
        check = _next_checksum(check, row)
        rows.append(json.dumps({**row, "check": check}, ensure_ascii=False, allow_nan=False))
    head = {
        "temporalex_history": FORMAT,
        "workflow": start_attributes.get("workflow"),
        "id": start_attributes.get("id"),
        "run_id": start_attributes.get("run_id"),
        "length": len(rows),
    }
    start = json.dumps(head, ensure_ascii=False)[:-1]
    return start + ', "events": [\n  ' + ",\n  ".join(rows) + "\n]}\n"


def load(text: str | bytes, *, source: str = "the history") -> StoredHistory:
    """Read a text that ``dump`` wrote. ``source`` (a file name) begins every error message.

    Raises ``PayloadError``, with the number of the event, for a text that is not JSON, was cut off or changed, or is no
    history. The same goes for a newer format and for another engine number.
    """
    try:
        data = json.loads(text)
    except ValueError as exc:
        # Count the complete events, so that the message says where the text was cut off.
        event_count = len(
            re.findall(r'"check": "[0-9a-f]{8}"', text if isinstance(text, str) else text.decode(errors="replace"))
        )
        raise PayloadError(f"{source} is not complete JSON: it was cut off after event {event_count}: {exc}") from None
    if not isinstance(data, dict) or any(name not in data for name in _HEADER) or not isinstance(data["events"], list):
        raise PayloadError(f"{source} is not a history: it must be an object with {', '.join(_HEADER)}")
    written = data["temporalex_history"]
    if not isinstance(written, int) or written > FORMAT:
        raise PayloadError(
            f"{source} has format {written!r}, but this version reads formats up to {FORMAT}: update temporalex_django "
            "(from event 1 on)"
        )
    events, check = [], ""
    for number, row in enumerate(data["events"], 1):
        events.append(_parse_event(row, number, source))
        check = _next_checksum(check, {name: row[name] for name in _EVENT if name != "check"})
        if row["check"] != check:
            raise PayloadError(
                f"{source}: event {number} differs from the export: it, or an event before it, was changed"
            )
    if not events or len(events) != data.get("length"):
        raise PayloadError(
            f"{source} has only {len(events)} of {data.get('length')} events: those from event {len(events) + 1} on "
            "are missing"
        )
    return _build_history(data, events, source)


def _parse_event(row: Any, number: int, source: str) -> HistoryEvent:
    """Return the event in ``row``, the object for event ``number`` in the text. Raises ``PayloadError``."""
    if not isinstance(row, dict):
        raise PayloadError(f"{source}: event {number} is {row!r}, not an object")
    for name, kind in _EVENT.items():
        if type(row.get(name)) is not kind:
            raise PayloadError(f"{source}: event {number} has no valid {name!r} ({kind.__name__} expected)")
    if row["seq"] != number:
        raise PayloadError(f"{source}: event {row['seq']} is in the place of event {number}")
    if row["kind"] not in kinds.KINDS:
        raise PayloadError(f"{source}: event {number} has the unknown kind {row['kind']!r}")
    try:
        at = datetime.fromisoformat(row["at"])
    except ValueError:
        raise PayloadError(f"{source}: event {number} has no valid 'at': {row['at']!r}") from None
    if at.tzinfo is None:
        raise PayloadError(f"{source}: event {number} has an 'at' without a time zone: {row['at']!r}")
    return HistoryEvent(row["seq"], row["activation"], row["kind"], at, row["attributes"])


def _build_history(data: dict[str, Any], events: list[HistoryEvent], source: str) -> StoredHistory:
    """Return the history of the events, after a check that the text in ``data`` begins as a history does.

    Raises ``PayloadError``, with ``source`` at the start of its message.
    """
    first = events[0]
    if first.kind != "WorkflowStarted":
        raise PayloadError(f"{source}: event 1 is {first.kind}, but a history begins with WorkflowStarted")
    engine = kinds.WORKFLOW_STARTED.read(first).get("engine", 1)
    if engine != ENGINE_VERSION:
        raise PayloadError(
            f"{source}: event 1 is from engine {engine}, but this is engine {ENGINE_VERSION}: read it with the version "
            "of temporalex_django that wrote it"
        )
    for name in ("workflow", "id", "run_id"):
        if data[name] != first.attributes.get(name):
            raise PayloadError(
                f"{source} has {name} {data[name]!r}, but event 1 has {first.attributes.get(name)!r}: it belongs to a "
                "different run"
            )
    return StoredHistory(workflow=data["workflow"], id=data["id"], run_id=data["run_id"], events=events)


def _next_checksum(before: str, row: dict[str, Any]) -> str:
    """Return the checksum of an event, which is made from the event and the checksum of the one before.

    ``before`` is that earlier checksum, and ``row`` is the event without its own.
    """
    # Sorted and without spaces, so that a reformatted file has the same checksums.
    text = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:8]
