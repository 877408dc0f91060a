"""Starts of runs in memory, with the policies about other runs that have the id."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from temporalex_django.authoring.authorization import require_operation
from temporalex_django.authoring.requests.start_policy import REPLACED, StartOutcome, require_reusable
from temporalex_django.authoring.requests.start_request import StartRequest
from temporalex_django.core.aliases import all_names
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning

if TYPE_CHECKING:
    from temporalex_django.testing.memory import WorkflowEnvironment


def start_by_policy(env: WorkflowEnvironment, request: StartRequest, start: RunStart) -> tuple[UUID, StartOutcome]:
    """Start a run, or use or terminate the open run that has its id; return the chain and what happened.

    Raises ``AlreadyRunning``, ``AlreadyEnded`` and ``ActionNotPermitted``.
    """
    _require_reusable(env, request, start)
    try:
        return env.storage.start(start), "started"
    except AlreadyRunning:
        chain_id = _find_open(env, start)
        if chain_id is None or request.on_conflict == "fail":
            raise
    if request.on_conflict == "use_existing":
        require_operation(request.by, "view", action="view")
        return chain_id, "existing"
    require_operation(request.by, "terminate", action="terminate")
    env.close(chain_id, "terminated", REPLACED)
    _require_reusable(env, request, start)
    return env.storage.start(start), "replaced"


def _require_reusable(env: WorkflowEnvironment, request: StartRequest, start: RunStart) -> None:
    statuses = [status for _, status in _runs_with_id(env, start) if status in CLOSED_STATUSES]
    require_reusable(
        statuses[-1] if statuses else None,
        request.on_closed,
        workflow=start.workflow,
        workflow_id=start.workflow_id,
    )


def _find_open(env: WorkflowEnvironment, start: RunStart) -> UUID | None:
    """Return the chain of the open run of the class that has the id, or None."""
    open_chains = [chain for chain, status in _runs_with_id(env, start) if status not in CLOSED_STATUSES]
    return open_chains[-1] if open_chains else None


def _runs_with_id(env: WorkflowEnvironment, start: RunStart) -> list[tuple[UUID, str]]:
    """Return the chains of the class that have the id, oldest first, with the statuses of their current runs."""
    names, runs = all_names(start.workflow), []
    for chain_id in env.storage.chains_of(start.workflow_id):
        run = env.storage.current_run(chain_id)
        same_version = start.scope != "version" or run.facts.version == start.version
        if run.facts.workflow in names and same_version:
            runs.append((chain_id, run.status))
    return runs
