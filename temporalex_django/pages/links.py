"""Links in mail with which one person can decide one human task without a password, for a limited time.

Everybody who has the link acts as that person: treat it like a password.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core import signing

from temporalex_django.authoring.authorization import Person
from temporalex_django.errors import HumanTaskNotFound
from temporalex_django.models import HumanTask

#: Default lifetime of a link.
LINK_LIFETIME = timedelta(days=3)
_SALT = "temporalex_django.pages.links"


def make_token(task: HumanTask, user: Any) -> str:
    """Return the signed token of a link in mail, with which this user can decide this human task without a password.

    The token becomes invalid when the password of the user changes, or when the user is no longer active.
    """
    fingerprint = next(_session_fingerprints(user))
    return signing.dumps({"task": str(task.pk), "user": str(user.pk), "as": fingerprint}, salt=_SALT)


def read_token(token: str, *, lifetime: timedelta = LINK_LIFETIME) -> tuple[Person, UUID]:
    """Return ``(user, id of the human task)`` for the token of a link.

    Raises ``HumanTaskNotFound`` for a token that is malformed, older than ``lifetime`` or no longer valid.
    """
    try:
        token_fields = signing.loads(token, salt=_SALT, max_age=lifetime)
        task, key = UUID(token_fields["task"]), token_fields["user"]
    except (signing.BadSignature, ValueError, KeyError, TypeError):
        raise HumanTaskNotFound("this link is invalid or has expired: sign in instead") from None
    # The row is read at each use: a link must end with the account, not only with its lifetime.
    user = get_user_model()._default_manager.filter(pk=key).first()  # noqa: SLF001 - Django documents it
    if user is None or not user.is_active or token_fields.get("as") not in _session_fingerprints(user):
        raise HumanTaskNotFound("this link is no longer valid: sign in instead")
    return cast("Person", user), task


def _session_fingerprints(user: Any) -> Iterator[str]:
    """Yield texts that change when the user changes their password, made with each of the keys of the project.

    Tokens of links contain the first one, so such a change makes them invalid. The others are those of
    ``SECRET_KEY_FALLBACKS``, with which older links were made.
    """
    # Django's own session hash: what ends the sessions of a user ends their links too. A user model may lack it.
    get_hash = getattr(user, "get_session_auth_hash", None)
    yield str(get_hash())[:16] if callable(get_hash) else ""
    get_fallback_hashes = getattr(user, "get_session_auth_fallback_hash", None)
    if callable(get_fallback_hashes):
        yield from (str(fallback)[:16] for fallback in get_fallback_hashes())
