"""What an engine stands on: where instances are kept, and who executes their steps.

Workflows and steps know neither. Memory (``graph.standalone.memory``, ``graph.standalone.local_runner``) and Django
(``db.graph_storage``, ``actions.graph_runner``) fulfil both, and one module of tests holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from temporalex_django.graph.instance import FINAL, STATUSES, Instance
from temporalex_django.graph.steps import StepRef

#: What ``Storage.query`` takes.
FILTERS = frozenset({"id", "status", "version", "workflow"})
#: Statuses of instances that are not closed.
OPEN = tuple(status for status in STATUSES if status not in FINAL)
#: What tells stored instances apart: id, workflow, and the version where the scope keeps versions apart.
Identity = tuple[str, str, int | None]


class Storage(Protocol):
    """Keeps instances whole. Thread-safe: a reader sees an instance as it was put, or not at all.

    An id may belong to several workflows, and with scope ``version`` to several versions of one: those are kept apart.
    Where an id alone is given, the one that was begun last is meant; ``workflow`` (a name) and ``version`` narrow it.
    """

    def get(self, id: str, *, workflow: str | None = None, version: int | None = None) -> Instance:
        """Raises ``WorkflowNotFound``, and ``PayloadError`` for what is stored and has no step in the class now."""

    def put(self, instance: Instance) -> None:
        """Insert or overwrite."""

    def delete(self, id: str) -> None:
        """All instances of that id; absent ones are fine."""

    def query(self, **filters: Any) -> list[Instance]:
        """Those for which all filters hold, begun last first; without a filter all.

        ``id``; ``status`` (one, or a list); ``version``; ``workflow`` (a class or its name). Raises ``TypeError`` for
        others.
        """


class Timer(Protocol):
    """Something that is to happen later."""

    def cancel(self) -> None:
        """It does not happen any more; nothing when it has happened."""


class Timers(Protocol):
    """Calls functions later."""

    def start(self, seconds: float, fn: Callable[[], None]) -> Timer:
        """Call ``fn()`` once, in a thread of its own choice, which ``fn`` does not hold up."""

    def stop(self) -> None:
        """Call none of those that are still to come."""


class Runner(Protocol):
    """Executes the steps of instances, and stores what becomes of them after each cycle."""

    def start_instance(
        self,
        workflow: Any,
        *,
        id: str,
        context: Mapping[str, Any] | None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a pending instance, then begin it; gives its id.

        Raises ``AlreadyRunning``, ``InvalidId``, ``UnknownVersion``, ``PayloadError``; nothing is stored then.
        """

    def resume(
        self,
        id: str,
        event: str,
        *,
        step: StepRef | str | None = None,
        data: Any = None,
        by: Any = None,
        workflow: str | None = None,
        version: int | None = None,
    ) -> None:
        """Give the one step that waits for it the event.

        Raises ``WorkflowNotFound``, ``WorkflowClosed``, ``ResumeRefused``, ``PayloadError``; nothing changes then.
        """

    def schedule_resume(
        self, id: str, step: StepRef | str, delay: float, *, workflow: str | None = None, version: int | None = None
    ) -> Timer:
        """Deliver that step's timeout in so many seconds, if it waits then. Raises as ``resume``, at once."""

    def cancel(self, id: str, *, workflow: str | None = None, version: int | None = None) -> None:
        """Close it as cancelled. Raises ``WorkflowNotFound``, ``WorkflowClosed``."""

    def wait(
        self, id: str, *, timeout: float | None, workflow: str | None = None, version: int | None = None
    ) -> Instance:
        """The instance when it is closed; waits so many seconds, None is for ever.

        Raises ``ResultTimeout``, ``WorkflowNotFound``.
        """

    def recover(self) -> int:
        """Go on with what the storage has open and nobody runs; how many these are."""

    def forget(self, id: str) -> None:
        """The instances of that id are about to be deleted: execute and time nothing of them any more."""

    def stop(self) -> None:
        """Begin no step any more; returns when those that run have ended and are stored."""


def identity(instance: Instance) -> Identity:
    """That of an instance."""
    cls = instance.workflow
    own = cls.unique is not None and cls.unique.scope == "version"
    return instance.id, cls.name, instance.version if own else None


def checked(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Filters of ``Storage.query``, with ``workflow`` as a name and ``status`` as a list. Raises ``TypeError``."""
    if unknown := sorted(filters.keys() - FILTERS):
        raise TypeError(f"query: no such filter: {', '.join(unknown)} (known: {', '.join(sorted(FILTERS))})")
    criteria = {name: value for name, value in filters.items() if value is not None}
    if "workflow" in criteria:
        criteria["workflow"] = getattr(criteria["workflow"], "name", criteria["workflow"])
    if "status" in criteria:
        status = criteria["status"]
        criteria["status"] = [status] if isinstance(status, str) or not isinstance(status, Iterable) else [*status]
    return criteria
