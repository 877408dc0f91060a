"""What the faces refuse leaves a row whatever page refused it; what they show is noted, and is one's own alone."""

from __future__ import annotations

from io import StringIO
from typing import Any, ClassVar

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext

from temporalex_django import Ok, VersionedWorkflow, Workflow, WorkflowHandle, api, errors
from temporalex_django.admin.instance import InstanceAdmin
from temporalex_django.admin.read_only import OperatorActionAdmin
from temporalex_django.models import BulkJob, Instance, OperatorAction
from temporalex_django.operations import audit
from temporalex_django.operations.base import Actor
from temporalex_django.operations.bulk import StartBulk
from tests.app.graphs import Order
from tests.support import tenants
from tests.support.client_flows import Basket, drain
from tests.support.people import stored
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db(transaction=True)

RUNS = "/admin/temporalex_django/instance/"
JOBS = "/admin/temporalex_django/instance/console/jobs/"
REST = "/api/instances/"
TENANTS = override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY})


class Hidden(Workflow):
    name = "test.RefusedHidden"
    internal = True

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class Mother(Workflow):
    name = "test.RefusedMother"

    async def run(self, args: Any) -> Any:
        return Ok(await api.child(Basket, None, id="blue-child"))


@pytest.fixture(autouse=True)
def forgetful() -> None:
    cache.clear()


def person(name: str, *codes: str) -> Any:
    user = stored(name, *(f"temporalex_django.{code}" for code in codes))
    user.is_staff = True
    user.save()
    return user


def browser(user: Any) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


def post(client: Client, path: str, body: Any = None, **headers: str) -> Any:
    """As the page of a host in a browser asks REST."""
    return client.post(REST + path, body or {}, content_type="application/json", headers=headers)


def rows(**which: Any) -> list[tuple[Any, ...]]:
    found = OperatorAction.objects.filter(**which).order_by("id")
    return [*found.values_list("action", "denied", "workflow", "workflow_id")]


# -- what is refused -------------------------------------------------------------------------------------------------


def test_each_page_of_the_admin_notes_whom_it_refuses() -> None:
    run = Basket.start(id="a-1")
    drain()
    one, many = f"{RUNS}console/runs/{run.run_id}/", f"console/runs/bulk/?action=terminate&run={run.run_id}"
    viewer, starter = person("viewer", "view_instance"), person("starter", "view_instance", "start_instance")
    chooser = person("chooser", "bulk_actions", "terminate_instance")
    job = StartBulk("terminate", runs=[str(run.run_id)], by=Actor(user=chooser)).execute()
    of_a, of_none = ("test.Basket", "a-1"), ("", "")
    tried: list[tuple[Any, str, tuple[str, ...]]] = [
        (viewer, f"{RUNS}console/runs/start/?workflow=test.Basket", ("start", "test.Basket", "")),
        (starter, f"{RUNS}console/runs/start/?workflow=test.RefusedHidden", ("start", "test.RefusedHidden", "")),
        (viewer, f"{one}do/terminate/", ("terminate", *of_a)),  # without the reason that it takes
        (viewer, f"{one}query/?name=items", ("query", *of_a)),
        (viewer, f"{one}message/?kind=signal&name=note", ("signal", *of_a)),
        (viewer, f"{RUNS}{many}", ("start_bulk", *of_none)),
        (chooser, f"{RUNS}{many}", ("view", *of_none)),
        (chooser, RUNS, ("view", *of_none)),
        (viewer, f"{JOBS}{job.pk}/stop/", ("stop_bulk", *of_none)),
        (viewer, f"{JOBS}{job.pk}/resume/", ("resume_bulk", *of_none)),
    ]
    for user, path, said in tried:
        OperatorAction.objects.all().delete()
        assert browser(user).post(path, {}).status_code == 403, path
        row = OperatorAction.objects.get()
        assert (row.action, row.workflow, row.workflow_id) == said, path
        assert (row.denied, row.actor, row.source, bool(row.reason)) == (True, user, "admin", True), path
    assert (run.status, BulkJob.objects.count(), Instance.objects.count()) == ("waiting", 1, 1)


def test_attempts_at_other_things_are_other_rows_up_to_a_hundred(caplog: pytest.LogCaptureFixture) -> None:
    run = Basket.start(id="a-1")
    ann = browser(person("ann", "view_instance", "start_instance"))
    for path in ("a-1/updates/add/", "a-1/updates/add/", "a-1/updates/close/", "a-1/updates/%00%0A%F0%9F%90%9F/"):
        assert post(ann, path).status_code in (403, 404), path
    for name in ("test.RefusedHidden", "test.RefusedHidden", "test.Unknown"):
        assert post(ann, "", {"workflow": name, "id": "x"}).status_code >= 400
    for name in ("items", "others"):
        with pytest.raises(errors.ActionNotPermitted):
            run.query(name, by=get_user_model().objects.get(username="ann"))
    found = [*OperatorAction.objects.order_by("id").values_list("action", "workflow", "details")]
    assert found[:2] == [
        ("update", "", {"message": "add", "run": "a-1"}),  # refused before any run was looked up
        ("update", "", {"message": "close", "run": "a-1"}),
    ]
    assert [one for one in found if one[0] != "update"] == [
        ("start", "test.RefusedHidden", {}),
        ("query", "test.Basket", {"message": "items"}),
        ("query", "test.Basket", {"message": "others"}),
    ]

    caplog.clear()
    by = Actor(user=person("bob"), source="rest")
    with caplog.at_level("WARNING", logger="temporalex_django.operations"):
        for number in range(audit._MAX_ROWS + 5):
            audit.record_denial(by, "update", "no", message=f"m{number}\x00", ref="x" * 5000)
    assert OperatorAction.objects.filter(actor=by.user).count() == audit._MAX_ROWS
    assert sum("update denied" in line for line in caplog.messages) == audit._MAX_ROWS + 5
    last = OperatorAction.objects.latest("id").details
    assert (last["message"], len(last["run"])) == (f"m{audit._MAX_ROWS - 1}", 200)


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_a_form_like_another_run_is_a_read() -> None:
    run = Basket.start({"card": "secret-77"}, id="a-1")
    page = f"{RUNS}console/runs/start/?workflow=test.Basket"
    codes = ("view_instance", "start_instance")
    blind, ann = browser(person("blind", *codes)), browser(person("ann", *codes, "view_payload"))
    assert "secret-77" not in blind.get(f"{page}&like={run.run_id}").content.decode()
    ann.get(page)
    assert rows() == []
    assert "secret-77" in ann.get(f"{page}&like={run.run_id}").content.decode()
    assert rows() == [("view_payload", False, "test.Basket", "a-1")]


def test_an_answer_that_shows_a_run_is_a_read_whatever_it_answers() -> None:
    ann = browser(person("ann", "view_instance", "view_payload", "start_instance", "pause_instance", "query_instance"))
    body, key = {"workflow": "test.Basket", "id": "a-1"}, {"Idempotency-Key": "k"}

    def noted(answer: Any) -> list[str]:
        assert answer.status_code in (200, 201), answer.content
        found = [row[0] for row in rows()]
        OperatorAction.objects.all().delete()
        cache.clear()
        return found

    assert noted(post(ann, "", body, **key)) == ["start", "view_payload"]
    assert noted(post(ann, "", body, **key)) == ["view_payload"]  # the same answer again
    drain()
    assert noted(post(ann, "a-1/pause/", {"reason": "r"})) == ["pause", "view_payload"]
    for path in ("", "events/", "timeline/", "activities/"):
        assert noted(ann.get(f"{REST}a-1/{path}")) == ["view_payload"], path
    for path in ("children/", "messages/", "operations/"):  # which show none
        assert noted(ann.get(f"{REST}a-1/{path}")) == [], path
    assert noted(ann.get(REST)) == []


def test_who_may_not_look_is_told_how_to_find_it_alone() -> None:
    ann = browser(person("ann", "start_instance", "terminate_instance", "view_payload"))
    body, key = {"workflow": "test.Basket", "id": "a-1"}, {"Idempotency-Key": "k"}
    first = post(ann, "", body, **key)
    WorkflowHandle("a-1").signal("note", "secret")
    drain()
    again, ended = post(ann, "", body, **key), post(ann, "a-1/terminate/", {"reason": "r"})
    run = Instance.objects.get()
    told = {"id": "a-1", "run_id": str(run.pk), "url": f"http://testserver{REST}{run.pk}/"}
    assert [answer.json() for answer in (first, again, ended)] == [told] * 3
    assert [answer.status_code for answer in (first, again, ended)] == [201, 201, 200]
    assert (again["Location"], "ETag" in again) == (first["Location"], False)
    assert [row[0] for row in rows()] == ["start", "terminate"]


def test_a_read_that_is_rolled_back_is_noted_the_next_time() -> None:
    Basket.start(id="a-1")
    run, by = Instance.objects.get(), Actor(user=person("ann"), source="rest")
    for _ in range(2):
        with transaction.atomic():
            audit.record_read(by, run)
            transaction.set_rollback(True)
    assert rows() == []
    audit.record_read(by, run)
    audit.record_read(by, run)
    assert [row[0] for row in rows()] == ["view_payload"]


def test_a_list_of_the_admin_counts_no_facets() -> None:
    Basket.start(id="a-1")
    root = browser(get_user_model().objects.create_superuser("root"))
    for page in (RUNS, JOBS, "/admin/temporalex_django/operatoraction/"):
        counted = []
        for query in ("", "?_facets=True"):
            with CaptureQueriesContext(connection) as asked:
                assert root.get(page + query).status_code == 200
            counted.append(len(asked))
        assert counted[0] == counted[1], page


# -- whose it is -----------------------------------------------------------------------------------------------------


class NoOrders(tenants.AccessPolicy):
    """Refuses to show one class."""

    def allows(self, user: Any, operation: Any) -> bool:
        return (operation.run is None or operation.run.workflow != Order.name) and super().allows(user, operation)


def test_the_picture_of_a_run_asks_about_the_run(tmp_path: Any) -> None:
    (tmp_path / "log").touch()
    handle = Order.start("1", {"path": str(tmp_path / "log")})
    drain()
    person("ann", "view_instance")

    def draw() -> str:
        out = StringIO()
        call_command("temporalex", "graph", Order.name, "--id", str(handle.run_id), "--as-user", "ann", stdout=out)
        return out.getvalue()

    assert "completed" in draw()
    with (
        override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.NoOrders"}),
        pytest.raises(CommandError, match="may not view"),
    ):
        draw()


@TENANTS
def test_a_parent_of_another_tenant_is_not_told() -> None:
    mother = Mother.start(id="red-mother")
    drain()
    child = Instance.objects.get(workflow_id="blue-child")
    for name, among in (("blue-bob", False), ("root", True)):
        user = person(name, "view_instance")
        with override_settings(TEMPORALEX={} if among else {"ACCESS_POLICY": tenants.POLICY}):
            client, out = browser(user), StringIO()
            page = text_of(client, child.pk)
            summary = page[page.index("tx-facts-line") :].split("</p>")[0]
            assert (f"{RUNS}console/runs/{mother.run_id}/" in summary, "red-mother" in summary) == (among, among), name
            listed = {one["id"]: one["parent_run_id"] for one in client.get(REST).json()["results"]}
            alone = client.get(f"{REST}{child.pk}/").json()["parent_run_id"]
            call_command("temporalex", "describe", str(child.pk), "--as-user", name, stdout=out)
            assert listed["blue-child"] == alone == (str(mother.run_id) if among else None)
            assert (str(mother.run_id) in out.getvalue()) is among


class OnlyRed(InstanceAdmin):
    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(workflow_id__startswith="red-")


def test_operator_actions_are_about_the_runs_of_the_same_site() -> None:
    for name in ("red-1", "blue-1"):
        Basket.start(id=name).terminate(by=get_user_model().objects.create_superuser(f"{name}-root"))
    request = RequestFactory().get("/")
    request.user = get_user_model().objects.get(username="red-1-root")
    site = admin.AdminSite()
    site.register(OperatorAction, OperatorActionAdmin)

    def listed() -> set[str]:
        found = site._registry[OperatorAction].get_queryset(request)
        return set(found.values_list("workflow_id", flat=True))

    assert listed() == {"red-1", "blue-1"}
    site.register(Instance, OnlyRed)
    assert listed() == {"red-1"}


def test_a_version_stores_nothing_that_another_one_redacts() -> None:
    with pytest.raises(errors.WorkflowDefinitionError, match="V1 stores card, which one of the versions redacts"):

        class Paid(VersionedWorkflow):
            name = "test.RefusedPaid"
            current = 2

            class V1(Workflow):
                stored: ClassVar[Any] = {"card": str}

                async def run(self, args: Any) -> Any:
                    return Ok(args)

            class V2(Workflow):
                version = 2
                redacted = ("card",)

                async def run(self, args: Any) -> Any:
                    return Ok(args)

            versions: ClassVar[Any] = {1: V1, 2: V2}
