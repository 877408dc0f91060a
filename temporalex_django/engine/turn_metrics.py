"""The metrics of a turn that was committed, and of attempts of activities. Callers ask ``recorder.is_active`` first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from temporalex_django.core.history.events import Job
from temporalex_django.engine import activity_policy
from temporalex_django.engine.contracts.records import NewEvent, RunRecord, RunWrite, TaskResult
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

_OUTCOMES: Final = {
    "ActivityCompleted": "completed",
    "ActivityFailed": "failed",
    "ActivityTimedOut": "timed_out",
    activity_policy.CANCELLED: "cancelled",
}
#: The outcome of an attempt whose run has gone on without it, so that not even the name of the activity is at hand.
DROPPED: Final = (definitions.OTHER, "dropped")


def record_turn(report: TurnReport) -> None:
    """Record the activations of a committed turn, the ends of activities, and the human tasks that it closed."""
    activations: Counter[tuple[str, str]] = Counter()
    attempts: Counter[tuple[str, str]] = Counter()
    for write in report.writes:
        attempts.update(write.attempt_outcomes)
        record = report.records.get(write.run.run_id)
        if record is not None:
            is_blocked = write.run.run_id in report.block_errors
            if write.executed or is_blocked:
                activations[record.workflow, _outcome(write)] += 1
            _record_write(write, record)
    for (name, outcome), count in activations.items():
        recorder.record(definitions.ACTIVATIONS, count, workflow=name, outcome=outcome)
    for (name, outcome), count in attempts.items():
        recorder.record(definitions.ACTIVITY_ATTEMPTS, count, activity=name, outcome=outcome)
    for result in report.atomic_results:
        record_attempt(result)


def ended_attempts(jobs: Iterable[Job], activities: Mapping[int, str]) -> list[tuple[Job, str]]:
    """Return the jobs that bring the ends of activities to a run, each with the name of its activity.

    ``activities`` are the names of those for which the run waits, by command number, before the jobs are delivered.
    """
    return [(job, activities.get(job.attributes["seq"], definitions.OTHER)) for job in jobs if job.kind in _OUTCOMES]


def attempt_outcomes(attempts: Sequence[tuple[Job, str]], events: Iterable[NewEvent]) -> list[tuple[str, str]]:
    """Return ``(activity, outcome)`` for each of the ``attempts`` that ``ended_attempts`` returned before.

    ``events`` are those that the activation wrote. A job without an event came when the run no longer waited for it, so
    it was dropped.
    """
    if not attempts:
        return []
    recorded = {id(event.attributes) for event in events}
    return [(name, _OUTCOMES[job.kind] if id(job.attributes) in recorded else "dropped") for job, name in attempts]


def _outcome(write: RunWrite) -> str:
    """Return the label of the metric. Replays have no writes, so they do not count."""
    if not write.executed:
        return "blocked"
    if write.closing is not None or write.next_run is not None:
        return "closed"
    return "open"


def _record_write(write: RunWrite, record: RunRecord) -> None:
    if write.seconds is not None:
        recorder.record(definitions.ACTIVATION_SECONDS, write.seconds, workflow=record.workflow)
    for task_write in write.human_tasks:
        if "closed" in task_write.changes:
            ending = task_write.task.ending or "run_closed"
            recorder.record(definitions.HUMAN_TASKS_CLOSED, workflow=record.workflow, ending=ending)


def record_attempt(result: TaskResult) -> None:
    """Record an attempt of an activity after its end was committed.

    The turn that delivers a final result to its run knows the outcome, and records it (``record_turn``).
    """
    outcome = None
    if result.outcome is None:
        outcome = "retried" if result.count else "deferred"
    elif result.task.chain_id is None:
        outcome = _OUTCOMES[result.outcome[0]]
    if outcome is not None:
        recorder.record(definitions.ACTIVITY_ATTEMPTS, activity=result.task.activity, outcome=outcome)
    if result.seconds is not None:
        recorder.record(definitions.ACTIVITY_SECONDS, result.seconds, activity=result.task.activity)
