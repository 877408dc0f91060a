"""Where a run may live in the tests.

In memory or on the database of the lane, kept between activations or rebuilt before each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.runs import CheckedEnvironment, replay_all

MEMORY = ("memory", "memory-evicted")
DATABASE = ("database", "database-evicted")
TEMPORAL = ("temporal", "temporal-evicted")
HOSTS = (*MEMORY, *DATABASE)
#: Markers of their tests. Each Python and each database sees runs that are kept and runs that are rebuilt.
MARKS = {
    "memory": [pytest.mark.unit],
    "memory-evicted": [pytest.mark.unit, pytest.mark.once],
    "database": [pytest.mark.django_db],
    "database-evicted": [pytest.mark.django_db],
    "temporal": [pytest.mark.once],
    "temporal-evicted": [pytest.mark.once],
}

#: Hosts that ``make test`` leaves out where the other one runs the test too.
INSTEAD = {"memory": "memory-evicted", "database-evicted": "database"}
#: Files about caching and eviction, which run on all hosts in ``make test``: their subject differs between them.
CACHING = frozenset(f"test_{name}.py" for name in ("activations", "arguments", "deadlock", "replay"))

#: For tables of cases that pure code judges before anything reaches a host: those in memory will do.
in_memory = pytest.mark.hosts(*MEMORY)


#: Files whose tests run on a cluster in the lanes. ``make test-all`` has a part of its own with all files.
SAMPLE = frozenset(
    f"test_{name}.py" for name in ("children", "continue_as_new", "examples_cart", "patches", "phase", "updates")
)


def chosen(marked: Sequence[str] | None, file: str) -> Sequence[str]:
    """The hosts on which a test of ``file`` runs; ``marked`` are those of its marker.

    With ``HOSTS=temporal`` in the environment it runs there, if nothing keeps it on another host.
    """
    usual = HOSTS if marked is None else marked
    if os.environ.get("ALL_HOSTS"):  # only to list the cases
        return (*usual, TEMPORAL[0]) if marked is None else usual
    if wanted := os.environ.get("HOSTS"):
        allowed = (*HOSTS, *TEMPORAL) if marked is None else marked
        return [host for host in wanted.split(",") if host in allowed]
    return (*usual, TEMPORAL[0]) if marked is None and file in SAMPLE else usual


def marks(host: str, all_hosts: Sequence[str], file: str) -> list[pytest.MarkDecorator]:
    """Return the markers of a case of ``file`` on a host; ``all_hosts`` are those of its test."""
    if INSTEAD.get(host) in all_hosts and file not in CACHING:
        return [*MARKS[host], pytest.mark.only_in_all("host")]
    return MARKS[host]


def environment(host: str, temporal_address: Callable[[], str] | None = None) -> Iterator[Any]:
    """The environment of one test. When the test is over, every run in it is replayed."""
    if host in TEMPORAL:
        assert temporal_address is not None
        from tests.support.temporal.environment import TemporalEnvironment

        env = TemporalEnvironment(temporal_address(), cache=0 if host.endswith("-evicted") else 1000)
        try:
            yield env
            env.check()
        finally:
            env.close_down()
        return
    evict = host.endswith("-evicted")
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
