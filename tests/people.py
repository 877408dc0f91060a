"""People for tests that need no stored users."""

from __future__ import annotations


class Somebody:
    """Whoever is named by ``by=``: known by his name, with these permissions, in these groups (None: nobody can tell)."""

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
