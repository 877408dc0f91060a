"""The objects that commands print as JSON with ``--json``.

A test compares the JSON Schema of each class with a file in ``tests/golden/commands``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.run_columns import Place, stored_columns
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.models import Instance
from temporalex_django.present.sentences import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The state of a run: ``state`` is one word for programs, and ``text`` the sentences for people.

    ``trouble`` is true if a person should look at the run. ``since`` is when it came into the state, and ``until`` when
    it leaves the state by itself; null if that is unknown.
    """

    state: str
    text: str
    trouble: bool
    since: datetime | None
    until: datetime | None


def summary_output(summary: Summary, *, short: bool = False) -> Where:
    """Return the JSON output for the summary of a run; with ``short``, its text has at most 140 characters."""
    text = summary.short_text if short else summary.text
    return Where(state=summary.state, text=text, trouble=summary.trouble, since=summary.since, until=summary.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListed:
    """A run, as a line of ``temporalex list``."""

    id: str
    run_id: str
    workflow: str
    version: int
    queue: str
    status: str
    closed: bool
    summary: Where
    created_at: datetime
    starts_at: datetime | None
    started_at: datetime | None
    closed_at: datetime | None
    tags: Sequence[str] | None


def run_output(run: Instance, summary: Summary) -> RunListed:
    """Return the line that ``list`` prints for a run."""
    columns = stored_columns(partial(getattr, run), Place.LIST)
    return RunListed(closed=not run.is_open, summary=summary_output(summary, short=True), **columns)


def status_text(status: str, *, blocked: bool) -> str:
    """Return the status of a run; that it is blocked is a state beside it, which somebody has to look at."""
    return f"{status}, blocked" if blocked else status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescribed:
    """The result of ``temporalex describe``.

    ``run`` is what ``handle.describe()`` returns, and ``summary`` is the sentence about the run.
    """

    run: Description
    queue: str
    created_at: datetime
    parent_run_id: str | None
    summary: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPrinted:
    """An event of a history, as a line of ``temporalex history``.

    ``activation`` is the number of the activation in which it was recorded, and ``at`` the time of that.
    """

    number: int
    activation: int
    kind: str
    at: datetime
    attributes: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNamed:
    """The run that was started, or on which a command acted."""

    id: str
    run_id: str
    workflow: str
    version: int


def run_fields(target: RunTarget) -> dict[str, Any]:
    """Return the fields of ``RunNamed``, by name, for the target of an operation."""
    return {
        "id": target.workflow_id,
        "run_id": str(target.selected_run_id),
        "workflow": target.workflow,
        "version": target.version,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSent(RunNamed):
    """The result of ``temporalex signal``: the run, and the name of the signal.

    The run reads the signal when a worker advances it next.
    """

    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAnswered(RunNamed):
    """The result of ``temporalex update``: the run, the name of the update, and its answer."""

    update: str
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswered(RunNamed):
    """The result of ``temporalex query``: the run, the name of the query, and its answer."""

    query: str
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResumed(RunNamed):
    """The result of ``temporalex resume``: the run, and the event that its waiting step has got."""

    event: str
