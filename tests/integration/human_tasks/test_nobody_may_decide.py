"""Four eyes that shut everybody out: the task says so in every interface, and a signal tells of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from temporalex_django import Ok, Workflow, api, signals
from temporalex_django.access import AccessPolicy
from temporalex_django.models import HumanTask
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.read.project_state import load_project_state
from temporalex_django.testing import drain
from tests.integration.human_tasks.test_pages import INBOX, browser, staff, text
from tests.integration.human_tasks.test_rest import URL, client
from tests.support.commands import shell
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

MAY = "auth.change_group"
START, VIEW, PAYLOAD = (f"temporalex_django.{name}" for name in ("start_instance", "view_instance", "view_payload"))


class Lonely(Workflow):
    """Asks twice; ``args`` says whom."""

    name = "test.Lonely"

    async def run(self, args: Any) -> Any:
        await api.approval("Approve it", **args)
        last = await api.approval("Pay it", four_eyes=True, **args)
        return Ok(last.by.name)


def asked(by: Any, first: Any, **whom: Any) -> HumanTask:
    """The second task of a run that ``by`` has started, after the decision of ``first``."""
    handle = Lonely.start(whom, by=by)
    drain()
    handle.decide("approved", by=first)
    drain()
    return HumanTask.objects.get(run_id=handle.run_id, closed_at=None)


@pytest.fixture
def told() -> Any:
    """Arguments of the signals that were sent."""
    found: list[dict[str, Any]] = []

    def note(**about: Any) -> None:
        found.append(about)

    signals.human_task_nobody_left.connect(note)
    yield found
    signals.human_task_nobody_left.disconnect(note)


def test_the_task_says_so_in_every_interface(told: list[dict[str, Any]]) -> None:
    ann, bob = stored("ann", MAY, START), stored("bob", MAY)
    manager = staff("mia", permissions=(VIEW, PAYLOAD))
    task = asked(ann, bob, role=MAY)

    (note,) = told
    assert (note["task"], note["title"], note["workflow"]) == (str(task.pk), "Pay it", "test.Lonely")
    assert note["asked"] == (f"perm:{MAY}",)
    detail = client(manager).get(f"{URL}{task.pk}/").json()
    assert (detail["nobody_left"], detail["four_eyes"]) == (True, "chain")
    assert "Nobody is left who may decide it" in detail["text"]
    (listed,) = client(manager).get(f"{URL}?all=true").json()["results"]
    assert listed["nobody_left"] is True
    assert "Nobody is left who may decide it" in text(browser(manager).get(f"{INBOX}{task.pk}/"))
    listed_page = browser(manager).get(f"{INBOX}?whose=all")
    assert "Nobody can decide" in text(listed_page)
    assert re.search(r'<a href="[^"]*">Pay it</a>', listed_page.content.decode())  # nothing else is in the link
    run_page = text(browser(manager).get(f"/admin/temporalex_django/instance/console/runs/{task.run_id}/people/"))
    assert "Nobody is left" in run_page
    done = shell("tasks", "show", task.pk, "--json")
    assert json.loads(done.out)["nobody_left"] is True
    assert "nobody can decide these tasks" in shell("tasks", "list").out
    said = json.loads(shell("doctor", "--json").out)["findings"]
    (finding,) = (one for one in said if one["code"] == "nobody_left")
    assert "1 human task of test.Lonely has been waiting since" in finding["text"]
    assert f"tasks show {task.pk}" in finding["next_step"]
    assert client(bob).get(URL).json()["results"] == []

    carl = stored("carl", MAY)
    assert client(carl).get(f"{URL}{task.pk}/").json()["nobody_left"] is False
    assert "nobody_left" not in shell("doctor", "--json").out


def test_somebody_is_left_as_long_as_one_may_decide(told: list[dict[str, Any]]) -> None:
    ann, bob = stored("ann", MAY, START), stored("bob", MAY)
    group = Group.objects.create(name="payers")
    for user in (ann, bob):
        user.groups.add(group)

    def left(**whom: Any) -> bool:
        return not operations.mark_nobody_left(asked(ann, bob, **whom))[0].nobody_left

    assert not left(users=["ann", "bob", "nobody-of-that-name"])
    assert not left(groups=["payers"])
    carl = stored("carl", is_active=False)
    carl.groups.add(group)
    assert not left(groups=["payers"], users=["carl"])
    type(carl).objects.update(is_active=True)
    assert left(groups=["payers"]) and left(users=["ann", "bob", "carl"])
    carl.groups.clear()
    assert not left(groups=["payers"])
    get_user_model().objects.create_superuser("root")
    assert left(groups=["payers"]) and left(role=MAY) and not left(users=["bob"])
    assert len(told) == 5


class Directory(AccessPolicy):
    """Permissions stand somewhere else."""

    def permits(self, user: Any, permission: str) -> bool:
        return user.username in ("ann", "bob", "dora")


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.Directory"})
def test_nothing_is_said_where_nobody_can_tell(told: list[dict[str, Any]]) -> None:
    task = asked(stored("ann"), stored("bob"), role=MAY)
    stored("dora")
    assert not told and not operations.mark_nobody_left(task)[0].nobody_left


def test_others_cost_no_query() -> None:
    """And a page of them costs as many as its words need, not as many as its tasks."""
    ann, bob = stored("ann", MAY, START), stored("bob", MAY)

    def reads(tasks: list[HumanTask]) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert all(task.nobody_left == task.is_open for task in operations.mark_nobody_left(*tasks))
        return len(queries)

    asked(ann, bob, role=MAY)
    one = reads([*HumanTask.objects.all()])
    for _ in range(3):
        asked(ann, bob, role=MAY)
    assert reads([*HumanTask.objects.all()]) == one
    assert reads([*HumanTask.objects.filter(four_eyes="")]) == 0


def test_a_group_counts_from_its_oldest_task_whichever_is_due_first() -> None:
    ann, bob = stored("ann", MAY, START), stored("bob", MAY)
    oldest, newest = asked(ann, bob, role=MAY), asked(ann, bob, role=MAY)
    HumanTask.objects.filter(pk=newest.pk).update(due_at=oldest.opened_at)

    (group,) = load_project_state("default").undecidable_tasks
    assert (group.count, group.since, group.task) == (2, oldest.opened_at, str(oldest.pk))
