"""The filters of ``Workflow.list`` over runs in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

from temporalex_django.authoring.listing import NEWEST_FIRST, WAIT_PREFIXES
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.engine.contracts.run_storage import RunState
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.memory.tables import MemoryRun
from temporalex_django.errors import NotConfigured
from temporalex_django.present.view_models import LATE_PERIOD

_MANY_ATTEMPTS = 5

RunPredicate = Callable[[MemoryRunStorage, RunState, MemoryRun, Any], bool]


def _is_stuck(storage: MemoryRunStorage, chain: RunState, run: MemoryRun, expected: bool) -> bool:  # noqa: FBT001 - a value
    is_late = (
        chain.due_at is not None and chain.due_at < storage.clock - LATE_PERIOD and not (chain.closed or chain.paused)
    )
    has_many_attempts = any(task.attempt > _MANY_ATTEMPTS for task in storage.tasks_of_run(chain.run_id))
    return (
        run.blocked is not None or is_late or has_many_attempts or bool(storage.failed_messages(chain.chain_id))
    ) == expected


def _has_cause(storage: MemoryRunStorage, chain: RunState, run: MemoryRun, cause: str) -> bool:
    tasks = storage.open_activities(chain.run_id, limit=sys.maxsize)
    causes = [f"{task.activity}: {task.last_failure.cause}" for task in tasks if task.last_failure is not None]
    return cause in (run.cause, *causes)


def _is_waiting_for(storage: MemoryRunStorage, chain: RunState, run: MemoryRun, kind: str) -> bool:
    if run.status in CLOSED_STATUSES or (kind == "activity" and not storage.tasks_of_run(chain.run_id)):
        return False
    return any(text.startswith(WAIT_PREFIXES[kind]) for text in run.waiting_for)


def _refuse_subject(storage: MemoryRunStorage, chain: RunState, run: MemoryRun, subject: Any) -> bool:
    raise NotConfigured(f"runs in memory have no subject, so none has {subject!r}: use DjangoEnvironment")


#: One predicate for each name of ``authoring.listing.FILTERS``.
PREDICATES: Mapping[str, RunPredicate] = {
    "id": lambda _storage, _chain, run, value: run.facts.workflow_id == value,
    "id_prefix": lambda _storage, _chain, run, value: run.facts.workflow_id.startswith(value),
    "status": lambda _storage, _chain, run, value: run.status in value,
    "version": lambda _storage, _chain, run, value: run.facts.version == value,
    "queue": lambda _storage, chain, _run, value: chain.queue == value,
    "blocked": lambda _storage, _chain, run, value: (run.blocked is not None) == value,
    "paused": lambda _storage, _chain, run, value: (run.paused is not None) == value,
    "stuck": _is_stuck,
    "cause": _has_cause,
    "waits": _is_waiting_for,
    "subject": _refuse_subject,
    "tag": lambda _storage, _chain, run, value: value in run.tags,
    "attributes": lambda _storage, _chain, run, value: all(
        condition.matches(run.facts.search_attributes or {}) for condition in value
    ),
    "created_after": lambda _storage, _chain, run, value: run.created_at >= value,
    "created_before": lambda _storage, _chain, run, value: run.created_at < value,
    "closed_after": lambda _storage, _chain, run, value: run.closed_at is not None and run.closed_at >= value,
    "closed_before": lambda _storage, _chain, run, value: run.closed_at is not None and run.closed_at < value,
}


def list_runs(storage: MemoryRunStorage, workflow: str, filters: Mapping[str, Any]) -> Iterator[tuple[str, UUID]]:
    """Return id and chain of the current runs of a class that match ``filters``, in the order that these name.

    The filters are those of ``authoring.listing``, checked already.
    """
    chains = {chain.run_id: chain for chain in storage.chains.values()}
    order = filters.get("order", NEWEST_FIRST)
    criteria = {name: value for name, value in filters.items() if name != "order"}
    entries: list[tuple[Any, MemoryRun, RunState]] = []
    for position, (run_id, run) in enumerate(storage.runs.items()):
        chain = chains.get(run_id)
        if chain is None or run.facts.workflow != workflow:
            continue
        # Runs without the time that the order names (open runs, runs with nothing due) are not in the list, as in the
        # database.
        order_time = {"started": position, "closed": run.closed_at, "due": chain.due_at}[order.lstrip("-")]
        if order_time is not None and all(
            PREDICATES[name](storage, chain, run, value) for name, value in criteria.items()
        ):
            # The position decides between equal times, which are common with a virtual clock.
            entries.append(((order_time, position), run, chain))
    entries.sort(key=lambda entry: entry[0], reverse=order.startswith("-"))
    return iter([(run.facts.workflow_id, chain.chain_id) for _, run, chain in entries])
