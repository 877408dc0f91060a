"""What goes wrong between this project and its cluster: each has an error that names the thing and the next step."""

from __future__ import annotations

import socket
import subprocess
import sys
import uuid
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.backends import routing
from temporalex_django.models import Chain, Instance, Outbox
from temporalex_django.workers.loop import run_until_idle
from tests.integration.cluster.conftest import WorkerMaker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-faults-{uuid.uuid4().hex[:8]}"


class MirroredWaiter(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class TablesWaiter(Workflow):
    backend = "tables"

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


def new_id() -> str:
    return f"faulty-{uuid.uuid4().hex[:6]}"


def settings_with(settings: Any, **entries: Any) -> None:
    old = settings.TEMPORALEX
    settings.TEMPORALEX = {**old, "CLUSTER": {**old["CLUSTER"], **entries}}


@pytest.fixture
def nobody() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_start_without_a_server_waits_in_the_outbox(cluster: Any, settings: Any, nobody: str) -> None:
    settings_with(settings, ADDRESS=nobody)
    handle = MirroredWaiter.start(None, id=new_id())
    assert handle.describe().status == "pending"
    (row,) = Outbox.objects.all()
    assert (row.kind, row.tries, row.failed) == ("temporal.start", 1, None)
    assert nobody in str(row.error)
    with pytest.raises(errors.UpdateTimeout, match="cannot be reached"):
        handle.update("anything", timeout=5)
    with pytest.raises(errors.QueryFailed, match="its start has not reached"):
        handle.query("anything")
    with pytest.raises(errors.ActionNotPossible, match="its start has not reached"):
        handle.skip_timer(1)
    settings_with(settings, ADDRESS=cluster["ADDRESS"])
    Outbox.objects.update(due_at=timezone.now())
    run_until_idle()
    assert not Outbox.objects.exists()
    assert Instance.objects.get().cluster_run_id is not None


def test_a_namespace_that_does_not_exist_keeps_the_row(cluster: Any, settings: Any) -> None:
    settings_with(settings, NAMESPACE="nowhere")
    MirroredWaiter.start(None, id=new_id())
    (row,) = Outbox.objects.all()
    assert row.failed is None
    assert "nowhere" in str(row.error)


def test_a_query_without_a_worker_says_so(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from temporalex_django.backends.cluster import reads

    monkeypatch.setattr(reads, "QUERY_SECONDS", 1.0)
    handle = MirroredWaiter.start(None, id=new_id())
    with pytest.raises(errors.QueryTimeout, match="Is a worker polling the task queue"):
        handle.query("anything")
    browser = APIClient()
    browser.force_authenticate(get_user_model().objects.create(username="root", is_superuser=True))
    answer = browser.post(f"/api/instances/{handle.run_id}/queries/anything/", {}, format="json")
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "query_timeout", "1")


def test_two_projects_share_a_namespace_by_their_prefixes(cluster: Any, settings: Any) -> None:
    name = new_id()
    MirroredWaiter.start(None, id=name)
    Instance.objects.all().delete()  # the other project has no rows of this one
    Chain.objects.all().delete()
    settings_with(settings, PREFIX="other:")
    MirroredWaiter.start(None, id=name)
    assert not Outbox.objects.exists()


def test_a_run_that_somebody_else_has_started_under_the_id_fails_the_start(
    cluster: Any, start_worker: WorkerMaker
) -> None:
    from temporalex_django.backends.cluster.client import cluster_client

    name = new_id()
    client = cluster_client()
    client.call(
        lambda sdk: sdk.start_workflow(
            "MirroredWaiter", args=[None, {"version": 1}], id=f"{cluster['PREFIX']}g:{name}", task_queue=QUEUE
        )
    )
    with pytest.raises(errors.AlreadyRunning, match="on the Temporal cluster"):
        MirroredWaiter.start(None, id=name)
    run = Instance.objects.get()
    assert (run.status, run.closing_value["type"]) == ("failed", "AlreadyRunning")
    assert not Outbox.objects.exists()


def test_runs_of_both_backends_stand_side_by_side(cluster: Any, worker: None) -> None:
    ours, theirs = TablesWaiter.start(None, id=new_id()), MirroredWaiter.start(None, id=new_id())
    run_until_idle()
    for handle in (ours, theirs):
        wait_for(lambda handle=handle: handle.describe().waiting_for)
        handle.signal("go", 1)
    run_until_idle()
    assert [handle.result(timeout=20) for handle in (ours, theirs)] == [1, 1]
    assert {run.workflow: run.backend for run in Instance.objects.all()} == {
        "TablesWaiter": "tables",
        "MirroredWaiter": "temporal",
    }


def test_without_the_sdk_a_start_says_what_to_install(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'temporalio'")

    monkeypatch.setattr(routing, "_load_cluster", missing)
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "temporal"}
    with pytest.raises(errors.NotConfigured, match=r"pip install 'temporalex-django\[temporal\]'"):
        MirroredWaiter.start(None, id=new_id())


def test_the_package_does_not_import_the_sdk() -> None:
    code = (
        "import os, sys, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'; django.setup();"
        "import temporalex_django.client; assert 'temporalio' not in sys.modules, 'temporalio is loaded'"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
