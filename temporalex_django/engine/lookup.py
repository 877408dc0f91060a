"""The rules that find the run an id means.

A run id takes precedence over a business id. A business id that several workflows used means the one open run. See
decision 24.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from temporalex_django.core.aliases import current_name
from temporalex_django.core.names import quoted
from temporalex_django.errors import AmbiguousId, InvalidId


class RunRef(NamedTuple):
    """The present run of a chain."""

    chain_id: UUID
    run_id: UUID
    workflow: str
    status: str
    closed: bool


def parse_run_id(text: str) -> UUID | None:
    """Return the run id in ``text``, a UUID in any of its spellings, or None."""
    try:
        return UUID(text)
    except ValueError:
        return None


def resolve_run(ref: str, candidates: Iterable[RunRef]) -> RunRef | None:
    """Return the chain that a business id means, out of all its chains, newest first.

    That is the newest or, if several workflows used the id, the open one. A renamed class counts as one workflow.
    Raises ``AmbiguousId`` when several workflows used the id and not exactly one of them has an open run.
    """
    newest: dict[str, RunRef] = {}
    open_runs: dict[str, RunRef] = {}
    for run in candidates:
        name = current_name(run.workflow)
        newest.setdefault(name, run)
        if not run.closed:
            open_runs.setdefault(name, run)
    if len(newest) <= 1:
        return next(iter(newest.values()), None)
    if len(open_runs) == 1:
        return next(iter(open_runs.values()))
    raise ambiguous_id_error(ref, [open_runs.get(name) or newest[name] for name in sorted(newest)])


def ambiguous_id_error(ref: str, candidates: Sequence[RunRef]) -> AmbiguousId:
    """Return the error for an id that several runs match; it lists these runs."""
    descriptions = ", ".join(f"{run.workflow} ({run.status}, run {run.run_id})" for run in candidates)
    return AmbiguousId(
        f"several workflows have used the id {quoted(ref)}: {descriptions}. Name the workflow, or pass the run id "
        "instead",
        candidates=[{"workflow": run.workflow, "run_id": str(run.run_id), "status": run.status} for run in candidates],
    )


def run_id_taken_error(workflow_id: str) -> InvalidId:
    """Return the error for a start whose id is the id of a run."""
    return InvalidId(
        f"{quoted(workflow_id)} is the id of a run, and looking up that run would find this one instead. "
        "Choose another id"
    )
