"""Titles, comments and what human tasks show: for the people whom they ask; others see what they may see of the run."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from temporalex_django import Approval, Done, GraphWorkflow, Ok, Unique, Workflow, api, errors
from temporalex_django.models import HumanTask, OperatorAction
from temporalex_django.testing import drain
from tests.integration.human_tasks.test_pages import INBOX, browser, staff, text
from tests.integration.human_tasks.test_rest import URL, client, send
from tests.support.commands import shell
from tests.support.graphs import leads
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

SECRET, AMOUNT, WHY = "Dismiss Kim Fischer", "kim-4711", "stole the silver"
VIEW, PAYLOAD = "temporalex_django.view_instance", "temporalex_django.view_payload"
RUN = "/admin/temporalex_django/instance/"


class Dismissal(Workflow):
    name = "test.TitlesDismissal"

    async def run(self, args: Any) -> Any:
        await api.approval(SECRET, groups=["hr"], shows={"person": AMOUNT})
        last = await api.approval(f"{SECRET} at once", groups=["hr"])
        return Ok(last.outcome)


class Redacting(Dismissal):
    name = "test.TitlesRedacting"
    redacted = ("person",)


ask = Approval(key="ask", title=SECRET, groups=("hr",))


class Graph(GraphWorkflow):
    name = "test.TitlesGraph"
    unique = Unique(key="titlesgraph")
    initial = ask
    transitions = {**leads(ask, approved=Done, rejected=Done)}


def member(name: str, *permissions: str) -> Any:
    user = staff(name, permissions=permissions)
    user.groups.add(Group.objects.get_or_create(name="hr")[0])
    return user


@pytest.fixture
def decided() -> HumanTask:
    """A closed task with a comment; another one of the same run is open."""
    handle = Dismissal.start(id="d-1")
    drain()
    handle.decide("rejected", comment=WHY, by=member("ann"))
    drain()
    return HumanTask.objects.get(run_id=handle.run_id, closed_at__isnull=False)


def pages(browsing: Client, task: HumanTask, other: HumanTask) -> dict[str, str]:
    """Everything in the admin that may speak of tasks."""
    found = {
        "inbox of all": f"{INBOX}?whose=all",
        "closed ones": f"{INBOX}?whose=closed",
        "closed task": f"{INBOX}{task.pk}/",
        "open task": f"{INBOX}{other.pk}/",
        "runs": RUN,
        "run": f"{RUN}console/runs/{task.run_id}/",
    }
    return {name: text(browsing.get(address, follow=True)) for name, address in found.items()}


def test_who_looks_at_runs_does_not_read_what_people_are_asked(decided: HumanTask) -> None:
    viewer, other = staff("vera", permissions=(VIEW,)), HumanTask.objects.get(closed_at=None)
    seen = pages(browser(viewer), decided, other)
    rest = client(viewer)
    for name, address in {
        "rest closed": f"{URL}{decided.pk}/",
        "rest open": f"{URL}{other.pk}/",
        "rest list": f"{URL}?all=true",
        "rest runs": "/api/instances/",
        "rest run": "/api/instances/d-1/",
        "rest events": "/api/instances/d-1/events/",
        "rest timeline": "/api/instances/d-1/timeline/",
        "rest audit": "/api/instances/d-1/operations/",
    }.items():
        answer = rest.get(address)
        assert answer.status_code == 200, (name, answer.content)
        seen[name] = answer.content.decode()
    for arguments in (
        ("tasks", "list", "--all"),
        ("tasks", "list", "--all", "--json"),
        ("tasks", "show", other.pk, "--json"),
        ("tasks", "show", decided.pk),
        ("describe", "d-1"),
        ("describe", "d-1", "--json"),
        ("list",),
        ("list", "--json"),
        ("doctor", "d-1"),
        ("history", "d-1"),
    ):
        ran = shell(*arguments, "--as-user", "vera")
        assert ran.status == 0, ran
        seen[" ".join(map(str, arguments))] = ran.out
    handle = Dismissal.handle("d-1")
    seen["describe"] = repr(handle.describe(by=viewer))
    seen["human_tasks"] = repr(handle.human_tasks(by=viewer))
    for name, said in seen.items():
        for secret in (SECRET, AMOUNT, WHY):
            assert secret not in said, name
    assert handle.describe(by=viewer).waiting_for == ["decision 2"]
    assert "hidden: this requires the permission temporalex_django.view_payload" in seen["rest list"]

    # what they try is refused, and told, without it
    refused = send(rest, f"{URL}{other.pk}/decide/", {"outcome": "approved"})
    assert refused.status_code == 403 and SECRET not in refused.content.decode()
    with pytest.raises(errors.ActionNotPermitted) as denied:
        handle.decide("approved", by=viewer)
    assert SECRET not in str(denied.value)
    assert not OperatorAction.objects.filter(denied=True, reason__contains=SECRET).exists()
    # a search is no way around it
    assert other.workflow_id not in text(browser(viewer).get(f"{INBOX}?whose=all&q=Fischer"))


def test_the_people_who_are_asked_and_who_see_payloads_read_it(decided: HumanTask) -> None:
    other = HumanTask.objects.get(closed_at=None)
    for user in (member("bea", VIEW), staff("paul", permissions=(VIEW, PAYLOAD))):
        seen = pages(browser(user), decided, other)
        for name in ("inbox of all", "closed ones", "closed task", "open task"):
            assert SECRET in seen[name], (user, name)
        assert WHY in seen["closed task"] and AMOUNT in seen["closed task"]
        detail = client(user).get(f"{URL}{decided.pk}/").json()
        assert (detail["title"], detail["comment"], detail["shows"]) == (SECRET, WHY, {"person": AMOUNT})
        assert SECRET in client(user).get(f"{URL}?all=true").json()["results"][0]["title"]
    assert text(browser(user).get(f"{INBOX}?whose=all&q=Fischer")).count(SECRET)
    decider = type(user).objects.get(username="ann")
    decider.groups.clear()
    decider.user_permissions.set([])
    assert client(decider).get(f"{URL}{decided.pk}/").status_code in (200, 404)


def test_a_class_that_redacts_shows_no_title() -> None:
    """Nobody knows which part of a title comes from a redacted field."""
    Redacting.start(id="r-1")
    drain()
    task = HumanTask.objects.get(workflow=Redacting.name)
    reader = staff("rhea", permissions=(VIEW, PAYLOAD))
    detail = client(reader).get(f"{URL}{task.pk}/").json()
    assert (detail["title"], detail["shows"]) == ("[redacted]", {"person": "[redacted]"})
    assert Redacting.handle("r-1").describe(by=reader).waiting_for == ["decision 1"]


def test_a_step_of_a_graph_likewise() -> None:
    Graph.start("1")
    drain()
    task = HumanTask.objects.get(workflow=Graph.name)
    viewer = staff("vera", permissions=(VIEW,))
    assert SECRET not in client(viewer).get(f"{URL}{task.pk}/").content.decode()
    assert SECRET not in client(viewer).get("/api/instances/titlesgraph::1/").content.decode()
    assert SECRET in client(member("bea")).get(f"{URL}{task.pk}/").content.decode()


def test_a_page_of_them_costs_no_more_for_others() -> None:
    viewer = staff("vera", permissions=(VIEW,))

    def reads() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client(viewer).get(f"{URL}?all=true").status_code == 200
        return len(queries)

    Dismissal.start(id="d-1")
    drain()
    one = reads()
    for number in range(2, 6):
        Dismissal.start(id=f"d-{number}")
    drain()
    assert reads() == one


def test_code_and_substitutes_see_all() -> None:
    Dismissal.start(id="d-1")
    drain()
    assert Dismissal.handle("d-1").describe().waiting_for == [f"decision {SECRET}"]
    (task,) = Dismissal.handle("d-1").human_tasks()
    assert (task.title, task.shows) == (SECRET, {"person": AMOUNT})
    assert SECRET in shell("tasks", "list").out
    assert stored("nobody") is not None
