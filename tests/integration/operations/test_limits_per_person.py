"""Nobody alone takes what all others need: seats, jobs, claims, delegations, search conditions."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import override_settings
from rest_framework.test import APIClient

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.models import HumanTask, Instance, OperatorAction
from temporalex_django.operations.base import Actor
from temporalex_django.operations.bulk import StartBulk, StopBulk
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate, Release
from temporalex_django.rest.requests import wait_slot
from temporalex_django.testing import drain
from tests.support.client_flows import Basket

pytestmark = pytest.mark.django_db(transaction=True)


class Asking(Workflow):
    """Asks somebody."""

    name = "test.BoundAsking"

    async def run(self, args: None) -> Ok[Any]:
        return Ok((await api.approval("May it go on?", role="auth.add_group")).outcome)


class Searched(Workflow):
    """Is found by many attributes."""

    name = "test.BoundSearched"
    search_attributes = {f"field_{n}": int for n in range(70)}

    async def run(self, args: None) -> Ok[Any]:
        return Ok(None)


def person(name: str, *codes: str, **more: Any) -> Any:
    user = get_user_model().objects.create_user(name, **more)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    return get_user_model().objects.get(pk=user.pk)


def task() -> HumanTask:
    Asking.start(id="asking")
    drain()
    return HumanTask.objects.get()


@override_settings(TEMPORALEX={"WAITING_REQUESTS": 4})
def test_one_user_has_half_of_the_seats() -> None:
    with ExitStack() as stack:
        assert [stack.enter_context(wait_slot("ann")) for _ in range(3)] == [True, True, False]
        assert [stack.enter_context(wait_slot("bob")) for _ in range(3)] == [True, True, False]
        assert stack.enter_context(wait_slot("cleo")) is False
    with wait_slot("cleo") as granted:
        assert granted


@override_settings(TEMPORALEX={"BULK_JOBS": 2})
def test_one_person_runs_so_many_bulk_jobs_at_a_time() -> None:
    Basket.start(id="basket")
    ann, bob = (Actor(user=person(name, is_superuser=True)) for name in ("ann", "bob"))
    jobs = [StartBulk("pause", runs=Instance.objects.all(), by=ann).execute() for _ in range(2)]
    with pytest.raises(errors.ActionNotPossible, match="ann already has 2 running bulk jobs"):
        StartBulk("pause", runs=Instance.objects.all(), by=ann).execute()
    StartBulk("pause", runs=Instance.objects.all(), by=bob).execute()
    StopBulk(jobs[0].pk, by=ann).execute()
    StartBulk("pause", runs=Instance.objects.all(), by=ann).execute()


def test_a_manager_releases_the_claim_of_somebody_else_and_the_audit_says_whose() -> None:
    open_task = task()
    ann, bob = person("ann", "add_group", "view_instance"), person("bob", "add_group", "view_instance")
    manager = person("manager", "release_humantask", "view_instance")
    Claim(open_task, by=Actor(user=ann)).execute()
    with pytest.raises(errors.HumanTaskClaimed):
        Release(open_task, by=Actor(user=bob)).execute()

    Release(open_task, reason="ann is on leave", by=Actor(user=manager)).execute()

    row = OperatorAction.objects.filter(action="release").latest("pk")
    assert (row.details["claimed_by"], row.reason) == ("ann", "ann is on leave")
    Decide(open_task, outcome="approved", by=Actor(user=bob)).execute()


def test_a_task_is_handed_on_so_many_times() -> None:
    open_task = task()
    ann = person("ann", "add_group", "view_instance", "delegate_humantask")
    bob = person("bob", "add_group", "view_instance")
    for _ in range(20):
        Delegate(open_task, to=bob, by=Actor(user=ann)).execute()
    with pytest.raises(errors.ActionNotPossible, match="delegated 20 times"):
        Delegate(open_task, to=bob, by=Actor(user=ann)).execute()
    assert len(HumanTask.objects.get().delegated) == 20


def test_a_search_has_so_many_conditions() -> None:
    wanted = {f"field_{n}": n for n in range(70)}
    with pytest.raises(ValueError, match="at most 10 conditions, not 70"):
        Searched.list(attributes=wanted)
    assert [*Searched.list(attributes={f"field_{n}": n for n in range(10)})] == []
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    answer = client.get("/api/instances/", {"workflow": Searched.name, "attributes": json.dumps(wanted)})
    assert answer.status_code == 400
    assert "at most 10 conditions" in str(answer.json())
