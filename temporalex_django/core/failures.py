"""Failures as data, and the one-line texts of errors."""

from __future__ import annotations

import inspect
import math
import re
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

import msgspec

from temporalex_django import errors
from temporalex_django.core.payloads import codec
from temporalex_django.errors import (
    ActivityFailure,
    AmbiguousId,
    ApplicationError,
    Cancelled,
    ChildWorkflowFailure,
    RetryLater,
    TemporalexError,
    UnexpectedError,
    UnknownSignal,
    UpdateRejected,
    WorkflowClosed,
    WorkflowNotFound,
)
from temporalex_django.errors.execution import HOLDS

# --- failures ---------------------------------------------------------------------------------------------------------
#
# Errors as plain data, and back: the record that the failure of an activity, update or run leaves in the history.


_TRACEBACK_LINES = 40
_MAX_LENGTH = 50_000
_MAX_CAUSE_LENGTH = 200
#: The parts of a cause: the type of the error, and the place. A long type does not hide the place.
_MAX_KIND_LENGTH, _MAX_PLACE_LENGTH = 80, 110
#: Causes, contexts and parts of one exception that its traceback shows.
_MAX_LINKED = 100
#: A frame in the text of a traceback: its path, its line number and its function.
_FRAME = re.compile(r'^\s+File "(.+?)", line (\d+)(?:, in (.+))?', re.MULTILINE)
#: Directories of installed packages, and paths of the standard library.
_LIBRARIES = frozenset({"site-packages", "dist-packages"})
_PYTHON = re.compile(r"[/\\]python3(\.\d+)?[/\\]", re.IGNORECASE)
_PACKAGE_PATH = __file__.removesuffix("core/failures.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailure:
    """The failure of one attempt of an activity that will be tried again.

    ``attempt`` is the number of the attempt, from 1, and ``at`` the time at which it ended. ``traceback`` is text, or
    None if nothing was raised. ``since`` is the time at which the first attempt failed, or None if the storage does not
    know it. ``details`` are the plain data that came with an ``ApplicationError``. ``retry_later`` is True if the
    activity asked for the next attempt by ``RetryLater``; ``message`` is then its reason.
    """

    type: str
    message: str
    at: datetime
    attempt: int
    traceback: str | None = None
    since: datetime | None = None
    details: Any = None
    retry_later: bool = False

    def payload(self) -> dict[str, Any]:
        """Return the part of the failure that is stored as a payload: its texts, its details and its flag.

        The texts may quote payloads. The times and the number of the attempt are stored separately.
        """
        payload: dict[str, Any] = {"type": self.type, "message": self.message, "traceback": self.traceback}
        if self.details is not None:
            payload["details"] = self.details
        if self.retry_later:
            payload["retry_later"] = True
        return payload

    @property
    def cause(self) -> str:
        """The type of the error and its place in the code, as pages show it; see ``failure_cause``."""
        return self.group.text

    @property
    def group(self) -> FailureCause:
        """The cause by which failing activities are grouped."""
        return cause_from(self.type, self.traceback)


class RunFailure(Exception):
    """An error that fails the run. Its ``attributes`` become the attributes of the event ``WorkflowFailed``."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        super().__init__(str(attributes.get("message") or attributes.get("reason")))
        self.attributes = attributes


#: Errors that may end a run: its code raised them on purpose, or another run or an activity has failed for good. The
#: outcome of a message to another run is in the history too, so another attempt would change nothing.
_EXPECTED_ERRORS = (
    ActivityFailure,
    AmbiguousId,
    ApplicationError,
    Cancelled,
    ChildWorkflowFailure,
    RunFailure,
    UnknownSignal,
    WorkflowClosed,
    WorkflowNotFound,
)


def unexpected_error(error: BaseException, place: str) -> Exception | None:
    """Return the exception that blocks a run because its code raised ``error``; None for an error that may end a run.

    It is ``error`` itself. A ``SystemExit`` must not end the process, so it becomes an ``UnexpectedError`` that names
    the ``place``, such as ``run``. See decision 48.
    """
    if is_error(error, *_EXPECTED_ERRORS):
        return None
    if is_error(error, Exception):
        return error
    failure = UnexpectedError(f"{place} raised {exception_name(type(error))}: {exception_message(error)}")
    failure.__cause__ = error
    return failure


class ReturnedErr(Exception):
    """The failure of an attempt that returned ``Err(reason)`` instead of raising.

    ``reason`` is plain data and is not part of the message. ``types`` are the names that ``RetryPolicy.non_retryable``
    may use for this failure: "Err", and the class names of an exception that is the reason.
    """

    def __init__(self, reason: Any, types: Sequence[str]) -> None:
        super().__init__("it returned Err")
        self.reason = reason
        self.types = types


def failure_types(exc: BaseException) -> Sequence[str]:
    """Return the names that ``RetryPolicy.non_retryable`` may use for an error.

    They are the names of its class and the bases of that class, and the ``type`` of an ``ApplicationError``.
    """
    if is_error(exc, ReturnedErr):
        return exc.types
    own = [kind] if is_error(exc, ApplicationError) and (kind := _own_type(exc)) else []
    return [*own, *(exception_name(cls) for cls in type(exc).__mro__)]


def describe(exc: BaseException) -> dict[str, Any]:
    """Return ``{"type", "message"}`` of an exception, with ``details`` for an ``ApplicationError`` that has them."""
    described = {"type": exception_name(type(exc)), "message": exception_message(exc)}
    if not is_error(exc, ApplicationError):
        return described
    details = error_attribute(exc, "details")
    return {
        **described,
        "type": _own_type(exc) or described["type"],
        **({} if details is None else {"details": _plain_or_text(details)}),
    }


def error_attribute(exc: BaseException, name: str) -> Any:
    """Return an attribute of an error, or None if there is none or reading it raises: it may be a property."""
    try:
        return getattr(exc, name, None)
    except BaseException:  # noqa: BLE001 - arbitrary user code
        return None


def retry_request(exc: BaseException) -> RetryLater | None:
    """Return the request of an error for a later attempt, as a plain ``RetryLater``; None for an error of another kind.

    A subclass may lack the attributes, because it does not call the constructor, or raise where they are read. The
    request then has the defaults.
    """
    if not is_error(exc, RetryLater):
        return None
    after: Any = error_attribute(exc, "after")
    hold: Any = error_attribute(exc, "hold")
    is_known = type(hold) is str and hold in HOLDS
    request = RetryLater(counts=error_attribute(exc, "counts") is not False, hold=hold if is_known else None)
    with suppress(Exception):  # the time may be anything
        request = RetryLater(after=after, counts=request.counts, hold=request.hold)
    return request


#: Attribute of an exception with the pause before the next attempt, in seconds; None ends the retries.
_PAUSE = "_temporalex_pause"


def set_requested_pause(exc: BaseException, seconds: float | None) -> None:
    """Store the pause after an attempt that raised ``exc``, which ``requested_pause`` returns. None: no next attempt.

    Raises ``ValueError`` for a negative number and for one that is not finite.
    """
    clear_requested_pause(exc)
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ValueError(f"a pause of {seconds!r} seconds makes no sense: return 0 or more, or None")
    setattr(exc, _PAUSE, (seconds,))


def clear_requested_pause(exc: BaseException) -> None:
    """Remove a stored pause: the same object may have been raised by an earlier attempt."""
    vars(exc).pop(_PAUSE, None)


def requested_pause(exc: BaseException) -> tuple[float | None] | None:
    """Return ``(pause in seconds or None,)`` as ``set_requested_pause`` has stored it; None if it stored nothing."""
    pause = error_attribute(exc, _PAUSE)
    return pause if type(pause) is tuple else None


def _own_type(exc: BaseException) -> str:
    """Return the ``type`` that an ``ApplicationError`` names, as a text that can be stored; "" for none."""
    kind = error_attribute(exc, "type")
    return "" if kind is None else storable_text(kind, str)


def _plain_or_text(details: Any) -> Any:
    """Return plain data, or a short ``repr`` if it cannot be encoded, so that the failure itself is kept."""
    with suppress(Exception):  # arbitrary user code
        return codec.to_plain(details, label="the details of an ApplicationError")
    return storable_text(details, repr)


def exception_name(cls: type[BaseException]) -> str:
    """Return the name of an exception class. It calls no code of a metaclass, which may raise."""
    return to_storable(class_name(cls))


def exception_message(exc: BaseException) -> str:
    """Return ``str(exc)``, or a note if ``__str__`` raises: that fault must not hide the failure itself."""
    return storable_text(exc, str, note="no message: ")


def storable_text(value: Any, convert: Callable[[Any], str], *, note: str = "") -> str:
    """Return ``convert(value)`` (``str`` or ``repr``) as ``to_storable`` does, or a note if that raises."""
    try:
        return to_storable(convert(value))
    except BaseException as broken:  # noqa: BLE001 - arbitrary user code
        return f"<{note}{exception_name(type(broken))} in __{convert.__name__}__>"


#: Exceptions by which a validator refuses an update. Hosts add the exceptions of their libraries. See decision 12.
_REFUSALS: dict[type[Exception], Callable[[Exception], bool]] = {
    kind: lambda _: True for kind in (UpdateRejected, ValueError, ArithmeticError, PermissionError)
}


def add_refusal(kind: type[Exception], refuses: Callable[[Exception], bool] = lambda _: True) -> None:
    """Let validators refuse an update by raising ``kind``, if ``refuses(exception)`` returns True."""
    _REFUSALS[kind] = refuses


def is_refusal(exc: BaseException) -> bool:
    """Return True if a validator that raises ``exc`` refuses the update. False means that the validator has a bug."""
    return any(is_error(exc, kind) and refuses(exc) for kind, refuses in _REFUSALS.items())


def refusal_reason(exc: BaseException) -> str:
    """Return the reason that the sender of an update reads when a validator refused it by raising.

    It is the message of the exception, or the messages of Django's ``ValidationError``. Exceptions that are more often
    mistakes than reasons are prefixed with their name, because the message of a ``KeyError`` is only the key.
    """
    name, text = exception_name(type(exc)), exception_message(exc)
    try:
        messages = [str(message) for message in exc.messages] if name == "ValidationError" else []  # type: ignore[attr-defined] # of Django's
    except BaseException:  # noqa: BLE001 - another class of that name
        messages = []
    if messages:
        return to_storable(" ".join(messages))
    if is_error(exc, LookupError, TypeError, AttributeError, AssertionError):
        return f"{name}: {text}" if text else name
    return text or name


def to_storable(text: str) -> str:
    """Return ``text`` in a form that every database can store: without lone surrogates and NUL, and cut short."""
    text = str.__str__(text)  # a subclass of user code may answer anything
    if len(text) > _MAX_LENGTH:
        text = text[:_MAX_LENGTH] + f"… ({len(text):,} characters)"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def run_failure(exc: BaseException) -> dict[str, Any]:
    """Return the attributes of ``WorkflowFailed`` for an exception that ``run`` did not catch."""
    attributes = {**describe(exc), "reason": None, "traceback": _traceback_text(exc, with_package=True)}
    if type(exc) is ActivityFailure and exc.activity is not None:
        attributes |= {"activity": exc.activity, "attempts": exc.attempts, "cause": exc.cause}
        attributes["cause_type"] = exc.type or (None if exc.timeout is None else "TimeoutError")
        if exc.traceback is not None:
            attributes["cause_traceback"] = exc.traceback
    return attributes


class FailureCause(NamedTuple):
    """The cause of a failure, by which failures are grouped. It quotes no message, which may contain payloads.

    ``text`` is for people: the type of the error, and the line of project code that raised it. ``fault`` is the key of
    the group. It has the function instead of the line, so a deploy that moves the line divides no group.
    """

    text: str
    fault: str

    def of_activity(self, name: str | None) -> FailureCause:
        """Return the cause with the name of the activity that failed before it; the cause itself for None or ""."""
        return FailureCause(f"{name}: {self.text}", f"{name}: {self.fault}") if name else self


def run_failure_cause(attributes: Mapping[str, Any]) -> FailureCause | None:
    """Return the cause by which failed runs are grouped, from the attributes of ``WorkflowFailed``.

    If the run failed with an activity, it is the cause of the activity: the place that raised, not the one that called.
    None if no code caused the failure.
    """
    kind = attributes.get("cause_type") or attributes.get("type")
    if kind is None:
        kind = "Err" if "reason" in attributes else None
    if kind is None:
        return None
    traceback = attributes.get("cause_traceback") or attributes.get("traceback")
    # An ``Err`` is returned, not raised: it has no place.
    return cause_from(str(kind), None if kind == "Err" else traceback).of_activity(attributes.get("activity"))


def failure_cause(kind: str, traceback: str | None = None) -> str:
    """Return the type of an error and the place in project code that raised it: ``KeyError at shop/activities.py:41``.

    It is the text of ``cause_from``.
    """
    return cause_from(kind, traceback).text


def cause_from(kind: str, traceback: str | None = None) -> FailureCause:
    """Return the cause of an error of the type ``kind``, with the place in project code from its ``traceback``.

    Errors with the same cause have the same texts on every machine, because only the last two parts of a path count.
    Each text has at most 200 characters.
    """
    place, function = _project_location(traceback or "")
    return cause_at(kind, place, function)


def cause_at(kind: str, place: str, function: str = "") -> FailureCause:
    """Return the cause of an error of the type ``kind`` that was raised at ``place``, as ``directory/file:line``.

    ``place`` and ``function`` are empty if they are not known.
    """
    text, short_kind = kind, kind
    if len(kind) > _MAX_KIND_LENGTH:
        # Types that begin alike remain different faults.
        text, short_kind = f"{kind[:_MAX_KIND_LENGTH]}…", f"{kind[:_MAX_KIND_LENGTH]}…{zlib.crc32(kind.encode()):08x}"
    if not place:
        return FailureCause(text, short_kind)
    location = place.rpartition(":")[0]
    if function:
        location = f"{location} in {function}"
    # The end of a place says most.
    return FailureCause(
        f"{text} at {place[-_MAX_PLACE_LENGTH:]}"[:_MAX_CAUSE_LENGTH],
        f"{short_kind} at {location[-_MAX_PLACE_LENGTH:]}"[:_MAX_CAUSE_LENGTH],
    )


def _project_location(traceback: str) -> tuple[str, str]:
    """Return ``directory/file:line`` and the function of the last frame, or two empty texts."""
    for path, line, function in reversed(_FRAME.findall(traceback)):
        parts = path.replace("\\", "/").split("/")
        if not (_LIBRARIES.intersection(parts) or path.startswith(("<", _PACKAGE_PATH)) or _PYTHON.search(path)):
            return f"{'/'.join(parts[-2:])}:{line}", function
    return "", ""


def attempt_failure(exc: BaseException, *, at: datetime, attempt: int) -> AttemptFailure:
    """Return the record of an attempt that ended at the time ``at`` with ``exc``.

    An ``Err`` has no traceback, and its reason is in the details.
    """
    if type(exc) is ReturnedErr:
        message = storable_text(exc.reason, repr)
        return AttemptFailure(type="Err", message=message, at=at, attempt=attempt, details=exc.reason)
    return AttemptFailure(
        **describe(exc),
        at=at,
        attempt=attempt,
        traceback=clean_traceback(exc),
        retry_later=is_error(exc, RetryLater),
    )


def clean_traceback(exc: BaseException) -> str:
    """Return the traceback of an exception without the frames of this package, so that it shows the user's code."""
    return _traceback_text(exc)


def _traceback_text(exc: BaseException, *, with_package: bool = False) -> str:
    """Return the frames of ``exc`` alone if Python cannot format it, or if it has very many causes or parts."""
    with suppress(BaseException):  # of notes, causes and attributes of user code, which the formatting reads
        if _is_formattable(exc):
            exception = traceback.TracebackException.from_exception(exc)
            for part in () if with_package else _exception_chain(exception):
                part.stack[:] = _user_frames(part.stack)
            return _shorten(exception.format())
    frames = traceback.extract_tb(traceback_of(exc))
    last = f"{exception_name(type(exc))}: {exception_message(exc)}"
    return _shorten(
        ["Traceback (most recent call last):\n", *(frames if with_package else _user_frames(frames)).format(), last]
    )


def _user_frames(frames: traceback.StackSummary) -> traceback.StackSummary:
    """Drop the frames of this package, unless all are: a traceback without frames would say nothing."""
    user_frames = [frame for frame in frames if not frame.filename.startswith(_PACKAGE_PATH)]
    return traceback.StackSummary.from_list(user_frames or frames)


def _is_formattable(exc: BaseException) -> bool:
    """Return True if an exception has at most ``_MAX_LINKED`` others: causes, contexts and parts of groups."""
    seen, waiting = set[int](), [exc]
    while waiting:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        if len(seen) + len(waiting) > _MAX_LINKED:
            return False
        linked = [_cause_of(error), _context_of(error)]
        if is_error(error, BaseExceptionGroup):
            linked += _parts_of(error)
        waiting += [other for other in linked if other is not None]
    return True


_cause_of = BaseException.__dict__["__cause__"].__get__
_context_of = BaseException.__dict__["__context__"].__get__
_parts_of = BaseExceptionGroup.__dict__["exceptions"].__get__


def _exception_chain(exception: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield exception
    for other in (exception.__cause__, exception.__context__):
        if other is not None:
            yield from _exception_chain(other)


def _shorten(lines: Iterable[str]) -> str:
    """Join the lines of a traceback. A long one keeps its first five and its last forty lines."""
    text = "".join(lines).splitlines()
    if len(text) > _TRACEBACK_LINES:
        # The end of a traceback names the error; its start shows how the call began.
        text = [*text[:5], "  …", *text[-_TRACEBACK_LINES:]]
    return to_storable("\n".join(text))


def activity_failure(attributes: dict[str, Any], activity: str) -> ActivityFailure:
    """Return the error that the wait for a failed or timed out activity raises.

    ``attributes`` are the attributes of the job that ended the activity (``ActivityFailed`` or ``ActivityTimedOut``),
    and ``activity`` is its name.
    """
    kind, message, timeout = attributes.get("type"), attributes.get("message"), attributes.get("timeout")
    attempts = int(attributes.get("attempts", 0))
    how = f"exceeded its {timeout} timeout" if timeout else f"failed with {kind}: {message}"
    times = f" after {attempts} attempts" if attempts > 1 else ""
    return ActivityFailure(
        f"activity {activity} {how}{times}",
        cause=message,
        type=kind,
        attempts=attempts,
        timeout=timeout,
        activity=activity,
        details=attributes.get("details"),
        traceback=attributes.get("traceback"),
    )


def child_failure(attributes: dict[str, Any], child: str) -> ChildWorkflowFailure:
    """Return the error that the wait for a child raises if the child did not complete.

    ``attributes`` are those of the job ``ChildFailed``, and ``child`` names the child in the message.
    """
    kind, message = attributes.get("type"), attributes.get("message")
    return ChildWorkflowFailure(f"child {child} did not complete: {kind}: {message}", cause=message, type=kind)


def external_failure(attributes: dict[str, Any]) -> TemporalexError:
    """Return the error that workflow code gets for a message that reached no open run.

    ``attributes`` are those of the job ``ExternalFailed``.
    """
    kind, message = attributes.get("type"), attributes.get("message")
    if kind == AmbiguousId.__name__:
        return AmbiguousId(message, candidates=attributes.get("candidates", ()))
    if kind == UnknownSignal.__name__:
        return UnknownSignal(message, known=attributes.get("known", ()))
    return WorkflowClosed(message) if kind == WorkflowClosed.__name__ else WorkflowNotFound(message)


def child_result(status: str, closing: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return ``(kind, attributes)`` of the job by which a parent learns that its child has closed.

    ``status`` is the final status of the child, such as "completed". ``closing`` has the attributes of the event that
    closed the child. The caller adds the number of the command that started the child.
    """
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
            kind, message = "WorkflowTimedOut", f"it exceeded its {closing.get('timeout', 'timeout')}"
    return "ChildFailed", {"type": kind, "message": message, "status": status}


def step_prefix(closing: dict[str, Any]) -> str:
    """Return the start of an error message that names the failed step: ``step pay (Pay the order): ``.

    ``closing`` has the attributes of ``WorkflowFailed``. The result is empty if they name no step.
    """
    return f"step {closing['step']} ({closing['step_name']}): " if closing.get("step") else ""


def error_data(exc: TemporalexError) -> dict[str, Any]:
    """Return ``{"code", "type", "message"}`` of an error of this package.

    An ``UpdateRejected`` adds its ``reason``, ``accepts`` and ``path``, as far as they are not None.
    """
    data = {"code": exc.code, **describe(exc)}
    if is_error(exc, UpdateRejected):
        data |= {
            name: attribute
            for name in ("reason", "accepts", "path")
            if (attribute := error_attribute(exc, name)) is not None
        }
    return data


# --- error text -------------------------------------------------------------------------------------------------------
#
# Errors as lines of a log: one short line without any payload.
#
# The message of an exception may quote a payload, and its traceback repeats it. The stored failure has the full text,
# because payloads may be there. A log gets the type and the code locations that the error passed.


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
    return _shorten_line(f"{kind} at {at}" if at else kind)


def _message_for_log(exc: BaseException) -> str:
    """Return a message that names code only: a nondeterminism error may quote the refusal of a payload."""
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
    """Yield the top-level packages of the frames, outermost first."""
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
    """Return " for" and the path in declared names, without the value; "" if the error is not about a payload."""
    if not is_error(exc, errors.PayloadError) or not is_error(exc.__cause__, msgspec.ValidationError):
        return ""
    _, at, path = str(exc.__cause__).rpartition(" - at ")
    return f" for {first_line(path)}" if at else ""


def first_line(text: str) -> str:
    """Return the first line of ``text`` that is not blank, cut to ``MAX_LENGTH`` characters.

    Characters that are not printable become question marks.
    """
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _shorten_line("".join(c if c.isprintable() else "?" for c in first))


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


def _shorten_line(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


def _code_locations(exc: BaseException) -> Iterator[str]:
    """Yield the innermost first. Each path is shortened to the file and its directory."""
    frames = []
    traceback = traceback_of(exc)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "__tracebackhide__" not in code.co_varnames:
            frames.append((code, traceback.tb_lineno))
        traceback = traceback.tb_next
    for code, line in frames[: -_MAX_LOCATIONS - 1 : -1]:
        yield f"{_short_path(code.co_filename)}:{line} in {code.co_name}"
