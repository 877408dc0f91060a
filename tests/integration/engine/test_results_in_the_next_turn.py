"""The end of an activity goes from the worker that ran it into the next turn of its run, without a row of the inbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import InterfaceError, connection, transaction
from django.utils import timezone

from temporalex_django import Ok, RetryPolicy, Workflow, activity, api, errors
from temporalex_django.core.executor import Executor
from temporalex_django.liveness.recovery import release_activities
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Message
from temporalex_django.workers.loop import WorkerLoop
from tests.support.runs import stable
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ran: list[Any] = []


@activity(retry=RetryPolicy(initial_interval=0.001, max_attempts=2))
def in_hand(value: Any) -> Any:
    ran.append(value)
    if value == "fails" or (value == "again" and ran.count(value) == 1):
        raise ValueError(f"not {value}")
    return [value, {"ä": 1.5}]


class EndsInHand(Workflow):
    async def run(self, args: Any) -> Any:
        first = await in_hand("one")
        first[1]["ä"] = "changed by the workflow"
        both = await api.parallel([partial(in_hand, "two"), partial(in_hand, "again")])
        try:
            await in_hand("fails")
        except errors.ActivityFailure:
            return Ok([first, both])


class EndsOnce(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok((await in_hand(args))[0])


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerLoop]:
    """With all the time that a turn takes on a machine that is busy with others."""
    ran.clear()
    monkeypatch.setattr("temporalex_django.engine.policy.TURN_SECONDS", 60.0)
    made = WorkerLoop(inline=True, queues=["default"])  # classes of other tests have queues, too
    yield made
    made.marker.close()


@contextmanager
def told() -> Iterator[list[str]]:
    """Statements that put something into an inbox."""
    found: list[str] = []

    def noted(execute: Any, sql: Any, *rest: Any) -> Any:
        if "insert into temporalex_message" in str(sql):
            found.append(str(sql))
        return execute(sql, *rest)

    with connection.execute_wrapper(noted):
        yield found


def polled(loop: WorkerLoop, handle: Any) -> Any:
    """The result, after as many polls as it takes."""

    def closed() -> bool:
        loop.poll()
        return not Instance.objects.get(pk=handle.run_id).is_open

    wait_for(closed)
    return handle.result()


def ends(handle: Any) -> list[str]:
    return [event.kind for event in handle.history() if event.kind in ("ActivityCompleted", "ActivityFailed")]


def in_the_hand_of(loop: WorkerLoop, *values: str) -> list[Any]:
    """Runs whose activities have ended here, which nobody has committed."""
    loop.pool._threads = 8
    handles = [EndsOnce.start(value) for value in values]
    wait_for(lambda: loop.poll() and len(loop.pool.results()) == len(values))
    assert ran == list(values)
    return handles


def test_the_history_is_the_same_whatever_way_the_ends_came(loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    with told() as rows:
        direct = EndsInHand.start()
        result = polled(loop, direct)
        assert (rows, Message.objects.count(), ActivityTask.objects.count()) == ([], 0, 0)

    ran.clear()
    ask_ends = loop.storage.submit_finish

    def end_and_tell(results: Any) -> Any:
        valid, ended = ask_ends(results)()
        loop.storage.deliver(ended)
        return lambda: (valid, [])

    monkeypatch.setattr(loop.storage, "submit_finish", end_and_tell)
    with told() as rows:
        by_rows = EndsInHand.start()
        assert polled(loop, by_rows) == result
        assert len(rows) >= 4

    def told_of(handle: Any) -> list[Any]:
        history = [(e.number, e.activation, e.kind, stable(e.attributes)) for e in handle.history()]
        history[0][3].pop("seed")
        for _number, _activation, _kind, attributes in history:
            attributes.pop("begin", None)
        return history

    assert result == [["one", {"ä": "changed by the workflow"}], [["two", {"ä": 1.5}], ["again", {"ä": 1.5}]]]
    assert told_of(direct) == told_of(by_rows)
    assert [e.attributes for e in direct.history() if e.kind == "ActivityCompleted"][0]["result"] == ["one", {"ä": 1.5}]


@pytest.mark.parametrize("hindered", ["paused", "left alone", "of another queue", "its code fails", "no turn left"])
def test_what_cannot_be_delivered_now_is_told(loop: WorkerLoop, hindered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (handle,) = in_the_hand_of(loop, "one")
    chain = Chain.objects.get()
    go_on: Callable[[], Any]
    match hindered:
        case "paused":
            handle.pause("wait")
            go_on = handle.unpause
        case "left alone":
            loop.storage.defer([chain.id], seconds=60)
            go_on = partial(loop.storage.defer, [chain.id], seconds=0)
        case "of another queue":
            Chain.objects.update(queue="elsewhere")
            go_on = partial(Chain.objects.update, queue="default")
        case "its code fails":
            monkeypatch.setattr(Executor, "activate", lambda *_, **__: 1 / 0)

            def go_on() -> None:
                monkeypatch.undo()
                Chain.objects.update(due_at=timezone.now())

        case "no turn left":
            monkeypatch.setattr("temporalex_django.engine.turn.ActivationStep.must_close", property(lambda _: 1 / 0))
            monkeypatch.setattr(loop.single_runs, "turn_alone", lambda _: 0)
            go_on = monkeypatch.undo

    loop.poll()

    assert (Message.objects.count(), ActivityTask.objects.count(), ends(handle)) == (1, 0, [])
    assert loop.pool.results() == []
    go_on()
    assert polled(loop, handle) == "one"
    assert (ran, ends(handle), Message.objects.count()) == (["one"], ["ActivityCompleted"], 0)


def test_an_end_that_comes_too_late_changes_nothing(loop: WorkerLoop) -> None:
    lost, over = in_the_hand_of(loop, "lost", "over")
    ActivityTask.objects.filter(run_id=lost.run_id).update(owner=None, attempt=1)  # as after the end of a lease
    over.terminate("enough")

    with told() as rows:
        assert polled(loop, lost) == "lost"
        assert rows == []

    assert (ran, ends(lost), ends(over)) == (["lost", "over", "lost"], ["ActivityCompleted"], [])
    assert [e.attributes for e in lost.history() if e.kind == "ActivityCompleted"][0]["attempts"] == 2
    assert (Message.objects.count(), ActivityTask.objects.count(), loop.pool.results()) == (0, 0, [])


@pytest.mark.parametrize("ends_with", ["its connection", "its process", "its answer"])
def test_a_worker_that_ends_before_its_commit_or_behind_it(
    loop: WorkerLoop, ends_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not committed stays in hand, or is done again; what was is not done twice."""
    (handle,) = in_the_hand_of(loop, "one")
    write = loop.storage.write

    def broken(*args: Any, **kwargs: Any) -> Any:
        write(*args, **kwargs)
        raise InterfaceError("the connection is closed")

    with monkeypatch.context() as patch:
        if ends_with == "its answer":
            patch.setattr(loop.intake, "apply_turn", lambda *_: (_ for _ in ()).throw(InterfaceError("no answer")))
        else:
            patch.setattr(loop.storage, "write", broken)
        with pytest.raises(InterfaceError):
            loop.poll()
    if ends_with == "its answer":
        assert (ActivityTask.objects.count(), ends(handle)) == (0, ["ActivityCompleted"])
    else:
        assert (ActivityTask.objects.count(), Message.objects.count(), ends(handle)) == (1, 0, [])
    assert len(loop.pool.results()) == 1
    if ends_with == "its process":
        loop.pool.discard_results(loop.pool.results())
        release_activities(loop.storage, loop.row.epoch)
        loop = WorkerLoop(inline=True)
        loop.marker.close()

    assert polled(loop, handle) == "one"
    loop.poll()
    assert ran == ["one"] * (2 if ends_with == "its process" else 1)
    assert (ends(handle), Message.objects.count(), loop.pool.results()) == (["ActivityCompleted"], 0, [])


def test_a_turn_takes_the_ends_of_as_many_runs_as_it_has_room_for(loop: WorkerLoop) -> None:
    """And those that are due get their share beside them."""
    handles = in_the_hand_of(loop, "one", "two", "three", "four")
    loop.turn_runner._reachable_runs = 2
    fresh = EndsOnce.start("fresh")

    loop.poll()

    assert [bool(ends(handle)) for handle in handles].count(True) == 2
    wait_for(lambda: {result.task.workflow_id for result in loop.pool.results()} > {fresh.id})
    assert sorted(polled(loop, handle) for handle in handles) == ["four", "one", "three", "two"]
    assert (polled(loop, fresh), len(ran), HistoryEvent.objects.filter(kind="ActivityCompleted").count()) == (
        "fresh",
        5,
        5,
    )


def test_the_end_of_an_attempt_that_was_lost_activates_nobody(loop: WorkerLoop) -> None:
    """Its run is locked before it is known that it does not count any more, and left alone."""
    lost, good = in_the_hand_of(loop, "lost", "good")
    before = HistoryEvent.objects.filter(run_id=lost.run_id).count()
    ActivityTask.objects.filter(run_id=lost.run_id).update(
        owner=None, attempt=0, due_at=timezone.now() + timedelta(hours=1)
    )

    assert polled(loop, good) == "good"

    assert HistoryEvent.objects.filter(run_id=lost.run_id).count() == before
    assert not Message.objects.exists()
    assert not loop.pool.results()
    ActivityTask.objects.update(due_at=timezone.now())
    assert polled(loop, lost) == "lost"
    assert ran == ["lost", "good", "lost"]


def test_what_cannot_be_read_of_a_run_that_waits_is_not_read_for_its_end(
    loop: WorkerLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """Its parked messages are not looked at before it goes on: no other run of the turn hears of them."""
    paused, good = in_the_hand_of(loop, "paused", "good")
    paused.pause()
    paused.signal("later", 1)
    readable = bytes(Message.objects.get(kind="signal").body)
    Message.objects.filter(kind="signal").update(fresh=False, body=b"\xff")

    with caplog.at_level("WARNING", logger="temporalex_django"):
        assert polled(loop, good) == "good"
    assert [record.getMessage() for record in caplog.records if "failed" in record.getMessage()] == []
    assert not Instance.objects.get(pk=paused.run_id).blocked

    Message.objects.filter(kind="signal").update(body=readable)
    paused.unpause()
    assert polled(loop, paused) == "paused"


class ThreeSteps(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok([(await in_hand(n))[0] for n in range(3)])


@pytest.mark.each_lane
def test_of_a_backlog_no_more_runs_go_on_at_a_time_than_are_in_memory(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each step of each of them would begin with its history."""
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CACHE_SIZE": 30}
    monkeypatch.setattr("temporalex_django.engine.policy.TURN_SECONDS", 60.0)
    for number in range(90):
        ThreeSteps.start(id=f"steps-{number}")
    worker = WorkerLoop(inline=True)
    read: list[Any] = []
    histories = worker.storage.histories
    monkeypatch.setattr(worker.storage, "histories", lambda after: read.extend(after) or histories(after))

    assert worker.run_inline(timeout=60) == 90 * 4

    assert Instance.objects.filter(workflow="ThreeSteps", status="completed").count() == 90
    assert len(read) < 45  # of 270: half a time for each run at most


class Wide(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(len(await api.parallel([partial(in_hand, n) for n in range(args)])))


@pytest.mark.postgres
def test_a_table_that_was_small_when_its_statements_were_planned_is_not_read_whole_when_it_is_large(
    loop: WorkerLoop,
) -> None:
    """Plans of prepared statements are kept, until somebody analyzes the table."""
    for number in range(20):
        EndsOnce.start(number)
        while loop.poll():
            pass
    before = _read_whole()

    Wide.start(600)
    while loop.poll():
        pass

    assert Instance.objects.get(workflow="Wide").status == "completed"
    assert _read_whole() - before < 100


@pytest.mark.postgres
def test_how_the_plans_of_a_caller_are_made_is_his_own(loop: WorkerLoop) -> None:
    def scans() -> str:
        with connection.cursor() as cursor:
            cursor.execute("show enable_seqscan")
            return str(cursor.fetchone()[0])

    seen = []
    with transaction.atomic():
        handle = EndsOnce.start("one")
        while loop.poll():
            seen.append(scans())
        assert handle.describe().status == "completed"
    assert {*seen, scans()} == {"on"}


def _read_whole() -> int:
    """Rows of activities that were read by going through the whole table."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute("select 1")
        cursor.execute("select pg_stat_clear_snapshot()")
        cursor.execute("select seq_tup_read from pg_stat_user_tables where relname = 'temporalex_activity_task'")
        return int(cursor.fetchone()[0])
