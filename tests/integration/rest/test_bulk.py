"""Bulk jobs over HTTP: started, watched, stopped and resumed by whoever started them."""

from __future__ import annotations

from typing import Any

import pytest
from django import urls
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import override_settings
from rest_framework.permissions import BasePermission
from rest_framework.test import APIClient

from temporalex_django.forms.run_filters import RunFilter
from temporalex_django.models import BulkItem, BulkJob, Instance, OperatorAction
from temporalex_django.operations.base import Actor
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.rest.bulk import BulkViewSet
from temporalex_django.rest.requests import InstancePermission
from temporalex_django.rest.urls import routes
from temporalex_django.rest.views import InstanceViewSet
from temporalex_django.testing import drain
from tests.integration.operations.test_bulk import finished
from tests.integration.rest.test_instances import assert_problem
from tests.support.client_flows import Basket

pytestmark = pytest.mark.django_db(transaction=True)

BULK = "/api/bulk/"
CODES = ("bulk_actions", "terminate_instance", "signal_instance", "reset_instance", "view_instance")


def client(name: str, *codes: str, **more: Any) -> APIClient:
    user = get_user_model().objects.create_user(name, **more)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    made = APIClient(raise_request_exception=False)
    made.force_authenticate(get_user_model().objects.get(pk=user.pk))
    return made


@pytest.fixture
def ann() -> APIClient:
    return client("ann", *CODES)


@pytest.fixture
def runs() -> list[str]:
    made = [Basket.start(id=name).run_id for name in ("a-1", "a-2", "b-1")]
    drain()
    return made


def test_a_job_is_started_watched_stopped_and_resumed(ann: APIClient, runs: list[str]) -> None:
    Basket.handle("a-2").terminate()

    made = ann.post(BULK, {"action": "terminate", "runs": runs, "reason": "spring"}, format="json")

    assert made.status_code == 201, made.content
    job, address = made.json(), made["Location"]
    assert address == f"http://testserver{BULK}{job['id']}/"
    assert {name: job[name] for name in ("action", "reason", "state", "total", "left", "by", "finished_at")} == {
        "action": "terminate", "reason": "spring", "state": "running", "total": 3, "left": 3, "by": "ann",
        "finished_at": None,
    }  # fmt: skip
    assert Instance.objects.filter(status="terminated").count() == 1  # nothing is done in the request

    stopped = ann.post(f"{address}stop/", {"reason": "lunch"}, format="json")
    assert (stopped.status_code, stopped.json()["state"]) == (200, "stopped")
    finished()
    assert Instance.objects.filter(status="terminated").count() == 1
    body = assert_problem(ann.post(f"{address}stop/", {}, format="json"), 409, "not_possible")
    assert "Stopped" in body["detail"]
    assert ann.post(f"{address}resume/", {}, format="json").json()["state"] == "running"
    finished()

    now = ann.get(address).json()
    assert (now["state"], now["done"], now["failed"], now["left"]) == ("done", 2, 1, 0)
    assert now["already_done"] == 1
    assert ann.get(BULK).json()["results"] == [now]
    items = ann.get(f"{address}items/").json()
    assert items["next"] is None
    assert sorted(item["run_id"] for item in items["results"]) == sorted(runs)
    assert {item["outcome"] for item in items["results"]} == {"done", "failed"}
    (bad,) = ann.get(f"{address}items/?outcome=failed").json()["results"]
    assert (bad["run_id"], bad["code"], bad["already_done"]) == (runs[1], "workflow_closed", True)
    assert "already closed" in bad["message"]
    asked = OperatorAction.objects.filter(action__endswith="_bulk").order_by("pk")
    assert [(one.action, one.reason, one.source) for one in asked] == [
        ("start_bulk", "spring", "rest"), ("stop_bulk", "lunch", "rest"), ("resume_bulk", "", "rest"),
    ]  # fmt: skip


def test_runs_are_chosen_by_a_filter_and_items_come_in_pages(ann: APIClient, runs: list[str]) -> None:
    for body, total in (
        ({"action": "terminate", "filter": {"id_prefix": "a-", "status": "waiting,pending"}}, 2),
        ({"action": "signal", "filter": {"workflow": "test.Basket"}, "inputs": {"signal": "note", "payload": [1]}}, 3),
        ({"action": "reset", "runs": runs[:1], "inputs": {"to": 0}}, 1),
    ):
        made = ann.post(BULK, body, format="json")
        assert (made.status_code, made.json().get("total")) == (201, total), made.content
    signals = ann.get(f"{BULK}?limit=1").json()["next"]
    job = ann.get(signals).json()["results"][0]
    assert job["action"] == "signal"

    address, seen = f"{BULK}{job['id']}/items/?limit=2&outcome=open", []
    while address:
        page = ann.get(address).json()
        assert len(page["results"]) <= 2
        seen += [item["run_id"] for item in page["results"]]
        address = page["next"]

    assert sorted(seen) == sorted(runs)


@override_settings(TEMPORALEX={"BULK_LIMIT": 2})
def test_what_cannot_be_is_refused_and_nothing_is_started(ann: APIClient, runs: list[str]) -> None:
    one = {"action": "terminate", "runs": runs[:1]}
    for sent, status, code, says in (
        ({"action": "terminate"}, 400, "invalid", "Give either `runs` or `filter`."),
        ({**one, "filter": {"id_prefix": "a"}}, 400, "invalid", "Give either `runs` or `filter`."),
        ({**one, "runs": []}, 400, "invalid", "runs"),
        ({"action": "terminate", "filter": {}}, 400, "invalid", "filter"),
        ({"action": "terminate", "filter": {"colour": "red"}}, 400, "invalid", "The filters are status, workflow"),
        ({"action": "terminate", "filter": {"status": "fine"}}, 400, "invalid", "status"),
        ({"action": "terminate", "filter": {"workflow": "a\nb"}}, 400, "invalid", "printable"),
        ({**one, "action": "start"}, 400, "invalid", "action"),
        ({**one, "inputs": {"speed": 1}}, 400, "invalid", "has no input speed"),
        ({**one, "inputs": {"by": None}}, 400, "invalid", "has no input 'by'"),
        ({**one, "action": "signal"}, 400, "payload", "signal"),
        ({**one, "action": "reset", "inputs": {"to": "x"}}, 400, "payload", "to"),
        ({"action": "terminate", "runs": ["a-1"]}, 404, "workflow_not_found", "a-1"),
        ({"action": "terminate", "runs": runs}, 409, "not_possible", "at most 2 runs"),
        ({"action": "terminate", "filter": {"id_prefix": "z"}}, 409, "not_possible", "no run"),
        ({"action": "fork", "runs": runs[:2], "inputs": {"id": "x"}}, 409, "not_possible", "'id' is for one run"),
        ({**one, "action": "pause"}, 403, "not_permitted", "pause_instance"),
    ):
        body = assert_problem(ann.post(BULK, sent, format="json"), status, code)
        assert says in str(body), body
    assert not BulkJob.objects.exists()


def test_a_job_is_its_owners_and_superusers(ann: APIClient, runs: list[str]) -> None:
    address = ann.post(BULK, {"action": "terminate", "runs": runs}, format="json")["Location"]
    bob, root = client("bob", *CODES), client("root", is_superuser=True)

    assert bob.get(BULK).json()["results"] == []
    for path in ("", "items/"):
        assert_problem(bob.get(address + path), 404, "workflow_not_found")
        assert root.get(address + path).status_code == 200
        assert_problem(ann.get(f"{BULK}{path or 'nobody/'}"), 404, "workflow_not_found")
    for path in ("stop/", "resume/"):
        assert_problem(bob.post(address + path, {}, format="json"), 404, "workflow_not_found")
        assert root.post(address + path, {}, format="json").status_code == 200
    looker = client("looker", "view_instance")
    for answer in (looker.get(BULK), looker.get(address), looker.post(f"{address}stop/", {}, format="json")):
        assert_problem(answer, 403, "not_permitted")


class NotTheSecond(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return request.user.username != "eve"

    def has_object_permission(self, request: Any, view: Any, obj: Instance) -> bool:
        return obj.workflow_id != "a-2"


class ByWorkflow(RunFilter):
    class Meta:
        model = Instance
        fields = ("workflow_id",)


class OnlyA(InstanceViewSet):
    permission_classes = (InstancePermission, NotTheSecond)
    filterset_class = ByWorkflow

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(workflow_id__startswith="a-")


class OurJobs(BulkViewSet):
    def get_queryset(self) -> Any:
        return super().get_queryset().exclude(reason="secret")


urlpatterns = [urls.path("ours/", urls.include((routes(OnlyA, bulk=OurJobs), "ours")))]


@override_settings(ROOT_URLCONF=__name__)
def test_jobs_are_about_the_runs_that_the_hosts_view_set_leaves(ann: APIClient, runs: list[str]) -> None:
    """Its queryset, its filters, and its permissions about the view and each run; its own jobs, too."""
    ours, (first, second, other) = "/ours/bulk/", runs
    for chosen, status, code in (([other], 404, "workflow_not_found"), ([first, second], 403, "not_permitted")):
        assert_problem(ann.post(ours, {"action": "terminate", "runs": chosen}, format="json"), status, code)
    denied = OperatorAction.objects.get(denied=True)
    assert (denied.action, "a-2" in denied.reason) == ("start_bulk", True)
    for given in ({"workflow": "test.Basket"}, {"workflow_id": "a-1"}):
        made = ann.post(ours, {"action": "pause", "filter": given}, format="json")
        assert_problem(made, 403, "not_permitted")
        made = ann.post(ours, {"action": "signal", "filter": given, "inputs": {"signal": "note"}}, format="json")
        assert (made.status_code, made.json()["total"]) == (201, 1), made.content
        assert made["Location"].startswith(f"http://testserver{ours}")
    for given in ({"workflow_id": "a-2"}, {"workflow_id": "b-1"}):
        made = ann.post(ours, {"action": "terminate", "filter": given}, format="json")
        assert_problem(made, 409, "not_possible")
    assert {str(item.run_id) for item in BulkItem.objects.all()} == {first}
    one = {"action": "terminate", "runs": [first]}
    assert_problem(client("eve", *CODES).post(ours, one, format="json"), 403, "not_permitted")
    hidden = ann.post(ours, {**one, "reason": "secret"}, format="json")
    assert_problem(ann.get(hidden["Location"]), 404, "workflow_not_found")
    finished()
    assert {*Instance.objects.filter(status="terminated").values_list("workflow_id", flat=True)} == {"a-1"}


@override_settings(ROOT_URLCONF=__name__)
def test_why_it_failed_is_told_of_runs_that_one_may_look_at(ann: APIClient, runs: list[str]) -> None:
    for name in ("a-1", "a-2", "b-1"):
        Basket.handle(name).terminate()
    user: Any = get_user_model().objects.get(username="ann")
    job = StartBulk("terminate", runs=runs, by=Actor(user=user)).execute()
    finished()
    told = [bool(item["message"]) for item in ann.get(f"/ours/bulk/{job.pk}/items/").json()["results"]]
    assert told == [False, False, True]  # b-1 is not there, a-2 not his
    assert {item["code"] for item in ann.get(f"/ours/bulk/{job.pk}/items/").json()["results"]} == {"workflow_closed"}


def test_a_filter_takes_the_permission_to_look_at_runs(runs: list[str]) -> None:
    blind = client("blind", "bulk_actions", "terminate_instance")
    for prefix in ("a-", "nothing"):
        body = {"action": "terminate", "filter": {"id_prefix": prefix}}
        assert "view_instance" in assert_problem(blind.post(BULK, body, format="json"), 403, "not_permitted")["detail"]
    made = blind.post(BULK, {"action": "terminate", "runs": runs[:1]}, format="json")
    Basket.handle("a-1").terminate()
    finished()
    (item,) = blind.get(f"{made['Location']}items/").json()["results"]
    assert (item["outcome"], item["code"], item["message"]) == ("failed", "workflow_closed", "")
