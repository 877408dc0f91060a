"""The spans of a test, kept in memory."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from temporalex_django.contrib.otel import Tracing


class Spans:
    """The spans that were finished, and the tracer of a web request."""

    def __init__(self, tracing: type[Tracing] = Tracing) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.interceptor = tracing()
        self.interceptor._tracer = self.provider.get_tracer("tests")
        self.tracer = self.provider.get_tracer("web")

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def parent(self, span: ReadableSpan) -> str | None:
        """The name of the parent of a span."""
        if span.parent is None:
            return None
        return next(other.name for other in self.all if other.context.span_id == span.parent.span_id)
