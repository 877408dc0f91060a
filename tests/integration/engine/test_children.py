"""Child workflows and messages to other runs, on the database of the lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from temporalex_django import ContinueAsNew, Ok, Stop, Unique, Workflow, api, errors
from temporalex_django.db.inserts import insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import Instance, Message
from temporalex_django.testing import DjangoEnvironment, drain
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db


class KidChild(Workflow):
    tags = ["kid"]
    metadata = {"kept": True}

    async def run(self, args: Any) -> Any:
        match args:
            case {"wait": name}:
                return Ok([api.info().parent, await api.wait_for_signal(name)])
            case {"raise": text}:
                raise ValueError(text)
            case {"again": count}:
                await api.sleep(1)
                return ContinueAsNew({"again": count - 1} if count > 1 else {"value": "last"})
            case {"value": value}:
                return Ok(value)


class KidOrder(Workflow):
    unique = Unique(key="kidorder")

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go") if args else api.info().id)


class KidParent(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            return Ok(await api.child(KidChild, **args))
        except errors.ChildWorkflowFailure as exc:
            return Ok({"type": exc.type, "cause": exc.cause})


class KidFanOut(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.parallel([api.child(KidChild, {"value": n}) for n in range(args)]))


class KidSender(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            if args["how"] == "signal":
                await api.signal_external(args["to"], "go", args.get("payload"))
            else:
                await api.cancel_external(args["to"])
        except errors.TemporalexError as exc:
            return Ok([type(exc).__name__, str(exc)])
        return Ok("sent")


class KidRacer(Workflow):
    async def run(self, args: Any) -> Any:
        won = await api.race(api.child(KidChild, {"wait": "go"}, id="c", parent_close=args), api.sleep(5))
        await api.sleep(5)
        return Ok(won)


class KidTop(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.child(KidParent, {"args": {"wait": "go"}, "id": "leaf"}, id="middle"))


class KidLoop(Workflow):
    execution_timeout = 100
    run_timeout = 30

    async def run(self, args: Any) -> Any:
        await api.sleep(20)
        return ContinueAsNew(args)


class KidPhased(Workflow):
    """Continues as new while a timer of the run before is far away."""

    async def run(self, args: Any) -> Any:
        if args == "second":
            return Ok("went on")
        await api.phase(0, signal={"on": lambda _, s: Stop(s)}, timeout=3600)
        return ContinueAsNew("second")


class KidSlow(Workflow):
    run_timeout = 0.3

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("never"))


class KidOfSlow(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            await api.child(KidSlow, id="slow")
        except errors.ChildWorkflowFailure as exc:
            return Ok(exc.type)


class KidUnique(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            return Ok(await api.child(KidOrder, value="42"))
        except errors.ChildWorkflowFailure as exc:
            return Ok(exc.type)


@pytest.fixture(params=[False, True], ids=["cached", "evicted"])
def env(request: pytest.FixtureRequest) -> Iterator[DjangoEnvironment]:
    environment = DjangoEnvironment(evict=request.param)
    yield environment
    for workflow_id in Instance.objects.values_list("workflow_id", flat=True).distinct():
        environment.replay(environment.handle(workflow_id))


def kinds(handle: Any) -> list[str]:
    return [e.kind for e in handle.history() if e.kind not in ("WorkflowStarted", "ActivationStarted")]


def test_result_row_and_history(env):
    """TX-216."""
    h = env.start(KidParent, {"args": {"value": {"a": [1]}}, "id": "c"}, id="p")
    assert h.result() == {"a": [1]}
    assert kinds(h) == ["ChildStarted", "ChildCompleted", "WorkflowCompleted"]
    child, parent = Instance.objects.get(workflow_id="c"), Instance.objects.get(workflow_id="p")
    assert (child.parent, child.parent_run_id, child.parent_seq, child.parent_close) == ("p", parent.id, 1, "terminate")
    assert child.parent_chain_id == parent.chain_id
    assert (child.tags, child.metadata) == (["kid"], {"kept": True})
    assert Message.objects.count() == 0


def test_blocks_and_knows_its_parent(env):
    h = env.start(KidParent, {"args": {"wait": "go"}}, id="p")
    assert h.status == "running"
    assert h.describe().waiting_for == ["child KidChild p:1"]
    env.handle("p:1").signal("go", 1)
    assert h.result() == ["p", 1]


def test_failures(env):
    """TX-216: an exception, a refused start, an end from outside."""
    assert env.start(KidParent, {"args": {"raise": "boom"}}, id="p").result() == {"type": "ValueError", "cause": "boom"}
    h = env.start(KidParent, {"args": {"wait": "go"}, "id": "taken"}, id="q")
    refused = env.start(KidParent, {"args": {"value": 1}, "id": "taken"}, id="r")
    assert refused.result()["type"] == "AlreadyRunning"
    assert env.start(KidParent, {"args": {"value": 1}, "id": "q"}, id="s").result()["type"] == "AlreadyRunning"
    env.handle("taken").terminate("why")
    assert h.result() == {"type": "WorkflowTerminated", "cause": "why"}


def test_wider_and_narrower_scopes(env):
    """A child is started by the same rules as any run."""
    env.start(KidOrder, "wait", value="42")
    assert env.start(KidUnique, id="a").result() == "AlreadyRunning"
    assert (
        env.start(KidParent, {"args": {"value": 1}, "id": "kidorder::42"}, id="p").result()["type"] == "AlreadyRunning"
    )
    env.handle("kidorder::42").signal("go")
    assert env.start(KidUnique, id="c").result() == "kidorder::42"


def test_chain_of_a_child(env):
    h = env.start(KidParent, {"args": {"again": 3}, "id": "c"}, id="p")
    env.advance(3)
    assert h.result() == "last"
    assert Instance.objects.filter(workflow_id="c", parent_close="terminate", parent_seq=1).count() == 4


@pytest.mark.parametrize(
    ("policy", "expected"), [("terminate", "terminated"), ("request_cancel", "cancelled"), ("abandon", "waiting")]
)
@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_parent_close(env, policy, expected, how):
    """TX-216 ST-090."""
    h = env.start(KidParent, {"args": {"wait": "go"}, "id": "c", "parent_close": policy}, id="p")
    getattr(h, how)()
    assert env.handle("c").status == expected


def test_grandchildren(env):
    h = env.start(KidTop, id="top")
    h.terminate()
    assert [env.handle(name).status for name in ("top", "middle", "leaf")] == ["terminated"] * 3
    assert not Message.objects.filter(settled=False).exists()


@pytest.mark.parametrize("policy", ["terminate", "abandon"])
def test_loser_of_a_race(env, policy):
    h = env.start(KidRacer, policy, id="p")
    env.advance(5)
    assert env.handle("c").status == ("waiting" if policy == "abandon" else "cancelled")
    env.advance(5)
    assert h.result() == [1, None]


def test_messages(env):
    """ST-090."""
    first = env.start(KidChild, {"wait": "go"}, id="c")
    h = env.start(KidSender, {"how": "signal", "to": "c", "payload": {"a": 1}}, id="p")
    assert h.result() == "sent"
    assert first.result() == [None, {"a": 1}]
    second = env.start(KidChild, {"wait": "go"}, id="c")
    assert env.start(KidSender, {"how": "cancel", "to": "c"}, id="q").result() == "sent"
    assert second.status == "cancelled"
    for how in ("signal", "cancel"):
        name, _ = env.start(KidSender, {"how": how, "to": "c"}, id=f"r-{how}").result()
        assert name == "WorkflowClosed"
        name, text = env.start(KidSender, {"how": how, "to": "nobody"}, id=f"s-{how}").result()
        assert name == "WorkflowNotFound"
        assert "nobody" in text


def test_timeouts(env):
    """Of each run, and of the chain through continue-as-new; a blocked parent hears of its child's."""
    h = env.start(KidLoop, id="loop")
    env.advance(99)
    assert h.status == "waiting"
    env.advance(1)
    assert h.status == "timed_out"
    assert h.history()[-1].attributes == {"timeout": "execution_timeout"}
    assert len(h.run_ids) == 5
    parent = env.start(KidOfSlow, id="p")
    env.advance(1)
    assert parent.result() == "WorkflowTimedOut"


def test_next_run_does_not_wait_for_a_timer_of_the_one_before(env):
    h = env.start(KidPhased, "first", id="p")
    h.signal("on")
    assert h.result() == "went on"


def test_statements_do_not_grow_with_the_number_of_children():
    """One statement a table."""
    if connection.vendor == "sqlite":
        pytest.skip("executemany runs a statement a row there")

    def statements(count: int) -> int:
        environment = DjangoEnvironment()
        with environment.batch():
            environment.start(KidFanOut, count, id=f"fan-{count}")
            with CaptureQueriesContext(connection) as queries:
                environment.engine.turn(limit=100, queues=["default"])
        return len(queries)

    assert statements(2) == statements(50)


def test_a_lock_of_another_start_is_no_deadlock():
    """The id is taken by a run that this very transaction started."""
    insert_start(RunStart(workflow_id="c", workflow="KidChild", args={"wait": "go"}), storage=DjangoStorage())
    environment = DjangoEnvironment()
    assert environment.start(KidParent, {"args": {"value": 1}, "id": "c"}, id="p").result()["type"] == "AlreadyRunning"


@pytest.mark.django_db(transaction=True)
def test_on_committed_data():
    """The same by a worker's own statements, each turn committed."""
    h = KidParent.start({"args": {"wait": "go"}, "id": "c"}, id="p")
    drain()
    KidSender.start({"how": "signal", "to": "c", "payload": 5}, id="s")
    drain()
    assert h.result(timeout=5) == ["p", 5]
    other = KidParent.start({"args": {"wait": "go"}, "id": "d"}, id="p")
    drain()
    other.terminate(reason="enough")
    drain()
    assert KidChild.handle("d").describe().status == "terminated"


@pytest.mark.django_db(transaction=True)
def test_timeout_by_the_clock_of_the_database():
    """A worker finds what is over without any message."""
    h = KidOfSlow.start(id="p")

    def status() -> str:
        drain()
        return KidSlow.handle("slow").describe().status

    wait_for(lambda: status() == "timed_out")
    assert h.result(timeout=5) == "WorkflowTimedOut"
