"""The worker's side of activities that run in processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from temporalex_django.authoring.activity_context import ActivityContext
from temporalex_django.workers import processes

pytestmark = pytest.mark.unit


class AnsweringProcess:
    """A process that answers at once, and keeps what it is sent."""

    sent: dict[str, Any]

    def __init__(self) -> None:
        self.popen = SimpleNamespace(poll=lambda: None)

    def send(self, **fields: Any) -> None:
        type(self).sent = fields

    def receive(self) -> dict[str, Any]:
        return {"result": 7}


def test_code_in_a_process_sees_the_context_of_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ActivityProcess", AnsweringProcess)
    monkeypatch.setattr(processes, "_thread_state", SimpleNamespace())
    task: Any = SimpleNamespace(activity="book", args=[1], kwargs={}, previous_failure=None)
    run_id, executing = str(uuid4()), str(uuid4())
    context = ActivityContext(
        attempt=2, idempotency_key=f"{run_id}:call-3", workflow_id="w", run_id=run_id, _seq=3, _owner=executing
    )
    assert processes.run_task(task, context) == 7
    child = ActivityContext(**AnsweringProcess.sent["context"])
    assert (child.idempotency_key, child._owner, child._seq, child.attempt) == (
        f"{run_id}:call-3",
        executing,
        3,
        2,
    )
