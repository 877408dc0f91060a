"""How an error is told in a log: one line, not too long, and nothing of what it was about.

What an exception says may quote a payload, and its traceback says it again. The whole of it stands in the stored
failure, where payloads may be; a log gets the type and the places that it came through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from temporalex_django import errors

MAX_LENGTH: Final = 300
_MAX_LOCATIONS = 3
#: What these say is ours and names code, or it is a database that does not answer.
_CODE_ERRORS = (
    errors.DeadlockDetected,
    errors.DeterminismViolation,
    errors.KeyMissing,
    errors.NestingError,
    errors.NondeterminismError,
    errors.NotAwaited,
    errors.NotConfigured,
    errors.OutsideWorkflow,
    errors.UnknownVersion,
    errors.UnknownWorkflow,
    errors.WorkflowDefinitionError,
)
_DATABASE_ERROR_NAMES = frozenset({"OperationalError", "InterfaceError"})


def error_line(exc: BaseException) -> str:
    """``exc`` for a log: ``KeyError at shop/orders.py:12 in book < …``.

    With its words where they cannot quote a payload.
    """
    kind = f"{type(exc).__name__}{_field_path(exc)}"
    if isinstance(exc, _CODE_ERRORS) or kind in _DATABASE_ERROR_NAMES:
        kind = f"{kind}: {first_line(str(exc))}"
    at = " < ".join(_code_locations(exc))
    return _shorten(f"{kind} at {at}" if at else kind)


def is_about_code(exc: BaseException) -> bool:
    """Whether its words name code and quote no payload."""
    return isinstance(exc, _CODE_ERRORS)


def _field_path(exc: BaseException) -> str:
    """Which field of an annotation a payload does not fit: the path of the declared names, not what stood there."""
    if not isinstance(exc, errors.PayloadError) or not isinstance(exc.__cause__, msgspec.ValidationError):
        return ""
    _, at, path = str(exc.__cause__).rpartition(" - at ")
    return f" for {first_line(path)}" if at else ""


def first_line(text: str) -> str:
    """The first line that says something, of printable characters, cut short."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _shorten("".join(c if c.isprintable() else "?" for c in first))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


def _code_locations(exc: BaseException) -> Iterator[str]:
    """Where it was raised, then through what it came; folders above the last one are left out."""
    frames = []
    traceback = exc.__traceback__
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    for code, line in frames[: -_MAX_LOCATIONS - 1 : -1]:
        yield f"{'/'.join(code.co_filename.split('/')[-2:])}:{line} in {code.co_name}"
