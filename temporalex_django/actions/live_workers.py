"""Live workers and the work that they can take."""

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
    """The work that live workers can take: pairs of queues, and versions by class.

    One read serves a whole list of runs.
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
        """Why none of them can take a run, in words; None when one can."""
        pollers = [workflows for queues, workflows in self.workflow_versions if queue in queues]
        if not pollers:
            return f"a worker: {no_poller_text(queue)}"
        if not any(version in workflows.get(workflow, ()) for workflows in pollers):
            return f"a worker: {no_code_text(f'{workflow} (version {version})', queue=queue, pollers=len(pollers))}"
        return None

    def missing_if_overdue(self, run: Instance, *, since: datetime | None, now: datetime) -> str | None:
        """Why none of them can take a run that is due since then, in words.

        None: one can, or it is too early to say: a worker that lives takes what is due within seconds.
        """
        if since is None or now - since < DUE_GRACE_PERIOD:
            return None
        return self.missing_worker(workflow=run.workflow, version=run.version, queue=run.queue)

    def unpolled_tasks(self) -> Q:
        """Select the activities that none of them takes from its queue."""
        polled = Q(pk__in=[])
        for queues, names in {*self.activities}:
            polled |= Q(queue__in=sorted(queues), activity__in=sorted(names))
        return ~polled

    def count_pollers(self, queue: str) -> int:
        """How many of them poll that queue, whatever code they have."""
        return sum(queue in queues for queues, _ in self.workflow_versions)

    def can_run_activity(self, activity: str, *, queue: str) -> bool:
        """Whether one of them takes that activity from that queue."""
        is_django_task = activity.startswith(f"{django_tasks.KIND}:")  # whoever has its module imports it when it comes
        return any(queue in queues and (is_django_task or activity in names) for queues, names in self.activities)


def live_workers_from(workers: Iterable[Worker], *, now: datetime) -> LiveWorkers:
    """Select the rows whose lease has not run out, which nobody found dead and nobody drains."""
    active_workers = [worker for worker in workers if worker.buried_at is None and worker.drained_at is None]
    leased_workers = [worker for worker in active_workers if worker.expires_at > now]
    return LiveWorkers.from_rows((worker.queues, worker.workflows, worker.activity_names) for worker in leased_workers)


def live_workers(*, alias: str) -> LiveWorkers:
    """Workers whose lease has not run out, that nobody found dead and nobody drains. One read."""
    leased_workers = Worker.objects.using(alias).filter(expires_at__gt=Now(), buried_at=None, drained_at=None)
    return LiveWorkers.from_rows(leased_workers.values_list("queues", "workflows", "activity_names"))
