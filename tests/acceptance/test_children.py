"""Child workflows and messages to other runs, in memory."""

from __future__ import annotations

import pytest

from temporalex_django import ContinueAsNew, Err, Ok, Stop, Unique, Workflow, api, errors
from tests.support.hosts import in_memory
from tests.support.runs import events, flow, kinds, once, produced_kinds


class Child(Workflow):
    async def run(self, args):
        match args:
            case {"wait": name}:
                return Ok([api.info().parent, await api.wait_for_signal(name)])
            case {"raise": text}:
                raise ValueError(text)
            case {"err": reason}:
                return Err(reason)
            case {"again": count}:
                await api.sleep(1)
                return ContinueAsNew({"again": count - 1} if count > 1 else {"value": "last"})
            case {"slow cleanup": _}:
                try:
                    await api.sleep(1000)
                finally:
                    async with api.shield():
                        await api.sleep(5)
            case {"value": value}:
                return Ok(value)


class Parent(Workflow):
    """Waits for a child; ``args`` are those of ``api.child``."""

    async def run(self, args):
        try:
            return Ok(await api.child(Child, **args))
        except errors.ChildWorkflowFailure as exc:
            return Ok({"type": exc.type, "cause": exc.cause, "text": str(exc)})


def parent(env, **args):
    return env.start(Parent, args, id="p")


def test_result(env):
    """TX-216: commands, events and the number of the child."""
    h = parent(env, args={"value": {"a": [1]}}, id="c")
    assert h.result() == {"a": [1]}
    assert kinds(h) == ["ChildStarted", "ChildCompleted", "WorkflowCompleted"]
    (started,) = events(h, "ChildStarted")
    assert (started["seq"], started["workflow"], started["id"], started["parent_close"]) == (
        1,
        "Child",
        "c",
        "terminate",
    )
    assert events(h, "ChildCompleted") == [{"seq": 1, "result": {"a": [1]}}]
    assert events(env.handle("c"), "WorkflowStarted")[0]["parent"] == "p"


def test_id_from_the_parents(env):
    """Deterministic."""
    h = parent(env, args={"value": 1})
    assert events(h, "ChildStarted")[0]["id"] == "p:1"
    assert env.handle("p:1").result() == 1
    long = env.start(Parent, {"args": {"value": 2}}, id="x" * 200)
    assert events(long, "ChildStarted")[0]["id"] == f"{long.run_id}:1"


def test_blocks_until_the_child_is_done(env):
    """TX-216: status, what it waits for, the parent as the child sees it."""
    h = parent(env, args={"wait": "go"}, id="c")
    assert h.status == "running"
    assert h.describe()["waiting_for"] == ["child Child c"]
    env.handle("c").signal("go", "done")
    assert h.result() == ["p", "done"]


@pytest.mark.parametrize(
    ("args", "kind", "cause"),
    [
        ({"raise": "boom"}, "ValueError", "boom"),
        ({"err": "no money"}, "WorkflowFailed", "no money"),
    ],
)
def test_failure(env, args, kind, cause):
    """TX-216: type and cause, both in the text."""
    found = parent(env, args=args, id="c").result()
    assert (found["type"], found["cause"]) == (kind, cause)
    assert kind in found["text"]
    assert cause in found["text"]


@pytest.mark.parametrize(("how", "kind"), [("cancel", "WorkflowCancelled"), ("terminate", "WorkflowTerminated")])
def test_child_that_is_ended_from_outside(env, how, kind):
    """TX-216."""
    h = parent(env, args={"wait": "go"}, id="c")
    getattr(env.handle("c"), how)()
    assert h.result()["type"] == kind


def test_uncaught_failure_fails_the_parent(env):
    h = env.start(once(lambda: api.child(Child, {"raise": "boom"})), id="p")
    with pytest.raises(errors.WorkflowFailed, match="ChildWorkflowFailure.*ValueError: boom"):
        h.result()


def test_refused_start_fails_the_call(env):
    """The id is unique among open runs."""
    env.start(Child, {"wait": "go"}, id="c")
    found = parent(env, args={"value": 1}, id="c").result()
    assert found["type"] == "AlreadyRunning"
    assert env.handle("c").status == "waiting"
    env.handle("c").signal("go")


def test_own_id_is_taken(env):
    assert parent(env, args={"value": 1}, id="p").result()["type"] == "AlreadyRunning"


def test_parent_waits_for_the_whole_chain(env):
    """Continue-as-new of a child."""
    h = parent(env, args={"again": 3}, id="c")
    env.advance(2)
    assert h.status == "running"
    env.advance(1)
    assert h.result() == "last"
    assert len(env.handle("c").run_ids) == 4


def test_children_side_by_side(env):
    async def run(self, args):
        return Ok(await api.parallel([api.child(Child, {"value": n}) for n in range(20)]))

    assert env.start(flow(run), id="p").result() == list(range(20))
    assert produced_kinds(env).count("StartChild") == 20


def test_unique_children(env):
    """With ``unique``, ``value=``."""

    class Order(Workflow):
        unique = Unique(key="order")

        async def run(self, args):
            return Ok(api.info().id)

    class Note(Workflow):
        unique = Unique(key="note", scope="none")

        async def run(self, args):
            return Ok(api.info().id)

    async def run(self, args):
        return Ok([await api.child(Order, value=42), await api.child(Note, value="42")])

    order, note = env.start(flow(run)).result()
    assert order == "order::42"  # a key of a row is a number
    assert note.startswith("note::42::")


@in_memory
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: api.child(int), "WorkflowDefinitionError"),
        (lambda: api.child(Child, parent_close="forget"), "WorkflowDefinitionError"),
        (lambda: api.child(Child, id="a/b"), "InvalidId"),
        (lambda: api.child(Child, id="a", value="b"), "InvalidId"),
        (lambda: api.child(Child, value="b"), "InvalidId"),
        (lambda: api.child(Child, object()), "PayloadError"),
        (lambda: api.signal_external("a/b", "x"), "InvalidId"),
        (lambda: api.signal_external("a", "__resume__"), "WorkflowDefinitionError"),
        (lambda: api.signal_external("a", "x", object()), "PayloadError"),
        (lambda: api.cancel_external(""), "InvalidId"),
    ],
)
def test_refused_at_the_call(env, call, error):
    """Before it is awaited."""

    async def run(self, args):
        call()

    with pytest.raises(errors.WorkflowFailed, match=error):
        env.start(flow(run)).result()


# -- the end of a parent


@pytest.mark.parametrize(
    ("policy", "expected"), [("terminate", "terminated"), ("request_cancel", "cancelled"), ("abandon", "waiting")]
)
@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_parent_close(env, policy, expected, how):
    """TX-216 ST-090: cancelling or terminating a parent reaches its children as they say."""
    h = parent(env, args={"wait": "go"}, id="c", parent_close=policy)
    getattr(h, how)()
    child = env.handle("c")
    assert h.status == {"cancel": "cancelled", "terminate": "terminated"}[how]
    assert child.status == expected
    if expected == "waiting":
        child.signal("go", 1)
        assert child.result() == ["p", 1]


def test_terminated_children_terminate_theirs(env):
    """At any depth."""

    class Middle(Workflow):
        async def run(self, args):
            return Ok(await api.child(Child, {"wait": "go"}, id="leaf"))

    h = env.start(once(lambda: api.child(Middle, id="middle")), id="top")
    h.terminate("enough")
    assert [env.handle(name).status for name in ("top", "middle", "leaf")] == ["terminated"] * 3
    assert events(env.handle("leaf"), "WorkflowTerminated") == [{"reason": "its parent closed"}]


def test_blocked_child_can_be_terminated_by_its_parent(env):
    class Odd(Workflow):
        async def run(self, args):
            if args == "odd":
                raise MemoryError
            await api.sleep(5)
            raise MemoryError

    h = env.start(once(lambda: api.child(Odd, id="odd")), id="p")
    env.advance(5)
    assert env.handle("odd").blocked is not None
    h.terminate()
    assert env.handle("odd").status == "terminated"


@pytest.mark.parametrize("policy", ["terminate", "request_cancel", "abandon"])
def test_child_that_lost_a_race_is_asked_to_cancel(env, policy):
    """Unless it is to be abandoned."""

    async def run(self, args):
        won = await api.race(api.child(Child, {"wait": "go"}, id="c", parent_close=policy), api.sleep(5))
        await api.sleep(5)
        return Ok(won)

    h = env.start(flow(run), id="p")
    env.advance(5)
    assert env.handle("c").status == ("waiting" if policy == "abandon" else "cancelled")
    assert h.status == "waiting"
    env.advance(5)
    assert h.result() == [1, None]
    assert kinds(h).count("ChildFailed") == 0
    if policy == "abandon":
        env.handle("c").signal("go")


def test_children_deep_inside_a_loser(env):
    async def deep():
        return await api.parallel([api.child(Child, {"wait": "go"}, id=f"c{n}") for n in range(3)])

    async def run(self, args):
        won = await api.race(lambda: api.race(deep, api.sleep(60)), api.sleep(5))
        await api.sleep(5)
        return Ok(won)

    h = env.start(flow(run), id="p")
    env.advance(5)
    assert [env.handle(f"c{n}").status for n in range(3)] == ["cancelled"] * 3
    env.advance(5)
    assert h.result() == [1, None]


def test_child_that_was_started_and_cancelled_at_once(env):
    with env.batch():
        h = env.start(Parent, {"args": {"wait": "go"}, "id": "c"}, id="p")
        h.cancel()
    assert h.status == "cancelled"
    assert env.handle("c").status == "terminated"


def test_cancel_that_the_parent_survives_leaves_the_child_time_to_clean_up(env):
    """ST-090."""

    async def run(self, args):
        try:
            await api.child(Child, {"slow cleanup": 1}, id="c")
        except errors.Cancelled:
            await api.sleep(60)
        return Ok()

    h = env.start(flow(run), id="p")
    h.cancel()
    env.advance(5)
    assert env.handle("c").status == "cancelled"
    env.advance(60)
    assert h.result() is None


def test_abandoned_child_that_ends_later_disturbs_nobody(env):
    h = parent(env, args={"wait": "go"}, id="c", parent_close="abandon")
    h.cancel()
    before = len(h.history())
    env.handle("c").signal("go")
    assert env.handle("c").status == "completed"
    assert len(h.history()) == before


def test_result_for_an_earlier_run_of_the_parent_is_dropped(env):
    """A parent that continues as new has closed: its numbers are those of that run."""

    class Again(Workflow):
        async def run(self, args):
            if args == "second":
                return Ok(await api.child(Child, {"wait": "mine"}, id="mine"))
            await api.race(api.child(Child, {"wait": "go"}, id="old", parent_close="abandon"), api.sleep(1))
            return ContinueAsNew("second")

    h = env.start(Again, "first", id="p")
    env.advance(1)
    env.handle("old").signal("go", "old")
    assert h.status == "running"
    env.handle("mine").signal("mine", "new")
    assert h.result() == ["p", "new"]


# -- messages


def test_signal_external(env):
    """ST-090: returns when it is in the inbox."""
    env.start(Child, {"wait": "go"}, id="c")
    h = env.start(once(lambda: api.signal_external("c", "go", {"a": 1})), id="p")
    assert h.result() is None
    assert kinds(h) == ["ExternalSignalSent", "WorkflowCompleted"]
    assert events(h, "ExternalSignalSent") == [{"seq": 1, "id": "c", "name": "go", "payload": {"a": 1}}]
    assert env.handle("c").result() == [None, {"a": 1}]
    assert events(h, "ActivationStarted")[1]["delivered"] == [1]


def test_cancel_external(env):
    env.start(Child, {"wait": "go"}, id="c")
    h = env.start(once(lambda: api.cancel_external("c")), id="p")
    assert h.result() is None
    assert kinds(h) == ["ExternalCancelSent", "WorkflowCompleted"]
    assert env.handle("c").status == "cancelled"


@pytest.mark.parametrize("call", [lambda i: api.signal_external(i, "go"), lambda i: api.cancel_external(i)])
@pytest.mark.parametrize(("target", "error"), [("nobody", "WorkflowNotFound"), ("closed", "WorkflowClosed")])
def test_no_open_run(env, call, target, error):
    """Raised at the await, ExternalFailed in the history."""
    env.start(Child, {"value": 1}, id="closed")

    async def run(self, args):
        try:
            await call(target)
        except errors.TemporalexError as exc:
            return Ok([type(exc).__name__, str(exc)])

    h = env.start(flow(run), id="p")
    name, text = h.result()
    assert name == error
    assert target in text
    assert kinds(h)[1:] == ["ExternalFailed", "WorkflowCompleted"]
    assert events(h, "ExternalFailed")[0]["type"] == error


def test_to_the_own_child_and_to_oneself(env):
    async def run(self, args):
        async def poke():
            await api.signal_external("c", "go", "from my parent")
            await api.signal_external("p", "me", "to myself")

        done = await api.parallel([api.child(Child, {"wait": "go"}, id="c"), poke])
        return Ok([done[0], await api.wait_for_signal("me")])

    assert env.start(flow(run), id="p").result() == [["p", "from my parent"], "to myself"]


def test_many_at_once_keep_their_order(env):
    async def run(self, args):
        return Ok([await api.wait_for_signal("n") for _ in range(10)])

    env.start(flow(run, name="Sink"), id="sink")
    env.start(once(lambda: api.parallel([api.signal_external("sink", "n", i) for i in range(10)]), name="Source"))
    assert env.handle("sink").result() == list(range(10))


def test_in_handlers(env):
    """Allowed everywhere."""

    async def start(_, state):
        return Stop(await api.child(Child, {"value": "in a handler"}))

    h = env.start(once(lambda: api.phase(None, signal={"go": start})), id="p")
    h.signal("go")
    assert h.result() == "in a handler"


def test_other_child_in_the_code_is_non_determinism(env):
    """TX-185: by workflow name."""
    h = parent(env, args={"wait": "go"}, id="c")

    class Other(Workflow):
        async def run(self, args):
            return Ok()

    async def run(self, args):
        return Ok(await api.child(Other, id="c"))

    with pytest.raises(errors.NondeterminismError, match="Child"):
        env.replay_history(flow(run), h.history())
    env.handle("c").signal("go")


@in_memory
@pytest.mark.parametrize("name", ["child", "signal_external", "cancel_external"])
def test_outside_and_never_awaited(env, name):
    calls = {
        "child": lambda: api.child(Child),
        "signal_external": lambda: api.signal_external("c", "x"),
        "cancel_external": lambda: api.cancel_external("c"),
    }
    with pytest.raises(errors.OutsideWorkflow, match=name):
        calls[name]()

    async def run(self, args):
        calls[name]()
        return Ok()

    with pytest.raises(errors.WorkflowFailed, match=f"NotAwaited.*await {name}"):
        env.start(flow(run)).result()
