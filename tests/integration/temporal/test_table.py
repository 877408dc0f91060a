"""Each row of the table of the adapter, on the real server, with the clock and the timers of the server."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError

from temporalex_django import (
    ContinueAsNew,
    Err,
    NoReply,
    Ok,
    Reply,
    RetryPolicy,
    Stop,
    Workflow,
    activity,
    api,
    errors,
    query,
    signal,
)
from temporalex_django.temporal import names
from temporalex_django.temporal.inbox import MAX_SIGNALS
from tests.support.temporal_cluster import Cluster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.once


@pytest.fixture(params=[1000, 0], ids=["cached", "evicted"])
def worker(request, cluster):
    """A worker. When the test is over, every history replays with the Replayer of the SDK."""
    with cluster.worker(cache=request.param):
        yield
        for handle in cluster.handles:
            cluster.replay(cluster.history(handle))


def kinds(cluster, handle):
    return [
        event.kind for event in cluster.events(handle) if event.kind not in ("WorkflowStarted", "ActivationStarted")
    ]


# -- continue as new -----------------------------------------------------------------------------------------------


class ClusterRound(Workflow):
    search_attributes = {"customer": str}

    async def run(self, args):
        if args == 0:
            api.set_search_attributes({"customer": "ada"})
            await api.wait_for_signal("next")
            return ContinueAsNew(1)
        first, second = await api.wait_for_signal("kept"), await api.wait_for_signal("behind")
        try:
            await api.sleep(60)
        except errors.Cancelled:
            return Ok([first, second, api.info().attempt])
        return Err("nobody cancelled")


def test_a_run_continues_as_new_with_everything_that_nobody_took(cluster):
    """Signals in the mailbox, signals behind the close and the search attributes come along."""
    handle = cluster.start("ClusterRound", 0)
    for name, payload in (("kept", 1), ("next", None), ("behind", 2)):  # one task: no worker yet
        cluster.call(handle.signal(name, payload))
    with cluster.worker(cache=0):
        newest = cluster.client.get_workflow_handle(handle.id)
        wait_for(lambda: cluster.state(newest)["events"][0][4]["attempt"] == 2)
        wait_for(lambda: any("timer" in label for label in cluster.state(newest)["waiting_for"]))
        started = cluster.events(newest)[0].attributes
        assert started["carried"] == 2
        assert started["search_attributes"] == cluster.state(newest)["search_attributes"]
        assert list(started["search_attributes"]) == ["customer"]
        cluster.call(newest.cancel())
        assert cluster.result(newest) == [1, 2, 2]
    cluster.replay(cluster.history(newest))


# -- patches -------------------------------------------------------------------------------------------------------


def patched_class(*, new):
    class Patched(Workflow):
        async def run(self, args):
            path = "old"
            if new and api.patched("change"):
                path = "new"
            await api.wait_for_signal("go")
            if new and api.patched("change"):
                path += " new"
            return Ok(path)

    return Patched


def test_patches_are_markers(cluster):
    patched_class(new=False)
    with cluster.worker(cache=0):
        old = cluster.start("Patched")
        cluster.wait_until_waiting(old, "signal go")
    patched_class(new=True)
    with cluster.worker(cache=0):
        new = cluster.start("Patched")
        cluster.wait_until_waiting(new, "signal go")
        for handle in (old, new):
            cluster.call(handle.signal("go"))
        assert [cluster.result(old), cluster.result(new)] == ["old", "new new"]
        assert kinds(cluster, new).count("PatchMarked") == 1
    for handle in (old, new):
        cluster.replay(cluster.history(handle))


# -- cancellation --------------------------------------------------------------------------------------------------


@activity
def fast(value=None):
    return value


@activity
def slow():
    raise ConnectionError("never")


class ClusterCleaning(Workflow):
    async def run(self, args):
        try:
            await slow()
        except errors.Cancelled:
            async with api.shield():
                await fast("cleaned")
            raise
        return Ok()


def test_a_cancelled_run_cleans_up(cluster, worker):
    handle = cluster.start("ClusterCleaning")
    cluster.wait_until_waiting(handle, "activity")
    cluster.call(handle.cancel(reason="enough"))
    with pytest.raises(WorkflowFailureError) as failed:
        cluster.result(handle)
    assert type(failed.value.cause).__name__ == "CancelledError"
    assert kinds(cluster, handle) == [
        "ActivityScheduled",
        "CancelRequested",
        "ActivityCancelled",
        "ActivityScheduled",
        "ActivityCompleted",
        "WorkflowCancelled",
    ]
    requested = next(event for event in cluster.events(handle) if event.kind == "CancelRequested")
    assert requested.attributes == {"reason": "enough"}


# -- children ------------------------------------------------------------------------------------------------------


class ClusterLeaf(Workflow):
    async def run(self, args):
        if args == "fail":
            raise errors.ApplicationError("broken", type="Broken", details={"part": 7})
        if args == "wait":
            await api.wait_for_signal("never")
        return Ok({"got": args, "parent": api.info().parent})


class ClusterFamily(Workflow):
    async def run(self, args):
        done = await api.child(ClusterLeaf, 1, id=f"{args}-1")
        try:
            await api.child(ClusterLeaf, "fail", id=f"{args}-2")
        except errors.ChildWorkflowFailure as exc:
            failed = [exc.type, str(exc.cause)]
        try:
            await api.child(ClusterLeaf, 1, id=args)
        except errors.ChildWorkflowFailure as exc:
            taken = exc.type
        winner = await api.race(
            api.child(ClusterLeaf, "wait", id=f"{args}-3", parent_close="request_cancel"), api.sleep(0.01)
        )
        return Ok({"done": done, "failed": failed, "taken": taken, "winner": winner is not None})


def test_children_complete_fail_and_are_cancelled(cluster, worker):
    name = f"family-{cluster.queue}"
    handle = cluster.start("ClusterFamily", name, id=name)
    result = cluster.result(handle)
    assert result["done"] == {"got": 1, "parent": name}
    assert result["failed"] == ["Broken", "broken"]
    assert result["taken"] == "AlreadyRunning"
    child = cluster.client.get_workflow_handle(f"{name}-3")
    with pytest.raises(WorkflowFailureError) as cancelled:
        cluster.result(child)
    assert type(cancelled.value.cause).__name__ == "CancelledError"


# -- other runs ----------------------------------------------------------------------------------------------------


class ClusterReceiver(Workflow):
    async def run(self, args):
        got = await api.wait_for_signal("hello")
        try:
            await api.wait_for_signal("never")
        except errors.Cancelled:
            return Ok(got)
        return Err(got)


class ClusterSender(Workflow):
    async def run(self, args):
        await api.signal_external(args, "hello", {"from": api.info().id})
        await api.cancel_external(args)
        try:
            await api.signal_external("nobody-at-all", "hello")
        except errors.WorkflowNotFound as exc:
            return Ok(str(exc))
        return Err("delivered to nobody")


def test_messages_reach_other_runs_or_fail(cluster, worker):
    receiver = cluster.start("ClusterReceiver")
    cluster.wait_until_waiting(receiver, "signal hello")
    sender = cluster.start("ClusterSender", receiver.id)
    assert "nobody-at-all" in cluster.result(sender)
    assert cluster.result(receiver) == {"from": sender.id}


# -- people --------------------------------------------------------------------------------------------------------


class ClusterReview(Workflow):
    async def run(self, args):
        decision = await api.approval("Publish?", users=["ann"])
        return Ok([decision.outcome, decision.comment])


def decision(task, event, key):
    return {
        "event": event,
        "step": task["key"],
        "task": task["key"],
        "comment": "as I said",
        "question": {"title": task["spec"]["title"], "outcomes": task["spec"]["outcomes"]},
        "by": key,
        "by_key": key,
    }


@pytest.fixture
def judged(temporal_address):
    """A cluster whose judge lets ann do everything, and nobody else anything."""
    cluster = Cluster(temporal_address, judge=lambda key, permission, message: key == "ann")
    yield cluster
    cluster.close()


def send_update(cluster, handle, name, payload, sender):
    from temporalio.client import WorkflowUpdateStage
    from temporalio.client._interceptor import StartWorkflowUpdateInput

    request = StartWorkflowUpdateInput(
        id=handle.id,
        run_id=None,
        first_execution_run_id=None,
        update_id=None,
        update=name,
        args=[payload],
        wait_for_stage=WorkflowUpdateStage.COMPLETED,
        headers={names.SENDER: cluster.payloads.encode({"key": sender, "name": sender})},
        ret_type=None,
        rpc_metadata={},
        rpc_timeout=None,
    )

    async def send():
        update = await cluster.client._impl.start_workflow_update(request)
        return await update.result()

    return cluster.call(send())


@pytest.mark.parametrize("cache", [1000, 0], ids=["cached", "evicted"])
def test_a_decision_is_an_update_that_is_judged_where_it_arrives(judged, cache):
    with judged.worker(cache=cache):
        handle = judged.start("ClusterReview")
        wait_for(lambda: judged.state(handle)["human_tasks"])
        (task,) = judged.state(handle)["human_tasks"]
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            send_update(judged, handle, names.RESUME, decision(task, "approved", "eve"), "eve")
        assert refused.value.cause.details[0]["temporalex"]["code"] == "not_permitted"
        assert send_update(judged, handle, names.RESUME, decision(task, "approved", "ann"), "ann") is None
        assert judged.result(handle) == ["approved", "as I said"]
        (task,) = judged.state(handle)["human_tasks"]
        assert task["ending"] == "decided"
    judged.replay(judged.history(handle))


class ClusterNotes(Workflow):
    async def run(self, args):
        take = lambda note, notes: NoReply([*notes, note])  # noqa: E731
        return Ok(
            await api.phase(
                [], signal={"note": signal(take, permission="shop.note"), "stop": lambda _, notes: Stop(notes)}
            )
        )


@pytest.mark.parametrize("cache", [1000, 0], ids=["cached", "evicted"])
def test_a_signal_that_was_refused_stays_refused_in_every_replay(judged, cache):
    """A marker says so: the judge is never asked about the past."""
    handle = judged.start("ClusterNotes")
    with judged.worker(cache=cache):
        judged.wait_until_waiting(handle, "phase")
        for key, note in (("ann", 1), ("eve", 2), ("ann", 3)):
            judged.send(handle, "note", note, **{names.SENDER: {"key": key, "name": key}})
        judged.call(handle.signal("stop"))
        assert judged.result(handle) == [1, 3]
        assert kinds(judged, handle).count("SignalReceived") == 3
    history = judged.history(handle)
    assert any(event.HasField("marker_recorded_event_attributes") for event in history.events)
    judged.options["judge"] = lambda *_: True
    judged.replay(history)


# -- timers and inboxes --------------------------------------------------------------------------------------------


class ClusterSleeper(Workflow):
    async def run(self, args):
        await api.sleep(86_400)
        return Ok("slept")


def test_a_timer_is_skipped(cluster, worker):
    handle = cluster.start("ClusterSleeper")
    cluster.wait_until_waiting(handle, "timer")
    cluster.call(handle.signal(names.SKIP_TIMER, {"seq": 7}))  # there is none
    cluster.call(handle.signal(names.SKIP_TIMER, {"seq": 1, "by": {"key": "7", "name": "ann"}}))
    assert cluster.result(handle) == "slept"
    fired = next(event for event in cluster.events(handle) if event.kind == "TimerFired")
    assert fired.attributes == {"seq": 1, "by": {"key": "7", "name": "ann"}}


class ClusterLedger(Workflow):
    async def run(self, args):
        add = lambda n, total: NoReply(total + n)  # noqa: E731
        ask = lambda _, total: Reply(total, total)  # noqa: E731
        return Ok(await api.phase(0, signal={"add": add, "stop": lambda _, total: Stop(total)}, update={"total": ask}))


def test_a_long_inbox_is_taken_by_number(cluster, worker):
    """The rest comes in activations of its own, in order; nobody waits for it but the signals themselves."""
    handle = cluster.start("ClusterLedger")
    cluster.wait_until_waiting(handle, "phase")
    count = 2 * MAX_SIGNALS + 7

    async def send():
        for n in range(count):
            await handle.signal("add", n)
        await handle.signal("stop")

    cluster.call(send())
    assert cluster.result(handle) == sum(range(count))


def test_what_one_activation_takes_is_a_number(cluster):
    handle = cluster.start("ClusterLedger")
    count = MAX_SIGNALS + 7

    async def send():
        for _ in range(count):
            await handle.signal("add", 1)
        await handle.signal("stop")

    cluster.call(send())
    with cluster.worker():
        assert cluster.result(handle) == count
        by_activation = {}
        for event in cluster.events(handle):
            if event.kind == "SignalReceived":
                by_activation[event.activation] = by_activation.get(event.activation, 0) + 1
        assert list(by_activation.values()) == [MAX_SIGNALS, 8]
    cluster.replay(cluster.history(handle))


# -- failures ------------------------------------------------------------------------------------------------------


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=0.01, non_retryable=[LookupError]))
def failing(how):
    if how == "base":
        raise KeyError("missing")
    if how == "details":
        raise errors.ApplicationError("no", type="Declined", details={"code": 51})
    raise ConnectionError("away")


class ClusterFailing(Workflow):
    async def run(self, args):
        caught = []
        for how in ("base", "details", "often"):
            try:
                await failing(how)
            except errors.ActivityFailure as exc:
                caught.append([exc.type, exc.cause, exc.attempts, exc.details])
        if args == "raise":
            raise errors.ApplicationError("the end", type="Ended", details={"caught": caught})
        return Ok(caught)


FAILURES = [
    ["KeyError", "'missing'", 1, None],
    ["Declined", "no", 2, {"code": 51}],
    ["ConnectionError", "away", 2, None],
]


def test_failures_keep_their_attributes_on_the_way_in(cluster, worker):
    """The class and its bases decide about another attempt, and attempts and details come back."""
    assert cluster.result(cluster.start("ClusterFailing")) == FAILURES


def test_failures_keep_their_attributes_on_the_way_out(cluster, worker):
    handle = cluster.start("ClusterFailing", "raise")
    with pytest.raises(WorkflowFailureError) as failed:
        cluster.result(handle)
    attributes = failed.value.cause.details[0]["temporalex"]
    assert (attributes["type"], attributes["message"]) == ("Ended", "the end")
    assert attributes["details"] == {"caught": FAILURES}
    assert "in run" in attributes["traceback"]


# -- what runs show -------------------------------------------------------------------------------------------------


class ClusterShown(Workflow):
    stored = {"shown_total": int}

    @query("double")
    @staticmethod
    def double(state):
        return state["shown_total"] * 2

    async def run(self, args):
        api.publish_state({"shown_total": 21})
        await api.phase(None, signal={"stop": lambda _, state: Stop(state)}, update={"ask": lambda a, s: Reply(a, s)})
        return Ok()


def test_a_run_shows_its_state_waits_and_history_also_when_it_is_closed_and_evicted(cluster):
    with cluster.worker():
        handle = cluster.start("ClusterShown")
        cluster.wait_until_waiting(handle, "phase")
        shown = cluster.state(handle)
        assert shown["status"] == "waiting"
        assert shown["stored"] == {"shown_total": 21}
        assert shown["accepts"] == {"signals": ["stop"], "updates": ["ask"]}
        assert [wait["kind"] for wait in shown["waits"]] == ["phase"]
        assert cluster.call(handle.query("double")) == 42
        cluster.call(handle.signal("stop"))
        cluster.result(handle)
        kept = cluster.state(handle)
    with cluster.worker(cache=0):
        assert cluster.state(handle) == kept
        assert kept["status"] == "completed"
        assert cluster.call(handle.query("double")) == 42
        after = cluster.call(handle.query(names.STATE, {"after": kept["events"][-1][0] - 1}))
        assert [event[2] for event in after["events"]] == ["WorkflowCompleted"]
