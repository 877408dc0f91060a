"""Limits of a queue hold over worker processes, and a worker that is killed takes no room with it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from temporalex_django.db.inserts import insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import ActivityTask, Instance, Limit
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

MOST, MOST_OF_ONE, PER_SECOND = 3, 2, 12


def test_limits_hold_over_workers_and_survive_them(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    log, visitors = tmp_path / "log", [*["red"] * 12, *["blue"] * 6, *["green"] * 6]
    log.touch()
    limits = {"concurrency": MOST, "concurrency_per_key": MOST_OF_ONE, "rate": f"{PER_SECOND}/s"}
    settings = {"QUEUES": {"crowd": limits}, "LEASE_SECONDS": 2.0}
    env = {
        **subprocess_env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_TEMPORALEX": json.dumps(settings),
    }
    args = {"path": str(log), "tenants": visitors, "seconds": 0.1}

    with worker(env, tmp_path, name="first") as killed, worker(env, tmp_path, name="second"):
        started = insert_start(RunStart(workflow="Crowd", workflow_id="c-1", args=args), storage=DjangoStorage())
        wait_for(lambda: len(log.read_text().splitlines()) > 6, what="visitors")
        os.kill(killed.child, signal.SIGKILL)
        dead_at = time.monotonic()
        wait_for(lambda: Instance.objects.get(pk=started.run_id).status == "completed", what="the end")

    assert not ActivityTask.objects.exists()
    assert Limit.objects.get().name == "queue:crowd"
    lines = [line.split() for line in log.read_text().splitlines()]
    # those of the dead one came and never went: until their next attempt others may be there in their place
    left = Counter(tenant for sign, tenant, *_ in lines if sign == "+")
    left -= Counter(tenant for sign, tenant, *_ in lines if sign == "-")
    began, inside, at_once, of_one = [], Counter[str](), 0, 0
    for sign, tenant, at, *_ in lines:
        if float(at) > dead_at:
            inside, left = inside - left, Counter()
        inside[tenant] += 1 if sign == "+" else -1
        if sign == "+":
            began.append(float(at))
        at_once, of_one = max(at_once, inside.total()), max(of_one, *inside.values())
    assert (at_once, of_one) == (MOST, MOST_OF_ONE)
    # claimed within the rate: a thread may begin what was claimed a moment later
    assert all(sum(at - 0.8 < other <= at for other in began) <= PER_SECOND for at in began)
