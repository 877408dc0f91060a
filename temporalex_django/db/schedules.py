"""Writes of schedules: the states and the new slots of many schedules, with one statement each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from temporalex_django.db.sql_columns import SCHEDULES, SLOTS
from temporalex_django.db.storage import DjangoStorage

#: Columns that firing changes.
FIRED_COLUMNS: Final = (
    *("position", "last_walls", "fires", "failures", "waiting", "next_at", "backfill"),
    *("paused_at", "pause_reason", "paused_by", "paused_by_failures", "gone_since", "error"),
)
_FIRED = SCHEDULES.pick_columns("id", *FIRED_COLUMNS)
_FIRED_UPDATE = _FIRED.update("id")
_SLOT_COLUMNS = (
    *("at", "cause", "outcome", "reason", "decided_at", "workflow_id", "run_id", "chain_id", "running"),
    *("error_code", "error", "until", "count", "actor", "actor_key"),
)
_SLOT = SLOTS.pick_columns("schedule_id", *_SLOT_COLUMNS)
_SLOT_INSERT = _SLOT.insert


def write_states(states: Iterable[tuple[int, Mapping[str, Any]]], *, storage: DjangoStorage) -> None:
    """Update schedules in the open transaction: each entry has a primary key, and the values of ``FIRED_COLUMNS``."""
    rows = [(key, *(values[name] for name in FIRED_COLUMNS)) for key, values in states]
    storage.sql.write(_FIRED.columns, _FIRED_UPDATE, _FIRED.encode_rows(rows), key="id")


def insert_slots(slots: Iterable[tuple[int, Mapping[str, Any]]], *, storage: DjangoStorage) -> None:
    """Insert slots in the open transaction: each entry has the primary key of the schedule, and the values of a slot.

    Raises ``IntegrityError`` if a schedule has a slot at that time.
    """
    rows = [(schedule, *(values[name] for name in _SLOT_COLUMNS)) for schedule, values in slots]
    storage.sql.write(_SLOT.columns, _SLOT_INSERT, rows)
