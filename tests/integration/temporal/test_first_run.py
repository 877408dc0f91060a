"""One run with everything: an activity, a timer, a signal, an update and a query, on the real server."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowUpdateFailedError

from temporalex_django import Ok, Reply, RetryPolicy, Stop, Workflow, activity, activity_context, api, query, update
from temporalex_django.temporal import names

pytestmark = pytest.mark.once


@activity(retry=RetryPolicy(max_attempts=3, initial_interval=0.01))
def charge(amount: int) -> dict:
    if activity_context().attempt == 1:
        raise ConnectionError("the gateway did not answer")
    return {"charged": amount, "key": activity_context().idempotency_key}


def add(amount, total):
    api.publish_state(total + amount)
    return Reply(total + amount, total + amount)


def require_positive(amount, total):
    if amount < 0:
        raise ValueError("an amount is positive")


class ClusterTill(Workflow):
    @query("total")
    @staticmethod
    def total(state):
        return state

    async def run(self, args):
        await api.sleep(0.01)
        total = await api.phase(
            args["total"],
            signal={"close": lambda _, state: Stop(state)},
            update={"add": update(add, validator=require_positive)},
        )
        return Ok({"paid": await charge(total)})


@pytest.mark.parametrize("cache", [1000, 0], ids=["cached", "evicted"])
def test_a_run_works_from_its_start_to_its_end(cluster, cache):
    with cluster.worker(cache=cache):
        handle = cluster.start("ClusterTill", {"total": 1})
        cluster.wait_until_waiting(handle, "phase")
        assert cluster.call(handle.execute_update("add", 3)) == 4
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            cluster.call(handle.execute_update("add", -3))
        assert refused.value.cause.details[0]["temporalex"]["reason"] == "an amount is positive"
        assert cluster.call(handle.execute_update("add", 5)) == 9
        assert cluster.call(handle.query("total")) == 9
        cluster.call(handle.signal("close"))
        run_id = handle.first_execution_run_id
        assert cluster.result(handle) == {"paid": {"charged": 9, "key": f"{run_id}:2"}}

        kinds = [event.kind for event in cluster.events(handle)]
        assert [kind for kind in kinds if kind != "ActivationStarted"] == [
            "WorkflowStarted",
            "TimerStarted",
            "TimerFired",
            "UpdateAccepted",
            "UpdateCompleted",
            "UpdateAccepted",
            "UpdateCompleted",
            "SignalReceived",
            "ActivityScheduled",
            "ActivityCompleted",
            "WorkflowCompleted",
        ]
        completed = next(event for event in cluster.events(handle) if event.kind == "ActivityCompleted")
        assert completed.attributes["attempts"] == 2
    cluster.replay(cluster.history(handle))


def test_a_run_is_kept_in_the_same_form_and_rebuilt_in_the_same_form(cluster):
    with cluster.worker():
        handle = cluster.start("ClusterTill", {"total": 1})
        cluster.wait_until_waiting(handle, "phase")
        cluster.call(handle.execute_update("add", 3))
        kept = cluster.state(handle)
    with cluster.worker(cache=0):
        assert cluster.state(handle) == kept


@activity(name="cluster.headers_told")
def headers_told() -> dict:
    return dict(activity_context().headers)


class ClusterHeaders(Workflow):
    async def run(self, args):
        signal = await api.phase(None, signal={"tell": lambda _, __: Stop(api.headers())})
        return Ok([api.headers(), signal, await headers_told()])


def test_headers_reach_the_code_and_the_activities_of_a_worker(cluster):
    with cluster.worker():
        handle = cluster.start("ClusterHeaders", facts={"version": 1, "headers": {"tenant": "a"}})
        cluster.wait_until_waiting(handle, "phase")
        cluster.send(handle, "tell", **{names.HEADERS: {"of": "tell"}})
        assert cluster.result(handle) == [{"tenant": "a"}, {"of": "tell"}, {"tenant": "a"}]
    cluster.replay(cluster.history(handle))
