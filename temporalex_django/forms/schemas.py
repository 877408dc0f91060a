"""A type that is made of a JSON Schema, as msgspec writes them: rows keep the schema of a form, and not its class."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

_PLAIN: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_FORMATS: dict[str, Any] = {
    "date": date, "date-time": datetime, "time": time, "duration": timedelta, "uuid": UUID, "decimal": Decimal,
}  # fmt: skip
_LIMITS = {
    "minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt", "multipleOf": "multiple_of",
    "pattern": "pattern", "minLength": "min_length", "maxLength": "max_length", "minItems": "min_length",
    "maxItems": "max_length",
}  # fmt: skip
_DEFS = "#/$defs/"
_DEEPEST = 20


def annotation_of(schema: Mapping[str, Any]) -> Any:
    """The type that takes what the schema takes; Any for what it says and no type can."""
    return _type(schema, schema.get("$defs", {}), 0)


def _type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    if depth > _DEEPEST:  # a type that holds itself
        return Any
    if (ref := schema.get("$ref")) is not None:
        return _type(defs.get(str(ref).removeprefix(_DEFS), {}), defs, depth + 1)
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "const" in schema:
        return Literal[schema["const"]]
    if "anyOf" in schema:
        return _union([_type(one, defs, depth + 1) for one in schema["anyOf"]])
    return _limited(_bare(schema, defs, depth), schema)


def _bare(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    match schema.get("type"):
        case "object" if "properties" in schema:
            return _structure(schema, defs, depth)
        case "object":
            extra = schema.get("additionalProperties")
            return dict[str, _type(extra, defs, depth + 1)] if isinstance(extra, Mapping) else dict[str, Any]  # type: ignore[misc] # made while it runs
        case "array":
            items = schema.get("items")
            return list[_type(items, defs, depth + 1)] if isinstance(items, Mapping) else list[Any]  # type: ignore[misc] # as above
        case "string" if "contentEncoding" in schema:
            return bytes
        case "string" if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        case str(plain) if plain in _PLAIN:
            return _PLAIN[plain]
    return Any


def _limited(found: Any, schema: Mapping[str, Any]) -> Any:
    limits = {_LIMITS[name]: value for name, value in schema.items() if name in _LIMITS}
    return Annotated[found, msgspec.Meta(**limits)] if limits and found is not Any else found


def _union(types: list[Any]) -> Any:
    if not types or Any in types:
        return Any
    try:
        return reduce(or_, types)
    except TypeError:
        return Any


def _structure(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    needed, fields = set(schema.get("required", ())), list[Any]()
    for name, one in schema["properties"].items():
        known = _type(one, defs, depth + 1)
        if name in needed:
            fields.append((name, known))
        elif one.get("default") is None:
            fields.append((name, known | None if known is not Any else Any, None))
        else:
            fields.append((name, known, _default(one["default"])))
    names = [name for name, *_rest in fields]
    if not all(name.isidentifier() for name in names):  # of another place than code of ours
        return dict[str, Any]
    return msgspec.defstruct(str(schema.get("title") or "Form"), fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: Any) -> Any:
    return msgspec.field(default_factory=lambda: value) if isinstance(value, list | dict) else value
