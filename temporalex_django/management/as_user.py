"""``--as-user``.

A command does what that user may do, to the runs that there are for him, and he is named in the audit.
"""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import VIEW, admit, runs_for
from temporalex_django.actions.base import Actor, storage
from temporalex_django.authoring.people import Person
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.models import Instance


def add_argument(parser: CommandParser) -> None:
    """Say how the user is named."""
    parser.add_argument(
        "--as-user", metavar="NAME", help="do only what this user may do, in his name (default: everything)"
    )


def actor(as_user: str | None) -> Actor:
    """Who acts. Raises ``CommandError`` for a name that nobody has."""
    if as_user is None:
        return Actor(source="command")
    users: Any = get_user_model()
    user = users.objects.filter(**{users.USERNAME_FIELD: as_user}).first()
    if user is None:
        raise CommandError(f"--as-user {as_user}: there is no such user")
    return Actor(user=cast("Person", user), source="command")


def runs_of(by: Actor) -> QuerySet[Instance]:
    """The runs that he may look at. Raises ``CommandError``."""
    alias = storage().alias
    try:
        admit(by.user, VIEW, alias=alias)
    except ActionNotPermitted as exc:
        raise CommandError(str(exc)) from exc
    narrowed = runs_for(by.user, alias=alias)
    return Instance.objects.using(alias) if narrowed is None else narrowed
