"""Two operators at once, each with a connection of its own: one is first, the other reads what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections
from django.test import override_settings

from temporalex_django import Ok, RetryPolicy, Workflow, activity, api, errors
from temporalex_django.models import BulkJob, Instance
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.testing import drain
from tests.integration.db.test_storage_concurrency import Elsewhere, held_open
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@activity(retry=RetryPolicy(initial_interval=3600.0))
def always_refused() -> int:
    raise ConnectionError("refused")


class OperatedTwice(Workflow):
    name = "test.OperatedTwice"

    async def run(self, args: Any) -> Any:
        paid = await always_refused()
        return Ok([paid, await api.wait_for_signal("go")])


@pytest.fixture(autouse=True)
def _patient() -> Iterator[None]:
    with override_settings(TEMPORALEX={"UPDATE_LOCK_WAIT": 30.0}):
        yield


def at_once(first: Callable[[], Any], second: Callable[[], Any]) -> BaseException | Any:
    """What comes of ``second``, which begins while nobody sees yet what ``first`` has done."""
    one, two = Elsewhere(), Elsewhere()
    try:
        with held_open(one, first):
            later = two.begin(second)
            wait_for(lambda: later.done() or _somebody_waits(), what="the second one to be done, or to wait")
        return later.exception(60) or later.result()
    finally:
        for other in (one, two):
            other.do(connections.close_all)
            other.pool.shutdown()


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "select exists (select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')"
        )
        return bool(cursor.fetchone()[0])


def begun(name: str) -> Any:
    handle = OperatedTwice.start(id=name)
    drain()
    return handle


def refused(error: BaseException | Any, kind: type[errors.TemporalexError], words: str) -> None:
    assert isinstance(error, kind), error
    assert words in str(error)


def test_the_second_reads_what_the_first_has_done() -> None:
    h = begun("paused")
    refused(at_once(lambda: h.pause("ann"), lambda: h.pause("bob")), errors.ActionNotPossible, "already paused")
    assert h.describe().paused["reason"] == "ann"
    h.unpause()

    assert at_once(lambda: h.retry_activity(1), lambda: h.fail_activity(1, "enough")) is None
    h = begun("failed")
    refused(
        at_once(lambda: h.fail_activity(1, "enough"), lambda: h.retry_activity(1)), errors.ActionNotPossible, "ended"
    )
    drain()
    assert [OperatedTwice.handle(name).status for name in ("paused", "failed")] == ["failed", "failed"]
    ends = [[e.attributes["message"] for e in OperatedTwice.handle(name).history() if e.kind == "ActivityFailed"]
            for name in ("paused", "failed")]  # fmt: skip
    assert ends == [["enough"], ["enough"]]

    h = begun("ended")
    refused(at_once(h.terminate, lambda: h.complete_activity(1, 5)), errors.WorkflowClosed, "already closed")
    drain()
    assert (h.status, [e.kind for e in h.history()][-1]) == ("terminated", "WorkflowTerminated")
    h = begun("completed")
    assert at_once(lambda: h.complete_activity(1, 5), h.terminate) is None
    drain()
    kinds = [e.kind for e in h.history()]
    assert (h.status, kinds[-1], kinds.count("ActivityCompleted")) == ("terminated", "WorkflowTerminated", 0)


@pytest.mark.parametrize("signal_first", [True, False])
def test_a_signal_beside_a_reset_comes_once(signal_first: bool) -> None:
    h = begun("reset")
    calls: list[Callable[[], Any]] = [lambda: h.signal("go", "hello"), lambda: h.reset(1)]
    came = at_once(*calls) if signal_first else at_once(*reversed(calls))
    assert not isinstance(came, BaseException), came
    h.complete_activity(1, 5)
    drain()

    assert (len(h.run_ids), h.result(timeout=1)) == (2, [5, "hello"])
    assert [e.kind for e in h.history()].count("SignalReceived") == 1


def test_two_resets_of_one_run_make_one_of_each() -> None:
    h = begun("twice")
    error = at_once(lambda: h.reset(1), lambda: h.reset(1))
    assert len(Instance.objects.open()) == 1
    refused(error, errors.ActionNotPossible, "continued as a new run")
    assert len(h.run_ids) == 2


def test_a_bulk_job_that_two_start_is_one() -> None:
    runs = [begun("a").run_id, begun("b").run_id]
    made: list[Any] = []

    def starts() -> Any:
        made.append(StartBulk("terminate", runs=runs, token="together").execute().pk)

    assert at_once(starts, starts) is None
    job = BulkJob.objects.get()
    assert made == [job.pk] * 2
    assert (job.total, job.items.count()) == (2, 2)
