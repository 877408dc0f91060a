"""Starts, signals and decisions in transactions, half of them rolled back, while dispatchers are killed.

The server restarts meanwhile.

None is lost, none is doubled, none of a transaction that was rolled back arrives, and each run gets its own in order.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from temporalex_django import Ok, Workflow, api
from temporalex_django.models import HumanTask, Instance, OperatorAction, Outbox
from temporalex_django.operations.read.project_state import load_project_state
from temporalex_django.present.diagnosis import diagnose
from tests.support.campaign import REPEATED
from tests.support.cluster_worker import running_worker
from tests.support.people import stored
from tests.support.temporal_server import PROGRAM
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once]

QUEUE = f"cluster-campaign-{uuid.uuid4().hex[:8]}"
#: Runs, signals to each, decisions, and dispatchers that are killed. The long form: over 600 rows, 50 kills.
RUNS, SIGNALS, VERDICTS, KILLS = (12, 4, 8, 6) if REPEATED else (100, 4, 50, 50)
#: Seconds for which the server is away.
AWAY = 1 if REPEATED else 60


class MirroredNotes(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        notes = []
        while (note := await api.wait_for_signal("note")) is not None:
            notes.append(note)
        return Ok(notes)


class MirroredVerdict(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        decision = await api.approval("Guilty?", users=["judge"])
        return Ok([decision.outcome, decision.comment])


class Server:
    """A server of Temporal with a file, which survives its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(PROGRAM, "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self.port), "--headless"),
            *("--db-filename", str(self.folder / "temporal.db"), "--log-level", "error"),
        ]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self.answers, what="the server")

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path: Path, settings: Any) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    entry = {"ADDRESS": f"127.0.0.1:{server.port}", "PREFIX": "campaign:"}
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "temporal", "CLUSTER": entry}
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def dispatcher(env: dict[str, str], settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    env = {**env, "TX_TEST_CLUSTER": json.dumps(settings.TEMPORALEX["CLUSTER"])}
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", "tests.support.dispatcher"], env=env)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def write(draw: random.Random) -> dict[str, list[int]]:
    """Start runs and send signals in transactions, of which half are rolled back; return what is to arrive, by id."""
    expected: dict[str, list[int]] = {}
    handles = []
    for number in range(2 * RUNS):
        is_lost = number % 2 == 1
        name = f"campaign-{number}"
        with transaction.atomic():
            handle = MirroredNotes.start(None, id=name)
            transaction.set_rollback(is_lost)
        if not is_lost:
            handles.append(handle)
            expected[name] = []
    sends = [(handle, number) for handle in handles for number in range(2 * SIGNALS)]
    draw.shuffle(sends)
    for handle, number in sends:
        is_lost = number % 2 == 1
        with transaction.atomic():
            handle.signal("note", number)
            transaction.set_rollback(is_lost)
        if not is_lost:
            expected[handle.id].append(number)
    for handle in handles:
        with transaction.atomic():
            handle.signal("note", None)
    return expected


def decide(judge: Any) -> dict[str, list[str]]:
    """Decide human tasks in transactions, each once for a transaction that is rolled back; return what is to arrive."""
    expected = {}
    for task in HumanTask.objects.open().order_by("workflow_id"):
        handle = MirroredVerdict.handle(task.workflow_id)
        with transaction.atomic():
            handle.decide("approved", by=judge)
            transaction.set_rollback(True)
        with transaction.atomic():
            handle.decide("rejected", comment=f"of {handle.id}", by=judge)
        expected[handle.id] = ["rejected", f"of {handle.id}"]
    return expected


def test_nothing_is_lost_doubled_or_out_of_order(server: Server, settings: Any, subprocess_env: dict[str, str]) -> None:
    judge = stored("judge")
    with running_worker(QUEUE):
        for number in range(VERDICTS):
            MirroredVerdict.start(None, id=f"verdict-{number}")
        wait_for(lambda: HumanTask.objects.open().count() == VERDICTS, what="all questions")
        expected = {**write(random.Random(7)), **decide(judge)}
        assert Outbox.objects.count() == RUNS * (SIGNALS + 2) + VERDICTS
        for kill in range(KILLS):
            before = Outbox.objects.count()
            with dispatcher(subprocess_env, settings):
                wait_for(lambda before=before: Outbox.objects.count() < before, what="a row to be sent")
            if kill == KILLS // 2:
                server.kill()
                until = time.monotonic() + AWAY
                with dispatcher(subprocess_env, settings):
                    wait_for(lambda: Outbox.objects.exclude(error=None).exists(), what="a try without the server")
                    wait_for(lambda until=until: time.monotonic() > until, seconds=2 * AWAY, what="a long outage")
                findings = {finding.code for finding in diagnose(load_project_state("default"), now=timezone.now())}
                assert AWAY < 30 or "outbox_late" in findings
                server.start()
                Outbox.objects.waiting().update(due_at=timezone.now())
        with dispatcher(subprocess_env, settings):
            wait_for(lambda: not Outbox.objects.waiting().exists(), seconds=240, what="the outbox to be empty")
        wait_for(lambda: not Instance.objects.open().exists(), seconds=240, what="all runs to end")
    assert not Outbox.objects.exists()
    assert Instance.objects.count() == RUNS + VERDICTS
    assert OperatorAction.objects.filter(action="decide").count() == VERDICTS
    assert {run.workflow_id: run.closing_value["result"] for run in Instance.objects.all()} == expected
