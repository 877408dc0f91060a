"""Errors about the execution of runs: failures, replays, and attempts that ask for another one."""

from __future__ import annotations

import inspect
import math
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Literal, Self, final

# --- base -------------------------------------------------------------------------------------------------------------
#
# Base classes of all errors and of the control exceptions that travel through workflow code.


class TemporalexError(Exception):
    """The base class of all errors of temporalex_django; its subclasses say what happened."""

    code: ClassVar[str] = "error"
    #: Advice for the person who gets the error; a column of docs/reference/errors.md.
    next_step: ClassVar[str] = "Read the message; more precise errors are subclasses."
    #: True if an operation was refused because nothing is left to do: bulk jobs count such runs apart.
    already_done: bool = False

    def __init__(self, message: str | None = None) -> None:
        # The docstring is the default message, so the first paragraph of every subclass must read as one.
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or "").split("\n\n", 1)[0])

    @property
    def message(self) -> str:
        """The text of the error: one sentence that says what happened."""
        return str(self.args[0]) if self.args else ""


class Control(BaseException):
    """Base of the exceptions of workflow code, such as ``Cancelled``, that ``except Exception`` does not catch.

    Only the engine raises them. Calling the class raises ``TypeError``.
    """

    # User code that raised these itself could pretend that a run was cancelled or evicted (see decision 11).
    _make_token: ClassVar[object] = object()

    def __init__(self, message: str = "", *, _token: object = None) -> None:
        if _token is not Control._make_token:
            raise TypeError(f"{type(self).__name__} has no public constructor: only the engine raises it")
        super().__init__(message)

    @classmethod
    def _make(cls, message: str = "") -> Any:
        """Return an exception of this class. Only the engine calls this."""
        return cls(message, _token=Control._make_token)


@final
class Cancelled(Control):
    """Raised where workflow code waits, in each coroutine that a cancellation reaches: ``run``, handlers, branches.

    Clean up and let it pass. If you swallow it, the cancelled run completes instead: do so only on purpose.
    """


# --- outcomes ---------------------------------------------------------------------------------------------------------
#
# Errors that report the outcome of an update, a run, an activity or a child.


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


class TaskCancelled(TemporalexError):
    """Somebody has cancelled the background task.

    A heartbeat of the running task raises it, and so does its report of progress. The result of a cancelled task has it
    as its last error, unless the task raised another one afterwards.
    """

    code = "task_cancelled"
    next_step = "Clean up and let the error pass. To run the task again, retry it."


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


# --- replay -----------------------------------------------------------------------------------------------------------
#
# Errors that block a run: its code does not fit its history, or cannot be run.


# Blocks the run and does not fail it: the history is right, and corrected code can continue it (see decision 16).
class NondeterminismError(TemporalexError):
    """The code does something other than what the history of the run recorded.

    ``seq`` is the number of the command at which code and history differ (the number of the event if there is no
    command). ``recorded`` is what the history holds there and ``produced`` is what the code did; "nothing" stands for a
    missing one. ``place`` is the file and line of the code (``path:line``) if it is known, and ``event`` is the number
    of the event.
    """

    code = "nondeterminism"
    next_step = (
        "Restore the old code, or keep the old path for open runs with `api.patched()`. The run then continues "
        "automatically."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        seq: int | None = None,
        recorded: str | None = None,
        produced: str | None = None,
        place: str | None = None,
        event: int | None = None,
    ) -> None:
        super().__init__(message)
        self.event = event
        self.seq = seq
        self.recorded = recorded
        self.produced = produced
        self.place = place


# The engine has one number, and a run of another number is not touched at all (see decision 17).
class EngineChanged(TemporalexError):
    """The run was started by another version of the engine, which would treat its history differently.

    The run is blocked, not lost.
    """

    code = "engine_changed"
    next_step = (
        "Let these runs finish under the version of temporalex_django that started them, or terminate them and "
        "start them again."
    )


# Neither yes nor no: a refusal would drop the message because of a fault in the authentication backend, so the run
# waits (see decision 37).
class JudgingFailed(TemporalexError):
    """The permission of a message's sender could not be checked, because the check itself failed.

    The run is blocked, not lost.
    """

    code = "judging_failed"
    next_step = "Check the authentication backends; the message contains their error. The run is retried automatically."


class DeadlockDetected(TemporalexError):
    """Workflow code did not reach a wait within the deadlock timeout."""

    code = "deadlock"
    next_step = "Use the stack trace in the log to find the loop, and move the computation into an activity."


# --- retry later ------------------------------------------------------------------------------------------------------
#
# The error by which an activity says when it is to be tried again.


#: Longest hold, in seconds: an hour.
LONGEST_HOLD = 3600.0
#: Longest pause between two attempts, in seconds: a year. A service may send any number.
LONGEST_PAUSE = 365 * 86_400.0
#: What a hold keeps back: the other activities of the queue, or those with the same concurrency key.
HOLDS = ("queue", "key")
#: Longest header that a message quotes, in characters.
_MAX_HEADER_LENGTH = 100
#: Numbers of seconds with more digits are longer than ``LONGEST_PAUSE``.
_MAX_DIGITS = 12


class RetryLater(ApplicationError):
    """The activity asked to be retried later.

    Raise it in an activity that knows when another attempt makes sense, for example because a service said so.

    - ``after`` is when: seconds or a ``timedelta`` from the end of the attempt, or an aware ``datetime``. It takes the
      place of the pause of the retry policy, even if it is longer than ``max_interval``. A time in the past means at
      once, and a pause is at most 365 days. With None, the retry policy decides the pause.
    - With ``counts=False``, the attempt does not count for ``max_attempts``, and the next one has the same number.
    - ``hold`` holds other work back until then, at most for an hour: "queue" all activities of the queue, "key" those
      of the queue with the same concurrency key. Activities that run already continue. An atomic activity, and "key"
      for an activity without a concurrency key, hold nothing back.

    ``message`` is shown as the reason for the wait. ``type`` and ``details`` are as in ``ApplicationError``.
    ``non_retryable`` of the retry policy does not apply. The activity fails with this error if no attempt is left, or
    if the next one would begin after ``schedule_to_close``.

    Raises ``TypeError`` or ``ValueError`` for an ``after`` or a ``hold`` that makes no sense.
    """

    code = "retry_later"
    next_step = (
        "Nothing to do while attempts are left: the next one begins at the time that the activity requested. If "
        "none is left, allow more attempts or more time, or pass `counts=False`."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        after: timedelta | datetime | float | None = None,
        counts: bool = True,
        hold: Literal["queue", "key"] | None = None,
        type: str | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message, type=type, details=details)
        if hold is not None and hold not in HOLDS:
            raise ValueError(f'RetryLater: hold={hold!r} is unknown. Pass "queue", "key" or None.')
        self.after = _parse_after(after)
        self.counts = bool(counts)
        self.hold = hold

    @classmethod
    def from_header(
        cls,
        value: str | None,
        message: str | None = None,
        *,
        counts: bool = True,
        hold: Literal["queue", "key"] | None = None,
        type: str | None = None,
        details: Any = None,
    ) -> Self:
        """Return the error for the value of the HTTP header ``Retry-After``: a number of seconds, or a date.

        A header that is missing (None) or cannot be read never hides the answer of the service: the retry policy
        decides the pause then, and the message says so. The other arguments are those of the class.
        """
        after = _parse_header(value)
        if message is None:
            message = _header_message(value, after)
        return cls(message, after=after, counts=counts, hold=hold, type=type, details=details)

    def seconds_from(self, now: datetime) -> float | None:
        """Return the seconds from ``now`` until the next attempt, between 0 and a year.

        None means that the retry policy decides.
        """
        match self.after:
            case None:
                return None
            case datetime():
                seconds = (self.after - now).total_seconds()
            case _:
                seconds = self.after
        return min(max(seconds, 0.0), LONGEST_PAUSE)


def _parse_after(after: timedelta | datetime | float | None) -> datetime | float | None:
    """Return seconds or an aware datetime. Raises ``TypeError`` or ``ValueError``."""
    if isinstance(after, datetime):
        if after.utcoffset() is None:
            raise ValueError(
                f"RetryLater: after={after.isoformat()} has no time zone. Pass an aware datetime, such as "
                "django.utils.timezone.now() + timedelta(minutes=5), or a number of seconds."
            )
        return after
    if isinstance(after, timedelta):
        return after.total_seconds()
    if after is None:
        return None
    if isinstance(after, bool) or not isinstance(after, (int, float)):
        raise TypeError(
            f"RetryLater: after={after!r} is not a point in time. Pass seconds, a timedelta or an aware datetime. For the "
            "header Retry-After, use RetryLater.from_header(value)."
        )
    if isinstance(after, float) and math.isnan(after):
        raise ValueError("RetryLater: after=nan is not a number of seconds. Pass seconds, a timedelta or a datetime.")
    # Compared before the conversion: an int may be too large for a float.
    return float(max(-LONGEST_PAUSE, min(after, LONGEST_PAUSE)))


def _parse_header(value: str | None) -> datetime | float | None:
    """Return seconds or a time, or None if the header cannot be read."""
    text = "" if value is None else str(value).strip()
    if text.isascii() and text.isdigit():
        return LONGEST_PAUSE if len(text) > _MAX_DIGITS else float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # Dates of HTTP are in GMT. The oldest of their three forms does not say so.
    return moment.replace(tzinfo=UTC) if moment.utcoffset() is None else moment


def _header_message(value: str | None, after: datetime | float | None) -> str:
    if value is None:
        return "The service asked to wait and did not say how long; the retry policy decides the pause."
    text = str(value).strip()
    if len(text) > _MAX_HEADER_LENGTH:
        text = f"{text[:_MAX_HEADER_LENGTH]}…"
    if after is None:
        return (
            f"The service asked to wait, with an unreadable Retry-After: {text!r}; the retry policy decides the pause."
        )
    return f"The service asked to wait (Retry-After: {text})."
