"""Errors as plain data, and back: what a failed activity, update or run leaves in the history."""

from __future__ import annotations

import traceback
from typing import Any

from temporalex_django.errors import ActivityFailure, TemporalexError

_TRACEBACK_LINES = 40
_LONGEST = 50_000


def describe(exc: BaseException) -> dict[str, Any]:
    """``{"type", "message"}`` of an exception."""
    return {"type": type(exc).__name__, "message": message_of(exc)}


def message_of(exc: BaseException) -> str:
    """``str(exc)``; a user's ``__str__`` that raises does not hide the failure itself."""
    try:
        text = str(exc)
    except Exception as broken:  # noqa: BLE001 - arbitrary user code
        return f"<no message: {type(broken).__name__} in __str__>"
    return storable(text)


def storable(text: str) -> str:
    """``text`` as every database can keep it: no lone surrogates, no NUL, of bounded length."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + f"… ({len(text):,} characters)"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def failure_of_run(exc: BaseException) -> dict[str, Any]:
    """Attributes of ``WorkflowFailed`` for an exception that escaped ``run``."""
    lines = traceback.format_exception(exc)
    text = "".join(lines).splitlines()
    if len(text) > _TRACEBACK_LINES:
        text = [*text[:5], "  …", *text[-_TRACEBACK_LINES:]]
    return {**describe(exc), "reason": None, "traceback": storable("\n".join(text))}


def activity_failure(attributes: dict[str, Any], activity: str) -> ActivityFailure:
    """What the waiter of a failed or timed out activity raises."""
    kind, message, timeout = attributes.get("type"), attributes.get("message"), attributes.get("timeout")
    attempts = int(attributes.get("attempts", 0))
    how = f"ran into its {timeout} timeout" if timeout else f"failed with {kind}: {message}"
    times = f" after {attempts} attempts" if attempts > 1 else ""
    return ActivityFailure(
        f"activity {activity} {how}{times}", cause=message, type=kind, attempts=attempts, timeout=timeout
    )


def error_data(exc: TemporalexError) -> dict[str, Any]:
    """``{"code", "type", "message"}`` of one of our own errors."""
    return {"code": exc.code, **describe(exc)}
