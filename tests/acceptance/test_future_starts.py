"""Runs that begin later: they exist at once, and none of their code runs before their time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from temporalex_django import ContinueAsNew, NoReply, Ok, Reply, Stop, Workflow, api, errors, query
from tests.support.runs import events, flow, kinds

DAY = timedelta(days=1)


class Collecting(Workflow):
    """Collects the numbers of its signals and updates."""

    @query("seen")
    @staticmethod
    def seen(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Any:
        api.publish_state("begun")

        def add(n: int, state: Any) -> Any:
            return (Stop if n == 0 else NoReply)([*state, n])

        def put(n: int, state: Any) -> Any:
            return Reply(n, [*state, n])

        numbers = await api.phase([], signal={"add": add}, update={"put": put})
        return Ok({"numbers": numbers, "began": api.now().isoformat()})


class Bounded(Workflow):
    execution_timeout = timedelta(hours=2)
    run_timeout = timedelta(hours=1)

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class Chain(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok("second") if args == "next" else ContinueAsNew("next")


class Parents(Workflow):
    async def run(self, args: Any) -> Any:
        began = api.now()
        moment = {"start_at": began + DAY} if args == "at" else {"start_delay": DAY}
        result = await api.child(Collecting, id="kid", **moment, start_before=began + 2 * DAY)
        return Ok([began.isoformat(), result])


@pytest.mark.parametrize(
    "moment",
    [lambda env: {"start_at": env.clock + DAY}, lambda _: {"start_delay": DAY}, lambda _: {"start_delay": 86400}],
)
def test_a_run_begins_at_its_time_with_the_signals_that_waited(
    env: Any, moment: Callable[[Any], dict[str, Any]]
) -> None:
    begin = env.clock + DAY
    h = env.start(Collecting, id="later", **moment(env))
    h.signal("add", 1)
    h.signal("add", 2)
    env.advance(DAY - timedelta(seconds=1))

    assert (h.status, kinds(h)) == ("pending", [])
    description = h.describe()
    assert description.starts_at == begin
    assert description.started_at is None
    assert description.waiting_for == [f"its start at {begin.isoformat(timespec='seconds')}"]
    with pytest.raises(errors.AlreadyRunning):
        env.start(Collecting, id="later")
    env.advance(1)
    assert h.describe().started_at == begin
    assert h.query("seen") == "begun"
    h.signal("add", 0)
    assert h.result() == {"numbers": [1, 2, 0], "began": begin.isoformat()}


def test_updates_and_queries_say_when_it_starts(env: Any) -> None:
    h = env.start(Collecting, start_delay=DAY)
    time = (env.clock + DAY).isoformat(timespec="seconds")

    for _ in range(2):
        with pytest.raises(errors.NotAccepting, match="the run has not begun") as refusal:
            h.update("put", 1, id="first")
        assert time in str(refusal.value)
    with pytest.raises(errors.QueryFailed, match="has published nothing: it has not begun") as failure:
        h.query("seen")
    assert time in str(failure.value)
    assert kinds(h) == []
    env.advance(DAY)
    assert h.update("put", 1, id="first") == 1


@pytest.mark.parametrize(
    "start",
    [lambda env: {"start_at": env.clock - DAY}, lambda env: {"start_at": env.clock}, lambda _: {"start_delay": 0}],
)
def test_a_time_that_has_passed_means_at_once(env: Any, start: Callable[[Any], dict[str, Any]]) -> None:
    h = env.start(Bounded, **start(env))
    assert h.status == "waiting"
    assert h.describe().starts_at == env.clock
    env.advance(3599)
    assert h.status == "waiting"


def test_timeouts_count_from_the_time_of_the_start(env: Any) -> None:
    h = env.start(Bounded, start_delay=DAY)
    env.advance(DAY + timedelta(minutes=59))
    assert h.status == "waiting"
    env.advance(60)
    assert h.status == "timed_out"
    assert events(h, "WorkflowTimedOut") == [{"timeout": "run_timeout"}]


def test_a_run_that_has_not_begun_in_time_is_timed_out(env: Any) -> None:
    h = env.start(Bounded, start_delay=DAY, start_before=env.clock + DAY + timedelta(hours=1))
    h.pause()
    env.advance(DAY + timedelta(hours=2))
    assert h.status == "pending"
    h.unpause()

    assert h.status == "timed_out"
    assert kinds(h) == ["WorkflowTimedOut"]
    assert events(h, "WorkflowTimedOut") == [{"timeout": "start_before"}]
    with pytest.raises(errors.WorkflowTimedOut, match="start_before"):
        h.result()


def test_a_run_that_has_begun_in_time_keeps_its_other_limits(env: Any) -> None:
    h = env.start(Bounded, start_before=env.clock + timedelta(minutes=5))
    env.advance(timedelta(minutes=50))
    assert h.status == "waiting"
    env.advance(timedelta(minutes=10))
    assert events(h, "WorkflowTimedOut") == [{"timeout": "run_timeout"}]


def test_a_cancel_ends_it_at_once_without_its_code(env: Any) -> None:
    h = env.start(Collecting, id="c", start_delay=DAY)
    h.signal("add", 1)
    h.cancel("not needed")

    assert h.status == "cancelled"
    assert kinds(h) == ["WorkflowCancelled"]
    with pytest.raises(errors.WorkflowCancelled):
        h.result()
    env.advance(2 * DAY)
    assert kinds(h) == ["WorkflowCancelled"]
    assert env.start(Collecting, id="c").status == "waiting"


def test_a_cancel_from_another_run_ends_it_too(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        await api.cancel_external("target")
        return Ok(None)

    h = env.start(Collecting, id="target", start_delay=DAY)
    env.start(flow(run))
    assert h.status == "cancelled"
    assert "ActivationStarted" not in kinds(h)


def test_a_pause_does_not_make_it_begin_earlier(env: Any) -> None:
    h = env.start(Collecting, start_delay=DAY)
    h.pause()
    h.signal("add", 1)
    h.unpause()
    assert h.status == "pending"
    h.pause()
    env.advance(2 * DAY)
    assert h.status == "pending"
    h.unpause()
    assert h.status == "waiting"
    h.signal("add", 0)
    assert h.result()["numbers"] == [1, 0]


def test_a_terminated_one_never_begins(env: Any) -> None:
    h = env.start(Collecting, start_delay=DAY)
    h.terminate("mistake")
    env.advance(2 * DAY)
    assert kinds(h) == ["WorkflowTerminated"]


def test_the_next_run_of_the_chain_begins_at_once(env: Any) -> None:
    h = env.start(Chain, start_delay=DAY, start_before=env.clock + 2 * DAY)
    env.advance(DAY)
    assert h.result() == "second"
    description = h.describe()
    assert (description.starts_at, description.start_before) == (None, None)


def test_a_reset_begins_at_once(env: Any) -> None:
    h = env.start(Collecting, start_delay=DAY)
    env.advance(DAY)
    h.signal("add", 1)
    env.advance(DAY)
    h.reset(to=1)
    assert h.status == "waiting"
    assert h.describe().starts_at is None
    h.signal("add", 0)
    assert h.result()["numbers"] == [1, 0]


@pytest.mark.parametrize("moment", ["at", "delay"])
def test_a_child_begins_at_its_time(env: Any, moment: str) -> None:
    parent = env.start(Parents, moment)
    begin = env.clock + DAY
    kid = env.handle("kid")
    kid.signal("add", 0)
    assert (kid.status, kid.describe().starts_at) == ("pending", begin)
    [started] = events(parent, "ChildStarted")
    assert (started["start_at"], started["start_before"]) == (begin.isoformat(), (begin + DAY).isoformat())
    env.advance(DAY)
    assert parent.result()[1] == {"numbers": [0], "began": begin.isoformat()}


def test_the_end_of_the_parent_ends_a_child_that_has_not_begun(env: Any) -> None:
    parent = env.start(Parents)
    kid = env.handle("kid")
    parent.terminate()
    assert kid.status == "terminated"
    assert "ActivationStarted" not in kinds(kid)


@pytest.mark.parametrize("moment", ["at", "delay"])
def test_signal_with_start_delivers_the_signal_when_it_begins(env: Any, moment: str) -> None:
    times = {"start_at": env.clock + DAY} if moment == "at" else {"start_delay": DAY}
    for number in (1, 0):
        h = env.signal_with_start(Collecting, "add", number, id="s", start_before=env.clock + 2 * DAY, **times)
    assert (h.status, h.describe().start_before) == ("pending", env.clock + 2 * DAY)
    env.advance(DAY)
    assert h.result()["numbers"] == [1, 0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start_at": datetime(2030, 1, 1, 9)}, r"tzinfo=ZoneInfo\('Europe/Berlin'\)"),  # noqa: DTZ001 - the error of it
        ({"start_before": datetime(2030, 1, 1)}, "start_before has no time zone"),  # noqa: DTZ001 - as above
        ({"start_at": "tomorrow"}, "start_at must be a datetime with a time zone, not 'tomorrow'"),
        ({"start_delay": -1}, "start_delay must not be negative"),
        ({"start_delay": "5"}, "start_delay must be a timedelta or a number of seconds"),
    ],
)
def test_bad_times_are_refused(env: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidStart, match=text):
        env.start(Collecting, id="bad", **options)
    with pytest.raises(errors.WorkflowNotFound):
        env.handle("bad")


def test_times_that_contradict_each_other_are_refused(env: Any) -> None:
    with pytest.raises(errors.InvalidStart, match="not both"):
        env.start(Collecting, start_at=env.clock, start_delay=1)
    with pytest.raises(errors.InvalidStart, match="must be later than start_at"):
        env.start(Collecting, start_at=env.clock + DAY, start_before=env.clock + DAY)
