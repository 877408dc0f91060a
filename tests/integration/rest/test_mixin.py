"""Routes of runs in a project's own view set: his objects and permissions first, then ours."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.checks import Tags, run_checks
from django.test import override_settings
from django.urls import include, path
from rest_framework import permissions, routers, viewsets
from rest_framework.test import APIClient

from temporalex_django.models import Instance, Message, OperatorAction
from temporalex_django.rest import WorkflowViewMixin
from temporalex_django.rest.urls import urlpatterns as ours
from tests.integration.rest.test_instances import assert_problem, but_the_sentence, person
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.tenants import POLICY

pytestmark = pytest.mark.django_db


class NotTheOdd(permissions.BasePermission):
    """A rule of the project's own, about its objects."""

    message = "not this one"

    def has_object_permission(self, request: Any, view: Any, obj: Any) -> bool:
        return obj.username != "odd"


class AccountViewSet(WorkflowViewMixin, viewsets.ReadOnlyModelViewSet):  # type: ignore[type-arg] # in the stubs
    """Accounts that are open to the public, each with its basket."""

    workflow = Basket
    lookup_field = "username"
    permission_classes = (permissions.IsAuthenticated, NotTheOdd)

    def get_queryset(self) -> Any:
        return get_user_model().objects.exclude(username="secret")


class NamedViewSet(AccountViewSet):
    """Knows its runs by their ids."""

    def workflow_ref(self, obj: Any, runs: Any) -> str:
        return f"b-{obj.username}"


router = routers.DefaultRouter()
router.register("accounts", AccountViewSet, basename="account")
router.register("named", NamedViewSet, basename="named")
urlpatterns = [path("theirs/", include((router.urls, "theirs"))), path("api/", include((ours, "temporalex_rest")))]


@pytest.fixture(autouse=True)
def _urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


def client(user: Any) -> APIClient:
    made = APIClient(raise_request_exception=False)
    made.force_authenticate(user)
    return made


def test_an_objects_run_is_shown_signalled_and_updated() -> None:
    ann = person("view", "signal", "update", name="ann")
    api, at = client(ann), "/theirs/accounts/ann/"
    old = Basket.start(id="b-0", subject=ann)
    old.terminate()
    Basket.start(id="b-ann", subject=ann)
    Sleepy.start(id="s-1", subject=ann)  # of another class
    drain()

    state = api.get(f"{at}state/")
    assert (state.status_code, state.json()["id"]) == (200, "b-ann"), state.content
    assert state["ETag"]
    assert but_the_sentence(state) | {"url": ""} == but_the_sentence(api.get("/api/instances/b-ann/")) | {"url": ""}
    assert state.json()["url"] == f"http://testserver{at}state/"
    assert api.post(f"{at}update/add/", {"args": 5}, format="json").json()["result"] == 1
    kept = [api.post(f"{at}update/add/", {"args": 5, "id": "u-1"}, format="json").json() for _ in range(2)]
    assert kept == [{"id": "u-1", "result": 2}] * 2 == [api.get(f"{at}update/add/?id=u-1").json()] * 2
    assert api.post(f"{at}signal/note/", {"payload": "x"}, format="json").status_code == 202
    assert Message.objects.get(kind="signal").name == "note"
    told = api.get("/theirs/named/ann/state/").json()
    published_at = Instance.objects.values_list("published_at", flat=True).get(workflow_id="b-ann")
    assert datetime.fromisoformat(told["published_at"]) == published_at
    assert (told["id"], told["url"]) == ("b-ann", "http://testserver/theirs/named/ann/state/")
    assert set(OperatorAction.objects.filter(denied=False).values_list("action", "source")) >= {("update", "rest")}


def test_a_router_without_regular_expressions_is_an_error_of_the_project(settings: Any) -> None:
    """Its addresses of messages would be found by nobody."""
    assert not [one for one in run_checks(tags=[Tags.urls]) if one.id == "temporalex_django.E009"]
    plain = routers.DefaultRouter(use_regex_path=False)
    plain.register("accounts", NamedViewSet, basename="account")
    settings.ROOT_URLCONF = (path("theirs/", include(plain.urls)),)

    (found,) = [one for one in run_checks(tags=[Tags.urls]) if one.id == "temporalex_django.E009"]

    assert "signals and updates of NamedViewSet do not work" in found.msg
    assert "use_regex_path" in str(found.hint)


@pytest.mark.django_db(transaction=True)
def test_an_update_that_waits_says_where_its_outcome_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = person("view", "update", name="ann")
    Basket.start(id="b-1", subject=ann)
    monkeypatch.setattr(Basket, "version", 2)  # this process does not have the run's class: a worker is to do it

    answer = client(ann).post("/theirs/accounts/ann/update/add/?wait=0", {"args": 1, "id": "u"}, format="json")

    assert (answer.status_code, answer["Location"]) == (
        202, "http://testserver/theirs/accounts/ann/update/add/?id=u",
    )  # fmt: skip


def test_the_project_decides_first_and_then_we_do() -> None:
    ann, bob = person("view", "signal", "update", name="ann"), person("view", name="bob")
    people = {name: person(name=name) for name in ("secret", "odd", "none")}
    for n, subject in enumerate((ann, people["secret"], people["odd"])):
        Basket.start(id=f"b-{n}", subject=subject)
    drain()
    api = client(ann)

    for name, status, code, says in (
        ("secret", 404, "not_found", ""),
        ("nobody", 404, "not_found", ""),
        ("odd", 403, "not_permitted", "not this one"),
        ("none", 404, "workflow_not_found", "no run was started for none"),
    ):
        for answer in (
            api.get(f"/theirs/accounts/{name}/state/"),
            api.post(f"/theirs/accounts/{name}/signal/note/", {}, format="json"),
        ):
            assert says in assert_problem(answer, status, code)["detail"]
    at = "/theirs/accounts/ann/"
    assert client(bob).get(f"{at}state/").status_code == 200
    assert_problem(client(bob).post(f"{at}signal/note/", {}, format="json"), 403, "not_permitted")
    assert OperatorAction.objects.get(denied=True).action == "signal"
    assert_problem(client(people["none"]).get(f"{at}state/"), 403, "not_permitted")
    assert_problem(APIClient().get(f"{at}state/"), 403, "not_permitted")
    with override_settings(TEMPORALEX={"ACCESS_POLICY": POLICY}):  # the runs of others are not found
        assert_problem(api.get(f"{at}state/"), 404, "workflow_not_found")
    for answer, status, code in (
        (api.put(f"{at}state/", {}, format="json"), 405, "method_not_allowed"),
        (api.post(f"{at}signal/note/", {"loud": 1}, format="json"), 400, "invalid"),
        (api.post(f"{at}signal/note/", "{", content_type="application/json"), 400, "parse_error"),
        (api.post(f"{at}signal/note/", "a", content_type="text/plain"), 415, "unsupported_media_type"),
        (api.get(f"{at}state/?x=1"), 400, "invalid"),
        (api.post(f"{at}update/broken/", {}, format="json"), 422, "update_failed"),
    ):
        assert_problem(answer, status, code)
    assert not Message.objects.filter(kind="signal").exists()
    assert "code" not in api.get("/theirs/accounts/secret/").json()  # his other routes answer as he has them
