"""The list of runs: filters, and counts that end."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from temporalex_django.admin.base import CappedPaginator
from temporalex_django.admin.run import instance
from temporalex_django.conf import codec
from temporalex_django.engine.ids import uuid7
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.models import Chain, Instance
from tests.support.client_flows import Basket, Sleepy, drain

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def found(client: Client, query: str) -> set[str]:
    response = client.get(f"{RUNS}?{query}")
    assert response.status_code == 200, response
    return set(re.findall(r"/instance/[0-9a-f-]+/change/[^>]*>([^<]+)<", response.content.decode()))


def test_stuck_runs_are_blocked_or_late_or_try_an_activity_again_and_again(admin):
    for name in ("fine", "blocked", "late", "paused"):
        Sleepy.start(id=name)
    drain()
    Instance.objects.filter(workflow_id="blocked").update(blocked={"code": "x", "error": "y"})
    of_late = {"due_at": timezone.now() - timedelta(minutes=5)}
    Chain.objects.filter(run__workflow_id="late").update(**of_late)
    Chain.objects.filter(run__workflow_id="paused").update(**of_late, paused=True)

    assert found(admin, "standing=stuck") == {"blocked", "late"}


def test_of_a_closed_run_it_says_how_it_ended_by_whom_and_why(admin):
    """Who was refused has not ended it."""
    for name in ("done", "ended", "asked", "late", "failed"):
        Basket.start(id=name)
    drain()
    ann = get_user_model().objects.create_superuser("ann")
    with pytest.raises(ActionNotPermitted):
        Basket.handle("late").terminate("I want to", by=get_user_model().objects.create_user("refused-user"))
    Basket.handle("done").signal("checkout")
    Basket.handle("ended").terminate("a <b>mistake</b>", by=ann)
    Basket.handle("asked").cancel("too late", by=ann)
    drain()
    Instance.objects.filter(workflow_id="late").update(status="timed_out", closed_at=timezone.now())
    failed = {"type": "CardDeclined", "message": "no money", "reason": None}
    Instance.objects.filter(workflow_id="failed").update(
        status="failed", closed_at=timezone.now(), closing=codec().encode(failed)
    )

    text = " ".join(admin.get(RUNS).content.decode().split())

    for said in (
        "Completed ",
        "Terminated by ann ",
        ": a &lt;b&gt;mistake&lt;/b&gt;. No cleanup ran.",
        "Cancelled by ann ",
        ": too late. Cleanup finished.",
        "Timed out ",
        ": CardDeclined: no money.",
    ):
        assert said in text, said
    # A short name could be part of a token of the page.
    assert "refused-user" not in text
    assert '<td class="field-summary">–</td>' not in text


def test_by_what_a_run_waits_for(admin):
    Sleepy.start(id="asleep")
    Basket.start(id="basket")
    drain()
    Basket.start(id="ended").terminate()

    assert found(admin, "waits=message") == {"basket"}
    assert found(admin, "waits=timer") == {"asleep"}
    assert found(admin, "waits=activity") == set()
    assert found(admin, "waits=nonsense") == {"asleep", "basket", "ended"}


def test_an_unknown_parameter_has_a_page(admin):
    """The page names the parameter, the accepted ones, and the list with the rest of the address."""
    audit = "/admin/temporalex_django/operatoraction/"
    for address, name, accepted in (
        (f"{RUNS}?colour=%3Cb%3Ered&workflow=test.Basket", "colour", "workflow"),
        (f"{RUNS}?_to_field=chain", "_to_field", "status"),
        (f"{RUNS}bulk/terminate/?all=1&_changelist_filters=status%3Dfailed%26colour%3Dred", "colour", "status"),
        (f"{audit}?payload__contains=x", "payload__contains", "action"),
    ):
        response = admin.get(address)
        page = response.content.decode()
        assert response.status_code == 400
        assert f"has no parameter “{name}”" in page
        assert accepted in re.findall(r"\w+", page.split("It accepts:")[1].split("</p>")[0])
        assert 'id="site-name"' in page
        assert "<b>red" not in page
    back = admin.get(f"{RUNS}?colour=red&workflow=test.Basket").content.decode()
    assert f'href="{RUNS}?workflow=test.Basket"' in back
    assert admin.get(f"{RUNS}?workflow=test.Basket&q=a&p=1&o=1&e=1&all=").status_code == 200


def test_by_version_and_time(admin):
    Basket.start(id="new")
    old = Sleepy.start(id="old").run_id
    past = int((timezone.now() - timedelta(hours=2)).timestamp() * 1000) << 80 | uuid7().int & ((1 << 80) - 1)
    Chain.objects.filter(run_id=old).update(run_id=_uuid(past))
    Instance.objects.filter(pk=old).update(id=_uuid(past), version=3)

    assert found(admin, "started=1h") == {"new"}
    assert found(admin, "started=24h") == {"new", "old"}
    assert found(admin, "version=3") == {"old"}
    for odd in ("x", "-1", "9" * 40, "%C2%B2"):
        assert found(admin, f"version={odd}") == set()


def _uuid(number: int) -> Any:
    from uuid import UUID

    return UUID(int=number)


def test_no_more_than_so_many_are_counted(admin, monkeypatch):
    for number in range(5):
        Basket.start(id=f"b-{number}")
    assert "the others are not counted" not in admin.get(RUNS).content.decode()
    monkeypatch.setattr(instance, "_MAX_COUNT", 3)

    text = admin.get(RUNS).content.decode()

    assert "More than 3 runs match. Only 3 are shown" in text
    assert admin.get(f"{RUNS}?p=9").url == f"{RUNS}?e=1"  # there is no such page
    monkeypatch.setattr(CappedPaginator, "MAX_COUNT", 3)
    assert CappedPaginator(Instance.objects.order_by("-id"), 2).count == 4
