"""Starts of runs in memory, with the policies of a start about other runs that have its id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from temporalex_django.authoring.authorization import require_operation, sender_of
from temporalex_django.authoring.requests import REPLACED, StartOutcome, StartRequest, require_reusable
from temporalex_django.authoring.workflow import input_or_default, start_options
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import all_names
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import require_readable, warn_lossy_value
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning, NotConfigured
from temporalex_django.graph import instance


def start_by_policy(
    storage: MemoryRunStorage, request: StartRequest, start: RunStart, *, terminate: Callable[[UUID, str], None]
) -> tuple[UUID, StartOutcome]:
    """Start a run as ``on_conflict``, ``on_closed``, ``debounce`` and ``throttle`` of the request say.

    If an open run has its id, that run may be used or terminated instead. Returns ``(chain id, outcome)``, whose
    outcome is "started", "existing", "replaced" or "debounced". ``terminate(chain, reason)`` terminates the open run of
    a chain.

    Raises ``AlreadyRunning``, ``AlreadyEnded`` and ``ActionNotPermitted``.
    """
    if request.debounce is not None:
        chain_id = storage.replace_waiting_input(start, sender_of(request.by))
        if chain_id is not None:
            return chain_id, "debounced"
    _require_reusable(storage, request, start)
    try:
        with storage.transaction():
            return storage.start(_throttled(storage, request, start)), "started"
    except AlreadyRunning:
        chain_id = _find_open(storage, start)
        if chain_id is None or request.on_conflict == "fail":
            raise
    if request.on_conflict == "use_existing":
        require_operation(request.by, "view", action="view")
        return chain_id, "existing"
    require_operation(request.by, "terminate", action="terminate")
    terminate(chain_id, REPLACED)
    _require_reusable(storage, request, start)
    return storage.start(_throttled(storage, request, start)), "replaced"


def _throttled(storage: MemoryRunStorage, request: StartRequest, start: RunStart) -> RunStart:
    """Return ``start`` with the time at which the throttle of the request lets its run begin, and count the run.

    Without a throttle, or if the run may begin now, ``start`` is returned unchanged.
    """
    throttle = request.parsed_throttle
    if throttle is None:
        return start
    name, now = throttle.name_for(start.workflow), storage.clock.timestamp()
    begin, storage.start_times[name] = throttle.next_begin(storage.start_times.get(name, ()), now)
    if begin <= now:
        return start
    return replace(start, start_at=datetime.fromtimestamp(begin, UTC), start_limit=throttle.as_limit())


def _require_reusable(storage: MemoryRunStorage, request: StartRequest, start: RunStart) -> None:
    statuses = [status for _, status in _runs_with_id(storage, start) if status in CLOSED_STATUSES]
    require_reusable(
        statuses[-1] if statuses else None,
        request.on_closed,
        workflow=start.workflow,
        workflow_id=start.workflow_id,
    )


def _find_open(storage: MemoryRunStorage, start: RunStart) -> UUID | None:
    """Return the chain of the open run of the class that has the business id of ``start``, or None."""
    open_chains = [chain for chain, status in _runs_with_id(storage, start) if status not in CLOSED_STATUSES]
    return open_chains[-1] if open_chains else None


def _runs_with_id(storage: MemoryRunStorage, start: RunStart) -> list[tuple[UUID, str]]:
    """Return ``(chain, status)`` for each chain of the class with the business id of ``start``, oldest first.

    The status is that of the chain's current run.
    """
    names, runs = all_names(start.workflow), []
    for chain_id in storage.chains_of(start.workflow_id):
        run = storage.current_run(chain_id)
        same_version = start.scope != "version" or run.facts.version == start.version
        if run.facts.workflow in names and same_version:
            runs.append((chain_id, run.status))
    return runs


def build_start(request: StartRequest, *, workflow_id: str, seed: int) -> RunStart:
    """Return the values of a new run in memory, with this business id and this random seed, from a start request.

    Raises ``PayloadError``, ``InvalidStart``, and ``NotConfigured`` for a subject.
    """
    workflow = request.workflow
    label = f"the input of {workflow.name}"
    plain = codec.to_plain(input_or_default(workflow, request.args), label=label)
    require_readable(request.args, plain, lambda: workflow.definition.args_type, label=label)
    warn_lossy_value(
        request.args,
        plain,
        lambda: workflow.definition.args_type,
        reader=f"run of {workflow.name}",
        emit_warning=False,
    )
    run_snapshot = instance.start_snapshot(workflow, started_by=sender_of(request.by))
    options = start_options(workflow, search_attributes=request.search_attributes, tags=request.tags)
    if request.subject is not None:
        raise NotConfigured(
            f"runs in memory have no subject, so {workflow.name} cannot have one: use DjangoEnvironment"
        )
    return RunStart(
        workflow_id=workflow_id,
        args=plain,
        seed=seed,
        snapshot=run_snapshot,
        scheduled_for=request.scheduled_for,
        start_limit=request.start_limit,
        headers=request.headers,
        **request.times.as_options(),
        **options,
    )
