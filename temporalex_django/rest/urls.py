"""``path("api/", include("temporalex_django.rest.urls"))``.

With a view set of the host's own ``include((routes(OurRuns), "runs"))``.
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction
from django.http import HttpResponseBase
from django.urls import URLPattern, path

from temporalex_django.conf import read
from temporalex_django.rest.views import APP_NAME, InstanceViewSet

app_name = APP_NAME
_ONE = "instances/<str:id>/"
_ROUTES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("instances/", "instances", {"get": "list", "post": "create"}),
    (_ONE, "instance", {"get": "retrieve"}),
    (f"{_ONE}events/", "events", {"get": "events"}),
    (f"{_ONE}result/", "result", {"get": "result"}),
    (f"{_ONE}signals/<str:name>/", "signal", {"post": "signal"}),
    (f"{_ONE}updates/<str:name>/", "update", {"post": "send_update", "get": "outcome"}),
    (f"{_ONE}queries/<str:name>/", "query", {"post": "query"}),
    (f"{_ONE}resume/", "resume", {"post": "resume"}),
    (f"{_ONE}cancel/", "cancel", {"post": "cancel"}),
    (f"{_ONE}terminate/", "terminate", {"post": "terminate"}),
)


def routes(viewset: type[InstanceViewSet]) -> list[URLPattern]:
    """The addresses of a view set, which may be a subclass."""
    return [path(route, _view(viewset, actions), name=name) for route, name, actions in _ROUTES]


def _view(viewset: type[InstanceViewSet], actions: dict[str, str]) -> Callable[..., HttpResponseBase]:
    """Outside of ATOMIC_REQUESTS: an update waits for its outcome with no transaction open."""
    view: Callable[..., HttpResponseBase] = viewset.as_view({**actions})
    transaction.non_atomic_requests(using=read()[0].DATABASE)(view)  # it marks the view itself
    return view


urlpatterns = routes(InstanceViewSet)
