"""People: who is named by ``by=``, what of him travels with a message, and what he may do.

Users of Django, or whatever has ``has_perm``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from temporalex_django.core.senders import Sender
from temporalex_django.errors import ActionNotPermitted

_MAX_LENGTH = 200
APP = "temporalex_django"
_CANDIDATE_KINDS = frozenset({"user", "group", "perm"})


class Person(Protocol):
    """A user of Django is one; tests without Django bring their own."""

    def has_perm(self, perm: str, /) -> bool: ...


def check_person(by: object) -> Person | None:
    """Who is named. Raises ``ActionNotPermitted`` for a name, or whatever else cannot be asked for permissions."""
    if by is None or (callable(getattr(by, "has_perm", None)) and not isinstance(by, type)):
        return cast("Person | None", by)
    raise ActionNotPermitted(
        f"by={by!r} names nobody whose permissions can be asked: a user is wanted (an object with has_perm, such as "
        f"request.user), not {by.__name__ if isinstance(by, type) else type(by).__name__}"
    )


def split_decider(by: object) -> tuple[Person | None, str | None]:
    """Who decides a step: a user, or somebody who is known by name alone, which is noted and has no role."""
    return (None, by) if isinstance(by, str) else (check_person(by), None)


def sender_of(by: Person | None) -> Sender | None:
    """What travels with a message of that person; None for code."""
    if by is None:
        return None
    key = getattr(by, "pk", None)
    get_username = getattr(by, "get_username", None)
    name = str(
        get_username() if callable(get_username) else getattr(by, "username", None) or getattr(by, "name", None) or ""
    )
    if key is None and not hasattr(by, "pk"):  # no model: its name is all there is to know it by
        key = name or type(by).__name__
    return Sender("" if key is None else str(key)[:_MAX_LENGTH], name[:_MAX_LENGTH])


def sender_key(by: Person | None) -> str:
    """What he is told from others by: see ``Sender``."""
    identity = sender_of(by)
    return "" if identity is None else identity.key


def has_permission(user: Person, permission: str) -> bool:
    """Whether an active user has a permission (``app.codename``)."""
    return bool(_is_active(user) and user.has_perm(permission))


def has_role(user: Person | None, role: str) -> bool:
    """Whether an active user has the permission (``app.codename``), or is in the group of that name.

    ``groups`` of a user who is not Django's are their names. Raises ``ActionNotPermitted`` where groups cannot be
    known.
    """
    return matches_candidate(user, candidate_of_role(role))


def candidate_of_role(role: str) -> str:
    """The word for who has a role, see ``matches_candidate``."""
    return f"perm:{role}" if "." in role else f"group:{role}"


def matches_candidate(
    user: Person | None,
    candidate: str,
    *,
    permits: Callable[[Person, str], bool] = lambda user, name: user.has_perm(name),
) -> bool:
    """Whether an active user is meant by a word: ``user:<username>``, ``group:<name>`` or ``perm:<app.codename>``.

    A superuser is in each group. ``permits`` says who has a permission. Raises ``ActionNotPermitted`` where groups
    cannot be known.
    """
    if user is None or not _is_active(user):
        return False
    kind, _, name = candidate.partition(":")
    if kind == "user":
        identity = sender_of(user)
        return identity is not None and identity.name == name
    if getattr(user, "is_superuser", False):
        return True
    if kind == "perm":
        return bool(permits(user, name))
    groups = getattr(user, "groups", None)
    if groups is None:
        raise ActionNotPermitted(
            f"whether {user} is in the group {name!r} cannot be known here: give him `groups` (names), or ask for a permission "
            "(app.codename) instead of a role"
        )
    return bool(groups.filter(name=name).exists()) if hasattr(groups, "filter") else name in groups


def is_authorized(user: Person, permission: str, *, permits: Callable[[Person, str], bool]) -> bool:
    """Whether he has a permission of a handler, or is meant by a word (see ``matches_candidate``)."""
    if permission.partition(":")[0] in _CANDIDATE_KINDS:
        return matches_candidate(user, permission, permits=permits)
    return permits(user, permission)


def require_operation(by: object, operation: str, *, action: str) -> Person | None:
    """Who is named, if he has the permission to do that with runs (``view``, ``cancel`` …).

    Raises ``ActionNotPermitted``.
    """
    return require_permission(by, f"{operation}_instance", action=f"{action} runs")


def require_permission(by: object, codename: str, *, action: str) -> Person | None:
    """The same by the code name of the permission. Raises ``ActionNotPermitted``."""
    user = check_person(by)
    permission = f"{APP}.{codename}"
    if user is not None and not has_permission(user, permission):
        raise ActionNotPermitted(f"{user} may not {action}: that takes the permission {permission}")
    return user


def require_start(by: object, workflow: Any) -> None:
    """Raises ``ActionNotPermitted`` for who may not start runs, or not those of this class."""
    user, permission = require_operation(by, "start", action="start"), workflow.start_permission
    if user is not None and permission is not None and not has_permission(user, permission):
        raise ActionNotPermitted(f"{user} may not start {workflow.name}: that takes the permission {permission}")


def _is_active(user: Person) -> bool:
    """Active, and stored where it is a model."""
    return bool(getattr(user, "is_active", True)) and getattr(user, "pk", user) is not None
