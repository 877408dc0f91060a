"""Atomic activities that fail: attempts, backoff, and what else the run does meanwhile.

On committed data, by ``drain``.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection, connections

from temporalex_django import Ok, RetryPolicy, Workflow, activity, activity_context, api, errors
from temporalex_django.models import ActivityTask
from temporalex_django.testing import drain
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

attempts: list[int] = []
AGAIN = RetryPolicy(max_attempts=3, initial_interval=0.3, backoff=1)


@activity(atomic=True, retry=AGAIN)
def refused() -> None:
    attempts.append(activity_context().attempt)
    raise ValueError("no")


@activity(atomic=True, retry=RetryPolicy(max_attempts=2, initial_interval=0.6, backoff=1))
def second_time_lucky() -> int:
    attempts.append(activity_context().attempt)
    if activity_context().attempt == 1:
        raise ValueError("not yet")
    return 1


@activity(atomic=True)
def easy() -> int:
    return 2


@activity(atomic=True, retry=RetryPolicy(max_attempts=2, initial_interval=0.1))
def dangling() -> None:
    Permission.objects.create(name="x", codename="x", content_type_id=10_000_000)


@activity(atomic=True, retry=RetryPolicy(max_attempts=1))
def leaves() -> None:
    raise SystemExit(3)


@activity(atomic=True, retry=RetryPolicy(max_attempts=1))
def closes_all() -> None:
    connections.close_all()


def flow(call: Any) -> type[Workflow]:
    class OneAtomic(Workflow):
        async def run(self, args: Any) -> Any:
            return Ok(await call())

    return OneAtomic


def until_closed(handle: Any) -> None:
    def closed() -> bool:
        drain()  # what is not due yet is left: the next look may find it due
        return handle.describe().closed_at is not None

    wait_for(closed, what="the end of the run")


def test_attempts_of_an_atomic_activity_are_counted_and_end() -> None:
    attempts.clear()
    handle = flow(refused).start(None)

    until_closed(handle)

    assert attempts == [1, 2, 3]
    with pytest.raises(errors.WorkflowFailed, match="ActivityFailure"):
        handle.result(timeout=1)


def test_a_retry_that_waits_is_not_forgotten_while_other_atomic_work_is_done() -> None:
    attempts.clear()

    class TwoAtomic(Workflow):
        async def run(self, args: Any) -> Any:
            async def later() -> int:
                await api.sleep(0.1)
                return await easy()

            return Ok(await api.parallel([second_time_lucky(), later]))

    handle = TwoAtomic.start(None)

    until_closed(handle)

    assert handle.result(timeout=1) == [1, 2]
    assert attempts == [1, 2]


@pytest.mark.postgres
def test_a_deferred_constraint_is_the_failure_of_the_activity_that_broke_it() -> None:
    handle = flow(dangling).start(None)

    until_closed(handle)

    with pytest.raises(errors.WorkflowFailed, match="IntegrityError"):
        handle.result(timeout=1)
    assert not Permission.objects.filter(codename="x").exists()
    assert connection.is_usable()


def test_an_atomic_activity_that_exits_fails_alone() -> None:
    handle = flow(leaves).start(None)

    until_closed(handle)

    with pytest.raises(errors.WorkflowFailed, match="SystemExit"):
        handle.result(timeout=1)


def test_an_atomic_activity_that_closes_the_connection_fails_alone() -> None:
    class Either(Workflow):
        async def run(self, closes: Any) -> Any:
            return Ok(await (closes_all() if closes else easy()))

    others = [Either.start(False) for _ in range(3)]
    handle = Either.start(True)

    until_closed(handle)

    with pytest.raises(errors.WorkflowFailed, match="an atomic activity cannot close the connection"):
        handle.result(timeout=1)
    assert [other.result(timeout=1) for other in others] == [2, 2, 2]
    connection.close()  # elsewhere it may be closed, as ever
    assert connection.connection is None


def test_a_retry_that_succeeds_is_over_although_its_run_goes_on() -> None:
    attempts.clear()

    class GoesOn(Workflow):
        async def run(self, args: Any) -> Any:
            found = await second_time_lucky()
            return Ok([found, await api.wait_for_signal("end")])

    handle = GoesOn.start()

    def lucky() -> bool:
        drain()
        return attempts == [1, 2]

    wait_for(lucky)
    drain()

    assert attempts == [1, 2]
    assert not ActivityTask.objects.exists()
    handle.signal("end", "now")
    drain()
    assert handle.result() == [1, "now"]
