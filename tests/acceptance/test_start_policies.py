"""Starts with an id that another run has, or had."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Err, Ok, Unique, Workflow, api, errors
from tests.support.runs import events


class PolicyOrder(Workflow):
    async def run(self, args: Any) -> Any:
        how = await api.wait_for_signal("end")
        return Ok(args) if how == "well" else Err("badly")


class PolicyOther(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("end"))


class PolicyKeyed(Workflow):
    unique = Unique("policy", scope="version")

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("end"))


def test_the_open_run_is_used(env: Any) -> None:
    first = env.start(PolicyOrder, 1, id="o", on_conflict="use_existing")
    second = env.start(PolicyOrder, 2, id="o", on_conflict="use_existing")

    assert (first.start_outcome, second.start_outcome) == ("started", "existing")
    assert second.run_id == first.run_id
    second.signal("end", "well")
    assert first.result() == 1
    third = env.start(PolicyOrder, 3, id="o", on_conflict="use_existing")
    assert (third.start_outcome, third.status) == ("started", "waiting")
    assert third.run_id != first.run_id


def test_the_open_run_is_replaced(env: Any) -> None:
    first = env.start(PolicyOrder, 1, id="o", on_conflict="terminate_existing")
    second = env.start(PolicyOrder, 2, id="o", on_conflict="terminate_existing")

    assert (first.start_outcome, second.start_outcome) == ("started", "replaced")
    assert (first.status, second.status) == ("terminated", "waiting")
    [ended] = events(first, "WorkflowTerminated")
    assert "replaced by a start" in ended["reason"]
    second.signal("end", "well")
    assert second.result() == 2


def test_a_run_that_has_not_begun_is_an_open_run(env: Any) -> None:
    first = env.start(PolicyOrder, 1, id="o", start_delay=60)
    assert env.start(PolicyOrder, 2, id="o", on_conflict="use_existing").run_id == first.run_id
    second = env.start(PolicyOrder, 2, id="o", on_conflict="terminate_existing")
    assert (first.status, second.status) == ("terminated", "waiting")


@pytest.mark.parametrize("policy", ["use_existing", "terminate_existing"])
def test_a_run_of_another_class_is_left_alone(env: Any, policy: str) -> None:
    other = env.start(PolicyOther, id="o")
    with pytest.raises(errors.AlreadyRunning):
        env.start(PolicyOrder, id="o", on_conflict=policy)
    assert other.status == "waiting"


def test_a_value_names_the_open_run_too(env: Any) -> None:
    first = env.start(PolicyKeyed, value="7")
    second = env.start(PolicyKeyed, value="7", on_conflict="use_existing")
    assert (second.id, second.run_id) == (first.id, first.run_id)


@pytest.mark.parametrize(
    ("on_closed", "after_success", "after_failure"),
    [("allow", True, True), ("failed_only", False, True), ("reject", False, False)],
)
@pytest.mark.parametrize("conflict", ["fail", "use_existing"])
def test_a_run_that_ended_may_prevent_another_one(
    env: Any, on_closed: str, after_success: bool, after_failure: bool, conflict: str
) -> None:
    for run_id, end, possible in (("good", "well", after_success), ("bad", "badly", after_failure)):
        env.start(PolicyOrder, id=run_id, on_closed=on_closed).signal("end", end)
        if possible:
            h = env.start(PolicyOrder, id=run_id, on_closed=on_closed, on_conflict=conflict)
            assert (h.status, h.start_outcome) == ("waiting", "started")
            continue
        with pytest.raises(errors.AlreadyEnded, match=f"has ended .*on_closed='{on_closed}'"):
            env.start(PolicyOrder, id=run_id, on_closed=on_closed, on_conflict=conflict)


def test_the_last_run_counts(env: Any) -> None:
    env.start(PolicyOrder, id="o").signal("end", "badly")
    env.start(PolicyOrder, id="o").signal("end", "well")
    with pytest.raises(errors.AlreadyEnded):
        env.start(PolicyOrder, id="o", on_closed="failed_only")


def test_replacing_a_run_and_refusing_its_end_contradict_each_other(env: Any) -> None:
    """The terminated run has ended, so nothing may replace it: the open one must stay."""
    first = env.start(PolicyOrder, id="o")
    with pytest.raises(errors.InvalidStart, match="terminate_existing"):
        env.start(PolicyOrder, id="o", on_conflict="terminate_existing", on_closed="reject")
    assert first.status == "waiting"


def test_signal_with_start_says_what_it_did(env: Any) -> None:
    assert env.signal_with_start(PolicyOther, "note", id="o").start_outcome == "started"
    assert env.signal_with_start(PolicyOther, "note", id="o").start_outcome == "existing"
    assert env.handle("o").start_outcome is None


@pytest.mark.parametrize("option", ["on_conflict", "on_closed"])
def test_a_policy_that_does_not_exist_is_refused(env: Any, option: str) -> None:
    with pytest.raises(errors.InvalidStart, match=f"{option} must be one of '.*not 'never'"):
        env.start(PolicyOrder, id="o", **{option: "never"})
