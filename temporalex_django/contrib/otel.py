"""Metrics through OpenTelemetry: the instruments of the meter ``temporalex_django``, on the API alone.

The SDK, its readers and its exporters are those that your project configures. Without an SDK the API does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from temporalex_django.errors import NotConfigured
from temporalex_django.telemetry.definitions import METRICS, Kind, Metric
from temporalex_django.telemetry.recording import Facts, recorder

try:
    from opentelemetry.metrics import CallbackOptions, Observation, get_meter
except ImportError as exc:
    raise NotConfigured(
        "temporalex_django.contrib.otel needs the module opentelemetry: install temporalex-django[otel]"
    ) from exc


class OpenTelemetryExporter:
    """The exporter for OpenTelemetry. Counters and histograms are recorded at once, and the SDK reads gauges.

    Names are those of the table without ``_total`` and ``_seconds``; the unit of times is ``s``.
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
