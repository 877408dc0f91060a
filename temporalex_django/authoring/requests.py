"""Requests: a call of a handle or a start, as data for a backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
)

from temporalex_django.authoring.activity_options import check_id
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.core.names import aware_datetime, is_name, quoted, wait_seconds
from temporalex_django.core.payloads.external_types import unreadable_reason
from temporalex_django.errors import AlreadyEnded, InvalidId, InvalidStart, WorkflowDefinitionError

if TYPE_CHECKING:
    from uuid import UUID

    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.backend import Backend
    from temporalex_django.authoring.start_api import Startable
    from temporalex_django.authoring.workflow import Workflow


# --- run request ------------------------------------------------------------------------------------------------------
#
# Requests of handles: a method of ``WorkflowHandle`` makes one, and the backend of its run performs it.
#
# Each method is defined once, as a function that builds the request. ``operation_method`` makes the method from it, and
# ``async_method`` the method for async code.


T = TypeVar("T")
M = TypeVar("M", bound="Callable[..., Any]")
P = ParamSpec("P")
H = TypeVar("H", bound="Handle")

#: Default of an input that may be None. ``inputs`` leaves it out, so that the operation uses its own default.
UNSET: Final[Any] = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAddress:
    """The address of the run that a handle belongs to, by which its backend finds the run.

    ``id`` is the business id, or a run id. ``chain_id`` is the chain that a start returned, or None. ``run_id`` is set
    if the handle shows one run of the chain instead of the newest one. ``workflow`` and ``version`` limit the search.
    """

    id: str
    chain_id: UUID | None = None
    run_id: UUID | None = None
    workflow: type[Startable] | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class RunRequest(Generic[T]):
    """One operation on a run, before it is performed; ``T`` is the type of its result.

    ``operation`` is its name in the audit log (``signal``, ``reset``), or the name of a read (``describe``). ``by`` is
    the user in whose name it is performed. ``inputs`` are the arguments of the operation, by name. ``returns`` is the
    type as which the handle returns the answer to an update or query; None for plain data.
    """

    operation: str
    by: Any = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    returns: Any = None


def inputs(**values: Any) -> dict[str, Any]:
    """Return the keyword arguments that are not ``UNSET`` as a dict: the inputs of a request."""
    return {name: value for name, value in values.items() if value is not UNSET}


def readable_type(operation: str, returns: Any) -> Any:
    """Return ``returns``, the type as which the answer to an update or query is read; None for plain data.

    It is checked before the message is sent, whose handler acts. Raises ``WorkflowDefinitionError``.
    """
    reason = "it is a text" if isinstance(returns, str) else unreadable_reason(returns)
    if reason is not None:
        raise WorkflowDefinitionError(
            f"{operation}: returns must be a type that payloads may have, not {returns!r}: {reason}"
        )
    return returns


class Handle(Protocol):
    """A handle of a run, as ``operation_method`` needs it: an object with the address and the backend of a run."""

    _address: RunAddress
    _backend: Backend


def operation_method(build: Callable[Concatenate[H, P], RunRequest[T]]) -> Callable[Concatenate[H, P], T]:
    """Return a method of a handle, made from ``build``, a function that returns the request of the operation.

    The method takes the arguments of ``build``, performs the request on the handle's backend and returns its result.
    """
    # Only a call with an unknown option needs the function that answers it (``foreign_options``).
    options, function = getattr(build, "options", None), inspect.unwrap(build)

    @wraps(build)
    def perform(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        make: Any = build if options is not None and not options.issuperset(kwargs) else function
        request: RunRequest[T] = make(self, *args, **kwargs)
        return self._backend.perform(self._address, request)

    return _with_signature(perform, build)


def async_method(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Return the method for async code that does the same as ``method``, which ``operation_method`` has made.

    It takes the same arguments, and holds no thread in a wait.
    """
    build = cast("Callable[Concatenate[H, P], RunRequest[T]]", method.__wrapped__)  # type: ignore[attr-defined] # set by wraps

    @wraps(build)
    async def perform(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._backend.aperform(self._address, build(self, *args, **kwargs))

    perform.__name__ = f"a{build.__name__}"
    perform.__qualname__ = build.__qualname__.removesuffix(build.__name__) + perform.__name__
    perform.__doc__ = f"``{build.__name__}`` for async code."
    return _with_signature(perform, build)


def _with_signature(method: M, build: Callable[..., Any]) -> M:
    """Take annotations and signature from ``build``; a ``RunRequest[T]`` becomes ``T``."""
    signature = inspect.signature(build)
    result = str(signature.return_annotation).removeprefix("RunRequest[").removesuffix("]")
    method.__annotations__ = {**build.__annotations__, "return": result}
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined] # inspect reads it
    return method


# --- start times ------------------------------------------------------------------------------------------------------
#
# The time at which a run begins, as the caller of a start named it.


#: The options of a start that name its times.
TIME_OPTIONS = ("start_at", "start_delay", "start_before")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """The checked times of a start; each may be None.

    The run begins at ``start_at``, or ``start_delay`` seconds after the start. It is timed out if it has not begun by
    ``start_before``.
    """

    start_at: datetime | None = None
    start_delay: float | None = None
    start_before: datetime | None = None

    def as_options(self) -> dict[str, Any]:
        """Return the times that are set, as keyword arguments for ``RunStart``."""
        values = {name: getattr(self, name) for name in TIME_OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


_NO_TIMES = StartTimes()


def check_start_times(start_at: object, start_delay: object, start_before: object, *, label: str) -> StartTimes:
    """Return the times of a start, which may each be None.

    ``start_at`` and ``start_before`` are datetimes with a time zone. ``start_delay`` is a timedelta or a number of
    seconds. ``label`` names the start in errors. Raises ``InvalidStart``.
    """
    if start_at is None and start_delay is None and start_before is None:
        return _NO_TIMES
    if start_at is not None and start_delay is not None:
        raise InvalidStart(f"{label}: pass start_at or start_delay, not both")
    begin = _check_time(start_at, "start_at", label=label)
    limit = _check_time(start_before, "start_before", label=label)
    if begin is not None and limit is not None and limit <= begin:
        raise InvalidStart(
            f"{label}: start_before ({limit.isoformat()}) must be later than start_at ({begin.isoformat()})"
        )
    delay = None
    if start_delay is not None:
        try:
            delay = wait_seconds(start_delay, label="start_delay")
        except (TypeError, ValueError) as exc:
            raise InvalidStart(f"{label}: {exc}") from None
    return StartTimes(start_at=begin, start_delay=delay, start_before=limit)


def _check_time(value: object, name: str, *, label: str) -> datetime | None:
    """Raise ``InvalidStart`` for a value that is not None or a datetime with a time zone."""
    if value is None:
        return None
    try:
        return aware_datetime(value, label=name)
    except (TypeError, ValueError) as exc:
        raise InvalidStart(f"{label}: {exc}") from None


def start_time_of_child(times: StartTimes, now: datetime) -> dict[str, str]:
    """Return the times of a child that is started at ``now``, as a history stores them: texts in ISO format, by name.

    The delay is stored as the time to which it leads, so that a replay does not compute it again.
    """
    start_at = times.start_at
    if times.start_delay is not None:
        start_at = now + timedelta(seconds=times.start_delay)
    moments = {"start_at": start_at, "start_before": times.start_before}
    return {name: moment.isoformat() for name, moment in moments.items() if moment is not None}


# --- start policy -----------------------------------------------------------------------------------------------------
#
# Start policies: what a start does about other runs with its id.


#: What a start does if an open run has the id.
OnConflict = Literal["fail", "use_existing", "terminate_existing"]
#: Whether a start is possible if runs with the id have ended.
OnClosed = Literal["allow", "failed_only", "reject"]
#: What a start did: it started a run, returned the open one, started one in the place of an open one, or replaced the
#: input of one that has not begun.
StartOutcome = Literal["started", "existing", "replaced", "debounced"]
#: Most runs that a throttle lets begin in its window; it keeps a time for each.
MAX_THROTTLE: Final = 1000
#: The longest period of a throttle, in seconds.
LONGEST_THROTTLE = 31 * 86_400.0

#: The reason with which ``terminate_existing`` terminates a run.
REPLACED: Final = "replaced by a start with on_conflict='terminate_existing'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """A limit of starts: at most ``count`` runs begin in any period of ``seconds``; further runs begin later.

    Runs with the same ``key`` share the limit. Without a key, all throttled starts of the class share it.
    """

    count: int
    seconds: float
    key: str | None = None

    def name_for(self, workflow: str) -> str:
        """Return the name of the row that stores when the last throttled runs of the class ``workflow`` begin.

        Each count and period has a row of its own, so a caller with another limit cannot delay the starts of this one.
        """
        name = f"start:{workflow}:{self.count}/{self.seconds:g}"
        return name if self.key is None else f"{name}:{self.key}"

    def next_begin(self, times: Sequence[float], now: float) -> tuple[float, list[float]]:
        """Return the time at which the next run may begin, and the updated list of begin times to store.

        ``times`` are those at which the last runs begin. All times are in seconds since 1970, and lists have the oldest
        first.
        """
        recent = sorted(times)[-self.count :]
        begin = now
        if len(recent) == self.count:
            begin = max(now, recent[0] + self.seconds)
        return begin, sorted([*recent, begin])[-self.count :]

    def as_limit(self) -> dict[str, Any]:
        """Return the limit as a dict with ``count`` and ``seconds``, as it is stored with a run that begins later."""
        return {"count": self.count, "seconds": self.seconds}


def parse_throttle(value: Any, *, label: str) -> Throttle:
    """Return the throttle that a caller passed: ``(count, period)`` or ``(count, period, key)``.

    The period is a timedelta or a number of seconds. ``label`` names the start in errors. Raises ``InvalidStart``.
    """
    parts = [*value] if isinstance(value, (tuple, list)) else []
    if len(parts) not in (2, 3):
        raise InvalidStart(f"{label}: throttle must be (count, period) or (count, period, key), not {quoted(value)}")
    count, period, key = (*parts, None)[:3]
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_THROTTLE:
        raise InvalidStart(
            f"{label}: the count of throttle must be a whole number from 1 to {MAX_THROTTLE}, not {quoted(count)}"
        )
    if key is not None and not is_name(key):
        raise InvalidStart(
            f"{label}: the key of throttle must be a string of 1 to 200 printable characters, not {quoted(key)}"
        )
    seconds = _positive_seconds(period, label=f"{label}: the period of throttle")
    if seconds > LONGEST_THROTTLE:
        raise InvalidStart(f"{label}: the period of throttle must be at most 31 days")
    return Throttle(count=count, seconds=seconds, key=key)


def check_debounce(value: Any, *, label: str) -> None:
    """Raise ``InvalidStart`` unless ``value`` is a positive timedelta or number of seconds.

    ``label`` names the start.
    """
    _positive_seconds(value, label=f"{label}: debounce")


def _positive_seconds(value: Any, *, label: str) -> float:
    try:
        seconds = wait_seconds(value, label=label)
    except (TypeError, ValueError) as exc:
        raise InvalidStart(str(exc)) from None
    if not seconds:
        raise InvalidStart(f"{label} must be longer than 0 seconds")
    return seconds


def check_start_policy(on_conflict: str, on_closed: str, *, label: str) -> None:
    """Raise ``InvalidStart`` if one of the policies does not exist, or if they contradict each other.

    ``label`` names the start in the message.
    """
    _check(on_conflict, get_args(OnConflict), label=f"{label}: on_conflict")
    _check(on_closed, get_args(OnClosed), label=f"{label}: on_closed")
    # The run that is terminated has ended then, so nothing could take its place.
    if on_conflict == "terminate_existing" and on_closed == "reject":
        raise InvalidStart(
            f"{label}: on_closed='reject' forbids the run that on_conflict='terminate_existing' would start: "
            "use on_closed='failed_only' or 'allow'"
        )


def _check(value: object, choices: tuple[Any, ...], *, label: str) -> None:
    if value not in choices:
        words = ", ".join(repr(choice) for choice in choices)
        raise InvalidStart(f"{label} must be one of {words}, not {quoted(value)}")


def require_reusable(status: str | None, on_closed: str, *, workflow: str, workflow_id: str) -> None:
    """Raise ``AlreadyEnded`` if the policy allows no start with an id whose last run has ended with ``status``.

    None as status means that no run with the id has ended. A run without a result of its own counts as failed: it may
    be cancelled, terminated or timed out, too.
    """
    if status is None or on_closed == "allow":
        return
    if on_closed == "failed_only" and status != "completed":
        return
    raise AlreadyEnded(
        f"{workflow} {workflow_id!r} has ended ({status}), and on_closed={on_closed!r} allows no other run: "
        "use another id, or another on_closed"
    )


# --- start request ----------------------------------------------------------------------------------------------------
#
# ``StartRequest``: everything that a caller says about a run to start.


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A run to start, as the caller described it.

    ``workflow`` is the class of the version that runs, and ``args`` its input. The business id is ``id``, or is made
    from ``value`` by the ``unique`` of the class. ``subject`` is the model instance that the run is about.
    ``telemetry`` (JSON) goes into the Django signals about the steps of a graph. ``search_attributes`` are values of
    declared attributes, and ``tags`` are added to those of the class. ``by`` is the user in whose name it starts.

    The run begins at ``start_at``, or ``start_delay`` (a timedelta or seconds) after the start. It is timed out if it
    has not begun by ``start_before``.

    ``on_conflict`` says what happens if an open run has the id, and ``on_closed`` if the start is possible when a run
    with the id has ended. With ``debounce`` (a timedelta or seconds), the run begins after that time, and a start
    replaces the input of one that has not begun. ``throttle`` is ``(count, period)`` or ``(count, period, key)``.
    Raises ``InvalidStart`` for options that cannot be, or that contradict each other, and ``WorkflowDefinitionError``
    for a class that another one has replaced under its name.

    ``scheduled_for`` is the time of the slot for which a schedule starts it. ``headers`` travel with the run; the
    constructor raises ``InvalidHeaders``.
    """

    workflow: type[Workflow]
    args: Any = None
    id: str | None = None
    value: str | None = None
    subject: Any = None
    telemetry: Mapping[str, Any] | None = None
    search_attributes: Mapping[str, Any] | None = None
    tags: Sequence[str] | None = None
    by: Person | None = None
    start_at: datetime | None = None
    start_delay: timedelta | float | None = None
    start_before: datetime | None = None
    on_conflict: OnConflict = "fail"
    on_closed: OnClosed = "allow"
    debounce: timedelta | float | None = None
    throttle: tuple[Any, ...] | None = None
    scheduled_for: datetime | None = None
    headers: Headers | None = None

    def __post_init__(self) -> None:
        self.workflow.require_registered()
        if self.headers is not None:
            headers = check_headers(self.headers, label=f"start of {self.workflow.name}")
            object.__setattr__(self, "headers", headers)
        # Nearly all starts have neither policy, and starts are many.
        if self.has_policy:
            check_start_policy(self.on_conflict, self.on_closed, label=f"start of {self.workflow.name}")
            self._check_pace()

    def _check_pace(self) -> None:
        """Raise ``InvalidStart`` if ``debounce`` or ``throttle`` is not valid, or contradicts another option."""
        label = f"start of {self.workflow.name}"
        paces = [name for name in ("debounce", "throttle") if getattr(self, name) is not None]
        times = [name for name in ("start_at", "start_delay") if getattr(self, name) is not None]
        if paces and len(paces + times) > 1:
            raise InvalidStart(f"{label}: pass only one of {', '.join(paces + times)}: each says when the run begins")
        if self.debounce is not None and (
            self.needs_id or (self.workflow.unique is not None and self.workflow.unique.scope == "none")
        ):
            raise InvalidStart(f"{label}: debounce needs an id that only one open run can have: pass id= or value=")
        if self.debounce is not None:
            check_debounce(self.debounce, label=label)
        if self.throttle is not None:
            parse_throttle(self.throttle, label=label)

    @property
    def parsed_throttle(self) -> Throttle | None:
        """The option ``throttle`` as a ``Throttle``, or None without one. Raises ``InvalidStart``."""
        if self.throttle is None:
            return None
        return parse_throttle(self.throttle, label=f"start of {self.workflow.name}")

    @property
    def has_policy(self) -> bool:
        """True if the start sets ``on_conflict``, ``on_closed``, ``debounce`` or ``throttle``.

        Such a start has to look at other runs; any other start is a plain insert.
        """
        return (
            self.on_conflict != "fail"
            or self.on_closed != "allow"
            or self.debounce is not None
            or self.throttle is not None
        )

    @property
    def times(self) -> StartTimes:
        """The checked times of the start: ``start_at``, ``start_before`` and the delay. Raises ``InvalidStart``."""
        delay = self.start_delay if self.debounce is None else self.debounce
        return check_start_times(self.start_at, delay, self.start_before, label=f"start of {self.workflow.name}")

    @property
    def start_limit(self) -> dict[str, Any] | None:
        """The value ``{"debounce": seconds}`` that the row of a debounced run stores until it begins, or None.

        Only the input of a run with this value may be replaced by a further debounced start.
        """
        if self.debounce is None:
            return None
        return {"debounce": wait_seconds(self.debounce, label="debounce")}

    @property
    def needs_id(self) -> bool:
        """True if neither an id nor a value was passed, so that an id has to be generated."""
        return self.id is None and self.value is None

    def business_id(self, *, suffix: Callable[[], str]) -> str:
        """Return the business id of the run, from the id or the value of the request.

        ``suffix`` returns 8 hex digits, which tell runs of one value apart where the scope of ``unique`` is ``none``.
        Raises ``InvalidId``.
        """
        name, unique = self.workflow.name, self.workflow.unique
        if self.id is not None:
            if self.value is not None:
                raise InvalidId(f"{name}: give id= or value=, not both")
            return check_id(self.id) if unique is None else unique.check(self.id)
        if unique is None:
            raise InvalidId(f"{name} does not declare `unique`: start it with an id, not a value")
        return unique.run_id_for(self.value, suffix)
