"""The outcome of an update: read from its row, and redacted for the reader."""

from __future__ import annotations

from typing import Any

from temporalex_django import access
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.tables.requests import update_status
from temporalex_django.core.names import check_message_id, quoted
from temporalex_django.db.inserts import find_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.activity_policy import update_result
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.errors import (
    RunBlocked,
    WorkflowNotFound,
)
from temporalex_django.operations.base import CODE, Actor


def blocked_error(exc: RunBlocked, label: str, redactor: Redactor) -> RunBlocked:
    """Return the ``RunBlocked`` for the sender of a message, with a reason that is redacted by ``redactor``.

    The reason of the block may quote payloads. ``label`` names the message.
    """
    reason = redactor.redact_text(str(exc.reason))
    return RunBlocked(f"{label} was withdrawn because the run is blocked: {reason}", reason=reason)


def read_outcome(target: RunTarget, update: str, update_id: str, *, storage: DjangoStorage, by: Actor = CODE) -> Any:
    """Return the answer of an update that was sent before with the message id ``update_id``.

    ``update`` is its name, and ``by`` the actor who asks. Its sender gets the answer; for other users it is redacted as
    a payload. Raises ``WorkflowNotFound`` for an unknown id, ``UpdateTimeout`` if there is no answer yet, and the error
    of an update that was rejected or failed.
    """
    earlier_message = find_message(target.chain_id, check_message_id(update_id, label="update"), storage=storage)
    status = update_status(target.chain_id, update_id, storage=storage)
    if status is None or earlier_message is None or earlier_message[1][:2] != ("update", update):
        raise WorkflowNotFound(
            f"{target.workflow} {target.workflow_id} has no update {quoted(update)} with the id {update_id!r}"
        )
    label = f"the update {update_id!r} of {target.workflow} {target.workflow_id}"
    if by.user is None:
        return update_result(status.outcome, update_id=update_id, label=label)
    redactor = access.redactor_for(by.user, target.row)
    if earlier_message[1].sender == by.sender:
        own_outcome = _redact_for_sender(status.outcome, redactor)
        return redactor.redact_answer(update_result(own_outcome, update_id=update_id, label=label), message_name=update)
    shown_outcome = _redact_for_others(status.outcome, redactor)
    return redactor.redact_payload(update_result(shown_outcome, update_id=update_id, label=label), message_name=update)


def _redact_for_sender(outcome: Outcome | None, redactor: Redactor) -> Outcome | None:
    """Return the outcome of an update as its sender may see it.

    The message of a failure is redacted, because it may quote values that the class hides.
    """
    if outcome is None or outcome.status != "failed" or not isinstance(outcome.value, dict):
        return outcome
    return Outcome(
        status=outcome.status,
        value={**outcome.value, "message": redactor.redact_own_failure(outcome.value.get("message") or "")},
    )


def _redact_for_others(outcome: Outcome | None, redactor: Redactor) -> Outcome | None:
    """Return the outcome of an update as a user who did not send it may see it.

    The message and the reason of a failure or rejection are redacted, because both may quote payloads.
    """
    if outcome is None or outcome.status not in ("failed", "rejected"):
        return outcome
    failure = outcome.value or {}
    redacted_failure = {**failure, "message": redactor.redact_text(failure.get("message") or "")}
    if "reason" in failure:
        redacted_failure["reason"] = (
            redacted_failure["message"]
            if redacted_failure["message"] != failure.get("message")
            else redactor.redact_payload(failure["reason"])
        )
    return Outcome(status=outcome.status, value=redacted_failure)
