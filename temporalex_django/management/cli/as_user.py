"""The option ``--as-user``, with which a command acts as a user.

The command then does only what that user may do, to runs that they may see, and the audit log names them. Without the
option it may do anything, and the audit log names the account of the operating system.
"""

from __future__ import annotations

import os
import pwd
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import VIEW, require_access, runs_for, runs_or_all
from temporalex_django.authoring.authorization import Person
from temporalex_django.core.names import quoted
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.management.cli import exit_codes
from temporalex_django.models import Instance
from temporalex_django.operations.base import Actor, storage


def add_user_argument(parser: CommandParser) -> None:
    """Add the option ``--as-user``."""
    parser.add_argument(
        "--as-user",
        metavar="NAME",
        help="Act as this user, with their permissions only (default: act without restrictions).",
    )


def resolve_actor(as_user: str | None) -> Actor:
    """Return the actor of a command: the user with the name ``as_user``, or code if it is None.

    Raises ``CommandError`` if no user has the name.
    """
    if as_user is None:
        return Actor(source="command", account=os_account())
    user_model: Any = get_user_model()
    user = user_model.objects.filter(**{user_model.USERNAME_FIELD: as_user}).first()
    if user is None:
        text = exit_codes.with_next_step(
            f"--as-user {quoted(as_user)} is not a user", "Pass the name with which they log in."
        )
        raise CommandError(text, returncode=exit_codes.NOT_FOUND)
    return Actor(user=cast("Person", user), source="command")


def os_account() -> str:
    """Return the name of the operating system's account that owns this process.

    It does not come from the environment, which everybody can set.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, for example
        return f"uid {os.getuid()}"


def visible_runs(actor: Actor) -> QuerySet[Instance]:
    """Return the runs that the actor may look at; all runs for code.

    Raises ``CommandError`` if the user may look at no runs.
    """
    alias = storage().alias
    try:
        require_access(actor.user, VIEW, alias=alias)
    except ActionNotPermitted as exc:
        raise exit_codes.as_command_error(exc) from exc
    allowed_runs = runs_for(actor.user, alias=alias)
    # None means no restriction: code and commands without a user see all runs.
    return runs_or_all(allowed_runs, alias=alias)
