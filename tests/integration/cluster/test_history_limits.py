"""The limits of the server on a history: a run near one is told and named, and refusals have a name."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from temporalex_django import NoReply, Ok, Reply, Stop, Workflow, api, errors, update
from temporalex_django.backends.cluster import client as clients
from temporalex_django.backends.cluster import health, mirrored_run
from temporalex_django.management import doctor
from temporalex_django.present.diagnosis import diagnose
from tests.support import temporal_server
from tests.support.cluster_worker import running_worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-history-{uuid.uuid4().hex[:8]}"
#: The limits of the server of these tests, which are those of a real one divided by about a thousand.
LIMITS = {
    "history.maximumSignalsPerExecution": "10",
    "history.maxTotalUpdates": "10",
    "limit.historyCount.error": "120",
    "limit.historyCount.suggestContinueAsNew": "30",
}


class LongRun(Workflow):
    """Counts signals and updates, and says at the end whether it was to continue as new."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(
            await api.phase(
                [],
                update={"add": update(lambda _, told: Reply(len(told), [*told, is_told()]))},
                signal={
                    "note": lambda _, told: NoReply([*told, is_told()]),
                    "stop": lambda _, told: Stop([*told, is_told()]),
                },
            )
        )


def is_told() -> bool:
    return api.info().continue_as_new_suggested


@pytest.fixture
def small_server(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of its own with low limits, and a worker."""
    monkeypatch.setattr(temporal_server, "SETTINGS", {**temporal_server.SETTINGS, **LIMITS})
    server = temporal_server._start(tmp_path)
    entry = {"ADDRESS": server["address"], "PREFIX": "long:"}
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "temporal", "CLUSTER": entry}
    try:
        with running_worker(QUEUE):
            yield
    finally:
        with clients._lock:
            client, clients._client = clients._client, None
        if client is not None:
            client.close()
        os.kill(server["pid"], signal.SIGKILL)
        os.waitpid(server["pid"], 0)


def started() -> Any:
    handle = LongRun.start(None, id=f"long-{uuid.uuid4().hex[:8]}")
    wait_for(lambda: handle.describe().waiting_for)
    return handle


def test_what_the_server_does_not_take_is_refused_by_name(small_server: None) -> None:
    run = started()
    for _ in range(10):
        run.signal("note")
    with pytest.raises(errors.ActionNotPossible, match="exceeded workflow execution limit for signal events"):
        run.signal("note")
    run = started()
    for _ in range(10):
        run.update("add")
    with pytest.raises(errors.ActionNotPossible, match="limit on the total number of distinct updates .* reached"):
        run.update("add")


def test_a_run_that_reaches_the_limit_of_events_ends_with_the_reason(small_server: None) -> None:
    class Endless(Workflow):
        task_queue = QUEUE

        async def run(self, args: Any) -> Any:
            while True:
                await api.sleep(0.001)

    run = Endless.start(None, id=f"endless-{uuid.uuid4().hex[:8]}")
    with pytest.raises(errors.WorkflowTerminated, match="history count exceeds limit"):
        run.result(timeout=60)


def test_the_code_is_told_to_continue_as_new(small_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started()
    for _ in range(9):
        run.update("add")
    run.signal("stop")
    told = run.result(timeout=20)
    assert (told[0], told[-1]) == (False, True)  # by the server, about updates and events

    monkeypatch.setattr(mirrored_run, "MANY_SIGNALS", 3)
    run = started()
    run.signal("note")
    wait_for(lambda: len(run.history()) > 3)
    run.signal("note")
    run.signal("stop")
    told = run.result(timeout=20)
    assert (told[0], told[-1]) == (False, True)


def test_a_run_near_the_limit_of_its_history_is_named(small_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LONG", 5)
    run = started()
    for _ in range(3):
        run.update("add")

    def named() -> list[str]:
        findings = diagnose(doctor.load_project(), now=timezone.now())
        return [finding.text for finding in findings if finding.code == "history_full"]

    assert named() == []
    monkeypatch.setattr(health, "MOST_EVENTS", 20)
    [text] = wait_for(named)  # the row follows the updates within half a second
    assert text.startswith(f"The history of LongRun {run.id} has reached ")
    monkeypatch.setattr(health, "MOST_EVENTS", 51_200)
    monkeypatch.setattr(health, "MOST_BYTES", 2_000)
    assert len(named()) == 1


def test_a_run_near_the_limit_of_its_messages_is_named(small_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LONG", 1)
    run = started()
    for _ in range(4):
        run.update("add")
        run.signal("note")
    wait_for(lambda: len(run.history()) > 12)

    def named() -> list[str]:
        health._counts.clear()
        findings = diagnose(doctor.load_project(), now=timezone.now())
        return [finding.text for finding in findings if finding.code == "history_full"]

    assert named() == []
    monkeypatch.setattr(health, "MOST_UPDATES", 5)
    [text] = wait_for(named)
    assert text == f"LongRun {run.id} has received 80 % of the updates that the Temporal cluster accepts."
    monkeypatch.setattr(health, "MOST_SIGNALS", 4)
    monkeypatch.setattr(health, "MOST_UPDATES", 6)
    assert named() == [f"LongRun {run.id} has received 100 % of the signals that the Temporal cluster accepts."]
