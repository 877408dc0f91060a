"""The loading of the interceptors that a setting names."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module

from temporalex_django.errors import NotConfigured
from temporalex_django.interceptors import Interceptor
from temporalex_django.interceptors.chain import HOOKS

_PLAIN_HOOKS = ("outgoing", "problem")


@cache
def load_interceptors(paths: tuple[str, ...]) -> tuple[Interceptor, ...]:
    """Return an object of each class, one for each path in this process.

    Raises ``NotConfigured`` for a class that cannot be used, with the reason.
    """
    return tuple([_load_interceptor(path) for path in paths])


def _load_interceptor(path: str) -> Interceptor:
    label = f"TEMPORALEX['INTERCEPTORS'] names {path!r}, which cannot be used"
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(import_module(module), name)
        if not (isinstance(cls, type) and issubclass(cls, Interceptor)):
            raise NotConfigured(f"{label}: it is not a subclass of temporalex_django.interceptors.Interceptor.")
        interceptor: Interceptor = cls()
    except NotConfigured:
        raise
    except Exception as exc:
        raise NotConfigured(f"{label}: {type(exc).__name__}: {exc}.") from exc
    for hook in HOOKS:
        function = getattr(cls, hook)
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            advice = "write a plain function" if hook in _PLAIN_HOOKS else "decorate it with contextlib.contextmanager"
            raise NotConfigured(f"{label}: {hook} is an async function or a generator: {advice}.")
    return interceptor
