"""What an error holds changes neither how a run goes on nor what is stored of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from temporalex_django import Ok, RetryPolicy, Stop, Workflow, activity, api, errors, query, update
from tests.support.nasty import ERRORS

_ONCE = RetryPolicy(max_attempts=1)


def strike(name: str) -> Any:
    raise_error = ERRORS[name][0]
    raise raise_error()


@activity(retry=_ONCE)
def in_a_thread(name: str) -> None:
    strike(name)


@activity(retry=_ONCE)
async def in_a_loop(name: str) -> None:
    strike(name)


@activity(retry=_ONCE, atomic=True)
def atomically(name: str) -> None:
    strike(name)


@activity(retry=_ONCE, local=True)
def locally(name: str) -> None:
    strike(name)


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=1))
def twice(name: str) -> None:
    strike(name)


ACTIVITIES = {"thread": in_a_thread, "loop": in_a_loop, "atomic": atomically, "local": locally, "twice": twice}


class Caller(Workflow):
    name = "test.StrangeCaller"

    async def run(self, args: Any) -> Any:
        for failing in ACTIVITIES.values():
            api.publish_state(failing.name)
            try:
                await failing(args)
            except errors.ActivityFailure as exc:
                self.seen = [*getattr(self, "seen", []), exc.type]
        return Ok(self.seen)


class Striker(Workflow):
    name = "test.StrangeStriker"

    async def run(self, args: Any) -> Any:
        strike(args)


def struck(name: str, state: Any) -> Any:
    strike(name)


def never(name: str, state: Any) -> Any:
    raise AssertionError("its validator refuses it")


class Struck(Workflow):
    name = "test.Struck"

    async def run(self, args: Any) -> Any:
        return Ok(
            await api.phase(
                "done",
                signal={"struck": struck, "stop": lambda _, state: Stop(state)},
                update={"struck_by": struck, "checked": update(never, validator=struck)},
            )
        )

    @query("ask")
    @staticmethod
    def ask(state: Any, name: str) -> Any:
        strike(name)


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_an_activity_has_its_name_and_the_run_goes_on(env, name):
    handle = env.start(Caller, name)
    env.advance(10)

    assert handle.result() == [ERRORS[name][1]] * len(ACTIVITIES)
    json.dumps([event.attributes for event in handle.history()]).encode()


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_run_fails_the_run_under_its_name(env, name):
    handle = env.start(Striker, name)

    assert handle.status == "failed"
    (closing,) = [event for event in handle.history() if event.kind == "WorkflowFailed"]
    assert closing.attributes["type"] == ERRORS[name][1]


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_a_handler_fails_its_message_alone(env, name):
    handle = env.start(Struck)

    handle.signal("struck", name)
    for kind in ("struck_by", "checked"):
        with pytest.raises((errors.UpdateFailed, errors.UpdateRejected)) as caught:
            handle.update(kind, name)
        str(caught.value).encode()
    with pytest.raises(errors.QueryFailed) as caught:
        handle.query("ask", name)
    str(caught.value).encode()
    (failed,) = handle.describe().failed_messages
    assert failed.type == ERRORS[name][1]
    handle.signal("stop")
    assert handle.result() == "done"
