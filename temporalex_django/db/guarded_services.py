"""The determinism guard on mail and on the cache of Django, whichever backends they have.

A backend may keep what it is given in memory, as those for tests do, so no connection gives it away. Methods that every
use goes through ask first whether workflow code runs, and are then out of the way.
"""

from __future__ import annotations

import functools
from typing import Any

from django.core.cache import CacheHandler
from django.core.cache.backends.base import BaseCache
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from temporalex_django.core.determinism import guard
from temporalex_django.core.determinism.rules import Rule

_GUARDED: tuple[tuple[type, str, Rule], ...] = (
    (EmailMessage, "send", guard.MAIL),
    (EmailMessage, "message", guard.MAIL),  # what a backend that exists already sends
    (BaseEmailBackend, "__init__", guard.MAIL),
    (CacheHandler, "__getitem__", guard.CACHE),
    (BaseCache, "make_key", guard.CACHE),  # of a backend that somebody has kept
)


def install() -> None:
    """Guard these methods, once in a process."""
    for cls, name, rule in _GUARDED:
        original = getattr(cls, name)
        if not hasattr(original, "temporalex_guard"):
            setattr(cls, name, _guard_method(original, rule))


def _guard_method(original: Any, rule: Rule) -> Any:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard.refuse_in_step(rule)
        return original(*args, **kwargs)

    guarded.temporalex_guard = rule  # type: ignore[attr-defined] # tells that it is one
    return guarded
