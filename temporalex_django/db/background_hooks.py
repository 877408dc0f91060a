"""What workers do beside turns for rooms that they do not know, and theirs for such rooms.

The app says what, when it is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from temporalex_django.errors import NotConfigured


class BackgroundHook(NamedTuple):
    """Both take the alias.

    ``has_work`` says whether there is anything to do, with a statement at most; ``run`` does it for a moment, and says
    whether there may be more.
    """

    has_work: Callable[[str], bool]
    run: Callable[[str], bool]


BACKGROUND_HOOKS: list[BackgroundHook] = []


_run_due: Callable[[float], int] | None = None


def bind_run_due(run: Callable[[float], int]) -> None:
    """From now on this does what is due in the calling thread: it takes the seconds that it has, gives its turns."""
    global _run_due  # noqa: PLW0603 - bound once, when Django is ready
    _run_due = run


def run_due(seconds: float) -> int:
    """Do what is due, here and now: the number of turns of runs. Raises ``NotConfigured``, and ``TimeoutError``."""
    if _run_due is None:
        raise NotConfigured("there is nobody to do what is due: is 'temporalex_django' in INSTALLED_APPS?")
    return _run_due(seconds)


def has_work(alias: str) -> bool:
    """Whether there is anything to do. Raises what they raise."""
    return any(hook.has_work(alias) for hook in BACKGROUND_HOOKS)


def run_hooks(alias: str) -> bool:
    """A moment of each. Whether there may be more. Raises what they raise."""
    results = [hook.run(alias) for hook in BACKGROUND_HOOKS]
    return any(results)
