"""Arguments of the public API on the database whose use nothing else would miss.

``tests/structure/public_arguments.toml`` names them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import override_settings
from django.utils.connection import ConnectionDoesNotExist
from rest_framework.test import APIClient

from temporalex_django import (
    Done,
    Event,
    GraphWorkflow,
    Ok,
    Step,
    Unique,
    VersionedWorkflow,
    WaitForEvent,
    Workflow,
    WorkflowHandle,
    api,
    apps,
    errors,
)
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import Instance, OperatorAction, Worker
from temporalex_django.testing import DjangoEnvironment, drain
from temporalex_django.workers.loop import WorkerLoop
from tests.support.client_flows import Failing
from tests.support.people import stored

pytestmark = pytest.mark.django_db


class Ringing(Workflow):
    """Gives its arguments, and the first signal with its sender."""

    name = "test.Ringing"
    search_attributes = {"rings": int}

    async def run(self, args: Any) -> Ok:
        payload = await api.wait_for_signal("ring")
        sender = api.sender()
        return Ok([args, payload, sender and sender.name])


class RingingTwice(Workflow):
    version = 2
    search_attributes = {"rings": int}

    async def run(self, args: Any) -> Ok:
        payload = await api.wait_for_signal("ring")
        sender = api.sender()
        return Ok([2, args, payload, sender and sender.name])


class RingingOnce(Ringing):
    version = 1


class Versioned(VersionedWorkflow):
    """A dispatcher whose second version says so."""

    name = "test.RingingVersions"
    versions = {1: RingingOnce, 2: RingingTwice}
    current = 1


def test_start_takes_its_input_by_name_too() -> None:
    Ringing.start(args={"a": 1}, id="by-name")

    assert Instance.objects.get().input == {"a": 1}


@pytest.mark.parametrize("flow", [Ringing, Versioned])
def test_signal_with_start_uses_all_that_it_is_given(flow: Any) -> None:
    ann, group = stored("ann", "temporalex_django.start_instance"), Group.objects.create(name="deciders")
    version = {"version": 2} if flow is Versioned else {}

    more = {"search_attributes": {"rings": 2}, "tags": ["loud"], **version}
    handle = flow.signal_with_start("ring", "loud", {"a": 1}, id="door", subject=group, by=ann, **more)
    drain()

    assert handle.id == "door"
    assert flow.handle("door").result() == [*version.values(), {"a": 1}, "loud", "ann"]
    assert Instance.objects.get().subject == group
    assert (Instance.objects.get().search_attributes, Instance.objects.get().tags) == ({"rings": 2}, ["loud"])
    with pytest.raises(errors.PayloadError, match="no search attribute 'ring' is declared"):
        flow.signal_with_start("ring", id="window", search_attributes={"ring": 2}, **version)
    audit = OperatorAction.objects.order_by("id").values_list("action", "actor_name")
    assert list(audit) == [("start", "ann"), ("signal", "ann")]


def test_a_handle_of_a_chain_stays_with_it() -> None:
    first = Ringing.start(id="door")
    first.signal("ring")
    drain()
    second = Ringing.start(id="door")
    drain()  # until then a run on a cluster may have begun or not: its worker polls on its own

    assert WorkflowHandle("door", chain_id=first.chain_id).status == "completed"
    assert WorkflowHandle("door", chain_id=second.chain_id).status == "waiting"


def test_a_dispatcher_gives_the_handle_of_its_own_run() -> None:
    Versioned.start(id="mine")
    Ringing.start(id="other")

    assert Versioned.handle("mine").describe().workflow == "test.RingingVersions"
    with pytest.raises(errors.WorkflowNotFound):
        Versioned.handle("other").describe()


def test_a_handle_says_why_it_cancels_and_does_not_wait_for_less_than_nothing() -> None:
    handle = Ringing.start(id="door")
    drain()

    with pytest.raises(ValueError, match="timeout must not be negative"):
        handle.update("x", timeout=-1)
    handle.cancel("enough")
    drain()

    assert [e.attributes for e in handle.history() if e.kind == "CancelRequested"] == [{"reason": "enough"}]


class Begin(Step):
    events = ("begun",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("begun")


class Both(Begin):
    """Where the two meet."""


class Two(GraphWorkflow):
    """Two steps that wait for the same."""

    name = "test.TwoHooks"
    unique = Unique(key="twohooks")
    left, right = WaitForEvent("paid", key="left"), WaitForEvent("paid", key="right")
    initial = Begin
    transitions = {(Begin, "begun"): [left, right], (left, "paid"): Both, (right, "paid"): Both, (Both, "begun"): Done}


def test_a_handle_resumes_the_step_that_is_named() -> None:
    handle = Two.start("1")
    drain()
    with pytest.raises(ValueError, match="timeout must not be negative"):
        handle.resume("paid", step="right", timeout=-1)
    handle.resume("paid", step="right")

    assert [step.key for step in handle.instance().waiting_steps] == ["left"]
    Two.resume("1", "paid", step="left", data={"a": 1}, by="ann")
    assert handle.instance().context.steps.left == {"a": 1, "by": "ann"}


def test_drain_gives_up_in_time() -> None:
    Ringing.start(id="door")
    Ringing.handle("door").signal("ring")

    with pytest.raises(TimeoutError):
        drain(timeout=-1)


def test_an_environment_that_evicts_keeps_nothing_in_memory() -> None:
    for evict in (True, False):
        env = DjangoEnvironment(evict=evict)
        env.start(Ringing, id=f"door-{evict}")

        assert len(env.engine.cache) == (not evict)


def test_what_a_class_says_is_on_the_rows_of_its_runs() -> None:
    class Asked(Workflow):
        name = "test.Asked"
        unique = Unique(key="asked")
        task_queue = "slow"
        version = 3
        tags = ["a"]
        metadata = {"b": 1}
        execution_timeout = 600
        run_timeout = 60

        async def run(self, args: Any) -> Ok:
            return Ok(None)

    handle = Asked.start("1")

    row = Instance.objects.get()
    assert (handle.id, row.workflow, row.queue, row.version) == ("asked::1", "test.Asked", "slow", 3)
    assert (row.tags, row.metadata, row.run_timeout) == (["a"], {"b": 1}, 60)
    assert abs(row.expires_at - row.created_at - timedelta(seconds=600)) < timedelta(seconds=60)  # two looks at a clock


class Apart(VersionedWorkflow):
    """Versions that may both be open under one value."""

    name = "test.Apart"

    class First(Workflow):
        unique = Unique(key="apart", scope="version")

        async def run(self, args: Any) -> Ok:
            await api.wait_for_signal("never")
            return Ok(None)

    class Second(First):
        version = 2

    versions = {1: First, 2: Second}
    current = 2


def test_the_facade_means_the_version_and_the_run_that_is_named() -> None:
    ann = stored("ann", "temporalex_django.cancel_instance")
    for version in (1, 2):
        Apart.start("1", version=version)
    Apart.start("2")
    drain()

    with pytest.raises(errors.ResumeRefused, match="is not a graph"):
        Apart.resume("1", "go", version=1)
    Apart.cancel("1", version=1, by=ann)
    drain()

    assert [Apart.get("1", version=version).status for version in (1, 2)] == ["cancelled", "waiting"]
    assert list(OperatorAction.objects.values_list("action", "actor_name")) == [("cancel", "ann")]
    assert [handle.id for handle in Apart.list(id="apart::2")] == ["apart::2"]


def test_rest_passes_on_what_it_is_given() -> None:
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))

    def post(path: str, body: dict[str, Any]) -> Any:
        return client.post(f"/api/instances/{path}", body, format="json")

    assert post("", {"workflow": "test.RingingVersions", "id": "door", "version": 1}).json()["version"] == 1
    refused = post("", {"workflow": "test.RingingVersions", "id": "gate", "version": 2})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted")
    Two.start("1")
    drain()
    answer = post("twohooks::1/resume/", {"event": "paid", "step": "right", "data": {"a": 1}})
    assert answer.status_code == 200
    instance = Two.get("1").instance()
    assert [step.key for step in instance.waiting_steps] == ["left"]
    right = instance.context.steps.right
    assert (right.a, right.by, int(right.by_key) > 0) == (1, "root", True)
    refused = post("twohooks::1/updates/nothing/", {"id": "x" * 500})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_id")


@pytest.fixture
def loop() -> Iterator[Any]:
    made: list[WorkerLoop] = []

    def make(**settings: Any) -> WorkerLoop:
        with override_settings(TEMPORALEX=settings):
            made.append(WorkerLoop())
        return made[-1]

    yield make
    for one in made:
        one.marker.close()


def test_a_worker_is_made_as_the_settings_say(loop: Any) -> None:
    made = loop(ACTIVITY_THREADS=3, ACTIVITY_TASKS=5, CACHE_SIZE=7, CACHE_BYTES=8_000_000)

    assert (made.pool._threads, made.pool._tasks, made.engine.cache._size) == (3, 5, 7)
    assert made.engine.cache._max_bytes == 8_000_000
    with override_settings(TEMPORALEX={"TURN_SIZE": 9}):
        assert made.storage.turn_size == 9


@pytest.mark.parametrize(("setting", "blocked"), [("block", "LookupError"), ("fail", None)])
def test_an_unexpected_error_does_what_the_setting_says(setting: str, blocked: str | None) -> None:
    with override_settings(TEMPORALEX={"UNEXPECTED_ERROR": setting}):
        handle = Failing.start("raise", id="failing-1")
        drain(timeout=20)

    assert (handle.describe().blocked or {}).get("code") == blocked


def test_a_worker_is_given_the_lease_of_the_settings(loop: Any) -> None:
    made = loop()
    with override_settings(TEMPORALEX={"LEASE_SECONDS": 3000.0}):
        made.row.register(made.storage)

    assert Worker.objects.get().expires_at - made.storage.now() > timedelta(seconds=2000)


def test_a_worker_that_stops_waits_as_long_as_the_settings_say(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, waited = loop(), []
    monkeypatch.setattr(made.pool, "drain", lambda seconds: waited.append(seconds) or [])
    with override_settings(TEMPORALEX={"DRAIN_SECONDS": 7.0}):
        made._shut_down(None, hurried=False)

    assert waited == [7.0]


def test_an_idle_worker_looks_as_often_as_the_settings_say(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, stop, waited = loop(), threading.Event(), []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        stop.set()

    monkeypatch.setattr(made.wake, "wait", wait)
    with override_settings(TEMPORALEX={"POLL_INTERVAL": 0.75}):
        made._run_loop(stop, until_idle=False, timeout=None)
        for listens in (True, False):
            stop.clear()
            made.listener = SimpleNamespace(locked=listens)
            made._run_loop(stop, until_idle=False, timeout=None)
        made.listener, made._pause = None, 0.2  # it has done something, and nobody rings
        for _ in range(3):
            stop.clear()
            made._run_loop(stop, until_idle=False, timeout=None)

    assert waited == [0.75, 3.75, 0.75, 0.2, 0.4, 0.75]


def test_runserver_runs_workflows_when_the_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr("sys.argv", ["manage.py", "runserver", "--noreload"])
    monkeypatch.setattr(apps.threading.Thread, "start", lambda thread: begun.append(thread.name))
    for wanted in (True, False):
        with override_settings(TEMPORALEX={"LOCAL_RUNNER": wanted}, DEBUG=not wanted):
            apps._start_local_runner()

    assert begun == ["temporalex-begin"]


def test_a_cluster_has_as_many_workers_as_the_settings_say() -> None:
    broker = pytest.importorskip("temporalex_django.workers.q2.broker")
    with override_settings(TEMPORALEX={"Q2_PUMPS": 17}):
        assert broker.worker_count() == 17


@pytest.mark.parametrize(("setting", "value"), [("WORKER_MAX_MEMORY_MB", 1), ("WORKER_MAX_SECONDS", 0.01)])
def test_a_worker_that_is_old_or_large_retires(setting: str, value: Any) -> None:
    worker_process = pytest.importorskip("temporalex_django.workers.q2.worker_process")
    stop = threading.Event()
    with override_settings(TEMPORALEX={setting: value}):
        watch = threading.Thread(target=worker_process._watch, args=[stop], daemon=True)
        watch.start()
        assert stop.wait(20)
        watch.join(20)


def test_the_tables_are_those_of_the_database_in_the_settings() -> None:
    with (
        override_settings(TEMPORALEX={"DATABASE": "elsewhere"}),
        pytest.raises(ConnectionDoesNotExist, match="elsewhere"),
    ):
        DjangoStorage()
