"""What can run: workers, and the classes of this process with what they take."""

from __future__ import annotations

from datetime import UTC
from typing import Any
from uuid import UUID

from django.db.models import Case, QuerySet, Value, When
from django.db.models.functions import Now
from rest_framework import ISO_8601
from rest_framework import serializers as fields
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.actions.base import storage
from temporalex_django.actions.drain_worker import DrainWorker
from temporalex_django.actions.queue_figures import queue_figures
from temporalex_django.actions.undrain_worker import UndrainWorker
from temporalex_django.authoring import workflow as workflows
from temporalex_django.core.names import quoted
from temporalex_django.errors import WorkerNotFound
from temporalex_django.models import Worker
from temporalex_django.rest import serializers
from temporalex_django.rest.base import ContractViewSet
from temporalex_django.rest.contract import Contract, with_contract
from temporalex_django.rest.contracts import PAGES, read_contract
from temporalex_django.rest.idempotency import IdempotentViewSet, with_idempotency_key
from temporalex_django.rest.types import type_rows_of


def _drain_contract(action: type[DrainWorker], summary: str) -> Contract:
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=summary,
        answers={200: serializers.WorkerOut},
        body=serializers.ReasonBody,
        scope="act",
        keyed=True,
    )


class WorkerViewSet(IdempotentViewSet):
    """Workers that there are, and those that were found dead and are kept for a while."""

    def get_queryset(self) -> QuerySet[Worker]:
        alive = When(expires_at__gt=Now(), buried_at=None, then=Value(True))
        return Worker.objects.using(storage().alias).annotate(alive=Case(alive, default=Value(False)))

    @with_contract(
        Contract(
            operation="view",
            permission="view_worker",
            summary="Workers",
            query=PAGES,
            answers={200: serializers.WorkerOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """One read."""
        page = self.paginate_queryset(self.get_queryset()) or ()
        return self._page_response([*serializers.WorkerOut(page, many=True).data])

    @with_contract(_drain_contract(DrainWorker, "Have it take nothing new"))
    @with_idempotency_key
    def drain(self, request: Request, worker: str) -> Response:
        """200: it hears of it within a third of `LEASE_SECONDS`, finishes what it has in hand, and stays."""
        return self._run_action(DrainWorker(worker, by=self._actor(), **self._body()))

    @with_contract(_drain_contract(UndrainWorker, "Have it take work again"))
    @with_idempotency_key
    def undrain(self, request: Request, worker: str) -> Response:
        """200: as above."""
        return self._run_action(UndrainWorker(worker, by=self._actor(), **self._body()))

    def _run_action(self, action: DrainWorker) -> Response:
        return self._worker_response(self._run_once(action.execute, lambda row: (row.pk, False)).pk)

    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        del is_new, names
        return self._worker_response(object_id)

    def _worker_response(self, pk: UUID) -> Response:
        row = self.get_queryset().filter(pk=pk).first()
        if row is None:
            raise WorkerNotFound(f"there is no worker {quoted(str(pk))}")
        return Response(serializers.WorkerOut(row).data)


class QueueOut(serializers.Base):
    """Figures of a queue. ``lag``: seconds for which the oldest is due; ``workers``: live ones that poll it."""

    queue = fields.CharField()
    due_runs = fields.IntegerField()
    due_activities = fields.IntegerField()
    held_activities = fields.IntegerField()
    running = fields.IntegerField()
    workers = fields.ListField(child=fields.CharField())
    oldest_due = fields.DateTimeField(format=ISO_8601, default_timezone=UTC, allow_null=True)
    lag = fields.FloatField()
    off = fields.BooleanField()
    concurrency = fields.IntegerField(allow_null=True)
    rate = fields.CharField(allow_null=True)


class QueueViewSet(ContractViewSet):
    """Queues that this process or a worker knows, and those in which something waits."""

    @with_contract(
        Contract(
            operation="view",
            permission="view_worker",
            summary="Queues, with what waits in them",
            answers={200: QueueOut},
            several=True,
        )
    )
    def list(self, request: Request) -> Response:
        """By name; six reads, of indexes."""
        return Response({"next": None, "results": QueueOut(queue_figures(), many=True).data})


class TypeViewSet(ContractViewSet):
    """Workflow classes that this process has."""

    @with_contract(read_contract("Classes of this process", serializers.TypeOut, several=True))
    def list(self, request: Request) -> Response:
        """By name and version; no read."""
        type_rows = [type_row for name in sorted(workflows.registry) for type_row in type_rows_of(name, self._user)]
        return Response({"next": None, "results": serializers.TypeOut(type_rows, many=True).data})

    @with_contract(read_contract("The versions of one class", serializers.TypeOut, several=True))
    def retrieve(self, request: Request, name: str) -> Response:
        """404 for a class that this process does not have."""
        workflows.find(name)
        return Response({"next": None, "results": serializers.TypeOut(type_rows_of(name, self._user), many=True).data})
