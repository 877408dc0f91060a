"""The addresses of the REST interface: ``path("api/", include("temporalex_django.rest.urls"))``.

With a view set of your own, write ``include((routes(OurRuns), "runs"))``. That also routes bulk jobs and human tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

from django.db import transaction
from django.http import HttpResponse, HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.urls import URLPattern, path
from rest_framework import serializers as fields
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.conf import read
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.operator_action import OperatorRunAction
from temporalex_django.rest.background_tasks import TASK_ROUTES
from temporalex_django.rest.base import APP_NAME, ContractViewSet
from temporalex_django.rest.bulk import BulkViewSet
from temporalex_django.rest.fleet import OutboxViewSet, QueueViewSet, SwitchViewSet, TypeViewSet, WorkerViewSet
from temporalex_django.rest.human_tasks import HumanTaskViewSet
from temporalex_django.rest.requests import Contract, with_contract
from temporalex_django.rest.schedules import ScheduleSlotViewSet, ScheduleViewSet
from temporalex_django.rest.views import InstanceViewSet

# --- root -------------------------------------------------------------------------------------------------------------
#
# The root of the REST interface: the URLs of its resources, and the OpenAPI description.


#: Names of the addresses that list resources.
RESOURCES = (
    "instances",
    "human-tasks",
    "tasks",
    "bulk",
    "schedules",
    "types",
    "workers",
    "queues",
    "switches",
    "outbox",
)
#: True if the package that describes the addresses is installed.
HAS_OPENAPI = find_spec("drf_spectacular") is not None
_VERBS = ("get", "post", "put", "patch", "delete")


class RootOut(fields.Serializer[Any]):
    """The addresses of the resources of the REST interface, by name.

    ``openapi`` exists if drf-spectacular is installed.
    """

    instances = fields.URLField()
    human_tasks = fields.URLField()
    tasks = fields.URLField()
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
    from temporalex_django.rest.openapi import document  # noqa: PLC0415 - it needs drf-spectacular

    return document(urlpatterns)


def _operation_rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for address, methods in document["paths"].items():
        for verb in _VERBS:
            if (operation := methods.get(verb)) is not None:
                query = [
                    parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"
                ]
                yield {"verb": verb.upper(), "path": address, "summary": operation.get("summary", ""), "query": query}


app_name = APP_NAME
_RUN_PATH = "instances/<str:id>/"
_RUN_ROUTES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("instances/", "instances", {"get": "list", "post": "create"}),
    (_RUN_PATH, "instance", {"get": "retrieve"}),
    (f"{_RUN_PATH}events/", "events", {"get": "events"}),
    (f"{_RUN_PATH}timeline/", "timeline", {"get": "timeline"}),
    (f"{_RUN_PATH}result/", "result", {"get": "result"}),
    (f"{_RUN_PATH}children/", "children", {"get": "children"}),
    (f"{_RUN_PATH}activities/", "activities", {"get": "activities"}),
    (f"{_RUN_PATH}signals/<str:name>/", "signal", {"post": "signal"}),
    (f"{_RUN_PATH}updates/<str:name>/", "update", {"post": "send_update", "get": "outcome"}),
    (f"{_RUN_PATH}queries/<str:name>/", "query", {"post": "query"}),
    (f"{_RUN_PATH}resume/", "resume", {"post": "resume"}),
    (f"{_RUN_PATH}messages/", "messages", {"get": "messages"}),
    (f"{_RUN_PATH}operations/", "operations", {"get": "operations"}),
    ("overview/", "overview", {"get": "overview"}),
    ("failures/", "failures", {"get": "failures"}),
)
_TARGET_PATHS = {
    "run": _RUN_PATH,
    "activity": f"{_RUN_PATH}activities/<int:seq>/",
    "timer": f"{_RUN_PATH}timers/<int:seq>/",
}
_BULK_ROUTES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("bulk/", "bulk", {"get": "list", "post": "create"}),
    ("bulk/<str:job>/", "bulk-job", {"get": "retrieve"}),
    ("bulk/<str:job>/items/", "bulk-items", {"get": "items"}),
    ("bulk/<str:job>/stop/", "stop_bulk", {"post": "stop"}),
    ("bulk/<str:job>/resume/", "resume_bulk", {"post": "resume"}),
)
_TASK_PATH = "human-tasks/<str:task>/"
_TASK_ROUTES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("human-tasks/", "human-tasks", {"get": "list"}),
    (_TASK_PATH, "human-task", {"get": "retrieve"}),
    (f"{_TASK_PATH}claim/", "claim", {"post": "claim"}),
    (f"{_TASK_PATH}release/", "release", {"post": "release"}),
    (f"{_TASK_PATH}delegate/", "delegate", {"post": "delegate"}),
    (f"{_TASK_PATH}decide/", "decide", {"post": "decide"}),
)
_SCHEDULE_PATH = "schedules/<str:schedule>/"
_OTHER_ROUTES: tuple[tuple[str, str, type[ContractViewSet], dict[str, str]], ...] = (
    ("", "root", RootViewSet, {"get": "list"}),
    *((("openapi/", "openapi", RootViewSet, {"get": "openapi"}),) if HAS_OPENAPI else ()),
    *TASK_ROUTES,
    ("workers/", "workers", WorkerViewSet, {"get": "list"}),
    ("workers/lost/", "lost_workers", WorkerViewSet, {"get": "lost"}),
    ("workers/<str:worker>/drain/", "drain_worker", WorkerViewSet, {"post": "drain"}),
    ("workers/<str:worker>/undrain/", "undrain_worker", WorkerViewSet, {"post": "undrain"}),
    ("queues/", "queues", QueueViewSet, {"get": "list"}),
    ("switches/", "switches", SwitchViewSet, {"get": "list"}),
    ("outbox/", "outbox", OutboxViewSet, {"get": "list"}),
    ("outbox/<str:message>/again/", "send_again", OutboxViewSet, {"post": "send_again"}),
    ("outbox/<str:message>/drop/", "drop_outgoing", OutboxViewSet, {"post": "drop"}),
    ("switches/off/", "switch_off", SwitchViewSet, {"post": "off"}),
    ("switches/on/", "switch_on", SwitchViewSet, {"post": "on"}),
    ("schedules/", "schedules", ScheduleViewSet, {"get": "list", "post": "create"}),
    (_SCHEDULE_PATH, "schedule", ScheduleViewSet, {"get": "retrieve", "put": "change", "delete": "destroy"}),
    (f"{_SCHEDULE_PATH}slots/", "slots", ScheduleSlotViewSet, {"get": "slots"}),
    (f"{_SCHEDULE_PATH}pause/", "pause_schedule", ScheduleViewSet, {"post": "pause"}),
    (f"{_SCHEDULE_PATH}unpause/", "unpause_schedule", ScheduleViewSet, {"post": "unpause"}),
    (f"{_SCHEDULE_PATH}trigger/", "trigger_schedule", ScheduleViewSet, {"post": "trigger"}),
    (
        f"{_SCHEDULE_PATH}backfill/",
        "backfill_schedule",
        ScheduleViewSet,
        {"get": "preview_backfill", "post": "backfill"},
    ),
    (f"{_SCHEDULE_PATH}backfill/stop/", "stop_backfill", ScheduleViewSet, {"post": "stop_backfill"}),
    # No address below the schedules, where a schedule of that name would be hidden.
    ("schedule-preview/", "schedule-preview", ScheduleViewSet, {"post": "preview"}),
    ("types/", "types", TypeViewSet, {"get": "list"}),
    ("types/<str:name>/", "type", TypeViewSet, {"get": "retrieve"}),
)


def routes(viewset: type[InstanceViewSet], *, bulk: type[BulkViewSet] = BulkViewSet) -> list[URLPattern]:
    """Return the URL patterns of a view set of runs, and of the bulk jobs and human tasks of its runs.

    ``viewset`` may be your subclass of ``InstanceViewSet``: its ``get_queryset`` restricts the jobs and tasks, too.
    ``bulk`` is the view set of the bulk jobs.
    """
    return [
        *(path(route, _build_view(viewset, actions), name=name) for route, name, actions in _RUN_ROUTES),
        *(
            path(
                f"{_TARGET_PATHS[action.target_kind]}{_path_segment(action)}/",
                _build_view(viewset, {"post": "operate"}, steering=action),
                name=name,
            )
            # Every operator action has an address: a new action needs no code here.
            for name, action in STEERING.items()
        ),
        *(
            path(
                f"{_RUN_PATH}messages/<str:message>/{name}/",
                _build_view(viewset, {"post": "operate"}, steering=STEERING[name]),
                name=f"{name}_message",
            )
            # The same actions under the address of the message, whose id comes from the path instead of the body.
            for name in ("redeliver", "discard")
        ),
        *(
            path(route, _build_view(bulk, actions, run_views=viewset), name=name)
            for route, name, actions in _BULK_ROUTES
        ),
        *(
            path(route, _build_view(HumanTaskViewSet, actions, run_views=viewset), name=name)
            for route, name, actions in _TASK_ROUTES
        ),
    ]


def _path_segment(action: type[OperatorRunAction[Any]]) -> str:
    """Return the last part of a URL. Words have hyphens between them if it is about a whole run."""
    if action.target_kind == "run":
        return action.name.replace("_", "-")
    return action.name


def _build_view(
    viewset: type[ContractViewSet], actions: dict[str, str], **options: Any
) -> Callable[..., HttpResponseBase]:
    """Return a view exempt from ``ATOMIC_REQUESTS``: it waits for outcomes with no transaction open."""
    # A waiting request inside a transaction would hold its locks, and could not see what others commit.
    view: Callable[..., HttpResponseBase] = viewset.as_view({**actions}, **options)
    transaction.non_atomic_requests(using=read()[0].DATABASE)(view)  # it sets an attribute of the view
    return view


urlpatterns = [
    *routes(InstanceViewSet),
    *(path(route, _build_view(viewset, actions), name=name) for route, name, viewset, actions in _OTHER_ROUTES),
]
