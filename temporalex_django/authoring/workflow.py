"""``Workflow``: a business process as one async function."""

from __future__ import annotations

import difflib
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, overload

from temporalex_django.authoring import backend, definition
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.type_hints import A, R, TypedWorkflow
from temporalex_django.core import aliases, attributes, current, payloads
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.determinism import guard
from temporalex_django.core.durations import to_seconds
from temporalex_django.core.failures import exception_message
from temporalex_django.core.history.activation import Definition
from temporalex_django.core.history.inputs import InputReading, to_reading
from temporalex_django.core.results import ContinueAsNew, Err, Ok
from temporalex_django.errors import (
    QueryFailed,
    TemporalexError,
    UnknownQuery,
    UnknownSignal,
    UnknownVersion,
    UnknownWorkflow,
    WorkflowDefinitionError,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.handle import WorkflowHandle
    from temporalex_django.authoring.type_hints import StartOptions, ValueOptions
    from temporalex_django.authoring.versions import VersionedWorkflow

#: Workflow classes and dispatchers by name; defining one again replaces it.
registry: dict[str, type[Workflow | VersionedWorkflow]] = {}
#: Modules that define a class of that name: two of them that Django discovers are an error of `manage.py check`.
defined_in: dict[str, dict[str, None]] = {}
_definitions = itertools.count(1)
_UNIONS = (typing.Union, types.UnionType)


class _Query(staticmethod):  # type: ignore[type-arg] # generic only in the stubs
    query_name: str


def query(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Answers a query of that name.

    ``(published state)``, or ``(published state, args)``, written over ``@staticmethod``.
    """
    if not isinstance(name, str) or not name or name.startswith("__"):
        raise WorkflowDefinitionError(
            f'query: write @query("name"), with a name that does not begin with "__", not {name!r}'
        )

    def decorate(fn: Callable[..., Any]) -> Any:
        query_method = _Query(fn.__func__ if isinstance(fn, staticmethod) else fn)
        query_method.query_name = name
        return query_method

    return decorate


class Workflow(Startable):
    """Subclass it and write ``async def run(self, args)``; see the tutorial.

    ``name`` identifies the class in histories: keep it when the class moves. ``task_queue`` is where its turns run.
    ``unique`` gives its runs ids of a business value. Timeouts are timedeltas or seconds, and so is ``retention``:
    workers that have the class delete a run, with its history, so long after its chain was closed. For chains that go
    on and on ``chain_retention`` is the same of their earlier runs, and of answers to messages that are as old: an
    update that is sent again with such an id acts again.

    ``internal``: code starts it, or a parent; nobody does from REST, the admin or a command. ``start_permission``
    (``app.codename``) is what a person needs to start it, beside the permission to start runs. ``redacted`` names
    fields that no person is shown, wherever they are in payloads: ``("card", "customer.email")``.

    ``stored`` names fields of its published state that SQL may read, with their types (``str``, ``int``, ``Decimal``):
    they are kept as plain text, whatever the codec, for ``with_workflow_state``.

    ``search_attributes`` names what its runs are found by, with types (``str``, ``int``, ``bool``, ``Decimal``,
    ``datetime``, ``date``, ``list[str]``): given at the start, set by ``api.set_search_attributes``, and plain text for
    whoever may look at a run.

    ``signals`` names those that its runs take, ``("paid", "cancelled")``: others are refused where they are sent, and a
    phase or wait for another one where it is opened. Without it a run takes any, and keeps those that nobody asks for.

    ``aliases`` are names that the class had once, the first one first: open runs that hold one go on with it, are found
    by it, and keep their ids from being started anew.

    ``unexpected_error`` says what an exception does that escapes ``run`` and that nobody raised on purpose: "fail"
    fails the run, "block" blocks it until the code is put right. Raised on purpose are failures of activities and
    children, and ``errors.ApplicationError``. None: the setting ``UNEXPECTED_ERROR`` says it. ``updates_in`` says where
    updates and decisions are judged: "request", in the process that sends them, or "workers". None: the setting
    ``UPDATES_IN`` says it.

    ``title`` is what people call it, and ``summary`` names the fields of its result that they are told when it is done.
    """

    task_queue: ClassVar[str] = "default"
    version: ClassVar[int] = 1
    tags: ClassVar[list[str]] = []
    metadata: ClassVar[dict[str, Any]] = {}
    execution_timeout: ClassVar[timedelta | float | None] = None
    run_timeout: ClassVar[timedelta | float | None] = None
    retention: ClassVar[timedelta | float | None] = None
    chain_retention: ClassVar[timedelta | float | None] = None
    internal: ClassVar[bool] = False
    start_permission: ClassVar[str | None] = None
    redacted: ClassVar[Sequence[str]] = ()
    stored: ClassVar[Mapping[str, type]] = {}
    search_attributes: ClassVar[Mapping[str, Any]] = {}
    signals: ClassVar[Sequence[str] | None] = None
    aliases: ClassVar[Sequence[str]] = ()
    unexpected_error: ClassVar[Literal["fail", "block"] | None] = None
    updates_in: ClassVar[Literal["request", "workers"] | None] = None
    title: ClassVar[str | None] = None
    summary: ClassVar[Sequence[str]] = ()

    #: Cancelled from outside, whatever it does; else it is asked to.
    cancels_at_once: ClassVar[bool] = False
    _queries: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    definition: ClassVar[Definition]
    defined_as: ClassVar[int] = 0  # classes are counted, so that one of two with the same name is known to be the newer

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:
            return
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        query_methods = [value for value in cls.__dict__.values() if isinstance(value, _Query)]
        problems = [
            *cls._problems(),
            *definition.duplicate_query_problems([value.query_name for value in query_methods]),
        ]
        problems += definition.signature_problems(
            {f"the query {q.query_name!r}": q.__func__ for q in query_methods}, "(state) or (state, args)", 1, 2
        )
        if problems:
            raise WorkflowDefinitionError(f"workflow {cls.__qualname__}: " + "; ".join(problems))
        cls._queries = {**cls._queries, **{value.query_name: value.__func__ for value in query_methods}}
        cls.definition = Definition(
            name=cls.name,
            version=cls.version,
            entry=_entry_point(cls),
            args_type=_args_type(cls),
            args_default=_args_default(cls),
            result_type=_result_type(cls),
            unexpected_error=cls.unexpected_error,
            signals=None if cls.signals is None else frozenset(cls.signals),
            tags=tuple(cls.tags) or None,
            metadata=dict(cls.metadata) or None,
            stored=dict(cls.stored),
            search_attributes=dict(cls.search_attributes),
        )
        cls.dispatched_by = None
        register(cls)

    @classmethod
    def _problems(cls) -> Iterator[str]:
        """What is wrong with the class, one sentence each."""
        return definition.problems(cls, Workflow)

    @classmethod
    def _external_close_signals(
        cls, status: str, started_at: datetime | None, ended_at: datetime
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Signals to send, with their facts, when somebody outside has closed a run of it."""
        del status, started_at, ended_at  # classes of processes read them
        return iter(())

    @classmethod
    def is_versioned(cls) -> bool:
        """False: a dispatcher is."""
        return False

    @classmethod
    def resolve_version(cls, version: int | None = None, **options: Any) -> tuple[int, type[Workflow]]:
        """Its own version, and itself. Raises ``UnknownVersion`` for any other."""
        del options  # of a dispatcher
        if version is not None and version != cls.version:
            raise UnknownVersion(f"{cls.name} has no version {version!r} (it is version {cls.version})")
        return cls.version, cls

    async def run(self, args: Any, /) -> Ok[Any] | Err[Any] | ContinueAsNew:
        """The workflow. Returns ``Ok(result)``, ``Err(reason)`` or ``ContinueAsNew(args)``."""
        raise WorkflowDefinitionError(f"{type(self).__name__} has no run")

    @staticmethod
    def handle_query(name: str, args: Any, state: Any) -> Any:
        """Override it to answer queries by name instead of ``@query``."""
        raise UnknownQuery(f"no query {name!r}")

    @classmethod
    def answer(cls, name: str, args: Any, state: Any) -> Any:
        """The answer to a query, from the published state; plain data.

        Raises ``UnknownQuery``, ``QueryFailed``, ``PayloadError``.
        """
        overrides_queries = cls.handle_query is not Workflow.handle_query
        fn = cls._queries.get(name) if isinstance(name, str) and not overrides_queries else None
        if not overrides_queries and fn is None:
            query_names = ", ".join(sorted(cls._queries)) or "none"
            raise UnknownQuery(f"{cls.name} does not answer the query {name!r} (it answers: {query_names})")
        args, state = payloads.to_plain(args, label=f"the arguments of query {name!r}"), deep_copy(state)
        guard.watch(cls)
        try:
            with current.outside_workflow("query"):
                value = Context().run(cls._call_query, fn, name, args, state)  # the same answer, whoever asks
        except UnknownQuery as exc:
            raise UnknownQuery(f"{cls.name} does not answer the query {name!r}: {exc}") from exc
        except TemporalexError as exc:
            raise QueryFailed(f"query {name!r} of {cls.name}: {exc}") from exc
        except Exception as exc:
            raise QueryFailed(
                f"query {name!r} of {cls.name} raised {type(exc).__name__}: {exception_message(exc)}"
            ) from exc
        return payloads.to_plain(value, label=f"the answer to query {name!r}")

    @classmethod
    def queries(cls) -> Mapping[str, Callable[..., Any]]:
        """The functions that answer, by the names of their queries; none where ``handle_query`` does."""
        return cls._queries if cls.handle_query is Workflow.handle_query else {}

    @classmethod
    def _call_query(cls, fn: Callable[..., Any] | None, name: str, args: Any, state: Any) -> Any:
        if fn is None:
            return cls.handle_query(name, args, state)
        return fn(state, args) if _takes_args(fn) else fn(state)

    if TYPE_CHECKING:  # what the facade does, in types

        @overload
        @classmethod
        def start(cls: type[TypedWorkflow[None, R]], **options: Unpack[StartOptions]) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        def start(cls: type[TypedWorkflow[A, R]], args: A, **options: Unpack[StartOptions]) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        def start(
            cls: type[TypedWorkflow[None, R]], value: str, /, **options: Unpack[ValueOptions]
        ) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        def start(
            cls: type[TypedWorkflow[A, R]], value: str, args: A, /, **options: Unpack[ValueOptions]
        ) -> WorkflowHandle[R]: ...
        @classmethod
        def start(cls, *positional: Any, **options: Any) -> Any: ...

        @overload
        @classmethod
        async def astart(cls: type[TypedWorkflow[None, R]], **options: Unpack[StartOptions]) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        async def astart(
            cls: type[TypedWorkflow[A, R]], args: A, **options: Unpack[StartOptions]
        ) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        async def astart(
            cls: type[TypedWorkflow[None, R]], value: str, /, **options: Unpack[ValueOptions]
        ) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        async def astart(
            cls: type[TypedWorkflow[A, R]], value: str, args: A, /, **options: Unpack[ValueOptions]
        ) -> WorkflowHandle[R]: ...
        @classmethod
        async def astart(cls, *positional: Any, **options: Any) -> Any: ...

        @classmethod
        def get(cls: type[TypedWorkflow[Any, R]], value: str, *, version: int | None = None) -> WorkflowHandle[R]: ...
        @classmethod
        async def aget(
            cls: type[TypedWorkflow[Any, R]], value: str, *, version: int | None = None
        ) -> WorkflowHandle[R]: ...

    @classmethod
    def signal_with_start(
        cls: type[TypedWorkflow[A, R]],
        signal: str,
        payload: Any = None,
        args: A | None = None,
        *,
        id: str,
        subject: Any = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
    ) -> WorkflowHandle[R]:
        """Send a signal to the open run of that id; start it first when there is none. Gives its handle.

        Both in the caller's transaction, like ``start`` and ``signal``, and in the name of ``by``, as there. ``args``,
        ``subject``, ``search_attributes`` and ``tags`` are of a run that is started: one that is there keeps its own.
        """
        workflow = cast("type[Workflow]", cls)
        handle = backend.backend(cls).signal_with_start(
            workflow,
            signal,
            payload,
            args,
            id=id,
            subject=subject,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
        )
        return cast("WorkflowHandle[R]", handle)

    @classmethod
    async def asignal_with_start(
        cls: type[TypedWorkflow[A, R]],
        signal: str,
        payload: Any = None,
        args: A | None = None,
        *,
        id: str,
        subject: Any = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
    ) -> WorkflowHandle[R]:
        """``signal_with_start`` for async code."""
        workflow = cast("type[Workflow]", cls)
        handle = await backend.backend(cls).asignal_with_start(
            workflow,
            signal,
            payload,
            args,
            id=id,
            subject=subject,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
        )
        return cast("WorkflowHandle[R]", handle)

    @classmethod
    def handle(cls: type[TypedWorkflow[Any, R]], id: str) -> WorkflowHandle[R]:
        """The handle of the newest chain of that id and class.

        Asks nobody: what does not exist says so when it is used.
        """
        return cast("WorkflowHandle[R]", backend.backend(cls).handle(id, workflow=cast("type[Workflow]", cls)))


def register(cls: type[Workflow | VersionedWorkflow]) -> None:
    """Make it known by its name."""
    cls.defined_as = next(_definitions)
    registry[cls.name] = cls
    aliases.WORKFLOWS.pop(cls.name, None)
    aliases.WORKFLOWS.update((alias, cls.name) for alias in getattr(cls, "aliases", ()) if alias not in registry)
    defined_in.setdefault(cls.name, {})[cls.__module__] = None


def adopt(cls: type[Workflow], dispatcher: type[VersionedWorkflow]) -> None:
    """Make a class a version of ``dispatcher``: it is known by that name and its number from now on."""
    if registry.get(cls.name) is cls:
        del registry[cls.name]
        defined_in[cls.name].pop(cls.__module__, None)
    cls.name = dispatcher.name
    cls.definition = replace(cls.definition, name=cls.name)
    cls.dispatched_by = dispatcher


def find(name: str) -> type[Workflow | VersionedWorkflow]:
    """What is registered under the name, or had it once. Raises ``UnknownWorkflow``, with the nearest names."""
    try:
        return registry[aliases.current_name(name)]
    except (KeyError, TypeError):
        matches = difflib.get_close_matches(str(name), registry, n=1)
        advice = (
            f": did you mean {matches[0]!r}?" if matches else ": is its module a `workflows.py` of an installed app?"
        )
        raise UnknownWorkflow(f"no workflow {name!r} in this process{advice}") from None


def find_or_none(name: str) -> type[Workflow | VersionedWorkflow] | None:
    """The same; None for a name that this process does not have."""
    return registry.get(aliases.current_name(name))


def named_classes() -> list[tuple[str, type[Workflow | VersionedWorkflow]]]:
    """Every name that a run may hold, those that classes had once among them, with what is behind it."""
    aliased = ((alias, registry[name]) for alias, name in aliases.WORKFLOWS.items() if name in registry)
    return [*registry.items(), *aliased]


def class_for_run(name: str, version: int) -> type[Workflow]:
    """The class that a run of that name and version goes on with: of a dispatcher that of its version.

    A class that stands for itself takes the runs of all its versions: it has patches for what differs. Raises
    ``UnknownWorkflow``.
    """
    try:
        workflow_class = find(name)
        return workflow_class if issubclass(workflow_class, Workflow) else workflow_class.resolve_version(version)[1]
    except (UnknownWorkflow, UnknownVersion) as exc:
        raise UnknownWorkflow(
            f"a run of version {version} of {name!r} finds no class here ({exc}): put the class back, or give the one that follows it "
            f"`name = {name!r}`; the run goes on when a worker that has it starts"
        ) from None


def find_version(name: str, version: int) -> type[Workflow] | None:
    """The class of a run, when this process has it in the version of the run."""
    if find_or_none(name) is None:
        return None
    try:
        cls = class_for_run(name, version)
    except UnknownWorkflow:
        return None
    return cls if cls.version == version else None


def signal_sender(name: str, version: int | None = None) -> Any:
    """Who sends the Django signals of a run: its class, or its name where this process does not have it."""
    sender = find_or_none(name) or name
    if isinstance(sender, str) or issubclass(sender, Workflow):
        return sender
    return sender.versions.get(version, sender) if version is not None else sender


def concrete_classes() -> Iterator[type[Workflow]]:
    """Every class that runs can have, versions of dispatchers among them."""
    for workflow_class in registry.values():
        if issubclass(workflow_class, Workflow):
            yield workflow_class
        else:
            yield from workflow_class.versions.values()


def registered_versions() -> dict[str, list[int]]:
    """The versions that this process has, by name."""
    versions: dict[str, list[int]] = {}
    for cls in concrete_classes():
        versions.setdefault(cls.name, []).append(cls.version)
    return versions | {old: versions[new] for old, new in aliases.WORKFLOWS.items() if new in versions}


def fork_options(cls: type[Workflow], *, tags: Sequence[str]) -> dict[str, Any]:
    """The start options of a fork of a run that has these tags: it keeps them, beside those that its class has now."""
    return start_options(cls) | {"tags": [*dict.fromkeys([*cls.tags, *tags])] or None}


def start_options(
    cls: type[Workflow], *, search_attributes: Mapping[str, Any] | None = None, tags: Sequence[str] | None = None
) -> dict[str, Any]:
    """What a class says about each run of it that is started, as far as it says anything; timeouts are in seconds.

    With what the caller says, who may find it by more than that. Raises ``PayloadError`` for what does not fit.
    """
    timeouts = {"execution_timeout": cls.execution_timeout, "run_timeout": cls.run_timeout}
    options = {name: to_seconds(value) for name, value in timeouts.items() if value is not None}
    lists: dict[str, Any] = {"tags": list(cls.tags), "metadata": dict(cls.metadata)}
    if tags is not None:
        lists["tags"] = definition.merge_tags(cls, tags)
    if search_attributes is not None:
        attribute_values = attributes.encode_all(search_attributes, cls.search_attributes, label=f"start of {cls.name}")
        lists["search_attributes"] = attributes.merge({}, attribute_values)
    return {
        "workflow": cls.name,
        "version": cls.version,
        "queue": cls.task_queue,
        "scope": "global" if cls.unique is None else cls.unique.scope,
        **options,
        **{name: value for name, value in lists.items() if value},
    }


def decode_result(cls: type[Workflow], result: Any) -> Any:
    """A result (plain data) as ``run`` of the class is annotated. Raises ``PayloadError``."""
    return payloads.convert(result, cls.definition.result_type, label=f"the result of {cls.name}")


def input_or_default(cls: type[Workflow], args: Any) -> Any:
    """The input of a start; without one the default of ``run``, where it has one."""
    return deep_copy(cls.definition.args_default) if args is None else args


def read_input(cls: type[Workflow], attributes: Mapping[str, Any]) -> InputReading:
    """The input of a child (plain data) as ``run`` of the class reads it. Raises ``PayloadError``."""
    label, args_type = f"the input of {cls.name}", cls.definition.args_type
    return to_reading(
        {"args": payloads.convert(deep_copy(attributes["args"]), args_type, label=label)}, {"args": args_type}
    )


def require_signal(cls: type[Workflow], name: str) -> None:
    """Raises ``UnknownSignal`` for one that a class which declares its signals does not have."""
    if cls.signals is None or name in cls.signals:
        return
    declared = sorted(cls.signals)
    matches = difflib.get_close_matches(str(name), declared, n=1)
    advice = f": did you mean {matches[0]!r}?" if matches else ""
    raise UnknownSignal(
        f"{cls.name} takes no signal {name!r}{advice} (it takes: {', '.join(declared) or 'none'})", known=declared
    )


def newest_class(workflow_class: type[Workflow], definition_number: int) -> type[Workflow]:
    """What a run of ``workflow_class`` goes on with.

    A class of its name and version that was defined after ``definition_number``, else itself.
    """
    current_class = registry.get(workflow_class.name)
    if current_class is None or current_class.defined_as <= definition_number:
        return workflow_class
    return class_for_run(workflow_class.name, workflow_class.version)


def last_definition_number() -> int:
    """The number of the class that was defined last."""
    return max((cls.defined_as for cls in registry.values()), default=0)


def _entry_point(cls: type[Workflow]) -> Callable[[Any], Any]:
    def entry(args: Any) -> Any:
        guard.watch(cls)
        return cls().run(args)

    return entry


def _args_type(cls: type[Workflow]) -> Any:
    parameters = [name for name in inspect.signature(cls.run).parameters if name != "self"]
    return payloads.resolve_hints(cls.run).get(parameters[0], Any) if parameters else Any


def _args_default(cls: type[Workflow]) -> Any:
    parameters = [parameter for parameter in inspect.signature(cls.run).parameters.values() if parameter.name != "self"]
    default = parameters[0].default if parameters else None
    return None if default is inspect.Parameter.empty else default


def _result_type(cls: type[Workflow]) -> Any:
    """``T`` of ``run(...) -> Ok[T] | …``; Any where it does not say."""
    annotation = payloads.resolve_hints(cls.run).get("return", Any)
    for part in typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,):
        if typing.get_origin(part) is Ok:
            (result_type,) = typing.get_args(part)
            return Any if isinstance(result_type, typing.TypeVar) else result_type
    return Any


def _takes_args(fn: Callable[..., Any]) -> bool:
    try:
        kinds = [p.kind for p in inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in positional for kind in kinds) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds
