"""Users in whose name operations happen (``by=``): the sender of their messages, and their permissions.

A user is one of Django, or any object that has ``has_perm``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from temporalex_django.core.messages.sender import Sender
from temporalex_django.errors import ActionNotPermitted

_MAX_LENGTH = 200
APP = "temporalex_django"
_CANDIDATE_KINDS = frozenset({"user", "group", "perm"})


class Person(Protocol):
    """A user: one of Django, or in tests without Django an object of your own."""

    def has_perm(self, perm: str, /) -> bool: ...


def check_person(by: object) -> Person | None:
    """Return ``by`` if it is a user or None.

    Raises ``ActionNotPermitted`` for a name, a class, or anything else that has no ``has_perm``.
    """
    if by is None or (callable(getattr(by, "has_perm", None)) and not isinstance(by, type)):
        return cast("Person | None", by)
    raise ActionNotPermitted(
        f"by={by!r} is not a user: pass a user (an object with has_perm, such as request.user), "
        f"not {by.__name__ if isinstance(by, type) else type(by).__name__}"
    )


def split_decider(by: object) -> tuple[Person | None, str | None]:
    """Return ``(user, None)`` or ``(None, name)`` for ``by``, which says who decides a step.

    A person may be known by name alone, as a text; the name is recorded and has no role. Raises ``ActionNotPermitted``
    for anything that is neither a user, nor a text, nor None.
    """
    return (None, by) if isinstance(by, str) else (check_person(by), None)


def sender_of(by: Person | None) -> Sender | None:
    """Return the key and the name of a user, to be stored with a message that they send; None for code."""
    if by is None:
        return None
    # Key and name are copied, not looked up later: the history keeps them after the user was renamed or deleted.
    key = getattr(by, "pk", None)
    get_username = getattr(by, "get_username", None)
    name = str(
        get_username() if callable(get_username) else getattr(by, "username", None) or getattr(by, "name", None) or ""
    )
    if key is None and not hasattr(by, "pk"):
        # Not a model: the name is all that identifies it. A model without a key is unsaved and gets none.
        key = name or type(by).__name__
    return Sender("" if key is None else str(key)[:_MAX_LENGTH], name[:_MAX_LENGTH])


def sender_key(by: Person | None) -> str:
    """Return the key of a user as text, as it is stored with messages and decisions.

    It is empty for code (None), and for a user who has not been saved.
    """
    identity = sender_of(by)
    return "" if identity is None else identity.key


def has_permission(user: Person, permission: str) -> bool:
    """Return True if the user is active and has the permission (``app.codename``)."""
    return bool(_is_active(user) and user.has_perm(permission))


def has_role(user: Person | None, role: str) -> bool:
    """Return True if the user is active and has the role: a permission (``app.codename``) or the name of a group.

    For a user who is not Django's, ``groups`` holds names. Raises ``ActionNotPermitted`` if the groups cannot be known.
    """
    return matches_candidate(user, candidate_of_role(role))


def candidate_of_role(role: str) -> str:
    """Return the candidate for a role: ``perm:<app.codename>`` for a permission, else ``group:<name>``."""
    return f"perm:{role}" if "." in role else f"group:{role}"


def matches_candidate(
    user: Person | None,
    candidate: str,
    *,
    permits: Callable[[Person, str], bool] = lambda user, name: user.has_perm(name),
) -> bool:
    """Return True if the user is active and fits a candidate, which names people who may do something.

    A candidate is ``user:<username>``, ``group:<name>`` or ``perm:<app.codename>``. A superuser is in every group.
    ``permits(user, permission)`` decides who has a permission. Raises ``ActionNotPermitted`` if the groups of the user
    cannot be known.
    """
    if user is None or not _is_active(user):
        return False
    kind, _, name = candidate.partition(":")
    if kind == "user":
        identity = sender_of(user)
        return identity is not None and identity.name == name
    # Superusers fit roles and groups, but not a candidate that names another person: hence after `user:`.
    if getattr(user, "is_superuser", False):
        return True
    if kind == "perm":
        return bool(permits(user, name))
    groups = getattr(user, "groups", None)
    if groups is None:
        raise ActionNotPermitted(
            f"the groups of {user} are unknown, so membership in {name!r} cannot be checked: "
            "give the user `groups` (names), or use a permission (app.codename) instead of a group"
        )
    return bool(groups.filter(name=name).exists()) if hasattr(groups, "filter") else name in groups


def is_authorized(user: Person, permission: str, *, permits: Callable[[Person, str], bool]) -> bool:
    """Return True if the user has the permission of a message handler, or fits it as a candidate.

    ``permission`` is ``app.codename``, or a candidate ``user:<username>``, ``group:<name>`` or ``perm:<app.codename>``.
    ``permits(user, permission)`` decides who has a permission.
    """
    if permission.partition(":")[0] in _CANDIDATE_KINDS:
        return matches_candidate(user, permission, permits=permits)
    return permits(user, permission)


def require_operation(by: object, operation: str, *, action: str) -> Person | None:
    """Return the user ``by`` if they have the permission for an operation on runs (``view``, ``cancel`` …).

    Returns None for code (``by`` is None), which needs none. ``action`` says in the error what the user may not do.
    Raises ``ActionNotPermitted``.
    """
    return require_permission(by, f"{operation}_instance", action=f"{action} runs")


def require_permission(by: object, codename: str, *, action: str) -> Person | None:
    """Return the user ``by`` if they have the permission ``codename`` of this app.

    None stands for code, which needs none, and is returned. ``action`` says in the error what the user may not do.
    Raises ``ActionNotPermitted``.
    """
    user = check_person(by)
    permission = f"{APP}.{codename}"
    if user is not None and not has_permission(user, permission):
        raise ActionNotPermitted(f"{user} may not {action}: this requires the permission {permission}")
    return user


def require_start(by: object, workflow: Any) -> None:
    """Raise ``ActionNotPermitted`` if the user ``by`` may not start runs, or not runs of the class ``workflow``.

    None stands for code, which may.
    """
    user, permission = require_operation(by, "start", action="start"), workflow.start_permission
    if user is not None and permission is not None and not has_permission(user, permission):
        raise ActionNotPermitted(f"{user} may not start {workflow.name}: this requires the permission {permission}")


def _is_active(user: Person) -> bool:
    """Return True if the user is active and, if it is a model instance, has been saved."""
    return bool(getattr(user, "is_active", True)) and getattr(user, "pk", user) is not None
