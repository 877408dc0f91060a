"""``event(...)``: an event of a step, with the type of its data, a permission and a validator.

An event is a string, so it can be used wherever a plain name can.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from temporalex_django.core import names
from temporalex_django.core.determinism import guard
from temporalex_django.core.failures import refusal_reason
from temporalex_django.core.messages.phase import accepts_arguments
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.results import Err, Ok
from temporalex_django.errors import PayloadError, UpdateRejected, WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.graph.context import Context
    from temporalex_django.graph.steps import StepRef

Validator = Callable[[Any, "Context"], Any]


class DeclaredEvent(str):
    """The name of an event, with the other arguments of ``event`` as attributes. It is equal to the plain name."""

    __slots__ = ("data_type", "permission", "validator")

    data_type: Any
    permission: str | None
    validator: Validator | None


def event(
    name: str, *, data: Any = Any, validator: Validator | None = None, permission: str | None = None
) -> DeclaredEvent:
    """Return the event ``name`` of a step, for ``events`` of a step and for ``WaitForEvent``.

    - ``data`` is the type of the data: a dataclass, TypedDict or msgspec type. Data that do not fit are refused. For
      ``resume`` this happens where it is called, with ``PayloadError``.
    - ``validator(data, context)`` checks a ``resume`` before it counts. It accepts by returning ``None`` or
      ``Ok(...)``. It refuses by returning ``Err(reason)`` or by raising. The sender then gets ``UpdateRejected`` with
      the ``reason``.
    - ``permission`` (``app.codename``) is the permission that a person needs to send the event, instead of the
      permission to signal runs. Code needs none.

    Raises ``WorkflowDefinitionError``.
    """
    names.check_code_name(name, label="event")
    if validator is not None and not (callable(validator) and accepts_arguments(validator, 2)):
        raise WorkflowDefinitionError(f"event {name!r}: the validator must be callable as (data, context)")
    if permission is not None and not names.is_permission(permission):
        raise WorkflowDefinitionError(
            f"event {name!r}: permission must be of the form app.codename, not {permission!r}"
        )
    declared_event = DeclaredEvent(name)
    declared_event.data_type, declared_event.validator, declared_event.permission = data, validator, permission
    return declared_event


def find_declared_event(step: StepRef, name: str) -> DeclaredEvent | None:
    """Return the step's declaration of an event; None for an event that is a plain name."""
    return next(
        (step_event for step_event in step.events if isinstance(step_event, DeclaredEvent) and step_event == name), None
    )


def validate_event_data(declared: DeclaredEvent, data: Any, context: Context) -> None:
    """Check the data of an event that somebody sends, against its type and by its validator.

    ``data`` is plain data. The validator also gets ``context``, the context of the graph. Raises ``PayloadError`` if
    the type does not fit, and ``UpdateRejected`` if the validator refuses.
    """
    typed_data = codec.convert(
        deep_copy(data), declared.data_type, label=f"the data of the event {str.__str__(declared)!r}"
    )
    if declared.validator is None:
        return
    # Validators are workflow code: no clock, no randomness, no outside world (see decision 18).
    guard.watch(declared.validator)
    try:
        verdict = declared.validator(typed_data, context)
    except (MemoryError, RecursionError):
        raise
    except Exception as exc:
        reason = refusal_reason(exc)
        raise UpdateRejected(reason, reason=reason) from exc
    if verdict is None or isinstance(verdict, Ok):
        return
    if isinstance(verdict, Err):
        refusal = verdict.reason
        raise UpdateRejected(
            refusal if isinstance(refusal, str) and refusal else repr(refusal), reason=_plain_reason(refusal)
        )
    # Close it, or Python warns that it was never awaited.
    if inspect.iscoroutine(verdict):
        verdict.close()
    raise UpdateRejected(
        f"the validator of the event {str.__str__(declared)!r} returned {verdict!r}; it must return None, Ok(...) or "
        "Err(reason), and not be async"
    )


def _plain_reason(reason: Any) -> Any:
    """Return the reason with which a validator refused, as plain data, or its ``repr`` if it cannot be encoded."""
    try:
        return codec.to_plain(reason, label="the reason of a validator")
    except PayloadError:
        return repr(reason)
