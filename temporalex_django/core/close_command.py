"""How a run ends: from what ``run`` returned or raised to the command that closes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalex_django.core.failures import RunFailure, exception_message, exception_name, run_failure
from temporalex_django.core.results import Async, ContinueAsNew, Err, Ok
from temporalex_django.errors import (
    ActivityFailure,
    AmbiguousId,
    ApplicationError,
    Cancelled,
    ChildWorkflowFailure,
    NestingError,
    PayloadError,
    UnexpectedError,
    UnknownSignal,
    WorkflowClosed,
    WorkflowNotFound,
)

#: Errors that a run may end with: it says so on purpose, or another run or an activity has failed for good. What a
#: message to another run came to is in the history too, so trying again would change nothing.
_EXPECTED_ERRORS = (
    ActivityFailure,
    AmbiguousId,
    ApplicationError,
    ChildWorkflowFailure,
    UnknownSignal,
    WorkflowClosed,
    WorkflowNotFound,
)


def build_close_command(
    value: Any,
    error: BaseException | None,
    *,
    to_plain: Callable[[Any, str], Any],
    encode_result: Callable[[Any], Any],
    blocks_run: bool,
) -> tuple[str, dict[str, Any]]:
    """Kind and attributes of the command.

    ``plain(value, what)`` makes JSON data of a value, ``result(value)`` of what ``Ok`` holds. ``blocks_run``: an
    unexpected error makes the activation fail, which blocks the run, instead of the workflow.

    Raises what makes the activation fail.
    """
    if isinstance(error, Cancelled):
        return "CancelWorkflow", {}
    if isinstance(error, (MemoryError, RecursionError)):
        raise error
    if isinstance(error, RunFailure):
        return "FailWorkflow", error.attributes
    if error is not None:
        if blocks_run and not isinstance(error, _EXPECTED_ERRORS):
            raise _as_exception(error)
        return "FailWorkflow", run_failure(error)
    try:
        match value:
            case Ok(given):
                return "CompleteWorkflow", {"result": encode_result(given)}
            case Err(reason):
                reason = to_plain(_describe_reason(reason), "the reason of run")
                return "FailWorkflow", {"reason": reason, "type": None, "message": None}
            case ContinueAsNew(args):
                return "ContinueAsNew", {"args": to_plain(args, "the arguments of ContinueAsNew")}
            case Async():
                raise NestingError("run returned Async: run is no place for it, only a handler of a phase may")
            case _:
                raise TypeError(
                    f"run returned {value!r}: it must return Ok(result), Err(reason) or ContinueAsNew(args)"
                )
    except (PayloadError, NestingError, TypeError) as exc:
        if blocks_run:
            raise
        return "FailWorkflow", run_failure(exc)


def _as_exception(error: BaseException) -> Exception:
    """The error as one that blocks the run: code that raises ``SystemExit`` is not to end its process."""
    if isinstance(error, Exception):
        return error
    failure = UnexpectedError(f"run raised {exception_name(type(error))}: {exception_message(error)}")
    failure.__cause__ = error
    return failure


def _describe_reason(reason: Any) -> Any:
    """An exception given to ``Err`` is described; anything else is a payload."""
    if issubclass(type(reason), BaseException):  # what it says of its class may raise
        return f"{exception_name(type(reason))}: {exception_message(reason)}"
    return reason
