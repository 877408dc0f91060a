"""Operator actions on runs that live on a cluster: each is done by the server, or refused with advice."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import DatabaseError, transaction
from temporalio.api.workflowservice import v1 as service

from temporalex_django import NoReply, Ok, RetryPolicy, Stop, Workflow, activity, api, errors, query
from temporalex_django.backends.cluster.client import ClusterClient, cluster_client
from temporalex_django.models import BulkItem, Chain, HumanTask, Instance, KeptAnswer, Message, OperatorAction, Outbox
from temporalex_django.operations.base import CODE
from temporalex_django.operations.bulk import StartBulk, run_jobs
from temporalex_django.operations.idempotency import IdempotentRequest
from temporalex_django.operations.runs.operator_action import OperatorRunAction
from temporalex_django.workers.loop import run_until_idle
from tests.support.people import stored
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-operators-{uuid.uuid4().hex[:8]}"
failing = threading.Event()


@activity(retry=RetryPolicy(initial_interval=3600.0))
def charge_on_cluster(amount: int) -> dict[str, int]:
    if failing.is_set():
        raise ConnectionError("the gateway does not answer")
    return {"charged": amount}


class MirroredOrder(Workflow):
    task_queue = QUEUE
    signals = ("close",)

    async def run(self, args: Any) -> Any:
        await api.sleep(86_400)
        charged = await charge_on_cluster(args)
        await api.phase(None, signal={"close": lambda _, state: Stop(state)})
        return Ok(charged)


class MirroredReview(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        decision = await api.approval("Publish on the cluster?", users=["ann"])
        return Ok([decision.outcome, decision.comment])


@pytest.fixture(autouse=True)
def gateway() -> None:
    failing.clear()


def start(cls: Any, args: Any = None, **options: Any) -> Any:
    handle = cls.start(args, **{"id": f"{cls.name.lower()}-{uuid.uuid4().hex[:6]}", **options})
    wait_for(lambda: handle.describe().waiting_for)
    return handle


def to_failing_charge() -> Any:
    failing.set()
    handle = start(MirroredOrder, 5)
    handle.skip_timer(1)
    wait_for(lambda: any("charge_on_cluster" in wait for wait in handle.describe().waiting_for))
    return handle


def test_a_timer_is_skipped_and_a_failing_activity_tried_again(worker: None) -> None:
    handle = to_failing_charge()
    with pytest.raises(errors.ActionNotPossible, match="no timer with that number"):
        handle.skip_timer(1)
    failing.clear()

    def retry() -> bool:
        try:
            handle.retry_activity(2)
        except errors.ActionNotPossible:  # its first attempt has not failed yet
            return False
        return True

    wait_for(retry)
    handle.signal("close")
    assert handle.result(timeout=20) == {"charged": 5}
    done = OperatorAction.objects.order_by("id").values_list("action", flat=True)
    assert [action for action in done if action in ("skip_timer", "retry_activity")] == []  # code did it


def test_an_activity_is_completed_and_failed_by_hand(worker: None) -> None:
    completed, failed = to_failing_charge(), to_failing_charge()
    with pytest.raises(errors.PayloadError):
        completed.complete_activity(2, "no dict")
    completed.complete_activity(2, {"charged": 7})
    completed.signal("close")
    assert completed.result(timeout=20) == {"charged": 7}
    failed.fail_activity(2, "declined by the bank", type="Declined")
    with pytest.raises(errors.WorkflowFailed, match="declined by the bank"):
        failed.result(timeout=20)
    with pytest.raises(errors.WorkflowClosed):
        failed.fail_activity(2, "again")


def test_a_run_is_reset_open_or_closed(worker: None) -> None:
    handle = to_failing_charge()
    failing.clear()
    new_run = handle.reset(to=0)
    assert Instance.objects.get(pk=new_run).status in ("pending", "running", "waiting")
    assert Chain.objects.get().run_id == uuid.UUID(new_run)
    wait_for(lambda: any("timer" in wait for wait in handle.describe().waiting_for))
    handle.skip_timer(1)
    handle.signal("close")
    assert handle.result(timeout=20) == {"charged": 5}
    assert [run.status for run in Instance.objects.order_by("id")] == ["terminated", "completed"]
    with pytest.raises(errors.ActionNotPossible, match="keep their inputs"):
        handle.reset(edited={"2": [1]})
    handle.reset(to=0)
    with pytest.raises(errors.AlreadyRunning):  # it is open again
        MirroredOrder.start(5, id=handle.id)
    wait_for(lambda: handle.describe().waiting_for)  # a run that never began cannot be reset
    handle.terminate()
    other = start(MirroredOrder, 5, id=handle.id)
    with pytest.raises(errors.ActionNotPossible, match="another open run now has its id"):
        handle.reset(to=0)
    assert other.describe().status == "waiting"


def test_a_person_decides_in_a_request_and_in_a_transaction(worker: None) -> None:
    ann, eve = stored("ann"), stored("eve")
    first, second = start(MirroredReview), start(MirroredReview)
    wait_for(lambda: HumanTask.objects.open().count() == 2)
    with pytest.raises(errors.ActionNotPermitted):
        first.decide("approved", by=eve)
    first.decide("approved", comment="as I said", by=ann)
    assert first.result(timeout=20) == ["approved", "as I said"]
    with transaction.atomic():
        second.decide("rejected", by=ann)
        task = HumanTask.objects.open().get()
        assert task.deciding is not None
        assert task.deciding["outcome"] == "rejected"
        with pytest.raises(errors.HumanTaskClosed, match="is being decided: ann chose rejected"):
            second.decide("approved", by=ann)
    run_until_idle()
    assert second.result(timeout=20)[0] == "rejected"
    assert not HumanTask.objects.open().exists()
    assert not Outbox.objects.exists()


class MirroredBroken(Workflow):
    """Its handler fails until it is corrected."""

    task_queue = QUEUE
    signals = ("note", "close")

    @query("any")
    @staticmethod
    def any(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Any:
        return Ok(
            await api.phase(
                [],
                signal={"note": note_unless_failing, "close": lambda _, notes: Stop(notes)},
            )
        )


def note_unless_failing(note: Any, notes: list[Any]) -> Any:
    if failing.is_set():
        raise ValueError("not yet")
    return NoReply([*notes, note])


def failed_ids(handle: Any) -> list[str]:
    return [message.id for message in handle.describe().failed_messages]


def test_failed_messages_are_redelivered_sent_anew_and_discarded(worker: None) -> None:
    failing.set()
    handle = start(MirroredBroken)
    for note_id in ("n-1", "n-2", "n-3"):
        handle.signal("note", note_id, id=note_id)
    handle.signal("note", "anonymous")
    wait_for(lambda: len(failed_ids(handle)) == 4)
    assert failed_ids(handle)[:3] == ["n-1", "n-2", "n-3"]
    handle.redeliver("n-1")
    wait_for(lambda: len(failed_ids(handle)) == 4)  # it fails again
    failing.clear()
    handle.discard("n-2")
    handle.signal("note", "n-2", id="n-2")  # its id is taken: nothing is sent
    handle.signal("note", "corrected", id="n-3")
    handle.redeliver()
    wait_for(lambda: not failed_ids(handle))
    handle.signal("close")
    assert sorted(handle.result(timeout=20)) == ["anonymous", "corrected", "n-1"]
    with pytest.raises(errors.WorkflowClosed, match="no failed message"):
        handle.discard()


def test_a_closed_run_is_deleted_there_too(worker: None) -> None:
    handle = start(MirroredOrder, 1)
    with pytest.raises(errors.ActionNotPossible, match="the run is open"):
        handle.delete()
    handle.terminate()
    handle.delete()
    run_until_idle()
    assert not Instance.objects.exists()
    assert not Outbox.objects.exists()


@pytest.mark.parametrize(
    ("operation", "inputs", "advice"),
    [
        ("fork", {}, "start a new run"),
        ("try_again", {}, "correct the code"),
    ],
)
def test_an_operation_that_a_cluster_lacks_is_refused_with_advice(
    worker: None, operation: str, inputs: Any, advice: str
) -> None:
    handle = start(MirroredOrder, 1)
    with pytest.raises(errors.ActionNotPossible, match=advice):
        getattr(handle, operation)(**inputs)


def test_what_acts_at_once_is_refused_in_a_transaction(worker: None) -> None:
    handle = start(MirroredOrder, 1)
    with transaction.atomic():
        for operation in (handle.pause, lambda: handle.skip_timer(1), handle.reset):
            with pytest.raises(errors.ActionNotPossible, match="on_commit"):
                operation()


def test_a_run_is_paused_where_the_server_can(worker: None) -> None:
    handle = start(MirroredOrder, 1)
    handle.pause(reason="stop")
    assert Instance.objects.get().paused is not None
    with pytest.raises(errors.RunPaused):
        handle.update("anything")
    for operation in (lambda: handle.skip_timer(1), lambda: handle.reset(to=0)):
        with pytest.raises(errors.ActionNotPossible, match="unpause it first"):
            operation()
    handle.unpause()
    assert Instance.objects.get().paused is None


def pause_there(name: str) -> None:
    """Pause or unpause the run as Temporal's own interface does."""
    row, client = Instance.objects.get(), cluster_client()
    requests = {
        "pause": service.PauseWorkflowExecutionRequest,
        "unpause": service.UnpauseWorkflowExecutionRequest,
    }
    request = requests[name](
        namespace=client.namespace,
        workflow_id=row.cluster_id,
        run_id=str(row.cluster_run_id),
        request_id=uuid.uuid4().hex,
    )
    client.call(lambda sdk: getattr(sdk.workflow_service, f"{name}_workflow_execution")(request))


def test_a_run_that_was_paused_there_says_so_and_goes_on(worker: None) -> None:
    handle = start(MirroredBroken)
    pause_there("pause")
    handle.unpause()  # the row knows of no pause
    with pytest.raises(errors.ActionNotPossible, match="not paused"):
        handle.unpause()
    pause_there("pause")
    with pytest.raises(errors.RunPaused):
        handle.update("anything", id="u-1")
    assert Instance.objects.get().paused is not None
    assert not Message.objects.filter(request_id="u-1").exists()  # its id is free
    handle.unpause()
    assert Instance.objects.get().paused is None
    pause_there("pause")
    handle.query("any")
    assert Instance.objects.get().paused is not None
    pause_there("unpause")
    handle.unpause()
    assert Instance.objects.get().paused is None
    handle.signal("close")
    assert handle.result(timeout=20) == []


def test_the_audit_log_names_the_person(worker: None) -> None:
    boss = get_user_model().objects.create_superuser("boss")
    handle = start(MirroredOrder, 1)
    handle.terminate(reason="enough", by=boss)
    row = OperatorAction.objects.get(action="terminate")
    assert (row.actor_name, row.reason, row.workflow_id) == ("boss", "enough", handle.id)


@pytest.fixture
def lost_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The answers to resets that are lost: one for each item."""
    lost: list[int] = []
    call = ClusterClient.call

    def lose(self: ClusterClient, make: Any, **options: Any) -> Any:
        answer = call(self, make, **options)
        if isinstance(answer, uuid.UUID) and lost:
            lost.pop()
            raise self.unavailable(1.0)
        return answer

    monkeypatch.setattr(ClusterClient, "call", lose)
    return lost


def test_an_item_of_a_bulk_job_resets_its_run_once_though_the_answer_was_lost(
    worker: None, lost_answers: list[int]
) -> None:
    handle = start(MirroredOrder, 1)
    StartBulk("reset", runs=[handle.run_id], to=0).execute()
    lost_answers.append(1)
    wait_for(lambda: run_jobs("default") and not BulkItem.objects.filter(outcome="").exists())
    item = BulkItem.objects.get()
    assert (item.outcome, item.tries) == ("done", 1)
    assert lost_answers == []
    assert Instance.objects.count() == 2


def test_a_reset_whose_answer_was_lost_keeps_its_key_and_the_id_of_its_run(
    worker: None, lost_answers: list[int]
) -> None:
    handle = start(MirroredOrder, 1)
    handle.terminate()
    request = IdempotentRequest(by=CODE, key="k-1", request=b"reset")
    lost_answers.append(1)
    with pytest.raises(errors.UpdateTimeout) as unknown, request.run_once_at_once():
        handle.reset(to=0)
    assert unknown.value.code == "unknown"
    with pytest.raises(errors.AlreadyRunning):
        MirroredOrder.start(1, id=handle.id)
    with pytest.raises(errors.OutcomeUnknown):
        request.check_duplicate()
    with pytest.raises(errors.OutcomeUnknown), request.run_once_at_once():
        pytest.fail("the request is executed again")
    refused = IdempotentRequest(by=CODE, key="k-2", request=b"reset")
    with pytest.raises(errors.ActionNotPossible), refused.run_once_at_once():
        handle.reset(to=99)
    assert KeptAnswer.objects.count() == 1


def test_what_the_database_has_not_stored_is_not_refused(worker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = to_failing_charge()

    def fail(*_: Any, **__: Any) -> None:
        raise DatabaseError("DETAIL: a secret")

    monkeypatch.setattr(OperatorRunAction, "record", fail)
    with pytest.raises(errors.UpdateTimeout, match="has done it") as unknown:
        handle.fail_activity(2, "declined")
    assert unknown.value.code == "unknown"
    assert "secret" not in str(unknown.value)
