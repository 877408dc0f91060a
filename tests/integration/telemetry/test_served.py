"""Metrics over HTTP: the view of a project, and the port of ``temporalex worker``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Permission
from django.test import RequestFactory, override_settings

from temporalex_django import conf
from temporalex_django.conf import get_settings
from temporalex_django.contrib import exporters
from temporalex_django.models import Worker
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder
from tests.support.client_flows import Basket
from tests.support.processes import Process, cluster, running, worker
from tests.support.waiting import wait_for

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from temporalex_django.contrib.prometheus import metrics

TOKEN = "0123456789abcdef"
with_token = override_settings(TEMPORALEX={"METRICS_TOKEN": TOKEN})


@pytest.fixture
def exporting() -> Iterator[None]:
    exporters.install(["prometheus"])
    recorder.record(definitions.CACHE_HITS, 3)
    yield
    exporters.uninstall("prometheus")


def get(user: Any = None, **headers: str) -> Any:
    request = RequestFactory().get("/metrics", headers=headers)
    request.user = AnonymousUser() if user is None else user
    return metrics(request)


def parsed(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


@with_token
def test_a_token_opens_the_view(exporting: None) -> None:
    answer = get(Authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "no-store" in answer["Cache-Control"]
    assert parsed(answer.content.decode())["temporalex_cache_hits"].samples[0].value == 3
    text = get(Authorization=f"Bearer {TOKEN}", Accept="application/openmetrics-text; version=1.0.0").content.decode()
    hits = next(family for family in openmetrics_families(text) if family.name == "temporalex_cache_hits")
    assert [(sample.name, sample.value) for sample in hits.samples] == [("temporalex_cache_hits_total", 3)]


@with_token
@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", TOKEN, f"Basic {TOKEN}", "Bearer ü"]
)
def test_another_token_does_not(exporting: None, header: str) -> None:
    answer = get(Authorization=header)
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, 'Bearer realm="metrics"')


@pytest.mark.parametrize("header", ["Bearer ", "Bearer None", "Bearer"])
def test_without_a_token_in_the_settings_none_is_right(exporting: None, header: str) -> None:
    assert get(Authorization=header).status_code == 401


def test_a_request_without_users_is_refused(exporting: None) -> None:
    assert metrics(RequestFactory().get("/metrics")).status_code == 401
    assert metrics(RequestFactory().post("/metrics")).status_code == 405


@pytest.mark.django_db
def test_a_user_needs_the_permission(exporting: None) -> None:
    user = get_user_model().objects.create_user("ann")
    assert get(user).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_worker"))
    assert get(get_user_model().objects.get()).status_code == 200


@with_token
def test_a_process_without_the_exporter_says_so() -> None:
    answer = get(Authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 503
    assert "TEMPORALEX['METRICS']" in answer.content.decode()


@pytest.mark.parametrize("wrong", [{"METRICS": "prometheus"}, {"METRICS": ["statsd"]}, {"METRICS_TOKEN": "short"}])
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with override_settings(TEMPORALEX=wrong):
        (problem,) = conf.problems()
    assert next(iter(wrong)) in problem
    with override_settings(TEMPORALEX={"METRICS": ["otel", "prometheus"]}):
        assert conf.problems() == []


def test_the_settings_name_the_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[Any] = []
    monkeypatch.setattr("temporalex_django.apps.exporters.install", names.append)
    config = apps.get_app_config("temporalex_django")
    with override_settings(TEMPORALEX={"METRICS": ["prometheus"]}):
        config.ready()
    assert names == [["prometheus"]]


def test_an_extra_that_is_missing_is_a_problem_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "find_spec", lambda name: None if name == "opentelemetry" else name)
    with override_settings(TEMPORALEX={"METRICS": ["prometheus", "otel"]}):
        assert conf.problems() == [
            "TEMPORALEX['METRICS'] names 'otel', which needs the module opentelemetry: install temporalex-django[otel]."
        ]


def address(process: Process) -> str:
    process.says("metrics on http://")
    found = re.search(r"metrics on (http://127\.0\.0\.1:\d+/metrics)", process.log.read_text())
    assert found is not None
    return found[1]


def scrape(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=10) as answer:
        return parsed(answer.read().decode())


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_workers_serve_their_own_work_and_one_of_them_the_facts(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    port = ["--metrics-port", "0"]
    with (
        worker(subprocess_env, tmp_path, *port) as first,
        worker(subprocess_env, tmp_path, *port, name="second") as second,
    ):
        addresses = [address(first), address(second)]
        wait_for(lambda: "temporalex_workers" in scrape(addresses[0]))
        assert "temporalex_workers" not in scrape(addresses[1])
        live = {sample.labels["state"]: sample.value for sample in scrape(addresses[0])["temporalex_workers"].samples}
        assert live["live"] >= 1
        Basket.start(id="b-1")

        def activations() -> float:
            scraped = [scrape(url)["temporalex_activations"].samples for url in addresses]
            return sum(sample.value for samples in scraped for sample in samples)

        wait_for(lambda: activations() == 1)
        first.terminate()
        wait_for(lambda: "temporalex_workers" in scrape(addresses[1]))


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_cluster_and_a_worker_beside_it_share_a_directory(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    env = {
        **subprocess_env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_TEMPORALEX": json.dumps({"METRICS": ["prometheus"]}),
        "PROMETHEUS_MULTIPROC_DIR": str(shared),
    }
    with cluster(env, tmp_path), worker(env, tmp_path, "--metrics-port", "0") as beside:
        url = address(beside)

        def total(name: str, **labels: str) -> float:
            samples = scrape(url)[name].samples if name in scrape(url) else []
            return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

        wait_for(lambda: Worker.objects.filter(kind="q2", exports_metrics=True).exists())
        threads = get_settings().ACTIVITY_THREADS
        wait_for(lambda: total("temporalex_worker_slots", lane="threads") == threads * Worker.objects.count())
        wait_for(lambda: total("temporalex_workers", state="live") == Worker.objects.count())
        for number in range(10):
            Basket.start(id=f"b-{number}")
        wait_for(lambda: total("temporalex_activations") == 10)
        victim = Worker.objects.filter(kind="q2").earliest("started_at")
        os.kill(victim.pid, signal.SIGKILL)
        wait_for(lambda: total("temporalex_dead_workers") == 1)
        assert total("temporalex_activations") == 10, "what it had recorded is kept"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_port_in_use_ends_the_worker_as_a_wrong_option_does(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        arguments = ["temporalex", "worker", "--metrics-port", port]
        with running(arguments, subprocess_env, tmp_path / "out") as process:
            assert process.popen.wait(30) == 2
    said = (tmp_path / "out").read_text()
    assert f"metrics cannot be served on 127.0.0.1, port {port}: Address already in use. Choose another" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_number_that_is_no_port_is_refused(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with running(["temporalex", "worker", "--metrics-port", "70000"], subprocess_env, tmp_path / "out") as process:
        assert process.popen.wait(30) == 2
    assert "--metrics-port" in (tmp_path / "out").read_text()
