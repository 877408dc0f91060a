"""The messages that a run refuses: the errors for their senders, and the data for the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from temporalex_django.core.messages.sender import Sender
from temporalex_django.errors import NotAccepting, QueryFailed, RunBlocked, RunPaused, UpdateRejected, WorkflowClosed


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSignal:
    """A signal that was refused because its sender lacks the permission of its handler, as the audit log records it."""

    run_id: UUID
    workflow: str
    workflow_id: str
    at: datetime
    signal: str
    permission: str
    sender: Sender

    @property
    def reason(self) -> str:
        return f"refused: {self.sender} lacks the permission {self.permission}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRedelivery:
    """A message that was refused when a reset or a fork delivered it again, as the audit log records it.

    ``code`` is the code of the error with which it was refused.
    """

    run_id: UUID
    workflow: str
    workflow_id: str
    at: datetime
    kind: str
    name: str
    code: str
    sender: Sender | None


def waiting_run_error(label: str, *, paused: bool, starts_at: datetime | None, reason: str) -> UpdateRejected:
    """Return the error for the message ``label`` to a run whose code does not run now.

    The run is paused, or begins at ``starts_at``, or is blocked for the ``reason``.
    """
    if paused:
        return RunPaused(f"the run is paused: {label} was refused")
    if starts_at is not None:
        return NotAccepting(f"the run has not begun; it starts at {format_start(starts_at)}, so {label} was refused")
    return RunBlocked(f"the run is blocked: {label} was withdrawn", reason=reason)


def closed_run_error(run_label: str, status: str, operation: str) -> WorkflowClosed:
    """Return the error for an ``operation``, such as "signal 'go'", on a run that is closed."""
    return WorkflowClosed(f"{run_label} is closed ({status}): {operation} refused")


def closed_request_error(run_label: str, status: str, request: str) -> WorkflowClosed:
    """Return the error for a ``request``, such as "update 'go'", to a run that is closed.

    The result of the run is not quoted: who sends a message may not be allowed to see it.
    """
    advice = "; it failed, and result() raises the error" if status == "failed" else ""
    return WorkflowClosed(f"{run_label} is closed: {request} refused{advice}")


def paused_request_error(run_label: str, request: str) -> RunPaused:
    """Return the error for a ``request``, such as "update 'go'", to a run that is paused."""
    return RunPaused(f"{run_label} is paused: {request} refused; send it again when it is unpaused")


def counts_when_closed(status: str | None) -> bool:
    """Return True if a request that is sent again has an outcome that counts although its run is closed.

    ``status`` is that of its outcome, or None if there is none.
    """
    return status in ("completed", "failed")


def counts_when_paused(status: str | None) -> bool:
    """Return True if a request that is sent again to a paused run was not rejected before."""
    return status != "rejected"


def format_start(starts_at: datetime) -> str:
    """Return the time at which a run begins, for errors: in ISO format, without fractions of a second."""
    return starts_at.isoformat(timespec="seconds")


def nothing_published_error(workflow: str, workflow_id: str, *, starts_at: datetime) -> QueryFailed:
    """Return the error for a query of a run that has no published state, because it begins only at ``starts_at``."""
    return QueryFailed(
        f"{workflow} {workflow_id} has published nothing: it has not begun and starts at {format_start(starts_at)}"
    )


def start_wait(starts_at: datetime) -> str:
    """Return what a run waits for until it begins: "its start at" and the time ``starts_at``."""
    return f"its start at {format_start(starts_at)}"
