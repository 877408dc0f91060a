"""A run that is started without an input gets the default of ``run``."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Ok, Workflow, api
from tests.support.runs import flow


class Counter(Workflow):
    """Counts from a number."""

    name = "test.DefaultedCounter"

    async def run(self, n: int = 3) -> Ok[Any]:
        return Ok(n + 1)


@pytest.mark.parametrize(("given", "result"), [((), 4), ((0,), 1), ((7,), 8)])
def test_the_default_counts_where_nothing_is_given(env: Any, given: tuple[int, ...], result: int) -> None:
    assert env.start(Counter, *given).result() == result


def test_children_have_it_too(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        return Ok([await api.child(Counter, id="one"), await api.child(Counter, 0, id="two")])

    assert env.start(flow(run)).result() == [4, 1]


def test_it_is_recorded(env: Any) -> None:
    """Another default tomorrow changes no run of today."""
    handle = env.start(Counter, id="counter")
    assert handle.history()[0].attributes["args"] == 3


def test_a_class_without_ids_of_values_says_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"has no `unique`.*use Counter\.handle\(id\)"):
        Counter.get("x")
