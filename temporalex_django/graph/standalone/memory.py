"""A storage of instances in the memory of this process: for tests, for scripts, and for graphs without Django."""

from __future__ import annotations

import threading
from typing import Any

from temporalex_django.errors import WorkflowNotFound
from temporalex_django.graph.contracts import Identity, checked, identity
from temporalex_django.graph.instance import Instance


class MemoryStorage:
    """A storage of instances in a dict; its instances are lost with the process.

    It implements ``contracts.Storage``. Instances are stored without a copy, because they never change.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instances: dict[str, dict[Identity, Instance]] = {}  # by id; the newest start is the last one
        self._start_numbers: dict[Identity, int] = {}  # the order of the starts
        self._count = 0

    def get(self, id: str, *, workflow: str | None = None, version: int | None = None) -> Instance:
        """Return the newest instance with that id, workflow (a name) and version. Raises ``WorkflowNotFound``."""
        with self._lock:
            for instance in reversed(self._instances.get(id, {}).values()):
                if workflow in (None, instance.workflow.name) and version in (None, instance.version):
                    return instance
        workflow_text = ""
        if workflow:
            workflow_text = f" of {workflow}"
        raise WorkflowNotFound(f"no instance{workflow_text} has the id {id!r}")

    def put(self, instance: Instance) -> None:
        """Insert the instance, or overwrite the stored one that has its id, its workflow and its version.

        The version counts only where the scope of the workflow's ``unique`` is ``version``.
        """
        key = identity(instance)
        with self._lock:
            instances = self._instances.setdefault(instance.id, {})
            old_instance = instances.get(key)
            # A new start under an old identity moves to the end, as a new row would.
            if old_instance is None or (old_instance.closed and not instance.closed):
                instances.pop(key, None)
                self._count += 1
                self._start_numbers[key] = self._count
            instances[key] = instance

    def delete(self, id: str) -> None:
        """Delete all instances with that id; a missing id is no error."""
        with self._lock:
            for key in self._instances.pop(id, {}):
                del self._start_numbers[key]

    def query(self, **filters: Any) -> list[Instance]:
        """Return the instances that match all filters, newest start first; without a filter, all of them.

        The filters are ``id``, ``status`` (one, or a list), ``version`` and ``workflow`` (a class or its name). Raises
        ``TypeError`` for others.
        """
        criteria = checked(filters)
        with self._lock:
            groups = [self._instances.get(criteria["id"], {})] if "id" in criteria else [*self._instances.values()]
            pairs = [(self._start_numbers[key], instance) for group in groups for key, instance in group.items()]
        pairs.sort(key=lambda pair: -pair[0])
        return [instance for _, instance in pairs if _matches(instance, criteria)]


def _matches(instance: Instance, criteria: dict[str, Any]) -> bool:
    """Return True if the instance has the workflow, the version and one of the statuses in ``criteria``."""
    return (
        criteria.get("workflow", instance.workflow.name) == instance.workflow.name
        and criteria.get("version", instance.version) == instance.version
        and instance.status in criteria.get("status", (instance.status,))
    )
