"""What operators do to single activities and timers: ordinary events, which say who did it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import (
    Done,
    Err,
    Event,
    GraphWorkflow,
    Ok,
    RetryPolicy,
    Step,
    Unique,
    Workflow,
    activity,
    activity_context,
    api,
    errors,
)
from tests.support.people import person
from tests.support.runs import events, flow, kinds, once, other, work

SEEN: list[tuple[Any, int, str]] = []
FAILING = [True]


@activity(retry=RetryPolicy(initial_interval=3600.0))
def charge(amount: int, card: str = "visa") -> int:
    context = activity_context()
    SEEN.append(((amount, card), context.attempt, context.idempotency_key))
    if FAILING[0]:
        raise ConnectionError("refused")
    return amount


@activity(atomic=True, retry=RetryPolicy(initial_interval=3600.0))
def book(amount: int) -> int:
    if FAILING[0]:
        raise ConnectionError("refused")
    return amount


@pytest.fixture(autouse=True)
def _failing() -> None:
    SEEN.clear()
    FAILING[:] = [True]


def seq_of(h: Any, kind: str = "ActivityScheduled") -> int:
    found: int = events(h, kind)[-1]["seq"]
    return found


def test_a_failed_activity_is_tried_again_at_once(env: Any) -> None:
    h = env.start(once(lambda: charge(5)))
    FAILING[:] = [False]
    h.retry_activity(seq_of(h))

    assert h.result() == 5
    assert [attempt for _, attempt, _ in SEEN] == [1, 2]
    assert len({key for *_, key in SEEN}) == 1
    assert events(h, "ActivityCompleted") == [{"seq": seq_of(h), "result": 5, "attempts": 2}]


def test_a_try_that_fails_again_waits_for_its_back_off(env: Any) -> None:
    h = env.start(once(lambda: charge(5)))
    h.retry_activity(seq_of(h))
    env.advance(60)

    assert [attempt for _, attempt, _ in SEEN] == [1, 2]
    FAILING[:] = [False]
    env.advance(2 * 3600)
    assert h.result() == 5


@pytest.mark.parametrize("given", [[7, "master"], {"amount": 7, "card": "master"}])
def test_an_edited_input_has_a_key_of_its_own_and_stands_in_the_history(env: Any, given: Any) -> None:
    who = person(env, "ann", *able("retry_activity", "edit_activity_input", "view_payload", "view_instance"))
    h = env.start(once(lambda: charge(5)))
    FAILING[:] = [False]
    h.retry_activity(seq_of(h), input=given, by=who)

    assert h.result() == 7
    assert [call for call, *_ in SEEN] == [(5, "visa"), (7, "master")]
    first, second = (key for *_, key in SEEN)
    assert first != second
    (end,) = events(h, "ActivityCompleted")
    assert (end["result"], end["edited"]["key"], end["edited"]["by"]["name"]) == (7, second, "ann")
    assert (end["edited"]["args"], end["edited"]["kwargs"]) == (
        ([7, "master"], {}) if isinstance(given, list) else ([], given)
    )


@pytest.mark.parametrize("given", [["seven"], [], "seven", None, {"card": "visa"}, {"amount": 1, "colour": 2}])
def test_an_input_that_does_not_fit_is_refused(env: Any, given: Any) -> None:
    h = env.start(once(lambda: charge(5)))

    with pytest.raises(errors.PayloadError):
        h.retry_activity(seq_of(h), input=given)
    FAILING[:] = [False]
    env.advance(3600)
    assert [call for call, *_ in SEEN] == [(5, "visa")] * 2


def test_an_atomic_one_is_retried_and_ended_too(env: Any) -> None:
    tried, done, lost = (env.start(once(lambda: book(5)), id=name) for name in ("tried", "done", "lost"))
    done.complete_activity(seq_of(done), 6)
    lost.fail_activity(seq_of(lost), "never mind")
    FAILING[:] = [False]
    tried.retry_activity(seq_of(tried))

    assert (tried.result(), done.result(), lost.status) == (5, 6, "failed")


def test_an_activity_is_completed_in_place_of_its_worker(env: Any) -> None:
    who = person(env, "ann", *able("complete_activity", "view_payload"))
    env.hold(work)
    h = env.start(once(lambda: work(1)))
    h.complete_activity(seq_of(h), {"paid": True}, by=who)

    assert h.result() == {"paid": True}
    (end,) = events(h, "ActivityCompleted")
    assert end["by"]["name"] == "ann"
    with pytest.raises(LookupError):  # what the worker comes to is too late
        env.complete(work, "late")
    assert len(events(h, "ActivityCompleted")) == 1


def test_code_that_completes_it_is_nobody(env: Any) -> None:
    env.hold(work)
    h = env.start(once(lambda: work(1)))
    h.complete_activity(seq_of(h))

    assert events(h, "ActivityCompleted") == [{"seq": seq_of(h), "result": None, "by": None}]


def test_a_result_that_does_not_fit_is_refused_and_the_activity_goes_on(env: Any) -> None:
    h = env.start(once(lambda: charge(5)))

    with pytest.raises(errors.PayloadError, match="charge"):
        h.complete_activity(seq_of(h), "five")
    assert h.status == "running"
    h.complete_activity(seq_of(h), 5)
    assert h.result() == 5


def test_an_activity_is_failed_for_good(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        try:
            return Ok(await charge(5))
        except errors.ActivityFailure as exc:
            return Err([exc.type, exc.cause, exc.attempts])

    h = env.start(flow(run))
    bob = person(env, "bob", *able("fail_activity", "view_payload"))
    h.fail_activity(seq_of(h), "card is stolen", type="Stolen", by=bob)

    assert h.status == "failed"
    (end,) = events(h, "ActivityFailed")
    assert {**end, "by": end["by"]["name"]} == {
        "seq": seq_of(h), "type": "Stolen", "message": "card is stolen", "attempts": 1, "timeout": None, "by": "bob",
    }  # fmt: skip
    with pytest.raises(errors.WorkflowFailed) as caught:
        h.result()
    assert caught.value.reason == ["Stolen", "card is stolen", 1]


def test_the_type_of_a_failure_by_hand(env: Any) -> None:
    h = env.start(once(lambda: charge(5)))
    h.fail_activity(seq_of(h), "no")

    assert [end["type"] for end in events(h, "ActivityFailed")] == ["FailedByHand"]


def test_branches_of_parallel_go_on_with_what_was_given(env: Any) -> None:
    env.hold(work)
    env.hold(other)
    h = env.start(once(lambda: api.parallel([work(1), other(2)])))
    first, second = (e["seq"] for e in events(h, "ActivityScheduled"))
    h.complete_activity(second, "b")
    assert h.status == "running"
    h.complete_activity(first, "a")

    assert h.result() == ["a", "b"]


def test_a_race_is_won_by_what_was_given(env: Any) -> None:
    env.hold(work)
    h = env.start(once(lambda: api.race(work(1), api.sleep(60))))
    h.complete_activity(seq_of(h), "won")

    assert h.status == "completed"
    assert "TimerCancelled" in kinds(h)


def test_a_timer_fires_when_somebody_says_so(env: Any) -> None:
    h = env.start(once(lambda: api.sleep(timedelta(days=30))))
    h.skip_timer(seq_of(h, "TimerStarted"), by=person(env, "ann", "temporalex_django.retry_activity"))

    assert h.status == "completed"
    (fired,) = events(h, "TimerFired")
    assert fired["by"]["name"] == "ann"


def test_the_timeout_of_a_wait_passes(env: Any) -> None:
    h = env.start(once(lambda: api.wait_condition(lambda: False, timeout=600)))
    h.skip_timer(seq_of(h, "TimerStarted"))

    assert h.status != "waiting"
    assert [e["by"] for e in events(h, "TimerFired")] == [None]


def test_a_race_is_won_by_the_timer_that_was_skipped(env: Any) -> None:
    env.hold(work)
    h = env.start(once(lambda: api.race(work(1), api.sleep(60))))
    h.skip_timer(seq_of(h, "TimerStarted"))

    assert h.status == "completed"
    assert "ActivityCancelled" in kinds(h)


def test_of_several_timers_the_one_that_was_meant(env: Any) -> None:
    h = env.start(once(lambda: api.parallel([api.sleep(60), api.sleep(120)])))
    first, second = (e["seq"] for e in events(h, "TimerStarted"))
    with pytest.raises(errors.ActionNotPossible, match=f"the timers that run: {first}, {second}"):
        h.skip_timer(99)
    h.skip_timer(second)

    assert [e["seq"] for e in events(h, "TimerFired")] == [second]
    env.advance(60)
    assert h.status == "completed"
    assert [e["seq"] for e in events(h, "TimerFired")] == [second, first]


def test_a_timer_of_a_paused_run_fires_when_it_goes_on_and_once(env: Any) -> None:
    h = env.start(once(lambda: api.sleep(60)))
    seq = seq_of(h, "TimerStarted")
    h.pause()
    h.skip_timer(seq)
    with pytest.raises(errors.ActionNotPossible, match="somebody has already fired it"):
        h.skip_timer(seq)
    env.advance(3600)
    assert events(h, "TimerFired") == []

    h.unpause()
    assert h.status == "completed"
    assert len(events(h, "TimerFired")) == 1


def test_what_is_over_or_not_there_says_so(env: Any) -> None:
    env.hold(work)
    h = env.start(once(lambda: api.parallel([work(1), charge(5), api.sleep(60)])))
    scheduled, failing = (e["seq"] for e in events(h, "ActivityScheduled"))
    timer = seq_of(h, "TimerStarted")

    for call in (h.retry_activity, h.complete_activity, lambda n: h.fail_activity(n, "no"), h.skip_timer):
        with pytest.raises(errors.ActionNotPossible, match="with that number is"):
            call(4711)
    with pytest.raises(errors.ActionNotPossible, match="an attempt is running now"):
        h.retry_activity(scheduled)
    for call in (h.complete_activity, lambda n: h.fail_activity(n, "no")):
        with pytest.raises(errors.ActionNotPossible):
            call(timer)
    with pytest.raises(errors.ActionNotPossible):
        h.skip_timer(failing)
    h.complete_activity(failing, 1)
    h.skip_timer(timer)
    for call in (
        lambda: h.fail_activity(failing, "no"),
        lambda: h.complete_activity(failing, 1),
        lambda: h.skip_timer(timer),
    ):
        with pytest.raises(errors.ActionNotPossible, match="it has (ended|fired)"):
            call()
    h.terminate()
    for call in (
        lambda: h.retry_activity(scheduled),
        lambda: h.complete_activity(scheduled),
        lambda: h.skip_timer(timer),
    ):
        with pytest.raises(errors.WorkflowClosed):
            call()


def able(*codes: str) -> list[str]:
    return [f"temporalex_django.{code}" for code in codes]


def test_each_takes_its_permission(env: Any) -> None:
    """Answering for an activity takes seeing payloads, too: nobody does it blindly."""
    every = [
        *("pause_instance", "retry_activity", "delete_instance", "complete_activity", "fail_activity"),
        *("edit_activity_input", "view_payload", "view_instance", "reset_instance"),
    ]
    env.hold(work)

    async def run(self: Any, tries: bool) -> Any:
        return Ok(await (charge(5) if tries else api.parallel([work(1), api.sleep(60)])))

    cls = flow(run)
    h, other, tried = (env.start(cls, tries) for tries in (False, False, True))
    activity_, timer = seq_of(h), seq_of(h, "TimerStarted")
    see = "view_payload"
    calls: list[tuple[set[str], Any]] = [
        ({"pause_instance"}, lambda by: h.pause("why", by=by)),
        ({"pause_instance"}, lambda by: h.unpause("why", by=by)),
        ({"retry_activity"}, lambda by: tried.retry_activity(seq_of(tried), by=by)),
        (
            {"retry_activity", "edit_activity_input", see},
            lambda by: tried.retry_activity(seq_of(tried), input=[7], by=by),
        ),
        ({"reset_instance"}, lambda by: tried.reset(1, by=by)),
        ({"reset_instance", "edit_activity_input", see}, lambda by: tried.reset(1, edited={1: [7]}, by=by)),
        ({"complete_activity", see}, lambda by: h.complete_activity(activity_, reason="why", by=by)),
        ({"fail_activity", see}, lambda by: other.fail_activity(activity_, "no", by=by)),
        ({"retry_activity"}, lambda by: h.skip_timer(timer, reason="why", by=by)),
        ({"delete_instance"}, lambda by: h.delete("why", by=by)),
    ]
    for number, (wanted, call) in enumerate(calls):
        for lacking in sorted(wanted):
            somebody = person(env, f"{number}-not-{lacking}", *able(*sorted({*every} - {lacking})))
            with pytest.raises(errors.ActionNotPermitted, match=f"temporalex_django.{lacking}"):
                call(somebody)
        call(person(env, f"{number}-able", *able(*sorted(wanted))))


@activity(by_hand=False)
def pay(amount: int) -> int:
    return SEEN_BY_PAY.append(amount) or 1 // 0


SEEN_BY_PAY: list[int] = []


def test_an_activity_may_refuse_to_be_done_by_hand(env: Any) -> None:
    """It is tried again as it is, and nobody says for it how it ended, or what it gets."""
    SEEN_BY_PAY.clear()
    h = env.start(once(lambda: pay(100)))
    seq = seq_of(h)
    assert events(h, "ActivityScheduled")[0]["options"]["by_hand"] is False
    for call in (
        lambda: h.complete_activity(seq, 100),
        lambda: h.fail_activity(seq, "no"),
        lambda: h.retry_activity(seq, input=[999_999]),
        lambda: h.reset(1, edited={seq: [999_999]}),
        lambda: h.fork(1, edited={seq: [999_999]}),
    ):
        with pytest.raises(errors.ActionNotPossible, match="by_hand=False"):
            call()
    h.retry_activity(seq)
    assert SEEN_BY_PAY == [100, 100]
    with pytest.raises(
        errors.WorkflowDefinitionError, match="you cannot change by_hand for one call: set it in the definition"
    ):
        pay.options(by_hand=True)  # type: ignore[call-arg]
    with pytest.raises(errors.WorkflowDefinitionError, match="by_hand must be True or False"):
        activity(by_hand=0)  # type: ignore[call-overload]


def test_a_closed_run_is_deleted_with_all_that_there_is_of_it(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        return Ok(await api.sleep(args) if args else await work(1))

    cls = flow(run)
    h, kept, running = (env.start(cls, args, id=name) for name, args in (("gone", 0), ("kept", 0), ("open", 60)))
    with pytest.raises(errors.ActionNotPossible, match="the run is open: cancel or terminate it first"):
        running.delete()
    h.delete("asked for by the customer")

    with pytest.raises(errors.WorkflowNotFound):
        env.handle("gone")
    assert kept.result() == 1
    assert env.start(cls, 0, id="gone").result() == 1


class DeletedKid(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


@pytest.mark.parametrize("paused", [False, True])
def test_a_child_that_was_deleted_is_nothing_to_its_parent_any_more(env: Any, paused: bool) -> None:
    async def run(self: Any, args: Any) -> Any:
        given = await api.child(DeletedKid, id="kid")
        return Ok([given, await api.wait_for_signal("end")])

    h = env.start(flow(run))
    if paused:
        h.pause()
    env.handle("kid").signal("go", 5)
    env.handle("kid").delete()
    if paused:
        h.unpause()  # it hears of it all the same
    h.signal("end", 6)

    assert h.result() == [5, 6]


#: Methods of handles, what each is given beside ``reason`` and ``by``, and how the run is to be.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "pause": ("open", {}),
    "unpause": ("paused", {}),
    "retry_activity": ("open", {"seq": 1, "input": [7]}),
    "complete_activity": ("open", {"seq": 1, "result": 7}),
    "fail_activity": ("open", {"seq": 1, "message": "no", "type": "Stolen"}),
    "skip_timer": ("open", {"seq": 2}),
    "delete": ("closed", {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_handle_of_an_environment_uses_all_that_it_is_given(env: Any, name: str) -> None:
    state, given = CALLS[name]
    h = env.start(once(lambda: api.parallel([charge(5), api.sleep(60)])))
    if state != "open":
        (h.pause if state == "paused" else h.terminate)()
    call = getattr(h, name)
    with pytest.raises(errors.PayloadError, match="the reason"):
        call(**given, reason=5)
    with pytest.raises(errors.ActionNotPermitted):
        call(**given, by=person(env, "nobody"))
    if "seq" in given:
        with pytest.raises(errors.ActionNotPossible):
            call(**{**given, "seq": 4711})
    FAILING[:] = [False]
    call(**given)

    if name == "delete":
        return
    last = h.history()[-1].attributes if name not in ("pause", "unpause") else {}
    seen = {
        "pause": h.describe().paused is not None,
        "unpause": h.describe().paused is None,
        "retry_activity": (last.get("result"), SEEN[-1][0]) == (7, (7, "visa")),
        "complete_activity": last.get("result") == 7,
        "fail_activity": (last.get("type"), last.get("message")) == ("Stolen", "no"),
        "skip_timer": last.get("seq") == 2,
    }
    assert name in seen, f"{name}: say in seen what it changes, as this test does for {', '.join(seen)}"
    assert seen[name]


class HandPaid(Step):
    events = ("paid", "refused")
    retry = RetryPolicy(initial_interval=3600.0)

    def execute(self, instance: Any, config: Any, context: Any) -> Any:
        SEEN.append((config, activity_context().attempt, activity_context().idempotency_key))
        return Err("no money") if FAILING[0] else Event("paid", {"by": config["how"]})


class HandGraph(GraphWorkflow):
    unique = Unique(key="handgraph")
    initial = (HandPaid, {"how": "card"})
    transitions = {(HandPaid, "paid"): Done, (HandPaid, "refused"): Done}


def test_a_step_is_completed_by_one_of_its_events(env: Any) -> None:
    h = env.start(HandGraph, {}, value="1")
    seq = seq_of(h)
    for wrong in ("paid", {"event": "stolen"}, {"data": 1}, {"event": "paid", "more": 1}):
        with pytest.raises(errors.PayloadError):
            h.complete_activity(seq, wrong)
    h.complete_activity(seq, {"event": "paid", "data": {"by": "cash"}})

    assert h.status == "completed"
    assert [e["result"] for e in events(h, "ActivityCompleted")] == [{"event": "paid", "data": {"by": "cash"}}]


def test_a_step_is_tried_with_another_config(env: Any) -> None:
    h = env.start(HandGraph, {}, value="1")
    FAILING[:] = [False]
    h.retry_activity(seq_of(h), input={"how": "cash"})

    assert h.status == "completed"
    assert [dict(config) for config, *_ in SEEN] == [{"how": "card"}, {"how": "cash"}]
    assert len({key for *_, key in SEEN}) == 2
