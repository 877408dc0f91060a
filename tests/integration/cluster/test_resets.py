"""Resets of runs on a cluster: messages behind the point come again, in their order, and none is lost."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer

from temporalex_django import ContinueAsNew, NoReply, Ok, Reply, Stop, Workflow, activity, api, errors, update
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.ids import cluster_id_of, task_queue
from temporalex_django.models import HumanTask, Instance, OperatorAction
from temporalex_django.temporal.plugin import TemporalexPlugin
from temporalex_django.testing import WorkflowEnvironment
from tests.integration.cluster.conftest import WorkerMaker
from tests.support.people import stored
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-resets-{uuid.uuid4().hex[:8]}"
#: Bookings wait for it.
gate = threading.Event()
#: The items that the validator refuses.
refused: set[str] = set()


@activity
def book_before_phase(number: int) -> int:
    gate.wait(20)
    return number


def check_item(item: str, items: list[str]) -> None:
    if item in refused:
        raise errors.UpdateRejected(f"there is no {item} any more")


def take_items() -> Any:
    return api.phase(
        [],
        update={
            "add": update(lambda item, items: Reply(len(items) + 1, [*items, item]), validator=check_item),
            "approve": update(lambda item, items: Reply(item, [*items, item]), permission="auth.add_user"),
        },
        signal={"note": lambda note, items: NoReply([*items, note]), "close": lambda _, items: Stop(items)},
        publish=True,
    )


class ResetBooking(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        for number in range(2):
            await book_before_phase(number)
        return Ok(await take_items())


class ResetRounds(Workflow):
    """Each run takes the items of one round."""

    task_queue = QUEUE

    async def run(self, rounds: list[list[str]]) -> Ok[list[list[str]]] | ContinueAsNew:
        await book_before_phase(len(rounds))
        rounds = [*rounds, await take_items()]
        return ContinueAsNew(rounds) if len(rounds) < 3 else Ok(rounds)


class ResetReview(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        for number in range(2):
            await book_before_phase(number)
        decision = await api.approval("Publish after the reset?", users=["ann", "ben"])
        return Ok([decision.outcome, decision.comment])


@pytest.fixture(autouse=True)
def open_gate() -> Iterator[None]:
    gate.set()
    refused.clear()
    yield
    gate.set()


def published(handle: Any) -> Any:
    return Instance.objects.filter(workflow_id=handle.id).latest("id").published_state


def start(cls: Any, args: Any = None) -> Any:
    handle = cls.start(args, id=f"{cls.name.lower()}-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: (labels := handle.describe().waiting_for) and "book_before_phase" not in labels[0])
    return handle


def filled() -> Any:
    handle = start(ResetBooking)
    handle.update("add", "a")
    handle.signal("note", "s1")
    wait_for(lambda: published(handle) == ["a", "s1"])
    handle.update("add", "b")
    return handle


def wait_for_task(run_id: str) -> None:
    """Wait until the first task of the run of a reset is done, and let its activities end then."""
    wait_for(lambda: Instance.objects.get(pk=run_id).cluster_task_at)
    gate.set()


def reset_before_phase(handle: Any, **options: Any) -> None:
    gate.clear()
    wait_for_task(handle.reset(**options))


def check_replays(handle: Any, cls: Any) -> None:
    """Replay all runs of a chain, with the replayer of the SDK and with the one of this package."""
    client = cluster_client()

    async def replay(sdk: Client, history: WorkflowHistory) -> None:
        plugin = TemporalexPlugin(queue_name=task_queue, workflow_id=cluster_id_of)
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)

    for row in Instance.objects.filter(workflow_id=handle.id):
        there = client.call(
            lambda sdk, row=row: sdk.get_workflow_handle(row.cluster_id, run_id=str(row.cluster_run_id)).fetch_history()
        )
        client.call(lambda sdk, history=there: replay(sdk, history))
        WorkflowEnvironment().replay_history(cls, cls.handle(str(row.pk)).history())


def lost_messages() -> list[tuple[str, str]]:
    rows = OperatorAction.objects.filter(reason__startswith="delivered again and refused").order_by("id")
    return [(row.details[row.action], row.details["refused"]) for row in rows]


@pytest.mark.parametrize("to", [0, 1])
def test_answered_updates_come_again_in_their_order(worker: None, to: int) -> None:
    handle = filled()
    reset_before_phase(handle, to=to)
    handle.signal("close")
    assert handle.result(timeout=20) == ["a", "s1", "b"]
    assert lost_messages() == []
    check_replays(handle, ResetBooking)


def test_they_wait_over_a_second_reset_and_in_another_worker(start_worker: WorkerMaker) -> None:
    with start_worker():
        handle = filled()
        reset_before_phase(handle, to=1)
        wait_for(lambda: published(handle) == ["a", "s1", "b"])
        gate.clear()
        again = handle.reset(to=1)
        wait_for(lambda: Instance.objects.get(pk=again).cluster_task_at)
    with start_worker():
        gate.set()
        handle.signal("close")
        assert handle.result(timeout=60) == ["a", "s1", "b"]
        check_replays(handle, ResetBooking)


def test_a_reset_behind_the_messages_keeps_them(worker: None) -> None:
    handle = filled()
    reset_before_phase(handle, to=1)
    wait_for(lambda: published(handle) == ["a", "s1", "b"])
    handle.update("add", "c")
    handle.reset()
    handle.update("add", "d")
    handle.signal("close")
    assert handle.result(timeout=20) == ["a", "s1", "b", "c", "d"]
    check_replays(handle, ResetBooking)


def test_a_reset_by_another_client_keeps_them(worker: None) -> None:
    handle = filled()
    row, client = Instance.objects.get(), cluster_client()
    request = ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=row.cluster_id, run_id=str(row.cluster_run_id)),
        reason="by hand",
        workflow_task_finish_event_id=4,
        request_id=uuid.uuid4().hex,
    )
    gate.clear()
    client.call(lambda sdk: sdk.workflow_service.reset_workflow_execution(request))
    wait_for(lambda: Instance.objects.count() == 2)
    gate.set()
    handle.signal("close")
    assert handle.result(timeout=20) == ["a", "s1", "b"]


def test_a_new_update_before_the_first_phase_waits_too(worker: None) -> None:
    handle = filled()
    gate.clear()
    new_run = handle.reset(to=1)
    wait_for(lambda: Instance.objects.get(pk=new_run).cluster_task_at)
    with pytest.raises(errors.UpdateTimeout):
        handle.update("add", "c", id="c", timeout=0.5)
    gate.set()
    assert handle.update("add", "c", id="c") == 4
    handle.signal("close")
    assert handle.result(timeout=20) == ["a", "s1", "b", "c"]
    check_replays(handle, ResetBooking)


def test_the_no_of_a_validator_is_the_failure_of_an_update_that_waited_and_is_listed(worker: None) -> None:
    handle = filled()
    refused.add("a")
    reset_before_phase(handle, to=1)
    wait_for(lambda: published(handle) == ["s1", "b"])
    assert lost_messages() == [("add", "update_rejected")]
    handle.signal("close")
    assert handle.result(timeout=20) == ["s1", "b"]
    check_replays(handle, ResetBooking)


def test_what_nothing_takes_is_listed(worker: None) -> None:
    handle = filled()
    handle.signal("close")
    handle.result(timeout=20)
    gate.clear()
    new_run = handle.reset(to=1)
    wait_for(lambda: Instance.objects.get(pk=new_run).cluster_task_at)
    with pytest.raises(errors.UpdateTimeout):
        handle.update("other", 1, timeout=0.5)
    gate.set()
    assert handle.result(timeout=20) == ["a", "s1", "b"]
    assert lost_messages() == [("other", "workflow_closed")]
    check_replays(handle, ResetBooking)


def test_what_comes_behind_the_end_or_is_refused_by_an_open_phase_is_listed(worker: None) -> None:
    handle = start(ResetBooking)
    handle.update("add", "a")
    handle.signal("note", "s1")
    handle.update("add", "b")
    refused.add("a")
    handle.reset(to=2)  # the phase is open there, so it judges them when they come
    wait_for(lambda: published(handle) == ["s1", "b"])
    assert lost_messages() == [("add", "update_rejected")]
    handle.signal("close")
    assert handle.result(timeout=20) == ["s1", "b"]
    check_replays(handle, ResetBooking)


def test_messages_of_later_runs_reach_the_run_that_took_them(worker: None) -> None:
    handle = start(ResetRounds, [])
    first = handle.run_id
    handle.update("add", "a")
    handle.signal("close")
    wait_for(lambda: published(handle) == [] and handle.describe().accepts["updates"])
    handle.update("add", "b")
    handle.update("add", "c")
    gate.clear()
    ResetRounds.handle(str(first)).reset(to=0)
    wait_for(lambda: Instance.objects.count() == 3 and Instance.objects.latest("id").cluster_task_at)
    gate.set()
    wait_for(lambda: published(handle) == ["b", "c"])
    handle.signal("close")
    wait_for(lambda: published(handle) == [] and handle.describe().accepts["updates"])
    handle.signal("close")
    assert handle.result(timeout=20) == [["a"], ["b", "c"], []]
    assert lost_messages() == []
    check_replays(handle, ResetRounds)


def test_a_decision_waits_for_its_question(worker: None) -> None:
    ann = stored("ann")
    handle = start(ResetReview)
    wait_for(HumanTask.objects.open().exists)
    handle.decide("approved", comment="as I said", by=ann)
    assert handle.result(timeout=20) == ["approved", "as I said"]
    reset_before_phase(handle, to=1)
    assert handle.result(timeout=20) == ["approved", "as I said"]
    assert not HumanTask.objects.open().exists()
    check_replays(handle, ResetReview)


def lose_rights(user: Any) -> None:
    user.is_active = False
    user.save()


def test_updates_of_somebody_who_lost_the_permission_are_listed_and_replays_agree(worker: None) -> None:
    boss = get_user_model().objects.create_superuser("boss")
    handle = start(ResetBooking)
    handle.update("approve", "a", by=boss)
    handle.update("add", "b")
    lose_rights(boss)
    reset_before_phase(handle, to=1)
    wait_for(lambda: published(handle) == ["b"])
    assert lost_messages() == [("approve", "not_permitted")]
    handle.signal("close")
    assert handle.result(timeout=20) == ["b"]
    check_replays(handle, ResetBooking)


def test_a_decision_of_somebody_who_may_not_decide_any_more_is_listed(start_worker: WorkerMaker) -> None:
    ann, ben = stored("ann"), stored("ben")
    with start_worker():
        handle = start(ResetReview)
        wait_for(HumanTask.objects.open().exists)
        handle.decide("approved", by=ann)
        handle.result(timeout=20)
        lose_rights(ann)
        reset_before_phase(handle, to=1)
        wait_for(HumanTask.objects.open().exists)
        assert lost_messages() == [("approved", "not_permitted")]
    with start_worker():  # it replays the refusal
        handle.decide("rejected", by=ben)
        assert handle.result(timeout=60)[0] == "rejected"
        check_replays(handle, ResetReview)
