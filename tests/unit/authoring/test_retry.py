"""How long the pauses between attempts are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import RetryPolicy
from temporalex_django.authoring.retry import next_delay


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
