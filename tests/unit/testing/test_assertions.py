"""Assertions about runs: what they take, and what they say when it is not so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import Approval, Done, GraphWorkflow, Ok, RetryPolicy, Stop, Unique, Workflow, activity, api
from temporalex_django.testing import (
    WorkflowEnvironment,
    assert_blocked,
    assert_cancelled,
    assert_completed,
    assert_failed,
    assert_waiting_for,
)

DAY = timedelta(days=1)


@activity(retry=RetryPolicy(max_attempts=2, initial_interval=60))
def print_letter(number: int) -> None:
    raise OSError("no paper")


@activity
def fold_letter(number: int) -> None:
    """Never called."""


class Folding(Workflow):
    name = "test.AssertedFolding"

    async def run(self, args: Any) -> Any:
        await api.wait_for_signal("folded")
        return Ok("folded")


class Letter(Workflow):
    name = "test.AssertedLetter"

    async def run(self, args: Any) -> Any:
        await api.sleep(DAY, then="the print")
        await print_letter(args)
        await api.child(Folding, id="folding-1")
        await api.phase(
            None, signal={"sent": lambda _, state: Stop(state)}, update={"kept": lambda _, state: Stop(state)}
        )
        return Ok("sent")


approval = Approval(role="auth.change_group", due=DAY, key="the_seal")


class Sealed(GraphWorkflow):
    name = "test.AssertedSealed"
    unique = Unique(key="sealed")
    initial = approval
    transitions = {(approval, "approved"): Done, (approval, "rejected"): Done, (approval, "overdue"): Done}


def said(assertion: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(AssertionError) as failure:
        assertion(*given, **named)
    return str(failure.value)


def test_each_says_what_is_the_case_instead() -> None:
    env = WorkflowEnvironment()
    run = env.start(Letter, 7, id="letter-7")
    due = env.clock + DAY
    assert_waiting_for(run, timer="the print", until=due)
    assert said(assert_waiting_for, run, timer="print").endswith(
        f"letter-7 does not wait for timer 'print'; it waits for timer 'the print' until {due.isoformat()}"
    )
    assert "anything until 2026-01-03" in said(assert_waiting_for, run, until=due + DAY)
    assert "is not completed; it waits for timer" in said(assert_completed, run)
    env.hold(print_letter)
    env.advance(days=1)
    assert_waiting_for(run, activity=print_letter)
    assert "it waits for activity" in said(assert_waiting_for, run, activity=fold_letter)
    env.complete(print_letter)
    assert_waiting_for(run, child=Folding)
    assert_waiting_for(run, child="folding-1")
    assert_waiting_for(env.handle("folding-1"), signal="folded")
    assert "it waits for child" in said(assert_waiting_for, run, child="folding-2")
    env.handle("folding-1").signal("folded")
    assert_completed(env.handle("folding-1"), "folded")
    assert_waiting_for(run, signal="sent", update="kept")
    for wrong in ({"signal": "kept"}, {"update": "sent"}, {"signal": "sent", "update": "sent"}):
        assert "it waits for phase" in said(assert_waiting_for, run, **wrong)
    run.signal("sent")
    assert "completed with 'sent', not with 'lost'" in said(assert_completed, run, "lost")
    assert "it is closed: completed, with 'sent'" in said(assert_waiting_for, run, signal="sent")
    assert "it is closed: completed" in said(assert_cancelled, run)
    assert "is not blocked; it is closed" in said(assert_blocked, run)
    with pytest.raises(TypeError, match="pass at least one of"):
        assert_waiting_for(run)


def test_failures_and_other_ends() -> None:
    env = WorkflowEnvironment()
    run = env.start(Letter, 8)
    env.advance(days=1, seconds=1)
    assert "tried 1 time, next at 2026-01-02T00:01:00" in said(assert_waiting_for, run, timer="the print")
    env.advance(minutes=2)
    assert_failed(run, type="ActivityFailure", match="no pap.r")
    assert "failed with ActivityFailure, not with ValueError" in said(assert_failed, run, type="ValueError")
    assert "does not match 'no ink'" in said(assert_failed, run, match="no ink")
    assert "is not failed" in said(assert_failed, env.start(Letter, 9))
    ended = env.start(Letter, 10)
    ended.cancel()
    assert_cancelled(ended)
    with pytest.raises(ValueError, match="negative"):
        env.advance(hours=-1)


def test_graphs() -> None:
    env = WorkflowEnvironment()
    run = env.start(Sealed, value="1")
    assert_waiting_for(run, event="approved", step=approval, timer="the_seal", human_task="the_seal")
    assert_waiting_for(run, step="the_seal")
    for wrong in ({"event": "sealed"}, {"step": "the"}, {"human_task": "the"}):
        assert "it waits for" in said(assert_waiting_for, run, **wrong)


def test_a_blocked_run() -> None:
    env = WorkflowEnvironment(evict=True)
    calls: list[int] = []

    class Turning(Workflow):
        name = "test.AssertedTurning"

        async def run(self, args: Any) -> Any:
            calls.append(1)
            await (api.sleep(5) if len(calls) == 1 else fold_letter(1))
            return Ok(1)

    run = env.start(Turning)
    env.advance(seconds=5)
    assert_blocked(run, "nondeterminism")
    assert "is blocked by nondeterminism, not by gone" in said(assert_blocked, run, "gone")
    assert "it is blocked (nondeterminism)" in said(assert_completed, run)
