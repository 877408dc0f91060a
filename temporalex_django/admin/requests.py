"""Who asks for a page, and whether he asks for the first time."""

from __future__ import annotations

from hashlib import sha256
from typing import cast
from uuid import uuid4

from django.core.cache import cache
from django.http import HttpRequest

from temporalex_django.actions.addresses import client_address, request_id
from temporalex_django.actions.base import Actor
from temporalex_django.authoring.people import Person

_REMEMBERED = 86_400


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


def first_use(request: HttpRequest, token: str) -> bool:
    """Whether nothing was done on that page with that token yet. What the default cache forgets counts as new."""
    return bool(cache.add(_key(request, token), 1, _REMEMBERED))


def give_back(request: HttpRequest, token: str) -> None:
    """Nothing was done with it after all."""
    cache.delete(_key(request, token))


def _key(request: HttpRequest, token: str) -> str:
    named = f"{request.user.pk} {request.get_full_path()} {token}"
    return f"temporalex:token:{sha256(named.encode('utf-8', 'replace')).hexdigest()}"
