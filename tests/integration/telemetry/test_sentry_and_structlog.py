"""Events of Sentry and lines of structlog: they have names and ids, and never a payload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
import structlog
from django.test import override_settings
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.integrations.stdlib import StdlibIntegration
from sentry_sdk.integrations.threading import ThreadingIntegration
from sentry_sdk.transport import Transport

from temporalex_django import Ok, RetryPolicy, Stop, Workflow, activity, api
from temporalex_django.contrib.sentry import Sentry
from temporalex_django.contrib.structlog import Structlog, add_run
from temporalex_django.interceptors.chain import chain
from temporalex_django.models import Instance
from temporalex_django.testing import WorkflowEnvironment
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db

SECRET = "payload-4711"


class Capturing(Transport):
    """Keeps the events that the SDK sends, as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [json.dumps(event) for item in envelope.items if (event := item.get_event()) is not None]


@pytest.fixture
def events() -> Iterator[list[str]]:
    transport, before = Capturing(), chain.interceptors
    # Those that wrap functions would stay for all later tests of the process.
    wrappers = [StdlibIntegration(), ThreadingIntegration(), DjangoIntegration()]
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=transport,
        include_local_variables=True,
        disabled_integrations=wrappers,
        auto_enabling_integrations=False,
    )
    chain.install([Sentry()])
    yield transport.events
    chain.install(before)
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init(default_integrations=False, auto_enabling_integrations=False)


def fail(value: str) -> None:
    card_number = value
    raise LookupError(card_number)


@activity(name="sentry.charge", retry=RetryPolicy(max_attempts=2, initial_interval=0.001))
def charge(value: str) -> None:
    try:
        fail(value)
    except LookupError as exc:
        raise ValueError(value) from exc


@activity(name="sentry.charge_at_once", atomic=True, retry=RetryPolicy(max_attempts=1))
def charge_at_once(value: str) -> None:
    fail(value)


class SentryOrder(Workflow):
    name = "sentry.Order"

    async def run(self, args: Any) -> Ok:
        await (charge if args["external"] else charge_at_once)(args["secret"])
        return Ok()


class SentryBlocked(Workflow):
    name = "sentry.Blocked"
    unexpected_error = "block"

    async def run(self, args: Any) -> Ok:
        fail(args)
        return Ok()


@override_settings(TEMPORALEX={"ALERTS": {"MAIL": ["ops@example.com"], "BASE_URL": "https://shop.example"}})
def test_a_failed_activity_is_one_event_without_a_payload(events: list[str]) -> None:
    sentry_sdk.add_breadcrumb(message=SECRET)
    sentry_sdk.set_extra("cart", SECRET)
    SentryOrder.start({"secret": SECRET, "external": True}, id="s1")
    drain()
    run = Instance.objects.get()
    (text,) = events
    assert SECRET not in text
    event = json.loads(text)
    assert event["tags"] == {
        "kind": "activity_failed",
        "workflow": "sentry.Order",
        "workflow_id": "s1",
        "run_id": str(run.pk),
        "queue": "default",
        "activity": "sentry.charge",
        "attempt": "2",
    }
    assert event["fingerprint"] == ["temporalex", "activity_failed", "ValueError", "sentry.Order", "sentry.charge"]
    assert event["contexts"]["temporalex"]["run_url"] == (
        f"https://shop.example/admin/temporalex_django/instance/console/runs/{run.pk}/"
    )
    types = [exception["type"] for exception in event["exception"]["values"]]
    assert types == ["LookupError", "ValueError"]
    frames = [frame for exception in event["exception"]["values"] for frame in exception["stacktrace"]["frames"]]
    assert {"charge", "fail"} <= {frame["function"] for frame in frames}
    assert [frame for frame in frames if "vars" in frame] == []


def test_an_atomic_activity_and_a_blocked_run_are_events_too(events: list[str]) -> None:
    SentryOrder.start({"secret": SECRET, "external": False}, id="s2")
    SentryBlocked.start(SECRET, id="s3")
    drain()
    found = {json.loads(text)["tags"]["kind"]: json.loads(text) for text in events}
    assert len(events) == 2
    assert SECRET not in "".join(events)
    assert found["activity_failed"]["tags"]["activity"] == "sentry.charge_at_once"
    blocked = found["run_blocked"]
    assert (blocked["tags"]["workflow_id"], blocked["tags"].get("activity")) == ("s3", None)
    assert blocked["contexts"]["temporalex"]["run_url"] is None
    assert blocked["level"] == "error"


def test_a_run_that_stays_blocked_is_reported_once(events: list[str]) -> None:
    handle = SentryBlocked.start(SECRET, id="s4")
    drain()
    handle.try_again()
    drain()
    assert len(events) == 1


def test_without_a_client_nothing_is_sent() -> None:
    before = chain.interceptors
    chain.install([Sentry()])
    try:
        SentryBlocked.start(SECRET, id="s5")
        drain()
    finally:
        chain.install(before)
    assert Instance.objects.get().blocked is not None


# -- structlog ---------------------------------------------------------------------------------------------------------


@activity(name="structlog.noted")
def noted() -> None:
    structlog.get_logger().info("in the activity")


class Structured(Workflow):
    name = "structlog.Structured"

    async def run(self, args: Any) -> Ok:
        structlog.get_logger().info("in the workflow")
        await noted()
        return Ok(await api.phase(None, signal={"close": lambda _, __: Stop(None)}))


@pytest.fixture
def structured() -> Iterator[list[dict[str, Any]]]:
    before, capture = chain.interceptors, structlog.testing.LogCapture()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, add_run, capture])
    chain.install([Structlog()])
    yield capture.entries
    chain.install(before)
    structlog.reset_defaults()


def test_lines_have_the_ids_and_afterwards_none(structured: list[dict[str, Any]]) -> None:
    env = WorkflowEnvironment(evict=True)
    handle = env.start(Structured, id="l1")
    handle.signal("close")
    structlog.get_logger().info("elsewhere")
    run = {"workflow": "structlog.Structured", "workflow_id": "l1", "run_id": handle.run_id}
    assert structured == [
        {**run, "event": "in the workflow", "log_level": "info"},
        {**run, "activity": "structlog.noted", "attempt": 1, "event": "in the activity", "log_level": "info"},
        {"event": "elsewhere", "log_level": "info"},
    ]


#: Workflow code in a process in which Sentry has wrapped functions of the standard library.
GUARDED = """
import concurrent.futures, subprocess, threading
import django
django.setup()
import sentry_sdk
sentry_sdk.init(dsn="http://key@127.0.0.1:9/1")
from tests.unit.core.determinism.test_guard import POOL, caught
print(caught(lambda: threading.Thread(target=str).start()).partition(" in ")[0])
print(caught(lambda: POOL.submit(str)).partition(" in ")[0])
print(caught(lambda: subprocess.Popen(["true"])).partition(" in ")[0])
"""


@pytest.mark.each_python
def test_the_guard_refuses_calls_that_sentry_has_wrapped(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "guarded.py"
    script.write_text(GUARDED, encoding="utf-8")
    env = {**subprocess_env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    thread, pool, process = done.stdout.splitlines() or [done.stderr] * 3
    assert thread == "threading.Thread.start"
    assert pool == "concurrent.futures.ThreadPoolExecutor.submit"
    # Sentry wraps it in a function of any arguments: the call that it makes is refused, or the process itself.
    assert process in ("subprocess.Popen", "another process")
