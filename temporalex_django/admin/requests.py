"""Who asks for a page, and whether he asks for the first time."""

from __future__ import annotations

from typing import cast
from uuid import uuid4

from django.http import HttpRequest

from temporalex_django.actions.addresses import client_address, request_id
from temporalex_django.actions.base import Actor
from temporalex_django.actions.once import Asked, AskedBefore
from temporalex_django.authoring.people import Person
from temporalex_django.errors import IdempotencyKeyReused


def user_of(request: HttpRequest) -> Person:
    """Whoever is signed in."""
    return cast("Person", request.user)


def actor_of(request: HttpRequest) -> Actor:
    """The same, as operations know him."""
    return Actor(
        user=user_of(request), source="admin", address=client_address(request.META), request_id=request_id(request.META)
    )


def new_token() -> str:
    """Goes with a form: what is posted with one acts once."""
    return str(uuid4())


def asked(request: HttpRequest, token: str) -> Asked:
    """What is posted to that page with that token: done once, by whatever process."""
    page = request.get_full_path().encode("utf-8", "replace")
    return Asked(by=actor_of(request), key=f"admin:{token}", request=page)


def sent_before(request: HttpRequest, token: str) -> bool:
    """Whether something was done on that page with that token."""
    try:
        asked(request, token).look()
    except AskedBefore:
        return True
    except IdempotencyKeyReused:
        return False
    return False
