"""The fixture ``django_environment`` in an empty project, with the built wheel: the real database stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from temporalex_django.errors import NotConfigured
from temporalex_django.testing import DjangoEnvironment
from temporalex_django.testing.database import _check_test_database

ROOT = Path(__file__).resolve().parents[3]

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "temporalex_django", "billing"]
DATABASES = {{"default": {database!r}}}
"""
WORKFLOWS = """
from pathlib import Path
from temporalex_django import Ok, Workflow, activity, api

@activity
def charge(customer):
    with Path(__file__).with_name("charges").open("a") as charges:
        charges.write(customer + "\\\\n")

class Subscription(Workflow):
    async def run(self, args):
        await api.sleep(30 * 24 * 3600)
        await charge(args["customer"])
        return Ok("charged")
"""
TESTS = """
from pathlib import Path
from billing.workflows import Subscription

def test_a_subscription_is_charged(django_environment):
    handle = Subscription.start({"customer": "a test"})
    django_environment.advance(days=380)
    assert handle.result() == "charged"
    assert (Path(__file__).parent / "billing" / "charges").read_text() == "a test\\\\n"
"""
START = """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from billing.workflows import Subscription
for number in range(4):
    Subscription.start({"customer": f"customer {number}"})
"""
COUNT = """
import django; django.setup()
from temporalex_django.models import Chain, HistoryEvent
print(Chain.objects.filter(closed=False).count(), HistoryEvent.objects.count())
"""
LEAVE = """
import django; django.setup()
from django.core.management import call_command
from django.db import connection
call_command("migrate", "temporalex_django", "zero", verbosity=0)
print([name for name in connection.introspection.table_names() if name.startswith("temporalex")])
"""


class Project:
    """An empty project with a real database, and the package as people install it."""

    def __init__(self, folder: Path, package: Path, database: dict[str, Any]) -> None:
        self.folder = folder
        (folder / "billing").mkdir()
        (folder / "billing" / "__init__.py").touch()
        (folder / "billing" / "workflows.py").write_text(WORKFLOWS)
        (folder / "project_settings.py").write_text(SETTINGS.format(database=database))
        (folder / "test_billing.py").write_text(TESTS)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DJANGO_", "PYTEST", "TX_", "TEST_"))}
        path = os.pathsep.join([str(package), str(folder)])
        self.environment = {**kept, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "project_settings"}

    def python(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheel, in a folder that precedes the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    install = ["install", "--quiet", "--no-deps", "--no-compile", "--target", folder / "package"]
    subprocess.run([*pip, *install, next(folder.glob("*.whl"))], check=True, cwd=folder)
    return folder / "package"


@pytest.fixture
def project(tmp_path: Path, package: Path, transactional_db: None) -> Iterator[Project]:
    settings = {key: connection.settings_dict[key] for key in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}
    if connection.vendor == "sqlite":
        database = {"ENGINE": settings["ENGINE"], "NAME": "shop.sqlite3", "TEST": {"NAME": "shop-of-tests.sqlite3"}}
        yield Project(tmp_path, package, database)
        return
    name = f"shop_{uuid.uuid4().hex[:12]}"
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"create database {name}")
    yield Project(tmp_path, package, {**settings, "NAME": name})
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"select datname from pg_database where datname like '%{name}%'")
        for (left,) in cursor.fetchall():  # --reuse-db keeps its own
            cursor.execute(f"drop database {left} with (force)")


def test_one_test_file_alone_leaves_the_real_database_as_it_is(project: Project) -> None:
    project.python("-c", START)
    real = project.python("-c", COUNT)
    assert real.split()[0] == "4"

    for options in ([], ["-k", "charged"], ["--lf"], ["-n", "2"], ["--reuse-db"], ["--reuse-db", "--lf"]):
        (project.folder / "billing" / "charges").unlink(missing_ok=True)
        arguments = ["-q", "-p", "no:randomly", "-c", os.devnull, "--rootdir", ".", *options, "test_billing.py"]
        assert "1 passed" in project.python("-m", "pytest", *arguments)
        assert project.python("-c", COUNT) == real


def test_the_migrations_can_be_reversed_while_runs_are_open(project: Project) -> None:
    project.python("-c", START)
    assert project.python("-c", LEAVE).strip() == "[]"
    project.python("-c", START)
    assert project.python("-c", COUNT).split()[0] == "4"


@pytest.mark.parametrize(
    ("name", "test_name", "is_test"),
    [
        ("shop", None, False),
        ("/srv/shop.sqlite3", None, False),
        ("shop", "shop_of_tests", False),
        ("shop_of_tests", "shop_of_tests", True),
        ("shop_of_tests_gw0", "shop_of_tests", True),
        ("/tmp/a/checks.sqlite3", "/tmp/a/checks.sqlite3", True),
        ("/tmp/a/checks_2.sqlite3", "/tmp/a/checks.sqlite3", True),
        ("/srv/checked.sqlite3", "/tmp/a/checks.sqlite3", False),
        ("test_shop", None, True),
        ("test_shop_1", None, True),
        ("/srv/test_shop.sqlite3", None, True),
        (":memory:", None, True),
        ("file:memorydb_default?mode=memory&cache=shared", None, True),
    ],
)
def test_an_environment_refuses_what_is_not_a_test_database(
    monkeypatch: pytest.MonkeyPatch, name: str, test_name: str | None, is_test: bool
) -> None:
    monkeypatch.setitem(connection.settings_dict, "NAME", name)
    monkeypatch.setitem(connection.settings_dict, "TEST", {**connection.settings_dict["TEST"], "NAME": test_name})

    if is_test:
        _check_test_database(None)
        return
    with pytest.raises(NotConfigured, match=r"allow_database="):
        DjangoEnvironment()
    with pytest.raises(NotConfigured, match="is not one"):
        DjangoEnvironment(allow_database="another")
    _check_test_database(name)  # as allow_database
