"""When a blocked run is tried again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from temporalex_django.engine.blocked import next_retry_at

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("tries", "seconds"), [(1, 2), (2, 4), (8, 256), (9, 300), (5_000, 300)])
def test_each_try_waits_twice_as_long_up_to_five_minutes(tries: int, seconds: int) -> None:
    assert (next_retry_at(tries, NOW) - NOW).total_seconds() == seconds
