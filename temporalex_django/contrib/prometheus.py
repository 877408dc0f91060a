"""Metrics for Prometheus: the exporter, the server of ``temporalex worker --metrics-port``, and a Django view.

    path("metrics", temporalex_django.contrib.prometheus.metrics)

If the environment variable ``PROMETHEUS_MULTIPROC_DIR`` names a directory, the processes of a machine that have it
share their metrics there, and each of them serves the sums of all. Without it, a process serves its own.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from temporalex_django.conf import get_settings
from temporalex_django.contrib import exporters
from temporalex_django.errors import NotConfigured
from temporalex_django.telemetry.definitions import FACTS_MAX_AGE, METRICS, Kind, Metric
from temporalex_django.telemetry.recording import Facts, recorder

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
except ImportError as exc:
    raise NotConfigured(
        "temporalex_django.contrib.prometheus needs the module prometheus_client: install temporalex-django[prometheus]"
    ) from exc

#: Permission with which a user may read the view.
PERMISSION = "temporalex_django.view_worker"
_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
#: File with the last sample of the facts, in that directory.
_FACTS_FILE = "temporalex_facts.json"
#: The method of a series that takes a value.
_METHODS = {Kind.COUNTER: "inc", Kind.GAUGE: "set", Kind.HISTOGRAM: "observe"}
_FAMILIES = frozenset(metric.name.removesuffix("_total") for metric in METRICS if not metric.is_fact)


class PrometheusExporter:
    """The exporter for Prometheus, which is a collector of ``prometheus_client`` as well.

    ``registry`` has this collector alone. Metrics that your project registers elsewhere are not served with it.
    """

    def __init__(self) -> None:
        directory = os.environ.get(_DIRECTORY)
        if directory and not Path(directory).is_dir():
            raise NotConfigured(f"{_DIRECTORY} names {directory}, which is not a directory: create it, empty, first")
        self._directory = Path(directory) if directory else None
        self._values = CollectorRegistry()
        self._metrics = {metric: self._create(metric) for metric in METRICS if not metric.is_fact}
        #: The method that takes a value, by metric and label values. Their number is bounded by the recorder.
        self._methods: dict[tuple[Metric, tuple[str, ...]], Callable[[float], None]] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def _create(self, metric: Metric) -> Any:
        arguments: dict[str, Any] = {"labelnames": metric.label_names, "registry": self._values}
        match metric.kind:
            case Kind.COUNTER:
                return Counter(metric.name, metric.help, **arguments)
            case Kind.GAUGE:
                return Gauge(metric.name, metric.help, multiprocess_mode="livesum", **arguments)
            case Kind.HISTOGRAM:
                return Histogram(metric.name, metric.help, buckets=metric.buckets, **arguments)

    # --- what the recorder calls -------------------------------------------------------------------------------------

    def record(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        method = self._methods.get((metric, labels))
        if method is None:
            series = self._metrics[metric].labels(*labels) if labels else self._metrics[metric]
            method = self._methods[metric, labels] = getattr(series, _METHODS[metric.kind])
        method(value)

    def publish_facts(self, facts: Facts | None) -> None:
        if self._directory is None:
            return  # they are read from the recorder
        file = self._directory / _FACTS_FILE
        if facts is None:
            if self._read_file().get("pid") == os.getpid():
                file.unlink(missing_ok=True)
            return
        sample = {
            "at": time.time(),
            "pid": os.getpid(),
            "facts": {
                metric.name: [[*key, value] for key, value in values.items()] for metric, values in facts.items()
            },
        }
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(sample), encoding="utf-8")
        temporary.replace(file)

    # --- what prometheus_client calls --------------------------------------------------------------------------------

    def collect(self) -> Iterator[Family]:
        """Yield the families of all metrics of this process, or of all processes that share the directory."""
        for family in self._families():
            if family.name in _FAMILIES:
                # The time at which a series began: a client can tell it from a counter that starts anew at 0.
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                yield family
        for metric, values in self._facts().items():
            gauges = GaugeMetricFamily(metric.name, metric.help, labels=metric.label_names)
            for labels, value in values.items():
                gauges.add_metric(labels, value)
            yield gauges

    def _families(self) -> Iterable[Family]:
        if self._directory is None:
            return list(self._values.collect())
        for file in self._directory.glob("gauge_live*.db"):
            if (pid := re.search(r"_(\d+)\.db$", file.name)) is not None and not _is_alive(int(pid[1])):
                with suppress(FileNotFoundError):
                    mark_process_dead(int(pid[1]), str(self._directory))
        helps = {metric.name.removesuffix("_total"): metric.help for metric in METRICS}
        families = list(MultiProcessCollector(None, str(self._directory)).collect())
        for family in families:
            family.documentation = helps.get(family.name, family.documentation)
        return families

    def _facts(self) -> Facts:
        """Return the last sample of the facts, if it is not too old."""
        if self._directory is None:
            return recorder.facts()
        stored = self._read_file()
        if time.time() - stored.get("at", 0.0) > FACTS_MAX_AGE:
            return {}
        by_name = {metric.name: metric for metric in METRICS}
        return {
            by_name[name]: {tuple(key): value for *key, value in rows}
            for name, rows in stored["facts"].items()
            if name in by_name
        }

    def _read_file(self) -> dict[str, Any]:
        assert self._directory is not None
        try:
            stored: dict[str, Any] = json.loads((self._directory / _FACTS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stored


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def create() -> PrometheusExporter:
    """Create the exporter of this process.

    Raises ``NotConfigured`` if ``PROMETHEUS_MULTIPROC_DIR`` is not a directory.
    """
    return PrometheusExporter()


def serve(host: str, port: int) -> int:
    """Serve the metrics of this process at this address, in a thread, and return the port; 0 chooses a free one.

    Raises ``OSError`` if the address cannot be used. Nothing checks who reads them.
    """
    exporters.install(["prometheus"])
    exporter = exporters.installed("prometheus")
    assert isinstance(exporter, PrometheusExporter)
    server, _ = start_http_server(port, addr=host, registry=exporter.registry)
    return int(server.server_port)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Serve the metrics in the text format of Prometheus; the view for your ``urls.py``.

    A client needs the token of ``METRICS_TOKEN``, or a session of a user with the permission ``view_worker``.
    """
    if not _has_token(request):
        user = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            return HttpResponse(
                "metrics need a token or a user who may view workers\n",
                status=401,
                content_type="text/plain",
                headers={"WWW-Authenticate": 'Bearer realm="metrics"'},
            )
        if not user.has_perm(PERMISSION):
            return HttpResponse(f"metrics need the permission {PERMISSION}\n", status=403, content_type="text/plain")
    exporter = exporters.installed("prometheus")
    if not isinstance(exporter, PrometheusExporter):
        text = "this process exports no metrics: set TEMPORALEX['METRICS'] = ['prometheus']\n"
        return HttpResponse(text, status=503, content_type="text/plain")
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(exporter.registry), content_type=content_type)


def _has_token(request: HttpRequest) -> bool:
    """Return True for a request with the token, which is compared in constant time."""
    token, header = get_settings().METRICS_TOKEN, request.headers.get("Authorization", "")
    if token is None or not header.startswith("Bearer "):
        return False
    return constant_time_compare(header.removeprefix("Bearer ").strip(), token)
