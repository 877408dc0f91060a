"""The comparison of the rows with a cluster, whose answers the tests give: pages, errors, retention and the sample."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django.backends.cluster import mirror, reconcile
from temporalex_django.backends.cluster.mirrored_run import ObservedRun
from temporalex_django.backends.cluster.rebuild import ReplayedRun
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.models import Instance, Lease
from tests.support.observations import Observations, ObservedSteps

pytestmark = pytest.mark.django_db(transaction=True)

COMPLETED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED


class AnsweringCluster:
    """A cluster that answers the questions of the comparison, and notes them. Each entry of a list is a page."""

    namespace = "default"

    def __init__(self) -> None:
        self.pages: list[list[WorkflowExecutionInfo]] = [[]]
        self.queries: list[tuple[str, int]] = []
        self.runs: dict[str, ObservedRun] = {}
        self.broken: set[str] = set()
        self.asked: list[str] = []
        self.is_away = False
        self.workflow_service = SimpleNamespace(
            list_workflow_executions=self.list_page, describe_workflow_execution=self.describe
        )

    def add(self, run: Observations, *, closed_at: datetime) -> None:
        """Add a run that has closed to the last page."""
        info = WorkflowExecutionInfo(status=COMPLETED, task_queue="t:default")
        info.execution.workflow_id, info.execution.run_id = f"g:{run.info.id}", run.run_id
        info.type.name = run.info.workflow
        info.close_time.FromDatetime(closed_at)
        self.pages[-1].append(info)
        self.runs[run.run_id] = run.see(2, at=1, closing="WorkflowCompleted", result=1)

    def call(self, make: Callable[[Any], Any]) -> Any:
        return asyncio.run(make(self))

    async def list_page(self, request: service.ListWorkflowExecutionsRequest, **_: Any) -> Any:
        if self.is_away:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        number = int(request.next_page_token or b"0")
        self.queries.append((request.query, number))
        token = str(number + 1).encode() if number + 1 < len(self.pages) else b""
        return service.ListWorkflowExecutionsResponse(executions=self.pages[number], next_page_token=token)

    async def describe(self, request: service.DescribeWorkflowExecutionRequest, **_: Any) -> Any:
        self.asked.append(request.execution.run_id)
        if request.execution.run_id in self.broken:
            raise RPCError("too large", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        answer = service.DescribeWorkflowExecutionResponse()
        answer.workflow_execution_info.status = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        return answer

    async def replay(self, sdk: Any, executions: Sequence[WorkflowExecution]) -> dict[str, ReplayedRun]:
        del sdk
        if any(execution.run_id in self.broken for execution in executions):
            raise RPCError("the history is too large", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        return {execution.run_id: ReplayedRun(state=self.runs[execution.run_id]) for execution in executions}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, settings: Any) -> AnsweringCluster:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "temporal", "CLUSTER": {"PREFIX": "t:"}}
    made = AnsweringCluster()
    monkeypatch.setattr(reconcile, "_call", made.call)
    monkeypatch.setattr(reconcile, "replay", made.replay)
    return made


@pytest.fixture
def storage() -> DjangoStorage:
    return DjangoStorage()


def look(storage: DjangoStorage) -> dict[str, Any]:
    """Compare now, and return the notes for the next comparison."""
    Lease.objects.update(until=storage.now())
    reconcile.run_round("default")
    return dict(Lease.objects.get(name=reconcile.LEASE).notes)


def ids() -> set[str]:
    return set(Instance.objects.values_list("workflow_id", flat=True))


def test_a_run_that_cannot_be_rebuilt_keeps_no_other_one_waiting(
    there: AnsweringCluster, storage: DjangoStorage
) -> None:
    closed_at = storage.now() - timedelta(minutes=5)
    runs = [Observations(name) for name in ("one", "bad", "two")]
    for run in runs:
        there.add(run, closed_at=closed_at)
    there.broken.add(runs[1].run_id)
    notes = look(storage)
    assert ids() == {"one", "two"}
    assert datetime.fromisoformat(notes["mark"]) > closed_at


def test_a_run_that_cannot_be_written_keeps_no_other_one_waiting(
    there: AnsweringCluster, storage: DjangoStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = mirror.write

    def refuse(run: ObservedRun, **options: Any) -> Any:
        if run.info.id == "bad":
            raise ValueError("a secret payload")
        return write(run, **options)

    monkeypatch.setattr(mirror, "write", refuse)
    for name in ("one", "bad", "two"):
        there.add(Observations(name), closed_at=storage.now())
    look(storage)
    assert ids() == {"one", "two"}
    assert "g:bad were not compared" in caplog.text


def test_a_cluster_that_is_away_is_asked_again_for_the_same_runs(
    there: AnsweringCluster, storage: DjangoStorage
) -> None:
    before = look(storage)["mark"]
    run = Observations("one")
    there.add(run, closed_at=storage.now())
    there.is_away = True
    assert look(storage)["mark"] == before
    there.is_away = False
    look(storage)
    assert ids() == {"one"}


def test_a_long_list_is_continued_in_the_next_round(
    there: AnsweringCluster, storage: DjangoStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_ROUND_SECONDS", -1.0)
    there.add(Observations("newest"), closed_at=storage.now() + timedelta(seconds=10))
    there.pages.append([])
    there.add(Observations("older"), closed_at=storage.now() - timedelta(minutes=5))
    notes = look(storage)
    assert (ids(), "mark" in notes) == ({"newest"}, False)
    notes = look(storage)
    assert ids() == {"newest", "older"}
    assert datetime.fromisoformat(notes["mark"]) > storage.now()
    (first, _), (second, number) = there.queries
    assert (first, number, "scan" in notes) == (second, 1, False)
    assert "TaskQueue STARTS_WITH 't:'" in first


def test_the_comparison_does_not_bring_back_what_retention_has_deleted(
    there: AnsweringCluster, storage: DjangoStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObservedSteps, "retention", timedelta(minutes=10))
    there.add(Observations("old"), closed_at=storage.now() - timedelta(minutes=20))
    there.add(Observations("kept"), closed_at=storage.now() - timedelta(minutes=5))
    look(storage)
    assert ids() == {"kept"}


def test_the_mark_advances_when_nothing_closes(there: AnsweringCluster, storage: DjangoStorage) -> None:
    there.add(Observations("one"), closed_at=storage.now() - timedelta(minutes=30))
    notes = look(storage)
    mark = datetime.fromisoformat(notes["mark"]).astimezone(UTC)
    assert storage.now() - mark < 2 * timedelta(seconds=60)


def test_each_sample_follows_the_one_before(
    there: AnsweringCluster, storage: DjangoStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_SAMPLE", 2)
    monkeypatch.setattr(policy, "MIRROR_SAMPLE_SECONDS", 0.0)
    runs = [Observations(f"order-{number}") for number in range(5)]
    for run in runs:
        run.write(storage, 1, at=0)
    order = [str(row.cluster_run_id) for row in Instance.objects.order_by("id")]
    there.broken.add(order[1])
    for _ in range(4):
        look(storage)
    assert there.asked == [*order, *order[:2]]


def test_a_rebuilt_open_run_is_kept_whatever_its_class_keeps(
    there: AnsweringCluster, storage: DjangoStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObservedSteps, "retention", timedelta(seconds=0))
    run = Observations("open")
    there.add(run, closed_at=storage.now() - timedelta(days=1))
    there.pages[0][0].status = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
    there.runs[run.run_id] = replace(there.runs[run.run_id], closing=None)
    reconcile.Comparison(storage).repair(there.pages[0])
    assert ids() == {"open"}
