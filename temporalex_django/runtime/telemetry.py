"""After a commit: Django signals about what it stored. Replays write nothing, so they announce nothing."""

from __future__ import annotations

from typing import Any

from temporalex_django import signals
from temporalex_django.authoring import workflow
from temporalex_django.runtime.storage import RunFacts, RunWrite
from temporalex_django.runtime.turn import TurnReport

_BY_KIND = {
    "SignalReceived": ("message_received", {"kind": "signal"}, ("name",)),
    "CancelRequested": ("message_received", {"kind": "cancel", "name": ""}, ()),
    "UpdateAccepted": ("message_received", {"kind": "update"}, ("name",)),
    "UpdateCompleted": ("update_completed", {"status": "completed"}, ("id", "name")),
    "UpdateFailed": ("update_completed", {"status": "failed"}, ("id", "name")),
    "TimerFired": ("timer_fired", {}, ("seq",)),
    "WorkflowCompleted": ("instance_completed", {}, ("result",)),
    "WorkflowFailed": ("instance_failed", {"status": "failed"}, ()),
    "WorkflowTerminated": ("instance_failed", {"status": "terminated"}, ()),
    "WorkflowTimedOut": ("instance_failed", {"status": "timed_out"}, ()),
    "WorkflowCancelled": ("instance_cancelled", {}, ()),
}


def announce(report: TurnReport) -> None:
    """Send the signals of a committed turn; nothing is built for signals that nobody listens to."""
    if not any(signal.receivers for signal in signals.ALL.values()):
        return
    for write in report.writes:
        facts = report.facts.get(write.run.run_id)
        if facts is not None:
            _announce_run(write, facts)


def _announce_run(write: RunWrite, facts: RunFacts) -> None:
    sender: Any = workflow.registry.get(facts.workflow, facts.workflow)
    who = {"workflow": facts.workflow, "workflow_id": facts.workflow_id, "run_id": str(facts.run_id)}
    for event in write.events:
        if event.kind == "WorkflowStarted":
            signals.send("instance_started", sender, **who, version=facts.version)
        elif (rule := _BY_KIND.get(event.kind)) is not None:
            name, fixed, wanted = rule
            more: dict[str, Any] = {("update_id" if k == "id" else k): event.attributes.get(k) for k in wanted}
            if name == "instance_failed":
                more["failure"] = event.attributes
            signals.send(name, sender, **who, **fixed, **more)
    if "published" in write.instance:
        signals.send("state_published", sender, **who, state=write.instance["published"])
    if blocked := write.instance.get("blocked"):
        signals.send("instance_blocked", sender, **who, code=blocked["code"], error=blocked["error"])
    for outcome in write.settled.values():
        if outcome.status == "undelivered":
            signals.send("message_received", sender, **who, kind="undelivered", name="")
