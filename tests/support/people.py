"""People for tests that need no stored users."""

from __future__ import annotations

from typing import Any

from temporalex_django.testing.memory_run_reads import MemoryReads


class Somebody:
    """Whoever is named by ``by=``, with these permissions, in these groups (None: nobody can tell)."""

    def __init__(
        self, name: str, *permissions: str, groups: tuple[str, ...] | None = None, is_active: bool = True
    ) -> None:
        self.username = name
        self.permissions = set(permissions)
        self.is_active = is_active
        if groups is not None:
            self.groups = groups

    def __str__(self) -> str:
        return self.username

    def has_perm(self, perm: str) -> bool:
        return perm in self.permissions


def person(env: object, name: str, *permissions: str, is_active: bool = True) -> Any:
    """Somebody whom the host of an environment knows: on a database a stored user."""
    if isinstance(env, MemoryReads):
        return Somebody(name, *permissions, is_active=is_active)
    return stored(name, *permissions, is_active=is_active)


def stored(name: str, *permissions: str, is_active: bool = True) -> Any:
    """A user with these permissions; each of them must exist."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission

    user = get_user_model().objects.create_user(name, is_active=is_active)
    for permission in permissions:
        app, codename = permission.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    return user
