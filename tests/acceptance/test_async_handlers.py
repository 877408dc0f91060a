"""Async handlers and ``update_state``."""

from __future__ import annotations

import pytest

from temporalex_django import Async, NoReply, Ok, Reply, Stop, api, errors
from tests.support.hosts import in_memory
from tests.support.runs import events, flow, kinds, other, produced, produced_kinds, work

DONE = {"done": lambda _, state: Stop(state)}


def phased(state, **options):
    async def run(self, args):
        return Ok(await api.phase(state, **options))

    return flow(run, handle_query=staticmethod(lambda name, args, state: state))


def spawned(body):
    """An update or signal handler that goes on as ``body(args)`` in a unit of its own."""

    def handler(args, state):
        async def background():
            return await body(args)

        return Async(background, state)

    return handler


def test_async_sets_the_state_spawns_and_goes_on_dispatching(env):
    """TX-058 TX-098 TX-099 TX-107: distinct numbers, each result to its own unit."""

    def begin(n, state):
        async def background():
            got = await work(n)
            await api.update_state(lambda s: (None, [*s, got]))

        return Async(background, [*state, f"begun {n}"])

    env.hold(work)
    h = env.start(phased([], signal={"begin": begin, "look": lambda _, s: NoReply([*s, "look"]), **DONE}))
    h.signal("begin", 1)
    h.signal("begin", 2)
    h.signal("look")
    env.complete(work, "first")
    env.complete(work, "second")
    h.signal("done")
    assert h.result() == ["begun 1", "begun 2", "look", "first", "second"]
    assert [c.seq for c in produced(env) if c.kind == "ScheduleActivity"] == [1, 2]


def test_resolutions_go_to_the_unit_that_asked_in_any_order(env):
    """TX-107 TX-203 ST-028 ST-059: timers of three units, by their numbers."""

    async def body(n):
        await api.sleep(n)
        await api.update_state(lambda s: (None, [*s, n]))

    h = env.start(phased([], signal={"begin": spawned(body), **DONE}))
    for n in (30, 10, 20):
        h.signal("begin", n)
    env.advance(30)
    h.signal("done")
    assert h.result() == [10, 20, 30]


def test_async_update_is_accepted_at_once_and_its_return_value_is_the_reply(env):
    """TX-061 TX-100 TX-101 TX-197."""

    async def body(args):
        got = await work(args)
        return {"price": got}

    env.hold(work)
    h = env.start(phased(0, update={"ask": spawned(body)}))
    u = h.update_async("ask", 7)
    assert u.accepted and not u.done
    assert [c.kind for c in env.commands[-1]] == ["AcceptUpdate", "ScheduleActivity"]
    env.complete(work, 5)
    assert u.result() == {"price": 5}
    assert kinds(h) == ["UpdateAccepted", "ActivityScheduled", "ActivityCompleted", "UpdateCompleted"]


def test_async_update_that_raises_fails_for_its_caller_and_keeps_what_it_changed(env):
    """TX-102 TX-108."""

    async def body(args):
        await api.update_state(lambda s: (None, "changed"))
        raise ValueError("too late")

    h = env.start(phased("before", update={"ask": spawned(body)}, signal=DONE))
    with pytest.raises(errors.UpdateFailed, match="ValueError: too late"):
        h.update("ask")
    h.signal("done")
    assert h.result() == "changed"


def test_async_signal_ignores_the_value_and_logs_an_error_once(env, caplog):
    """TX-103 TX-104 TX-188."""

    async def fine(args):
        return object()

    async def bad(args):
        raise ValueError("nobody hears")

    h = env.start(phased(0, signal={"fine": spawned(fine), "bad": spawned(bad), **DONE}))
    h.signal("fine")
    assert caplog.records == []
    h.signal("bad")
    h.signal("done")
    env.replay(h)
    assert h.result() == 0
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1


def test_plain_function_may_be_the_async_unit(env):
    """TX-061: fn may be plain."""
    h = env.start(phased(0, update={"ask": lambda a, s: Async(lambda: a * 2, s)}))
    assert h.update("ask", 4) == 8


def test_response_of_an_async_update_that_cannot_be_encoded(env):
    """Bad input: the update fails, the run goes on."""
    h = env.start(phased(0, update={"ask": lambda a, s: Async(object, s)}, signal=DONE))
    with pytest.raises(errors.UpdateFailed, match="PayloadError"):
        h.update("ask")
    h.signal("done")
    assert h.result() == 0


def test_async_unit_has_the_capabilities_of_a_handler(env):
    """TX-106 TX-105: activities, sleeps, parallel, publish; bound to its phase."""

    async def body(args):
        results = await api.parallel([work(1), other(2)])
        await api.sleep(5)
        api.publish_state(results)

    h = env.start(phased(0, signal={"begin": spawned(body), **DONE}))
    h.signal("begin")
    h.signal("done")
    assert h.status == "waiting"
    env.advance(5)
    assert h.result() == 0
    assert h.query("x") == [1, 2]


def test_call_that_an_async_unit_does_not_await_fails_it(env):
    """NotAwaited, judged when the unit ends."""

    async def body(args):
        api.update_state(lambda s: (1, s))
        return 1

    h = env.start(phased(0, update={"ask": spawned(body)}))
    with pytest.raises(errors.UpdateFailed, match=r"NotAwaited.*update_state"):
        h.update("ask")


# -- update_state ------------------------------------------------------------------------------------------------------


def asked(env, fn, state=0):
    """The response of an async update that calls update_state(fn) once, and the final state."""

    async def body(args):
        return await api.update_state(fn)

    h = env.start(phased(state, update={"ask": spawned(body)}, signal=DONE))
    try:
        response = h.update("ask")
    except errors.UpdateFailed as exc:
        response = exc
    h.signal("done")
    return response, h.result()


def test_update_state_gives_the_result_and_sets_the_state(env):
    """TX-109 TX-113 TX-194: no command, no event, and an empty activation tells nobody."""
    assert asked(env, lambda s: (s + 1, s + 10), 5) == (6, 15)
    assert produced_kinds(env) == ["AcceptUpdate", "CompleteUpdate", "CompleteWorkflow"]


def test_pure_read_returns_the_state_unchanged(env):
    """TX-112."""
    assert asked(env, lambda s: (len(s), s), [1, 2]) == (2, [1, 2])


def test_closure_sees_the_state_of_this_moment(env):
    """TX-110 TX-111: not the one at spawn time; changes of handlers and closures follow each other."""

    async def body(n):
        got = await work(n)
        return await api.update_state(lambda s: (list(s), [*s, got]))

    env.hold(work)
    h = env.start(phased([], update={"ask": spawned(body)}, signal={"add": lambda n, s: NoReply([*s, n]), **DONE}))
    first, second = h.update_async("ask"), h.update_async("ask")
    h.signal("add", "s1")
    env.complete(work, "w1")
    h.signal("add", "s2")
    env.complete(work, "w2")
    assert first.result() == ["s1"]
    assert second.result() == ["s1", "w1", "s2"]
    h.signal("done")
    assert h.result() == ["s1", "w1", "s2", "w2"]


def test_update_state_waits_for_the_sync_handler_and_neither_change_is_lost(env):
    """TX-110: after it, and before the next message."""

    async def slow(payload, state):
        await other()
        return NoReply([*state, "slow"])

    async def body(args):
        await work()
        return await api.update_state(lambda s: (list(s), [*s, "async"]))

    env.hold(work)
    env.hold(other)
    h = env.start(
        phased([], update={"ask": spawned(body)}, signal={"slow": slow, "add": lambda n, s: NoReply([*s, n]), **DONE})
    )
    u = h.update_async("ask")
    h.signal("slow")
    h.signal("add", "next message")
    env.complete(work)
    assert not u.done
    env.complete(other)
    assert u.result() == ["slow"]
    h.signal("done")
    assert h.result() == ["slow", "async", "next message"]


@in_memory
@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda s: (work(1), s), "NestingError"),
        (lambda s: (api.sleep(1), s), "NestingError"),
        (lambda s: (api.publish_state(1), s), "NestingError"),
        (lambda s: (api.now(), s), "NestingError"),
        (lambda s: (api.random(), s), "NestingError"),
        (lambda s: (api.patched("x"), s), "NestingError"),
        (lambda s: (api.update_state(lambda t: (1, t)), s), "NestingError"),
        (lambda s: s, "TypeError"),
        (lambda s: (1, 2, 3), "TypeError"),
        (lambda s: [1, 2], "TypeError"),
        (lambda s: None, "TypeError"),
        (lambda s: (1 / 0, s), "ZeroDivisionError"),
        ("not callable", "TypeError"),
    ],
)
def test_faulty_closure_is_an_error_of_the_caller_and_leaves_the_state(env, fn, message):
    """TX-114 TX-117 TX-118 TX-174."""
    error, state = asked(env, fn, [1])
    assert message in str(error)
    assert state == [1]


def test_async_closure_is_refused(env):
    """TX-115: also a plain one that gives an awaitable."""

    async def closure(state):
        return 1, state

    for fn in (closure, lambda s: closure(s)):
        error, state = asked(env, fn, 3)
        assert "NestingError" in str(error)
        assert state == 3


def test_closure_that_changes_in_place_and_raises_leaves_the_state(env):
    """TX-118: it gets a copy."""

    def closure(state):
        state.append("half")
        raise ValueError("no")

    error, state = asked(env, closure, [])
    assert "ValueError" in str(error)
    assert state == []


def test_what_a_closure_returns_is_not_shared_with_the_state(env):
    async def body(args):
        got = await api.update_state(lambda s: (s, s))
        got.append("spoiled")

    h = env.start(phased([1], signal={"begin": spawned(body), **DONE}))
    h.signal("begin")
    h.signal("done")
    assert h.result() == [1]


def test_many_async_units_serialize_their_changes(env):
    """TX-107 TX-110."""

    async def body(n):
        await work(n)
        before = await api.update_state(lambda s: (s, s + n))
        await work(before)
        return await api.update_state(lambda s: (s, s + 1))

    h = env.start(phased(0, update={"ask": spawned(body)}, signal=DONE))
    with env.batch():
        updates = [h.update_async("ask", n) for n in range(20)]
    assert all(u.done for u in updates)
    h.signal("done")
    assert h.result() == sum(range(20)) + 20
    numbers = [a["seq"] for a in events(h, "ActivityScheduled")]
    assert numbers == sorted(set(numbers)) and len(numbers) == 40


def test_sync_handler_that_waits_for_a_queued_update_state_says_what_it_waits_for(env):
    """Nothing detects it by force."""

    async def waits(payload, state):
        await api.wait_for_signal("from the async unit")
        return NoReply(state)

    async def body(args):
        await api.wait_for_signal("go")
        await api.update_state(lambda s: (None, s))

    h = env.start(phased(0, signal={"begin": spawned(body), "waits": waits}))
    h.signal("begin")
    h.signal("waits")
    h.signal("go")
    assert h.status == "waiting"
    assert {"update_state", "signal from the async unit"} <= set(h.describe()["waiting_for"])


def test_unit_that_outlives_the_stop_still_answers_its_caller(env):
    """TX-094 TX-101: the reply comes during the drain."""

    async def body(args):
        return await work(args)

    env.hold(work)
    h = env.start(phased(0, update={"ask": spawned(body)}, signal=DONE))
    u = h.update_async("ask")
    h.signal("done")
    env.complete(work, "answer")
    assert u.result() == "answer"
    assert kinds(h)[-2:] == ["UpdateCompleted", "WorkflowCompleted"]


def test_reply_of_a_sync_handler_while_async_units_run(env):
    """TX-099: updates are answered in between."""

    async def body(args):
        await api.sleep(10)

    h = env.start(phased(1, signal={"begin": spawned(body), **DONE}, update={"read": lambda a, s: Reply(s, s)}))
    h.signal("begin")
    assert h.update("read") == 1
    h.signal("done")
    env.advance(10)
    assert h.result() == 1
