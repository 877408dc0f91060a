"""The carrier's reports on orders over HTTP, signed with a secret that the carrier shares with the shop."""

from __future__ import annotations

import hashlib
import hmac
import json
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from example_project.shop.models import Shipment
from example_project.shop.orders import OrderProcess, carrier
from temporalex_django import errors

SIGNATURE = "X-Carrier-Signature"


def signature(body: bytes) -> str:
    """Return the signature that the header of a request with this body must hold."""
    digest = hmac.new(settings.SHOP_CARRIER_SECRET.encode(), body, hashlib.sha256).hexdigest()
    return f"sha256={digest}"


@csrf_exempt  # the signature authenticates the caller; there is no cookie to abuse
@require_POST
def report(request: HttpRequest) -> JsonResponse:
    """Take ``{"parcel", "event": "delivered", "at"}`` from the carrier.

    Answers 200, also if the report is a repetition or comes too late. 503 asks the carrier to repeat it.
    """
    body = request.body
    if not hmac.compare_digest(signature(body).encode(), request.headers.get(SIGNATURE, "").encode()):
        return JsonResponse({"error": "the signature is not valid"}, status=HTTPStatus.FORBIDDEN)
    try:
        said: dict[str, Any] = json.loads(body)
        parcel, event, at = str(said["parcel"]), said["event"], str(said["at"])
    except (ValueError, KeyError, TypeError):
        return JsonResponse({"error": "parcel, event and at are required"}, status=HTTPStatus.BAD_REQUEST)
    if event != carrier.name:
        return JsonResponse({"error": f"no order waits for the event {event!r}"}, status=HTTPStatus.BAD_REQUEST)
    try:
        known = delivered(parcel, at=at)
    except Shipment.DoesNotExist:
        return JsonResponse({"error": f"there is no parcel {parcel!r}"}, status=HTTPStatus.NOT_FOUND)
    except errors.UpdateTimeout:
        return JsonResponse({"error": "busy, please try again"}, status=HTTPStatus.SERVICE_UNAVAILABLE)
    return JsonResponse({"parcel": parcel, "known": known})


def delivered(parcel: str, *, at: str) -> bool:
    """Record that a parcel has arrived and continue its order, in one transaction; return True if it was known before.

    Raises ``Shipment.DoesNotExist``, and ``errors.UpdateTimeout`` if the order could not be locked; nothing is written
    then.
    """
    with transaction.atomic():
        shipment = Shipment.objects.select_for_update().get(parcel=parcel)
        if shipment.delivered_at is not None:
            return True
        shipment.delivered_at = timezone.now()
        shipment.save(update_fields=["delivered_at"])
        try:
            OrderProcess.resume(shipment.order, carrier.name, data={"at": at})
        except (errors.ResumeRefused, errors.WorkflowClosed, errors.WorkflowNotFound):
            # The order no longer waits: the parcel was traced already, or an operator has ended the run.
            return True
    return False
