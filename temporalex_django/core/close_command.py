"""The command that closes a run, built from what ``run`` returned or raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalex_django.core.failures import (
    RunFailure,
    exception_message,
    exception_name,
    is_error,
    run_failure,
    unexpected_error,
)
from temporalex_django.core.results import Async, ContinueAsNew, Err, Ok
from temporalex_django.errors import Cancelled, NestingError, PayloadError


def build_close_command(
    value: Any,
    error: BaseException | None,
    to_plain: Callable[[Any, str], Any],
    encode_input: Callable[[Any, str], Any],
    encode_result: Callable[[Any], Any],
    *,
    blocks_run: bool,
) -> tuple[str, dict[str, Any]]:
    """Return the kind and the attributes of the command that closes a run: ``("CompleteWorkflow", {"result": 1})``.

    ``value`` is what ``run`` returned, and ``error`` is the exception that it raised, or None. ``to_plain(value,
    label)`` converts a value to JSON data; error messages name the value by ``label``. ``encode_input(value, label)``
    does so for the input of the next run, and ``encode_result(value)`` for the value of ``Ok``.

    An unexpected error (see ``failures.unexpected_error``) fails the workflow. With ``blocks_run``, this function
    raises the error instead, which fails the activation and so blocks the run. ``MemoryError`` and ``RecursionError``
    are always raised.
    """
    if is_error(error, Cancelled):
        return "CancelWorkflow", {}
    # The process lacks memory or stack. Another worker may have them, so the workflow does not fail.
    if is_error(error, MemoryError, RecursionError):
        raise error
    if is_error(error, RunFailure):
        return "FailWorkflow", error.attributes
    if error is not None:
        if blocks_run and (unexpected := unexpected_error(error, "run")) is not None:
            raise unexpected
        return "FailWorkflow", run_failure(error)
    try:
        match value:
            case Ok(given):
                return "CompleteWorkflow", {"result": encode_result(given)}
            case Err(reason):
                reason = to_plain(_describe_reason(reason), "the reason of run")
                return "FailWorkflow", {"reason": reason, "type": None, "message": None}
            case ContinueAsNew(args):
                return "ContinueAsNew", {"args": encode_input(args, "the arguments of ContinueAsNew")}
            case Async():
                raise NestingError("run returned Async: only a handler of a phase may return it")
            case _:
                raise TypeError(
                    f"run returned {value!r}: it must return Ok(result), Err(reason) or ContinueAsNew(args)"
                )
    except (PayloadError, NestingError, TypeError) as exc:
        # The code returned a value that it may not return. A deploy can correct that, so blocking the run may help.
        if blocks_run:
            raise
        return "FailWorkflow", run_failure(exc)


def _describe_reason(reason: Any) -> Any:
    """Return the reason in ``Err`` as a payload. An exception becomes its name and message."""
    if issubclass(type(reason), BaseException):  # ``isinstance`` would call its ``__class__``, which may raise
        return f"{exception_name(type(reason))}: {exception_message(reason)}"
    return reason
