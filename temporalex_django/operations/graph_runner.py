"""The runner of graphs on the database (``graph.contracts.Runner``): its calls write rows, and workers do the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalex_django.authoring.authorization import split_decider
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.backends.host import Deadline, host, wait_for
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.errors import NotConfigured, ResultTimeout
from temporalex_django.graph.contracts import Storage, Timer
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import StepRef
from temporalex_django.operations.base import Actor
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Cancel
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.start import Start


class DjangoRunner:
    """A ``graph.contracts.Runner`` whose methods perform operations on durable runs, in the transaction of the caller.

    ``storage`` is a ``TableStorage``, from which ``wait`` reads. The runner executes no steps and recovers no runs:
    workers do that. In all methods ``id`` is a business id. ``workflow`` and ``version`` restrict the search for its
    run to a class and its version; None does not restrict it. Methods that search raise ``WorkflowNotFound`` if there
    is no such run.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def start_instance(
        self,
        workflow: Any,
        *,
        id: str,
        context: Mapping[str, Any] | None = None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> str:
        """Start a run of the graph with the input ``context``, and return its business id.

        ``version`` selects the version of the graph class ``workflow``; None means the one that new runs get.
        ``telemetry`` has items that the Django signals of the run contain. Raises what ``operations.runs.start.Start``
        raises.
        """
        cls = workflow.resolve_version(version)[1]
        request = StartRequest(workflow=cls, args=context, id=id, telemetry=telemetry)
        return Start(request).execute().workflow_id

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
        """Give a waiting step of the run the event and ``data``; ``step`` names it if several wait for the event.

        ``by`` is the user who decides, or a name as text. A name alone has no role, so steps that require a role refuse
        it. Raises what ``operations.runs.resume.Resume`` raises.
        """
        user, name = split_decider(by)
        target = _find_target(id, workflow, version)
        Resume(target, event=event, step=step, data=data, by=Actor(user=user), decided_by=name).execute()

    def schedule_resume(
        self, id: str, step: StepRef | str, delay: float, *, workflow: str | None = None, version: int | None = None
    ) -> Timer:
        """Raise ``NotConfigured``: on the database, timers are parts of steps and cannot be set from outside.

        A timer that is not in the history could be lost, or fire twice. Before that, raises ``WorkflowNotFound`` for an
        unknown id, and ``WorkflowClosed`` for a closed run.
        """
        del step, delay
        _find_target(id, workflow, version).require_open("schedule_resume")
        raise NotConfigured(
            f"{id}: timers of durable graphs are part of their histories, so they belong to steps: use "
            "Wait(duration), WaitForEvent(name, timeout=...) or Approval(due=...)"
        )

    def cancel(self, id: str, *, workflow: str | None = None, version: int | None = None) -> None:
        """Close the graph with that business id as cancelled; raises what ``operations.runs.cancel.Cancel`` raises."""
        Cancel(_find_target(id, workflow, version)).execute()

    def wait(
        self, id: str, *, timeout: float | None, workflow: str | None = None, version: int | None = None
    ) -> Instance:
        """Wait until the run is closed, and return its instance.

        Reads the database with growing pauses. Raises ``ResultTimeout`` after ``timeout`` seconds; None waits for ever.
        """

        def poll() -> Instance | None:
            instance = self.storage.get(id, workflow=workflow, version=version)
            if instance.closed:
                return instance
            return None

        closed_instance = wait_for(poll, Deadline(timeout))
        if closed_instance is None:
            raise ResultTimeout(f"{id!r} has no result yet")
        return closed_instance

    def recover(self) -> int:
        """Do nothing and return 0, the number of recovered runs: workers recover runs."""
        return 0

    def forget(self, id: str) -> None:
        """Do nothing, because this process keeps no state of a run."""

    def stop(self) -> None:
        """Do nothing, because nothing runs in this process."""


def _find_target(id: str, workflow: str | None, version: int | None) -> RunTarget:
    storage = host().storage()
    return find_run(id, storage=storage, workflow=workflow, version=version)
