"""Four eyes hold for a chain and the runs that it comes from, wherever it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Approval, ContinueAsNew, Done, GraphWorkflow, Ok, Unique, Workflow, api
from temporalex_django.errors import FourEyes, WorkflowDefinitionError
from tests.support.graphs import leads
from tests.support.people import person

MAY = "auth.change_group"
START = "temporalex_django.start_instance"
FORK = "temporalex_django.reset_instance"


class Paying(Workflow):
    """Asks twice, the second time other eyes; ``args`` is the scope, and whether it goes on as new in between."""

    name = "test.ChainPaying"

    async def run(self, args: Any) -> Any:
        if args.get("round", 1) == 1:
            first = await api.approval("Approve it", role=MAY)
            if args.get("goes_on"):
                return ContinueAsNew({**args, "round": 2})
            if first.outcome == "rejected" and args.get("stops"):
                return Ok("rejected")
        second = await api.approval("Pay it", role=MAY, four_eyes=args.get("scope", True))
        return Ok([second.outcome, second.by.name])


class Parent(Workflow):
    """Approves, and lets a child pay; siblings pay side by side."""

    name = "test.ChainParent"

    async def run(self, args: Any) -> Any:
        if args.get("asks"):
            await api.approval("May the children pay?", role=MAY)
        scope = args.get("scope", True)
        paid = [api.child(Child, {"scope": scope}, id=f"child-{number}") for number in range(args.get("children", 1))]
        results = await api.parallel(paid)
        last = await api.approval("Close the books", role=MAY, four_eyes=True)
        return Ok([*results, last.by.name])


class Child(Workflow):
    name = "test.ChainChild"

    async def run(self, args: Any) -> Any:
        paid = await api.approval("Pay it", role=MAY, four_eyes=args["scope"])
        return Ok(paid.by.name)


pay = Approval(role=MAY, key="pay", four_eyes=True)


class Graph(GraphWorkflow):
    name = "test.ChainGraph"
    unique = Unique(key="chaingraph")
    initial = pay
    transitions = {**leads(pay, approved=Done, rejected=Done)}


def people(env: Any) -> tuple[Any, Any, Any]:
    return person(env, "ann", MAY, START), person(env, "bob", MAY, START, FORK), person(env, "cleo", MAY)


def titles(env: Any, user: Any) -> list[str]:
    return [task.title for task in env.inbox(user)]


def refuses(run: Any, user: Any) -> None:
    with pytest.raises(FourEyes, match=f"{user} may not decide"):
        run.decide("approved", by=user)


def test_who_decided_before_the_chain_went_on_does_not_decide_again(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Paying, {"goes_on": True}, id="gone-on", by=ann)
    run.decide("approved", by=bob)
    assert (titles(env, ann), titles(env, bob), titles(env, cleo)) == ([], [], ["Pay it"])
    refuses(run, bob)
    refuses(run, ann)
    run.decide("approved", by=cleo)
    assert run.result() == ["approved", "cleo"]


def test_one_run_is_counted_where_that_is_wanted(env: Any) -> None:
    ann, bob, _ = people(env)
    run = env.start(Paying, {"goes_on": True, "scope": "run"}, id="looping", by=ann)
    run.decide("approved", by=bob)
    refuses(run, ann)
    run.decide("approved", by=bob)
    assert run.result() == ["approved", "bob"]

    run = env.start(Paying, {"scope": "run"}, id="one", by=ann)
    run.decide("approved", by=bob)
    refuses(run, bob)


def test_who_rejected_has_decided_too(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Paying, {}, id="rejected", by=ann)
    run.decide("rejected", by=bob)
    refuses(run, bob)
    run.decide("approved", by=cleo)
    assert run.result() == ["approved", "cleo"]


@pytest.mark.parametrize("to", [0, 1])
@pytest.mark.parametrize("scope", [True, "run"])
def test_who_forks_a_run_does_not_approve_in_the_fork(env: Any, to: int, scope: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Paying, {"round": 2, "scope": scope}, id="original", by=ann)
    fork = run.fork(to, id="forked", by=bob)
    assert (titles(env, ann), titles(env, cleo)) == ([], ["Pay it", "Pay it"])
    assert len(titles(env, bob)) == 1
    refuses(fork, bob)
    refuses(fork, ann)
    run.decide("approved", by=bob)
    # a reset of the fork, to before its mark, does not forget who made it
    if to:
        fork.reset(1)
        refuses(fork, bob)
    fork.decide("approved", by=cleo)


def test_a_fork_of_a_fork_shuts_both_out(env: Any) -> None:
    ann, bob, cleo = people(env)
    dora = person(env, "dora", MAY, START, FORK)
    run = env.start(Paying, {}, id="original", by=ann)
    run.decide("approved", by=cleo)
    fork = run.fork(2, id="first", by=bob).fork(2, id="second", by=dora)
    for user in (ann, bob, cleo, dora):
        refuses(fork, user)
    assert titles(env, bob) == ["Pay it"]


def test_a_reset_keeps_who_decided_before_it(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Paying, {}, id="reset", by=ann)
    run.decide("approved", by=bob)
    run.reset(2)
    refuses(run, bob)
    run.reset(1)  # the decision is delivered again
    refuses(run, bob)
    run.reset(1, messages="drop")  # it is undone, and counts no more
    run.decide("approved", by=bob)
    refuses(run, bob)
    refuses(run, ann)
    run.decide("approved", by=cleo)

    run = env.start(Paying, {"goes_on": True}, id="reset-later", by=ann)
    run.decide("approved", by=bob)
    for to in (1, 0):
        run.reset(to)
        refuses(run, bob)
        refuses(run, ann)
    assert titles(env, cleo) == ["Pay it"]


def test_a_child_shuts_out_who_started_its_parent(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Parent, {"asks": True, "children": 2}, id="parent", by=ann)
    run.decide("approved", by=bob)
    first, second = (env.handle(f"child-{number}") for number in range(2))
    refuses(first, ann)
    refuses(first, bob)
    first.decide("approved", by=cleo)
    second.decide("approved", by=cleo)  # who decides in a sibling is nobody's problem
    refuses(run, bob)
    run.decide("approved", by=cleo)
    assert run.result() == ["cleo", "cleo", "cleo"]


def test_a_child_of_a_forked_run_shuts_out_who_forked_it(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Parent, {"asks": True}, id="parent", by=ann)
    fork = run.fork(1, id="forked", by=bob)
    fork.decide("approved", by=cleo)
    child = env.handle("child-0")
    refuses(child, bob)
    refuses(child, ann)
    refuses(child, cleo)
    assert child.status == "waiting"


def test_a_child_that_counts_itself_alone(env: Any) -> None:
    ann, bob, _ = people(env)
    run = env.start(Parent, {"asks": True, "scope": "run"}, id="parent", by=ann)
    run.decide("approved", by=bob)
    env.handle("child-0").decide("approved", by=ann)
    assert env.handle("child-0").result() == "ann"


def test_a_forked_graph(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Graph, value="1", by=ann)
    fork = run.fork(1, id=Graph.unique.id_for("2"), by=bob)
    with pytest.raises(FourEyes, match="they forked the run"):
        fork.resume("approved", by=bob)
    refuses(fork, ann)
    fork.decide("approved", by=cleo)
    assert fork.status == "completed"


@pytest.mark.hosts("memory")
@pytest.mark.parametrize("wanted", ["yes", 1, None, "chains"])
def test_a_scope_is_one_that_there_is(env: Any, wanted: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match="four_eyes must be True or False, 'chain' or 'run'"):
        Approval(four_eyes=wanted)
