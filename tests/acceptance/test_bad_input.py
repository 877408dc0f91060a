"""What nobody should send: far too much, far too deep, far too many, and names that are none."""

from __future__ import annotations

import time
from functools import partial

import pytest

from temporalex_django import (
    Async,
    ContinueAsNew,
    NoReply,
    Ok,
    Reply,
    Stop,
    activity,
    activity_context,
    api,
    errors,
    update,
)
from temporalex_django.testing import WorkflowEnvironment
from tests.support.hosts import in_memory
from tests.support.runs import events, flow, kinds, once, work

MEGABYTES_50 = 50_000_000
TOO_LARGE = r"50,000,\d\d\d bytes, more than the 2,000,000 allowed"


@activity
def gives_50_megabytes():
    return "x" * MEGABYTES_50


@activity
def beats_with_50_megabytes():
    activity_context().heartbeat("x" * MEGABYTES_50)


@pytest.fixture(scope="module")
def huge():
    return "x" * MEGABYTES_50


class TestHuge:
    """A payload of 50 MB is refused with its size and the limit, and nothing half done is left."""

    def test_from_outside(self, env, huge):
        h = env.start(once(partial(api.wait_for_signal, "go")), id="one")
        before = h.history()
        with pytest.raises(errors.PayloadError, match=f"the payload of signal 'go' is {TOO_LARGE}"):
            h.signal("go", huge)
        with pytest.raises(errors.PayloadError, match=f"(the payload|the arguments) of update 'go' is {TOO_LARGE}"):
            h.update("go", huge)
        with pytest.raises(errors.PayloadError, match=f"the input of StartOfTooMuch is {TOO_LARGE}"):
            env.start(once(work, name="StartOfTooMuch"), huge, id="two")
        with pytest.raises(errors.PayloadError, match=TOO_LARGE):
            env.signal_with_start(once(work, name="StartOfTooMuch"), "go", huge, id="two")
        with pytest.raises(errors.WorkflowNotFound):
            env.handle("two")
        assert h.history() == before
        h.signal("go", "small")
        assert h.result() == "small"

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (lambda x: work(x), "argument 1 of tests.support.runs.work is"),
            (lambda x: work(value=x), "argument 'value' of tests.support.runs.work is"),
            (lambda x: api.publish_state(x), "the published state is"),
            (lambda x: api.signal_external("other", "go", x), "the payload of signal 'go' is"),
            (lambda x: api.child(once(work, name="ChildOfTooMuch"), x), "the input of ChildOfTooMuch is"),
        ],
    )
    def test_to_a_primitive(self, env, huge, body, says):
        """Raised at the call: caught there, the run goes on as if it had not been made."""

        async def run(self, args):
            try:
                body("x" * MEGABYTES_50)
            except errors.PayloadError as exc:
                return Ok([str(exc), await work("still here")])

        h = env.start(flow(run))
        message, after = h.result()
        assert message.startswith(says) and "50,000,002 bytes, more than the 2,000,000 allowed" in message
        assert after == "still here" and kinds(h) == ["ActivityScheduled", "ActivityCompleted", "WorkflowCompleted"]

    @pytest.mark.parametrize("what", [gives_50_megabytes, beats_with_50_megabytes])
    def test_from_an_activity(self, env, what):
        h = env.start(once(what.options(retry=None)))
        with pytest.raises(errors.WorkflowFailed, match=TOO_LARGE):
            h.result()
        assert kinds(h) == ["ActivityScheduled", "ActivityFailed", "WorkflowFailed"]
        assert len(str(h.history())) < 20_000

    @pytest.mark.parametrize(
        ("ending", "says"),
        [(Ok, "the result of run"), (ContinueAsNew, "the arguments of ContinueAsNew"), (errors.Cancelled, None)],
    )
    def test_from_run(self, env, ending, says):
        async def run(self, args):
            if says is None:
                raise ValueError("x" * MEGABYTES_50)
            return ending("x" * MEGABYTES_50)

        h = env.start(flow(run))
        with pytest.raises(errors.WorkflowFailed, match=f"{says} is {TOO_LARGE}" if says else "50,000,000 characters"):
            h.result()
        assert kinds(h) == ["WorkflowFailed"] and len(h.run_ids) == 1
        assert len(str(h.history())) < 250_000

    def test_as_the_answer_of_an_update(self, env):
        async def later():
            return "x" * MEGABYTES_50

        async def run(self, args):
            handlers = {
                "reply": lambda n, s: Reply("x" * MEGABYTES_50, s + 1),
                "async": lambda n, s: Async(later, s),
                "stop": lambda n, s: Stop(s + 1, "x" * MEGABYTES_50),
            }
            return Ok(await api.phase(0, update=handlers, signal={"end": lambda _, s: Stop(s)}))

        h = env.start(flow(run))
        for name in ("reply", "async", "stop"):
            with pytest.raises(errors.UpdateFailed, match=f"the response of update '{name}' is {TOO_LARGE}"):
                h.update(name)
        h.signal("end")
        assert h.result() == 0, "a handler whose answer cannot be kept has changed the state"


def deep(n):
    return deep(n + 1)


@pytest.mark.parametrize("where", ["run", "validator", "predicate", "update_state", "compensation", "loser"])
def test_endless_recursion_blocks_the_run_and_heals(env, where):
    """The activation fails wherever it recurses, nothing of it is written, and better code goes on from there."""

    def code(recurse):
        fall = deep if recurse else (lambda _: None)

        async def background():
            return await api.update_state(lambda s: (fall(0), s))

        async def falls():
            fall(0)

        async def run(self, args):
            await work("before")
            if where == "validator":
                handler = update(lambda n, s: Reply(n, s), validator=lambda n, s: fall(0))
                return Ok(await api.phase(0, update={"go": handler}, signal={"end": lambda _, s: Stop(s)}))
            if where == "update_state":
                handlers = {"go": lambda n, s: Async(background, s)}
                return Ok(await api.phase(0, update=handlers, signal={"end": lambda _, s: Stop(s)}))
            await api.wait_for_signal("go")
            if where == "predicate":
                await api.wait_condition(lambda: fall(0) or True)
            elif where == "compensation":
                try:
                    async with api.saga() as saga:
                        saga.add(fall, 0)
                        raise ValueError("undo")
                except ValueError:
                    pass
            elif where == "loser":
                await api.race(partial(api.sleep, 0), falls)
            else:
                fall(0)
            return Ok(0)

        return flow(run)

    h = env.start(code(recurse=True))
    before = h.history()
    if where in ("validator", "update_state"):
        h.update_async("go", 1)
    else:
        h.signal("go")
    assert isinstance(h.blocked, RecursionError) and h.history() == before
    code(recurse=False)
    env.advance(1)
    assert h.blocked is None
    if where in ("validator", "update_state"):
        h.signal("end")
    assert h.result() == 0


async def drain(self, args):
    return Ok(await api.phase(0, signal={"add": lambda n, s: NoReply(s + n), "end": lambda _, s: Stop(s)}))


class TestManySignals:
    def buffered(self, count):
        """Seconds per signal that a run which buffers them needs to drain ``count`` of them in one phase."""

        async def late(self, args):
            await api.wait_for_signal("begin")
            return await drain(self, args)

        env = WorkflowEnvironment()
        h = env.start(flow(late))
        begun = time.thread_time()  # what else the machine does is not counted
        with env.batch():
            for _ in range(count):
                h.signal("add", 1)
        h.signal("end")
        h.signal("begin")
        assert h.result() == count
        spent = time.thread_time() - begun
        env.replay(h)
        return spent / count

    @pytest.mark.once
    def test_100_000_in_the_buffer(self):
        """Drained in order, in time that grows with their number and no faster."""
        few = min(self.buffered(5_000) for _ in range(3))
        many = self.buffered(100_000)
        assert many < few * 4 + 0.00002, f"{many * 1e6:.1f} µs a signal of 100,000, {few * 1e6:.1f} of 5,000"

    def test_thousands_in_one_go(self, env):
        count = 5_000 if isinstance(env, WorkflowEnvironment) else 1_000
        h = env.start(flow(drain))
        with env.batch():
            for _ in range(count):
                h.signal("add", 1)
            h.signal("end")
        assert h.result() == count
        assert len(events(h, "SignalReceived")) == count + 1
        assert {event.activation for event in h.history()} == {1, 2}


BAD_NAMES = ["", "n" * 201, 5, None, b"x", ["a"], "a\x00b", "a\nb", "\ud800"]


each_bad_name = pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:12])


class TestNames:
    """Empty, very long or not strings: refused where they are given, with what a name may be; the run does not move."""

    @each_bad_name
    def test_from_outside(self, env, name):
        h = env.start(flow(drain), id="one")
        before = h.history()
        for call in (
            lambda: h.signal(name),
            lambda: h.update(name),
            lambda: h.update_async(name, id="u"),
            lambda: env.signal_with_start(flow(drain), name, id="two"),
        ):
            with pytest.raises(errors.PayloadError, match="1 to 200 printable characters"):
                call()
        with pytest.raises(errors.UnknownQuery):
            h.query(name)
        with pytest.raises(errors.WorkflowNotFound):
            env.handle("two")
        if name is not None:  # that is: make one
            with pytest.raises(errors.InvalidId, match="1 to 200 printable characters"):
                h.update_async("add", id=name)
            with pytest.raises(errors.InvalidId, match="1 to 200 printable characters"):
                env.start(flow(drain), id=name)
        assert h.history() == before

    @in_memory
    @pytest.mark.parametrize(
        "call",
        [
            lambda name: api.wait_for_signal(name),
            lambda name: api.patched(name),
            lambda name: api.deprecate_patch(name),
            lambda name: api.signal_external("other", name),
            lambda name: api.cancel_external(name),
            lambda name: api.phase(0, signal={name: drain}) if not isinstance(name, list) else api.patched(name),
            lambda name: api.phase(0, update={name: drain}) if not isinstance(name, list) else api.patched(name),
            lambda name: (
                api.child(flow(drain, name="ChildOfBadId"), id=name) if name is not None else api.patched(name)
            ),
        ],
        ids=[
            "wait_for_signal",
            "patched",
            "deprecate_patch",
            "signal_external",
            "cancel_external",
            "signal",
            "update",
            "child",
        ],
    )
    def test_in_workflow_code(self, env, call):
        async def run(self, args):
            refused = []
            for name in BAD_NAMES:
                with pytest.raises(errors.TemporalexError) as caught:
                    call(name)
                refused.append([caught.value.code, str(caught.value)])
            return Ok(refused)

        answers = env.start(flow(run)).result()
        assert len(answers) == len(BAD_NAMES)
        for code, message in answers:
            assert code in ("workflow_definition", "invalid_id"), code
            assert "1 to 200 printable characters" in message and len(message) < 300

    @each_bad_name
    def test_of_a_definition(self, name):
        if name is not None:
            with pytest.raises(errors.WorkflowDefinitionError, match="1 to 200"):
                activity(name=name)(lambda: None)
        with pytest.raises(errors.WorkflowDefinitionError, match="1 to 200"):
            flow(drain, name=name)
