"""Every error of the package, one tree; each class has a stable ``code``.

The code is what REST answers, logs and ``docs/reference/errors.md`` use; the docstring is the default message.

    TemporalexError
    ├── WorkflowDefinitionError · PayloadError · OutsideWorkflow · NestingError · DeterminismViolation · NotAwaited
    ├── UnknownWorkflow · UnknownVersion · InvalidId · WorkflowNotFound · AlreadyRunning · ResumeRefused
    ├── NotCancellable · UnknownQuery · QueryFailed · EngineNotFound · NotConfigured
    ├── ActivityNotFound · ActionNotPermitted
    ├── UpdateRejected └── WorkflowClosed
    ├── UpdateFailed · UpdateTimeout · ResultTimeout
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
from typing import Any, ClassVar, final


class TemporalexError(Exception):
    """Something went wrong in temporalex_django."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or "").split("\n\n", 1)[0])

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""


class WorkflowDefinitionError(TemporalexError):
    """The definition of a workflow, activity, phase or policy is wrong."""

    code = "workflow_definition"


class PayloadError(TemporalexError):
    """A value cannot be encoded as a payload, or does not fit the annotation that it is decoded to."""

    code = "payload"


class OutsideWorkflow(TemporalexError):
    """A workflow primitive was called outside a running workflow."""

    code = "outside_workflow"


class NestingError(TemporalexError):
    """A primitive was called in a place where it is not allowed."""

    code = "nesting"


class DeterminismViolation(TemporalexError):
    """Workflow code did something whose result can differ on replay."""

    code = "determinism_violation"


class NotAwaited(TemporalexError):
    """A primitive was called and never awaited."""

    code = "not_awaited"


class UnknownWorkflow(TemporalexError):
    """No workflow of that name is registered."""

    code = "unknown_workflow"


class UnknownVersion(TemporalexError):
    """The workflow has no such version."""

    code = "unknown_version"


class InvalidId(TemporalexError):
    """An id must be 1 to 200 printable characters without ``/``."""

    code = "invalid_id"


class WorkflowNotFound(TemporalexError):
    """No run with that id exists."""

    code = "workflow_not_found"


class AlreadyRunning(TemporalexError):
    """A run with that id is open already.

    ``pending`` is True when the other start is in a transaction that has not ended: whether it counts is not known yet.
    """

    code = "already_running"

    def __init__(self, message: str | None = None, *, pending: bool = False) -> None:
        super().__init__(message)
        self.pending = pending


class ResumeRefused(TemporalexError):
    """The event does not match exactly one waiting step."""

    code = "resume_refused"


class NotCancellable(TemporalexError):
    """The run is closed already."""

    code = "not_cancellable"


class UnknownQuery(TemporalexError):
    """The workflow does not answer a query of that name."""

    code = "unknown_query"


class QueryFailed(TemporalexError):
    """The query function raised."""

    code = "query_failed"


class EngineNotFound(TemporalexError):
    """No engine, or no single engine, is registered."""

    code = "engine_not_found"


class NotConfigured(TemporalexError):
    """Nothing can take this call yet: install ``temporalex_django`` in Django, or use a ``WorkflowEnvironment``."""

    code = "not_configured"


class ActivityNotFound(TemporalexError):
    """No activity of that name is registered in this process."""

    code = "activity_not_found"


class ActionNotPermitted(TemporalexError):
    """The user may not do this."""

    code = "not_permitted"


class UpdateRejected(TemporalexError):
    """The run does not accept this update now."""

    code = "update_rejected"


class WorkflowClosed(UpdateRejected):
    """The run is closed and takes no more messages."""

    code = "workflow_closed"


class UpdateFailed(TemporalexError):
    """The update was accepted, and its handler failed."""

    code = "update_failed"

    def __init__(self, message: str | None = None, *, type: str | None = None) -> None:  # noqa: A002 - the field's name
        super().__init__(message)
        self.type = type


class UpdateTimeout(TemporalexError):
    """No outcome in time; ask again with the same ``update_id``.

    ``accepted`` is True when the update is in the history and only its outcome is missing; ``reason`` is ``busy`` when
    the run could not be locked inside the caller's transaction, else ``timeout``.
    """

    code = "update_timeout"

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


class WorkflowFailed(TemporalexError):
    """The run failed.

    ``reason`` is what ``Err(reason)`` held; ``type``, ``cause_message`` and ``traceback`` describe an exception that escaped.
    """

    code = "workflow_failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        reason: Any = None,
        type: str | None = None,  # noqa: A002 - the field's name
        traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.type = type
        self.traceback = traceback


class WorkflowTerminated(WorkflowFailed):
    """The run was terminated."""

    code = "workflow_terminated"


class WorkflowTimedOut(WorkflowFailed):
    """The run did not end within its timeout."""

    code = "workflow_timed_out"


class WorkflowCancelled(TemporalexError):
    """The run was cancelled."""

    code = "workflow_cancelled"


class ActivityFailure(TemporalexError):
    """An activity finally failed.

    ``type`` is the class name of the last exception (``TimeoutError`` when a timeout ended it), ``cause`` the message of that
    exception, ``attempts`` how often it ran, ``timeout`` the name of the timeout that ended it or None.
    """

    code = "activity_failure"

    def __init__(
        self,
        message: str | None = None,
        *,
        cause: str | None = None,
        type: str | None = None,  # noqa: A002 - the field's name
        attempts: int = 0,
        timeout: str | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.type = type
        self.attempts = attempts
        self.timeout = timeout


class ChildWorkflowFailure(TemporalexError):
    """A child workflow did not complete."""

    code = "child_workflow_failure"

    def __init__(
        self,
        message: str | None = None,
        *,
        cause: str | None = None,
        type: str | None = None,  # noqa: A002 - the field's name
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.type = type


class NondeterminismError(TemporalexError):
    """The code no longer does what the history of the run says it did.

    ``seq`` is the number of the history event at which they part, ``recorded`` what the history holds there (None:
    nothing), ``produced`` what the code did (None: nothing).
    """

    code = "nondeterminism"

    def __init__(
        self,
        message: str | None = None,
        *,
        seq: int | None = None,
        recorded: str | None = None,
        produced: str | None = None,
    ) -> None:
        super().__init__(message)
        self.seq = seq
        self.recorded = recorded
        self.produced = produced


class DeadlockDetected(TemporalexError):
    """Workflow code did not come to a wait within the deadlock timeout."""

    code = "deadlock"


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


@final
class _Blocked(Control):
    """The activation cannot go on; ``error`` is the ordinary error that says why. User code must let it pass."""

    error: TemporalexError


@final
class _Evicted(Control):
    """The executor is being dropped from memory. Nothing that runs because of it is recorded."""
