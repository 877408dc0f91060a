"""People: who is named by ``by=``, what of him travels with a message, and what he may do.

Users of Django, or whatever has ``has_perm``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from temporalex_django.core.senders import Sender
from temporalex_django.errors import ActionNotPermitted

_LONGEST = 200
APP = "temporalex_django"
_WORDS = frozenset({"user", "group", "perm"})


class Person(Protocol):
    """A user of Django is one; tests without Django bring their own."""

    def has_perm(self, perm: str, /) -> bool: ...


def person(by: object) -> Person | None:
    """Who is named. Raises ``ActionNotPermitted`` for a name, or whatever else cannot be asked for permissions."""
    if by is None or (callable(getattr(by, "has_perm", None)) and not isinstance(by, type)):
        return cast("Person | None", by)
    raise ActionNotPermitted(
        f"by={by!r} names nobody whose permissions can be asked: a user is wanted (an object with has_perm, such as "
        f"request.user), not {by.__name__ if isinstance(by, type) else type(by).__name__}"
    )


def decider(by: object) -> tuple[Person | None, str | None]:
    """Who decides a step: a user, or somebody who is known by name alone, which is noted and has no role."""
    return (None, by) if isinstance(by, str) else (person(by), None)


def sender(by: Person | None) -> Sender | None:
    """What travels with a message of that person; None for code."""
    if by is None:
        return None
    key = getattr(by, "pk", None)
    named = getattr(by, "get_username", None)
    name = str(named() if callable(named) else getattr(by, "username", None) or getattr(by, "name", None) or "")
    if key is None and not hasattr(by, "pk"):  # no model: its name is all there is to know it by
        key = name or type(by).__name__
    return Sender("" if key is None else str(key)[:_LONGEST], name[:_LONGEST])


def key_of(by: Person | None) -> str:
    """What he is told from others by: see ``Sender``."""
    found = sender(by)
    return "" if found is None else found.key


def permits(user: Person, permission: str) -> bool:
    """Whether an active user has a permission (``app.codename``)."""
    return bool(_stands(user) and user.has_perm(permission))


def holds(user: Person | None, role: str) -> bool:
    """Whether an active user has the permission (``app.codename``), or is in the group of that name.

    ``groups`` of a user who is not Django's are their names. Raises ``ActionNotPermitted`` where groups cannot be
    known.
    """
    return answers_to(user, word_of(role))


def word_of(role: str) -> str:
    """The word for who has a role, see ``answers_to``."""
    return f"perm:{role}" if "." in role else f"group:{role}"


def answers_to(
    user: Person | None, word: str, *, permits: Callable[[Person, str], bool] = lambda user, name: user.has_perm(name)
) -> bool:
    """Whether an active user is meant by a word: ``user:<username>``, ``group:<name>`` or ``perm:<app.codename>``.

    A superuser is in each group. ``permits`` says who has a permission. Raises ``ActionNotPermitted`` where groups
    cannot be known.
    """
    if user is None or not _stands(user):
        return False
    kind, _, name = word.partition(":")
    if kind == "user":
        known = sender(user)
        return known is not None and known.name == name
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


def judged(user: Person, permission: str, *, permits: Callable[[Person, str], bool]) -> bool:
    """Whether he has a permission of a handler, or is meant by a word (see ``answers_to``)."""
    if permission.partition(":")[0] in _WORDS:
        return answers_to(user, permission, permits=permits)
    return permits(user, permission)


def require(by: object, operation: str, *, what: str) -> Person | None:
    """Who is named, if he has the permission to do that with runs (``view``, ``cancel`` …).

    Raises ``ActionNotPermitted``.
    """
    return require_permission(by, f"{operation}_instance", what=f"{what} runs")


def require_permission(by: object, code: str, *, what: str) -> Person | None:
    """The same by the code name of the permission. Raises ``ActionNotPermitted``."""
    user = person(by)
    wanted = f"{APP}.{code}"
    if user is not None and not permits(user, wanted):
        raise ActionNotPermitted(f"{user} may not {what}: that takes the permission {wanted}")
    return user


def require_start(by: object, workflow: Any) -> None:
    """Raises ``ActionNotPermitted`` for who may not start runs, or not those of this class."""
    user, wanted = require(by, "start", what="start"), workflow.start_permission
    if user is not None and wanted is not None and not permits(user, wanted):
        raise ActionNotPermitted(f"{user} may not start {workflow.name}: that takes the permission {wanted}")


def _stands(user: Person) -> bool:
    """Active, and stored where it is a model."""
    return bool(getattr(user, "is_active", True)) and getattr(user, "pk", user) is not None
