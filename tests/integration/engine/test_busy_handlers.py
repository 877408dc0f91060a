"""Whatever waits behind a handler is delivered when the handler ends, and no other message is needed for that.

On committed data, by ``drain``. ``tests/faults/test_busy_handlers.py`` has senders and workers that run at the same
time.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from temporalex_django import errors
from temporalex_django.db.inserts import insert_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.models import ActivityTask, Instance, Message
from temporalex_django.testing import drain
from tests.app.turns import Counter

pytestmark = pytest.mark.django_db(transaction=True)


def send(handle: Any, *names: str) -> None:
    """Updates and signals of which nobody waits for the answer; ``stop`` is the signal."""
    run = Instance.objects.get(pk=handle.run_id)
    for name in names:
        kind, title = ("signal", "stop") if name == "stop" else ("update", "take")
        body, own_id = (None, None) if name == "stop" else (name, name)
        insert_message(run.chain_id, kind=kind, name=title, body=body, request_id=own_id, storage=DjangoStorage())


def waiting() -> int:
    return Message.objects.filter(settled=False).count()


@pytest.mark.parametrize("kind", ["atomic", "external", "local"])
@pytest.mark.parametrize(("senders", "parts"), [(2, 1), (3, 1), (2, 2), (5, 3)])
def test_what_waits_is_delivered_when_the_handler_ends(kind: str, senders: int, parts: int) -> None:
    handle = Counter.start({"kind": kind, "parts": parts}, id="counter")
    drain()
    names = [f"c{number}" for number in range(senders)]
    with transaction.atomic():
        send(handle, *names)
    drain()

    assert waiting() == 0
    assert [handle.update("take", name, id=name) for name in names] == list(range(senders))
    assert get_user_model().objects.count() == senders * parts
    send(handle, "stop")
    drain()
    assert handle.result(timeout=1) == names


@pytest.mark.parametrize(("limit", "value"), [("MAX_ATOMIC_ACTIVATIONS", 2), ("ATOMIC_RUN_SECONDS", 0.0)])
def test_a_transaction_that_ends_early_loses_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(policy, limit, value)
    handle = Counter.start({"kind": "atomic", "parts": 3}, id="counter")
    drain()
    with transaction.atomic():
        send(handle, "a", "b", "c", "d")
    drain()
    assert (waiting(), get_user_model().objects.count()) == (0, 12)


def test_a_message_that_comes_behind_those_that_wait_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One activity at a time: new messages meet old ones that wait in the inbox."""
    monkeypatch.setattr(policy, "MAX_ATOMIC_ACTIVATIONS", 1)
    handle = Counter.start({"kind": "atomic", "parts": 2}, id="counter")
    drain()
    with transaction.atomic():
        send(handle, "a", "b")
    with pytest.raises(errors.UpdateTimeout):
        handle.update("take", "c", id="c", timeout=0.0)
    drain()
    send(handle, "d", "stop")
    drain()
    assert handle.result(timeout=1) == ["a", "b", "c", "d"]


def test_updates_that_wait_are_refused_when_the_phase_ends() -> None:
    """A stop that comes while a handler is busy is handled before the updates behind it."""
    handle = Counter.start({"kind": "atomic", "parts": 2}, id="counter")
    drain()
    with transaction.atomic():
        send(handle, "a", "stop", "b")
    drain()
    assert handle.result(timeout=1) == ["a"]
    assert waiting() == 0
    assert not ActivityTask.objects.exists()
    assert dict(Message.objects.values_list("request_id", "outcome_status")) == {"a": "completed", "b": "rejected"}


@pytest.mark.usefixtures("unhurried")
def test_the_place_of_what_waits_is_stored_once() -> None:
    handle = Counter.start({"kind": "atomic", "parts": 6}, id="counter")
    drain()
    with transaction.atomic():
        send(handle, "a", "b")
    with CaptureQueriesContext(connection) as queries:
        drain()
    assert waiting() == 0
    places = [
        one for one in queries if "temporalex_message" in one["sql"] and "after" in one["sql"].partition(" set ")[2]
    ]
    assert 1 <= len(places) <= 2  # by the turn that read it, and by the first activation with results
