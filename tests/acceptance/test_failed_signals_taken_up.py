"""Failed messages of runs that a reset or a fork takes up: none is lost, none comes twice, none comes back."""

from __future__ import annotations

import pytest

from temporalex_django import ContinueAsNew, NoReply, Ok, Stop, Workflow, api
from tests.support.runs import work

RIGHT = {"is": False}


@pytest.fixture(autouse=True)
def _wrong():
    RIGHT["is"] = False


def paid(amount, state):
    if not RIGHT["is"]:
        raise KeyError("vat")
    return NoReply([*state, amount])


HANDLERS = {"paid": paid, "stop": lambda _, state: Stop(state)}


class Order(Workflow):
    name = "test.TakenUpOrder"

    async def run(self, args):
        await work("prepare")
        return Ok(await api.phase([], signal=HANDLERS))


def failed(h):
    return [(message.id, message.name, message.type) for message in h.describe().failed_messages]


def test_what_is_sent_again_and_not_read_yet_counts(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    RIGHT["is"] = True
    with env.batch():
        h.signal("paid", 7, id="p1")
        h.reset(1)
    h.signal("stop")
    assert h.result() == [7]


class Goes(Workflow):
    name = "test.TakenUpGoes"

    async def run(self, args):
        await work("prepare")
        state = await api.phase([], signal=HANDLERS)
        return Ok(state) if args else ContinueAsNew(True)


@pytest.mark.parametrize("how", ["reset", "fork"])
def test_one_that_was_delivered_again_in_the_next_run_comes_once(env, how):
    h = env.start(Goes, False, id="goes")
    h.signal("paid", 5, id="p1")
    h.signal("stop")
    RIGHT["is"] = True
    h.redeliver("p1")
    h.signal("stop")
    first = env.handle(h.run_ids[0])
    new = h
    if how == "reset":
        first.reset(1)
    else:
        new = first.fork(1, id="f")

    assert new.result() == [5]


@pytest.mark.parametrize("how", ["reset", "fork"])
def test_a_discarded_one_does_not_come_back(env, how):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    h.signal("paid", 6, id="p2")
    h.discard("p1")
    RIGHT["is"] = True
    new = h
    if how == "reset":
        h.reset(1)
    else:
        new = h.fork(1, id="f")
    new.signal("stop")
    assert new.result() == [6]
    assert failed(new) == []


def test_a_fork_behind_a_discarded_one_does_not_have_it(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    h.signal("paid", 6, id="p2")
    h.discard("p1")
    last = h.history()[-1].activation
    new = h.fork(last, id="f")
    assert [message for message, *_ in failed(new)] == ["p2"]


@pytest.mark.parametrize("to", [0, 1])
def test_a_fork_has_those_that_its_origin_began_with(env, to):
    h = env.start(Goes, False, id="goes")
    h.signal("paid", 5, id="p1")
    h.signal("stop")
    assert failed(h) == [("p1", "paid", "KeyError")]
    new = h.fork(to, id="f")
    assert failed(new) == [("p1", "paid", "KeyError")]
    RIGHT["is"] = True
    new.redeliver("p1")
    new.signal("stop")
    assert new.result() == [5]
    assert failed(h) == [("p1", "paid", "KeyError")]


def test_one_that_was_taken_behind_the_point_is_failed_again(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    last = h.history()[-1].activation
    RIGHT["is"] = True
    h.redeliver("p1")
    h.reset(last, messages="drop")
    assert failed(h) == [("p1", "paid", "KeyError")]
    h.redeliver("p1")
    h.signal("stop")
    assert h.result() == [5]


def test_a_reset_behind_it_keeps_it(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    last = h.history()[-1].activation
    h.reset(last)
    assert failed(h) == [("p1", "paid", "KeyError")]


def test_a_run_with_a_failed_message_is_stuck_on_every_host(env):
    h = env.start(Order, id="order")
    env.start(Order, id="well")
    h.signal("paid", 5, id="webhook")
    assert [one.id for one in env.list(Order, stuck=True)] == ["order"]
    h.discard("webhook")
    assert [*env.list(Order, stuck=True)] == []
