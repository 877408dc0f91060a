"""Runs on a cluster as their workers see them, without a cluster: what the mirror is shown after each activation."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from temporalex_django import Ok, Workflow, api
from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.mirrored_run import MirroredFacts, ObservedRun
from temporalex_django.core.executor import VisibleState
from temporalex_django.core.history.activation import Completion, RunInfo
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Instance
from temporalex_django.temporal.start_facts import StartFacts

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CONTINUE = "WorkflowContinuedAsNew"


class ObservedSteps(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


@dataclass(frozen=True)
class Execution:
    """What the SDK says about a run, as far as the mirror reads it."""

    workflow_id: str
    run_id: str
    first_execution_run_id: str
    task_queue: str = "default"
    parent: None = None


class Observations:
    """A run of this project on a cluster, as its worker sees it after each try of an activation."""

    def __init__(
        self,
        workflow_id: str = "order-1",
        *,
        attempt: int = 1,
        facts: MirroredFacts | None = None,
        first: str | None = None,
    ) -> None:
        self.run_id = str(uuid.uuid4())
        self.first = first or self.run_id
        self.facts = facts or MirroredFacts(chain=str(uuid.uuid4()), run=str(uuid.uuid4()))
        self.info = RunInfo(
            workflow=ObservedSteps.name, id=workflow_id, run_id=self.run_id, version=1, attempt=attempt, parent=None
        )

    def see(
        self, activation: int, *, at: float, closing: str | None = None, published: Any = None, **attributes: Any
    ) -> ObservedRun:
        """Return the run after an activation that began ``at`` seconds after the first one.

        ``closing`` is the kind of the event that closed it, and ``attributes`` are those of this event.
        """
        now = BEGIN + timedelta(seconds=at)
        end = None if closing is None else HistoryEvent(2 * activation, activation, closing, now, attributes)
        execution: Any = Execution(f"g:{self.info.id}", self.run_id, self.first)
        return ObservedRun(
            execution=execution,
            original_run_id=self.run_id,
            info=self.info,
            facts=self.facts,
            start={"args": "first"},
            started_at=BEGIN,
            now=now,
            activation=activation,
            length=2 * activation,
            events=(),
            closing=end,
            visible=VisibleState(
                status="waiting",
                waiting_for=[] if end else ["signal go"],
                waits=[],
                accepts={"signals": [], "updates": []},
                published=published,
                publications=0,
                stored={},
                search_attributes={},
                human_tasks=(),
                four_eyes=None,
            ),
            human_tasks=(),
            stores=False,
            next_facts=StartFacts(carried=attributes["carried"]) if "carried" in attributes else None,
            completion=Completion(),
        )

    def write(self, storage: DjangoStorage, activation: int, **options: Any) -> None:
        """Write the rows of the run after an activation."""
        mirror.write(self.see(activation, **options), storage=storage, restores=True)

    def row(self) -> Instance:
        return Instance.objects.get(cluster_run_id=UUID(self.run_id))
