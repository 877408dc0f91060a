"""Errors of code: of definitions, of payloads, of what workflow code may not do, and of settings."""

from __future__ import annotations

from temporalex_django.errors.base import TemporalexError


class WorkflowDefinitionError(TemporalexError):
    """The definition of a workflow, activity, phase or policy is wrong."""

    code = "workflow_definition"
    next_step = "Correct what the message lists; it names every problem of the definition at once."


class PayloadError(TemporalexError):
    """A value cannot be encoded as a payload, or does not fit the annotation that it is decoded to.

    ``path`` names the field that does not fit, such as ``$.quantity``; None where the reason is another one.
    """

    code = "payload"
    next_step = (
        "Send what the message asks for, at the path that it names, if it names one. Payloads are JSON-able data, "
        "dataclasses, msgspec structs, dates, decimals and UUIDs; store what is large elsewhere."
    )

    def __init__(self, message: str | None = None, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


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
