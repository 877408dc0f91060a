"""Sentences that were not true, or not said: each is compared with the rows."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client
from django.utils import timezone

from temporalex_django import NoReply, Ok, Reply, Workflow, activity, api
from temporalex_django.authoring.redaction import UNREDACTED
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import HistoryEvent, HumanTask, Instance, OperatorAction, Schedule, ScheduleSlot
from temporalex_django.operations.alerts import ALERT_CODES
from temporalex_django.operations.fleet.stats import live_workers
from temporalex_django.operations.fleet.switches import SwitchOff
from temporalex_django.operations.read.timeline import rows_of_run
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.describe import load_schedule_problems
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.present.schedule_diagnosis import schedule_diagnoses
from temporalex_django.testing import drain
from temporalex_django.workers.loop import run_until_idle
from tests.support.commands import shell
from tests.support.run_pages import text_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("rows that sentences are about")]


class Counter(Workflow):
    """Counts, and blocks when it is told."""

    name = "true.Counter"
    unexpected_error = "block"

    async def run(self, args: Any) -> Any:
        if args == "block":
            raise KeyError("CHF")

        def add(amount: Any, state: Any) -> Any:
            return NoReply(state + int(amount))

        return Ok(await api.phase(0, signal={"add": add}, update={"get": lambda _, state: Reply(state, state)}))


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def blocked(name: str = "b") -> Instance:
    Counter.start("block", id=name)
    drain()
    return Instance.objects.get(workflow_id=name)


def test_doctor_says_which_class_is_missing_and_how_to_bring_it() -> None:
    Counter.start("", id="gone")
    Instance.objects.update(workflow="true.Gone")
    drain()
    said = shell("doctor", "gone").out
    assert "the class true.Gone (version 1)" in said.partition("next:")[2]
    assert "codec" not in said


def test_a_blocked_run_says_since_when_and_when_it_was_tried_last() -> None:
    run = blocked()
    first = run.blocked["since"]
    later = (timezone.now() + timedelta(minutes=9)).isoformat()
    Instance.objects.update(blocked={**run.blocked, "attempt": 15, "last": later})
    assert run.blocked["last"] >= first

    said = shell("describe", "b").out

    assert "Blocked since " in said
    assert "Last attempt " in said
    assert "Paused" not in said
    assert re.search(r"^Status +\w+, blocked$", said, re.MULTILINE)


def test_a_list_says_blocked_and_names_failed_signals(root: Client) -> None:
    blocked()
    handle = Counter.start("", id="s")
    drain()
    handle.signal("add", "five")
    drain()
    handle.pause("later")

    listed = shell("list").out
    page = root.get("/admin/temporalex_django/instance/console/runs/?stuck=true").content.decode()

    for text in (listed, page):
        assert "1 signal failed in its handler and is kept" in text
    assert ", blocked" in listed
    parent, stuck = Instance.objects.get(workflow_id="s"), Instance.objects.get(workflow_id="b")
    Instance.objects.filter(pk=stuck.pk).update(parent_run_id=parent.pk)
    family = text_of(root, parent.pk)
    assert "tx-blocked" in family.split(str(stuck.pk), 1)[1]


def stalled() -> tuple[Schedule, Instance]:
    """Return a schedule whose first run is blocked, so that it skipped the slots since."""
    definition = {"name": "stock", "workflow": Counter.name, "cron": "* * * * *", "tz": "UTC", "args": "block"}
    row = SaveSchedule(parse_definition(definition), create=True).execute()
    run, now = blocked(), timezone.now()
    about = {"schedule": row, "cause": "time", "decided_at": now}
    ScheduleSlot.objects.create(
        at=now - timedelta(minutes=9),
        outcome="started",
        running=True,
        workflow_id="b",
        run=run,
        chain=run.chain,
        **about,
    )
    for minutes in range(1, 9):
        ScheduleSlot.objects.create(at=now - timedelta(minutes=minutes), outcome="skipped", reason="overlap", **about)
    return row, run


def test_a_schedule_that_skips_for_ever_is_a_finding(root: Client) -> None:
    row, run = stalled()

    problems = load_schedule_problems("default", None, live_workers(alias="default"), DjangoStorage("default").now())
    (found,) = [one for one in schedule_diagnoses(problems, timezone.now()) if one.code == "schedule_stalled"]
    page = root.get(f"/admin/temporalex_django/instance/console/schedules/{row.pk}/").content.decode()
    listed = root.get("/admin/temporalex_django/instance/console/schedules/").content.decode()

    assert "has left out its last 8 slots" in found.text
    assert "the run b is in the way, and it is blocked" in found.text
    assert found.next_step.endswith("doctor b")
    assert found.code in ALERT_CODES
    assert found.text in page.replace("&#x27;", "'")
    assert page.count(f"/admin/temporalex_django/instance/console/runs/{run.pk}/") >= 8
    for text in (page, listed):
        assert "Skips its slots" in text


def test_a_slot_that_was_backfilled_keeps_that_it_was_left_out(root: Client) -> None:
    row, _run = stalled()
    ScheduleSlot.objects.filter(outcome="skipped").update(outcome="started", cause="backfill", actor="ann")
    page = root.get(f"/admin/temporalex_django/instance/console/schedules/{row.pk}/").content.decode()
    assert "backfill of a slot that had been left out (an earlier run was open) by ann" in page


def slots(name: str, *outcomes: str) -> Schedule:
    """Return a schedule whose last slots had these outcomes, the newest first."""
    definition = {"name": name, "workflow": Counter.name, "cron": "* * * * *", "tz": "UTC", "args": "1"}
    row, now = SaveSchedule(parse_definition(definition), create=True).execute(), timezone.now()
    reasons = {"skipped": "overlap", "missed": "window"}
    for minutes, outcome in enumerate(outcomes):
        at, reason = now - timedelta(minutes=minutes), reasons.get(outcome, "")
        ScheduleSlot.objects.create(
            schedule=row, cause="time", decided_at=now, at=at, outcome=outcome, reason=reason, count=1
        )
    return row


def test_schedules_that_skip_now_and_then_hide_none_that_skips_for_ever() -> None:
    for number in range(21):
        slots(f"a{number}", "skipped", "skipped", "started")
    slots("b", "skipped", "missed", "skipped")

    problems = load_schedule_problems("default", None, live_workers(alias="default"), DjangoStorage("default").now())

    assert [(one.schedule, one.count) for one in problems if one.kind == "stalled"] == [("b", 3)]


def test_a_schedule_that_misses_three_slots_in_a_row_looks_alike_in_the_list_and_on_its_page(root: Client) -> None:
    row = slots("a", "missed", "missed", "missed")
    page = root.get(f"/admin/temporalex_django/instance/console/schedules/{row.pk}/").content.decode()
    listed = root.get("/admin/temporalex_django/instance/console/schedules/").content.decode()
    assert "Skips its slots" in listed
    assert "Skips its slots" in page
    assert "has left out its last 3 slots" in page


def test_a_stalled_schedule_names_no_run_that_the_user_may_not_see() -> None:
    stalled()
    live, now = live_workers(alias="default"), DjangoStorage("default").now()

    hidden = load_schedule_problems("default", None, live, now, Instance.objects.exclude(workflow_id="b"))

    assert [(one.run, one.count) for one in hidden if one.kind == "stalled"] == [("", 8)]


class Asked(Workflow):
    """Asks whom its input names."""

    name = "true.Asked"

    async def run(self, whom: Any) -> Any:
        decision = await api.approval("Refund 999 EUR?", **whom)
        return Ok(decision.outcome)


@pytest.mark.parametrize(
    ("whom", "why"),
    [
        ({"groups": ("ghosts",)}, "the group ghosts does not exist"),
        ({"groups": ("empty",)}, "the group empty has no active member"),
        ({"groups": ("ghosts",), "users": ("gone", "idle")}, "the user gone is gone or inactive"),
        ({"groups": ("clerks", "ghosts")}, ""),
    ],
)
def test_a_task_that_nobody_can_decide_is_said(root: Client, whom: Any, why: str) -> None:
    people = get_user_model().objects
    for name in ("empty", "clerks"):
        Group.objects.create(name=name)
    people.create_user("ann").groups.add(Group.objects.get(name="clerks"))
    people.create_user("idle", is_active=False).groups.add(Group.objects.get(name="empty"))
    Asked.start(whom, id="ask")
    drain()
    task, run = HumanTask.objects.get(), Instance.objects.get()

    said = shell("doctor").out
    texts = [
        text_of(root, run.pk),
        root.get(f"/admin/temporalex_django/instance/console/desk/{task.pk}/").content.decode(),
        shell("tasks", "show", str(task.pk), "--as-user", "root").out,
    ]

    assert ("Nobody can decide it" in said) == bool(why)
    for text in (said, *texts):
        assert why in text
        assert bool(why) or "Nobody can decide" not in text
    assert "nobody_asked" in ALERT_CODES


@activity(name="true.wait", queue="true-elsewhere")
def wait_long() -> int:
    return 1


class Long(Workflow):
    """Calls an activity that no worker takes."""

    name = "true.Long"

    async def run(self, args: Any) -> Any:
        await api.wait_for_signal("go")
        return Ok(await wait_long())


def timeline_of(run: Instance) -> list[Any]:
    return rows_of_run(RunTarget.of(run), redactor=UNREDACTED, storage=DjangoStorage("default"))


def test_a_run_of_a_reset_says_from_which_run_by_whom_and_why(root: Client) -> None:
    handle = Long.start(None, id="long")
    drain()
    handle.signal("go")
    run_until_idle(queues=["default"])
    source = Instance.objects.get()
    handle.reset(2, reason="the site was wrong", by=get_user_model().objects.get())
    run_until_idle(queues=["default"])
    new = Instance.objects.exclude(pk=source.pk).get()
    action = OperatorAction.objects.get(action="reset")
    # The source run scheduled its activity long ago; this run did so when it was reset.
    HistoryEvent.objects.filter(run=new, kind="ActivityScheduled").update(at=timezone.now() - timedelta(hours=2))
    drain()

    page = text_of(root, new.pk)
    history = timeline_of(new)

    assert "Reset of this run to its activation 2 by root" in page
    assert f"/admin/temporalex_django/instance/console/runs/{source.pk}/" in page
    assert "the site was wrong" in page
    assert f"/admin/temporalex_django/operatoraction/{action.pk}/change/" in page
    (row,) = [row for row in history if row.kind == "activity"]
    assert row.ended is not None
    assert row.ended - row.began < timedelta(hours=1)
    assert "What people looked at" in page or not OperatorAction.objects.filter(action="read").exists()


@pytest.mark.parametrize(("activation", "per_page"), [(0, 20), (2, 1)])
def test_a_run_of_a_reset_says_so_also_where_the_page_has_no_copied_event(
    root: Client, monkeypatch: pytest.MonkeyPatch, activation: int, per_page: int
) -> None:
    handle = Long.start(None, id="long")
    drain()
    handle.signal("go")
    run_until_idle(queues=["default"])
    source = Instance.objects.get()
    handle.reset(activation, reason="the site was wrong")
    run_until_idle(queues=["default"])
    new = Instance.objects.exclude(pk=source.pk).get()
    monkeypatch.setattr("temporalex_django.console.run.timeline.ROWS", per_page)

    page = text_of(root, new.pk)
    before = text_of(root, source.pk)

    assert f"Reset of this run to its activation {activation}" in page
    assert (
        f"/admin/temporalex_django/instance/console/runs/{source.pk}/"
        in page.partition("tx-origin")[2].partition("</p>")[0]
    )
    assert "the site was wrong" in page
    assert "tx-origin" not in before


def test_something_that_is_off_can_be_switched_on_from_the_page_of_a_run(root: Client) -> None:
    Long.start(None, id="long")
    drain()
    Long.handle("long").signal("go")
    run_until_idle(queues=["default"])
    run = Instance.objects.get()
    address = f"/admin/temporalex_django/instance/console/runs/{run.pk}/"
    assert "Switch on" not in root.get(address).content.decode()
    SwitchOff("activity", "true.wait", reason="tests").execute()
    page = root.get(address).content.decode()
    assert page.count("Switch on") == 1
    assert "Run started" not in page or ">in progress<" not in page.partition("Run started")[2][:300]
