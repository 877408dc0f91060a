"""The contracts of an engine: a storage keeps instances, and a runner executes their steps.

Workflows and steps depend on neither. Memory (``graph.local_runner``, ``graph.local_runner``) and
Django (``db.graph_storage``, ``operations.graph_runner``) implement both contracts. One module of tests checks
them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from temporalex_django.graph.instance import FINAL, STATUSES, Instance
from temporalex_django.graph.steps import StepRef

#: The filters of ``Storage.query``.
FILTERS = frozenset({"id", "status", "version", "workflow"})
#: Statuses of instances that are not closed.
OPEN = tuple(status for status in STATUSES if status not in FINAL)
#: The identity of a stored instance: id, workflow, and the version where the scope keeps versions apart.
Identity = tuple[str, str, int | None]


class Storage(Protocol):
    """A store of whole instances.

    It is thread-safe: a reader sees an instance as it was put, or not at all.

    Several workflows may use one id, and with scope ``version`` several versions of one workflow. The storage keeps
    their instances apart. A method that gets only an id means the instance that was started last; ``workflow`` (a name)
    and ``version`` narrow the search.
    """

    def get(self, id: str, *, workflow: str | None = None, version: int | None = None) -> Instance:
        """Return the instance with that id that was started last.

        ``workflow`` (a name) and ``version`` restrict the search. Raises ``WorkflowNotFound``. Raises ``PayloadError``
        for stored data with a step that the class no longer has.
        """

    def put(self, instance: Instance) -> None:
        """Insert the instance, or overwrite the stored one that has its id, its workflow and its version.

        The version counts only where the scope of the workflow's ``unique`` is ``version``.
        """

    def delete(self, id: str) -> None:
        """Delete all instances with that id; a missing id is no error."""

    def query(self, **filters: Any) -> list[Instance]:
        """Return the instances that match all filters, newest start first; without a filter, all of them.

        The filters are ``id``, ``status`` (one, or a list), ``version`` and ``workflow`` (a class or its name).
        Raises ``TypeError`` for others.
        """


class Timer(Protocol):
    """A scheduled call of a function, as ``Timers.start`` returns it, so that the call can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing if it was made already."""


class Timers(Protocol):
    """A scheduler of functions that are called once, after a number of seconds.

    Runners use it for timeouts and retries.
    """

    def start(self, seconds: float, fn: Callable[[], None]) -> Timer:
        """Call ``fn()`` once after ``seconds``, in a thread that the scheduler chooses.

        ``fn`` must not block that thread.
        """

    def stop(self) -> None:
        """Cancel all calls that were not made yet."""


class Runner(Protocol):
    """The part of an engine that executes the steps of instances.

    It stores an instance whenever steps of it have ended. In its methods, ``id`` is the business id of an instance.
    ``workflow`` (a name) and ``version`` restrict the search where several instances have that id.
    """

    def start_instance(
        self,
        workflow: Any,
        *,
        id: str,
        context: Mapping[str, Any] | None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> str:
        """Store a pending instance of ``workflow`` (a class), then start it. Return its id.

        ``context`` is the data that it starts with. ``version`` selects one version of a workflow that has several.
        ``telemetry`` is merged into the Django signals about its steps. Raises ``AlreadyRunning``, ``InvalidId``,
        ``UnknownVersion``, ``PayloadError``; nothing is stored then.
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
        """Give the event ``event`` to the one step of the instance that waits for it.

        ``step`` (a step or its key) selects the step if several wait for the event. ``data`` goes into the context,
        with the name of the person ``by``. Raises ``WorkflowNotFound``, ``WorkflowClosed``, ``ResumeRefused``,
        ``PayloadError``; nothing changes then.
        """

    def schedule_resume(
        self, id: str, step: StepRef | str, delay: float, *, workflow: str | None = None, version: int | None = None
    ) -> Timer:
        """Give ``step`` (a step or its key) its timeout event after ``delay`` seconds, if the step still waits then.

        Returns the timer, which can be cancelled. Raises ``WorkflowNotFound``, ``WorkflowClosed`` and ``ResumeRefused``
        when this method is called; nothing is scheduled then.
        """

    def cancel(self, id: str, *, workflow: str | None = None, version: int | None = None) -> None:
        """Close the instance as cancelled. Raises ``WorkflowNotFound``, ``WorkflowClosed``."""

    def wait(
        self, id: str, *, timeout: float | None, workflow: str | None = None, version: int | None = None
    ) -> Instance:
        """Wait until the instance is closed and return it.

        ``timeout`` is in seconds; None waits for ever. Raises ``ResultTimeout``, ``WorkflowNotFound``.
        """

    def recover(self) -> int:
        """Continue all open instances of the storage, for example after a restart.

        Return the number of these instances.
        """

    def forget(self, id: str) -> None:
        """Stop executing the instances with that id, and cancel their timers, because they are about to be deleted."""

    def stop(self) -> None:
        """Start no more steps. Return when the running ones have ended and are stored."""


def identity(instance: Instance) -> Identity:
    """Return the key under which a storage keeps an instance: ``(id, workflow name, version)``.

    The version is None, unless the scope of the workflow's ``unique`` is ``version``, so that each version has its own
    instances.
    """
    cls = instance.workflow
    own = cls.unique is not None and cls.unique.scope == "version"
    return instance.id, cls.name, instance.version if own else None


def checked(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked filters of a call of ``Storage.query``, with ``workflow`` as a name and ``status`` as a list.

    Filters that are None are left out. Raises ``TypeError`` for an unknown filter.
    """
    if unknown := sorted(filters.keys() - FILTERS):
        raise TypeError(f"query: no such filter: {', '.join(unknown)} (known: {', '.join(sorted(FILTERS))})")
    criteria = {name: value for name, value in filters.items() if value is not None}
    if "workflow" in criteria:
        criteria["workflow"] = getattr(criteria["workflow"], "name", criteria["workflow"])
    if "status" in criteria:
        status = criteria["status"]
        criteria["status"] = [status] if isinstance(status, str) or not isinstance(status, Iterable) else [*status]
    return criteria
