"""Human tasks say who is asked and which step asks; switches are set from a list, or from where the thing is shown."""

from __future__ import annotations

import html
import re
from typing import Any, ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.test import Client
from rest_framework.test import APIClient

from temporalex_django import Approval, Done, GraphWorkflow, Ok, RetryPolicy, Unique, Workflow, activity, api
from temporalex_django.models import HumanTask, SwitchedOff
from tests.support.client_flows import drain
from tests.support.graphs import leads
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

TASKS, RUNS = "/admin/temporalex_django/instance/console/desk/", "/admin/temporalex_django/instance/"
SWITCHES, WORKERS = (
    "/admin/temporalex_django/instance/console/switches/",
    "/admin/temporalex_django/instance/console/workers/",
)


class Sign(Approval):
    label = "Sign the contract"


legal = Sign(key="legal_team", groups=("lawyers",))
board = Sign(key="board", users=("ann",))


class Contract(GraphWorkflow):
    name = "test.AskedContract"

    unique = Unique(key="contract")
    initial = legal
    transitions: ClassVar = {
        **leads(legal, approved=board, rejected=Done),
        **leads(board, approved=Done, rejected=Done),
    }


class Asks(Workflow):
    name = "test.AskedAsks"

    async def run(self, args: Any) -> Any:
        return Ok(await api.approval("Pay the invoice?", groups=["lawyers"], users=["ann"], role="auth.change_user"))


@activity(retry=RetryPolicy(initial_interval=3600))
def ring_the_bell() -> int:
    raise ConnectionError("no bell")


class Rings(Workflow):
    name = "test.AskedRings"

    async def run(self, args: Any) -> Any:
        return Ok(await ring_the_bell())


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def page(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, response
    return html.unescape(response.content.decode())


def said(text: str, name: str) -> str:
    found = re.search(rf"{name}: (.*?)\.( |<)", text)
    assert found is not None, name
    return found[1]


def test_who_is_asked_stands_on_the_page_and_in_the_inbox_of_managers(admin: Client) -> None:
    users = get_user_model().objects
    ann, bob = users.create_user("ann", is_staff=True), users.create_user("bob", is_staff=True)
    Group.objects.create(name="lawyers")
    run = Asks.start(id="a-1")
    drain()
    task = HumanTask.objects.get()
    everybody = {"ann", "the group lawyers", "anyone with the permission auth.change_user"}

    assert {*said(page(admin, f"{TASKS}{task.pk}/"), "Candidates").split(", ")} == everybody
    assert "the group lawyers" in page(admin, f"{TASKS}?whose=all")
    assert "the group lawyers" in text_of(admin, run.run_id)

    bob.user_permissions.add(Permission.objects.get(codename="change_user"))
    ann.user_permissions.add(Permission.objects.get(codename="delegate_humantask"))
    theirs = Client()
    theirs.force_login(ann)
    theirs.post(f"{TASKS}{task.pk}/", {"do": "delegate", "to": "bob", "reason": "on holiday"})

    task.refresh_from_db()
    assert [one["to"] for one in task.delegated] == ["bob"]
    text = page(admin, f"{TASKS}{task.pk}/")
    assert {*said(text, "Candidates").split(", ")} == {*everybody, "bob"}
    assert "Delegated to bob by ann: on holiday." in text
    assert "bob" in page(admin, f"{TASKS}?whose=all")
    rest = APIClient()
    rest.force_authenticate(get_user_model().objects.get(username="root"))
    (listed,) = rest.get("/api/human-tasks/", {"all": "true"}).json()["results"]
    assert "user:bob" in listed["asked"]
    assert "group:lawyers" in listed["asked"]


def test_tasks_of_one_graph_are_told_apart_by_their_steps(admin: Client) -> None:
    run = Contract.start("1")
    drain()
    run.resume("approved", step=legal, by=get_user_model().objects.get(username="root"))
    drain()
    first, second = HumanTask.objects.order_by("opened_at", "key")

    assert first.title == second.title == "Sign the contract"
    steps = {said(page(admin, f"{TASKS}{task.pk}/"), "Step") for task in (first, second)}
    assert steps == {"legal team", "board"}
    assert "board" in page(admin, f"{TASKS}?whose=all")
    asked = text_of(admin, run.run_id)
    assert "board" in asked[asked.index('id="tx-asked"') : asked.index("</section>", asked.index('id="tx-asked"'))]


def test_a_switch_is_chosen_from_a_list(admin: Client) -> None:
    text = page(admin, SWITCHES)
    for thing in (f"workflow:{Rings.name}", f"activity:{ring_the_bell.name}", "queue:default"):
        assert f'<option value="{thing}">' in text

    admin.post(f"{SWITCHES}off/", {"thing": f"activity:{ring_the_bell.name}", "reason": "it is night"})
    row = SwitchedOff.objects.get()
    assert (row.kind, row.name, row.reason) == ("activity", ring_the_bell.name, "it is night")
    admin.post(f"{SWITCHES}on/", {"thing": f"activity:{ring_the_bell.name}"})
    assert not SwitchedOff.objects.exists()
    admin.post(f"{SWITCHES}off/", {"thing": "nonsense"})
    assert not SwitchedOff.objects.exists()


def test_a_switch_is_set_from_where_the_thing_is_shown(admin: Client) -> None:
    run = Rings.start(id="r-1")
    drain()
    text = text_of(admin, run.run_id)

    for thing in (f"workflow:{Rings.name}", f"activity:{ring_the_bell.name}", "queue:default"):
        address = f"{SWITCHES}?thing={thing.replace(':', '%3A')}"
        assert f'href="{address}"' in text, thing
        assert f'<option value="{thing}" selected>' in page(admin, address)
    assert 'name="thing" value="queue:default"' in page(admin, WORKERS)
    assert admin.get("/admin/temporalex_django/switchedoff/")["Location"] == SWITCHES

    reader = get_user_model().objects.create_user("eve", is_staff=True)
    reader.user_permissions.set(Permission.objects.filter(codename__in=["view_instance", "view_switchedoff"]))
    theirs = Client()
    theirs.force_login(reader)
    assert "?thing=" not in text_of(theirs, run.run_id)
    assert "<option" not in page(theirs, f"{SWITCHES}?thing=queue:default")
