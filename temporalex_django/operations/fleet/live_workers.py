"""Live workers and the work that they can claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q
from django.db.models.functions import Now

from temporalex_django.authoring import django_tasks
from temporalex_django.models import Instance, Worker
from temporalex_django.present.problems import no_code_text, no_poller_text
from temporalex_django.present.view_models import DUE_GRACE_PERIOD


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorkers:
    """The work that live workers can claim.

    ``workflow_versions`` has a pair for each worker: its queues, and the versions that it has of each class.
    ``activities`` pairs its queues with its activities. One read serves a whole list of runs.
    """

    workflow_versions: Sequence[tuple[frozenset[str], dict[str, frozenset[int]]]]
    activities: Sequence[tuple[frozenset[str], frozenset[str]]] = ()

    @classmethod
    def from_rows(
        cls, workers: Iterable[tuple[Sequence[str], Mapping[str, Sequence[int]], Sequence[str]]]
    ) -> LiveWorkers:
        """Collect the queues, the versions by class and the activities of each worker."""
        rows = list(workers)
        return cls(
            workflow_versions=[
                (frozenset(queues), {name: frozenset(versions) for name, versions in workflows.items()})
                for queues, workflows, _ in rows
            ],
            activities=[(frozenset(queues), frozenset(names)) for queues, _, names in rows],
        )

    def missing_worker(self, *, workflow: str, version: int, queue: str) -> str | None:
        """Return in words why no live worker can claim a run, or None if one can."""
        pollers = [workflows for queues, workflows in self.workflow_versions if queue in queues]
        if not pollers:
            return f"a worker: {no_poller_text(queue)}"
        if not any(version in workflows.get(workflow, ()) for workflows in pollers):
            return f"a worker: {no_code_text(f'{workflow} (version {version})', queue=queue, pollers=len(pollers))}"
        return None

    def missing_if_overdue(self, run: Instance, *, since: datetime | None, now: datetime) -> str | None:
        """Return in words why no live worker can claim a run that is due since ``since``, or None.

        It is None if a worker can, or if it is too early to say. A live worker claims due work within seconds.
        """
        if since is None or now - since < DUE_GRACE_PERIOD:
            return None
        return self.missing_worker(workflow=run.workflow, version=run.version, queue=run.queue)

    def unpolled_tasks(self) -> Q:
        """Return a condition for the activities that no live worker claims from their queue."""
        polled = Q(pk__in=[])
        for queues, names in {*self.activities}:
            polled |= Q(queue__in=sorted(queues), activity__in=sorted(names))
        return ~polled

    def count_pollers(self, queue: str) -> int:
        """Return the number of live workers that poll a queue, whatever code they have."""
        return sum(queue in queues for queues, _ in self.workflow_versions)

    def can_run_activity(self, activity: str, *, queue: str) -> bool:
        """Return True if a live worker claims that activity from that queue."""
        # A worker imports the module of a Django task when it gets one, so its row need not name the task.
        is_django_task = activity.startswith(f"{django_tasks.KIND}:")
        return any(queue in queues and (is_django_task or activity in names) for queues, names in self.activities)


def live_workers_from(workers: Iterable[Worker], *, now: datetime) -> LiveWorkers:
    """Build the overview from rows that were read already.

    It contains workers with a valid lease that nobody has declared dead and that are not drained.
    """
    active_workers = [worker for worker in workers if worker.buried_at is None and worker.drained_at is None]
    leased_workers = [worker for worker in active_workers if worker.expires_at > now]
    return LiveWorkers.from_rows((worker.queues, worker.workflows, worker.activity_names) for worker in leased_workers)


def live_workers(*, alias: str) -> LiveWorkers:
    """Read the workers that have a valid lease, that nobody has declared dead and that are not drained.

    Takes one query.
    """
    leased_workers = Worker.objects.using(alias).filter(expires_at__gt=Now(), buried_at=None, drained_at=None)
    return LiveWorkers.from_rows(leased_workers.values_list("queues", "workflows", "activity_names"))
