"""What is kept of a lone activity that has ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from temporalex_django.engine import background_task
from temporalex_django.engine.contracts.records import TaskResult, TaskState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_lone_activity_does_not_end_before_it_began() -> None:
    """The worker reckons the database's time; the end is by the clock of the database itself."""
    one = TaskState(
        id=1,
        chain_id=None,
        run_id=uuid4(),
        workflow_id="",
        workflow="",
        seq=0,
        activity="a",
        args=[],
        kwargs={},
        options={},
        queue="default",
        atomic=False,
        attempt=1,
        scheduled_at=NOW,
        due_at=NOW,
        started_at=NOW + timedelta(microseconds=92),
        owner=1,
    )
    kept = background_task.task_end(TaskResult(task=one, outcome=("ActivityCompleted", {}), encoded=b"{}"), NOW)
    assert kept.started_at == kept.finished_at == one.started_at
