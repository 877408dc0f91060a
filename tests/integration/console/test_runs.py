"""The console's list of runs: filters with an address, one line for each run, polls, and exports."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client, override_settings
from django.utils import timezone

from temporalex_django.conf import codec
from temporalex_django.console import live, runs
from temporalex_django.engine.ids import uuid7
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.models import Chain, Instance, OperatorAction
from tests.support import tenants
from tests.support.client_flows import Basket, Sleepy, drain

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/console/runs/"


@pytest.fixture(autouse=True)
def _kept() -> None:
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


def found(client: Client, query: str = "") -> set[str]:
    response = client.get(f"{RUNS}?{query}")
    assert response.status_code == 200, response
    return set(re.findall(r'scope="row" class="tx-col-run">(?:<a [^>]*>)?([^<]+?)\s*<', response.content.decode()))


def poll(client: Client, page: Any) -> Any:
    """Poll as the page says."""
    address = re.search(r'data-hx-get="([^"]*)"', page.content.decode())
    assert address is not None
    return client.get(address[1].replace("&amp;", "&"), headers={"HX-Request": "true"})


def test_stuck_runs_are_blocked_or_late_or_try_an_activity_again_and_again(admin: Client) -> None:
    for name in ("fine", "blocked", "late", "paused"):
        Sleepy.start(id=name)
    drain()
    Instance.objects.filter(workflow_id="blocked").update(blocked={"code": "x", "error": "y"})
    of_late = {"due_at": timezone.now() - timedelta(minutes=5)}
    Chain.objects.filter(run__workflow_id="late").update(**of_late)
    Chain.objects.filter(run__workflow_id="paused").update(**of_late, paused=True)

    assert found(admin, "stuck=true") == {"blocked", "late"}
    assert found(admin, "status=pending,running,waiting") == {"fine", "blocked", "late", "paused"}
    text = admin.get(RUNS).content.decode()
    assert re.search(r'>Need attention <span class="tx-count tx-count-bad">2<', text)


def test_of_a_closed_run_it_says_how_it_ended_by_whom_and_why(admin: Client) -> None:
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


def test_by_what_a_run_waits_for_version_and_time(admin: Client) -> None:
    Sleepy.start(id="asleep")
    Basket.start(id="basket")
    drain()
    Basket.start(id="ended").terminate()
    assert found(admin, "waits=message") == {"basket"}
    assert found(admin, "waits=timer") == {"asleep"}
    assert found(admin, "waits=activity") == set()
    run = Instance.objects.get(workflow_id="asleep").pk
    past = int((timezone.now() - timedelta(hours=2)).timestamp() * 1000) << 80 | uuid7().int & ((1 << 80) - 1)
    Chain.objects.filter(run_id=run).update(run_id=UUID(int=past))
    Instance.objects.filter(pk=run).update(id=UUID(int=past), version=3, created_at=timezone.now() - timedelta(hours=2))
    assert found(admin, "created_after=-1h") == {"basket", "ended"}
    assert found(admin, "created_after=-1d") == {"asleep", "basket", "ended"}
    assert found(admin, "version=3") == {"asleep"}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("colour=%3Cb%3Ered&workflow=test.Basket", "colour"),
        ("waits=nonsense", "waits"),
        ("version=x", "version"),
        ("version=" + "9" * 40, "version"),
        ("stuck=maybe", "stuck"),
        ("order=size", "order"),
        ("created_after=-5x", "created_after"),
        ("q=a%00b", "q"),
        ("workflow=a%00b", "workflow"),
        ("workflow=test.Basket&q=colour=3", "q"),
    ],
)
def test_what_the_list_does_not_take_is_named(admin: Client, query: str, name: str) -> None:
    response = admin.get(f"{RUNS}?{query}")
    text = response.content.decode()

    assert response.status_code == 400
    assert f"cannot use the parameter “{name}”" in text
    assert "created_after" in text
    assert "<b>red" not in text
    back = re.search(r'href="([^"]*)">Show the list without it', text)
    assert back is not None
    assert name not in back[1].replace("console/runs", "").replace("workflow=test", "")
    assert admin.get(back[1].replace("&amp;", "&")).status_code == 200


def test_one_box_finds_ids_run_ids_subjects_and_causes(admin: Client) -> None:
    ann = get_user_model().objects.create_user("ann")
    Basket.start(id="b-1")
    Basket.start(id="b-2", subject=ann)
    other = Sleepy.start(id="other")
    drain()
    Instance.objects.filter(workflow_id="other").update(
        status="failed", closed_at=timezone.now(), cause="CardDeclined at shop.py:3", fault="CardDeclined shop.py:pay"
    )

    assert found(admin, "q=b-") == {"b-1", "b-2"}
    assert found(admin, f"q={other.run_id}") == {"other"}
    assert found(admin, f"q=auth.user:{ann.pk}") == {"b-2"}
    assert found(admin, "q=declined") == {"other"}
    assert found(admin, "q=nothing-like-it") == set()
    assert found(admin, "workflow=test.Basket&q=other") == set()


def test_no_more_than_so_many_are_counted(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        Basket.start(id=f"b-{number}")
    assert "5 runs" in admin.get(RUNS).content.decode()
    monkeypatch.setattr(runs, "MAX_COUNT", 3)
    monkeypatch.setattr(runs, "PAGE_SIZE", 2)

    text = admin.get(RUNS).content.decode()

    assert "More than 3 runs match. Only the first 3 are shown" in text
    assert len(found(admin)) == 2
    assert len(found(admin, "p=2")) == 1
    assert found(admin, "p=99") == found(admin, "p=2")


@pytest.fixture
def _keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_SECONDS_OF_LISTS", 0.0)


def test_polls_of_the_same_runs_share_what_they_read(admin: Client, django_assert_max_num_queries: Any) -> None:
    Basket.start(id="a")
    page = poll(admin, admin.get(RUNS))
    with django_assert_max_num_queries(2):  # the session and the user
        assert poll(admin, page).status_code == 204
    other = somebody("ann", "view_instance")
    assert poll(other, poll(other, page)).status_code == 204


@pytest.mark.usefixtures("_keeps_nothing")
def test_the_list_takes_few_statements(admin: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(30):
        (Basket if number % 2 else Sleepy).start(id=f"b-{number}")
    drain()
    with django_assert_max_num_queries(11):
        admin.get(RUNS)
    page = admin.get(RUNS)
    second = poll(admin, page)
    with django_assert_max_num_queries(4):  # two of them read the session and the user
        assert poll(admin, second).status_code == 204


@pytest.mark.usefixtures("_keeps_nothing")
def test_a_poll_shows_what_has_changed_announces_new_runs_and_keeps_its_rows(admin: Client) -> None:
    for name in ("a", "b"):
        Basket.start(id=name)
    drain()
    fresh = poll(admin, admin.get(RUNS))
    assert poll(admin, fresh).status_code == 204

    Basket.handle("a").terminate("enough")
    changed = poll(admin, fresh)
    assert changed.status_code == 200
    assert "<html" not in changed.content.decode()
    assert "Terminated" in changed.content.decode()
    assert poll(admin, changed).status_code == 204

    Basket.start(id="c")
    announced = poll(admin, changed).content.decode()
    assert "1 new run" in announced
    assert ">c<" not in announced
    # A run that no longer matches stays until the page is loaded again.
    waiting = poll(admin, admin.get(f"{RUNS}?status=waiting"))
    Basket.handle("b").terminate()
    assert ">b</a>" in poll(admin, waiting).content.decode()


def test_a_poll_writes_nothing_and_prolongs_no_session(admin: Client) -> None:
    Basket.start(id="a")
    page, audited = admin.get(RUNS), OperatorAction.objects.count()
    with override_settings(SESSION_SAVE_EVERY_REQUEST=True):
        first = poll(admin, page)
        assert "sessionid" not in first.cookies
        assert "sessionid" in admin.get(RUNS).cookies
    assert "no-store" in first["Cache-Control"] or "no-cache" in first["Cache-Control"]
    admin.logout()
    assert poll(admin, page).status_code == 401
    assert poll(somebody("nobody"), page).status_code == 403
    assert OperatorAction.objects.count() == audited
    busy = somebody("ann", "view_instance")
    taken = [live._renders.acquire(blocking=False) for _ in range(live._MAX_RENDERS)]
    try:
        late = poll(busy, page)
    finally:
        for _ in taken:
            live._renders.release()
    assert (late.status_code, late["Retry-After"]) == (503, "15")
    for odd in ("rows=AAAA", "rows=" + "A" * 4000):
        assert busy.get(f"{RUNS}?mark=x&{odd}").status_code == 404
    assert busy.get(f"{RUNS}?mark=x&colour=red").status_code == 400
    assert busy.get(f"{RUNS}?mark=x").status_code == 200


def test_everybody_sees_their_own(admin: Client) -> None:
    for name in ("red-1", "blue-1"):
        Basket.start(id=name)
    drain()
    viewer = somebody("red-viewer", "view_instance")
    every = poll(admin, admin.get(RUNS))
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        assert found(viewer) == {"red-1"}
        assert found(viewer, "q=blue") == set()
        # The rows of another person's page.
        assert "blue" not in poll(viewer, every).content.decode()
        export = viewer.get(f"{RUNS}export/?format=csv")
        assert "blue" not in b"".join(export.streaming_content).decode()


def test_exports_are_streamed_escaped_and_audited(admin: Client) -> None:
    for name in ("=1+1", "-x", "plain"):
        Basket.start(id=name)
    drain()
    Basket.handle("plain").terminate("enough")

    answer = admin.get(f"{RUNS}export/?format=csv&status=waiting")
    lines = b"".join(answer.streaming_content).decode().splitlines()
    assert answer.streaming
    assert answer["Content-Disposition"].startswith('attachment; filename="runs-')
    assert lines[0] == "workflow_id,id,workflow,version,queue,status,cause,created_at,started_at,closed_at"
    assert {line.partition(",")[0] for line in lines[1:]} == {"'=1+1", "'-x"}
    answer = admin.get(f"{RUNS}export/?format=jsonl&order=started")
    rows = [json.loads(line) for line in b"".join(answer.streaming_content).decode().splitlines()]
    assert [row["workflow_id"] for row in rows] == ["=1+1", "-x", "plain"]
    first, second = OperatorAction.objects.filter(action="export").order_by("id")
    assert first.details == {"status": "waiting", "format": "csv"}
    assert second.details == {"order": "started", "format": "jsonl"}
    assert admin.get(f"{RUNS}export/?format=xls").status_code == 404
    assert admin.get(f"{RUNS}export/?format=csv&colour=red").status_code == 400


def test_addresses_of_the_old_list_lead_here(admin: Client) -> None:
    old = "/admin/temporalex_django/instance/"
    for query, new in (
        ("standing=stuck", "stuck=true"),
        ("standing=open&workflow=test.Basket", "workflow=test.Basket&status=pending%2Crunning%2Cwaiting"),
        ("started=24h", "created_after=-24h"),
        ("cause=x&order=due", "cause=x&order=due"),
    ):
        assert admin.get(f"{old}?{query}")["Location"] == f"{RUNS}?{new}"
    assert admin.get(f"{old}bulk/terminate/?all=1&_changelist_filters=standing%3Dpaused")["Location"] == (
        f"{RUNS}?paused=true"
    )
    Basket.start(id="b-1")
    text = admin.get(f"{old}?q=b-").content.decode()
    assert ">b-1" in text
    assert f'href="{RUNS.removesuffix("runs/")}"' in text
    assert admin.get(f"{old}?colour=red").status_code == 400
