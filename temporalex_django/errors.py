"""Every error of the package, one tree; each class has a stable ``code``.

The code is what REST answers, logs and ``docs/reference/errors.md`` use; the docstring is the default message.

    TemporalexError
    ├── WorkflowDefinitionError · PayloadError · KeyMissing · OutsideWorkflow · NestingError · DeterminismViolation
    ├── NotAwaited
    ├── UnknownWorkflow · UnknownVersion · AmbiguousId · WorkflowNotFound · AlreadyRunning · ResumeRefused
    ├── InvalidId └── MessageIdTaken
    ├── NotCancellable · UnknownQuery · UnknownSignal · QueryFailed · EngineNotFound · NotConfigured
    ├── ActivityNotFound · ActionNotPermitted · ActionNotPossible
    ├── UpdateRejected └── WorkflowClosed · RunPaused · RunBlocked · NotAccepting
    ├── UpdateFailed · UpdateTimeout · ResultTimeout
    ├── ApplicationError · UnexpectedError
    ├── WorkflowFailed ├── WorkflowTerminated └── WorkflowTimedOut
    ├── WorkflowCancelled
    ├── ActivityFailure · ChildWorkflowFailure
    └── NondeterminismError · DeadlockDetected

    Control (BaseException): what travels through workflow code and is not for ``except Exception``
    ├── Cancelled
    └── (private) blocked by non-determinism or a deadlock, eviction
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final


class TemporalexError(Exception):
    """Something went wrong in temporalex_django."""

    code: ClassVar[str] = "error"
    #: What whoever gets it should do; shown in the reference.
    next_step: ClassVar[str] = "Read the message; every more precise error is a subclass."

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or "").split("\n\n", 1)[0])

    @property
    def message(self) -> str:
        """What happened, in a sentence."""
        return str(self.args[0]) if self.args else ""


class WorkflowDefinitionError(TemporalexError):
    """The definition of a workflow, activity, phase or policy is wrong."""

    code = "workflow_definition"
    next_step = "Correct what the message lists; it names every problem of the definition at once."


class PayloadError(TemporalexError):
    """A value cannot be encoded as a payload, or does not fit the annotation that it is decoded to."""

    code = "payload"
    next_step = (
        "Send what the message asks for, at the path that it names, if it names one. Payloads are JSON-able data, "
        "dataclasses, msgspec structs, dates, decimals and UUIDs; store what is large elsewhere."
    )


class PayloadWarning(RuntimeWarning):
    """What is sent comes as something else to its reader, whose code does not say what it is to be."""


class KeyMissing(TemporalexError):
    """The payload codec of this process lacks the key that a payload needs; ``key`` names it.

    For codecs to raise, from ``decode``. In a worker it is no failure: the run or activity is left to a worker that has
    the key.
    """

    code = "key_missing"
    next_step = "Give the process the key that the message names; what is waiting for it goes on then."

    def __init__(self, key: str = "") -> None:
        super().__init__(f"the payload codec of this process lacks the key {key!r}" if key else None)
        self.key = key


class OutsideWorkflow(TemporalexError):
    """A workflow primitive was called outside a running workflow."""

    code = "outside_workflow"
    next_step = "Call it from `run`, a handler or a branch of a workflow, in tests through `WorkflowEnvironment`."


class NestingError(TemporalexError):
    """A primitive was called in a place where it is not allowed."""

    code = "nesting"
    next_step = "Move the call to a place where it is allowed; the message names primitive, place and way out."


class DeterminismViolation(TemporalexError):
    """Workflow code did something whose result can differ on replay."""

    code = "determinism_violation"
    next_step = "Use the primitive that the message names, or move the code into an activity."


class DeterminismWarning(RuntimeWarning):
    """What ``DeterminismViolation`` would say, with ``TEMPORALEX["GUARD"] = "warn"``.

    Or the guard cannot see everything.
    """


class NotAwaited(TemporalexError):
    """A primitive was called and never awaited, or the call was used as if it were its result."""

    code = "not_awaited"
    next_step = "Write `await` before the call that the message names."


class UnknownWorkflow(TemporalexError):
    """No workflow of that name is registered."""

    code = "unknown_workflow"
    next_step = "Check the name; the class must be in `workflows.py` of an installed app, or imported from there."


class UnknownVersion(TemporalexError):
    """The workflow has no such version."""

    code = "unknown_version"
    next_step = "Start a version that the class has."


class InvalidId(TemporalexError):
    """An id must be 1 to 200 printable characters without ``/``, and not the id of a run."""

    code = "invalid_id"
    next_step = "Use 1 to 200 printable characters without `/`, and nothing that is the id of a run."


class MessageIdTaken(InvalidId):
    """Another message of the run has that id: of another name, from somebody else, or, over REST, with another body."""

    code = "message_id_taken"
    next_step = "Take an id of its own for each message; the same one is for sending the very same message again."


class AmbiguousId(TemporalexError):
    """Several workflows used that id, and not exactly one of them has an open run.

    ``candidates`` holds one dict for each: ``workflow``, ``run_id`` and ``status`` of its newest run.
    """

    code = "ambiguous_id"
    next_step = (
        "Name the workflow (`Class.handle(id)`, `?workflow=` in REST), or the run by its own id: `candidates` has both."
    )

    def __init__(self, message: str | None = None, *, candidates: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.candidates = [dict(candidate) for candidate in candidates]


class WorkflowNotFound(TemporalexError):
    """No run with that id exists."""

    code = "workflow_not_found"
    next_step = "Check the id, and that the transaction that started the run has committed."


class AlreadyRunning(TemporalexError):
    """A run with that id is open already.

    ``pending`` is True when the other start is in a transaction that has not ended: whether it counts is not known yet.
    """

    code = "already_running"
    next_step = (
        "Use the handle of the open run, wait for its end, or start another id. With `pending`, try again "
        "when the other transaction has ended."
    )

    def __init__(self, message: str | None = None, *, pending: bool = False) -> None:
        super().__init__(message)
        self.pending = pending


class ResumeRefused(TemporalexError):
    """The event does not match exactly one waiting step."""

    code = "resume_refused"
    next_step = "Name the step, or an event that exactly one waiting step declares."


def no_process(run: str) -> ResumeRefused:
    """The run has nothing that takes requests from outside."""
    return ResumeRefused(f"{run} is no graph: it has no steps to resume")


class NotCancellable(TemporalexError):
    """The run is closed already."""

    code = "not_cancellable"
    next_step = "Nothing: the run has ended."


class UnknownQuery(TemporalexError):
    """The workflow does not answer a query of that name."""

    code = "unknown_query"
    next_step = "Ask one of the queries that the message lists."


class UnknownSignal(TemporalexError):
    """The class of the run declares its signals, and this one is not among them; ``known`` names those that are."""

    code = "unknown_signal"
    next_step = "Send one of the signals that the message lists, or add the name to `signals` of the class."

    def __init__(self, message: str | None = None, *, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.known = list(known)


class QueryFailed(TemporalexError):
    """The query function raised."""

    code = "query_failed"
    next_step = "Correct the query function; the run is unharmed."


class EngineNotFound(TemporalexError):
    """No engine, or no single engine, is registered."""

    code = "engine_not_found"
    next_step = "Register one engine, or name the one that is meant."


class NotConfigured(TemporalexError):
    """The package is not set up: it is not installed in Django, or a setting is unknown or of a wrong type."""

    code = "not_configured"
    next_step = (
        "Correct the settings that the message names; or add `temporalex_django` to `INSTALLED_APPS` and call "
        "`django.setup()` in scripts, or use a `WorkflowEnvironment`."
    )


class ActivityNotFound(TemporalexError):
    """No activity of that name is registered in this process."""

    code = "activity_not_found"
    next_step = (
        "The activity must be in `activities.py` or `workflows.py` of an installed app of the worker's "
        "project; deploy it there."
    )


class ActionNotPermitted(TemporalexError):
    """The user may not do this."""

    code = "not_permitted"
    next_step = "Ask for the permission that the message names."


class FourEyes(ActionNotPermitted):
    """Somebody else has to decide: this user started the run, or gave an approval in it."""

    code = "four_eyes"
    next_step = "Let another user with the role of the step decide."


class HumanTaskNotFound(TemporalexError):
    """There is no such human task, or not for this user."""

    code = "human_task_not_found"
    next_step = "Look into the inbox for what there is to decide; `handle.human_tasks()` gives those of a run."


class WorkerNotFound(TemporalexError):
    """There is no such worker: it has ended, was found dead, or goes on under a new id."""

    code = "worker_not_found"
    next_step = "Look which there are: the list of workers in the admin, or `GET workers/`."


class HumanTaskClosed(TemporalexError):
    """The human task is not open any more: the message says who decided what and when, or what happened instead."""

    code = "human_task_closed"
    next_step = "Nothing is left to decide here; look at the run for how it went on. Nothing was done."


class FormChanged(TemporalexError):
    """The form that was filled in for a human task is not the one that it has now."""

    code = "form_changed"
    next_step = "Look at the form of today, and decide again. Nothing was done."


class HumanTaskClaimed(TemporalexError):
    """Somebody else has claimed the human task: the message says who, and until when."""

    code = "human_task_claimed"
    next_step = "Ask the one who claimed it to decide or to release it, or wait until the claim ends. Nothing was done."


class ActionNotPossible(TemporalexError):
    """The run is not in a state in which this can be done to it."""

    code = "not_possible"
    next_step = (
        "Read the reason in the message. Where it is about a run, look at it again: somebody else may have been quicker. "
        "Nothing was done."
    )


class RunChanged(TemporalexError):
    """The run is no longer what whoever acts on it saw.

    ``changes`` has what differs: by name what it ``was`` and what it ``is``.
    """

    code = "changed"
    next_step = "Look at the run again, and decide again."

    def __init__(self, message: str | None = None, *, changes: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.changes = {name: dict(pair) for name, pair in (changes or {}).items()}


class IdempotencyKeyReused(TemporalexError):
    """That ``Idempotency-Key`` came with another request before."""

    code = "idempotency_key_reused"
    next_step = "Take a new key for each request; the same one is for sending the very same request again."


class UpdateRejected(TemporalexError):
    """The run refused this update: its validator did, or one of the more precise errors says why.

    ``reason`` is what the validator gave ``Err``, or the text of what it raised. ``accepts`` is None, or names the
    signals and updates that the run takes now (see ``NotAccepting``).
    """

    code = "update_rejected"
    next_step = "Look at `reason`, which its validator gave. Nothing was changed, the update id is free."

    def __init__(self, message: str | None = None, *, reason: Any = None, accepts: Any = None) -> None:
        super().__init__(message)
        self.reason, self.accepts = reason, accepts


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


class NondeterminismError(TemporalexError):
    """The code no longer does what the history of the run says it did.

    ``seq`` is the number of the command at which they part (of the history event, where there is no command),
    ``recorded`` what the history holds there, ``produced`` what the code did; "nothing" where one of them has nothing.
    ``place`` is the file and line of the code (``path:line``), where it is known, ``event`` the number of the event.
    """

    code = "nondeterminism"
    next_step = (
        "Put the code back, or keep the old path for runs in flight with `api.patched()`; the run heals by itself then."
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


class EngineChanged(TemporalexError):
    """The run was started by another version of the engine, which would not do the same with its history.

    It is blocked, not lost.
    """

    code = "engine_changed"
    next_step = "Let such runs end under the version of temporalex_django that started them, or terminate them and start them again."


class JudgingFailed(TemporalexError):
    """Whether the sender of a message has the permission that its handler takes could not be found out.

    The run is blocked, not lost.
    """

    code = "judging_failed"
    next_step = "Look at the authentication backends, whose error it names; the run is tried again by itself."


class DeadlockDetected(TemporalexError):
    """Workflow code did not come to a wait within the deadlock timeout."""

    code = "deadlock"
    next_step = "Find the loop by the stack in the log; move computation into an activity."


class Control(BaseException):
    """Travels through workflow code out of reach of ``except Exception``; the engine alone makes them."""

    _make_token: ClassVar[object] = object()

    def __init__(self, message: str = "", *, _token: object = None) -> None:
        if _token is not Control._make_token:
            raise TypeError(f"{type(self).__name__} has no public constructor: the engine raises it")
        super().__init__(message)

    @classmethod
    def _make(cls, message: str = "") -> Any:
        return cls(message, _token=Control._make_token)


@final
class Cancelled(Control):
    """Raised at a wait of every unit when cancellation reaches it. Clean up and let it pass.

    Swallowing it turns the cancelled run into one that completes: do so only on purpose.
    """
