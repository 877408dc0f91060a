"""What workers do beside turns for rooms that they do not know: the app says what, when it is ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Chore(NamedTuple):
    """Both take the alias.

    ``waiting`` says whether there is anything to do, with a statement at most; ``work`` does it for a moment, and says
    whether there may be more.
    """

    waiting: Callable[[str], bool]
    work: Callable[[str], bool]


CHORES: list[Chore] = []


def waiting(alias: str) -> bool:
    """Whether there is anything to do. Raises what they raise."""
    return any(chore.waiting(alias) for chore in CHORES)


def done(alias: str) -> bool:
    """A moment of each. Whether there may be more. Raises what they raise."""
    more = [chore.work(alias) for chore in CHORES]
    return any(more)
