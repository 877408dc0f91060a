"""What remains of attempts that were refused, of payloads that people read, and in Django's own log."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.core.cache import cache
from django.db import transaction
from django.test import Client, override_settings

from temporalex_django import Ok, Workflow, WorkflowHandle, api, conf, errors
from temporalex_django.contrib.request_id import request_id
from temporalex_django.models import Instance, KeptAnswer, Message, OperatorAction
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Terminate
from tests.support import tenants
from tests.support.client_flows import Basket, Generations, drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db

APP = "temporalex_django"
RUN = "/api/instances/b-1/"
PAGES = "/admin/temporalex_django/instance/"


@pytest.fixture
def run() -> Any:
    handle = Basket.start(id="b-1")
    drain()
    return handle


def browser(name: str, *permissions: str) -> Client:
    """Somebody who is staff, signed in by a browser."""
    user = stored(name, *(f"{APP}.{one}" for one in permissions))
    user.is_staff = True
    user.save()
    client = Client()
    client.force_login(user)
    return client


def rows(**which: Any) -> list[tuple[Any, ...]]:
    found = OperatorAction.objects.filter(**which).order_by("id")
    return [*found.values_list("actor_name", "action", "source", "workflow_id")]


# -- attempts --------------------------------------------------------------------------------------------------------


def test_what_somebody_may_not_do_is_noted_in_each_face(run: Any) -> None:
    ann = browser("ann", "view_instance")
    assert ann.post(f"{RUN}terminate/", {}, content_type="application/json").status_code == 403
    assert (
        ann.post(f"{PAGES}console/runs/{run.run_id}/do/cancel/", {"token": uuid4().hex, "reason": "x"}).status_code
        == 403
    )
    with pytest.raises(errors.ActionNotPermitted):
        run.query("items", by=stored("bob"))
    eve = browser("eve")
    assert eve.get(f"{PAGES}console/runs/{run.run_id}/").status_code == 403
    assert eve.get(RUN).status_code == 403

    assert rows(denied=True) == [
        ("ann", "terminate", "rest", ""),  # judged before any run was looked up
        ("ann", "cancel", "admin", "b-1"),
        ("bob", "query", "code", "b-1"),
        ("eve", "view", "admin", "b-1"),
        ("eve", "view", "rest", ""),
    ]
    assert (
        "requires the permission temporalex_django.query_instance" in OperatorAction.objects.get(action="query").reason
    )
    assert (run.status, Message.objects.count(), LogEntry.objects.count()) == ("waiting", 0, 0)


@pytest.mark.django_db(transaction=True)
def test_what_was_rolled_back_is_noted_all_the_same(run: Any) -> None:
    bob = stored("bob", f"{APP}.start_instance")
    with (
        pytest.raises(errors.ActionNotPermitted),
        override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.Unsigned"}),
    ):
        Basket.signal_with_start("note", 1, id="b-2", by=bob)

    assert not Instance.objects.filter(workflow_id="b-2").exists()
    assert rows(denied=True)[-1] == ("bob", "signal_with_start", "code", "")
    assert not OperatorAction.objects.filter(denied=False).exists()


@pytest.mark.django_db(transaction=True)
@override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY})
@pytest.mark.parametrize("face", ["plain", "If-Match", "Idempotency-Key", "both", "start with a key", "start in the admin", "admin"])  # fmt: skip
def test_what_a_face_rolls_back_is_noted_and_logged_once(face: str, caplog: pytest.LogCaptureFixture) -> None:
    """A run with an id of another tenant is made, and is not his: a fork, and a start."""
    red = Basket.start(id="red-1")
    drain()
    ann = browser("red-ann", "view_instance", "reset_instance", "start_instance")
    tag = ann.get("/api/instances/red-1/")["ETag"]
    start, key = {"workflow": "test.Basket", "id": "blue-9"}, {"Idempotency-Key": "k"}
    headers = {"plain": {}, "If-Match": {"If-Match": tag}, "both": {"If-Match": tag, **key}}.get(face, key)
    with caplog.at_level(logging.WARNING, logger="temporalex_django.operations"):
        if face == "start in the admin":
            form = {"token": "t", "identity": "blue-9", "payload": "null"}
            answer = ann.post(f"{PAGES}console/runs/start/?workflow=test.Basket", form)
        elif face == "admin":
            answer = ann.post(
                f"{PAGES}console/runs/{red.run_id}/do/fork/", {"token": "t", "reason": "r", "input_id": "blue-9"}
            )
        elif face == "start with a key":
            answer = ann.post("/api/instances/", start, content_type="application/json", headers=headers)
        else:
            body = {"reason": "r", "id": "blue-9"}
            answer = ann.post("/api/instances/red-1/fork/", body, content_type="application/json", headers=headers)
    assert answer.status_code == 403, answer.content
    assert Instance.objects.count() == 1
    assert not KeptAnswer.objects.exists()
    assert [row[:2] for row in rows()] == [("red-ann", "start" if "start" in face else "fork")]
    assert OperatorAction.objects.get().denied
    assert len([one for one in caplog.records if one.name == "temporalex_django.operations"]) == 1


def test_the_same_attempt_is_one_row_a_minute(run: Any) -> None:
    bob = stored("bob")
    for _ in range(5):
        with pytest.raises(errors.ActionNotPermitted):
            run.terminate(by=bob)
    assert OperatorAction.objects.filter(denied=True).count() == 1
    row = OperatorAction.objects.get()
    OperatorAction.objects.update(at=row.at - timedelta(minutes=2))
    with pytest.raises(errors.ActionNotPermitted):
        run.terminate(by=bob)
    assert OperatorAction.objects.filter(denied=True).count() == 2


def test_who_is_not_logged_in_is_only_logged(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="temporalex_django.operations"):
        for _ in range(3):
            assert Client().post(f"{RUN}terminate/", {}, content_type="application/json").status_code in (401, 403)
    assert not OperatorAction.objects.exists()
    assert "denied to user None" in caplog.text


def test_a_transaction_that_is_broken_is_left_alone(run: Any) -> None:
    bob = stored("bob")
    terminate = Terminate(find_run("b-1", storage=storage()), by=Actor(user=bob))
    assert not bob.has_perms([f"{APP}.terminate_instance"])  # known from here on
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(errors.ActionNotPermitted):
            terminate.execute()
    assert not OperatorAction.objects.exists()


# -- reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_payloads_that_people_read_are_noted_once_a_minute(run: Any) -> None:
    ann = browser("ann", "view_instance", "view_payload")
    for address in (f"{RUN}events/", RUN, f"{PAGES}console/runs/{run.run_id}/"):
        assert ann.get(address).status_code == 200
    assert rows() == [("ann", "view_payload", "rest", "b-1")]
    cache.clear()  # as after a minute
    assert ann.get(f"{PAGES}console/runs/{run.run_id}/").status_code == 200
    assert rows()[1:] == [("ann", "view_payload", "admin", "b-1")]


def test_who_sees_no_payloads_reads_none_and_code_is_not_asked(run: Any) -> None:
    viewer, ann = browser("viewer", "view_instance"), stored("ann", f"{APP}.view_instance", f"{APP}.view_payload")
    assert viewer.get(f"{RUN}events/").status_code == 200
    assert viewer.get(f"{PAGES}console/runs/{run.run_id}/").status_code == 200
    assert run.history(by=ann)
    assert not OperatorAction.objects.exists()


# -- the id of a request, Django's log -------------------------------------------------------------------------------


def test_the_id_of_a_request_is_noted_without_what_no_id_has(run: Any) -> None:
    ann = browser("ann", "signal_instance")
    for said in ("0a1b-77.x", "<b>1</b>\n" + "9" * 200):
        ann.post(f"{RUN}signals/note/", {}, content_type="application/json", headers={"X-Request-ID": said})
    first, second = OperatorAction.objects.order_by("id").values_list("request_id", flat=True)
    assert (first, second[:5], len(second) <= 64) == ("0a1b-77.x", "b1/b9", True)
    with override_settings(TEMPORALEX={"REQUEST_ID_HEADER": "X-Trace"}):
        assert request_id({"HTTP_X_TRACE": "7", "HTTP_X_REQUEST_ID": "8"}) == "7"
    with override_settings(TEMPORALEX={"REQUEST_ID_HEADER": None}):
        assert request_id({"HTTP_X_REQUEST_ID": "8"}) == ""
    with override_settings(TEMPORALEX={"REQUEST_ID_HEADER": "no header"}):
        assert "REQUEST_ID_HEADER" in conf.problems()[0]


def test_what_people_do_stands_in_djangos_log(run: Any) -> None:
    ann = browser("ann", "signal_instance", "terminate_instance")
    run.signal("note", 1)
    run.signal("note", 2, by=stored("bob"))  # an application speaks for its user
    assert not LogEntry.objects.exists()
    ann.post(f"{RUN}signals/note/", {"payload": "secret"}, content_type="application/json")
    ann.post(f"{RUN}terminate/", {"reason": "enough"}, content_type="application/json")

    found = LogEntry.objects.order_by("pk").values_list("user__username", "object_id", "object_repr", "change_message")
    assert [*found] == [
        ("ann", run.run_id, "test.Basket b-1", "signal (rest)"),
        ("ann", run.run_id, "test.Basket b-1", "terminate (rest): enough"),
    ]


# -- what a policy must not tell, and must not undo ------------------------------------------------------------------


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.Unmasked"})
def test_a_mask_that_fails_hides_the_answer_of_what_is_done(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    ann = browser("ann", "update_instance")
    answer = ann.post(f"{RUN}updates/add/", {"args": 4711, "id": "u"}, content_type="application/json")
    assert (answer.status_code, answer.json()["result"]) == (200, {"hidden": "temporalex_django.view_payload"})
    assert run.query("items") == [4711]
    assert "answer is hidden" in caplog.text
    assert "4711" not in caplog.text


@override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY})
def test_whether_an_id_of_another_tenant_is_taken_is_not_told() -> None:
    Basket.start(id="blue-1")
    ann = browser("red-ann", "start_instance")
    answers = [
        ann.post("/api/instances/", {"workflow": "test.Basket", "id": ref}, content_type="application/json")
        for ref in ("blue-1", "blue-2")
    ]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert answers[0].json() == answers[1].json()
    assert ann.post("/api/instances/", {"workflow": "test.Basket", "id": "red-1"}, content_type="application/json").status_code == 201  # fmt: skip
    again = ann.post("/api/instances/", {"workflow": "test.Basket", "id": "red-1"}, content_type="application/json")
    assert (again.status_code, again.json()["code"]) == (409, "already_running")


@override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY})
def test_an_earlier_run_leads_to_no_present_one_of_another_tenant() -> None:
    chain = Generations.start(0, id="red-1")
    drain()
    chain.signal("word", "next")
    drain()
    first, second = chain.run_ids
    ann = stored("red-ann", f"{APP}.view_instance", f"{APP}.signal_instance")
    assert WorkflowHandle(first).describe(by=ann).run_id == first
    Instance.objects.filter(pk=second).update(workflow_id="blue-1")
    for call in (
        lambda h: h.describe(by=ann),
        lambda h: h.signal("word", "end", by=ann),
        lambda h: h.result(0, by=ann),
    ):
        with pytest.raises(errors.WorkflowNotFound):
            call(WorkflowHandle(first))


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{tenants.__name__}.Firsts"})
def test_a_policy_is_asked_about_the_present_run_too() -> None:
    chain = Generations.start(0, id="red-1")
    drain()
    chain.signal("word", "next")
    drain()
    first, second = chain.run_ids
    tenants.Firsts.hidden = second
    ann = stored("red-ann", f"{APP}.terminate_instance")
    with pytest.raises(errors.ActionNotPermitted):
        WorkflowHandle(first).terminate(by=ann)
    assert chain.status != "terminated"


def test_what_describes_a_run_takes_the_permission_to_look_at_it(run: Any) -> None:
    ann = stored("ann", f"{APP}.query_instance")
    assert run.query("items", by=ann) == []
    for name in ("__describe", "__accepts"):
        with pytest.raises(errors.ActionNotPermitted, match="view_instance"):
            run.query(name, by=ann)
    ann.user_permissions.add(Permission.objects.get(codename="view_instance"))
    assert run.query("__describe", by=type(ann).objects.get(pk=ann.pk))["id"] == "b-1"


class Charge(Workflow):
    name = "test.RedactedCharge"
    redacted = ("card",)

    async def run(self, args: Any) -> Any:
        return Ok({"card": args["card"], "paid": True})


class Shop(Workflow):
    name = "test.RedactedShop"

    async def run(self, args: Any) -> Any:
        done = await api.child(Charge, {"card": "card 4711", "cents": 5}, id="charge-1")
        return Ok(done["paid"])


def test_what_a_child_redacts_is_redacted_in_the_history_of_its_parent() -> None:
    shop = Shop.start(id="shop-1")
    drain()
    ann = stored("ann", f"{APP}.view_instance", f"{APP}.view_payload")
    shown = {event.kind: event.attributes for event in shop.history(by=ann)}
    assert shown["ChildStarted"]["args"] == {"card": "[redacted]", "cents": 5}
    assert shown["ChildCompleted"]["result"] == {"card": "[redacted]", "paid": True}
    site = browser("root", "view_instance", "view_payload")
    for address in ("/api/instances/shop-1/events/", f"{PAGES}console/runs/{shop.run_id}/raw/"):
        page = site.get(address).content.decode()
        assert "cents" in page
        assert "card 4711" not in page
    assert {e.kind: e.attributes for e in shop.history()}["ChildStarted"]["args"]["card"] == "card 4711"  # code
