"""What commands print with ``--json``; the JSON Schema of each is kept beside the golden files of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.actions.targets import RunTarget
from temporalex_django.authoring.backend import Description
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.models import Instance
from temporalex_django.present.sentences import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where a run stands, in words."""

    state: str
    text: str
    trouble: bool
    since: datetime | None
    until: datetime | None


def summary_output(summary: Summary, *, short: bool = False) -> Where:
    """Of a sentence about a run."""
    text = summary.short_text if short else summary.text
    return Where(state=summary.state, text=text, trouble=summary.trouble, since=summary.since, until=summary.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListed:
    """A line of ``list``."""

    id: str
    run_id: str
    workflow: str
    version: int
    queue: str
    status: str
    closed: bool
    summary: Where
    created_at: datetime
    started_at: datetime | None
    closed_at: datetime | None
    tags: Sequence[str] | None


def run_output(run: Instance, summary: Summary) -> RunListed:
    """Of a row."""
    return RunListed(
        id=run.workflow_id,
        run_id=str(run.pk),
        workflow=run.workflow,
        version=run.version,
        queue=run.queue,
        status=run.status,
        closed=run.status in CLOSED_STATUSES,
        summary=summary_output(summary, short=True),
        created_at=run.created_at,
        started_at=run.started_at,
        closed_at=run.closed_at,
        tags=run.tags,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescribed:
    """One run: what ``handle.describe()`` gives, with the sentence and what the row says beside."""

    run: Description
    queue: str
    created_at: datetime
    parent_run_id: str | None
    summary: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPrinted:
    """A line of ``history``."""

    number: int
    activation: int
    kind: str
    at: datetime
    attributes: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNamed:
    """The run that something was done to, or that was started."""

    id: str
    run_id: str
    workflow: str
    version: int


def run_fields(target: RunTarget) -> dict[str, Any]:
    """What ``RunNamed`` and its kin say of the run."""
    return {
        "id": target.workflow_id,
        "run_id": str(target.selected_run_id),
        "workflow": target.workflow,
        "version": target.version,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSent(RunNamed):
    """What ``signal`` gives: the run reads it in its next turn."""

    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAnswered(RunNamed):
    """What ``update`` gives."""

    update: str
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswered(RunNamed):
    """What ``query`` gives."""

    query: str
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResumed(RunNamed):
    """What ``resume`` gives: the step that waited for it has its event."""

    event: str
