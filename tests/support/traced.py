"""Tracing in processes of tests: spans go over OTLP/HTTP to the address in ``TRACES_URL``.

The module is loaded because the setting ``INTERCEPTORS`` names it, and so its workflows are registered.
"""

from __future__ import annotations

import os
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.contrib.otel import Tracing


class ExportedTracing(Tracing):
    """Tracing whose spans leave the process every 100 ms."""

    def __init__(self) -> None:
        provider = TracerProvider(resource=Resource({"service.name": os.environ["TRACES_NAME"]}))
        exporter = OTLPSpanExporter(endpoint=os.environ["TRACES_URL"], timeout=60)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=100))
        trace.set_tracer_provider(provider)
        super().__init__()


@activity(name="traced.count")
def count(n: int) -> int:
    return n + 1


class TracedElsewhere(Workflow):
    name = "traced.Elsewhere"
    task_queue = "elsewhere"

    async def run(self, args: Any) -> Ok:
        return Ok(args)


class TracedOrder(Workflow):
    name = "traced.Order"

    async def run(self, args: Any) -> Ok:
        return Ok(await api.child(TracedElsewhere, await count(args)))
