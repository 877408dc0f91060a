"""The user of a request, the refusal of requests, and the detection of requests that are sent twice."""

from __future__ import annotations

from typing import NoReturn, cast

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _

from temporalex_django.access import VIEW
from temporalex_django.authoring.authorization import Person
from temporalex_django.errors import IdempotencyKeyReused
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.addresses import client_address, request_id
from temporalex_django.operations.base import Actor
from temporalex_django.operations.idempotency import DuplicateRequest, IdempotentRequest


def user_of(request: HttpRequest) -> Person:
    """Return the user of the request."""
    # Views of an admin site are wrapped in its permission check, so this is no AnonymousUser.
    return cast("Person", request.user)


def actor_of(request: HttpRequest) -> Actor:
    """Return the actor of an operation: the user, with the address and the id of the request for the audit."""
    return Actor(
        user=user_of(request), source="admin", address=client_address(request.META), request_id=request_id(request.META)
    )


def refuse(
    request: HttpRequest,
    action: str,
    reason: str,
    *,
    run: Instance | None = None,
    workflow: str = "",
    message: str = "",
) -> NoReturn:
    """Record a denial of the action in the audit and raise ``PermissionDenied``."""
    audit.record_denial(actor_of(request), action, reason, run=run, workflow=workflow, message=message)
    raise PermissionDenied(reason)


def view_permission_error() -> str:
    """Return the message for a user who may not see runs."""
    return _("You may not view runs: this requires the permission %(wanted)s.") % {"wanted": VIEW.permission}


def idempotent_request(request: HttpRequest, token: str) -> IdempotentRequest:
    """Return the request that a page posts with a token; it is done once, over all processes."""
    # The address is part of the request: a token of one page does not count on another.
    page = request.get_full_path().encode("utf-8", "replace")
    return IdempotentRequest(by=actor_of(request), key=f"admin:{token}", request=page)


def is_duplicate_request(request: HttpRequest, token: str) -> bool:
    """Return True if a request with this token was done on this page. One read."""
    try:
        idempotent_request(request, token).check_duplicate()
    except DuplicateRequest:
        return True
    # The token belongs to another page. Executing the request raises the same error, with its message.
    except IdempotencyKeyReused:
        return False
    return False
