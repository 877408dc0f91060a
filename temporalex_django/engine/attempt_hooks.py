"""The hooks of interceptors around attempts of activities, and their reports of problems. No I/O of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from temporalex_django.core.failures import exception_name
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.interceptors import AttemptCall, Problem
from temporalex_django.interceptors.chain import around, chain


def attempt_hooks(task: TaskState) -> AbstractContextManager[None]:
    """Return the context manager in which an attempt of the activity runs."""
    if not chain.activity_attempt:
        return nullcontext()
    attempt = AttemptCall(
        activity=task.activity,
        workflow=task.workflow,
        workflow_id=task.workflow_id,
        run_id=str(task.run_id),
        seq=task.seq,
        queue=task.queue,
        attempt=task.attempt,
        is_atomic=task.atomic,
        headers=task.headers or {},
    )
    return around(chain.activity_attempt, attempt)


def report_failure(result: TaskResult) -> None:
    """Report an activity that failed for good, after its result was committed. Ask ``chain.problem`` first."""
    if result.outcome is None or result.outcome[0] == "ActivityCompleted":
        return
    task, attributes = result.task, result.outcome[1]
    chain.report(
        Problem(
            kind="activity_failed",
            workflow=task.workflow,
            workflow_id=task.workflow_id,
            run_id=str(task.run_id),
            type=str(attributes.get("type") or attributes.get("timeout") or result.outcome[0]),
            error=result.error,
            queue=task.queue,
            activity=task.activity,
            attempt=task.attempt,
        )
    )


def report_turn(report: TurnReport) -> None:
    """Report the runs that a committed turn has blocked, and its atomic activities that failed for good.

    A blocked run is reported once, and not for each time that it is tried. Ask ``chain.problem`` first.
    """
    for result in report.atomic_results:
        report_failure(result)
    for write in report.writes:
        error, record = report.block_errors.get(write.run.run_id), report.records.get(write.run.run_id)
        if error is None or write.run.failed_tries != 1:
            continue
        names: dict[str, Any] = {"workflow": "", "workflow_id": ""}
        if record is not None:
            names = {"workflow": record.workflow, "workflow_id": record.workflow_id}
        chain.report(
            Problem(
                kind="run_blocked",
                run_id=str(write.run.run_id),
                type=exception_name(type(error)),
                error=error,
                queue=write.run.queue,
                **names,
            )
        )
