"""Workers, queues, switches and outgoing messages over REST."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Case, QuerySet, Value, When
from django.db.models.functions import Now
from rest_framework import serializers as fields
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.access import VIEW, policy, runs_for
from temporalex_django.authoring import workflow as workflows
from temporalex_django.core.names import quoted
from temporalex_django.errors import WorkerNotFound
from temporalex_django.models import Instance, Outbox, SwitchedOff, Worker
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import (
    DropOutgoing,
    OutgoingMessage,
    SendAgain,
    describe_outgoing,
    outgoing_messages,
)
from temporalex_django.operations.fleet.stats import QueueRow, all_queue_figures
from temporalex_django.operations.fleet.switches import (
    DrainWorker,
    Switch,
    SwitchOff,
    SwitchOn,
    UndrainWorker,
    active_switches,
    redact_holds,
)
from temporalex_django.operations.read.project_state import lost_workers
from temporalex_django.rest import serializers
from temporalex_django.rest.base import ContractViewSet, IdempotentViewSet, with_idempotency_key
from temporalex_django.rest.contracts import PAGES, read_contract
from temporalex_django.rest.requests import Contract, with_contract
from temporalex_django.rest.serializers import Base, RecordOut, time_field, type_rows_of

# --- fleet ------------------------------------------------------------------------------------------------------------
#
# Workers, queues, and the workflow classes of this process.


class WorkerOut(Base):
    """A worker: a process that advances runs and runs activities.

    ``alive`` is true if its lease has not expired. ``drained_at`` is the time since which it takes no new work, and
    null if it takes work.
    """

    id = fields.UUIDField()
    kind = fields.CharField()
    host = fields.CharField()
    pid = fields.IntegerField()
    alive = fields.BooleanField()
    queues = fields.ListField(child=fields.CharField())
    workflows = fields.DictField(child=fields.ListField(child=fields.IntegerField()))
    activity_names = fields.ListField(child=fields.CharField())
    runs = fields.IntegerField()
    activities = fields.IntegerField()
    turns = fields.IntegerField()
    clock_skew = fields.FloatField()
    drained_at = time_field(allow_null=True)
    started_at = time_field()
    beat_at = time_field()
    expires_at = time_field()


class LostWorkerOut(Base):
    """A worker that was declared dead in the last 24 hours.

    ``held_count`` is the number of activities that it had claimed, and ``held_activities`` are the first of them, as
    ``{"activity", "workflow_id", "run_id"}``. The ids are empty for runs that the caller may not see. ``released_by``
    is the process that released its work to others.
    """

    name = fields.CharField()
    kind = fields.CharField()
    queues = fields.ListField(child=fields.CharField())
    started_at = time_field()
    beat_at = time_field()
    lost_at = time_field()
    held_count = fields.IntegerField()
    held_activities = fields.ListField(child=fields.DictField(child=fields.CharField(allow_blank=True)))
    released_by = fields.CharField()


def _drain_contract(action: type[DrainWorker], summary: str) -> Contract:
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=summary,
        answers={200: WorkerOut},
        body=serializers.ReasonBody,
        scope="act",
        keyed=True,
    )


class WorkerViewSet(IdempotentViewSet):
    """The REST addresses of workers: those that live, and those that were declared dead and are kept for a while."""

    def get_queryset(self) -> QuerySet[Worker]:
        # For display: workers are declared dead by watching their heartbeats (see decision 23).
        alive = When(expires_at__gt=Now(), buried_at=None, then=Value(True))
        return Worker.objects.using(storage().alias).annotate(alive=Case(alive, default=Value(False)))

    @with_contract(
        Contract(
            operation="view",
            permission="view_worker",
            summary="Workers",
            query=PAGES,
            answers={200: WorkerOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """Return all workers that have a row, also those that were declared dead. One read."""
        page = self.paginate_queryset(self.get_queryset()) or ()
        return self._page_response([*WorkerOut(page, many=True).data])

    @with_contract(
        Contract(
            operation="view",
            permission="view_worker",
            summary="Lost workers",
            answers={200: LostWorkerOut},
            several=True,
        )
    )
    def lost(self, request: Request) -> Response:
        """Return the workers that were declared dead in the last 24 hours, the latest first. At most two reads."""
        del request
        alias = storage().alias
        may_view_runs = policy().allows(self._user, VIEW)
        runs = runs_for(self._user, alias=alias) if may_view_runs else Instance.objects.none()
        workers = lost_workers(alias, now=storage().now(), runs=runs)
        return Response({"next": None, "results": LostWorkerOut(workers, many=True).data})

    @with_contract(_drain_contract(DrainWorker, "Drain it: it takes nothing new"))
    @with_idempotency_key
    def drain(self, request: Request, worker: str) -> Response:
        """Drain a worker. Returns status 200.

        The worker notices this within a third of ``LEASE_SECONDS``. Then it takes no new work, finishes the work that
        it has, and keeps running.
        """
        return self._run_action(DrainWorker(worker, by=self._actor(), **self._body()))

    @with_contract(_drain_contract(UndrainWorker, "Let it take work again"))
    @with_idempotency_key
    def undrain(self, request: Request, worker: str) -> Response:
        """Allow a drained worker to take work again. Returns status 200.

        The worker notices this within a third of ``LEASE_SECONDS``.
        """
        return self._run_action(UndrainWorker(worker, by=self._actor(), **self._body()))

    def _run_action(self, action: DrainWorker) -> Response:
        return self._worker_response(self._run_once(action.execute, lambda row: (row.pk, False)).pk)

    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        # Draining creates nothing, so a repeated request gets the worker as it is now.
        del is_new, names
        return self._worker_response(object_id)

    def _worker_response(self, pk: UUID) -> Response:
        row = self.get_queryset().filter(pk=pk).first()
        if row is None:
            raise WorkerNotFound(f"there is no worker {quoted(str(pk))}")
        return Response(WorkerOut(row).data)


class QueueOut(RecordOut):
    """The figures of a queue.

    - ``due_runs`` and ``due_activities``: the numbers of runs and activities that wait for a worker.
    - ``held_activities``: the number of the due activities that wait in partitions of their own.
    - ``running``: the number of activities that workers run.
    - ``workers``: the live workers that poll the queue and are not drained.
    - ``oldest_due``: the time since which the oldest run or activity is due; ``lag``: the seconds since then.
    - ``kept_back``: how many of the due ones no worker may take now, because of a switch, a hold or a limit.
    - ``waiting_since``: like ``oldest_due``, without what is kept back.
    - ``off``: true if the queue is switched off.
    - ``concurrency`` and ``rate``: its limits.
    - ``backend``: where the work waits, ``tables`` or ``temporal``; ``problem``: why a cluster tells nothing, or null.
    """

    record = QueueRow


class QueueViewSet(ContractViewSet):
    """The REST address of the queues that this process or a worker names, and of those in which something waits."""

    @with_contract(
        Contract(
            operation="view",
            permission="view_worker",
            summary="Queues, with the work that waits in them",
            answers={200: QueueOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """Return the queues with their figures, sorted by name. Six reads, all from indexes.

        If the project has a Temporal cluster, its task queues are rows, too. What the cluster does not tell is null.
        """
        return Response({"next": None, "results": QueueOut(all_queue_figures(), many=True).data})


class TypeViewSet(ContractViewSet):
    """The REST addresses of the workflow classes that this process has."""

    @with_contract(read_contract("Workflow classes of this process", serializers.TypeOut, several=True))
    def list(self, request: Request) -> Response:
        """Return every version of every workflow class of this process, sorted by name and version. No read."""
        type_rows = [type_row for name in sorted(workflows.registry) for type_row in type_rows_of(name, self._user)]
        return Response({"next": None, "results": serializers.TypeOut(type_rows, many=True).data})

    @with_contract(read_contract("The versions of one workflow class", serializers.TypeOut, several=True))
    def retrieve(self, request: Request, name: str) -> Response:
        """Return the versions of one class; status 404 for a class that this process does not have."""
        # Raises ``UnknownWorkflow``, where the list alone would be empty.
        workflows.find(name)
        return Response({"next": None, "results": serializers.TypeOut(type_rows_of(name, self._user), many=True).data})


class SwitchBody(serializers.ReasonBody):
    """The body of a request that switches something off or on: its kind, and its name.

    ``name`` is that of a queue, an activity or a workflow class. To end a hold, which keeps back activities of a queue,
    give the kind ``hold``, the name of the queue and, if the hold has one, its concurrency ``key``.
    """

    kind = fields.ChoiceField(choices=SwitchedOff.Switchable.values)
    name = fields.CharField(max_length=300)
    key = fields.CharField(max_length=200, required=False)


class SwitchOut(RecordOut):
    """A queue, an activity or a workflow class that is switched off, with the time, the person and the reason.

    A hold keeps back activities of a queue until a time (``until``). You need the permission to see payloads to see its
    reason.
    """

    record = Switch


def _switch_contract(action: type[SwitchOff], summary: str) -> Contract:
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=summary,
        body=SwitchBody,
        answers={200: SwitchOut},
        scope="act",
    )


class SwitchViewSet(ContractViewSet):
    """The REST addresses of switches, which stop a queue, an activity or a workflow class for all workers.

    The caller needs no permission for the runs that are affected.
    """

    def get_queryset(self) -> QuerySet[SwitchedOff]:
        return active_switches(storage().alias).order_by("-id")

    @with_contract(
        Contract(
            operation="view",
            permission="view_switchedoff",
            summary="Switches that are off",
            query=PAGES,
            answers={200: SwitchOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """Return everything that is switched off, the latest first. One read."""
        page = self.paginate_queryset(self.get_queryset()) or ()
        return self._page_response([*SwitchOut(redact_holds(page, self._user), many=True).data])

    @with_contract(_switch_contract(SwitchOff, "Switch a queue, an activity or a workflow class off"))
    def off(self, request: Request) -> Response:
        """Switch a queue, an activity or a workflow class off. Returns status 200, or 409 if it is off already.

        Within a second, workers take no more work of it.
        """
        return self._run_action(SwitchOff)

    @with_contract(_switch_contract(SwitchOn, "Switch it on again"))
    def on(self, request: Request) -> Response:
        """Switch a queue, an activity or a workflow class on again, or end a hold. Returns status 200.

        Workers then continue with the work that has waited. Status 409 means that it is on already.
        """
        return self._run_action(SwitchOn)

    def _run_action(self, action: type[SwitchOff]) -> Response:
        body = self._body()
        # ``kind`` and ``name`` are positional: the rest of the body is what every operation takes.
        name = body.pop("name")
        row = action(body.pop("kind"), name, by=self._actor(), **body).execute()
        return Response(SwitchOut(*redact_holds([row], self._user)).data)


# --- outbox -----------------------------------------------------------------------------------------------------------
#
# Outgoing messages: what waits to be sent to other systems, and what they have refused.


class OutgoingOut(RecordOut):
    """An outgoing message. It is a dead letter if ``is_dead``; ``code`` and ``error`` then say why.

    It is sent at ``due_at``, after ``tries`` tries. Its body is not shown.
    """

    record = OutgoingMessage


def _action_contract(action: type[SendAgain], summary: str) -> Contract:
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=summary,
        answers={200: OutgoingOut},
        body=serializers.ReasonBody,
        scope="act",
    )


class OutboxViewSet(ContractViewSet):
    """The REST addresses of outgoing messages."""

    def get_queryset(self) -> QuerySet[Outbox]:
        return outgoing_messages(storage().alias, self._user)

    @with_contract(
        Contract(
            operation="view",
            permission="view_outbox",
            summary="Outgoing messages",
            query=PAGES,
            answers={200: OutgoingOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """Return the messages that wait to be sent and the dead letters, the oldest first. One read."""
        page: Any = self.paginate_queryset(self.get_queryset()) or ()
        return self._page_response([*OutgoingOut(describe_outgoing([*page], self._user), many=True).data])

    @with_contract(_action_contract(SendAgain, "Send a dead letter again"))
    def send_again(self, request: Request, message: str) -> Response:
        """Send a dead letter again. Returns status 200, or 409 if the message is not a dead letter."""
        return self._run_action(SendAgain(message, by=self._actor(), **self._body()))

    @with_contract(_action_contract(DropOutgoing, "Drop a message"))
    def drop(self, request: Request, message: str) -> Response:
        """Drop a message, so that it is never sent. Returns status 200, or 409 if it is being sent."""
        return self._run_action(DropOutgoing(message, by=self._actor(), **self._body()))

    def _run_action(self, action: SendAgain) -> Response:
        return Response(OutgoingOut(action.execute()).data)
