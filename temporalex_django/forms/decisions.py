"""The form in which somebody decides a human task: which outcome, why, and what its own form asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.actions.base import Actor
from temporalex_django.actions.decide import Decide
from temporalex_django.actions.deciding import find_user
from temporalex_django.authoring.authorization import Person
from temporalex_django.errors import (
    ActionNotPermitted,
    HumanTaskClosed,
    HumanTaskNotFound,
    TemporalexError,
)
from temporalex_django.forms.human_task_form import HumanTaskFormSpec, form_spec_of
from temporalex_django.forms.payload_forms import PayloadForm, TokenForm
from temporalex_django.models import HumanTask
from temporalex_django.present.formatting import capitalize, humanize_name

#: Of the fields that the task's own form has.
BODY_PREFIX = "form"
_MAX_COMMENT_LENGTH = 2000
_MAX_NAME_LENGTH = 150


def outcome_label(outcome: str) -> str:
    """What a person reads on the choice."""
    labels = {"approved": _("Approve"), "rejected": _("Reject")}
    return labels.get(outcome) or capitalize(humanize_name(outcome))


class DecisionForm(TokenForm):
    """``body`` is the form of the task itself, if it has one; ``is_valid`` asks both.

    ``form_digest`` is the digest of the form that whoever posts has looked at. Raises what ``form_spec_of`` raises.
    """

    outcome = forms.ChoiceField(widget=forms.RadioSelect, label=gettext_lazy("Decision"))
    comment = forms.CharField(
        required=False, max_length=_MAX_COMMENT_LENGTH, label=gettext_lazy("Comment"), strip=True,
        help_text=gettext_lazy("Stands in the history, beside your name."),
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
    )  # fmt: skip
    form_digest = forms.CharField(max_length=100, required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, task: HumanTask, **kwargs: Any) -> None:
        self.task = task
        self.form_spec = form_spec_of(task)
        kwargs["initial"] = {"form_digest": self.form_spec.digest, **(kwargs.get("initial") or {})}
        super().__init__(data, **kwargs)
        self._outcome_field().choices = [(outcome, outcome_label(outcome)) for outcome in task.outcomes]
        self.body = build_body_form(self.form_spec, data, auto_id=self.auto_id)

    def _outcome_field(self) -> forms.ChoiceField:
        field = self.fields["outcome"]
        assert isinstance(field, forms.ChoiceField)
        return field

    def is_valid(self) -> bool:
        """Of both, so that all that is wrong is said at once."""
        is_own_valid = super().is_valid()
        return (self.body is None or self.body.is_valid()) and is_own_valid

    @property
    def payload(self) -> Any:
        """What the task's own form was filled in with, as JSON; None where there is none."""
        if isinstance(self.body, PayloadForm):
            return self.body.payload
        return None if self.body is None else submitted_fields(self.body)

    def decide(self, *, by: Actor) -> bool:
        """Whether it is decided; else the form says why not, and can be posted again.

        Raises ``ActionNotPermitted``, ``HumanTaskClosed`` and ``HumanTaskNotFound``: then nothing is left to fill in.
        """
        if not self.is_valid():
            return False
        inputs = {name: self.cleaned_data[name] for name in ("outcome", "comment")}
        decide = Decide(self.task, data=self.payload, form=self.cleaned_data["form_digest"] or None, by=by, **inputs)
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
        """What is posted next was seen in today's form."""
        self.renew()
        self.data = {**self.data, self.add_prefix("form_digest"): self.form_spec.digest}


def build_body_form(form_spec: HumanTaskFormSpec, data: Any, **kwargs: Any) -> forms.Form | None:
    """A form for what the task asks for; bound where there are data."""
    if form_spec.kind == "schema":
        bound = None if data is None else {**_flatten(data), f"{BODY_PREFIX}-token": data.get("token", "")}
        return PayloadForm(bound, annotation=form_spec.type, prefix=BODY_PREFIX, **kwargs)
    if form_spec.kind == "django":
        form: forms.Form = form_spec.type(data, prefix=BODY_PREFIX, label_suffix="", **kwargs)
        return form
    return None


def submitted_fields(form: forms.BaseForm) -> dict[str, Any]:
    """What stands in a bound form, by its names without the prefix: a text, or a list where several can be chosen."""
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
    """To whom somebody hands a task on; ``to`` becomes the user."""

    to = forms.CharField(
        max_length=_MAX_NAME_LENGTH, label=gettext_lazy("To"), label_suffix="",
        help_text=gettext_lazy("The name with which that person signs in."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off", "spellcheck": "false"}),
    )  # fmt: skip
    reason = forms.CharField(
        required=False, max_length=_MAX_COMMENT_LENGTH, label=gettext_lazy("Reason"), label_suffix="",
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )  # fmt: skip

    def clean_to(self) -> Person | str:
        """A name that nobody has stays one: ``Delegate`` refuses it as it refuses others."""
        return find_user(self.cleaned_data["to"])
