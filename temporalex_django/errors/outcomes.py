"""Errors that report the outcome of an update, a run, an activity or a child."""

from __future__ import annotations

from typing import Any

from temporalex_django.errors.base import TemporalexError


class UpdateRejected(TemporalexError):
    """The run refused this update: its validator rejected it, or a subclass gives another reason.

    ``reason`` is the value of the validator's ``Err``, or the text of the exception that it raised. ``accepts`` is
    None, or names the signals and updates that the run accepts now (see ``NotAccepting``). ``path`` names the field of
    the arguments whose type the handler does not accept, such as ``$.quantity``. It is None if no type is the reason.
    """

    code = "update_rejected"
    next_step = "Read `reason`, which the validator returned. Nothing has changed, and you can use the update id again."

    def __init__(
        self, message: str | None = None, *, reason: Any = None, accepts: Any = None, path: str | None = None
    ) -> None:
        super().__init__(message)
        self.reason, self.accepts, self.path = reason, accepts, path


class NotAccepting(UpdateRejected):
    """The run does not currently accept this update; ``accepts`` lists the ``signals`` and ``updates`` it accepts."""

    code = "not_accepting"
    next_step = (
        "Check `accepts` to see what the run accepts now. Nothing has changed, and you can use the update id again."
    )


class RunBlocked(UpdateRejected):
    """The run is blocked, ``reason`` says why, and the update was withdrawn.

    The update was tried first, unless trying it could end the process.
    """

    code = "blocked"
    next_step = (
        "Fix the problem that `reason` describes, and send the update again. Nothing of it was kept, and you can "
        "use its id again."
    )


# A rejection, so that code which sends updates and handles rejections also handles a run that has ended meanwhile.
class WorkflowClosed(UpdateRejected):
    """The run is closed and accepts no more messages."""

    code = "workflow_closed"
    next_step = "Start a new run: this one accepts no more messages."


class RunPaused(UpdateRejected):
    """Somebody paused the run; it accepts no updates until it is unpaused."""

    code = "paused"
    next_step = "Send it again after the run is unpaused; `describe().paused` says who paused it, when and why."


class WorkflowSwitchedOff(UpdateRejected):
    """Somebody switched off the workflow class; until it is switched on again, its runs stop and accept no updates."""

    code = "switched_off"
    next_step = (
        "Send it again when the class is switched on; `temporalex switches` shows who switched it off, when and why."
    )


class TooManyUpdates(UpdateRejected):
    """The run already has as many waiting updates as the setting ``WAITING_UPDATES`` allows."""

    code = "too_many_updates"
    next_step = "Wait a moment and send it again; `describe().waiting_for` shows what the run is waiting for."


class UpdateFailed(TemporalexError):
    """The update failed: its handler raised an exception, or its validator failed because of a bug.

    ``type`` is the class name of the exception. ``accepted`` is False if the validator failed: nothing was changed, and
    the update id is free. The log has that failure under ``reference``.
    """

    code = "update_failed"
    next_step = (
        "Read the handler's error; the run continues. If `accepted` is false, find `reference` in the log, correct the "
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
    """The update had no outcome in time; send it again with the same ``update_id``.

    ``accepted`` is True if the update is in the history and only its outcome is missing. The ``code`` of an instance of
    this class is ``busy`` if the run could not be locked inside the caller's transaction. It is ``unknown`` if the
    connection to the database broke while the update was sent. In that case, send it again with its ``update_id``: you
    get its outcome if it was stored, and otherwise it is done now, once (see decision 25).
    """

    code = "update_timeout"
    next_step = (
        "Send it again with the same `update_id`; an accepted update is not lost. With code `busy`, send it "
        "outside the open transaction. With code `unknown`, it may have run, so send it again only with that id."
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
            # One class for three situations: callers that catch the error need its code to decide what to do next.
            self.code = code  # type: ignore[misc] # an instance may be more precise than its class


class ResultTimeout(TemporalexError):
    """The run did not have a result within the time allowed for waiting."""

    code = "result_timeout"
    next_step = "Wait longer, or call `describe()` to see what the run is waiting for."


class WorkflowFailed(TemporalexError):
    """The run failed.

    ``reason`` is the value of its ``Err(reason)``. ``type`` and ``traceback`` describe an exception that escaped, and
    ``details`` are those of an ``ApplicationError``.
    """

    code = "workflow_failed"
    next_step = "Check `reason`, or the `type` and `traceback` of the exception that was not caught."

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


# Subclasses of WorkflowFailed: for code that waits for a result, all three mean that there is none.
class WorkflowTerminated(WorkflowFailed):
    """The run was terminated from outside."""

    code = "workflow_terminated"
    next_step = "Check the reason; somebody closed the run on purpose."


class WorkflowTimedOut(WorkflowFailed):
    """The run did not end within its timeout."""

    code = "workflow_timed_out"
    next_step = "Give it more time, or check its history to see what it was waiting for."


class WorkflowCancelled(TemporalexError):
    """The run was cancelled."""

    code = "workflow_cancelled"
    next_step = "No action is needed: somebody requested the cancellation."


# The one error that counts as raised on purpose: with ``unexpected_error = "block"`` it still fails the run (see
# decision 48).
class ApplicationError(TemporalexError):
    """Code of the project failed on purpose; raise it in ``run`` to fail the run, in an activity to fail the attempt.

    ``type`` takes the place of the class name wherever failures are named, in retry policies too. ``details`` are plain
    data for the code that handles the failure. An activity that raises it with ``non_retryable=True`` is not tried
    again.
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
        self.non_retryable = bool(non_retryable)


class UnexpectedError(TemporalexError):
    """Workflow code raised an exception that is not an ``Exception``, for example ``SystemExit``."""

    code = "unexpected"
    next_step = "Correct the code that the message mentions; the run then continues automatically."


class ActivityFailure(TemporalexError):
    """An activity failed, and it has no attempts left.

    ``type`` is the class name of the last exception (``TimeoutError`` if a timeout ended the activity) and ``cause`` is
    its message. ``attempts`` is the number of attempts. ``timeout`` names the timeout that ended the activity, or is
    None. ``activity`` is the name of the activity, and ``details`` are those of an ``ApplicationError``. ``traceback``
    is the text of that of the last exception, or None.
    """

    code = "activity_failure"
    next_step = (
        "Catch it in the workflow, or give the activity a different retry policy; `type` and `cause` say what it "
        "raised."
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
        traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.traceback = traceback
        self.activity = activity
        self.details = details
        self.cause = cause
        self.type = type
        self.attempts = attempts
        self.timeout = timeout


class ChildWorkflowFailure(TemporalexError):
    """A child workflow did not complete, or could not be started.

    ``type`` is the class name of the exception that failed the child, or says how else it closed; ``cause`` is its
    message.
    """

    code = "child_workflow_failure"
    next_step = "Catch it in the parent, or check the child's history."

    def __init__(self, message: str | None = None, *, cause: str | None = None, type: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.type = type
