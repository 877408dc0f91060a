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


def update_fault(fault: Fault, *, reference: str) -> Outcome:
    """The answer to an update whose validator failed by a fault of the code; the log has it under ``reference``."""
    failure = describe(fault.error)
    why = f" ({failure['type']}: {failure['message']})" if is_about_code(fault.error) else ""
    message = f"the validator of the update {fault.name!r} failed{why}; the log has it under the reference {reference}"
    cause = {"type": failure["type"], "cause": failure["message"]}
    return Outcome(status=FAULT, value={"code": "update_failed", "message": message, "reference": reference, **cause})


def update_failed(failure: Mapping[str, Any]) -> Outcome:
    """Of an update whose handler raised, from the attributes of ``UpdateFailed``."""
    facts = {key: failure[key] for key in ("type", "message")}
    return Outcome(status="failed", value={"code": "update_failed", **facts})


def result_of(
    status: str, closing: dict[str, Any] | None, *, workflow: str, workflow_id: str, blocked: Any = None
) -> Any:
    """The result of a run.

    Raises ``WorkflowFailed`` and its kin, ``WorkflowCancelled``, or ``ResultTimeout`` while it is open.
    """
    name, facts = f"{workflow} {workflow_id}", closing or {}
    match status:
        case "completed":
            return deep_copy(facts.get("result"))
        case "failed":
            reason, kind = facts.get("reason"), facts.get("type")
            why = f"{kind}: {facts.get('message')}" if kind else f"{reason!r}"
            raise errors.WorkflowFailed(
                f"{name} failed: {step_prefix(facts)}{why}",
                reason=reason,
                type=kind,
                traceback=facts.get("traceback"),
                details=facts.get("details"),
            )
        case "terminated":
            reason = facts.get("reason")
            raise errors.WorkflowTerminated(f"{name} was terminated: {reason or 'no reason given'}", reason=reason)
        case "timed_out":
            raise errors.WorkflowTimedOut(
                f"{name} ran into its {facts.get('timeout', 'timeout')}", reason=facts.get("timeout")
            )
        case "cancelled":
            raise errors.WorkflowCancelled(f"{name} was cancelled")
    why = f"; it is blocked: {blocked}" if blocked else ""
    raise errors.ResultTimeout(f"{name} has no result yet: it is {status}{why}")


def update_value(outcome: Outcome | None, *, update_id: str, what: str) -> Any:
    """The response of an update.

    Raises ``UpdateRejected``, ``WorkflowClosed``, ``UpdateFailed``, or ``UpdateTimeout`` while it has none.
    """
    if outcome is None or outcome.status == "accepted":
        accepted = outcome is not None
        state = "was accepted and is not done yet" if accepted else "was not looked at yet"
        raise errors.UpdateTimeout(
            f"{what} {state}; ask again with the same id", update_id=update_id, accepted=accepted
        )
    if outcome.status == "completed":
        return deep_copy(outcome.value)
    facts = outcome.value or {}
    message, code = facts.get("message") or "", facts.get("code")
    told = {"reason": facts.get("reason"), "accepts": facts.get("accepts"), "path": facts.get("path")}
    if outcome.status == FAULT:
        raise errors.UpdateFailed(message, type=facts.get("type"), accepted=False, reference=facts.get("reference"))
    for refusal in _REFUSALS:
        if code == refusal.code:
            raise refusal(message, **told) if issubclass(refusal, errors.UpdateRejected) else refusal(message)
    if outcome.status == "rejected":
        raise errors.UpdateRejected(message, **told)
    raise errors.UpdateFailed(f"{what} failed: {facts.get('type')}: {message}", type=facts.get("type"))
