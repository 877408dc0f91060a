"""Errors of code and configuration: definitions, payloads, forbidden calls in workflow code, settings."""

from __future__ import annotations

from temporalex_django.errors.execution import TemporalexError


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
