"""The sections of a run's page, and what all of them together cost."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client
from django.utils import timezone

from temporalex_django import (
    Approval,
    Done,
    Event,
    GraphWorkflow,
    Ok,
    RetryPolicy,
    Step,
    Unique,
    Workflow,
    activity,
    api,
)
from temporalex_django.console.run import graph as graphs
from temporalex_django.models import HistoryEvent, Instance, OperatorAction, Worker
from temporalex_django.present import picture
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.graphs import leads
from tests.support.run_pages import PARTS, text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


@activity(retry=RetryPolicy(initial_interval=100, max_attempts=20))
def refuse_the_parcel() -> None:
    raise ConnectionError("nobody is at home")


class Everything(Workflow):
    """Has something in each section of its page."""

    name = "test.AdminEverything"

    async def run(self, args: Any) -> Any:
        api.publish_state({"parcels": 1})

        child = api.child(Sleepy, id="every-child")
        return Ok(
            await api.parallel(
                [refuse_the_parcel(), api.sleep(3600, then="the reminder"), api.wait_for_signal("note"), child]
            )
        )


class Weigh(Step):
    """Weigh <it>."""

    events = ("light", "heavy")

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("heavy")


class Fold(Step):
    events = ("folded",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("folded")


decision = Approval(key="crane", due=timedelta(hours=1))


class Parcel(GraphWorkflow):
    name = "test.AdminParcel"
    unique = Unique(key="parcel")
    initial = Weigh
    transitions = {
        **leads(Weigh, light=Fold, heavy=decision),
        **leads(decision, approved=Fold, rejected=Done, overdue=Done),
        **leads(Fold, folded=Done),
    }


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def page(client: Client, run: Any, *parts: str) -> str:
    return text_of(client, run, *parts)


def test_every_part_is_filled_and_costs_at_most_twelve_statements(
    admin: Client, django_assert_max_num_queries: Any
) -> None:
    group = Group.objects.create(name="senders")
    run = Everything.start({"from": "Bonn"}, id="every-1", subject=group)
    drain()
    run.signal("note", "not read yet")
    now = timezone.now()
    Worker.objects.create(
        id=uuid.uuid4(), epoch=1, kind="worker", host="h", pid=1, queues=["default"], workflows={}, started_at=now,
        beat_at=now, expires_at=now + timedelta(minutes=1), activity_names=[refuse_the_parcel.name],
    )  # fmt: skip
    OperatorAction.objects.create(
        at=now, action="pause", actor_name="ann", run_id=run.run_id, source="admin", reason="asked by phone"
    )
    blocked = {"code": "nondeterminism", "error": "the code has parted", "since": now.isoformat(), "attempt": 1}
    Basket.start(id="also")
    Instance.objects.filter(workflow_id="every-1").update(
        blocked=blocked, parent="some", parent_run=uuid.uuid4(), tags=["parcels"], metadata={"lorry": 7}
    )
    admin.get(f"{RUNS}console/runs/")  # what a process reads once
    run_id = run.run_id

    # Session, user, run; who read it; messages, family, activities, workers; what the part itself reads.
    text = ""
    for part in ("", *PARTS):
        with django_assert_max_num_queries(12):
            text += page(admin, run_id, part)

    for said in (
        "the code has parted", "nobody is at home", "1 / 20", "the reminder", "every-child", "asked by phone",
        "not read yet", "Published state", "Send note", f"group {group.pk}", "Terminate", "Fire now", "Retry now",
    ):  # fmt: skip
        assert said in text, said
    Instance.objects.filter(workflow_id="every-1").update(blocked=None, paused={"since": now.isoformat(), "by": None})
    with django_assert_max_num_queries(12):
        assert "1 message" in page(admin, run_id, "")
    run.terminate("enough")
    with django_assert_max_num_queries(12):
        assert "enough" in page(admin, run_id, "")


def test_a_run_that_waits_for_its_child_says_where_that_stands_at_no_more_cost(
    admin: Client, django_assert_max_num_queries: Any
) -> None:
    class Waiting(Workflow):
        name = "test.AdminWaitsForChild"

        async def run(self, args: Any) -> Any:
            return Ok(await api.child(Sleepy, id="slow-child"))

    run = Waiting.start(id="w-1")
    drain()
    run_id = run.run_id
    with django_assert_max_num_queries(12):
        text = page(admin, run_id, "")
    said = re.search(r'class="tx-said[^>]*>(.*?)</p>', text)
    assert said is not None
    assert "slow-child" in said[1]


def test_timers_have_their_date_and_a_button(admin: Client) -> None:
    run = Everything.start(id="every-1")
    drain()
    section = page(admin, run.run_id, "")
    assert "then the reminder" in section
    assert section.count("/do/skip_timer/?seq=") == 1

    address = re.search(r'href="([^"]+/do/skip_timer/\?seq=2)"', section)
    assert address is not None
    token = re.search(r'name="token" value="([^"]+)"', admin.get(address[1]).content.decode())
    assert token is not None
    admin.post(address[1], {"token": token[1], "reason": "it is here already"})
    drain()

    text = page(admin, run.run_id)
    assert "/do/skip_timer/" not in text
    assert "TimerFired" in text


def test_a_graph_is_drawn_with_its_state_and_said_in_a_list(
    admin: Client, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    run = Parcel.start("1")
    drain()
    run_id = run.run_id
    with django_assert_max_num_queries(12):
        text = page(admin, run_id, "graph")
    drawing, listed = text[text.index('<svg class="tx-graph"') :].split("</details>", 1)[0].split("<details>", 1)
    for state, count in (("completed", 1), ("waiting", 1), ("none", 2)):
        assert drawing.count(f"tx-step-{state}") == count, state
    assert "Weigh &lt;it&gt;" in drawing
    assert "<script" not in drawing
    assert "style=" not in drawing
    for cells in (("completed", "heavy → Crane"), ("waiting", "approved → Fold")):
        assert all(cell in listed for cell in cells)
    assert "/do/skip_timer/" in page(admin, run_id, "")  # its timeout
    assert ">Graph</a>" not in page(admin, Basket.start(id="b-1").run_id, "")

    run.resume("approved", step=decision)
    drain()
    text = page(admin, run.run_id, "graph")
    assert text.count("tx-step-completed") == 4
    monkeypatch.setattr(graphs, "MAX_EVENTS", 1)
    assert "too long" in page(admin, run.run_id, "graph")
    monkeypatch.undo()
    HistoryEvent.objects.filter(kind="ActivityScheduled").update(attributes=b"no json")
    text = page(admin, run.run_id, "graph")
    assert "does not match the current graph" in text
    assert text.count("tx-step-none") == 4
    monkeypatch.setattr(picture, "MAX_STEPS", 3)
    assert "1 more step is not drawn" in page(admin, run.run_id, "graph")


def test_the_timeline_is_grouped_and_events_are_raw(admin: Client) -> None:
    run = Parcel.start("1")
    drain()
    grouped = page(admin, run.run_id, "")
    assert "Run started" in grouped
    assert "Weigh &lt;it&gt;:" in grouped  # scheduled and completed: one row
    assert grouped.count('<th scope="row" title="Weigh') == 1
    assert "ActivityScheduled" not in grouped
    assert "ActivityScheduled" in page(admin, run.run_id, "raw")
