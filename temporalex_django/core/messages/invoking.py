"""Calls of functions that users pass as a branch or a handler, in any form."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from temporalex_django.core.determinism import guard


async def await_if_needed(value: Any) -> Any:
    """Return the value, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


async def invoke(fn: Callable[[], Any] | Awaitable[Any]) -> Any:
    """Run a branch or an async handler: a callable without arguments, or an awaitable."""
    guard.watch(fn)
    return await await_if_needed(fn() if callable(fn) else fn)
