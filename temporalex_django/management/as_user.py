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
from temporalex_django.management import exit_codes
from temporalex_django.models import Instance


def add_user_argument(parser: CommandParser) -> None:
    """Say how the user is named."""
    parser.add_argument(
        "--as-user", metavar="NAME", help="do only what this user may do, in his name (default: everything)"
    )


def resolve_actor(as_user: str | None) -> Actor:
    """Who acts. Raises ``CommandError`` for a name that nobody has."""
    if as_user is None:
        return Actor(source="command", account=os_account())
    user_model: Any = get_user_model()
    user = user_model.objects.filter(**{user_model.USERNAME_FIELD: as_user}).first()
    if user is None:
        text = exit_codes.with_next_step(
            f"--as-user {quoted(as_user)}: there is no such user", "Write it as they log in."
        )
        raise CommandError(text, returncode=exit_codes.NOT_FOUND)
    return Actor(user=cast("Person", user), source="command")


def os_account() -> str:
    """Whose process this is. Not what the environment says, which anybody sets."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, say
        return f"uid {os.getuid()}"


def visible_runs(actor: Actor) -> QuerySet[Instance]:
    """The runs that he may look at. Raises ``CommandError``."""
    alias = storage().alias
    try:
        require_access(actor.user, VIEW, alias=alias)
    except ActionNotPermitted as exc:
        raise exit_codes.as_command_error(exc) from exc
    allowed_runs = runs_for(actor.user, alias=alias)
    return Instance.objects.using(alias) if allowed_runs is None else allowed_runs
