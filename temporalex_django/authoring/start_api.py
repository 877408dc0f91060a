"""The class methods of workflows by which code starts and reaches runs, by an id or by a value.

A class with ``unique``, which makes ids from values, has ``start(value, args)``, ``resume``, ``get``, ``list`` and
``cancel``, each with an async twin. Without ``unique``, and with scope ``none``, where several runs share a value, only
``start`` and ``list`` exist. The attribute of a method that does not exist is missing, so ``hasattr`` is False.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Protocol, Required, TypedDict, TypeVar
from uuid import UUID

from temporalex_django.authoring import backend, run_filters
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.foreign_options import unknown_start_options
from temporalex_django.authoring.requests import OnClosed, OnConflict, StartRequest
from temporalex_django.core.names import key_text
from temporalex_django.core.results import Async, ContinueAsNew, Err, Ok, Reply, Stop
from temporalex_django.errors import InvalidId, NotCancellable, WorkflowClosed

if TYPE_CHECKING:
    from temporalex_django.authoring.activity_options import Unique
    from temporalex_django.authoring.definition import DefinitionPlace
    from temporalex_django.authoring.workflow import Workflow


_UNSET: Any = object()
#: Methods by which other packages start a task.
_SENDERS = ("delay", "apply_async", "enqueue", "aenqueue", "submit", "defer", "execute", "send")
M = TypeVar("M", bound="Callable[..., Any]")


class _ConditionalMethod:
    """A descriptor for a class method that only some workflow classes have; on others, it raises ``AttributeError``.

    A version of a dispatcher has none of these methods. With ``needs="one"``, the class must have a ``unique`` in whose
    scope a value means one run. With ``needs="nothing"``, every other class has the method. ``fn`` is the method; it
    gets the class as its first argument.
    """

    def __init__(self, fn: Callable[..., Any], *, needs: Literal["nothing", "one"] = "one") -> None:
        self._fn = fn
        self._needs = needs
        self.__doc__ = fn.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    # A descriptor decides at each access, because `unique` and `dispatched_by` are set after the class was made.
    def __get__(self, instance: object, owner: type[Startable]) -> Callable[..., Any]:
        unique = owner.unique
        is_unavailable = self._needs == "one" and (unique is None or unique.scope == "none")
        if is_unavailable or owner.dispatched_by is not None:
            raise AttributeError(_missing_message(owner, self._name))
        return MethodType(self._fn, owner)


def _missing_message(owner: type[Startable], name: str) -> str:
    if owner.dispatched_by is not None:
        return f"{owner.__name__} is a version of {owner.dispatched_by.__name__}: use {owner.dispatched_by.__name__}.{name}"
    if owner.unique is None:
        advice = f": use {owner.__name__}.handle(id)" if name in ("get", "aget") else ""
        return f"{owner.__name__} has no `unique`, so it has no {name!r}{advice}"
    return f"{owner.__name__} has scope 'none': several runs share a value, so it has no {name!r}"


class ForeignMethod:
    """A descriptor for a method by which other packages start a task; it raises ``AttributeError`` with ours."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[Startable]) -> Any:
        raise AttributeError(
            f"workflow {owner.__name__} has no {self._name!r}: write {owner.__name__}.start(args), with start_delay= or "
            "start_at= for later, and a Schedule for each day"
        )


class ValueOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``Workflow.start(value, args)``, for classes with ``unique``."""

    subject: Any
    version: int | None
    telemetry: Mapping[str, Any] | None
    search_attributes: Mapping[str, Any] | None
    tags: Sequence[str] | None
    by: Person | None
    start_at: datetime | None
    start_delay: timedelta | float | None
    start_before: datetime | None
    on_conflict: OnConflict
    on_closed: OnClosed
    debounce: timedelta | float | None
    throttle: tuple[Any, ...] | None
    headers: Mapping[str, str] | None


class StartOptions(ValueOptions, total=False):
    """The types of the keyword arguments of ``Workflow.start(args)``, with ``id`` and ``value`` in addition."""

    id: str | None
    value: str | int | UUID | None


class SignalStartOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``Workflow.signal_with_start``; a dispatcher takes ``version`` as well."""

    id: Required[str]
    subject: Any
    version: int | None
    search_attributes: Mapping[str, Any] | None
    tags: Sequence[str] | None
    by: Person | None
    start_at: datetime | None
    start_delay: timedelta | float | None
    start_before: datetime | None
    headers: Mapping[str, str] | None


def _has_options(declared: Any) -> Callable[[M], M]:
    """Show the options of a TypedDict in the signature of a method that takes them as ``**options``.

    Their defaults are those of ``StartRequest``.
    """

    def decorate(method: M) -> M:
        signature = inspect.signature(method)
        *before, further = signature.parameters.values()
        # Texts, as the annotations of the method itself are.
        types = {name: hint.__forward_arg__ for name, hint in declared.__annotations__.items()}
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(name), annotation=types[name])
            for name in types
            if name not in signature.parameters
        ]
        method.__signature__ = signature.replace(parameters=[*before, *options, further])  # type: ignore[attr-defined]
        method.__annotations__ |= types
        return method

    return decorate


def _default(option: str) -> Any:
    field = StartRequest.__dataclass_fields__.get(option)
    return None if field is None else field.default


def _pop_options(options: dict[str, Any], declared: Any) -> dict[str, Any]:
    """Remove from ``options`` those that a TypedDict declares, and return them."""
    return {name: options.pop(name) for name in declared.__annotations__ if name in options}


def _takes_arguments_of(build: Callable[..., Any]) -> Callable[[M], M]:
    """Give a method the name, docstring and signature of ``build``, whose request it performs."""

    def decorate(method: M) -> M:
        wraps(build)(method)
        method.__annotations__ = {**build.__annotations__, "return": Any}
        method.__signature__ = inspect.signature(build).replace(return_annotation=Any)  # type: ignore[attr-defined]
        return method

    return decorate


class Startable:
    """The base of workflow classes and of dispatchers over their versions: class methods that start and find runs."""

    name: ClassVar[str]
    unique: ClassVar[Unique | None] = None
    #: Name of the engine that runs a graph, even in processes where Django's backend is bound.
    engine: ClassVar[str | None] = None
    #: The dispatcher of which the class is a version, or None.
    dispatched_by: ClassVar[type[Startable] | None] = None
    #: The place of the definition in the source.
    definition_place: ClassVar[DefinitionPlace]

    if not TYPE_CHECKING:  # type checkers report these names themselves
        delay, apply_async, enqueue, aenqueue, submit, defer, execute, send = map(ForeignMethod, _SENDERS)

    if TYPE_CHECKING:  # both kinds define these; an ABC would force its metaclass on users' classes

        @classmethod
        def is_versioned(cls) -> bool:
            """Return True if the class is a dispatcher over versions."""

        @classmethod
        def require_registered(cls) -> None:
            """Raise ``WorkflowDefinitionError`` if another class has been defined under its name since."""

        @classmethod
        def resolve_version(cls, version: int | None = None, **options: Any) -> tuple[int, type[Workflow]]:
            """Return ``(number, class)`` of the version that a start would run. Raises ``UnknownVersion``.

            ``options`` are those that a dispatcher passes to its ``version_for``.
            """

    @classmethod
    def choose(cls, version: int | None, options: dict[str, Any]) -> type[Workflow]:
        """Return the workflow class that a start with this version and these options would run.

        Without a version, a dispatcher chooses one. Raises ``UnknownVersion``, and ``TypeError`` for options that the
        class does not have.
        """
        if options and not cls.is_versioned():
            raise TypeError(unknown_start_options(f"{cls.__name__}.start", options, inspect.signature(cls._start)))
        return cls.resolve_version(version, **options)[1]

    @_has_options(ValueOptions)
    def _start(
        cls: Any,  # noqa: N805 - bound to the class by _ConditionalMethod
        *positional: Any,
        args: Any = _UNSET,
        id: str | None = None,
        value: str | int | UUID | None = None,
        **options: Any,
    ) -> StartRequest:
        """Start a run and return its handle.

        The run is written on the caller's connection. Inside a transaction it commits or rolls back with it. Nothing
        that exists is locked.

        Call it as ``start(args, id=...)``; without ``id`` one is generated. With ``unique`` call it as ``start(value,
        args)``; the id is ``key::value``. ``args`` is the input of the run. ``subject`` links the run to a model
        instance. A dispatcher takes ``version`` and further options for its ``version_for``. ``telemetry`` (JSON) is
        merged into every Django signal about the steps of a graph. ``search_attributes`` are values of attributes that
        the class declares. ``tags`` are added to those of the class.

        The run exists at once. Its code begins at ``start_at``, a datetime with a time zone, or after ``start_delay``,
        a timedelta or seconds; a time that has passed means at once. A run that has not begun by ``start_before`` is
        timed out. ``execution_timeout`` and ``run_timeout`` count from the time at which it begins.

        ``on_conflict`` decides if an open run of the class has the id: "fail" raises ``AlreadyRunning``,
        "use_existing" returns its handle, and "terminate_existing" terminates it and starts the new run, in one
        transaction. ``on_closed`` decides if a run with the id has ended: "allow" starts another one, "failed_only"
        only if the last one has no result, and "reject" never; otherwise ``AlreadyEnded`` is raised. The attribute
        ``start_outcome`` of the handle says what happened: "started", "existing", "replaced" or "debounced".

        With ``debounce``, a timedelta or seconds, the run begins after that time. A further start with ``debounce`` and
        the same id replaces the input of a run that has not begun, and the waiting time restarts. ``throttle`` is
        ``(count, period)`` or ``(count, period, key)``: at most that many runs of the class, or of those with the key,
        begin in any such period; others begin later. Until the transaction ends, it locks the row that counts
        them.

        ``headers`` are texts by name, at most 4 KB in all, which travel with the run; ``api.headers()`` returns them.

        ``by`` is the user in whose name the run is started. The user is recorded in the audit log, and needs the
        permission ``temporalex_django.start_instance``; to use or to terminate the open run, also that to view or to
        terminate it. Raises ``AlreadyRunning``, ``InvalidId``, ``InvalidStart``, ``InvalidHeaders``,
        ``UnknownVersion``, ``PayloadError``; nothing is written then.
        """
        declared = _pop_options(options, ValueOptions)
        workflow_class = cls.choose(declared.pop("version", None), options)
        value, args = parse_start_arguments(workflow_class, positional, args=args, id=id, value=value)
        return StartRequest(workflow=workflow_class, args=args, id=id, value=value, **declared)

    @_takes_arguments_of(_start)
    def _start_now(cls: Any, *positional: Any, **options: Any) -> Any:  # noqa: N805
        request = Startable._start(cls, *positional, **options)
        return backend.backend(request.workflow).start(request)

    @_takes_arguments_of(_start)
    async def _start_in_async(cls: Any, *positional: Any, **options: Any) -> Any:  # noqa: N805
        request = Startable._start(cls, *positional, **options)
        return await backend.backend(request.workflow).astart(request)

    start: ClassVar[Any] = _ConditionalMethod(_start_now, needs="nothing")
    astart: ClassVar[Any] = _ConditionalMethod(_start_in_async, needs="nothing")

    def _start_many(cls: Any, items: Iterable[Any], *, by: Person | None = None) -> list[StartRequest]:  # noqa: N805
        """Start many runs in one transaction, and return a list in the order of ``items``.

        An item is the input of a run. An item that is a tuple is always ``(input, options)``, where ``options`` are
        those of ``start`` without ``by``, such as ``{"id": "order-42"}``. Write an input that is a tuple as ``(input,
        {})``. A class with ``unique`` needs the option ``value`` or ``id``.

        The list has a handle for each run, or ``AlreadyRunning`` if an open run has its id. Every other error is raised
        before anything is written; it is one of ``start``. Inside a transaction, all runs commit or roll back with it.
        A thousand runs take two statements; those with ``on_conflict``, ``on_closed``, ``debounce`` or
        ``throttle`` are started one by one. Each
        start in the name of ``by`` is audited.
        """
        return [_request_of_item(cls, item, by) for item in items]

    @_takes_arguments_of(_start_many)
    def _start_many_now(cls: Any, *positional: Any, **options: Any) -> Any:  # noqa: N805
        return backend.backend(cls).start_many(Startable._start_many(cls, *positional, **options))

    @_takes_arguments_of(_start_many)
    async def _start_many_in_async(cls: Any, *positional: Any, **options: Any) -> Any:  # noqa: N805
        return await backend.backend(cls).astart_many(Startable._start_many(cls, *positional, **options))

    start_many: ClassVar[Any] = _ConditionalMethod(_start_many_now, needs="nothing")
    astart_many: ClassVar[Any] = _ConditionalMethod(_start_many_in_async, needs="nothing")

    @_has_options(SignalStartOptions)
    def _signal_with_start(
        cls: Any,  # noqa: N805 - made a class method below
        signal: str,
        payload: Any = None,
        args: Any = None,
        *,
        id: str,
        **options: Any,
    ) -> tuple[StartRequest, str, Any]:
        """Send a signal to the open run with the business id ``id``, after a start if there is none.

        Returns the handle.

        Both happen in the caller's transaction and in the name of ``by``, as in ``start`` and ``signal``. ``args``,
        ``subject``, ``search_attributes``, ``tags`` and the times of the start apply to a run that is started; an
        existing run keeps its own. A run that begins later gets the signal then. ``headers`` are those of the signal,
        and of a run that is started.
        The open run may have any version; ``version`` and further ``options`` choose that of a run that is started.
        """
        declared = _pop_options(options, SignalStartOptions)
        workflow_class = cls.choose(declared.pop("version", None), options)
        request = StartRequest(workflow=workflow_class, args=args, id=id, **declared)
        return request, signal, payload

    @_takes_arguments_of(_signal_with_start)
    def _signal_with_start_now(cls: Any, *positional: Any, **options: Any) -> Any:  # noqa: N805
        return backend.backend(cls).signal_with_start(*Startable._signal_with_start(cls, *positional, **options))

    @_takes_arguments_of(_signal_with_start)
    async def _signal_with_start_in_async(cls: Any, *positional: Any, **options: Any) -> Any:  # noqa: N805
        parts = Startable._signal_with_start(cls, *positional, **options)
        return await backend.backend(cls).asignal_with_start(*parts)

    signal_with_start: ClassVar[Any] = classmethod(_signal_with_start_now)
    asignal_with_start: ClassVar[Any] = classmethod(_signal_with_start_in_async)

    def _resume(
        cls: Any,  # noqa: N805
        value: str | int | UUID,
        event: str,
        step: Any = None,
        data: Any = None,
        *,
        by: Any = None,
        version: int | None = None,
    ) -> None:
        """Give a step of a graph the event that it is waiting for. ``unique`` makes the id of the run from ``value``.

        ``step`` (a step or its key) selects the step if several wait for the event. ``data`` is stored under the step's
        key, with the person who decided (``by``). ``version`` selects one of several open runs. Raises
        ``WorkflowNotFound``, ``ResumeRefused``, ``ActionNotPermitted``, ``WorkflowClosed``, ``PayloadError`` and
        ``UpdateTimeout``; nothing changes then.
        """
        cls.get(value, version=version).resume(event, step=step, data=data, by=by)

    async def _aresume(
        cls: Any,  # noqa: N805
        value: str | int | UUID,
        event: str,
        step: Any = None,
        data: Any = None,
        *,
        by: Any = None,
        version: int | None = None,
    ) -> None:
        """Give a step of a graph the event that it is waiting for, from async code.

        ``unique`` makes the id of the run from ``value``. ``step`` (a step or its key) selects the step if several wait
        for the event. ``data`` is stored under the step's key, with the person who decided (``by``). ``version``
        selects one of several open runs.
        """
        handle = await cls.aget(value, version=version)
        await handle.aresume(event, step=step, data=data, by=by)

    def _get(cls: Any, value: str | int | UUID, *, version: int | None = None) -> Any:  # noqa: N805
        """Return the handle of the newest run whose id ``unique`` makes from ``value``.

        With scope ``version`` several runs may be open, so ``version`` selects one; ``UnknownVersion`` is raised
        without it. Raises ``WorkflowNotFound``, ``InvalidId``.
        """
        return backend.backend(cls).get(cls, _id_for_value(cls, value), version=version)

    async def _aget(cls: Any, value: str | int | UUID, *, version: int | None = None) -> Any:  # noqa: N805
        """Return the handle of the newest run whose id ``unique`` makes from ``value``, from async code.

        With scope ``version`` several runs may be open, so ``version`` selects one. Raises ``WorkflowNotFound``,
        ``InvalidId`` and ``UnknownVersion``.
        """
        return await backend.backend(cls).aget(cls, _id_for_value(cls, value), version=version)

    def _list(cls: Any, *, by: Person | None = None, **filters: Any) -> Iterator[Any]:  # noqa: N805
        """Return handles of the newest runs of this class, in all versions.

        They are read in pages while you iterate. A run must fit all filters:

        - ``id``, ``id_prefix`` (the start of the id) and ``value`` (of a class with ``unique``)
        - ``status`` (one or a list), ``version``, ``queue``, ``tag`` and ``subject`` (a saved object)
        - ``blocked``, ``paused`` and ``stuck``: True or False
        - ``waits``: ``"message"``, ``"activity"``, ``"timer"`` or ``"child"``
        - ``cause``: why runs failed or are blocked, or why one of their activities fails, as ``doctor`` groups them
        - ``created_after`` and ``closed_after`` (at that time or later), ``created_before`` and ``closed_before``
          (earlier): datetimes with a time zone
        - ``attributes``: a mapping of declared search attributes to values, such as
          ``{"total__gt": 1000, "customer": "x"}``, with ``__gt``, ``__gte``, ``__lt`` and ``__lte`` for numbers and
          times, and ``__prefix`` for texts

        ``order`` is ``"-started"`` (the default: last started first), ``"started"``, ``"closed"`` or ``"-closed"``
        (closed runs, by the time they closed), ``"due"`` or ``"-due"`` (runs with a due time, by that time).

        ``by`` is the user in whose name you list; the user sees only the runs that the access policy allows. Raises
        ``TypeError`` for other filters, ``ValueError`` for a value that a filter cannot have, ``InvalidId`` and
        ``ActionNotPermitted``.
        """
        return backend.backend(cls).list(cls, run_filters.check_filters(cls, filters), by=by)

    async def _alist(cls: Any, *, by: Person | None = None, **filters: Any) -> Sequence[Any]:  # noqa: N805
        """Return a list of handles of the newest runs of this class that fit all filters, from async code.

        The filters, ``order`` and errors are those of the method ``list``. ``by`` is the user in whose name you list.
        """
        return await backend.backend(cls).alist(cls, run_filters.check_filters(cls, filters), by=by)

    def _cancel(
        cls: Any,  # noqa: N805
        value: str | int | UUID,
        *,
        version: int | None = None,
        by: Person | None = None,
    ) -> None:
        """Cancel the newest run whose id ``unique`` makes from ``value``.

        A graph is closed at once, while a function workflow is asked to end. ``version`` selects one of several open
        runs. Raises ``WorkflowNotFound``, and ``NotCancellable`` if the run is closed.
        """
        try:
            cls.get(value, version=version).cancel(by=by)
        except WorkflowClosed as exc:
            raise NotCancellable(exc.message) from None

    async def _acancel(
        cls: Any,  # noqa: N805
        value: str | int | UUID,
        *,
        version: int | None = None,
        by: Person | None = None,
    ) -> None:
        """Cancel the newest run whose id ``unique`` makes from ``value``, from async code.

        A graph is closed at once, while a function workflow is asked to end. ``version`` selects one of several open
        runs. Raises ``WorkflowNotFound``, and ``NotCancellable`` if the run is closed.
        """
        handle = await cls.aget(value, version=version)
        try:
            await handle.acancel(by=by)
        except WorkflowClosed as exc:
            raise NotCancellable(exc.message) from None

    resume: ClassVar[Any] = _ConditionalMethod(_resume)
    aresume: ClassVar[Any] = _ConditionalMethod(_aresume)
    get: ClassVar[Any] = _ConditionalMethod(_get)
    aget: ClassVar[Any] = _ConditionalMethod(_aget)
    cancel: ClassVar[Any] = _ConditionalMethod(_cancel)
    acancel: ClassVar[Any] = _ConditionalMethod(_acancel)
    list: ClassVar[Any] = _ConditionalMethod(_list, needs="nothing")
    alist: ClassVar[Any] = _ConditionalMethod(_alist, needs="nothing")


#: Names of the methods above; an attribute of a workflow class would hide them.
START_API = frozenset(
    {
        "start",
        "astart",
        "start_many",
        "astart_many",
        "resume",
        "aresume",
        "get",
        "aget",
        "list",
        "alist",
        "cancel",
        "acancel",
        "choose",
    }
)


def _request_of_item(cls: Any, item: Any, by: Person | None) -> StartRequest:
    """Take an input or ``(input, options)``. Raises ``TypeError`` for another tuple."""
    if not isinstance(item, tuple):
        return Startable._start(cls, args=item, by=by)  # noqa: SLF001 - of this module
    if len(item) != 2 or not isinstance(item[1], Mapping) or "by" in item[1] or "args" in item[1]:
        raise TypeError(
            f"{cls.__name__}.start_many: a tuple is (input, options), where options is a mapping of the options of start "
            f"without by; write an input that is a tuple as (input, {{}}), not {item!r}"
        )
    return Startable._start(cls, args=item[0], by=by, **item[1])  # noqa: SLF001 - as above


def parse_start_arguments(
    cls: type[Workflow], positional: tuple[Any, ...], *, args: Any, id: str | None, value: str | int | UUID | None
) -> tuple[str | None, Any]:
    """Return ``(value or None, input of the run)`` from the arguments of a call of ``start``.

    ``unique`` makes the id from the value. ``positional`` are the positional arguments of the call; the others are its
    keyword arguments. Raises ``InvalidId`` if the value is missing, and ``TypeError`` for too many arguments.
    """
    # With `unique` the first positional argument is the value, unless the caller has named the run otherwise.
    if cls.unique is not None and value is None and id is None:
        if not positional:
            raise InvalidId(f"{cls.name} declares `unique`: start it with a value, as start(value, args)")
        value, *rest = positional
    else:
        rest = [*positional]
    if len(rest) > 1 or (rest and args is not _UNSET):
        form = "(value, args)" if cls.unique is not None else "(args, id=...)"
        raise TypeError(f"call it as {cls.name}.start{form}: the input of a run is one value")
    return key_text(value), rest[0] if rest else None if args is _UNSET else args


def _id_for_value(cls: type[Startable], value: str | int | UUID) -> str:
    assert cls.unique is not None
    return cls.unique.id_for(key_text(value))


# --- type hints -------------------------------------------------------------------------------------------------------
#
# Types for type checkers: the input of a workflow's ``run``, and the result of its handle.


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    #: Type of a handle's result. Any by default, so that plain ``WorkflowHandle`` is a valid annotation.
    Result_co = TypeVarWithDefault("Result_co", covariant=True, default=Any)
else:
    Result_co = TypeVar("Result_co", covariant=True)

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
A_contra = TypeVar("A_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class UpdateOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``WorkflowHandle.update``, without ``returns``."""

    id: str | None
    timeout: float | None
    mode: str
    by: Person | None
    headers: Mapping[str, str] | None


class QueryOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``WorkflowHandle.query``, without ``returns``."""

    fresh: bool
    by: Person | None


_HandlerValue = Reply[T, Any] | Stop[Any, T2] | Async[T3, Any]
#: The handler of an update. Its three parameters are the types of the answers of ``Reply``, ``Stop`` and ``Async``.
UpdateFunction = Callable[..., _HandlerValue[T, T2, T3]] | Callable[..., Awaitable[_HandlerValue[T, T2, T3]]]


class TypedTask(Protocol[P, R_co]):
    """A Django task whose function takes ``P`` and returns ``R``; the stubs of Django say so."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class TypedWorkflow(Protocol[A_contra, R_co]):
    """A workflow class whose ``run`` takes ``A`` and returns ``Ok[R]``; without annotations both are Any."""

    async def run(self, args: A_contra, /) -> Ok[R_co] | Err[Any] | ContinueAsNew: ...
