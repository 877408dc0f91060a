"""Failures with one cause are listed together, found by it, and repaired at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from rest_framework.test import APIClient

from temporalex_django import Ok, RetryPolicy, Workflow, activity, api, errors
from temporalex_django.core.failures import failure_cause
from temporalex_django.db import background_hooks
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import ActivityTask, BulkItem, BulkJob, Instance, OperatorAction
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.read.failure_groups import failure_groups
from temporalex_django.testing import WorkflowEnvironment, drain
from tests.support.commands import shell

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("rows of failing activities")]

BANK: dict[str, Callable[[], str]] = {}
RUNS = "/admin/temporalex_django/instance/"
PATIENT = RetryPolicy(initial_interval=3600, max_attempts=5)


def bank_is_away() -> str:
    raise ConnectionError("card 4711 refused")


@activity(name="cause.charge", retry=PATIENT)
def charge(order: int) -> str:
    return BANK["charge"]()


@activity(name="cause.ship", retry=PATIENT)
def ship(order: int) -> str:
    return BANK["ship"]()


class Sale(Workflow):
    """Charges and ships; a negative number is a fault of the code."""

    name = "cause.Sale"

    async def run(self, order: int) -> Any:
        if order < 0:
            raise KeyError(f"vat of {order}")
        return Ok(await api.parallel([charge(order), ship(order)]))


class Delivery(Workflow):
    """Ships."""

    name = "cause.Delivery"

    async def run(self, order: int) -> Any:
        return Ok(await ship(order))


class Careful(Workflow):
    """Blocks at a fault."""

    name = "cause.Careful"
    unexpected_error = "block"

    async def run(self, args: None) -> Any:
        raise KeyError("vat")


class Nap(Workflow):
    """Sleeps twice at once."""

    name = "cause.Nap"

    async def run(self, args: None) -> Any:
        await api.parallel([api.sleep(timedelta(days=1)), api.sleep(timedelta(days=2))])
        return Ok("rested")


@pytest.fixture(autouse=True)
def _away() -> None:
    BANK.update(charge=bank_is_away, ship=bank_is_away)


def sales(*orders: int) -> list[Any]:
    made = [Sale.start(order, id=f"sale-{order}") for order in orders]
    drain()
    return made


def finished() -> None:
    while background_hooks.run_hooks("default"):
        pass
    drain()


def groups() -> dict[tuple[str, str | None], tuple[str, int]]:
    found = failure_groups("default", None, now=DjangoStorage("default").now())
    return {(one.workflow, one.activity): (one.cause, one.count) for one in found}


def cause(name: str) -> str:
    return str(ActivityTask.objects.filter(activity=f"cause.{name}").values_list("cause", flat=True)[0])


def test_a_cause_is_the_type_and_the_last_place_in_the_code_of_the_project() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "/srv/app/shop/flows.py", line 3, in run\n    x()\n'
        '  File "/srv/app/shop/banks.py", line 41, in pay\n    post()\n'
        '  File "/srv/venv/lib/python3.13/site-packages/requests/api.py", line 9, in post\n    y()\n'
        '  File "/usr/lib/python3.13/socket.py", line 1, in z\n    z()\nConnectionError: card 4711\n'
    )
    assert failure_cause("ConnectionError", traceback) == "ConnectionError at shop/banks.py:41"
    assert failure_cause("TimeoutError") == "TimeoutError"
    assert failure_cause("E", traceback.replace("/srv/app/shop/", "C:\\srv\\shop\\")) == "E at shop/banks.py:41"


def test_failures_are_grouped_by_class_activity_type_and_place() -> None:
    sales(1, 2, -1, -2, -3)

    found = groups()

    here = r"operations/test_failure_groups\.py:\d+"
    for name in ("charge", "ship"):
        text, count = found["cause.Sale", f"cause.{name}"]
        assert re.fullmatch(rf"cause\.{name}: ConnectionError at {here}", text)
        assert count == 2
    text, count = found["cause.Sale", None]
    assert re.fullmatch(rf"KeyError at {here}", text)
    assert count == 3
    assert "4711" not in str(found)


def test_a_run_that_failed_with_an_activity_has_the_cause_of_it() -> None:
    handle = Delivery.start(1, id="delivery")
    drain()
    handle.fail_activity(ActivityTask.objects.get().seq, message="gone", type="Lost")
    drain()

    assert str(Instance.objects.get().cause).startswith("cause.ship: Lost at operations/test_failure")


def test_a_blocked_run_has_a_cause_until_it_is_over() -> None:
    handle = Careful.start(id="careful")
    drain()
    assert str(Instance.objects.get().cause).startswith("KeyError at operations/test_failure")

    handle.terminate()
    assert Instance.objects.get().cause is None


def test_runs_are_found_by_their_cause_on_every_host() -> None:
    sales(1, 2, -1)
    failed = str(Instance.objects.get(status="failed").cause)
    assert [one.id for one in Sale.list(cause=failed)] == ["sale--1"]
    assert {one.id for one in Sale.list(cause=cause("charge"))} == {"sale-1", "sale-2"}
    assert [*Sale.list(cause="nothing")] == []
    with pytest.raises(ValueError, match="cause"):
        Sale.list(cause=7)

    api_client = APIClient()
    api_client.force_authenticate(get_user_model().objects.create_superuser("root"))
    found = api_client.get("/api/instances/", {"cause": cause("ship")}).json()
    assert {one["id"] for one in found["results"]} == {"sale-1", "sale-2"}

    env = WorkflowEnvironment()
    handles = [env.start(Sale, order) for order in (1, -1)]
    assert [one.id for one in env.list(Sale, cause=failed)] == [handles[1].id]
    assert [one.id for one in env.list(Sale, cause=cause("charge"))] == [handles[0].id]


def test_doctor_names_each_group_and_the_command_that_repairs_it() -> None:
    sales(1, 2, -1)

    ran = shell("doctor")

    assert "2 activities of cause.Sale have been failing since" in ran.out
    assert f"bulk retry_activity --workflow cause.Sale --cause '{cause('charge')}'" in ran.out
    assert "1 run of cause.Sale has failed since" in ran.out
    assert "--cause 'KeyError at operations/test_failure_groups.py:" in ran.out


def test_activities_with_one_cause_are_retried_by_the_command() -> None:
    sales(1, 2, 3)
    BANK.update(charge=lambda: "paid", ship=lambda: "sent")

    ran = shell("bulk", "retry_activity", "--cause", cause("charge"), "--reason", "the bank is back")

    assert "retry_activity of 3 activities" in ran.out
    finished()
    assert set(ActivityTask.objects.values_list("activity", flat=True)) == {"cause.ship"}  # not asked for
    assert OperatorAction.objects.filter(action="retry_activity").count() == 3


def test_activities_are_completed_failed_and_retried_over_rest() -> None:
    runs = [one.run_id for one in sales(1, 2)]
    api_client = APIClient()
    api_client.force_authenticate(get_user_model().objects.create_superuser("root"))

    def post(action: str, **body: Any) -> Any:
        return api_client.post("/api/bulk/", {"action": action, "reason": "by hand", **body}, format="json")

    refused = post("complete_activity", runs=runs, inputs={"result": "paid"})
    assert (refused.status_code, "requires activity" in str(refused.json())) == (400, True)
    done = post("complete_activity", runs=runs, inputs={"result": "paid", "activity": "cause.charge"})
    assert (done.status_code, done.json()["total"]) == (201, 2)
    failed = post(
        "fail_activity", filter={"cause": cause("ship")}, inputs={"message": "lost", "activity": "cause.ship"}
    )
    assert (failed.status_code, failed.json()["total"]) == (201, 2)
    none = post("retry_activity", runs=runs, inputs={"activity": "cause.other"})
    assert (none.status_code, "none of the 2 runs has any activity" in none.json()["detail"]) == (409, True)
    finished()
    assert {run.status for run in Instance.objects.all()} == {"failed"}

    items = api_client.get(f"/api/bulk/{done.json()['id']}/items/").json()["results"]
    assert [(one["outcome"], one["part"]) for one in items] == [("done", items[0]["part"])] * 2


def test_an_activity_that_ended_meanwhile_fails_alone() -> None:
    handles = sales(1, 2)
    job = StartBulk("retry_activity", runs=[one.run_id for one in handles], activity="cause.charge").execute()
    handles[0].complete_activity(ActivityTask.objects.filter(activity="cause.charge").order_by("pk")[0].seq, "paid")
    BANK["charge"] = lambda: "paid"
    finished()
    assert sorted(BulkItem.objects.filter(job=job).values_list("outcome", flat=True)) == ["done", "failed"]


def test_timers_of_many_runs_fire_at_once() -> None:
    for name in ("a", "b"):
        Nap.start(id=name)
    drain()
    job = StartBulk("skip_timer", runs=Instance.objects.all(), reason="tests").execute()
    assert job.total == 4
    finished()
    assert {run.status for run in Instance.objects.all()} == {"completed"}


def test_a_job_takes_no_more_activities_than_the_limit(settings: Any) -> None:
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "BULK_LIMIT": 3}
    sales(1, 2)
    with pytest.raises(errors.ActionNotPossible, match="at most 3 activities"):
        StartBulk("retry_activity", runs=Instance.objects.all()).execute()
    assert BulkJob.objects.count() == 0


def hidden(text: str, name: str) -> str:
    return re.findall(rf'name="{name}" value="([^"]*)"', text)[0]


def test_the_console_shows_the_cause_and_retries_what_fails_with_it(client: Client) -> None:
    client.force_login(get_user_model().objects.create_superuser("root"))
    sales(1, 2, -1)
    why = cause("charge")
    overview = client.get(f"{RUNS}console/").content.decode()
    assert f"{why}</a>" in overview
    addresses = re.findall(r'href="([^"]*action=retry_activity[^"]*)"', overview)
    address = next(each for each in addresses if "cause.charge" in each).replace("&amp;", "&")
    page = client.get(address).content.decode()

    assert "The action can currently be applied to 2 activities in 2 of 2 selected runs." in page
    assert f'<option value="{why}" selected>' in page
    BANK["charge"] = lambda: "paid"
    given = {"token": hidden(page, "token"), "newest": hidden(page, "newest"), "input_cause": why, "reason": "back"}
    assert client.post(address, given).status_code == 302
    finished()
    assert not ActivityTask.objects.filter(activity="cause.charge").exists()
    assert json.loads(json.dumps(OperatorAction.objects.filter(action="start_bulk").get().details))["parts"] == 2
