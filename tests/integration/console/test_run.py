"""The console's page of a run: what it costs, its polls, its timeline, its family, and what goes wrong meanwhile."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client, override_settings
from django.utils import timezone

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.conf import codec
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, OperatorAction
from temporalex_django.operations.read import family, timeline
from tests.integration.console.test_runs import poll, somebody
from tests.support import tenants
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.run_pages import PARTS, address_of, text_of

pytestmark = pytest.mark.django_db


@activity(name="console.<b>weigh</b>", label="<script>alert(1)</script> the parcel")
def weigh(number: int) -> int:
    return number


class Weighs(Workflow):
    name = "test.WeighsInTheConsole"

    async def run(self, args: int) -> Any:
        return Ok(sum(await api.parallel([weigh(number) for number in range(args)])))


class Grandparent(Workflow):
    name = "test.ConsoleGrandparent"

    async def run(self, levels: int) -> Any:
        if not levels:
            await api.sleep(3600)
            return Ok(0)
        return Ok(await api.child(Grandparent, levels - 1, id=f"level-{levels - 1}"))


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def add_events(run: Instance, count: int, kind: str = "SignalReceived") -> None:
    length = HistoryEvent.objects.filter(run=run).count()
    HistoryEvent.objects.bulk_create(
        HistoryEvent(
            run=run, seq=length + n, activation=1 + n, kind=kind, at=timezone.now() + timedelta(seconds=n),
            attributes=codec().encode({"name": f"note-{n}", "payload": "card 4711"}),
        )
        for n in range(1, count + 1)
    )  # fmt: skip
    Chain.objects.filter(run_id=run.pk).update(length=length + count)


def test_a_page_costs_the_same_for_long_histories_many_activities_and_children(
    admin: Client, django_assert_max_num_queries: Any
) -> None:
    handle = Sleepy.start(id="long-1")
    drain()
    sleeper = Instance.objects.get(pk=handle.run_id)
    add_events(sleeper, 5000)
    task = {"workflow_id": "x", "workflow": "x", "call": b"[[], {}]", "options": b"{}", "queue": "q", "run_queue": "q"}
    now = timezone.now()
    ActivityTask.objects.bulk_create(
        ActivityTask(
            **task, chain_id=sleeper.chain_id, run=sleeper, seq=100 + n, activity="a", scheduled_at=now, due_at=now
        )
        for n in range(200)
    )
    Instance.objects.bulk_create(
        Instance(
            id=uuid4(), chain_id=uuid4(), workflow="x", workflow_id=f"child-{n}", version=1, parent_run=sleeper,
            parent_seq=n, status="running", queue="q", created_at=now, args=b"null", seed=1,
        )
        for n in range(500)
    )  # fmt: skip
    text_of(admin, sleeper.pk, "")
    for part in ("", *PARTS):
        with django_assert_max_num_queries(12):
            text_of(admin, sleeper.pk, part)
    assert "Only 200 runs" in text_of(admin, sleeper.pk, "family")


def test_the_timeline_of_a_long_history_is_no_more_than_that_of_a_short_one(admin: Client) -> None:
    runs = []
    for name, count in (("short", 300), ("long", 10_000)):
        handle = Sleepy.start(id=name)
        drain()
        runs.append(Instance.objects.get(pk=handle.run_id))
        add_events(runs[-1], count)
    short, long = (text_of(admin, run.pk, "") for run in runs)

    assert short.count("<rect") <= long.count("<rect") <= 2 * short.count("<rect")
    assert long.count('<tr id="t-') == short.count('<tr id="t-') == 20
    assert "note-10000" in long
    assert "Timer" in long  # what it waits for, although that began 10,000 events ago
    assert "card 4711" not in long
    first = re.search(r'href="([^"]*)">first<', long)
    assert first is not None
    assert "Run started" in admin.get(first[1]).content.decode()


def test_ends_that_are_far_away_are_not_read_and_the_page_says_so(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Weighs.start(30, id="wide-1")
    drain()
    assert "are not read here" not in text_of(admin, run.run_id, "")
    monkeypatch.setattr(timeline, "MAX_ENDS", 3)
    text = admin.get(f"{address_of(run.run_id)}?after=0").content.decode()
    assert "more than 3 events away" in text
    assert "end not read" in text


def test_hostile_names_are_escaped_in_the_drawing(admin: Client) -> None:
    run = Weighs.start(2, id="<i>wide<i>")
    drain()
    text = text_of(admin, run.run_id, "")
    drawing = text[text.index('<svg class="tx-timeline"') : text.index("tx-legend")]
    assert "&lt;script&gt;alert(1)&lt;/script&gt; the parcel" in drawing
    assert "<script>alert" not in text
    assert "<i>wide" not in text
    assert not re.search(r"\sstyle=", text)
    assert drawing.count('class="tx-bar tx-bar-run"') == 2


def test_blocked_time_is_drawn_over_folded_time_and_is_in_the_legend(admin: Client) -> None:
    run = Sleepy.start({"sleep": 3600})
    drain()
    stored = Instance.objects.get(pk=run.run_id)
    began, blocked = stored.created_at - timedelta(hours=2), stored.created_at - timedelta(hours=1)
    HistoryEvent.objects.filter(run=stored).update(at=began)
    assert "tx-key-blocked" not in text_of(admin, run.run_id, "")
    Instance.objects.filter(pk=stored.pk).update(
        blocked={"code": "nondeterminism", "message": "m", "since": blocked.isoformat()}
    )
    text = text_of(admin, run.run_id, "")
    # SVG paints in the order of its elements, and a fold is opaque.
    assert -1 < text.rindex('class="tx-time-fold"') < text.index('class="tx-time-blocked"')
    assert "tx-key-blocked" in text


def test_the_axis_writes_no_time_twice(admin: Client) -> None:
    run = Weighs.start(6, id="wide")
    drain()
    moment = timezone.now().replace(microsecond=0)
    for event in HistoryEvent.objects.filter(run=run.run_id):
        HistoryEvent.objects.filter(pk=event.pk).update(at=moment + timedelta(milliseconds=20 * event.seq))
    text = text_of(admin, run.run_id, "")
    assert len(re.findall('class="tx-time-at"', text)) == 1


def test_values_of_the_timeline_have_names_on_a_phone_and_empty_cells_have_none(admin: Client) -> None:
    run = Weighs.start(1, id="one")
    drain()
    text = text_of(admin, run.run_id, "")
    table = text[text.index('<table class="tx-grid tx-happened">') :]
    activity = next(row for row in table.split("<tr ") if "the parcel" in row)
    assert re.findall('data-label="([^"]*)"', activity) == ["State", "Began", "Took"]
    end = next(row for row in table.split("<tr ") if "ompleted" in row.partition("</th>")[0])
    assert re.findall('data-label="([^"]*)"', end) == ["State", "Began"]


def test_the_start_of_a_closed_run_takes_no_time(admin: Client) -> None:
    run = Weighs.start(1, id="one")
    drain()
    text = text_of(admin, run.run_id, "")
    table = text[text.index('<table class="tx-grid tx-happened">') :]
    start = next(row for row in table.split("<tr ") if "Run started" in row)
    assert "<td></td>" in start[start.index("tx-moment") :]


def test_an_open_run_polls_and_a_closed_one_does_not(admin: Client, django_assert_max_num_queries: Any) -> None:
    handle = Basket.start({"card": "card 4711"}, id="b-1")
    drain()
    page = admin.get(address_of(handle.run_id))
    fresh = poll(admin, page)
    assert fresh.status_code == 200
    assert "<html" not in fresh.content.decode()
    with django_assert_max_num_queries(4):  # two of them read the session and the user
        assert poll(admin, fresh).status_code == 204

    handle.signal("note", "card 4711")
    drain()
    changed = poll(admin, fresh)
    assert "Signal note" in changed.content.decode()
    assert "4711" not in changed.content.decode()
    assert poll(admin, changed).status_code == 204
    for part in PARTS:
        fragment = poll(admin, admin.get(address_of(handle.run_id, part))).content.decode()
        assert "4711" not in fragment, part
        assert "<form" not in fragment

    handle.terminate("enough")
    closed = poll(admin, changed).content.decode()
    assert "Terminated" in closed
    assert "data-hx-get" not in closed
    assert "data-hx-get" not in text_of(admin, handle.run_id, "")


def test_a_poll_writes_nothing_and_ends_when_the_run_or_the_permission_has_gone(admin: Client) -> None:
    handle = Basket.start(id="red-1")
    drain()
    run_id = handle.run_id
    ann = somebody("red-ann", "view_instance", "view_payload")
    page = ann.get(address_of(run_id))
    count = OperatorAction.objects.count()
    with override_settings(SESSION_SAVE_EVERY_REQUEST=True):
        fresh = poll(ann, page)
    assert (fresh.status_code, "sessionid" in fresh.cookies) == (200, False)
    # Without the permission to see payloads, the fragment is another one.
    user = get_user_model().objects.get(username="red-ann")
    user.user_permissions.remove(Permission.objects.get(codename="view_payload"))
    assert poll(ann, fresh).status_code == 200
    user.user_permissions.clear()
    assert poll(ann, fresh).status_code == 403
    assert OperatorAction.objects.count() == count
    ann.logout()
    assert poll(ann, fresh).status_code == 401
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        assert poll(somebody("blue-bob", "view_instance"), fresh).status_code == 404
    fresh = poll(admin, admin.get(address_of(run_id)))
    Instance.objects.filter(pk=run_id).delete()
    assert poll(admin, fresh).status_code == 404
    gone = admin.get(address_of(run_id))
    assert (gone.status_code, "Back to the runs" in gone.content.decode()) == (404, True)


def test_a_blocked_grandchild_shows_at_the_root(admin: Client) -> None:
    root = Grandparent.start(3, id="level-3")
    drain()
    Instance.objects.filter(workflow_id="level-0").update(blocked={"code": "fault", "error": "x"})

    for start in ("level-3", "level-1"):
        text = text_of(admin, Instance.objects.get(workflow_id=start).pk, "family")
        rows = re.findall(r"<tr[^>]*>\s*<th scope=\"row\">(.*?)</tr>", text, re.DOTALL)
        assert [re.search(r"level-\d", row)[0] for row in rows] == ["level-3", "level-2", "level-1", "level-0"]  # type: ignore[index]
        assert ["1 blocked" in row for row in rows] == [True, True, True, False]
    assert str(root.run_id) in text


def test_a_deep_family_is_bounded_and_says_so(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "MAX_LEVELS", 2)
    root = Grandparent.start(4, id="level-4")
    drain()
    text = text_of(admin, root.run_id, "family")
    assert "level-2" in text
    assert "level-1" not in text
    assert "there may be more" in text


def test_a_tree_has_no_runs_of_another_tenant() -> None:
    root = Grandparent.start(2, id="red-root")
    drain()
    Instance.objects.filter(workflow_id="level-1").update(workflow_id="blue-1")
    Instance.objects.filter(workflow_id="level-0").update(workflow_id="red-0")
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        ann = somebody("red-ann", "view_instance")
        assert "blue-1" not in text_of(ann, root.run_id, "family")
        grandchild = Instance.objects.get(workflow_id="red-0")
        assert "blue-1" not in text_of(ann, grandchild.pk, "family")


def test_who_lacks_permissions_reads_so_in_one_line(admin: Client) -> None:
    handle = Basket.start(id="b-1")
    drain()
    text = text_of(somebody("ann", "view_instance"), handle.run_id, "")
    assert "/do/" not in text
    assert text.count('<p class="tx-off">') == 1
    assert "“Can terminate runs”" in text
    assert "this requires the permission" not in text_of(admin, handle.run_id, "")


def test_it_serves_teams_without_the_admin() -> None:
    """The permission to view runs suffices: the user is no staff, and the site has no admin."""
    handle = Basket.start(id="b-1")
    drain()
    user = get_user_model().objects.create_user("ann")
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_instance", "terminate_instance")))
    client = Client()
    client.force_login(user)
    base = f"/workflows/runs/{handle.run_id}/"
    for part in ("", *(f"{part}/" for part in PARTS), "do/terminate/"):
        response = client.get(f"{base}{part}")
        assert response.status_code == 200, part
        assert "/admin/" not in response.content.decode()
    token = re.search(r'name="token" value="([^"]+)"', client.get(f"{base}do/terminate/").content.decode())
    assert token is not None
    done = client.post(f"{base}do/terminate/", {"token": token[1], "reason": "enough"})
    assert done["Location"] == base
    assert handle.status == "terminated"
