"""Results of runs and updates for callers, made from stored data: a value, or a typed error to raise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from temporalex_django import errors
from temporalex_django.authoring.backend import Description
from temporalex_django.core.failures import describe, is_about_code, step_prefix
from temporalex_django.core.history import events
from temporalex_django.core.history.activation import Completion, Fault
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine.contracts.records import Outcome

#: Errors that refuse a message under their own type. An update that is refused otherwise raises ``UpdateRejected``.
_REFUSALS = (
    errors.WorkflowClosed,
    errors.RunPaused,
    errors.RunBlocked,
    errors.NotAccepting,
    errors.ResumeRefused,
    errors.FourEyes,
    errors.HumanTaskClosed,
    errors.ActionNotPermitted,
    errors.PayloadError,
)


#: Status of an update whose validator failed by a fault of the code. Its id is free, as after a rejection.
FAULT: Final = "fault"


def fault_outcome(fault: Fault, *, reference: str) -> Outcome:
    """Return the answer to an update whose validator raised because of a fault in the code.

    It names the exception and ``reference``, under which the log has the details.
    """
    failure = describe(fault.error)
    cause_text = ""
    if is_about_code(fault.error):
        cause_text = f" ({failure['type']}: {failure['message']})"
    message = (
        f"the validator of the update {fault.name!r} failed{cause_text}; "
        f"see the log entry with the reference {reference}"
    )
    cause = {"type": failure["type"], "cause": failure["message"]}
    return Outcome(status=FAULT, value={"code": "update_failed", "message": message, "reference": reference, **cause})


def failed_outcome(failure: Mapping[str, Any]) -> Outcome:
    """Return the outcome of an update whose handler raised, from the attributes of ``UpdateFailed``."""
    attributes = {key: failure[key] for key in ("type", "message")}
    return Outcome(status="failed", value={"code": "update_failed", **attributes})


def run_result(
    status: str, closing: dict[str, Any] | None, *, workflow: str, workflow_id: str, blocked: Any = None
) -> Any:
    """Return the result of a completed run, from its status and the attributes of its closing event.

    ``blocked`` is the reason why an open run is blocked, if it is. Raises ``WorkflowFailed``, ``WorkflowTerminated``,
    ``WorkflowTimedOut`` or ``WorkflowCancelled`` if the run closed otherwise, and ``ResultTimeout`` while it is open.
    """
    name, attributes = f"{workflow} {workflow_id}", closing or {}
    match status:
        case "completed":
            return deep_copy(attributes.get("result"))
        case "failed":
            reason, kind = attributes.get("reason"), attributes.get("type")
            if kind:
                cause_text = f"{kind}: {attributes.get('message')}"
            else:
                cause_text = f"{reason!r}"
            raise errors.WorkflowFailed(
                f"{name} failed: {step_prefix(attributes)}{cause_text}",
                reason=reason,
                type=kind,
                traceback=attributes.get("traceback"),
                details=attributes.get("details"),
            )
        case "terminated":
            reason = attributes.get("reason")
            raise errors.WorkflowTerminated(f"{name} was terminated: {reason or 'no reason given'}", reason=reason)
        case "timed_out":
            raise errors.WorkflowTimedOut(
                f"{name} exceeded its {attributes.get('timeout', 'timeout')}", reason=attributes.get("timeout")
            )
        case "cancelled":
            raise errors.WorkflowCancelled(f"{name} was cancelled")
    cause_text = ""
    if blocked:
        cause_text = f"; it is blocked: {blocked}"
    raise errors.ResultTimeout(f"{name} has no result yet: it is {status}{cause_text}")


def open_run_text(description: Description) -> str:
    """Return the state of an open run for ``ResultTimeout``: what it waits for, and the activities that fail."""
    if description.blocked is not None:
        return f"blocked: {description.blocked.get('error')}"
    text = description.status
    if description.waiting_for:
        text += f", waiting for {', '.join(description.waiting_for)}"
    failing = [(activity, activity.last_failure) for activity in description.activities if activity.last_failure]
    for activity, failure in failing[:3]:  # more would hide the first
        attempt = f"{failure.attempt} of {activity.max_attempts}" if activity.max_attempts else str(failure.attempt)
        then = (
            "the next attempt is running"
            if activity.next_try is None
            else f"the next one is at {activity.next_try:%Y-%m-%dT%H:%M:%S%z}"
        )
        text += f"; attempt {attempt} of {activity.activity} failed with {failure.type}: {failure.message}, and {then}"
    return text


def update_result(outcome: Outcome | None, *, update_id: str, label: str) -> Any:
    """Return the response of a completed update; ``label`` names the update in errors.

    Raises ``UpdateFailed`` if its handler raised, and ``UpdateRejected`` or another refusal such as ``WorkflowClosed``
    if it was refused. Raises ``UpdateTimeout`` while there is no response.
    """
    if outcome is None or outcome.status == "accepted":
        accepted = outcome is not None
        if accepted:
            state = "was accepted but has not finished yet"
        else:
            state = "has not been processed yet"
        raise errors.UpdateTimeout(
            f"{label} {state}; send it again with the same id", update_id=update_id, accepted=accepted
        )
    if outcome.status == "completed":
        return deep_copy(outcome.value)
    attributes = outcome.value or {}
    message, code = attributes.get("message") or "", attributes.get("code")
    rejection = {
        "reason": attributes.get("reason"),
        "accepts": attributes.get("accepts"),
        "path": attributes.get("path"),
    }
    if outcome.status == FAULT:
        raise errors.UpdateFailed(
            message, type=attributes.get("type"), accepted=False, reference=attributes.get("reference")
        )
    # Only the code of the error is stored, so the class is found by it.
    for refusal in _REFUSALS:
        if code == refusal.code:
            raise refusal(message, **rejection) if issubclass(refusal, errors.UpdateRejected) else refusal(message)
    if outcome.status == "rejected":
        raise errors.UpdateRejected(message, **rejection)
    raise errors.UpdateFailed(f"{label} failed: {attributes.get('type')}: {message}", type=attributes.get("type"))


def update_outcomes(completion: Completion) -> dict[str, Outcome]:
    """Return the outcomes of updates and resumes that an activation accepted or ended, by message id.

    ``completion`` is the result of the activation.
    """
    outcomes: dict[str, Outcome] = {}
    for command in completion.commands:
        match command.kind:
            case "AcceptUpdate":
                outcomes[events.UPDATE_ACCEPTED.read(command)["id"]] = Outcome(status="accepted")
            case "CompleteUpdate":
                answer = events.UPDATE_COMPLETED.read(command)
                outcomes[answer["id"]] = Outcome(status="completed", value=answer["result"])
            case "FailUpdate":
                outcomes[events.UPDATE_FAILED.read(command)["id"]] = failed_outcome(command.attributes)
    outcomes.update((request, Outcome(status="completed")) for request in completion.granted)
    return outcomes
