"""``--as-user``.

A command does what that user may do, to the runs that there are for him, and he is named in the audit; without one the
account of the operating system is.
"""

from __future__ import annotations

import os
import pwd
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import VIEW, require_access, runs_for
from temporalex_django.actions.base import Actor, storage
from temporalex_django.authoring.authorization import Person
from temporalex_django.core.names import quoted
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.management import exits
from temporalex_django.models import Instance


def add_argument(parser: CommandParser) -> None:
    """Say how the user is named."""
    parser.add_argument(
        "--as-user", metavar="NAME", help="do only what this user may do, in his name (default: everything)"
    )


def actor(as_user: str | None) -> Actor:
    """Who acts. Raises ``CommandError`` for a name that nobody has."""
    if as_user is None:
        return Actor(source="command", account=account())
    users: Any = get_user_model()
    user = users.objects.filter(**{users.USERNAME_FIELD: as_user}).first()
    if user is None:
        text = exits.sentence(f"--as-user {quoted(as_user)}: there is no such user", "Write it as they log in.")
        raise CommandError(text, returncode=exits.NOT_FOUND)
    return Actor(user=cast("Person", user), source="command")


def account() -> str:
    """Whose process this is. Not what the environment says, which anybody sets."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, say
        return f"uid {os.getuid()}"


def runs_of(by: Actor) -> QuerySet[Instance]:
    """The runs that he may look at. Raises ``CommandError``."""
    alias = storage().alias
    try:
        require_access(by.user, VIEW, alias=alias)
    except ActionNotPermitted as exc:
        raise exits.told(exc) from exc
    narrowed = runs_for(by.user, alias=alias)
    return Instance.objects.using(alias) if narrowed is None else narrowed
