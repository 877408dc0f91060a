"""Work that takes effect once in the project's database: atomic activities on a cluster, and ``once(key)``."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.checks import ERROR, WARNING
from temporalio.testing import ActivityEnvironment

from temporalex_django import Ok, RetryPolicy, Workflow, activity, activity_context, checks, errors, once
from temporalex_django.authoring.activity_context import ActivityContext, use_context
from temporalex_django.backends.cluster.attempts import ProjectAttempt
from temporalex_django.conf import codec
from temporalex_django.db.once import atomic_once
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import DoneOnce, Instance
from temporalex_django.temporal.options import HostOptions
from temporalex_django.temporal.payloads import Payloads
from temporalex_django.workers.loop import run_until_idle
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-once-{uuid.uuid4().hex[:8]}"
_failures: list[int] = []
_begun, _released, _away = threading.Event(), threading.Event(), threading.Event()
_SOON = RetryPolicy(initial_interval=0.01)


def bookings(name: str) -> int:
    return Group.objects.filter(name__startswith=f"{name}:").count()


def book(name: str) -> None:
    Group.objects.create(name=f"{name}:{uuid.uuid4()}")


def require_open() -> None:
    if _away.is_set():
        raise ConnectionError("nobody books now")


@activity(atomic=True, retry=_SOON)
def book_atomically(name: str) -> int:
    require_open()
    book(name)
    if _failures:
        raise ConnectionError(f"failure {_failures.pop()}")
    return bookings(name)


@activity(retry=_SOON)
def book_and_fail(name: str) -> dict[str, int]:
    require_open()
    with once(f"{name}:{activity_context().workflow_id}") as booking:
        if booking.is_first:
            book(name)
            booking.result = {"bookings": bookings(name)}
    if _failures:
        raise ConnectionError(f"failure {_failures.pop()}")
    return booking.result


@activity(atomic=True)
def book_slowly(name: str) -> int:
    book(name)
    _begun.set()
    assert _released.wait(30)
    return bookings(name)


@activity(atomic=True, shared_transaction=True)
def needs_the_next_step(name: str) -> None:
    book(name)


class MirroredBooking(Workflow):
    task_queue = QUEUE

    async def run(self, args: list[str]) -> Any:
        kind, name = args
        return Ok(await {"atomic": book_atomically, "once": book_and_fail, "slow": book_slowly}[kind](name))


class SharedBooking(Workflow):
    backend = "tables"  # checks of other tests look at it, too
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await needs_the_next_step(args)
        return Ok(None)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    _failures.clear()
    _begun.clear()
    _released.clear()
    _away.clear()
    yield
    _away.clear()
    _released.set()


def start(kind: str) -> Any:
    name = uuid.uuid4().hex[:12]
    return MirroredBooking.start([kind, name], id=f"once-{name}"), name


def test_an_atomic_activity_commits_its_result_with_its_writes(worker: None) -> None:
    handle, name = start("atomic")
    assert handle.result(timeout=30) == 1
    done = DoneOnce.objects.get()
    assert done.run_id == Instance.objects.get().cluster_run_id
    assert bookings(name) == 1


def test_an_atomic_activity_that_raises_leaves_nothing_behind(worker: None) -> None:
    _failures[:] = [1, 2, 3]
    handle, name = start("atomic")
    assert handle.result(timeout=30) == 1
    assert (bookings(name), DoneOnce.objects.count()) == (1, 1)


def test_an_attempt_whose_answer_was_lost_gets_the_stored_result(worker: None) -> None:
    handle, name = start("atomic")
    assert handle.result(timeout=30) == 1
    handle.reset(to=0)
    wait_for(lambda: Instance.objects.filter(status="completed").count() == 2)
    assert handle.result(timeout=30) == 1
    assert bookings(name) == 1


@pytest.mark.postgres  # on SQLite nobody else can write while it runs
def test_an_atomic_activity_that_is_cancelled_counts_if_it_has_begun(worker: None) -> None:
    handle, name = start("slow")
    assert _begun.wait(30)
    handle.cancel(reason="enough")
    with pytest.raises(errors.WorkflowCancelled):
        handle.result(timeout=30)
    _released.set()
    wait_for(lambda: DoneOnce.objects.exists())
    assert bookings(name) == 1


@pytest.mark.parametrize("backend", ["tables", "temporal"])
def test_once_is_done_once_whatever_its_activity_does(worker: None, settings: Any, backend: str) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": backend}
    _failures[:] = [1, 2, 3]
    handle, name = start("once")
    wait_for(lambda: run_until_idle() == 0 and handle.describe().closed_at)
    assert handle.result(timeout=30) == {"bookings": 1}
    assert bookings(name) == 1
    assert DoneOnce.objects.count() == 1


def test_of_two_at_a_time_the_second_waits_for_the_first() -> None:
    storage, run = DjangoStorage(), uuid.uuid4()
    first_entered, results = threading.Event(), []

    def attempt(number: int) -> None:
        from django.db import connections

        try:
            with atomic_once("key", run, storage) as block:
                if block.is_first:
                    first_entered.set()
                    book("both")
                    block.result = number
            results.append(block.result)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=attempt, args=[number]) for number in (1, 2)]
    threads[0].start()
    assert first_entered.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert results == [1, 1]
    assert bookings("both") == 1


def test_once_needs_an_activity_and_a_key() -> None:
    with pytest.raises(errors.OutsideWorkflow), once("key"):
        pass
    context = ActivityContext(attempt=1, idempotency_key="k", workflow_id="w", run_id=str(uuid.uuid4()))
    for key in ("", "x" * 201, 7):
        with use_context(context), pytest.raises(ValueError, match="1 to 200 characters"), once(key):  # type: ignore[arg-type]
            pass
    with use_context(context), pytest.raises(errors.PayloadError), once("key") as block:
        block.result = object()
    assert not DoneOnce.objects.exists()
    with use_context(context), once("key") as block:
        assert block.is_first
    with use_context(context), once("key") as block:
        assert (block.is_first, block.result) == (False, None)


def test_the_rows_go_with_the_run(worker: None) -> None:
    handle, _ = start("atomic")
    handle.result(timeout=30)
    assert DoneOnce.objects.exists()
    handle.delete()
    assert not DoneOnce.objects.exists()


@pytest.mark.parametrize("kind", ["atomic", "once"])
def test_a_row_goes_with_the_run_that_has_inserted_it(worker: None, kind: str) -> None:
    """After a reset the code sees the id of the first run, whose rows may be deleted long before the new one ends."""
    _away.set()
    handle, _ = start(kind)
    wait_for(lambda: handle.describe().waiting_for)
    handle.reset(to=0)
    _away.clear()
    assert handle.result(timeout=30) in (1, {"bookings": 1})
    newest = Instance.objects.latest("id")
    assert (Instance.objects.count(), DoneOnce.objects.get().run_id) == (2, newest.cluster_run_id)


def levels_of_checks() -> set[int]:
    return {message.level for message in checks.check_shared_transactions(None) if "SharedBooking" in message.msg}


def test_a_class_on_a_cluster_cannot_share_its_transaction(
    cluster: Any, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert levels_of_checks() == {WARNING}
    monkeypatch.setattr(SharedBooking, "backend", "temporal")
    assert levels_of_checks() == {ERROR}
    (problem,) = [p for p in checks.shared_transaction_problems("temporal") if "SharedBooking" in p]
    assert "needs_the_next_step" in problem
    handle = SharedBooking.start("shared", id=f"shared-{uuid.uuid4().hex[:8]}")
    with pytest.raises(errors.WorkflowFailed, match="shared_transaction=True"):
        handle.result(timeout=30)
    assert bookings("shared") == 0


def test_shared_transaction_is_an_option_of_atomic_activities() -> None:
    with pytest.raises(errors.WorkflowDefinitionError, match="shared_transaction needs atomic=True"):
        activity(shared_transaction=True)
    with pytest.raises(errors.WorkflowDefinitionError, match="shared_transaction for one call"):
        needs_the_next_step.options(shared_transaction=False)  # type: ignore[call-arg]


def test_two_calls_by_a_workflow_of_the_sdk_are_two_calls() -> None:
    """A call by another program has no number, but the id that the server knows it by."""
    options = HostOptions(payloads=Payloads(codec()))
    run = str(uuid.uuid4())

    def attempt(activity_id: str) -> Any:
        info = replace(ActivityEnvironment.default_info(), activity_id=activity_id, workflow_run_id=run)
        loop = asyncio.new_event_loop()
        try:
            return ProjectAttempt(options, info, None, loop, {}).run_in_thread(book_atomically, ["sdk"])  # type: ignore[arg-type]
        finally:
            loop.close()

    assert [attempt("1"), attempt("2"), attempt("2")] == [1, 2, 2]
    assert bookings("sdk") == 2
