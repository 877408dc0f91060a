"""Operations on background tasks: retry, cancel, run now, requeue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import close_old_connections, connection, transaction
from django.test import override_settings
from django.utils import timezone

from temporalex_django import Ok, Workflow, activity, errors
from temporalex_django.access import AccessPolicy
from temporalex_django.models import EndedTask, EnqueuedTask, Instance, OperatorAction
from temporalex_django.operations.background_tasks import CancelTask, RetryTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.read.background_tasks import TaskFilter, list_tasks
from temporalex_django.testing import DjangoEnvironment
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from tests.settings_tasks import TASKS
from tests.support.people import stored
from tests.support.waiting import wait_for

with override_settings(TASKS=TASKS):
    from temporalex_django.tasks import cancel_task, requeue, results, retry_task, run_task_now
    from tests.app import tasks as t

pytestmark = pytest.mark.django_db(transaction=True)
OPERATE = "temporalex_django.operate_tasks"


@pytest.fixture(autouse=True)
def _backends(settings: Any) -> None:
    t.RAN.clear()
    settings.TASKS = TASKS


@contextmanager
def working() -> Iterator[None]:
    """A worker in a thread of its own."""
    stop, loop = threading.Event(), WorkerLoop()

    def run() -> None:
        try:
            loop.run(stop)
        finally:
            close_old_connections()
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def status(result: Any) -> str:
    result.refresh()
    return str(result.status)


def ended_status(result: Any) -> str:
    return str(EndedTask.objects.get(pk=result.id).status)


# -- retry -------------------------------------------------------------------------------------------------------------


def test_a_retried_task_runs_again_under_its_id_with_its_key_and_its_attempts() -> None:
    result = t.flaky.enqueue(3)  # it fails three times, and has three attempts
    run_until_idle()
    assert (status(result), result.attempts, len(result.errors)) == ("FAILED", 3, 3)

    again = retry_task(result, reason="the service is back")
    assert (again.id, str(again.status), again.args, again.attempts) == (result.id, "READY", [3], 3)
    run_until_idle()
    assert (status(result), result.attempts, len(result.errors)) == ("SUCCESSFUL", 4, 3)
    assert result.return_value == f"{result.id}:0"
    audit = OperatorAction.objects.get(action="retry_task")
    assert (audit.reason, audit.details) == (
        "the service is back",
        {"task": "tests.app.tasks.flaky", "id": result.id},
    )


def test_it_gets_as_many_attempts_as_its_policy_allows() -> None:
    result = t.flaky.enqueue(100)
    run_until_idle()
    for times in (2, 3):
        retry_task(result.id)
        run_until_idle()
        assert (status(result), result.attempts, len(result.errors)) == ("FAILED", 3 * times, 3 * times)


def test_the_pauses_begin_again() -> None:
    with DjangoEnvironment() as env:
        result = t.stumbles_twice.enqueue()
        env.advance(seconds=1)
        assert (status(result), result.attempts) == ("FAILED", 2)
        retry_task(result)
        env.advance()
        assert (status(result), result.attempts) == ("READY", 3)
        env.advance(seconds=1)
        assert (status(result), result.attempts) == ("FAILED", 4)


def test_task_finished_is_sent_again() -> None:
    ended: list[tuple[str, int]] = []

    def note(task_result: Any, **_: Any) -> None:
        ended.append((str(task_result.status), task_result.attempts))

    results.task_finished.connect(note)
    try:
        result = t.fails.enqueue("why")
        run_until_idle()
        retry_task(result)
        run_until_idle()
    finally:
        results.task_finished.disconnect(note)
    assert ended == [("FAILED", 1), ("FAILED", 2)]


def test_only_a_task_that_failed_is_retried() -> None:
    waiting, done = t.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1), t.add.enqueue(2)
    run_until_idle()
    for result, reason in ((waiting, "it waits to run already"), (done, "it was successful")):
        with pytest.raises(errors.ActionNotPossible, match=reason) as refusal:
            retry_task(result)
        assert refusal.value.already_done
    for unknown in (str(uuid4()), "no id", ""):
        with pytest.raises(errors.TaskNotFound, match="there is no background task"):
            retry_task(unknown)


def test_a_form_that_is_sent_twice_retries_once() -> None:
    result = t.fails.enqueue("why")
    run_until_idle()
    RetryTask(result.id, attempts=1).execute()
    run_until_idle()
    with pytest.raises(errors.ActionNotPossible, match="it has had another attempt since you looked"):
        RetryTask(result.id, attempts=1).execute()
    assert (status(result), result.attempts) == ("FAILED", 2)


def test_a_retry_that_is_rolled_back_leaves_the_failed_task() -> None:
    result = t.fails.enqueue("why")
    run_until_idle()
    with transaction.atomic():
        retry_task(result)
        transaction.set_rollback(True)
    run_until_idle()
    assert (status(result), result.attempts) == ("FAILED", 1)
    assert not OperatorAction.objects.exists()


def test_of_two_who_retry_at_once_one_does() -> None:
    result = t.fails.enqueue("why")
    run_until_idle()
    barrier, outcomes = threading.Barrier(2), []

    def retry() -> None:
        barrier.wait(30)
        try:
            retry_task(result.id)
            outcomes.append("retried")
        except (errors.ActionNotPossible, errors.TaskNotFound, errors.UpdateTimeout) as exc:
            outcomes.append(type(exc).__name__)
        finally:
            connection.close()

    threads = [threading.Thread(target=retry) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes.count("retried") == 1
    assert EnqueuedTask.objects.filter(run_id=result.id).count() == 1


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_a_task_that_waits_ends_as_cancelled_and_never_runs() -> None:
    ended: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        ended.append(str(task_result.status))

    results.task_finished.connect(note)
    try:
        result = t.add.enqueue(1)
        cancelled = cancel_task(result, reason="ordered twice")
    finally:
        results.task_finished.disconnect(note)
    assert str(cancelled.status) == "FAILED"
    assert (status(result), result.errors[-1].exception_class, ended) == ("FAILED", errors.TaskCancelled, ["FAILED"])
    assert ended_status(result) == "CANCELLED"
    run_until_idle()
    assert t.RAN == []
    with pytest.raises(errors.ActionNotPossible, match="it has ended as Cancelled") as refusal:
        cancel_task(result)
    assert refusal.value.already_done
    retry_task(result)
    run_until_idle()
    assert (status(result), t.RAN) == ("SUCCESSFUL", [("add", 1, 0)])


def test_the_heartbeat_of_a_running_task_raises(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with working():
        result = t.beats.enqueue(str(log), str(tmp_path / "end"))
        wait_for(log.exists)
        assert str(cancel_task(result).status) == "RUNNING"
        wait_for(lambda: status(result) == "FAILED")
    assert [error.exception_class for error in result.errors] == [errors.TaskCancelled]
    assert "heartbeat" in result.errors[0].traceback
    assert (ended_status(result), result.attempts) == ("CANCELLED", 1)


@pytest.mark.parametrize(("end", "outcome"), [("return", ("SUCCESSFUL", 0)), ("raise", ("FAILED", 1))])
def test_a_running_task_ends_as_its_code_does_and_is_not_tried_again(
    tmp_path: Path, end: str, outcome: tuple[str, int]
) -> None:
    log = tmp_path / "log"
    with working():
        result = t.notices.enqueue(str(log), end)
        wait_for(log.exists)
        cancel_task(result)
        wait_for(lambda: status(result) != "RUNNING")
    assert (status(result), len(result.errors)) == outcome
    assert ended_status(result) == ("SUCCESSFUL" if end == "return" else "CANCELLED")


def test_a_task_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    with DjangoEnvironment() as env:
        result = t.stumbles.enqueue("LookupError")
        env.advance()
        cancel_task(result)
        env.advance(days=1)
        assert (status(result), len(result.errors), len(t.RAN)) == ("FAILED", 2, 1)


def test_a_running_task_whose_worker_dies_is_not_tried_again() -> None:
    result = t.add.enqueue(1)
    EnqueuedTask.objects.filter(run_id=result.id).update(owner=4711, attempt=1)
    cancel_task(result)
    from temporalex_django.db.storage import DjangoStorage
    from temporalex_django.liveness.recovery import release_orphans

    release_orphans(DjangoStorage(worker=True))
    assert (status(result), ended_status(result)) == ("FAILED", "CANCELLED")


def test_a_task_that_nobody_can_read_can_be_cancelled() -> None:
    result = t.add.enqueue(1)
    EnqueuedTask.objects.filter(run_id=result.id).update(options=b"damaged")
    assert CancelTask(result.id).execute().status == "CANCELLED"
    assert not EnqueuedTask.objects.exists()
    assert EndedTask.objects.get(pk=result.id).options == b"damaged"


# -- run now, requeue --------------------------------------------------------------------------------------------------


def test_a_task_that_waits_for_its_time_runs_now() -> None:
    result = t.add.using(run_after=timezone.now() + timedelta(days=365)).enqueue(1)
    run_until_idle()
    assert t.RAN == []
    run_task_now(result)
    run_until_idle()
    assert status(result) == "SUCCESSFUL"
    with pytest.raises(errors.ActionNotPossible, match="it has ended as Successful"):
        run_task_now(result)


def test_a_task_moves_to_another_queue_and_priority() -> None:
    result = t.add.enqueue(1)
    moved = requeue(result, queue="mail", priority=7)
    assert (moved.task.queue_name, moved.task.priority) == ("mail", 7)
    run_until_idle(queues=["default"])
    assert t.RAN == []
    run_until_idle(queues=["mail"])
    assert status(result) == "SUCCESSFUL"
    assert OperatorAction.objects.get(action="requeue").details["queue"] == "mail"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "requeue needs another queue, another priority, or both"),
        ({"queue": "nowhere"}, "no task backend of this project has the queue 'nowhere': choose one of "),
        ({"queue": 7}, "no task backend of this project has the queue"),
        ({"priority": 101}, "the priority '?101'? is not a whole number from -100 to 100"),
        ({"priority": True}, "is not a whole number from -100 to 100"),
    ],
)
def test_a_requeue_that_makes_no_sense_changes_nothing(options: dict[str, Any], message: str) -> None:
    result = t.add.enqueue(1)
    with pytest.raises(errors.ActionNotPossible, match=message):
        requeue(result, **options)
    assert EnqueuedTask.objects.get(run_id=result.id).queue == "default"


# -- people ------------------------------------------------------------------------------------------------------------


def test_a_person_needs_the_permission_and_a_refusal_is_recorded() -> None:
    result, ann = t.add.enqueue(1), stored("ann")
    with pytest.raises(errors.ActionNotPermitted, match=OPERATE):
        cancel_task(result, by=ann)
    assert status(result) == "READY"
    assert OperatorAction.objects.get(action="cancel_task").denied
    cancel_task(result, by=stored("bob", OPERATE))
    assert status(result) == "FAILED"


class Ordering(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await order(args))


@activity
def order(number: int) -> str:
    return str(t.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(number).id)


class Tenants(AccessPolicy):
    def narrow(self, user: Any, runs: Any) -> Any:
        return runs.filter(workflow_id__startswith=user.username)


def test_a_task_belongs_to_the_tenant_of_the_run_that_enqueued_it() -> None:
    run, lone = Ordering.start(1, id="red-1"), t.add.enqueue(2)
    run_until_idle()
    task_id = run.result(timeout=1)
    assert EnqueuedTask.objects.get(run_id=task_id).enqueued_by == Instance.objects.get()
    red, blue = stored("red", OPERATE), stored("blue", OPERATE)
    with override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.Tenants"}):
        for task, user in ((task_id, blue), (lone.id, red)):
            with pytest.raises(errors.TaskNotFound):
                CancelTask(task, by=Actor(user=user)).execute()
        CancelTask(task_id, by=Actor(user=red)).execute()
    rows, _ = list_tasks(TaskFilter(run=str(Instance.objects.get().pk)), None, limit=9)
    assert [row.id for row in rows] == [task_id]
    assert list_tasks(TaskFilter(run="no id"), None, limit=9) == ([], False)
    assert EndedTask.objects.get(pk=task_id).enqueued_by == Instance.objects.get()
