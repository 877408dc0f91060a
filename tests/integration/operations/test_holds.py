"""Holds that activities ask for: what waits and why, when it continues, and how operators end them."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from rest_framework.test import APIClient

from temporalex_django import Ok, RetryLater, Workflow, WorkflowHandle, activity, errors
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.db.activity_tasks import store_holds
from temporalex_django.db.claims.limited import read_switches
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import Hold, TaskResult
from temporalex_django.models import ActivityTask, Instance, OperatorAction, SwitchedOff
from temporalex_django.operations.fleet.stats import queue_figures
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from temporalex_django.operations.read.run_summary import summarize_run
from temporalex_django.workers.loop import run_until_idle
from tests.support.people import stored

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.of_the_tables("queues and activities that workers of the tables hold back"),
]
CALLS: list[str] = []
LATER: list[RetryLater] = []


@activity(name="test.hold_pay", queue="default")
def hold_pay(key: str) -> str:
    CALLS.append(key)
    if LATER:
        raise LATER.pop()
    return key


class HoldPays(Workflow):
    name = "test.HoldPays"

    async def run(self, key: str) -> Any:
        return Ok(await hold_pay.options(concurrency_key=key)(key))


class HoldRests(Workflow):
    name = "test.HoldRests"

    async def run(self, args: Any) -> Any:
        return Ok("no activity")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()
    LATER.clear()


def asked(hold: Any, after: float = 1800) -> None:
    """Let one run ask for a hold, while two more with the keys a and b wait, and one that calls nothing."""
    LATER.append(RetryLater("the bank is closed", after=after, hold=hold))
    HoldPays.start("a", id="first")
    run_until_idle()
    HoldPays.start("a", id="same")
    HoldPays.start("b", id="other")
    HoldRests.start(id="rests")
    run_until_idle()


def statuses() -> dict[str, str]:
    return dict(Instance.objects.values_list("workflow_id", "status"))


def said(workflow_id: str, redactor: Redactor = UNREDACTED) -> str:
    return summarize_run(Instance.objects.get(workflow_id=workflow_id), redactor=redactor).text


def let_time_pass() -> None:
    """Make all that the hold and the activities wait for a thing of the past."""
    SwitchedOff.objects.filter(kind="hold").update(until=DjangoStorage().now() - timedelta(seconds=1))
    ActivityTask.objects.filter(owner=None).update(due_at=DjangoStorage().now() - timedelta(seconds=1))


@pytest.mark.parametrize("limits", [{}, {"default": {"concurrency": 9}}, {"default": {"concurrency_per_key": 9}}])
@pytest.mark.parametrize(("hold", "waits"), [("queue", {"same", "other"}), ("key", {"same"})])
def test_a_hold_keeps_activities_back_until_its_end_and_nobody_has_to_end_it(
    hold: str, waits: set[str], limits: Any
) -> None:
    with override_settings(TEMPORALEX={"QUEUES": limits}):
        asked(hold)
        assert {name for name, status in statuses().items() if status == "running"} == {"first", *waits}
        assert len(CALLS) == 4 - len(waits) - 1

        let_time_pass()
        run_until_idle()

        assert set(statuses().values()) == {"completed"}
        assert not ActivityTask.objects.exists()


def test_people_read_what_waits_until_when_and_why() -> None:
    asked("queue")

    assert said("first").startswith("Hold pay asked to be retried later")
    text = said("same")
    assert "Activities of the queue default are held back; they continue " in text
    assert text.endswith("Requested by test.hold_pay: the bank is closed.")
    assert "the bank" not in said("same", Redactor(may_see_payloads=False))
    (row,) = SwitchedOff.objects.all()
    assert row.until is not None
    assert any(
        "the hold of the queue default to end at" in why for why in WorkflowHandle("same").describe().waiting_for
    )
    (figures,) = queue_figures(["default"])
    assert (figures.off, figures.held_until) == (False, row.until)
    out = io.StringIO()
    call_command("temporalex", "switches", "show", stdout=out)
    assert f"until {row.until:%Y-%m-%d %H:%M}, the bank" in out.getvalue()

    let_time_pass()
    assert "held back" not in said("same")
    out = io.StringIO()
    call_command("temporalex", "switches", "show", stdout=out)
    assert out.getvalue() == "nothing is switched off\n"
    assert queue_figures(["default"])[0].held_until is None


@pytest.mark.parametrize(("hold", "key"), [("queue", ""), ("key", "a")])
@pytest.mark.parametrize("interface", ["code", "REST", "admin", "command"])
def test_operators_end_a_hold_and_the_one_that_asked_still_waits(hold: str, key: str, interface: str) -> None:
    asked(hold)
    user = stored("ann", "temporalex_django.use_switches", "temporalex_django.view_switchedoff")
    user.is_staff = True
    user.save()
    match interface:
        case "code":
            SwitchOn("hold", "default", key=key).execute()
        case "REST":
            client = APIClient()
            client.force_authenticate(user)
            (listed,) = client.get("/api/switches/").json()["results"]
            assert (listed["kind"], listed["key"], listed["reason"]) == ("hold", key, ""), "it may not see payloads"
            body = {"kind": "hold", "name": "default", **({"key": key} if key else {})}
            answer = client.post("/api/switches/on/", body, format="json")
            assert answer.status_code == 200, answer.json()
        case "admin":
            site = Client()
            site.force_login(user)
            page = site.get(reverse("admin:temporalex_console:switches")).content.decode()
            assert "End the hold on default" in page
            assert "the bank is closed" not in page, "it may not see payloads"
            address = reverse("admin:temporalex_console:switch_on")
            # The button has the key in its address.
            assert (f'formaction="{address}?key={key}"' in page) == bool(key)
            site.post(f"{address}?key={key}", {"thing": "hold:default", "reason": "they called"})
        case _:
            option = ["--key", key] if key else []
            call_command("temporalex", "switches", "on", "hold", "default", *option, stdout=io.StringIO())
    run_until_idle()

    assert statuses() == {"first": "running", "same": "completed", "other": "completed", "rests": "completed"}
    details = OperatorAction.objects.get().details
    assert details == {"kind": "hold", "name": "default", **({"key": key} if key else {})}


def test_what_cannot_be_done_with_a_hold_says_why() -> None:
    for refused, text in (
        (lambda: SwitchOff("hold", "default").execute(), r"only activities hold work back, by RetryLater\(hold=...\)"),
        (
            lambda: SwitchOn("hold", "default", key="a").execute(),
            "no hold is in effect for .* default with the key 'a'",
        ),
        (lambda: SwitchOn("queue", "default", key="a"), "only holds have a key"),
    ):
        with pytest.raises(errors.ActionNotPossible, match=text):
            refused()


def test_a_later_end_wins_and_holds_that_are_over_are_forgotten() -> None:
    storage = DjangoStorage()
    now = storage.now()
    task: Any = type("Task", (), {"id": 1})()

    def hold(minutes: float, queue: str = "bank", since: float = 0) -> None:
        asked_for = Hold(
            queue=queue, key=None, since=now + timedelta(minutes=since), until=now + timedelta(minutes=minutes),
            activity="pay", reason=str(minutes),
        )  # fmt: skip
        store_holds([TaskResult(task=task, hold=asked_for)], [1], sql=storage.sql)

    hold(10)
    hold(20)
    hold(15)
    assert read_switches(storage.sql).holds == {("bank", ""): now + timedelta(minutes=20)}
    assert SwitchedOff.objects.get().reason == "20"
    hold(60, "other", since=30)
    assert [row.name for row in SwitchedOff.objects.all()] == ["other"]
    store_holds([TaskResult(task=task)], [1], sql=storage.sql)
    with CaptureQueriesContext(connection) as queries:
        store_holds([TaskResult(task=task)], [1], sql=storage.sql)
    assert not queries, "without a hold there is no statement"
