"""``path("api/", include("temporalex_django.rest.urls"))``.

With a view set of the host's own ``include((routes(OurRuns), "runs"))``: bulk jobs are routed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.http import HttpResponseBase
from django.urls import URLPattern, path

from temporalex_django.actions.registry import STEERING
from temporalex_django.actions.steering import OperatorRunAction
from temporalex_django.conf import read
from temporalex_django.rest.base import APP_NAME, ContractViewSet
from temporalex_django.rest.bulk import BulkViewSet
from temporalex_django.rest.cluster import QueueViewSet, TypeViewSet, WorkerViewSet
from temporalex_django.rest.human_tasks import HumanTaskViewSet
from temporalex_django.rest.root import IS_DESCRIBED, RootViewSet
from temporalex_django.rest.switches import SwitchViewSet
from temporalex_django.rest.views import InstanceViewSet

app_name = APP_NAME
_ONE = "instances/<str:id>/"
_ROUTES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("instances/", "instances", {"get": "list", "post": "create"}),
    (_ONE, "instance", {"get": "retrieve"}),
    (f"{_ONE}events/", "events", {"get": "events"}),
    (f"{_ONE}timeline/", "timeline", {"get": "timeline"}),
    (f"{_ONE}result/", "result", {"get": "result"}),
    (f"{_ONE}children/", "children", {"get": "children"}),
    (f"{_ONE}activities/", "activities", {"get": "activities"}),
    (f"{_ONE}signals/<str:name>/", "signal", {"post": "signal"}),
    (f"{_ONE}updates/<str:name>/", "update", {"post": "send_update", "get": "outcome"}),
    (f"{_ONE}queries/<str:name>/", "query", {"post": "query"}),
    (f"{_ONE}resume/", "resume", {"post": "resume"}),
    (f"{_ONE}messages/", "messages", {"get": "messages"}),
    (f"{_ONE}operations/", "operations", {"get": "operations"}),
)
_OF = {"run": _ONE, "activity": f"{_ONE}activities/<int:seq>/", "timer": f"{_ONE}timers/<int:seq>/"}
_BULK: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("bulk/", "bulk", {"get": "list", "post": "create"}),
    ("bulk/<str:job>/", "bulk-job", {"get": "retrieve"}),
    ("bulk/<str:job>/items/", "bulk-items", {"get": "items"}),
    ("bulk/<str:job>/stop/", "stop_bulk", {"post": "stop"}),
    ("bulk/<str:job>/resume/", "resume_bulk", {"post": "resume"}),
)
_TASK = "human-tasks/<str:task>/"
_TASKS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("human-tasks/", "human-tasks", {"get": "list"}),
    (_TASK, "human-task", {"get": "retrieve"}),
    (f"{_TASK}claim/", "claim", {"post": "claim"}),
    (f"{_TASK}release/", "release", {"post": "release"}),
    (f"{_TASK}delegate/", "delegate", {"post": "delegate"}),
    (f"{_TASK}decide/", "decide", {"post": "decide"}),
)
_OTHERS: tuple[tuple[str, str, type[ContractViewSet], dict[str, str]], ...] = (
    ("", "root", RootViewSet, {"get": "list"}),
    *((("openapi/", "openapi", RootViewSet, {"get": "openapi"}),) if IS_DESCRIBED else ()),
    ("workers/", "workers", WorkerViewSet, {"get": "list"}),
    ("workers/<str:worker>/drain/", "drain_worker", WorkerViewSet, {"post": "drain"}),
    ("workers/<str:worker>/undrain/", "undrain_worker", WorkerViewSet, {"post": "undrain"}),
    ("queues/", "queues", QueueViewSet, {"get": "list"}),
    ("switches/", "switches", SwitchViewSet, {"get": "list"}),
    ("switches/off/", "switch_off", SwitchViewSet, {"post": "off"}),
    ("switches/on/", "switch_on", SwitchViewSet, {"post": "on"}),
    ("types/", "types", TypeViewSet, {"get": "list"}),
    ("types/<str:name>/", "type", TypeViewSet, {"get": "retrieve"}),
)


def routes(viewset: type[InstanceViewSet], *, bulk: type[BulkViewSet] = BulkViewSet) -> list[URLPattern]:
    """The addresses of a view set, which may be a subclass, and of bulk jobs and human tasks of the runs it leaves."""
    return [
        *(path(route, _view(viewset, actions), name=name) for route, name, actions in _ROUTES),
        *(
            path(
                f"{_OF[action.target_kind]}{_address(action)}/",
                _view(viewset, {"post": "steer"}, steering=action),
                name=name,
            )
            for name, action in STEERING.items()
        ),
        *(
            path(
                f"{_ONE}messages/<str:message>/{name}/",
                _view(viewset, {"post": "steer"}, steering=STEERING[name]),
                name=f"{name}_message",
            )
            for name in ("redeliver", "discard")
        ),
        *(path(route, _view(bulk, actions, run_views=viewset), name=name) for route, name, actions in _BULK),
        *(
            path(route, _view(HumanTaskViewSet, actions, run_views=viewset), name=name)
            for route, name, actions in _TASKS
        ),
    ]


def _address(action: type[OperatorRunAction[Any]]) -> str:
    """The last part of its address: of what is done to a run in words, elsewhere the name of the operation."""
    return action.name.replace("_", "-") if action.target_kind == "run" else action.name


def _view(viewset: type[ContractViewSet], actions: dict[str, str], **options: Any) -> Callable[..., HttpResponseBase]:
    """Outside of ATOMIC_REQUESTS: an update waits for its outcome with no transaction open."""
    view: Callable[..., HttpResponseBase] = viewset.as_view({**actions}, **options)
    transaction.non_atomic_requests(using=read()[0].DATABASE)(view)  # it marks the view itself
    return view


urlpatterns = [
    *routes(InstanceViewSet),
    *(path(route, _view(viewset, actions), name=name) for route, name, viewset, actions in _OTHERS),
]
