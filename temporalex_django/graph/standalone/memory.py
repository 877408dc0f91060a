"""Instances in the memory of this process: for tests, for scripts, and for graphs without Django."""

from __future__ import annotations

import threading
from typing import Any

from temporalex_django.errors import WorkflowNotFound
from temporalex_django.graph.contracts import Identity, checked, identity
from temporalex_django.graph.instance import Instance


class MemoryStorage:
    """``contracts.Storage`` over a dict; lost with the process.

    What is put is kept as it is: instances never change.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, dict[Identity, Instance]] = {}  # by id; what was begun last stands last
        self._begun: dict[Identity, int] = {}  # when, counted
        self._count = 0

    def get(self, id: str, *, workflow: str | None = None, version: int | None = None) -> Instance:
        """The one with that identity. Raises ``WorkflowNotFound``."""
        with self._lock:
            for instance in reversed(self._kept.get(id, {}).values()):
                if workflow in (None, instance.workflow.name) and version in (None, instance.version):
                    return instance
        of = f" of {workflow}" if workflow else ""
        raise WorkflowNotFound(f"no instance{of} has the id {id!r}")

    def put(self, instance: Instance) -> None:
        """Insert it, or overwrite the one with its identity."""
        key = identity(instance)
        with self._lock:
            kept = self._kept.setdefault(instance.id, {})
            before = kept.get(key)
            if before is None or (before.closed and not instance.closed):
                kept.pop(key, None)
                self._count += 1
                self._begun[key] = self._count
            kept[key] = instance

    def delete(self, id: str) -> None:
        """All instances of that id; absent ones are fine."""
        with self._lock:
            for key in self._kept.pop(id, {}):
                del self._begun[key]

    def query(self, **filters: Any) -> list[Instance]:
        """Those for which all filters hold, begun last first; without a filter all."""
        wanted = checked(filters)
        with self._lock:
            kept = [self._kept.get(wanted["id"], {})] if "id" in wanted else [*self._kept.values()]
            found = [(self._begun[key], instance) for of_id in kept for key, instance in of_id.items()]
        found.sort(key=lambda pair: -pair[0])
        return [instance for _, instance in found if _fits(instance, wanted)]


def _fits(instance: Instance, wanted: dict[str, Any]) -> bool:
    return (
        wanted.get("workflow", instance.workflow.name) == instance.workflow.name
        and wanted.get("version", instance.version) == instance.version
        and instance.status in wanted.get("status", (instance.status,))
    )
