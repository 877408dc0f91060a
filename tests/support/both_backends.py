"""Tests of the interfaces on both backends: on the tables, and again with their runs on a cluster.

Usually the files of ``SAMPLE`` run on both. With ``BACKEND=temporal`` in the environment all tests of ``FOLDERS`` run
on the cluster alone. A test that a cluster cannot pass is named in ``both_backends.json`` with a reason of a closed
list, and must fail there. Modules about the tables themselves have the marker ``of_the_tables`` with the reason, and do
not run there.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice import v1 as service
from temporalio.service import RPCError

from temporalex_django import conf
from temporalex_django.backends.cluster import calls, mirrored_run
from temporalex_django.backends.cluster import client as clients
from temporalex_django.backends.cluster import worker as workers
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.runs import ClusterRun
from temporalex_django.core.names import TEMPORAL
from temporalex_django.models import Instance
from temporalex_django.testing import database
from temporalex_django.workers.loop import run_until_idle
from tests.support.cluster_worker import running_worker
from tests.support.waiting import wait_for

FOLDERS: Final = ("admin", "client", "console", "human_tasks", "management", "operations", "rest")
#: Files that run on both backends in the lanes. ``make test-all`` has a part of its own with all files.
SAMPLE: Final = frozenset({"human_tasks/test_rest.py", "rest/test_idempotency.py"})
#: The closed list of reasons. Tests with one that begins with "tables" look into the tables, or into workers of theirs.
#: The others are refused by a cluster, or differ there as the docs say.
REASONS: Final[dict[str, str]] = {
    "transaction": "an update inside a transaction is refused",
    "refused": "`fork`, `move`, `try_again` and new inputs are refused",
    "history": "only a worker with the class of a run can read its history on a cluster, and not while the run is paused",
    "audit": "a message is audited when it is sent, and not when it is accepted or refused",
    "deciding": "a decision takes effect when the run has accepted it. Until then, the task is marked as being decided",
    "late": "the cluster executes an operation before its row is written, so an error of the database is raised afterwards",
    "tables: rows": "reads or writes rows of the tables",
    "tables: statements": "counts statements",
    "tables: workers": "blocked runs, crashes, and code that a process lacks",
    "tables: turns": "turns run, and transactions are committed, only when the test says so",
}
#: Tests with these reasons may pass: a worker of the cluster is as quick as it is, and has its own connection.
BY_CHANCE: Final = frozenset({"tables: turns", "tables: statements"})
PAGE: Final = Path(__file__).with_name("both_backends.json")
_QUEUE: Final = "default"
_STARTED: Final = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
#: Seconds for which ``drain()`` waits until no run on the cluster is busy.
_DRAIN_SECONDS: Final = 20.0
#: Looks at all runs, one after the other, in which nothing may be under way.
_QUIET_LOOKS: Final = 2


def backends_of(nodeid: str) -> tuple[str, ...]:
    """Return the backends on which a test runs that uses the database."""
    if not has_choice(nodeid):
        return ("tables",)
    if os.environ.get("BACKEND") == TEMPORAL:
        return (TEMPORAL,)
    return ("tables", TEMPORAL) if case_name(nodeid).partition(":")[0] in SAMPLE else ("tables",)


def has_choice(nodeid: str) -> bool:
    """Return True if a test is in a folder whose tests run on both backends."""
    return case_name(nodeid).partition("/")[0] in FOLDERS


def case_name(nodeid: str) -> str:
    """Return the name of a test without its backend: ``client/test_ids.py::test_a[0]``."""
    name = nodeid.rpartition("tests/integration/")[2].split("@")[0]
    function, bracket, parameters = name.partition("[")
    rest = "-".join(part for part in parameters.removesuffix("]").split("-") if part not in ("on_tables", "on_cluster"))
    return f"{function}[{rest}]" if bracket and rest else function


def exceptions() -> dict[str, str]:
    """Return the reason of each test that a cluster does not pass, by name."""
    by_reason: dict[str, list[str]] = json.loads(PAGE.read_text(encoding="utf-8"))
    return {name: reason for reason, names in by_reason.items() for name in names}


# -- the cluster ------------------------------------------------------------------------------------------------------


@contextmanager
def process_cluster(address: str) -> Iterator[dict[str, Any]]:
    """A namespace and a worker of this process; the value is the setting ``CLUSTER``. All queues are one there."""
    entry = {"ADDRESS": address, "NAMESPACE": f"suite-{uuid.uuid4().hex[:8]}", "PREFIX": ""}
    _register_namespace(address, entry["NAMESPACE"])
    with pytest.MonkeyPatch.context() as patch:
        use_settings(entry, patch)
        for module in (workers, mirrored_run):  # the queue that is polled, and those of children
            patch.setattr(module, "task_queue", lambda queue: _QUEUE)
        with running_worker(_QUEUE):
            wait_for(_is_polled)
            patch.undo()
            yield entry
    with clients._lock:
        client, clients._client = clients._client, None
    if client is not None:
        client.close()


def _is_polled() -> bool:
    client = cluster_client()
    request = service.DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    return bool(client.call(lambda sdk: sdk.workflow_service.describe_task_queue(request)).pollers)


def _register_namespace(address: str, name: str) -> None:
    from temporalio.client import Client

    async def register() -> None:
        """Try it until the server, which may just have started, is ready for runs of the namespace."""
        deadline = time.monotonic() + 60
        while True:
            try:
                client = await Client.connect(address)
                with suppress(RPCError):  # it exists, from an earlier try
                    await client.workflow_service.register_namespace(request)
                await client.workflow_service.list_open_workflow_executions(
                    service.ListOpenWorkflowExecutionsRequest(namespace=name, maximum_page_size=1)
                )
            except (RPCError, RuntimeError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    request = service.RegisterNamespaceRequest(namespace=name)
    request.workflow_execution_retention_period.FromSeconds(86_400)
    asyncio.run(register())


def use_settings(entry: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    """Route runs to the cluster, also where a test overrides the setting ``TEMPORALEX``."""
    read = conf._raw_settings
    defaults = {"BACKEND": TEMPORAL, "CLUSTER": entry}
    memo: list[Any] = [None, None]

    def merged() -> Any:
        raw = read()
        if not isinstance(raw, dict):
            return raw if raw is not conf._NO_SETTINGS else defaults
        if memo[0] is not raw:
            memo[:] = raw, {**defaults, **raw}
        return memo[1]

    patch.setattr(conf, "_raw_settings", merged)


@contextmanager
def cluster_routing(entry: dict[str, Any]) -> Iterator[None]:
    """Route the runs of a test to the cluster, and let ``drain()`` wait for them there."""
    entry["PREFIX"] = f"{uuid.uuid4().hex[:8]}:"
    with pytest.MonkeyPatch.context() as patch:
        use_settings(entry, patch)
        start_request = calls.start_request
        patch.setattr(
            calls, "start_request", lambda *args, **options: start_request(*args, **{**options, "queue": _QUEUE})
        )
        patch.setattr(database, "run_until_idle", drain)
        yield
        _terminate_open_runs()


def drain(*, timeout: float | None = 20.0, **options: Any) -> int:
    """Do the work on the tables, send the outbox, and wait until no run on the cluster can go on by itself."""
    turns = run_until_idle(timeout=timeout, **options)
    deadline = time.monotonic() + _DRAIN_SECONDS
    quiet = 0
    while quiet < _QUIET_LOOKS:
        # The worker of the cluster writes in between. On SQLite, one transaction after the other would let it starve.
        if _any_open_run(_is_busy):
            quiet = 0
        else:
            turns += run_until_idle(timeout=timeout, **options)
            quiet += 1
        if time.monotonic() > deadline:
            raise TimeoutError(f"there is still work on the cluster after {_DRAIN_SECONDS:g} s")
        time.sleep(0.01)
    return turns


def _any_open_run(look: Any) -> bool:
    """Return True if ``look`` is true for any open run of the tables that is on the cluster."""
    rows = Instance.objects.filter(chain__closed=False, cluster_id__isnull=False)
    runs: dict[str, Any] = dict(rows.order_by("id").values_list("cluster_id", "blocked"))
    if not runs:
        return False
    client = cluster_client()

    async def ask(sdk: Any) -> list[bool]:
        return await asyncio.gather(*(look(sdk, client, cluster_id, runs) for cluster_id in runs))

    return any(client.call(ask))


async def _is_busy(sdk: Any, client: Any, cluster_id: str, runs: dict[str, Any]) -> bool:
    """Return True if the run goes on by itself. ``runs`` has the marks of all open runs, by their ids on the cluster.

    The server repeats a task for which the database had no time, and tells a parent of the end of a child.
    """
    request = service.DescribeWorkflowExecutionRequest(
        namespace=client.namespace, execution=calls.execution(_run(cluster_id))
    )
    try:
        answer = await sdk.workflow_service.describe_workflow_execution(request)
    except RPCError:
        return False
    task = answer.pending_workflow_task
    if answer.HasField("pending_workflow_task") and (task.attempt <= 1 or runs[cluster_id] is None):
        return True
    if any(child.workflow_id not in runs for child in answer.pending_children):
        return True
    return any(activity.state == _STARTED or activity.attempt <= 1 for activity in answer.pending_activities)


async def _terminate(sdk: Any, client: Any, cluster_id: str, runs: dict[str, Any]) -> bool:
    try:
        request = calls.make_request(service.TerminateWorkflowExecutionRequest, _run(cluster_id), reason="it has ended")
        await clients.send(sdk, request)
    except RPCError:
        return False
    return True


def _run(cluster_id: str) -> ClusterRun:
    return ClusterRun(cluster_id=cluster_id, chain_id=uuid.UUID(int=0), workflow="", workflow_id="")


def _terminate_open_runs() -> None:
    _any_open_run(_terminate)
