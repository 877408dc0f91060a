"""An update inside the caller's ``atomic()``: answered there with its atomic activities, or refused at once.

The application does so in a test, on a ``DjangoEnvironment``, as it does in production.
"""

from __future__ import annotations

import time

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from temporalex_django import Async, Ok, Reply, RetryPolicy, Stop, Workflow, activity, api, errors
from temporalex_django.models import HistoryEvent, Message
from temporalex_django.testing import DjangoEnvironment, drain

pytestmark = pytest.mark.django_db(transaction=True)


@activity(atomic=True)
def book(name: str) -> int:
    return get_user_model().objects.create(username=name).pk


@activity(atomic=True, retry=RetryPolicy(max_attempts=5, initial_interval=30))
def fails(name: str) -> None:
    raise OSError(name)


@activity
def outside(name: str) -> str:
    return name


class Desk(Workflow):
    """Each update needs something else before it is answered."""

    name = "test.TransactionDesk"

    async def run(self, args):
        async def one(name, state):
            return Reply(await book(name), state)

        async def two(name, state):
            first = await book(f"{name}-1")
            second = await book(f"{name}-2")
            return Reply([first, second], [*state, name])

        async def external(name, state):
            await book(name)
            return Reply(await outside(name), state)

        async def later(name, state):
            await api.sleep(60)
            return Reply(name, state)

        async def person(name, state):
            return Reply((await api.approval("May I?", role="auth.change_group")).outcome, state)

        async def broken(name, state):
            await fails(name)
            return Reply(name, state)

        updates = {"one": one, "two": two, "external": external, "later": later, "person": person, "broken": broken}
        updates["apart"] = lambda name, state: Async(lambda: book(name), state)
        return Ok(await api.phase([], signal={"stop": lambda _, state: Stop(state)}, update=updates))


@pytest.fixture(params=["workers", "environment"])
def work(request):
    """Do the work that is due, as workers or a test environment do it."""
    if request.param == "workers":
        yield drain
    else:
        with DjangoEnvironment() as env:
            yield env.work


@pytest.fixture
def desk(work):
    handle = Desk.start(id="desk")
    work()
    return handle


def users():
    return sorted(get_user_model().objects.values_list("username", flat=True))


@pytest.mark.parametrize("update", ["one", "apart"])
def test_an_atomic_activity_runs_in_the_callers_transaction(desk, update):
    with transaction.atomic():
        pk = desk.update(update, "ann")
        assert get_user_model().objects.get(pk=pk).username == "ann"

    assert users() == ["ann"]


def test_several_run_one_after_the_other(desk, work):
    with transaction.atomic():
        assert len(desk.update("two", "bob")) == 2

    assert users() == ["bob-1", "bob-2"]
    desk.signal("stop")
    work()
    assert desk.result(timeout=0) == ["bob"]


def test_it_lives_and_dies_with_the_transaction(desk):
    events = HistoryEvent.objects.count()
    with transaction.atomic():
        assert len(desk.update("two", "bob", id="u1")) == 2
        transaction.set_rollback(True)

    assert users() == []
    assert HistoryEvent.objects.count() == events
    assert not Message.objects.filter(request_id="u1").exists()
    with transaction.atomic():
        assert len(desk.update("two", "bob", id="u1")) == 2
    assert users() == ["bob-1", "bob-2"]


@pytest.mark.parametrize("work", ["workers"], indirect=True)  # an environment continues after the block
@pytest.mark.parametrize("update", ["external", "later", "person", "broken"])
def test_one_that_would_still_wait_is_refused_at_once(desk, update):
    events = HistoryEvent.objects.count()
    with transaction.atomic():
        get_user_model().objects.create(username="caller")
        with pytest.raises(errors.ActionNotPossible, match="inside a transaction"):
            desk.update(update, "cleo", id="u1")

    assert users() == ["caller"]
    assert HistoryEvent.objects.count() == events
    assert not Message.objects.filter(request_id="u1").exists()


def test_one_that_was_accepted_before_and_is_not_done_does_not_wait_inside_a_transaction(desk):
    """It would hold the lock of the run for as long as it waits, and what it waits for needs that lock."""
    with pytest.raises(errors.UpdateTimeout):  # an environment does not wait for time to pass
        desk.update("later", "ann", id="u1", timeout=0.1)
    began = time.monotonic()

    with (
        transaction.atomic(),
        pytest.raises(errors.UpdateTimeout, match="accepted before and has not finished") as refused,
    ):
        desk.update("later", "ann", id="u1", timeout=30)

    assert refused.value.accepted and refused.value.update_id == "u1"
    assert time.monotonic() - began < 15  # half of the timeout, which it does not use


@pytest.mark.parametrize("work", ["workers"], indirect=True)
def test_the_run_goes_on_as_if_it_had_not_been_sent(desk, work):
    with transaction.atomic(), pytest.raises(errors.ActionNotPossible):
        desk.update("external", "cleo", id="u1")

    with transaction.atomic():
        desk.update("one", "ann")
    desk.signal("stop")
    work()

    assert desk.result(timeout=0) == []


@pytest.mark.parametrize("work", ["workers"], indirect=True)  # an environment is a worker
def test_a_timeout_says_that_no_worker_lives(desk):
    with pytest.raises(errors.UpdateTimeout, match="no live worker polls the queue 'default'"):
        desk.update("external", "cleo", timeout=0)


def test_a_stand_in_runs_in_the_callers_transaction_too():
    with DjangoEnvironment() as env:
        env.mock(book, lambda name: len(name))
        desk = Desk.start(id="desk")
        with transaction.atomic():
            assert desk.update("two", "bob") == [5, 5]

        assert users() == []


def test_a_call_that_a_test_holds_ends_after_the_transaction():
    with DjangoEnvironment() as env:
        env.hold(book)
        desk = Desk.start(id="desk")
        with transaction.atomic(), pytest.raises(errors.UpdateTimeout) as refused:
            desk.update("one", "ann", id="u1")
        env.work()
        env.complete(book, 7)

        assert refused.value.accepted
        assert desk.update("one", "ann", id="u1") == 7
        assert users() == []


@pytest.mark.parametrize("update", ["external", "later"])
def test_an_environment_goes_on_after_the_transaction(update):
    with DjangoEnvironment() as env:
        desk = Desk.start(id="desk")
        with transaction.atomic(), pytest.raises(errors.UpdateTimeout) as refused:
            desk.update(update, "ann", id="u1")
        env.advance(minutes=1)

        assert refused.value.accepted
        assert desk.update(update, "ann", id="u1") == "ann"
        assert users() == (["ann"] if update == "external" else [])


def test_a_failed_attempt_is_tried_again_after_the_transaction():
    attempts = []

    def stand_in(name):
        attempts.append(name)
        if len(attempts) < 3:
            raise OSError(name)

    with DjangoEnvironment() as env:
        env.mock(fails, stand_in)
        desk = Desk.start(id="desk")
        with transaction.atomic(), pytest.raises(errors.UpdateTimeout):
            desk.update("broken", "ann", id="u1")
        assert attempts == ["ann"]
        env.advance(minutes=5)

        assert attempts == ["ann"] * 3
        assert desk.update("broken", "ann", id="u1") == "ann"
