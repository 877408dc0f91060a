"""What is recorded arrives at each exporter, with a bounded number of names, and never harms what is measured."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from temporalex_django.telemetry import definitions, recording
from temporalex_django.telemetry.definitions import MAX_NAMES, METRICS, OTHER, Kind, Metric
from temporalex_django.telemetry.recording import Facts, Recorder
from tests.support.metrics import KeptMetrics, kept_metrics


class Failing:
    def record(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        raise OSError("a secret of the exporter")

    def publish_facts(self, facts: Facts | None) -> None:
        raise OSError("a secret of the exporter")


def test_a_recorder_is_active_while_it_has_an_exporter() -> None:
    target = Recorder()
    assert not target.is_active
    with kept_metrics(target) as kept:
        assert target.is_active
        target.record(definitions.CONFLICTS, place="turn")
        target.record(definitions.CONFLICTS, 2.0, place="turn")
        target.record(definitions.WORKER_SLOTS, 3, lane="threads", state="used")
    assert not target.is_active

    target.record(definitions.CONFLICTS, place="turn")
    assert kept.of(definitions.CONFLICTS) == {("turn",): 3.0}
    assert kept.of(definitions.WORKER_SLOTS) == {("threads", "used"): 3}


def test_the_names_of_a_metric_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    target = Recorder()
    with kept_metrics(target) as kept:
        for number in range(MAX_NAMES + 50):
            for outcome in ("open", "closed"):
                target.record(definitions.ACTIVATIONS, workflow=f"W{number}", outcome=outcome)
        target.record(definitions.ACTIVITY_SECONDS, 1.0, activity="another metric has names of its own")

    activations = kept.of(definitions.ACTIVATIONS)
    assert len(activations) == 2 * MAX_NAMES + 2 <= definitions.ACTIVATIONS.max_series
    assert activations[OTHER, "open"] == activations[OTHER, "closed"] == 50
    assert kept.of(definitions.LABELS_LIMITED) == {("temporalex_activations_total",): 100}
    assert kept.of(definitions.ACTIVITY_SECONDS) == {("another metric has names of its own",): 1}
    assert [record.getMessage() for record in caplog.records] == [
        "the metric temporalex_activations_total has 200 names: further ones are recorded as 'other'"
    ]


def test_an_exporter_that_raises_loses_values_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    target = Recorder()
    failing = Failing()
    target.install(failing)
    with kept_metrics(target) as kept:
        target.record(definitions.CACHE_HITS)
        target.record(definitions.CACHE_HITS)
        target.publish_facts({})
    target.remove(failing)

    assert kept.of(definitions.CACHE_HITS) == {(): 2}
    assert kept.of(definitions.VALUES_DROPPED) == {(): 3}
    assert [record.getMessage() for record in caplog.records] == [
        "Failing does not take metrics, so they are dropped: OSError"
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_facts_have_as_many_names_as_other_metrics() -> None:
    values = {(f"q{number}",): float(number) for number in range(MAX_NAMES + 10)}

    lags = recording.limit_facts(definitions.QUEUE_LAG, values)
    running = recording.limit_facts(definitions.QUEUE_RUNNING, values)

    assert len(lags) == len(running) == MAX_NAMES + 1
    assert (lags[(OTHER,)], running[(OTHER,)]) == (9.0, 45.0)
    assert lags["q209",] == 209.0
    assert ("q9",) not in lags


def test_a_fact_keeps_all_states_of_a_name() -> None:
    values = {(f"W{n}", status): float(n) for n in range(MAX_NAMES + 5) for status in ("open", "blocked")}

    runs = recording.limit_facts(definitions.OPEN_RUNS, values)

    assert len(runs) == 2 * (MAX_NAMES + 1)
    assert runs[OTHER, "blocked"] == 0 + 1 + 2 + 3 + 4


def test_facts_that_are_old_are_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(recording.time, "monotonic", lambda: clock[0])
    target = Recorder()
    with kept_metrics(target):
        target.publish_facts({definitions.HUMAN_TASKS_OPEN: {(): 3.0}})
        assert target.gauge_values(definitions.HUMAN_TASKS_OPEN) == {(): 3.0}
        clock[0] += definitions.FACTS_MAX_AGE + 1
        assert target.gauge_values(definitions.HUMAN_TASKS_OPEN) == {}


def test_a_process_that_samples_no_more_exports_no_facts() -> None:
    target = Recorder()
    with kept_metrics(target) as kept:
        target.set_sampler(samples=True)
        target.publish_facts({definitions.HUMAN_TASKS_OPEN: {(): 3.0}})
        target.set_sampler(samples=True)
        assert target.facts()
        target.set_sampler(samples=False)
        assert not target.facts()
        target.set_sampler(samples=False)

    assert kept.facts == [{definitions.HUMAN_TASKS_OPEN: {(): 3.0}}, None]


def test_what_is_kept_for_tests_is_an_exporter() -> None:
    exporter: recording.Exporter = KeptMetrics()
    assert exporter


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_rows_of_the_table(metric: Metric) -> None:
    assert metric.name.startswith("temporalex_")
    assert metric.name.islower()
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.kind is not Kind.HISTOGRAM or metric.name.endswith("_seconds")
    assert not metric.is_fact or metric.kind is Kind.GAUGE
    assert metric.help.endswith((".", "is due"))
    names: list[Any] = [other.name for other in METRICS]
    assert names.count(metric.name) == 1
