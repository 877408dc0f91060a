"""A group of failures is defined once, by class, type of error, file and function."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import Done, Err, Event, GraphWorkflow, Ok, RetryPolicy, Step, Unique, Workflow, activity
from temporalex_django.core.failures import cause_from
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import ActivityTask, Chain, Instance, Outbox
from temporalex_django.operations.read import failure_groups as groups_module
from temporalex_django.operations.read.failure_groups import failure_groups
from temporalex_django.present.problems import failure_diagnosis
from temporalex_django.present.project_view import FailureGroup
from temporalex_django.testing import drain
from tests.support.commands import shell

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("groups of failures")]


CORRECTED: list[bool] = []


def pay(order: int) -> str:
    if order % 2:
        raise ConnectionError("card refused")
    raise ConnectionError("card 4711 refused")


@activity(name="fault.charge", retry=RetryPolicy(initial_interval=3600, max_attempts=2))
def charge(order: int) -> str:
    return pay(order)


class Sale(Workflow):
    """Charges."""

    name = "fault.Sale"

    async def run(self, order: int) -> Any:
        return Ok(await charge(order))


class Stuck(Workflow):
    """Blocks at a fault, at one of two lines."""

    name = "fault.Stuck"
    unexpected_error = "block"

    async def run(self, order: int) -> Any:
        if order % 2:
            raise KeyError("vat")
        raise KeyError("vat of 7")


class Marked(Workflow):
    """Blocks at an error whose name is markup."""

    name = "fault.Marked"
    unexpected_error = "block"

    async def run(self, order: int) -> Any:
        raise type("<script>alert(1)</script>", (Exception,), {})


class Endless(Workflow):
    """Blocks at an error whose name has very many characters."""

    name = "fault.Endless"
    unexpected_error = "block"

    async def run(self, order: int) -> Any:
        raise type("E" * 10_000, (Exception,), {})


class Refused(Workflow):
    """Fails by a result."""

    name = "fault.Refused"

    async def run(self, order: int) -> Any:
        return Ok("late") if CORRECTED else Err(f"no {order}")


class First(Step):
    """Fails for the order 1, and returns Err for the order 3."""

    events = ("ok",)
    retry = RetryPolicy(max_attempts=1)

    def execute(self, instance: Any, config: Any, context: Any) -> Any:
        if context.initial["order"] == 1:
            raise ValueError("no card 4711")
        return Err("no stock") if context.initial["order"] == 3 else Event("ok")


class Second(Step):
    """Fails for the order 2, and returns what no step may return for the order 4."""

    events = ("ok",)
    retry = RetryPolicy(max_attempts=1)

    def execute(self, instance: Any, config: Any, context: Any) -> Any:
        if context.initial["order"] == 2:
            raise ValueError("no address")
        return "nothing"


class Two(GraphWorkflow):
    """Fails in one of two steps."""

    name = "fault.Two"
    unique = Unique(key="order")
    initial = First
    transitions: ClassVar = {(First, "ok"): Second, (Second, "ok"): Done}


def groups() -> list[FailureGroup]:
    return failure_groups("default", None, now=DjangoStorage("default").now())


def started(flow: Any, *orders: int) -> list[Any]:
    handles = [flow.start(order, id=f"{flow.__name__}-{order}") for order in orders]
    drain()
    return handles


def test_the_line_is_shown_and_does_not_divide() -> None:
    """Runs that fail at two lines of a function are one group; so are activities, and blocked runs."""
    started(Sale, 1, 2)
    started(Stuck, 1, 2, 3)
    started(Refused, 1, 2)

    found = {(group.kind, group.workflow): group for group in groups()}

    assert [found[key].count for key in (("activity", Sale.name), ("blocked", Stuck.name), ("run", Refused.name))] == [
        2,
        3,
        2,
    ]
    blocked = found["blocked", Stuck.name]
    assert blocked.cause.startswith("KeyError at operations/test_one_group_for_one_fault.py:")
    assert blocked.next_attempt is not None
    assert blocked.since is not None
    assert blocked.last is not None
    assert found["run", Refused.name].cause == "Err"
    # Each line finds the group, in the filter of runs and in a bulk job.
    lines = {*ActivityTask.objects.values_list("cause", flat=True)}
    assert len(lines) == 2
    for line in lines:
        assert {run.id for run in Sale.list(cause=line)} == {"Sale-1", "Sale-2"}
    ran = shell("bulk", "retry_activity", "--cause", lines.pop(), "--reason", "the bank is back")
    assert "retry_activity of 2 activities" in ran.out


def test_a_run_that_was_reset_or_replaced_does_not_count() -> None:
    first, second, _third = started(Refused, 1, 2, 3)
    CORRECTED.append(True)
    try:
        first.reset(0, reason="corrected")
        Refused.start(2, id=second.id)
        drain()
    finally:
        CORRECTED.clear()

    found = {group.kind: group.count for group in groups()}
    cause = str(Instance.objects.filter(workflow_id="Refused-3").values_list("cause", flat=True).get())

    assert found == {"run": 1}
    assert {run.id for run in Refused.list(cause=cause)} == {"Refused-3"}


def test_a_chain_whose_blocked_run_is_gone_stops_nothing_else() -> None:
    started(Stuck, 1)
    Instance.objects.all().delete()
    Chain.objects.update(due_at=timezone.now())

    started(Refused, 2)

    assert [*Instance.objects.values_list("status", flat=True)] == ["failed"]


def test_one_fault_has_one_name_while_it_is_retried_and_when_the_run_failed() -> None:
    (handle,) = started(Sale, 1)
    retried = str(ActivityTask.objects.get().cause)
    handle.retry_activity(ActivityTask.objects.get().seq)
    drain()

    run = Instance.objects.get()
    assert (run.status, run.cause) == ("failed", retried)


def test_the_steps_of_a_graph_fail_for_causes_of_their_own() -> None:
    """Runs that fail in two steps with an error of one type are two groups, each with the place that raised."""
    handles = [Two.start(f"{number}", {"order": order}) for number, order in enumerate((1, 2, 3, 4, 1))]
    drain()

    first, second = f"{__name__}.First", f"{__name__}.Second"
    rows = [Instance.objects.get(pk=handle.run_id) for handle in handles]
    file = "operations/test_one_group_for_one_fault.py"
    assert [row.fault for row in rows] == [
        f"{first}: ValueError at {file} in execute",
        f"{second}: ValueError at {file} in execute",
        f"{first}: Err",
        f"{second}: TypeError",
        f"{first}: ValueError at {file} in execute",
    ]
    assert str(rows[0].cause).startswith(f"{first}: ValueError at {file}:")
    assert sorted(group.count for group in groups()) == [1, 1, 1, 2]
    closing = handles[0].history()[-1].attributes
    assert (closing["activity"], closing["message"]) == (first, "no card 4711")
    assert closing["cause_traceback"].endswith("ValueError: no card 4711")


def test_members_are_counted_up_to_a_bound_and_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MAX_COUNTED", 2)
    started(Sale, 1, 2, 3)

    (group,) = groups()

    assert (group.count, group.is_bounded) == (2, True)
    assert "More than 2 activities of fault.Sale have been failing" in failure_diagnosis(group, group.since).text  # type: ignore[arg-type] # it has one


def test_a_group_of_very_many_blocked_runs_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MAX_COUNTED", 2)
    started(Stuck, 1, 2, 3)
    for number in range(2):
        started(type(f"Stuck{number}", (Stuck,), {"name": f"fault.Stuck{number}"}), 1)

    counts = {group.workflow: (group.count, group.is_bounded) for group in groups()}

    assert counts == {"fault.Stuck": (2, True), "fault.Stuck0": (1, False), "fault.Stuck1": (1, False)}


def test_sentences_about_a_type_with_a_very_long_name_have_an_end() -> None:
    started(Endless, 1)

    (group,) = groups()

    assert len(group.code) < 200
    assert max(map(len, shell("doctor", "--all").out.splitlines())) < 1000


def test_a_type_with_a_very_long_name_keeps_its_place() -> None:
    frame = 'Traceback\n  File "/srv/shop/banks.py", line 41, in pay\n'
    text, fault = cause_from("E" * 10_000, frame)
    assert (len(text) <= 200, text.endswith("… at shop/banks.py:41")) == (True, True)
    assert (len(fault) <= 200, fault.endswith(" at shop/banks.py in pay")) == (True, True)
    assert fault != cause_from("E" * 9_999 + "F", frame).fault
    assert cause_from("E", frame.replace("41", "52")).fault == cause_from("E", frame).fault


def test_markup_in_the_name_of_an_error_is_text_on_the_pages(client: Client) -> None:
    started(Marked, 1)
    client.force_login(get_user_model().objects.create_superuser("root"))
    run = Instance.objects.get()

    pages = [
        client.get(address).content.decode()
        for address in (
            "/admin/temporalex_django/instance/console/",
            "/admin/temporalex_django/instance/console/runs/",
            f"/admin/temporalex_django/instance/console/runs/{run.pk}/",
        )
    ]

    assert [page.count("&lt;script&gt;alert(1)") > 0 for page in pages] == [True, True, True]
    assert not any("<script>alert(1)" in page for page in pages)


def test_doctor_prints_groups_and_then_all() -> None:
    for number in range(8):
        started(type(f"Stuck{number}", (Stuck,), {"name": f"fault.Stuck{number}"}), 1, 2)

    short, full = shell("doctor").out, shell("doctor", "--all").out

    assert len(short.splitlines()) <= 12
    assert all(f"2 runs of fault.Stuck{number} are blocked" in short for number in range(8))
    assert "--all" in short.splitlines()[-1]
    assert "Stuck7-2:" in full
    assert len(full.splitlines()) > 30


def test_rest_finds_the_runs_of_a_group_by_any_of_its_lines() -> None:
    started(Stuck, 1, 2)
    api_client = APIClient()
    api_client.force_authenticate(get_user_model().objects.create_superuser("root"))
    for line in Instance.objects.values_list("cause", flat=True):
        found = api_client.get("/api/instances/", {"cause": line}).json()["results"]
        assert {run["id"] for run in found} == {"Stuck-1", "Stuck-2"}


def test_rest_lists_the_groups_of_the_runs_that_the_caller_may_see() -> None:
    started(Stuck, 1, 2)
    started(Refused, 1)
    api_client, narrow_client = APIClient(), APIClient()
    api_client.force_authenticate(get_user_model().objects.create_superuser("root"))
    nobody = get_user_model().objects.create_user("nobody")
    narrow_client.force_authenticate(nobody)

    found = {row["kind"]: row for row in api_client.get("/api/failures/").json()["results"]}

    assert (found["blocked"]["workflow"], found["blocked"]["count"]) == (Stuck.name, 2)
    assert "2 runs of fault.Stuck are blocked" in found["blocked"]["text"]
    assert found["run"]["next_step"].startswith("See which: ")
    assert narrow_client.get("/api/failures/").status_code == 403


@pytest.mark.parametrize("permission", [None, "view_outbox"])
def test_rest_shows_groups_of_messages_with_their_permission(permission: str | None) -> None:
    failed = {"code": "refused", "error": "status 410", "at": "2026-11-01T12:00:00+00:00"}
    started(Stuck, 1)
    chain, now = Instance.objects.get().chain, timezone.now()
    Outbox.objects.create(
        id=uuid4(), chain=chain, destination="erp", kind="order", body=b"{}", created_at=now, due_at=now, failed=failed
    )
    person = get_user_model().objects.create_user("ann")
    for codename in ("view_instance", *((permission,) if permission else ())):
        person.user_permissions.add(Permission.objects.get(codename=codename))
    api_client = APIClient()
    api_client.force_authenticate(person)

    kinds = {row["kind"] for row in api_client.get("/api/failures/").json()["results"]}

    assert kinds == {"blocked", *(("dead_letter",) if permission else ())}
