"""Updates and their validators."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.core.exceptions import ValidationError

from temporalex_django import Async, Err, NoReply, Ok, Reply, Stop, api, errors, update
from tests.support.runs import events, flow, kinds, other, produced, produced_kinds, work

DONE = {"done": lambda _, state: Stop(state)}
ADD = {"add": lambda n, total: Reply(total + n, total + n)}


def phased(state, **options):
    async def run(self, args):
        return Ok(await api.phase(state, **options))

    return flow(run)


def test_update_answers_its_caller(env):
    """TX-059 TX-062 TX-065 TX-070 TX-074 TX-197."""
    h = env.start(phased(1, update=ADD, signal=DONE))
    assert h.update("add", 2) == 3
    assert [(c.kind, c.attributes.get("result")) for c in produced(env)] == [
        ("AcceptUpdate", None),
        ("CompleteUpdate", 3),
    ]
    h.signal("done")
    assert h.result() == 3


def test_accepted_comes_before_the_handlers_commands_and_completed_after(env):
    """TX-074 TX-075 TX-197."""

    async def slow(args, state):
        await work()
        await api.sleep(5)
        return Reply("late", state)

    env.hold(work)
    h = env.start(phased(0, update={"slow": slow}))
    u = h.update_async("slow")
    assert (u.accepted, u.done) == (True, False)
    with pytest.raises(errors.UpdateTimeout) as caught:
        u.result()
    assert caught.value.accepted and caught.value.update_id == u.id
    assert [c.kind for c in env.commands[-1]] == ["AcceptUpdate", "ScheduleActivity"]
    env.complete(work)
    env.advance(5)
    assert u.done and u.result() == "late"
    assert kinds(h) == [
        "UpdateAccepted", "ActivityScheduled", "ActivityCompleted", "TimerStarted", "TimerFired", "UpdateCompleted",
    ]  # fmt: skip


def test_update_outside_a_phase_is_rejected_and_leaves_nothing(env):
    """TX-066."""

    async def run(self, args):
        await work()
        return Ok(await api.phase(0, update=ADD, signal=DONE))

    env.hold(work)
    h = env.start(flow(run))
    before = h.history(), list(env.commands)
    u = h.update_async("add", 1)
    assert (u.accepted, u.done) == (False, True)
    with pytest.raises(errors.UpdateRejected, match="not accepting"):
        u.result()
    assert (h.history(), list(env.commands)) == before
    env.complete(work)
    assert h.update("add", 2) == 2


def test_unhandled_update_is_rejected_the_same_way(env):
    """TX-067: and says what is accepted."""
    h = env.start(phased(0, update=ADD))
    with pytest.raises(errors.UpdateRejected, match="'remove'.*add"):
        h.update("remove", 1)
    assert kinds(h) == []


def test_update_that_shares_the_activation_that_opens_its_phase_is_accepted(env):
    """Judged after the resolutions."""

    async def run(self, args):
        await api.sleep(10)
        return Ok(await api.phase(0, update=ADD, signal=DONE))

    h = env.start(flow(run))
    with env.batch():
        u = h.update_async("add", 4)
        env.advance(10)
    assert u.result() == 4
    assert len(env.commands) == 2


def test_update_that_comes_with_the_start_is_judged_after_the_first_run(env):
    """ST-039."""
    with env.batch():
        h = env.start(phased(0, update=ADD))
        u = h.update_async("add", 4)
    assert u.result() == 4
    assert kinds(h) == ["UpdateAccepted", "UpdateCompleted"]
    assert {e.activation for e in h.history()} == {1}


def test_validator_gets_arguments_and_state(env):
    """TX-062 TX-064 TX-068 TX-070."""
    seen = []

    def check(args, state):
        seen.append((args, state))

    h = env.start(phased([1], update={"add": update(lambda n, s: Reply(n, [*s, n]), validator=check)}))
    h.update("add", 2)
    h.update("add", 3)
    assert seen == [(2, [1]), (3, [1, 2])]


@pytest.mark.parametrize("verdict", [None, Ok(), Ok("fine")])
def test_validator_accepts(env, verdict):
    h = env.start(phased(0, update={"a": update(lambda n, s: Reply("yes", s), validator=lambda a, s: verdict)}))
    assert h.update("a") == "yes"


def invalid(args, state):
    raise ValidationError(["Too little.", ValidationError("Ask for %(what)s.", params={"what": "more"})])


def raising(args, state):
    raise ValueError("bad sku")


async def asynchronous(args, state):
    return None


@pytest.mark.parametrize(
    ("validator", "message"),
    [
        (lambda a, s: Err("bad sku"), "^bad sku$"),
        (lambda a, s: Err({"code": 1}), "code"),
        (raising, "bad sku"),
        (invalid, "Too little. Ask for more."),
        (lambda a, s: False, "False"),
        (asynchronous, "async"),
    ],
)
def test_rejection_reaches_the_caller_and_leaves_nothing(env, validator, message):
    """TX-069 TX-071 TX-073 TX-175: no event, no state change, no number."""
    h = env.start(phased(0, update={"a": update(lambda n, s: Reply(1, 1), validator=validator), **ADD}, signal=DONE))
    with pytest.raises(errors.UpdateRejected, match=message):
        h.update("a", 1)
    assert h.history()[-1].kind == "ActivationStarted"
    assert produced(env) == []
    assert h.update("add", 5) == 5


def test_validator_cannot_change_state_or_arguments(env):
    def spoil(args, state):
        args.append("spoiled")
        state.append("spoiled")

    h = env.start(phased([], update={"a": update(lambda n, s: Reply(n, s), validator=spoil)}, signal=DONE))
    assert h.update("a", ["given"]) == ["given"]
    h.signal("done")
    assert h.result() == []


def test_validators_do_not_run_on_replay(env):
    """TX-072: not even one that would reject now."""
    calls = []

    def check(args, state):
        calls.append(args)
        return Err("never again") if len(calls) > 1 else None

    h = env.start(phased(0, update={"a": update(lambda n, s: Reply(n, s), validator=check)}))
    h.update("a", 1)
    env.replay(h)
    env.replay(h)
    assert calls == [1]


def test_busy_handler_keeps_updates_waiting_and_they_are_judged_in_order(env):
    """TX-076 TX-077: pending, not in the history; the validator sees the state that the handler will get."""
    seen = []

    async def slow(n, state):
        await work(n)
        return Reply(n, [*state, n])

    h = env.start(phased([], update={"slow": update(slow, validator=lambda a, s: seen.append(list(s)))}, signal=DONE))
    env.hold(work)
    first, second, third = (h.update_async("slow", n) for n in (1, 2, 3))
    assert [(u.accepted, u.done) for u in (first, second, third)] == [(True, False), (False, False), (False, False)]
    assert len(events(h, "UpdateAccepted")) == 1
    env.complete(work)
    assert first.result() == 1 and second.accepted and not third.accepted
    env.complete(work)
    env.complete(work)
    assert third.result() == 3
    h.signal("done")
    assert h.result() == [1, 2, 3]
    assert seen == [[], [1], [1, 2]]


def test_signals_and_updates_keep_one_order_behind_a_busy_handler(env):
    """TX-181 ST-046: `after` counts the signals received before."""

    async def slow(n, state):
        await work(n)
        return NoReply([*state, f"slow {n}"])

    env.hold(work)
    h = env.start(phased([], signal={"slow": slow, "s": lambda n, s: NoReply([*s, f"s{n}"]), **DONE},
                         update={"u": lambda n, s: Reply(None, [*s, f"u{n}"])}))  # fmt: skip
    h.signal("slow", 0)
    h.update_async("u", 1)
    h.signal("s", 2)
    with env.batch():
        h.signal("unrelated")
        h.update_async("u", 3)
        h.signal("s", 4)
        h.update_async("u", 5)
    h.update_async("u", 6)
    h.signal("slow", 7)
    h.update_async("u", 8)
    env.complete(work)
    h.signal("s", 9)
    env.complete(work)
    h.signal("done")
    assert h.result() == ["slow 0", "u1", "s2", "u3", "s4", "u5", "u6", "slow 7", "u8", "s9"]
    assert [a["after"] for a in events(h, "UpdateAccepted")] == [1, 3, 4, 4, 5]


def test_updates_behind_a_busy_handler_are_rejected_when_its_phase_stops(env):
    """Later ones of the same activation are judged by what is open then."""

    async def stopping(_, state):
        await work()
        return Stop(state)

    async def run(self, args):
        await api.phase("first", signal={"stop": stopping}, update={"u": lambda a, s: Reply("first", s)})
        return Ok(await api.phase("second", update={"u": lambda a, s: Reply("second", s)}))

    env.hold(work)
    h = env.start(flow(run))
    h.signal("stop")
    early = h.update_async("u")
    with env.batch():
        env.complete(work)
        late = h.update_async("u")
    with pytest.raises(errors.UpdateRejected):
        early.result()
    assert late.result() == "second"


def test_an_update_behind_the_end_of_its_run_is_rejected_in_the_activation_of_the_end(env):
    """TX-080."""
    h = env.start(phased(0, update=ADD, signal=DONE))
    with env.batch():
        h.signal("done")
        u = h.update_async("add", 4)
    assert h.result() == 0
    with pytest.raises(errors.WorkflowClosed, match="was closed before the update 'add' was delivered"):
        u.result()
    assert kinds(h) == ["SignalReceived", "WorkflowCompleted"]


def test_update_handler_that_raises_fails_the_update_only(env):
    """TX-078."""

    def bad(args, state):
        state.append("half")
        raise ValueError("no")

    h = env.start(phased([], update={"bad": bad}, signal=DONE))
    with pytest.raises(errors.UpdateFailed, match="ValueError: no") as caught:
        h.update("bad")
    assert caught.value.type == "ValueError"
    h.signal("done")
    assert h.result() == []
    assert kinds(h)[:2] == ["UpdateAccepted", "UpdateFailed"]


def test_response_that_cannot_be_encoded_fails_the_update_and_keeps_the_state(env):
    """TX-078 "Bad input"."""
    h = env.start(phased("kept", update={"bad": lambda a, s: Reply({"x": object()}, "changed")}, signal=DONE))
    with pytest.raises(errors.UpdateFailed, match=r"\$\.x"):
        h.update("bad")
    h.signal("done")
    assert h.result() == "kept"


def test_same_id_runs_once_and_gives_the_first_outcome(env):
    """TX-079."""
    h = env.start(phased(0, update=ADD))
    assert h.update("add", 5, id="key") == 5
    assert h.update("add", 7, id="key") == 5
    assert h.update_async("add", 7, id="key").result() == 5
    assert len(events(h, "UpdateAccepted")) == 1


def test_the_id_of_an_update_is_no_other_updates(env):
    """Who takes an id for something else would be given an answer to the first."""
    h = env.start(phased(0, update=ADD, signal=DONE))
    assert h.update("add", 5, id="key") == 5
    for closed in (False, True):
        with pytest.raises(errors.MessageIdTaken, match="'key' is already the id of the update 'add' of this run"):
            h.update("nobody", 5, id="key")
        if not closed:
            h.signal("done")
    assert len(events(h, "UpdateAccepted")) == 1


def test_id_of_a_rejected_update_stays_free(env):
    """Only an accepted one occupies it."""
    h = env.start(phased(0, update=ADD))
    with pytest.raises(errors.UpdateRejected):
        h.update("nobody", 1, id="key")
    assert h.update("add", 5, id="key") == 5


def test_same_id_after_a_failure_gives_the_same_failure(env):
    """TX-079."""

    def bad(args, state):
        raise ValueError(args)

    h = env.start(phased(0, update={"bad": bad}))
    for _ in range(2):
        with pytest.raises(errors.UpdateFailed, match="first"):
            h.update("bad", "first", id="key")
    assert len(events(h, "UpdateAccepted")) == 1


def test_messages_to_a_closed_run_are_refused(env):
    """TX-080: WorkflowClosed is an UpdateRejected."""
    h = env.start(phased(0, update=ADD, signal=DONE))
    h.update("add", 1, id="first")
    h.signal("done")
    with pytest.raises(errors.WorkflowClosed):
        h.update("add", 1)
    with pytest.raises(errors.UpdateRejected):
        h.update("add", 1)
    with pytest.raises(errors.WorkflowClosed):
        h.signal("done")
    with pytest.raises(errors.WorkflowClosed):
        h.cancel()
    assert h.update("add", 1, id="first") == 1


@dataclass
class Line:
    sku: str
    n: int


def test_arguments_that_do_not_fit_reject_the_update_with_the_path(env):
    """TX-081."""

    def add(line: Line, state):
        return Reply(line.n, line.sku)

    h = env.start(phased("kept", update={"add": update(add, validator=lambda line, s: None)}, signal=DONE))
    with pytest.raises(errors.UpdateRejected, match=r"\$\.n"):
        h.update("add", {"sku": "a", "n": "many"})
    with pytest.raises(errors.UpdateRejected, match="Line"):
        h.update("add", None)
    assert kinds(h) == []
    assert h.update("add", Line("b", 2)) == 2


def test_arguments_that_cannot_be_encoded_are_the_senders_error(env):
    """Bad input: nothing is sent."""
    h = env.start(phased(0, update=ADD, signal=DONE))
    with pytest.raises(errors.PayloadError, match=r"\$\.deep\[0\]"):
        h.update("add", {"deep": [object()]})
    with pytest.raises(errors.PayloadError, match=r"\$\.k"):
        h.signal("done", {"k": {(1, 2): 3}})
    assert h.status == "waiting"


@pytest.mark.parametrize("depth", [300, 3_000])
def test_payload_too_deep_is_the_senders_error_and_not_the_runs(env, depth):
    """Bad input: a message must not be able to break the stack of the worker that copies it."""
    payload: list = []
    for _ in range(depth):
        payload = [payload]
    h = env.start(phased(0, update=ADD, signal=DONE))
    with pytest.raises(errors.PayloadError):
        h.signal("done", payload)
    assert (h.status, h.blocked) == ("waiting", None)


@pytest.mark.parametrize("end", ["terminate", "fail", "cancel"])
def test_waiter_of_an_unfinished_update_gets_an_error_when_the_run_closes(env, end):
    """TX-082."""

    def begin(args, state):
        async def background():
            await other()

        return Async(background, state)

    env.hold(other)
    h = env.start(phased(0, update={"begin": begin}, signal={"fail": lambda a, s: Stop(s)}))
    u = h.update_async("begin")
    if end == "terminate":
        h.terminate("why")
    elif end == "cancel":
        h.cancel()
    else:
        env.fail(other, ValueError("x"))
    assert u.done
    with pytest.raises((errors.UpdateFailed, errors.WorkflowClosed)):
        u.result()


def test_stop_of_an_update_answers_before_the_run_completes(env):
    """TX-060: history order of a phase that an update ends."""
    h = env.start(phased(0, update={"end": lambda a, s: Stop("final", "bye")}, timeout=60))
    assert h.update("end") == "bye"
    assert h.result() == "final"
    assert kinds(h)[1:] == ["UpdateAccepted", "UpdateCompleted", "TimerCancelled", "WorkflowCompleted"]


def test_update_is_not_judged_by_a_refused_one_before_it(env):
    """In a batch, each by the state of its turn."""
    h = env.start(phased(0, update={"end": lambda a, s: Stop(s, "bye"), **ADD}))
    with env.batch():
        no, yes, end, late = (h.update_async(n, 1) for n in ("nobody", "add", "end", "add"))
    assert (yes.result(), end.result()) == (1, "bye")
    for u in (no, late):
        with pytest.raises(errors.UpdateRejected):
            u.result()
    assert produced_kinds(env) == [
        "AcceptUpdate",
        "CompleteUpdate",
        "AcceptUpdate",
        "CompleteUpdate",
        "CompleteWorkflow",
    ]


def test_a_signal_with_an_id_is_received_once(env):
    h = env.start(phased([], signal={"note": lambda n, state: NoReply([*state, n]), **DONE}))
    for key in ("a", "a", "b"):
        h.signal("note", key, id=key)
    with pytest.raises(errors.InvalidId):
        h.update("add", 1, id="a")
    h.signal("done", id="end")
    assert h.result() == ["a", "b"]
    assert [event.kind for event in h.history()].count("SignalReceived") == 3
    h.signal("done", id="end")
    with pytest.raises(errors.WorkflowClosed):
        h.signal("note", "c", id="c")
