"""Human tasks over REST: the inbox of whoever asks, claims, delegations and decisions, and who may not."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from temporalex_django.models import HumanTask, OperatorAction
from tests.integration.rest.test_instances import assert_problem
from tests.support.client_flows import drain
from tests.support.invoices import ACCOUNTING, HEADS, InvoiceDesk, PlainQuestion
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/api/human-tasks/"
VIEWS = ("temporalex_django.view_instance", "temporalex_django.view_payload")


def client(user: Any) -> APIClient:
    made = APIClient(raise_request_exception=False)
    made.force_authenticate(type(user).objects.get(pk=user.pk))
    return made


def person(name: str, *groups: str, permissions: tuple[str, ...] = ()) -> Any:
    user = stored(name, *permissions)
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def send(api: APIClient, path: str, body: Any = None, **headers: str) -> Any:
    return api.post(path, {} if body is None else body, format="json", headers=headers)


def test_the_inbox_of_whoever_asks_and_his_decision() -> None:
    ann, bob, eve = person("ann", ACCOUNTING), person("bob", ACCOUNTING), person("eve")
    desk = InvoiceDesk.start("4711", {"number": 4711, "total": 1200, "form": "schema"}, by=None)
    PlainQuestion.start({"title": "Shall we?", "users": ["bob"]}, id="plain-1")
    drain()
    api, other = client(ann), client(bob)

    (mine,) = api.get(URL).json()["results"]
    assert (mine["title"], mine["workflow_id"], mine["outcomes"]) == (
        "Approve invoice 4711 over 1200 EUR",
        "invoice::4711",
        ["approved", "rejected"],
    )
    assert "Decide by" in mine["text"]
    assert [one["title"] for one in other.get(URL).json()["results"]] == [mine["title"], "Shall we?"]
    assert other.get(f"{URL}?workflow=test.PlainQuestion").json()["results"][0]["due_at"] is None
    first = other.get(f"{URL}?limit=1").json()
    assert [one["title"] for one in other.get(first["next"]).json()["results"]] == ["Shall we?"]
    assert client(eve).get(URL).json()["results"] == []
    assert_problem(client(eve).get(mine["url"]), 404, "human_task_not_found")
    assert_problem(client(eve).get(f"{URL}?all=true"), 403, "not_permitted")
    assert OperatorAction.objects.filter(denied=True, actor=eve).exists()
    operator = client(person("operator", permissions=("temporalex_django.view_instance",)))
    assert len(operator.get(f"{URL}?all=true").json()["results"]) == 2
    assert operator.get(URL).json()["results"] == []
    assert_problem(operator.get(f"{URL}?all=yes"), 400, "invalid")
    assert_problem(operator.get(f"{URL}?cursor=x"), 400, "invalid")
    assert_problem(operator.get(f"{URL}?run=x"), 400, "invalid")
    assert_problem(send(operator, f"{mine['url']}decide/", {"outcome": "approved"}), 403, "not_permitted")

    # claimed by one, it is gone from the inbox of the other, who is told by whom
    assert send(api, f"{mine['url']}claim/").json()["claimed_by"]["name"] == "ann"
    assert [one["title"] for one in other.get(URL).json()["results"]] == ["Shall we?"]
    assert [one["title"] for one in api.get(f"{URL}?mine=true").json()["results"]] == [mine["title"]]
    refused = assert_problem(send(other, f"{mine['url']}decide/", {"outcome": "rejected"}), 409, "human_task_claimed")
    assert "ann" in refused["detail"]
    assert "ann" in other.get(mine["url"]).json()["why_not"]
    assert send(api, f"{mine['url']}release/").json()["claimed_by"] is None

    # the form
    form = api.get(mine["url"]).json()["form"]
    assert form["kind"] == "schema"
    wrong = {"outcome": "approved", "data": {"account": "beer"}}
    assert_problem(send(api, f"{mine['url']}decide/", wrong), 400, "payload")
    assert_problem(send(api, f"{mine['url']}decide/", {"outcome": "maybe"}), 400, "payload")
    assert_problem(send(api, f"{mine['url']}decide/", {"outcome": "approved", "why": 1}), 400, "invalid")
    right = {"outcome": "approved", "data": {"account": "goods", "cost_centre": 7}, "comment": "as ordered"}
    stale = assert_problem(send(api, f"{mine['url']}decide/", {**right, "form": "older"}), 409, "form_changed")
    assert "has changed since" in stale["detail"]
    done = send(api, f"{mine['url']}decide/", {**right, "form": form["digest"]}, **{"Idempotency-Key": "k-1"})
    assert done.status_code == 200, done.content
    assert (done.json()["ending"], done.json()["outcome"], done.json()["decided_by"]["name"]) == (
        "decided",
        "approved",
        "ann",
    )
    again = send(api, f"{mine['url']}decide/", {**right, "form": form["digest"]}, **{"Idempotency-Key": "k-1"})
    assert (again.status_code, again.json()["outcome"]) == (200, "approved")
    late = assert_problem(send(other, f"{mine['url']}decide/", {"outcome": "rejected"}), 409, "human_task_closed")
    assert "ann" in late["detail"]
    assert "approved" in late["detail"]
    drain()
    result = desk.result(timeout=0)
    assert (result["outcome"], result["by"], result["comment"]) == ("approved", "ann", "as ordered")
    assert result["data"]["cost_centre"] == 7
    audit = OperatorAction.objects.get(action="decide", denied=False)
    assert (audit.actor, audit.source, audit.workflow_id) == (ann, "rest", "invoice::4711")


def test_a_task_is_handed_on_and_closes_with_its_run() -> None:
    ann = person("ann", ACCOUNTING, permissions=("temporalex_django.delegate_humantask",))
    eve, dan = person("eve"), person("dan", HEADS)
    desk = InvoiceDesk.start("1", {"number": 1, "total": 5})
    drain()
    task = HumanTask.objects.get()
    path = f"{URL}{task.pk}/"

    assert_problem(send(client(ann), f"{path}delegate/", {"to": "nobody"}), 403, "not_permitted")
    assert_problem(client(dan).get(path), 404, "human_task_not_found")
    with CaptureQueriesContext(connection) as asked:
        of_run = client(person("op", permissions=VIEWS)).get(f"/api/instances/{desk.run_id}/")
    (named,) = of_run.json()["human_tasks"]
    assert (named["id"], named["title"], named["due_at"] is None) == (str(task.pk), task.title, task.due_at is None)
    assert sum("temporalex_human_task" in query["sql"] for query in asked.captured_queries) == 1
    assert send(client(ann), f"{path}delegate/", {"to": "eve", "reason": "on leave"}).status_code == 200
    (hers,) = client(eve).get(URL).json()["results"]
    assert hers["id"] == str(task.pk)
    desk.terminate("paid in cash")
    gone = assert_problem(send(client(eve), f"{path}decide/", {"outcome": "approved"}), 409, "human_task_closed")
    assert "run" in gone["detail"]
    assert client(eve).get(URL).json()["results"] == []
    shown = client(eve).get(path).json()
    assert (shown["ending"], shown["outcome"]) == ("run_closed", None)
