"""Runs on a real server: started, messaged and read by handles, inside and outside of transactions."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import ResetReapplyExcludeType
from temporalio.api.workflowservice import v1 as service

from temporalex_django import (
    ContinueAsNew,
    Err,
    NoReply,
    Ok,
    Reply,
    Stop,
    Workflow,
    activity,
    activity_context,
    api,
    errors,
    query,
    update,
)
from temporalex_django.authoring import authorization
from temporalex_django.backends.cluster import outgoing
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.host import host
from temporalex_django.conf import codec
from temporalex_django.db.outbox import DeliveryFailed, OutboxRow
from temporalex_django.models import Chain, Instance, Message, Outbox
from temporalex_django.workers.loop import run_until_idle
from tests.support.people import stored
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

START = "temporalex_django.start_instance"
QUEUE = f"cluster-runs-{uuid.uuid4().hex[:8]}"


@activity
def double_on_cluster(number: int) -> int:
    return number * 2


def add(amount: int, total: int) -> Any:
    if amount < 0:
        raise ValueError("nothing is taken out")
    api.publish_state({"total": total + amount})
    return Reply(total + amount, total + amount)


def validate(amount: int, total: int) -> Any:
    if amount == 0:
        return Err("zero")
    return Ok(None)


class MirroredTill(Workflow):
    task_queue = QUEUE
    signals = ("close", "note")

    @query("total")
    @staticmethod
    def total(state: Any) -> Any:
        return state["total"]

    async def run(self, args: Any) -> Any:
        start = await double_on_cluster(args or 0)
        api.publish_state({"total": start})
        return Ok(
            await api.phase(
                start,
                signal={"close": lambda _, total: Stop(total), "note": lambda note, total: NoReply(total + note)},
                update={"add": update(add, validator=validate)},
            )
        )


@pytest.fixture
def till(worker: None) -> Any:
    return open_till()


def open_till() -> Any:
    till = MirroredTill.start(2, id=f"till-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: "add" in till.describe().accepts["updates"])
    return till


def test_a_run_is_started_updated_queried_and_ends(till: Any) -> None:
    assert till.update("add", 3) == 7
    assert till.query("total") == 7
    till.signal("close")
    assert till.result(timeout=20) == 7
    run = Instance.objects.get(workflow_id=till.id)
    assert (run.status, run.backend, run.chain.closed, run.chain.open_key) == ("completed", "temporal", True, None)
    assert run.cluster_run_id is not None
    assert [event.kind for event in till.history()][-1] == "WorkflowCompleted"
    assert till.describe().status == "completed"
    assert not Outbox.objects.exists()
    assert Chain.objects.get().due_at is None


def test_an_update_is_taken_once_and_refused_as_on_the_tables(till: Any) -> None:
    assert [till.update("add", 3, id="once"), till.update("add", 4, id="once")] == [7, 7]
    with pytest.raises(errors.MessageIdTaken):
        till.update("another", 3, id="once")
    with pytest.raises(errors.UpdateRejected) as rejected:
        till.update("add", 0, id="twice")
    assert rejected.value.reason == "zero"
    with pytest.raises(errors.UpdateFailed, match="nothing is taken out"):
        till.update("add", -1)
    with pytest.raises(errors.NotAccepting):
        till.update("unknown")
    assert till.update("add", 1, id="twice") == 8  # what was rejected has left its id free


def test_a_signal_with_an_id_is_delivered_once(till: Any) -> None:
    till.signal("note", 10, id="n-1")
    till.signal("note", 10, id="n-1")
    with pytest.raises(errors.MessageIdTaken):
        till.signal("close", id="n-1")
    with pytest.raises(errors.UnknownSignal):
        till.signal("unknown")
    till.signal("close")
    assert till.result(timeout=20) == 14


def test_what_a_transaction_writes_is_sent_after_its_commit_or_never(cluster: Any, worker: None) -> None:
    with transaction.atomic():
        lost = MirroredTill.start(1, id=f"lost-{uuid.uuid4().hex[:6]}")
        lost.signal("close")
        transaction.set_rollback(True)
    with transaction.atomic():
        till = MirroredTill.start(1, id=f"kept-{uuid.uuid4().hex[:6]}")
        till.signal("note", 5)
        till.signal("close")
        assert Outbox.objects.count() == 3
        assert till.describe().status == "pending"
        with pytest.raises(errors.ActionNotPossible, match=r"signal.*on_commit"):
            till.update("add", 1)
    run_until_idle()
    assert till.result(timeout=20) == 7
    assert Instance.objects.count() == 1


def test_an_id_is_taken_by_an_open_run_and_free_again_after_it(till: Any) -> None:
    with pytest.raises(errors.AlreadyRunning):
        MirroredTill.start(2, id=till.id)
    assert MirroredTill.start(2, id=till.id, on_conflict="use_existing").run_id == till.run_id
    other = MirroredTill.start(2, id=till.id, on_conflict="terminate_existing")
    wait_for(lambda: run_until_idle() == 0 and other.describe().accepts["updates"])
    assert other.update("add", 1) == 5
    with pytest.raises(errors.WorkflowTerminated):
        till.result(timeout=20)


def test_cancel_and_terminate(worker: None) -> None:
    cancelled, terminated = open_till(), open_till()
    cancelled.cancel(reason="enough")
    terminated.terminate(reason="broken")
    with pytest.raises(errors.WorkflowCancelled):
        cancelled.result(timeout=20)
    with pytest.raises(errors.WorkflowTerminated, match="broken"):
        terminated.result(timeout=20)
    for handle in (cancelled, terminated):
        with pytest.raises(errors.WorkflowClosed):
            handle.signal("note", 1)
        with pytest.raises(errors.WorkflowClosed):
            handle.update("add", 1)
        with pytest.raises(errors.WorkflowClosed):
            handle.terminate()


def test_async_callers_hold_no_thread(till: Any) -> None:
    async def talk() -> Any:
        answers = await asyncio.gather(*(till.aupdate("add", 1) for _ in range(15)))
        await till.asignal("close")
        return answers, await till.aresult(timeout=20)

    answers, result = async_to_sync(talk)()
    assert sorted(answers) == list(range(5, 20))
    assert result == 19


def test_a_signal_with_a_start_finds_the_open_run(worker: None) -> None:
    run_id = f"both-{uuid.uuid4().hex[:6]}"
    first = MirroredTill.signal_with_start("note", 5, args=1, id=run_id)
    second = MirroredTill.signal_with_start("note", 6, args=1, id=run_id)
    assert (first.start_outcome, second.start_outcome) == ("started", "existing")
    second.signal("close")
    assert first.result(timeout=20) == 13


class MirroredRounds(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        note = await api.wait_for_signal("note")
        if args < 3:
            return ContinueAsNew(args + 1)
        return Ok([args, note])


def test_a_chain_continues_in_one_row_after_the_other(worker: None) -> None:
    handle = MirroredRounds.start(1, id=f"rounds-{uuid.uuid4().hex[:6]}")
    for number in (1, 2, 3):
        handle.signal("note", number)
    assert handle.result(timeout=20) == [3, 3]
    runs = Instance.objects.order_by("id")
    assert [run.status for run in runs] == ["continued_as_new", "continued_as_new", "completed"]
    assert [run.attempt for run in runs] == [1, 2, 3]
    assert len({run.cluster_run_id for run in runs}) == 3
    assert handle.run_ids == [str(run.pk) for run in runs]
    assert Chain.objects.get().due_at is None


def second_round() -> Any:
    """Return the handle of a chain whose second run waits."""
    handle = MirroredRounds.start(1, id=f"rounds-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: handle.describe().waiting_for)
    handle.signal("note", 1)
    wait_for(lambda: Instance.objects.filter(attempt=2, status="waiting").exists())
    return handle


def test_messages_reach_a_chain_whose_first_run_was_deleted(worker: None) -> None:
    handle = second_round()
    Instance.objects.filter(attempt=1).delete()
    handle.signal("note", 2)
    wait_for(lambda: Instance.objects.filter(attempt=3, status="waiting").exists())
    handle.signal("note", 3)
    assert handle.result(timeout=20) == [3, 3]


def test_an_earlier_run_of_a_chain_is_reset(worker: None) -> None:
    handle = second_round()
    earlier = MirroredRounds.handle(handle.run_ids[0])
    earlier.reset(to=0, messages="drop")
    wait_for(lambda: handle.describe().waiting_for)
    for number in (11, 12, 13):
        handle.signal("note", number)
    assert handle.result(timeout=20) == [3, 13]
    runs = Instance.objects.order_by("id")
    assert [run.status for run in runs] == [
        "continued_as_new",
        "terminated",
        "continued_as_new",
        "continued_as_new",
        "completed",
    ]
    assert [run.attempt for run in runs] == [1, 2, 1, 2, 3]


def test_the_row_of_a_reset_that_another_client_made_is_written(worker: None) -> None:
    handle = second_round()
    first = Instance.objects.get(attempt=1)
    client = cluster_client()
    request = service.ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=first.cluster_id, run_id=str(first.cluster_run_id)),
        reason="elsewhere",
        workflow_task_finish_event_id=4,
        request_id=str(uuid.uuid4()),
        reset_reapply_exclude_types=[ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL],
    )
    client.call(lambda sdk: sdk.workflow_service.reset_workflow_execution(request))
    wait_for(lambda: [run.attempt for run in Instance.objects.order_by("id")] == [1, 2, 1])
    wait_for(lambda: handle.describe().waiting_for)
    for number in (11, 12, 13):
        handle.signal("note", number)
    assert handle.result(timeout=20) == [3, 13]
    newest = Instance.objects.get(status="completed")
    assert (newest.attempt, Chain.objects.get().run_id) == (3, newest.pk)


class MirroredHeaders(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        own = api.headers()
        note = await api.wait_for_signal("note")
        return Ok([own, note])


def test_headers_travel_with_a_start_and_a_signal(worker: None) -> None:
    handle = MirroredHeaders.start(1, id=f"headers-{uuid.uuid4().hex[:6]}", headers={"tenant": "red"})
    handle.signal("note", 1, headers={"trace": "7"})
    assert handle.result(timeout=20) == [{"tenant": "red"}, 1]
    (signal,) = [event for event in handle.history() if event.kind == "SignalReceived"]
    assert signal.attributes["headers"] == {"trace": "7"}


def test_all_who_debounce_a_start_have_started_the_run(cluster: dict[str, Any]) -> None:
    """As on the tables: the last input and its headers count, and a four-eyes rule excludes every one of them."""
    ann, bob = stored("ann", START), stored("bob", START)
    for number, person in enumerate((ann, bob), start=1):
        handle = MirroredTill.start(number, id="till-d", debounce=600, by=person, headers={"order": str(number)})
    run = Instance.objects.get(pk=handle.run_id)
    snapshot = codec().decode(bytes(run.snapshot))
    assert (run.input, run.headers) == (2, {"order": "2"})
    assert snapshot["started_as"] == "bob"
    assert list(snapshot["excluded"]) == [str(authorization.sender_of(ann).key)]
    assert Outbox.objects.get().due_at == run.starts_at


def test_no_row_acts_on_a_later_run_of_its_id(worker: None, settings: Any) -> None:
    """Rows that were written for a run reach the cluster when another run has its id: none of them acts on that one."""
    run_id = f"stale-{uuid.uuid4().hex[:6]}"
    first = MirroredTill.start(1, id=run_id)
    wait_for(lambda: first.describe().accepts["updates"])
    chain = Chain.objects.get()
    with transaction.atomic():
        first.signal("note", 100)
        first.cancel("late")
    late = list(Outbox.objects.order_by("id"))
    Outbox.objects.all().delete()
    first.terminate("over")
    second = MirroredTill.start(2, id=run_id)
    wait_for(lambda: run_until_idle() == 0 and second.describe().accepts["updates"])
    Outbox.objects.bulk_create(late)
    with transaction.atomic():
        outgoing.insert(chain.pk, "terminate", {"reason": "late"}, storage=host().storage())
    wait_for(lambda: run_until_idle() == 0 and not Outbox.objects.waiting().exists())
    assert {row.kind: row.failed["code"] for row in Outbox.objects.all()} == {"temporal.cancel": "workflow_closed"}
    assert second.update("add", 1) == 5
    assert [event.kind for event in second.history() if event.kind == "SignalReceived"] == []


def test_a_query_to_a_closed_run_is_not_answered_by_a_later_run_of_its_id(till: Any) -> None:
    """The later run may be that of another person."""
    till.signal("close")
    assert till.result(timeout=20) == 4
    later = MirroredTill.start(50, id=till.id)
    wait_for(lambda: "add" in later.describe().accepts["updates"])
    assert (till.query("total"), later.query("total")) == (4, 100)


def test_a_repeat_that_finds_the_run_closed_leaves_the_outcome_of_the_signal(till: Any, cluster: Any) -> None:
    """The first try has arrived, and its answer was lost or came too late."""
    storage = host().storage()
    till.signal("note", 10, id="n-1")
    now, body = storage.now(), {"id": "n-1"}
    repeat = OutboxRow(
        id=uuid.uuid4(),
        chain_id=till.chain_id,
        destination="temporal",
        kind="temporal.signal",
        body=body,
        created_at=now,
        tries=2,
    )
    outgoing.KINDS["signal"].refuse(repeat, errors.WorkflowClosed("it is closed"), storage)
    assert Message.objects.get(request_id="n-1").outcome_status == "completed"


@activity
def seen_run_on_cluster() -> str:
    return activity_context().run_id


class IdsOnCluster(Workflow):
    """Tells the run ids that its code and its activities see, and those of a child; then it continues once."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        seen = [api.info().run_id, await seen_run_on_cluster()]
        if api.info().id.endswith("child"):
            return Ok(seen)
        if args is None:
            child = await api.child(IdsOnCluster, None, id=f"{api.info().id}-child")
            return ContinueAsNew({"first": seen, "child": child})
        await api.wait_for_signal("end")
        return Ok({**args, "second": seen})


def test_code_and_activities_see_the_run_ids_of_the_rows(worker: None) -> None:
    run = IdsOnCluster.start(None, id=f"ids-{uuid.uuid4().hex[:6]}")
    first = run.run_id
    wait_for(lambda: run.run_id != first and run.describe().status == "waiting")
    second = run.run_id
    assert run.run_ids == [first, second]
    run.signal("end")
    child = Instance.objects.get(workflow_id=f"{run.id}-child")
    assert run.result(timeout=20) == {
        "first": [first, first],
        "child": [str(child.pk), str(child.pk)],
        "second": [second, second],
    }
    assert [event.attributes["run_id"] for event in run.history() if event.kind == "WorkflowStarted"] == [second]


class MirroredUnbegun(Workflow):
    task_queue = QUEUE
    signals = ("note",)

    async def run(self, args: Any) -> Any:
        return Ok(await double_on_cluster(args))


def test_a_run_that_is_cancelled_in_the_transaction_of_its_start_is_never_sent(worker: None) -> None:
    for number in range(5):
        with transaction.atomic():
            handle = MirroredUnbegun.start(number, id=f"unbegun-{number}")
            handle.signal("note", number, id="n-1")
            handle.cancel("changed my mind")
        run_until_idle()
        with pytest.raises(errors.WorkflowCancelled):
            handle.result(timeout=20)
    rows = Instance.objects.order_by("id")
    assert [(row.status, row.cluster_run_id, row.closing_value["reason"]) for row in rows] == [
        ("cancelled", None, "changed my mind")
    ] * 5
    assert not Outbox.objects.exists()
    assert set(Message.objects.values_list("outcome_status", flat=True)) == {"undelivered"}
    assert not Chain.objects.filter(closed=False).exists()


def test_a_cancel_request_that_waits_behind_a_start_that_was_sent_is_sent_too(worker: None) -> None:
    """The answer to the first try of the start was lost, so the run is there."""
    settle, answers = outgoing.StartKind.settle, []

    def lose(*args: Any) -> None:
        if not answers:
            answers.append(args)
            raise DeliveryFailed("the answer was lost")
        settle(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outgoing.StartKind, "settle", lose)
        handle = MirroredTill.start(None, id="begun")
        handle.cancel("enough")
        Outbox.objects.update(due_at=timezone.now())
        run_until_idle()
    with pytest.raises(errors.WorkflowCancelled):
        handle.result(timeout=20)
    assert Instance.objects.get().cluster_run_id is not None
