"""A signal whose handler raises becomes a failed message: kept, shown, delivered again or discarded."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from temporalex_django import Async, ContinueAsNew, NoReply, Ok, Stop, Workflow, api, errors, signal
from tests.support.people import person
from tests.support.runs import events, forget, kinds, work

RIGHT = {"is": False}
MAY = "temporalex_django.redeliver_message"


@pytest.fixture(autouse=True)
def _wrong():
    RIGHT["is"] = False


def paid(amount, state):
    if not RIGHT["is"]:
        raise KeyError("vat")
    return NoReply([*state, amount])


STOP = {"stop": lambda _, state: Stop(state)}


class Order(Workflow):
    name = "test.FailedOrder"

    async def run(self, args):
        await work("prepare")
        return Ok(await api.phase([], signal={"paid": paid, **STOP}))


def failed(h):
    return [(message.id, message.name, message.type) for message in h.describe().failed_messages]


def test_it_is_kept_and_the_phase_goes_on(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")

    assert failed(h) == [("p1", "paid", "KeyError")]
    (event,) = events(h, "SignalFailed")
    assert (event["number"], event["id"], event["name"], event["type"]) == (1, "p1", "paid", "KeyError")
    assert h.status == "waiting"
    h.signal("stop")
    assert h.result() == []
    assert failed(h) == [("p1", "paid", "KeyError")]
    assert events(h, "WorkflowCompleted")[0]["failed_signals"] == ["paid"]


def test_one_without_an_id_gets_one(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5)
    h.signal("paid", 6)

    ids = [message.id for message in h.describe().failed_messages]
    assert ids == [f"{h.run_id}:1", f"{h.run_id}:2"]


def test_it_is_delivered_again(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    RIGHT["is"] = True

    h.redeliver("p1")

    assert failed(h) == []
    assert kinds(h)[-2:] == ["SignalFailed", "SignalReceived"]
    h.signal("stop")
    assert h.result() == [5]
    assert "failed_signals" not in events(h, "WorkflowCompleted")[0]


def test_all_of_a_run_are_delivered_again_in_order(env):
    h = env.start(Order, id="order")
    for amount in (1, 2, 3):
        h.signal("paid", amount)
    RIGHT["is"] = True

    h.redeliver()
    h.signal("stop")

    assert h.result() == [1, 2, 3]


def test_one_that_fails_again_is_a_failed_message_again(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")

    h.redeliver("p1")

    assert failed(h) == [("p1", "paid", "KeyError")]
    assert len(events(h, "SignalFailed")) == 2


def test_the_same_id_sent_again_delivers_the_new_payload(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    RIGHT["is"] = True

    h.signal("paid", 7, id="p1")
    h.signal("paid", 9, id="p1")  # taken already
    h.signal("stop")

    assert h.result() == [7]
    assert failed(h) == []


def test_another_message_cannot_have_its_id(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")

    with pytest.raises(errors.MessageIdTaken):
        h.signal("stop", id="p1")


def test_it_is_discarded(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    h.signal("paid", 6, id="p2")
    RIGHT["is"] = True

    h.discard("p1")
    h.signal("paid", 5, id="p1")  # the id is taken: it does not come back

    assert failed(h) == [("p2", "paid", "KeyError")]
    h.signal("stop")
    assert h.result() == []
    h.discard("p2")  # of a closed run, too
    assert failed(h) == []


def test_what_cannot_be_done(env):
    h = env.start(Order, id="order")
    with pytest.raises(errors.ActionNotPossible, match="no failed message"):
        h.redeliver("p1")
    h.signal("paid", 5, id="p1")
    with pytest.raises(errors.ActionNotPossible, match="no failed message with the id p2"):
        h.redeliver("p2")
    with pytest.raises(errors.ActionNotPermitted):
        h.redeliver("p1", by=person(env, "bob", "temporalex_django.signal_instance"))
    h.terminate()
    with pytest.raises(errors.WorkflowClosed):
        h.redeliver("p1")


@pytest.mark.parametrize("name", ["redeliver", "discard"])
def test_a_handle_uses_all_that_it_is_given(env, name):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    h.signal("paid", 6, id="p2")
    RIGHT["is"] = True
    call = getattr(h, name)
    with pytest.raises(errors.PayloadError, match="the reason"):
        call("p1", reason=5)
    with pytest.raises(errors.ActionNotPermitted):
        call("p1", by=person(env, "nobody"))

    call("p1", reason="because")

    assert failed(h) == [("p2", "paid", "KeyError")]


def test_a_replay_with_the_code_put_right_takes_the_failure_as_it_was(env):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    RIGHT["is"] = True

    env.replay(h)  # the handler does not fail now, and the signal stays failed

    h.signal("stop")
    assert h.result() == []


def test_what_it_changed_before_it_failed_is_the_same_in_a_rebuilt_run(env):
    class Sums(Workflow):
        name = "test.FailedSums"

        async def run(self, args):
            seen = []

            def note(payload, state):
                seen.append(payload)
                if payload == "wrong":
                    raise KeyError(payload)
                return NoReply(state)

            await api.phase(None, signal={"note": note, **STOP})
            return Ok(seen)

    h = env.start(Sums, id="sums")
    for payload in ("first", "wrong", "last"):
        h.signal("note", payload)
    h.signal("stop")

    assert h.result() == ["first", "wrong", "last"]


def test_an_async_handler_that_was_put_right_is_not_called_on_replay(env):
    class Awaits(Workflow):
        name = "test.FailedAwaits"

        async def run(self, args):
            async def handler(payload, state):
                if not RIGHT["is"]:
                    raise KeyError("vat")
                await work("charge")
                return NoReply([*state, payload])

            return Ok(await api.phase([], signal={"paid": handler, **STOP}))

    h = env.start(Awaits, id="awaits")
    h.signal("paid", 5, id="p1")
    h.signal("paid", 6, id="p2")
    RIGHT["is"] = True

    env.replay(h)
    forget(env)
    h.redeliver("p2")
    h.signal("stop")

    assert h.result() == [6]
    assert failed(h) == [("p1", "paid", "KeyError")]


@dataclass
class Payment:
    amount: int


def test_a_payload_that_does_not_fit_is_a_failed_message(env):
    def typed(payment: Payment, state):
        return NoReply([*state, payment.amount])

    class Typed(Workflow):
        name = "test.FailedTyped"

        async def run(self, args):
            return Ok(await api.phase([], signal={"paid": typed, **STOP}))

    h = env.start(Typed, id="typed")
    h.signal("paid", {"sum": 5}, id="p1")
    assert failed(h) == [("p1", "paid", "PayloadError")]

    h.signal("paid", {"amount": 5}, id="p1")
    h.signal("stop")

    assert h.result() == [5]


@pytest.mark.hosts("memory", "database")
def test_a_payload_that_was_handled_and_does_not_fit_today_blocks_the_run(env):
    """A rebuild without what the signal had added would be another run. Nobody would see it."""

    def loose(amount, state):
        return NoReply([*state, amount])

    def typed(payment: Payment, state):
        return NoReply([*state, payment.amount])

    class Narrowed(Workflow):
        name = "test.FailedNarrowed"

        async def run(self, args):
            return Ok(await api.phase([], signal={"paid": typed if RIGHT["is"] else loose, **STOP}))

    h = env.start(Narrowed, id="narrowed")
    h.signal("paid", 5, id="p1")
    RIGHT["is"] = True
    with pytest.raises(errors.NondeterminismError, match="signal 'paid' .* does not accept the recorded payload now"):
        env.replay(h)
    forget(env)
    h.signal("stop")
    assert isinstance(h.blocked, errors.NondeterminismError)
    assert failed(h) == []
    RIGHT["is"] = False
    env.advance(hours=1)

    assert h.result() == [5]


def test_a_wrong_answer_is_a_failed_message(env):
    class Wrong(Workflow):
        name = "test.FailedAnswer"

        async def run(self, args):
            return Ok(await api.phase([], signal={"paid": lambda payload, state: None, **STOP}))

    h = env.start(Wrong, id="wrong")
    h.signal("paid", 5, id="p1")

    assert failed(h) == [("p1", "paid", "TypeError")]


def test_an_async_handler(env):
    async def later():
        await work("charge")
        if not RIGHT["is"]:
            raise KeyError("vat")
        await api.update_state(lambda state: [*state, "charged"])

    class Later(Workflow):
        name = "test.FailedAsync"

        async def run(self, args):
            return Ok(await api.phase([], signal={"paid": lambda p, state: Async(later, state), **STOP}))

    h = env.start(Later, id="later")
    h.signal("paid", 5, id="p1")
    assert failed(h) == [("p1", "paid", "KeyError")]
    (event,) = events(h, "SignalFailed")
    assert event["untouched"] is False


@pytest.mark.hosts("memory", "database")
def test_a_handler_that_had_done_something_must_fail_again_on_replay(env):
    async def handler(payload, state):
        await work("charge")
        if not RIGHT["is"]:
            raise KeyError("vat")
        return NoReply([*state, payload])

    class Charged(Workflow):
        name = "test.FailedCharged"

        async def run(self, args):
            return Ok(await api.phase([], signal={"paid": handler, **STOP}))

    h = env.start(Charged, id="charged")
    h.signal("paid", 5, id="p1")
    env.replay(h)
    RIGHT["is"] = True
    with pytest.raises(errors.NondeterminismError, match="failed when the history was made"):
        env.replay(h)
    RIGHT["is"] = False


def test_it_goes_along_with_a_continue_as_new(env):
    class Goes(Workflow):
        name = "test.FailedGoes"

        async def run(self, args):
            state = await api.phase([], signal={"paid": paid, **STOP})
            return Ok(state) if args else ContinueAsNew(True)

    h = env.start(Goes, False, id="goes")
    h.signal("paid", 5, id="p1")
    h.signal("stop")
    assert len(h.run_ids) == 2
    assert failed(h) == [("p1", "paid", "KeyError")]
    RIGHT["is"] = True

    h.redeliver("p1")
    h.signal("stop")

    assert h.result() == [5]


def test_those_that_wait_are_delivered_before_it(env):
    class Gate(Workflow):
        name = "test.FailedGate"

        async def run(self, args):
            first = await api.phase([], signal={"paid": paid, **STOP})
            return Ok([first, await api.phase([], signal={"paid": paid, "end": STOP["stop"]})])

    h = env.start(Gate, id="gate")
    h.signal("paid", 1, id="p1")
    RIGHT["is"] = True
    with env.batch():
        h.signal("paid", 2)
        h.signal("stop")
        h.signal("paid", 3)
    h.redeliver("p1")
    h.signal("end")

    assert h.result() == [[2], [3, 1]]


@pytest.mark.parametrize("how", ["reset", "fork"])
def test_a_reset_behind_it_keeps_it_and_one_before_it_delivers_it_again(env, how):
    h = env.start(Order, id="order")
    h.signal("paid", 5, id="p1")
    point = h.history()[-1].activation
    h.signal("paid", 6)
    RIGHT["is"] = True

    after = h.fork(point, messages="drop", id="after") if how == "fork" else h
    if how == "reset":
        h.reset(point, messages="drop")
    assert ("p1", "paid", "KeyError") in failed(after)
    after.redeliver("p1")
    after.signal("stop")
    assert after.result() == [5]

    before = after.fork(1, id="before")  # all that came to the run comes again, `stop` included
    assert before.result() == [5]
    assert failed(before) == []


def test_the_run_is_blocked_where_the_handler_says_so(env):
    class Blocks(Workflow):
        name = "test.FailedBlocks"

        async def run(self, args):
            await work("prepare")
            handlers = {"paid": signal(paid, on_error="block"), **STOP}
            return Ok(await api.phase([], signal=handlers))

    h = env.start(Blocks, id="blocks")
    h.signal("paid", 5, id="p1")
    assert isinstance(h.blocked, KeyError)
    assert failed(h) == []
    h.signal("stop")
    assert h.blocked is not None

    RIGHT["is"] = True
    env.advance(0)

    assert h.result() == [5]


def test_on_error_has_two_values():
    with pytest.raises(errors.WorkflowDefinitionError, match="on_error"):
        signal(paid, on_error="ignore")
