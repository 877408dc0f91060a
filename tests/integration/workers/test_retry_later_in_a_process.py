"""What passes between a worker and the process of an activity when an attempt asks for another one later."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from temporalex_django import RetryLater, activity, activity_context
from temporalex_django.core.failures import describe
from temporalex_django.workers import activity_process, processes
from tests.support.nasty import ERRORS

pytestmark = pytest.mark.django_db
SEEN: list[Any] = []
AT = datetime(2026, 3, 1, 14, 5, tzinfo=UTC)


class BankBusy(RetryLater):
    """The bank is busy."""


@activity(name="test.asks_in_a_process")
def asks(named: bool) -> None:
    SEEN.append(activity_context().previous_failure)
    if named:
        raise BankBusy(after=AT, counts=False, hold="key", details={"code": 429})
    raise RetryLater("slow down", after=30)


@activity(name="test.strange_in_a_process")
def strange(name: str) -> None:
    raise_error = ERRORS[name][0]
    raise raise_error()


def call(*args: Any, previous: Any = None, name: str = "test.asks_in_a_process") -> Any:
    """Run an activity as the process does, and decode its message as the worker does."""
    context = {
        "attempt": 2,
        "idempotency_key": "k",
        "workflow_id": "w",
        "run_id": "r",
        "heartbeat_details": None,
        "previous_failure": previous,
    }
    message = {"activity": name, "args": args, "kwargs": {}, "context": context}
    calls: Any = SimpleNamespace(cancelled=False)
    answer = activity_process._run_call(json.loads(json.dumps(message)), calls, lambda **_: None)
    return processes._decode_result(json.loads(json.dumps(answer)))


@pytest.mark.parametrize(
    ("named", "type_name", "message", "request_made"),
    [
        (True, "BankBusy", "The bank is busy.", (AT, False, "key", {"code": 429})),
        (False, "RetryLater", "slow down", (30.0, True, None, None)),
    ],
)
def test_the_request_arrives_in_the_worker(named: bool, type_name: str, message: str, request_made: Any) -> None:
    with pytest.raises(RetryLater) as caught:
        call(named)

    error = caught.value
    assert (error.type, error.message) == (type_name, message)
    assert (error.after, error.counts, error.hold, error.details) == request_made


def test_the_process_knows_the_failure_before() -> None:
    SEEN.clear()
    with pytest.raises(RetryLater):
        call(False, previous={"type": "E", "message": "no", "traceback": "long", "details": [1]})
    with pytest.raises(RetryLater):
        call(False)

    assert [failure and (failure.type, failure.message, failure.details) for failure in SEEN] == [
        ("E", "no", [1]),
        None,
    ]


def test_a_strange_error_arrives_under_its_name() -> None:
    arrived = {}
    for name in ERRORS:
        try:
            call(name, name="test.strange_in_a_process")
        except BaseException as exc:
            failure = describe(exc)
            json.dumps(failure).encode()
            arrived[name] = failure["type"]

    assert arrived == {name: wanted for name, (_, wanted) in ERRORS.items()}
