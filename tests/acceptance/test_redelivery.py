"""Messages that a reset or a fork delivers again wait for what takes them, and are refused only when the run closes."""

from __future__ import annotations

import pytest

from temporalex_django import (
    ContinueAsNew,
    Done,
    Err,
    Event,
    GraphWorkflow,
    NoReply,
    Ok,
    Reply,
    Step,
    Stop,
    Unique,
    WaitForEvent,
    Workflow,
    api,
    errors,
    update,
)
from tests.support.people import person
from tests.support.runs import events, flow, work

ADD = {"add": lambda item, state: Reply(len(state), [*state, item])}
STOP = {"stop": lambda _, state: Stop(state)}
MAY = "auth.change_group"


class Cart(Workflow):
    """An activity stands before the phase."""

    name = "test.RedeliveredCart"

    async def run(self, args):
        await work("prepare")
        return Ok(await api.phase([], signal=STOP, update=ADD))


class TwoPhases(Workflow):
    name = "test.RedeliveredPhases"

    async def run(self, args):
        await work("prepare")
        first = await api.phase([], signal=STOP, update={"add": ADD["add"]})
        await work("between")
        second = await api.phase([], signal=STOP, update={"pack": ADD["add"]})
        return Ok([first, second])


@pytest.mark.parametrize("how", ["reset", "fork"])
def test_updates_wait_for_their_phase(env, how):
    h = env.start(Cart, id="cart")
    h.update("add", "book", id="u1")
    h.update("add", "pen", id="u2")

    new = h if how == "reset" else None
    if how == "reset":
        h.reset(1)
    else:
        new = h.fork(1)
    assert [event["id"] for event in events(new, "UpdateAccepted")] == ["u1", "u2"]
    new.signal("stop")

    assert new.result() == ["book", "pen"]


def test_they_wait_while_the_activity_before_the_phase_is_open(env):
    h = env.start(Cart, id="cart")
    h.update("add", "book")
    env.hold(work)
    h.reset(0)
    assert events(h, "UpdateAccepted") == []
    h.signal("stop")

    env.complete(work, None)

    assert h.result() == ["book"]


def test_each_waits_for_its_own_phase_and_holds_up_no_other(env):
    h = env.start(TwoPhases, id="two")
    h.update("add", 1)
    h.signal("stop")
    h.update("pack", 2)
    h.reset(1)
    h.signal("stop")

    assert h.result() == [[1], [2]]
    assert not env.not_taken


def test_an_update_for_a_later_phase_does_not_hold_up_one_for_the_first(env):
    both = {"add": ADD["add"], "pack": ADD["add"]}

    class OnePhase(Workflow):
        name = "test.RedeliveredOrder"

        async def run(self, args):
            await work("prepare")
            return Ok(await api.phase([], signal=STOP, update=both))

    h = env.start(OnePhase, id="order")
    for name, item in (("pack", "p1"), ("add", "a1"), ("pack", "p2"), ("add", "a2")):
        h.update(name, item)

    class Split(Workflow):
        name = "test.RedeliveredOrder"

        async def run(self, args):
            await work("prepare")
            if not api.patched("split"):
                return Ok(await api.phase([], signal=STOP, update=both))
            first = await api.phase([], signal=STOP, update=ADD)
            second = await api.phase([], signal=STOP, update=both)
            return Ok([first, second])

    h.reset(1)
    h.signal("stop")
    h.signal("stop")

    assert h.result() == [["a1", "a2"], ["p1", "p2"]]
    assert not env.not_taken


def test_those_that_nothing_takes_are_refused_when_the_run_closes(env):
    class Long(Workflow):
        name = "test.RedeliveredShort"

        async def run(self, args):
            await work("prepare")
            return Ok(await api.phase([], signal=STOP, update=ADD))

    h = env.start(Long, id="short")
    sent = h.update_async("add", "book", id="u1")
    assert sent.result() == 0

    class Short(Workflow):
        name = "test.RedeliveredShort"

        async def run(self, args):
            await work("prepare")
            if not api.patched("short"):
                return Ok(await api.phase([], signal=STOP, update=ADD))
            return Ok("short")

    h.reset(1)

    assert h.result() == "short"
    assert [(one.kind, one.name, one.code) for one in env.not_taken] == [("update", "add", "workflow_closed")]
    with pytest.raises(errors.WorkflowClosed, match="delivered again"):
        sent.result()


def test_those_that_wait_when_the_run_is_terminated_are_told_of(env):
    h = env.start(TwoPhases, id="phases")
    h.signal("stop")
    h.update("pack", "book", id="u1")
    with env.batch():
        h.reset(0)
        h.terminate("by phone")

    env.advance(0)

    assert [(one.kind, one.name, one.code) for one in env.not_taken] == [("update", "pack", "workflow_closed")]


def test_a_pause_refuses_none_of_them(env):
    h = env.start(TwoPhases, id="phases")
    h.signal("stop")
    h.update("pack", "book", id="u1")
    with env.batch():
        h.reset(0)
        h.pause()
    env.advance(0)
    assert not env.not_taken

    h.unpause()
    h.signal("stop")

    assert h.result() == [[], ["book"]]


def test_they_go_along_with_a_continue_as_new(env):
    class Goes(Workflow):
        name = "test.RedeliveredGoes"

        async def run(self, args):
            await work("prepare")
            if args:
                return Ok(await api.phase([], signal=STOP, update=ADD))
            await api.phase([], signal=STOP, update={"first": ADD["add"]})
            return ContinueAsNew(True)

    h = env.start(Goes, False, id="goes")
    h.update("first", 1)
    h.signal("stop")
    h.update("add", 2)
    first = env.handle(h.run_ids[0])
    first.reset(1)
    assert not env.not_taken
    assert h.status != "failed"
    h.signal("stop")

    assert h.result() == [2]


def test_a_validator_judges_them_again_and_the_refusal_is_kept(env):
    taken = {"max": 10}
    few = update(ADD["add"], validator=lambda item, state: Err("too many") if item > taken["max"] else None)

    async def run(self, args):
        await work("prepare")
        return Ok(await api.phase([], signal=STOP, update={"add": few}))

    h = env.start(flow(run), id="few")
    h.update("add", 5)
    taken["max"] = 1

    h.reset(1)
    h.signal("stop")

    assert h.result() == []
    assert [(one.name, one.code) for one in env.not_taken] == [("add", "update_rejected")]


class Prepare(Step):
    events = ("ready",)

    def execute(self, instance, config, context):
        return Event("ready")


class Paid(GraphWorkflow):
    """A webhook resumes it, once."""

    name = "test.RedeliveredPaid"
    unique = Unique(key="paid", scope="workflow")
    initial = Prepare
    transitions = {(Prepare, "ready"): WaitForEvent("paid"), (WaitForEvent("paid"), "paid"): Done}


def test_a_resume_waits_for_its_step(env):
    h = env.start(Paid, value="1")
    h.resume("paid", data={"amount": 5})
    assert h.status == "completed"

    h.reset(0)

    assert h.status == "completed"
    assert [event["payload"]["data"] for event in events(h, "SignalReceived")] == [{"amount": 5}]


class Asks(Workflow):
    name = "test.RedeliveredAsks"

    async def run(self, args):
        await work("prepare")
        decision = await api.approval("Pay 5 EUR?", role=MAY)
        return Ok([decision.outcome, decision.by.name])


def test_a_decision_waits_for_its_question(env):
    h = env.start(Asks, id="asks")
    h.decide("approved", by=person(env, "bob", MAY))
    assert h.result() == ["approved", "bob"]

    h.reset(0)

    assert h.result() == ["approved", "bob"]


def test_a_decision_never_answers_another_question(env):
    h = env.start(Asks, id="asks")
    h.decide("approved", by=person(env, "bob", MAY))

    class Wires(Workflow):
        name = "test.RedeliveredAsks"

        async def run(self, args):
            await work("prepare")
            if not api.patched("wires"):
                decision = await api.approval("Pay 5 EUR?", role=MAY)
                return Ok([decision.outcome, decision.by.name])
            big = await api.approval("Wire 1,000,000 EUR?", role=MAY)
            small = await api.approval("Pay 5 EUR?", role=MAY)
            return Ok([big.outcome, small.outcome])

    h.reset(1)
    assert [task.title for task in h.human_tasks()] == ["Wire 1,000,000 EUR?"]

    h.decide("rejected", by=person(env, "ann", MAY))

    assert h.result() == ["rejected", "approved"]


def test_signals_are_delivered_again_in_order_with_their_ids(env):
    class Notes(Workflow):
        name = "test.RedeliveredNotes"

        async def run(self, args):
            await work("prepare")
            note = {"note": lambda value, state: NoReply([*state, value])}
            return Ok(await api.phase([], signal={**note, **STOP}))

    h = env.start(Notes, id="notes")
    h.signal("note", 1, id="a")
    h.signal("note", 2)
    h.reset(0)
    h.signal("note", 1, id="a")  # sent again: it is in the run already
    h.signal("stop")

    assert h.result() == [1, 2]


@pytest.mark.hosts("database", "database-evicted")
@pytest.mark.parametrize("to", [0, 1])
def test_a_page_of_the_inbox_full_of_them_leaves_the_run_in_peace(env, to):
    h = env.start(TwoPhases, id="phases")
    h.signal("stop")
    for number in range(8):
        h.update("pack", number, id=f"u{number}")
    env.storage.inbox_page = 4

    h.reset(to)  # they wait for the second phase, and the environment comes to rest
    h.signal("stop")

    assert h.result() == [[], list(range(8))]
