"""The form that a human task asks people to fill in, as its row stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from temporalex_django.authoring.human_tasks import form_class
from temporalex_django.models import HumanTask

_PLAIN: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_FORMATS: dict[str, Any] = {
    "date": date, "date-time": datetime, "time": time, "duration": timedelta, "uuid": UUID, "decimal": Decimal,
}  # fmt: skip
_CONSTRAINTS = {
    "minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt", "multipleOf": "multiple_of",
    "pattern": "pattern", "minLength": "min_length", "maxLength": "max_length", "minItems": "min_length",
    "maxItems": "max_length",
}  # fmt: skip
_DEFS = "#/$defs/"
_MAX_DEPTH = 20


def annotation_of(schema: Mapping[str, Any]) -> Any:
    """Return a Python type that accepts what the JSON Schema accepts.

    Parts of the schema that no type can express become Any.
    """
    return _build_annotation(schema, schema.get("$defs", {}), 0)


def _build_annotation(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    """Return the Python type for a part of a JSON Schema.

    ``defs`` has the definitions of the whole schema by name. ``depth`` is the number of schemas around this part.
    """
    # A recursive type refers to itself by $ref for ever: below this depth anything is accepted.
    if depth > _MAX_DEPTH:
        return Any
    if (ref := schema.get("$ref")) is not None:
        return _build_annotation(defs.get(str(ref).removeprefix(_DEFS), {}), defs, depth + 1)
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "const" in schema:
        return Literal[schema["const"]]
    if "anyOf" in schema:
        return _union([_build_annotation(option, defs, depth + 1) for option in schema["anyOf"]])
    return _constrain(_base_type(schema, defs, depth), schema)


def _part_annotation(schema: Any, defs: Mapping[str, Any], depth: int) -> Any:
    """Return the type of the values of an object or of the items of an array.

    ``schema`` is their schema. If it is not a schema but missing or a boolean, the type is Any.
    """
    if isinstance(schema, Mapping):
        return _build_annotation(schema, defs, depth + 1)
    return Any


def _base_type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    """Return the Python type for ``type`` and ``format`` of a part of a JSON Schema, without its limits.

    Limits are constraints such as ``minimum``. ``defs`` has the definitions of the whole schema by name. ``depth`` is
    the number of schemas around this part.
    """
    match schema.get("type"):
        case "object" if "properties" in schema:
            return _build_struct(schema, defs, depth)
        case "object":
            values: Any = _part_annotation(schema.get("additionalProperties"), defs, depth)
            return dict[str, values]  # a runtime type, which mypy does not see
        case "array":
            items: Any = _part_annotation(schema.get("items"), defs, depth)
            return list[items]
        case "string" if "contentEncoding" in schema:
            return bytes
        case "string" if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        case str(plain) if plain in _PLAIN:
            return _PLAIN[plain]
    return Any


def _constrain(base_type: Any, schema: Mapping[str, Any]) -> Any:
    limits = {_CONSTRAINTS[name]: value for name, value in schema.items() if name in _CONSTRAINTS}
    if limits and base_type is not Any:
        return Annotated[base_type, msgspec.Meta(**limits)]
    return base_type


def _union(types: list[Any]) -> Any:
    # Any accepts whatever the other options accept.
    if not types or Any in types:
        return Any
    try:
        return reduce(or_, types)
    except TypeError:
        return Any


def _build_struct(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    """Return a ``msgspec.Struct`` class with a field for each property of a JSON Schema of an object.

    ``defs`` has the definitions of the whole schema by name. ``depth`` is the number of schemas around this part.
    """
    required_names, fields = set(schema.get("required", ())), list[Any]()
    for name, property_schema in schema["properties"].items():
        annotation = _build_annotation(property_schema, defs, depth + 1)
        if name in required_names:
            fields.append((name, annotation))
        elif property_schema.get("default") is None:
            fields.append((name, annotation | None if annotation is not Any else Any, None))
        else:
            fields.append((name, annotation, _field_default(property_schema["default"])))
    names = [name for name, *_rest in fields]
    # A schema that this package did not write can have such names, which no attribute can have.
    if not all(name.isidentifier() for name in names):
        return dict[str, Any]
    return msgspec.defstruct(str(schema.get("title") or "Form"), fields, kw_only=True, forbid_unknown_fields=True)


def _field_default(value: Any) -> Any:
    # msgspec refuses a list or dict with content as a default, because all instances would share it.
    if isinstance(value, list | dict):
        return msgspec.field(default_factory=lambda: value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskFormSpec:
    """A description of the form that a human task asks people to fill in, by ``kind``.

    - none: the task asks for nothing.
    - schema: ``type`` is an annotation, made from the JSON Schema in the row of the task.
    - django: ``type`` is a form class of the project.

    ``digest`` changes when the form changes.
    """

    kind: Literal["none", "schema", "django"]
    type: Any = None
    digest: str = ""

    @property
    def field_names(self) -> list[str]:
        """The names of the fields of a Django form class; empty for the other kinds."""
        if self.kind == "django":
            return [*self.type.base_fields]
        return []


def form_spec_of(task: HumanTask) -> HumanTaskFormSpec:
    """Return the description of the form that a human task asks for.

    Raises ``PayloadError`` if it is a form class that this process does not have.
    """
    stored_form = task.form
    if stored_form is None:
        return HumanTaskFormSpec(kind="none")
    # The row keeps the schema of an annotation, so this process needs no code of the workflow to show the form.
    if stored_form["kind"] == "type":
        return HumanTaskFormSpec(
            kind="schema", type=annotation_of(stored_form["schema"] or {}), digest=stored_form["digest"]
        )
    return HumanTaskFormSpec(kind="django", type=form_class(stored_form["name"]), digest=stored_form["digest"])
