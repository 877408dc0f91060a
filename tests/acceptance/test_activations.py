"""Activations: what each of them takes in, in which order, and what it leaves behind."""

from __future__ import annotations

from functools import partial

import pytest

from temporalex_django import Async, NoReply, Ok, Reply, Stop, TimedOut, api, errors, query
from tests.support.hosts import DATABASE
from tests.support.runs import events, flow, kinds, other, produced, work

DONE = {"done": lambda _, state: Stop(state)}
SHOWN = staticmethod(lambda name, args, state: state)


def test_one_run_of_numbers_serves_all_units(env):
    """TX-202 TX-203: entry, branches, timeout of the phase, handlers of both kinds.

    Each outcome comes back to who asked.
    """

    async def sync(n, state):
        return NoReply([*state, await work(n)])

    def background(n, state):
        async def unit():
            await api.sleep(1)
            got = await work(n)
            await api.update_state(lambda s: (None, [*s, got]))

        return Async(unit, state)

    async def run(self, args):
        state = await api.phase([await work("entry")], signal={"sync": sync, "async": background, **DONE}, timeout=60)
        return Ok([*state, *await api.parallel([work("left"), work("right")])])

    h = env.start(flow(run))
    h.signal("async", "async")
    h.signal("sync", "sync")
    env.advance(1)
    h.signal("done")
    assert h.result() == ["entry", "sync", "async", "left", "right"]
    started = [c for c in produced(env) if c.kind in ("ScheduleActivity", "StartTimer")]
    assert [c.seq for c in started] == [1, 2, 3, 4, 5, 6, 7]


def test_the_stored_stream_names_no_units(env):
    """TX-204: the same call leaves the same attributes, whichever unit makes it."""

    async def sync(_, state):
        await work("same")
        return Async(partial(work, "same"), state)

    async def run(self, args):
        await work("same")
        await api.phase(0, signal={"go": sync, **DONE})
        await api.parallel([partial(work, "same"), partial(work, "same")])
        return Ok()

    h = env.start(flow(run))
    h.signal("go")
    h.signal("done")
    assert h.result() is None
    found = [{**attributes, "seq": 0} for attributes in events(h, "ActivityScheduled")]
    assert len(found) == 5 and all(attributes == found[0] for attributes in found)
    assert found[0] == {"seq": 0, "activity": "tests.support.runs.work", "args": ["same"]}


def test_an_async_signal_adds_nothing_to_the_commands_of_its_unit(env):
    """TX-198: no acceptance and no completion, whatever becomes of it."""

    def handler(args, state):
        async def unit():
            await work(args)
            return "for nobody"

        return Async(unit, state)

    async def run(self, args):
        return Ok(await api.phase(0, signal={"go": handler, **DONE}))

    h = env.start(flow(run))
    h.signal("go")
    h.signal("done")
    assert kinds(h) == [
        "SignalReceived", "ActivityScheduled", "ActivityCompleted", "SignalReceived", "WorkflowCompleted",
    ]  # fmt: skip
    assert [c.kind for c in produced(env)] == ["ScheduleActivity", "CompleteWorkflow"]


def test_a_signal_goes_to_its_handler_or_into_the_buffer(env):
    """ST-030 ST-070."""

    async def run(self, args):
        handled = await api.phase([], signal={"handled": lambda n, s: NoReply([*s, n]), **DONE})
        return Ok([handled, await api.wait_for_signal("other")])

    h = env.start(flow(run))
    h.signal("other", "kept")
    h.signal("handled", "taken")
    h.signal("done")
    assert h.result() == [["taken"], "kept"]


def test_a_query_runs_once_and_gives_one_answer(env):
    """ST-031."""
    asked = []

    async def run(self, args):
        api.publish_state("state")
        await api.wait_for_signal("never")

    @query("ask")
    @staticmethod
    def ask(state, args):
        asked.append(args)
        return [state, args]

    h = env.start(flow(run, ask=ask))
    assert h.query("ask", 1) == ["state", 1]
    assert h.query("ask", 2) == ["state", 2]
    assert asked == [1, 2]


def test_queries_see_what_all_messages_of_an_activation_did(env):
    """ST-043: and what the units did that the messages woke."""

    def add(n, state):
        api.publish_state([*state, n])
        return NoReply([*state, n])

    async def run(self, args):
        self.seen = 0

        async def watch():
            await api.wait_condition(lambda: self.seen == 2)
            api.publish_state("woken")

        def note(n, state):
            self.seen += 1
            return add(n, state)

        await api.phase([], signal={"note": note, "watch": lambda _, s: Async(watch, s)})

    h = env.start(flow(run, handle_query=SHOWN))
    h.signal("watch")
    with env.batch():
        h.signal("note", 1)
        h.signal("note", 2)
    assert h.query("state") == "woken"


def test_what_a_message_sets_off_is_handed_over_with_the_same_activation(env):
    """ST-044 ST-051: units woken by the last message run to blocked, then all commands go at once."""

    def go(_, state):
        async def unit():
            await api.sleep(0)
            await api.wait_condition(lambda: self_seen == ["go", "again"])
            await other()

        self_seen.append("go")
        return Async(unit, state)

    def again(_, state):
        self_seen.append("again")
        return NoReply(state)

    self_seen: list[str] = []

    async def run(self, args):
        self_seen.clear()
        return Ok(await api.phase(0, signal={"go": go, "again": again, **DONE}, timeout=60))

    env.hold(other)
    h = env.start(flow(run))
    before = len(env.commands)
    with env.batch():
        h.signal("go")
        h.signal("again")
    assert [[c.kind for c in commands] for commands in env.commands[before:]] == [["ScheduleActivity"]]


def test_outcomes_are_taken_in_before_messages_however_they_were_sent(env):
    """ST-040 ST-045: and the units that they wake run to blocked, before a message reaches a unit that waited first."""
    log = []

    async def run(self, args):
        log.clear()

        async def timer():
            await api.sleep(10)
            log.append("timer")
            await api.sleep(0)
            log.append("timer went on")

        async def message():
            await api.wait_for_signal("go")
            log.append("message")

        await api.parallel([message, timer])
        return Ok()

    h = env.start(flow(run))
    with env.batch():
        h.signal("go")
        env.advance(10)
    assert h.result() is None
    assert log == ["timer", "timer went on", "message"]


def test_an_activation_without_commands_is_recorded(env):
    """ST-055: its stamp is what `now` was; a replay needs it."""

    async def run(self, args):
        stamps = []
        for _ in range(2):
            await api.wait_for_signal("go")
            stamps.append(api.now().second)
        return Ok(stamps)

    h = env.start(flow(run))
    env.advance(7)
    h.signal("go")
    assert env.commands[-1] == []
    last = h.history()[-2:]
    assert [e.kind for e in last] == ["ActivationStarted", "SignalReceived"]
    assert last[0].at.second == 7


class Died(Exception):
    pass


@pytest.mark.hosts(*DATABASE)
@pytest.mark.parametrize("when", ["before the statements", "before the commit"])
def test_commands_are_stored_with_their_events_or_not_at_all(env, monkeypatch, when):
    """ST-056 ST-057: events, activities, timers and state go together.

    What did not commit is done anew, from the same message.
    """
    from temporalex_django.models import ActivityTask

    async def run(self, args):
        await api.wait_for_signal("go")
        api.publish_state("gone")
        return Ok(await api.parallel([lambda: work("kept"), lambda: api.sleep(60)]))

    def dies(writes, **options):
        if when == "before the commit":
            stored(writes, **options)
        raise Died

    env.hold(work)
    h = env.start(flow(run, handle_query=SHOWN))
    before, stored = h.history(), env.storage.write
    with monkeypatch.context() as patch:
        patch.setattr(env.storage, "write", dies)
        with pytest.raises(Died):
            h.signal("go")
    assert (h.history(), h.query("state"), ActivityTask.objects.count()) == (before, None, 0)
    env.advance(0)
    assert kinds(h) == ["SignalReceived", "ActivityScheduled", "TimerStarted"]
    assert (h.query("state"), ActivityTask.objects.count()) == ("gone", 1)
    env.complete(work, "kept")
    env.advance(60)
    assert h.result() == ["kept", None]


def test_nobody_sees_the_middle_of_a_step(env):
    """ST-072: what a unit does between two waits is one thing, to queries, predicates and handlers alike."""
    seen = []

    async def run(self, args):
        self.left = self.right = 0

        async def move():
            for _ in range(3):
                self.left += 1
                api.publish_state([self.left, self.right])
                self.right += 1
                api.publish_state([self.left, self.right])
                await work()

        async def watch():
            def odd():
                seen.append((self.left, self.right))
                return self.left != self.right

            return await api.wait_condition(odd, timeout=5)

        return Ok((await api.parallel([watch, move]))[0])

    def ask():
        left, right = h.query("state")
        assert left == right

    env.mock(work, ask)
    with env.batch():
        h = env.start(flow(run, handle_query=SHOWN))
    env.advance(5)
    assert h.result() is False
    assert (3, 3) in seen and all(left == right for left, right in seen)


def test_what_a_run_waits_for_is_known_at_once(env):
    """ST-075: when all units are blocked, and by what, without time going by; the same when it is rebuilt."""

    def spawn(_, state):
        async def unit():
            await api.wait_condition(lambda: False)

        return Async(unit, state)

    async def run(self, args):
        async def phase():
            await api.wait_for_signal("a")
            return 0

        await api.parallel([phase, lambda: api.sleep(60), lambda: work(1)])
        await api.phase(0, signal={"spawn": spawn})

    env.hold(work)
    h = env.start(flow(run))
    begun, timer = env.clock, "timer 2026-01-01T00:01:00+00:00"
    assert h.status == "running"
    assert set(h.describe()["waiting_for"]) == {
        "parallel of 3",
        "signal a",
        timer,
        "activity tests.support.runs.work",
    }
    env.complete(work)
    h.signal("a")
    assert set(h.describe()["waiting_for"]) == {"parallel of 3", timer}
    assert (h.status, env.clock) == ("waiting", begun)
    env.advance(60)
    h.signal("spawn")
    assert set(h.describe()["waiting_for"]) == {"phase: signal spawn", "condition"}


def test_the_timeout_of_a_phase_keeps_its_time_through_everything(env):
    """TX-091: neither messages nor rebuilds begin it again, and it does not get lost."""

    async def run(self, args):
        ended = await api.phase(0, signal={"add": lambda n, s: NoReply(s + n)}, timeout=60)
        return Ok([ended.state, isinstance(ended, TimedOut), api.now().isoformat()])

    h = env.start(flow(run))
    for _ in range(2):
        env.advance(25)
        h.signal("add", 1)
    env.advance(9)
    assert h.status == "waiting"
    env.advance(1)
    assert h.result() == [2, True, "2026-01-01T00:01:00+00:00"]


def test_a_replay_takes_the_firing_from_the_history(env):
    """TX-092: with the clock far beyond it, a history in which it has not fired yet has an open phase."""
    ended = []

    async def run(self, args):
        value = await api.phase(0, signal={"add": lambda n, s: NoReply(s + n)}, timeout=60)
        ended.append((type(value).__name__, api.now().second))
        await api.wait_for_signal("never")

    cls = flow(run)
    h = env.start(cls)
    h.signal("add", 1)
    env.advance(3600)
    ended.clear()
    before_it_fired = [event for event in h.history() if event.activation <= 2]
    env.replay_history(cls, before_it_fired)
    assert ended == []
    env.replay(h)
    assert ended == [("TimedOut", 0)]
    assert [event.at.minute for event in h.history() if event.kind == "TimerFired"] == [1]


def test_starts_updates_children_and_cancels_are_taken_in_like_any_other(env):
    """ST-033: one run that meets each kind of delivery."""

    async def child(self, args):
        await api.signal_external("parent", "from child", args)
        await api.wait_for_signal("end")
        return Ok("child")

    small = flow(child, name="Small")

    async def run(self, args):
        new = api.patched("new")
        async with api.shield():
            answers = await api.phase([], update={"u": lambda n, s: Reply(n, [*s, n])}, signal=DONE)
            heard, result = await api.parallel(
                [lambda: api.wait_for_signal("from child"), lambda: api.child(small, "hello", id="child")]
            )
        try:
            await api.sleep(60)
        except errors.Cancelled:
            return Ok([args, new, answers, heard, result])

    h = env.start(flow(run), "input", id="parent")
    assert h.update("u", 1) == 1
    h.signal("done")
    h.cancel()
    env.handle("child").signal("end")
    assert h.result() == ["input", True, [1], "hello", "child"]
    assert kinds(h) == [
        "PatchMarked", "UpdateAccepted", "UpdateCompleted", "SignalReceived", "ChildStarted", "SignalReceived",
        "CancelRequested", "ChildCompleted", "TimerStarted", "TimerCancelled", "WorkflowCompleted",
    ]  # fmt: skip
