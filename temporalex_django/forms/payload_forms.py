"""Forms for payloads: they have a field for each attribute of a structure, or one field for another type."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import msgspec
from django import forms
from django.utils.translation import gettext_lazy as _
from msgspec import inspect as types

from temporalex_django.core.names import fit_note
from temporalex_django.core.payloads import codec
from temporalex_django.errors import PayloadError
from temporalex_django.forms.fields import NOTHING, Structure, field_for, inspect_type
from temporalex_django.operations.base import to_plain_payload

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
        return {
            struct_field.encode_name: None if value is NOTHING else value
            for struct_field in self.type_info.fields
            if not _is_omitted(value := data.get(_PREFIX + struct_field.encode_name), required=struct_field.required)
        }


def _is_omitted(value: Any, *, required: bool) -> bool:
    """Return True if a field is empty and not required, so that the payload leaves it out.

    The code that receives the payload then uses its default.
    """
    return not required and (value is None or value is NOTHING or (isinstance(value, str) and value == ""))


def _build_field(type_info: types.Type, *, required: bool, label: Any, initial: Any) -> forms.Field:
    """Return the form field for a type; with ``NOTHING`` or None as ``initial``, it has no initial value."""
    if initial is NOTHING or initial is None:
        return field_for(type_info, required=required, label=label)
    return field_for(type_info, required=required, label=label, initial=initial)


def _default_json(struct_field: types.Field) -> Any:
    """Return the default of an attribute as JSON types, or ``NOTHING`` if it has none or JSON cannot express it."""
    if struct_field.default is msgspec.NODEFAULT:
        return NOTHING
    try:
        return msgspec.to_builtins(struct_field.default)
    except TypeError:
        return NOTHING


def _field_label(name: str) -> str:
    return name.replace("_", " ").strip().capitalize() or name
