"""The live workers, and the runs and activities that they can claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q
from django.db.models.functions import Now

from temporalex_django.authoring import django_tasks
from temporalex_django.backends.host import host
from temporalex_django.models import Instance, Worker
from temporalex_django.present.problems import no_code_text, no_poller_text
from temporalex_django.present.view_models import DUE_GRACE_PERIOD


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorkers:
    """The queues and the code of all live workers, to answer whether one of them can claim given work.

    ``workflow_versions`` has a pair for each worker: its queues, and the versions that it has of each class.
    ``activities`` has a pair for each worker: its queues, and the names of its activities. The methods read nothing.
    """

    workflow_versions: Sequence[tuple[frozenset[str], dict[str, frozenset[int]]]]
    activities: Sequence[tuple[frozenset[str], frozenset[str]]] = ()

    @classmethod
    def from_rows(
        cls, workers: Iterable[tuple[Sequence[str], Mapping[str, Sequence[int]], Sequence[str]]]
    ) -> LiveWorkers:
        """Build the object from a tuple for each worker: its queues, its versions by class, and its activities.

        On a host that does the work of workers itself, the result can claim everything.
        """
        if host().run_pending is not None:
            return _WorkingHost(workflow_versions=())
        rows = list(workers)
        return cls(
            workflow_versions=[
                (frozenset(queues), {name: frozenset(versions) for name, versions in workflows.items()})
                for queues, workflows, _ in rows
            ],
            activities=[(frozenset(queues), frozenset(names)) for queues, _, names in rows],
        )

    def missing_worker(self, *, workflow: str, version: int, queue: str) -> str | None:
        """Return why no live worker can claim a run of that class, version and queue, or None if one can.

        The text is a noun phrase that begins with "a worker: ", because messages continue "waiting for" with it.
        """
        pollers = [workflows for queues, workflows in self.workflow_versions if queue in queues]
        if not pollers:
            return f"a worker: {no_poller_text(queue)}"
        if not any(version in workflows.get(workflow, ()) for workflows in pollers):
            return f"a worker: {no_code_text(f'{workflow} (version {version})', queue=queue, pollers=len(pollers))}"
        return None

    def missing_if_overdue(self, run: Instance, *, since: datetime | None, now: datetime) -> str | None:
        """Return why no live worker can claim a run that has been due since ``since`` (``missing_worker``), or None.

        It is None if a worker can claim the run, if nothing is due (``since`` None), and in the first seconds after
        ``since``: a live worker may need them.
        """
        if since is None or now - since < DUE_GRACE_PERIOD:
            return None
        return self.missing_worker(workflow=run.workflow, version=run.version, queue=run.queue)

    def unpolled_tasks(self) -> Q:
        """Return a condition for the activity tasks that no live worker can claim, by their queue and name."""
        polled = Q(pk__in=[])
        for queues, names in {*self.activities}:
            polled |= Q(queue__in=sorted(queues), activity__in=sorted(names))
        return ~polled

    def count_pollers(self, queue: str) -> int:
        """Return the number of live workers that poll a queue, whatever code they have."""
        return sum(queue in queues for queues, _ in self.workflow_versions)

    def can_run_activity(self, activity: str, *, queue: str) -> bool:
        """Return True if a live worker polls the queue and has the code of the activity."""
        # A worker imports the module of a Django task when it gets one, so its row need not name the task.
        is_django_task = activity.startswith(f"{django_tasks.KIND}:")
        return any(queue in queues and (is_django_task or activity in names) for queues, names in self.activities)


class _WorkingHost(LiveWorkers):
    """The ``LiveWorkers`` of a host that does the work of workers itself: it can claim every run and activity."""

    def missing_worker(self, *, workflow: str, version: int, queue: str) -> str | None:
        return None

    def unpolled_tasks(self) -> Q:
        return Q(pk__in=[])

    def can_run_activity(self, activity: str, *, queue: str) -> bool:
        return True


def live_workers_from(workers: Iterable[Worker], *, now: datetime) -> LiveWorkers:
    """Return the ``LiveWorkers`` among rows that were read already.

    These are the workers whose lease is valid at ``now``, that nobody has declared dead and that are not drained.
    """
    active_workers = [worker for worker in workers if worker.buried_at is None and worker.drained_at is None]
    leased_workers = [worker for worker in active_workers if worker.expires_at > now]
    return LiveWorkers.from_rows((worker.queues, worker.workflows, worker.activity_names) for worker in leased_workers)


def live_workers(*, alias: str) -> LiveWorkers:
    """Read the workers whose lease is valid, that nobody has declared dead and that are not drained. One read."""
    leased_workers = Worker.objects.using(alias).filter(expires_at__gt=Now(), buried_at=None, drained_at=None)
    return LiveWorkers.from_rows(leased_workers.values_list("queues", "workflows", "activity_names"))
