"""What workers do beside turns for rooms that they do not know, and theirs for such rooms.

The app says what, when it is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from temporalex_django.errors import NotConfigured


class Chore(NamedTuple):
    """Both take the alias.

    ``waiting`` says whether there is anything to do, with a statement at most; ``work`` does it for a moment, and says
    whether there may be more.
    """

    waiting: Callable[[str], bool]
    work: Callable[[str], bool]


CHORES: list[Chore] = []


_burst: Callable[[float], int] | None = None


def bind_burst(work: Callable[[float], int]) -> None:
    """From now on this does what is due in the calling thread: it takes the seconds that it has, gives its turns."""
    global _burst  # noqa: PLW0603 - bound once, when Django is ready
    _burst = work


def burst(seconds: float) -> int:
    """Do what is due, here and now: the number of turns of runs. Raises ``NotConfigured``, and ``TimeoutError``."""
    if _burst is None:
        raise NotConfigured("there is nobody to do what is due: is 'temporalex_django' in INSTALLED_APPS?")
    return _burst(seconds)


def waiting(alias: str) -> bool:
    """Whether there is anything to do. Raises what they raise."""
    return any(chore.waiting(alias) for chore in CHORES)


def done(alias: str) -> bool:
    """A moment of each. Whether there may be more. Raises what they raise."""
    more = [chore.work(alias) for chore in CHORES]
    return any(more)
