"""Traces over several real processes, and a receiver of spans that hangs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from temporalex_django.models import Instance
from tests.support.processes import cluster, worker
from tests.support.traced import TracedOrder
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: A web process: it serves one request, within a span of its own, and ends when its spans are sent.
WEB = """
import django
django.setup()
from django.test import Client
from opentelemetry import trace
from django.conf import settings
from django.contrib.auth import get_user_model
settings.ALLOWED_HOSTS = ["*"]
client = Client()
client.force_login(get_user_model().objects.create_superuser("web"))
with trace.get_tracer("web").start_as_current_span("POST /api/instances/"):
    answer = client.post("/api/instances/", {"workflow": "traced.Order", "id": "o1", "args": 1}, "application/json")
assert answer.status_code == 201, answer.content
trace.get_tracer_provider().shutdown()
"""


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A receiver of OTLP over HTTP: its address, and the (service, span) that it has received."""
    received: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                name = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
                received.extend((name, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
    finally:
        server.shutdown()
        server.server_close()


def traced(env: dict[str, str], url: str, name: str) -> dict[str, str]:
    settings = {"INTERCEPTORS": ["tests.support.traced.ExportedTracing"]}
    own = {"TRACES_URL": url, "TRACES_NAME": name, "TX_TEST_TEMPORALEX": json.dumps(settings)}
    return {**env, "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes", **own}


def is_done() -> bool:
    return Instance.objects.filter(workflow_id="o1", status="completed").exists()


def test_one_trace_over_a_web_process_and_two_workers(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with (
        receiver() as (url, received),
        worker(traced(subprocess_env, url, "here"), tmp_path, "--queues", "default", name="here"),
        worker(traced(subprocess_env, url, "there"), tmp_path, "--queues", "elsewhere", name="there"),
    ):
        subprocess.run([sys.executable, "-c", WEB], env=traced(subprocess_env, url, "web"), check=True, timeout=120)
        wait_for(is_done)
        expected = {
            ("web", "POST /api/instances/"),
            ("web", "start traced.Order"),
            ("here", "activation traced.Order"),
            ("here", "activity traced.count"),
            ("here", "start_child traced.Elsewhere"),
            ("there", "activation traced.Elsewhere"),
        }
        wait_for(lambda: {(name, span.name) for name, span in received} >= expected, what="the spans")
        wait_for(lambda: sum(span.name == "activation traced.Order" for _, span in received) == 3, what="the last one")
    assert {(name, span.name) for name, span in received} == expected
    assert len({span.trace_id for _, span in received}) == 1
    ids = {span.span_id: span.name for _, span in received}
    assert {span.name for _, span in received if span.parent_span_id not in ids} == {"POST /api/instances/"}


def test_a_cluster_of_django_q2_traces_as_well(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with receiver() as (url, received), cluster(traced(subprocess_env, url, "q2"), tmp_path):
        TracedOrder.start(
            1, id="o1", headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        )
        wait_for(is_done)
        names = {"activation traced.Order", "activity traced.count", "activation traced.Elsewhere"}
        wait_for(lambda: {span.name for _, span in received} >= names, what="the spans")
        assert {span.trace_id.hex() for _, span in received} == {"0af7651916cd43dd8448eb211c80319c"}


def test_runs_go_on_while_the_receiver_hangs(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:  # it accepts, and never answers
        url = f"http://127.0.0.1:{hung.getsockname()[1]}/v1/traces"
        with worker(traced(subprocess_env, url, "here"), tmp_path) as process:
            TracedOrder.start_many([(1, {"id": f"h{number}"}) for number in range(20)])
            wait_for(lambda: not Instance.objects.filter(workflow="traced.Order").open().exists())
            process.kill()
    assert Instance.objects.filter(workflow="traced.Order", status="completed").count() == 20
