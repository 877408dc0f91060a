"""Phases: entry, dispatch, buffering, handler shapes, timeout and leaving."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

import pytest

from temporalex_django import Async, Err, NoReply, Ok, Reply, Stop, TimedOut, api, errors, signal, update
from tests.support.hosts import in_memory
from tests.support.runs import events, flow, kinds, other, produced, produced_kinds, work

ADD = {"add": lambda n, total: NoReply(total + n)}
DONE = {"done": lambda _, state: Stop(state)}


def phased(state, **options):
    """A workflow of one phase; its result tells a stop from a timeout."""

    async def run(self, args):
        ended = await api.phase(state, **options)
        return Ok({"timed_out": ended.state}) if isinstance(ended, TimedOut) else Ok(ended)

    return flow(run)


@pytest.mark.parametrize("state", [0, "text", [1, 2], {"a": {"b": 1}}, None, (1, 2), True], ids=repr)
def test_state_may_be_any_value_and_comes_back_bare(env, state):
    """TX-040 TX-041 TX-097."""

    async def run(self, args):
        return Ok(await api.phase(state, signal=DONE) == state)

    h = env.start(flow(run))
    assert h.status == "waiting"
    h.signal("done")
    assert h.result() is True


@in_memory
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"signal": {"a": 5}},
        {"update": {"a": "fn"}},
        {"signal": {"": lambda a, s: Stop(s)}},
        {"signal": {"__a": lambda a, s: Stop(s)}},
        {"signal": {1: lambda a, s: Stop(s)}},
        {"signal": DONE, "update": DONE},
        {"signal": [("a", lambda a, s: Stop(s))]},
    ],
)
def test_options_that_cannot_work_are_refused_at_the_call(env, options):
    """TX-042: unknown, not callable, twice the same name, never ending."""

    async def run(self, args):
        with pytest.raises(errors.WorkflowDefinitionError):
            api.phase(0, **options)
        return Ok("refused")

    assert env.start(flow(run)).result() == "refused"


def test_unknown_option_is_refused(env):
    """TX-042."""

    async def run(self, args):
        with pytest.raises(TypeError):
            api.phase(0, signals=DONE)
        return Ok("refused")

    assert env.start(flow(run)).result() == "refused"


def test_phase_without_timeout_emits_no_command(env):
    """TX-043 TX-195."""
    h = env.start(phased(0, signal={**ADD, **DONE}))
    h.signal("add", 1)
    h.signal("done")
    assert produced_kinds(env) == ["CompleteWorkflow"]
    assert kinds(h) == ["SignalReceived", "SignalReceived", "WorkflowCompleted"]


def test_every_signal_calls_its_handler_once_in_arrival_order(env):
    """TX-044 TX-048 TX-051 TX-056 TX-180."""
    log = {"add": lambda n, seen: NoReply([*seen, n]), "sub": lambda n, seen: NoReply([*seen, -n])}
    h = env.start(phased([], signal={**log, **DONE}))
    for name, n in [("add", 1), ("sub", 1), ("add", 1), ("add", 2)]:
        h.signal(name, n)
    with env.batch():
        h.signal("sub", 5)
        h.signal("add", 5)
    h.signal("done")
    assert h.result() == [1, -1, 1, 2, -5, 5]


def test_signals_of_a_linear_section_are_drained_into_the_next_phase_in_order(env):
    """TX-001 TX-045 TX-046 ST-070: nothing is done about them before that."""

    async def run(self, args):
        await work()
        return Ok(await api.phase([], signal={
            "a": lambda n, s: NoReply([*s, f"a{n}"]), "b": lambda n, s: NoReply([*s, f"b{n}"]), **DONE}))  # fmt: skip

    env.hold(work)
    h = env.start(flow(run))
    for name, n in [("b", 1), ("a", 2), ("zzz", 0), ("b", 3), ("done", None), ("a", 4)]:
        h.signal(name, n)
    assert kinds(h)[1:] == ["SignalReceived"] * 6 and h.describe()["waiting_for"] == [
        "activity tests.support.runs.work"
    ]
    env.complete(work)
    assert h.result() == ["b1", "a2", "b3"]
    assert events(h, "WorkflowCompleted")[0]["never_consumed"] == ["zzz", "a"]


def test_signal_without_handler_waits_for_a_later_phase_or_wait(env):
    """TX-047 TX-054 TX-093."""

    async def run(self, args):
        await api.phase(0, signal=DONE)
        taken = await api.wait_for_signal("later")
        return Ok([taken, await api.phase(0, signal={"later": lambda n, s: Stop(n)})])

    h = env.start(flow(run))
    h.signal("later", 1)
    h.signal("later", 2)
    assert h.status == "waiting"
    h.signal("done")
    assert h.result() == [1, 2]


def test_sync_handler_holds_back_the_next_message_until_it_is_done(env):
    """TX-049 TX-050."""

    async def slow(n, state):
        got = await work(n)
        await api.sleep(10)
        return NoReply([*state, got])

    env.hold(work)
    h = env.start(phased([], signal={"slow": slow, **DONE}))
    h.signal("slow", 1)
    h.signal("slow", 2)
    h.signal("done")
    assert len(events(h, "ActivityScheduled")) == 1
    env.complete(work, "one")
    assert len(events(h, "ActivityScheduled")) == 1
    env.advance(10)
    assert len(events(h, "ActivityScheduled")) == 2
    env.complete(work, "two")
    env.advance(10)
    assert h.result() == ["one", "two"]


def test_phases_have_states_and_names_of_their_own(env):
    """TX-052 TX-053 TX-054 TX-055."""

    async def run(self, args):
        api.publish_state("kept")
        first = await api.phase(["first"], signal={"a": lambda n, s: Stop([*s, n])})
        await work()
        second = await api.phase(["second"], signal={"b": lambda n, s: Stop([*s, n])})
        return Ok([first, second])

    h = env.start(flow(run, handle_query=staticmethod(lambda name, args, state: state)))
    h.signal("b", 1)
    assert h.describe()["accepts"] == {"signals": ["a"], "updates": []}
    h.signal("a", 2)
    assert h.result() == [["first", 2], ["second", 1]]
    assert h.query("x") == "kept"


@pytest.mark.parametrize("bad", [None, 5, Reply(1, 2), Ok(1), Err(1), (1, 2), Async("no function", 1)], ids=repr)
def test_signal_handler_with_a_bad_shape_is_logged_and_changes_nothing(env, bad, caplog):
    """TX-063: and the phase goes on."""
    h = env.start(phased("kept", signal={"bad": lambda _, s: bad, **DONE}))
    with caplog.at_level(logging.ERROR):
        h.signal("bad")
    assert [r.levelname for r in caplog.records].count("ERROR") == 1
    h.signal("done")
    assert h.result() == "kept"


@pytest.mark.parametrize("bad", [None, 5, NoReply(1), Ok(1), {"response": 1}, Async(None, 1)], ids=repr)
def test_update_handler_with_a_bad_shape_fails_the_update(env, bad):
    """TX-063: the message shows the value and the shapes."""
    h = env.start(phased("kept", update={"bad": lambda _, s: bad}, signal=DONE))
    with pytest.raises(errors.UpdateFailed) as caught:
        h.update("bad")
    assert repr(bad) in str(caught.value) or type(bad).__name__ in str(caught.value)
    assert "Reply(response, state)" in str(caught.value) or "callable" in str(caught.value)
    h.signal("done")
    assert h.result() == "kept"


def test_signal_handler_that_raises_is_logged_once_and_changes_nothing(env, caplog):
    """TX-078: not again when the run is rebuilt."""

    def bad(payload, state):
        state.append("half")
        raise ValueError("no")

    h = env.start(phased([], signal={"bad": bad, **DONE}))
    h.signal("bad")
    h.signal("done")
    env.replay(h)
    assert h.result() == []
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1


@dataclass
class Line:
    sku: str
    n: int


def test_handlers_get_arguments_then_state_decoded_by_the_first_annotation(env):
    """TX-064."""

    def add(line: Line, state):
        assert type(line) is Line
        return NoReply({**state, line.sku: line.n})

    h = env.start(phased({}, signal={"add": signal(add), **DONE}))
    h.signal("add", {"sku": "a", "n": 2})
    h.signal("done")
    assert h.result() == {"a": 2}


def test_payload_that_does_not_fit_is_logged_and_dropped(env, caplog):
    """TX-081 for signals: the workflow is unharmed, the path is in the log."""

    def add(line: Line, state):
        return NoReply(line.sku)

    h = env.start(phased("kept", signal={"add": add, **DONE}))
    h.signal("add", {"sku": "a", "n": "many"})
    assert "PayloadError for `$.n` at" in caplog.text
    assert "many" not in caplog.text
    h.signal("done")
    assert h.result() == "kept"


def test_handlers_cannot_reach_the_state_through_references(env):
    """State in and state out are copies."""
    kept = []

    def keep(payload, state):
        kept.append(state)
        state.append(payload)
        return NoReply(state)

    def spoil(payload, state):
        for reference in kept:
            reference.append("spoiled")
        raise ValueError("its own state is not taken")

    given = []

    async def run(self, args):
        kept.clear()
        given.clear()
        ended = api.phase(given, signal={"keep": keep, "spoil": spoil, **DONE})
        given.append("after the call")
        return Ok(await ended)

    h = env.start(flow(run))
    for name in ("keep", "spoil", "done"):
        h.signal(name, name)
    assert h.result() == ["keep"]


# -- timeout -----------------------------------------------------------------------------------------------------------


def test_timeout_starts_a_timer_and_gives_the_tagged_state(env):
    """TX-083 TX-084 TX-085 TX-087 TX-196."""
    h = env.start(phased(("a", "tuple"), timeout=timedelta(hours=1), signal=ADD))
    env.advance(3600)
    assert h.result() == {"timed_out": ["a", "tuple"]}
    assert kinds(h) == ["TimerStarted", "TimerFired", "WorkflowCompleted"]


def test_stop_before_the_timeout_cancels_the_timer_once(env):
    """TX-086 TX-196."""
    h = env.start(phased(0, timeout=60, signal=DONE))
    h.signal("done")
    env.advance(120)
    assert h.result() == 0
    assert [(c.kind, c.seq) for c in produced(env)] == [
        ("StartTimer", 1),
        ("CancelTimer", 1),
        ("CompleteWorkflow", None),
    ]


def test_phase_with_only_a_timeout(env):
    """TX-042: a timeout alone can end it."""
    h = env.start(phased(1, timeout=5))
    env.advance(5)
    assert h.result() == {"timed_out": 1}


def test_tie_of_timeout_and_stop_signal_goes_to_the_timeout(env):
    """Resolutions first; the signal stays buffered."""

    async def run(self, args):
        ended = await api.phase(0, timeout=60, signal=DONE)
        return Ok([isinstance(ended, TimedOut), await api.wait_for_signal("done")])

    h = env.start(flow(run))
    with env.batch():
        h.signal("done", "buffered")
        env.advance(60)
    assert h.result() == [True, "buffered"]
    assert kinds(h) == ["TimerStarted", "TimerFired", "SignalReceived", "WorkflowCompleted"]


@pytest.mark.parametrize("answer", ["reply", "stop", "async"])
def test_handler_that_runs_when_the_timer_fires_is_finished_and_counts(env, answer):
    """TX-088 TX-090: whatever it returns, the result is the timeout form; an async value is still run."""

    async def slow(payload, state):
        await work()

        async def background():
            await other()
            await api.update_state(lambda s: (None, [*s, "background"]))

        state = [*state, "slow"]
        return {"reply": NoReply(state), "stop": Stop(state), "async": Async(background, state)}[answer]

    env.hold(work)
    env.hold(other)
    h = env.start(phased([], timeout=60, signal={"slow": slow, **ADD}))
    h.signal("slow")
    env.advance(60)
    h.signal("add", 1)
    assert h.status == "running"
    env.complete(work)
    if answer == "async":
        assert h.status == "running"
        env.complete(other)
    assert h.result() == {"timed_out": ["slow", "background"] if answer == "async" else ["slow"]}
    assert "CancelTimer" not in produced_kinds(env)


def test_async_handlers_finish_before_the_timeout_returns(env):
    """TX-088 TX-089."""

    def begin(payload, state):
        async def background():
            got = await work(payload)
            await api.update_state(lambda s: (None, [*s, got]))

        return Async(background, state)

    env.hold(work)
    h = env.start(phased([], timeout=60, signal={"begin": begin}, update={"ask": lambda a, s: Reply(1, s)}))
    h.signal("begin", 1)
    env.advance(60)
    h.signal("begin", 2)
    with pytest.raises(errors.UpdateRejected):
        h.update("ask")
    assert h.status == "running"
    env.complete(work, "one")
    assert h.result() == {"timed_out": ["one"]}
    assert events(h, "WorkflowCompleted")[0]["never_consumed"] == ["begin"]


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_stop_drains_async_handlers_then_goes_on_in_the_same_activation(env):
    """TX-010 TX-093 TX-094 TX-095 TX-096 TX-057 TX-060."""

    def begin(payload, state):
        async def background():
            got = await work(payload)
            await api.update_state(lambda s: (None, [*s, got]))

        return Async(background, [*state, "begun"])

    async def run(self, args):
        state = await api.phase([], signal={"begin": begin}, update={"end": lambda a, s: Stop([*s, "stop"], "ended")})
        await other(state)
        return Ok(state)

    env.hold(work)
    h = env.start(flow(run))
    h.signal("begin", 1)
    h.signal("begin", 2)
    assert h.update("end") == "ended"
    h.signal("begin", 3)
    with pytest.raises(errors.UpdateRejected, match="not accepting"):
        h.update("end")
    env.complete(work, "one")
    assert "WorkflowCompleted" not in kinds(h)
    before = len(env.commands)
    env.complete(work, "two")
    assert [c.kind for c in env.commands[before]] == ["ScheduleActivity"]
    assert h.result() == ["begun", "begun", "stop", "one", "two"]


def test_late_fire_of_a_cancelled_phase_timer_is_dropped(env):
    """Stop first, the timer would have fired during the drain; the result is the bare state."""

    def begin(payload, state):
        async def background():
            await work()

        return Async(background, state)

    env.hold(work)
    h = env.start(phased("bare", timeout=60, signal={"begin": begin, **DONE}))
    h.signal("begin")
    h.signal("done")
    env.advance(120)
    env.complete(work)
    assert h.result() == "bare"
    assert h.blocked is None
    assert produced_kinds(env).count("CancelTimer") == 1


def test_buffered_signals_after_a_stop_go_to_whoever_waits(env):
    """After a stop everything is buffered again, also what the phase handles."""

    def begin(payload, state):
        async def background():
            await api.update_state(lambda s: (None, [*s, "waiting"]))
            got = await api.wait_for_signal("add")
            await api.update_state(lambda s: (None, [*s, got]))

        return Async(background, state)

    h = env.start(phased([], signal={"begin": begin, "add": lambda n, s: NoReply([*s, f"handler {n}"]), **DONE}))
    h.signal("begin")
    h.signal("add", 1)
    h.signal("done")
    assert h.status == "waiting"
    h.signal("add", 2)
    assert h.result() == ["waiting", "handler 1", 2]


def test_wait_inside_a_busy_handler_may_take_a_handled_signal(env):
    """Nothing is dispatched meanwhile, so it may pop the buffer."""

    async def pair(payload, state):
        return NoReply([*state, payload, await api.wait_for_signal("pair")])

    h = env.start(phased([], signal={"pair": pair, **DONE}))
    for n in (1, 2, 3, 4):
        h.signal("pair", n)
    h.signal("done")
    assert h.result() == [1, 2, 3, 4]


def test_handler_wins_over_a_waiter_of_an_async_unit(env):
    """While the phase is idle."""

    def begin(payload, state):
        async def background():
            await api.wait_for_signal("add")

        return Async(background, state)

    h = env.start(phased(0, signal={"begin": begin, **ADD, **DONE}))
    h.signal("begin")
    h.signal("add", 5)
    h.signal("done")
    assert h.status == "waiting"
    h.signal("add", 9)
    assert h.result() == 5


def test_call_that_a_handler_does_not_await_fails_the_handler(env, caplog):
    """In a plain handler too; its state is not taken."""

    def forgets(payload, state):
        work(1)
        return NoReply("changed")

    def asks(payload, state):
        api.sleep(1)
        return Reply(1, "changed")

    h = env.start(phased("kept", signal={"forgets": forgets, **DONE}, update={"asks": asks}))
    h.signal("forgets")
    with pytest.raises(errors.UpdateFailed, match=r"NotAwaited.*sleep"):
        h.update("asks")
    h.signal("done")
    assert h.result() == "kept"
    assert "NotAwaited" in caplog.text


def test_ten_thousand_signals_cost_the_same_each(capsys):
    """TX-044: flat cost; the ratio is printed, not asserted."""
    import time

    from temporalex_django.testing import WorkflowEnvironment

    def spend(count: int) -> float:
        env = WorkflowEnvironment()
        h = env.start(phased(0, signal={**ADD, **DONE}))
        begun = time.perf_counter()
        with env.batch():
            for _ in range(count // 2):
                h.signal("add", 1)
        for _ in range(count // 2):
            h.signal("add", 1)
        h.signal("done")
        spent = time.perf_counter() - begun
        assert h.result() == count
        env.replay(h)
        return spent / count

    small, large = spend(1_000), spend(10_000)
    with capsys.disabled():
        print(
            f"\n  a signal costs {large * 1e6:.0f} µs among 10,000, {small * 1e6:.0f} µs among 1,000: ratio {large / small:.2f}"
        )


def test_update_handler_options_are_checked(env):
    """TX-062: what is neither a callable nor update(fn, validator=) with two callables."""
    with pytest.raises(errors.WorkflowDefinitionError):
        update(5)
    with pytest.raises(errors.WorkflowDefinitionError):
        update(lambda a, s: Reply(a, s), validator="no")
    with pytest.raises(errors.WorkflowDefinitionError):
        signal(None)
