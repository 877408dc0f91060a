"""A cluster that has deleted closed runs sooner than this project: rows and results stay, and each refusal says why."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from rest_framework.test import APIClient
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice import v1 as service
from temporalio.service import RPCError

from temporalex_django import Ok, Workflow, api, errors, query
from temporalex_django.backends.cluster import reconcile
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.models import Instance
from tests.integration.cluster.test_mirror import compare_soon
from tests.support.commands import shell
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-forgotten-{uuid.uuid4().hex[:8]}"


class ForgottenTotal(Workflow):
    task_queue = QUEUE

    @query("total")
    @staticmethod
    def total(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Any:
        api.publish_state(args)
        return Ok(args + 1)


@pytest.fixture
def forgotten(cluster: Any, start_worker: Any) -> Any:
    """The handle of a completed run that the server no longer has, as after the retention of its namespace."""
    with start_worker():
        handle = ForgottenTotal.start(4, id=f"forgotten-{uuid.uuid4().hex[:8]}")
        assert handle.result(timeout=60) == 5
        wait_for(lambda: handle.describe().status == "completed")
        run = Instance.objects.get(pk=handle.run_id)
        execution = WorkflowExecution(workflow_id=run.cluster_id, run_id=str(run.cluster_run_id))
        delete = service.DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
        cluster_client().call(lambda sdk: sdk.workflow_service.delete_workflow_execution(delete))

        def is_gone() -> bool:
            describe = service.DescribeWorkflowExecutionRequest(namespace="default", execution=execution)
            try:
                cluster_client().call(lambda sdk: sdk.workflow_service.describe_workflow_execution(describe))
            except RPCError:
                return True
            return False

        wait_for(is_gone)
        yield handle


def test_the_row_and_the_result_of_a_forgotten_run_stay(forgotten: Any) -> None:
    before = Instance.objects.values().get(pk=forgotten.run_id)
    compare_soon()
    reconcile.run_round("default")
    everything, alone = shell("sync"), shell("sync", forgotten.id)
    assert everything.out == "compared 0 runs on the cluster: wrote the rows of 0, and closed those of 0\n"
    assert "The cluster no longer has this run. Its rows stay as they are.\n" in alone.out
    assert Instance.objects.values().get(pk=forgotten.run_id) == before
    assert forgotten.result(timeout=5) == 5
    assert forgotten.query("total") == 4


def test_each_read_of_a_forgotten_run_says_why_there_is_nothing(forgotten: Any, admin_client: Any) -> None:
    for call in (lambda: forgotten.reset(to=0), forgotten.history):
        with pytest.raises(errors.HistoryGone, match="the Temporal cluster no longer has the run"):
            call()
    with pytest.raises(errors.WorkflowClosed):
        forgotten.signal("late")
    page = admin_client.get(f"/admin/temporalex_django/instance/console/runs/{forgotten.run_id}/")
    assert "The Temporal cluster has deleted this run, and its history with it." in page.content.decode()
    api_client = APIClient()
    api_client.force_authenticate(page.wsgi_request.user)
    address = f"/api/instances/{forgotten.run_id}/"
    described = api_client.get(address)
    assert (described.status_code, described.json()["status"]) == (200, "completed")
    history = api_client.get(f"{address}events/")
    assert (history.status_code, history.json()["code"]) == (410, "history_gone")
    assert api_client.get(f"{address}activities/").status_code == 200


def test_an_export_skips_a_forgotten_run_and_names_it(forgotten: Any, tmp_path: Any) -> None:
    other = ForgottenTotal.start(6, id=f"forgotten-{uuid.uuid4().hex[:8]}")
    other.result(timeout=60)
    ran = shell("export", "--workflow", "ForgottenTotal", "--output", str(tmp_path))
    assert [other.run_id in path.name for path in tmp_path.iterdir()] == [True]
    assert f"skipped: history of ForgottenTotal {forgotten.id}: the Temporal cluster no longer has the run" in ran.err
    assert "1 of 2 histories could not be read" in ran.err
    assert ran.status != 0
