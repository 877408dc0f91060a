"""What an error holds changes neither how a run goes on nor what is stored of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from temporalex_django import Ok, RetryPolicy, Stop, Workflow, activity, api, errors, query, update
from temporalex_django.interceptors import AttemptCall, Interceptor
from temporalex_django.interceptors.chain import chain
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


class Attempted(Workflow):
    name = "test.StrangeAttempt"

    async def run(self, args: Any) -> Any:
        try:
            await in_a_thread(args)
        except errors.ActivityFailure as exc:
            return Ok(exc.type)
        return Ok(None)


class Parent(Workflow):
    name = "test.StrangeParent"

    async def run(self, args: Any) -> Any:
        try:
            await api.child(Striker, args)
        except errors.ChildWorkflowFailure as exc:
            return Ok(exc.type)
        return Ok(None)


TYPES = {name: wanted for name, (_, wanted) in ERRORS.items()}


def test_an_error_of_an_activity_has_its_name_and_the_run_goes_on(env):
    handles = {name: env.start(Caller, name) for name in ERRORS}
    env.advance(10)

    results = {name: handle.result() for name, handle in handles.items()}
    assert results == {name: [wanted] * len(ACTIVITIES) for name, wanted in TYPES.items()}
    for handle in handles.values():
        json.dumps([event.attributes for event in handle.history()]).encode()


def test_an_error_of_run_fails_the_run_under_its_name(env):
    handles = {name: env.start(Striker, name) for name in ERRORS}

    assert {handle.status for handle in handles.values()} == {"failed"}
    closing = {name: handle.history()[-1] for name, handle in handles.items()}
    assert {event.kind for event in closing.values()} == {"WorkflowFailed"}
    assert {name: event.attributes["type"] for name, event in closing.items()} == TYPES


def test_an_error_of_an_interceptor_fails_the_attempt(env):
    class Meddling(Interceptor):
        def activity_attempt(self, attempt: AttemptCall) -> Any:
            strike(attempt.workflow_id)

    before = chain.interceptors
    chain.install([Meddling()])
    try:
        handles = {name: env.start(Attempted, name, id=name) for name in ERRORS}
        env.advance(10)
        assert {handle.result() for handle in handles.values()} == {"InterceptorFailed"}
    finally:
        chain.install(before)


def test_an_error_of_a_child_reaches_its_parent_under_its_name(env):
    assert {name: env.start(Parent, name).result() for name in ERRORS} == TYPES


def test_an_error_of_a_handler_fails_its_message_alone(env):
    types = {}
    for name in ERRORS:
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
        types[name] = failed.type
        handle.signal("stop")
        assert handle.result() == "done"
    assert types == TYPES
