"""Switches of operators: what is off is not taken by any worker, says so, and goes on when it is on again."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.test import override_settings

from temporalex_django import WorkflowHandle, errors
from temporalex_django.authoring.activity import registry
from temporalex_django.authoring.redaction import UNREDACTED
from temporalex_django.core import names
from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import ActivityTask, Instance, OperatorAction, SwitchedOff
from temporalex_django.operations.base import Actor
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from temporalex_django.operations.read import project_state
from temporalex_django.operations.read.run_summary import summarize_run
from temporalex_django.present.project_view import ClusterView
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from tests.app.crowds import often, seldom
from tests.support.client_flows import Basket, touch_own_run
from tests.support.commands import shell

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("switches of workers of the tables")]


def start(workflow: str, args: Any, workflow_id: str = "s-1") -> StartedRun:
    return insert_start(RunStart(workflow=workflow, workflow_id=workflow_id, args=args), storage=DjangoStorage())


def status(started: StartedRun) -> str:
    return str(Instance.objects.get(pk=started.run_id).status)


def said(started: StartedRun) -> str:
    return summarize_run(Instance.objects.get(pk=started.run_id), redactor=UNREDACTED).text


@pytest.fixture
def ann() -> Actor:
    return Actor(user=get_user_model().objects.create_superuser("ann"), source="code")


@pytest.mark.parametrize(("name", "activity"), [("often", often), ("seldom", seldom)], ids=["plain", "limited"])
def test_an_activity_waits_while_it_is_off_and_holds_up_no_others(name: str, activity: Any, ann: Actor) -> None:
    other = "seldom" if name == "often" else "often"
    before = start("Mixture", {"calls": [(name, None)]}, "before")
    SwitchOff("activity", activity.name, reason="the bank is down", by=ann).execute()
    one, two = (
        start("Mixture", {"calls": [(name, None)] * 3}, "one"),
        start("Mixture", {"calls": [(other, None)]}, "two"),
    )
    ActivityTask.objects.update(line=None)
    run_until_idle()

    assert (status(before), status(one), status(two)) == ("running", "running", "completed")
    assert ActivityTask.objects.filter(owner=None, attempt=0).count() == 4
    assert "was switched off by ann " in said(before)
    assert "(the bank is down). Work continues when it is switched on again." in said(before)
    assert "(switched off)" in said(one)
    assert f"the activity {activity.name} to be switched on" in WorkflowHandle("before").describe().waiting_for
    SwitchOn("activity", activity.name, by=ann).execute()
    run_until_idle()
    assert (status(before), status(one)) == ("completed", "completed")
    done = OperatorAction.objects.order_by("id").values_list("action", "actor_name", "details")
    assert [*done] == [
        (what, "ann", {"kind": "activity", "name": activity.name}) for what in ("switch_off", "switch_on")
    ]


def test_what_comes_behind_a_look_in_vain_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn may take one run alone; the line of the next one is looked at again a moment later."""
    monkeypatch.setattr("temporalex_django.engine.policy.LIMIT_RETRY_SECONDS", 0.5)
    SwitchOff("activity", often.name).execute()
    one, two = (start("Mixture", {"calls": [(name, None)]}, name) for name in ("often", "seldom"))
    with override_settings(TEMPORALEX={"TURN_SIZE": 1}):
        run_until_idle()
    assert (status(one), status(two)) == ("running", "completed")


def test_a_worker_knows_what_is_off_before_it_takes_anything() -> None:
    """Not only from its first round of maintenance on, which a thread of its own makes half a second later."""
    begun = start("StepByStep", {"n": 1}, "begun")
    SwitchOff("workflow", "StepByStep").execute()
    call_command("temporalex", "worker", "--burst", verbosity=0)
    assert Instance.objects.get(pk=begun.run_id).blocked["code"] == errors.WorkflowSwitchedOff.code
    SwitchOn("workflow", "StepByStep").execute()
    SwitchOff("activity", often.name).execute()
    SwitchOff("queue", "default").execute()
    WorkerLoop().run(threading.Event(), until_idle=True)
    assert (status(begun), ActivityTask.objects.count()) == ("pending", 0)


def test_of_a_queue_that_is_off_nothing_is_taken() -> None:
    begun = start("StepByStep", {"n": 1}, "begun")
    SwitchOff("queue", "default").execute()
    run_until_idle()

    assert status(begun) == "pending"
    assert "The queue default was switched off by somebody " in said(begun)
    assert "the queue default to be switched on" in WorkflowHandle("begun").describe().waiting_for
    SwitchOn("queue", "default").execute()
    run_until_idle()
    assert status(begun) == "completed"


def test_runs_of_a_class_that_is_off_stop_where_they_stand() -> None:
    basket, other = Basket.start(id="b-1"), start("StepByStep", {"n": 2}, "other")
    run_until_idle()
    SwitchOff("workflow", Basket.name, reason="a wrong price").execute()
    fresh = Basket.start(id="b-2")
    with pytest.raises(errors.WorkflowSwitchedOff, match="test.Basket is switched off: update 'add' of b-1 refused"):
        basket.update("add", 1)
    basket.signal("note", "later")
    run_until_idle()

    row = Instance.objects.get(workflow_id="b-1")
    assert row.blocked is not None
    assert row.blocked["code"] == "switched_off"
    assert basket.query("items") == []
    assert status(other) == "completed"
    for one in ("b-1", "b-2"):
        text = summarize_run(Instance.objects.get(workflow_id=one), redactor=UNREDACTED).text
        assert "was switched off by somebody " in text
        assert "(a wrong price)" in text
        assert f"the class {Basket.name} to be switched on" in WorkflowHandle(one).describe().waiting_for
    SwitchOn("workflow", Basket.name).execute()
    run_until_idle()
    assert Instance.objects.filter(blocked__isnull=True, workflow=Basket.name).count() == 2
    assert (basket.update("add", 1), fresh.update("add", 2)) == (2, 1)  # the signal has waited


def test_what_was_renamed_is_switched_by_its_present_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(names.WORKFLOWS, "test.OldBasket", Basket.name)
    monkeypatch.setitem(names.ACTIVITIES, "old.often", often.name)
    monkeypatch.setitem(registry, "old.often", often)
    old = start("test.OldBasket", None, "b-1")
    calls = start("Mixture", {"calls": [["often", None]]})
    SwitchOff("workflow", Basket.name).execute()
    SwitchOff("activity", often.name).execute()
    run_until_idle()
    ActivityTask.objects.update(activity="old.often", line=None)
    run_until_idle()

    row = Instance.objects.get(pk=old.run_id)
    assert row.blocked is not None
    assert row.blocked["code"] == "switched_off"
    with pytest.raises(errors.WorkflowSwitchedOff):
        Basket.handle("b-1").update("add", 1)
    assert "was switched off by somebody " in said(old)
    assert ActivityTask.objects.get().attempt == 0
    assert "was switched off by somebody " in said(calls)
    SwitchOn("workflow", Basket.name).execute()
    SwitchOn("activity", often.name).execute()
    run_until_idle()
    assert Basket.handle("b-1").update("add", 1) == 1
    assert status(calls) == "completed"


def test_what_cannot_be_switched_says_why(ann: Actor) -> None:
    SwitchOff("queue", "default").execute()
    for refused, says in (
        (lambda: SwitchOff("queue", "default").execute(), "the queue default is already switched off"),
        (lambda: SwitchOff("queue", "defualt").execute(), "knows the queue 'defualt'. Known names: "),
        (lambda: SwitchOff("activity", touch_own_run.name).execute(), "is atomic: it runs in the turns of its runs"),
        (lambda: SwitchOn("activity", often.name).execute(), "is not switched off"),
        (lambda: SwitchOff("worker", "x"), "there is no switch for 'worker': choose one of queue, activity, workflow"),
    ):
        with pytest.raises(errors.ActionNotPossible, match=says):
            refused()
    assert SwitchedOff.objects.count() == 1


def test_commands() -> None:
    def run(*arguments: str) -> str:
        out = io.StringIO()
        call_command("temporalex", "switches", *arguments, stdout=out)
        return out.getvalue()

    assert run("show") == "nothing is switched off\n"
    assert run("off", "activity", often.name, "--reason", "why") == f"the activity {often.name} is switched off\n"
    assert often.name in run("show")
    assert '"reason": "why"' in run("show", "--json")
    with pytest.raises(CommandError, match="already"):
        run("off", "activity", often.name)
    assert run("on", "activity", often.name) == f"the activity {often.name} is switched on\n"


def test_a_switch_of_an_activity_says_that_the_cluster_still_runs_it(
    settings: Any, admin_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {"ADDRESS": "127.0.0.1:1"}}
    text = "Runs on the Temporal cluster still call the activity."
    address = "/admin/temporalex_django/instance/console/switches"
    commands = [shell("switches", what, "activity", often.name) for what in ("off", "on")]
    assert [text in command.out for command in commands] == [True, False]
    assert text not in shell("switches", "off", "queue", "default").out
    page = admin_client.post(f"{address}/off/", {"thing": f"activity:{often.name}", "reason": ""}, follow=True)
    assert text in page.content.decode()
    monkeypatch.setattr(project_state, "load_cluster_state", lambda alias: ClusterView(address="127.0.0.1:1"))
    assert text in shell("doctor").out


def test_only_so_many_updates_wait_for_a_run() -> None:
    basket = Basket.start(id="b-1")
    run_until_idle()
    with override_settings(TEMPORALEX={"WAITING_UPDATES": 2}):
        for number in (1, 2):
            with pytest.raises(errors.UpdateTimeout):
                basket.update("add", number, id=f"u-{number}", mode="worker", timeout=0)
        with pytest.raises(
            errors.TooManyUpdates, match=r"2 updates \(WAITING_UPDATES\) are already waiting for the run"
        ):
            basket.update("add", 3, id="u-3", mode="worker", timeout=0)
        with pytest.raises(errors.UpdateTimeout):  # one that waits already
            basket.update("add", 1, id="u-1", mode="worker", timeout=0)
    run_until_idle()
    assert WorkflowHandle("b-1").query("items") == [1, 2]
