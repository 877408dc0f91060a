"""A project whose workflows are wrong: it starts, and says all that is wrong when it is checked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from temporalex_django import Done, Event, GraphWorkflow, Step, Unique, checks

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "temporalex_django", "one", "two", "three"]
"""
GRAPH = """
from temporalex_django import Done, Event, GraphWorkflow, Step, Unique

class A(Step):
    events = ("ok", "other")
    def execute(self, instance, config, context):
        return Event("ok")

class {name}(GraphWorkflow):
    unique = Unique(key="{name}".lower())
    initial = A
    transitions = {{(A, "ok"): Done{more}}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "faulty_settings.py").write_text(SETTINGS)
    for app, more in (("one", ""), ("two", ', (A, "other"): "B"'), ("three", ', (A, "other"): Done')):
        (tmp_path / app).mkdir()
        (tmp_path / app / "__init__.py").touch()
        (tmp_path / app / "workflows.py").write_text(textwrap.dedent(GRAPH.format(name=app.title(), more=more)))
    return tmp_path


def manage(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "faulty_settings",
        "PYTHONPATH": os.pathsep.join([str(project), str(Path(__file__).resolve().parents[3])]),
    }
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )


@pytest.mark.slow
def test_check_reports_every_module_that_could_not_be_loaded(project: Path) -> None:
    """HE-003 HE-073 HE-075: all of them, and a worker does not start beside them."""
    checked = manage(project, "check")
    assert checked.returncode == 1
    for part in (
        "one.workflows is not loaded: workflow One: events: step A declares 'other', but has no transition for it",
        "two.workflows is not loaded: workflow Two: transitions: (A, 'other'): 'B' is not a step",
        "temporalex_django.E008",
    ):
        assert part in checked.stderr
    assert "three.workflows" not in checked.stderr
    worker = manage(project, "temporalex", "worker", "--burst")
    assert worker.returncode == 1
    assert "one.workflows is not loaded" in worker.stderr


def test_a_graph_that_was_changed_since_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check looks again."""

    class Ends(Step):
        events = ["ok"]

        def execute(self, instance, config, context):
            return Event("ok")

    class Changed(GraphWorkflow):
        unique = Unique(key="changed")
        initial = Ends
        transitions = {(Ends, "ok"): Done}

    assert [m for m in checks.check_definitions(None) if "Changed" in m.msg] == []
    Ends.events.append("more")
    (found,) = [m for m in checks.check_definitions(None) if "Changed" in m.msg]
    assert found.id == "temporalex_django.E008"
    assert "step Ends declares 'more', but has no transition for it" in found.msg
    Ends.events.remove("more")
