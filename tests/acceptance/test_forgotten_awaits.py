"""A call that nobody awaited acts nowhere: it is refused where it is used, or found at the next wait."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

from temporalex_django import Async, NoReply, Ok, Reply, Stop, activity, api, errors
from tests.support.runs import events, flow, kinds, other, work

DONE: list[Any] = []


@activity(atomic=True)
def refund_row(value: Any) -> Any:
    DONE.append(value)
    return value


@activity
def is_allowed(value: Any) -> bool:
    return False


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


USES: dict[str, Any] = {
    "bool": lambda call: "yes" if call else "no",
    "not": lambda call: not call,
    "and": lambda call: call and 1,
    "==": lambda call: call == 1,
    "== from the right": lambda call: 1 == call,  # noqa: SIM300 - the other side is meant
    "!=": lambda call: call != 1,
    "<": lambda call: call < 1,
    ">=": lambda call: call >= 1,
    "in": lambda call: 1 in call,
    "among others": lambda call: call in [1, 2],
    "for": lambda call: [one for one in call],  # noqa: C416 - iteration is meant
    "unpacking": lambda call: max(*call),
    "next": lambda call: next(call),
    "len": lambda call: len(call),
    "subscript": lambda call: call["key"],
    "attribute": lambda call: call.total,
    "+": lambda call: call + 1,
    "+ from the right": lambda call: 1 + call,
    "-": lambda call: -call,
    "*": lambda call: 2 * call,
    "/": lambda call: call / 2,
    "%": lambda call: call % 2,
    "|": lambda call: call | {1},
    "abs": lambda call: abs(call),
    "round": lambda call: round(call),
    "int": lambda call: int(call),
    "float": lambda call: float(call),
    "range": lambda call: range(call),
    "sum": lambda call: sum([call]),
    "sorted": lambda call: sorted([call, 1]),
    "str": lambda call: str(call),
    "format": lambda call: f"{call}",
    "format with a width": lambda call: f"{call:>10}",
    "%s": lambda call: "%s" % (call,),  # noqa: UP031 - what is meant
    "copy": lambda call: copy.deepcopy(call),
    "argument": lambda call: other(call),
    "argument in a list": lambda call: other([{"a": call}]),
    "dict of activities": lambda call: dict(call),
}


@pytest.mark.parametrize("use", USES)
def test_what_was_not_awaited_has_no_value(env: Any, use: str) -> None:
    """The line that uses a call as if it were its result raises, with the sentence that says to await it."""
    seen: list[str] = []

    async def run(self: Any, args: Any) -> Any:
        call = is_allowed(1)
        try:
            USES[use](call)
        except errors.NotAwaited as exc:
            seen.append(str(exc))
        return Ok(await call)

    assert env.start(flow(run)).result() is False
    assert seen
    assert all("write `await tests.acceptance.test_forgotten_awaits.is_allowed(...)`" in said for said in seen)


def test_condition_that_forgets_await_does_not_act(env: Any) -> None:
    """The run fails before the row is written."""

    async def run(self: Any, args: Any) -> Any:
        if is_allowed(args):  # type: ignore[truthy-bool] # what a checker finds, too
            await refund_row(args)
        return Ok()

    with pytest.raises(errors.WorkflowFailed, match=r"NotAwaited.*is_allowed.*write `await"):
        env.start(flow(run), 5).result()
    assert DONE == []


def test_call_is_kept_shown_compared_by_identity_and_awaited_later(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        first, second = work(1), work(2)
        calls = {first: "first", second: "second"}
        shown = repr(first)
        assert first is first and first is not second  # noqa: PLR0124 - identity is meant
        assert first in [first, second]
        names = [calls[first], calls[second], len({first, second})]
        self.kept = first
        return Ok([shown, f"{first!r}" == shown, names, await second, await self.kept])

    shown, same, names, *values = env.start(flow(run)).result()
    assert shown == "<call of tests.support.runs.work, not awaited>"
    assert (same, names, values) == (True, ["first", "second", 2], [2, 1])


def test_parallel_and_race_take_calls(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        both = await api.parallel([work(1), api.sleep(1), other(2)])
        return Ok([both, await api.race(work(3), api.sleep(9))])

    h = env.start(flow(run))
    env.advance(1)
    assert h.result() == [[1, None, 2], [0, 3]]


def test_what_nothing_refers_to_is_found_at_the_next_wait(env: Any) -> None:
    """Before anything that the wait asks for is asked for."""

    async def run(self: Any, args: Any) -> Any:
        work("lost")
        await refund_row(args)
        return Ok()

    h = env.start(flow(run), 5)
    with pytest.raises(errors.WorkflowFailed, match=r"NotAwaited.*run called tests\.support\.runs\.work.*await"):
        h.result()
    assert DONE == []
    assert kinds(h) == ["WorkflowFailed"]


def test_what_was_dropped_while_its_unit_waited_is_found_at_the_wait_behind(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        self.kept = work("lost")
        await api.wait_for_signal("go")
        self.kept = None
        await other("never")
        return Ok()

    h = env.start(flow(run))
    h.signal("go")
    with pytest.raises(errors.WorkflowFailed, match="NotAwaited.*runs.work"):
        h.result()
    assert events(h, "ActivityScheduled") == []


def test_what_is_still_held_is_judged_at_the_end(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        held = work("held")
        await other("done")
        return Ok(held is None)

    h = env.start(flow(run))
    with pytest.raises(errors.WorkflowFailed, match="NotAwaited.*runs.work"):
        h.result()
    assert [one["activity"] for one in events(h, "ActivityScheduled")] == ["tests.support.runs.other"]


def test_compensations_run_and_the_run_fails_though_it_swallowed_the_error(env: Any) -> None:
    """Told once at a wait, so that what cleans up can wait, and again at the end."""

    async def run(self: Any, args: Any) -> Any:
        try:
            async with api.saga() as saga:
                saga.add(other, "undone")
                work("lost")
                await work("never")
        except errors.NotAwaited:
            pass
        return Ok("well")

    h = env.start(flow(run))
    with pytest.raises(errors.WorkflowFailed, match="NotAwaited.*runs.work"):
        h.result()
    assert [one["args"] for one in events(h, "ActivityScheduled")] == [["undone"]]


@pytest.mark.parametrize("name", ["shield", "saga"])
def test_block_that_was_dropped_is_found_at_the_next_wait(env: Any, name: str) -> None:
    async def run(self: Any, args: Any) -> Any:
        getattr(api, name)()
        await work("never")
        return Ok()

    h = env.start(flow(run))
    with pytest.raises(errors.WorkflowFailed, match=rf"NotAwaited.*async with {name}\(\)"):
        h.result()
    assert events(h, "ActivityScheduled") == []


def test_each_unit_is_told_of_its_own_calls(env: Any) -> None:
    """A branch that forgot one fails; the others go on."""

    async def careless() -> Any:
        work("lost")
        return await work("never")

    async def run(self: Any, args: Any) -> Any:
        return Ok([str(one) for one in await api.parallel([careless, lambda: other("well")])])

    failed, well = env.start(flow(run)).result()
    assert "NotAwaited" in failed
    assert well == "well"


def test_handlers_are_told_of_theirs(env: Any) -> None:
    async def look(args: Any, state: Any) -> Any:
        work("lost")
        return Reply(await other("never"), state)

    def background(args: Any, state: Any) -> Any:
        async def body() -> Any:
            work("lost")
            return await other("never")

        return Async(body, state)

    def compare(args: Any, state: Any) -> Any:
        return Reply("yes" if work(1) == 1 else "no", state)  # type: ignore[comparison-overlap] # as above

    async def run(self: Any, args: Any) -> Any:
        updates = {"look": look, "background": background, "compare": compare}
        await api.phase({}, signal={"stop": lambda _, s: Stop(s), "go": lambda _, s: NoReply(s)}, update=updates)
        return Ok()

    h = env.start(flow(run))
    for name in ("look", "background", "compare"):
        with pytest.raises(errors.UpdateFailed, match="NotAwaited.*runs.work"):
            h.update(name)
    h.signal("stop")
    assert h.result() is None
    assert events(h, "ActivityScheduled") == []


def test_collector_changes_nothing(env: Any) -> None:
    """A call in a cycle of garbage counts as held, whether the collector comes or not."""

    async def run(self: Any, args: Any) -> Any:
        def leave_a_cycle() -> None:
            cycle: list[Any] = [work("held")]
            cycle.append(cycle)

        leave_a_cycle()
        if args:
            gc.collect()
        await other("done")
        return Ok()

    for collected in (False, True):
        gc.disable()
        try:
            h = env.start(flow(run), collected, id=f"cycle-{collected}")
        finally:
            gc.enable()
        with pytest.raises(errors.WorkflowFailed, match="NotAwaited.*runs.work"):
            h.result()
        assert [one["args"] for one in events(h, "ActivityScheduled")] == [["done"]]
