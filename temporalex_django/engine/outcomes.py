"""What callers get: a value, or the typed error that stored data stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from temporalex_django import errors
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.error_text import is_about_code
from temporalex_django.core.failures import describe, step_prefix
from temporalex_django.core.history.activation import Fault
from temporalex_django.engine.storage import Outcome

#: What a message may be refused with; an update for any other reason with ``UpdateRejected``.
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


#: Status of an update whose validator failed by a fault of the code. Its id is free, as that of a rejected one.
FAULT: Final = "fault"


def fault_outcome(fault: Fault, *, reference: str) -> Outcome:
    """The answer to an update whose validator failed by a fault of the code; the log has it under ``reference``."""
    failure = describe(fault.error)
    cause_text = f" ({failure['type']}: {failure['message']})" if is_about_code(fault.error) else ""
    message = (
        f"the validator of the update {fault.name!r} failed{cause_text}; the log has it under the reference {reference}"
    )
    cause = {"type": failure["type"], "cause": failure["message"]}
    return Outcome(status=FAULT, value={"code": "update_failed", "message": message, "reference": reference, **cause})


def failed_outcome(failure: Mapping[str, Any]) -> Outcome:
    """Of an update whose handler raised, from the attributes of ``UpdateFailed``."""
    attributes = {key: failure[key] for key in ("type", "message")}
    return Outcome(status="failed", value={"code": "update_failed", **attributes})


def run_result(
    status: str, closing: dict[str, Any] | None, *, workflow: str, workflow_id: str, blocked: Any = None
) -> Any:
    """The result of a run.

    Raises ``WorkflowFailed`` and its kin, ``WorkflowCancelled``, or ``ResultTimeout`` while it is open.
    """
    name, attributes = f"{workflow} {workflow_id}", closing or {}
    match status:
        case "completed":
            return deep_copy(attributes.get("result"))
        case "failed":
            reason, kind = attributes.get("reason"), attributes.get("type")
            cause_text = f"{kind}: {attributes.get('message')}" if kind else f"{reason!r}"
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
                f"{name} ran into its {attributes.get('timeout', 'timeout')}", reason=attributes.get("timeout")
            )
        case "cancelled":
            raise errors.WorkflowCancelled(f"{name} was cancelled")
    cause_text = f"; it is blocked: {blocked}" if blocked else ""
    raise errors.ResultTimeout(f"{name} has no result yet: it is {status}{cause_text}")


def update_result(outcome: Outcome | None, *, update_id: str, label: str) -> Any:
    """The response of an update.

    Raises ``UpdateRejected``, ``WorkflowClosed``, ``UpdateFailed``, or ``UpdateTimeout`` while it has none.
    """
    if outcome is None or outcome.status == "accepted":
        accepted = outcome is not None
        state = "was accepted and is not done yet" if accepted else "was not looked at yet"
        raise errors.UpdateTimeout(
            f"{label} {state}; ask again with the same id", update_id=update_id, accepted=accepted
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
    for refusal in _REFUSALS:
        if code == refusal.code:
            raise refusal(message, **rejection) if issubclass(refusal, errors.UpdateRejected) else refusal(message)
    if outcome.status == "rejected":
        raise errors.UpdateRejected(message, **rejection)
    raise errors.UpdateFailed(f"{label} failed: {attributes.get('type')}: {message}", type=attributes.get("type"))
