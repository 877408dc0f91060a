"""What a worker lacks (an activity, a step, a class, a key) is left to one that has it, and said.

Nothing fails for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test.utils import override_settings
from django.utils import timezone

from temporalex_django import Err, Ok, Workflow, errors
from temporalex_django.authoring import activity, workflow
from temporalex_django.core.payloads.codec import JsonCodec
from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import ActivityTask, Chain, HistoryEvent, Instance, Worker
from temporalex_django.operations.read.describe import describe
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.present.view_models import DUE_GRACE_PERIOD
from temporalex_django.testing import WorkflowEnvironment
from temporalex_django.workers.loop import WorkerLoop
from temporalex_django.workers.maintenance import Maintenance
from tests.app import durable, graphs

pytestmark = pytest.mark.django_db(transaction=True)

LOCKED = f"{__name__}.Locked"
keys: set[str] = set()


class Locked(JsonCodec):
    """What names the secret needs the key ``k2``."""

    def decode(self, data: Any) -> Any:
        if b"secret" in bytes(data) and "k2" not in keys:
            raise errors.KeyMissing("k2")
        return super().decode(data)


@pytest.fixture(autouse=True)
def _all_keys() -> Iterator[None]:
    keys.add("k2")
    yield
    keys.add("k2")


@pytest.fixture
def loop() -> Iterator[WorkerLoop]:
    yield from _loop()


@pytest.fixture
def another() -> Iterator[WorkerLoop]:
    yield from _loop()


def _loop() -> Iterator[WorkerLoop]:
    made = WorkerLoop(inline=True)
    yield made
    made.marker.close()


def start(name: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{name}-1")
    return insert_start(RunStart(workflow=name, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def waiting_for(started: StartedRun) -> list[str]:
    storage = DjangoStorage()
    return describe(find_chain(started.chain_id, storage=storage), storage=storage).waiting_for


def turn(loop: WorkerLoop, times: int = 6) -> None:
    for _ in range(times):
        loop.poll()


def test_an_activity_that_is_not_here_is_left_and_nothing_spins(
    loop: WorkerLoop, another: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = start("Doubling", {"n": 4})
    with monkeypatch.context() as lacking:
        lacking.delitem(activity.registry, durable.double.name)
        turn(loop)
        task = ActivityTask.objects.get()
        assert (task.attempt, task.owner) == (0, None)
        assert loop.storage.next_due(queues=["default"]) != 0.0
        ActivityTask.objects.update(due_at=timezone.now() - 2 * DUE_GRACE_PERIOD)
        assert f"a worker with the activity {durable.double.name}" in waiting_for(started)
    assert instance(started).is_open

    turn(another)
    assert instance(started).closing_value == {"result": 8}


def test_a_worker_lists_its_activities_and_is_not_waited_for(loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start("Doubling", {"n": 4})
    loop.row.register(loop.storage)
    with monkeypatch.context() as lacking:
        lacking.delitem(activity.registry, durable.double.name)
        turn(loop)
    assert durable.double.name in Worker.objects.get().activity_names
    assert waiting_for(started) == [f"activity {durable.double.name}"]


def test_an_activity_that_comes_with_a_later_import_is_taken(loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very worker that lacked it looks again when it has it."""
    started = start("Doubling", {"n": 4})
    with monkeypatch.context() as lacking:
        lacking.delitem(activity.registry, durable.double.name)
        turn(loop)
    turn(loop)
    assert instance(started).status == "completed"


def test_an_atomic_activity_that_is_not_here_is_left(
    loop: WorkerLoop, another: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = start("Booking", {"name": "ann"})
    with monkeypatch.context() as lacking:
        lacking.delitem(activity.registry, durable.write_user.name)
        turn(loop)
        assert (instance(started).is_open, instance(started).blocked) == (True, None)
        ActivityTask.objects.update(due_at=timezone.now() - 2 * DUE_GRACE_PERIOD)
        assert f"a worker with the activity {durable.write_user.name}" in waiting_for(started)
    turn(another)
    assert instance(started).status == "completed"


def test_a_step_that_is_not_in_the_graph_here_is_offered_again(
    loop: WorkerLoop, another: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = next(cls for cls in workflow.concrete_classes() if cls.__module__ == graphs.__name__)
    started = start(flow.name, {})
    loop.row.register(loop.storage)  # it knows the database's time from then on
    with monkeypatch.context() as lacking:
        lacking.setattr("temporalex_django.graph.durable_run.StepActivity._find_step", _no_step)
        turn(loop)
        task = ActivityTask.objects.get()
        assert (task.attempt, task.owner) == (0, None)
        assert any(what.startswith("a worker with tests.app.graphs") for what in waiting_for(started))
    ActivityTask.objects.update(due_at=task.scheduled_at)
    turn(another, 1)
    assert not ActivityTask.objects.filter(pk=task.pk, attempt=0).exists()


def _no_step(self: Any, key: str, workflow: Any) -> Any:
    raise errors.ActivityNotFound(f"{workflow.__name__} has no step {key!r} in this process")


def test_an_activity_whose_key_is_not_here_is_left_and_says_so(loop: WorkerLoop, another: WorkerLoop) -> None:
    with override_settings(TEMPORALEX={"PAYLOAD_CODEC": LOCKED}):
        started = start("Recording", {"path": "/dev/null", "hold": "/nowhere/secret"})
        loop.pool._stopping = True  # the run is advanced, its activity not taken
        turn(loop, 1)
        loop.pool._stopping = False
        keys.discard("k2")
        turn(loop)
        task = ActivityTask.objects.get()
        assert (task.attempt, task.owner, task.waits_for) == (0, None, "the key 'k2'")
        assert "a worker with the key 'k2'" in waiting_for(started)
        keys.add("k2")
        ActivityTask.objects.update(due_at=task.scheduled_at)
        turn(another)
    assert instance(started).status == "completed"


def test_a_run_whose_key_is_not_here_is_left_then_blocked_visibly_and_heals(
    loop: WorkerLoop, another: WorkerLoop
) -> None:
    with override_settings(TEMPORALEX={"PAYLOAD_CODEC": LOCKED}):
        started, other = start("Doubling", {"n": 1, "note": "secret"}), start("Doubling", {"n": 2}, workflow_id="other")
        keys.discard("k2")
        turn(loop)
        assert instance(other).status == "completed"
        assert instance(started).blocked is None  # another worker may have it
        loop.storage.defer([started.chain_id], seconds=0)
        turn(loop)
        assert instance(started).blocked["code"] == "key_missing"  # type: ignore[index] # asserted by it
        assert "a worker with the key 'k2'" in waiting_for(started)
        keys.add("k2")
        Chain.objects.update(due_at=Chain.objects.values_list("activated_at", flat=True).exclude(activated_at=None)[0])
        turn(another)
    assert (instance(started).status, instance(started).blocked) == ("completed", None)


def test_a_run_that_was_blocked_just_when_its_worker_came_heals_by_itself(loop: WorkerLoop) -> None:
    """The worker that blocked it had looked before the other one was there; no worker starts after that."""
    started = start("Doubling", {"n": 1})
    cls = workflow.registry.pop("Doubling")
    try:
        turn(loop, 1)
    finally:
        workflow.registry["Doubling"] = cls
    assert waiting_for(started) == ["a worker with the class Doubling (version 1)"]
    Maintenance(loop).run_pass()
    turn(loop)
    assert instance(started).status == "completed"


def test_what_old_code_blocked_goes_on_when_the_last_old_worker_leaves(loop: WorkerLoop, another: WorkerLoop) -> None:
    """Back-off has grown while old workers took it again and again: that no longer counts."""
    started = start("Tally")
    loop.row.register(loop.storage)
    another.row.register(another.storage)
    turn(loop, 1)
    blocked = {"code": "nondeterminism", "error": "NondeterminismError", "since": "2026-01-01T00:00:00Z", "attempt": 9}
    Instance.objects.update(blocked=blocked)
    Chain.objects.update(failed_tries=9, due_at=loop.storage.now().replace(year=2100))
    insert_message(started.chain_id, kind="signal", name="stop", body=None, storage=DjangoStorage())

    with loop.storage.transaction():
        loop.row.remove(loop.storage)
    turn(another)
    assert (instance(started).status, instance(started).blocked) == ("completed", None)


def test_environments_raise_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Calling(Workflow):
        async def run(self, args: Any) -> Any:
            try:
                return Ok(await durable.double(2))
            except errors.ActivityFailure as exc:
                return Err(exc.type)

    monkeypatch.delitem(activity.registry, durable.double.name)
    handle = WorkflowEnvironment().start(Calling)
    with pytest.raises(errors.WorkflowFailed, match="ActivityNotFound"):
        handle.result()


def test_a_codec_says_which_key_it_lacks() -> None:
    error = errors.KeyMissing("k2")
    assert (error.key, error.code) == ("k2", "key_missing")
    assert "'k2'" in str(error)
    assert not HistoryEvent.objects.exists()
