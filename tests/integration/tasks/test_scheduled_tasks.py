"""Schedules that enqueue Django tasks: in code, over REST, in the admin and by commands."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError
from django.test import override_settings
from django.urls import reverse

from temporalex_django import Ok, Overlap, Schedule, Workflow, errors
from temporalex_django.authoring.schedules import schedule as declared
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.models import Schedule as ScheduleRow
from temporalex_django.operations.base import Actor
from temporalex_django.operations.schedules import store
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.describe import describe_schedule
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment
from tests.integration.tasks.test_task_interfaces import APP, OPERATE, client_of, command
from tests.settings_tasks import TASKS
from tests.support.people import stored

with override_settings(TASKS=TASKS):
    from tests.app import tasks as t

pytestmark = pytest.mark.django_db(transaction=True)
MANAGE, VIEW_SCHEDULE = f"{APP}.manage_schedule", f"{APP}.view_schedule"
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _backends(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    t.RAN.clear()
    settings.TASKS = TASKS
    monkeypatch.setattr(declared, "_declarations", {})


class Nightly(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(None)


@Schedule.arguments_function(name="tests.hour_of_the_slot")
def hour_of_the_slot(at: datetime) -> list[int]:
    return [at.hour]


def fired(env: DjangoEnvironment, name: str = "nightly") -> list[tuple[str, str]]:
    return [(str(slot.outcome), str(slot.reason)) for slot in env.schedules.slots(name)]


# -- in code -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "ran"),
    [([1, 2], ("add", 1, 2)), ({"a": 3, "b": 4}, ("add", 3, 4)), (hour_of_the_slot, ("add", 1, 0))],
    ids=["positional", "keywords", "function"],
)
def test_a_schedule_enqueues_a_task_with_its_arguments(args: Any, ran: tuple[Any, ...]) -> None:
    with DjangoEnvironment(now=datetime(2027, 1, 1, tzinfo=UTC)) as env:
        env.schedules.add(Schedule("nightly", task=t.add, cron="0 1 * * *", args=args))
        env.advance(HOUR)
        assert [ran] == t.RAN
        (slot,) = env.schedules.slots("nightly")
        assert EndedTask.objects.get(pk=slot.run_id).status == "SUCCESSFUL"
        env.advance(timedelta(days=2))
        assert fired(env) == [("started", "")] * 3
        assert ScheduleRow.objects.get().failures == 0


@pytest.mark.parametrize(
    ("overlap", "slots", "ended"),
    [
        (Overlap.SKIP, [("started", ""), ("skipped", "overlap")], 0),
        (Overlap.BUFFER_ONE, [("started", ""), ("waiting", "overlap")], 0),
        (Overlap.ALLOW_ALL, [("started", ""), ("started", "")], 0),
        (Overlap.CANCEL_OTHER, [("started", ""), ("waiting", "overlap")], 0),
    ],
)
def test_the_overlap_asks_if_the_task_of_the_last_slot_has_ended(
    overlap: Overlap, slots: list[tuple[str, str]], ended: int
) -> None:
    with DjangoEnvironment(now=datetime(2027, 1, 1, tzinfo=UTC)) as env:
        env.hold(t.add)
        env.schedules.add(Schedule("nightly", task=t.add, every=HOUR, args=[1], overlap=overlap))
        env.advance(2 * HOUR)
        assert fired(env) == slots
        if overlap is Overlap.CANCEL_OTHER:
            first = env.schedules.slots("nightly")[0]
            assert EnqueuedTask.objects.get(run_id=first.run_id).cancelled_at is not None
        env.complete(t.add)
        env.advance(timedelta(minutes=1))
        assert ("started", "") in fired(env)[1:] or overlap is Overlap.SKIP


def test_tasks_that_fail_pause_the_schedule() -> None:
    with DjangoEnvironment(now=datetime(2027, 1, 1, tzinfo=UTC)) as env:
        env.schedules.add(Schedule("nightly", task=t.fails, every=HOUR, args=["why"], pause_after=2))
        env.advance(3 * HOUR)
        row = ScheduleRow.objects.get()
        assert (row.failures, row.paused_by_failures) == (2, True)
        env.schedules.unpause("nightly")
        slot = env.schedules.trigger("nightly")
        assert EndedTask.objects.get(pk=slot.run_id).status == "FAILED"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either a workflow class or `task=`"),
        ({"workflow": Nightly, "task": t.add}, "give either a workflow class or `task=`"),
        ({"task": t.add.func}, "is not a Django task: decorate the function with @task"),
        ({"task": t.add, "overlap": Overlap.TERMINATE_OTHER}, "a task cannot be terminated: use Overlap.CANCEL_OTHER"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ScheduleInvalid, match=message):
        Schedule("nightly", cron="0 1 * * *", **options)


@pytest.mark.parametrize("args", [[1, 2, 3], {"c": 1}, [], "one", {"a": object()}])
def test_arguments_that_do_not_fit_the_signature_are_refused(args: Any) -> None:
    schedule = Schedule("nightly", task=t.add, cron="0 1 * * *", args=args)
    with pytest.raises(errors.PayloadError, match="the arguments of tests.app.tasks.add"):
        schedule.check(datetime.now(UTC))


def test_an_environment_in_memory_says_that_it_has_no_tasks() -> None:
    with pytest.raises(errors.ScheduleInvalid, match="use DjangoEnvironment"):
        WorkflowEnvironment().schedules.add(Schedule("nightly", task=t.add, cron="0 1 * * *", args=[1]))


def test_the_slot_of_a_task_that_is_gone_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "missing_tasks", set())
    with DjangoEnvironment(now=datetime(2027, 1, 1, tzinfo=UTC)) as env:
        env.schedules.add(Schedule("nightly", task=t.add, every=HOUR, args=[1]))
        ScheduleRow.objects.update(task="tests.app.tasks.renamed")
        env.advance(HOUR + timedelta(minutes=5))
        (slot,) = env.schedules.slots("nightly")
        assert str(slot.outcome) == "failed"
        assert "no Django task 'tests.app.tasks.renamed' in this process" in slot.error


# -- people ------------------------------------------------------------------------------------------------------------


def definition(**options: Any) -> ScheduleDefinition:
    from temporalex_django.operations.schedules.definition import parse_definition

    return parse_definition(
        {"name": "mine", "task": "tests.app.tasks.add", "cron": "0 1 * * *", "args": [1], **options}
    )


def test_a_person_needs_the_permission_to_operate_tasks() -> None:
    with pytest.raises(errors.ActionNotPermitted, match=OPERATE):
        SaveSchedule(definition(), create=True, by=Actor(user=stored("ann", MANAGE))).execute()
    row = SaveSchedule(definition(), create=True, by=Actor(user=stored("bob", MANAGE, OPERATE))).execute()
    assert (row.task, row.workflow, row.editor_name) == ("tests.app.tasks.add", "", "bob")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "os.system"}, "there is no Django task 'os.system' in an installed app"),
        ({"task": "tests.app.tasks.nothing"}, "no Django task 'tests.app.tasks.nothing'"),
        ({"task": "tests.app.tasks.RAN"}, "is not a Django task"),
        ({"workflow": "test.MatrixErrand"}, "give either a workflow or a task"),
        ({"task": ""}, "give either a workflow or a task"),
        ({"overlap": "terminate_other"}, "a task cannot be terminated"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ScheduleInvalid, match=message):
        SaveSchedule(definition(**options), create=True).execute()
    assert not ScheduleRow.objects.exists()


def test_over_rest() -> None:
    client = client_of(MANAGE, VIEW_SCHEDULE, OPERATE, f"{APP}.view_enqueuedtask", f"{APP}.view_endedtask")
    body = {"name": "mine", "task": "tests.app.tasks.add", "cron": "0 1 * * *", "args": {"a": 1}}
    address = reverse("temporalex_rest:schedules")
    made = client.post(address, body, content_type="application/json")
    assert (made.status_code, made.json()["task"], made.json()["workflow"]) == (201, "tests.app.tasks.add", "")
    wrong = client.post(address, {**body, "name": "x", "args": {"c": 1}}, content_type="application/json")
    assert (wrong.status_code, "do not fit its signature" in wrong.content.decode()) == (400, True)
    client.post(f"{address}mine/trigger/", {}, content_type="application/json")
    (slot,) = client.get(f"{address}mine/").json()["slots"]
    assert (slot["task_id"], slot["run_id"], slot["status"]) == (
        str(EnqueuedTask.objects.get().run_id),
        None,
        "READY",
    )
    assert [row["name"] for row in client.get(f"{address}?task=tests.app.tasks.add").json()["results"]] == ["mine"]


def test_in_the_admin() -> None:
    client = client_of(MANAGE, VIEW_SCHEDULE, OPERATE)
    add = reverse("admin:temporalex_django_schedule_add")
    assert b"?task=tests.app.tasks.add" in client.get(add).content
    page = client.get(add, {"task": "tests.app.tasks.add"})
    assert page.status_code == 200
    form = page.context["form"]
    values = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    values |= {"name": "mine", "cron": "0 1 * * *", "payload": "[1, 2]", "dst_gap": "shift", "dst_fold": "first"}
    saved = client.post(f"{add}?task=tests.app.tasks.add", values)
    assert saved.status_code == 302, saved.context["form"].errors
    row = ScheduleRow.objects.get()
    assert (saved.status_code, row.task) == (302, "tests.app.tasks.add")
    shown = client.get(saved.url)
    assert b"tests.app.tasks.add" in shown.content
    change = client.get(reverse("admin:temporalex_django_schedule_edit", args=[row.pk]))
    assert change.status_code == 200
    values |= {
        "payload": "[1, 2, 3]",
        "name": "other",
        "token": client.get(add, {"task": row.task}).context["form"]["token"].value(),
    }
    refused = client.post(f"{add}?task=tests.app.tasks.add", values)
    assert b"do not fit its signature" in refused.content


def test_a_command_makes_it() -> None:
    made = command(
        "schedules", "create", "mine", "--task", "tests.app.tasks.add", "--cron", "0 1 * * *", "--args", "[1]"
    )
    assert "the schedule mine is created" in made
    assert ScheduleRow.objects.get().task == "tests.app.tasks.add"
    command("schedules", "create", "other", "--workflow", Nightly.name, "--every", "3600", "--overlap", "buffer_one")
    assert ScheduleRow.objects.get(name="other").overlap == "buffer_one"
    for wrong, message in (
        (["--cron", "0 1 * * *"], "give either a workflow or a task"),
        (["--task", "tests.app.tasks.add"], "a schedule needs"),
        (["--task", "tests.app.tasks.add", "--cron", "0 1 * * *", "--args", "[1, 2, 3]"], "do not fit its signature"),
    ):
        with pytest.raises(CommandError, match=message):
            command("schedules", "create", "wrong", *wrong)


def test_the_commands_show_it() -> None:
    SaveSchedule(definition(), create=True).execute()
    command("schedules", "trigger", "mine")
    assert "tests.app.tasks.add" in command("schedules", "list")
    shown = json.loads(command("schedules", "show", "mine", "--json"))
    assert (shown["task"], shown["slots"][0]["task_id"]) == (
        "tests.app.tasks.add",
        str(EnqueuedTask.objects.get().run_id),
    )
    assert "READY" in command("schedules", "show", "mine")


def test_a_user_who_may_not_see_tasks_sees_the_slot_without_them() -> None:
    row = SaveSchedule(definition(), create=True).execute()
    command("schedules", "trigger", "mine")
    (slot,) = describe_schedule(row, Actor(user=stored("ann", VIEW_SCHEDULE)), alias="default").slots
    assert (slot.task_id, slot.status, slot.outcome) == (None, None, "started")
