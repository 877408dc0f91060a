"""Schedules over REST: what a client reads, changes and does, and what it is told when that is not possible."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from rest_framework.test import APIClient

from temporalex_django.models import Instance, OperatorAction, Schedule, ScheduleSlot
from temporalex_django.operations.schedules.operations import PauseSchedule
from tests.integration.rest.test_instances import assert_problem
from tests.support.client_flows import Basket
from tests.support.matrix import nightly
from tests.support.people import stored

pytestmark = pytest.mark.django_db

URL = "/api/schedules/"
#: What a change sends: the definition without the name.
DEFINITION = {name: value for name, value in nightly().items() if name != "name"}


@pytest.fixture
def client() -> APIClient:
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    return client


def create(client: APIClient, name: str = "nightly", **values: Any) -> Any:
    answer = client.post(URL, {**nightly(name), **values}, format="json")
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_what_was_created_is_what_is_read(client: APIClient) -> None:
    values = {
        "cron": None, "specs": [{"type": "cron", "expression": "0 9 * * mon"}], "args": {"since": 5}, "jitter": 60,
        "catch_up": 7200, "start": "2027-01-01T00:00", "end": "2028-01-01T00:00Z", "max_fires": 9, "pause_after": 3,
        "overlap": "buffer_one", "dst_gap": "skip", "dst_fold": "both", "workflow_id": "n-{slot:%Y%m%d}",
    }  # fmt: skip
    answer = client.post(URL, {**nightly("weekly"), **values, "reason": "they asked"}, format="json")
    assert answer["Location"] == "http://testserver/api/schedules/weekly/"
    read = client.get(f"{URL}weekly/").json()

    assert answer.json() == read
    same = ("specs", "args", "jitter", "catch_up", "max_fires", "pause_after", "overlap", "dst_gap", "dst_fold")
    assert {name: read[name] for name in same} == {name: values[name] for name in same}
    # A naive time is the wall clock in the zone of the schedule.
    assert (read["start"], read["end"]) == ("2026-12-31T23:00:00Z", "2028-01-01T00:00:00Z")
    assert (read["description"], read["state"], read["owner"]) == (
        "On Monday at 09:00 (Europe/Berlin)",
        "active",
        "people",
    )
    assert read["next_fires"][:2] == ["2027-01-04T08:00:00Z", "2027-01-11T08:00:00Z"]
    assert (len(read["next_fires"]), read["editor"], read["slots"]) == (9, "root", [])
    assert OperatorAction.objects.get().details["changed"][:2] == ["args", "catch_up"]
    assert OperatorAction.objects.get().reason == "they asked"


def test_each_way_to_say_when(client: APIClient) -> None:
    def said(**values: Any) -> Any:
        return client.post("/api/schedule-preview/", {**nightly(), "cron": None, **values}, format="json").json()

    assert (
        said(cron=["0 6 * * *", "0 18 * * *"])["description"]
        == "Every day at 06:00; every day at 18:00 (Europe/Berlin)"
    )
    assert said(every=900, offset=60)["description"] == "Every 15 minutes, offset by 1 minute (Europe/Berlin)"
    assert said(calendar="last working day 18:00")["description"].startswith("On the last working day")
    once = said(at=["2099-01-02T09:00", "2099-01-03T09:00Z"])
    assert once["next_fires"] == ["2099-01-02T08:00:00Z", "2099-01-03T09:00:00Z"]
    assert not Schedule.objects.exists()
    assert not OperatorAction.objects.exists()


def test_pages_are_by_name_and_filters_hold(client: APIClient) -> None:
    for number in range(5):
        create(client, f"s{number}")
    create(client, "other", cron=None, every=60)
    PauseSchedule("s1", reason="bank holiday").execute()
    Schedule.objects.filter(name="s2").update(owner="code", gone_since=datetime.now(UTC))
    Schedule.objects.filter(name="s3").update(next_at=None)

    names, address = [], f"{URL}?limit=2"
    while address:
        page = client.get(address).json()
        names += [one["name"] for one in page["results"]]
        address = page["next"]
    assert names == ["other", "s0", "s1", "s2", "s3", "s4"]

    def found(query: str) -> list[str]:
        return [one["name"] for one in client.get(f"{URL}?{query}").json()["results"]]

    assert found("state=active") == ["other", "s0", "s4"]
    assert [found(f"state={state}") for state in ("paused", "gone", "ended")] == [["s1"], ["s2"], ["s3"]]
    assert (found("owner=code"), found("search=OTH")) == (["s2"], ["other"])
    assert (found("workflow=test.Basket&search=s0"), found("workflow=test.Nothing")) == (["s0"], [])
    paused = client.get(f"{URL}?state=paused").json()["results"][0]
    assert (paused["pause_reason"], paused["paused_by"], len(paused["next_fires"])) == ("bank holiday", "", 5)
    assert "state" in assert_problem(client.get(f"{URL}?state=lost"), 400, "invalid")["errors"]
    assert_problem(client.get(f"{URL}?cursor=cD0lMDA="), 400, "invalid")  # p=%00


def test_a_list_costs_the_same_however_many_there_are(client: APIClient, django_assert_num_queries: Any) -> None:
    create(client, "s0")
    with django_assert_num_queries(3):
        client.get(URL)
    for number in range(1, 9):
        create(client, f"s{number}")
    with django_assert_num_queries(3):
        client.get(URL)


def test_a_change_replaces_the_definition_and_keeps_the_input(client: APIClient) -> None:
    create(client, args={"secret": 1}, max_fires=5)
    read = client.get(f"{URL}nightly/")
    changed = client.put(
        f"{URL}nightly/", {**DEFINITION, "cron": "0 3 * * *"}, format="json", headers={"If-Match": read["ETag"]}
    )

    assert changed.status_code == 200
    assert (changed.json()["args"], changed.json()["max_fires"]) == ({"secret": 1}, None)
    late = client.put(f"{URL}nightly/", DEFINITION, format="json", headers={"If-Match": read["ETag"]})
    assert assert_problem(late, 412, "changed")["changes"]["changed_at"]
    assert client.put(f"{URL}nightly/", DEFINITION, format="json", headers={"If-Match": "*"}).status_code == 200
    assert client.put(f"{URL}nightly/", {**DEFINITION, "args": None}, format="json").json()["args"] is None
    assert_problem(client.put(f"{URL}nobody/", DEFINITION, format="json"), 404, "schedule_not_found")


def test_an_input_does_not_get_to_another_class_unseen(client: APIClient) -> None:
    """The class says which parts of an input are hidden."""
    create(client, args={"secret": 1})
    other = {**DEFINITION, "workflow": "test.MatrixAstray", "workflow_id": "redastray::{slot:%Y%m%d}"}
    problem = assert_problem(client.put(f"{URL}nightly/", other, format="json"), 400, "schedule_invalid")
    assert "give its input in `args`" in problem["detail"]
    assert client.put(f"{URL}nightly/", {**other, "args": {}}, format="json").json()["args"] == {}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cron": None}, "needs a spec"),
    ({"cron": "61 2 * * *"}, "cron: '61 2 * * *' cannot be read"),
    ({"specs": []}, "give either `specs` or `cron`"),
    ({"cron": None, "specs": []}, "needs a spec"),
    ({"cron": None, "specs": [{"type": "moon"}]}, "the type 'moon' must be one of"),
    ({"cron": None, "specs": [{"type": "once", "at": 5}]}, "at: 5 must be a datetime"),
    ({"cron": None, "every": 4e9}, "is longer than 100 years"),
    ({"cron": None, "at": "soon"}, "at: 'soon' is not a time"),
    ({"cron": None, "at": "0001-01-01T00:00+05:00"}, "must be in a year from 2 to 9998"),
    ({"cron": None, "at": "2020-01-01T00:00"}, "never fires"),
    ({"start": "9999-12-31T23:00-05:00"}, "must be in a year from 2 to 9998"),
    ({"start": "2027-01-02T00:00", "end": "2027-01-01T00:00"}, "must be later than the start"),
    ({"tz": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
    ({"jitter": 100_000}, "jitter: 1 day, 3:46:40 must be at most one day"),
    ({"catch_up": -1}, "catch_up: -1.0 must not be negative"),
    ({"max_fires": 10**12}, "max_fires: 1000000000000 must be a whole number from 1 to 2,147,483,647"),
    ({"pause_after": 0}, "pause_after: 0 must be a whole number"),
    ({"name": "a/b"}, "without '/'"),
    ({"name": " "}, "without leading or trailing spaces or dots"),
    ({"workflow_id": "{when}"}, "unknown field {when}"),
    ({"workflow_id": "n", "overlap": "allow_all"}, "the template needs {slot}"),
    ({"arguments_function": "nobody"}, "no arguments function 'nobody'"),
    ({"calendar": "last working day 18:00", "holidays": "nobody"}, "no holidays function 'nobody'"),
]


@pytest.mark.parametrize(("values", "text"), WRONG, ids=[text for _, text in WRONG])
def test_what_cannot_be_a_schedule(client: APIClient, values: dict[str, Any], text: str) -> None:
    for address in (URL, "/api/schedule-preview/"):
        answer = client.post(address, {**nightly(), **values}, format="json")
        assert text in assert_problem(answer, 400, "schedule_invalid")["detail"]
    assert not Schedule.objects.exists()


def test_numbers_that_no_computer_holds_and_a_class_that_is_not_there(client: APIClient) -> None:
    for number in (f"1{'0' * 400}", "1e400"):
        body = f'{{"name": "n", "workflow": "test.Basket", "every": {number}}}'
        answer = client.generic("POST", URL, body, "application/json")
        # A parser may read the number as infinity, which the schedule itself refuses.
        assert answer.status_code == 400
        assert answer.json()["code"] in ("invalid", "schedule_invalid")
        assert "every" in answer.content.decode()
    assert_problem(client.post(URL, {**nightly(), "workflow": "shop.Gone"}, format="json"), 404, "unknown_workflow")
    create(client)
    assert (
        "choose another name"
        in assert_problem(client.post(URL, nightly("nightly"), format="json"), 409, "not_possible")["detail"]
    )


def test_what_code_declares_is_changed_in_the_code(client: APIClient) -> None:
    create(client)
    Schedule.objects.update(owner="code", module="shop.schedules")
    for answer in (client.put(f"{URL}nightly/", DEFINITION, format="json"), client.delete(f"{URL}nightly/")):
        assert "is declared in shop.schedules" in assert_problem(answer, 409, "not_possible")["detail"]
    assert client.post(f"{URL}nightly/pause/", {"reason": "x"}, format="json").json()["state"] == "paused"
    assert_problem(client.post(f"{URL}nightly/pause/", {}, format="json"), 409, "not_possible")
    assert client.post(f"{URL}nightly/unpause/", {}, format="json").json()["state"] == "active"


def test_a_trigger_with_a_key_starts_one_run(client: APIClient) -> None:
    create(client)
    sent = {"headers": {"Idempotency-Key": "k"}, "format": "json"}
    first = client.post(f"{URL}nightly/trigger/", {"reason": "now"}, **sent).json()
    again = client.post(f"{URL}nightly/trigger/", {"reason": "now"}, **sent).json()

    run = Instance.objects.get()
    assert first == again
    assert (first["outcome"], first["cause"], first["actor"], first["run_id"]) == (
        "started",
        "trigger",
        "root",
        str(run.pk),
    )
    assert client.post(f"{URL}nightly/trigger/", {}, format="json").json()["reason"] == "overlap"
    page = client.get(f"{URL}nightly/slots/?limit=1").json()
    assert [one["outcome"] for one in page["results"]] == ["skipped"]
    assert client.get(page["next"]).json()["results"] == [first]


def test_who_may_not_view_learns_names_alone(client: APIClient) -> None:
    create(client)
    client.force_authenticate(stored("ann", "temporalex_django.manage_schedule", "temporalex_django.start_instance"))
    names = {"name": "nightly", "url": "http://testserver/api/schedules/nightly/"}
    assert client.post(f"{URL}nightly/pause/", {}, format="json").json() == names
    assert client.put(f"{URL}nightly/", DEFINITION, format="json").json() == names
    assert client.post(f"{URL}nightly/trigger/", {}, format="json").json()["run_id"] is None
    assert_problem(client.get(f"{URL}nightly/"), 403, "not_permitted")
    client.force_authenticate(stored("bob", "temporalex_django.view_schedule"))
    assert client.get(f"{URL}nightly/").json()["slots"][0]["run_id"] is None
    denied = OperatorAction.objects.filter(denied=True).values_list("action", flat=True)
    assert {*denied} == {"view_schedule"}


def test_a_backfill_is_previewed_started_and_stopped(client: APIClient) -> None:
    create(client)
    ScheduleSlot.objects.create(
        schedule=Schedule.objects.get(), at=datetime(2026, 1, 1, 1, 30, tzinfo=UTC), cause="time", outcome="started",
        decided_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    address = f"{URL}nightly/backfill/"
    # 00:00 on the wall clock in Berlin is 23:00 of the day before in UTC.
    assert client.get(f"{address}?start=2026-01-01T00:00&end=2026-01-03T02:30").json() == {
        "slots": 3, "started": 1, "to_start": 2, "first": "2026-01-01T01:30:00Z", "last": "2026-01-03T01:30:00Z",
    }  # fmt: skip
    for query, status, text in (
        ("start=2026-01-01", 400, "end"),
        ("start=2026-01-01&end=later", 400, "end: 'later' is not a time"),
        ("start=1000-01-01&end=2026-01-01", 400, "more than 10,000 slots"),
        ("start=0001-01-01&end=2026-01-01", 400, "must be in a year"),
        ("start=2099-01-01&end=2099-02-01", 400, "no slot from"),
    ):
        answer = client.get(f"{address}?{query}")
        assert (answer.status_code, text in answer.content.decode()) == (status, True), answer.content
    body = {"start": "2026-01-01T00:00", "end": "2026-01-03T02:30", "per_minute": 6}
    assert_problem(client.post(address, {**body, "per_minute": 0}, format="json"), 400, "schedule_invalid")
    begun = client.post(address, body, format="json", headers={"Idempotency-Key": "k"}).json()
    assert (begun["backfill"]["total"], begun["backfill"]["done"], begun["backfill"]["actor"]) == (2, 0, "root")
    assert client.post(address, body, format="json", headers={"Idempotency-Key": "k"}).json()["backfill"]["total"] == 2
    assert_problem(client.post(address, body, format="json"), 409, "not_possible")
    assert client.post(f"{address}stop/", {}, format="json").json()["backfill"] is None
    assert_problem(client.post(f"{address}stop/", {}, format="json"), 409, "not_possible")


def test_a_deletion_is_audited_and_may_be_sent_again(client: APIClient) -> None:
    create(client)
    for _ in range(2):
        gone = client.delete(f"{URL}nightly/?reason=old", headers={"Idempotency-Key": "k"})
        assert (gone.status_code, gone.content) == (204, b"")
    assert_problem(client.delete(f"{URL}nightly/"), 404, "schedule_not_found")
    row = OperatorAction.objects.get(action="delete_schedule", denied=False)
    assert (row.reason, row.actor_name, row.source, row.details["schedule"]) == ("old", "root", "rest", "nightly")


def test_the_input_is_for_who_may_see_payloads(client: APIClient) -> None:
    create(client, args={"secret": 1})
    assert Basket.name == client.get(f"{URL}nightly/").json()["workflow"]
    client.force_authenticate(stored("bob", "temporalex_django.view_schedule"))
    read = client.get(f"{URL}nightly/")
    assert (read.json()["args"], b"secret" in read.content) == (None, False)
    assert timedelta(seconds=read.json()["catch_up"]) == timedelta(hours=1)
