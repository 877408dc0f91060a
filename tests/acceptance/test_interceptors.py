"""Interceptors around client calls, activations, workflow code, activities and queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from temporalex_django import (
    NoReply,
    Ok,
    Reply,
    RetryPolicy,
    Stop,
    Workflow,
    activity,
    activity_context,
    api,
    errors,
    query,
)
from temporalex_django.interceptors import (
    ActivationCall,
    AttemptCall,
    ClientCall,
    Interceptor,
    Outgoing,
    Problem,
    QueryCall,
    WorkflowCode,
)
from temporalex_django.interceptors.chain import chain

pytestmark = pytest.mark.hosts("memory", "memory-evicted", "database", "database-evicted")


@pytest.fixture
def install() -> Iterator[Callable[..., None]]:
    before = chain.interceptors
    yield lambda *interceptors: chain.install(interceptors)
    chain.install(before)


class Watching(Interceptor):
    """Notes everything that it sees, and adds a header to all that is sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None, str | None]] = []
        self.activations: list[tuple[str, list[str]]] = []
        self.code: list[bool] = []
        self.attempts: list[tuple[str, int, bool]] = []
        self.queries: list[str] = []
        self.sent: list[tuple[str, str, str | None]] = []
        self.problems: list[Problem] = []

    @contextmanager
    def client_call(self, call: ClientCall) -> Iterator[None]:
        self.calls.append((call.operation, call.workflow, call.message))
        call.headers["by"] = call.operation
        yield

    @contextmanager
    def activation(self, activation: ActivationCall) -> Iterator[None]:
        self.activations.append((activation.workflow, [cause.kind for cause in activation.causes]))
        yield

    def outgoing(self, outgoing: Outgoing) -> None:
        self.sent.append((outgoing.kind, outgoing.name, outgoing.workflow_id))
        outgoing.headers["sent-as"] = outgoing.kind

    @contextmanager
    def workflow_code(self, code: WorkflowCode) -> Iterator[None]:
        self.code.append(code.is_replaying)
        yield

    @contextmanager
    def activity_attempt(self, attempt: AttemptCall) -> Iterator[None]:
        self.attempts.append((attempt.activity, attempt.attempt, attempt.is_atomic))
        yield

    @contextmanager
    def query(self, query: QueryCall) -> Iterator[None]:
        self.queries.append(query.name)
        yield

    def problem(self, problem: Problem) -> None:
        self.problems.append(problem)


@activity(name="interceptors.read")
def read_headers() -> dict[str, str]:
    return dict(activity_context().headers)


@activity(name="interceptors.read_at_once", atomic=True)
def read_at_once() -> dict[str, str]:
    return dict(activity_context().headers)


@activity(name="interceptors.fail", retry=RetryPolicy(max_attempts=1))
def fail_at_once() -> None:
    raise LookupError("secret")


class InterceptedChild(Workflow):
    name = "interceptors.Child"

    async def run(self, args: Any) -> Ok:
        return Ok(api.headers())


class Intercepted(Workflow):
    name = "interceptors.Parent"

    @query("seen")
    @staticmethod
    def seen(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Ok:
        api.publish_state("published")
        told = await api.phase(
            None,
            signal={"close": lambda _, state: Stop([state, api.headers()]), "note": lambda _, state: NoReply(state)},
            update={"say": lambda _, state: Reply(api.headers(), state)},
        )
        return Ok([api.headers(), told, await read_headers(), await read_at_once(), await api.child(InterceptedChild)])


def test_every_hook_sees_what_happens_and_headers_are_added(env: Any, install: Any) -> None:
    watching = Watching()
    install(watching)
    h = env.start(Intercepted, id="i1", headers={"own": "1"})
    assert h.update("say", headers={"own": "2"}) == {"own": "2", "by": "update"}
    assert h.query("seen") == "published"
    h.signal("close")
    run = {"own": "1", "by": "start"}
    assert h.result() == [
        run,
        [None, {"by": "signal"}],
        {**run, "sent-as": "activity"},
        {**run, "sent-as": "activity"},
        {**run, "sent-as": "child"},
    ]
    name = Intercepted.name
    assert watching.calls[:4] == [
        ("start", name, None),
        ("update", name, "say"),
        ("query", name, "seen"),
        ("signal", name, "close"),
    ]
    assert watching.queries == ["seen"]
    assert watching.attempts == [("interceptors.read", 1, False), ("interceptors.read_at_once", 1, True)]
    assert [(kind, what) for kind, what, _ in watching.sent] == [
        ("activity", "interceptors.read"),
        ("activity", "interceptors.read_at_once"),
        ("child", InterceptedChild.name),
    ]
    of_parent = [causes for workflow, causes in watching.activations if workflow == name]
    assert of_parent == [["start"], ["update"], ["signal"], ["activity"], ["activity"], ["child"]]
    assert watching.problems == []


def test_a_replay_is_no_activation_but_runs_code(env: Any, install: Any) -> None:
    watching = Watching()
    h = env.start(Intercepted, id="i2")
    h.signal("note")
    install(watching)
    env.replay(h)
    assert watching.activations == []
    assert watching.attempts == []
    assert watching.code
    assert all(watching.code)


def test_an_activity_that_fails_for_good_is_reported_once(env: Any, install: Any) -> None:
    class InterceptedFailing(Workflow):
        name = "interceptors.Failing"

        async def run(self, args: Any) -> Ok:
            return Ok(await fail_at_once())

    watching = Watching()
    install(watching)
    h = env.start(InterceptedFailing, id="i3")
    with pytest.raises(errors.WorkflowFailed):
        h.result()
    if "Django" in type(env).__name__:
        (problem,) = watching.problems
        assert (problem.kind, problem.activity, problem.attempt) == ("activity_failed", "interceptors.fail", 1)
        assert (problem.type, problem.workflow_id) == ("LookupError", "i3")
        assert isinstance(problem.error, LookupError)


class Refusing(Interceptor):
    @contextmanager
    def client_call(self, call: ClientCall) -> Iterator[None]:
        if call.message == "close":
            raise errors.ActionNotPermitted("not on Sundays")
        if call.message == "note":
            raise KeyError("secret")
        if call.operation == "update":
            call.headers["Bad"] = "1"
        yield


def test_a_client_call_gets_the_error_of_an_interceptor_and_nothing_is_sent(env: Any, install: Any) -> None:
    h = env.start(Intercepted, id="i4")
    install(Refusing())
    before = len(h.history())
    with pytest.raises(errors.ActionNotPermitted, match="not on Sundays") as caught:
        h.signal("close")
    assert "Refusing (client_call)" in caught.value.__notes__[0]
    with pytest.raises(errors.InterceptorFailed, match=r"Refusing \(client_call\) raised KeyError") as failed:
        h.signal("note")
    assert "secret" not in str(failed.value)
    with pytest.raises(errors.InvalidHeaders, match="update with interceptors: 'Bad' is not the name of a header"):
        h.update("say")
    assert len(h.history()) == before


class Reading(Interceptor):
    """Reads a clock inside of workflow code."""

    @contextmanager
    def workflow_code(self, code: WorkflowCode) -> Iterator[None]:
        time.time()
        yield


class Raising(Interceptor):
    def __init__(self, hook: str) -> None:
        self.hook = hook

    @contextmanager
    def _raise(self) -> Iterator[None]:
        raise ValueError("secret")
        yield

    def activation(self, activation: ActivationCall) -> Any:
        return self._raise() if self.hook == "activation" else super().activation(activation)

    def workflow_code(self, code: WorkflowCode) -> Any:
        return self._raise() if self.hook == "workflow_code" else super().workflow_code(code)

    def outgoing(self, outgoing: Outgoing) -> None:
        if self.hook == "outgoing":
            raise ValueError("secret")


def test_a_clock_in_workflow_code_blocks_the_run_with_the_name(env: Any, install: Any) -> None:
    install(Reading())
    h = env.start(Intercepted, id="i5")
    blocked = h.describe().blocked
    assert blocked is not None
    assert blocked["code"] == "determinism_violation"
    assert "Reading (workflow_code): time.time in workflow code" in blocked["error"]
    install()
    h.try_again()
    h.signal("close")
    assert h.result()[0] == {}


@pytest.mark.parametrize("hook", ["activation", "workflow_code", "outgoing"])
def test_an_interceptor_that_raises_in_an_activation_blocks_the_run_with_its_name(
    env: Any, install: Any, hook: str
) -> None:
    install(Raising(hook))
    h = env.start(Intercepted, id="i6")
    if hook == "outgoing":
        h.signal("close")
    blocked = h.describe().blocked
    assert blocked is not None
    assert blocked["code"] == "interceptor_failed"
    assert f"Raising ({hook}) raised ValueError" in blocked["error"]
    assert "secret" not in str(blocked)
    install()
    h.try_again()
    if hook != "outgoing":
        h.signal("close")
    assert h.result()[0] == {}


def test_a_clock_outside_of_workflow_code_is_fine(env: Any, install: Any) -> None:
    class Timing(Interceptor):
        @contextmanager
        def activation(self, activation: ActivationCall) -> Iterator[None]:
            time.time()
            yield
            time.time()

        @contextmanager
        def query(self, query: QueryCall) -> Iterator[None]:
            time.time()
            yield

    install(Timing())
    h = env.start(Intercepted, id="i7")
    assert h.query("seen") == "published"
    h.signal("close")
    assert h.result()[0] == {}


def test_an_interceptor_that_raises_fails_the_attempt_of_an_activity(env: Any, install: Any) -> None:
    class Breaking(Interceptor):
        @contextmanager
        def activity_attempt(self, attempt: AttemptCall) -> Iterator[None]:
            yield
            raise RuntimeError("secret")

    class InterceptedOnce(Workflow):
        name = "interceptors.Once"

        async def run(self, args: Any) -> Ok:
            return Ok(await read_headers.options(retry=RetryPolicy(max_attempts=1))())

    install(Breaking())
    h = env.start(InterceptedOnce, id="i8")
    with pytest.raises(errors.WorkflowFailed, match=r"Breaking \(activity_attempt\) raised RuntimeError"):
        h.result()
