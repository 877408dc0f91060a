"""The determinism guard on Django's mail and cache, whatever backends they have.

A backend may keep its data in memory, as those for tests do, so no connection reveals its use. The guard therefore
wraps methods that every use goes through. They first check if workflow code runs, and cost nothing more.
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
    (EmailMessage, "message", guard.MAIL),  # called by a backend that exists already
    (BaseEmailBackend, "__init__", guard.MAIL),
    (CacheHandler, "__getitem__", guard.CACHE),
    (BaseCache, "make_key", guard.CACHE),  # for a backend that was looked up before
)


def install_service_guard() -> None:
    """Guard the methods of Django's mail and cache against use by workflow code, once per process."""
    for cls, name, rule in _GUARDED:
        original = getattr(cls, name)
        if not hasattr(original, "temporalex_guard"):
            setattr(cls, name, _guard_method(original, rule))


def _guard_method(original: Any, rule: Rule) -> Any:
    """Return a function that refuses calls from workflow code by ``rule``, and passes others to ``original``."""

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard.refuse_in_step(rule)
        return original(*args, **kwargs)

    guarded.temporalex_guard = rule  # type: ignore[attr-defined] # marks it as guarded
    return guarded
