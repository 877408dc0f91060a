"""Annotations as which nothing could be read back from JSON: definitions refuse them.

Only the annotation is judged, and only if no value at all fits it. Everything else is judged by a value, where the
value is sent (``round_trip``).
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import inspect as msgspec_inspect

from temporalex_django.core.payloads import external_types
from temporalex_django.core.payloads.codec import resolve_hints


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


def unreadable_reason(annotation: Any) -> str | None:
    """Return why no value at all can be read back as ``annotation``, or None if there may be one.

    None is also the answer for an annotation that cannot be judged yet, because a name in it is not defined.
    """
    try:
        return _cached_reason(annotation)
    except TypeError:  # it cannot be a key of the cache
        return _find_reason(annotation)


def _find_reason(annotation: Any) -> str | None:
    if annotation in (Any, None, object, typing.NoReturn, typing.Never) or isinstance(annotation, str):
        return None
    try:
        description = msgspec_inspect.type_info(annotation)
    except TypeError as exc:
        return str(exc)
    except Exception:  # noqa: BLE001 - an annotation is arbitrary user code, and a name may not be defined yet
        return None
    return _describe_obstacle(description, set())


_cached_reason = functools.lru_cache(maxsize=1024)(_find_reason)


def _describe_obstacle(description: msgspec_inspect.Type, visited: set[type]) -> str | None:
    """Return why no value has the type that msgspec describes, or None.

    Lists and dicts may be empty, and unions have None or another member, so only fields are followed. ``visited`` are
    the classes that are judged already.
    """
    if isinstance(description, msgspec_inspect.CustomType):
        return _describe_custom_obstacle(description.cls, visited)
    fields = getattr(description, "fields", None)
    kind = getattr(description, "cls", None)
    if fields is None or kind in visited:
        return None
    visited.add(typing.cast("type", kind))
    for field in fields:
        obstacle = _describe_obstacle(field.type, visited)
        is_secret_field = isinstance(field.type, msgspec_inspect.CustomType) and external_types.is_secret(
            field.type.cls
        )
        if obstacle is not None and (field.required or is_secret_field):
            return f"{obstacle} (field {field.name!r} of {getattr(kind, '__name__', kind)})"
    return None


def _describe_custom_obstacle(kind: Any, visited: set[type]) -> str | None:
    if external_types.is_secret(kind):
        return f"{kind.__name__} is a secret, and {external_types.REFUSAL_OF_SECRETS}"
    if external_types.is_pydantic(kind):
        if kind in visited:
            return None
        visited.add(kind)
        for name, field in kind.model_fields.items():
            for member in _classes_of(field.annotation):
                obstacle = _describe_custom_obstacle(member, visited) if external_types.is_pydantic(member) else None
                if external_types.is_secret(member) or (obstacle is not None and field.is_required()):
                    reason = obstacle or f"{member.__name__} is a secret, and {external_types.REFUSAL_OF_SECRETS}"
                    return f"{reason} (field {name!r} of {kind.__name__})"
        return None
    if kind is object or (
        isinstance(kind, type) and issubclass(kind, external_types.CONSTRUCTIBLE) and not hasattr(kind, "__html__")
    ):
        return None
    return f"objects of type {getattr(kind, '__name__', kind)} are not supported"


def _classes_of(annotation: Any) -> list[type]:
    """Return the class that an annotation of a pydantic field requires, or nothing if it leaves a choice."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _classes_of(typing.get_args(annotation)[0])
    return [annotation] if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias) else []
