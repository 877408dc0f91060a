"""The columns of a run's row that an activation changes. Only differences are written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from temporalex_django.core.executor import Executor
from temporalex_django.core.failures import run_failure_cause
from temporalex_django.core.payloads.stored_fields import stored_fields
from temporalex_django.core.typed_dicts import AcceptedNames
from temporalex_django.engine.cache import CachedRun
from temporalex_django.engine.contracts.records import RunWrite
from temporalex_django.engine.contracts.typed_dicts import CurrentRow, RowChanges

_RowField = Literal["waiting_for", "waits", "accepts"]


def write_open_row(write: RunWrite, entry: CachedRun, *, now: datetime) -> None:
    """Add the columns of an open run that differ from its present ones to ``write.instance``.

    ``entry`` has the executor and the content of the row, as far as it is known; ``now`` is the time of the activation.
    """
    executor = entry.executor
    current_row: CurrentRow = {
        "status": "running" if executor.is_busy else "waiting",
        "waiting_for": executor.waiting_for,
        "waits": executor.wait_infos,
        "accepts": executor.accepts,
        "publications": executor.publications,
        "search_attributes": executor.search_attributes,
    }
    previous_row, entry.row = entry.row, current_row
    changes, is_first = write.instance, write.run.activations == 1
    if previous_row is None or previous_row["status"] != current_row["status"]:
        changes["status"] = current_row["status"]
    if _has_changed(previous_row, current_row, "waiting_for", is_first=is_first):
        changes["waiting_for"] = current_row["waiting_for"]
    if _has_changed(previous_row, current_row, "waits", is_first=is_first):
        changes["waits"] = current_row["waits"]
    if _has_changed(previous_row, current_row, "accepts", is_first=is_first):
        changes["accepts"] = current_row["accepts"]
    if previous_row is None or previous_row["publications"] != current_row["publications"]:
        _write_published(changes, executor)
    _write_attributes(changes, executor, previous_row)
    if is_first and write.events:
        changes["started_at"] = now


def write_closed_row(write: RunWrite, entry: CachedRun, *, status: str, closing: dict[str, Any], now: datetime) -> None:
    """Add the columns of a run that its own code closed to ``write.instance``.

    ``status`` is the one that the run has then, and ``closing`` has the attributes of the closing event.
    """
    changes, row, is_first = write.instance, entry.row, write.run.activations == 1
    changes.update({"status": status, "closed_at": now, "closing": closing})
    if status == "failed":
        changes["cause"] = run_failure_cause(closing)
    if _has_content(row, "waiting_for", is_first=is_first):
        changes["waiting_for"] = []
    if _has_content(row, "waits", is_first=is_first):
        changes["waits"] = []
    if _has_content(row, "accepts", is_first=is_first):
        changes["accepts"] = {"signals": [], "updates": []}
    if is_first:
        changes["started_at"] = now
    if row is None or row.get("publications") != entry.executor.publications:
        _write_published(changes, entry.executor)
    _write_attributes(changes, entry.executor, row)


def _has_content(row: CurrentRow | None, name: _RowField, *, is_first: bool) -> bool:
    """Return True if the column may hold a value.

    ``row`` is the known content of the row, or None. ``is_first`` is True in the first activation of the run.
    """
    if row is None:
        return not is_first
    return _is_nonempty(row[name])


def _has_changed(previous_row: CurrentRow | None, current_row: CurrentRow, name: _RowField, *, is_first: bool) -> bool:
    """Return True if the column differs from what the row holds, or may differ if that is not known (None).

    ``is_first`` is True in the first activation of the run, before which the column is empty.
    """
    if previous_row is not None:
        return previous_row[name] != current_row[name]
    return not is_first or _is_nonempty(current_row[name])


def _is_nonempty(value: Sequence[Any] | AcceptedNames) -> bool:
    if isinstance(value, dict):
        return any(value.values())
    return bool(value)


def _write_published(changes: RowChanges, executor: Executor) -> None:
    changes["published"] = executor.published
    if declared := executor.definition.stored:
        changes["stored"] = stored_fields(executor.published, declared)


def _write_attributes(changes: RowChanges, executor: Executor, row: CurrentRow | None) -> None:
    """Add changed search attributes to ``changes``; with ``row`` None (content unknown) all, if the run sets any."""
    if row is None:
        has_changed = executor.sets_attributes
    else:
        has_changed = row["search_attributes"] != executor.search_attributes
    if has_changed:
        changes["search_attributes"] = executor.search_attributes or None
