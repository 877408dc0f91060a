"""``phase(…, publish=…)``: queries read the present state of the phase, on every host."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from temporalex_django import Async, ContinueAsNew, Err, NoReply, Ok, Reply, Stop, Workflow, api, errors, query, update
from tests.support.runs import flow, kinds, produced, work


def add(item: Any, items: list[Any]) -> Reply[int, list[Any]]:
    return Reply(len(items) + 1, [*items, item])


def same(_: Any, items: list[Any]) -> Reply[int, list[Any]]:
    return Reply(len(items), items)


def refuse_none(item: Any, items: list[Any]) -> Err[str] | None:
    items.append("seen by the validator alone")
    return Err("nothing to add") if item is None else None


def broken(_: Any, items: list[Any]) -> Reply[Any, Any]:
    items.append("of a handler that fails")
    raise ValueError("broken")


class Basket(Workflow):
    @query("items")
    @staticmethod
    def items(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Ok[Any]:
        items = await api.phase(
            args or [],
            update={
                "add": update(add, validator=refuse_none),
                "same": same,
                "broken": broken,
                "put": lambda value, _: Reply(None, value),
                "set": lambda value, items: Reply(None, [*items, Decimal(value)]),
            },
            signal={
                "note": lambda note, items: NoReply([*items, note]),
                "spoil": lambda _, items: NoReply([*items, {1, 2}]),
                "close": lambda _, items: Stop([*items, "closed"]),
            },
            publish=True,
        )
        await work()
        return Ok(items)


def row(env: Any, h: Any) -> Any:
    return env.row(env.run_ids(h.chain_id)[-1])


def published_at(env: Any, h: Any) -> Any:
    return row(env, h).column("published_at")


def test_queries_read_the_state_of_the_phase_as_it_is(env):
    env.hold(work)
    h = env.start(Basket, ["first"])

    assert h.query("items") == ["first"]
    began = published_at(env, h)
    assert began is not None
    env.advance(60)
    assert h.update("add", "tea") == 2
    assert h.query("items") == ["first", "tea"]
    assert (published_at(env, h) - began).total_seconds() >= 60
    h.signal("note", "a gift")
    assert h.query("items") == ["first", "tea", "a gift"]
    h.signal("close")
    assert h.query("items") == ["first", "tea", "a gift", "closed"]
    env.complete(work)
    assert h.result() == h.query("items")


def test_what_changes_nothing_publishes_nothing(env):
    h = env.start(Basket, ["first"])
    began = published_at(env, h)
    env.advance(60)

    assert h.update("same") == 1
    with pytest.raises(errors.UpdateRejected, match="nothing to add"):
        h.update("add", None)
    with pytest.raises(errors.UpdateFailed, match="broken"):
        h.update("broken")

    assert (h.query("items"), published_at(env, h)) == (["first"], began)
    # It is no event: the history is that of a phase that publishes nothing.
    assert set(kinds(h)) <= {"UpdateAccepted", "UpdateCompleted", "UpdateFailed"}
    # Equal is not the same.
    for value in (1, True, {"a": 1, "b": 2}, {"b": 2, "a": 1}):
        h.update("put", value)
        assert repr(h.query("items")) == repr(value)


def test_a_state_that_cannot_be_encoded_fails_its_handler_and_stays(env):
    h = env.start(Basket, ["first"])

    with pytest.raises(errors.UpdateFailed, match=r"a Decimal at `\$\[1\]`.*let publish= be a function"):
        h.update("set", "1.50")
    h.signal("spoil")
    assert [failed.type for failed in h.describe().failed_messages] == ["PayloadError"]
    assert h.query("items") == ["first"]
    assert h.update("add", "tea") == 2
    assert h.query("items") == ["first", "tea"]


def test_a_function_says_what_is_published(env):
    def total(state: dict[str, Any]) -> Any:
        if state["sum"] < 0:
            raise LookupError("no total")
        if state["sum"] == 13:
            return api.random()
        state["sum"] += 100  # a copy
        return {"total": str(state["sum"]), "at": api.now().year}

    class Totals(Workflow):
        @query("total")
        @staticmethod
        def total(state: Any) -> Any:
            return state["total"]

        async def run(self, args: Any) -> Ok[Any]:
            put = {"put": lambda n, state: Reply(str(state["sum"]), {"sum": Decimal(n)})}
            return Ok(str(await api.phase({"sum": Decimal(1)}, update=put, timeout=60, publish=total)))

    h = env.start(Totals)

    assert h.query("total") == "101"
    assert h.update("put", 5) == "1"
    assert h.query("total") == "105"
    with pytest.raises(errors.UpdateFailed, match="publishes the state raised LookupError: 'no total'|no total"):
        h.update("put", -1)
    with pytest.raises(errors.UpdateFailed, match="random is not allowed in a publish function"):
        h.update("put", 13)
    assert h.query("total") == "105"
    assert h.update("put", 6) == "5"
    env.advance(60)
    assert "Decimal('6')" in h.result() and h.query("total") == "106"


def test_async_handlers_publish_each_change(env):
    env.hold(work)

    def restock(n: int, state: dict[str, Any]) -> Async[Any, Any]:
        async def later() -> str:
            await work()
            try:
                await api.update_state(lambda now: (None, {"stock": {n}}))
            except errors.PayloadError:
                await api.update_state(lambda now: (None, {"stock": now["stock"] + n}))
            return "restocked"

        return Async(later, {**state, "ordered": n})

    class Stock(Workflow):
        @query("stock")
        @staticmethod
        def stock(state: Any) -> Any:
            return state

        async def run(self, args: Any) -> Ok[Any]:
            close = {"close": lambda _, state: Stop(state)}
            return Ok(await api.phase({"stock": 1}, update={"restock": restock}, signal=close, publish=True))

    h = env.start(Stock)
    sent = h.update_async("restock", 4)
    assert h.query("stock") == {"stock": 1, "ordered": 4}
    h.signal("close")
    env.complete(work)

    assert sent.result() == "restocked"
    assert h.query("stock") == h.result() == {"stock": 5}


class CountedDown(Workflow):
    @query("count")
    @staticmethod
    def count(state: Any) -> Any:
        return state

    async def run(self, args: int | None) -> Ok[int] | ContinueAsNew:
        count = await api.phase(
            args or 0,
            update={"more": lambda n, count: Reply(count + n, count + n)},
            signal={"again": lambda _, count: Stop(count)},
            publish=True,
        )
        return ContinueAsNew(count) if count < 10 else Ok(count)


def test_the_next_run_publishes_again(env):
    h = env.start(CountedDown)
    assert h.update("more", 3) == 3
    first_run, first = h.run_id, published_at(env, h)
    env.advance(60)
    h.signal("again")

    assert h.run_id != first_run and h.query("count") == 3
    assert published_at(env, h) > first
    h.update("more", 7)
    assert h.query("count") == 10
    h.signal("again")
    assert (h.result(), h.query("count")) == (10, 10)


@pytest.mark.hosts("memory", "memory-evicted", "database", "database-evicted")
def test_a_reset_goes_back_to_the_state_of_its_point(env):
    h = env.start(CountedDown)
    h.update("more", 1)
    at = published_at(env, h)
    point = max(event.activation for event in h.history())
    env.advance(60)
    h.update("more", 2)
    fork = h.fork(to=point, messages="drop", id="fork")
    h.reset(to=point, messages="drop")

    for handle in (h, fork):
        assert handle.query("count") == 1
        assert published_at(env, handle) == at
        assert handle.update("more", 5) == 6
        assert handle.query("count") == 6
    assert [event.kind for event in h.history()].count("UpdateCompleted") == 2


def test_code_that_publishes_itself_counts_until_the_state_changes(env):
    def own(value: Any, state: int) -> Reply[None, int]:
        api.publish_state({"own": value})
        return Reply(None, state + (value == "change"))

    class Mixed(Workflow):
        @query("state")
        @staticmethod
        def state(state: Any) -> Any:
            return state

        async def run(self, args: Any) -> Ok[Any]:
            close = {"close": lambda _, state: Stop(state)}
            await api.phase(7, update={"own": own}, signal=close, publish=True)
            await api.phase(8, signal=close)
            return Ok(await api.phase(8, signal=close, publish=lambda state: [state]))

    h = env.start(Mixed)
    h.update("own", "keep")
    assert h.query("state") == {"own": "keep"}
    h.update("own", "change")
    assert h.query("state") == 8
    h.signal("close")  # the phase that follows publishes nothing
    assert h.query("state") == 8
    h.signal("close")
    assert h.query("state") == [8]


def test_a_phase_that_cannot_publish_its_first_state_does_not_open(env):
    async def run(self, args):
        try:
            await api.phase({1, 2}, timeout=60, publish=True)
        except errors.PayloadError as exc:
            first = str(exc)
        for wrong in (1, "yes", work_async):
            with pytest.raises(errors.WorkflowDefinitionError, match="publish is True, False or a plain function"):
                api.phase(0, timeout=60, publish=wrong)
        with pytest.raises(errors.PayloadError, match="must be a plain one"):
            await api.phase(0, timeout=60, publish=lambda state: work_async(state))
        return Ok(first)

    h = env.start(flow(run))

    assert "the published state of the phase has a set" in h.result()
    assert "StartTimer" not in [command.kind for command in produced(env)]


async def work_async(state: Any) -> Any:
    return state
