"""Deploys with worker versioning: the build that gets the tasks of runs, and the code that pinned runs keep."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

from temporalex_django import Ok, Reply, Workflow, activity, api, update
from temporalex_django.authoring.workflow import class_for_run
from temporalex_django.backends.cluster import deployments
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.management import doctor
from temporalex_django.models import Instance
from temporalex_django.present.diagnosis import diagnose
from tests.support.cluster_worker import running_worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-deploys-{uuid.uuid4().hex[:8]}"
#: Seconds in which each update has to be answered while two builds poll.
ANSWER = 5.0

BuildMaker = Callable[[str], AbstractContextManager[None]]


@activity
def double(number: int) -> int:
    return 2 * number


class DeployedCart(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.phase(0, update={"add": update(lambda number, total: Reply("old", total + number))}))


class DeployedCartNext(Workflow):
    """The code of ``DeployedCart`` after a deploy: an update schedules an activity, which the old code does not."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        async def add(number: int, total: int) -> Any:
            if api.patched("double"):
                number = await double(number)
            return Reply("new", total + number)

        return Ok(await api.phase(0, update={"add": update(add)}))


class PinnedCart(DeployedCart):
    versioning = "pinned"


class PinnedCartNext(DeployedCartNext):
    versioning = "pinned"


NEXT = {"DeployedCart": DeployedCartNext, "PinnedCart": PinnedCartNext}


@pytest.fixture
def running_build(cluster: dict[str, Any], settings: Any) -> BuildMaker:
    """A function that runs a worker with a build while its block runs; from the build "2" on, it has the new code."""
    deployment = f"deploy-{uuid.uuid4().hex[:8]}"

    def run(build: str) -> AbstractContextManager[None]:
        entry = {**cluster, "DEPLOYMENT": deployment, "BUILD_ID": build}
        settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": entry}
        classes = {} if build == "1" else NEXT
        return running_worker(
            QUEUE, name=build, resolve=lambda name, version: classes.get(name) or class_for_run(name, version)
        )

    return run


def wait_for_build() -> None:
    """Wait until the cluster knows the build of this process."""
    wait_for(lambda: cluster_client().call(deployments.read_build).has_polled)


def started(cls: Any, count: int) -> list[Any]:
    handles = [cls.start(None, id=f"deployed-{uuid.uuid4().hex[:8]}") for _ in range(count)]
    wait_for(lambda: Instance.objects.filter(workflow=cls.name, status="waiting").count() == count)
    return handles


def add_to_all(carts: list[Any]) -> tuple[set[str], float]:
    """Send an update to each cart at the same time; return the answers and the seconds of the slowest."""

    def add(cart: Any) -> tuple[str, float]:
        began = time.monotonic()
        try:
            return cart.update("add", 1, timeout=60), time.monotonic() - began
        finally:
            connections.close_all()

    with ThreadPoolExecutor(10) as threads:
        answers = [*threads.map(add, carts)]
    return {answer for answer, _ in answers}, max(seconds for _, seconds in answers)


def codes() -> set[str]:
    return {finding.code for finding in diagnose(doctor.load_project(), now=timezone.now())}


def test_updates_are_answered_in_time_while_two_builds_poll(running_build: BuildMaker) -> None:
    with running_build("1"):
        wait_for_build()
        assert "build_waits" in codes()
        deployments.make_current()
        carts = started(DeployedCart, 100)
        assert not codes() & {"build_waits", "build_reused"}
        with running_build("2"):
            wait_for_build()
            output = StringIO()
            call_command("temporalex", "replay", open=True, processes=1, make_current=True, stdout=output)
            assert "The build 2 of the deployment deploy-" in output.getvalue()
            answers, slowest = add_to_all(carts)
            assert slowest < ANSWER
            assert answers <= {"old", "new"}
            answers, slowest = add_to_all(carts)
            assert (answers, slowest < ANSWER) == ({"new"}, True)


def test_a_pinned_run_keeps_the_code_with_which_it_started(running_build: BuildMaker) -> None:
    with running_build("1"):
        wait_for_build()
        deployments.make_current()
        before = started(PinnedCart, 1)
        with running_build("2"):
            wait_for_build()
            deployments.make_current()
            after = started(DeployedCart, 1)
            assert add_to_all(after)[0] == {"new"}
            assert add_to_all(before)[0] == {"old"}


def test_two_deploys_with_one_build_id_are_named(
    running_build: BuildMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running_build("1"):
        wait_for_build()
        cluster_client().call(deployments.note_code)
        assert "build_reused" not in codes()
        monkeypatch.setattr(deployments, "code_digest", lambda: "other code")
        cluster_client().call(deployments.note_code)
        assert "was deployed before with other code" in caplog.text
        assert "build_reused" in codes()
        with pytest.raises(CommandError, match="give each deploy its own BUILD_ID"):
            call_command("temporalex", "replay", make_current=True, stdout=StringIO())


def test_a_build_without_a_worker_does_not_become_current(running_build: BuildMaker) -> None:
    with running_build("1"):
        wait_for_build()
    running_build("2")
    with pytest.raises(CommandError, match=r"no worker has polled with build 2 .* start workers with it first"):
        call_command("temporalex", "replay", make_current=True, stdout=StringIO())


def test_a_project_without_a_deployment_has_no_build(cluster: Any) -> None:
    assert deployments.worker_config() is None
    with pytest.raises(CommandError, match=r"set TEMPORALEX\['CLUSTER'\]\['DEPLOYMENT'\]"):
        call_command("temporalex", "replay", make_current=True, stdout=StringIO())
