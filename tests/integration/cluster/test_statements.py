"""The statements of callers: starts and signals of runs on a cluster relieve the database, and wake nobody."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from temporalex_django import Ok, Reply, Workflow, activity, api
from temporalex_django.backends.cluster import mirror
from temporalex_django.backends.cluster.backend import ClusterBackend
from temporalex_django.backends.cluster.mirror_writer import MirrorWriter
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Chain, Instance, Outbox
from tests.integration.cluster.test_worker import looping
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = f"cluster-statements-{uuid.uuid4().hex[:8]}"
#: Seconds after which the row of a dead caller is sent by a worker at the latest.
OF_THE_DEAD = 5.0
#: Most statements, and most transactions that write.
STATEMENTS, TRANSACTIONS = 8, 2


class CountedRun(Workflow):
    task_queue = QUEUE
    signals = ("go",)

    async def run(self, args: Any) -> Any:
        return Ok([await api.wait_for_signal("go"), await api.wait_for_signal("go")])


def new_id() -> str:
    return f"counted-{uuid.uuid4().hex[:8]}"


def transactions(statements: list[str]) -> int:
    """The number of transactions that write: blocks, and statements outside of one that change rows."""
    count, is_inside = 0, False
    for statement in statements:
        if statement.startswith(("BEGIN", "COMMIT")):
            is_inside = statement.startswith("BEGIN")
            count += is_inside
        elif not is_inside and statement.lower().startswith(("insert", "update", "delete", "with")):
            count += 1
    return count


def counted(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The value of a call, and its statements."""
    with CaptureQueriesContext(connection) as queries:
        value = call()
    return value, [query["sql"] for query in queries]


@pytest.mark.once_on_postgres
def test_starts_and_signals_take_few_statements(cluster: Any) -> None:
    CountedRun.start(None, id=new_id()).signal("go")  # reads what a process reads once
    run, of_start = counted(lambda: CountedRun.start(None, id=new_id()))
    _, of_signal = counted(lambda: run.signal("go", 1))
    _, of_signal_with_id = counted(lambda: run.signal("go", 2, id="a"))
    for statements in (of_start, of_signal, of_signal_with_id):
        assert len(statements) <= STATEMENTS
        assert transactions(statements) <= TRANSACTIONS
        assert not any("pg_notify" in statement for statement in statements)
    assert [len(of_start), len(of_signal), len(of_signal_with_id)] == [3, 4, 7]
    assert not Outbox.objects.exists()


@pytest.mark.once
def test_rows_of_a_start_are_complete(cluster: Any) -> None:
    run = CountedRun.start(None, id=new_id())
    row, chain = Instance.objects.get(pk=run.run_id), Chain.objects.get(pk=run.chain_id)
    assert (row.cluster_id, row.mirrored_at) == (f"{cluster['PREFIX']}g:{run.id}", row.created_at)
    assert row.cluster_run_id == chain.cluster_first_run_id is not None
    assert (chain.backend, chain.due_at, chain.deadline) == ("temporal", None, None)


@pytest.mark.once
def test_the_row_of_a_dead_caller_is_sent_in_time(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterBackend, "flush", lambda self, chain_id, storage: None)  # the process dies here
    with looping(queue=QUEUE):
        began = time.monotonic()
        run = CountedRun.start(None, id=new_id())
        wait_for(lambda: not Outbox.objects.exists() and Instance.objects.get(pk=run.run_id).status == "waiting")
        assert time.monotonic() - began < OF_THE_DEAD


@pytest.mark.once
def test_signals_keep_their_order_behind_rows_that_wait(cluster: Any, start_worker: Any) -> None:
    with transaction.atomic():
        run = CountedRun.start(None, id=new_id())
        run.signal("go", 1)
    run.signal("go", 2)  # the others wait for a worker
    with looping(queue=QUEUE):
        assert run.result(timeout=30) == [1, 2]


class CountedUpdates(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.phase(0, update={"add": lambda number, total: Reply(total + number, total + number)}))


@pytest.mark.once_on_postgres
def test_updates_take_few_statements(cluster: Any, start_worker: Any) -> None:
    with start_worker():
        run = CountedUpdates.start(None, id=new_id())
        run.update("add", 1)
        total, statements = counted(lambda: run.update("add", 1))
    # The run, its address, a transaction with the message and its audit row, and the outcome. A commit does not count.
    assert (total, len(statements), transactions(statements)) == (2, 6, 2)


class CountedSleep(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.sleep(args)
        return Ok("slept")


@pytest.mark.once_on_postgres
def test_a_result_is_notified_and_polled_at_most_once_a_second(cluster: Any, start_worker: Any) -> None:
    with start_worker():
        run = CountedSleep.start(3.0, id=new_id())
        began = time.monotonic()
        result, statements = counted(lambda: run.result(timeout=20))
        seconds = time.monotonic() - began
    row = Instance.objects.get(pk=run.run_id)
    assert result == "slept"
    assert row.closed_at is not None
    assert timezone.now() - row.closed_at < timedelta(seconds=1)
    # Beside those of each second: one for the handle, one before the wait, one for the address of the run on the
    # cluster, one behind the subscription, and one for the notification.
    assert len([statement for statement in statements if "temporalex_instance" in statement.lower()]) <= seconds + 5


@activity
def one_thing(number: int) -> int:
    return number


class CountedActivity(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await one_thing(1))


@pytest.mark.once_on_postgres
def test_a_batch_of_runs_takes_as_many_statements_as_one(
    cluster: Any, start_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations that end no run: reads and writes for all of them, and nothing for each."""
    seen: list[mirror.ObservedRun] = []
    observe = MirrorWriter.observe

    def keep(self: MirrorWriter, run: mirror.ObservedRun) -> None:
        observe(self, run)
        seen.append(run)

    monkeypatch.setattr(MirrorWriter, "observe", keep)
    monkeypatch.setattr(MirrorWriter, "observe_soon", keep)
    with start_worker():
        for handle in [CountedActivity.start(None, id=new_id()) for _ in range(10)]:
            handle.result(timeout=30)
    begun = [run for run in seen if run.activation == 1]
    assert len(begun) == 10
    Instance.objects.update(closed_at=None, closing=None, status="pending")
    Chain.objects.update(activations=0, closed=False)

    def write(runs: list[mirror.ObservedRun]) -> None:
        mirror.write(*runs, storage=DjangoStorage(), wait=0.0, announce=lambda report: None)

    _, of_one = counted(lambda: write(begun[:1]))
    _, of_others = counted(lambda: write(begun[1:]))
    assert Chain.objects.filter(activations=1).count() == 10
    assert len(of_one) == len(of_others) == 8
