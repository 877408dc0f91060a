"""A paused run stands still: what comes meanwhile waits, and is there when it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import ContinueAsNew, NoReply, Ok, Reply, Stop, Workflow, api, errors, query
from tests.support.runs import broken, events, flow, kinds, once, work


class PausedKid(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class PausedShown(Workflow):
    @query("seen")
    @staticmethod
    def seen(state: Any) -> Any:
        return state["seen"]

    async def run(self, args: Any) -> Any:
        api.publish_state({"seen": 4})
        return Ok(await api.sleep(60))


def counting() -> Any:
    async def run(self: Any, args: Any) -> Ok[Any]:
        def add(n: int, state: Any) -> Any:
            return (Stop if n == 0 else NoReply)([*state, n])

        def put(n: int, state: Any) -> Any:
            return Reply(n, [*state, n])

        return Ok(await api.phase([], signal={"add": add}, update={"put": put}))

    return flow(run)


def test_signals_wait_in_order_for_a_run_that_is_paused(env: Any) -> None:
    h = env.start(counting())
    h.signal("add", 1)
    before = kinds(h)
    h.pause("bank holiday")
    h.signal("add", 2)
    h.signal("add", 0)

    assert kinds(h) == before
    assert h.status == "waiting"
    mark = h.describe().paused
    assert mark == {"since": env.clock.isoformat(), "reason": "bank holiday", "by": None}
    h.unpause()
    assert h.result() == [1, 2, 0]
    assert h.describe().paused is None


def test_an_update_is_refused_at_once_and_its_id_stays_free(env: Any) -> None:
    h = env.start(counting())
    assert h.update("put", 1, id="first") == 1
    h.pause()

    with pytest.raises(errors.RunPaused, match="paused"):
        h.update("put", 2, id="again")
    assert h.update("put", 1, id="first") == 1
    h.unpause()
    assert h.update("put", 2, id="again") == 2
    h.signal("add", 0)
    assert h.result() == [1, 2, 0]


def test_a_due_timer_fires_when_it_goes_on(env: Any) -> None:
    h = env.start(once(lambda: api.sleep(60)))
    h.pause()
    env.advance(3600)

    assert h.status == "waiting"
    assert events(h, "TimerFired") == []
    h.unpause()
    assert h.status == "completed"


def test_a_timer_that_is_not_due_yet_keeps_its_time(env: Any) -> None:
    h = env.start(once(lambda: api.sleep(60)))
    h.pause()
    env.advance(30)
    h.unpause()
    env.advance(29)
    assert h.status == "waiting"
    env.advance(1)
    assert h.status == "completed"


def test_an_activity_under_way_ends_and_its_result_waits(env: Any) -> None:
    env.hold(work)
    h = env.start(once(lambda: work(1)))
    h.pause()
    env.complete(work, 7)

    assert events(h, "ActivityCompleted") == []
    h.unpause()
    assert h.result() == 7


def test_a_cancel_request_waits_and_a_termination_does_not(env: Any) -> None:
    asked, ended = (env.start(once(lambda: api.sleep(60)), id=name) for name in ("asked", "ended"))
    for h in (asked, ended):
        h.pause("wait")
    asked.cancel()
    ended.terminate("enough")

    assert (asked.status, ended.status) == ("waiting", "terminated")
    assert ended.describe().paused is None
    asked.unpause()
    assert asked.status == "cancelled"


def test_a_parent_hears_of_its_child_when_it_goes_on(env: Any) -> None:
    h = env.start(once(lambda: api.child(PausedKid, id="kid")))
    h.pause()
    env.handle("kid").signal("go", 5)

    assert env.handle("kid").status == "completed"
    assert h.status == "running"
    h.unpause()
    assert h.result() == 5


def test_a_paused_child_is_closed_with_its_parent(env: Any) -> None:
    h = env.start(once(lambda: api.child(PausedKid, id="kid", parent_close="terminate")))
    env.handle("kid").pause()
    h.terminate()

    assert env.handle("kid").status == "terminated"


def test_it_goes_on_as_new_only_afterwards_and_then_is_not_paused(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        if args:
            return Ok(args)
        return ContinueAsNew(await api.wait_for_signal("next"))

    h = env.start(flow(run))
    h.pause()
    h.signal("next", 3)
    assert len(h.run_ids) == 1

    h.unpause()
    assert (len(h.run_ids), h.result()) == (2, 3)
    assert h.describe().paused is None


def test_a_run_that_is_paused_before_its_first_turn(env: Any) -> None:
    with env.batch():
        h = env.start(once(lambda: work(4)))
        h.pause()
    assert (h.status, h.history()) == ("pending", [])

    h.unpause()
    assert h.result() == 4


def test_a_run_that_is_out_of_time_ends_when_it_goes_on(env: Any) -> None:
    h = env.start(flow(once(lambda: api.sleep(600)).run, execution_timeout=60))
    h.pause()
    env.advance(120)
    assert h.status == "waiting"

    h.unpause()
    assert h.status == "timed_out"


def test_a_blocked_run_is_not_tried_while_it_is_paused(env: Any) -> None:
    wrong = [True]

    async def run(self: Any, args: Any) -> Any:
        await api.wait_for_signal("go")
        if wrong[0]:
            raise MemoryError
        return Ok("right")

    h = env.start(flow(run))
    h.signal("go")
    assert h.describe().blocked is not None
    h.pause()
    wrong[0] = False
    env.advance(3600)
    assert h.describe().blocked is not None

    h.unpause()
    assert h.result() == "right"


def test_queries_are_answered(env: Any) -> None:
    h = env.start(PausedShown)
    h.pause()

    assert h.query("seen") == 4
    assert h.describe().status == "waiting"


def test_retries_of_an_activity_go_on(env: Any) -> None:
    tried: list[int] = []

    def stand_in(value: Any = None) -> Any:
        tried.append(1)
        if len(tried) < 3:
            raise ValueError
        return "at last"

    env.mock(broken, stand_in)
    h = env.start(once(lambda: broken(1)))
    h.pause()
    env.advance(3600)

    assert (len(tried), h.status) == (3, "running")
    h.unpause()
    assert h.result() == "at last"


def test_what_cannot_be_done_says_why(env: Any) -> None:
    h = env.start(once(lambda: api.sleep(60)))

    with pytest.raises(errors.ActionNotPossible, match="the run is not paused"):
        h.unpause()
    h.pause()
    with pytest.raises(errors.ActionNotPossible, match="the run is already paused"):
        h.pause()
    h.unpause()
    h.terminate()
    for name in ("pause", "unpause"):
        with pytest.raises(errors.WorkflowClosed, match="already closed"):
            getattr(h, name)()
