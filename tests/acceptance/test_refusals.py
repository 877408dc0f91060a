"""What a caller reads who is refused: the same error in the same words on every host, in one order of checks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import ContinueAsNew, Ok, RetryPolicy, Workflow, activity, api, errors
from tests.support.hosts import HOSTS
from tests.support.people import person

pytestmark = pytest.mark.hosts(*HOSTS)

MAY = "auth.change_group"


@activity(retry=RetryPolicy(initial_interval=3600.0))
def refuses(amount: int) -> int:
    raise ConnectionError("refused")


@activity(by_hand=False, start_to_close=60.0)
def alone(amount: int) -> int:
    return amount


class Asked(Workflow):
    name = "test.RefusalAsked"

    async def run(self, args: Any) -> Any:
        return Ok((await api.approval("Approve it", role=MAY)).outcome)


class Failing(Workflow):
    name = "test.RefusalFailing"

    async def run(self, args: Any) -> Any:
        return Ok(await refuses(5))


class Held(Workflow):
    name = "test.RefusalHeld"

    async def run(self, args: Any) -> Any:
        return Ok(await alone(5))


class Sleeping(Workflow):
    name = "test.RefusalSleeping"
    execution_timeout = timedelta(days=1)

    async def run(self, args: Any) -> Any:
        return Ok(await api.sleep(60))


class Renewing(Workflow):
    name = "test.RefusalRenewing"

    async def run(self, args: Any) -> Any:
        await api.sleep(60)
        return ContinueAsNew(args) if not args else Ok(args)


def refusal(call: Any) -> tuple[type, str]:
    with pytest.raises(errors.TemporalexError) as caught:
        call()
    return type(caught.value), caught.value.message


def test_who_may_not_decide_hears_that_first(env: Any) -> None:
    """The run would refuse the decision, too, but only those who may decide learn why."""
    ann, cleo = person(env, "ann", MAY), person(env, "cleo")
    h = env.start(Asked, id="a")
    h.pause()
    task = "the human task '1' of test.RefusalAsked a"

    assert refusal(lambda: h.decide("approved", by=cleo)) == (
        errors.ActionNotPermitted,
        f"cleo may not decide {task}: the candidates are perm:{MAY}",
    )
    assert refusal(lambda: h.decide("approved")) == (
        errors.ActionNotPermitted,
        f"{task} must be decided by a user: pass by=user",
    )
    assert refusal(lambda: h.decide("perhaps", by=cleo)) == (
        errors.PayloadError,
        f"{task} accepts approved, rejected, not 'perhaps'",
    )
    assert refusal(lambda: h.decide("approved", by=ann)) == (
        errors.RunPaused,
        "test.RefusalAsked a is paused: resume 'approved' refused; send it again when it is unpaused",
    )
    h.unpause()
    h.decide("approved", by=ann)
    assert h.result() == "approved"


def test_a_paused_run_names_itself_and_the_next_step(env: Any) -> None:
    h = env.start(Sleeping, id="p")
    h.pause()

    assert refusal(lambda: h.update("go")) == (
        errors.RunPaused,
        "test.RefusalSleeping p is paused: update 'go' refused; send it again when it is unpaused",
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda h: h.signal("go"), "test.RefusalSleeping c is closed (completed): signal 'go' refused"),
        (lambda h: h.update("go"), "test.RefusalSleeping c is closed: update 'go' refused"),
        (lambda h: h.cancel(), "cancel of test.RefusalSleeping c refused: the run is already closed (Completed)"),
        *(
            (call, f"{name} of test.RefusalSleeping c refused: the run is already closed (Completed)")
            for name, call in {
                "terminate": lambda h: h.terminate(),
                "pause": lambda h: h.pause(),
                "unpause": lambda h: h.unpause(),
                "try_again": lambda h: h.try_again(),
                "retry_activity": lambda h: h.retry_activity(1),
                "complete_activity": lambda h: h.complete_activity(1),
                "fail_activity": lambda h: h.fail_activity(1, "no"),
                "skip_timer": lambda h: h.skip_timer(1),
                "redeliver": lambda h: h.redeliver(),
            }.items()
        ),
    ],
)
def test_a_closed_run_is_left_alone(env: Any, call: Any, words: str) -> None:
    h = env.start(Sleeping, id="c")
    env.advance(60)

    assert refusal(lambda: call(h)) == (errors.WorkflowClosed, words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda h: h.unpause(), "unpause of test.RefusalSleeping s refused: the run is not paused"),
        (lambda h: h.try_again(), "try_again of test.RefusalSleeping s refused: the run is not blocked"),
        (
            lambda h: h.delete(),
            "delete of test.RefusalSleeping s refused: the run is open: cancel or terminate it first",
        ),
        (lambda h: h.redeliver(), "redeliver of test.RefusalSleeping s refused: the run has no failed message"),
        (lambda h: h.discard("x"), "discard of test.RefusalSleeping s refused: the run has no failed message"),
        (
            lambda h: h.retry_activity(9),
            (
                "retry_activity of test.RefusalSleeping s refused: no activity with that number is open: it has ended, or "
                "was cancelled"
            ),
        ),
        (
            lambda h: h.complete_activity(9, 1),
            (
                "complete_activity of test.RefusalSleeping s refused: no activity with that number is open: it has ended, "
                "or was cancelled"
            ),
        ),
        (
            lambda h: h.skip_timer(9),
            (
                "skip_timer of test.RefusalSleeping s refused: no timer with that number is running: it has fired, "
                "was cancelled, or never began; the timers that run: 1"
            ),
        ),
    ],
)
def test_an_open_run_says_what_is_impossible(env: Any, call: Any, words: str) -> None:
    h = env.start(Sleeping, id="s")

    assert refusal(lambda: call(h)) == (errors.ActionNotPossible, words)


def test_the_state_of_an_activity_counts_before_what_its_code_allows(env: Any) -> None:
    env.hold(alone)
    h = env.start(Held, id="h")

    assert refusal(lambda: h.retry_activity(1, input=[6])) == (
        errors.ActionNotPossible,
        "retry_activity of test.RefusalHeld h refused: an attempt is running now",
    )
    assert refusal(lambda: h.complete_activity(1, 6)) == (
        errors.ActionNotPossible,
        (
            "complete_activity of test.RefusalHeld h refused: the code of the activity does not allow operators to do this "
            "(by_hand=False)"
        ),
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda h: h.fail_activity(1, 5), "the input 'message' must be str, not int"),
        (lambda h: h.fail_activity(1, "no", type=None), "the input 'type' must be str, not NoneType"),
        (lambda h: h.redeliver(5), "the input 'message' must be str, not int"),
        (lambda h: h.reset(to="1"), "the input 'to' must be int, not str"),
        (lambda h: h.reset(to=True), "the input 'to' must be int, not bool"),
        (lambda h: h.fork(id=5), "the input 'id' must be str, not int"),
        (lambda h: h.reset(messages="never"), "the input 'messages' must be one of again, drop"),
    ],
)
def test_an_input_of_the_wrong_kind_is_named(env: Any, call: Any, words: str) -> None:
    h = env.start(Failing, id="f")

    assert refusal(lambda: call(h)) == (errors.PayloadError, words)


def test_a_reset_says_what_it_is_about(env: Any) -> None:
    h = env.start(Sleeping, id="r")
    env.advance(60)
    env.start(Sleeping, id="r")
    assert refusal(lambda: h.reset(to=0)) == (
        errors.ActionNotPossible,
        "reset of test.RefusalSleeping r refused: another open run now has its id",
    )
    env.advance(timedelta(days=2))
    assert refusal(lambda: h.reset(to=0)) == (
        errors.ActionNotPossible,
        (
            "reset of test.RefusalSleeping r refused: the time limit of its chain (execution_timeout) has passed: fork it "
            "instead"
        ),
    )


def test_a_number_of_an_earlier_run_hits_nothing_of_the_present_one(env: Any) -> None:
    h = env.start(Renewing, id="e")
    env.advance(60)
    earlier = env.handle(h.run_ids[0])

    assert refusal(lambda: earlier.skip_timer(1)) == (
        errors.ActionNotPossible,
        "skip_timer of test.RefusalRenewing e refused: this belongs to an earlier run: the chain has continued as new",
    )


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cancel", lambda h, by: h.cancel(by=by)),
        ("terminate", lambda h, by: h.terminate(by=by)),
        ("pause", lambda h, by: h.pause(by=by)),
        ("retry_activity", lambda h, by: h.retry_activity(1, by=by)),
        ("reset", lambda h, by: h.reset(by=by)),
        ("query", lambda h, by: h.query("x", by=by)),
        ("delete", lambda h, by: h.delete(by=by)),
    ],
)
def test_a_lack_of_rights_is_said_before_all_else(env: Any, name: str, call: Any) -> None:
    cleo = person(env, "cleo")
    h = env.start(Sleeping, id="n")
    env.advance(60)
    permission = {"query": "query_instance"}.get(name, name if name == "retry_activity" else f"{name}_instance")

    assert refusal(lambda: call(h, cleo)) == (
        errors.ActionNotPermitted,
        f"cleo may not {name} runs: this requires the permission temporalex_django.{permission}",
    )
