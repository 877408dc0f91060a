"""Arguments of the public API whose use nothing else would miss.

``tests/structure/public_arguments.toml`` names them.
"""

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
    Reply,
    RetryPolicy,
    Step,
    Unique,
    Workflow,
    activity,
    api,
    errors,
    update,
)

MINUTE = timedelta(minutes=1)


@activity(schedule_to_start=60)
def not_begun() -> None: ...


@activity(start_to_close=60, retry=RetryPolicy(max_attempts=1))
def too_long() -> None: ...


@activity(schedule_to_close=60)
def long_altogether() -> None: ...


@activity(heartbeat=60, retry=RetryPolicy(max_attempts=1))
def silent() -> None: ...


@activity
def plain() -> None: ...


@activity(retry=RetryPolicy(max_attempts=1))
def once() -> None: ...


class Calling(Workflow):
    """One activity, as it was defined or with options of the call."""

    async def run(self, args: Any) -> Any:
        called = ACTIVITIES[args["activity"]]
        try:
            await (called.options(**args["options"]) if args["options"] else called)()
        except errors.ActivityFailure as exc:
            return Err(str(exc))
        return Ok(None)


ACTIVITIES = {one.name: one for one in (not_begun, too_long, long_altogether, silent, once)}
DECLARED = {
    "schedule_to_start": not_begun,
    "start_to_close": too_long,
    "schedule_to_close": long_altogether,
    "heartbeat": silent,
}


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("at", ["the definition", "the call"])
def test_each_timeout_of_an_activity_ends_a_call_that_nobody_answers(env: Any, name: str, at: str) -> None:
    one = DECLARED[name] if at == "the definition" else once
    options = {} if at == "the definition" else {name: 60}
    env.hold(one)
    h = env.start(Calling, {"activity": one.name, "options": options}, id="x")
    env.advance(timedelta(seconds=59))
    assert h.status == "running"

    env.advance(timedelta(seconds=2))

    (ended,) = [e for e in h.history() if e.kind in ("ActivityTimedOut", "ActivityFailed")]
    assert name in str(ended.attributes)


class Asked(Workflow):
    async def run(self, args: Any) -> Ok:
        return Ok(await api.phase(0, update={"add": update(lambda n, state: Reply(n, state + n))}))


def test_what_an_environment_need_not_wait_for_is_judged_all_the_same(env: Any) -> None:
    h = env.start(Asked, id="x")

    with pytest.raises(ValueError, match="mode must be 'auto' or 'worker'"):
        h.update("add", 1, mode="eager")
    with pytest.raises(ValueError, match="timeout must not be negative"):
        h.update("add", 1, timeout=-1)
    with pytest.raises(ValueError, match="timeout must not be negative"):
        h.result(timeout=-1)
    with pytest.raises(ValueError, match="timeout must not be negative"):
        h.resume("x", timeout=-1)
    assert h.update("add", 1, mode="worker", timeout=3) == 1


@pytest.mark.hosts("memory", "memory-evicted")
def test_an_environment_keeps_runs_in_memory_unless_it_evicts(env: Any, request: pytest.FixtureRequest) -> None:
    env.start(Asked, id="x")

    assert len(env.engine.cache) == (not request.node.callspec.params["env"].endswith("evicted"))


class Alike(Workflow):
    unique = Unique(key="alike", scope="workflow")

    async def run(self, args: Any) -> None:
        await api.wait_cancelled()


class AlikeToo(Alike):
    async def run(self, args: Any) -> None:
        await api.wait_cancelled()


def test_the_handle_of_an_id_that_two_classes_share_is_that_of_the_class(env: Any) -> None:
    for flow in (Alike, AlikeToo):
        env.start(flow, value="1")

    for flow in (Alike, AlikeToo):
        assert env.handle("alike::1", workflow=flow).describe().workflow == flow.name


@activity(name="tests.named", queue="slow", retry=RetryPolicy(max_attempts=3))
def named() -> None: ...


@activity(local=True)
def near() -> None: ...


@activity(atomic=True)
def whole() -> None: ...


class Scheduling(Workflow):
    async def run(self, args: Any) -> Ok:
        for one in (
            named,
            near,
            whole,
            plain.options(queue="other", retry=RetryPolicy(max_attempts=4)),
            plain.options(local=True),
        ):
            await one()
        return Ok(None)


def scheduled(env: Any) -> list[dict[str, Any]]:
    return [c.attributes for commands in env.commands for c in commands if c.kind == "ScheduleActivity"]


def test_how_an_activity_is_run_stands_in_its_command(env: Any) -> None:
    env.start(Scheduling, id="x")

    first, second, third, fourth, fifth = scheduled(env)
    assert first["activity"] == "tests.named"
    assert (first["options"]["queue"], first["options"]["retry"]["max_attempts"]) == ("slow", 3)
    assert (second["options"], third["options"]) == ({"local": True}, {"atomic": True})
    assert (fourth["options"]["queue"], fourth["options"]["retry"]["max_attempts"]) == ("other", 4)
    assert fifth["options"] == {"local": True}


def test_how_a_step_is_run_stands_in_its_command(env: Any) -> None:
    class Careful(Step):
        events = ("done",)
        key = "slowly"
        retry = RetryPolicy(max_attempts=3)
        timeout = 5
        heartbeat = 2
        queue = "slow"

        def execute(self, instance: Any, config: Any, context: Any) -> Event:
            return Event("done")

    class Whole(Step):
        events = ("done",)
        atomic = True

        def execute(self, instance: Any, config: Any, context: Any) -> Event:
            return Event("done")

    class Careless(GraphWorkflow):
        unique = Unique(key="careless")
        initial = Careful
        transitions = {(Careful, "done"): Whole, (Whole, "done"): Done}
        retry = RetryPolicy(max_attempts=7)

    env.start(Careless, value="1")

    first, second = scheduled(env)
    assert first["args"][0] == "slowly"
    options = first["options"]
    assert options.pop("retry")["max_attempts"] == 3
    assert options == {"start_to_close": 5, "heartbeat": 2, "queue": "slow"}
    assert second["options"]["atomic"] is True
    assert second["options"]["retry"]["max_attempts"] == 7
