"""Forms of operations, and the reasons why a user may not perform one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.access import Operation, policy
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.forms.payload_forms import NOTHING, JSONBox, NoteFormField, TokenForm
from temporalex_django.models import Instance
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction

_INPUT_PREFIX = "input_"


class OperatorActionForm(TokenForm):
    """The form of an operation on a run: the reason, and a field for each input of the operation."""

    reason = NoteFormField(
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Shown in the audit log."),
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
    )

    def __init__(
        self, *args: Any, action: type[OperatorRunAction[Any]], inputs: Sequence[Input] | None = None, **kwargs: Any
    ) -> None:
        """Build the form of the operation ``action``, with a field for each of ``inputs``.

        By default these are all inputs of the operation; some users may give only some of them.
        """
        super().__init__(*args, **kwargs)
        # Set by OperatorActionView.act when the action created a run, for the redirect.
        self.new_run_id: str | None = None
        self.fields["reason"].required = action.destructive
        self.inputs = action.inputs if inputs is None else inputs
        for action_input in self.inputs:
            self.fields[input_name(action_input)] = _form_field(action_input)

    @property
    def input_values(self) -> dict[str, Any]:
        """The values of the inputs by name, without those that were left empty."""
        # False and 0 are values; `in` compares None and "" only. NOTHING is the value of an empty JSON box.
        field_values = {action_input.name: self.cleaned_data[input_name(action_input)] for action_input in self.inputs}
        return {name: value for name, value in field_values.items() if value is not NOTHING and value not in (None, "")}


def input_name(action_input: Input) -> str:
    """Return the name of the form field that asks for an input of an operation."""
    # With a prefix, an input cannot collide with the form's own fields, "reason" and "token".
    return _INPUT_PREFIX + action_input.name


def _form_field(action_input: Input) -> forms.Field:
    options: dict[str, Any] = {"label": action_input.label, "required": action_input.required}
    if action_input.help:
        options["help_text"] = action_input.help
    if action_input.choices:
        return forms.ChoiceField(
            choices=[*([] if action_input.required else [("", "–")]), *((c, c) for c in action_input.choices)],
            **options,
        )
    if action_input.kind is bool:
        return forms.BooleanField(**{**options, "required": False})
    kinds: dict[type, type[forms.Field]] = {str: forms.CharField, int: forms.IntegerField, float: forms.FloatField}
    return kinds.get(action_input.kind, JSONBox)(**options)


class ReasonForm(forms.Form):
    """A form that asks for the reason of an operation, which the audit log stores."""

    reason = NoteFormField(
        required=False, label=gettext_lazy("Reason"), label_suffix="",
        help_text=gettext_lazy("Shown in the audit log."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )  # fmt: skip


def permission_error(action: type[OperatorRunAction[Any]], user: Person, run: Instance | None = None) -> str | None:
    """Return the sentence that says why the user may not perform the operation, or None if they may.

    ``run`` is the run that they want to operate; None asks about runs in general.
    """
    operation = action.refused_operation(user, run)
    if operation is None:
        return None
    # No permission would help: the class cannot be started from outside.
    if operation.permission is None:
        return _("You cannot create runs of this class from here: it is internal, or an old version.")
    names = {f"{APP}.{code}": name for code, name in Instance._meta.permissions}  # noqa: SLF001 - Django documents it
    permission_name = names.get(operation.permission, operation.permission)
    return _("You may not do that: this requires the permission “%(wanted)s”.") % {"wanted": permission_name}


def can_start_bulk(user: Person) -> bool:
    """Return True if the user may start bulk jobs.

    The operation of the job needs its own permission in addition.
    """
    operation = Operation(action=StartBulk.name, permission=f"{APP}.{StartBulk.permission}")
    return policy().allows(user, operation)


def bulk_permission_error() -> str:
    """Return the message for a user who may not start bulk jobs, which names the missing permission."""
    names = dict(Instance._meta.permissions)  # noqa: SLF001 - Django documents it
    permission_name = names[StartBulk.permission]
    return _("You may not do that: this requires the permission “%(wanted)s”.") % {"wanted": permission_name}


def bulk_action_error(action: type[OperatorRunAction[Any]], user: Person) -> str | None:
    """Return the sentence that says why the user may not perform the operation on many runs, or None if they may."""
    if can_start_bulk(user):
        return permission_error(action, user)
    return bulk_permission_error()


def superseded_error(run: Instance) -> str | None:
    """Return the sentence that says that this run cannot be operated, because a later run of its chain followed it.

    Returns None for the newest run of a chain.
    """
    if run.chain.run_id == run.pk:
        return None
    return _("This is an earlier run of its chain. Go to the newest run.")
