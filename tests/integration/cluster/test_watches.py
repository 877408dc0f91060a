"""Callers that wait for the end of a run: they ask the cluster beside the rows, about that run and no other."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice import v1 as service

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.backends.cluster import reads
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.models import Chain, Instance
from tests.integration.cluster.conftest import WorkerMaker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-watches-{uuid.uuid4().hex[:8]}"


class MirroredWatched(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


@pytest.fixture(autouse=True)
def _no_watches() -> None:
    reads._watches.clear()


def watched() -> Any:
    """A run whose end is watched, because a caller has waited for it."""
    handle = MirroredWatched.start(None, id=f"watched-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: handle.describe().waiting_for)
    with pytest.raises(errors.ResultTimeout):
        handle.result(timeout=0.05)
    assert len(reads._watches) == 1
    return handle


def test_a_watch_goes_with_the_wait(worker: None) -> None:
    handle = watched()
    handle.signal("go", 5)
    assert handle.result(timeout=20) == 5
    assert reads._watches == {}


def test_the_watch_of_a_caller_who_has_gone_is_dropped(worker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = watched()
    end = reads._watches[gone.chain_id].end
    monkeypatch.setattr(reads, "_FORGOTTEN_SECONDS", 0.0)
    other = MirroredWatched.start(None, id=f"watched-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: other.describe().waiting_for)
    with pytest.raises(errors.ResultTimeout):
        other.result(timeout=0.05)
    assert list(reads._watches) == [other.chain_id]
    assert end.cancelled()


def test_a_reset_on_the_server_does_not_close_the_chain(start_worker: WorkerMaker) -> None:
    """The server terminates the run that it resets, and no worker has mirrored the new one yet."""
    with start_worker():
        handle = watched()
    run = Instance.objects.get()
    cluster_client().call(
        lambda sdk: sdk.workflow_service.reset_workflow_execution(
            service.ResetWorkflowExecutionRequest(
                namespace="default",
                workflow_execution=WorkflowExecution(workflow_id=run.cluster_id, run_id=str(run.cluster_run_id)),
                workflow_task_finish_event_id=4,
                reason="by the server",
                request_id=str(uuid.uuid4()),
            )
        )
    )
    wait_for(lambda: reads._watches[handle.chain_id].end.done())
    with pytest.raises(errors.ResultTimeout):
        handle.result(timeout=0.5)
    assert not Chain.objects.get().closed
    with start_worker():
        handle.signal("go", 7)
        assert handle.result(timeout=30) == 7
