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

from temporalex_django.rest.contract import KEY, Contract, Form
from temporalex_django.rest.problems import MEDIA_TYPE
from temporalex_django.rest.serializers import Base, ProblemOut, RunOut

_SETTINGS = {"OAS_VERSION": "3.1.1", "TITLE": "Runs", "VERSION": "1", "POSTPROCESSING_HOOKS": []}
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def document(patterns: list[Any]) -> dict[str, Any]:
    """The description of these addresses; the project's ``SPECTACULAR_SETTINGS`` do not count in it."""
    with patched_settings(_SETTINGS):
        found: dict[str, Any] = SchemaGenerator(patterns=patterns).get_schema(request=None, public=True)  # type: ignore[no-untyped-call] # it is not typed
    return found


class ContractSchema(AutoSchema):
    """Says of an operation what its contract says, in a project's own description, too."""

    view: Any

    @property
    def said(self) -> Contract:
        contract: Contract = self.view.contract
        return contract

    def get_operation_id(self) -> str:
        view = self.view
        steering = getattr(view, "steering", None) if view.action == "steer" else None
        first = self.path.strip("/").partition("instances")
        kind = "runs" if first[1] else self.path.strip("/").partition("/{")[0].rpartition("/")[2]
        return f"{kind}_{steering.name if steering else view.action}"

    def get_summary(self) -> str:
        return self.said.summary

    def get_description(self) -> str:  # type: ignore[override] # as its base has it
        return ""

    def get_tags(self) -> list[str]:
        return [self.get_operation_id().partition("_")[0]]

    def get_override_parameters(self) -> Any:
        query, known = [], {one.name: one for one in self.said.query}
        for name in self.view.parameters():
            one = known.get(name)
            query.append(
                OpenApiParameter(
                    name,
                    _TYPES.get(one.kind, str) if one else str,
                    description=one.help if one else "",
                    required=bool(one and one.required),
                )
            )
        headers = [name for name, taken in (("If-Match", self.said.matched), (KEY, self.said.keyed)) if taken]
        return [*query, *(OpenApiParameter(name, str, OpenApiParameter.HEADER) for name in headers)]

    def get_request_serializer(self) -> Any:
        return self.said.body

    def get_response_serializers(self) -> Any:
        answers: dict[Any, Any] = {}
        for code, form in self.said.answers.items():
            answers[code] = page_of(form) if form is not None and self.said.several else form
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


class RunForms(OpenApiSerializerExtension):  # type: ignore[no-untyped-call] # it is not typed
    """The whole run, or its names: whatever is whole has the names, too, so that it is not exactly one of them."""

    target_class = RunOut

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        refs = [auto_schema.resolve_serializer(form, direction).ref for form in RunOut.forms]  # type: ignore[arg-type] # the stubs know two words
        return {"anyOf": refs, "description": RunOut.__doc__}


@cache
def page_of(form: Form) -> Form:
    """A page of what ``form`` shows."""
    members = {
        "next": fields.CharField(allow_null=True),
        "previous": fields.CharField(allow_null=True, required=False),
        "results": form(many=True),
    }
    return type(f"{form.__name__.removesuffix('Out')}Page", (Base,), members)
