"""A pytest plugin with a fixture for each environment. It replays every run of every test environment after its test.

So code that is not deterministic fails the test that ran it. The plugin is active when the package is installed.
``temporalex_replay = false`` in the ini file turns replays off. The marker ``temporalex_no_replay`` does so for one
test, for example a test that changes code under a run on purpose.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from temporalex_django.testing.plugin_hooks import listeners

_ENVIRONMENTS = pytest.StashKey[list[Any]]()
_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def workflow_environment() -> Any:
    """A ``WorkflowEnvironment``: runs in memory, with a virtual clock."""
    from temporalex_django.testing.memory_backend import WorkflowEnvironment  # noqa: PLC0415 - a suite without it pays nothing

    return WorkflowEnvironment()


@pytest.fixture
def django_environment(db: None) -> Iterator[Any]:
    """A ``DjangoEnvironment`` that is entered, so that the application runs on it.

    It works in the transaction of ``db``. If the test, its marker or its ``live_server`` asks for ``transactional_db``,
    it works on committed data.
    """
    # pytest-django creates the databases that the collected tests ask for by their arguments, so ``db`` is one here. It
    # gives way to ``transactional_db`` by itself.
    from temporalex_django.testing.database import DjangoEnvironment  # noqa: PLC0415 - Django is set up by now

    with DjangoEnvironment() as env:
        yield env


class WithoutDatabase:
    """The fixture ``db`` for suites that have no pytest-django."""

    @pytest.fixture
    def db(self) -> None:
        """Fail the test that asks for a database."""
        pytest.fail("the fixture django_environment needs the database of pytest-django: install pytest-django")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the setting ``temporalex_replay``."""
    parser.addini("temporalex_replay", "replay every run of a test after the test", type="bool", default=True)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker ``temporalex_no_replay``, and a ``db`` that says what is missing."""
    if not config.pluginmanager.hasplugin("django"):
        config.pluginmanager.register(WithoutDatabase())
    config.addinivalue_line("markers", "temporalex_no_replay: do not replay the runs of this test after it")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Collect the environments that the test and its fixtures create, so that their runs can be replayed."""
    if not item.config.getini("temporalex_replay") or item.get_closest_marker("temporalex_no_replay"):
        return (yield)
    environments = item.stash[_ENVIRONMENTS] = []

    def add_environment(env: Any) -> None:
        clean_up = getattr(getattr(item, "instance", None), "addCleanup", None)
        # A TestCase of Django rolls back before pytest tears down. Cleanups of the instance run earlier.
        if clean_up is not None:
            clean_up(env.replay_all)
        else:
            environments.append(env)

    listeners.append(add_environment)
    try:
        return (yield)
    finally:
        listeners.remove(add_environment)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Record that a test failed, because its runs are then not replayed: one failure is enough."""
    if call.excinfo is not None:
        item.stash[_FAILED] = True
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Replay the runs of the test before its fixtures are torn down, while its data is not rolled back yet.

    The fixtures are torn down in any case.
    """
    error: Exception | None = None
    try:
        if not item.stash.get(_FAILED, False):
            for env in item.stash.get(_ENVIRONMENTS, []):
                env.replay_all()
    except Exception as exc:  # noqa: BLE001 - raised below
        error = exc
    result = yield
    if error is not None:
        raise error
    return result
