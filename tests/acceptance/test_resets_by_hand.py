"""What somebody has done to a run is not undone by a reset or a fork without a word."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import (
    Ok,
    Reply,
    RetryPolicy,
    Stop,
    Workflow,
    activity,
    activity_context,
    api,
    errors,
    query,
)
from temporalex_django.authoring import activity as activities
from tests.acceptance.test_operator_overrides import FAILING, SEEN, HandGraph
from tests.support.people import person
from tests.support.runs import events, kinds, once, work

#: Amounts with the key of each attempt.
TRIED: list[tuple[int, str]] = []


@activity(retry=RetryPolicy(initial_interval=3600.0))
def refunded(amount: int, note: str = "") -> int:
    del note
    TRIED.append((amount, activity_context().idempotency_key))
    if amount < 0:
        raise ConnectionError("refused")
    return amount


@pytest.fixture(autouse=True)
def _nothing_was_tried() -> None:
    TRIED.clear()


def given_by_hand(handle: Any) -> list[Any]:
    return [event.get("edited") for event in events(handle, "ActivityCompleted")]


def test_an_input_that_was_edited_stays_with_its_key(env: Any) -> None:
    """While it is tried, when its end is behind the point, and from reset to reset."""
    ann = person(
        env,
        "ann",
        *(
            f"temporalex_django.{code}"
            for code in ("retry_activity", "edit_activity_input", "view_payload", "view_instance")
        ),
    )
    h = env.start(once(lambda: refunded(-1)))
    h.retry_activity(1, input={"amount": -2}, by=ann)
    (old, key), (_, edited) = TRIED[0], TRIED[1]
    assert (old, TRIED[1][0]) == (-1, -2)
    assert key != edited

    h.reset(1)
    fork = h.fork(1)
    h.reset(2)  # behind its mark, which has it
    assert TRIED[2:] == [(-2, edited)] * 3
    for run in (h, fork):
        mark = events(run, "ActivationStarted")[-1]["copied"]["edited"]["1"]
        assert (mark["kwargs"], mark["key"], mark["by"]["name"]) == ({"amount": -2}, edited, "ann")

    h.retry_activity(1, input=[3])
    assert h.result() == 3
    again = TRIED[-1]
    for reset in (lambda: h.reset(1), lambda: h.reset(2), lambda: h.reset(3)):  # before both marks, and behind each
        reset()
        assert (h.result(), TRIED[-1]) == (3, again)
        assert given_by_hand(h) == [{"args": [3], "kwargs": {}, "key": again[1], "by": None}]

    fork.reset(1, edited={1: [4]})  # he says otherwise now
    assert (fork.result(), TRIED[-1]) == (4, (4, f"{fork.run_id}:1"))


def test_an_input_that_was_edited_outlives_a_run_that_closed_meanwhile(env: Any) -> None:
    """By somebody outside, by its deadline, and by its own code."""
    closed = {
        "terminated": env.start(once(lambda: refunded(-1), name="test.EditedAndEnded")),
        "timed_out": env.start(once(lambda: refunded(-1), name="test.EditedAndLate", run_timeout=50)),
        "cancelled": env.start(once(lambda: refunded(-1), name="test.EditedAndCancelled")),
    }
    for h in closed.values():
        h.retry_activity(1, input=[-2])
    keys = dict(zip(closed, [key for amount, key in TRIED if amount == -2], strict=True))
    closed["terminated"].terminate("by mistake")
    env.advance(60)
    closed["cancelled"].cancel()

    for status, h in closed.items():
        run_id, key = h.run_id, keys[status]
        assert (h.status, h.history()[-1].attributes["edited"]["1"]["args"]) == (status, [-2])
        h.reset(len(events(h, "ActivationStarted")) - (status == "cancelled"))
        assert TRIED[-1] == (-2, key)
        fork = env.handle(run_id).fork()
        assert TRIED[-1] == (-2, key)
        for left in (fork, h):
            left.terminate()


def test_an_input_that_was_edited_outlives_an_activity_that_the_run_gave_up(env: Any) -> None:
    async def body() -> Any:
        await api.race(lambda: refunded(-1), lambda: api.wait_for_signal("on"))
        return await api.wait_for_signal("go")

    h = env.start(once(body, name="test.EditedAndGivenUp"))
    h.retry_activity(1, input=[-2])
    _, key = TRIED[-1]
    h.signal("on")
    (cancelled,) = events(h, "ActivityCancelled")
    assert (cancelled["edited"]["args"], cancelled["edited"]["key"]) == ([-2], key)
    h.reset(1, messages="drop")
    assert (len(TRIED), TRIED[-1]) == (3, (-2, key))
    h.terminate()


def test_what_was_done_by_hand_and_nobody_has_read_comes_again(env: Any) -> None:
    async def body() -> list[Any]:
        return await api.parallel([lambda: refunded(-1), lambda: api.sleep(10_000), lambda: work("third")])

    def done_by_hand() -> Any:
        h = env.start(once(body, name="test.MendedByHand"))
        h.pause("to mend it")
        h.complete_activity(1, 7, reason="in cash")
        h.skip_timer(2)
        return h

    h = done_by_hand()
    fork, edited = h.fork(1), h.fork(1, edited={1: [8]})
    with env.batch():
        h.reset(1)
        with pytest.raises(errors.ActionNotPossible, match="somebody has already fired it"):
            h.skip_timer(2)
    for run in (h, fork):
        assert run.result() == [7, None, "third"]
        assert events(run, "ActivityCompleted")[0] == {"seq": 1, "result": 7, "by": None}
        assert events(run, "TimerFired") == [{"seq": 2, "by": None}]
    assert edited.result() == [8, None, "third"]
    assert [amount for amount, _ in TRIED] == [-1, 8]

    failed = done_by_hand()
    failed.reset(0)  # nothing was open at the start: all of it is done anew
    assert [amount for amount, _ in TRIED] == [-1, 8, -1, -1]
    assert failed.status == "running"

    closed = done_by_hand()
    closed.terminate("to tidy up")  # it never read them
    fork = closed.fork(1)
    closed.reset(1)
    for run in (closed, fork):
        assert run.result() == [7, None, "third"]
    assert len(TRIED) == 5

    ended = env.start(once(lambda: refunded(-1), name="test.EndedByHand"))
    with env.batch():
        ended.fail_activity(1, "no money", type="NoMoney")
        ended.reset(1)
    assert events(ended, "ActivityFailed")[0]["type"] == "NoMoney"
    assert ended.status == "failed"


class Showing(Workflow):
    name = "test.ShowingOfReset"

    @query("state")
    @staticmethod
    def state(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Ok[Any]:
        api.publish_state({"at": await api.wait_for_signal("go")})
        return Ok(await api.wait_for_signal("end"))


@pytest.mark.parametrize("to", [0, 1])
def test_a_pause_and_a_state_end_with_the_old_run(env: Any, to: int) -> None:
    h = env.start(Showing)
    h.signal("go", 1)
    assert h.query("state") == {"at": 1}
    h.pause("holiday")
    old = env.handle(h.run_id)

    with env.batch():
        h.reset(to, messages="drop")
        assert h.query("state") is None
    assert (old.describe()["paused"], h.describe()["paused"]) == (None, None)
    assert (old.status, h.status) == ("terminated", "waiting")
    h.pause("again")  # it is not paused
    h.unpause()
    h.signal("go", 2)
    assert h.query("state") == {"at": 2}
    h.signal("end", 3)
    assert h.result() == 3


@pytest.mark.parametrize("call", [["no int"], [], {"kwargs": {"amount": 1, "colour": 2}}])
def test_an_edited_input_is_to_fit_the_activity(env: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    h = env.start(once(lambda: refunded(-1)))
    run = h.run_id
    for take_up in (h.reset, h.fork):
        with pytest.raises(errors.PayloadError, match="edited input of activity 1 does not fit"):
            take_up(1, edited={1: call})
        with monkeypatch.context() as patched:
            patched.delitem(activities.registry, refunded.name)
            with pytest.raises(errors.ActionNotPossible, match="lacks the code"):
                take_up(1, edited={1: call})
    assert (h.run_id, h.status, len(TRIED)) == (run, "running", 1)
    h.reset(1, edited={1: {"kwargs": {"amount": 5, "note": "mended"}}})
    assert h.result() == 5


class Slowly(Workflow):
    name = "test.SlowlyUpdated"

    async def run(self, args: Any) -> Ok[Any]:
        async def slow(value: Any, state: Any) -> Any:
            return Reply(await work(value), [*state, value])

        return Ok(await api.phase([], signal={"stop": lambda _, state: Stop(state)}, update={"slow": slow}))


def test_a_fork_knows_the_updates_that_it_has_behind_it(env: Any) -> None:
    """Sent again with their ids they are not taken twice; each chain has its own end of one that is under way."""
    env.hold(work)
    h = env.start(Slowly)
    done = h.update_async("slow", 1, id="done")
    env.complete(work, "one")
    failed = h.update_async("slow", 2, id="failed")
    env.fail(work, ValueError("no"))
    under_way = h.update_async("slow", 3, id="under-way")
    fork = h.fork(h.history()[-1].activation)

    before = kinds(fork)
    assert fork.update("slow", 1, id="done") == done.result() == "one"
    messages = []
    for one in (failed, fork.update_async("slow", 2, id="failed")):
        with pytest.raises(errors.UpdateFailed) as caught:
            one.result()
        messages.append(str(caught.value).replace(fork.id, h.id))
    assert messages[0] == messages[1]
    again = fork.update_async("slow", 3, id="under-way")
    assert (again.accepted, again.done) == (True, False)
    assert kinds(fork) == before

    env.complete(work, "trunk's")
    env.complete(work, "fork's")
    assert (under_way.result(), again.result()) == ("trunk's", "fork's")
    fork.signal("stop")
    assert fork.result() == [1, 3]
    with pytest.raises(errors.UpdateTimeout):
        h.fork(1, messages="drop").update("slow", 1, id="done")  # accepted behind the point: it never was


def test_a_step_keeps_its_config_and_its_event(env: Any) -> None:
    SEEN.clear()
    FAILING[:] = [True]
    h = env.start(HandGraph, {}, value="1")
    (scheduled,) = events(h, "ActivityScheduled")
    seq, at = scheduled["seq"], h.history()[-1].activation
    h.retry_activity(seq, input={"how": "cash"})
    h.reset(at)
    FAILING[:] = [False]
    assert h.fork(at, id="handgraph::2").status == "completed"
    assert [dict(config)["how"] for config, *_ in SEEN] == ["card", "cash", "cash", "cash"]
    assert len({key for *_, key in SEEN[1:]}) == 1 < len({key for *_, key in SEEN})

    h.pause("it is paid")
    h.complete_activity(seq, {"event": "refused"})
    h.reset(at)
    assert (h.status, len(SEEN)) == ("completed", 4)
    assert events(h, "ActivityCompleted")[0]["result"]["event"] == "refused"
