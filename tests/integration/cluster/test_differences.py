"""Rows and server that differ after lost answers, other clients and switches: each difference is noticed and undone."""

from __future__ import annotations

import uuid
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice import v1 as service

from temporalex_django import Ok, Workflow, activity, api, errors
from temporalex_django.backends.cluster import mirrored_run, reconcile
from temporalex_django.backends.cluster.client import ClusterClient, cluster_client
from temporalex_django.models import HumanTask, Instance, Outbox
from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn
from tests.integration.cluster.test_mirror import compare_soon, terminate_there
from tests.integration.cluster.test_worker import looping
from tests.support.commands import shell
from tests.support.people import stored
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-differs-{uuid.uuid4().hex[:8]}"
charged: list[int] = []


@activity
def charge_here(number: int) -> int:
    charged.append(number)
    return number


class DifferingCharge(Workflow):
    task_queue = QUEUE
    signals = ("go",)

    async def run(self, args: Any) -> Any:
        await charge_here(args)
        await api.wait_for_signal("go")
        return Ok(await charge_here(args + 1))


@pytest.fixture(autouse=True)
def nothing_charged() -> None:
    charged.clear()


def start(args: Any = 1) -> Any:
    return DifferingCharge.start(args, id=f"differs-{uuid.uuid4().hex[:8]}")


def waiting() -> Any:
    handle = start()
    wait_for(lambda: handle.describe().waiting_for == ["signal go"])
    return handle


def execution_of(handle: Any) -> WorkflowExecution:
    run = Instance.objects.get(pk=handle.run_id)
    return WorkflowExecution(workflow_id=run.cluster_id, run_id=str(run.cluster_run_id))


@pytest.mark.parametrize("operation", ["pause", "unpause"])
def test_a_pause_whose_answer_was_lost_is_done_when_it_is_repeated(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    with looping(queue=QUEUE):
        handle = waiting()
        if operation == "unpause":
            handle.pause()
        call = ClusterClient.call

        def lose(self: ClusterClient, make: Any, **options: Any) -> Any:
            answer = call(self, make, **options)
            if "PauseWorkflow" in type(answer).__name__ or "UnpauseWorkflow" in type(answer).__name__:
                raise self.unavailable(1.0)
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(ClusterClient, "call", lose)
            with pytest.raises(errors.UpdateTimeout):
                getattr(handle, operation)()
        getattr(handle, operation)()
        assert (handle.describe().paused is None) == (operation == "unpause")
        if operation == "pause":
            handle.unpause()
        handle.signal("go")
        assert handle.result(timeout=60) == 2


@pytest.mark.parametrize("repair", ["sync", "sync of one", "the sample"])
def test_the_row_follows_a_pause_by_another_client(cluster: Any, repair: str) -> None:
    def repaired() -> None:
        if repair == "the sample":
            compare_soon()
            reconcile.run_round("default")
        else:
            shell("sync", *([handle.id] if repair == "sync of one" else []))

    with looping(queue=QUEUE):
        handle = waiting()
        client, execution = cluster_client(), execution_of(handle)
        names = {"namespace": "default", "workflow_id": execution.workflow_id, "run_id": execution.run_id}
        pause = service.PauseWorkflowExecutionRequest(**names, identity="somebody", request_id=str(uuid.uuid4()))
        client.call(lambda sdk: sdk.workflow_service.pause_workflow_execution(pause))
        wait_for(lambda: repaired() or handle.describe().paused)
        unpause = service.UnpauseWorkflowExecutionRequest(**names, identity="somebody", request_id=str(uuid.uuid4()))
        client.call(lambda sdk: sdk.workflow_service.unpause_workflow_execution(unpause))
        wait_for(lambda: repaired() or not handle.describe().paused)
        handle.signal("go")
        assert handle.result(timeout=60) == 2


def test_a_start_that_was_terminated_before_it_was_sent_never_runs(cluster: Any) -> None:
    later = DifferingCharge.start(7, id=f"differs-{uuid.uuid4().hex[:8]}", start_delay=3600)
    later.terminate(reason="not wanted")
    with transaction.atomic():
        handle = start(8)
        handle.signal("go")
        handle.terminate(reason="not wanted")
    assert not Outbox.objects.exists()
    assert {later.describe().status, handle.describe().status} == {"terminated"}


class DifferingWait(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors of workflow tasks that have failed."""
    errors_seen: list[Exception] = []
    report = mirrored_run.MirroredRun.report_failure

    def note(self: Any, error: Exception) -> None:
        errors_seen.append(error)
        report(self, error)

    monkeypatch.setattr(mirrored_run.MirroredRun, "report_failure", note)
    return errors_seen


def is_off(loop: Any, name: str) -> bool:
    try:
        loop.admission.resolve(UUID(int=0), name, 1)
    except errors.WorkflowSwitchedOff:
        return True
    return False


def test_a_run_in_memory_stops_where_it_is_when_its_class_is_switched_off(
    cluster: Any, failures: list[Exception]
) -> None:
    with looping(queue=QUEUE) as loop:
        handle = waiting()
        SwitchOff("workflow", "DifferingCharge", reason="the bank is down").execute()
        wait_for(lambda: is_off(loop, "DifferingCharge"))
        handle.signal("go")
        wait_for(lambda: failures)
        assert {type(error) for error in failures} == {errors.WorkflowSwitchedOff}
        assert (charged, handle.describe().blocked) == ([1], None)
        SwitchOn("workflow", "DifferingCharge").execute()
        assert handle.result(timeout=60) == 2


def test_a_run_that_cannot_begin_because_its_class_is_off_is_not_blocked(
    cluster: Any, failures: list[Exception]
) -> None:
    with looping(queue=QUEUE):
        handle = DifferingWait.start(None, id=f"differs-{uuid.uuid4().hex[:8]}")
        wait_for(lambda: handle.describe().waiting_for)
    SwitchOff("workflow", "DifferingWait", reason="the bank is down").execute()
    with looping(queue=QUEUE):
        handle.signal("go", 1)
        wait_for(lambda: len(failures) > 2)  # the later ones come to a run that has not begun
        assert {type(error) for error in failures} == {errors.WorkflowSwitchedOff}
        assert handle.describe().blocked is None
        SwitchOn("workflow", "DifferingWait").execute()
        assert handle.result(timeout=60) == 1


def test_the_result_of_an_open_run_that_the_server_has_deleted_ends(cluster: Any) -> None:
    with looping(queue=QUEUE):
        handle = waiting()
        delete = service.DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution_of(handle))
        cluster_client().call(lambda sdk: sdk.workflow_service.delete_workflow_execution(delete))
        with pytest.raises(errors.WorkflowTerminated, match="does not know the run any more"):
            handle.result(timeout=30)
    assert handle.describe().status == "terminated"


class DifferingApproval(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok((await api.approval("Go on?", users=["ann"])).outcome)


def test_a_decision_that_comes_too_late_for_the_server_leaves_nothing_behind(cluster: Any) -> None:
    ann = stored("ann")
    with looping(queue=QUEUE):
        handle = DifferingApproval.start(None, id=f"differs-{uuid.uuid4().hex[:8]}")
        wait_for(lambda: HumanTask.objects.open().exists())
        terminate_there(handle)
        with pytest.raises(errors.HumanTaskClosed, match="no longer open: the run ended"):
            handle.decide("approved", by=ann)
    assert not Outbox.objects.exists()
    assert HumanTask.objects.get().deciding is None


def test_a_run_whose_start_was_never_sent_is_deleted_with_nothing_left_to_send(cluster: Any) -> None:
    handle = DifferingCharge.start(7, id=f"differs-{uuid.uuid4().hex[:8]}", start_delay=3600)
    handle.terminate()
    handle.delete()
    assert not Outbox.objects.exists()
    assert not Instance.objects.exists()
