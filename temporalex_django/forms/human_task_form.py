"""Forms that decide human tasks."""

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
from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.human_tasks import form_class
from temporalex_django.errors import (
    ActionNotPermitted,
    HumanTaskClosed,
    HumanTaskNotFound,
    TemporalexError,
)
from temporalex_django.forms.payload_forms import NoteFormField, PayloadForm, TokenForm
from temporalex_django.models import HumanTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks.operations import Decide, find_user
from temporalex_django.present.formatting import capitalize, humanize_name

# --- human task form --------------------------------------------------------------------------------------------------
#
# The form that a human task asks people to fill in, as its row stores it.


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
    """Return the type for a part of a JSON Schema; ``depth`` counts the schemas around it."""
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
    """Return the type of an object's values or an array's items; Any without a schema for them."""
    if isinstance(schema, Mapping):
        return _build_annotation(schema, defs, depth + 1)
    return Any


def _base_type(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    """Return the type for ``type`` and ``format``, without limits such as ``minimum``."""
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
    """Return a ``msgspec.Struct`` class with a field for each property."""
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


# --- decisions --------------------------------------------------------------------------------------------------------
#
# The forms that decide and delegate a human task.


#: Prefix of the fields of the task's own form.
BODY_PREFIX = "form"
_MAX_NAME_LENGTH = 150


def outcome_label(outcome: str) -> str:
    """Return the label of an outcome for people, such as "Approve" for ``approved``."""
    labels = {"approved": _("Approve"), "rejected": _("Reject")}
    return labels.get(outcome) or capitalize(humanize_name(outcome))


class DecisionForm(TokenForm):
    """The form that decides a human task: the outcome, a comment, and the fields that the task itself asks for.

    ``body`` is the form with those fields, or None if the task asks for nothing. The hidden field ``shown`` is the
    digest of that form as the page showed it, so that nobody decides by a form that has changed since. The constructor
    raises ``PayloadError`` if this process lacks the class of the form.
    """

    outcome = forms.ChoiceField(widget=forms.RadioSelect, label=gettext_lazy("Decision"))
    comment = NoteFormField(
        required=False, label=gettext_lazy("Comment"),
        help_text=gettext_lazy("Recorded in the history with your name."),
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
    )  # fmt: skip
    shown = forms.CharField(max_length=100, required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, task: HumanTask, **kwargs: Any) -> None:
        self.task = task
        self.form_spec = form_spec_of(task)
        kwargs["initial"] = {"shown": self.form_spec.digest, **(kwargs.get("initial") or {})}
        super().__init__(data, **kwargs)
        self._outcome_field().choices = [(outcome, outcome_label(outcome)) for outcome in task.outcomes]
        self.body = build_body_form(self.form_spec, data, auto_id=self.auto_id)

    def _outcome_field(self) -> forms.ChoiceField:
        field = self.fields["outcome"]
        assert isinstance(field, forms.ChoiceField)
        return field

    def is_valid(self) -> bool:
        """Validate this form and ``body``, and return True if both are valid.

        Both are validated in any case, so that the page shows all errors at once.
        """
        # No short circuit: the page shows the errors of both forms at once.
        is_own_valid = super().is_valid()
        return (self.body is None or self.body.is_valid()) and is_own_valid

    @property
    def payload(self) -> Any:
        """The data of the decision as JSON types, from ``body``; None if the task asks for nothing."""
        if isinstance(self.body, PayloadForm):
            return self.body.payload
        if self.body is None:
            return None
        return submitted_fields(self.body)

    def decide(self, *, by: Actor) -> bool:
        """Decide the human task with the data of this form, and return True.

        If the form has to be corrected, its errors are added and False is returned; it can then be posted again. Raises
        ``ActionNotPermitted``, ``HumanTaskClosed`` and ``HumanTaskNotFound``, because a corrected form would not help.
        """
        if not self.is_valid():
            return False
        # Decide compares the digest with the form that is stored now: nobody decides by a form that has changed since.
        inputs = {name: self.cleaned_data[name] for name in ("outcome", "comment")}
        decide = Decide(self.task, data=self.payload, form=self.cleaned_data["shown"] or None, by=by, **inputs)
        try:
            decide.execute()
        except (ActionNotPermitted, HumanTaskClosed, HumanTaskNotFound):
            raise
        except TemporalexError as exc:
            self.add_error(None, exc.message)
            self._rebind_current_form()
            return False
        return True

    def _rebind_current_form(self) -> None:
        """Give the form a new token and digest, so that the next post is neither a repetition nor outdated."""
        self.renew()
        self.data = {**self.data, self.add_prefix("shown"): self.form_spec.digest}


def build_body_form(form_spec: HumanTaskFormSpec, data: Any, **kwargs: Any) -> forms.Form | None:
    """Return the form with the fields that a human task itself asks for, or None if it asks for nothing.

    It is bound if ``data`` is not None. Its fields have the prefix ``BODY_PREFIX``.
    """
    if form_spec.kind == "schema":
        # The nested form has a token field of its own that no page renders: it takes the token of the decision.
        bound = None
        if data is not None:
            bound = {**_flatten(data), f"{BODY_PREFIX}-token": data.get("token", "")}
        return PayloadForm(bound, annotation=form_spec.type, prefix=BODY_PREFIX, **kwargs)
    if form_spec.kind == "django":
        form: forms.Form = form_spec.type(data, prefix=BODY_PREFIX, label_suffix="", **kwargs)
        return form
    return None


def submitted_fields(form: forms.BaseForm) -> dict[str, Any]:
    """Return the texts that were posted for the fields of a bound form, by field name without the prefix.

    A field with multiple choices has a list. The texts are not validated here: the operation ``Decide`` does that with
    the form class.
    """
    fields: dict[str, Any] = {}
    for key in form.data:
        if not key.startswith(f"{BODY_PREFIX}-"):
            continue
        name = key.removeprefix(f"{BODY_PREFIX}-")
        field = form.fields.get(name)
        is_multiple = getattr(getattr(field, "widget", None), "allow_multiple_selected", False)
        fields[name] = form.data.getlist(key) if is_multiple and hasattr(form.data, "getlist") else form.data.get(key)
    return fields


def _flatten(data: Any) -> Mapping[str, Any]:
    return {name: data[name] for name in data}


class DelegationForm(forms.Form):
    """The form that delegates a human task: the login name of the recipient (``to``), and a reason."""

    to = forms.CharField(
        max_length=_MAX_NAME_LENGTH, label=gettext_lazy("To"), label_suffix="",
        help_text=gettext_lazy("The username with which that person signs in."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off", "spellcheck": "false"}),
    )  # fmt: skip
    reason = NoteFormField(
        required=False, label=gettext_lazy("Reason"), label_suffix="",
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )  # fmt: skip

    def clean_to(self) -> Person | str:
        """Return the user with the login name ``to``, or the name itself if no user has it.

        There is no error for an unknown name, which would reveal which names exist. The operation ``Delegate`` refuses
        it in the same words as a user who may not decide.
        """
        # An error here would reveal which names exist: Delegate refuses an unknown name and a user in the same words.
        return find_user(self.cleaned_data["to"])
