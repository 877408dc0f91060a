"""The columns of a run's row that an activation changes. Only differences are written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from temporalex_django.core.executor import VisibleState
from temporalex_django.core.failures import run_failure_cause
from temporalex_django.engine.cache import CachedRun
from temporalex_django.engine.contracts.records import RowChanges, RunWrite

#: What the row of a run shows before its first activation.
_UNBEGUN = VisibleState(
    status="pending",
    waiting_for=[],
    waits=[],
    accepts={"signals": [], "updates": []},
    published=None,
    publications=0,
    stored={},
    search_attributes={},
    human_tasks=(),
    four_eyes=None,
)


def write_row(
    write: RunWrite, entry: CachedRun, *, now: datetime, closing: dict[str, Any] | None = None
) -> VisibleState:
    """Add the columns of a run that differ from its present ones to ``write.instance``, and return its visible state.

    ``entry`` has the executor and the content of the row, as far as it is known; ``now`` is the time of the activation.
    ``closing`` has the attributes of the closing event, if its own code has closed the run.
    """
    visible = entry.executor.visible_state()
    previous, entry.row = entry.row, visible
    changes, is_first = write.instance, write.run.activations == 1
    if previous is None or previous.status != visible.status:
        changes["status"] = visible.status
    if closing is not None:
        changes.update({"closed_at": now, "closing": closing})
        if visible.status == "failed":
            changes.update(_cause_columns(closing))
    if previous is not None:
        _write_changed_waits(changes, previous, visible)
    elif not is_first:
        changes.update({"waiting_for": visible.waiting_for, "waits": visible.waits, "accepts": visible.accepts})
    else:
        _write_changed_waits(changes, _UNBEGUN, visible)
    if previous is None or previous.publications != visible.publications:
        changes.update({"published": visible.published, "published_at": visible.published_at})
        if entry.executor.definition.stored:
            changes["stored"] = visible.stored
    # A row that is not known has the attributes of the start, unless the code of the run sets any.
    if entry.executor.sets_attributes if previous is None else previous.search_attributes != visible.search_attributes:
        changes["search_attributes"] = visible.search_attributes or None
    if is_first and write.events:
        changes["started_at"] = now
    return visible


def _cause_columns(closing: dict[str, Any]) -> RowChanges:
    cause = run_failure_cause(closing)
    return {"cause": None, "fault": None} if cause is None else {"cause": cause.text, "fault": cause.fault}


def _write_changed_waits(changes: RowChanges, previous: VisibleState, visible: VisibleState) -> None:
    """Add the columns about waits that differ between two states of a run to ``changes``."""
    if previous.waiting_for != visible.waiting_for:
        changes["waiting_for"] = visible.waiting_for
    if previous.waits != visible.waits:
        changes["waits"] = visible.waits
    if previous.accepts != visible.accepts:
        changes["accepts"] = visible.accepts
