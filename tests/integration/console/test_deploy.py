"""The page of releases: what the code of one lacks for the open runs, recorded by the command, read by the console."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from temporalex_django.console import live
from temporalex_django.management import outputs
from temporalex_django.management.replay import ReplayBatch
from temporalex_django.models import ActivityTask, DeployCheck, Instance
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.commands import shell
from tests.support.matrix import Errand

pytestmark = pytest.mark.django_db(transaction=True)

CONSOLE = "/admin/temporalex_django/instance/console/"
DEPLOY = f"{CONSOLE}deploy/"


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    live._values.clear()
    yield
    live._values.clear()


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def somebody(name: str, *codes: str) -> Client:
    user = get_user_model().objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    client = Client()
    client.force_login(user)
    return client


def text_of(response: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def poll(client: Client, response: Any) -> Any:
    (address,) = re.findall(r'data-hx-get="([^"]*)"', response.content.decode())
    return client.get(html.unescape(address))


def stops_at_orders(runs: Any) -> ReplayBatch:
    """Return the replays of code that stops each run at one line; its message quotes a payload."""
    baskets = Instance.objects.filter(pk__in=runs, workflow=Basket.name)
    about = {"workflow": Basket.name, "file": "/srv/shop/orders.py", "line": 88, "error": "KeyError"}
    misfits = [{**about, "id": run.workflow_id, "run": str(run.pk), "message": "'secret'"} for run in baskets]
    return ReplayBatch(len(runs), misfits, [])


def record(release: str) -> Any:
    return shell("doctor", "--deploy", "--record", release)


def test_what_a_release_would_stop_is_recorded_and_shown(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        Basket.start(id=f"b-{number}")
    Sleepy.start(id="gone")
    Errand.start("1")
    drain()
    Instance.objects.filter(workflow_id="gone").update(workflow="shop.Gone", version=3)
    ActivityTask.objects.update(activity="shop.gone")
    assert "No release was recorded" in text_of(admin.get(DEPLOY))
    monkeypatch.setattr("temporalex_django.management.doctor.replay_runs", stops_at_orders)

    ran = record("2027.3")

    assert ran.status == outputs.FINDINGS
    text = text_of(admin.get(DEPLOY))
    assert "12 of 12 replayed runs would stop at shop/orders.py:88." in text
    assert "1 open run uses shop.Gone (version 3), which 2027.3 does not have." in text
    assert "needs shop.gone, which 2027.3 does not have." in text
    assert "secret" not in text + repr(DeployCheck.objects.values())
    assert "b-1" not in repr(DeployCheck.objects.values())
    overview = admin.get(CONSOLE).content.decode()
    assert "The release 2027.3 does not match the open runs." in html.unescape(overview)
    assert f'href="{DEPLOY}"' in overview
    (runs,) = {
        address for address in re.findall(r'href="([^"]*)"', admin.get(DEPLOY).content.decode()) if "Gone" in address
    }
    assert [line["run"].workflow_id for line in admin.get(html.unescape(runs)).context["lines"]] == ["gone"]


def test_a_release_that_fits_is_said_and_only_the_last_ones_are_kept(admin: Client) -> None:
    Basket.start(id="b")
    drain()
    for number in range(7):
        assert record(f"r-{number}").status == 0
    record("r-4")
    assert [*DeployCheck.objects.values_list("release", flat=True)] == ["r-4", "r-6", "r-5", "r-3", "r-2"]
    text = text_of(admin.get(f"{DEPLOY}?release=r-6"))
    assert "Its runs would continue." in text
    assert admin.get(f"{DEPLOY}?release=r-0").status_code == 404
    assert "does not match the open runs" not in text_of(admin.get(CONSOLE))


def test_a_check_is_stale_after_a_day(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    Basket.start(id="b")
    drain()
    monkeypatch.setattr("temporalex_django.management.doctor.replay_runs", stops_at_orders)
    record("2027.3")
    page = admin.get(DEPLOY)
    assert "more than 24 hours old" not in text_of(page)
    assert poll(admin, page).status_code == 204
    row = DeployCheck.objects.get()
    row.at -= timedelta(hours=25)
    row.save()
    changed = poll(admin, page)
    assert "more than 24 hours old" in text_of(changed)
    assert "doctor --deploy --record 2027.3" in text_of(changed)
    assert "does not match the open runs" not in text_of(admin.get(CONSOLE))


def test_the_page_takes_few_statements_and_imports_nothing(admin: Client, django_assert_max_num_queries: Any) -> None:
    classes = [{"workflow": f"shop.C{number}", "version": 1, "open": 5, "replayed": 5} for number in range(200)]
    mismatches = [
        {"kind": "replay", "name": f"shop.C{n}", "count": 2, "place": "shop/a.py:1", "reason": ""} for n in range(99)
    ]
    DeployCheck.objects.create(
        release="big", at="2026-01-01T00:00Z", classes=classes, mismatches=mismatches, fits=False
    )
    loaded = {*sys.modules}
    with django_assert_max_num_queries(12):
        page = admin.get(DEPLOY)
    with django_assert_max_num_queries(3):  # the session, the user and the checks
        assert poll(admin, page).status_code == 204
    assert text_of(page).count("2 of 5 replayed runs would stop at shop/a.py:1.") == 99
    assert not any(name.startswith("shop") for name in {*sys.modules} - loaded)


def test_who_may_not_see_workers_sees_no_releases() -> None:
    assert somebody("ann", "view_instance").get(DEPLOY).status_code == 403
    assert somebody("bob", "view_worker").get(DEPLOY).status_code == 200


@pytest.mark.parametrize(
    "arguments",
    [
        ("--record", "x"),
        ("--deploy", "--record", ""),
        ("--deploy", "--record", "a" * 101),
        ("--deploy", "--record", "\n"),
    ],
)
def test_a_release_needs_a_name_and_all_open_runs(arguments: tuple[str, ...]) -> None:
    get_user_model().objects.create_superuser("root")
    assert shell("doctor", *arguments).status == outputs.USAGE_ERROR
    assert shell("doctor", "--deploy", "--record", "x", "--as-user", "root").status == outputs.USAGE_ERROR
    assert not DeployCheck.objects.exists()
