"""``temporalex replay`` and ``doctor --deploy`` about runs on a cluster, whose histories are there."""

from __future__ import annotations

import json
import uuid
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.management.doctor import compare_with_runs
from temporalex_django.workers.loop import run_until_idle
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-replays-{uuid.uuid4().hex[:8]}"


@activity
def count_up(number: int) -> int:
    return number + 1


class HeardOnTables(Workflow):
    backend = "tables"

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("hello"))


class ChildOfReplayed(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await count_up(args))


class MirroredForReplays(Workflow):
    """Has a child, whose id the prefix changes, and sends a message to a run on the tables."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.child(ChildOfReplayed, 1)
        await api.signal_external(args["heard"], "hello", 1)
        return Ok(await api.wait_for_signal("go"))


@pytest.fixture
def waiting(cluster: Any, worker: None) -> Any:
    """A run that has done all that its code does before the wait."""
    heard = HeardOnTables.start(None, id=f"heard-{uuid.uuid4().hex[:6]}")
    handle = MirroredForReplays.start({"heard": heard.id}, id=f"replays-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: "go" in str(handle.describe().waiting_for))
    run_until_idle()  # the run on the tables gets the message
    return handle


def replayed(**options: Any) -> tuple[dict[str, Any], CommandError | None]:
    """The report of the command, and the error with which it ends."""
    output = StringIO()
    try:
        call_command("temporalex", "replay", json=True, stdout=output, **options)
    except CommandError as exc:
        return json.loads(output.getvalue()), exc
    return json.loads(output.getvalue()), None


def test_open_runs_on_a_cluster_are_replayed(waiting: Any) -> None:
    report, error = replayed()

    assert error is None
    assert (report["checked"], report["clean"], report["on_cluster"], report["left_out"]) == (2, 2, 1, {})
    found = compare_with_runs(None, sample=10, report=lambda done, total: None).diagnoses
    assert [(finding.code, finding.severity) for finding in found] == [("fits", "note")]


def test_code_that_does_something_else_is_named_with_its_line(waiting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: Any, args: Any) -> Any:
        await count_up(7)  # instead of the child
        return Ok(await api.wait_for_signal("go"))

    monkeypatch.setattr(MirroredForReplays, "run", run)
    report, error = replayed(backend="temporal")

    assert error is not None
    assert error.returncode == 1
    assert "1 of 1 history does not match the code" in str(error)
    [misfit] = report["findings"]
    assert (misfit["id"], misfit["error"]) == (waiting.id, "nondeterminism")
    assert (misfit["file"], misfit["line"]) == (__file__, run.__code__.co_firstlineno + 1)


def test_an_input_that_differs_is_allowed(waiting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: Any, args: Any) -> Any:
        await api.child(ChildOfReplayed, 2)
        await api.signal_external(args["heard"], "hello", 1)
        return Ok(await api.wait_for_signal("go"))

    monkeypatch.setattr(MirroredForReplays, "run", run)
    report, error = replayed(backend="temporal")

    assert error is None
    assert report["clean"] == 1


def test_runs_of_a_cluster_that_does_not_answer_are_no_success(
    waiting: Any, cluster: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {**cluster, "ADDRESS": "127.0.0.1:9"}}
    report, error = replayed()

    assert error is not None
    assert error.returncode == 1
    assert "1 open run on the Temporal cluster could not be replayed" in str(error)
    assert report["checked"] == 1
    assert [*report["left_out"].values()] == [1]
    [reason] = report["left_out"]
    assert "127.0.0.1:9" in reason
    found = compare_with_runs(None, sample=10, report=lambda done, total: None).diagnoses
    assert [finding.code for finding in found] == ["fits", "deploy_cluster"]

    report, error = replayed(backend="tables")
    assert (error, report["checked"], report["on_cluster"]) == (None, 1, 0)


def test_closed_runs_on_a_cluster_are_left_to_it(waiting: Any) -> None:
    waiting.signal("go")
    waiting.result(timeout=30)

    assert replayed(backend="temporal")[0]["checked"] == 0
