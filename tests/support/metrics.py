"""Exporters for tests: one that keeps what it gets, installed for the length of a block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from temporalex_django.telemetry.definitions import Kind, Metric
from temporalex_django.telemetry.recording import Facts, Recorder, recorder


class KeptMetrics:
    """Sums of counters, values of gauges, and all observations of histograms, by metric and label values."""

    def __init__(self) -> None:
        self.values: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        self.observed: dict[str, dict[tuple[str, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
        self.facts: list[Facts | None] = []

    def record(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        values = self.values[metric.name]
        if metric.kind is Kind.HISTOGRAM:
            self.observed[metric.name][labels].append(value)
        elif metric.kind is Kind.COUNTER:
            values[labels] = values.get(labels, 0.0) + value
        else:
            values[labels] = value

    def publish_facts(self, facts: Facts | None) -> None:
        self.facts.append(facts)

    def of(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """The values of a metric; for a histogram the number of observations."""
        if metric.kind is Kind.HISTOGRAM:
            return {labels: len(seconds) for labels, seconds in self.observed[metric.name].items()}
        return dict(self.values[metric.name])


@contextmanager
def kept_metrics(target: Recorder = recorder) -> Iterator[KeptMetrics]:
    exporter = KeptMetrics()
    target.install(exporter)
    try:
        yield exporter
    finally:
        target.remove(exporter)
