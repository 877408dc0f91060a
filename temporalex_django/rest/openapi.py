"""The REST face as OpenAPI 3.1, made of the contracts of its addresses. Takes the extra ``openapi``."""

from __future__ import annotations

from functools import cache
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers as fields

from temporalex_django.rest.contract import IDEMPOTENCY_KEY, Contract, SerializerType
from temporalex_django.rest.problems import MEDIA_TYPE
from temporalex_django.rest.serializers import Base, ProblemOut, RunOut

_SETTINGS = {"OAS_VERSION": "3.1.1", "TITLE": "Runs", "VERSION": "1", "POSTPROCESSING_HOOKS": []}
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def document(patterns: list[Any]) -> dict[str, Any]:
    """The description of these addresses; the project's ``SPECTACULAR_SETTINGS`` do not count in it."""
    with patched_settings(_SETTINGS):
        schema: dict[str, Any] = SchemaGenerator(patterns=patterns).get_schema(request=None, public=True)  # type: ignore[no-untyped-call] # it is not typed
    return schema


class ContractSchema(AutoSchema):
    """Says of an operation what its contract says, in a project's own description, too."""

    view: Any

    @property
    def contract(self) -> Contract:
        contract: Contract = self.view.contract
        return contract

    def get_operation_id(self) -> str:
        view = self.view
        action_class = getattr(view, "steering", None) if view.action == "operate" else None
        prefix_parts = self.path.strip("/").partition("instances")
        resource = "runs" if prefix_parts[1] else self.path.strip("/").partition("/{")[0].rpartition("/")[2]
        return f"{resource}_{action_class.name if action_class else view.action}"

    def get_summary(self) -> str:
        return self.contract.summary

    def get_description(self) -> str:  # type: ignore[override] # as its base has it
        return ""

    def get_tags(self) -> list[str]:
        return [self.get_operation_id().partition("_")[0]]

    def get_override_parameters(self) -> Any:
        query, declared = [], {parameter.name: parameter for parameter in self.contract.query}
        for name in self.view.parameter_names():
            parameter = declared.get(name)
            query.append(
                OpenApiParameter(
                    name,
                    _TYPES.get(parameter.kind, str) if parameter else str,
                    description=parameter.help if parameter else "",
                    required=bool(parameter and parameter.required),
                )
            )
        headers = [
            name
            for name, is_accepted in (("If-Match", self.contract.matched), (IDEMPOTENCY_KEY, self.contract.keyed))
            if is_accepted
        ]
        return [*query, *(OpenApiParameter(name, str, OpenApiParameter.HEADER) for name in headers)]

    def get_request_serializer(self) -> Any:
        return self.contract.body

    def get_response_serializers(self) -> Any:
        answers: dict[Any, Any] = {}
        for code, serializer_class in self.contract.answers.items():
            answers[code] = (
                page_serializer(serializer_class)
                if serializer_class is not None and self.contract.several
                else serializer_class
            )
        return {**answers, ("default", MEDIA_TYPE): ProblemOut}

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False

    def _resolve_path_parameters(self, variables: list[str]) -> list[dict[str, Any]]:
        return [
            {
                "in": "path",
                "name": name,
                "schema": {"type": "integer" if name == "seq" else "string"},
                "required": True,
            }
            for name in variables
        ]


class RunOutExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call] # it is not typed
    """The whole run, or its names: whatever is whole has the names, too, so that it is not exactly one of them."""

    target_class = RunOut

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        refs = [auto_schema.resolve_serializer(serializer_class, direction).ref for serializer_class in RunOut.variants]  # type: ignore[arg-type] # the stubs know two words
        return {"anyOf": refs, "description": RunOut.__doc__}


@cache
def page_serializer(serializer_class: SerializerType) -> SerializerType:
    """A page of what ``serializer_class`` shows."""
    members = {
        "next": fields.CharField(allow_null=True),
        "previous": fields.CharField(allow_null=True, required=False),
        "results": serializer_class(many=True),
    }
    return type(f"{serializer_class.__name__.removesuffix('Out')}Page", (Base,), members)
