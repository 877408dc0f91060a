"""Values of arbitrary code on the database of the lane.

Whoever gives one that cannot be stored fails, and nobody beside him.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group

from temporalex_django import Err, NoReply, Ok, RetryPolicy, Stop, Workflow, activity, activity_context, api, errors
from temporalex_django.core.names import fit_note
from temporalex_django.core.payloads.codec import JsonCodec
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.models import ActivityTask, Instance
from temporalex_django.testing import drain
from temporalex_django.workers.loop import WorkerLoop
from tests.support.nasty import KEPT, REFUSED, EvilError
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
EVERY = {**REFUSED, **KEPT}
_ONCE = RetryPolicy(max_attempts=1)


@activity(retry=_ONCE)
def nasty_result(name: str) -> Any:
    return EVERY[name]


@activity(retry=_ONCE)
def nasty_beat(name: str) -> int:
    activity_context().heartbeat(EVERY[name])
    return 1


@activity(retry=_ONCE)
def nasty_error(name: str) -> None:
    raise {"evil": EvilError(), "text": ValueError("a\x00b \ud800"), "large": ValueError("x" * 5_000_000)}[name]


@activity(retry=_ONCE)
def poisoned(value: Any) -> Any:
    return {"poison": value}


@activity(atomic=True)
def booked(what: str) -> Any:
    Group.objects.create(name=what)
    return {"poisoned": {"poison": 1}, "nested": {"nested": [object()]}, "fine": {"fine": 1}}[what]


class Booking(Workflow):
    name = "test.nasty.Booking"

    async def run(self, args: Any) -> Any:
        try:
            return Ok(await booked(args["what"]))
        except errors.ActivityFailure as exc:
            return Ok({"failed": exc.type, "why": exc.cause})


class Returning(Workflow):
    name = "test.nasty.Returning"

    async def run(self, args: Any) -> Any:
        what = {"result": nasty_result, "beat": nasty_beat, "error": nasty_error, "poison": poisoned}[args["what"]]
        try:
            return Ok(await what(args["name"]))
        except errors.ActivityFailure as exc:
            return Ok({"failed": exc.type, "why": exc.cause})


class Emitting(Workflow):
    name = "test.nasty.Emitting"

    async def run(self, args: Any) -> Any:
        value = EVERY[args["name"]]
        match args["what"]:
            case "publish":
                api.publish_state(value)
            case "fail":
                return Err(value)
            case "call":
                await poisoned(value)
        state = await api.phase(None, signal={"note": lambda payload, state: Stop(payload)})
        return Ok([state, value] if args["what"] == "complete" else state)


class Noting(Workflow):
    name = "test.nasty.Noting"

    async def run(self, args: Any) -> Any:
        note = {"note": lambda payload, state: NoReply([*state, payload]), "done": lambda _, state: Stop(state)}
        return Ok(await api.phase([], signal=note))


@pytest.fixture
def worker() -> Iterator[WorkerLoop]:
    """A worker with threads, in this process."""
    stop, loop = threading.Event(), WorkerLoop()
    thread = threading.Thread(target=loop.run, args=[stop])
    thread.start()
    yield loop
    stop.set()
    thread.join(30)


def test_results_heartbeats_and_errors_fail_their_own_attempt(worker: WorkerLoop) -> None:
    runs = {
        (what, name): Returning.start({"what": what, "name": name}) for what in ("result", "beat") for name in EVERY
    }
    runs |= {("error", name): Returning.start({"what": "error", "name": name}) for name in ("evil", "text", "large")}
    found = {key: handle.result(timeout=60) for key, handle in runs.items()}
    for name, value in KEPT.items():
        assert found["result", name] == value
        assert found["beat", name] == 1
    for name in REFUSED:
        assert found["result", name]["failed"] == "PayloadError"
        assert found["result", name]["why"].startswith(f"the result of {nasty_result.name} ")
        assert found["beat", name]["failed"] == "PayloadError"
    assert found["error", "text"] == {"failed": "ValueError", "why": "a\\x00b \\ud800"}
    assert found["error", "evil"]["failed"] == "EvilError"
    assert len(found["error", "large"]["why"]) < 60_000
    assert not ActivityTask.objects.exists()


@pytest.mark.parametrize("what", ["publish", "fail", "call", "complete"])
def test_what_a_run_emits_hurts_itself_alone(what: str) -> None:
    runs = {name: Emitting.start({"what": what, "name": name}) for name in EVERY}
    good = Noting.start()
    for handle in (*runs.values(), good):
        drain()
        try:
            handle.signal("note", 1)
        except errors.WorkflowClosed:
            assert what == "fail" or handle.status == "failed"
    good.signal("done")
    drain()
    assert good.result() == [1]
    assert {runs[name].status for name in REFUSED} == {"failed"}
    assert {runs[name].status for name in KEPT} == {"failed" if what == "fail" else "completed"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_client_sends_is_refused_at_once(name: str) -> None:
    value, handle = REFUSED[name], Noting.start(id="n-1")
    for send in (
        lambda: Noting.start(value),
        lambda: handle.signal("note", value),
        lambda: handle.update("note", value),
        lambda: Noting.signal_with_start("note", value, id="n-2"),
    ):
        with pytest.raises(errors.PayloadError):
            send()
    handle.signal("note", 1)
    handle.signal("done")
    drain()
    assert handle.result() == [1]


def test_what_can_be_kept_arrives_as_it_was_sent() -> None:
    handle = Noting.start()
    for value in KEPT.values():
        handle.signal("note", value)
    handle.signal("done")
    drain()
    assert handle.result() == list(KEPT.values())


def test_a_reason_that_is_no_text_is_refused_at_once() -> None:
    handle = Noting.start()
    for end in (handle.cancel, handle.terminate):
        with pytest.raises(errors.PayloadError, match="the reason"):
            end(3)  # type: ignore[arg-type]
    handle.terminate("enough \U0001f600")
    assert handle.status == "terminated"


@pytest.mark.parametrize("reason", ["a\x00b", "\ud800", "x" * 3_000_000], ids=["nul", "surrogate", "long"])
def test_a_reason_is_stored_without_what_a_database_refuses(reason: str) -> None:
    handle = Noting.start()
    handle.terminate(reason)
    assert handle.status == "terminated"
    assert Instance.objects.get().closing_value == {"reason": fit_note(reason, label="the reason")}


class Choosy(JsonCodec):
    """A codec that fails where nobody expects it."""

    def encode(self, value: Any) -> bytes:
        if isinstance(value, dict) and isinstance(value.get("result"), dict) and "poison" in value["result"]:
            raise LookupError("the key store is angry")
        return super().encode(value)


def test_an_end_that_the_codec_refuses_fails_its_attempt(settings: Any) -> None:
    settings.TEMPORALEX = {"PAYLOAD_CODEC": f"{__name__}.Choosy"}
    bad = Returning.start({"what": "poison", "name": "x"})
    good = Returning.start({"what": "result", "name": "truth"})
    drain()
    assert good.result() is True
    found = bad.result()
    assert found["failed"] == "PayloadError"
    assert found["why"].startswith(f"the result of {poisoned.name} cannot be stored: ")
    assert "LookupError" in found["why"]


class Locked(JsonCodec):
    """A codec that lacks a key for some values."""

    def encode(self, value: Any) -> bytes:
        if isinstance(value, dict) and isinstance(value.get("result"), dict) and "poison" in value["result"]:
            raise errors.KeyMissing("k-1")
        return super().encode(value)


@pytest.mark.parametrize("name", ["poisoned", "nested"])
def test_what_an_atomic_activity_gives_and_the_codec_refuses_fails_its_attempt(settings: Any, name: str) -> None:
    """Nothing of what it wrote is kept, and its run goes on."""
    settings.TEMPORALEX = {"PAYLOAD_CODEC": f"{__name__}.Choosy"}
    bad, good = Booking.start({"what": name}), Booking.start({"what": "fine"})
    drain()
    assert good.result() == {"fine": 1}
    found = bad.result()
    assert found["failed"] == "PayloadError"
    assert found["why"].startswith(f"the result of {booked.name} ")
    assert ("LookupError" if name == "poisoned" else "at `$.nested[0]`") in found["why"]
    assert list(Group.objects.values_list("name", flat=True)) == ["fine"]


def test_what_an_atomic_activity_gives_waits_for_a_worker_with_the_key(settings: Any) -> None:
    settings.TEMPORALEX = {"PAYLOAD_CODEC": f"{__name__}.Locked"}
    run = Booking.start({"what": "poisoned"})
    drain()
    assert (run.describe().closed_at, Group.objects.exists()) == (None, False)

    settings.TEMPORALEX = {}
    wait_for(lambda: drain() >= 0 and run.status == "completed", what="the run to be offered again")
    assert run.result() == {"poison": 1}
    assert Group.objects.count() == 1


@pytest.mark.usefixtures("unhurried")
def test_a_batch_with_an_end_that_cannot_be_written_is_stored_one_by_one(monkeypatch: Any) -> None:
    """Whatever the reason: here the database, which nobody can foresee."""
    from temporalex_django.db.activity_tasks import ActivityTasks

    def guarded(name: str) -> None:
        store = getattr(ActivityTasks, name)

        def stored(self: ActivityTasks, results: Any) -> Any:
            for result in results:
                if result.outcome and "poison" in str(result.outcome[1].get("result")):
                    raise ValueError("a value that no column takes")
            return store(self, results)

        monkeypatch.setattr(ActivityTasks, name, stored)

    guarded("finish_tasks")
    guarded("submit_finish")
    good = [Returning.start({"what": "result", "name": "truth"}) for _ in range(3)]
    bad = Returning.start({"what": "poison", "name": "x"})
    drain()
    assert [handle.result() for handle in good] == [True] * 3
    why = f"the result of {poisoned.name} cannot be stored: a value that no column takes"
    assert bad.result()["why"] == why
    # a worker that somebody drains does so, too, one that is cautious, and one that leaves
    for way in ("drained", "cautious", "leaves"):
        worker = WorkerLoop(inline=True)
        good, bad = (
            [Returning.start({"what": "result", "name": "truth"}) for _ in range(3)],
            Returning.start({"what": "poison", "name": "x"}),
        )
        worker.engine.turn(limit=10, queues=worker.queues)
        worker.pool.submit(worker.turn_runner.claim_tasks(Capacity(threads=10)))
        assert worker.pool.busy == 4
        if way == "leaves":
            worker._shut_down(None, hurried=True)
        else:
            worker.row.drained_at = worker.row.now() if way == "drained" else None
            worker.poller.caution = way == "cautious"
            worker.poll()
            worker.marker.close()
        assert not worker.pool.busy
        assert ActivityTask.objects.filter(owner=worker.row.epoch).count() == 0
        drain()
        assert ([handle.result() for handle in good], bad.result()["why"]) == ([True] * 3, why), way
