"""The REST face, on the database of the lane."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it ships no types
import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django.authoring import workflow
from temporalex_django.models import Chain, Instance, Message, OperatorAction
from tests.integration.rest.test_openapi import GOLDEN
from tests.support.client_flows import Basket, Failing, Sleepy, drain

pytestmark = pytest.mark.django_db

URL = "/api/instances/"
PERMISSIONS = ("view", "start", "signal", "update", "query", "cancel", "terminate")


def person(*permissions: str, name: str = "ann"):
    user = get_user_model().objects.create_user(name)
    names = ["view_payload", *(f"{p}_instance" for p in permissions)]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return user


@pytest.fixture
def api() -> APIClient:
    client = APIClient()
    client.force_authenticate(person(*PERMISSIONS))
    return client


@pytest.fixture
def basket():
    return Basket.start(id="b 1")


def assert_problem(response, status: int, code: str):
    """Assert that the answer is that problem; its body."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body = response.json()
    assert set(body) >= {"type", "title", "status", "detail", "instance", "code"}
    assert (body["status"], body["code"]) == (status, code)
    assert body["title"]
    return body


def but_the_sentence(response) -> dict[str, Any]:
    """A run as it is shown, without what counts the seconds."""
    return {name: shown for name, shown in response.json().items() if name != "summary"}


# -- start -------------------------------------------------------------------------------------------------------------


def test_a_start_is_created(api):
    response = api.post(URL, {"workflow": "test.Basket", "id": "b-1", "args": {"a": 1}}, format="json")

    assert response.status_code == 201
    body = response.json()
    assert (body["id"], body["workflow"], body["status"], body["version"]) == ("b-1", "test.Basket", "pending", 1)
    assert response["Location"] == "http://testserver/api/instances/b-1/"
    assert but_the_sentence(api.get(response["Location"])) == but_the_sentence(response)
    assert Instance.objects.get().input == {"a": 1}
    audit = OperatorAction.objects.get()
    assert (audit.action, audit.actor.username, audit.source, audit.address, audit.forced) == (
        "start", "ann", "rest", "127.0.0.1", False,
    )  # fmt: skip
    assert audit.details == {}


def test_a_start_reads_little_and_says_no_more_than_it_promises(api, django_assert_max_num_queries):
    """Of who may look at the run, and of who may not."""
    api.post(URL, {"workflow": "test.Basket"}, format="json")  # the permissions are in the user now
    with django_assert_max_num_queries(11):
        whole = api.post(URL, {"workflow": "test.Basket", "id": "b-1"}, format="json").json()
    api.force_authenticate(person("start", name="bob"))
    names = api.post(URL, {"workflow": "test.Basket", "id": "b-2"}, format="json").json()

    promised = json.loads(GOLDEN.read_text())
    answers = {
        operation["operationId"]: operation["responses"][code]["content"]["application/json"]["schema"]
        for path in promised["paths"].values()
        for operation in path.values()
        for code in ("200", "201")
        if "content" in operation["responses"].get(code, {})
    }
    assert set(names) == {"id", "run_id", "url"}
    for name in ("create", "resume", "pause", "terminate", "reset", "fork", "retry_activity", "skip_timer"):
        for body in (whole, names):
            jsonschema.validate(body, {**answers[f"runs_{name}"], "components": promised["components"]})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(names, {**answers["runs_retrieve"], "components": promised["components"]})


def test_a_start_without_args_and_id(api):
    response = api.post(URL, {"workflow": "test.Basket"}, format="json")

    assert response.status_code == 201
    assert Instance.objects.get().input is None


def test_a_start_by_value(api):
    response = api.post(URL, {"workflow": "test.Orders", "value": "42"}, format="json")

    assert response.json()["id"] == "order::42"
    assert_problem(api.post(URL, {"workflow": "test.Orders", "value": "NO"}, format="json"), 400, "invalid_id")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"workflow": "test.Baskt"}, 404, "unknown_workflow"),
        ({"workflow": "test.Basket", "id": "a/b"}, 400, "invalid_id"),
        ({"workflow": "test.Basket", "id": ""}, 400, "invalid_id"),
        ({"workflow": "test.Typed", "args": {"owner": 7}}, 400, "payload"),
        ({"workflow": "test.Basket", "id": "b 1"}, 409, "already_running"),
        ({}, 400, "invalid"),
        ([], 400, "invalid"),
    ],
)
def test_bad_starts(api, basket, body, status, code):
    assert_problem(api.post(URL, body, format="json"), status, code)

    assert Chain.objects.count() == 1


@pytest.mark.parametrize("raw", ["{", '{"workflow": NaN}', "\x80"])
def test_malformed_json(api, raw):
    assert_problem(api.post(URL, raw, content_type="application/json"), 400, "parse_error")


def test_another_media_type(api):
    assert_problem(
        api.post(URL, "a=1", content_type="application/x-www-form-urlencoded"), 415, "unsupported_media_type"
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def test_the_list_is_filtered_and_paged(api):
    for i in range(5):
        Basket.start(id=f"b-{i}")
    Sleepy.start(id="s-1").terminate()

    first = api.get(URL, {"limit": 4}).json()
    second = api.get(first["next"]).json()

    assert [run["id"] for run in first["results"] + second["results"]] == ["s-1", "b-4", "b-3", "b-2", "b-1", "b-0"]
    assert second["next"] is None
    assert [run["id"] for run in api.get(URL, {"status": "terminated,failed"}).json()["results"]] == ["s-1"]
    assert len(api.get(URL, {"workflow": "test.Basket"}).json()["results"]) == 5
    assert api.get(URL, {"queue": "other"}).json()["results"] == []
    assert "open" in str(assert_problem(api.get(URL, {"status": "open"}), 400, "invalid")["errors"]["status"])


def test_a_page_costs_the_same_however_long(api, django_assert_num_queries):
    for i in range(12):
        Basket.start(id=f"b-{i}")
    api.get(URL)  # the permissions are in the user now

    for limit in (1, 12):
        with django_assert_num_queries(3):  # which runs, their rows, and the workers, for nobody has taken them up
            assert len(api.get(URL, {"limit": limit}).json()["results"]) == limit


def test_the_detail(api, basket, django_assert_num_queries):
    basket.update("add", 1)
    api.get(f"{URL}b 1/")

    with django_assert_num_queries(4):
        response = api.get(f"{URL}b 1/")
    body = response.json()

    described = json.loads(GOLDEN.read_text())["components"]["schemas"]["InstanceDetail"]["properties"]
    assert set(body) == {*described} - {"notice"}
    assert (body["id"], body["status"], body["blocked"], body["tags"]) == ("b 1", "waiting", None, ["shop"])
    assert "add" in body["accepts"]["updates"]
    same = but_the_sentence(response)
    assert but_the_sentence(api.get(f"{URL}{basket.run_id}/")) == same == but_the_sentence(api.get(body["url"]))


def test_all_that_describe_says_is_there(api, basket):
    basket.pause("a look at the till", by=person("pause", name="bob"))
    described = basket.describe()

    shown = api.get(f"{URL}b 1/").json()

    assert set(described.keys()) <= set(shown)
    assert shown["paused"] == described.paused
    assert (shown["paused"]["reason"], shown["paused"]["by"]["name"]) == ("a look at the till", "bob")
    assert api.get(URL).json()["results"][0]["paused"] == shown["paused"]


def test_a_pending_run_that_no_worker_takes_says_so(api, basket):
    before = timezone.now() - timedelta(minutes=1)
    Chain.objects.update(due_at=before)
    Instance.objects.update(created_at=before)
    assert "queue 'default'" in str(api.get(f"{URL}b 1/").json()["waiting_for"])
    assert "queue 'default'" in str(api.get(URL).json()["results"][0]["waiting_for"])


def test_a_blocked_run_says_what_it_lacks_in_lists_too(api, basket, monkeypatch):
    with monkeypatch.context() as patched:
        patched.delitem(workflow.registry, "test.Basket")
        drain()

    (listed,) = api.get(URL).json()["results"]

    assert listed["blocked"]["code"] == "unknown_workflow"
    assert listed["waiting_for"] == ["a worker with the class test.Basket (version 1)"]
    assert listed["summary"]["state"] == "blocked"
    del listed["summary"]
    assert {
        **listed,
        "activities": [],
        "attempts": [],
        "activities_error": None,
        "human_tasks": [],
        "failed_messages": [],
        "headers": {},
    } == but_the_sentence(api.get(f"{URL}b 1/"))


def test_the_history_is_paged(api, basket):
    for n in (1, 2, 3):
        basket.update("add", n)

    events, address = [], f"{URL}b 1/events/?limit=4"
    while address:
        page = api.get(address).json()
        assert len(page["results"]) <= 4
        events += page["results"]
        address = page["next"]

    assert [(e["seq"], e["kind"]) for e in events] == [(e.number, e.kind) for e in basket.history()]
    assert_problem(api.get(f"{URL}b 1/events/", {"after": "x"}), 400, "invalid")


def test_results(api):
    open_run, failed, cancelled = Sleepy.start(id="s-1"), Failing.start("reason", id="f-1"), Sleepy.start(id="s-2")
    done = Basket.start(id="b-1")
    done.signal("checkout")
    cancelled.cancel()
    drain()

    assert api.get(f"{URL}b-1/result/").json() == {"status": "completed", "result": []}
    waiting = api.get(f"{URL}s-1/result/", {"wait": "0.01"})
    assert (waiting.status_code, waiting.json()["status"]) == (202, "waiting")
    response = api.get(f"{URL}f-1/result/")
    assert (response.status_code, response.json()["status"]) == (200, "failed")
    assert response.json()["error"]["reason"] == {"code": 7}
    assert api.get(f"{URL}s-2/result/").json()["status"] == "cancelled"
    open_run.terminate("why")
    assert api.get(f"{URL}s-1/result/").json()["error"]["code"] == "workflow_terminated"
    assert failed.status == "failed"


# -- messages ----------------------------------------------------------------------------------------------------------


def test_an_update(api, basket):
    response = api.post(f"{URL}b 1/updates/add/?wait=5", {"args": 5, "id": "u-1"}, format="json")

    assert (response.status_code, response.json()) == (200, {"id": "u-1", "result": 1})
    assert api.post(f"{URL}b 1/updates/add/", {"args": 5, "id": "u-1"}, format="json").json()["result"] == 1
    assert api.get(f"{URL}b 1/updates/add/", {"id": "u-1"}).json() == {"id": "u-1", "result": 1}
    audit = OperatorAction.objects.get()
    assert (audit.action, audit.details) == ("update", {"update": "add", "update_id": "u-1"})


@pytest.mark.usefixtures("unhurried")
@pytest.mark.django_db(transaction=True)  # its handler waits, which a transaction would refuse
def test_an_update_that_is_not_done_has_an_address(api, basket):
    response = api.post(f"{URL}b 1/updates/slow/?wait=0", {"args": 4, "id": "u 1"}, format="json")

    assert response.status_code == 202
    assert response.json()["accepted"] is True
    address = response["Location"]
    assert api.get(address).status_code == 202
    drain()
    assert api.get(address).json() == {"id": "u 1", "result": 8}


def test_bad_updates(api, basket):
    body = assert_problem(
        api.post(f"{URL}b 1/updates/add/", {"args": -1, "id": "u-1"}, format="json"), 422, "update_rejected"
    )
    assert "only more than nothing" in body["detail"]
    assert not OperatorAction.objects.exists()
    assert_problem(api.post(f"{URL}b 1/updates/other/", {}, format="json"), 422, "not_accepting")
    assert_problem(api.post(f"{URL}b 1/updates/broken/", {}, format="json"), 422, "update_failed")
    assert_problem(api.post(f"{URL}b 1/updates/add/?wait=soon", {"args": 1}, format="json"), 400, "invalid")
    assert_problem(api.get(f"{URL}b 1/updates/add/?id=nobody"), 404, "workflow_not_found")
    basket.terminate()
    assert_problem(api.post(f"{URL}b 1/updates/add/", {"args": 1}, format="json"), 409, "workflow_closed")


def test_a_signal(api, basket):
    response = api.post(f"{URL}b 1/signals/note/", {"payload": {"a": 1}}, format="json")

    assert response.status_code == 202
    assert Message.objects.get().payload == {"a": 1}
    assert api.post(f"{URL}b 1/signals/checkout/").status_code == 202
    drain()
    assert basket.result() == [{"a": 1}]
    assert_problem(api.post(f"{URL}b 1/signals/note/", {}, format="json"), 409, "workflow_closed")
    assert [a.details for a in OperatorAction.objects.order_by("id")] == [{"signal": "note"}, {"signal": "checkout"}]


def test_a_signal_with_an_id_is_taken_once(api, basket):
    for _ in range(2):
        assert api.post(f"{URL}b 1/signals/note/", {"payload": 1, "id": "k"}, format="json").status_code == 202
    drain()
    assert api.post(f"{URL}b 1/signals/note/", {"payload": 1, "id": "k"}, format="json").status_code == 202
    basket.signal("checkout")
    drain()

    assert basket.result() == [1]
    assert_problem(api.post(f"{URL}b 1/signals/note/", {"id": ""}, format="json"), 400, "invalid_id")


def test_a_query(api, basket):
    basket.update("add", 5)

    assert api.post(f"{URL}b 1/queries/items/", {}, format="json").json() == {"result": [5]}
    assert api.post(f"{URL}b 1/queries/upto/", {"args": 0}, format="json").json() == {"result": []}
    assert_problem(api.post(f"{URL}b 1/queries/nothing/", {}, format="json"), 404, "unknown_query")
    assert_problem(api.post(f"{URL}b 1/queries/broken/", {}, format="json"), 422, "query_failed")
    assert not OperatorAction.objects.exists()


def test_cancel_and_terminate(api, basket):
    other = Sleepy.start(id="s-1")

    assert api.post(f"{URL}s-1/cancel/", {"reason": "asked"}, format="json").status_code == 200
    response = api.post(f"{URL}b 1/terminate/", {"reason": "enough"}, format="json")
    drain()

    assert (response.status_code, response.json()["status"]) == (200, "terminated")
    assert other.status == "cancelled"
    rows = OperatorAction.objects.order_by("id").values_list("action", "reason", "forced", "actor__username")
    assert list(rows) == [("cancel", "asked", False, "ann"), ("terminate", "enough", True, "ann")]
    assert_problem(api.post(f"{URL}b 1/cancel/"), 409, "workflow_closed")
    assert_problem(api.post(f"{URL}b 1/terminate/"), 409, "workflow_closed")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", ""), ("get", "events/"), ("get", "result/"), ("post", "signals/x/"), ("post", "updates/x/"),
        ("post", "queries/x/"), ("post", "cancel/"), ("post", "terminate/"),
    ],
)  # fmt: skip
def test_the_run_is_looked_up_before_the_body_is_judged(api, method, path):
    for ref in ("nobody", "01890000-0000-7000-8000-000000000000", "nul\x00"):
        kwargs = {"data": "{", "content_type": "application/json"} if method == "post" else {}
        assert_problem(getattr(api, method)(f"{URL}{ref}/{path}", **kwargs), 404, "workflow_not_found")


def test_a_method_that_an_address_does_not_have(api, basket):
    assert_problem(api.delete(f"{URL}b 1/"), 405, "method_not_allowed")
    assert_problem(APIClient().delete(f"{URL}b 1/"), 403, "not_permitted")


# -- who may -----------------------------------------------------------------------------------------------------------

ADDRESSES = [
    ("get", "", "view"),
    ("post", "", "start"),
    ("get", "b 1/", "view"),
    ("get", "b 1/events/", "view"),
    ("get", "b 1/result/", "view"),
    ("get", "b 1/updates/add/", "view"),
    ("post", "b 1/signals/x/", "signal"),
    ("post", "b 1/updates/x/", "update"),
    ("post", "b 1/queries/x/", "query"),
    ("post", "b 1/cancel/", "cancel"),
    ("post", "b 1/terminate/", "terminate"),
]


@pytest.mark.parametrize(("method", "path", "permission"), ADDRESSES)
def test_every_address_needs_its_permission(basket, method, path, permission):
    anonymous, client = APIClient(), APIClient()
    others = [p for p in PERMISSIONS if p != permission]
    client.force_authenticate(person(*others))

    response = getattr(anonymous, method)(URL + path)
    assert response.status_code in (401, 403)
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] in ("not_authenticated", "not_permitted")
    body = assert_problem(getattr(client, method)(URL + path), 403, "not_permitted")
    assert permission in body["detail"]
    assert basket.status == "pending"
    assert not Message.objects.exists()


def test_the_hosts_exception_handler_is_left_alone(api, settings):
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "EXCEPTION_HANDLER": "nowhere.handler"}

    assert_problem(api.get(f"{URL}nobody/"), 404, "workflow_not_found")


def test_no_payload_in_the_log(api, basket, caplog):
    caplog.set_level("DEBUG", logger="temporalex_django")

    api.post(f"{URL}b 1/signals/note/", {"payload": "secret-4711"}, format="json")
    api.post(f"{URL}b 1/updates/add/", {"args": 4711}, format="json")

    assert "4711" not in caplog.text
    assert "4711" not in json.dumps(list(OperatorAction.objects.values()), default=str)


@pytest.mark.django_db(transaction=True)
def test_updates_are_outside_of_atomic_requests(settings, monkeypatch):
    from django.db import connections

    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    client = APIClient()
    client.force_authenticate(person(*PERMISSIONS))
    Basket.start(id="b-1")

    assert client.post(f"{URL}b-1/updates/slow/?wait=0.05", {"args": 4, "id": "u"}, format="json").status_code == 202
    assert Message.objects.filter(request_id="u", outcome_status="accepted").exists()
