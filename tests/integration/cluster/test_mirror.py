"""The mirror: rows of runs on a cluster, as their activations have left them, and as the cluster has ended them."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice import v1 as service

from temporalex_django import ContinueAsNew, Ok, Workflow, api
from temporalex_django.backends.cluster import mirror, mirror_writer, reconcile
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.mirrored_run import ObservedRun
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.models import Chain, HumanTask, Instance, Lease
from tests.integration.cluster.conftest import WorkerMaker
from tests.support.commands import shell
from tests.support.people import stored
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-mirror-{uuid.uuid4().hex[:8]}"
_broken = threading.Event()


class MirroredSteps(Workflow):
    task_queue = QUEUE
    signals = ("go",)

    async def run(self, args: Any) -> Any:
        api.publish_state({"round": args})
        decision = await api.approval("Go on?", users=["ann"])
        api.publish_state({"decided": decision.outcome})
        await api.wait_for_signal("go")
        if args < 2:
            return ContinueAsNew(args + 1)
        return Ok(decision.outcome)


class MirroredBreaks(Workflow):
    task_queue = QUEUE
    unexpected_error = "block"

    async def run(self, args: Any) -> Any:
        await api.wait_for_signal("go")
        if _broken.is_set():
            raise KeyError("broken")
        return Ok(1)


class MirroredParks(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


def new_id() -> str:
    return f"mirror-{uuid.uuid4().hex[:8]}"


def parked(**options: Any) -> Any:
    handle = MirroredParks.start(None, id=new_id(), **options)
    wait_for(lambda: handle.describe().waiting_for)
    return handle


def rows(*fields: str) -> list[dict[str, Any]]:
    """All rows of runs, without what a rebuilt row cannot know."""
    unknown = {"mirrored_at", "created_at", "seed"}
    found = []
    for run in Instance.objects.order_by("id"):
        values = {
            field.attname: getattr(run, field.attname)
            for field in Instance._meta.concrete_fields
            if field.attname not in unknown
        }
        found.append({name: bytes(v) if isinstance(v, memoryview) else v for name, v in values.items()})
    return found


def tasks() -> list[tuple[Any, ...]]:
    return list(HumanTask.objects.order_by("key", "run_id").values_list("key", "run_id", "outcome", "ending"))


@pytest.fixture
def storage() -> DjangoStorage:
    return DjangoStorage()


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[ObservedRun]:
    """What activations have shown to the mirror."""
    seen: list[ObservedRun] = []
    write = mirror.write

    def note(*runs: ObservedRun, **options: Any) -> Any:
        seen.extend(runs)
        return write(*runs, **options)

    monkeypatch.setattr(mirror, "write", note)
    return seen


def terminate_there(handle: Any) -> None:
    run = Instance.objects.get(pk=handle.run_id)
    request = service.TerminateWorkflowExecutionRequest(
        namespace="default", workflow_execution=WorkflowExecution(workflow_id=run.cluster_id), reason="by the server"
    )
    cluster_client().call(lambda sdk: sdk.workflow_service.terminate_workflow_execution(request))


def compare_soon() -> None:
    """Let the next look begin now."""
    Lease.objects.all().delete()


def test_a_write_of_an_earlier_task_does_not_replace_that_of_a_later_one(
    worker: None, observed: list[ObservedRun], storage: DjangoStorage
) -> None:
    """A worker that was stopped before its write continues after another one has done the activation again."""
    handle = parked()
    (last,) = observed[-1:]
    stale = replace(last, now=last.now - timedelta(seconds=10), visible=last.visible._replace(waiting_for=["stale"]))
    mirror.write(stale, storage=storage)
    assert handle.describe().waiting_for != ["stale"]
    mirror.write(replace(stale, now=last.now + timedelta(seconds=10)), storage=storage)
    assert handle.describe().waiting_for == ["stale"]
    mirror.write(replace(last, activation=last.activation - 1, now=last.now + timedelta(days=1)), storage=storage)
    assert handle.describe().waiting_for == ["stale"]


def test_a_write_does_not_touch_the_later_run_after_a_reset(
    worker: None, observed: list[ObservedRun], storage: DjangoStorage
) -> None:
    handle = parked()
    stale = replace(observed[-1], visible=observed[-1].visible._replace(waiting_for=["stale"]))
    handle.reset()
    wait_for(lambda: Instance.objects.count() == 2 and Instance.objects.latest("id").waiting_for)
    before = rows()
    mirror.write(stale, storage=storage)
    assert rows() == before


def test_a_replay_writes_nothing(start_worker: WorkerMaker, observed: list[ObservedRun]) -> None:
    with start_worker():
        handle = parked()
    count = len(observed)
    with start_worker():
        assert len(handle.history()) >= 2
        assert len(observed) == count
        handle.signal("go", 5)
        assert handle.result(timeout=30) == 5


def test_writes_of_several_runs_are_committed_together(
    start_worker: WorkerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    perform = mirror_writer.MirrorWriter._perform

    def wait_for_others(self: Any, jobs: Any) -> None:
        """Hold the first commit until more rows wait for it."""
        if not sizes:
            wait_for(lambda: self._thread.items.qsize() >= 4)
        sizes.append(len(jobs))
        perform(self, jobs)

    monkeypatch.setattr(mirror_writer.MirrorWriter, "_perform", wait_for_others)
    handles = [MirroredParks.start(None, id=new_id()) for _ in range(30)]
    with start_worker():
        for handle in handles:
            wait_for(lambda handle=handle: handle.describe().waiting_for)
        for handle in handles:
            handle.signal("go", 1)
        assert [handle.result(timeout=60) for handle in handles] == [1] * 30
    assert sizes[1] >= 4


def test_one_run_that_cannot_be_written_keeps_no_other_one_waiting(
    start_worker: WorkerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = MirroredParks.start(None, id=new_id())
    write, fails = mirror.write, [True]

    def refuse(*runs: ObservedRun, **options: Any) -> Any:
        if fails[0] and any(run.info.id == bad.id for run in runs):
            raise ValueError("this row cannot be written")
        return write(*runs, **options)

    monkeypatch.setattr(mirror, "write", refuse)
    others = [MirroredParks.start(None, id=new_id()) for _ in range(5)]
    with start_worker():
        for handle in others:
            wait_for(lambda handle=handle: handle.describe().waiting_for)
        assert bad.describe().status == "pending"
        fails[0] = False
        wait_for(lambda: bad.describe().waiting_for)


def test_a_database_that_is_away_fails_no_run(start_worker: WorkerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    write, is_away = mirror.write, threading.Event()

    def away(*runs: ObservedRun, **options: Any) -> Any:
        if is_away.is_set():
            raise DatabaseError("the connection was refused")
        return write(*runs, **options)

    monkeypatch.setattr(mirror, "write", away)
    with start_worker():
        handle = parked()
        is_away.set()
        handle.signal("go", 3)
        wait_for(lambda: cluster_history_has(handle, "WORKFLOW_TASK_FAILED"))
        assert handle.describe().status == "waiting"
        is_away.clear()
        assert handle.result(timeout=60) == 3


def cluster_history_has(handle: Any, kind: str) -> bool:
    run = Instance.objects.get(pk=handle.run_id)

    async def read(sdk: Any) -> Any:
        return await sdk.get_workflow_handle(run.cluster_id).fetch_history()

    from temporalio.api.enums.v1 import EventType

    return any(EventType.Name(event.event_type).endswith(kind) for event in cluster_client().call(read).events)


def test_a_run_whose_task_fails_is_shown_as_blocked_until_it_goes_on(worker: None) -> None:
    _broken.set()
    handle = MirroredBreaks.start(None, id=new_id())
    wait_for(lambda: handle.describe().waiting_for)
    handle.signal("go")
    wait_for(lambda: Instance.objects.get().blocked)
    run = Instance.objects.get()
    assert run.blocked["error"] == "KeyError: 'broken'"
    assert run.cause.startswith("KeyError at ")
    _broken.clear()
    assert handle.result(timeout=60) == 1
    run.refresh_from_db()
    assert (run.blocked, run.cause) == (None, None)


# -- what the server alone has done -----------------------------------------------------------------------------------


def test_a_termination_and_a_deletion_on_the_server_are_seen(worker: None, storage: DjangoStorage) -> None:
    terminated, deleted, untouched = parked(), parked(), parked()
    reconcile.run_round("default")
    terminate_there(terminated)
    run = Instance.objects.get(pk=deleted.run_id)
    request = service.DeleteWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=run.cluster_id, run_id=str(run.cluster_run_id)),
    )
    cluster_client().call(lambda sdk: sdk.workflow_service.delete_workflow_execution(request))

    def looked() -> bool:
        compare_soon()
        reconcile.run_round("default")
        return all(handle.describe().status != "waiting" for handle in (terminated, deleted))

    wait_for(looked)
    assert terminated.describe().status == "terminated"
    assert Instance.objects.get(pk=terminated.run_id).closing_value == {"reason": "by the server"}
    assert deleted.describe().status == "terminated"
    assert untouched.describe().status == "waiting"


def test_one_process_at_a_time_compares(cluster: Any, storage: DjangoStorage) -> None:
    assert reconcile.is_due("default")
    reconcile.run_round("default")
    assert not reconcile.is_due("default")
    lease = Lease.objects.get(name=reconcile.LEASE)
    assert (lease.until - storage.now()).total_seconds() <= policy.MIRROR_SECONDS
    assert set(lease.notes) == {"mark", "lost", "sampled_at"}


# -- sync -------------------------------------------------------------------------------------------------------------


def test_sync_writes_rows_that_were_deleted_by_hand(worker: None) -> None:
    ann = stored("ann")
    asked = MirroredSteps.start(1, id=new_id())
    wait_for(lambda: HumanTask.objects.open().exists())
    asked.decide("approved", by=ann)
    asked.signal("go")
    wait_for(lambda: Instance.objects.count() == 2 and HumanTask.objects.open().exists())
    before, tasks_before = rows(), tasks()
    HumanTask.objects.all().delete()
    Instance.objects.all().delete()
    Chain.objects.all().delete()
    ran = shell("sync")
    assert ran.status == 0, ran.err
    after = rows()
    assert len(after) == len(before)
    for was, now in zip(before, after, strict=True):
        assert {k: (was[k], now[k]) for k in was if was[k] != now[k] and k != "id"} == {}
    assert [task[0::2] for task in tasks()] == [task[0::2] for task in tasks_before]


def test_sync_of_one_run_leaves_others_alone(worker: None) -> None:
    one, other = parked(), parked()
    Instance.objects.update(waiting_for=[])
    ran = shell("sync", one.id)
    assert "wrote the rows of 1," in ran.out
    assert one.describe().waiting_for
    assert not other.describe().waiting_for
    assert "wrote the rows of 2," in shell("sync").out
    assert other.describe().waiting_for


def test_sync_needs_a_run_on_a_cluster(cluster: Any, settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "tables"}
    handle = MirroredParks.start(None, id=new_id())
    ran = shell("sync", handle.id)
    assert ran.status != 0
    assert "the run is on the tables" in ran.err
