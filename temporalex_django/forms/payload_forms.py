"""A form that writes a payload: one field for each attribute of a structure, one for anything else."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import msgspec
from django import forms
from django.utils.translation import gettext_lazy as _
from msgspec import inspect as types

from temporalex_django.actions.base import to_plain_payload
from temporalex_django.core import payloads
from temporalex_django.errors import PayloadError
from temporalex_django.forms.fields import NOTHING, Structure, field_for, type_of

#: The field of a payload that is no structure.
WHOLE = "payload"
_PREFIX = "arg_"
_PATH = re.compile(r"`\$\.([^`.\[]+)")


def new_token() -> str:
    """Goes with a form: what is posted with one acts once."""
    return str(uuid4())


class TokenForm(forms.Form):
    """Posted twice, it acts once."""

    token = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["initial"] = {"token": new_token(), **(kwargs.get("initial") or {})}
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)

    def renew(self) -> None:
        """The next try is another one."""
        self.data = {**{name: self.data[name] for name in self.data}, self.add_prefix("token"): new_token()}


class PayloadForm(TokenForm):
    """What is written becomes ``payload``, which fits ``annotation``.

    ``example`` is a payload to begin with; what of it does not fit is left out.
    """

    def __init__(self, *args: Any, annotation: Any = Any, example: Any = NOTHING, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.annotation = annotation
        self.known = type_of(annotation)
        self.payload: Any = None
        if isinstance(self.known, Structure):
            given = example if isinstance(example, dict) else {}
            for one in self.known.fields:
                initial = given.get(one.encode_name, _default(one))
                self.fields[_PREFIX + one.encode_name] = _field(
                    one.type, required=one.required, label=_words(one.encode_name), initial=initial
                )
        elif not isinstance(self.known, types.NoneType):
            required = not isinstance(self.known, types.AnyType)
            self.fields[WHOLE] = _field(self.known, required=required, label=_("Value"), initial=example)

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return data
        what = str(_("What is written here"))
        try:
            self.payload = to_plain_payload(self._written(data), label=what)
            payloads.convert(self.payload, self.annotation, label=what)
        except PayloadError as exc:
            at = _PATH.search(str(exc))
            name = _PREFIX + at[1] if at and _PREFIX + at[1] in self.fields else None
            self.add_error(name, str(exc.__cause__ or exc))
        return data

    def _written(self, data: dict[str, Any]) -> Any:
        if not isinstance(self.known, Structure):
            value = data.get(WHOLE)
            return None if value is NOTHING or (value == "" and not isinstance(self.known, types.StrType)) else value
        return {
            one.encode_name: None if value is NOTHING else value
            for one in self.known.fields
            if not _left_out(value := data.get(_PREFIX + one.encode_name), required=one.required)
        }


def _left_out(value: Any, *, required: bool) -> bool:
    """Nothing was written: the default of the code is taken."""
    return not required and (value is None or value is NOTHING or (isinstance(value, str) and value == ""))


def _field(known: types.Type, *, required: bool, label: Any, initial: Any) -> forms.Field:
    more = {} if initial is NOTHING or initial is None else {"initial": initial}
    return field_for(known, required=required, label=label, **more)


def _default(one: types.Field) -> Any:
    """Of an attribute, as JSON has it; nothing where only its code can make one."""
    if one.default is msgspec.NODEFAULT:
        return NOTHING
    try:
        return msgspec.to_builtins(one.default)
    except TypeError:
        return NOTHING


def _words(name: str) -> str:
    return name.replace("_", " ").strip().capitalize() or name
