"""Forms made from annotations, and their fields."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import uuid4

import msgspec
from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from msgspec import inspect as types

from temporalex_django.conf import get_settings
from temporalex_django.core.names import fit_note
from temporalex_django.core.payloads import codec
from temporalex_django.errors import PayloadError
from temporalex_django.operations.base import to_plain_payload

# --- fields -----------------------------------------------------------------------------------------------------------
#
# Form fields for the annotations of payloads.


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
    """Return a field for ``(value, label)`` pairs. It posts positions, so values need not be texts."""
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


# --- payload forms ----------------------------------------------------------------------------------------------------
#
# Forms for payloads: they have a field for each attribute of a structure, or one field for another type.


#: Name of the field of a payload that is not a structure.
PAYLOAD_FIELD = "payload"
_PREFIX = "arg_"
# The attribute in the path of a msgspec error, such as "... - at `$.total`".
_PATH = re.compile(r"`\$\.([^`.\[]+)")


def new_token() -> str:
    """Return a new random token for the hidden field of a form, by which a repeated post is recognized."""
    return str(uuid4())


class NoteFormField(forms.CharField):
    """A reason or comment of a person, made fit as everywhere: no text is refused for its characters or its length."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.validators = []  # Django refuses characters that ``fit_note`` removes

    def to_python(self, value: Any) -> str:
        return str(fit_note(super().to_python(value) or "", label="the text"))


class TokenForm(forms.Form):
    """Base class of forms with a hidden random token, by which a repeated post is recognized.

    The view that handles the form remembers the token, so that posting the form twice has the effect of posting it
    once.
    """

    token = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["initial"] = {"token": new_token(), **(kwargs.get("initial") or {})}
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)

    def renew(self) -> None:
        """Give the bound form a new token, so that the next post is executed and does not count as a repetition."""
        # Form data may be an immutable QueryDict: copy it.
        self.data = {**{name: self.data[name] for name in self.data}, self.add_prefix("token"): new_token()}


class PayloadForm(TokenForm):
    """A form for a payload of the type ``annotation``; once it is valid, ``payload`` has the value as JSON types.

    A structure such as a dataclass has a field for each attribute, and any other type has one field. The initial values
    come from the payload ``example``; parts of it that do not fit the type are ignored.
    """

    def __init__(self, *args: Any, annotation: Any = Any, example: Any = NOTHING, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.annotation = annotation
        self.type_info = inspect_type(annotation)
        self.payload: Any = None
        if isinstance(self.type_info, Structure):
            example_fields = example if isinstance(example, dict) else {}
            for struct_field in self.type_info.fields:
                initial = example_fields.get(struct_field.encode_name, _default_json(struct_field))
                self.fields[_PREFIX + struct_field.encode_name] = _build_field(
                    struct_field.type,
                    required=struct_field.required,
                    label=_field_label(struct_field.encode_name),
                    initial=initial,
                )
        elif not isinstance(self.type_info, types.NoneType):
            required = not isinstance(self.type_info, types.AnyType)
            self.fields[PAYLOAD_FIELD] = _build_field(
                self.type_info, required=required, label=_("Value"), initial=example
            )

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return data
        # The fields check each value alone. Check the payload as a whole, as it is stored and as the code receives it.
        label = str(_("This value"))
        try:
            self.payload = to_plain_payload(self._build_payload(data), label=label)
            codec.convert(self.payload, self.annotation, label=label)
        except PayloadError as exc:
            # Show the error at the field it is about, if the message has the path of one.
            match = _PATH.search(str(exc))
            name = _PREFIX + match[1] if match and _PREFIX + match[1] in self.fields else None
            self.add_error(name, str(exc.__cause__ or exc))
        return data

    def _build_payload(self, data: dict[str, Any]) -> Any:
        if not isinstance(self.type_info, Structure):
            value = data.get(PAYLOAD_FIELD)
            if value is NOTHING or (value == "" and not isinstance(self.type_info, types.StrType)):
                return None
            return value
        payload = {}
        for struct_field in self.type_info.fields:
            value = data.get(_PREFIX + struct_field.encode_name)
            if not _is_omitted(value, required=struct_field.required):
                is_null = value is NOTHING or (value == "" and _is_optional_text(struct_field.type))
                payload[struct_field.encode_name] = None if is_null else value
        return payload


def _is_optional_text(type_info: types.Type) -> bool:
    """Return True for ``str | None``: an empty box is then no text, while a plain ``str`` may be empty."""
    type_info = unwrap_metadata(type_info)
    if not isinstance(type_info, types.UnionType):
        return False
    return {type(unwrap_metadata(member)) for member in type_info.types} == {types.StrType, types.NoneType}


def _is_omitted(value: Any, *, required: bool) -> bool:
    """Return True if the payload leaves the field out, so that the code that receives it uses its default."""
    return not required and (value is None or value is NOTHING or (isinstance(value, str) and value == ""))


def _build_field(type_info: types.Type, *, required: bool, label: Any, initial: Any) -> forms.Field:
    if initial is NOTHING or initial is None:
        return field_for(type_info, required=required, label=label)
    return field_for(type_info, required=required, label=label, initial=initial)


def _default_json(struct_field: types.Field) -> Any:
    """Return the default as JSON types; ``NOTHING`` if there is none, or JSON cannot express it."""
    if struct_field.default is msgspec.NODEFAULT:
        return NOTHING
    try:
        return msgspec.to_builtins(struct_field.default)
    except TypeError:
        return NOTHING


def _field_label(name: str) -> str:
    return name.replace("_", " ").strip().capitalize() or name
