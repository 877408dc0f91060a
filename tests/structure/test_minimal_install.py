"""The package, its models, workers and test kit need Django and msgspec alone, installed with ``--no-deps``."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.structure.source import ROOT

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "temporalex_django"]
OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "minimal.sqlite3", "OPTIONS": OPTIONS}}
"""
PROGRAM = """
import importlib, os

os.environ["DJANGO_SETTINGS_MODULE"] = "minimal_settings"
import django

django.setup()
for name in (
    "models", "client", "graph", "testing", "workers.loop", "workers.q2", "tasks", "pages.urls", "checks",
    "management.commands.temporalex",
):
    importlib.import_module(f"temporalex_django.{name}")
from django.core.management import call_command

call_command("migrate", verbosity=0)
call_command("check", fail_level="WARNING")
from temporalex_django import Ok, Workflow
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment, drain


class Echo(Workflow):
    async def run(self, args):
        return Ok(args)


handle = Echo.start(3, id="echo")
drain()
print("result", handle.result(), WorkflowEnvironment().start(Echo, 4).result(), DjangoEnvironment(allow_database="minimal.sqlite3").start(Echo, 5).result())
try:
    import temporalex_django.rest.urls
except ModuleNotFoundError as exc:
    print(exc)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the versions of this lane, and nothing else."""
    folder = tmp_path_factory.mktemp("minimal")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    program = Path(folder / "venv" / "bin" / "python")
    parts = [f"{name}=={version(name)}" for name in ("django", "msgspec", "asgiref", "sqlparse")]
    install = [program, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*install, *parts], check=True, cwd=folder)
    # Built by hatchling of this environment: an isolated build would install it again.
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    subprocess.run([*install, next(folder.glob("*.whl"))], check=True, cwd=folder)
    return program


def test_it_runs_workflows_with_django_and_msgspec_alone(python: Path, tmp_path: Path) -> None:
    (tmp_path / "minimal_settings.py").write_text(SETTINGS)

    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "result 3 4 5" in done.stdout
    assert "temporalex_django.rest needs rest_framework, which is not installed: pip install" in done.stdout
