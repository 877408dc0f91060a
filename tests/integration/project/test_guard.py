"""The guard in a Django project: the ORM, the setting, and the lint as a system check."""

from __future__ import annotations

import importlib.util
import sys
import threading
import warnings
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.checks import WARNING, run_checks
from django.db import connection, connections, transaction

from temporalex_django import Ok, activity, api, checks, errors
from temporalex_django.authoring import workflow as registry_of
from temporalex_django.core import current
from temporalex_django.core.determinism import guard
from temporalex_django.core.units.scheduler import Scheduler
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment
from tests.support.runs import flow, once

pytestmark = pytest.mark.django_db


@activity(name="guarded.count")
def count() -> int:
    return get_user_model().objects.count()


@activity(name="guarded.count_atomic", atomic=True)
def count_atomic() -> int:
    return get_user_model().objects.count()


async def asks() -> int:
    return get_user_model().objects.count()


@pytest.mark.parametrize("environment", [WorkflowEnvironment, DjangoEnvironment])
def test_the_orm_belongs_in_an_activity(environment: type[WorkflowEnvironment]) -> None:
    """TX-189."""
    handle = environment().start(once(asks))

    with pytest.raises(
        errors.WorkflowFailed, match=r"the ORM in workflow code \(asks, .*test_guard\.py:\d+\).*activity"
    ):
        handle.result()


def test_activities_may_use_the_orm() -> None:
    """TX-189."""

    async def body() -> list[int]:
        return [await count(), await count_atomic()]

    assert DjangoEnvironment().start(once(body)).result() == [0, 0]


def test_transactions_and_raw_cursors_are_guarded_and_left_usable() -> None:
    """TX-189."""

    async def run(self: object, args: object) -> Ok[list[str]]:
        seen = []
        for attempt in (
            lambda: connection.cursor().execute("select 1"),
            lambda: transaction.atomic().__enter__(),
            connection.close,
            connections.close_all,
        ):
            try:
                attempt()
            except errors.DeterminismViolation as exc:
                seen.append(exc.message[:7])
        return Ok(seen)

    assert DjangoEnvironment().start(flow(run)).result() == ["the ORM"] * 4
    assert get_user_model().objects.count() == 0


def test_a_query_may_not_use_the_orm() -> None:
    """TX-189."""

    async def run(self: object, args: object) -> Ok[None]:
        api.publish_state(1)
        await api.wait_for_signal("x")
        return Ok(None)

    cls = flow(run, handle_query=staticmethod(lambda name, args, state: get_user_model().objects.count()))
    with pytest.raises(errors.QueryFailed, match="the ORM"):
        DjangoEnvironment().start(cls).query("any")


def test_a_connection_that_is_opened_inside_of_another_wrapper_stays_guarded() -> None:
    """The wrapper stands first: whoever leaves `execute_wrapper` takes the last one away."""
    inner = []

    def other(execute, sql, params, many, context):
        inner.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(other):
        from temporalex_django.db import guards

        connection.execute_wrappers.remove(guards.refuse_query)
        guards.install_orm_guard()
    assert connection.execute_wrappers.count(guards.refuse_query) == 1
    assert other not in connection.execute_wrappers


def test_other_threads_use_the_orm_meanwhile(transactional_db: None) -> None:
    """TX-189: only the thread that runs workflow code is guarded."""
    seen: list[int] = []

    def ask() -> None:
        try:
            seen.append(get_user_model().objects.count())
        finally:
            connection.close()

    class Probe:
        is_suspect = False
        place = None
        scheduler = Scheduler()

    with current.use_runtime(Probe()):  # type: ignore[arg-type]
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(20)
        with pytest.raises(errors.DeterminismViolation):
            get_user_model().objects.count()
    assert seen == [0]


def test_the_setting(settings) -> None:
    """TX-189: `TEMPORALEX["GUARD"]`."""
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "GUARD": "off"}
    assert DjangoEnvironment().start(once(asks)).result() == 0

    settings.TEMPORALEX = {**settings.TEMPORALEX, "GUARD": "warn"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert DjangoEnvironment().start(once(asks)).result() == 0
    assert [w.category for w in said] == [errors.DeterminismWarning]

    settings.TEMPORALEX = {name: value for name, value in settings.TEMPORALEX.items() if name != "GUARD"}
    assert guard.mode() == "error"


def test_the_lint_is_a_system_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TX-189: file, line and replacement; a warning, never an error."""
    file = tmp_path / "linted_workflows.py"
    file.write_text(
        "import time\nfrom temporalex_django import Workflow, Ok\n\n\n"
        "class LintedByTest(Workflow):\n    async def run(self, args):\n        return Ok(time.time())\n"
    )
    spec = importlib.util.spec_from_file_location("tests.app.linted_workflows", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = dict(registry_of.registry)
    try:
        spec.loader.exec_module(module)
        [message] = [
            found
            for found in run_checks(tags=[checks.TAG])
            if found.id == "temporalex_django.W007" and str(file) in found.msg
        ]
    finally:
        registry_of.registry.clear()
        registry_of.registry.update(before)
    assert message.level == WARNING
    assert message.msg.startswith(f"{file}:7: time.time in workflow code (LintedByTest.run)")
    assert message.hint == "Use api.now()."
