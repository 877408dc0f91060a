"""Determinism: what a replay checks, how a run is blocked and how it heals."""

from __future__ import annotations

import contextvars
import gc
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from temporalex_django import Async, NoReply, Ok, Reply, Stop, Workflow, api, errors
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import broken, events, flow, kinds, once, other, plain_commands, plain_history, produced, work

ROOT = Path(__file__).resolve().parents[2]


async def two_steps(self, args):
    await work(1)
    await api.sleep(10)
    await work(2)
    return Ok("done")


def changed(first=work, timer=True, second=work, end=None, extra=False):
    async def run(self, args):
        await first(1)
        if timer:
            await api.sleep(10)
        else:
            await other(0)
        if second is not None:
            await second(2)
        if extra:
            await work(3)
        return Ok("done") if end is None else end

    return run


@pytest.mark.parametrize(
    ("run", "seq", "recorded", "made"),
    [
        (
            changed(first=other),
            1,
            "ActivityScheduled, seq 1, activity tests.support.runs.work",
            "activity tests.support.runs.other",
        ),
        (changed(timer=False), 2, "TimerStarted, seq 2", "ActivityScheduled, seq 2, activity tests.support.runs.other"),
        (changed(second=other), 3, "activity tests.support.runs.work", "activity tests.support.runs.other"),
        (changed(second=None), 3, "ActivityScheduled, seq 3", "WorkflowCompleted"),
        (changed(extra=True), None, "WorkflowCompleted", "ActivityScheduled, seq 4"),
        (changed(end=ValueError), None, "WorkflowCompleted", "WorkflowFailed"),
    ],
)
def test_other_code_is_told_what_was_recorded_and_what_it_produced(env, run, seq, recorded, made):
    """TX-178 TX-185 TX-186: another kind, another activity, missing, extra, another end."""
    h = env.start(flow(two_steps))
    env.advance(10)
    with pytest.raises(errors.NondeterminismError) as caught:
        env.replay_history(flow(run), h.history())
    flow(two_steps)
    error = caught.value
    assert recorded in error.recorded and made in error.produced
    assert recorded in str(error) and made in str(error)
    if seq is not None:
        assert error.seq == seq


def test_arguments_durations_and_results_part_no_run_from_its_history(env):
    """That is by kind, number and name."""
    h = env.start(flow(two_steps))
    env.advance(10)

    async def run(self, args):
        await work("other argument")
        await api.sleep(99)
        await work(None)
        return Ok("another result")

    env.replay_history(flow(run), h.history())
    with pytest.raises(errors.NondeterminismError, match=r"produced ActivityScheduled, seq 3, activity .*\.other"):
        env.replay_history(flow(changed(second=other)), h.history())  # the name is
    flow(two_steps)


def test_replay_runs_no_activity_and_produces_nothing(env):
    """TX-179 TX-187."""
    calls = []
    env.mock(work, lambda value: calls.append(value))
    h = env.start(flow(two_steps))
    env.advance(10)
    before = len(env.commands), h.history()
    env.replay(h)
    assert calls == [1, 2]
    assert (len(env.commands), h.history()) == before


def test_live_run_that_no_longer_fits_is_blocked_and_heals(env):
    """TX-185: nothing written, the call does not raise, a later advance heals."""
    h = env.start(flow(two_steps))
    before = h.history()
    flow(changed(first=other))
    env.advance(10)
    assert isinstance(h.blocked, errors.NondeterminismError)
    assert h.blocked.seq == 1
    assert h.status in ("waiting", "running")
    assert h.history() == before
    assert h.describe()["blocked"]["code"] == "nondeterminism"
    with pytest.raises(errors.ResultTimeout, match="blocked"):
        h.result()
    h.signal("unrelated", 1)
    assert h.blocked is not None, "not tried again because a message came"
    flow(two_steps)
    env.advance(0)
    assert h.blocked is None
    assert h.result() == "done"
    assert h.describe()["blocked"] is None


def test_messages_of_a_blocked_run_wait(env):
    """And are delivered in order when it heals; an update is tried once, and withdrawn."""

    async def good(self, args):
        await work(1)
        return Ok([await api.wait_for_signal("s"), await api.wait_for_signal("s")])

    h = env.start(flow(good))
    flow(changed(first=other))
    h.signal("s", 1)
    h.signal("s", 2)
    u = h.update_async("nobody")
    assert h.blocked is not None and u.done and not u.accepted  # somebody waits for its answer: it is withdrawn
    flow(good)
    env.advance(4)
    assert h.result() == [1, 2]


def test_other_runs_are_not_harmed_by_a_blocked_one(env):
    """Bad input: the instance named, other runs unharmed, also when they share the turn."""
    bad = env.start(flow(two_steps), id="bad-one")
    fine = env.start(flow(two_steps, name="Fine"), id="fine")
    flow(changed(first=other))
    env.advance(10)
    assert "bad-one" in str(bad.blocked)
    assert fine.result() == "done"
    flow(two_steps)
    env.advance(0)
    assert bad.result() == "done"


def test_a_run_keeps_the_class_it_was_started_with_until_one_is_defined_later(env):
    """A class that another one has replaced cannot be started."""
    old, new = flow(two_steps), flow(changed(first=other))
    with pytest.raises(errors.WorkflowDefinitionError, match="name="):
        env.start(old)
    h = env.start(new)
    env.advance(10)
    assert h.result() == "done"
    assert events(h, "ActivityScheduled")[0]["activity"].rsplit(".")[-1] == "other"


def test_recursion_error_fails_the_activation_not_the_run(env):
    """A RecursionError blocks; healing goes on."""

    def deep(n):
        return deep(n + 1)

    async def bad(self, args):
        await api.wait_for_signal("go")
        deep(0)
        return Ok()

    async def good(self, args):
        return Ok(await api.wait_for_signal("go"))

    h = env.start(flow(bad))
    h.signal("go", 1)
    assert isinstance(h.blocked, RecursionError)
    assert "SignalReceived" not in kinds(h)
    flow(good)
    env.advance(1)
    assert h.result() == 1


@pytest.mark.parametrize("place", ["handler", "branch", "async"])
def test_recursion_error_in_any_unit_fails_the_activation(env, place):
    def deep(n):
        return deep(n + 1)

    async def bad():
        deep(0)

    async def run(self, args):
        if place == "branch":
            await api.wait_for_signal("go")
            await api.parallel([bad])
        answer = (lambda a, s: Async(bad, s)) if place == "async" else (lambda a, s: NoReply(deep(0)))
        return Ok(await api.phase(0, signal={"go": answer}))

    h = env.start(flow(run))
    h.signal("go")
    assert isinstance(h.blocked, RecursionError)
    assert kinds(h) == []


def test_logger_is_silent_on_replay_and_names_the_run(env, caplog):
    """TX-188."""

    async def run(self, args):
        api.logger.warning("before %s", 1)
        await api.sleep(1)
        api.logger.warning("after")
        return Ok()

    h = env.start(flow(run), id="logged")
    env.advance(1)
    env.replay(h)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == ["before 1", "after"]
    assert caplog.records[0].workflow_id == "logged"


def test_signals_updates_and_stamps_replay_as_recorded(env):
    """TX-180 TX-181 TX-182 TX-183."""
    seen = []

    def note(kind):
        def handler(value, state):
            seen.append((kind, value, api.now()))
            state = [*state, value]
            return NoReply(state) if kind == "signal" else Reply(value, state)

        return handler

    def begin(value, state):
        async def background():
            await api.update_state(lambda s: (None, [*s, f"async {len(s)}"]))

        return Async(background, state)

    async def run(self, args):
        seen.clear()
        return Ok(
            await api.phase(
                [], signal={"s": note("signal"), "b": begin, "done": lambda _, s: Stop(s)}, update={"u": note("update")}
            )
        )

    h = env.start(flow(run))
    for number in range(3):
        h.signal("s", number)
        env.advance(1)
        h.update("u", -number)
        h.signal("b")
    h.signal("done")
    live = list(seen)
    env.replay(h)
    assert seen == live
    assert h.result() == [0, 0, "async 2", 1, -1, "async 5", 2, -2, "async 8"]


def test_history_of_another_order_of_messages_replays_in_its_own(env):
    """TX-180: the history decides, not the names."""

    async def run(self, args):
        first = await api.wait_for_signal("a")
        await (work(first) if first == 1 else other(first))
        return Ok()

    h = env.start(flow(run))
    h.signal("a", 1)
    tampered = [
        replace(e, attributes={**e.attributes, "payload": 2}) if e.kind == "SignalReceived" else e for e in h.history()
    ]
    with pytest.raises(errors.NondeterminismError):
        env.replay_history(flow(run), tampered)


def test_cached_and_evicted_environments_write_the_same_history():
    """TX-178 TX-191 ST-096: and the same commands."""
    made = []
    for evict in (False, True):
        env = WorkflowEnvironment(evict=evict)
        h = env.start(flow(two_steps), id="same")
        env.advance(10)
        made.append((plain_history(h), plain_commands(env)))
    assert made[0] == made[1]


def test_terminated_and_open_histories_replay(env):
    """Replay accepts every history; closing events without a command are not compared."""
    h = env.start(flow(two_steps))
    env.replay(h)
    h.terminate("enough")
    env.replay(h)
    assert kinds(h)[-1] == "WorkflowTerminated"
    with pytest.raises(errors.WorkflowTerminated, match="enough"):
        h.result()
    with pytest.raises(errors.WorkflowClosed):
        h.terminate("again")


def test_rejected_update_does_not_move_a_run_that_waits_for_the_time(env):
    """TX-069 ST-022 ST-055: an activation without a trace must not evaluate conditions."""

    async def run(self, args):
        begun = api.now()
        await api.wait_condition(lambda: (api.now() - begun).total_seconds() >= 10)
        return Ok([api.random(), str(api.now())])

    h = env.start(flow(run))
    env.advance(60)
    with pytest.raises(errors.UpdateRejected):
        h.update("nobody")
    assert h.status == "waiting"
    env.advance(60)
    h.signal("wake")
    assert h.result()[1] == "2026-01-01 00:02:00+00:00"


def test_events_of_the_first_activation(env):
    """Order, numbers, stamps."""
    with env.batch():
        h = env.start(flow(two_steps), {"a": 1}, id="first")
        h.signal("early", 1)
    history = h.history()
    assert [(e.number, e.activation, e.kind) for e in history[:4]] == [
        (1, 1, "WorkflowStarted"), (2, 1, "ActivationStarted"), (3, 1, "SignalReceived"), (4, 1, "ActivityScheduled"),
    ]  # fmt: skip
    assert history[0].attributes["args"] == {"a": 1}
    assert {"seed", "run_id", "id", "workflow", "engine", "format"} <= history[0].attributes.keys()
    assert all(e.at.tzinfo is not None for e in history)
    assert {e.at for e in history if e.activation == 1} == {history[0].at}


def test_one_activation_of_resolution_cancel_and_messages_keeps_their_order(env):
    """Resolutions, cancel request, then messages, whatever the order of sending."""

    async def run(self, args):
        await api.parallel([lambda: api.sleep(10), lambda: api.wait_for_signal("never")])

    async def kept(self, args):
        try:
            await run(self, args)
        except BaseException:
            await api.wait_for_signal("s")
            return Ok(api.cancel_requested())

    h = env.start(flow(kept))
    with env.batch():
        h.signal("s")
        h.cancel()
        env.advance(10)
    assert kinds(h) == ["TimerStarted", "TimerFired", "CancelRequested", "SignalReceived", "WorkflowCompleted"]
    assert h.result() is True


def test_messages_left_at_continue_as_new_travel_on_in_order(env):
    """Buffered signals, what came in the same activation, updates too."""
    from temporalex_django import ContinueAsNew

    async def run(self, args):
        if args is None:
            await api.wait_for_signal("renew")
            return ContinueAsNew("second")
        return Ok(await api.phase([args], signal={"n": lambda n, s: NoReply([*s, n]), "done": lambda _, s: Stop(s)},
                                  update={"u": lambda n, s: Reply(len(s), [*s, n])}))  # fmt: skip

    h = env.start(flow(run))
    h.signal("n", 1)
    with env.batch():
        h.signal("n", 2)
        h.signal("renew")
        h.signal("n", 3)
        u = h.update_async("u", "update")
        h.signal("n", 4)
    assert u.result() == 4
    h.signal("done")
    assert h.result() == ["second", 1, 2, 3, "update", 4]
    assert [e.attributes["name"] for e in h.history() if e.kind == "SignalReceived"][:2] == ["n", "n"]


HASHED = """
import json
from functools import partial
from temporalex_django import Ok, Reply, Stop, activity, api
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import flow, plain_commands, plain_history

@activity
def sets(given: set[str]) -> set[str]:
    return given

async def run(self, args):
    api.publish_state({"keys": {k: 1 for k in {"x", "y", "z"}}})
    got = await api.parallel([partial(sets, {"n", "m", str(n)}) for n in range(4)])
    ended = await api.phase({}, signal={k: (lambda n, s: Stop([got, n])) for k in ("one", "two")}, update={"u": lambda a, s: Reply(a, s)})
    return Ok([sorted(map(sorted, ended[0])), api.random(), str(api.uuid4())])

env = WorkflowEnvironment()
h = env.start(flow(run), {"b", "a"}, id="hashed")
h.update("u", {"q", "r", "s"})
with env.batch():
    h.signal("two", {"k", "l"})
    h.signal("one")
env.replay(h)
print(json.dumps([plain_commands(env), plain_history(h), h.result()], default=str))
"""


def test_commands_do_not_depend_on_the_hash_seed():
    """TX-190 TX-029: the same bytes under two seeds."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and len(outputs[0]) > 1000


def test_core_needs_no_django():
    """The environment loads without Django being installed or configured."""
    code = "import sys; sys.modules['django'] = None; import temporalex_django.testing as t; t.WorkflowEnvironment(); print('fine')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "fine\n"


def test_eviction_runs_no_code_of_the_workflow():
    """ST-096: neither finally blocks nor context managers, however deep they are suspended."""
    ran = []

    class Guard:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *exc):
            ran.append("aexit")

    class Wrapped:
        def __await__(self):
            return self.inner().__await__()

        async def inner(self):
            try:
                await api.sleep(10)
            finally:
                ran.append("inner")

    async def branch():
        try:
            async with Guard():
                await Wrapped()
        finally:
            ran.append("finally")

    env = WorkflowEnvironment(evict=True)
    env.start(once(lambda: api.parallel([branch, branch()])))
    env.start(once(lambda: api.wait_condition(lambda: False, timeout=5)))
    gc.collect()
    assert ran == []
    assert [c.kind for commands in env.commands for c in commands] == ["StartTimer"] * 3


def test_runs_that_are_dropped_with_their_environment_run_no_code():
    """ST-096: the same when the cache goes away."""
    ran = []

    async def body():
        try:
            await api.sleep(1)
        finally:
            ran.append(1)

    gc.disable()  # a young collection in between puts the coroutine before its executor, in the order in which a full one ends them
    try:
        env = WorkflowEnvironment()
        env.start(once(body))
        del env
        gc.collect()
    finally:
        gc.enable()
    assert ran == []


def test_activity_failures_replay(env):
    """TX-179: errors too."""

    async def run(self, args):
        try:
            await broken.options(retry=None, schedule_to_close=5)(1)
        except errors.ActivityFailure as exc:
            await other(str(exc.type))
        return Ok()

    h = env.start(flow(run))
    env.advance(10)
    assert h.result() is None
    assert len(events(h, "ActivityFailed") + events(h, "ActivityTimedOut")) == 1
    assert produced(env)[1].attributes["activity"].endswith("other")


def test_a_run_that_is_dropped_anywhere_disturbs_no_other() -> None:
    """ST-096: the collector may drop a suspended run in the middle of another's activation.

    On 3.11 in any allocation.
    """

    class Sleeps(Workflow):
        async def run(self, args: Any) -> Any:
            try:
                await api.sleep(10)
            finally:
                api.publish_state("must not run")
            return Ok(None)

    def let_it_collect() -> None:
        for number in range(60):  # what a host project has in its context: with many, setting one allocates
            contextvars.ContextVar(f"of the host {number}").set(number)
        for allocations in range(1, 150):
            h = WorkflowEnvironment().start(Sleeps)
            gc.disable()
            WorkflowEnvironment().start(Sleeps)  # garbage at once, in a cycle: collected after that many allocations
            gc.set_threshold(gc.get_count()[0] + allocations, 10, 10)
            gc.enable()
            h.env.advance(10)
            assert (h.status, h.blocked) == ("completed", None)

    thresholds = gc.get_threshold()
    try:
        contextvars.copy_context().run(let_it_collect)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
