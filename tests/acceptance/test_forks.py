"""A fork has the labels of its origin, and takes no message twice that its origin has taken."""

from __future__ import annotations

from typing import Any

from temporalex_django import NoReply, Ok, Stop, Workflow, api
from tests.support.runs import flow, kinds


class Till(Workflow):
    """Keeps what is paid."""

    name = "test.ForkedTill"
    tags = ["till"]

    async def run(self, args: Any) -> Ok[Any]:
        def paid(amount: Any, state: Any) -> Any:
            return NoReply([*state, amount])

        return Ok(await api.phase([], signal={"paid": paid, "stop": lambda _, state: Stop(state)}))


class Clerk(Workflow):
    """Waits for its dismissal."""

    name = "test.ForkedClerk"

    async def run(self, args: Any) -> Ok[Any]:
        return Ok(await api.wait_for_signal("go"))


def test_a_fork_keeps_the_tags_of_its_start(env: Any) -> None:
    origin = env.start(Till, id="till", tags=["north"])
    fork = origin.fork(1)
    assert sorted(fork.describe().tags) == sorted(origin.describe().tags) == ["north", "till"]
    assert [one.id for one in env.list(Till, tag="north")] == [fork.id, "till"]


def test_a_signal_id_counts_once_over_a_fork(env: Any) -> None:
    origin = env.start(Till, id="till")
    origin.signal("paid", 5, id="webhook-1")
    origin.signal("paid", 7)
    fork = origin.fork()
    before = kinds(fork)

    fork.signal("paid", 5, id="webhook-1")
    assert kinds(fork) == before
    fork.signal("paid", 9, id="webhook-2")
    fork.signal("stop")

    assert fork.result() == [5, 7, 9]


def test_a_signal_behind_the_point_comes_to_the_fork_once(env: Any) -> None:
    origin = env.start(Till, id="till")
    origin.signal("paid", 5, id="webhook-1")
    fork = origin.fork(1)
    fork.signal("paid", 5, id="webhook-1")
    fork.signal("stop")
    assert fork.result() == [5]


def test_an_abandoned_child_ends_though_its_parent_is_deleted(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        return Ok(await api.child(Clerk, id="clerk", parent_close="abandon"))

    parent = env.start(flow(run))
    parent.terminate()
    parent.delete()
    clerk = env.handle("clerk")
    clerk.signal("go", "home")
    assert clerk.result() == "home"
