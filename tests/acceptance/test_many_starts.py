"""Many starts in one call."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Ok, Unique, Workflow, api, errors

MANY = 5


class ManyRuns(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok([args, await api.wait_for_signal("end")])


class ManyCounts(Workflow):
    async def run(self, args: int) -> Any:
        return Ok(args + 1)


class ManyKeyed(Workflow):
    unique = Unique("many")

    async def run(self, args: Any) -> Any:
        return Ok(args)


def test_each_item_is_an_input(env: Any) -> None:
    handles = env.start_many(ManyCounts, range(MANY))
    assert [handle.result() for handle in handles] == [n + 1 for n in range(MANY)]
    assert [handle.start_outcome for handle in handles] == ["started"] * MANY


def test_a_tuple_is_an_input_with_its_options(env: Any) -> None:
    env.start(ManyRuns, id="taken")
    results = env.start_many(
        ManyRuns,
        [
            {"a": 1},
            (2, {"id": "two", "tags": ["x"], "start_delay": 60}),
            (3, {"id": "taken"}),
            (4, {"id": "two"}),
            ([5, 6], {"id": "taken", "on_conflict": "use_existing"}),
            ([7], {"id": "new", "on_conflict": "terminate_existing"}),
        ],
    )
    first, second, refused, doubled, used, new = results
    assert [type(result) for result in (refused, doubled)] == [errors.AlreadyRunning] * 2
    assert "'taken' is open already" in str(refused)
    assert (first.status, second.status, second.describe().tags) == ("waiting", "pending", ["x"])
    assert (used.run_id, used.start_outcome) == (env.handle("taken").run_id, "existing")
    assert (new.id, new.start_outcome) == ("new", "started")
    new.signal("end", 1)
    assert new.result() == [[7], 1]
    env.advance(60)
    assert second.status == "waiting"


def test_values_name_the_runs_of_a_class_with_a_key(env: Any) -> None:
    [one, two] = env.start_many(ManyKeyed, [("a", {"value": "1"}), ("b", {"value": "2"})])
    assert (one.id, two.id) == ("many::1", "many::2")


@pytest.mark.parametrize(
    ("item", "error", "text"),
    [
        (("a", {"value": "1"}, 3), TypeError, r"write an input that is a tuple as \(input, \{\}\)"),
        (("a", {"value": "2", "by": None}), TypeError, "without by"),
        ("b", errors.InvalidId, "start it with a value"),
        (("b", {"value": "3", "start_delay": -1}), errors.InvalidStart, "must not be negative"),
        ((object(), {"value": "3"}), errors.PayloadError, "input"),
    ],
)
def test_a_bad_item_starts_nothing(env: Any, item: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        env.start_many(ManyKeyed, [("a", {"value": "1"}), item])
    with pytest.raises(errors.WorkflowNotFound):
        env.handle("many::1")


def test_no_items_start_nothing(env: Any) -> None:
    assert env.start_many(ManyRuns, []) == []
