"""Schedules in the console: the list, a page for each, its operations; and the form in the admin that makes one."""

from __future__ import annotations

import html
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client, override_settings
from django.utils import timezone

from temporalex_django import Ok, Schedule, Workflow
from temporalex_django.access import AccessPolicy
from temporalex_django.authoring.schedules.specs import Cron
from temporalex_django.backends.host import host
from temporalex_django.console import live
from temporalex_django.models import Instance, OperatorAction, ScheduleSlot
from temporalex_django.models import Schedule as ScheduleRow
from temporalex_django.operations.base import Actor
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.fire import fire_due
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.operations.schedules.sync import put_declaration
from tests.support.client_flows import Sleepy, Typed, drain
from tests.support.run_pages import text_of as run_text_of

pytestmark = pytest.mark.django_db

CONSOLE = "/admin/temporalex_django/instance/console/"
LIST, RUNS = f"{CONSOLE}schedules/", "/admin/temporalex_django/instance/"
#: The entry in the admin, which has the form.
ENTRY = "/admin/temporalex_django/schedule/"
#: The fields that a browser posts for a schedule without changes.
FIELDS = {
    "name": "nightly", "cron": "30 2 * * *", "every": "", "calendar": "", "holidays": "", "at": "",
    "tz": "Europe/Berlin", "arguments_function": "", "overlap": "skip", "workflow_id": "{schedule}-{slot:%Y%m%dT%H%M}",
    "catch_up": "1 h", "jitter": "", "start": "", "end": "", "max_fires": "", "pause_after": "", "dst_gap": "shift",
    "dst_fold": "first", "version": "", "token": "a-token",
}  # fmt: skip


class Report(Workflow):
    """Writes a report."""

    name = "test.ScheduledReport"

    async def run(self, args: str) -> Any:
        return Ok(args)


@Schedule.arguments_function(name="test.day_of_slot")
def day_of_slot(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"


@Schedule.holidays_function(name="test.no_mondays")
def no_mondays(day: date) -> bool:
    return day.weekday() == 0


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> None:
    live._values.clear()


def poll(client: Client, response: Any) -> Any:
    (address,) = re.findall(r'data-hx-get="([^"]*)"', response.content.decode())
    return client.get(html.unescape(address))


def text_of(response: Any) -> str:
    """The text of a page, without tags."""
    assert response.status_code < 400 or response.status_code in (403, 409), response
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def make(
    name: str = "nightly", *, workflow: Any = Report, args: Any = "x", cron: str = "30 2 * * *", **values: Any
) -> ScheduleRow:
    definition = ScheduleDefinition(
        name=name, workflow=workflow.name, specs=[Cron(cron)], tz="Europe/Berlin", args=args, **values
    )
    user, _ = get_user_model().objects.get_or_create(username="root", is_superuser=True, is_staff=True)
    return SaveSchedule(definition, create=True, by=Actor(user=user)).execute()


def page(row: ScheduleRow, name: str = "") -> str:
    if name == "edit":
        return f"{ENTRY}{row.pk}/edit/"
    return f"{LIST}{row.pk}/{name}/" if name else f"{LIST}{row.pk}/"


def declared(name: str = "nightly-of-code") -> ScheduleRow:
    return put_declaration(Schedule(name, Report, cron="0 4 * * *", args="x"), host().storage("default"))


def errors_of(response: Any) -> dict[str, list[str]]:
    return {name: [str(error) for error in errors] for name, errors in response.context["form"].errors.items()}


def test_the_list_shows_each_schedule_at_a_fixed_cost(admin: Client, django_assert_max_num_queries: Any) -> None:
    now = timezone.now()
    rows = [make(f"s-{number}") for number in range(12)]
    for number, outcome in enumerate(("started", "skipped", "failed", "missed", "waiting") * 3):
        ScheduleSlot.objects.create(
            schedule=rows[0], at=now - timedelta(hours=number), cause="time", outcome=outcome, decided_at=now
        )
    ScheduleRow.objects.filter(name="s-1").update(paused_at=now, pause_reason="the bank is closed")
    ScheduleRow.objects.filter(name="s-2").update(gone_since=now, owner="code")
    ScheduleRow.objects.filter(name="s-3").update(error="no holidays function")
    admin.get(LIST)

    with django_assert_max_num_queries(8):  # session, user, count, schedules, last slots (2), runs in the way, runs
        response = admin.get(LIST)

    text = text_of(response)
    for words in (
        "s-11",
        "Report",
        "Every day at 02:30 (Europe/Berlin)",
        "the bank is closed",
        "No longer in the code",
        "no holidays",
    ):
        assert words in text, words
    assert "3 started, 3 waiting, 3 skipped, 3 missed, 3 failed to start" in text
    (shapes,) = re.findall(r'<ul class="tx-outcomes">(.*?)</ul>', response.content.decode())
    assert shapes.count("<li") == 15
    assert re.search(r'<li class="tx-started" title="[^"]+: started">', shapes)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("state=active", {"one", "three"}),
        ("state=paused", {"two"}),
        ("state=gone", {"four"}),
        ("state=ended", {"five"}),
        ("owner=code", {"four"}),
        ("workflow=test.Typed", {"three"}),
        ("q=tw", {"two"}),
        ("state=nonsense", {"one", "two", "three", "four", "five"}),
    ],
)
def test_the_list_is_filtered_and_searched(admin: Client, query: str, names: set[str]) -> None:
    for name in ("one", "two", "four", "five"):
        make(name)
    make("three", workflow=Typed, args={"owner": "ann"})
    now = timezone.now()
    ScheduleRow.objects.filter(name="two").update(paused_at=now)
    ScheduleRow.objects.filter(name="four").update(gone_since=now, owner="code")
    ScheduleRow.objects.filter(name="five").update(next_at=None)

    rows = admin.get(f"{LIST}?{query}").context["page"].object_list

    assert {row.name for row in rows} == names


def test_a_page_shows_definition_fires_and_slots(admin: Client, django_assert_max_num_queries: Any) -> None:
    row = make(args="the input", jitter=timedelta(minutes=5), max_fires=500, pause_after=3)
    ScheduleRow.objects.update(
        position=datetime(2027, 3, 26, 12, tzinfo=UTC), next_at=datetime(2027, 3, 27, 1, 30, tzinfo=UTC)
    )
    ScheduleSlot.objects.create(
        schedule=row, at=datetime(2027, 3, 26, 1, 30, tzinfo=UTC), cause="time", outcome="failed",
        error_code="not_permitted", error="ann may not start it", decided_at=timezone.now(),
    )  # fmt: skip
    ScheduleSlot.objects.create(
        schedule=row, at=datetime(2027, 3, 20, 1, 30, tzinfo=UTC), until=datetime(2027, 3, 24, 1, 30, tzinfo=UTC),
        count=5, cause="time", outcome="missed", reason="window", decided_at=timezone.now(),
    )  # fmt: skip
    admin.get(page(row))

    with django_assert_max_num_queries(
        8
    ):  # session, user, schedule, count, slots, the stall (2), the read of the input
        response = admin.get(page(row))

    text = text_of(response)
    for words in (
        "Every day at 02:30 (Europe/Berlin)", "the input", "up to 5 min", "0 of 500", "3 in a row", "Skip the slot",
        "Sat 27 Mar 2027, 02:30 +01:00", "Sun 28 Mar 2027, 03:00 +02:00", "Sat 27 Mar 2027, 01:30 +00:00",
        "not_permitted: ann may not start it", "5 slots missed", "older than the catch-up window",
    ):  # fmt: skip
        assert words in text, words
    assert len(response.context["fires"]) == 5
    assert [fire.note != "" for fire in response.context["fires"][:3]] == [False, True, False]


def test_a_trigger_starts_one_run_and_says_so(admin: Client) -> None:
    row = make(workflow=Sleepy, args=None)
    token = admin.get(page(row)).context["trigger_form"]["token"].value()

    first = text_of(admin.post(page(row, "trigger"), {"token": token, "reason": "now"}, follow=True))
    again = text_of(admin.post(page(row, "trigger"), {"token": token}, follow=True))
    other = text_of(admin.post(page(row, "trigger"), {"token": "other"}, follow=True))

    run = Instance.objects.get()
    assert f"Triggered: the run {run.workflow_id} has been started." in first
    assert "already submitted" in again
    assert "no run was started: an earlier run was open" in other
    assert OperatorAction.objects.filter(action="trigger_schedule", reason="now", actor_name="root").exists()
    drain()
    text = admin.get(page(row)).content.decode()
    assert f'<a href="{RUNS}console/runs/{run.pk}/">{run.workflow_id}</a>' in text
    assert "triggered by root" in text


def test_the_page_of_a_run_names_its_schedule(admin: Client, django_assert_max_num_queries: Any) -> None:
    row = make(workflow=Sleepy, args=None)
    admin.post(page(row, "trigger"), {"token": "t"})
    run = Instance.objects.get()
    admin.get(f"{RUNS}console/runs/{run.pk}/")

    with django_assert_max_num_queries(12):
        text = run_text_of(admin, run.pk, "")

    assert "scheduled for" in text
    (address,) = re.findall(r'<a href="([^"]*)">nightly</a>', text)
    assert admin.get(address, follow=True).context["row"] == row
    user = get_user_model().objects.create_user("ann", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_instance"))
    theirs = Client()
    theirs.force_login(user)
    text = run_text_of(theirs, run.pk, "")
    assert "scheduled for" in text
    assert "by the schedule" not in text


def test_a_schedule_is_paused_with_a_reason_and_unpaused(admin: Client) -> None:
    row = make()

    text = text_of(admin.post(page(row, "pause"), {"reason": "the bank is closed"}, follow=True))
    assert "Paused by root: the bank is closed" in text
    assert "already paused" in text_of(admin.post(page(row, "pause"), {}, follow=True))
    assert "Active. It will next fire on" in text_of(admin.post(page(row, "unpause"), {"reason": ""}, follow=True))
    actions = OperatorAction.objects.exclude(action="view_payload").order_by("id")
    assert [*actions.values_list("action", "reason")] == [
        ("save_schedule", ""), ("pause_schedule", "the bank is closed"), ("unpause_schedule", "")
    ]  # fmt: skip
    audit = text_of(admin.get("/admin/temporalex_django/operatoraction/?action=pause_schedule"))
    assert "nightly schedule" in audit


def test_a_backfill_is_previewed_confirmed_and_stopped(admin: Client) -> None:
    row = make(workflow=Sleepy, args=None)
    now = datetime(2027, 4, 1, tzinfo=UTC)
    ScheduleRow.objects.update(position=now)
    wall = {"start": "2027-03-01T00:00", "end": "2027-03-05T23:59:59", "per_minute": "30", "reason": "lost nights"}

    preview = text_of(admin.post(page(row, "backfill"), {**wall, "_preview": "1"}))
    assert "5 runs will be started" in preview
    assert "Mon 1 Mar 2027, 02:30 +01:00" in preview
    assert "one after the other" in preview
    row.refresh_from_db()
    assert row.backfill is None

    done = text_of(admin.post(page(row, "backfill"), {**wall, "_confirm": "1"}, follow=True))
    assert "The backfill of 5 slots has begun." in done
    assert "Backfill: 0 of 5 slots" in done
    row.refresh_from_db()
    assert row.backfill["total"] == 5
    assert row.backfill["pause"] == 2
    assert "in progress" in text_of(admin.post(page(row, "backfill"), {**wall, "_confirm": "1"}))
    assert "The backfill has been stopped" in text_of(admin.post(page(row, "stop-backfill"), {}, follow=True))
    row.refresh_from_db()
    assert row.backfill is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": "2027-03-05T00:00", "end": "2027-03-01T00:00"}, "must not be earlier"),
        ({"start": "2097-03-05T00:00", "end": "2097-03-07T00:00"}, "no slot from"),
        ({"start": "soon"}, "is not a time"),
        ({"per_minute": "0"}, "greater than or equal to 1"),
    ],
)
def test_a_backfill_that_is_impossible_says_why(admin: Client, changes: dict[str, str], words: str) -> None:
    row = make()
    wall = {"start": "2027-03-01T00:00", "end": "2027-03-05T23:59:59", "per_minute": "30", "reason": ""}

    assert words in text_of(admin.post(page(row, "backfill"), {**wall, **changes, "_confirm": "1"}))


def test_a_schedule_is_deleted_after_a_confirmation(admin: Client) -> None:
    row = make()

    assert "Its runs will be kept" in text_of(admin.get(page(row, "delete")))
    assert ScheduleRow.objects.exists()
    assert "Deleted nightly." in text_of(admin.post(page(row, "delete"), {"reason": "not needed"}, follow=True))
    assert not ScheduleRow.objects.exists()
    assert admin.get(page(row)).status_code == 404


def test_a_schedule_of_code_is_operated_but_neither_changed_nor_deleted(admin: Client) -> None:
    row = declared()

    text = text_of(admin.get(page(row)))
    assert f"declared in {__name__}; change it there" in text
    assert "Delete…" not in text
    assert "change it there" in text_of(admin.get(page(row, "edit"), follow=True))
    response = admin.post(page(row, "edit"), FIELDS, follow=True)
    assert "change it there" in text_of(response)
    assert "remove it there, or pause it" in text_of(admin.post(page(row, "delete"), {}))
    assert "Paused by root" in text_of(admin.post(page(row, "pause"), {"reason": ""}, follow=True))
    ScheduleRow.objects.update(gone_since=timezone.now())
    assert f"{__name__} no longer declares it." in text_of(admin.get(page(row)))
    admin.post(page(row, "delete"), {})
    assert not ScheduleRow.objects.exists()


def test_a_schedule_is_created_previewed_and_changed(admin: Client) -> None:
    add = f"{ENTRY}add/?workflow=test.Typed"
    assert "test.Typed" in text_of(admin.get(f"{ENTRY}add/"))
    data = {
        **FIELDS,
        "arg_owner": "ann",
        "arg_limit": "3",
        "calendar": "last working day 18:00",
        "every": "1 d, offset 2 h",
    }

    preview = text_of(admin.post(add, {**data, "holidays": "test.no_mondays", "_preview": "1"}))
    assert (
        "Every day at 02:30; every day, offset by 2 hours; on the last working day of the month at 18:00, holidays: test.no_mondays"
        in preview
    )
    assert "The next five slots" in preview
    assert "Europe/Berlin" in preview
    assert not ScheduleRow.objects.exists()

    saved = text_of(admin.post(add, {**data, "holidays": "test.no_mondays"}, follow=True))
    assert "Saved nightly." in saved
    row = ScheduleRow.objects.get()
    assert [spec["type"] for spec in row.specs] == ["cron", "interval", "calendar"]
    assert row.specs[2]["holidays"] == "test.no_mondays"
    assert (row.editor_name, row.owner, row.tz) == ("root", "people", "Europe/Berlin")
    assert "already submitted" in text_of(admin.post(add, data, follow=True))

    form = admin.get(page(row, "edit")).context["form"]
    posted = {name: form[name].value() for name in form.fields}
    assert posted["every"] == "1 d, offset 2 h"
    assert posted["holidays"] == "test.no_mondays"
    assert posted["calendar"] == "last working day 18:00"
    position, args = row.position, bytes(row.args)
    unchanged = {name: "" if value is None else value for name, value in posted.items()}
    admin.post(page(row, "edit"), {**unchanged, "pause_after": "4"})
    row.refresh_from_db()
    assert (row.pause_after, row.position, bytes(row.args)) == (4, position, args)
    assert "was changed after you read it" in text_of(admin.post(page(row, "edit"), {**unchanged, "token": "second"}))


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"cron": "30 2 * *"}, "cron", "must have five fields"),
        ({"cron": "0 0 30 2 *"}, "cron", "never fires"),
        ({"cron": ""}, "cron", "Specify when it fires"),
        ({"every": "often"}, "every", "is not a duration"),
        ({"every": "1 h, offset 2 h"}, "every", "less than the interval"),
        ({"calendar": "some day"}, "calendar", "cannot be read"),
        ({"at": "tomorrow"}, "at", "is not a time"),
        ({"holidays": "test.no_mondays"}, "holidays", "only working days"),
        ({"start": "2027-02-01T00:00", "end": "2027-01-01T00:00"}, "end", "must be later than the start"),
        ({"jitter": "3 d"}, "jitter", "at most one day"),
        ({"catch_up": "1 s"}, "catch_up", "at least 10 seconds"),
        ({"workflow_id": "{nonsense}"}, "workflow_id", "unknown field"),
        ({"workflow_id": "same", "overlap": "allow_all"}, "workflow_id", "two runs can be open"),
        ({"max_fires": "0"}, "max_fires", "greater than or equal to 1"),
        ({"tz": "Europe/Atlantis"}, "tz", "Select a valid choice"),
        ({"cron": "", "at": "2001-01-01 09:00"}, "__all__", "never fires"),
        ({"payload": ""}, "payload", "required"),
        ({"name": ""}, "name", "required"),
        ({"name": "a/b"}, "name", "without '/'"),
    ],
)
def test_errors_are_at_their_fields(admin: Client, changes: dict[str, str], field: str, words: str) -> None:
    response = admin.post(f"{ENTRY}add/?workflow={Report.name}", {**FIELDS, "payload": "x", **changes})

    assert words in " ".join(errors_of(response)[field])
    assert not ScheduleRow.objects.exists()


def test_a_name_that_exists_is_refused_and_the_form_can_be_posted_again(admin: Client) -> None:
    make()
    add, data = f"{ENTRY}add/?workflow={Report.name}", {**FIELDS, "payload": "x"}

    response = admin.post(add, data)

    assert response.status_code == 409
    assert "choose another name" in text_of(response)
    token = response.context["form"]["token"].value()
    admin.post(add, {**data, "name": "other", "token": token})
    assert {*ScheduleRow.objects.values_list("name", flat=True)} == {"nightly", "other"}


def test_a_function_makes_the_input(admin: Client) -> None:
    add = f"{ENTRY}add/?workflow={Report.name}"

    admin.post(add, {**FIELDS, "payload": "", "arguments_function": "test.day_of_slot"})

    row = ScheduleRow.objects.get()
    assert (row.arguments_function, row.args) == ("test.day_of_slot", None)
    assert "made by the function test.day_of_slot" in text_of(admin.get(page(row)))
    past = timezone.now() - timedelta(minutes=1)
    ScheduleRow.objects.update(position=past - timedelta(days=1), next_at=past)
    fire_due("default")
    assert ScheduleSlot.objects.exists()


def staff(*codenames: str) -> Client:
    user = get_user_model().objects.create_user("ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def test_who_may_not_see_the_input_can_keep_it(admin: Client) -> None:
    row = make(args="secret words")
    ann = staff("view_schedule", "manage_schedule", "start_instance")

    assert "secret words" not in ann.get(page(row)).content.decode()
    response = ann.get(page(row, "edit"))
    assert "secret words" not in response.content.decode()
    form = response.context["form"]
    posted = {name: form[name].value() for name in form.fields}
    posted = {name: "" if value is None else value for name, value in posted.items()}
    ann.post(page(row, "edit"), {**posted, "keep_input": "on", "pause_after": "4"})

    stored = row.args
    row.refresh_from_db()
    assert (row.pause_after, bytes(row.args)) == (4, bytes(stored))


@pytest.mark.parametrize("view", ["pause", "unpause", "trigger", "backfill", "stop-backfill", "delete", "edit"])
def test_who_may_only_look_is_refused(view: str) -> None:
    row, ann = make(), staff("view_schedule")

    assert "Actions" not in ann.get(page(row)).content.decode()
    assert ann.post(page(row, view), {**FIELDS, "token": "t"}).status_code == 403
    assert OperatorAction.objects.filter(denied=True, actor_name="ann").count() == 1
    assert ann.get(f"{ENTRY}add/").status_code == 403


@pytest.mark.parametrize("view", ["", "pause", "edit"])
def test_without_permission_nothing_is_shown(view: str) -> None:
    row, ann = make(), staff("view_instance")

    assert (ann.post if view == "pause" else ann.get)(page(row, view)).status_code == 403
    assert ann.get(LIST).status_code == 403


class OnlyMine(AccessPolicy):
    """Shows each user only the schedules whose name begins with theirs."""

    def narrow_schedules(self, user: Any, schedules: Any) -> Any:
        return schedules.filter(name__startswith=user.username)


def test_schedules_of_other_tenants_do_not_exist() -> None:
    with override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.OnlyMine"}):
        mine, other = make("ann-1"), make("bob-1")
        ann = staff("view_schedule", "manage_schedule")

        assert [row.name for row in ann.get(LIST).context["page"].object_list] == ["ann-1"]
        assert "Paused" in text_of(ann.post(page(mine, "pause"), {}, follow=True))
        assert ann.post(page(other, "pause"), {}).status_code == 404
        assert ann.get(page(other)).status_code == ann.get(page(other, "edit")).status_code == 404
        other.refresh_from_db()
        assert other.paused_at is None


def test_actions_are_posts_with_a_csrf_token(admin: Client) -> None:
    row = make()
    for view in ("pause", "unpause", "trigger", "stop-backfill"):
        assert admin.get(page(row, view)).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(get_user_model().objects.get(username="root"))
    for view in ("pause", "trigger", "backfill", "delete", "edit"):
        assert strict.post(page(row, view), {}).status_code == 403
    assert admin.post(page(row), {}).status_code == 405


def test_pages_of_a_schedule_that_this_process_cannot_read(admin: Client) -> None:
    row = make()
    specs = [{"type": "calendar", "rule": "last working day 18:00", "holidays": "unknown"}]
    ScheduleRow.objects.update(specs=specs, workflow="test.NoSuchClass", tz="Mars/Olympus")

    assert "unreadable" in text_of(admin.get(LIST)) or "holidays: unknown" in text_of(admin.get(LIST))
    assert "This process does not have the workflow of this schedule" in text_of(admin.get(page(row)))
    assert "choose the workflow" in text_of(admin.get(page(row, "edit")))
    assert admin.get(f"{page(row, 'edit')}?workflow={Report.name}").status_code == 200
    assert admin.get(f"{LIST}9999999999999999999999/").status_code == 404
    assert admin.get(f"{ENTRY}9999999999999999999999/edit/").status_code == 404
    assert admin.get(f"{ENTRY}add/?workflow=test.NoSuchClass").status_code == 404


def slot(row: ScheduleRow, hours: int, outcome: str, **columns: Any) -> ScheduleSlot:
    now = timezone.now()
    given = {"cause": "time", "decided_at": now, **columns}
    return ScheduleSlot.objects.create(schedule=row, at=now - timedelta(hours=hours), outcome=outcome, **given)


def test_each_slot_of_the_strip_links_to_its_run_and_a_skip_to_the_run_in_its_way(admin: Client) -> None:
    row = make(workflow=Sleepy, args=None)
    admin.post(page(row, "trigger"), {"token": "t"})
    drain()
    run = Instance.objects.get()
    ScheduleSlot.objects.update(at=timezone.now() - timedelta(hours=2), cause="time")
    slot(row, 1, "skipped", reason="overlap")
    for address in (LIST, page(row)):
        (strip,) = re.findall(r'<ul class="tx-outcomes">(.*?)</ul>', admin.get(address).content.decode())
        skipped, started = strip.split("</li>")[:2]
        assert f"skipped, an earlier run was open ({run.workflow_id})" in skipped
        assert all(f'<a href="{RUNS}console/runs/{run.pk}/">' in part for part in (skipped, started))
    for number in range(40):
        slot(row, 5 + number, "missed", reason="window")
    (strip,) = re.findall(r'<ul class="tx-outcomes">(.*?)</ul>', admin.get(page(row)).content.decode())
    assert strip.count("<li") == 30
    assert admin.get(LIST).content.decode().count('<li class="tx-missed') == 28
    user = get_user_model().objects.create_user("eve", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_schedule"))
    theirs = Client()
    theirs.force_login(user)
    text = theirs.get(LIST).content.decode()
    assert "skipped" in text
    assert run.workflow_id not in text
    assert str(run.pk) not in text


def test_the_view_of_trouble_has_what_the_overview_counts(admin: Client) -> None:
    now = timezone.now()
    for name in (
        "well",
        "broken",
        "failed",
        "gone",
        "stalled",
        "missed",
        "paused",
        "late-1",
        "late-2",
        "lost",
        "lost-2",
    ):
        make(name)
    changes: dict[str, dict[str, Any]] = {
        "broken": {"error": "no holidays function"},
        "failed": {"paused_at": now, "paused_by_failures": True},
        "gone": {"gone_since": now, "owner": "code"},
        "paused": {"paused_at": now},
        # One cause, and one finding, for many schedules.
        **{f"late-{number}": {"next_at": now - timedelta(hours=1)} for number in (1, 2)},
        **{name: {"workflow": "test.GoneFromTheCode"} for name in ("lost", "lost-2")},
    }
    for name, columns in changes.items():
        ScheduleRow.objects.filter(name=name).update(**columns)
    for number in range(3):
        slot(ScheduleRow.objects.get(name="stalled"), number, "skipped", reason="overlap")
    slot(ScheduleRow.objects.get(name="missed"), 1, "missed", reason="window")
    overview = admin.get(CONSOLE).content.decode()
    (address,) = re.findall(r'<a href="([^"]*)"><span class="tx-tile-value">9</span>', overview)
    assert address == f"{LIST}?state=trouble"
    listed = admin.get(address).context["page"].object_list
    names = {"broken", "failed", "gone", "stalled", "missed", "late-1", "late-2", "lost", "lost-2"}
    assert {row.name for row in listed} == names
    assert "Skips its slots" in text_of(admin.get(LIST))


def test_the_pages_take_few_statements_and_an_unchanged_poll_none(
    admin: Client, django_assert_max_num_queries: Any
) -> None:
    rows = [make(f"s-{number:02}", workflow=Sleepy, args=None) for number in range(25)]
    for number, row in enumerate(rows):
        admin.post(page(row, "trigger"), {"token": f"t-{number}"})
        for hours in range(1, 5):
            slot(row, -hours, "skipped", reason="overlap")
    drain()
    for address in (LIST, page(rows[0])):
        with django_assert_max_num_queries(12):
            response = admin.get(address)
        with django_assert_max_num_queries(2):  # the session and the user
            assert poll(admin, response).status_code == 204
        live._values.clear()
        ScheduleRow.objects.filter(pk=rows[0].pk).update(paused_at=timezone.now(), pause_reason=f"why {address}")
        with django_assert_max_num_queries(12):
            changed = poll(admin, response)
        assert "why" in changed.content.decode()
        assert "<form" not in changed.content.decode()
    assert not OperatorAction.objects.filter(action="view_payload").exclude(details__schedule="s-00").exists()


def test_a_poll_reads_no_input(admin: Client) -> None:
    row = make(args="secret words")
    response = admin.get(page(row))
    assert "secret words" in response.content.decode()
    reads = OperatorAction.objects.filter(action="view_payload").count()
    ScheduleRow.objects.update(paused_at=timezone.now())
    live._values.clear()
    assert "secret words" not in poll(admin, response).content.decode()
    assert OperatorAction.objects.filter(action="view_payload").count() == reads == 1


def test_the_entry_in_the_admin_leads_to_the_console(admin: Client) -> None:
    row = make()
    assert admin.get(ENTRY)["Location"] == LIST
    assert admin.get(f"{ENTRY}{row.pk}/change/")["Location"] == page(row)
    assert admin.get(f"{ENTRY}{row.pk}/backfill/")["Location"] == page(row)
    assert f'href="{ENTRY}add/"' in admin.get("/admin/").content.decode()
    text = admin.get(page(row)).content.decode()
    assert f'href="{page(row, "edit")}"' in text


def test_the_console_outside_of_the_admin_shows_schedules_without_links_to_it() -> None:
    row = make()
    user = get_user_model().objects.create_user("ann")
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_schedule", "manage_schedule"]))
    theirs = Client()
    theirs.force_login(user)
    text = theirs.get("/workflows/schedules/").content.decode()
    assert f'<a href="/workflows/schedules/{row.pk}/">nightly</a>' in text
    assert "/admin/" not in text + theirs.get(f"/workflows/schedules/{row.pk}/").content.decode()
    done = theirs.post(f"/workflows/schedules/{row.pk}/pause/", {"reason": "why"}, follow=True)
    assert "Paused by ann: why" in text_of(done)
