"""An update inside the caller's ``atomic()``: answered there with its atomic activities, or refused at once."""

from __future__ import annotations

import time

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from temporalex_django import Async, Ok, Reply, RetryPolicy, Stop, Workflow, activity, api, errors
from temporalex_django.models import HistoryEvent, Message
from temporalex_django.testing import drain

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


@pytest.fixture
def desk():
    handle = Desk.start(id="desk")
    drain()
    return handle


def users():
    return sorted(get_user_model().objects.values_list("username", flat=True))


@pytest.mark.parametrize("update", ["one", "apart"])
def test_an_atomic_activity_runs_in_the_callers_transaction(desk, update):
    with transaction.atomic():
        pk = desk.update(update, "ann")
        assert get_user_model().objects.get(pk=pk).username == "ann"

    assert users() == ["ann"]


def test_several_run_one_after_the_other(desk):
    with transaction.atomic():
        assert len(desk.update("two", "bob")) == 2

    assert users() == ["bob-1", "bob-2"]
    desk.signal("stop")
    drain()
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
    with pytest.raises(errors.UpdateTimeout):
        desk.update("later", "ann", id="u1", timeout=0.1)
    began = time.monotonic()

    with (
        transaction.atomic(),
        pytest.raises(errors.UpdateTimeout, match="accepted before and has not finished") as refused,
    ):
        desk.update("later", "ann", id="u1", timeout=30)

    assert refused.value.accepted and refused.value.update_id == "u1"
    assert time.monotonic() - began < 15  # half of the timeout, which it does not use


def test_the_run_goes_on_as_if_it_had_not_been_sent(desk):
    with transaction.atomic(), pytest.raises(errors.ActionNotPossible):
        desk.update("external", "cleo", id="u1")

    with transaction.atomic():
        desk.update("one", "ann")
    desk.signal("stop")
    drain()

    assert desk.result(timeout=0) == []


def test_a_timeout_says_that_no_worker_lives(desk):
    with pytest.raises(errors.UpdateTimeout, match="no live worker polls the queue 'default'"):
        desk.update("external", "cleo", timeout=0)
