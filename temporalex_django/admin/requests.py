"""Who asks for a page, and whether he asks for the first time."""

from __future__ import annotations

from typing import cast
from uuid import uuid4

from django.core.cache import cache
from django.http import HttpRequest

from temporalex_django.actions.addresses import client_address, request_id
from temporalex_django.actions.base import Actor
from temporalex_django.authoring.people import Person

_REMEMBERED = 86_400
_LONGEST = 64


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


def first_use(token: str) -> bool:
    """Whether nothing was done with that token yet. What the default cache forgets counts as new."""
    return bool(cache.add(f"temporalex:token:{token[:_LONGEST]}", 1, _REMEMBERED))


def give_back(token: str) -> None:
    """Nothing was done with it after all."""
    cache.delete(f"temporalex:token:{token[:_LONGEST]}")
