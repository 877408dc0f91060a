"""Instances of graphs that live in the database, as the pure engine has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from temporalex_django.authoring import workflow
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.run_storage import TaskState
from temporalex_django.errors import TemporalexError, UnknownWorkflow
from temporalex_django.graph.durable.projection import Projections
from temporalex_django.graph.workflow import GraphWorkflow


@lru_cache(maxsize=8)
def _projections(alias: str) -> Projections:
    """Return the projections that this process keeps.

    A worker that runs the steps of a run one after the other then reads only the new events.
    """
    storage = DjangoStorage(alias)

    def events(run_id: UUID, after: int) -> Sequence[HistoryEvent]:
        return storage.histories({run_id: after}).get(run_id, [])

    return Projections(events)


@dataclass(frozen=True, slots=True)
class TaskSource:
    """``authoring.activity.RunSource`` of an attempt."""

    task: TaskState

    def workflow(self, version: int) -> Any:
        return workflow.class_for_run(self.task.workflow, version)

    def instance(self, version: int) -> Any:
        projection = _projections(get_settings().DATABASE).get(self.task.run_id, self.workflow(version))
        instance = projection.activity_instances.get(self.task.seq)
        if instance is None:
            raise TemporalexError(
                f"{self.task.activity} of {self.task.workflow_id} has ended: nothing waits for it any more"
            )
        return instance


def instance_of(run_id: UUID, *, name: str, version: int) -> Any:
    """Return the instance that results from the history of a run.

    Raises ``UnknownWorkflow`` for a class that is no graph here.
    """
    return _projections(get_settings().DATABASE).get(run_id, _graph_class(name, version)).instance


def _graph_class(name: str, version: int) -> type[GraphWorkflow]:
    cls = workflow.class_for_run(name, version)
    if not issubclass(cls, GraphWorkflow):
        raise UnknownWorkflow(f"{name} is not a graph workflow: it has no instance")
    return cls
