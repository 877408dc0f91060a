"""Activities on the virtual clock: retries, timeouts, heartbeats, stand-ins, held calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from temporalex_django import Ok, RetryPolicy, activity, activity_context, api, errors
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import TaskState
from tests.support.runs import events, flow, kinds, once, other, produced, work


def failing(env, act, times, error=ValueError):
    attempts = []

    def stand_in(*args):
        context = activity_context()
        attempts.append((context.attempt, env.clock.timestamp(), context.idempotency_key))
        if len(attempts) <= times:
            raise error(f"attempt {context.attempt}")
        return "done"

    env.mock(act, stand_in)
    return attempts


def reported(call):
    """A workflow that gives the failure of one call."""

    async def run(self, args):
        try:
            return Ok(await call())
        except errors.ActivityFailure as exc:
            return Ok(
                {
                    "type": exc.type,
                    "cause": exc.cause,
                    "attempts": exc.attempts,
                    "timeout": exc.timeout,
                    "text": str(exc),
                }
            )

    return flow(run)


def test_retries_follow_the_policy_with_one_idempotency_key(env):
    """TX-211."""
    attempts = failing(env, work, 3)
    policy = RetryPolicy(max_attempts=5, initial_interval=2, backoff=3, max_interval=10)
    h = env.start(reported(lambda: work.options(retry=policy)(1)))
    begun = env.clock.timestamp()
    env.advance(100)
    assert h.result() == "done"
    assert [(n, at - begun) for n, at, _ in attempts] == [(1, 0), (2, 2), (3, 8), (4, 18)]
    assert len({key for _, _, key in attempts}) == 1
    assert kinds(h) == ["ActivityScheduled", "ActivityCompleted", "WorkflowCompleted"]


def test_last_attempt_fails_the_call(env):
    """TX-211 TX-224: type, cause, attempts."""
    failing(env, work, 9)
    h = env.start(reported(lambda: work.options(retry=RetryPolicy(max_attempts=3))(1)))
    env.advance(100)
    result = h.result()
    assert (result["type"], result["cause"], result["attempts"], result["timeout"]) == (
        "ValueError",
        "attempt 3",
        3,
        None,
    )
    assert "ValueError: attempt 3" in result["text"]
    assert events(h, "ActivityFailed")[0]["attempts"] == 3


class Declined(Exception):
    pass


class CardDeclined(Declined):
    pass


@pytest.mark.parametrize("named", ["CardDeclined", CardDeclined, Declined, "Declined"])
def test_non_retryable_types_end_the_retries(env, named):
    """TX-212: names or classes, base classes too."""
    failing(env, work, 9, CardDeclined)
    h = env.start(reported(lambda: work.options(retry=RetryPolicy(non_retryable=[named]))(1)))
    assert h.result()["type"] == "CardDeclined"
    assert h.result()["attempts"] == 1


def test_our_own_errors_raised_by_an_activity_are_retried_like_any_other(env):
    """TX-211: the activity may be a client of other runs."""
    attempts = failing(env, work, 1, errors.WorkflowNotFound)
    h = env.start(reported(lambda: work(1)))
    env.advance(10)
    assert h.result() == "done"
    assert len(attempts) == 2


def test_result_that_cannot_be_encoded_is_final(env):
    """Bad input: another attempt would end the same way."""
    env.mock(work, lambda value: {"x": [object()]})
    result = env.start(reported(lambda: work(1))).result()
    assert result["type"] == "PayloadError" and "$.x[0]" in result["cause"]


def test_arguments_that_do_not_fit_are_final(env):
    @activity
    def typed(value: int) -> int:
        return value

    result = env.start(reported(lambda: typed("many"))).result()
    assert result["type"] == "PayloadError" and "value" in result["cause"]


def test_result_that_does_not_fit_the_annotation_is_an_error_at_the_await(env):
    """ST-100."""

    @activity
    def typed(value: int) -> int:
        return value

    env.mock(typed, lambda value: "text")

    async def run(self, args):
        try:
            await typed(1)
        except errors.PayloadError as exc:
            return Ok(str(exc))

    assert "typed" in env.start(flow(run)).result()


@pytest.mark.parametrize("timeout", ["start_to_close", "schedule_to_close", "schedule_to_start", "heartbeat"])
def test_timeouts_name_the_one_that_passed(env, timeout):
    """TX-213: ActivityTimedOut; a held call runs into the first that is due."""
    env.hold(work)
    h = env.start(reported(lambda: work.options(retry=RetryPolicy(max_attempts=1), **{timeout: 30})(1)))
    env.advance(29)
    assert h.status == "running"
    env.advance(1)
    assert h.result()["timeout"] == timeout
    assert timeout in h.result()["text"]
    assert kinds(h)[1] == "ActivityTimedOut"


def test_first_of_several_timeouts_counts(env):
    env.hold(work)
    h = env.start(
        reported(
            lambda: work.options(
                retry=RetryPolicy(max_attempts=1), start_to_close=20, schedule_to_close=30, heartbeat=10
            )(1)
        )
    )
    env.advance(60)
    assert h.result()["timeout"] == "heartbeat"
    assert [e.at.second for e in h.history() if e.kind == "ActivityTimedOut"] == [10]


def test_attempt_that_timed_out_is_tried_again(env):
    """TX-213: start_to_close ends an attempt, schedule_to_close the activity."""
    env.hold(work)
    h = env.start(reported(lambda: work.options(start_to_close=10, schedule_to_close=60)(1)))
    env.advance(15)
    env.complete(work, "second attempt")
    assert h.result() == "second attempt"


def test_schedule_to_close_ends_retries(env):
    failing(env, work, 99)
    h = env.start(reported(lambda: work.options(schedule_to_close=10)(1)))
    env.advance(60)
    assert h.result()["attempts"] > 1
    assert h.status == "completed"


def test_heartbeat_details_reach_the_next_attempt(env):
    """TX-214."""
    seen = []

    def stand_in(value):
        context = activity_context()
        seen.append(context.heartbeat_details)
        context.heartbeat({"page": context.attempt})
        if context.attempt < 3:
            raise ValueError("again")
        return (context.workflow_id, context.is_cancelled())

    env.mock(work, stand_in)
    h = env.start(reported(lambda: work(1)))
    env.advance(10)
    assert seen == [None, {"page": 1}, {"page": 2}]
    assert h.result() == [h.id, False]


def test_call_site_options_beat_the_definition_and_bad_ones_are_refused(env):
    """TX-211 TX-232."""

    @activity(retry=RetryPolicy(max_attempts=5), start_to_close=30)
    def act(value):
        return value

    async def run(self, args):
        await act(1)
        await act.options(start_to_close=5, queue="slow")(2)
        for bad in ({"nothing": 1}, {"start_to_close": 0}, {"heartbeat": "soon"}, {"retry": 5}, {"atomic": True}):
            with pytest.raises(errors.WorkflowDefinitionError):
                act.options(**bad)
        return Ok()

    h = env.start(flow(run))
    assert h.result() is None
    first, second = (c.attributes["options"] for c in produced(env) if c.kind == "ScheduleActivity")
    assert (first["start_to_close"], second["start_to_close"], second["queue"]) == (30, 5, "slow")
    assert first["retry"]["max_attempts"] == second["retry"]["max_attempts"] == 5


def test_held_calls_end_oldest_first_one_activation_each(env):
    """Complete and fail take the oldest; fail is final."""
    env.hold(work)
    h = env.start(once(lambda: api.parallel([work(1), work(2), work(3)])))
    before = len(env.commands)
    env.complete(work, "a")
    env.complete(work, "b")
    assert len(env.commands) <= before + 2
    assert [a["result"] for a in events(h, "ActivityCompleted")] == ["a", "b"]
    assert len({e.activation for e in h.history() if e.kind == "ActivityCompleted"}) == 2
    env.complete(work, "c")
    assert h.result() == ["a", "b", "c"]
    with pytest.raises(LookupError):
        env.complete(work)


def test_batch_puts_results_into_one_activation(env):
    """Complete and fail inside a batch."""
    env.hold(work)
    env.hold(other)
    h = env.start(once(lambda: api.parallel([work(1), other(2)])))
    with env.batch():
        env.complete(other, "b")
        env.complete(work, "a")
    assert h.result() == ["a", "b"]
    assert len({e.activation for e in h.history() if e.kind == "ActivityCompleted"}) == 1


def test_stand_in_gets_the_arguments_and_may_be_async(env):
    async def stand_in(value):
        return [value, "async"]

    env.mock(work, stand_in)
    assert env.start(once(lambda: work(1))).result() == [1, "async"]


def test_async_activity(env):
    @activity
    async def later(value: int) -> int:
        return value + 1

    assert env.start(once(lambda: later(value=1))).result() == 2
    assert later.__wrapped__.__name__ == "later"


def test_activity_that_exits_is_an_attempt_that_failed(env):
    failing(env, work, 1, SystemExit)
    h = env.start(reported(lambda: work(1)))
    env.advance(10)
    assert h.result() == "done"


def test_atomic_activity_in_memory(env):
    """The same contract."""

    @activity(atomic=True)
    def book(n: int) -> int:
        return n * 2

    assert env.start(once(lambda: book(4))).result() == 8
    with pytest.raises(errors.WorkflowDefinitionError):

        @activity(atomic=True)
        async def never(n):
            return n


def test_activity_context_outside_is_an_error():
    with pytest.raises(errors.OutsideWorkflow):
        activity_context()


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": -1},
        {"max_attempts": 1.5},
        {"backoff": 0.5},
        {"initial_interval": -1},
        {"max_interval": "x"},
        {"non_retryable": "E"},
    ],
)
def test_policies_that_make_no_sense_are_refused(options):
    with pytest.raises(errors.WorkflowDefinitionError):
        RetryPolicy(**options)


def test_a_local_activity_has_the_contract_of_any_other(env):
    """TX-215: result, retry, timeout and failure are the same.

    The command says that it is local, and no queue is named.
    """
    failing(env, work, 1)
    policy = RetryPolicy(max_attempts=2, initial_interval=3)

    async def run(self, args):
        return Ok([await work.options(local=True, retry=policy)("x"), await local_one(2)])

    h = env.start(flow(run))
    assert h.status == "running"
    env.advance(3)
    assert h.result() == ["done", 4]
    first, second = (c.attributes["options"] for c in produced(env) if c.kind == "ScheduleActivity")
    assert first["local"] is True and "queue" not in first
    assert second == {"local": True}


@activity(local=True)
def local_one(n: int) -> int:
    return 2 * n


def test_options_that_contradict_local_are_refused():
    with pytest.raises(errors.WorkflowDefinitionError, match="remove queue and schedule_to_start"):
        activity(local=True, queue="slow")(lambda: 1)
    with pytest.raises(errors.WorkflowDefinitionError, match="cannot also be local"):
        activity(local=True, atomic=True)(lambda: 1)
    with pytest.raises(errors.WorkflowDefinitionError, match="remove queue"):
        local_one.options(queue="slow")
    slow = activity(queue="slow", schedule_to_start=5)(lambda: 1)
    assert slow.options(local=True).options_set.queue is None


@pytest.mark.parametrize("queue", ["", "pay\n", 3, "x" * 201])
def test_a_queue_has_a_name(queue):
    with pytest.raises(errors.WorkflowDefinitionError, match="queue must be a name of 1 to 200 printable characters"):
        activity(queue=queue)(lambda: 1)


@pytest.mark.parametrize("ignored", [{"queue": "slow"}, {"start_to_close": 5}])
def test_options_that_an_atomic_activity_would_ignore_are_refused(ignored):
    with pytest.raises(errors.WorkflowDefinitionError, match="remove queue and start_to_close"):
        activity(atomic=True, **ignored)(lambda: 1)
    with pytest.raises(errors.WorkflowDefinitionError, match="remove queue and start_to_close"):
        activity(atomic=True)(lambda: 1).options(**ignored)


def test_a_description_says_why_it_is_tried_again(env):
    """The last failure with its way through the user's code, the attempt of how many, and the next try."""
    failing(env, work, 9, error=ConnectionError)
    policy = RetryPolicy(max_attempts=5, initial_interval=60, backoff=1)
    h = env.start(reported(lambda: work.options(retry=policy)(1)))
    begun = env.clock
    env.advance(60)

    (one,) = h.describe().activities

    assert (one.activity, one.state, one.attempt, one.max_attempts) == (work.name, "retrying", 2, 5)
    assert one.next_try == begun + timedelta(seconds=120)
    why = one.last_failure
    assert (why.type, why.message, why.attempt) == ("ConnectionError", "attempt 2", 2)
    assert (why.at, why.since) == (begun + timedelta(seconds=60), begun)
    assert "in stand_in" in why.traceback
    assert "temporalex_django" not in why.traceback

    env.advance(600)
    assert h.describe().activities == []


def test_a_timeout_and_a_lost_worker_are_failures_too(env):
    env.hold(work)
    h = env.start(reported(lambda: work.options(retry=RetryPolicy(initial_interval=600), start_to_close=30)(1)))
    env.advance(30)

    (one,) = h.describe().activities

    assert (one.last_failure.type, one.last_failure.traceback) == ("TimeoutError", None)
    assert one.last_failure.message == "the start_to_close timeout of 30 s expired"
    assert activity_policy.lost_result(held(1), env.clock).failure.type == "WorkerLost"


def held(attempt):
    """An activity in the hands of a worker."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return TaskState(
        id=1, chain_id=uuid4(), run_id=uuid4(), workflow_id="w", workflow="w", seq=1, activity=work.name, args=[],
        kwargs={}, options={}, queue="default", atomic=False, attempt=attempt, scheduled_at=now, due_at=now, owner=1,
    )  # fmt: skip
