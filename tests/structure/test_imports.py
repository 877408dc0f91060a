"""What importing the package costs, and what it promises."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from tests.structure.source import ROOT

# Importing Django raises, as it would where Django is not installed.
WITHOUT_DJANGO = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"django", "rest_framework", "django_q", "psycopg"}:
            raise ModuleNotFoundError(f"{name} was imported", name=name)

sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import temporalex_django",
        "from temporalex_django import Workflow, Ok, Stop, Reply, NoReply, Err, activity, api, query, update, errors",
        "import temporalex_django.core",
        "from temporalex_django.testing import WorkflowEnvironment; WorkflowEnvironment()",
    ],
)
def test_the_pure_parts_load_without_django_or_settings(statement: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_DJANGO + statement],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_every_name_can_be_imported_in_a_plain_shell() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    statement = "from temporalex_django import *; once, Workflow, GraphWorkflow, Schedule"

    done = subprocess.run(
        [sys.executable, "-c", statement], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_every_public_name_resolves() -> None:
    package = importlib.import_module("temporalex_django")

    assert package.__all__
    assert len(set(package.__all__)) == len(package.__all__)
    assert [name for name in package.__all__ if getattr(package, name, None) is None] == []
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("first", ["from temporalex_django import api", "from temporalex_django.api import sleep"])
def test_primitives_are_imported_under_the_path_that_the_pages_show(first: str) -> None:
    statement = (
        f"{first}; import temporalex_django; from temporalex_django import api; from temporalex_django.api import sleep;"
        " assert temporalex_django.api is api and sleep is api.sleep"
    )
    ran = subprocess.run([sys.executable, "-c", statement], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
