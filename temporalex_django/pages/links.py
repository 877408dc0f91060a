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
LINK_LIFETIME = timedelta(days=3)
_SALT = "temporalex_django.pages.links"


def make_token(task: HumanTask, user: Any) -> str:
    """What the address of a link says. It is no longer good when the user has another password, or is not active."""
    return signing.dumps({"task": str(task.pk), "user": str(user.pk), "as": _session_fingerprint(user)}, salt=_SALT)


def read_token(token: str, *, lifetime: timedelta = LINK_LIFETIME) -> tuple[Person, UUID]:
    """Whom and what a link is for. Raises ``HumanTaskNotFound`` for one that is not good, or is not any more."""
    try:
        token_fields = signing.loads(token, salt=_SALT, max_age=lifetime)
        task, key = UUID(token_fields["task"]), token_fields["user"]
    except (signing.BadSignature, ValueError, KeyError, TypeError):
        raise HumanTaskNotFound("this link is not good, or not any more: sign in instead") from None
    user = get_user_model()._default_manager.filter(pk=key).first()  # noqa: SLF001 - Django documents it
    if user is None or not user.is_active or token_fields.get("as") != _session_fingerprint(user):
        raise HumanTaskNotFound("this link is not good any more: sign in instead")
    return cast("Person", user), task


def _session_fingerprint(user: Any) -> str:
    """Changes with his password."""
    get_hash = getattr(user, "get_session_auth_hash", None)
    return str(get_hash())[:16] if callable(get_hash) else ""
