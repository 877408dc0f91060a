"""What workers do beside turns for rooms that they do not know: the app says what, when it is ready."""

from __future__ import annotations

from collections.abc import Callable

#: Each takes the alias, works for a moment, and says whether there may be more.
CHORES: list[Callable[[str], bool]] = []


def done(alias: str) -> bool:
    """A moment of each. Whether there may be more. Raises what they raise."""
    more = [chore(alias) for chore in CHORES]
    return any(more)
