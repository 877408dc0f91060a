"""Views that list the switches which are off, and that turn them off and on."""

from __future__ import annotations

from datetime import UTC

from django.db.models import QuerySet
from rest_framework import ISO_8601
from rest_framework import serializers as fields
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.models import SwitchedOff
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.switch_on import SwitchOn
from temporalex_django.operations.fleet.switches import SwitchOff
from temporalex_django.rest import serializers
from temporalex_django.rest.base import ContractViewSet
from temporalex_django.rest.contract import Contract, with_contract
from temporalex_django.rest.contracts import PAGES


class SwitchBody(serializers.ReasonBody):
    """A switch: the kind, and the name of a queue, an activity or a workflow class."""

    kind = fields.ChoiceField(choices=SwitchedOff.Switchable.values)
    name = fields.CharField(max_length=300)


class SwitchOut(serializers.Base):
    """A switch that is off, with the time, the person and the reason."""

    kind = fields.CharField()
    name = fields.CharField()
    since = fields.DateTimeField(format=ISO_8601, default_timezone=UTC)
    by = fields.CharField()
    reason = fields.CharField()


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
    """The switches of the whole fleet, whatever runs exist for the caller."""

    def get_queryset(self) -> QuerySet[SwitchedOff]:
        return SwitchedOff.objects.using(storage().alias).order_by("-id")

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
        """Return the switches that are off, the latest first. One read."""
        page = self.paginate_queryset(self.get_queryset()) or ()
        return self._page_response([*SwitchOut(page, many=True).data])

    @with_contract(_switch_contract(SwitchOff, "Switch a queue, an activity or a workflow class off"))
    def off(self, request: Request) -> Response:
        """Switch a queue, an activity or a workflow class off: status 200.

        Workers notice it within a second, and take nothing of it. Status 409 if it is off already.
        """
        return self._run_action(SwitchOff)

    @with_contract(_switch_contract(SwitchOn, "Switch it on again"))
    def on(self, request: Request) -> Response:
        """Switch it on again: status 200.

        What waited continues. Status 409 if it is not off.
        """
        return self._run_action(SwitchOn)

    def _run_action(self, action: type[SwitchOff]) -> Response:
        body = self._body()
        # ``kind`` and ``name`` are positional: the rest of the body is what every operation takes.
        name = body.pop("name")
        row = action(body.pop("kind"), name, by=self._actor(), **body).execute()
        return Response(SwitchOut(row).data)
