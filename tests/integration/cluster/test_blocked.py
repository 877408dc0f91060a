"""Runs on a cluster whose workflow task fails again and again: their state and history, which the server tells."""

from __future__ import annotations

import html
import io
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.management import doctor
from temporalex_django.models import Instance
from temporalex_django.present.diagnosis import diagnose
from tests.support.run_pages import text_of
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-blocked-{uuid.uuid4().hex[:8]}"
API = "/api/instances/"
#: The code of the workflows is another one, or has a bug, while it is set.
changed = threading.Event()


@activity
def weigh_blocked(grams: int) -> int:
    return grams


class BlockedChange(Workflow):
    task_queue = QUEUE
    signals = ("go",)

    async def run(self, args: Any) -> Any:
        if changed.is_set():
            await api.sleep(3600)
        else:
            await weigh_blocked(4711)
        await api.wait_for_signal("go")
        return Ok(1)


class BlockedBug(Workflow):
    task_queue = QUEUE
    unexpected_error = "block"
    signals = ("go",)

    async def run(self, args: Any) -> Any:
        await weigh_blocked(4711)
        await api.wait_for_signal("go")
        if changed.is_set():
            raise KeyError("card 4711")
        return Ok(1)


class BlockedGone(Workflow):
    task_queue = QUEUE
    signals = ("go",)

    async def run(self, args: Any) -> Any:
        await weigh_blocked(4711)
        await api.wait_for_signal("go")
        return Ok(1)


@pytest.fixture(autouse=True)
def _old_code() -> Iterator[None]:
    changed.clear()
    yield
    changed.clear()


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@contextmanager
def without(cls: type[Workflow]) -> Iterator[None]:
    """Let this process lack the class, as a worker with other code does."""
    entry = workflows.registry.pop(cls.name)
    try:
        yield
    finally:
        workflows.registry[cls.name] = entry


def pending_attempt(run: Instance) -> int:
    """The number of the next try of the run's task, by the server."""

    async def read(sdk: Any) -> Any:
        return await sdk.get_workflow_handle(run.cluster_id).describe()

    return int(cluster_client().call(read).raw_description.pending_workflow_task.attempt)


def started(cls: type[Workflow], start_worker: Any) -> Any:
    """A run that waits for its signal. The worker that ran it has stopped."""
    with start_worker():
        handle = cls.start(None, id=f"blocked-{uuid.uuid4().hex[:6]}")
        wait_for(lambda: "signal" in str(Instance.objects.get().waits))
    return handle


def page(client: Client, run: Any) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text_of(client, run))))


def command(*arguments: str) -> str:
    output = io.StringIO()
    try:
        call_command("temporalex", *arguments, stdout=output, stderr=output)
    except (CommandError, SystemExit) as exc:
        output.write(str(exc))
    return " ".join(output.getvalue().split())


CASES: list[Any] = [
    pytest.param(BlockedChange, "NondeterminismError", "nondeterminism", id="nondeterminism"),
    pytest.param(BlockedBug, "KeyError: 'card 4711'", "KeyError", id="bug"),
    pytest.param(BlockedGone, "UnknownWorkflow", "unknown_workflow", id="missing class"),
]


@contextmanager
def blocked(cls: type[Workflow], start_worker: Callable[[], Any]) -> Iterator[Any]:
    """A run whose task fails on the server, while a worker tries it."""
    handle = started(cls, start_worker)
    changed.set()
    handle.signal("go")
    with without(cls) if cls is BlockedGone else nullcontext(), start_worker():
        wait_for(lambda: pending_attempt(Instance.objects.get()) > 1)
        yield handle


@pytest.mark.parametrize(("cls", "error", "code"), CASES)
def test_a_run_whose_task_fails_is_blocked_and_has_its_history(
    cls: type[Workflow], error: str, code: str, start_worker: Any, admin: Client
) -> None:
    with blocked(cls, start_worker) as handle:
        wait_for(lambda: Instance.objects.get().blocked)
        began = time.monotonic()
        text = page(admin, handle.run_id)
        took = time.monotonic() - began
        detail = admin.get(f"{API}{handle.run_id}/").json()
        events = admin.get(f"{API}{handle.run_id}/events/").json()["results"]
        timeline = admin.get(f"{API}{handle.run_id}/timeline/").json()["results"]
        described, examined = command("describe", str(handle.run_id)), command("doctor", str(handle.run_id))
        printed = command("history", str(handle.run_id))
        codes = {found.code for found in diagnose(doctor.load_project(), now=timezone.now())}

    assert "not available" not in text
    assert took < 2  # nobody waited for a worker
    # Without the class nobody knows which fields it redacts, so texts of errors and payloads are hidden.
    is_hidden = cls is BlockedGone
    assert (code if is_hidden else error) in text
    assert "eigh blocked" in text
    assert detail["blocked"]["code"] == code
    assert is_hidden or error in detail["blocked"]["error"]
    assert detail["blocked"]["attempt"] >= 1
    assert detail["blocked"]["since"] <= detail["blocked"]["last"]
    kinds = [event["kind"] for event in events if event["kind"] != "ActivationStarted"]
    assert kinds == ["WorkflowStarted", "ActivityScheduled", "ActivityCompleted", "SignalReceived"]
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
    (called,) = [event for event in events if event["kind"] == "ActivityScheduled"]
    assert is_hidden or called["attributes"]["args"] == [4711]
    assert [(row["kind"], row["state"]) for row in timeline] == [
        ("run", "open"), ("activity", "done"), ("signal", "taken"),
    ]  # fmt: skip
    assert error.partition(":")[0] in described
    assert "Blocked since" in examined
    assert "eigh blocked" in printed
    assert "blocked" in codes


@pytest.mark.parametrize(("cls", "error", "code"), CASES)
def test_the_server_alone_tells_why_a_task_fails(
    cls: type[Workflow], error: str, code: str, start_worker: Any, admin: Client
) -> None:
    with blocked(cls, start_worker) as handle:
        wait_for(lambda: Instance.objects.get().blocked)
    # The worker has stopped, and its row says nothing, as if the server had failed the task.
    Instance.objects.update(blocked=None)

    mark = handle.describe().blocked

    assert mark["code"] == code
    assert error in mark["error"]
    assert mark["attempt"] >= 1
    assert mark["since"] <= mark["last"]
    assert ("test_blocked.py:" in mark.get("place", "")) is (cls is BlockedBug)
    assert error in page(admin, handle.run_id)
    assert admin.get(f"{API}{handle.run_id}/").json()["blocked"]["code"] == code
    assert "Blocked since" in command("doctor", str(handle.run_id))
    assert "SignalReceived" in {event.kind for event in handle.history()}


def test_without_the_permission_the_error_is_hidden_and_its_type_and_place_are_not(start_worker: Any) -> None:
    user = get_user_model().objects.create_user("ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_instance"))
    reader = Client()
    reader.force_login(user)
    with blocked(BlockedBug, start_worker) as handle:
        wait_for(lambda: Instance.objects.get().blocked)
        marked = page(reader, handle.run_id)
    Instance.objects.update(blocked=None)
    told = page(reader, handle.run_id)
    body = json.dumps(reader.get(f"{API}{handle.run_id}/").json())

    for text in (marked, told):
        assert "KeyError in" in text
        assert "test_blocked.py:" in text
    for text in (marked, told, body):
        assert "4711" not in text


def test_a_run_continues_and_is_not_blocked_once_the_code_is_mended(start_worker: Any) -> None:
    with blocked(BlockedBug, start_worker) as handle:
        wait_for(lambda: Instance.objects.get().blocked)
        changed.clear()
        assert handle.result(timeout=60) == 1
    assert handle.describe().blocked is None


def test_a_query_that_meets_other_code_blocks_no_run(start_worker: Any) -> None:
    handle = started(BlockedChange, start_worker)
    changed.set()
    with start_worker(), pytest.raises(Exception, match=r"ondeterminism|no worker"):
        handle.history()
    assert handle.describe().blocked is None
