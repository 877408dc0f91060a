"""Workers of a cluster that are killed at any moment: work takes effect once, and rows end as the histories say."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from temporalex_django.backends.cluster import reads
from temporalex_django.backends.cluster.runs import find_on_cluster
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Chain, Instance, Permit
from tests.faults.mirrored.workflows import BookingRun, CountingPhase, CrowdedRun
from tests.integration.cluster.conftest import cluster as cluster  # noqa: PLC0414 - a fixture
from tests.support import processes
from tests.support.campaign import REPEATED
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

#: Portions of the campaign; kills of a worker and runs in each. The long form: 200 kills of 240 runs.
PORTIONS, KILLS, RUNS = (1, 6, 12) if REPEATED else (4, 50, 60)
QUEUE = "mirrored"


@pytest.fixture
def worker_env(cluster: dict[str, Any], subprocess_env: dict[str, str]) -> dict[str, str]:
    return {
        **subprocess_env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_APPS": "tests.faults.mirrored",
        "TX_TEST_TEMPORALEX": json.dumps({"BACKEND": "temporal", "CLUSTER": cluster, "LEASE_SECONDS": 2.0}),
    }


def bookings(name: str) -> int:
    return Group.objects.filter(name__startswith=f"{name}:").count()


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_work_is_done_once_and_rows_equal_their_histories(
    cluster: dict[str, Any], worker_env: dict[str, str], tmp_path: Path, portion: int
) -> None:
    draw, names = random.Random(37 + portion), [uuid.uuid4().hex[:10] for _ in range(RUNS)]
    quarter = RUNS // 4
    expected_open, last, others = names[:quarter], names[quarter : 2 * quarter], names[2 * quarter :]
    assert expected_open
    handles = {name: BookingRun.start({"name": name, "waits": True}, id=f"booking-{name}") for name in names}
    for kill in range(KILLS):
        with processes.running(
            ["temporalex", "worker", "--queues", QUEUE], worker_env, tmp_path / f"worker-{kill}.log"
        ) as worker:
            worker.says("cluster at")
            for name in others[len(others) * kill // KILLS : len(others) * (kill + 1) // KILLS]:
                handles[name].signal("go")
            time.sleep(draw.random())  # any moment will do
            os.killpg(worker.pid, signal.SIGKILL)
    with processes.running(["temporalex", "worker", "--queues", QUEUE], worker_env, tmp_path / "last.log"):
        for name in last:
            handles[name].signal("go")
        for name in (*others, *last):
            assert handles[name].result(timeout=180) == [1, 1]
            assert [bookings(f"{name}-a"), bookings(f"{name}-b")] == [1, 1]
        wait_for(lambda: Instance.objects.open().count() == len(expected_open), seconds=60)
        for name in expected_open:
            wait_for(lambda name=name: "go" in str(handles[name].describe().waiting_for), seconds=180)
            _compare(handles[name])
            assert [bookings(f"{name}-a"), bookings(f"{name}-b")] == [1, 0]


def test_a_limit_holds_over_processes_and_a_killed_one_gives_its_places_back(
    cluster: dict[str, Any], worker_env: dict[str, str], tmp_path: Path
) -> None:
    settings = {**json.loads(worker_env["TX_TEST_TEMPORALEX"]), "QUEUES": {QUEUE: {"concurrency": 2}}}
    env = {**worker_env, "TX_TEST_TEMPORALEX": json.dumps(settings)}
    command = ["temporalex", "worker", "--queues", QUEUE]
    handle = CrowdedRun.start({"calls": 12, "seconds": 0.5}, id="crowd")
    with processes.running(command, env, tmp_path / "killed.log") as killed:
        wait_for(lambda: Permit.objects.filter(started=True).count() == 2)
        with processes.running(command, env, tmp_path / "other.log") as other:
            other.says("cluster at")
            os.killpg(killed.pid, signal.SIGKILL)
            counts = handle.result(timeout=120)
            assert len(counts) == 12
            assert max(counts) == 2
            wait_for(lambda: not Permit.objects.filter(started=True).exists())


def test_rows_that_a_killed_worker_had_still_to_write_are_written_by_another(
    cluster: dict[str, Any], worker_env: dict[str, str], tmp_path: Path
) -> None:
    """The worker has answered an update, and keeps the row for the next activation, which never comes."""
    command, env = ["temporalex", "worker", "--queues", QUEUE], {**worker_env, "TX_TEST_SOON": "3600"}
    handle = CountingPhase.start(None, id=f"counting-{uuid.uuid4().hex[:8]}")
    started = Instance.objects.get(pk=handle.run_id)
    chain = Chain.objects.filter(pk=started.chain_id).values_list("activations", flat=True)
    with processes.running(command, env, tmp_path / "killed.log") as killed:
        wait_for(lambda: handle.describe().accepts["updates"])
        assert handle.update("count") == 1
        os.killpg(killed.pid, signal.SIGKILL)
    assert chain.get() == 1
    with processes.running(command, env, tmp_path / "other.log"):
        wait_for(lambda: chain.get() == 2, seconds=60)
        assert handle.update("count") == 2


def _compare(handle: Any) -> None:
    """The row of an open run says what its history says."""
    run = Instance.objects.get(pk=handle.run_id)
    address = find_on_cluster(run.chain_id, storage=DjangoStorage())
    state = reads.state_of(address)
    assert (run.status, run.waiting_for, run.published_state) == (
        state["status"],
        state["waiting_for"],
        state["published"],
    )
    assert run.accepts == state["accepts"]
    assert run.blocked is None
