"""``path("api/", include("temporalex_django.rest.urls"))``."""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction
from django.http import HttpResponseBase
from django.urls import path

from temporalex_django.conf import read
from temporalex_django.rest.views import InstanceViewSet

app_name = "temporalex_rest"


def _view(**actions: str) -> Callable[..., HttpResponseBase]:
    """Outside of ATOMIC_REQUESTS: an update waits for its outcome with no transaction open."""
    view: Callable[..., HttpResponseBase] = InstanceViewSet.as_view({**actions})
    transaction.non_atomic_requests(using=read()[0].DATABASE)(view)  # it marks the view itself
    return view


_ONE = "instances/<str:id>/"

urlpatterns = [
    path("instances/", _view(get="list", post="create"), name="instances"),
    path(_ONE, _view(get="retrieve"), name="instance"),
    path(f"{_ONE}events/", _view(get="events"), name="events"),
    path(f"{_ONE}result/", _view(get="result"), name="result"),
    path(f"{_ONE}signals/<str:name>/", _view(post="signal"), name="signal"),
    path(f"{_ONE}updates/<str:name>/", _view(post="send_update", get="outcome"), name="update"),
    path(f"{_ONE}queries/<str:name>/", _view(post="query"), name="query"),
    path(f"{_ONE}resume/", _view(post="resume"), name="resume"),
    path(f"{_ONE}cancel/", _view(post="cancel"), name="cancel"),
    path(f"{_ONE}terminate/", _view(post="terminate"), name="terminate"),
]
