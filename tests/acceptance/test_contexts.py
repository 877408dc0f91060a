"""Context variables, that of ``decimal`` included: one context a unit, and nothing goes in or out of a run."""

from __future__ import annotations

import decimal
from contextvars import ContextVar
from decimal import Decimal

import pytest

from temporalex_django import Async, Err, NoReply, Ok, Reply, Stop, Workflow, api, query, update
from tests.support.runs import flow, once, work

VAR: ContextVar[str] = ContextVar("var", default="unset")
DONE = {"done": lambda _, state: Stop(state)}


def third():
    return str(Decimal(1) / Decimal(3))


@pytest.fixture(autouse=True)
def _worker():
    """What the thread that runs the workflow has set is no affair of the workflow's, nor the other way round."""
    token = VAR.set("of the thread")
    with decimal.localcontext() as context:
        context.prec = 9
        yield
        assert (VAR.get(), third()) == ("of the thread", "0.333333333")
    VAR.reset(token)


WHOLE = "0.3333333333333333333333333333"


def test_a_run_begins_in_an_empty_context(env):
    """Of each unit, whatever sets it."""

    async def run(self, args):
        before = VAR.get(), third()
        VAR.set("of the run")
        decimal.getcontext().prec = 3
        await work()
        return Ok([*before, VAR.get(), third()])

    assert env.start(flow(run)).result() == ["unset", WHOLE, "of the run", "0.333"]


def test_branches_begin_with_a_copy_of_their_parents_and_keep_to_themselves(env):
    """Around an await, in any order of their steps."""

    async def branch(number):
        seen = [VAR.get(), third()]
        VAR.set(f"of branch {number}")
        with decimal.localcontext() as context:
            context.prec = number
            await api.sleep(10 - number)
            seen += [VAR.get(), third()]
        decimal.getcontext().prec += number
        await api.sleep(10)
        return [*seen, VAR.get(), third()]

    async def run(self, args):
        VAR.set("of the run")
        decimal.getcontext().prec = 4
        found = await api.parallel([lambda: branch(1), lambda: branch(2)])
        return Ok([*found, VAR.get(), third()])

    h = env.start(flow(run))
    env.advance(30)
    assert h.result() == [
        ["of the run", "0.3333", "of branch 1", "0.3", "of branch 1", "0.33333"],
        ["of the run", "0.3333", "of branch 2", "0.33", "of branch 2", "0.333333"],
        "of the run",
        "0.3333",
    ]


def test_runs_keep_to_themselves(env):
    """Two runs in one worker, inside each other's `localcontext`."""

    async def run(self, args):
        with decimal.localcontext() as context:
            context.prec = args
            VAR.set(f"of run {args}")
            await api.wait_for_signal("go")
            return Ok([VAR.get(), third()])

    cls = flow(run)
    first, second = env.start(cls, 2), env.start(cls, 5)
    first.signal("go")
    second.signal("go")
    assert first.result() == ["of run 2", "0.33"]
    assert second.result() == ["of run 5", "0.33333"]


@pytest.mark.parametrize("kind", ["plain", "sync", "async"])
@pytest.mark.parametrize("message", ["signal", "update"])
def test_handlers_are_units(env, kind, message):
    """A handler sees what `run` has set, and what it sets itself goes nowhere."""

    def answer(state):
        return Reply(None, state) if message == "update" else NoReply(state)

    def look():
        seen = VAR.get(), third()
        VAR.set("of a handler")
        decimal.getcontext().prec = 2
        return list(seen)

    def plain(_, state):
        return answer([*state, look()])

    async def sync(_, state):
        seen = look()
        await api.sleep(1)
        return answer([*state, seen])

    def background(_, state):
        async def later():
            seen = look()
            await api.sleep(1)
            await api.update_state(lambda s: (None, [*s, seen]))

        return Async(later, state)

    handler = {"plain": plain, "sync": sync, "async": background}[kind]

    async def run(self, args):
        VAR.set("of the run")
        decimal.getcontext().prec = 4
        options = {"signal": dict(DONE)}
        options.setdefault(message, {})["look"] = handler
        return Ok([*await api.phase([], **options), VAR.get(), third()])

    h = env.start(flow(run))
    for _ in range(2):
        if message == "update":
            h.update_async("look")
        else:
            h.signal("look")
    env.advance(5)
    h.signal("done")
    assert h.result() == [["of the run", "0.3333"], ["of the run", "0.3333"], "of the run", "0.3333"]


def test_what_only_looks_leaves_nothing_behind(env):
    """Validators do not run on replay, predicates at other moments: neither can set anything for others."""
    judged, tested, ready = [], [], []

    def add(number, state):
        ready.append(number)
        return Reply([VAR.get(), third()], [*state, number])

    def judge(args, state):
        judged.append([VAR.get(), third()])
        VAR.set("of a validator")
        decimal.getcontext().prec = 2
        return Err("no") if args == "no" else None

    def test():
        tested.append([VAR.get(), third()])
        VAR.set("of a predicate")
        decimal.getcontext().prec = 2
        return bool(ready)

    async def waiter():
        VAR.set("of the waiter")
        decimal.getcontext().prec = 5
        await api.wait_condition(test)
        return [VAR.get(), third()]

    async def run(self, args):
        ready.clear()
        decimal.getcontext().prec = 4
        waits = {"wait": lambda _, s: Async(waiter, s)}
        state = await api.phase(
            [],
            update={**waits, "add": update(add, validator=judge)},
            signal=DONE,
        )
        return Ok([state, VAR.get(), third()])

    h = env.start(flow(run))
    u = h.update_async("wait")
    assert not u.done
    h.update_async("add", "no")
    assert h.update("add", 1) == ["unset", "0.3333"]
    assert u.result() == ["of the waiter", "0.33333"]
    assert judged == [["unset", "0.3333"]] * 2
    assert all(seen == ["of the waiter", "0.33333"] for seen in tested)
    h.signal("done")
    assert h.result() == [[1], "unset", "0.3333"]


def test_update_state_is_a_part_of_its_unit(env):
    """TX-110: also when it comes after the sync handler that is in progress."""

    async def slow(_, state):
        await api.sleep(5)
        return NoReply([*state, third()])

    def begin(_, state):
        async def background():
            decimal.getcontext().prec = 3
            await api.wait_for_signal("go")
            await api.update_state(lambda s: (None, [*s, third()]))

        return Async(background, state)

    h = env.start(once(lambda: api.phase([], signal={"begin": begin, "slow": slow, **DONE})))
    for name in ("begin", "slow", "go"):
        h.signal(name)
    env.advance(5)
    h.signal("done")
    assert h.result() == [WHOLE, "0.333"]


def test_a_query_gives_the_same_answer_whoever_asks(env):
    class Asked(Workflow):
        @query("third")
        @staticmethod
        def third(state):
            seen = [VAR.get(), third()]
            VAR.set("of a query")
            decimal.getcontext().prec = 2
            return seen

        async def run(self, args):
            api.publish_state({})
            await api.wait_for_signal("never")

    h = env.start(Asked)
    assert [h.query("third"), h.query("third")] == [["unset", WHOLE]] * 2
