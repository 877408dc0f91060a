"""``@task(max_attempts=, backoff=)``, in the form of Django's own proposal for retries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from temporalex_django import Ok, RetryPolicy, Workflow, api, errors
from temporalex_django.testing import DjangoEnvironment, WorkflowEnvironment
from tests.settings_tasks import TASKS

with override_settings(TASKS=TASKS):
    from temporalex_django.tasks import results
    from tests.app import tasks as t

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    t.RAN.clear()


@pytest.fixture(autouse=True)
def _backends(settings: Any) -> None:
    settings.TASKS = TASKS


def _state(result: Any) -> tuple[str, int]:
    result.refresh()
    return str(result.status), len(result.errors)


@pytest.mark.parametrize("task", [t.stumbles, t.stumbles_later], ids=["plain", "async"])
def test_backoff_is_asked_with_the_error_and_decides_the_pause(task: Any) -> None:
    with DjangoEnvironment() as env:
        result = task.enqueue("LookupError")
        env.advance()
        assert _state(result) == ("READY", 1)
        env.advance(seconds=29)
        assert _state(result) == ("READY", 1)
        env.advance(seconds=1)
        assert _state(result) == ("READY", 2)
        env.advance(seconds=59)
        assert _state(result) == ("READY", 2)
        env.advance(seconds=1)
        assert _state(result) == ("FAILED", 3)
    assert [("LookupError", number, number, "FAILED") for number in (1, 2, 3)] == t.RAN
    assert {error.exception_class for error in result.errors} == {LookupError}


def test_backoff_returns_none_to_end_the_task() -> None:
    with DjangoEnvironment() as env:
        result = t.stumbles.enqueue("KeyError")
        env.advance()
        assert _state(result) == ("FAILED", 1)


def test_max_attempts_alone_has_the_pauses_of_a_policy() -> None:
    with DjangoEnvironment() as env:
        result = t.stumbles_twice.enqueue()
        env.advance()
        assert _state(result) == ("READY", 1)
        env.advance(seconds=1)
        assert _state(result) == ("FAILED", 2)


def test_a_backoff_without_an_answer_leaves_it_to_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    with DjangoEnvironment() as env:
        result = t.stumbles_backwards.enqueue()
        env.advance()
        assert _state(result) == ("READY", 1)
        env.advance(seconds=1)
        assert _state(result) == ("READY", 2)
    assert "stumbles_backwards: its backoff has failed, so the retry policy decides: ValueError" in caplog.text


class Stumbling(Workflow):
    async def run(self, args: Any) -> Any:
        await api.task(t.stumbles, "LookupError")
        return Ok(None)


def test_a_task_that_a_workflow_awaits_asks_its_backoff_too() -> None:
    env = WorkflowEnvironment()
    run = env.start(Stumbling)
    env.advance(timedelta(seconds=89))
    assert run.status == "running"
    env.advance(timedelta(seconds=1))
    with pytest.raises(errors.WorkflowFailed, match="LookupError"):
        run.result()
    # The history keeps the last failure of an activity, so the errors of earlier attempts are not there.
    assert [entry[1:3] for entry in t.RAN] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts=0 is not a whole number of 1 or more"),
        ({"max_attempts": True}, "max_attempts=True is not a whole number"),
        ({"backoff": 30}, "backoff=30 is not a function of an exception and a TaskResult"),
        ({"retry": RetryPolicy(), "max_attempts": 3}, "retry= takes max_attempts= and backoff= too"),
    ],
)
def test_options_that_make_no_sense_are_refused_where_the_task_is_defined(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(results.InvalidTask, match=message):
        t.task(**options)(t.add.func)
