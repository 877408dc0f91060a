"""Errors as lines of a log: one short line without any payload.

The message of an exception may quote a payload, and its traceback repeats it. The stored failure has the full text,
because payloads may be there. A log gets the type and the code locations that the error passed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard, TypeVar

import msgspec

from temporalex_django import errors

E = TypeVar("E", bound=BaseException)

MAX_LENGTH: Final = 300
_MAX_LOCATIONS = 3
#: The messages of these errors are written by this package and name code only, so a log may have them. Errors about
#: names, versions and definitions are missing: workflow code can make these of data, and their messages quote them.
_CODE_ERRORS = (
    errors.DeadlockDetected,
    errors.DeterminismViolation,
    errors.KeyMissing,
    errors.NestingError,
    errors.NondeterminismError,
    errors.NotAwaited,
    errors.NotConfigured,
    errors.OutsideWorkflow,
)
#: Errors whose message the sender of a message may see: they are about the code of the workflow.
_CODE_ERROR_NAMES = {errors.WorkflowDefinitionError.__name__, *(cls.__name__ for cls in _CODE_ERRORS)}
#: Errors of database drivers that do not quote rows. Names are compared, because the core imports no driver.
_DATABASE_ERROR_NAMES = frozenset({"OperationalError", "InterfaceError"})
_PACKAGE = __name__.partition(".")[0]
#: Code that the statements of this package pass. An error of a statement of other code may quote its text.
_DATABASE_CODE = frozenset({_PACKAGE, "django", "psycopg", "psycopg_pool", *sys.stdlib_module_names})


# The descriptors of the classes themselves: those of user code may raise, or say something else.
class_name = type.__dict__["__name__"].__get__
traceback_of = BaseException.__dict__["__traceback__"].__get__


def is_error(exc: object, *kinds: type[E]) -> TypeGuard[E]:
    """Return True if an error is of one of these classes, as ``except`` sees it.

    ``isinstance`` asks the attribute ``__class__``, too. That of an exception of user code may raise or lie.
    """
    return issubclass(type(exc), kinds)


def error_line(exc: BaseException) -> str:
    """Return ``exc`` as a line of a log: ``KeyError at shop/orders.py:12 in book < …``.

    The code locations are the last three that the error passed, innermost first. The message of the error is included
    only where it cannot quote a payload.
    """
    kind = f"{first_line(class_name(type(exc)))}{_field_path(exc)}"
    if is_about_code(exc) or (kind in _DATABASE_ERROR_NAMES and {*_packages(exc)} <= _DATABASE_CODE):
        kind = f"{kind}: {first_line(_message_for_log(exc))}"
    at = " < ".join(_code_locations(exc))
    return _shorten(f"{kind} at {at}" if at else kind)


def _message_for_log(exc: BaseException) -> str:
    """Return the message of an error that names code only.

    If the code now refuses a payload that it once accepted, a nondeterminism error quotes that refusal. Then the
    message is only about the recorded and the produced command.
    """
    if isinstance(exc, errors.NondeterminismError) and errors.PayloadError.__name__ in (exc.produced or ""):
        return f"the code does not match the history: recorded {exc.recorded}, produced {exc.produced}"
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - a subclass in user code
        return ""


def is_about_code(exc: BaseException) -> bool:
    """Return True if the message of the error only names code, so that it may go into a log.

    That holds for messages of this package. Other code may raise these errors, too, with messages of its own. A codec
    does so with ``KeyMissing``, whose message names a key.
    """
    if not is_error(exc, *_CODE_ERRORS):
        return False
    return is_error(exc, errors.KeyMissing) or [_PACKAGE, *_packages(exc)][-1] == _PACKAGE


def _packages(exc: BaseException) -> Iterator[str]:
    """Yield the top-level packages of the code that an error passed, outermost first."""
    traceback = traceback_of(exc)
    while traceback is not None:
        yield str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        traceback = traceback.tb_next


def failure_summary(attributes: Mapping[str, Any]) -> str:
    """Return why a run failed, for those who sent it a message: the type, and the message if that is about code.

    ``attributes`` are those of ``WorkflowFailed``. Senders may not be allowed to see the result, so nothing else is
    shown.
    """
    kind = attributes.get("type")
    if attributes.get("step"):
        return f"step {attributes['step']}: {kind or 'Err'}"
    if kind in _CODE_ERROR_NAMES and attributes.get("message"):
        return f"{kind}: {first_line(attributes['message'])}"
    return kind or "an Err"


def _field_path(exc: BaseException) -> str:
    """Return " for" and the path of the field that a payload does not fit, or "" if the error is not about a payload.

    The path consists of declared names. The value of the field is not quoted.
    """
    if not is_error(exc, errors.PayloadError) or not is_error(exc.__cause__, msgspec.ValidationError):
        return ""
    _, at, path = str(exc.__cause__).rpartition(" - at ")
    return f" for {first_line(path)}" if at else ""


def first_line(text: str) -> str:
    """Return the first line of ``text`` that is not blank, cut to ``MAX_LENGTH`` characters.

    Characters that are not printable become question marks.
    """
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _shorten("".join(c if c.isprintable() else "?" for c in first))


def source_line(fn: Any) -> str:
    """Return the file and the line of a function, such as ``shop/workflows.py:12``, or its ``repr`` without code."""
    try:
        fn = inspect.unwrap(fn)
    except ValueError:  # its decorators refer to each other
        return repr(fn)
    code = getattr(getattr(fn, "func", fn), "__code__", None)
    return repr(fn) if code is None else f"{_short_path(code.co_filename)}:{code.co_firstlineno}"


def _short_path(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


def _code_locations(exc: BaseException) -> Iterator[str]:
    """Yield the code locations of an error, innermost first.

    Each path is shortened to the file and its directory.
    """
    frames = []
    traceback = traceback_of(exc)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "__tracebackhide__" not in code.co_varnames:
            frames.append((code, traceback.tb_lineno))
        traceback = traceback.tb_next
    for code, line in frames[: -_MAX_LOCATIONS - 1 : -1]:
        yield f"{_short_path(code.co_filename)}:{line} in {code.co_name}"
