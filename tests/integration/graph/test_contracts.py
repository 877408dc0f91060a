"""One contract, two storages: in memory, and in the tables. And what the tables' runner is on top."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from temporalex_django import (
    Done,
    Err,
    Event,
    GraphWorkflow,
    Ok,
    RetryPolicy,
    Step,
    Unique,
    Wait,
    WaitForEvent,
    Workflow,
    WorkflowHandle,
    api,
    errors,
)
from temporalex_django.db.graph_storage import TableStorage
from temporalex_django.graph import Engine, Instance, LocalRunner, MemoryStorage, engine
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Message
from temporalex_django.models import Instance as Row
from temporalex_django.operations.graph_runner import DjangoRunner
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


class First(Step):
    events = ("ok", "odd")

    def execute(self, instance: Any, config: Any, context: Any) -> Any:
        return Event("ok", {"config": config, "order": context.initial.get("order")})


class Side(First):
    pass


class Last(First):
    retry = RetryPolicy(max_attempts=1)

    def execute(self, instance: Any, config: Any, context: Any) -> Any:
        return Err("no") if context.initial.get("fails") else Event("ok", {"seen": list(context.steps)})


hook = WaitForEvent("paid", timeout=3600)
TRANSITIONS = {
    (First, "ok"): [(Side, {"side": [1, None, "ä"]}), hook],
    (First, "odd"): Done,
    (Side, "ok"): Last,
    (Side, "odd"): Last,
    (hook, "paid"): Last,
    (hook, "timeout"): Last,
    (Last, "ok"): Done,
    (Last, "odd"): Done,
}


class Flow(GraphWorkflow):
    name = "test.contract.Flow"
    unique = Unique(key="contract")
    initial = (First, {"depth": 1})
    transitions = TRANSITIONS


class Other(GraphWorkflow):
    name = "test.contract.Other"
    unique = Unique(key="contract")
    initial = First
    transitions = TRANSITIONS


class PerVersion(GraphWorkflow):
    name = "test.contract.PerVersion"
    unique = Unique(key="perversion", scope="version")
    initial = First
    transitions = TRANSITIONS


class Function(Workflow):
    name = "test.contract.Function"

    async def run(self, args: Any) -> Ok[Any]:
        await api.wait_for_signal("go")
        return Ok()


@pytest.fixture(params=[MemoryStorage, TableStorage])
def storage(request: pytest.FixtureRequest) -> Iterator[Any]:
    return request.param()


def new(value: str = "1", workflow: Any = Flow, **more: Any) -> Instance:
    return Instance.new(
        **{
            "id": workflow.unique.id_for(value),
            "workflow": workflow,
            "initial": {"order": 7, "deep": {"a": [1]}},
            **more,
        }
    )


def ended(instance: Instance, step: Any, event: str = "ok", data: Any = None, **more: Any) -> Instance:
    instance = engine.complete_step(instance, step, event, data, now=LATER, **more)
    return engine.activate_transitions(instance, step, event)


def stages(value: str = "1", **more: Any) -> dict[str, Instance]:
    """An instance at every status, with all that it can hold."""
    pending = new(value, telemetry_metadata={"trace": "t1"}, **more)
    begun = engine.advance(pending, now=NOW)
    branches = ended(begun, First, data={"total": 12, "by": None}, metadata={"node": "a"})
    running = engine.wait_step(branches, hook)
    waiting = ended(running, Side, data={"x": 1})
    whole = ended(ended(ended(waiting, hook, "paid", {"cents": 5}), Last), Done, "done")
    return {
        "pending": pending,
        "begun": begun,
        "running": running,
        "waiting": waiting,
        "completed": engine.advance(whole),
        "failed": engine.fail_step(running, Side, {"why": ["money"]}, now=LATER),
        "cancelled": engine.cancel(waiting),
    }


@pytest.mark.parametrize("stage", stages())
def test_what_is_put_comes_back(storage: Any, stage: str) -> None:
    """HE-119 HE-120 HE-125: sets, stamps, step references, entries, configs, metadata."""
    instance = stages()[stage]
    storage.put(instance)
    found = storage.get("contract::1")
    assert found == instance
    assert (found.workflow, found.status, found.size) == (Flow, instance.status, instance.size)
    assert found.active_steps == instance.active_steps
    assert found.waiting_steps == instance.waiting_steps
    assert [entry.timestamp for entry in found.execution_history] == [e.timestamp for e in instance.execution_history]
    assert found.step_configs == instance.step_configs
    assert (found.telemetry_metadata, found.telemetry_start_time) == ({"trace": "t1"}, instance.telemetry_start_time)
    assert storage.query() == [instance]


def test_the_last_put_counts(storage: Any) -> None:
    """HE-120 HE-126: from any status to any other, and a new one behind one that has ended."""
    for before in stages().values():
        for instance in stages().values():
            storage.put(before)
            storage.put(instance)
            assert storage.get("contract::1") == instance
            assert storage.query(id="contract::1") == [instance]


def test_what_was_never_put_is_not_found(storage: Any) -> None:
    """HE-119 HE-121."""
    with pytest.raises(errors.WorkflowNotFound, match="contract::1"):
        storage.get("contract::1")
    storage.delete("contract::1")
    assert storage.query() == []


def test_deleting(storage: Any) -> None:
    """HE-121: all of that id and nothing else; twice is fine, and the id is free."""
    storage.put(stages()["completed"])
    storage.put(stages()["waiting"])
    storage.put(stages(workflow=Other)["running"])
    storage.put(stages("2")["waiting"])
    storage.delete("contract::1")
    storage.delete("contract::1")
    with pytest.raises(errors.WorkflowNotFound):
        storage.get("contract::1")
    assert [one.id for one in storage.query()] == ["contract::2"]
    storage.put(new())
    assert storage.get("contract::1") == new()


def test_querying(storage: Any) -> None:
    """HE-122 HE-123: all filters hold, none gives all, what is no filter is an error; begun last first."""
    put = {
        **{name: stages(str(n))[name] for n, name in enumerate(stages())},
        "other": stages("9", workflow=Other)["waiting"],
    }
    for instance in put.values():
        storage.put(instance)

    def names(**filters: Any) -> list[str]:
        by_id = {instance.id: name for name, instance in put.items()}
        return [by_id[found.id] for found in storage.query(**filters)]

    assert names() == [*reversed(put)]
    assert names(status="waiting") == ["other", "waiting"]
    assert names(status=["running", "failed"]) == ["failed", "running", "begun"]
    assert names(status="completed") == ["completed"]
    assert names(status="cancelled") == ["cancelled"]
    assert names(status=[]) == names(status="gone") == []
    assert names(workflow=Other) == names(workflow="test.contract.Other") == ["other"]
    assert names(workflow=Flow, status="waiting") == ["waiting"]
    assert names(id="contract::3", status="waiting") == ["waiting"]
    assert names(id="contract::3", status="failed") == []
    assert names(version=2) == []
    assert names(version=1, id="contract::9") == ["other"]
    with pytest.raises(TypeError, match="no such filter: colour, size \\(known: id, status, version, workflow\\)"):
        storage.query(colour="red", size=1, id="contract::1")


def test_one_id_in_several_workflows_and_versions(storage: Any) -> None:
    """HE-126 HE-134 HE-135: kept apart where the scope keeps them apart; the one begun last is meant."""
    storage.put(stages()["waiting"])
    storage.put(stages(workflow=Other)["pending"])
    assert storage.get("contract::1").workflow is Other
    assert storage.get("contract::1", workflow=Flow.name) == stages()["waiting"]
    for version in (1, 2):
        storage.put(stages(workflow=PerVersion, version=version)["waiting"])
    storage.put(stages(workflow=PerVersion, version=1)["running"])
    assert [(i.version, i.status) for i in storage.query(workflow=PerVersion)] == [(2, "waiting"), (1, "running")]
    assert storage.get("perversion::1").version == 2
    assert storage.get("perversion::1", version=1).status == "running"
    with pytest.raises(errors.WorkflowNotFound):
        storage.get("perversion::1", version=3)


def test_another_version_takes_the_place_where_the_scope_says_so(storage: Any) -> None:
    """HE-126 HE-134."""
    storage.put(stages()["waiting"])
    storage.put(stages(version=2)["running"])
    assert [(i.version, i.status) for i in storage.query()] == [(2, "running")]


def test_what_begins_anew_is_the_newest(storage: Any) -> None:
    """HE-123."""
    storage.put(stages()["completed"])
    storage.put(stages("2")["waiting"])
    storage.put(stages()["pending"])
    assert [one.id for one in storage.query()] == ["contract::1", "contract::2"]


def at_once(*work: Any) -> list[BaseException]:
    """Run these in threads of their own; what they raised."""
    ready, raised = threading.Barrier(len(work), timeout=20), list[BaseException]()

    def one(fn: Any) -> None:
        try:
            ready.wait()
            fn()
        except BaseException as exc:
            raised.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=(fn,)) for fn in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


def test_concurrent_puts_of_different_instances_are_all_kept(storage: Any) -> None:
    """HE-124."""
    all_of_them = [stages(str(n))["waiting"] for n in range(12)]
    assert at_once(*(lambda i=i: storage.put(i) for i in all_of_them)) == []
    assert {i.id for i in storage.query(status="waiting")} == {i.id for i in all_of_them}
    assert all(storage.get(i.id) == i for i in all_of_them)


def test_concurrent_puts_of_one_instance_leave_one_of_them(storage: Any) -> None:
    """HE-124: a reader sees nothing or a whole instance, never a part."""
    versions = [*stages().values()]
    seen: list[Instance] = []

    def read() -> None:
        for _ in range(20):
            seen.extend(storage.query(id="contract::1"))

    assert at_once(read, *(lambda i=i: storage.put(i) for i in versions)) == []
    assert storage.get("contract::1") in versions
    assert len(storage.query()) == 1
    assert all(one in versions for one in seen)


# -- what the tables have on top ---------------------------------------------------------------------------------------


def test_a_step_that_is_gone_is_refused() -> None:
    """HE-125: what stands in the row is looked up in the class, never imported."""
    TableStorage().put(stages()["waiting"])
    try:

        class Smaller(GraphWorkflow):
            name = "test.contract.Flow"
            unique = Unique(key="contract")
            initial = First
            transitions = {(First, "ok"): Done, (First, "odd"): Done}

        with pytest.raises(errors.PayloadError, match="stored instance 'contract::1' of Smaller: there is no step"):
            TableStorage().get("contract::1")
    finally:
        _again(Flow)


def _again(cls: Any) -> None:
    from temporalex_django.authoring import workflow

    workflow.register(cls)


def test_a_put_instance_goes_on_in_the_durable_runtime() -> None:
    """HE-097: active steps are executed, waiting ones wait, configs and context are there."""
    storage = TableStorage()
    storage.put(stages()["running"])
    assert [row.status for row in Row.objects.all()] == ["running"]
    drain()
    found = storage.get("contract::1")
    assert (found.status, found.waiting_steps) == ("waiting", {hook})
    assert found.context.steps.side == {"config": {"side": [1, None, "ä"]}, "order": 7}
    assert found.telemetry_start_time == NOW
    Flow.resume("1", "paid", data={"cents": 5})
    drain()
    assert Flow.get("1").result(timeout=0)["last"] == {"seen": ["first", "side", "wait_for_event"]}
    assert storage.query(status="completed") == [storage.get("contract::1")]


def test_an_open_run_is_handed_on() -> None:
    """HE-120: to a new run of its chain, which begins where the put instance stands; what it was doing is dropped."""
    storage = TableStorage()
    handle = Flow.start("1", {"order": 1})
    drain()
    assert storage.get("contract::1").waiting_steps == {hook}
    storage.put(ended(stages()["waiting"], hook, "paid", {"cents": 1}))
    drain()
    assert handle.result(timeout=0)["last"] == {"seen": ["first", "side", "wait_for_event"]}
    assert len(handle.run_ids) == 2
    assert [row.status for row in Row.objects.order_by("pk")] == ["continued_as_new", "completed"]
    assert ActivityTask.objects.count() == 0


@pytest.mark.parametrize(
    ("stage", "raised"),
    [("completed", None), ("failed", errors.WorkflowFailed), ("cancelled", errors.WorkflowCancelled)],
)
@pytest.mark.parametrize("before", ["nothing", "an open run"])
def test_a_closed_instance_is_stored_closed(before: str, stage: str, raised: Any) -> None:
    """HE-098: it has a result, no worker takes it up, and its value is free again."""
    if before == "an open run":
        Flow.start("1", {"order": 1})
        drain()
    TableStorage().put(stages()[stage])
    assert [(chain.closed, chain.due_at, chain.open_key) for chain in Chain.objects.all()] == [(True, None, None)]
    handle = WorkflowHandle("contract::1")
    if raised is None:
        assert handle.result(timeout=0)["wait_for_event"] == {"cents": 5}
    else:
        with pytest.raises(raised):
            handle.result(timeout=0)
    drain()
    assert TableStorage().get("contract::1") == stages()[stage]
    assert handle.status == stage
    assert Flow.start("1", {}).status == "pending"


def test_a_closed_instance_needs_no_free_value() -> None:
    class Everywhere(GraphWorkflow):
        name = "test.contract.Everywhere"
        unique = Unique(key="contract", scope="global")
        initial = First
        transitions = TRANSITIONS

    storage = TableStorage()
    Flow.start("1", {})
    with pytest.raises(errors.AlreadyRunning):
        storage.put(stages(workflow=Everywhere)["waiting"])
    storage.put(stages(workflow=Everywhere)["completed"])
    assert storage.query(workflow=Everywhere) == [stages(workflow=Everywhere)["completed"]]


class Slow(TableStorage):
    """Something happens ``meanwhile``, when it has looked and not acted."""

    meanwhile: Any = None

    def _rows(self, *args: Any, **options: Any) -> Any:
        rows = [*super()._rows(*args, **options)]
        if (fn := self.meanwhile) is not None:
            self.meanwhile = None
            fn()
        return iter(rows)


def test_a_run_that_is_handed_on_or_deleted_while_it_is_read() -> None:
    """HE-124: a reader that has the row already sees the instance as it is then."""
    storage = Slow()
    Flow.start("1", {})
    drain()
    for meanwhile, expected in (
        (lambda: TableStorage().put(stages()["failed"]), [stages()["failed"]]),
        (lambda: TableStorage().delete("contract::1"), []),
    ):
        storage.meanwhile = meanwhile
        assert storage.query() == expected


@pytest.mark.postgres
def test_a_put_that_another_one_came_before_overwrites_that() -> None:
    """HE-120 HE-124: both looked and found nothing. On SQLite the second one looks when the first has ended."""
    storage, raised = Slow(), list[BaseException]()
    storage.meanwhile = lambda: raised.extend(at_once(lambda: TableStorage().put(stages()["waiting"])))
    storage.put(stages()["running"])
    assert (raised, storage.query()) == ([], [stages()["running"]])
    assert Chain.objects.count() == 1


def test_a_run_that_never_had_a_turn() -> None:
    """It reads as pending; cancelled before that, as cancelled."""
    storage = TableStorage()
    handle = Flow.start("1", {"order": 1}, telemetry={"trace": "t2"})
    found = storage.get("contract::1")
    assert (found.status, found.initial, found.telemetry_metadata) == ("pending", {"order": 1}, {"trace": "t2"})
    handle.cancel()
    assert [one.status for one in storage.query(status="cancelled")] == ["cancelled"]


def test_terminated_and_failed_runs_are_read() -> None:
    """HE-122: a run that an operator ended is a cancelled instance."""
    storage = TableStorage()
    Flow.start("1", {}).terminate("why")
    Flow.start("2", {"fails": True})
    drain()
    Flow.resume("2", "paid")
    drain()
    assert {i.id: i.status for i in storage.query()} == {"contract::1": "cancelled", "contract::2": "failed"}
    assert [i.id for i in storage.query(status="cancelled")] == ["contract::1"]
    assert storage.query(status="failed")[0].failed_step is Last


def test_function_workflows_are_not_seen() -> None:
    Function.start(id="contract::1")
    storage = TableStorage()
    drain()
    assert storage.query() == []
    storage.delete("contract::1")
    assert Row.objects.count() == 1
    with pytest.raises(errors.WorkflowNotFound):
        storage.get("contract::1")


def test_a_class_that_is_gone_is_named() -> None:
    from temporalex_django.authoring import workflow

    storage = TableStorage()
    storage.put(new())
    kept = workflow.registry.pop(Flow.name)
    try:
        with pytest.raises(
            errors.UnknownWorkflow, match="a run of version 1 of 'test.contract.Flow' has no class in this process"
        ):
            storage.get("contract::1")
        assert storage.query() == []
    finally:
        workflow.registry[Flow.name] = kept


def test_deleting_leaves_no_row() -> None:
    storage = TableStorage()
    Flow.start("1", {})
    drain()
    Flow.start("2", {})
    drain()
    kept = (HistoryEvent.objects.filter(run__workflow_id="contract::2").count(), Chain.objects.count())
    WorkflowHandle("contract::1").signal("never read")
    storage.delete("contract::1")
    assert (HistoryEvent.objects.count(), Chain.objects.count() + 1) == kept
    assert (Message.objects.count(), ActivityTask.objects.count(), Row.objects.count()) == (0, 0, 1)


def test_the_callers_transaction_takes_it_back() -> None:
    storage = TableStorage()
    storage.put(stages()["waiting"])
    with transaction.atomic():
        storage.put(stages()["completed"])
        storage.put(stages("2")["waiting"])
        assert storage.get("contract::1").status == "completed"
        transaction.set_rollback(True)
    assert storage.query() == [stages()["waiting"]]


def test_the_parent_of_a_run_hears_of_its_end() -> None:
    class Parent(Workflow):
        name = "test.contract.Parent"

        async def run(self, args: Any) -> Ok[Any]:
            return Ok(await api.child(Flow, {"order": 1}, value="1"))

    handle = Parent.start(id="parent")
    drain()
    TableStorage().put(stages()["completed"])
    drain()
    assert handle.result(timeout=0)["wait_for_event"] == {"cents": 5}


# -- engines over the tables -------------------------------------------------------------------------------------------


def test_an_engine_on_the_durable_runtime() -> None:
    """HE-004 HE-093 HE-094 HE-116: the same calls as in memory; workers execute."""
    with Engine("tables", TableStorage, DjangoRunner) as made:
        assert (
            made.start_instance(Flow, id="contract::1", context={"order": 7}, telemetry={"trace": "t3"})
            == "contract::1"
        )
        assert (made.get("contract::1").status, made.check(Flow, "contract::1")) == ("pending", "already_running")
        with pytest.raises(errors.AlreadyRunning):
            made.start_instance(Flow, id="contract::1")
        drain()
        with pytest.raises(errors.ResumeRefused):
            made.resume("contract::1", "other")
        with pytest.raises(errors.ResultTimeout):
            made.runner.wait("contract::1", timeout=0)
        with pytest.raises(errors.NotConfigured, match="timers of durable graphs are part of their histories"):
            made.schedule_resume("contract::1", hook, 5)
        made.resume("contract::1", "paid", data={"cents": 5}, by="ann")
        drain()
        found = made.runner.wait("contract::1", timeout=0)
        assert (found.status, found.context.steps.wait_for_event) == ("completed", {"cents": 5, "by": "ann"})
        assert found.telemetry_metadata == {"trace": "t3"}
        with pytest.raises(errors.WorkflowClosed):
            made.schedule_resume("contract::1", hook, 5)
        with pytest.raises(errors.WorkflowNotFound):
            made.resume("contract::2", "paid")
        made.start_instance(Flow, id="contract::2")
        made.cancel("contract::2")
        assert [i.id for i in made.query(status="cancelled")] == ["contract::2"]
        made.delete("contract::2")
        assert [i.id for i in made.query()] == ["contract::1"]


class Quick(GraphWorkflow):
    name = "test.contract.Quick"
    unique = Unique(key="quick")
    engine = "memory"
    initial = First
    transitions = {(First, "ok"): Wait(0), (First, "odd"): Done, (Wait(0), "timeout"): Done}


def test_a_graph_that_names_an_engine_does_not_touch_the_tables() -> None:
    """HE-177: where Django's backend is bound as well."""
    with Engine("memory", MemoryStorage(), LocalRunner):
        assert Quick.start("1", {"order": 7}).result(timeout=20)["first"]["order"] == 7
    assert Row.objects.count() == 0
