"""``Idempotency-Key``: what starts and steers runs is done once, and the same request again has the same answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connections
from django.utils import timezone
from rest_framework.permissions import AllowAny
from rest_framework.test import APIClient

from temporalex_django.db import background_hooks
from temporalex_django.models import BulkJob, Chain, Instance, KeptAnswer, OperatorAction
from temporalex_django.operations.fleet import switches
from temporalex_django.rest.views import InstanceViewSet
from tests.integration.rest.test_instances import URL, assert_problem, but_the_sentence
from tests.support.client_flows import Basket, drain
from tests.support.matrix import Choice

pytestmark = pytest.mark.django_db(transaction=True)


def client(name: str = "ann") -> APIClient:
    made = APIClient(raise_request_exception=False)
    made.force_authenticate(get_user_model().objects.create_superuser(name))
    return made


def send(api: APIClient, path: str, body: Any, key: str, **headers: str) -> Any:
    return api.post(path, body, format="json", headers={"Idempotency-Key": key, **headers})


def test_a_start_is_done_once() -> None:
    api, body = client(), {"workflow": "test.Basket", "args": {"a": 1, "b": 2}}

    first = send(api, URL, body, "k-1")
    again = send(api, URL, {"args": {"b": 2, "a": 1}, "workflow": "test.Basket"}, "k-1")

    assert (first.status_code, again.status_code) == (201, 201), again.content
    assert but_the_sentence(again) == but_the_sentence(first)
    assert (again["Location"], again["ETag"]) == (first["Location"], first["ETag"])
    assert Chain.objects.count() == OperatorAction.objects.count() == 1
    problem = assert_problem(send(api, URL, {**body, "args": 5}, "k-1"), 422, "idempotency_key_reused")
    assert "k-1" in problem["detail"]
    assert_problem(send(api, f"{URL}?x=1", body, "k-1"), 400, "invalid")
    assert Chain.objects.count() == 1
    others = [send(client("bob"), URL, body, "k-1"), send(api, URL, body, "k-2"), api.post(URL, body, format="json")]
    assert [answer.status_code for answer in others] == [201] * 3
    assert Chain.objects.count() == 4
    assert_problem(send(api, URL, body, "x" * 201), 400, "invalid_id")


def test_what_was_refused_leaves_no_key() -> None:
    api, body = client(), {"workflow": "test.Basket", "id": "b-1"}
    taken = Basket.start(id="b-1")

    assert_problem(send(api, URL, body, "k-1"), 409, "already_running")
    assert not KeptAnswer.objects.exists()
    taken.terminate()
    first = send(api, URL, body, "k-1")

    assert first.status_code == 201
    assert send(api, URL, body, "k-1").json()["run_id"] == first.json()["run_id"] != taken.run_id


def test_a_request_whose_process_died_at_work_that_another_system_does_is_not_answered_as_done() -> None:
    api = client()
    Basket.start(id="b-1")
    assert send(api, f"{URL}b-1/pause/", {}, "k-1").status_code == 200
    KeptAnswer.objects.update(made=None)  # as such a process leaves it

    problem = assert_problem(send(api, f"{URL}b-1/pause/", {}, "k-1"), 409, "outcome_unknown")

    assert "k-1" in problem["detail"]
    assert_problem(send(api, f"{URL}b-1/unpause/", {}, "k-1"), 422, "idempotency_key_reused")


def test_operations_and_bulk_jobs_are_done_once() -> None:
    api = client()
    first = Basket.start(id="b-1").run_id
    drain()
    tag = api.get(f"{URL}b-1/")["ETag"]

    reset = [send(api, f"{URL}b-1/reset/", {"to": 0}, "k-1", **{"If-Match": tag}) for _ in range(2)]
    second = Basket.handle("b-1").run_ids[1]
    by_run = api.post(f"{URL}{first}/pause/", {}, format="json").json()
    assert by_run["run_id"] == first  # that one was named
    api.post(f"{URL}{first}/unpause/", {}, format="json")
    fork = [send(api, f"{URL}b-1/fork/", {"to": 0}, "k-7") for _ in range(2)]
    ended = [send(api, f"{URL}b-1/terminate/", {"reason": "enough"}, "k-2") for _ in range(2)]
    jobs = [send(api, "/api/bulk/", {"action": "delete", "runs": [first]}, "k-3") for _ in range(2)]
    assert_problem(send(api, f"{URL}b-1/terminate/", {}, "k-4"), 409, "workflow_closed")
    gone = [send(api, f"{URL}b-1/delete/", {}, "k-5") for _ in range(2)]

    for answers, status in ((reset, 200), (fork, 201), (ended, 200), (jobs, 201), (gone, 204)):
        assert [answer.status_code for answer in answers] == [status] * 2, answers[0].content + answers[1].content
        assert answers[0].headers.get("Location") == answers[1].headers.get("Location")
    assert reset[0].json()["run_id"] == reset[1].json()["run_id"] == second != first
    assert reset[0].json()["status"] == reset[1].json()["status"] != "terminated"
    assert fork[0].json()["run_id"] == fork[1].json()["run_id"] != first
    assert ended[1].json()["status"] == "terminated"
    assert jobs[0].json()["id"] == jobs[1].json()["id"]
    assert BulkJob.objects.count() == 1
    assert [*OperatorAction.objects.order_by("pk").values_list("action", flat=True)] == [
        "reset", "pause", "unpause", "fork", "terminate", "start_bulk", "delete",
    ]  # fmt: skip
    assert_problem(send(api, f"{URL}b-2/delete/", {}, "k-6"), 404, "workflow_not_found")


def test_a_resume_and_what_is_done_to_jobs_are_done_once() -> None:
    api, run = client(), Choice.start("1")
    drain()
    path, body = f"{URL}{run.run_id}/resume/", {"event": "approved"}

    resumed = [send(api, path, body, "k-1") for _ in range(2)]

    assert [answer.status_code for answer in resumed] == [200, 200], resumed[1].content
    assert [event.kind for event in run.history()].count("SignalReceived") == 1
    assert_problem(send(api, path, {"event": "rejected"}, "k-1"), 422, "idempotency_key_reused")
    assert_problem(api.post(path, body, format="json"), 409, "workflow_closed")

    basket = Basket.start(id="b-1").run_id
    job = api.post("/api/bulk/", {"action": "pause", "runs": [basket]}, format="json").json()["id"]
    for what, state in (("stop", "stopped"), ("resume", "running")):
        answers = [send(api, f"/api/bulk/{job}/{what}/", {"reason": "r"}, f"k-{what}") for _ in range(2)]
        assert [(answer.status_code, answer.json()["state"]) for answer in answers] == [(200, state)] * 2, what
    assert_problem(send(api, f"/api/bulk/{job}/resume/", {}, "k-stop"), 422, "idempotency_key_reused")
    assert_problem(api.post(f"/api/bulk/{job}/resume/", {}, format="json"), 409, "not_possible")
    assert [*OperatorAction.objects.filter(action__endswith="_bulk").values_list("action", flat=True)] == [
        "resume_bulk", "stop_bulk", "start_bulk",
    ]  # fmt: skip


class Everybody(InstanceViewSet):
    """Of a project that lets everybody in, whoever that is."""

    permission_classes = (AllowAny,)


def test_keys_are_of_somebody(rf: Any) -> None:
    """Of those who are nobody one would get the answer to another."""
    view = Everybody.as_view({"post": "create"})

    answer = view(rf.post(URL, {"workflow": "test.Basket"}, "application/json", headers={"Idempotency-Key": "k"}))

    assert answer.status_code == 400, answer.data
    assert "Log in" in str(answer.data["errors"])
    assert not KeptAnswer.objects.exists()


def test_two_at_once_start_one_run() -> None:
    together, body = threading.Barrier(2), {"workflow": "test.Basket"}
    api = client()

    def ask(_: int) -> Any:
        together.wait(10)
        try:
            return send(api, URL, body, "k-1").json()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        answers = [*pool.map(ask, range(2))]

    assert len({answer["run_id"] for answer in answers}) == 1
    assert Instance.objects.count() == 1


def test_a_denial_is_noted_though_the_key_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    user = get_user_model().objects.create_user("cleo")
    api = APIClient()
    api.force_authenticate(user)
    monkeypatch.setattr(Basket, "start_permission", "shop.start_basket")
    user.user_permissions.add(Permission.objects.get(codename="start_instance"))

    assert_problem(send(api, URL, {"workflow": "test.Basket"}, "k-1"), 403, "not_permitted")

    assert OperatorAction.objects.get(denied=True).action == "start"
    assert not KeptAnswer.objects.exists()


def test_answers_are_kept_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    api = client()
    for key in ("old", "young"):
        send(api, URL, {"workflow": "test.Basket"}, key)
    first = KeptAnswer.objects.earliest("at")
    KeptAnswer.objects.filter(pk=first.pk).update(at=timezone.now() - timedelta(hours=25))
    switches.ANSWERS._checked_at.clear()

    assert background_hooks.has_work("default")
    assert not background_hooks.has_work("default")  # looked for once a minute
    background_hooks.run_hooks("default")

    assert KeptAnswer.objects.count() == 1
    assert not KeptAnswer.objects.filter(pk=first.pk).exists()
    assert Chain.objects.count() == 2
