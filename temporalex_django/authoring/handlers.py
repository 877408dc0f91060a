"""``update(...)`` and ``signal(...)``: handlers of a phase with options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalex_django.core.phase import Handler, first_annotation
from temporalex_django.errors import WorkflowDefinitionError


def update(
    handler: Callable[[Any, Any], Any],
    *,
    validator: Callable[[Any, Any], Any] | None = None,
    permission: str | None = None,
) -> Handler:
    """An update handler ``(args, state)`` with a validator ``(args, state)`` that runs before it is accepted."""
    if not callable(handler) or (validator is not None and not callable(validator)):
        raise WorkflowDefinitionError(f"update: not callable: {handler!r}, validator {validator!r}")
    return Handler(handler, validator=validator, permission=permission, args_type=first_annotation(handler))


def signal(handler: Callable[[Any, Any], Any], *, permission: str | None = None) -> Handler:
    """A signal handler ``(payload, state)`` with options."""
    if not callable(handler):
        raise WorkflowDefinitionError(f"signal: not callable: {handler!r}")
    return Handler(handler, permission=permission, args_type=first_annotation(handler))
