"""What a team meets in its first week: refusals that say what is wrong, where it is, and what to do."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings
from rest_framework.test import APIClient

from temporalex_django import Err, Ok, Reply, RetryPolicy, Stop, Unique, Workflow, activity, api, checks, errors, update
from temporalex_django.authoring import activity as activities
from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.tables import inline_turn
from temporalex_django.db.dialects.base import check_connection
from temporalex_django.models import Instance, Message
from temporalex_django.testing import drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

BROKEN = [False]


@activity
def week_note() -> None:
    """Does nothing."""


class WeekInvoice(Workflow):
    unique = Unique(key="weekinvoice")
    signals = ("paid",)

    async def run(self, args):
        if BROKEN[0]:
            await week_note()

        def validate(amount, state):
            return Err({"open": 5}) if amount > 5 else None

        handlers = {"pay": update(lambda amount, state: Reply(amount, state), validator=validate)}
        await api.phase(0, update=handlers, signal={"paid": lambda _, state: Stop(state)})
        return Ok()


@activity(retry=RetryPolicy(max_attempts=4, initial_interval=3600))
def week_charge() -> None:
    raise OSError("the bank is closed")


class WeekCharge(Workflow):
    async def run(self, args):
        await week_charge()
        return Ok()


class WeekMistake(Workflow):
    async def run(self, args):
        return Ok(await api.phase({}, update={"pay": lambda state: Reply(1, state)}))


@pytest.fixture(autouse=True)
def sound() -> Iterator[None]:
    BROKEN[0] = False
    yield
    BROKEN[0] = False


@pytest.fixture
def browser() -> APIClient:
    client = APIClient()
    wanted = [f"temporalex_django.{what}_instance" for what in ("signal", "update", "start", "view")]
    client.force_authenticate(stored("ann", *wanted, "temporalex_django.view_payload"))
    return client


def test_refusals_have_codes_and_what_they_are_about_over_rest_and_in_commands(browser: APIClient) -> None:
    handle = WeekInvoice.start(7, {})  # a number is its own text
    assert handle.id == "weekinvoice::7" and WeekInvoice.get(7).id == handle.id
    drain()
    there = f"/api/instances/{handle.run_id}"

    refused = browser.post(f"{there}/updates/pay/", {"args": 9}, format="json")
    assert (refused.status_code, refused.json()["code"], refused.json()["reason"]) == (
        422,
        "update_rejected",
        {"open": 5},
    )
    other = browser.post(f"{there}/updates/refund/", {"args": 9}, format="json")
    assert (other.status_code, other.json()["code"]) == (422, "not_accepting")
    assert other.json()["accepts"] == {"signals": ["paid"], "updates": ["pay"]}

    signal = browser.post(f"{there}/signals/payed/", {"payload": 1}, format="json")
    assert (signal.status_code, signal.json()["code"], signal.json()["known"]) == (404, "unknown_signal", ["paid"])
    with pytest.raises(CommandError, match="did you mean 'paid'") as caught:
        call_command("temporalex", "signal", handle.id, "payed")
    assert caught.value.returncode == 3
    assert not Message.objects.filter(name="payed").exists()

    BROKEN[0] = True

    inline_turn.engine("default").cache.clear()
    blocked = browser.post(f"{there}/updates/pay/", {"args": 1, "id": "p"}, format="json")
    assert (blocked.status_code, blocked.json()["code"]) == (409, "blocked")
    assert "NondeterminismError" in blocked.json()["reason"] and "week_note" in blocked.json()["reason"]
    assert not Message.objects.filter(request_id="p").exists()
    with pytest.raises(errors.UpdateTimeout):
        handle.update("pay", 1, mode="worker", timeout=0, id="w")
    drain()
    assert Message.objects.get(request_id="w").outcome_status == "rejected"
    assert handle.describe().blocked["attempt"] == 2
    BROKEN[0] = False
    inline_turn.engine("default").cache.clear()
    assert handle.update("pay", 2, id="w") == 2  # its id is free
    handle.pause()
    with pytest.raises(errors.RunPaused):
        handle.update("pay", 1)


def test_a_result_that_cannot_come_says_why_and_who_acts_is_a_user() -> None:
    with transaction.atomic():
        handle = WeekInvoice.start("atomic", {})
        with pytest.raises(errors.ResultTimeout, match=r"Inside atomic\(\) this call checks once.*on_commit"):
            handle.result()
    with pytest.raises(errors.InvalidId, match="; it must be a string, not float"):
        WeekInvoice.start(7.5, {})
    with pytest.raises(errors.ActionNotPermitted, match=r"pass a user .*request\.user.*, not str"):
        handle.cancel(by="boss")
    with pytest.raises(errors.PayloadError, match=r"Group is a model instance.*pass its pk"):
        WeekInvoice.start("model", {"group": Group(name="x")})
    with pytest.raises(errors.PayloadError, match=r"at `\$\.groups`.*QuerySet is not data.*pks"):
        WeekInvoice.start("rows", {"groups": Group.objects.all()})
    with pytest.warns(errors.PayloadWarning, match="run of WeekInvoice gets a string where a Decimal was sent"):
        WeekInvoice.start("decimal", {"total": Decimal("1.0")})
    with pytest.warns(errors.PayloadWarning, match="update 'pay' of WeekInvoice"), pytest.raises(errors.UpdateFailed):
        handle.update("pay", date(2026, 1, 2))


def test_a_missing_table_is_the_same_sentence_for_everybody(browser: APIClient) -> None:
    says = "the database 'default' has no tables for workflows: run manage.py migrate temporalex_django"
    with connection.cursor() as cursor:
        cursor.execute("alter table temporalex_chain rename to temporalex_gone")
    try:
        with pytest.raises(errors.NotConfigured, match=says):
            WeekInvoice.start("lost", {})
        with pytest.raises(errors.NotConfigured, match=says):
            WeekInvoice.handle("weekinvoice::lost").describe()
        answer = browser.post("/api/instances/", {"workflow": "WeekInvoice", "value": "x", "args": {}}, format="json")
        assert answer.json()["code"] == "not_configured" and says in answer.json()["detail"]
        with pytest.raises(CommandError, match=says) as caught:
            call_command("temporalex", "describe", "weekinvoice::lost")
        assert caught.value.returncode == 7
    finally:
        with connection.cursor() as cursor:
            cursor.execute("alter table temporalex_gone rename to temporalex_chain")


def test_each_check_id_means_one_thing_and_migrate_hears_of_no_missing_tables(monkeypatch: Any) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(checks, "unapplied_migrations", lambda alias: ["0001_initial"])
        told = [one.id for one in run_checks(databases=["default"])]
        assert told.count("temporalex_django.W005") == 1
        out = io.StringIO()
        call_command("migrate", "temporalex_django", stdout=out, stderr=out, verbosity=1, skip_checks=False)
        assert "W005" not in out.getvalue()
    cluster = {"name": "t", "broker_class": "temporalex_django.workers.q2.Broker", "timeout": 60, "retry": 60}
    with override_settings(Q_CLUSTER=cluster):
        assert "temporalex_django.W010" in [one.id for one in run_checks(tags=[checks.TAG])]
        monkeypatch.setattr(checks.apps, "is_installed", lambda name: name != "django_q")
        assert "temporalex_django.E010" in [one.id for one in run_checks(tags=[checks.TAG])]


def test_the_settings_of_the_readme_give_no_warning() -> None:
    text = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- start: settings -->\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    settings: dict[str, Any] = {
        "INSTALLED_APPS": [],
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3"}},
    }
    exec(block, settings)
    fresh = SimpleNamespace(vendor="sqlite", alias="default", settings_dict=settings["DATABASES"]["default"])
    assert list(check_connection(fresh)) == []


def test_renamed_classes_and_activities_are_found_by_open_runs_and_told_before_a_deploy() -> None:
    def runs(of: Any) -> type[Workflow]:
        async def run(self: Any, args: Any) -> Any:
            await of()
            return Ok()

        return run  # type: ignore[return-value]

    @activity(name="week.charge", retry=RetryPolicy(initial_interval=3600, max_interval=3600))
    def charge() -> None:
        raise OSError("down")

    made = {"__module__": __name__, "run": runs(charge), "unique": Unique(key="weekold")}
    Old = type("WeekOld", (Workflow,), made)
    handle = Old.start(1)
    drain()
    workflows.registry.pop("WeekOld")
    activities.registry.pop("week.charge")
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("temporalex", "doctor", "--deploy", stdout=out)
    assert "WeekOld (version 1)" in out.getvalue() and "week.charge" in out.getvalue()

    @activity(name="week.billing.charge", aliases=["week.charge"])
    def charge_now() -> None:
        """Works."""

    New = type("WeekNew", (Workflow,), {**made, "run": runs(charge_now), "aliases": ("WeekOld",)})
    out = io.StringIO()
    call_command("temporalex", "doctor", "--deploy", stdout=out)
    assert "This code matches" in out.getvalue()
    assert New.get(1).run_id == handle.run_id and [one.id for one in New.list()] == ["weekold::1"]
    handle.retry_activity(1)
    drain()
    assert handle.describe().status == "completed"


def test_a_subject_that_was_deleted_is_told_of() -> None:
    group = Group.objects.create(name="customers")
    handle = WeekInvoice.start("subject", {}, subject=group)
    assert [run.workflow_id for run in Instance.objects.for_subject(group)] == [handle.id]
    key = group.pk
    group.delete()
    with pytest.raises(
        errors.PayloadError, match="must be a saved model instance, not one that was deleted or never saved"
    ):
        WeekInvoice.start("subject2", {}, subject=group)
    with pytest.raises(ValueError, match="for_subject.*no key: it was deleted, or never saved"):
        Instance.objects.for_subject(group)
    assert [run.workflow_id for run in Instance.objects.for_subject(Group(pk=key))] == [handle.id]


def test_a_result_that_has_not_come_names_the_worker_and_the_activity_that_fails() -> None:
    handle = WeekCharge.start({})
    with pytest.raises(errors.ResultTimeout, match=r"it is pending; it needs .*'default'.*manage.py temporalex worker"):
        handle.result(timeout=0)
    drain()
    with pytest.raises(
        errors.ResultTimeout, match=r"attempt 1 of 4 of .*week_charge failed with OSError: the bank is"
    ) as caught:
        handle.result(timeout=0)
    assert re.search(r"the next one is at \d{4}-\d\d-\d\dT.*; it needs a worker with the activity", str(caught.value))


def test_an_update_of_a_run_that_failed_says_why() -> None:
    handle = WeekMistake.start({})
    with pytest.raises(errors.WorkflowClosed, match=r"must be callable as \(args, state\): .*test_first_errors.py:\d+"):
        handle.update("pay", 1)
    with pytest.raises(errors.WorkflowClosed, match=r"it failed, and result\(\) raises the error"):
        handle.update("pay", 2)
