"""What operators do to runs: bodies of requests, and what can be done now, from what each action says of itself."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as fields

from temporalex_django.actions.steering import Input, OperatorRunAction
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import Instance
from temporalex_django.rest.serializers import ReasonBody

_KINDS: dict[type, type[fields.Field[Any, Any, Any, Any]]] = {
    int: fields.IntegerField,
    bool: fields.BooleanField,
    float: fields.FloatField,
    object: fields.JSONField,
}


def body_of(action: type[OperatorRunAction[Any]]) -> type[ReasonBody]:
    """``reason``, and the inputs of the action; named after it."""
    name = "".join(part.capitalize() for part in action.name.split("_"))
    return type(f"{name}Body", (ReasonBody,), {one.name: _field(one) for one in action.inputs})


def _field(said: Input) -> fields.Field[Any, Any, Any, Any]:
    common: dict[str, Any] = {"required": said.required, "label": said.label, "help_text": said.help}
    if said.choices:
        return fields.ChoiceField(choices=said.choices, **common)
    if said.kind is str:
        return fields.CharField(trim_whitespace=False, allow_blank=True, **common)
    if said.kind is object:
        return fields.JSONField(allow_null=True, **common)
    return _KINDS[said.kind](**common)


def operation_of(action: type[OperatorRunAction[Any]], run: Instance, user: Person) -> dict[str, Any]:
    """As ``OperationOut`` has it."""
    return {
        "name": action.name,
        "of": action.target_kind,
        "effect": action.effect_text(run),
        "destructive": action.destructive,
        "why_not": _not_his(action, run, user) or action.why_not(run),
    }


def _not_his(action: type[OperatorRunAction[Any]], run: Instance, user: Person) -> str | None:
    refused = action.refused_operation(user, run)
    if refused is None:
        return None
    if refused.permission is None:
        return f"{refused.workflow} is not started from here: it is internal, or an old version."
    return f"That takes the permission {refused.permission}."
