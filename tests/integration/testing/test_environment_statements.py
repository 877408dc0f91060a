"""The number of statements with which a ``DjangoEnvironment`` drives a run: tests of users wait for each of them."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.testing import DjangoEnvironment

#: The most statements of one run with a timer and an activity, from its start to its end, with savepoints. Only lower
#: it.
CEILING = 35


@activity
def book_seat(row: int) -> int:
    return row + 1


class Trip(Workflow):
    async def run(self, args: object) -> object:
        await api.sleep(3600)
        return Ok(await book_seat(1))


def statements_of_trip(env: DjangoEnvironment) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        handle = env.start(Trip)
        env.advance(hours=1)
    assert handle.result() == 2
    return [query["sql"] for query in queries]


@pytest.mark.django_db
def test_run_with_a_timer_and_an_activity_needs_few_statements() -> None:
    env = DjangoEnvironment()
    statements_of_trip(env)

    statements = statements_of_trip(env)

    assert len(statements) <= CEILING, "\n".join(statements)


@pytest.mark.django_db
def test_parked_runs_and_other_queues_cost_no_statement() -> None:
    """A run that waits, and queues without work, are no reason to look again."""
    env = DjangoEnvironment()
    before = len(statements_of_trip(env))
    for _ in range(5):
        env.start(Trip, start_delay=10_000_000)

    assert len(statements_of_trip(env)) == before


@pytest.mark.django_db(transaction=True)
def test_no_statement_can_change_nothing() -> None:
    """The writer lock comes with the transaction, and a run without messages has none to answer when it closes."""
    statements = statements_of_trip(DjangoEnvironment())

    useless = [s for s in statements if "0 = 1" in s or "update temporalex_message" in s]
    assert useless == []
