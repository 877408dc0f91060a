"""The OpenAPI 3.1 description of the REST interface, made from the contracts of its routes.

It needs the extra ``openapi``.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers as fields

from temporalex_django.rest.requests import IDEMPOTENCY_KEY, MEDIA_TYPE, Contract, SerializerType
from temporalex_django.rest.serializers import Base, ProblemOut, VariantsOut

_SETTINGS = {"OAS_VERSION": "3.1.1", "TITLE": "Runs", "VERSION": "1", "POSTPROCESSING_HOOKS": []}
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def document(patterns: list[Any]) -> dict[str, Any]:
    """Return the OpenAPI description of these URL patterns.

    The ``SPECTACULAR_SETTINGS`` of the project do not apply to it.
    """
    with patched_settings(_SETTINGS):
        schema: dict[str, Any] = SchemaGenerator(patterns=patterns).get_schema(request=None, public=True)  # type: ignore[no-untyped-call] # it is not typed
    return schema


class ContractSchema(AutoSchema):
    """The drf-spectacular schema of a method, made from its contract.

    The project's own OpenAPI description uses it, too.
    """

    view: Any

    @property
    def contract(self) -> Contract:
        contract: Contract = self.view.contract
        return contract

    def get_operation_id(self) -> str:
        view = self.view
        action_class = getattr(view, "steering", None) if view.action == "operate" else None
        # Many addresses share the method ``operate``, so their ids come from their actions.
        prefix_parts = self.path.strip("/").partition("instances")
        resource = "runs" if prefix_parts[1] else self.path.strip("/").partition("/{")[0].rpartition("/")[2] or "root"
        name = action_class.name if action_class else view.action
        # One operation may have an address below the run and one below the message: ids must differ by themselves.
        return f"{resource}_{name}_message" if "{message}" in prefix_parts[2] else f"{resource}_{name}"

    def get_summary(self) -> str:
        return self.contract.summary

    def get_description(self) -> str:  # type: ignore[override] # as its base has it
        # The docstrings of the methods are for developers; the summary of the contract is for clients.
        return ""

    def get_tags(self) -> list[str]:
        return [self.get_operation_id().partition("_")[0]]

    def get_override_parameters(self) -> Any:
        query, declared = [], {parameter.name: parameter for parameter in self.contract.query}
        # A subclass of the view set may have filters that the contract does not know.
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
            # A cached class for each page: drf-spectacular warns of two classes with one name.
            answers[code] = (
                page_serializer(serializer_class)
                if serializer_class is not None and self.contract.several
                else serializer_class
            )
        return {**answers, ("default", MEDIA_TYPE): ProblemOut}

    def _is_list_view(self, serializer: Any = None) -> bool:
        # The contract says which responses are pages: drf-spectacular must not guess by the name of the method.
        return False

    def _resolve_path_parameters(self, variables: list[str]) -> list[dict[str, Any]]:
        # Drf-spectacular would look the names up on the model, where most of them do not exist.
        return [
            {
                "in": "path",
                "name": name,
                "schema": {"type": "integer" if name == "seq" else "string"},
                "required": True,
            }
            for name in variables
        ]


class VariantsExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call] # it is not typed
    """Extension of drf-spectacular that describes a ``VariantsOut`` as ``anyOf`` of its variants.

    They are the run or schedule, and an object with only its names. It is not ``oneOf``, because the first variant has
    the fields of the second as well.
    """

    target_class = VariantsOut
    match_subclasses = True

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        way: Any = direction  # the stubs know two words
        refs = [auto_schema.resolve_serializer(variant, way).ref for variant in self.target.variants]
        return {"anyOf": refs, "description": inspect.getdoc(self.target)}


@cache
def page_serializer(serializer_class: SerializerType) -> SerializerType:
    """Return the serializer of a page of a list, with ``next``, ``previous`` and the items in ``results``."""
    members = {
        "next": fields.CharField(allow_null=True),
        "previous": fields.CharField(allow_null=True, required=False),
        "results": serializer_class(many=True),
    }
    return type(f"{serializer_class.__name__.removesuffix('Out')}Page", (Base,), members)
