"""Annotations as which nothing could be read back from JSON: definitions refuse them.

Only the annotation is judged, and only if no value at all fits it. Everything else is judged by a value, where the
value is sent (``round_trip``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from temporalex_django.core.payloads.codec import resolve_hints
from temporalex_django.core.payloads.external_types import unreadable_reason


def annotation_problems(annotations: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each annotation as which no value can be read back from JSON.

    ``annotations`` maps what is annotated, such as "the result", to its annotation.
    """
    reasons = {label: unreadable_reason(annotation) for label, annotation in annotations.items()}
    return [
        f"nothing can be read back from JSON as the annotation of {label}: {reason}; declare a type that payloads may "
        "have, or pass plain data"
        for label, reason in reasons.items()
        if reason is not None
    ]


def parameter_problems(fn: Callable[..., Any]) -> list[str]:
    """Return the ``annotation_problems`` of an activity, for its result and the parameters that each call passes."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return []
    # Names that are defined further below in the module have no hint yet, so nothing is kept for later.
    hints = resolve_hints(fn)
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    annotations = {f"parameter {name!r}": hints.get(name, Any) for name in required}
    return annotation_problems({**annotations, "the result": hints.get("return", Any)})
