"""The admin pages, on the database of the lane."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message, OperatorAction, Worker
from temporalex_django.operations.registry import ACTIONS as ACTIONS_THERE_ARE
from tests.support.client_flows import Basket, Failing, Generations, Orders, Sleepy, drain
from tests.support.run_pages import address_of, text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"
ACTIONS = "/admin/temporalex_django/operatoraction/"
WORKERS = "/admin/temporalex_django/instance/console/workers/"


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def page(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, response
    return response.content.decode()


def run_page(client: Client, handle, *parts: str) -> str:
    return text_of(client, handle.run_id, *parts)


def worker(*, queues=("default",), workflows=None, late: bool = False) -> Worker:
    now = timezone.now()
    return Worker.objects.create(
        id=uuid.uuid4(), epoch=uuid.uuid4().int >> 66, kind="worker", host="box", pid=1, queues=list(queues),
        workflows=workflows or {"test.Basket": [1]}, started_at=now, beat_at=now,
        expires_at=now + timedelta(seconds=-5 if late else 60),
    )  # fmt: skip


# -- list --------------------------------------------------------------------------------------------------------------


def test_the_list_says_where_each_run_stands_and_what_it_waits_for(admin):
    waiting, done, lost = Sleepy.start(id="s-1"), Basket.start(id="b-1"), Orders.start({}, value="7")
    done.signal("checkout")
    drain()
    Instance.objects.filter(pk=waiting.run_id).update(blocked={"code": "nondeterminism", "error": "<b>parted</b>"})
    Orders.start({}, value="8")
    Instance.objects.filter(status="pending").update(created_at=timezone.now() - timedelta(minutes=1))

    text = page(admin, f"{RUNS}console/runs/")

    for label in ("Waiting", "Blocked", "Completed", "Pending"):
        assert label in text
    assert "&lt;b&gt;parted" in text
    assert "no live worker polls the queue" in text
    assert str(lost.id) in text


def test_the_short_list_finds_runs_and_costs_the_same(admin, django_assert_num_queries):
    kept = Basket.start(id="b 1")
    for i in range(60):
        Basket.start(id=f"c-{i}")
    Orders.start({}, value="7")

    def found(query: str) -> set[str]:
        return set(re.findall(r"/console/runs/[0-9a-f-]{36}/[^>]*>([^<]+)<", page(admin, f"{RUNS}?{query}")))

    with django_assert_num_queries(4):  # session, user, which runs, the rows
        assert len(found("")) == 50
    assert len(found("p=2")) == 12
    assert found("q=b+") == {"b 1"}
    assert found("q=ord") == {"order::7"}
    assert found("q=1") == set()
    assert found(f"q={kept.run_id}") == {"b 1"}


# -- one run -----------------------------------------------------------------------------------------------------------


def test_the_page_of_a_run_shows_its_history_by_activation(admin):
    handle = Basket.start({"note": "<script>alert(1)</script>"}, id="b-1")
    handle.update("add", 5, id="u-1")
    handle.signal("note", "unread")
    Message.objects.filter(fresh=True).update(created_at=timezone.now() - timedelta(minutes=1))

    text = run_page(admin, handle)

    assert run_page(admin, handle, "raw").count("Activation ") == len({e.activation for e in handle.history()})
    for event in handle.history():
        assert event.kind in text or event.kind == "ActivationStarted"  # that is the heading of its activation
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "u-1" in text
    assert "not read yet" in text
    since = timezone.localtime(Instance.objects.get(pk=handle.run_id).published_at).isoformat()
    assert f'Published state, since <time class="tx-moment" datetime="{since}"' in text
    assert "no live worker polls the queue" in text  # the signal is due, and nobody is there


def test_a_blocked_run_shows_cause_and_next_step(admin):
    handle = Sleepy.start(id="s-1")
    since = "2026-01-01T12:00:00+00:00"
    blocked = {"code": "unknown_workflow", "error": "UnknownWorkflow: no <i>class</i>", "since": since, "attempt": 3}
    Instance.objects.update(blocked=blocked)

    text = run_page(admin, handle)

    assert "UnknownWorkflow: no &lt;i&gt;class" in text
    assert "Next step" in text
    assert "workflows.py" in text
    assert "3 attempts" in text


@pytest.mark.django_db(transaction=True)  # its handler waits, which a transaction would refuse
def test_activities_under_way_are_shown(admin):
    handle = Basket.start(id="b-1")
    with pytest.raises(Exception, match="accepted"):
        handle.update("slow", 4)

    text = run_page(admin, handle)

    assert "Activities in progress" in text
    assert "client_flows.double" in text
    assert "queued since" in text


def test_a_failed_run_shows_why(admin):
    handle = Failing.start("raise", id="f-1")
    drain()

    text = run_page(admin, handle)

    assert "How it ended" in text
    assert "nowhere" in text
    assert "nothing: it is closed" in text


def test_runs_of_a_chain_link_to_each_other(admin):
    handle = Generations.start(0, id="g-1")
    handle.signal("word", "next")
    drain()
    first, second = handle.run_ids

    text = text_of(admin, first)

    assert address_of(second) in text
    assert "Continued as new" in text


def test_the_history_comes_in_pages_and_the_last_one_first(admin, django_assert_max_num_queries):
    handle = Basket.start(id="b-1")
    handle.query("items")
    run = Instance.objects.get()
    length = HistoryEvent.objects.count()
    HistoryEvent.objects.bulk_create(
        HistoryEvent(
            run=run,
            seq=length + n,
            activation=1 + n,
            kind="SignalReceived",
            at=timezone.now(),
            attributes=b'{"name":"x"}',
        )
        for n in range(1, 251)
    )

    Chain.objects.update(length=length + 250)
    with django_assert_max_num_queries(12):  # one of them notes who read it, once a minute
        last = run_page(admin, handle, "raw")

    assert "page 3 of 3" in last
    assert "WorkflowStarted" not in last
    raw = address_of(handle.run_id, "raw")
    assert "WorkflowStarted" in page(admin, f"{raw}?p=1")
    for odd in ("?p=0", "?p=99", "?p=x", "?p=%C2%B2"):
        page(admin, f"{raw}{odd}")
    for odd in ("?before=x", "?after=%C2%B2", "?before=0", "?after=99999", "?before=1&after=1"):
        page(admin, f"{address_of(handle.run_id)}{odd}")


def test_large_and_unreadable_payloads_do_not_break_the_page(admin):
    handle = Basket.start({"text": "x" * 100_000}, id="b-1")
    handle.signal("note", 1)
    Message.objects.update(body=b"not json")

    text = run_page(admin, handle)

    assert len(text) < 160_000
    assert "more characters" in text
    assert "unreadable" in text


def test_nothing_can_be_changed(admin):
    handle = Basket.start(id="b-1")
    action = OperatorAction.objects.create(at=timezone.now(), action="start", source="code", details={})

    for base, key in ((RUNS, handle.run_id), (ACTIONS, action.pk)):
        assert admin.get(f"{base}add/").status_code == 403
        assert admin.get(f"{base}{key}/delete/").status_code == 403
        assert "delete_selected" not in page(admin, base)
    assert admin.post(address_of(handle.run_id), {}).status_code == 405
    assert admin.post(f"{ACTIONS}{action.pk}/change/", {}).status_code == 403
    assert Chain.objects.count() == 1


def test_an_unknown_run_is_named_and_leads_back(admin):
    assert admin.get(f"{RUNS}nobody/change/").status_code == 302
    for part in ("", "data"):
        response = admin.get(address_of(uuid.uuid4(), part))
        assert response.status_code == 404
        assert f'href="{RUNS}console/runs/">Back to the runs' in response.content.decode()
    assert admin.get(address_of(Basket.start(id="b-1").run_id, "nonsense")).status_code == 404


def test_older_addresses_lead_to_the_console(admin):
    run = Basket.start(id="b-1").run_id
    for old, new in (
        (f"{run}/change/", f"runs/{run}/"),
        (f"{run}/change/?p=2", f"runs/{run}/raw/?p=2"),
        (f"{run}/history/", f"runs/{run}/"),
        (f"{run}/do/reset/?to=3", f"runs/{run}/do/reset/?to=3"),
        (f"{run}/message/?kind=signal&name=x", f"runs/{run}/message/?kind=signal&name=x"),
        (f"{run}/query/?name=items", f"runs/{run}/query/?name=items"),
        (f"{run}/compare/", f"runs/{run}/compare/"),
        ("start/?workflow=test.Basket", "runs/start/?workflow=test.Basket"),
    ):
        assert admin.get(f"{RUNS}{old}")["Location"] == f"{RUNS}console/{new}", old
    assert Client().get(f"{RUNS}{run}/change/")["Location"].startswith("/admin/login/")


def test_who_may_not_look_sees_nothing(client):
    user = get_user_model().objects.create_user("ann", is_staff=True)
    client.force_login(user)
    handle = Basket.start(id="b-1")

    assert client.get(RUNS).status_code == 403
    assert client.get(f"{RUNS}console/runs/{handle.run_id}/").status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_instance"))
    assert client.get(RUNS).status_code == 200
    assert client.get(f"{RUNS}console/runs/{handle.run_id}/").status_code == 200
    assert client.get(WORKERS).status_code == 403


# -- workers and operator actions --------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)  # its handler waits, which a transaction would refuse
def test_workers(admin, django_assert_num_queries):
    first = worker(queues=("default", "orders"))
    worker(late=True)
    Worker.objects.filter(pk=worker(late=True).pk).update(buried_at=timezone.now())
    Basket.start(id="due-1")
    Chain.objects.update(due_at=timezone.now() - timedelta(hours=2))

    with django_assert_num_queries(11):  # session, user, workers, their activities, lost ones; six of the queues
        text = page(admin, WORKERS)

    for said in ("Alive", "Late", "Dead", "default, orders", "Due runs", "2 h", "box:1"):
        assert said in text, said
    other = worker(workflows={"test.Sleepy": [1]})
    ActivityTask.objects.all().delete()
    run = Basket.start(id="slow-1")
    with pytest.raises(Exception, match="accepted"):
        run.update("slow", 4)
    ActivityTask.objects.update(owner=first.epoch, started_at=timezone.now() - timedelta(minutes=3))
    text = page(admin, WORKERS)
    own, others = (text.partition(f'id="w-{each.pk.hex}"')[2].partition("</tr>")[0] for each in (first, other))
    assert "test.Basket" in own
    assert "client_flows.double (3 min" in own
    assert '<span class="tx-problem">test.Sleepy</span>' in own
    assert "client_flows.double" not in others
    assert admin.get("/admin/temporalex_django/worker/")["Location"] == WORKERS
    assert admin.get(f"/admin/temporalex_django/worker/{first.pk}/change/")["Location"] == WORKERS


def test_operator_actions_link_to_their_run(admin, django_assert_num_queries):
    handle = Basket.start(id="b-1")
    handle.terminate("because <b>")

    with django_assert_num_queries(4):
        text = page(admin, f"{ACTIONS}?who=automatic")
    assert address_of(handle.run_id) in text
    assert "because &lt;b&gt;" in text
    action = OperatorAction.objects.get()
    assert "because &lt;b&gt;" in page(admin, f"{ACTIONS}{action.pk}/change/")
    assert "because &lt;b&gt;" in run_page(admin, handle)
    assert "b-1" in page(admin, f"{ACTIONS}?who=all&q=b-&action=terminate&forced__exact=1")


def test_operator_actions_are_what_people_did(admin):
    handle = Basket.start(id="by-ann")
    OperatorAction.objects.bulk_create(
        OperatorAction(
            at=timezone.now(), action="update", actor_name="till", run_id=handle.run_id, workflow="test.Basket",
            workflow_id="by-a-till", source="rest", automatic=True, reason="rung up",
        )
        for _ in range(120)
    )  # fmt: skip
    OperatorAction.objects.create(
        at=timezone.now(), action="cancel", actor_name="ann", run_id=handle.run_id, workflow="test.Basket",
        workflow_id="by-ann", source="admin", reason="asked by phone",
    )  # fmt: skip

    people, automatic, all_of_them = (page(admin, f"{ACTIONS}{query}") for query in ("", "?who=automatic", "?who=all"))

    assert ("asked by phone" in people, "rung up" in people) == (True, False)
    assert ("asked by phone" in automatic, "rung up" in automatic) == (False, True)
    assert ("asked by phone" in all_of_them, "rung up" in all_of_them) == (True, True)
    own = run_page(admin, handle)
    assert own.index("asked by phone") < own.rindex("<details", 0, own.index("rung up")) < own.index("rung up")
    for name in ACTIONS_THERE_ARE:
        assert f"action={name}" in people


def test_what_was_not_forced_looks_like_no_failure(admin):
    handle = Basket.start(id="b-1", by=get_user_model().objects.get())
    handle.terminate("x", by=get_user_model().objects.get())

    for text in (
        page(admin, ACTIONS),
        *(page(admin, f"{ACTIONS}{row.pk}/change/") for row in OperatorAction.objects.all()),
    ):
        assert "icon-no" not in text
    assert re.findall(r"field-how[^>]*>(?:<[^>]*>)*([^<]+)<", page(admin, ACTIONS)) == ["forced", "–"]


# -- strict content security policy ------------------------------------------------------------------------------------


def test_no_inline_script_or_style(admin):
    handle = Basket.start({"a": "b" * 200}, id="b-1")
    handle.update("add", 5)
    worker()
    handle.terminate("x")

    for address in (RUNS, f"{RUNS}console/runs/{handle.run_id}/", ACTIONS, WORKERS):
        text = page(admin, address)
        assert not re.search(r"\sstyle=", text)
        assert not re.search(r"\son[a-z]+=", text)
        assert "<style" not in text
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text) if "application/json" not in tag)
        assert "temporalex_django/admin.css" in text
