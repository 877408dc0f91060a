"""What can run: workers, and the classes of this process with what they take."""

from __future__ import annotations

from django.db.models import Case, QuerySet, Value, When
from django.db.models.functions import Now
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.actions.base import storage
from temporalex_django.authoring import workflow as workflows
from temporalex_django.models import Worker
from temporalex_django.rest import serializers
from temporalex_django.rest.base import ContractViewSet
from temporalex_django.rest.contract import Contract, says
from temporalex_django.rest.contracts import PAGES, view
from temporalex_django.rest.types import types_of


class WorkerViewSet(ContractViewSet):
    """Workers that there are, and those that were found dead and are kept for a while."""

    def get_queryset(self) -> QuerySet[Worker]:
        alive = When(expires_at__gt=Now(), buried_at=None, then=Value(True))
        return Worker.objects.using(storage().alias).annotate(alive=Case(alive, default=Value(False)))

    @says(
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
        return self._paged([*serializers.WorkerOut(page, many=True).data])


class TypeViewSet(ContractViewSet):
    """Workflow classes that this process has."""

    @says(view("Classes of this process", serializers.TypeOut, several=True))
    def list(self, request: Request) -> Response:
        """By name and version; no read."""
        found = [one for name in sorted(workflows.registry) for one in types_of(name, self._user)]
        return Response({"next": None, "results": serializers.TypeOut(found, many=True).data})

    @says(view("The versions of one class", serializers.TypeOut, several=True))
    def retrieve(self, request: Request, name: str) -> Response:
        """404 for a class that this process does not have."""
        workflows.find(name)
        return Response({"next": None, "results": serializers.TypeOut(types_of(name, self._user), many=True).data})
