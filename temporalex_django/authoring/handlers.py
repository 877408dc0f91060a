"""``update(...)`` and ``signal(...)``: handlers of a phase with options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from temporalex_django.core import names
from temporalex_django.core.phase import Handler, first_annotation
from temporalex_django.errors import WorkflowDefinitionError


def update(
    handler: Callable[[Any, Any], Any],
    *,
    validator: Callable[[Any, Any], Any] | None = None,
    permission: str | None = None,
    label: str | None = None,
) -> Handler:
    """An update handler ``(args, state)`` with a validator ``(args, state)`` that runs before it is accepted.

    A person who sends it (``by=``) needs the ``permission`` (``app.codename``): else he gets ``ActionNotPermitted``,
    and nothing is written. It is asked before the validator, when the update is first dispatched; what code sends is
    not judged. ``label`` is what people call it.
    """
    if not callable(handler) or (validator is not None and not callable(validator)):
        raise WorkflowDefinitionError(f"update: not callable: {handler!r}, validator {validator!r}")
    _check_permission("update", permission)
    args_type = first_annotation(handler)
    label = names.check_label(label, owner="update")
    return Handler(handler, validator=validator, permission=permission, args_type=args_type, label=label)


def signal(
    handler: Callable[[Any, Any], Any],
    *,
    permission: str | None = None,
    label: str | None = None,
    on_error: Literal["keep", "block"] = "keep",
) -> Handler:
    """A signal handler ``(payload, state)`` with options.

    A signal whose handler raises, or whose payload does not fit its annotation, leaves the state as it was and becomes
    a failed message: people see it, and deliver it again or discard it. With ``on_error="block"`` the run is blocked
    instead, with the signal first in line, and goes on by itself when the code is put right.

    A person who sends it (``by=``) needs the ``permission`` (``app.codename``), else it does nothing and leaves an
    audit row. It is asked when the signal comes; of one that came before its phase was open, when the phase takes it.
    ``label`` is what people call it.
    """
    if not callable(handler):
        raise WorkflowDefinitionError(f"signal: not callable: {handler!r}")
    _check_permission("signal", permission)
    if on_error not in ("keep", "block"):
        raise WorkflowDefinitionError(f'signal: on_error is "keep" or "block", not {on_error!r}')
    label = names.check_label(label, owner="signal")
    args_type = first_annotation(handler)
    return Handler(handler, permission=permission, args_type=args_type, label=label, on_error=on_error)


def _check_permission(label: str, permission: object) -> None:
    if permission is not None and not names.is_permission(permission):
        raise WorkflowDefinitionError(f"{label}: permission must be of the form app.codename, not {permission!r}")
