"""Idempotency keys, and inputs that somebody edited: what the end of an activity says of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import NewTask, TaskState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = UUID(int=7)


def task(**options: object) -> TaskState:
    new = NewTask(
        run_id=RUN,
        chain_id=UUID(int=1),
        workflow_id="w",
        workflow="Cart",
        seq=3,
        activity="charge",
        args=[5],
        kwargs={"card": "visa"},
        options=options,
        queue="default",
        atomic=False,
        scheduled_at=NOW,
    )
    return new.as_state(1, attempt=1, owner=9)


def test_the_key_is_that_of_the_call_unless_it_has_one_from_before() -> None:
    assert activity_policy.idempotency_key(task()) == f"{RUN}:3"
    assert activity_policy.idempotency_key(replace(task(), attempt=4)) == f"{RUN}:3"
    assert activity_policy.idempotency_key(task(key="older:3")) == "older:3"


def test_an_end_says_which_input_it_is_of_when_that_was_edited() -> None:
    edited = {"args": [5], "kwargs": {"card": "visa"}, "key": f"{RUN}:3"}
    given = task(edited=True, retry={"max_attempts": 1}, schedule_to_close=1.0)
    later = NOW + timedelta(seconds=2)

    ends = [
        activity_policy.completed_result(given, "ok"),
        activity_policy.failed_result(given, ValueError("no"), NOW, final=True),
        activity_policy.check_timeout(given, later),
        activity_policy.lost_result(given, NOW),
    ]
    assert [end.outcome[1]["edited"] for end in ends if end is not None and end.outcome] == [edited] * 4
    assert "edited" not in (activity_policy.completed_result(task(), "ok").outcome or ("", {}))[1]
