"""kill -9 at every named point, one after the other: what is left behind is what the next one begins with.

Nobody tidies up in between. At the end all that was started has ended as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db.models import Q
from django.utils import timezone

from temporalex_django.core import process
from temporalex_django.db.inserts import insert_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import (
    ActivityTask,
    BulkJob,
    Chain,
    HistoryEvent,
    Instance,
    Message,
    Outbox,
    Schedule,
    ScheduleSlot,
    Worker,
)
from tests.faults.test_guardian import env_with
from tests.support.campaign import REPEATED
from tests.support.crash_walk import Walk, prepared, start, walking
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once_on_postgres]


@pytest.fixture
def walk(subprocess_env: dict[str, str], tmp_path: Path) -> Iterator[Walk]:
    with walking(env_with(subprocess_env, LEASE_SECONDS=1.5, DRAIN_SECONDS=0.5), tmp_path) as one:
        yield one


#: What the short form walks through; `make faults` and `make soak` have all.
SHORT = (
    "turn: after commit",
    "atomic: before commit",
    "effect: after",
    "schedule: before commit",
    "atomic effect: after",
    "notify: before",
    "update: after commit",
    "outbox claim: after commit",
    "send: after",
)


def is_lost(run: Instance) -> bool:
    return bool(run.status == "failed" and "WorkerLost" in run.closing_value["message"])


def test_killed_at_every_point_nothing_is_lost_or_doubled(walk: Walk) -> None:
    for point in SHORT if REPEATED else process.POINTS:
        if point.startswith("update"):
            basket = start("Tally", workflow_id=f"own{walk.n}-{point}")
            call_command("temporalex", "worker", "--burst", verbosity=0)
            assert walk.dies_at(point, do="worker" if "left" in point else "auto", ref=str(basket.run_id))
            insert_message(basket.chain_id, kind="signal", name="stop", body=None, storage=DjangoStorage())
            continue
        with prepared(walk, point) as fails:
            walk.load()
            assert walk.dies_at(point, fail=fails), f"nobody came to {point!r}"

    Instance.objects.filter(workflow="Stuck").update(blocked=None)
    last_words = {"Stuck": ("go", None), "Entity": ("next", "stop")}
    for run in Instance.objects.filter(workflow__in=last_words).open():
        name, body = last_words[run.workflow]
        insert_message(run.chain_id, kind="signal", name=name, body=body, storage=DjangoStorage())
    Outbox.objects.update(due_at=timezone.now())  # the leases of those that died
    last = walk.ask()
    wait_for(lambda: not Outbox.objects.waiting().exists(), what="the outbox to be sent")
    wait_for(lambda: not Schedule.objects.filter(Q(next_at__lte=timezone.now()) | Q(waiting__gt=0)).exists())
    wait_for(lambda: not Instance.objects.open().exists(), what="all runs to end")
    wait_for(lambda: not BulkJob.objects.filter(state="running").exists())
    assert walk.ask(stop=last) == 0

    unwanted = Instance.objects.exclude(status__in=["completed", "terminated", "continued_as_new"]).exclude(
        workflow="Stuck"
    )
    # what was alone in three workers when they died is lost, by its policy
    assert [(run.workflow_id, run.closing_value) for run in unwanted if not is_lost(run)] == []
    assert sorted(get_user_model().objects.values_list("username", flat=True)) == sorted(walk.bookings)
    for tally in Instance.objects.filter(workflow="Tally", workflow_id__regex="^t[0-9]"):
        assert tally.closing_value == {"result": 3}
    keys = [line.split()[1] for line in walk.log.read_text().splitlines()]
    ended = HistoryEvent.objects.filter(kind="ActivityCompleted").values("run_id", "seq")
    recorded = Instance.objects.filter(workflow="Recording")
    assert len(keys) >= len(set(keys)) <= recorded.count()
    assert {run.closing_value["result"] for run in recorded.filter(status="completed")} <= set(keys)
    assert ended.count() == ended.distinct().count()
    slots = ScheduleSlot.objects.filter(outcome="started")
    assert slots.count() == ScheduleSlot.objects.count() == 3 * Schedule.objects.count() // 2
    scheduled_runs = Instance.objects.filter(scheduled_for__isnull=False)
    assert sorted(slots.values_list("run_id", flat=True)) == sorted(scheduled_runs.values_list("pk", flat=True))
    assert not ActivityTask.objects.exists()
    assert {f"sent {number + 1}" for number in range(walk.n)} == set(walk.sent.read_text().splitlines())
    assert Outbox.objects.refused().count() == Outbox.objects.count() == walk.n
    assert not Message.objects.filter(fresh=True).exclude(chain__closed=True).exists()
    assert not Chain.objects.exclude(pk__in=Instance.objects.values("chain_id")).exists()
    assert not HistoryEvent.objects.exclude(run_id__in=Instance.objects.values("pk")).exists()
    assert not Worker.objects.exclude(host="elsewhere").exists()
    call_command("temporalex", "replay", processes=1, verbosity=0)  # others would not know of this database
