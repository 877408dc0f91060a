"""Where a run may live in the tests.

In memory or on the database of the lane, kept between activations or rebuilt before each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.runs import CheckedEnvironment, replay_all

MEMORY = ("memory", "memory-evicted")
DATABASE = ("database", "database-evicted")
HOSTS = (*MEMORY, *DATABASE)
#: Of their tests. Each Python and each database sees runs that are kept and runs that are rebuilt, in some lane.
MARKS = {
    "memory": [pytest.mark.unit],
    "memory-evicted": [pytest.mark.unit, pytest.mark.once],
    "database": [pytest.mark.django_db, pytest.mark.once_on_postgres],
    "database-evicted": [pytest.mark.django_db],
}

#: For tables of cases that pure code judges before anything reaches a host: those in memory will do.
in_memory = pytest.mark.hosts(*MEMORY)


def environment(host: str) -> Iterator[Any]:
    """The environment of one test. When the test is over, every run in it is replayed."""
    evict = host.endswith("-evicted")
    env: Any
    if host in MEMORY:
        env = CheckedEnvironment(evict=evict)
        yield env
        env.check()
    else:
        from temporalex_django.models import Chain
        from temporalex_django.testing import DjangoEnvironment

        env = DjangoEnvironment(evict=evict)
        yield env
        replay_all(env, list(Chain.objects.order_by("pk").values_list("pk", flat=True)))
