"""``run``: its input, its result, and the sequential primitives."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from temporalex_django import Async, ContinueAsNew, Err, Ok, Stop, Workflow, activity, api, errors
from temporalex_django.core.executor import Executor
from temporalex_django.core.history import activation as split_activations
from temporalex_django.core.history.activation import Activation, RunInfo
from temporalex_django.engine import activation as engine_activation
from tests.support.hosts import in_memory
from tests.support.runs import broken, events, flow, kinds, once, other, produced, produced_kinds, work


def test_run_gets_the_input_as_json_gives_it_back(env):
    """TX-002 TX-191: the first execution sees what a replay will see."""

    async def run(self, args):
        return Ok([type(args["pair"]).__name__, list(args["numbers"]), args["money"], args["day"]])

    h = env.start(
        flow(run),
        {"pair": (1, 2), "numbers": {1: "a"}, "money": Decimal("1.50"), "day": datetime(2026, 1, 2, tzinfo=UTC)},
    )
    assert h.result() == ["list", ["1"], "1.50", "2026-01-02T00:00:00Z"]


@dataclass
class Order:
    sku: str
    quantity: int = 1


class Struct(msgspec.Struct):
    order: Order


@pytest.mark.parametrize(
    ("annotation", "args", "expected"), [(Order, {"sku": "a"}, 1), (Struct, {"order": {"sku": "a", "quantity": 3}}, 3)]
)
def test_annotated_input_is_decoded(env, annotation, args, expected):
    """TX-002: dataclass and Struct."""

    async def run(self, args):
        assert type(args) is annotation
        return Ok(args.quantity if annotation is Order else args.order.quantity)

    run.__annotations__["args"] = annotation
    assert env.start(flow(run), args).result() == expected


def test_input_that_does_not_fit_fails_the_run_with_the_path(env):
    """ST-100 and "Bad input": the path of the field is in the message."""

    async def run(self, args: Struct):
        return Ok()

    h = env.start(flow(run), {"order": {"sku": "a", "quantity": "many"}})
    with pytest.raises(errors.WorkflowFailed, match=r"\$\.order\.quantity"):
        h.result()


def test_ok_completes_with_one_command(env):
    """TX-003."""
    h = env.start(once(lambda: work({"a": [1]})))
    assert h.result() == {"a": [1]}
    assert h.status == "completed"
    assert produced_kinds(env).count("CompleteWorkflow") == 1
    assert produced(env)[-1].attributes == {"result": {"a": [1]}}
    assert kinds(h)[-1] == "WorkflowCompleted"


def test_err_fails_with_one_command_and_its_reason(env):
    """TX-004."""

    async def run(self, args):
        return Err({"code": 7, "tried": (1, 2)})

    h = env.start(flow(run))
    assert h.status == "failed"
    assert produced_kinds(env) == ["FailWorkflow"]
    with pytest.raises(errors.WorkflowFailed, match="7") as caught:
        h.result()
    assert caught.value.reason == {"code": 7, "tried": [1, 2]}


def test_err_with_an_exception_describes_it(env):
    """TX-004: a reason is data."""

    async def run(self, args):
        return Err(ValueError("no stock"))

    with pytest.raises(errors.WorkflowFailed, match="ValueError: no stock"):
        env.start(flow(run)).result()


def test_continue_as_new_starts_a_fresh_run_of_the_same_id(env):
    """TX-005 TX-200."""

    async def run(self, args):
        await work(args)
        return Ok(args) if args == 3 else ContinueAsNew(args + 1)

    h = env.start(flow(run), 1, id="again")
    assert h.result() == 3
    assert len(h.run_ids) == len(set(h.run_ids)) == 3
    assert h.id == "again"
    assert h.history()[0].attributes["args"] == 3
    assert produced_kinds(env).count("ContinueAsNew") == 2


@pytest.mark.parametrize(
    "value", [None, 5, "done", (Ok(1), 2), {"result": 1}, Ok, object()], ids=lambda value: type(value).__name__
)
def test_any_other_return_value_fails_the_run_and_is_shown(env, value):
    """TX-006."""

    async def run(self, args):
        return value

    h = env.start(flow(run))
    with pytest.raises(errors.WorkflowFailed) as caught:
        h.result()
    assert repr(value) in str(caught.value)
    assert h.blocked is None


def test_run_that_returns_async_or_stop_fails(env):
    """TX-007 TX-165: run is no place for Async, and says so."""

    async def run(self, args):
        return Async(lambda: None, 1) if args else Stop(1)

    with pytest.raises(errors.WorkflowFailed, match="NestingError.*Async"):
        env.start(flow(run), True).result()
    with pytest.raises(errors.WorkflowFailed, match="Stop"):
        env.start(flow(run), False).result()


class Refusal(Exception):
    pass


def test_exception_that_escapes_fails_the_run_with_type_message_and_traceback(env):
    """TX-008."""

    async def run(self, args):
        raise Refusal("not today")

    healthy = env.start(once(lambda: work(1)))
    h = env.start(type("Refuses", (Workflow,), {"run": run}))
    with pytest.raises(errors.WorkflowFailed, match="Refusal: not today") as caught:
        h.result()
    assert caught.value.type == "Refusal"
    assert "raise Refusal" in caught.value.traceback
    assert healthy.result() == 1


@pytest.mark.parametrize(
    "exception", [SystemExit(3), BaseException("base"), BaseExceptionGroup("g", [ValueError(1)])], ids=repr
)
def test_base_exceptions_of_user_code_fail_their_run_only(env, exception):
    """TX-008: whatever user code raises, the environment lives."""

    async def run(self, args):
        raise exception

    h = env.start(flow(run))
    assert h.status == "failed"
    with pytest.raises(errors.WorkflowFailed, match=type(exception).__name__):
        h.result()


def test_message_that_no_database_could_keep_is_made_storable(env):
    """TX-008: lone surrogates, NUL and megabytes in an exception."""

    async def run(self, args):
        raise ValueError("\ud800 \x00" + "x" * 200_000)

    h = env.start(flow(run))
    message = events(h, "WorkflowFailed")[0]["message"]
    assert message.encode() and "\x00" not in message
    assert len(message) < 100_000


def test_unencodable_result_fails_the_run_with_the_path(env):
    """An unencodable result fails the run."""

    async def run(self, args):
        return Ok({"a": [1, object()]})

    h = env.start(flow(run))
    with pytest.raises(errors.WorkflowFailed, match=r"\$\.a\[1\]"):
        h.result()


def test_unencodable_argument_raises_at_the_call(env):
    """PayloadError at the call, with the path; nothing is scheduled."""

    async def run(self, args):
        try:
            work({"deep": {"x": object()}})
        except errors.PayloadError as exc:
            return Ok(str(exc))

    h = env.start(flow(run))
    assert "$.deep.x" in h.result()
    assert "ScheduleActivity" not in produced_kinds(env)


def test_wrong_arguments_of_an_activity_raise_at_the_call(env):
    """TX-232."""

    async def run(self, args):
        await work(1, 2, 3)

    with pytest.raises(errors.WorkflowFailed, match="TypeError.*work"):
        env.start(flow(run)).result()


def test_commands_of_a_sequence_appear_in_program_order(env):
    """TX-001 TX-009 TX-192 TX-193."""

    async def run(self, args):
        await work(1)
        await api.sleep(5)
        await other(2)
        return Ok()

    h = env.start(flow(run))
    env.advance(5)
    assert [(c.kind, c.seq) for c in produced(env)] == [
        ("ScheduleActivity", 1), ("StartTimer", 2), ("ScheduleActivity", 3), ("CompleteWorkflow", None),
    ]  # fmt: skip
    assert kinds(h) == [
        "ActivityScheduled", "ActivityCompleted", "TimerStarted", "TimerFired", "ActivityScheduled", "ActivityCompleted",
        "WorkflowCompleted",
    ]  # fmt: skip
    assert produced(env)[0].attributes["activity"] == "tests.support.runs.work"


def test_activity_blocks_its_unit_until_it_completes(env):
    """TX-013 ST-063."""
    env.hold(work)
    h = env.start(once(lambda: work("x")))
    assert h.status == "running"
    with pytest.raises(errors.ResultTimeout):
        h.result()
    env.complete(work, "y")
    assert h.result() == "y"


def test_result_of_an_activity_is_not_wrapped(env):
    """TX-014: what it returns, whatever its shape."""
    env.mock(work, lambda value: ["ok", {"value": value}])
    assert env.start(once(lambda: work(1))).result() == ["ok", {"value": 1}]


def test_result_is_decoded_to_the_annotation(env):
    """Annotations of activities drive decoding, of arguments and results."""

    @activity
    def price(order: Order) -> Order:
        assert type(order) is Order
        return Order(order.sku, order.quantity + 1)

    async def run(self, args):
        got = await price(Order("a", 1))
        assert type(got) is Order
        return Ok(got.quantity)

    assert env.start(flow(run)).result() == 2


def test_failing_activity_raises_activity_failure(env):
    """TX-015."""

    @activity(retry=None)
    def charge(value):
        raise AssertionError("mocked")

    async def run(self, args):
        try:
            await charge.options(retry=None)(1)
        except errors.ActivityFailure as exc:
            return Ok([exc.type, exc.cause, exc.attempts, str(exc)])

    env.hold(charge)
    h = env.start(flow(run))
    env.fail(charge, KeyError("card"))
    kind, cause, attempts, text = h.result()
    assert (kind, cause, attempts) == ("KeyError", "'card'", 1)
    assert "KeyError" in text and "card" in text


def test_sleep_starts_a_timer_and_resumes_when_it_fires(env):
    """TX-016 TX-017 ST-062: numbers are seconds; the due time is fixed when it starts."""

    async def run(self, args):
        begun = api.now()
        await api.sleep(timedelta(hours=1))
        await api.sleep(90)
        return Ok((api.now() - begun).total_seconds())

    h = env.start(flow(run))
    env.advance(3599)
    assert kinds(h) == ["TimerStarted"]
    env.advance(1)
    env.advance(89)
    assert h.status == "waiting"
    env.advance(1)
    assert h.result() == 3690
    assert [c.attributes["duration"] for c in produced(env) if c.kind == "StartTimer"] == [3600, 90]


def test_timers_fire_at_their_own_time_however_far_the_clock_jumps(env):
    """TX-017: what a firing starts is timed from that instant."""

    async def run(self, args):
        for _ in range(3):
            await api.sleep(10)
        return Ok(api.now().isoformat())

    h = env.start(flow(run))
    env.advance(1000)
    assert h.result() == "2026-01-01T00:00:30+00:00"


def test_zero_sleep_takes_no_number_and_negative_is_an_error(env):
    """TX-223 ST-061."""

    async def run(self, args):
        await api.sleep(0)
        await api.sleep(timedelta())
        try:
            api.sleep(-1)
        except ValueError as exc:
            return Ok(str(exc))

    h = env.start(flow(run))
    assert "negative" in h.result()
    assert [c.kind for c in produced(env)] == ["CompleteWorkflow"]


@in_memory
@pytest.mark.parametrize("duration", ["5", None, float("nan"), float("inf"), True, 10**12])
def test_what_is_no_duration_is_refused(env, duration):
    """TX-223."""

    async def run(self, args):
        with pytest.raises((TypeError, ValueError)):
            api.sleep(duration)
        return Ok("refused")

    assert env.start(flow(run)).result() == "refused"


def test_wait_for_signal_parks_until_one_comes(env):
    """TX-018 TX-023 TX-194: no command, no number."""

    async def run(self, args):
        return Ok([await api.wait_for_signal("go"), await work("after")])

    h = env.start(flow(run))
    assert h.status == "waiting"
    h.signal("go", {"n": 1})
    assert h.result() == [{"n": 1}, "after"]
    assert [(c.kind, c.seq) for c in produced(env)] == [("ScheduleActivity", 1), ("CompleteWorkflow", None)]


def test_each_wait_takes_one_signal_oldest_first_and_leaves_other_names(env):
    """TX-019 TX-020 TX-021 TX-022 TX-045 ST-071."""

    async def run(self, args):
        await work()
        taken = [await api.wait_for_signal("b"), await api.wait_for_signal("a"), await api.wait_for_signal("b")]
        return Ok([*taken, api.info().history_length])

    env.hold(work)
    h = env.start(flow(run))
    for name, payload in [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5)]:
        h.signal(name, payload)
    activations = len(env.commands)
    env.complete(work)
    assert h.result()[:3] == [2, 1, 4]
    assert len(env.commands) == activations + 1, "buffered signals do not end the activation"
    assert events(h, "WorkflowCompleted")[0]["never_consumed"] == ["a", "c"]


def test_publish_replaces_and_is_a_snapshot(env):
    """TX-024 TX-025 TX-026 TX-027 TX-194."""

    async def run(self, args):
        state = {"a": [1]}
        api.publish_state(state)
        state["a"].append(2)
        await api.wait_for_signal("next")
        api.publish_state({"b": 2})
        await api.wait_for_signal("next")
        return Ok()

    h = env.start(flow(run, handle_query=staticmethod(lambda name, args, state: state)))
    assert h.query("all") == {"a": [1]}
    h.signal("next")
    assert h.query("all") == {"b": 2}
    assert produced(env) == []


def test_unencodable_publish_raises_and_keeps_the_old_state(env):
    """TX-026 "Bad input"."""

    async def run(self, args):
        api.publish_state(1)
        with pytest.raises(errors.PayloadError, match=r"\$\.x"):
            api.publish_state({"x": object()})
        return Ok()

    h = env.start(flow(run, handle_query=staticmethod(lambda name, args, state: state)))
    assert h.result() is None
    assert h.query("all") == 1


def test_now_is_the_stamp_of_the_activation(env):
    """TX-028 TX-182 TX-194 ST-026: constant within one, aware, UTC; no command."""

    async def run(self, args):
        first, again = api.now(), api.now()
        await api.wait_for_signal("go")
        return Ok([first.isoformat(), first is again or first == again, api.now().isoformat(), str(api.now().tzinfo)])

    h = env.start(flow(run))
    env.advance(7)
    h.signal("go")
    assert h.result() == ["2026-01-01T00:00:00+00:00", True, "2026-01-01T00:00:07+00:00", "UTC"]
    assert [e.at for e in h.history() if e.kind == "ActivationStarted"] == [
        datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC),
    ]  # fmt: skip
    assert produced_kinds(env) == ["CompleteWorkflow"]


def test_random_and_uuid4_come_from_the_recorded_seed(env):
    """TX-029 TX-194: no command, no number; the global generator has no part in it."""

    async def run(self, args):
        drawn = [api.random(), str(api.uuid4())]
        await api.sleep(1)
        return Ok([*drawn, api.random(), str(api.uuid4())])

    random.seed(1)
    h = env.start(flow(run))
    random.seed(2)
    env.advance(1)
    first, name, second, again = h.result()
    generator = random.Random(events(h, "WorkflowStarted")[0]["seed"])
    assert first == generator.random()
    assert 0 <= second < 1 and first != second and name != again
    assert name[14] == "4"
    assert [(c.kind, c.seq) for c in produced(env)] == [("StartTimer", 1), ("CompleteWorkflow", None)]


def test_runs_draw_different_numbers(env):
    """TX-029 TX-030: each run, also the next one of a chain, has its own seed."""

    async def run(self, args):
        api.publish_state([*(args or []), api.random()])
        return ContinueAsNew([*(args or []), api.random()]) if len(args or []) < 2 else Ok([*args, api.random()])

    values = env.start(flow(run)).result() + env.start(flow(run)).result()
    assert len(set(values)) == 6


def test_seed_in_the_history_replaces_the_generator(env):
    """TX-030 ST-038: a later activation may carry a new seed."""
    from dataclasses import replace

    drawn: list[float] = []

    async def run(self, args):
        drawn.append(api.random())
        await api.sleep(1)
        drawn.append(api.random())
        return Ok()

    cls = flow(run)
    h = env.start(cls)
    env.advance(1)
    stamped = [
        replace(e, attributes={**e.attributes, "seed": 99})
        if e.kind == "ActivationStarted" and e.activation == 2
        else e
        for e in h.history()
    ]
    drawn.clear()
    env.replay_history(cls, stamped)
    assert drawn[1] == random.Random(99).random()


def test_info_names_the_run(env):
    """TX-218 ST-097."""

    async def run(self, args):
        before = api.info()
        await work()
        after = api.info()
        return Ok([before.workflow, before.id, before.run_id, before.version, before.attempt, before.parent,
                   before.history_length, after.history_length, before.continue_as_new_suggested])  # fmt: skip

    h = env.start(flow(run, version=3), id="me")
    assert h.result() == ["Flow", "me", h.run_id, 3, 1, None, 0, 3, False]


def test_a_long_history_suggests_to_continue_as_new(monkeypatch, env):
    """TX-218: in a replay from the same event on."""
    for module in (engine_activation, split_activations):
        monkeypatch.setattr(module, "SUGGEST_CONTINUE_AS_NEW", 6)

    async def run(self, args):
        suggested = [(info.history_length, info.continue_as_new_suggested) for info in [api.info()]]
        for _ in range(3):
            await work()
            info = api.info()
            suggested.append((info.history_length, info.continue_as_new_suggested))
        return Ok(suggested)

    h = env.start(flow(run))
    assert h.result() == [[0, False], [3, False], [6, True], [9, True]]
    env.replay(h)


def test_the_host_says_when_a_run_should_continue_as_new():
    cls = once(asks_the_host, name="run.Asks")
    executor = Executor(cls.definition, RunInfo(workflow=cls.name, id="asks", run_id="r", version=1))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    activation = Activation(now=at, start={"args": None, "seed": 1}, history_length=9, suggests_continue_as_new=True)
    assert executor.activate(activation).commands[-1].attributes == {"result": [9, True]}


async def asks_the_host():
    return [api.info().history_length, api.info().continue_as_new_suggested]


def test_variables_phase_state_and_published_state_are_independent(env):
    """TX-011: none of the six copies happens."""

    async def run(self, args):
        local = {"n": 0}
        api.publish_state({"n": 1})

        async def look(payload, state):
            assert (local["n"], state["n"]) == (0, 2)
            state["n"] = 3
            return Stop(state)

        phase_state = {"n": 2}
        final = await api.phase(phase_state, signal={"look": look})
        return Ok([local["n"], phase_state["n"], final["n"]])

    h = env.start(flow(run, handle_query=staticmethod(lambda name, args, state: state)))
    h.signal("look")
    assert h.result() == [0, 2, 3]
    assert h.query("state") == {"n": 1}


def test_call_that_nobody_awaits_fails_its_unit(env):
    """``NotAwaited`` names the call and says await."""

    async def run(self, args):
        work(1)
        api.sleep(1)
        return Ok()

    with pytest.raises(errors.WorkflowFailed, match=r"NotAwaited.*tests\.support\.runs\.work, sleep.*await"):
        env.start(flow(run)).result()


def test_call_that_is_awaited_twice_is_an_error(env):
    """A call is one act."""

    async def run(self, args):
        call = work(1)
        await call
        await call
        return Ok()

    with pytest.raises(errors.WorkflowFailed, match="awaited twice"):
        env.start(flow(run)).result()
    assert produced_kinds(env).count("ScheduleActivity") == 1


def test_foreign_awaitable_is_an_error_that_the_unit_can_see(env):
    """ST-004."""
    import asyncio

    async def run(self, args):
        try:
            await asyncio.sleep(0)
        except errors.DeterminismViolation as exc:
            return Ok(str(exc))

    assert "await" in env.start(flow(run)).result()


def test_failing_activity_by_policy_without_limit_waits_for_the_clock(env):
    """TX-211: the default policy tries for ever, with backoff."""
    h = env.start(once(lambda: broken(1)))
    env.advance(timedelta(hours=1))
    assert h.status == "running"
    assert kinds(h) == ["ActivityScheduled"]


def test_mutating_what_the_environment_gave_changes_nothing(env):
    """Results and histories are copies."""
    h = env.start(once(lambda: work({"a": [1]})))
    h.result()["a"].append(2)
    h.history()[0].attributes["args"] = "changed"
    assert h.result() == {"a": [1]}
    assert h.history()[0].attributes["args"] is None


def test_run_does_not_see_what_the_starter_does_to_the_arguments_later(env):
    """Arguments, payloads and results are copies."""
    given: dict[str, Any] = {"items": [1]}
    kept: list[Any] = []

    def remember(value: Any) -> Any:
        kept.append({"mine": value})
        return kept[-1]

    async def run(self, args):
        args["items"].append("run")
        payload = await api.wait_for_signal("more")
        payload.append("run")
        result = await work(payload)
        payload.append("later")
        result["mine"].append("changed")
        return Ok([args, payload, result])

    env.mock(work, remember)
    h = env.start(flow(run), given)
    sent = ["sent"]
    h.signal("more", sent)
    assert h.result() == [{"items": [1, "run"]}, ["sent", "run", "later"], {"mine": ["sent", "run", "changed"]}]
    assert (given, sent, kept) == ({"items": [1]}, ["sent"], [{"mine": ["sent", "run"]}])
    assert events(h, "SignalReceived")[0]["payload"] == ["sent"]


@pytest.mark.parametrize("how", ["terminate", "timeout"])
def test_a_run_that_is_closed_before_its_first_turn_has_a_beginning(env, how):
    """WorkflowStarted is seq 1, whatever comes after it."""

    async def run(self, args):
        return Ok(await api.wait_for_signal("x"))

    cls = flow(run, run_timeout=5)
    with env.batch():
        h = env.start(cls, {"a": 1}, id="early")
        if how == "terminate":
            h.terminate("why")
        else:
            env.advance(10)
    assert [(e.number, e.activation, e.kind) for e in h.history()] == [
        (1, 1, "WorkflowStarted"),
        (2, 1, "WorkflowTerminated" if how == "terminate" else "WorkflowTimedOut"),
    ]
    assert h.history()[0].attributes["args"] == {"a": 1}
    env.replay(h)


def test_a_sleep_can_end_at_a_given_time(env):
    until = (env.clock + timedelta(hours=2)).astimezone(ZoneInfo("Europe/Berlin"))

    async def run(self, args):
        await api.sleep_until(until, then="send the reminder")
        return Ok(api.now().isoformat())

    h = env.start(flow(run))
    assert h.describe().waiting_for == [f"timer {(env.clock + timedelta(hours=2)).isoformat(timespec='seconds')}"]
    assert h.history()[-1].attributes["then"] == "send the reminder"
    env.advance(timedelta(hours=2) - timedelta(seconds=1))
    assert h.status == "waiting"
    env.advance(1)
    assert h.result() == until.astimezone(UTC).isoformat()


@pytest.mark.parametrize("past", [timedelta(0), timedelta(days=1)])
def test_a_time_that_has_passed_needs_no_sleep(env, past):
    async def run(self, args):
        later = api.sleep_until(api.now() + timedelta(seconds=30))
        await api.sleep_until(api.now() - past)
        await api.sleep(60)
        return Ok(await later)

    h = env.start(flow(run))
    env.advance(60)
    assert h.result() is None
    assert len(events(h, "TimerStarted")) == 1


def test_a_time_without_a_zone_is_refused(env):
    async def run(self, args):
        try:
            api.sleep_until(datetime(2030, 1, 1, 9))  # noqa: DTZ001 - the error of it
        except ValueError as exc:
            return Ok(str(exc))

    text = env.start(flow(run)).result()
    assert text == (
        "sleep_until has no time zone: write datetime(2030, 1, 1, 9, 0, tzinfo=ZoneInfo('Europe/Berlin')), with the "
        "zone that you mean"
    )
