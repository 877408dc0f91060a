"""The root of the REST interface: the URLs of its resources, and the OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

from django.http import HttpResponse
from django.template.response import SimpleTemplateResponse
from rest_framework import serializers as fields
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.rest.base import ContractViewSet
from temporalex_django.rest.contract import Contract, with_contract

#: Names of the addresses that list resources.
RESOURCES = ("instances", "human-tasks", "bulk", "schedules", "types", "workers", "queues", "switches", "outbox")
#: True if the package that describes the addresses is installed.
HAS_OPENAPI = find_spec("drf_spectacular") is not None
_VERBS = ("get", "post", "put", "patch", "delete")


class RootOut(fields.Serializer[Any]):
    """The addresses of the resources of the REST interface, by name.

    ``openapi`` exists if drf-spectacular is installed.
    """

    instances = fields.URLField()
    human_tasks = fields.URLField()
    bulk = fields.URLField()
    schedules = fields.URLField()
    types = fields.URLField()
    workers = fields.URLField()
    queues = fields.URLField()
    switches = fields.URLField()
    outbox = fields.URLField()
    openapi = fields.URLField(required=False)


def _open_contract(summary: str, answer: Any) -> Contract:
    """Return the contract of a route that every user who is logged in may read."""
    return Contract(operation="view", permission="", summary=summary, answers={200: answer})


class RootViewSet(ContractViewSet):
    """The root address of the REST interface, which names all others, and its OpenAPI description.

    It needs no permission besides a login: each address that it names checks its own.
    """

    @with_contract(_open_contract("The resources", RootOut))
    def list(self, request: Request) -> Response:
        """Return the URLs of the resources of the REST interface, by name. It queries no table."""
        names = (*RESOURCES, "openapi") if HAS_OPENAPI else RESOURCES
        return Response({name.replace("-", "_"): self._url_for(name) for name in names})

    @with_contract(_open_contract("This description", None))
    def openapi(self, request: Request) -> HttpResponse:
        """Return the OpenAPI 3.1 description of the REST interface as JSON, or as a page if a browser asks for one."""
        # The page is rendered here, since the negotiation of this package offers JSON alone.
        if "text/html" in request.headers.get("Accept", ""):
            context = {"operations": [*_operation_rows(_openapi_document())], "address": self._url_for("openapi")}
            return SimpleTemplateResponse("temporalex_django/rest/openapi.html", context)
        return Response(_openapi_document())


# Made once: the addresses do not change while the process lives.
@cache
def _openapi_document() -> dict[str, Any]:
    from temporalex_django.rest import urls  # noqa: PLC0415 - it routes this module
    from temporalex_django.rest.openapi import document  # noqa: PLC0415 - it needs drf-spectacular

    return document(urls.urlpatterns)


def _operation_rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path, methods in document["paths"].items():
        for verb in _VERBS:
            if (operation := methods.get(verb)) is not None:
                query = [
                    parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"
                ]
                yield {"verb": verb.upper(), "path": path, "summary": operation.get("summary", ""), "query": query}
