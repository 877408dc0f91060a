"""The overview of the console: seven numbers, what is wrong, and the action that helps."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client, override_settings
from django.utils import timezone

from temporalex_django.console import live
from temporalex_django.models import ActivityTask, DeployCheck, Instance, OperatorAction, Worker
from temporalex_django.operations.read.overview import load_overview
from temporalex_django.present.view_models import Remedy
from tests.support import tenants
from tests.support.broken_runs import broken_fleet
from tests.support.client_flows import Basket, Sleepy

pytestmark = pytest.mark.django_db

CONSOLE = "/admin/temporalex_django/instance/console/"


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> None:
    live._values.clear()


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def somebody(name: str, *codes: str, staff: bool = True) -> Client:
    user = get_user_model().objects.create_user(name, is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    client = Client()
    client.force_login(user)
    return client


def tiles(text: str) -> dict[str, str]:
    found = re.findall(r'tx-tile-value">([^<]*)</span> <span class="tx-tile-label">([^<]*)<', text)
    return {label: value for value, label in found}


def test_numbers_and_problems_lead_to_what_they_count(admin: Client) -> None:
    broken_fleet()

    text = admin.get(CONSOLE).content.decode()

    assert tiles(text) == {
        "Open runs": "6",
        "Need attention": "1",
        "Failed in 24 h": "1",
        "Tasks to decide": "1",
        "Longest wait for a worker": "–",
        "Workers alive": "0",
        "Schedules in trouble": "0",
    }
    assert "1 overdue" in text
    assert 'aria-label="1 failed in the last hour, 1 in 24 hours"' in text
    assert "3 activities of test.PurchaseInTheConsole: console.pay: ConnectionError" in text
    assert "Retry all 3…" in text
    assert "Try it again…" in text
    assert "See the run<" in text
    for address in re.findall(r'href="([^"]*)"', text):
        followed = admin.get(address.replace("&amp;", "&"))
        assert followed.status_code in (200, 302) or "/static/" in address or "#" in address, address
    # Errors come first.
    severities = re.findall(r'<tr class="tx-is-(\w+)"', text)
    assert severities == sorted(severities)


def test_each_problem_whose_time_is_known_says_since_when(admin: Client) -> None:
    at = timezone.now() - timedelta(hours=3)
    for name, since in (("new", at + timedelta(hours=1)), ("old", at)):
        Sleepy.start(id=name)
        Instance.objects.filter(workflow_id=name).update(paused={"since": since.isoformat(), "reason": "", "by": None})
    Basket.start(id="off")
    Instance.objects.filter(workflow_id="off").update(blocked={"code": "switched_off", "since": at.isoformat()})
    DeployCheck.objects.create(release="R2", at=at, fits=False, classes=[], mismatches=[])
    columns: dict[str, Any] = {"queues": ["default"], "workflows": {}, "started_at": at, "beat_at": at}
    drained = Worker.objects.create(
        id=uuid4(), epoch=1, kind="worker", host="box", pid=1, expires_at=timezone.now() + timedelta(hours=1),
        drained_at=at, **columns,
    )  # fmt: skip

    problems = {problem.code: problem for problem in load_overview(get_user_model().objects.get(), None).problems}
    assert {code: problems[code].since for code in ("no_worker", "paused", "off", "deploy")} == {
        "no_worker": at, "paused": at, "off": at, "deploy": at,
    }  # fmt: skip
    (label,) = re.findall(
        f'href="{CONSOLE}workers/"[^>]*>(Undrain…|Start a worker)<', admin.get(CONSOLE).content.decode()
    )
    assert label == "Undrain…"

    # A worker that died says when it was last seen, and a mark without a readable time says nothing.
    Worker.objects.filter(pk=drained.pk).update(expires_at=at, drained_at=None)
    Instance.objects.filter(paused__isnull=False).update(paused={"since": "yesterday", "reason": "", "by": None})
    problems = {problem.code: problem for problem in load_overview(get_user_model().objects.get(), None).problems}
    assert (problems["no_worker"].since, problems["paused"].since) == (at, None)
    assert problems["no_worker"].remedy == Remedy(kind="workers", label="Start a worker")


def test_an_empty_project_teaches_the_first_start(admin: Client) -> None:
    text = admin.get(CONSOLE).content.decode()

    assert "No run has been started yet" in text
    assert "manage.py temporalex worker" in text


def test_the_problems_with_one_cause_are_retried_in_three_clicks(admin: Client) -> None:
    broken_fleet()
    text = admin.get(CONSOLE).content.decode()
    address = re.search(r'href="([^"]*action=retry_activity[^"]*)"', text)
    assert address is not None
    page = admin.get(address[1].replace("&amp;", "&")).content.decode()

    assert "The action can currently be applied to 3 activities in 3 of 3 selected runs." in page


def test_only_people_who_may_retry_find_the_button() -> None:
    broken_fleet()
    viewer = somebody("viewer", "view_instance")
    operator = somebody("operator", "view_instance", "bulk_actions", "retry_activity")

    text = viewer.get(CONSOLE).content.decode()
    assert "3 activities of test.PurchaseInTheConsole" in text
    assert "Retry all" not in text
    assert "Try it again" not in text
    text = operator.get(CONSOLE).content.decode()
    assert "Retry all 3…" in text
    assert "Try it again" not in text


def test_an_attempt_that_is_running_is_not_retried(admin: Client) -> None:
    broken_fleet()
    ActivityTask.objects.filter(fault__isnull=False).update(owner=1)

    text = admin.get(CONSOLE).content.decode()
    assert "3 activities of test.PurchaseInTheConsole: console.pay: ConnectionError" in text
    assert "Retry all" not in text
    ActivityTask.objects.filter(pk=ActivityTask.objects.filter(fault__isnull=False).first().pk).update(owner=None)
    live._values.clear()
    assert "Retry all 3…" in admin.get(CONSOLE).content.decode()


def test_everybody_sees_their_own(client: Client) -> None:
    broken_fleet()
    viewer = somebody("red-viewer", "view_instance")
    nobody = somebody("nobody")

    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        text = viewer.get(CONSOLE).content.decode()
    assert tiles(text)["Open runs"] == "5"
    assert "blue" not in text
    assert "TypeError" not in text
    assert "Workers alive" not in tiles(text)
    assert "Schedules in trouble" not in tiles(text)
    assert nobody.get(CONSOLE).status_code == 403
    assert OperatorAction.objects.get(denied=True).action == "view"
    assert client.get(CONSOLE).status_code == 302


def test_it_takes_few_statements(admin: Client, django_assert_max_num_queries: Any) -> None:
    broken_fleet()
    # PostgreSQL is asked for its time as well.
    with django_assert_max_num_queries(24 + (connection.vendor == "postgresql")):
        admin.get(CONSOLE)


def test_without_the_admin_it_is_mounted_alone() -> None:
    broken_fleet()
    viewer = somebody("ann", "view_instance", staff=False)

    text = viewer.get("/workflows/").content.decode()

    assert tiles(text)["Open runs"] == "6"
    assert "/admin/" not in text
    assert Client().get("/workflows/")["Location"] == "/accounts/login/?next=/workflows/"
    assert viewer.get("/workflows/runs/").status_code == 200


def test_an_unchanged_poll_costs_nothing_and_a_changed_one_is_sent(
    admin: Client, django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_fleet()
    page = admin.get(CONSOLE).content.decode()
    (address,) = re.findall(r'data-hx-get="([^"]*)"', page)
    address = address.replace("&amp;", "&")
    with django_assert_max_num_queries(2):  # the session and the user
        assert admin.get(address).status_code == 204
    Basket.handle("red-basket").terminate()
    assert admin.get(address).status_code == 204  # it is kept for five seconds
    monkeypatch.setattr(live, "KEPT_SECONDS", 0.0)
    answer = admin.get(address)
    assert answer.status_code == 200
    assert tiles(answer.content.decode())["Open runs"] == "5"
    assert "<html" not in answer.content.decode()


def test_rest_answers_the_same(admin: Client) -> None:
    broken_fleet()
    text = admin.get(CONSOLE).content.decode()
    found = admin.get("/api/overview/").json()

    assert (found["open"], found["stuck"], found["failed"], found["overdue_tasks"]) == (6, 1, 1, 1)
    assert sum(found["failed_bars"]) == 1
    assert len(found["failed_bars"]) == 48
    assert [problem["severity"] for problem in found["problems"]] == re.findall(r'<tr class="tx-is-(\w+)"', text)
    assert {problem["code"] for problem in found["problems"]} >= {"blocked", "failed", "failing", "no_worker"}
    viewer = somebody("red-viewer", "view_instance")
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        found = viewer.get("/api/overview/").json()
    assert (found["open"], found["failed"], found["workers"], found["schedules"]) == (5, 0, None, None)
    assert "blue" not in str(found)
