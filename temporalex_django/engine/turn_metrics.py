"""The metrics of a turn that was committed, and of attempts of activities. Callers ask ``recorder.is_active`` first."""

from __future__ import annotations

from collections import Counter

from temporalex_django.engine.contracts.records import RunRecord, RunWrite, TaskResult
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

_OUTCOMES = {
    "ActivityCompleted": "completed",
    "ActivityTimedOut": "timed_out",
}


def record_turn(report: TurnReport) -> None:
    """Record the activations of a committed turn, its atomic activities, and the human tasks that it closed."""
    activations: Counter[tuple[str, str]] = Counter()
    for write in report.writes:
        record = report.records.get(write.run.run_id)
        if record is not None:
            is_blocked = write.run.run_id in report.block_errors
            if write.executed or is_blocked:
                activations[record.workflow, _outcome(write)] += 1
            _record_write(write, record)
    for (name, outcome), count in activations.items():
        recorder.record(definitions.ACTIVATIONS, count, workflow=name, outcome=outcome)
    for result in report.atomic_results:
        record_attempt(result)


def _outcome(write: RunWrite) -> str:
    """Return how an activation ended, as the label of its metric. Replays have no writes, so they do not count."""
    if not write.executed:
        return "blocked"
    if write.closing is not None or write.next_run is not None:
        return "closed"
    return "open"


def _record_write(write: RunWrite, record: RunRecord) -> None:
    """Record the time that the code of a run took in a turn, and the human tasks that it closed."""
    if write.seconds is not None:
        recorder.record(definitions.ACTIVATION_SECONDS, write.seconds, workflow=record.workflow)
    for task_write in write.human_tasks:
        if "closed" in task_write.changes:
            ending = task_write.task.ending or "run_closed"
            recorder.record(definitions.HUMAN_TASKS_CLOSED, workflow=record.workflow, ending=ending)


def record_attempt(result: TaskResult) -> None:
    """Record the end of an attempt of an activity, after its result was committed."""
    if result.outcome is not None:
        outcome = _OUTCOMES.get(result.outcome[0], "failed")
    else:
        outcome = "retried" if result.count else "deferred"
    recorder.record(definitions.ACTIVITY_ATTEMPTS, activity=result.task.activity, outcome=outcome)
    if result.seconds is not None:
        recorder.record(definitions.ACTIVITY_SECONDS, result.seconds, activity=result.task.activity)
