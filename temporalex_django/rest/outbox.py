"""Outgoing messages: what waits to be sent to other systems, and what they have refused."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.models import Outbox
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import (
    DropOutgoing,
    OutgoingMessage,
    SendAgain,
    describe_outgoing,
    outgoing_messages,
)
from temporalex_django.rest import serializers
from temporalex_django.rest.base import ContractViewSet
from temporalex_django.rest.contract import Contract, with_contract
from temporalex_django.rest.contracts import PAGES
from temporalex_django.rest.serializers import RecordOut


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
