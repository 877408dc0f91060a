"""The first screen of a run's page: what failed, what is tried again, and who belongs to it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from temporalex_django import Err, Ok, RetryPolicy, Workflow, activity, api
from temporalex_django.models import ActivityTask, Instance
from tests.support.client_flows import Failing, drain
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


@activity(retry=RetryPolicy(initial_interval=100, max_attempts=20))
def refuse_to_charge() -> None:
    raise ConnectionError("<b>refused</b> by 4711")


class Charges(Workflow):
    name = "test.AdminCharges"

    async def run(self, args: Any) -> Any:
        return Ok(await refuse_to_charge())


class Gives(Workflow):
    name = "test.AdminGives"

    async def run(self, args: Any) -> Any:
        return Err({"declined": "card 4711"})


class Parent(Workflow):
    name = "test.AdminParent"

    async def run(self, args: Any) -> Any:
        return Ok(await api.child(Charges, id="the-child"))


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def blind() -> Client:
    user = get_user_model().objects.create_user("ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_instance"))
    client = Client()
    client.force_login(user)
    return client


def page(client: Client, run: Any) -> str:
    return text_of(client, run)


def test_a_failed_run_says_why_above_everything_else(admin):
    raised, given = Failing.start("raise", id="f-1"), Gives.start(id="f-2")
    drain()

    text = page(admin, raised.run_id)
    assert text.index("LookupError") < text.index("tx-parts")
    assert "nowhere" in text[: text.index("tx-parts")]
    assert "card 4711" in page(admin, given.run_id)
    for run in (raised, given):
        hidden = page(blind(), run.run_id) if run is raised else ""
        assert "nowhere" not in hidden
        assert "Failed" in hidden or run is given


def test_an_activity_that_is_tried_again_says_why_and_when(admin):
    Charges.start(id="c-1")
    drain()
    task = ActivityTask.objects.get()
    assert task.attempt == 1, "the activity was not tried"

    text = page(admin, task.run_id)
    first = text[: text.index("tx-parts")]
    assert "ConnectionError" in first
    assert "&lt;b&gt;refused&lt;/b&gt; by 4711" in first
    assert "1 / 20" in first
    hidden = page(blind(), task.run_id)
    assert "4711" not in hidden
    assert "ConnectionError" in hidden


def test_a_child_links_to_its_parent_and_back(admin):
    parent = Parent.start(id="the-parent")
    drain()
    child = Instance.objects.get(workflow_id="the-child")

    assert f"{RUNS}console/runs/{child.pk}/" in page(admin, parent.run_id)
    assert f"{RUNS}console/runs/{parent.run_id}/" in page(admin, child.pk)
