"""``@activity``: the functions through which workflows act on the outside world."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from temporalex_django.authoring.activity_options import RetryPolicy
from temporalex_django.authoring.definition import check_use, execution_of, require_same_activity
from temporalex_django.authoring.foreign_options import ACTIVITY as FOREIGN_OPTIONS
from temporalex_django.authoring.foreign_options import answers_foreign_options, call_options, unknown_options
from temporalex_django.core import current
from temporalex_django.core import names as aliases
from temporalex_django.core.failures import source_line
from temporalex_django.core.history.events import InputReading, to_reading
from temporalex_django.core.limits import Limits, key_error, limit_errors
from temporalex_django.core.names import check_code_name, fit_optional_label, is_name, quoted, to_seconds
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy, parameter_problems
from temporalex_django.core.primitive_table import ACTIVITY
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.units.ivar import AwaitableCall, Call
from temporalex_django.errors import ActivityNotFound, PayloadError, WorkflowDefinitionError

# --- activity function ------------------------------------------------------------------------------------------------
#
# The checks of a function that becomes an activity, and the answer to methods that tasks of other packages have.
#
# The module of activities imports this one, so their types are ``Any`` here.


#: Methods by which tasks of Celery, Dramatiq, Huey, RQ, Procrastinate and ``django.tasks`` are sent to a queue.
_SENDERS = frozenset(
    {"delay", "delay_on_commit", "apply", "apply_async", "apply_async_on_commit", "s", "si", "signature", "subtask"}
    | {"send", "send_with_options", "schedule", "defer", "defer_async", "enqueue", "aenqueue", "adelay"}
    | {
        "run",
        "map",
        "starmap",
        "chunks",
        "retry",
        "submit",
        "execute",
        "execute_async",
        "start",
        "call",
        "kiq",
        "remote",
    }
)
#: Methods by which they make a copy with other options, and attributes that have these.
_OPTIONS = frozenset(
    {"with_options", "set", "configure", "override", "using", "kicker", "bind", "retry_policy", "timeout"}
)
_LAMBDA = "<lambda>"


def check_function(target: Any, options: Any, *, is_bare: bool) -> None:
    """Raise ``WorkflowDefinitionError`` if ``target`` cannot be the function of an activity with these options.

    ``is_bare`` is True for ``activity(target)``, which has no place for a name.
    """
    if isinstance(target, str):
        raise WorkflowDefinitionError(f"activity: {target!r} is not a function: write @activity(name={target!r})")
    if not callable(target) or not hasattr(target, "__qualname__"):
        raise WorkflowDefinitionError(f"activity: {target!r} is not a function: write a `def` that calls it")
    label = f"activity {target.__qualname__} ({source_line(target)})"
    if problem := next(_problems(target, options, is_bare=is_bare), None):
        raise WorkflowDefinitionError(f"{label}: {problem}")


def _problems(target: Any, options: Any, *, is_bare: bool) -> Iterator[str]:
    if inspect.isclass(target):
        yield "a class has no result that a history can record: decorate a function that returns data"
    if is_bare and _is_lambda(target):
        yield nameless_problem()
    if (owner := _owner(target)) is not None:
        yield (
            f"it is a method of {owner}, and a worker has no object for its first parameter: write a function outside "
            "of the class that takes the data it needs, such as the pk of an object"
        )
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        yield "it has a `yield`, and a generator is no result: return a list"
    if options.atomic and inspect.iscoroutinefunction(target):
        yield "an atomic activity runs inside the turn's transaction and cannot be async"
    if options.lane and inspect.iscoroutinefunction(target):
        yield "an async activity runs in the event loop of its worker, and cannot have lane='process'"


def _owner(target: Any) -> str | None:
    """Return the name of the class in whose body ``target`` is a method with ``self`` or ``cls``, or None."""
    # A name in a class body contains the class; a function inside a function contains "<locals>" before its own name.
    owner, _, _ = getattr(target, "__qualname__", "").rpartition("<locals>.")[2].rpartition(".")
    if not owner or not inspect.isfunction(target):
        return None
    return owner if next(iter(inspect.signature(target).parameters), None) in ("self", "cls") else None


def _is_lambda(target: Any) -> bool:
    return getattr(target, "__name__", "") == _LAMBDA


def nameless_problem() -> str:
    """Return why a lambda without a name cannot be an activity, and what to write instead."""
    return (
        "a lambda has no name, and histories find an activity by its name: write a `def`, "
        'or activity(name="shop.charge")(lambda: ...)'
    )


def is_nameless(activity: Any) -> bool:
    """Return True if the name of an activity is that of any lambda of its module."""
    return str(activity.name).endswith(_LAMBDA)


def require_name(activity: Any) -> None:
    """Raise ``WorkflowDefinitionError`` if an activity is a lambda that no name identifies."""
    if is_nameless(activity):
        raise WorkflowDefinitionError(
            f"activity {activity.name} ({source_line(activity.__wrapped__)}): {nameless_problem()}"
        )


def check_annotations(activity: Any) -> None:
    """Raise ``WorkflowDefinitionError`` for annotations as which nothing could be read back."""
    if problems := parameter_problems(activity.__wrapped__):
        raise WorkflowDefinitionError(f"activity {activity.name}: " + "; ".join(problems))


class ForeignMethods:
    """The base class of activities. It answers the methods that tasks of other packages have, with what to write here.

    ``name`` is the name of the activity.
    """

    name: str

    if not TYPE_CHECKING:  # type checkers report these names themselves

        def __getattr__(self, attribute: str) -> Any:
            name = vars(self).get("name", "")  # absent while a copy is made
            text, call = f"activity {name} has no attribute {attribute!r}", name.rpartition(".")[2]
            if attribute in _OPTIONS:
                text += f": write {call}.options(...)(...) for the options of one call"
            if attribute in _SENDERS:
                text = (
                    f"activity {name} has no {attribute}(): a workflow calls it, with `await {call}(...)` in run(). From "
                    "elsewhere, start the workflow: YourWorkflow.start(...)"
                )
            raise AttributeError(text, name=attribute, obj=self)


P = ParamSpec("P")
R = TypeVar("R")

_LIMITS = ("concurrency", "rate", "concurrency_per_key")
_TIMEOUTS = ("schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOptions:
    """The options that say where, when and how often an activity runs.

    Timeouts are timedeltas or seconds. ``schedule_to_start`` is the time until an attempt starts, and
    ``start_to_close`` is the time of one attempt. ``schedule_to_close`` is the time of all attempts together, and
    ``heartbeat`` is the longest time between two heartbeats of an attempt. ``local`` runs the activity in the worker
    that advances the workflow, ahead of the queue. Use it for short activities that every worker of the workflow can
    run.

    ``concurrency``: at most N attempts run at a time, over all workers. ``rate``: at most N attempts start within a
    period ("10/s", "100/m", "1000/h"). ``concurrency_per_key``: at most N attempts with the same ``concurrency_key``
    run at a time. The key names whose work it is, for example a tenant. The limits of the queue apply, too.

    ``lane="process"`` runs the activity in a process of its own, for long computations. The turns of the worker and its
    other activities do not wait for it, and the worker can end that process.

    ``shared_transaction=True``: the activity is atomic and needs the next step of its run in the same commit. Its
    classes cannot live on a Temporal cluster, where that step commits later.

    ``by_hand=False``: people cannot complete the activity, fail it or change its input; they can try it again.
    """

    retry: RetryPolicy | None = None
    schedule_to_start: timedelta | float | None = None
    start_to_close: timedelta | float | None = None
    schedule_to_close: timedelta | float | None = None
    heartbeat: timedelta | float | None = None
    queue: str | None = None
    local: bool = False
    atomic: bool = False
    concurrency: int | None = None
    rate: str | None = None
    concurrency_per_key: int | None = None
    concurrency_key: str | None = None
    lane: Literal["process"] | None = None
    by_hand: bool = True
    shared_transaction: bool = False

    def __post_init__(self) -> None:
        errors = [*self._limit_errors(), *self._value_errors(), *self._combination_errors()]
        if errors:
            raise WorkflowDefinitionError("activity options: " + "; ".join(errors))

    def _value_errors(self) -> Iterator[str]:
        for name in _TIMEOUTS:
            value = getattr(self, name)
            try:
                if value is not None and to_seconds(value, label=name) <= 0:
                    yield f"{name} must be more than 0, not {value!r}"
            except (TypeError, ValueError) as exc:
                yield str(exc)
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            yield f"retry must be a RetryPolicy, not {self.retry!r}"
        if self.queue is not None and not is_name(self.queue):
            yield f"queue must be a name of 1 to 200 printable characters, not {quoted(self.queue)}"
        for name, flag in {
            "local": self.local,
            "by_hand": self.by_hand,
            "shared_transaction": self.shared_transaction,
        }.items():
            if not isinstance(flag, bool):
                yield f"{name} must be True or False, not {flag!r}"

    def _combination_errors(self) -> Iterator[str]:
        if self.local and self.atomic:
            yield "an atomic activity runs in the turn itself: it cannot also be local"
        if self.local and (self.queue is not None or self.schedule_to_start is not None):
            yield "a local activity does not wait in a queue: remove queue and schedule_to_start"
        if self.atomic and self.heartbeat is not None:
            yield "an atomic activity cannot heartbeat: it is one short transaction"
        if self.shared_transaction and not self.atomic:
            yield "shared_transaction needs atomic=True: only an atomic activity commits together with its run"
        if self.atomic and (self.queue is not None or self.start_to_close is not None):
            yield "an atomic activity runs in the turn itself: remove queue and start_to_close"

    def _limit_errors(self) -> list[str]:
        limits = {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}
        errors = limit_errors(limits)
        if self.concurrency_key is not None and (error := key_error(self.concurrency_key)):
            errors.append(error)
        if limits or self.concurrency_key is not None:
            if self.local:
                errors.append("a local activity does not wait in a queue: it cannot have limits or a concurrency_key")
            if self.atomic:
                errors.append("an atomic activity runs in the turn itself: it cannot have limits or a concurrency_key")
        if self.lane not in (None, "process"):
            errors.append(
                f"lane must be 'process' or None, not {self.lane!r}: "
                "without it, async functions run in a loop and others in threads"
            )
        if self.lane and self.atomic:
            errors.append("an atomic activity runs in the turn itself: it cannot run in a process of its own")
        return errors

    @property
    def limits(self) -> Limits:
        """The limits of the activity itself; those of its queue apply, too."""
        return Limits.from_options({name: getattr(self, name) for name in _LIMITS})

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain data for the command ``ScheduleActivity``, with timeouts in seconds.

        Only options that are set are included, because a history repeats them for each call.
        """
        options: dict[str, Any] = {} if self.retry is None else {"retry": self.retry.as_dict()}
        for name in _TIMEOUTS:
            if (value := getattr(self, name)) is not None:
                options[name] = to_seconds(value)
        for name in ("queue", "concurrency_key"):
            if (value := getattr(self, name)) is not None:
                options[name] = value
        for name in ("local", "atomic"):
            if getattr(self, name):
                options[name] = True
        return options if self.by_hand else {**options, "by_hand": False}


class CallOptions(TypedDict, total=False):
    """The options of an activity that a call site may set by ``Activity.options``, such as ``retry`` and ``queue``.

    ``atomic``, ``shared_transaction``, the limits, ``lane`` and ``by_hand`` are part of the definition of the activity
    and cannot be set here.
    """

    retry: RetryPolicy | None
    schedule_to_start: timedelta | float | None
    start_to_close: timedelta | float | None
    schedule_to_close: timedelta | float | None
    heartbeat: timedelta | float | None
    queue: str | None
    local: bool
    concurrency_key: str | None


class RunSource(Protocol):
    """The access of an activity to the run that scheduled it; activities that run steps of a graph need it.

    Each host that runs activities implements it: it reads a history that it stores, or asks the run. ``version`` is the
    version of the workflow with which the activity was scheduled.
    """

    def workflow(self, version: int) -> Any:
        """Return the workflow class of the run in that version. Raises ``UnknownWorkflow``."""

    def instance(self, version: int) -> Any:
        """Return the instance of the graph as it was when the activity was scheduled.

        This may take long. An attempt calls it at most once, and only if the step reads its instance or its context.
        """


class Activity(ForeignMethods, Generic[P, R]):
    """A function that workflow code awaits and a worker runs.

    ``__wrapped__`` is the function itself. ``name`` is its name in histories, ``label`` the name that people see, and
    ``aliases`` are former names. ``options_set`` are the options that its definition sets.
    """

    def __init__(
        self,
        fn: Callable[P, Any],
        options: ActivityOptions,
        *,
        name: str | None = None,
        label: str | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        self.__wrapped__ = fn
        self.label = label
        self.aliases = tuple(aliases)
        self.options_set = options
        self.is_async = inspect.iscoroutinefunction(fn)
        # Functions made inside other functions (tests do that) get a name without `<locals>`, as at module level.
        self.name = name or f"{fn.__module__}.{fn.__qualname__.rsplit('<locals>.', 1)[-1]}"
        self._hints: dict[str, Any] | None = None
        self._signature: inspect.Signature | None = None
        self._positional: range | None = None
        self._plain_options = options.as_dict()
        self.execution = execution_of(getattr(fn, "__globals__", {}))
        self._is_nameless = is_nameless(self)
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AwaitableCall[R]:
        """Return a call that schedules the activity when it is awaited.

        Raises ``PayloadError`` for an argument that cannot be stored, and ``NestingError`` or ``OutsideWorkflow`` in a
        place where activities cannot be called.
        """
        port: WorkflowRuntime = current.runtime_for(ACTIVITY, self.name)
        registered = registry.get(self.name, self)
        if registered.__wrapped__ is not self.__wrapped__:
            check_use(port, partial(require_same_activity, self, registered))
        if self._is_nameless:
            check_use(port, partial(require_name, self))
        if kwargs or not self._accepts_count(len(args)):
            self._bind(args, kwargs)
        attributes: dict[str, Any] = {
            "activity": self.name,
            "args": [self._encode_argument(port, i, arg) for i, arg in enumerate(args)],
        }
        if kwargs:
            attributes["kwargs"] = {k: self._encode_argument(port, k, arg) for k, arg in kwargs.items()}
        if self._plain_options:
            attributes["options"] = self._plain_options
        call = Call(
            ACTIVITY,
            lambda: port.pending_commands.schedule_activity(attributes, self.result_type, self.read_input),
            self.name,
        )
        return cast("AwaitableCall[R]", call)

    def _encode_argument(self, port: WorkflowRuntime, key: int | str, arg: Any) -> Any:
        """Raise ``PayloadError`` if the annotation does not turn the plain data into the same value again."""
        label = f"argument {repr(key) if isinstance(key, str) else key + 1} of {self.name}"
        # Checked at the call: a worker would decode another value much later, far from the code that passed it (see
        # decision 15).
        advice = f"annotate that parameter of {self.__wrapped__.__name__}"
        return port.run_context.encode_lossless(arg, label, read=partial(self._decode_argument, key), annotate=advice)

    def _decode_argument(self, key: int | str, plain: Any) -> Any:
        return codec.convert(plain, self._parameter_type(key))

    def _parameter_type(self, key: int | str) -> Any:
        """Return the annotation of the parameter that takes the argument at a position or under a name; or Any."""
        parameters = [*inspect.signature(self.__wrapped__).parameters.values()]
        if isinstance(key, int):
            matches = (p for i, p in enumerate(parameters) if i == key or p.kind is p.VAR_POSITIONAL)
        else:
            matches = (p for p in parameters if p.name == key)
        keyword_matches = (p for p in parameters if p.kind is p.VAR_KEYWORD)
        parameter = next(matches, None) or next(keyword_matches, None)
        return Any if parameter is None else self._annotations.get(parameter.name, Any)

    def options(self, **changes: Unpack[CallOptions]) -> Activity[P, R]:
        """Return a copy of the activity with other options for this call site.

        Raises ``WorkflowDefinitionError`` for unknown options and for those that are part of the definition.
        """
        option_names = {field.name for field in fields(ActivityOptions)}
        if unknown := unknown_options(f"{self.name}.options", changes, option_names, FOREIGN_OPTIONS):
            raise WorkflowDefinitionError(unknown)
        if changes.get("atomic", self.options_set.atomic) != self.options_set.atomic:
            raise WorkflowDefinitionError(
                f"{self.name}: you cannot change atomic for one call: set it in the definition"
            )
        if fixed := [name for name in (*_LIMITS, "lane", "by_hand", "shared_transaction") if name in changes]:
            raise WorkflowDefinitionError(
                f"{self.name}: you cannot change {', '.join(fixed)} for one call: set it in the definition"
            )
        # A local activity waits in no queue, so these options of the definition do not apply to this call.
        if changes.get("local"):
            changes = {"queue": None, "schedule_to_start": None, **changes}
        new_options = replace(self.options_set, **changes)
        copy: Activity[P, R] = Activity(
            self.__wrapped__, new_options, name=self.name, label=self.label, aliases=self.aliases
        )
        copy.execution = self.execution
        return copy

    @property
    def result_type(self) -> Any:
        """The annotation of the function's result; Any if it has none."""
        return self._annotations.get("return", Any)

    @property
    def _annotations(self) -> dict[str, Any]:
        if self._hints is None:
            self._hints = codec.resolve_hints(self.__wrapped__)
        return self._hints

    def _accepts_count(self, count: int) -> bool:
        """Return True if the function takes ``count`` positional arguments; faster than binding them."""
        # Every call of an activity comes here; `inspect.Signature.bind` costs more than the rest of the call.
        if self._positional is None:
            parameters = inspect.signature(self.__wrapped__).parameters.values()
            positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            required_count = sum(p.default is p.empty for p in positional)
            requires_keywords = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
            self._positional = range(0) if requires_keywords else range(required_count, len(positional) + 1)
        return count in self._positional

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Raise ``TypeError`` with the name of the activity."""
        if self._signature is None:
            self._signature = inspect.signature(self.__wrapped__)
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            options = {field.name for field in fields(ActivityOptions)}
            advice = call_options(self.__wrapped__.__name__, kwargs.keys() - self._signature.parameters, options)
            raise TypeError(f"{self.name}: {exc}{advice}") from None

    def decode_call(
        self, args: Sequence[Any], kwargs: Any, source: RunSource
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return ``(function, positional arguments, keyword arguments)`` for a recorded call.

        ``args`` and ``kwargs`` are plain data, which the annotations convert. ``source`` gives access to the run; only
        activities that are steps of a graph use it. Raises ``PayloadError``.
        """
        del source
        return (self.__wrapped__, *self.decode(args, kwargs))

    def encode_result(self, value: Any, args: Sequence[Any], source: RunSource) -> Any:
        """Return the form in which the history records ``value``, which the function has returned.

        ``args`` are the recorded arguments of the call, and ``source`` gives access to the run. Only activities that
        are steps of a graph read them.
        """
        del args, source
        return value

    #: Advice for errors: how to declare the type of the result.
    annotate_result: ClassVar[str] = "annotate its return type (-> ...)"

    def read_result(self, result: Any) -> Any:
        """Return a recorded result (plain data) as workflow code gets it: converted by the annotation of the function.

        Raises ``PayloadError``.
        """
        return codec.convert(result, self.result_type, label=f"the result of {self.name}")

    def encode_manual_result(self, result: Any, args: Sequence[Any], source: RunSource) -> Any:
        """Return the form in which the history records a result that a person entered as plain data.

        ``args`` are the recorded arguments of the call, and ``source`` gives access to the run. Raises ``PayloadError``
        if the result does not fit the annotation of the function.
        """
        del args, source
        # Converted only to check it, on a copy: the history keeps plain data, which `read_result` converts again.
        codec.convert(deep_copy(result), self.result_type, label=f"the result of {self.name}")
        return result

    def parse_edited_input(self, edited_input: Any, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments from an input that a person entered as plain data.

        ``edited_input`` is a list of arguments, or an object of arguments by name. ``args`` are the recorded arguments.
        The result is a list and a dictionary. Raises ``PayloadError`` for arguments that the function does not take.
        """
        del args
        if not isinstance(edited_input, list | dict):
            raise PayloadError(
                f"the input of {self.name} must be a list of arguments, or an object of arguments by name"
            )
        positional, keywords = ([], edited_input) if isinstance(edited_input, dict) else (edited_input, {})
        self.decode(deep_copy(positional), deep_copy(keywords))
        return positional, keywords

    def decode(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert recorded arguments (plain data) to the types that the annotations of the function name.

        Returns ``(positional arguments, keyword arguments)``. Raises ``PayloadError`` for arguments that do not fit.
        """
        hints = self._annotations
        try:
            bound = self._bind(tuple(args), dict(kwargs))
        except TypeError as exc:
            raise PayloadError(str(exc)) from exc
        for name, value in bound.arguments.items():
            if name in hints:
                expected_type: Any = hints[name]
                match bound.signature.parameters[name].kind:
                    case inspect.Parameter.VAR_POSITIONAL:
                        expected_type = tuple[expected_type, ...]
                    case inspect.Parameter.VAR_KEYWORD:
                        expected_type = dict[str, expected_type]
                bound.arguments[name] = codec.convert(value, expected_type, label=f"argument {name!r} of {self.name}")
        return bound.args, bound.kwargs

    def read_input(self, attributes: Mapping[str, Any]) -> InputReading:
        """Return the input of a recorded call as the function reads it, with the defaults of missing arguments.

        ``attributes`` has ``args`` and perhaps ``kwargs``, as plain data. Raises ``PayloadError``.
        """
        args, kwargs = self.decode(deep_copy(attributes["args"]), deep_copy(attributes.get("kwargs", {})))
        bound = self._bind(args, kwargs)
        bound.apply_defaults()
        return to_reading(bound.arguments, {name: self._annotations.get(name, Any) for name in bound.arguments})

    def __repr__(self) -> str:
        return f"<activity {self.name}>"


class _Decorator(Protocol):
    """The type, for type checkers, of ``activity(...)`` with options: a decorator of plain and async functions."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Activity[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(fn: Callable[P, Awaitable[R]], /) -> Activity[P, R]: ...
@overload
def activity(fn: Callable[P, R], /) -> Activity[P, R]: ...
@overload
def activity(
    *,
    name: str | None = None,
    label: str | None = None,
    aliases: Sequence[str] = (),
    retry: RetryPolicy | None = None,
    schedule_to_start: timedelta | float | None = None,
    start_to_close: timedelta | float | None = None,
    schedule_to_close: timedelta | float | None = None,
    heartbeat: timedelta | float | None = None,
    queue: str | None = None,
    local: bool = False,
    atomic: bool = False,
    concurrency: int | None = None,
    rate: str | None = None,
    concurrency_per_key: int | None = None,
    concurrency_key: str | None = None,
    lane: Literal["process"] | None = None,
    by_hand: bool = True,
    shared_transaction: bool = False,
) -> _Decorator: ...
@answers_foreign_options("@activity", FOREIGN_OPTIONS)
def activity(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    label: str | None = None,
    aliases: Sequence[str] = (),
    retry: RetryPolicy | None = None,
    schedule_to_start: timedelta | float | None = None,
    start_to_close: timedelta | float | None = None,
    schedule_to_close: timedelta | float | None = None,
    heartbeat: timedelta | float | None = None,
    queue: str | None = None,
    local: bool = False,
    atomic: bool = False,
    concurrency: int | None = None,
    rate: str | None = None,
    concurrency_per_key: int | None = None,
    concurrency_key: str | None = None,
    lane: Literal["process"] | None = None,
    by_hand: bool = True,
    shared_transaction: bool = False,
) -> Any:
    """Make a plain function an activity.

    ``label`` is the name that people see; without it they see the docstring or the name. ``name`` identifies the
    activity in histories (default: module and function). ``aliases`` are names that it had before; open runs that hold
    one continue with it. All other options are those of ``ActivityOptions``. The reference page "Options of activities"
    has their units and defaults.

    By default an activity is external: it is recorded before it runs, runs at least once, and is retried as ``retry``
    says (by default without limit). With ``atomic=True`` its ORM writes, its result and the next step of the workflow
    commit together, exactly once on that database. An atomic activity must be a plain function, short, and use nothing
    but the database. Raises ``WorkflowDefinitionError`` for invalid options.
    """
    options = ActivityOptions(
        retry=retry,
        schedule_to_start=schedule_to_start,
        start_to_close=start_to_close,
        schedule_to_close=schedule_to_close,
        heartbeat=heartbeat,
        queue=queue,
        local=local,
        atomic=atomic,
        concurrency=concurrency,
        rate=rate,
        concurrency_per_key=concurrency_per_key,
        concurrency_key=concurrency_key,
        lane=lane,
        by_hand=by_hand,
        shared_transaction=shared_transaction,
    )
    if fn is not None and (options != ActivityOptions() or aliases or name is not None or label is not None):
        raise WorkflowDefinitionError("activity: pass the options as @activity(...), without the function")
    if name is not None:
        check_code_name(name, label="activity", reserved=False)
    label = fit_optional_label(label, owner="activity")
    if not isinstance(aliases, (list, tuple)):
        raise WorkflowDefinitionError(f"activity: aliases {quoted(aliases)} must be a list of names")
    for alias in aliases:
        check_code_name(alias, label="activity: an alias", reserved=False)

    def decorate(target: Callable[..., Any]) -> Activity[Any, Any]:
        if isinstance(target, Activity):
            raise WorkflowDefinitionError(f"activity: {target!r} is an activity already: decorate its function once")
        check_function(target, options, is_bare=fn is not None)
        new_activity: Activity[Any, Any] = Activity(target, options, name=name, label=label, aliases=aliases)
        check_annotations(new_activity)
        register(new_activity)
        return new_activity

    return decorate if fn is None else decorate(fn)


#: Activities by name and by alias; defining one again replaces it.
registry: dict[str, Activity[Any, Any]] = {}
#: Names of activities that are ``async def``.
async_names: set[str] = set()
#: Names of activities that run in processes of their own.
process_names: set[str] = set()
#: Limits of activities that have their own, by name.
limits_by_name: dict[str, Limits] = {}


def register(new_activity: Activity[Any, Any]) -> None:
    """Register an activity under its name and its aliases. It replaces an activity that had one of them."""
    aliases.ACTIVITIES.pop(new_activity.name, None)
    for name in (new_activity.name, *new_activity.aliases):
        if name != new_activity.name:
            if name in registry and registry[name].name == name:
                # A present name wins over an alias.
                continue
            aliases.ACTIVITIES[name] = new_activity.name
        registry[name] = new_activity
        (async_names.add if new_activity.is_async else async_names.discard)(name)
        (process_names.add if new_activity.options_set.lane else process_names.discard)(name)
        limits_by_name.pop(name, None)
        if (limits := new_activity.options_set.limits).is_limited:
            limits_by_name[name] = limits


#: Functions that import activities which are known by a path, by the prefix of their names (``task:``).
loaders: dict[str, Callable[[str], Activity[Any, Any]]] = {}


def is_available(name: str) -> bool:
    """Return True if this process has an activity of that name, or can import it."""
    if name in registry:
        return True
    try:
        find(name)
    except ActivityNotFound:
        return False
    return True


def find(name: str) -> Activity[Any, Any]:
    """Return the registered activity of that name. Raises ``ActivityNotFound``."""
    try:
        return registry[name]
    except KeyError:
        kind, colon, path = name.partition(":")
        # Not registered yet: a Django task can live in any module, and is imported by its path when it is first needed.
        if colon and kind in loaders:
            return loaders[kind](path)
        raise ActivityNotFound(
            f"no activity {name!r} in this process: is its module an `activities.py` or `workflows.py` of an installed app?"
        ) from None
