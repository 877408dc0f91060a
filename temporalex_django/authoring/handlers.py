"""``update(...)`` and ``signal(...)``: they add options to a handler of a phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from temporalex_django.authoring.foreign_options import HANDLER, answers_foreign_options
from temporalex_django.core import names
from temporalex_django.core.messages.phase import Handler, handler_types, require_storable_answer, self_problem
from temporalex_django.core.results import answer_type_of
from temporalex_django.errors import WorkflowDefinitionError


@answers_foreign_options("update", HANDLER)
def update(
    handler: Callable[[Any, Any], Any],
    *,
    validator: Callable[[Any, Any], Any] | None = None,
    permission: str | None = None,
    label: str | None = None,
    returns: Any = None,
) -> Handler:
    """Return an update handler with options. ``handler`` is a function ``(args, state)``.

    ``validator`` is a function ``(args, state)`` that runs before the update is accepted.

    A user who sends the update (``by=``) needs the ``permission`` (``app.codename``). Without it they get
    ``ActionNotPermitted``, and nothing is written. The permission is checked before the validator, when the update is
    first dispatched; updates from code are not checked (see decision 37). ``label`` is the name that people see.

    ``returns`` is the type as which the answer is stored and read, for a handler without the annotation
    ``-> Reply[Answer, State]``. Raises ``WorkflowDefinitionError`` for a type that cannot be stored.
    """
    _check_function("update", handler)
    if validator is not None and not callable(validator):
        raise WorkflowDefinitionError(f"update: the validator is not callable: {validator!r}")
    # Options are checked here, and not by the phase, so that the error names the line that made the handler.
    _check_permission("update", permission)
    args_type, answer_type = handler_types(handler)
    if returns is not None:
        # A text would name the type at the first answer, after the handler has acted.
        if isinstance(returns, str) or answer_type_of(returns) is not Any:
            raise WorkflowDefinitionError(f"update: returns is the type of the answer alone, not {returns!r}")
        answer_type = returns
    require_storable_answer(answer_type, label=f"update: {handler!r}")
    return Handler(
        handler,
        validator=validator,
        permission=permission,
        args_type=args_type,
        answer_type=answer_type,
        label=names.fit_optional_label(label, owner="update"),
    )


@answers_foreign_options("signal", HANDLER)
def signal(
    handler: Callable[[Any, Any], Any],
    *,
    permission: str | None = None,
    label: str | None = None,
    on_error: Literal["keep", "block"] = "keep",
) -> Handler:
    """Return a signal handler with options. ``handler`` is a function ``(payload, state)``.

    If the handler raises, or the payload does not fit its annotation, the state stays as it was and the signal becomes
    a failed message. People see it, and deliver it again or discard it. With ``on_error="block"`` the run is blocked
    instead, with the signal first in its inbox, and continues by itself once the code is corrected.

    A user who sends the signal (``by=``) needs the ``permission`` (``app.codename``). Without it the signal has no
    effect and leaves an audit row. The permission is checked when the signal arrives. For a signal that arrived before
    its phase was open, it is checked when the phase takes it. ``label`` is the name that people see.
    """
    _check_function("signal", handler)
    _check_permission("signal", permission)
    # "keep" is the default, so that a sender of bad payloads cannot stop a run (see decision 46).
    if on_error not in ("keep", "block"):
        raise WorkflowDefinitionError(f'signal: on_error is "keep" or "block", not {on_error!r}')
    label = names.fit_optional_label(label, owner="signal")
    args_type, _ = handler_types(handler)
    return Handler(handler, permission=permission, args_type=args_type, label=label, on_error=on_error)


def _check_function(kind: str, handler: object) -> None:
    """Raise ``WorkflowDefinitionError`` if no phase can call ``handler``. ``kind`` is "signal" or "update"."""
    if not callable(handler):
        raise WorkflowDefinitionError(
            f"{kind}: not callable: {handler!r}: its first argument is the handler, a function (args, state); "
            f'the phase names it: api.phase(state, {kind}={{"name": handler}})'
        )
    if (problem := self_problem(handler)) is not None:
        raise WorkflowDefinitionError(f"{kind}: {problem}")


def _check_permission(label: str, permission: object) -> None:
    if permission is not None and not names.is_permission(permission):
        raise WorkflowDefinitionError(f"{label}: permission must be of the form app.codename, not {permission!r}")
