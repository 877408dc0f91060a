"""Links that are as good as a password for one human task and one person, for a while."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core import signing

from temporalex_django.authoring.authorization import Person
from temporalex_django.errors import HumanTaskNotFound
from temporalex_django.models import HumanTask

#: How long a link is good, unless whoever makes it says otherwise.
GOOD_FOR = timedelta(days=3)
_SALT = "temporalex_django.pages.links"


def token_for(task: HumanTask, user: Any) -> str:
    """What the address of a link says. It is no longer good when the user has another password, or is not active."""
    return signing.dumps({"task": str(task.pk), "user": str(user.pk), "as": _standing(user)}, salt=_SALT)


def person_and_task(token: str, *, good_for: timedelta = GOOD_FOR) -> tuple[Person, UUID]:
    """Whom and what a link is for. Raises ``HumanTaskNotFound`` for one that is not good, or is not any more."""
    try:
        said = signing.loads(token, salt=_SALT, max_age=good_for)
        task, key = UUID(said["task"]), said["user"]
    except (signing.BadSignature, ValueError, KeyError, TypeError):
        raise HumanTaskNotFound("this link is not good, or not any more: sign in instead") from None
    user = get_user_model()._default_manager.filter(pk=key).first()  # noqa: SLF001 - Django documents it
    if user is None or not user.is_active or said.get("as") != _standing(user):
        raise HumanTaskNotFound("this link is not good any more: sign in instead")
    return cast("Person", user), task


def _standing(user: Any) -> str:
    """Changes with his password."""
    made = getattr(user, "get_session_auth_hash", None)
    return str(made())[:16] if callable(made) else ""
