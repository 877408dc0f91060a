"""An update inside an ``atomic()`` block of the application, in a test with ``DjangoEnvironment``: as in production."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from temporalex_django import errors
from temporalex_django.testing import DjangoEnvironment
from tests.integration.client.test_updates_in_transactions import (
    Desk,
    book,
    fails,
    test_an_atomic_activity_runs_in_the_callers_transaction,  # noqa: F401 - with the fixture of this module
    test_it_lives_and_dies_with_the_transaction,  # noqa: F401 - as above
    users,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def env() -> Iterator[DjangoEnvironment]:
    with DjangoEnvironment() as env:
        yield env


@pytest.fixture
def desk(env: DjangoEnvironment) -> Any:
    handle = Desk.start(id="desk")
    env.work()
    return handle


def test_several_run_one_after_the_other(env: DjangoEnvironment, desk: Any) -> None:
    with transaction.atomic():
        assert len(desk.update("two", "bob")) == 2

    assert users() == ["bob-1", "bob-2"]
    desk.signal("stop")
    env.work()
    assert desk.result(timeout=0) == ["bob"]


def test_a_stand_in_runs_in_the_callers_transaction(env: DjangoEnvironment, desk: Any) -> None:
    env.mock(book, lambda name: len(name))
    with transaction.atomic():
        assert desk.update("two", "bob") == [5, 5]

    assert users() == []


def test_a_call_that_a_test_holds_ends_after_the_transaction(env: DjangoEnvironment, desk: Any) -> None:
    env.hold(book)
    with transaction.atomic(), pytest.raises(errors.UpdateTimeout) as refused:
        desk.update("one", "ann", id="u1")
    env.work()
    env.complete(book, 7)

    assert refused.value.accepted
    assert desk.update("one", "ann", id="u1") == 7
    assert users() == []


@pytest.mark.parametrize("update", ["external", "later"])
def test_another_wait_goes_on_after_the_transaction(env: DjangoEnvironment, desk: Any, update: str) -> None:
    with transaction.atomic(), pytest.raises(errors.UpdateTimeout) as refused:
        desk.update(update, "ann", id="u1")
    env.advance(minutes=1)

    assert refused.value.accepted
    assert desk.update(update, "ann", id="u1") == "ann"
    assert users() == (["ann"] if update == "external" else [])


def test_a_failed_attempt_is_tried_again_after_the_transaction(env: DjangoEnvironment, desk: Any) -> None:
    attempts = []

    def stand_in(name: str) -> None:
        attempts.append(name)
        if len(attempts) < 3:
            raise OSError(name)

    env.mock(fails, stand_in)
    with transaction.atomic(), pytest.raises(errors.UpdateTimeout):
        desk.update("broken", "ann", id="u1")
    assert attempts == ["ann"]
    env.advance(minutes=5)

    assert attempts == ["ann"] * 3
    assert desk.update("broken", "ann", id="u1") == "ann"
