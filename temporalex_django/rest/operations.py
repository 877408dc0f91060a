"""Operator actions over REST: the serializers of their bodies, and the operations that are possible on a run."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as fields

from temporalex_django.authoring.authorization import Person
from temporalex_django.models import Instance
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction
from temporalex_django.rest.serializers import ReasonBody

_FIELD_CLASSES: dict[type, type[fields.Field[Any, Any, Any, Any]]] = {
    int: fields.IntegerField,
    bool: fields.BooleanField,
    float: fields.FloatField,
    object: fields.JSONField,
}


def body_class_of(action: type[OperatorRunAction[Any]]) -> type[ReasonBody]:
    """Return the serializer for the body of an operation: ``reason`` and a field for each of its inputs.

    The class is named after the operation.
    """
    class_name = "".join(word.capitalize() for word in action.name.split("_"))
    # A class for each action, so that OpenAPI has a schema with a name of its own.
    return type(
        f"{class_name}Body",
        (ReasonBody,),
        {action_input.name: _build_field(action_input) for action_input in action.inputs},
    )


def _build_field(action_input: Input) -> fields.Field[Any, Any, Any, Any]:
    options: dict[str, Any] = {
        "required": action_input.required,
        "label": action_input.label,
        "help_text": action_input.help,
    }
    if action_input.choices:
        return fields.ChoiceField(choices=action_input.choices, **options)
    if action_input.kind is str:
        # Inputs may be ids and payload texts, which must stay as they are.
        return fields.CharField(trim_whitespace=False, allow_blank=True, **options)
    if action_input.kind is object:
        return fields.JSONField(allow_null=True, **options)
    return _FIELD_CLASSES[action_input.kind](**options)


def describe_operation(action: type[OperatorRunAction[Any]], run: Instance, user: Person) -> dict[str, Any]:
    """Return the fields of ``OperationOut``, by name, for an operation on a run, as this user may perform it.

    They say what the operation would do, and why it is impossible now or refused to the user.
    """
    return {
        "name": action.name,
        "of": action.target_kind,
        "effect": action.effect_text(run),
        "destructive": action.destructive,
        "why_not": _refusal_text(action, run, user) or action.refusal(run),
    }


def _refusal_text(action: type[OperatorRunAction[Any]], run: Instance, user: Person) -> str | None:
    refused_operation = action.refused_operation(user, run)
    if refused_operation is None:
        return None
    # The class cannot be started over REST at all, so there is no permission to name.
    if refused_operation.permission is None:
        return f"You cannot start {refused_operation.workflow} here: it is internal, or an old version."
    return f"This requires the permission {refused_operation.permission}."
