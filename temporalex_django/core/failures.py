"""Errors as plain data, and back: what a failed activity, update or run leaves in the history."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.core import payloads
from temporalex_django.errors import (
    ActivityFailure,
    AmbiguousId,
    ApplicationError,
    ChildWorkflowFailure,
    PayloadError,
    TemporalexError,
    UnknownSignal,
    UpdateRejected,
    WorkflowClosed,
    WorkflowNotFound,
)

_class_name = type.__dict__["__name__"].__get__
_TRACEBACK_LINES = 40
_MAX_LENGTH = 50_000
_MAX_CAUSE_LENGTH = 200
#: A frame of a traceback: its path and its line.
_FRAME = re.compile(r'^\s+File "(.+?)", line (\d+)', re.MULTILINE)
#: Directories that hold the code of others, and paths of Python's own.
_LIBRARIES = frozenset({"site-packages", "dist-packages"})
_PYTHON = re.compile(r"[/\\]python3(\.\d+)?[/\\]", re.IGNORECASE)
_PACKAGE_PATH = __file__.removesuffix("core/failures.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailure:
    """Why an attempt of an activity failed that is tried again.

    ``attempt`` is its number, from 1, and ``at`` when it ended. ``traceback`` is text, None where nothing was raised.
    ``since``: when the first of its attempts failed, as far as the storage has said so.
    """

    type: str
    message: str
    at: datetime
    attempt: int
    traceback: str | None = None
    since: datetime | None = None

    def payload(self) -> dict[str, Any]:
        """What of it may quote payloads, with the type: stored as they are."""
        return {"type": self.type, "message": self.message, "traceback": self.traceback}

    @property
    def cause(self) -> str:
        """The cause by which failing activities are grouped; see ``failure_cause``."""
        return failure_cause(self.type, self.traceback)


class RunFailure(Exception):
    """Fails the run with these attributes of ``WorkflowFailed``: what went wrong is known already."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        super().__init__(str(attributes.get("message") or attributes.get("reason")))
        self.attributes = attributes


class ReturnedErr(Exception):
    """An attempt that gave ``Err(reason)`` has failed like one that raised.

    ``reason`` is plain data, and stays out of the text.

    ``types`` are the names that ``RetryPolicy.non_retryable`` may have for it: "Err", and those of an exception given
    as the reason.
    """

    def __init__(self, reason: Any, types: Sequence[str]) -> None:
        super().__init__("it returned Err")
        self.reason = reason
        self.types = types


def failure_types(exc: BaseException) -> Sequence[str]:
    """What ``RetryPolicy.non_retryable`` may call it: the class, or a base of it."""
    if isinstance(exc, ReturnedErr):
        return exc.types
    own = [exc.type] if isinstance(exc, ApplicationError) and exc.type else []
    return [*own, *(exception_name(cls) for cls in type(exc).__mro__)]


def describe(exc: BaseException) -> dict[str, Any]:
    """``{"type", "message"}`` of an exception; of an ``ApplicationError`` that has them, also ``details``."""
    if not isinstance(exc, ApplicationError):
        return {"type": exception_name(type(exc)), "message": exception_message(exc)}
    details = {} if exc.details is None else {"details": _plain_or_text(exc.details)}
    return {"type": exc.type or exception_name(type(exc)), "message": exception_message(exc), **details}


def _plain_or_text(details: Any) -> Any:
    """Details that are no plain data do not hide the failure that they belong to."""
    try:
        return payloads.to_plain(details, label="the details of an ApplicationError")
    except PayloadError:
        return to_storable(repr(details))


def exception_name(cls: type[BaseException]) -> str:
    """The name of a class of exceptions, whatever its metaclass says."""
    return to_storable(_class_name(cls))


def exception_message(exc: BaseException) -> str:
    """``str(exc)``; a user's ``__str__`` that raises does not hide the failure itself."""
    try:
        text = str(exc)
    except BaseException as broken:  # noqa: BLE001 - arbitrary user code
        return f"<no message: {exception_name(type(broken))} in __str__>"
    return to_storable(text)


#: By raising one of these a validator refuses. ``UpdateRejected`` is one of ours; hosts add those of their libraries.
_REFUSALS: dict[type[Exception], Callable[[Exception], bool]] = {
    kind: lambda _: True for kind in (UpdateRejected, ValueError, ArithmeticError, PermissionError)
}


def add_refusal(kind: type[Exception], refuses: Callable[[Exception], bool] = lambda _: True) -> None:
    """Let validators refuse by raising ``kind``, as far as ``refuses(exception)`` says so."""
    _REFUSALS[kind] = refuses


def is_refusal(exc: BaseException) -> bool:
    """Whether a validator that raises ``exc`` refuses, instead of failing by a fault of its code."""
    return any(isinstance(exc, kind) and refuses(exc) for kind, refuses in _REFUSALS.items())


def refusal_reason(exc: BaseException) -> str:
    """What the sender is told whose update a validator refused by raising.

    What the exception says, of Django's ``ValidationError`` its messages; with the name of those that are mistakes of
    the code more often than reasons: a ``KeyError`` says the key alone.
    """
    name, text = exception_name(type(exc)), exception_message(exc)
    try:
        messages = [str(message) for message in exc.messages] if name == "ValidationError" else []  # type: ignore[attr-defined] # of Django's
    except Exception:  # noqa: BLE001 - another class of that name
        messages = []
    if messages:
        return to_storable(" ".join(messages))
    if isinstance(exc, (LookupError, TypeError, AttributeError, AssertionError)):
        return f"{name}: {text}" if text else name
    return text or name


def to_storable(text: str) -> str:
    """``text`` as every database can keep it: no lone surrogates, no NUL, of bounded length."""
    if len(text) > _MAX_LENGTH:
        text = text[:_MAX_LENGTH] + f"… ({len(text):,} characters)"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def run_failure(exc: BaseException) -> dict[str, Any]:
    """Attributes of ``WorkflowFailed`` for an exception that escaped ``run``."""
    attributes = {**describe(exc), "reason": None, "traceback": _shorten(traceback.format_exception(exc))}
    if isinstance(exc, ActivityFailure) and exc.activity is not None:
        attributes |= {"activity": exc.activity, "attempts": exc.attempts, "cause": exc.cause}
        attributes["cause_type"] = exc.type or (None if exc.timeout is None else "TimeoutError")
    return attributes


def run_failure_cause(attributes: Mapping[str, Any]) -> str | None:
    """The cause of a failed run, from the attributes of ``WorkflowFailed``; None for what no code caused.

    A run that failed with one of its activities has the cause that names the activity.
    """
    kind = attributes.get("cause_type") or attributes.get("type")
    if kind is None:
        kind = "Err" if "reason" in attributes else None
    if kind is None:
        return None
    cause = failure_cause(str(kind), attributes.get("traceback"))
    return f"{attributes['activity']}: {cause}"[:_MAX_CAUSE_LENGTH] if attributes.get("activity") else cause


def failure_cause(kind: str, traceback: str | None = None) -> str:
    """The type of an error and the place in the project's code that raised it: ``KeyError at shop/activities.py:41``.

    It has no word of the message, which may quote payloads. Errors with one cause have one text, whatever machine
    they came from: of a path the last two parts count. At most 200 characters.
    """
    place = _project_location(traceback or "")
    return (f"{kind} at {place}" if place else kind)[:_MAX_CAUSE_LENGTH]


def _project_location(traceback: str) -> str:
    """The last frame of the project's code, as ``directory/file:line``; empty without one."""
    for path, line in reversed(_FRAME.findall(traceback)):
        parts = path.replace("\\", "/").split("/")
        if not (_LIBRARIES.intersection(parts) or path.startswith(("<", _PACKAGE_PATH)) or _PYTHON.search(path)):
            return f"{'/'.join(parts[-2:])}:{line}"
    return ""


def attempt_failure(exc: BaseException, *, at: datetime, attempt: int) -> AttemptFailure:
    """Of an attempt that raised, or gave ``Err``, which has no traceback."""
    if isinstance(exc, ReturnedErr):
        return AttemptFailure(type="Err", message=to_storable(repr(exc.reason)), at=at, attempt=attempt)
    failure = describe(exc)
    return AttemptFailure(
        type=failure["type"], message=failure["message"], at=at, attempt=attempt, traceback=clean_traceback(exc)
    )


def clean_traceback(exc: BaseException) -> str:
    """The traceback of an exception without our own frames: the way through what the user wrote."""
    exception = traceback.TracebackException.from_exception(exc)
    for part in _exception_chain(exception):
        user_frames = [frame for frame in part.stack if not frame.filename.startswith(_PACKAGE_PATH)]
        if user_frames:
            part.stack[:] = user_frames
    return _shorten(exception.format())


def _exception_chain(exception: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """It, and what it came of."""
    yield exception
    for other in (exception.__cause__, exception.__context__):
        if other is not None:
            yield from _exception_chain(other)


def _shorten(lines: Iterable[str]) -> str:
    text = "".join(lines).splitlines()
    if len(text) > _TRACEBACK_LINES:
        text = [*text[:5], "  …", *text[-_TRACEBACK_LINES:]]
    return to_storable("\n".join(text))


def activity_failure(attributes: dict[str, Any], activity: str) -> ActivityFailure:
    """What the waiter of a failed or timed out activity raises."""
    kind, message, timeout = attributes.get("type"), attributes.get("message"), attributes.get("timeout")
    attempts = int(attributes.get("attempts", 0))
    how = f"ran into its {timeout} timeout" if timeout else f"failed with {kind}: {message}"
    times = f" after {attempts} attempts" if attempts > 1 else ""
    return ActivityFailure(
        f"activity {activity} {how}{times}",
        cause=message,
        type=kind,
        attempts=attempts,
        timeout=timeout,
        activity=activity,
        details=attributes.get("details"),
    )


def child_failure(attributes: dict[str, Any], child: str) -> ChildWorkflowFailure:
    """What the waiter of a child that did not complete raises."""
    kind, message = attributes.get("type"), attributes.get("message")
    return ChildWorkflowFailure(f"child {child} did not complete: {kind}: {message}", cause=message, type=kind)


def external_failure(attributes: dict[str, Any]) -> TemporalexError:
    """What the sender of a message that reached no open run raises."""
    kind, message = attributes.get("type"), attributes.get("message")
    if kind == AmbiguousId.__name__:
        return AmbiguousId(message, candidates=attributes.get("candidates", ()))
    if kind == UnknownSignal.__name__:
        return UnknownSignal(message, known=attributes.get("known", ()))
    return WorkflowClosed(message) if kind == WorkflowClosed.__name__ else WorkflowNotFound(message)


def child_result(status: str, closing: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Kind and attributes (without the number) of what a parent gets for a child that closed like that."""
    if status == "completed":
        return "ChildCompleted", {"result": closing.get("result")}
    match status:
        case "failed" if closing.get("type"):
            kind, message = closing["type"], f"{step_prefix(closing)}{closing.get('message')}"
        case "failed":
            reason = closing.get("reason")
            kind, message = (
                "WorkflowFailed",
                f"{step_prefix(closing)}{reason if isinstance(reason, str) else repr(reason)}",
            )
        case "cancelled":
            kind, message = "WorkflowCancelled", "it was cancelled"
        case "terminated":
            kind, message = "WorkflowTerminated", closing.get("reason") or "it was terminated"
        case _:
            kind, message = "WorkflowTimedOut", f"it ran into its {closing.get('timeout', 'timeout')}"
    return "ChildFailed", {"type": kind, "message": message, "status": status}


def step_prefix(closing: dict[str, Any]) -> str:
    """Which step of a process it was, if it says so."""
    return f"step {closing['step']} ({closing['step_name']}): " if closing.get("step") else ""


def error_data(exc: TemporalexError) -> dict[str, Any]:
    """``{"code", "type", "message"}`` of one of our own errors, and what a refusal says beside."""
    data = {"code": exc.code, **describe(exc)}
    if isinstance(exc, UpdateRejected):
        data |= {
            name: attribute for name in ("reason", "accepts", "path") if (attribute := getattr(exc, name)) is not None
        }
    return data
