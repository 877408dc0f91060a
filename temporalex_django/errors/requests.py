"""Errors about requests and definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temporalex_django.errors.execution import TemporalexError

# --- requests ---------------------------------------------------------------------------------------------------------
#
# Errors of requests: wrong ids, missing permissions, missing objects, impossible operations.


class InvalidId(TemporalexError):
    """The id is not usable: it must be 1 to 200 printable characters without ``/``, and not the id of a run."""

    code = "invalid_id"
    next_step = "Use 1 to 200 printable characters without `/`, and not the id of a run."


# An id belongs to its message, so that sending it again is safe (see decision 25).
class MessageIdTaken(InvalidId):
    """Another message of the run has this id: it has a different name, sender or, over REST, body."""

    code = "message_id_taken"
    next_step = "Use a new id for each message. Use the same id only to send the very same message again."


class AmbiguousId(TemporalexError):
    """Several workflows have used this id, and either none or several of them have an open run.

    ``candidates`` holds a dict for each workflow, with ``workflow``, and ``run_id`` and ``status`` of its newest run.
    """

    code = "ambiguous_id"
    next_step = (
        "Specify the workflow (`Class.handle(id)`, or `?workflow=` in REST), or use the run's own id: "
        "`candidates` contains both."
    )

    def __init__(self, message: str | None = None, *, candidates: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.candidates = [dict(candidate) for candidate in candidates]


class WorkflowNotFound(TemporalexError):
    """No run with this id exists."""

    code = "workflow_not_found"
    next_step = "Check the id. Check that the transaction that started the run has committed."


class ScheduleNotFound(TemporalexError):
    """No schedule has this name."""

    code = "schedule_not_found"
    next_step = "Check the name, for example with `temporalex schedules list`."


class AlreadyRunning(TemporalexError):
    """A run with this id is already open.

    ``pending`` is True if the other start is part of a transaction that has not ended, so it is not known yet whether
    it counts.
    """

    code = "already_running"
    next_step = (
        "Use the handle of the open run, wait until it ends, or use another id. With `pending`, try again "
        "after the other transaction has ended."
    )

    def __init__(self, message: str | None = None, *, pending: bool = False) -> None:
        super().__init__(message)
        self.pending = pending


class AlreadyEnded(AlreadyRunning):
    """A run with this id has ended, and the ``on_closed`` policy of the start does not allow another one."""

    code = "already_ended"
    next_step = "Use another id, or start with another `on_closed`."


class InvalidStart(TemporalexError):
    """A start option is malformed or contradicts another option."""

    code = "invalid_start"
    next_step = "Correct the option that the message mentions. Nothing was started."


class InvalidHeaders(TemporalexError):
    """The headers are not short texts with names, or they exceed 4 KB in total."""

    code = "invalid_headers"
    next_step = "Correct the header that the message mentions. Nothing was started or sent."


class ResumeRefused(TemporalexError):
    """The event does not match exactly one waiting step.

    A resume gives a waiting step of a graph the event that it is waiting for. It is refused when no waiting step, or
    more than one, can take the event.
    """

    code = "resume_refused"
    next_step = "Specify the step, or an event that exactly one waiting step declares."


def no_process(run: str) -> ResumeRefused:
    """Return the error for a request to a run that is not a graph: only graphs take requests such as a resume.

    ``run`` names the run in the message.
    """
    return ResumeRefused(f"{run} is not a graph: it has no steps to resume")


class NotCancellable(TemporalexError):
    """The run cannot be cancelled, because it is already closed."""

    code = "not_cancellable"
    next_step = "Nothing to do: the run has ended."


class UnknownQuery(TemporalexError):
    """The workflow does not have a query with that name."""

    code = "unknown_query"
    next_step = "Use one of the queries that the message lists."


class UnknownSignal(TemporalexError):
    """The class of the run does not declare this signal; ``known`` lists the signals that it declares."""

    code = "unknown_signal"
    next_step = "Send one of the signals that the message lists, or add the name to `signals` of the class."

    def __init__(self, message: str | None = None, *, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.known = list(known)


class QueryFailed(TemporalexError):
    """The function that answers the query raised an exception."""

    code = "query_failed"
    next_step = "Correct the query function; the run is not affected."


class QueryTimeout(QueryFailed):
    """The Temporal cluster on which the run lives, or a worker of it, has not answered the query in time."""

    code = "query_timeout"
    next_step = (
        "Ask again. If that does not help, check that the cluster can be reached and that a worker polls the task queue "
        "of the run."
    )


class HistoryGone(QueryFailed):
    """The Temporal cluster has deleted the run, so its history and its activities can no longer be read."""

    code = "history_gone"
    next_step = (
        "If the run is still open here, run `temporalex sync` with its id, which closes it. A closed run keeps its row, "
        "its result and its audit. To keep histories for longer, raise the retention of the namespace."
    )


class ActivityNotFound(TemporalexError):
    """No activity with that name is registered in this process."""

    code = "activity_not_found"
    next_step = (
        "Define the activity in `activities.py` or `workflows.py` of an installed app of the worker's "
        "project, and deploy it there."
    )


class ActionNotPermitted(TemporalexError):
    """The user does not have the permission for this operation."""

    code = "not_permitted"
    next_step = "Ask for the permission that the message mentions."


# The people who are excluded come from the whole chain and from the runs behind it (see decision 49).
class FourEyes(ActionNotPermitted):
    """A different user must decide: this one started, forked or scheduled the run, or decided an approval in it."""

    code = "four_eyes"
    next_step = "Ask a different user who has the role of the step to decide."


class HumanTaskNotFound(TemporalexError):
    """The human task does not exist, or this user may not see it."""

    code = "human_task_not_found"
    next_step = "Look in the inbox for open decisions; `handle.human_tasks()` returns those of a run."


class TaskNotFound(TemporalexError):
    """The background task does not exist, its retention has passed, or this user may not see it."""

    code = "task_not_found"
    next_step = "To list background tasks, run `manage.py temporalex enqueued`, or request `GET tasks/`."


class WorkerNotFound(TemporalexError):
    """The worker does not exist: it has ended, was declared dead, or continues under a new id."""

    code = "worker_not_found"
    next_step = "To list the workers, open the admin or request `GET workers/`."


class HumanTaskClosed(TemporalexError):
    """The human task is no longer open: the message says who decided what and when, or what happened instead."""

    code = "human_task_closed"
    next_step = "There is nothing left to decide, and nothing was done. Check the run to see how it continued."


class FormChanged(TemporalexError):
    """The form of the human task has changed since it was filled in."""

    code = "form_changed"
    next_step = "Open the current form, and decide again. Nothing was done."


class HumanTaskClaimed(TemporalexError):
    """Another user has claimed the human task: the message says who, and until when."""

    code = "human_task_claimed"
    next_step = "Ask the user who claimed it to decide or release it, or wait until the claim ends. Nothing was done."


class ActionNotPossible(TemporalexError):
    """The operation is not possible in the current state of the run or of the object that it acts on."""

    code = "not_possible"
    next_step = (
        "Read the reason in the message. If it is about a run, check the run again: somebody may have been "
        "faster. Nothing was done."
    )


class RunChanged(TemporalexError):
    """The run or schedule has changed since it was last read by the person or program that acts on it.

    ``changes`` maps the name of each difference to a dict of what it ``was`` and what it ``is``.
    """

    code = "changed"
    next_step = "Check it, and try again if you still want to."

    def __init__(self, message: str | None = None, *, changes: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.changes = {name: dict(pair) for name, pair in (changes or {}).items()}


class IdempotencyKeyReused(TemporalexError):
    """The ``Idempotency-Key`` was used for a different request before."""

    code = "idempotency_key_reused"
    next_step = "Use a new key for each request. Use the same key only to send the very same request again."


class OutcomeUnknown(TemporalexError):
    """An earlier request with this ``Idempotency-Key`` has not ended, so it is not known whether it was executed.

    It is still being executed, its process has died, or the Temporal cluster has not answered it.
    """

    code = "outcome_unknown"
    next_step = (
        "Check the run. If the operation was not done, send the request again with a new key. Nothing was done this "
        "time."
    )


# --- definitions ------------------------------------------------------------------------------------------------------
#
# Errors of code and configuration: definitions, payloads, forbidden calls in workflow code, settings.


class WorkflowDefinitionError(TemporalexError):
    """The definition of a workflow, activity, phase or policy is wrong."""

    code = "workflow_definition"
    next_step = "Correct the problems that the message lists; it contains every problem of the definition."


class PayloadError(TemporalexError):
    """A value cannot be encoded as a payload, or does not match the annotation with which it is decoded.

    ``path`` names the field that does not fit, such as ``$.quantity``. It is None if the reason is a different one.
    """

    code = "payload"
    next_step = (
        "Correct the value, at the path in the message if there is one. A payload can consist of JSON data, "
        "dataclasses, msgspec structs, dates, decimals and UUIDs; store large values elsewhere."
    )

    def __init__(self, message: str | None = None, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


# A warning, not an error: live code works with the value, and only a replay sees the other type (see decision 15).
class PayloadWarning(RuntimeWarning):
    """A value reaches its reader as another type, because the reader has no annotation for it.

    A Decimal, for example, becomes a string.
    """


# Not a PayloadError: that is a fault of the value, and this is a gap of the process that another worker may not have
# (see decision 28).
class KeyMissing(TemporalexError):
    """The payload codec of this process lacks the key that a payload needs; ``key`` is its name.

    Raise it from ``decode`` of your codec. In a worker it is not a failure: the run or activity is left to a worker
    that has the key.
    """

    code = "key_missing"
    next_step = "Give the process the key that the message mentions; the work that is waiting for it then continues."

    def __init__(self, key: str = "") -> None:
        super().__init__(f"the payload codec of this process lacks the key {key!r}" if key else None)
        self.key = key


class InterceptorFailed(TemporalexError):
    """An interceptor raised or suppressed an exception; the message says which interceptor."""

    code = "interceptor_failed"
    next_step = "Correct the interceptor that the message mentions, or remove it from `INTERCEPTORS`."


class OutsideWorkflow(TemporalexError):
    """A workflow primitive was called outside a running workflow."""

    code = "outside_workflow"
    next_step = "Call it from `run`, a handler or a branch of a workflow; in a test, use `WorkflowEnvironment`."


class NestingError(TemporalexError):
    """A primitive was called in a place where it is not allowed."""

    code = "nesting"
    next_step = (
        "Move the call to a place where it is allowed; the message includes the primitive, the place and the "
        "alternative."
    )


class DeterminismViolation(TemporalexError):
    """Workflow code did something whose result can differ on replay."""

    code = "determinism_violation"
    next_step = "Use the primitive that the message suggests, or move the code into an activity."


class DeterminismWarning(RuntimeWarning):
    """Workflow code did something whose result can differ on replay, or the guard cannot see everything.

    With ``TEMPORALEX["GUARD"] = "warn"`` it takes the place of ``DeterminismViolation``.
    """


class NotAwaited(TemporalexError):
    """A primitive was called and never awaited, or the call was used as if it were its result."""

    code = "not_awaited"
    next_step = "Write `await` before the call that the message mentions."


class UnknownWorkflow(TemporalexError):
    """No workflow with that name is registered in this process."""

    code = "unknown_workflow"
    next_step = "Check the name. Define the class in `workflows.py` of an installed app, or import it there."


class UnknownVersion(TemporalexError):
    """The workflow has no version with that number."""

    code = "unknown_version"
    next_step = "Start an existing version of the class."


class EngineNotFound(TemporalexError):
    """No engine with that name is running, or several are running and the call does not specify one of them."""

    code = "engine_not_found"
    next_step = "Register an engine, or pass the name of the engine to use."


class NotConfigured(TemporalexError):
    """The package is not set up: it is missing from the Django project, or a setting is unknown or wrong."""

    code = "not_configured"
    next_step = (
        "Correct the settings that the message mentions. Or add `temporalex_django` to `INSTALLED_APPS`, call "
        "`django.setup()` in scripts, or use a `WorkflowEnvironment`."
    )


class ScheduleInvalid(TemporalexError):
    """A schedule or one of its specs is invalid: it cannot be read, never fires or contradicts itself."""

    code = "schedule_invalid"
    next_step = "Correct the argument that the message mentions; the message says what is accepted."
