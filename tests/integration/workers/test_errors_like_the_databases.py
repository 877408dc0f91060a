"""Errors of the classes that a lost connection has, raised by code of the user, are those of one run alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, connections

from temporalex_django import Ok, RetryPolicy, Workflow, activity, errors
from temporalex_django.workers.loop import WorkerLoop
from tests.app.scopes import Steps
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def use_a_closed_cursor() -> None:
    cursor = connection.cursor()
    cursor.close()
    cursor.execute("select 1")


def ask_another_database() -> None:
    raise OperationalError("connection to the other database refused")


def misuse_a_driver() -> None:
    raise InterfaceError("bad argument")


WAYS: dict[str, Callable[[], None]] = {
    function.__name__: function for function in (use_a_closed_cursor, ask_another_database, misuse_a_driver)
}
_ONCE = RetryPolicy(max_attempts=1)


@activity(atomic=True, retry=_ONCE)
def fail_in_the_turn(way: str) -> None:
    WAYS[way]()


@activity(local=True, retry=_ONCE)
def fail_beside_it(way: str) -> None:
    WAYS[way]()


class Fails(Workflow):
    name = "test.FailsLikeADatabase"

    async def run(self, args: Any) -> Any:
        kind, way = args
        await {"atomic": fail_in_the_turn, "local": fail_beside_it}[kind](way)
        return Ok(None)


class Blocks(Workflow):
    name = "test.BlocksLikeADatabase"
    unexpected_error = "block"

    async def run(self, args: Any) -> Any:
        raise (OperationalError if args == "operational" else InterfaceError)("of a library")


@pytest.fixture
def worker() -> Any:
    loop, stop = WorkerLoop(), threading.Event()

    def run() -> None:
        try:
            loop.run(stop)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    yield loop
    stop.set()
    loop.wake.set()
    thread.join(60)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["atomic", "local"])
@pytest.mark.usefixtures("worker")
def test_an_activity_fails_alone(kind: str, way: str) -> None:
    bad = Fails.start([kind, way], id="bad")
    others = [Steps.start([["atomic", "count_users"]], id=f"other-{i}") for i in range(3)]

    assert [other.result(timeout=30) for other in others] == [[0]] * 3
    with pytest.raises(errors.WorkflowFailed, match="InterfaceError|OperationalError|ProgrammingError"):
        bad.result(timeout=30)


@pytest.mark.parametrize("error", ["operational", "interface"])
@pytest.mark.usefixtures("worker")
def test_a_run_is_blocked_alone(error: str) -> None:
    bad = Blocks.start(error, id="bad")
    others = [Steps.start([["atomic", "count_users"]], id=f"other-{i}") for i in range(3)]

    assert [other.result(timeout=30) for other in others] == [[0]] * 3
    wait_for(lambda: bad.describe().blocked is not None)
    assert "of a library" in str(bad.describe().blocked)
