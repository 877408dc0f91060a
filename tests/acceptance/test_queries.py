"""Queries."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from temporalex_django import Ok, Stop, Workflow, api, errors, query
from tests.support.runs import flow, kinds, once, work


class Queried(Workflow):
    @query("state")
    @staticmethod
    def state(state):
        return state

    @query("pick")
    @staticmethod
    def pick(state, args):
        return [state, args]

    @query("spoil")
    @staticmethod
    def spoil(state):
        state["items"].append("spoiled")
        return state

    @query("bad")
    @staticmethod
    def bad(state):
        raise ValueError("no answer")

    @query("due")
    @staticmethod
    def due(state) -> date:
        return datetime(2027, 3, 1, 12, tzinfo=UTC)

    @query("random")
    @staticmethod
    def random(state):
        return api.random()

    @query("publish")
    @staticmethod
    def publish(state):
        api.publish_state(1)

    @query("call")
    @staticmethod
    def call(state):
        return work(1)

    @query("now")
    @staticmethod
    def now(state):
        return api.now()

    async def run(self, args):
        await api.wait_for_signal("publish")
        api.publish_state({"items": [1]})
        await work()
        await api.phase({"other": 1}, signal={"done": lambda _, s: Stop(s)})
        return Ok()


def test_queries_are_answered_in_every_situation(env):
    """TX-132 TX-133 TX-135 TX-136 TX-137: before the first publish, linear, in a phase, closed; no trace."""
    env.hold(work)
    h = env.start(Queried)
    assert h.query("state") is None
    h.signal("publish")
    assert h.query("pick", {"a": 1}) == [{"items": [1]}, {"a": 1}]
    env.complete(work)
    before = kinds(h), len(env.commands)
    assert h.query("state") == {"items": [1]}
    assert (kinds(h), len(env.commands)) == before
    h.signal("done")
    assert h.query("state") == {"items": [1]}


def test_arguments_that_would_arrive_as_something_else_are_refused(env):
    h = env.start(Queried)

    with pytest.raises(
        errors.TemporalexError, match=r"arguments of query 'pick' has a Decimal at `\$\[0\]`.*str\(value\)"
    ):
        h.query("pick", [Decimal("1.5")])
    with pytest.raises(errors.TemporalexError, match="answer to query 'due' (has|cannot)"):
        h.query("due")


def test_query_cannot_change_what_the_next_one_sees(env):
    """TX-134."""
    h = env.start(Queried)
    h.signal("publish")
    assert h.query("spoil") == {"items": [1, "spoiled"]}
    assert h.query("state") == {"items": [1]}


@pytest.mark.parametrize("name", ["random", "publish", "call", "bad"])
def test_primitives_in_a_query_and_errors_reach_the_asker_only(env, name):
    """TX-134 TX-138 TX-176."""
    h = env.start(Queried)
    with pytest.raises(errors.QueryFailed, match="no answer" if name == "bad" else "not allowed in a query"):
        h.query(name)
    assert h.status == "waiting" and h.blocked is None


def test_unknown_query_names_what_is_known(env):
    """TX-138 TX-012."""
    h = env.start(Queried)
    with pytest.raises(errors.UnknownQuery, match="pick"):
        h.query("nothing")
    without = env.start(once(lambda: work(1)))
    with pytest.raises(errors.UnknownQuery):
        without.query("state")
    assert without.result() == 1


def test_a_query_may_be_a_plain_function_of_the_class(env):
    """TX-132: it works without ``@staticmethod``, too; only linters object."""

    class Plain(Workflow):
        @query("state")
        def state(state):  # noqa: N805 - that is the point
            return state

        async def run(self, args):
            api.publish_state(args)
            return Ok()

    assert env.start(Plain, 7).query("state") == 7


def test_handle_query_wins_over_query_functions(env):
    class Both(Workflow):
        @query("state")
        @staticmethod
        def state(state):
            return "function"

        @staticmethod
        def handle_query(name, args, state):
            if name == "gone":
                raise errors.UnknownQuery("gone")
            return [name, args, state]

        async def run(self, args):
            api.publish_state(7)
            return Ok()

    h = env.start(Both)
    assert h.query("state", 1) == ["state", 1, 7]
    with pytest.raises(errors.UnknownQuery):
        h.query("gone")


def test_published_state_of_the_run_before_fills_the_gap(env):
    """Reset in the new run; what was published stays readable after the close."""
    from temporalex_django import ContinueAsNew

    async def run(self, args):
        if args is None:
            api.publish_state("first")
            return ContinueAsNew(1)
        await api.wait_for_signal("publish")
        api.publish_state("second")
        return Ok()

    h = env.start(flow(run, handle_query=staticmethod(lambda name, args, state: state)))
    assert h.query("x") in (None, "first")
    h.signal("publish")
    assert h.query("x") == "second"


def test_reserved_query_name_is_refused():
    """Built-in names start with two underscores."""
    with pytest.raises(errors.WorkflowDefinitionError):
        query("__mine")
