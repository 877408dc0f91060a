"""The setting ``INTERCEPTORS``: loaded when Django starts, and refused if it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import override_settings

from temporalex_django import errors
from temporalex_django.conf import get_settings, problems

ROOT = Path(__file__).resolve().parents[3]
LOADED = (
    "import django; django.setup(); from temporalex_django.interceptors.chain import chain;"
    " print([type(one).__name__ for one in chain.interceptors], len(chain.client_call), len(chain.activation))"
)


def start(interceptors: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_TEMPORALEX": json.dumps({"INTERCEPTORS": interceptors}),
    }
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_worker_has_those_of_the_settings() -> None:
    paths = ["temporalex_django.contrib.request_id.RequestId", "temporalex_django.contrib.otel.Tracing"]
    done = start(paths, "-c", LOADED)
    assert done.stdout.strip() == "['RequestId', 'Tracing'] 2 1", done.stderr


def test_a_class_that_cannot_be_imported_stops_the_start_with_its_name() -> None:
    done = start(["shop.missing.Interceptor"], "-c", LOADED)
    assert done.returncode != 0
    assert "names 'shop.missing.Interceptor', which cannot be used: ModuleNotFoundError" in done.stderr
    checked = start(["shop.missing.Interceptor"], "manage.py", "check")
    assert checked.returncode != 0
    assert "names 'shop.missing.Interceptor', which cannot be used" in checked.stderr


@override_settings(TEMPORALEX={"INTERCEPTORS": ["temporalex_django.conf.Settings"]})
def test_a_class_of_another_kind_is_a_problem() -> None:
    (problem,) = problems()
    assert "it is not a subclass of temporalex_django.interceptors.Interceptor" in problem


@pytest.mark.parametrize("value", ["a.b", [1], None])
def test_it_is_a_list_of_paths(value: object) -> None:
    with (
        override_settings(TEMPORALEX={"INTERCEPTORS": value}),
        pytest.raises(errors.NotConfigured, match="INTERCEPTORS"),
    ):
        get_settings()
