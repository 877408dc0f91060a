"""``Workflow.list``: the runs of a class that filters leave, the same filters over REST."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from temporalex_django import ContinueAsNew, Ok, RetryPolicy, Stop, Workflow, activity, api, errors
from temporalex_django.authoring.run_filters import STATUSES
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.models import Chain, Instance, Status
from temporalex_django.models.runs import UNSUCCESSFUL_STATUSES
from temporalex_django.operations.read import run_filters
from temporalex_django.testing import drain
from tests.support import tenants
from tests.support.client_flows import Basket

pytestmark = pytest.mark.django_db


@activity(retry=RetryPolicy(initial_interval=36_000, max_interval=36_000))
def in_vain() -> None:
    raise ConnectionError("not today")


@activity
def at_once() -> None:
    pass


class Listed(Workflow):
    """Does one of several things, as it is told."""

    name = "test.Listed"
    tags = ["mail order", 'a "b" \\', 'a "b', "größe"]

    async def run(self, args: str) -> Any:
        match args:
            case "sleep":
                await api.sleep(3600)
            case "activity":
                await in_vain()
            case "child":
                await api.child(Basket, id="of-listed")
            case "approval":
                await api.approval("May it?", users=["owner"])
            case "signal, activity":
                await api.wait_for_signal("go")
                await in_vain()
            case "alternate":
                while True:
                    await api.wait_for_signal("go")
                    await at_once()
            case "again":
                return ContinueAsNew("phase")
            case "phase":
                await api.phase(None, signal={"stop": lambda _, state: Stop(state)})
        return Ok(args)


def ids(**filters: Any) -> list[str]:
    return [handle.id for handle in Listed.list(**filters)]


def test_each_filter_leaves_the_runs_that_it_means():
    owner = get_user_model().objects.create_user("owner")
    Basket.start(id="l-of another class")
    for name in ("sleep", "activity", "child", "approval", "again", "done"):
        Listed.start(name, id=f"l-{name}", subject=owner if name == "sleep" else None)
    drain()
    Listed.start("phase", id="k-new").terminate()
    every = ["k-new", "l-done", "l-again", "l-approval", "l-child", "l-activity", "l-sleep"]
    Instance.objects.filter(workflow_id="l-child").update(queue="slow")
    Instance.objects.filter(workflow_id="l-done").update(paused={"since": None, "by": None})
    Instance.objects.filter(workflow_id="l-again", status="waiting").update(blocked={"code": "x"})
    Chain.objects.filter(run__workflow_id="l-sleep").update(due_at=timezone.now() - timedelta(minutes=5))
    hour = timedelta(hours=1)
    before, after = datetime.now(UTC) - hour, datetime.now(UTC) + hour

    assert sorted(ids()) == sorted(every)
    for filters, wanted in [
        ({"id": "l-done"}, ["l-done"]),
        ({"id": "l-"}, []),
        ({"id_prefix": "k"}, ["k-new"]),
        ({"id_prefix": "_"}, []),
        ({"id_prefix": "K"}, []),
        ({"id_prefix": "k-new"}, ["k-new"]),
        ({"status": "completed"}, ["l-done"]),
        ({"status": ["completed", "terminated"]}, ["k-new", "l-done"]),
        ({"status": ["failed", "terminated"]}, ["k-new"]),
        ({"status": "terminated"}, ["k-new"]),
        ({"status": "waiting"}, ["l-again", "l-approval", "l-sleep"]),
        ({"status": ["waiting", "running"]}, ["l-again", "l-approval", "l-child", "l-activity", "l-sleep"]),
        ({"status": "continued_as_new"}, []),  # the run that followed it is the present one
        ({"version": 2}, []),
        ({"queue": "slow"}, ["l-child"]),
        ({"blocked": True}, ["l-again"]),
        ({"blocked": False, "status": "completed"}, ["l-done"]),
        ({"paused": True}, ["l-done"]),
        ({"paused": False, "status": "terminated"}, ["k-new"]),
        ({"stuck": True}, ["l-again", "l-sleep"]),
        ({"stuck": False, "waits": "timer"}, []),
        ({"stuck": False, "waits": "child"}, ["l-child"]),
        ({"waits": "message"}, ["l-again", "l-approval"]),
        ({"waits": "timer"}, ["l-sleep"]),
        ({"waits": "activity"}, ["l-activity"]),
        ({"subject": owner}, ["l-sleep"]),
        ({"tag": "größe", "status": "completed"}, ["l-done"]),
        ({"tag": 'a "b" \\', "status": "completed"}, ["l-done"]),
        ({"tag": "b"}, []),  # of `a "b`, whose end it looks like
        ({"tag": "mail"}, []),
        ({"created_after": datetime(2, 1, 1, tzinfo=UTC), "status": "completed"}, ["l-done"]),
        ({"created_before": datetime(9998, 12, 31, tzinfo=UTC), "status": "completed"}, ["l-done"]),
        ({"closed_before": datetime(9998, 12, 31, tzinfo=UTC)}, ["k-new", "l-done"]),
        ({"tag": "Mail order"}, []),
        ({"created_after": before, "status": "completed"}, ["l-done"]),
        ({"created_after": after}, []),
        ({"created_before": after, "status": "completed"}, ["l-done"]),
        ({"created_before": before}, []),
        ({"closed_after": before}, ["k-new", "l-done"]),
        ({"closed_after": after}, []),
        ({"closed_before": after}, ["k-new", "l-done"]),
        ({"closed_before": before}, []),
    ]:
        assert sorted(ids(**filters)) == sorted(wanted), filters
    # those that were started last come first, also across the pages in which they are read
    runs = [run.workflow_id for run in Instance.objects.filter(workflow=Listed.name, chain__run_id__isnull=False)]
    assert ids() == [one for one in dict.fromkeys(runs) if one in every]


@pytest.mark.parametrize(
    ("filters", "error", "says"),
    [
        ({"colour": "red", "blockd": True}, TypeError, "no such filter: blockd, colour .known: attributes, blocked, .*did you mean blocked"),
        ({"value": "7"}, TypeError, "no such filter: value"),  # the class has no `unique`
        ({"status": "asleep"}, ValueError, "status must be one of cancelled, .*not 'asleep'"),
        ({"status": []}, ValueError, "status must be one of"),
        ({"status": 7}, ValueError, "status must be one of"),
        ({"blocked": "yes"}, ValueError, "blocked must be True or False, not 'yes'"),
        ({"version": True}, ValueError, "version must be a whole number"),
        ({"version": 2**40}, ValueError, "version must be a whole number"),
        ({"waits": "rain"}, ValueError, "waits must be one of message, activity, timer, child"),
        ({"subject": 7}, ValueError, "subject must be a saved object of a model"),
        ({"subject": Instance}, ValueError, "subject must be a saved object of a model"),
        ({"tag": "\0"}, ValueError, "tag must be 1 to 200 printable characters"),
        ({"id": ""}, ValueError, "id must be 1 to 200"),
        ({"created_after": "2026-01-01"}, ValueError, "created_after must be a datetime with a time zone"),
        ({"closed_after": datetime.max.replace(tzinfo=timezone.get_fixed_timezone(-60))}, ValueError, "closed_after must be a datetime in the years 2 to 9998 in UTC"),
        ({"closed_before": datetime(2026, 1, 1)}, ValueError, "closed_before must be a datetime with a time zone"),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_at_once_with_those_that_there_are(filters, error, says):
    with CaptureQueriesContext(connection) as asked, pytest.raises(error, match=f"Listed.list: {says}"):
        Listed.list(**filters)
    assert not asked.captured_queries


def test_somebody_sees_the_runs_that_there_are_for_him():
    for name in ("red-1", "blue-1"):
        Listed.start("done", id=name)
    user = get_user_model().objects.create_user("red-ann")
    with override_settings(TEMPORALEX={"ACCESS_POLICY": tenants.POLICY}):
        with pytest.raises(errors.ActionNotPermitted):  # before anything is read
            Listed.list(by=user)
        user.user_permissions.add(Permission.objects.get(codename="view_instance"))
        assert ids(by=get_user_model().objects.get(pk=user.pk)) == ["red-1"]
        assert ids() == ["blue-1", "red-1"]


def test_the_async_twin_gives_a_list():
    Listed.start("done", id="a-1")

    assert [handle.id for handle in async_to_sync(Listed.alist)(id_prefix="a-")] == ["a-1"]
    with pytest.raises(TypeError, match="no such filter"):
        async_to_sync(Listed.alist)(colour="red")


def test_statuses_are_the_same_everywhere():
    assert set(Status.values) == STATUSES
    assert CLOSED_STATUSES - {"completed"} == UNSUCCESSFUL_STATUSES


def _awaited(id: str) -> dict[str, bool]:
    row = Chain.objects.filter(runs__workflow_id=id).values("awaits_message", "awaits_timer", "awaits_child").first()
    assert row is not None
    return row


def test_a_chain_knows_what_its_open_run_waits_for():
    nothing = {"awaits_message": False, "awaits_timer": False, "awaits_child": False}
    for name, awaited in (("phase", "message"), ("approval", "message"), ("sleep", "timer"), ("child", "child")):
        Listed.start(name, id=f"w-{name}")
        assert _awaited(f"w-{name}") == nothing
        drain()
        assert _awaited(f"w-{name}") == {**nothing, f"awaits_{awaited}": True}, name
    Listed.start("activity", id="w-activity")
    drain()
    assert _awaited("w-activity") == nothing
    Listed.handle("w-phase").signal("stop")
    drain()
    for name in ("approval", "sleep", "child"):
        Listed.handle(f"w-{name}").terminate()
    assert all(_awaited(f"w-{name}") == nothing for name in ("phase", "approval", "sleep", "child"))


@pytest.mark.parametrize("kind", ["message", "timer", "child", "activity"])
@pytest.mark.parametrize("prefix", ["", "w-"])
def test_waits_are_found_by_an_index(kind, prefix):
    """The runs that wait are read from an index, and the table of runs is not, whether a policy restricts it or not."""
    runs = Instance.objects.filter(workflow_id__startswith=prefix) if prefix else Instance.objects.all()
    asked = run_filters.FILTERS["waits"](runs, kind).order_by("-id").values("pk")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("set local enable_seqscan = off")
            cursor.execute("set local enable_bitmapscan = off")
    plan = asked[:50].explain()
    index = "temporalex_activity" if kind == "activity" else f"temporalex_chain_{kind}"
    assert index in plan, plan
    assert "Seq Scan" not in plan, plan
    # One subquery, which the database turns into a join: nothing is read before the page is known.
    assert (str(asked.query).count("SELECT"), "array(" in str(asked.query)) == (2, False)


def test_a_mark_that_is_older_than_the_present_activity_finds_no_run():
    Listed.start("signal, activity", id="w-both")
    drain()
    assert ids(waits="message") == ["w-both"]
    Listed.handle("w-both").signal("go")
    drain()
    assert (_awaited("w-both")["awaits_message"], ids(waits="message"), ids(waits="activity")) == (True, [], ["w-both"])
    Listed.handle("w-both").terminate()
    assert not _awaited("w-both")["awaits_message"]


@pytest.mark.postgres
def test_a_run_that_alternates_between_messages_and_activities_keeps_its_chain_on_the_page():
    Listed.start("alternate", id="w-hot")
    drain()
    for _ in range(3):
        Listed.handle("w-hot").signal("go")
        assert _moved(lambda: drain(), table="temporalex_chain") == 0
        assert ids(waits="message") == ["w-hot"]


@pytest.mark.postgres
def test_what_seldom_happens_is_found_by_an_index():
    """And turns do not rewrite what these hold, so their updates stay on the page of the row."""
    runs = Instance.objects.all()
    with connection.cursor() as cursor:
        cursor.execute("set local enable_seqscan = off")
        cursor.execute("set local enable_bitmapscan = off")
    for name, wanted in [
        ("ended", run_filters.with_status(runs, ["failed"]).order_by()),
        ("ended", run_filters.with_status(runs, ["terminated", "failed"]).order_by()),
        ("blocked", runs.filter(blocked__isnull=False).order_by("workflow")),
        ("paused", runs.filter(paused__isnull=False).order_by("workflow")),
        ("queue", runs.filter(queue="mail").order_by()),
        ("business", runs.filter(workflow_id__startswith="order-1").order_by()),
    ]:
        assert f"temporalex_instance_{name}" in wanted.explain(), name
    with connection.cursor() as cursor:
        cursor.execute("set local enable_bitmapscan = on")
        cursor.execute("set local enable_indexscan = off")
    closed = run_filters.FILTERS["closed_after"](runs, timezone.now()).order_by()
    summarizing = connection.pg_version >= 160_000
    assert ("temporalex_instance_closed" in closed.explain()) == summarizing
    assert "temporalex_instance_tags" in run_filters.with_tag(runs, "mail order").order_by().explain()


@pytest.mark.postgres
def test_a_run_that_completes_stays_on_its_page():
    """The index of closed runs keeps no update from it: its row has no new entry in any index."""
    Listed.start("done", id="hot")
    assert _moved(lambda: drain()) == 0


def _moved(do: Any, *, table: str = "temporalex_instance") -> int:
    """How many updates of rows of the table made new entries in the indexes."""

    def counted() -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute("select pg_stat_get_xact_tuples_updated(r), pg_stat_get_xact_tuples_hot_updated(r) from (select %s::regclass as r)", [table])  # fmt: skip
            updated, hot = cursor.fetchone()
        return updated, hot

    before = counted()
    do()
    after = counted()
    assert after[0] > before[0]
    return (after[0] - before[0]) - (after[1] - before[1])
