"""Metrics and traces through OpenTelemetry: the meter and the tracer ``temporalex_django``, on the API alone.

The SDK, its readers, processors and exporters are those that your project configures. Without an SDK the API does
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, ClassVar

from temporalex_django.core.messages.sender import MAX_HEADER_BYTES
from temporalex_django.errors import NotConfigured
from temporalex_django.interceptors import ActivationCall, AttemptCall, ClientCall, Interceptor, Outgoing
from temporalex_django.telemetry.definitions import METRICS, Kind, Metric
from temporalex_django.telemetry.recording import Facts, recorder

try:
    from opentelemetry import baggage, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.metrics import CallbackOptions, Observation, get_meter
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as exc:
    raise NotConfigured(
        "temporalex_django.contrib.otel needs the module opentelemetry: install temporalex-django[otel]"
    ) from exc


class OpenTelemetryExporter:
    """The exporter for OpenTelemetry. Counters and histograms are recorded at once, and the SDK reads gauges.

    An instrument has the name of its metric in ``telemetry.definitions`` without ``_total`` and ``_seconds``; the unit
    of times is ``s``.
    """

    def __init__(self) -> None:
        meter = get_meter("temporalex_django")
        self._record: dict[Metric, Callable[..., None]] = {}
        for metric in METRICS:
            name, unit = instrument_name(metric), "s" if "_seconds" in metric.name else "1"
            if metric.kind is Kind.COUNTER:
                self._record[metric] = meter.create_counter(name, unit=unit, description=metric.help).add
            elif metric.kind is Kind.HISTOGRAM:
                self._record[metric] = meter.create_histogram(
                    name, unit=unit, description=metric.help, explicit_bucket_boundaries_advisory=metric.buckets
                ).record
            else:
                callbacks: list[Any] = [partial(_observe, metric)]
                meter.create_observable_gauge(name, callbacks=callbacks, unit=unit, description=metric.help)

    def record(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        if metric.kind is not Kind.GAUGE:
            self._record[metric](value, dict(zip(metric.label_names, labels, strict=True)))

    def publish_facts(self, facts: Facts | None) -> None:
        """Do nothing: the reader of the SDK asks for the facts."""


def _observe(metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
    return [
        Observation(value, dict(zip(metric.label_names, labels, strict=True)))
        for labels, value in recorder.gauge_values(metric).items()
    ]


def instrument_name(metric: Metric) -> str:
    """Return the name of the instrument of a metric; exporters for Prometheus add the unit and ``_total`` again."""
    return metric.name.removesuffix("_total").removesuffix("_seconds")


def create() -> OpenTelemetryExporter:
    """Create the exporter of this process."""
    return OpenTelemetryExporter()


class Tracing(Interceptor):
    """Spans for starts, messages, queries and decisions, for activations, and for attempts of activities.

    Put it into ``INTERCEPTORS``. It uses the API alone: the provider, its processor and its exporter are those that
    your project configures. The W3C trace context travels as the headers ``traceparent`` and ``tracestate``. Names and
    attributes of spans are names of code, and ids. Payloads and texts of errors are never among them.

    Activations and attempts of a trace that its root has not sampled make no spans, whatever the sampler says. That is
    also the rule of the default sampler of OpenTelemetry, and it saves most of the time of a trace that nobody keeps.

    ``baggage_keys`` are the keys of the baggage that travels, as the header ``baggage``; set it in a subclass.
    """

    baggage_keys: ClassVar[Sequence[str]] = ()

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("temporalex_django")

    def client_call(self, call: ClientCall) -> AbstractContextManager[None]:
        """Return the span of a call. It is a child of the current span, or of the one that the headers name."""
        operation = "fire" if (call.operation, call.source) == ("start", "schedule") else call.operation
        attributes = {
            **_run_attributes(call.workflow, call.workflow_id, call.run_id),
            "temporalex.operation": operation,
            "temporalex.source": call.source,
        }
        if call.message is not None:
            attributes["temporalex.message"] = call.message
        if operation in _SENDS:
            kind = SpanKind.PRODUCER
            attributes |= {"messaging.operation.name": operation, "messaging.operation.type": "send"}
        else:
            kind = SpanKind.CLIENT
            attributes |= {"rpc.system": "temporalex", "rpc.method": operation}
        has_parent = trace.get_current_span().get_span_context().is_valid
        parent = None if has_parent else self._extract(call.headers, get_current())
        name = f"{operation} {call.workflow or 'runs'}"
        return self._span(name, kind, attributes, parent, on_enter=partial(self._inject, call.headers))

    def activation(self, activation: ActivationCall) -> AbstractContextManager[None]:
        """Return the span of an activation: a child of its first sampled cause, with links to the others.

        A timer has no context, so its activation begins a trace, which links to the start of the run.
        """
        span_contexts = [
            context for cause in activation.causes if (context := _span_context(cause.headers)) is not None
        ]
        parent = Context()
        if span_contexts:
            span_contexts.sort(key=_is_unsampled)
            if _is_unsampled(span_contexts[0]):
                return _Unsampled(span_contexts[0], parent)
            parent = trace.set_span_in_context(NonRecordingSpan(span_contexts[0]), parent)
        attributes = {
            **_run_attributes(activation.workflow, activation.workflow_id, activation.run_id),
            "messaging.operation.name": "activate",
            "messaging.operation.type": "process",
            "temporalex.queue": activation.queue,
            "temporalex.activation": activation.number,
            "temporalex.causes": sorted({cause.kind for cause in activation.causes}) or ["timer"],
        }
        links = _links(span_contexts, _span_context(activation.run_headers))
        return self._span(f"activation {activation.workflow}", SpanKind.CONSUMER, attributes, parent, links)

    def outgoing(self, outgoing: Outgoing) -> None:
        """Put the trace context into the headers of what an activation sends: the one of the activation's span.

        A child run gets the context of a new span, which stands for its start.
        """
        if outgoing.kind != "child":
            self._inject(outgoing.headers)
            return
        attributes = {
            **_run_attributes(outgoing.name, outgoing.workflow_id, None),
            "messaging.operation.name": "start_child",
            "messaging.operation.type": "send",
        }
        with self._span(f"start_child {outgoing.name}", SpanKind.PRODUCER, attributes):
            self._inject(outgoing.headers)

    def activity_attempt(self, attempt: AttemptCall) -> AbstractContextManager[None]:
        """Return the span of an attempt: a child of the activation that scheduled the activity."""
        parent = self._extract(attempt.headers, Context())
        span_context = trace.get_current_span(parent).get_span_context()
        if span_context.is_valid and _is_unsampled(span_context):
            return _Unsampled(span_context, parent)
        name = "atomic_activity" if attempt.is_atomic else "activity"
        attributes = {
            **_run_attributes(attempt.workflow, attempt.workflow_id, attempt.run_id),
            "messaging.operation.name": "execute",
            "messaging.operation.type": "process",
            "temporalex.queue": attempt.queue,
            "temporalex.activity": attempt.activity,
            "temporalex.activity.seq": attempt.seq,
            "temporalex.activity.attempt": attempt.attempt,
        }
        return self._span(f"{name} {attempt.activity}", SpanKind.CONSUMER, attributes, parent)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        parent: Context | None = None,
        links: Sequence[Link] = (),
        on_enter: Callable[[], None] | None = None,
    ) -> _SpanBlock:
        """Return a block whose span is below ``parent``, or else below the current span."""
        return _SpanBlock(self._tracer, name, kind, attributes, parent, links, on_enter)

    def _extract(self, headers: Mapping[str, str], base: Context) -> Context:
        """Add the trace that headers name to ``base``, and the baggage that may travel."""
        span_context = _span_context(headers)
        context = base if span_context is None else trace.set_span_in_context(NonRecordingSpan(span_context), base)
        if self.baggage_keys and "baggage" in headers:
            received = baggage.get_all(_BAGGAGE.extract(headers, Context()))
            for key in self.baggage_keys:
                if key in received:
                    context = baggage.set_baggage(key, received[key], context)
        return context

    def _inject(self, headers: dict[str, str]) -> None:
        """Add the current context to the headers, if there is a span and they stay within the limit of all headers."""
        carrier: dict[str, str] = {}
        _TRACE.inject(carrier)
        if allowed := {key: baggage.get_baggage(key) for key in self.baggage_keys}:
            context = Context()
            for key, value in allowed.items():
                if value is not None:
                    context = baggage.set_baggage(key, value, context)
            _BAGGAGE.inject(carrier, context)
        if not headers and carrier.keys() <= {"traceparent"}:
            headers.update(carrier)  # the usual case, far below the limit
            return
        merged = {**headers, **carrier}
        if sum(len(name) + len(value.encode()) for name, value in merged.items()) <= MAX_HEADER_BYTES:
            headers.update(carrier)


class _Unsampled:
    """A context manager for work of a trace that is not sampled: its block makes no span, and the current span stays.

    Calls in the block belong to the same trace, so they are not sampled either.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, span_context: SpanContext, base: Context) -> None:
        self._context = trace.set_span_in_context(NonRecordingSpan(span_context), base)

    def __enter__(self) -> None:
        self._token = attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        detach(self._token)


class _SpanBlock:
    """A context manager whose block is a span. An error of the block is recorded by its type alone.

    A class, since a run takes three of them and a generator costs a third of a span that is not sampled.
    """

    __slots__ = ("_attributes", "_kind", "_links", "_name", "_on_enter", "_parent", "_span", "_token", "_tracer")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        parent: Context | None,
        links: Sequence[Link],
        on_enter: Callable[[], None] | None,
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._kind = kind
        self._attributes = attributes
        self._parent = parent
        self._links = links
        self._on_enter = on_enter

    def __enter__(self) -> None:
        context = self._parent
        if context is None:
            context = get_current()
        self._span = self._tracer.start_span(
            self._name, context, self._kind, self._attributes, self._links, record_exception=False
        )
        self._token = attach(trace.set_span_in_context(self._span, context))
        if self._on_enter is not None:
            try:
                self._on_enter()
            except BaseException as exc:
                self.__exit__(type(exc), exc, exc.__traceback__)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            # Its message and its traceback may quote payloads, so the type is all that is recorded.
            self._span.set_attribute("error.type", kind.__name__)
            self._span.set_status(Status(StatusCode.ERROR, kind.__name__))
        detach(self._token)
        self._span.end()


def _links(causes: Sequence[SpanContext], origin: SpanContext | None) -> list[Link]:
    """Return links to all ``causes`` but the first, which is the parent, and to the start of the run."""
    if len(causes) < 2 and (origin is None or origin in causes):
        return []
    # By the id of the span, since the context of a span is not hashable.
    linked = {
        context.span_id: context
        for context in (*causes[1:_MOST_LINKS], origin)
        if context is not None and context not in causes[:1]
    }
    return [Link(context) for context in linked.values()]


_TRACE = TraceContextTextMapPropagator()
_TRACEPARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_BAGGAGE = W3CBaggagePropagator()
#: Operations that send a message and wait for no answer. All others are calls.
_SENDS = frozenset({"start", "fire", "signal", "signal_with_start", "cancel"})
_MOST_LINKS = 32


def _run_attributes(workflow: str | None, workflow_id: str | None, run_id: str | None) -> dict[str, Any]:
    """Return the attributes of all spans, and those that name a run, as far as it is known."""
    attributes = {"messaging.system": "temporalex"}
    if workflow:
        attributes["messaging.destination.name"] = attributes["temporalex.workflow"] = workflow
    if workflow_id:
        attributes["temporalex.workflow_id"] = workflow_id
    if run_id:
        attributes["temporalex.run_id"] = run_id
    return attributes


def _is_unsampled(span_context: SpanContext) -> bool:
    return not span_context.trace_flags.sampled


def _span_context(headers: Mapping[str, str]) -> SpanContext | None:
    traceparent = headers.get("traceparent")
    return None if traceparent is None else _parse_context(traceparent, headers.get("tracestate"))


@lru_cache(maxsize=4096)
def _parse_context(traceparent: str, tracestate: str | None) -> SpanContext | None:
    """Return the span of a W3C trace context. A run has one in all its activations, so it is kept."""
    if tracestate is None and (fields := _TRACEPARENT.fullmatch(traceparent)) is not None:
        # Most headers have this form, since this class writes it. The propagator takes twice as long.
        trace_id, span_id, flags = (int(field, 16) for field in fields.groups())
        context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    else:
        carrier = {"traceparent": traceparent} | ({} if tracestate is None else {"tracestate": tracestate})
        context = trace.get_current_span(_TRACE.extract(carrier, Context())).get_span_context()
    return context if context.is_valid else None
