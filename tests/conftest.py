"""What every test may use."""

from __future__ import annotations

import gc
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
#: Folders whose tests are pure where they touch no database.
PURE = frozenset({"unit", "property", "structure", "typing", "histories"})
#: For a browser without a window system, as root, on a machine whose network is closed.
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def pytest_report_header() -> str:
    import django

    return f"django: {django.get_version()}, database: {os.environ.get('TEST_DB', 'sqlite')}"


def suite_and_lane() -> tuple[str, str] | None:
    """Return the suite and the lane that run, or None if all tests do."""
    from tests.support import lanes

    if not (lane := os.environ.get("TEST_LANE")):
        return None
    suite = os.environ.get("TEST_SUITE") or "test"
    assert lane in lanes.LANES, f"TEST_LANE is one of {', '.join(lanes.LANES)}, not {lane!r}"
    assert suite in lanes.SUITES, f"TEST_SUITE is one of {', '.join(lanes.SUITES)}, not {suite!r}"
    return suite, lane


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that have nothing for this lane, before they are imported."""
    from tests.support import lanes

    if (run := suite_and_lane()) is None or collection_path.suffix != ".py" or TESTS not in collection_path.parents:
        return None
    suite, lane = run
    is_test = collection_path.name.startswith("test_")
    return True if is_test and not lanes.may_run(collection_path, TESTS, lane, suite) else None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from tests.support import lanes

    skip = pytest.mark.skip(reason="needs PostgreSQL (TEST_DB=postgres)")
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder in PURE and not (item.get_closest_marker("django_db") or "transactional_db" in item.fixturenames):
            item.add_marker("unit")
        if folder == "browser":
            item.add_marker("browser")
            item.add_marker(pytest.mark.xdist_group("browser"))  # they share a demo
        lanes.mark(item, folder)
        if item.get_closest_marker("postgres") and os.environ.get("TEST_DB") != "postgres":
            item.add_marker(skip)
    if (run := suite_and_lane()) is not None:
        suite, lane = run
        others = [item for item in items if lane not in lanes.lanes_of(item, suite)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if lane in lanes.lanes_of(item, suite)]


@pytest.fixture(autouse=True)
def _definitions() -> Iterator[None]:
    """Put back the workflows and activities of modules that a test has defined again: another one uses them."""
    from temporalex_django.authoring import activity, workflow

    registries: list[dict[str, Any]] = [workflow.registry, activity.registry]
    before = [dict(registry) for registry in registries]
    yield
    for registry, definitions in zip(registries, before, strict=True):
        registry.update(definitions)


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest, django_db_modify_db_settings: None, django_db_blocker: Any
) -> Iterator[None]:
    """The database of this process; what tests commit is taken out of it in a quicker way than Django's."""
    from django.test import TransactionTestCase

    from tests.support import emptying
    from tests.support.database_copies import process_database

    worker = getattr(request.config, "workerinput", {}).get("workerid", "alone")
    copy = ExitStack()
    with django_db_blocker.unblock():
        copy.enter_context(process_database(worker))
        emptying.remember()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", emptying.empty)
        yield
    with django_db_blocker.unblock():
        copy.close()


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the server of Temporal, which the processes of a test run share."""
    from tests.support.temporal_server import shared_server

    base = tmp_path_factory.getbasetemp()
    # A test that is run again alone has no processes beside its own.
    with shared_server(base.parent if hasattr(request.config, "workerinput") else base) as address:
        yield address


@pytest.fixture
def subprocess_env(transactional_db: None) -> dict[str, str]:
    """Environment for a process that works on this test's database: workers, clusters, commands.

    The test must commit what the process is to see, hence ``transactional_db``.
    """
    from django.db import connection

    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TX_TEST_DATABASE": str(connection.settings_dict["NAME"]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that take all that is there: how much fits into one does not depend on how quick this machine is."""
    from temporalex_django.backends.tables import requests
    from temporalex_django.engine import policy

    limits = ("TURN_SECONDS", "RUN_SECONDS", "LATE_SECONDS", "REBUILD_IN_TURN_SECONDS", "ATOMIC_RUN_SECONDS")
    for limit in limits:
        monkeypatch.setattr(policy, limit, 60.0)
    monkeypatch.setattr(requests, "_READ_WITHIN", 60.0)
    monkeypatch.setattr(policy, "FEWEST_RUNS", 1_000)


@pytest.fixture(params=["libpq", "plain"] if os.environ.get("TEST_DB") == "postgres" else ["sqlite"])
def each_wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which statements reach PostgreSQL (``db.dialects.libpq``), one after the other."""
    if request.param != "sqlite":
        from tests.support.wires import use_wire

        use_wire(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture
def collector_at_rest() -> Iterator[None]:
    """Going over all that a thousand tests left behind takes the collector longer than limits of time in tests."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the distribution's Chromium; its absence is a failure in CI and a skip elsewhere."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    message = "no Chromium on this machine (Debian: apt-get install chromium)"
    if in_ci():
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A headless browser (playwright). Its event loop runs in this thread, so the ORM is told not to mind."""
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        instance = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
        yield instance
        instance.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A fresh page with cookies of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()
