"""How long the pauses between attempts are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from temporalex_django import RetryLater, RetryPolicy, errors
from temporalex_django.authoring.activity_options import delay_after, jitter_draw, next_delay

NOW = datetime(2026, 3, 1, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "pauses"),
    [
        ({}, [1, 2, 4, 100]),
        ({"initial_interval": 60}, [60, 100, 100, 100]),
        ({"initial_interval": timedelta(hours=1)}, [3600, 3600, 3600, 3600]),  # never less than it says
        ({"initial_interval": 60, "max_interval": 3600}, [60, 120, 240, 3600]),
        ({"initial_interval": 60, "max_interval": 10}, [10, 10, 10, 10]),
        ({"initial_interval": 0}, [0, 0, 0, 0]),
    ],
)
def test_pauses_grow_to_the_longest_one(given: Any, pauses: list[float]) -> None:
    policy = RetryPolicy(**given).as_dict()
    assert [next_delay(policy, attempt, []) for attempt in (1, 2, 3, 5000)] == pauses


def test_jitter_shortens_a_pause_by_at_most_its_fraction() -> None:
    policy = RetryPolicy(initial_interval=10, jitter=0.25).as_dict()

    assert next_delay(policy, 1, [], draw=0.0) == 10
    assert next_delay(policy, 1, [], draw=1.0) == 7.5
    assert next_delay(RetryPolicy(initial_interval=10).as_dict(), 1, [], draw=1.0) == 10
    assert "jitter" not in RetryPolicy().as_dict(), "histories of older code lack it"


@pytest.mark.parametrize("jitter", [-0.1, 1.1, "x", True, None])
def test_a_jitter_that_is_no_fraction_is_refused(jitter: Any) -> None:
    with pytest.raises(errors.WorkflowDefinitionError, match=r"jitter=.* is not a fraction from 0 to 1"):
        RetryPolicy(jitter=jitter)


def test_draws_are_spread_evenly_and_the_same_for_one_attempt() -> None:
    draws = [jitter_draw("run", seq, 1) for seq in range(1000)]

    assert draws == [jitter_draw("run", seq, 1) for seq in range(1000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert all(60 < sum(low / 10 <= draw < (low + 1) / 10 for draw in draws) < 140 for low in range(10))


@pytest.mark.parametrize(
    ("policy", "attempt", "later", "delay"),
    [
        ({"max_interval": 10}, 1, RetryLater(after=600), 600),
        ({"initial_interval": 60}, 1, RetryLater(after=1), 1),
        ({"initial_interval": 60}, 2, RetryLater(), 100),
        ({"initial_interval": 60, "jitter": 0.5}, 1, RetryLater(), 30),
        ({"initial_interval": 60, "jitter": 0.5}, 1, RetryLater(after=60), 60),
        ({"non_retryable": [Exception]}, 1, RetryLater(after=5), 5),
        ({"max_attempts": 2}, 2, RetryLater(after=5), None),
        ({"max_attempts": 2}, 2, RetryLater(after=5, counts=False), 5),
        (None, 9, RetryLater(after=NOW + timedelta(seconds=30)), 30),
    ],
)
def test_an_activity_can_name_the_time_of_its_next_attempt(
    policy: dict[str, Any] | None, attempt: int, later: RetryLater, delay: float | None
) -> None:
    stored = None if policy is None else RetryPolicy(**policy).as_dict()
    assert delay_after(stored, attempt, later, now=NOW, draw=1.0) == delay
