"""Who asks for a page, and whether he asks for the first time."""

from __future__ import annotations

from typing import NoReturn, cast

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _

from temporalex_django.access import VIEW
from temporalex_django.actions import audit
from temporalex_django.actions.addresses import client_address, request_id
from temporalex_django.actions.base import Actor
from temporalex_django.actions.once import DuplicateRequest, IdempotentRequest
from temporalex_django.authoring.authorization import Person
from temporalex_django.errors import IdempotencyKeyReused
from temporalex_django.models import Instance


def user_of(request: HttpRequest) -> Person:
    """Whoever is signed in."""
    return cast("Person", request.user)


def actor_of(request: HttpRequest) -> Actor:
    """The same, as operations know him."""
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
    """Raises ``PermissionDenied``, which the audit notes under the name of that action."""
    audit.record_denial(actor_of(request), action, reason, run=run, workflow=workflow, message=message)
    raise PermissionDenied(reason)


def view_permission_error() -> str:
    """What somebody is told who may not see runs."""
    return _("You may not look at runs: that takes the permission %(wanted)s.") % {"wanted": VIEW.permission}


def idempotent_request(request: HttpRequest, token: str) -> IdempotentRequest:
    """What is posted to that page with that token: done once, by whatever process."""
    page = request.get_full_path().encode("utf-8", "replace")
    return IdempotentRequest(by=actor_of(request), key=f"admin:{token}", request=page)


def is_duplicate_request(request: HttpRequest, token: str) -> bool:
    """Whether something was done on that page with that token."""
    try:
        idempotent_request(request, token).check_duplicate()
    except DuplicateRequest:
        return True
    except IdempotencyKeyReused:
        return False
    return False
