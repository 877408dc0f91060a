"""Exporters: the text of Prometheus, sums over processes, instruments of OpenTelemetry, and extras that are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temporalex_django.contrib import exporters
from temporalex_django.errors import NotConfigured
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.definitions import METRICS, Kind
from temporalex_django.telemetry.recording import recorder
from tests.support.metrics import kept_metrics

pytest.importorskip("prometheus_client")
pytest.importorskip("opentelemetry.sdk")

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

#: What each process of a test does first.
SETUP = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django
django.setup()
from temporalex_django.contrib import exporters
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder
"""


@pytest.fixture
def prometheus() -> Iterator[Any]:
    exporters.install(["prometheus"])
    yield exporters.installed("prometheus")
    exporters.uninstall("prometheus")


def families(text: bytes | str) -> dict[str, Any]:
    text = text.decode() if isinstance(text, bytes) else text
    return {family.name: family for family in text_string_to_metric_families(text)}


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SETUP + program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_text_has_each_metric_with_its_type_and_help(prometheus: Any) -> None:
    recorder.set_sampler(samples=True)
    for metric in METRICS:
        labels = {label.name: label.values[0] if label.values else 'a "quoted"\nname' for label in metric.labels}
        if not metric.is_fact:
            recorder.record(metric, 0.25, **labels)
    recorder.publish_facts(
        {m: {tuple(label.values[0] if label.values else "a" for label in m.labels): 2.0} for m in METRICS if m.is_fact}
    )

    parsed = families(generate_latest(prometheus.registry))

    assert set(parsed) == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = parsed[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind.value, metric.help)
        assert not any(sample.name.endswith("_created") for sample in family.samples)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(metric.label_names)
        if metric.kind is Kind.HISTOGRAM:
            bounds = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
            assert bounds == [*metric.buckets, float("inf")]
    slots = parsed["temporalex_worker_slots"].samples
    assert [(sample.labels, sample.value) for sample in slots] == [({"lane": "threads", "state": "used"}, 0.25)]


def test_processes_that_share_a_directory_serve_their_sums(tmp_path: Path) -> None:
    work = """
exporters.install(["prometheus"])
recorder.record(definitions.CONFLICTS, 2, place="turn")
recorder.record(definitions.ACTIVITY_SECONDS, 0.3, activity="charge")
recorder.record(definitions.WORKER_SLOTS, 4, lane="threads", state="used")
recorder.set_sampler(samples=True)
recorder.publish_facts({definitions.QUEUE_LAG: {("default",): float(sys.argv[0] == "-c")}})
"""
    serve = (
        work
        + """
from prometheus_client import Counter, generate_latest
Counter("of_the_project", "Not ours.").inc()
print(generate_latest(exporters.installed("prometheus").registry).decode())
"""
    )
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    run(work, **shared)

    parsed = families(run(serve, **shared))

    assert [s.value for s in parsed["temporalex_conflicts"].samples] == [4]
    assert (
        next(s.value for s in parsed["temporalex_activity_duration_seconds"].samples if s.name.endswith("_count")) == 2
    )
    # The first process has ended, so its places are gone.
    assert [s.value for s in parsed["temporalex_worker_slots"].samples] == [4]
    assert [(s.labels, s.value) for s in parsed["temporalex_queue_lag_seconds"].samples] == [({"queue": "default"}, 1)]
    assert all(name.startswith("temporalex_") for name in parsed)
    assert parsed["temporalex_conflicts"].documentation == definitions.CONFLICTS.help


def test_old_facts_in_the_directory_are_not_served(tmp_path: Path) -> None:
    file = tmp_path / "temporalex_facts.json"
    facts = {"temporalex_queue_lag_seconds": [["default", 7.0]], "temporalex_of_another_release": [[1.0]]}
    serve = """
exporters.install(["prometheus"])
from prometheus_client import generate_latest
print(generate_latest(exporters.installed("prometheus").registry).decode())
recorder.set_sampler(samples=True)
recorder.set_sampler(samples=False)
"""
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    file.write_text(json.dumps({"at": 1e12, "pid": 1, "facts": facts}))
    assert "temporalex_queue_lag_seconds" in families(run(serve, **shared))
    assert file.exists(), "it is the file of another process"
    file.write_text(json.dumps({"at": 1000.0, "pid": 1, "facts": facts}))
    assert "temporalex_queue_lag_seconds" not in families(run(serve, **shared))
    file.write_text("{")
    assert "temporalex_queue_lag_seconds" not in families(run(serve, **shared))


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    said = run(
        """
from temporalex_django.errors import NotConfigured
try:
    exporters.install(["prometheus"])
except Exception as exc:
    print(type(exc).__name__, exc)
""",
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "missing"),
    )
    assert said.startswith(
        f"NotConfigured PROMETHEUS_MULTIPROC_DIR names {tmp_path / 'missing'}, which is not a directory"
    )


def test_opentelemetry_gets_the_same_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from temporalex_django.contrib import otel

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr(otel, "get_meter", provider.get_meter)
    exporters.install(["otel"])
    try:
        recorder.record(definitions.CONFLICTS, 2, place="turn")
        recorder.record(definitions.ACTIVITY_SECONDS, 0.3, activity="charge")
        recorder.record(definitions.WORKER_SLOTS, 4, lane="threads", state="used")
        recorder.publish_facts({definitions.QUEUE_LAG: {("default",): 1.5}})
        data: Any = reader.get_metrics_data()
    finally:
        exporters.uninstall("otel")
        provider.shutdown()

    metrics = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    points = {name: [(dict(p.attributes), p) for p in metric.data.data_points] for name, metric in metrics.items()}
    assert points["temporalex_conflicts"][0][0] == {"place": "turn"}
    assert points["temporalex_conflicts"][0][1].value == 2
    attributes, histogram = points["temporalex_activity_duration"][0]
    assert (attributes, histogram.sum, metrics["temporalex_activity_duration"].unit) == (
        {"activity": "charge"},
        0.3,
        "s",
    )
    assert tuple(histogram.explicit_bounds) == definitions.ACTIVITY_SECONDS.buckets
    assert points["temporalex_worker_slots"][0][1].value == 4
    assert points["temporalex_queue_lag"][0][1].value == 1.5
    assert len({otel.instrument_name(metric) for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize(("name", "module"), [("prometheus", "prometheus_client"), ("otel", "opentelemetry")])
def test_an_extra_that_is_missing_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotConfigured, match=rf"needs the module {module}: install temporalex-django\[{name}\]"):
        exporters.install([name])
    assert exporters.installed(name) is None
    assert not recorder.is_active


def test_nothing_imports_an_exporter_that_is_not_named() -> None:
    said = run(
        """
import temporalex_django.workers.loop, temporalex_django.management.commands.temporalex
names = {"temporalex_django.contrib.prometheus", "temporalex_django.contrib.otel", "opentelemetry"}
print(recorder.is_active, sorted(names & set(sys.modules)))  # django-q2 imports prometheus_client where it is installed
"""
    )
    assert said == "False []\n"


def test_an_exporter_is_installed_once(prometheus: Any) -> None:
    exporters.install(["prometheus", "prometheus"])
    with kept_metrics() as kept:
        recorder.record(definitions.CACHE_HITS)
    assert exporters.installed("prometheus") is prometheus
    assert kept.of(definitions.CACHE_HITS) == {(): 1}
    assert families(generate_latest(prometheus.registry))["temporalex_cache_hits"].samples[0].value == 1
