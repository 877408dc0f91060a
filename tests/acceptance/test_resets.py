"""Runs that take up another one: resets and forks."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from temporalex_django import (
    ContinueAsNew,
    NoReply,
    Ok,
    Reply,
    Stop,
    Unique,
    Workflow,
    activity,
    activity_context,
    api,
    errors,
)
from temporalex_django.engine.activity_policy import idempotency_key
from temporalex_django.testing import WorkflowEnvironment
from tests.acceptance.graphs import OrderGraph
from tests.support.people import Somebody
from tests.support.runs import events, flow, kinds, once, other, work


@activity
def keyed(value):
    return [activity_context().idempotency_key, value]


class Steps(Workflow):
    """Two activities with a draw between them, and then a signal."""

    async def run(self, args):
        first = await work("first")
        drawn = api.random()
        second = await keyed(args)
        return Ok([first, drawn, second, await api.wait_for_signal("end")])


class Tallied(Workflow):
    """Notes signals and updates in the order in which they come."""

    async def run(self, args):
        signals = {"note": lambda value, state: NoReply([*state, value]), "stop": lambda _, state: Stop(state)}
        updates = {"add": lambda value, state: Reply(len(state), [*state, value])}
        return Ok(await api.phase([], signal=signals, update=updates))


def number(handle):
    """Of the last activation."""
    return handle.history()[-1].activation


def marks(handle):
    return [event["copied"] for event in events(handle, "ActivationStarted") if "copied" in event]


def test_a_run_goes_on_from_an_activation_with_a_new_seed(env):
    """TX-030: the history up to there is copied, the old run ends as terminated, the chain has a new one."""
    env.hold(keyed)
    h = env.start(Steps, 5, id="s")
    before, old = h.history(), h.run_id
    env.complete(keyed, "late")
    h.signal("end", 1)
    drawn = h.result()[1]

    env.advance(60)
    assert h.reset(2) == h.run_id != old

    assert h.run_ids == [old, h.run_id]
    assert [e.attributes for e in h.history()[: len(before)]] == [e.attributes for e in before]
    assert h.status == "running"
    (mark,) = marks(h)
    assert mark == {"how": "reset", "from": old, "activation": 2, "run_id": h.run_id, "id": "s", "parent": None}
    env.complete(keyed, "again")
    assert h.result()[2:] == ["again", 1]
    assert h.result()[1] == drawn  # it was drawn before the point
    assert env.handle(old).status == "completed"


def test_what_is_drawn_behind_the_point_is_drawn_anew(env):
    async def body():
        await work()
        return api.random()

    h = env.start(once(body))
    first = h.result()
    h.reset(1)
    assert h.result() != first
    assert [event["seed"] for event in events(h, "ActivationStarted") if "seed" in event] != []


def test_an_open_run_is_closed_as_terminated(env):
    env.hold(work)
    h = env.start(Steps, 5)
    old = env.handle(h.run_id)
    h.reset(1)
    assert (old.status, h.status) == ("terminated", "running")
    assert events(old, "WorkflowTerminated") == [{"reason": "reset", "run_id": h.run_id}]
    assert kinds(h) == ["ActivityScheduled"]


def test_an_open_activity_is_scheduled_anew_with_its_old_key_and_its_late_end_changes_nothing(env):
    env.hold(work)
    h = env.start(once(lambda: keyed_behind_work()))
    old = h.run_id
    (held,) = env._held_tasks
    env._held_activities.clear()
    h.reset(1)  # work is open there
    assert env.engine.tasks.finish_tasks([env._complete_task(held, "late")]) == []
    env._drive()
    assert h.result() == [None, [f"{h.run_id}:2", None]]

    h.reset(3)  # keyed is open there, scheduled by the run before
    second = h.run_ids[1]
    assert h.result() == [None, [f"{second}:2", None]]
    assert [event["seq"] for event in events(h, "ActivityCompleted")] == [1, 2]

    h.reset(1)  # work is open there, scheduled by the first
    env.hold(work)
    h.reset(1)
    assert idempotency_key(env._held_tasks[-1]) == f"{old}:1"


async def keyed_behind_work():
    return [await work(), await keyed(None)]


def test_edited_input_gets_a_new_key_and_stands_in_the_end_of_the_activity(env):
    h = env.start(once(lambda: keyed("wrong")))
    old = h.run_id
    assert h.result() == [f"{old}:1", "wrong"]

    h.reset(1, edited={1: ["right"]})

    assert h.result() == [f"{h.run_id}:1", "right"]
    (ended,) = events(h, "ActivityCompleted")
    assert ended["edited"] == {"args": ["right"], "kwargs": {}, "key": f"{h.run_id}:1"}
    assert marks(h)[0]["edited"] == {"1": {"args": ["right"], "kwargs": {}}}

    edited = h.run_id
    h.reset(2)  # what was edited stays edited, and has its key
    assert h.result() == [f"{edited}:1", "right"]
    assert events(h, "ActivityCompleted")[0]["edited"]["args"] == ["right"]

    h.reset(1)  # before it was edited
    assert h.result() == [f"{old}:1", "wrong"]


@pytest.mark.parametrize(
    ("edited", "error", "words"),
    [
        ({2: []}, errors.ActionNotPossible, "open: 1"),
        ({"x": []}, errors.ActionNotPossible, "open: 1"),
        ({1: "no list"}, errors.PayloadError, "list of arguments"),
        ({1: {"other": 1}}, errors.PayloadError, "list of arguments"),
        ([1], errors.PayloadError, "map the numbers"),
        ({1: [object()]}, errors.PayloadError, "edited input|the input 'edited'"),
    ],
)
def test_edited_input_is_checked(env, edited, error, words):
    env.hold(work)
    h = env.start(once(work))
    run = h.run_id
    with pytest.raises(error, match=words):
        h.reset(1, edited=edited)
    assert (h.run_id, h.status) == (run, "running")


def test_timers_keep_their_time(env):
    h = env.start(once(lambda: sleeps()))
    env.advance(40)
    h.reset(1)
    assert h.status == "waiting"
    env.advance(59)
    assert h.status == "waiting"
    env.advance(1)
    assert h.result() == "awake"
    h.reset(1)  # it is over
    assert h.result() == "awake"


async def sleeps():
    await api.sleep(100)
    return "awake"


def noted(env, h):
    """The signals and updates of a tally, with some that it has not read yet."""
    h.signal("note", 1)
    assert h.update("add", 2, id="two") == 1
    h.signal("note", 3)
    assert h.update("add", 4, id="four") == 3


def test_later_messages_are_delivered_again_in_their_order(env):
    h = env.start(Tallied)
    noted(env, h)
    with env.batch():
        h.signal("note", "unread")
        h.reset(2)
    assert number(h) > 2
    h.signal("stop")
    assert h.result() == [1, 2, 3, 4, "unread"]
    assert h.update("add", 4, id="four") == 3  # its outcome is that of the new run


def test_later_messages_are_dropped_when_asked(env):
    h = env.start(Tallied)
    noted(env, h)
    with env.batch():
        h.signal("note", "unread")
        h.reset(2, messages="drop")
    h.signal("stop")
    assert h.result() == [1, "unread"]
    with pytest.raises(errors.PayloadError, match="'again'|again, drop"):
        h.reset(1, messages="both")


def test_a_reset_to_the_start_begins_anew_with_all_messages(env):
    h = env.start(Tallied)
    noted(env, h)
    h.reset(0)
    assert marks(h) == []
    h.signal("stop")
    assert h.result() == [1, 2, 3, 4]


class Lingering(Workflow):
    """An update that waits for an activity."""

    async def run(self, args):
        async def slow(value, state):
            return Reply(await work(value), [*state, value])

        stop = {"stop": lambda _, state: Stop(state)}
        return Ok(await api.phase([], signal=stop, update={"slow": slow}))


def test_updates_under_way_go_on_in_the_new_run_or_are_told_that_they_are_dropped(env):
    env.hold(work)
    h = env.start(Lingering)
    before = h.update_async("slow", 1, id="before")
    at = number(h)
    waits = h.update_async("slow", 2, id="waits")  # behind the other one: nobody has judged it
    assert before.accepted
    assert not waits.accepted

    h.reset(at)
    assert before.accepted
    assert not before.done
    env.complete(work, "one")
    env.complete(work, "two")
    assert (before.result(), waits.result()) == ("one", "two")

    h.reset(at, messages="drop")
    env.complete(work, "other one")
    assert before.result() == "other one"
    under_way = h.update_async("slow", 3, id="under-way")
    h.reset(1, messages="drop")
    with pytest.raises(errors.WorkflowClosed, match="was reset to a point before the update"):
        under_way.result()
    h.reset(1)
    assert not h.update_async("slow", 4).done


@pytest.mark.unit
@pytest.mark.parametrize("evict", [False, True])
def test_a_blocked_run_is_reset_to_the_last_activation_that_is_good(evict):
    """The code was wrong: what its wrong part did is forgotten."""
    env = WorkflowEnvironment(evict=evict)

    async def wrong(self, args):
        await work()
        await other("a mistake")
        await work()
        return Ok(await api.wait_for_signal("end"))

    async def right(self, args):
        await work()
        await broken_no_more()
        return Ok(["right", await api.wait_for_signal("end")])

    h = env.start(flow(wrong, name="test.Mended"))
    flow(right, name="test.Mended")
    h.signal("end", 7)
    assert isinstance(h.blocked, errors.NondeterminismError)

    h.reset()

    assert h.blocked is None
    assert marks(h)[0]["activation"] == 1
    assert h.result() == ["right", 7]
    assert "other" not in str([event["activity"] for event in events(h, "ActivityScheduled")])


@activity
def broken_no_more():
    return 1


def test_a_failed_run_is_reset_to_before_its_failure(env):
    env.hold(work)
    h = env.start(once(work))
    env.fail(work, ValueError("no"))
    assert h.status == "failed"
    h.reset()
    env.complete(work, "mended")
    assert h.result() == "mended"
    assert [env.handle(run).status for run in h.run_ids] == ["failed", "completed"]


def test_a_run_in_no_trouble_is_reset_only_to_an_activation_that_is_named(env):
    env.hold(work)
    h = env.start(once(work))
    with pytest.raises(errors.ActionNotPossible, match="has no problem"):
        h.reset()
    for wrong in (-1, 2, True, "1"):
        with pytest.raises((errors.ActionNotPossible, errors.PayloadError), match="no activation|must be int"):
            h.reset(wrong)
    env.complete(work)
    with pytest.raises(errors.ActionNotPossible, match="activation 2 closed it"):
        h.reset(2)
    assert len(h.run_ids) == 1


@pytest.mark.unit
def test_a_point_that_the_code_does_not_reach_is_refused():
    env = WorkflowEnvironment()

    async def wrong(self, args):
        await work()
        await other()
        return Ok(await api.wait_for_signal("end"))

    async def right(self, args):
        await work()
        return Ok(await api.wait_for_signal("end"))

    h = env.start(flow(wrong, name="test.Unreachable"))
    flow(right, name="test.Unreachable")
    with pytest.raises(errors.ActionNotPossible, match="go back to activation 1 or earlier"):
        h.reset(3)
    assert len(h.run_ids) == 1
    h.reset(1)
    h.signal("end", 1)
    assert h.result() == 1


class Kid(Workflow):
    name = "test.KidOfReset"

    async def run(self, args):
        return Ok([args, await api.wait_for_signal("go")])


def of_kids(policy):
    async def body():
        try:
            got = await api.child(Kid, args=1, id="kid", parent_close=policy)
        except errors.ChildWorkflowFailure as exc:
            got = exc.type
        return [got, await work()]

    return once(body)


def test_a_child_that_has_ended_is_not_run_again(env):
    h = env.start(of_kids("terminate"))
    env.handle("kid").signal("go", 2)
    assert h.result() == [[1, 2], None]
    h.reset(1)
    assert h.result() == [[1, 2], None]
    assert len(env.handle("kid").run_ids) == 1


@pytest.mark.parametrize(("policy", "status"), [("terminate", "terminated"), ("abandon", "waiting")])
def test_an_open_child_stays_with_the_old_run_and_counts_as_failed(env, policy, status):
    h = env.start(of_kids(policy))
    h.reset(1)
    assert h.result() == ["ChildLeft", None]
    assert env.handle("kid").status == status
    if policy == "abandon":
        env.handle("kid").signal("go", 2)  # its end is for nobody any more
        assert h.result() == ["ChildLeft", None]


def test_a_parent_waits_on_for_a_child_that_is_reset(env):
    async def body():
        return await api.child(Kid, args=1, id="kid")

    h = env.start(once(body))
    kid = env.handle("kid")
    kid.reset(1)
    assert h.status == "running"
    kid.signal("go", 5)
    assert h.result() == [1, 5]
    kid.reset(1)  # of a closed one the parent knows the end already
    assert kid.result() == [1, 5]
    assert h.result() == [1, 5]


def test_a_message_to_another_run_is_sent_once(env):
    target = env.start(Tallied, id="target")

    async def body():
        await api.signal_external("target", "note", 1)
        return await work()

    h = env.start(once(body))
    h.reset(1)
    assert h.status == "completed"
    target.signal("stop")
    assert target.result() == [1]


def test_a_chain_that_has_gone_on_is_reset_to_one_of_its_runs(env):
    async def run(self, args):
        got = await api.wait_for_signal("go")
        return ContinueAsNew([got]) if args is None else Ok([*args, got])

    h = env.start(flow(run))
    first = h.run_id
    with env.batch():
        h.signal("go", 1)
        h.signal("go", 2)
    assert h.result() == [1, 2]
    env.handle(first).reset(1)
    assert (len(h.run_ids), h.result()) == (4, [1, 2])
    h.reset(0, messages="drop")  # the second run begins with what it was given
    h.signal("go", 3)
    assert h.result() == [1, 3]


class Rounds(Workflow):
    """Two signals a round."""

    async def run(self, args):
        seen = [await api.wait_for_signal("n"), await api.wait_for_signal("n")]
        return ContinueAsNew(args + 1) if args < 2 else Ok(seen)


def test_what_later_runs_of_the_chain_have_read_comes_again(env):
    h = env.start(Rounds, 0, id="rounds")
    for n in range(6):
        h.signal("n", n)
    first, second = (env.handle(run) for run in h.run_ids[:2])
    assert h.result() == [4, 5]

    fork = second.fork(1, id="fork")
    assert [e["payload"] for e in events(fork, "SignalReceived")] == [4, 5]
    first.reset(2)  # has read 0
    assert len(h.run_ids) == 6
    assert h.result() == [4, 5]
    again = [[e["payload"] for e in events(env.handle(run), "SignalReceived")] for run in h.run_ids[3:]]
    assert again == [[0, 1], [2, 3], [4, 5]]

    with pytest.raises(errors.ActionNotPossible, match="has been reset since"):
        first.reset(1)
    assert len(h.run_ids) == 6
    forked = first.fork(1, id="fork of the first")  # as it went on before it was reset
    seen = [[e["payload"] for e in events(env.handle(run), "SignalReceived")] for run in forked.run_ids]
    assert (seen, forked.result()) == (again, [4, 5])
    first.reset(1, messages="drop")
    assert (len(h.run_ids), h.status) == (7, "waiting")


def test_a_closed_run_needs_its_id_again(env):
    h = env.start(once(work), id="mine")
    env.hold(work)
    second = env.start(once(work), id="mine")
    with pytest.raises(errors.ActionNotPossible, match="has its id"):
        h.reset(1)
    env.complete(work)
    assert second.status == "completed"
    h.reset(1)
    with pytest.raises(errors.AlreadyRunning):
        env.start(once(work), id="mine")
    env.complete(work, "last")
    assert h.result() == "last"
    env.start(once(work), id="mine")


def test_a_terminated_run_goes_on(env):
    env.hold(work)
    h = env.start(once(work))
    h.terminate("by mistake")
    h.reset()
    env.complete(work, "after all")
    assert h.result() == "after all"


def test_a_run_that_timed_out_has_its_time_again_but_not_that_of_the_chain(env):
    h = env.start(once(lambda: api.wait_for_signal("end"), run_timeout=timedelta(seconds=10)))
    env.advance(11)
    assert h.status == "timed_out"
    h.reset()
    env.advance(9)
    assert h.status == "waiting"
    env.advance(2)
    assert h.status == "timed_out"

    h = env.start(once(lambda: api.wait_for_signal("end"), execution_timeout=timedelta(seconds=10)))
    env.advance(11)
    with pytest.raises(errors.ActionNotPossible, match="execution_timeout"):
        h.reset()
    fork = h.fork()
    assert fork.status == "waiting"


def test_code_knows_itself_by_the_name_that_it_has_had(env):
    """What it did with its id up to the point is what it does on replay."""

    async def run(self, args):
        before = api.info()
        await work()
        after = api.info()
        return Ok([before.id, before.run_id, after.id, after.run_id])

    h = env.start(flow(run), id="old")
    first = h.run_id
    fork = h.fork(1, id="new")
    assert fork.result() == ["old", first, "new", fork.run_id]
    h.reset(1)
    assert h.result() == ["old", first, "old", h.run_id]


def test_a_fork_leaves_the_run_as_it_is(env):
    env.hold(keyed)
    h = env.start(Steps, 5, id="trunk")
    fork = h.fork(2)
    assert fork.id.startswith("trunk-fork-")
    assert (h.status, fork.status, len(h.run_ids)) == ("running", "running", 1)
    assert marks(fork)[0]["how"] == "fork"
    env.complete(keyed, "trunk's")
    h.signal("end", 1)
    assert fork.status == "running"
    env.complete(keyed, "fork's")
    fork.signal("end", 2)
    assert (h.result()[2:], fork.result()[2:]) == (["trunk's", 1], ["fork's", 2])
    assert h.result()[:2] == fork.result()[:2]

    closed = h.fork()  # the last one that did not close it
    assert closed.result()[2:] == ["trunk's", 1]
    again = h.fork(2, id="again", edited={2: ["edited"]})
    assert (again.id, again.status) == ("again", "running")
    env.complete(keyed, "edited")
    assert events(again, "ActivityCompleted")[-1]["edited"]["key"] == f"{again.run_id}:2"
    assert again.result()[3] == 1  # the signal was delivered again
    assert h.fork(2, messages="drop").describe()["accepts"] == {"signals": [], "updates": []}
    with pytest.raises(errors.AlreadyRunning):
        h.fork(1, id=h.fork(2, messages="drop").id)


def test_the_children_of_a_run_are_not_those_of_its_fork(env):
    h = env.start(of_kids("terminate"))
    assert h.fork(1).result() == ["ChildLeft", None]
    env.handle("kid").signal("go", 2)
    assert h.result() == [[1, 2], None]
    assert h.fork(1).result() == [[1, 2], None]


def test_updates_are_delivered_to_a_fork_too(env):
    h = env.start(Tallied)
    noted(env, h)
    fork, dropped = h.fork(2), h.fork(2, messages="drop")
    for one in (h, fork, dropped):
        one.signal("stop")
    assert (h.result(), fork.result(), dropped.result()) == ([1, 2, 3, 4], [1, 2, 3, 4], [1])


def test_ids_of_forks_are_ids_of_their_class(env):
    h = env.start(once(work, unique=Unique("forked")), value="1")
    with pytest.raises(errors.InvalidId, match="give the fork an id"):
        h.fork(1)
    with pytest.raises(errors.InvalidId):
        h.fork(1, id="other::1")
    assert h.fork(1, id="forked::2").result() is None

    several = env.start(once(work, unique=Unique("many", scope="none")), value="1")
    made = several.fork(1).id
    assert made.startswith("many::1::")
    assert made != several.id


def test_a_graph_is_taken_up(env):
    h = env.start(OrderGraph, {"total": 12}, value="77")
    at = number(h)
    h.resume("delivered", data={"at": "door"})
    assert h.status == "completed"

    h.reset(at, messages="drop")
    assert h.describe()["waiting_for"] == ["step wait_for_event: delivered or timeout"]
    h.resume("delivered", data={"at": "window"})
    assert h.result()["wait_for_event"] == {"at": "window"}

    h.reset(at)  # the resume is delivered again
    assert h.result()["wait_for_event"] == {"at": "window"}
    assert h.instance().status == "completed"

    fork = h.fork(1, id="orderid::78", messages="drop")
    assert fork.status == "waiting"
    assert fork.instance().id == "orderid::78"
    with pytest.raises(errors.ActionNotPossible, match="is a step"):
        h.reset(1, edited={1: []})


def test_who_resets_needs_the_permission(env):
    h = env.start(once(work))
    for call in (h.reset, h.fork):
        with pytest.raises(errors.ActionNotPermitted, match="reset_instance"):
            call(1, by=Somebody("ann"))
        with pytest.raises(errors.PayloadError):
            call(1, reason=5)
    h.reset(1, by=Somebody("bob", "temporalex_django.reset_instance"), reason="why")
    assert UUID(h.run_id)
