"""Hooks by which workers call modules that they do not import; the app config registers them when Django is ready.

``BACKGROUND_HOOKS`` are work that a worker does beside advancing runs: bulk jobs and cleanup. ``SCHEDULE_HOOKS`` fire
schedules, in a thread of their own, because bulk jobs must not delay them. ``ALERT_HOOKS`` send alerts, in a thread of
their own as well, because a mail server may not answer. ``run_due`` processes due work in the
calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from temporalex_django.errors import NotConfigured


class BackgroundHook(NamedTuple):
    """Background work of a worker, such as bulk jobs; both functions take the database alias.

    ``has_work`` returns True if there is work to do, with one statement at most. ``run`` works for a moment and returns
    True if there may be more.
    """

    has_work: Callable[[str], bool]
    run: Callable[[str], bool]


BACKGROUND_HOOKS: list[BackgroundHook] = []
SCHEDULE_HOOKS: list[BackgroundHook] = []
ALERT_HOOKS: list[BackgroundHook] = []


_run_due: Callable[[float], int] | None = None


def bind_run_due(run: Callable[[float], int]) -> None:
    """Set the function that ``run_due`` calls to process due work in the calling thread.

    The function takes the seconds that it may use and returns the number of runs that it advanced.
    """
    global _run_due  # noqa: PLW0603 - bound once, when Django is ready
    _run_due = run


def run_due(seconds: float) -> int:
    """Process due work in this thread for at most ``seconds``, and return the number of runs that were advanced.

    Raises ``NotConfigured`` before Django is ready, and ``TimeoutError`` if more work is due after that time.
    """
    if _run_due is None:
        raise NotConfigured("no code is registered to process due work: is 'temporalex_django' in INSTALLED_APPS?")
    return _run_due(seconds)


def has_work(alias: str, hooks: Sequence[BackgroundHook] = BACKGROUND_HOOKS) -> bool:
    """Return True if any of the hooks has work to do on this database alias. Raises the errors of the hooks."""
    return any(hook.has_work(alias) for hook in hooks)


def run_hooks(alias: str, hooks: Sequence[BackgroundHook] = BACKGROUND_HOOKS) -> bool:
    """Run each of the hooks for a moment on this database alias, and return True if there may be more to do.

    Raises the errors of the hooks.
    """
    # A list, not a generator: every hook has its moment, also after one that has more to do.
    results = [hook.run(alias) for hook in hooks]
    return any(results)
