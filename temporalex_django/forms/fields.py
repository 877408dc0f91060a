"""Form fields for the annotations of payloads."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from msgspec import inspect as types

from temporalex_django.conf import get_settings

#: The value of an empty box; JSON has null for None, so None cannot stand for it.
NOTHING: Any = type("Nothing", (), {"__repr__": lambda _: "NOTHING", "__bool__": lambda _: False})()

Structure = types.DataclassType | types.StructType | types.TypedDictType
_DAY = {"type": "date"}
_INSTANT = {"type": "datetime-local", "step": "1"}
# Date and time inputs of browsers need ISO 8601, whatever the formats of the project's locale.
_PLAIN: dict[type[Any], tuple[type[forms.Field], dict[str, Any]]] = {
    types.StrType: (forms.CharField, {"strip": False, "widget": forms.TextInput(attrs={"class": "vTextField"})}),
    types.IntType: (forms.IntegerField, {}),
    types.FloatType: (forms.FloatField, {"widget": forms.NumberInput(attrs={"step": "any"})}),
    types.DecimalType: (forms.DecimalField, {"widget": forms.NumberInput(attrs={"step": "any"})}),
    types.DateType: (forms.DateField, {"widget": forms.DateInput(format="%Y-%m-%d", attrs=_DAY)}),
    types.DateTimeType: (
        forms.DateTimeField,
        {"widget": forms.DateTimeInput(format="%Y-%m-%dT%H:%M:%S", attrs=_INSTANT)},
    ),
    types.TimeType: (forms.TimeField, {"widget": forms.TimeInput(attrs={"type": "time", "step": "1"})}),
    types.TimeDeltaType: (forms.DurationField, {"help_text": _("Days, then hours, minutes and seconds: 2 03:30:00")}),
    types.UUIDType: (forms.UUIDField, {}),
}


class JSONBox(forms.CharField):
    """A form field in which the user writes any JSON, as a text box.

    Its value is the decoded JSON, or ``NOTHING`` if the box is empty.
    """

    widget = forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField tx-json", "spellcheck": "false"})

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("help_text", _('Enter JSON, such as "a text", 5, true, [1, 2] or {"key": "value"}.'))
        if "initial" in kwargs:
            kwargs["initial"] = json.dumps(kwargs["initial"], ensure_ascii=False, default=str)
        # A loose bound on the text, which indentation and escapes make longer than the payload. The size of the payload
        # itself is checked later, in bytes.
        super().__init__(max_length=4 * get_settings().MAX_PAYLOAD_BYTES, **kwargs)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text.strip():
            return NOTHING
        try:
            # "replace": a lone surrogate of a forged post would raise UnicodeEncodeError.
            return msgspec.json.decode(text.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError) as exc:
            raise ValidationError(
                _("This is not valid JSON: %(why)s. Put text in double quotes."), params={"why": str(exc)[:200]}
            ) from exc


def inspect_type(annotation: Any) -> types.Type:
    """Return msgspec's description of a type annotation, by which a form field is chosen.

    It is ``AnyType`` if msgspec does not support the annotation.
    """
    try:
        return unwrap_metadata(types.type_info(annotation))
    except Exception:  # noqa: BLE001 - an annotation is arbitrary user code
        return types.AnyType()


def unwrap_metadata(type_info: types.Type) -> types.Type:
    """Return msgspec's description of the type inside ``Annotated``, or the description unchanged for other types."""
    while isinstance(type_info, types.Metadata):
        type_info = type_info.type
    return type_info


def field_for(type_info: types.Type, *, required: bool, **field_options: Any) -> forms.Field:
    """Return a form field whose cleaned value is a payload of that type; a ``JSONBox`` if no other field fits.

    ``field_options`` are arguments of the field, such as ``label``.
    """
    type_info = unwrap_metadata(type_info)
    if isinstance(type_info, types.UnionType):
        member_types = [
            unwrap_metadata(member)
            for member in type_info.types
            if not isinstance(unwrap_metadata(member), types.NoneType)
        ]
        if len(member_types) < len(type_info.types):
            required = False
        if len(member_types) == 1:
            return _optional_field(member_types[0], required=required, **field_options)
        return JSONBox(required=required, **field_options)
    # Not required, because Django's required check box must be ticked: False would not be valid.
    if isinstance(type_info, types.BoolType):
        return forms.BooleanField(required=False, **field_options)
    if isinstance(type_info, types.EnumType):
        return _choice_field(
            [(member.value, member.name) for member in type_info.cls], required=required, **field_options
        )
    if isinstance(type_info, types.LiteralType):
        return _choice_field([(member, str(member)) for member in type_info.values], required=required, **field_options)
    if (plain := _PLAIN.get(type(type_info))) is not None:
        kind, options = plain
        return kind(required=required, **{**options, **field_options})
    return JSONBox(required=required and not isinstance(type_info, types.AnyType), **field_options)


def _optional_field(type_info: types.Type, *, required: bool, **field_options: Any) -> forms.Field:
    # A check box has two states; an optional bool has three.
    if isinstance(type_info, types.BoolType):
        return _choice_field([(True, _("yes")), (False, _("no"))], required=required, **field_options)
    return field_for(type_info, required=required, **field_options)


def _choice_field(choices: list[tuple[Any, Any]], *, required: bool, **field_options: Any) -> forms.Field:
    """Return a choice field for pairs of a value and a label; its cleaned value is one of the values.

    The form posts the position of the value, so values need not be texts.
    """
    values = [value for value, _label in choices]
    if "initial" in field_options:
        field_options["initial"] = (
            values.index(field_options["initial"]) if field_options["initial"] in values else None
        )
    return forms.TypedChoiceField(
        choices=[("", "–"), *((str(number), label) for number, (_value, label) in enumerate(choices))],
        coerce=lambda number: values[int(number)],
        empty_value=None,
        required=required,
        **field_options,
    )
