"""One policy says which runs there are for a user and what he may do: every face and ``by=`` ask it."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from django.urls import include, path
from rest_framework.permissions import BasePermission
from rest_framework.test import APIClient

from temporalex_django import Workflow, WorkflowHandle, api, conf, errors
from temporalex_django.access import AccessPolicy
from temporalex_django.admin import InstanceAdmin
from temporalex_django.admin.base import AdminMount
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.console.run.page import RunPageView
from temporalex_django.models import Chain, Instance, Message, OperatorAction
from temporalex_django.operations.base import Actor
from temporalex_django.operations.runs.start import Start
from temporalex_django.rest.requests import InstancePermission
from temporalex_django.rest.urls import routes
from temporalex_django.rest.views import InstanceViewSet
from tests.support import tenants
from tests.support.client_flows import Basket, Generations, Sleepy, drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db

URL = "/api/instances/"
RUNS = "/admin/temporalex_django/instance/"
ACTIONS = "/admin/temporalex_django/operatoraction/"
EVERYTHING = [
    f"temporalex_django.{name}"
    for name in (
        *("view_instance", "view_payload", "start_instance", "signal_instance", "update_instance", "query_instance"),
        *("cancel_instance", "terminate_instance", "view_operatoraction"),
    )
]
TENANTS = override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY})
VERBS = [
    ("get", ""), ("get", "events/"), ("get", "result/"), ("get", "updates/add/?id=u"), ("post", "signals/note/"),
    ("post", "updates/add/"), ("post", "queries/items/"), ("post", "resume/"), ("post", "cancel/"), ("post", "terminate/"),
]  # fmt: skip
BODIES = {
    "signals/note/": {"payload": 1}, "updates/add/": {"args": 5}, "queries/items/": {}, "resume/": {"event": "x"},
    "cancel/": {}, "terminate/": {"reason": "enough"},
}  # fmt: skip


def person(name: str, **more: Any) -> Any:
    user = stored(name, *EVERYTHING)
    for field, value in more.items():
        setattr(user, field, value)
    user.save()
    return user


def rest(user: Any) -> APIClient:
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(user)
    return client


def site(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def red() -> Any:
    return Basket.start({"card": "red"}, id="red-1")


@pytest.fixture
def blue() -> Any:
    return Basket.start({"card": "blue"}, id="blue-1")


# -- REST ------------------------------------------------------------------------------------------------------------


@TENANTS
@pytest.mark.parametrize("by", ["business id", "run id", "class"])
@pytest.mark.parametrize(("method", "verb"), VERBS)
def test_a_run_of_another_tenant_is_not_there(red: Any, blue: Any, method: str, verb: str, by: str) -> None:
    client, mine = rest(person("red-ann")), BODIES.get(verb)
    ref = {"business id": "blue-1", "run id": blue.run_id, "class": "blue-1"}[by]
    verb += ("&" if "?" in verb else "?") + "workflow=test.Basket" if by == "class" else ""

    answer = getattr(client, method)(f"{URL}{ref}/{verb}", mine, format="json") if method == "post" else client.get(f"{URL}{ref}/{verb}")  # fmt: skip
    nobody = getattr(client, method)(f"{URL}nobody-1/{verb}", mine, format="json") if method == "post" else client.get(f"{URL}nobody-1/{verb}")  # fmt: skip

    assert (answer.status_code, nobody.status_code) == (404, 404), answer.content
    assert answer.json()["detail"].replace(ref, "nobody-1") == nobody.json()["detail"]
    assert "blue" not in answer.content.decode().replace(ref, "")
    assert not OperatorAction.objects.exists()
    assert not Message.objects.exists()
    assert Chain.objects.filter(closed=True).count() == 0


@TENANTS
def test_a_list_has_the_runs_of_the_tenant(red: Any, blue: Any) -> None:
    Sleepy.start(id="red-2")
    for query in ("", "?workflow=test.Basket", "?status=pending", "?limit=1"):
        found = [run["id"] for run in rest(person(f"red-{query}")).get(f"{URL}{query}").json()["results"]]
        assert found
        assert all(one.startswith("red-") for one in found)


@TENANTS
def test_an_id_of_two_tenants_is_not_ambiguous_for_one_and_tells_nothing_of_the_other() -> None:
    class Reds(AccessPolicy):
        def narrow(self, user: Any, runs: Any) -> Any:
            return runs.filter(workflow="test.Basket")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tenants, "Reds", Reds, raising=False)
        Basket.start(id="same").terminate()
        other = Sleepy.start(id="same")
        other.terminate()
        ann = person("ann")
        assert rest(ann).get(f"{URL}same/").status_code == 404
        with override_settings(TEMPORALEX={}):
            assert rest(ann).get(f"{URL}same/").status_code == 409
        with override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.Reds"}):
            answer = rest(ann).get(f"{URL}same/").json()
            assert (answer["workflow"], WorkflowHandle("same").describe(by=ann).workflow) == ("test.Basket",) * 2
            assert rest(ann).get(f"{URL}{other.run_ids[0]}/").status_code == 404


@TENANTS
def test_what_is_of_the_tenant_is_there(red: Any) -> None:
    client = rest(person("red-ann"))

    assert client.get(f"{URL}red-1/").json()["id"] == "red-1"
    assert client.get(f"{URL}{red.run_id}/events/").status_code == 200
    assert client.post(f"{URL}red-1/updates/add/", {"args": 5}, format="json").json()["result"] == 1
    assert client.post(f"{URL}red-1/terminate/", {}, format="json").json()["status"] == "terminated"


class OnlyRed(InstanceViewSet):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(workflow_id__startswith="red-")


class NotTheSecond(BasePermission):
    def has_object_permission(self, request: Any, view: Any, obj: Instance) -> bool:
        return obj.workflow_id != "red-2" and obj.subject_id is None


class Chosen(OnlyRed):
    permission_classes = (InstancePermission, NotTheSecond)


urlpatterns = [
    path("ours/", include((routes(OnlyRed), "ours"))),
    path("chosen/", include((routes(Chosen), "chosen"))),
]


@override_settings(ROOT_URLCONF=__name__)
@pytest.mark.parametrize(("method", "verb"), VERBS)
def test_a_host_routes_a_view_set_of_his_own_and_its_queryset_and_permissions_hold(
    red: Any, blue: Any, method: str, verb: str
) -> None:
    Basket.start(id="red-2")
    client = rest(person("ann"))

    def status(address: str) -> int:
        body = BODIES[verb] if method == "post" else None
        return int(getattr(client, method)(address + verb, body, format="json").status_code)

    assert status("/ours/instances/blue-1/") == 404
    assert status("/chosen/instances/red-2/") == 403
    assert status("/ours/instances/red-1/") in (
        (200, 202, 409, 422) if "updates" not in verb or method == "post" else (404,)
    )


@override_settings(ROOT_URLCONF=__name__)
def test_addresses_are_those_of_the_hosts_view_set(red: Any, blue: Any) -> None:
    client = rest(person("ann"))

    (run,) = client.get("/ours/instances/").json()["results"]
    assert run["url"] == f"http://testserver/ours/instances/{red.run_id}/"
    made = client.post("/chosen/instances/", {"workflow": "test.Basket", "id": "red-7"}, format="json")
    assert made["Location"] == "http://testserver/chosen/instances/red-7/"


# -- admin -----------------------------------------------------------------------------------------------------------


@TENANTS
def test_the_admin_has_the_runs_of_the_tenant_in_lists_and_one_by_one(red: Any, blue: Any) -> None:
    ann, root = person("red-ann", is_staff=True), get_user_model().objects.create_superuser("red-root")
    for handle in (red, blue):
        handle.terminate("for a reason", by=None)

    for user in (ann, root):
        client = site(user)
        for listed in (RUNS, f"{RUNS}console/runs/", f"{RUNS}console/"):
            page = client.get(listed).content.decode()
            assert ("red-1" in page or listed.endswith("console/"), "blue-1" in page) == (True, False)
        assert client.get(f"{RUNS}console/runs/{red.run_id}/").status_code == 200
        there, nowhere = (client.get(f"{RUNS}console/runs/{ref}/") for ref in (blue.run_id, UUID(int=7)))
        assert (there.status_code, nowhere.status_code) == (404, 404)
        assert "blue" not in there.content.decode()
        assert "blue" not in client.get(f"{RUNS}{blue.run_id}/history/", follow=True).content.decode()
        assert "blue-1" not in client.get(f"{RUNS}?q={blue.run_id}").content.decode()
        audit = client.get(f"{ACTIONS}?who=all").content.decode()
        assert ("red-1" in audit, "blue-1" in audit) == (True, False)
        other = OperatorAction.objects.get(workflow_id="blue-1")
        assert "blue-1" not in client.get(f"{ACTIONS}{other.pk}/change/", follow=True).content.decode()


def test_a_get_queryset_of_a_model_admin_narrows_the_runs_page_too(red: Any, blue: Any, rf: Any) -> None:
    class Narrow(InstanceAdmin):
        def get_queryset(self, request: Any) -> Any:
            return super().get_queryset(request).filter(workflow_id__startswith="red-")

    here, request = admin.AdminSite("ours"), rf.get("/")
    here.register(Instance, Narrow)
    ours: Any = here._registry[Instance]
    request.user = get_user_model().objects.create_superuser("root")
    view = RunPageView(AdminMount(here))

    assert view.find_run(request, red.run_id).workflow_id == "red-1"  # type: ignore[union-attr]
    assert view.find_run(request, blue.run_id) is None
    assert [run.workflow_id for run in ours.get_changelist_instance(request).get_queryset(request)] == ["red-1"]


@TENANTS
def test_the_runs_of_a_chain_are_narrowed_too() -> None:
    chain = Generations.start(1, id="red-1")
    drain()
    first, *_ = chain.run_ids
    Instance.objects.filter(pk=first).update(workflow_id="blue-9")
    page = site(person("red-ann", is_staff=True)).get(f"{RUNS}console/runs/{chain.run_ids[-1]}/").content.decode()

    assert first not in page


# -- code in somebody's name, and commands ---------------------------------------------------------------------------


@TENANTS
def test_what_code_does_in_somebodys_name_is_narrowed(red: Any, blue: Any) -> None:
    ann = person("red-ann")
    calls = {
        "describe": lambda h: h.describe(by=ann), "history": lambda h: h.history(by=ann), "result": lambda h: h.result(0, by=ann),
        "signal": lambda h: h.signal("note", 1, by=ann), "update": lambda h: h.update("add", 5, by=ann),
        "query": lambda h: h.query("items", by=ann), "resume": lambda h: h.resume("x", by=ann),
        "cancel": lambda h: h.cancel(by=ann), "terminate": lambda h: h.terminate(by=ann), "instance": lambda h: h.instance(by=ann),
    }  # fmt: skip
    for handle in (blue, WorkflowHandle("blue-1"), WorkflowHandle(blue.run_id)):
        for call in calls.values():
            with pytest.raises(errors.WorkflowNotFound):
                call(handle)
    with pytest.raises(errors.AlreadyRunning):
        Basket.signal_with_start("note", 1, id="blue-1", by=ann)
    assert not Message.objects.exists()
    assert not OperatorAction.objects.exists()
    assert red.describe(by=ann).id == WorkflowHandle("red-1").describe(by=ann).id == "red-1"
    assert blue.describe().id == "blue-1"  # code


@TENANTS
def test_commands_act_as_a_user(red: Any, blue: Any, tmp_path: Any) -> None:
    drain()
    person("red-ann")
    stored("red-eve")

    def run(*arguments: str) -> str:
        out = io.StringIO()
        call_command("temporalex", *arguments, stdout=out)
        return out.getvalue()

    run("export", "--workflow", "test.Basket", "--as-user", "red-ann", "--output", str(tmp_path))
    assert [json.loads(f.read_text())["events"][0]["attributes"]["id"] for f in tmp_path.iterdir()] == ["red-1"]
    with pytest.raises(CommandError, match="no matching run"):
        run("export", "blue-1", "--as-user", "red-ann", "--output", str(tmp_path))
    assert [one["open"] for one in json.loads(run("versions", "--json", "--as-user", "red-ann"))] == [1]
    assert [one["open"] for one in json.loads(run("versions", "--json"))] == [2]
    for wrong, says in (("red-eve", "view_instance"), ("nobody", "is not a user")):
        for command in (["export", "red-1"], ["versions"]):
            with pytest.raises(CommandError, match=says):
                run(*command, "--as-user", wrong)


# -- per run and message, and what goes wrong ------------------------------------------------------------------------


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.Careful"})
def test_a_policy_decides_by_run_and_by_message() -> None:
    for one in ("b-1", "b-closed-shop"):
        Basket.start(id=one)
    ann = person("ann")

    def send(ref: str, name: str) -> int:
        return int(rest(ann).post(f"{URL}{ref}/signals/{name}/", {}, format="json").status_code)

    assert (send("b-1", "note"), send("b-1", "checkout"), send("b-closed-shop", "note")) == (202, 403, 403)
    with pytest.raises(errors.ActionNotPermitted):
        WorkflowHandle("b-1").signal("checkout", by=ann)
    assert Message.objects.count() == OperatorAction.objects.filter(denied=False).count() == 1


@pytest.mark.parametrize("policy", ["Broken", "Careless"])
def test_a_policy_that_fails_shows_nothing_and_does_nothing(red: Any, policy: str) -> None:
    ann = person("ann", is_staff=True)
    with override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.{policy}"}):
        client, pages = rest(ann), Client(raise_request_exception=False)
        pages.force_login(ann)
        for address in (URL, f"{URL}red-1/", f"{URL}red-1/events/"):
            assert client.get(address).status_code == 500
        assert client.post(f"{URL}red-1/signals/note/", {}, format="json").status_code == 500
        for address in (RUNS, f"{RUNS}console/runs/{red.run_id}/", ACTIONS):
            assert pages.get(address).status_code == 500
        with pytest.raises((RuntimeError, errors.NotConfigured)):
            red.signal("note", by=ann)
    assert not Message.objects.exists()


@pytest.mark.parametrize("path", ["no.such.Policy", f"{tenants.__name__}.Missing", "builtins.dict", tenants.Tenants, 7])
def test_a_misspelt_policy_is_an_error_at_start_and_at_every_use(red: Any, path: Any) -> None:
    with override_settings(TEMPORALEX={"ACCESS_POLICY": path}):
        assert "ACCESS_POLICY" in conf.problems()[0]
        with pytest.raises(errors.NotConfigured):
            red.describe(by=stored("ann", *EVERYTHING))


# -- what may be started ---------------------------------------------------------------------------------------------


class Inside(Workflow):
    """Code starts it, nobody else."""

    name = "test.InternalWork"
    internal = True

    async def run(self, args: Any) -> Any:
        raise AssertionError


class Guarded(Workflow):
    """Takes a permission of its own."""

    name = "test.Guarded"
    start_permission = "auth.change_group"

    async def run(self, args: Any) -> Any:
        raise AssertionError


def test_what_is_internal_or_old_is_not_started_from_outside() -> None:
    from tests.integration.engine.test_versions import Parcel

    ann = person("ann")
    for body in ({"workflow": "test.InternalWork"}, {"workflow": Parcel.name, "value": "1", "version": 1}):
        answer = rest(ann).post(URL, body, format="json")
        assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted"), answer.content
    with pytest.raises(errors.ActionNotPermitted):
        Start(StartRequest(workflow=Inside), by=Actor(user=ann, source="admin")).execute()
    assert not Chain.objects.exists()
    assert not OperatorAction.objects.filter(denied=False).exists()
    assert rest(ann).post(URL, {"workflow": Parcel.name, "value": "1"}, format="json").status_code == 201
    Inside.start(id="i-1", by=ann)  # code chose it, in his name
    Inside.start(id="i-2")


def test_a_policy_may_let_him() -> None:
    class Trusting(AccessPolicy):
        def startable(self, user: Any, workflow: Any) -> bool:
            return user.username == "ann"

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tenants, "Trusting", Trusting, raising=False)
        with override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.Trusting"}):
            assert rest(person("ann")).post(URL, {"workflow": "test.InternalWork"}, format="json").status_code == 201
            assert rest(person("bob")).post(URL, {"workflow": "test.Basket"}, format="json").status_code == 403


def test_a_class_may_take_a_permission_of_its_own() -> None:
    ann = person("ann")
    assert rest(ann).post(URL, {"workflow": "test.Guarded"}, format="json").status_code == 403
    with pytest.raises(errors.ActionNotPermitted, match=r"auth\.change_group"):
        Guarded.start(by=ann)
    ann.user_permissions.add(Permission.objects.get(content_type__app_label="auth", codename="change_group"))
    ann = get_user_model().objects.get(pk=ann.pk)
    assert rest(ann).post(URL, {"workflow": "test.Guarded"}, format="json").status_code == 201
    Guarded.start(by=ann)
    ann.user_permissions.remove(Permission.objects.get(codename="start_instance"))
    with pytest.raises(errors.ActionNotPermitted, match="start_instance"):
        Guarded.start(by=get_user_model().objects.get(pk=ann.pk))


@pytest.mark.parametrize("id", ["anything", "order::", "order::NO", "order::1::2", "basket::1", "order::1::deadbeef"])
def test_unique_binds_whoever_gives_an_id(id: str) -> None:
    from tests.support.client_flows import Orders

    answer = rest(person("ann")).post(URL, {"workflow": "test.Orders", "id": id, "args": {}}, format="json")

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_id")
    with pytest.raises(errors.InvalidId):
        Orders.start(args={}, id=id)
    assert Orders.start(args={}, id="order::7").id == Orders.get("7").id


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"internal": "yes"}, "internal 'yes' must be True or False"),
        ({"start_permission": "start"}, "start_permission must be of the form app.codename"),
        ({"redacted": "card"}, "redacted 'card' must be a tuple of paths"),
        ({"redacted": ("customer.",)}, "redacted: 'customer.' is not a path"),
        ({"redacted": (7,)}, "redacted: 7 is not a path"),
    ],
)
def test_wrong_attributes_are_refused_when_the_class_is_defined(attributes: dict[str, Any], says: str) -> None:
    async def run(self: Any, args: Any) -> Any: ...

    with pytest.raises(errors.WorkflowDefinitionError, match=says):
        type("Wrong", (Workflow,), {"run": run, **attributes})


@TENANTS
def test_nobody_starts_a_run_among_those_of_another_tenant() -> None:
    ann = rest(person("red-ann"))

    answer = ann.post(URL, {"workflow": "test.Basket", "id": "blue-7"}, format="json")

    assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")
    assert not Chain.objects.exists()
    assert not OperatorAction.objects.filter(denied=False).exists()
    assert ann.post(URL, {"workflow": "test.Basket", "id": "red-7"}, format="json").status_code == 201


@pytest.mark.parametrize("attribute", [{"internal": True}, {"start_permission": "auth.x"}, {"redacted": ("card",)}])
def test_a_dispatcher_is_not_asked_who_starts_it_so_it_may_not_say(attribute: dict[str, Any]) -> None:
    from temporalex_django.authoring.versions import VersionedWorkflow

    with pytest.raises(
        errors.WorkflowDefinitionError, match="has no effect on a dispatcher: set it on each of the versions"
    ):
        type("Wrong", (VersionedWorkflow,), {"name": "test.Wrong", "versions": {1: Inside}, "current": 1, **attribute})


# -- forks -----------------------------------------------------------------------------------------------------------


class Backstage(Workflow):
    name = "test.Backstage"

    async def run(self, args: Any) -> Any:
        return await api.wait_for_signal("go")


@pytest.mark.parametrize("face", ["rest", "code"])
@pytest.mark.parametrize("lacks", ["nothing", "start_instance", "start_permission", "internal", "policy"])
def test_a_fork_takes_what_a_start_takes(lacks: str, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(AccessPolicy):
        def startable(self, user: Any, workflow: Any) -> bool:
            return False

    monkeypatch.setattr(tenants, "Closed", Closed, raising=False)
    run = Backstage.start(id="b-1")
    drain()
    if lacks == "internal":
        monkeypatch.setattr(Backstage, "internal", True)
    if lacks == "start_permission":
        monkeypatch.setattr(Backstage, "start_permission", "temporalex_django.view_worker")
    codes = ["view_instance", "reset_instance", *(() if lacks == "start_instance" else ("start_instance",))]
    ann = stored("ann", *(f"temporalex_django.{one}" for one in codes))
    refused = lacks in ("start_instance", "start_permission") or (face == "rest" and lacks != "nothing")
    setting = {"ACCESS_POLICY": f"{tenants.__name__}.Closed"} if lacks == "policy" else {}
    with override_settings(TEMPORALEX=setting):
        if face == "rest":
            answer = rest(ann).post(f"{URL}b-1/fork/", {"reason": "r", "id": "b-2", "to": 0}, format="json")
            assert answer.status_code == (403 if refused else 201), answer.content
        else:
            with pytest.raises(errors.ActionNotPermitted) if refused else nullcontext():
                run.fork(0, id="b-2", by=ann)
    assert Instance.objects.filter(workflow_id="b-2").exists() is not refused
    assert OperatorAction.objects.filter(denied=True, action="fork").count() == refused
