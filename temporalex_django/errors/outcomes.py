"""Errors that say what became of an update, a run, an activity or a child."""

from __future__ import annotations

from typing import Any

from temporalex_django.errors.base import TemporalexError


class UpdateRejected(TemporalexError):
    """The run refused this update: its validator did, or one of the more precise errors says why.

    ``reason`` is what the validator gave ``Err``, or the text of what it raised. ``accepts`` is None, or names the
    signals and updates that the run takes now (see ``NotAccepting``). ``path`` names the field of the arguments that
    does not have the type which the handler asks for, such as ``$.quantity``; None where no type is the reason.
    """

    code = "update_rejected"
    next_step = "Look at `reason`, which its validator gave. Nothing was changed, the update id is free."

    def __init__(
        self, message: str | None = None, *, reason: Any = None, accepts: Any = None, path: str | None = None
    ) -> None:
        super().__init__(message)
        self.reason, self.accepts, self.path = reason, accepts, path


class NotAccepting(UpdateRejected):
    """The run takes no update of that name now; ``accepts`` names what it takes: ``signals`` and ``updates``."""

    code = "not_accepting"
    next_step = "Look at `accepts` for what the run takes now; nothing was changed, the update id is free."


class RunBlocked(UpdateRejected):
    """The run is blocked, ``reason`` says why; the update was tried, where that ends no process, and withdrawn."""

    code = "blocked"
    next_step = "Put right what `reason` names, and send the update again: nothing of it is kept, its id is free."


class WorkflowClosed(UpdateRejected):
    """The run is closed and takes no more messages."""

    code = "workflow_closed"
    next_step = "Nothing can reach this run any more: start a new one."


class RunPaused(UpdateRejected):
    """Somebody paused the run: until it is unpaused it takes no updates."""

    code = "paused"
    next_step = "Send it again when the run is unpaused; `describe().paused` says who paused it, when and why."


class WorkflowSwitchedOff(UpdateRejected):
    """Somebody switched the workflow class off: until it is on again its runs stand still and take no updates."""

    code = "switched_off"
    next_step = "Send it again when the class is on; `temporalex switches` says who switched it off, when and why."


class TooManyUpdates(UpdateRejected):
    """So many updates wait for the run already that it takes no more for now (``WAITING_UPDATES``)."""

    code = "too_many_updates"
    next_step = "Wait a moment and send it again; what keeps the run from its updates is in `describe().waiting_for`."


class UpdateFailed(TemporalexError):
    """The update failed: its handler did, or its validator did by a fault of the code.

    ``type`` is the class name of what was raised. ``accepted`` is False where the validator failed: nothing was
    changed, and the update id is free. The log has that failure under ``reference``.
    """

    code = "update_failed"
    next_step = (
        "Look at the handler's error; the run goes on. With `accepted` false, find `reference` in the log, correct the "
        "validator, and send the update again."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        type: str | None = None,
        accepted: bool = True,
        reference: str | None = None,
    ) -> None:
        super().__init__(message)
        self.type = type
        self.accepted = accepted
        self.reference = reference


class UpdateTimeout(TemporalexError):
    """No outcome in time; ask again with the same ``update_id``.

    ``accepted`` is True when the update is in the history and only its outcome is missing; the instance's ``code`` is
    ``busy`` when the run could not be locked inside the caller's transaction, and ``unknown`` when the connection to
    the database broke while it was sent: asking with its ``update_id`` tells whether it counts, or does it, once.
    """

    code = "update_timeout"
    next_step = (
        "Ask again with `update_id`; what was accepted is not lost. With code `busy`, ask outside of the "
        "open transaction. With code `unknown`, it may have been done: send it again with that id alone."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        update_id: str | None = None,
        accepted: bool = False,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.update_id = update_id
        self.accepted = accepted
        if code is not None:
            self.code = code  # type: ignore[misc] # an instance may say it more precisely than its class


class ResultTimeout(TemporalexError):
    """The run has no result yet."""

    code = "result_timeout"
    next_step = "Wait longer, or look at `describe()` for what the run waits for."


class WorkflowFailed(TemporalexError):
    """The run failed.

    ``reason`` is what ``Err(reason)`` held; ``type`` and ``traceback`` describe an exception that escaped, ``details``
    are those of an ``ApplicationError``.
    """

    code = "workflow_failed"
    next_step = "Look at `reason`, or at `type` and `traceback` of the exception that escaped."

    def __init__(
        self,
        message: str | None = None,
        *,
        reason: Any = None,
        type: str | None = None,
        traceback: str | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.details = details
        self.reason = reason
        self.type = type
        self.traceback = traceback


class WorkflowTerminated(WorkflowFailed):
    """The run was terminated."""

    code = "workflow_terminated"
    next_step = "See the reason; somebody closed it on purpose."


class WorkflowTimedOut(WorkflowFailed):
    """The run did not end within its timeout."""

    code = "workflow_timed_out"
    next_step = "Give it more time, or find out in its history what it waited for."


class WorkflowCancelled(TemporalexError):
    """The run was cancelled."""

    code = "workflow_cancelled"
    next_step = "Nothing: somebody asked for it."


class ApplicationError(TemporalexError):
    """Code of the project fails on purpose: raise it in ``run`` to fail the run, in an activity to fail the attempt.

    ``type`` stands for the class name wherever failures are named, retry policies included. ``details`` are plain data
    for whoever handles the failure. An activity that raises one with ``non_retryable`` is not tried again.
    """

    code = "application"
    next_step = "Read the message: the project's own code raised it."

    def __init__(
        self,
        message: str | None = None,
        *,
        type: str | None = None,
        details: Any = None,
        non_retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.type = type
        self.details = details
        self.non_retryable = non_retryable


class UnexpectedError(TemporalexError):
    """Workflow code raised something that is no ``Exception``, ``SystemExit`` for example."""

    code = "unexpected"
    next_step = "Correct the code that the message names; the run goes on by itself then."


class ActivityFailure(TemporalexError):
    """An activity finally failed.

    ``type`` is the class name of the last exception (``TimeoutError`` when a timeout ended it), ``cause`` the message
    of that exception, ``attempts`` how often it ran, ``timeout`` which one ended it or None, ``activity`` its name,
    ``details`` those of an ``ApplicationError``.
    """

    code = "activity_failure"
    next_step = (
        "Catch it in the workflow, or give the activity another retry policy; `type` and `cause` say what it raised."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        cause: str | None = None,
        type: str | None = None,
        attempts: int = 0,
        timeout: str | None = None,
        activity: str | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.activity = activity
        self.details = details
        self.cause = cause
        self.type = type
        self.attempts = attempts
        self.timeout = timeout


class ChildWorkflowFailure(TemporalexError):
    """A child workflow did not complete."""

    code = "child_workflow_failure"
    next_step = "Catch it in the parent, or look at the child's own history."

    def __init__(self, message: str | None = None, *, cause: str | None = None, type: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.type = type
