"""Types that the encoder does not know: subclasses of the types that it knows, lazy texts, pydantic models.

Django models, query sets and secrets get advice instead. Types are recognized by attributes of their classes, so
nothing is imported for them. Neither Django nor pydantic needs to be installed.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec import inspect

from temporalex_django.core.units.ivar import Call

#: Conversions of a value of a subclass (``SafeString``, the ``FakeDate`` of a test) to an equal value of the base type.
#: The first base that fits counts, so ``datetime`` comes before ``date``.
_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (Decimal, Decimal),
    (
        datetime,
        lambda v: datetime(v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo, fold=v.fold),
    ),
    (date, lambda v: date(v.year, v.month, v.day)),
    (time, lambda v: time(v.hour, v.minute, v.second, v.microsecond, v.tzinfo, fold=v.fold)),
    (timedelta, lambda v: timedelta(v.days, v.seconds, v.microseconds)),
)
REFUSAL_OF_SECRETS: Final = (
    "it would be stored in clear text or as stars: pass a reference to it, such as its name, and read it in an "
    "activity; or pass the text itself, and encrypt payloads with a codec (PAYLOAD_CODEC)"
)
#: Base types whose subclasses an annotation restores, by calling the subclass.
CONSTRUCTIBLE: Final = (str, int, float, Decimal)


def encode_external(value: Any) -> Any:
    """Return data that the encoder can write for a value of a type that it does not know.

    Raises ``TypeError`` with advice for unsupported types, and ``NotAwaited`` for a primitive that was not awaited.
    """
    kind = type(value)
    if kind is Call:
        raise value.refused()
    base = base_of(kind)
    if base is not None:
        return as_base(value, base)
    if is_secret(kind):
        raise TypeError(f"{kind.__name__} is a secret, and {REFUSAL_OF_SECRETS}")
    if is_pydantic(kind):
        _refuse_secrets(value)
        # By the names of the fields: an alias may be one of several, a path, or for writing only. Without computed
        # fields, which a model may refuse to read. Warnings are about values that the comparison refuses.
        return value.model_dump(mode="json", by_alias=False, round_trip=True, warnings=False)
    if any(base.__name__ == "Promise" and base.__module__ == "django.utils.functional" for base in kind.__mro__):
        return str(value)
    if hasattr(getattr(kind, "_meta", None), "concrete_model"):
        raise TypeError(
            f"{kind.__name__} is a model instance, and a copy of it would be out of date: pass its pk, and read it "
            "again in an activity"
        )
    if hasattr(kind, "as_manager") and hasattr(value, "query"):
        raise TypeError("a QuerySet is not data: pass the pks of its rows, list(rows.values_list('pk', flat=True))")
    if hasattr(kind, "__await__"):
        raise TypeError(f"a {kind.__name__} is a call that nobody has awaited: write `await` before it")
    raise TypeError(f"objects of type {kind.__name__} are not supported")


def decode_external(kind: Any, value: Any) -> Any:
    """Return JSON data as ``kind``, a type that the decoder does not know.

    Raises ``TypeError`` for an unsupported type, and ``ValueError`` for data that do not fit it.
    """
    if kind is object:
        return value
    if isinstance(kind, type) and is_pydantic(kind):
        return _read_model(kind, value)
    if isinstance(kind, type) and is_secret(kind):
        raise TypeError(f"{kind.__name__} is a secret, and {REFUSAL_OF_SECRETS}")
    if isinstance(kind, type) and issubclass(kind, CONSTRUCTIBLE) and _matches_type(kind, value):
        if hasattr(kind, "__html__"):
            raise TypeError(
                f"a stored string is not known to be safe HTML: annotate str instead of {kind.__name__}, and mark it "
                "safe where you know that it is"
            )
        try:
            return kind(value)
        except ArithmeticError as exc:  # of a Decimal
            raise ValueError(f"{value!r} is not a valid {kind.__name__}") from exc
    raise TypeError(f"objects of type {getattr(kind, '__name__', kind)} are not supported")


def _matches_type(kind: type, value: Any) -> bool:
    # By the exact type: True is an ``int`` for ``isinstance``, and a number written as text is no number.
    if issubclass(kind, (int, float)):
        return type(value) is int or (type(value) is float and issubclass(kind, float))
    return isinstance(value, str)


def _read_model(kind: Any, value: Any) -> Any:
    """Raise ``ValueError`` without the data, which may be secret."""
    # From JSON text: a strict model reads times, UUIDs and decimals from texts only there. Models are stored under the
    # names of their fields, and clients of the REST API send aliases.
    try:
        return kind.model_validate_json(msgspec.json.encode(value), by_alias=True, by_name=True)
    except ValueError as exc:
        if not hasattr(exc, "errors"):
            raise
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None


def _refuse_secrets(model: Any) -> None:
    """Raise ``TypeError`` if a pydantic model contains a secret: its dump would be stars, or clear text."""
    pending, visited = [model], set()
    while pending:
        part = pending.pop()
        kind = type(part)
        if is_secret(kind):
            raise TypeError(f"{type(model).__name__} contains a {kind.__name__}, and {REFUSAL_OF_SECRETS}")
        if id(part) in visited:
            continue
        if issubclass(kind, Mapping):
            visited.add(id(part))
            pending += [*part.keys(), *part.values()]
        elif issubclass(kind, (list, tuple, set, frozenset)):
            visited.add(id(part))
            pending += part
        elif is_record(kind):
            visited.add(id(part))
            pending += [getattr(part, name, None) for name in field_names(kind)]
            pending += dict(getattr(part, "__pydantic_extra__", None) or {}).values()


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
        description = inspect.type_info(annotation)
    except TypeError as exc:
        return str(exc)
    except Exception:  # noqa: BLE001 - an annotation is arbitrary user code, and a name may not be defined yet
        return None
    return _describe_obstacle(description, set())


_cached_reason = functools.lru_cache(maxsize=1024)(_find_reason)


def _describe_obstacle(description: inspect.Type, visited: set[type]) -> str | None:
    """Return why no value has the type, or None. Only fields are followed: lists may be empty, unions have None."""
    if isinstance(description, inspect.CustomType):
        return _describe_custom_obstacle(description.cls, visited)
    fields = getattr(description, "fields", None)
    kind = getattr(description, "cls", None)
    if fields is None or kind in visited:
        return None
    visited.add(typing.cast("type", kind))
    for field in fields:
        obstacle = _describe_obstacle(field.type, visited)
        is_secret_field = isinstance(field.type, inspect.CustomType) and is_secret(field.type.cls)
        if obstacle is not None and (field.required or is_secret_field):
            return f"{obstacle} (field {field.name!r} of {getattr(kind, '__name__', kind)})"
    return None


def _describe_custom_obstacle(kind: Any, visited: set[type]) -> str | None:
    if is_secret(kind):
        return f"{kind.__name__} is a secret, and {REFUSAL_OF_SECRETS}"
    if is_pydantic(kind):
        if kind in visited:
            return None
        visited.add(kind)
        for name, field in kind.model_fields.items():
            for member in _classes_of(field.annotation):
                obstacle = _describe_custom_obstacle(member, visited) if is_pydantic(member) else None
                if is_secret(member) or (obstacle is not None and field.is_required()):
                    reason = obstacle or f"{member.__name__} is a secret, and {REFUSAL_OF_SECRETS}"
                    return f"{reason} (field {name!r} of {kind.__name__})"
        return None
    if kind is object or (isinstance(kind, type) and issubclass(kind, CONSTRUCTIBLE) and not hasattr(kind, "__html__")):
        return None
    return f"objects of type {getattr(kind, '__name__', kind)} are not supported"


def _classes_of(annotation: Any) -> list[type]:
    """Return the class that an annotation requires, or nothing if it leaves a choice."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _classes_of(typing.get_args(annotation)[0])
    return [annotation] if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias) else []


def is_pydantic(kind: type) -> bool:
    """Return True for a class of pydantic models."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump")


def is_secret(kind: type) -> bool:
    """Return True for ``SecretStr``, ``SecretBytes`` and the other secrets of pydantic."""
    return hasattr(kind, "get_secret_value")


def is_record(kind: type) -> bool:
    """Return True for a class of dataclasses, attrs classes, msgspec structs or pydantic models."""
    return (
        hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "__struct_fields__")
        or hasattr(kind, "__attrs_attrs__")
        or is_pydantic(kind)
    )


def field_names(kind: Any) -> Mapping[str, str]:
    """Return the names of the fields of a record, each with the name under which the field is stored.

    The mapping is empty for all other classes.
    """
    if is_pydantic(kind):
        return {name: name for name in kind.model_fields}
    if hasattr(kind, "__struct_fields__"):
        return dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    if hasattr(kind, "__attrs_attrs__"):
        return {attribute.name: attribute.name for attribute in kind.__attrs_attrs__}
    if hasattr(kind, "__dataclass_fields__"):
        return {field.name: field.name for field in dataclasses.fields(kind)}
    return {}


def base_of(kind: type) -> type | None:
    """Return the type as which a value of ``kind`` is stored if ``kind`` is a subclass of it, or None."""
    return next((base for base, _ in _BASES if issubclass(kind, base)), None)


def as_base(value: Any, base: type) -> Any:
    """Return ``value`` as a value of ``base``, which is ``base_of`` its class."""
    return dict(_BASES)[base](value)
