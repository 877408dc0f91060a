"""``Workflow``: a business process as one async function."""

from __future__ import annotations

import difflib
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, overload
from uuid import UUID

from temporalex_django.authoring import backend, definition, queries
from temporalex_django.authoring import definition as redefinitions
from temporalex_django.authoring.start_api import A, R, Startable, TypedWorkflow
from temporalex_django.core import current
from temporalex_django.core import names as aliases
from temporalex_django.core.determinism import guard
from temporalex_django.core.failures import exception_message, exception_name
from temporalex_django.core.history.activation import Definition
from temporalex_django.core.history.events import InputReading, to_reading
from temporalex_django.core.names import to_seconds
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads import search_attributes as attributes
from temporalex_django.core.payloads.codec import annotation_problems, deep_copy
from temporalex_django.core.payloads.round_trip import encode_lossless, require_readable
from temporalex_django.core.results import ContinueAsNew, Err, Ok
from temporalex_django.errors import (
    AlreadyRunning,
    QueryFailed,
    TemporalexError,
    UnknownQuery,
    UnknownSignal,
    UnknownVersion,
    UnknownWorkflow,
    WorkflowDefinitionError,
)
from temporalex_django.interceptors import QueryCall
from temporalex_django.interceptors.chain import around, chain

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.handle import WorkflowHandle
    from temporalex_django.authoring.start_api import SignalStartOptions, StartOptions, ValueOptions
    from temporalex_django.authoring.versions import VersionedWorkflow

#: Workflow classes and dispatchers by name; defining one again replaces it.
registry: dict[str, type[Workflow | VersionedWorkflow]] = {}
_definitions = itertools.count(1)
_UNIONS = (typing.Union, types.UnionType)


class Workflow(Startable):
    """The base class of workflows: subclass it and write ``async def run(self, args)``; see the tutorial.

    ``name`` identifies the class in histories: keep it when the class moves. ``task_queue`` is the queue of its turns.
    ``unique`` makes the ids of its runs from a value. Timeouts are timedeltas or seconds.

    Workers that have the class delete a closed chain with its histories after the time ``retention``. For chains that
    never end, they delete earlier runs and answers to messages after the time ``chain_retention``. An update that is
    then sent again with its id acts again.

    ``internal`` classes are started by code or a parent, and not from REST, the admin or a command.
    ``start_permission`` (``app.codename``) is a permission that users need to start it, in addition to the one to start
    runs. ``redacted`` names fields that are hidden from every user, wherever they are in payloads: ``("card",
    "customer.email")``.

    ``stored`` maps fields of the published state to types (``str``, ``int``, ``Decimal``). They are stored as plain
    text, whatever the codec, so that SQL can read them through ``with_workflow_state``.

    ``search_attributes`` maps names by which you find runs to types (``str``, ``int``, ``bool``, ``Decimal``,
    ``datetime``, ``date``, ``list[str]``). They are given at the start and set by ``api.set_search_attributes``. They
    are plain text for everybody who may view a run.

    ``signals`` names the signals that its runs take: ``("paid", "cancelled")``. Any other signal is refused when it is
    sent, and a phase or a wait for one is refused when it is opened. If ``signals`` is None, a run takes any signal,
    and keeps those that no code consumes.

    ``aliases`` are names that the class had before, the first one first. Open runs that hold one continue with the
    class, are found by it, and keep their ids from being started again.

    ``unexpected_error`` says what happens when an exception escapes ``run``, or a saga, that was not raised on purpose:
    "fail" fails the run, and "block" blocks it until the code is corrected. Failures of activities and children, and
    ``errors.ApplicationError``, count as raised on purpose. None uses the setting ``UNEXPECTED_ERROR``.

    ``updates_in`` says where updates and decisions are judged and handled: "request" is the process that sends them,
    and "workers" are workers alone. None uses the setting ``UPDATES_IN``.
    ``backend`` says where runs live: "tables", or "temporal" (the setting ``CLUSTER``). None: the setting ``BACKEND``.
    ``versioning`` says which code an open run on a cluster gets after a deploy (``CLUSTER["DEPLOYMENT"]``): "auto" is
    the new code, and "pinned" is the code with which it started.

    ``title`` is the name that people see. ``summary`` names the fields of the result that they see when it is done.
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
    backend: ClassVar[Literal["tables", "temporal"] | None] = None
    versioning: ClassVar[Literal["auto", "pinned"]] = "auto"
    title: ClassVar[str | None] = None
    summary: ClassVar[Sequence[str]] = ()

    #: True if a cancel closes the run at once; else its code is asked to cancel.
    cancels_at_once: ClassVar[bool] = False
    _queries: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    definition: ClassVar[Definition]
    #: Number of the definition: it shows which of two classes with the same name is the newer one.
    defined_as: ClassVar[int] = 0

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:
            return
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        own_queries = queries.query_methods(cls, lambda base: base is cls)
        query_methods = queries.query_methods(cls, lambda base: base is cls or not issubclass(base, Workflow))
        problems = [*cls._problems(), *definition.duplicate_query_problems([q.query_name for q in own_queries])]
        problems += queries.hidden_query_problems(cls)
        problems += definition.signature_problems(
            {f"the query {q.query_name!r}": q.__func__ for q in query_methods}, "(state) or (state, args)", 1, 2
        )
        problems += definition.signature_problems(
            {"handle_query": cls.handle_query}, "(name, args, state), as a static method", 3
        )
        problems = problems or annotation_problems({"the input": _args_type(cls), "the result": _result_type(cls)})
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
        # A subclass of a version would inherit the dispatcher; it stands for itself until a dispatcher adopts it.
        cls.dispatched_by = None
        register(cls)

    @classmethod
    def _problems(cls) -> Iterator[str]:
        return definition.problems(cls, Workflow)

    @classmethod
    def _external_close_signals(
        cls, status: str, started_at: datetime | None, ended_at: datetime
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield ``(name, arguments)`` of the Django signals after a close from outside. Only graphs have any."""
        del status, started_at, ended_at  # graphs read them
        return iter(())

    @classmethod
    def is_versioned(cls) -> bool:
        """Return False: only a dispatcher has versions."""
        return False

    @classmethod
    def require_registered(cls) -> None:
        """Raise ``WorkflowDefinitionError`` if another class has been defined under its name since."""
        if (registered := registry.get(cls.name)) is not cls:
            redefinitions.require_same_class(cls, registered)

    @classmethod
    def resolve_version(cls, version: int | None = None, **options: Any) -> tuple[int, type[Workflow]]:
        """Return ``(version number, class)`` of this class. Raises ``UnknownVersion`` for another version."""
        del options  # a dispatcher reads them
        if version is not None and version != cls.version:
            raise UnknownVersion(f"{cls.name} has no version {version!r} (it is version {cls.version})")
        return cls.version, cls

    async def run(self, args: Any, /) -> Ok[Any] | Err[Any] | ContinueAsNew:
        """Run the workflow with its input ``args``: write this method in your class, as an ``async def``.

        It returns ``Ok(result)``, ``Err(reason)`` or ``ContinueAsNew(args)``.
        """
        raise WorkflowDefinitionError(f"{type(self).__name__} has no method run")

    @staticmethod
    def handle_query(name: str, args: Any, state: Any) -> Any:
        """Return the answer to the query ``name`` with ``args``, from the published ``state``.

        Override it to answer by name instead of with ``@query``.
        """
        raise UnknownQuery(f"no query {name!r}")

    @classmethod
    def answer(cls, name: str, args: Any, state: Any) -> Any:
        """Return the answer to the query ``name`` from the published ``state``, as plain data.

        Raises ``UnknownQuery``, ``QueryFailed`` if the function that answers raises, and ``PayloadError``.
        """
        # A class answers in one of the two ways, so that it is clear which function answers a name.
        overrides_queries = cls.handle_query is not Workflow.handle_query
        fn = cls._queries.get(name) if isinstance(name, str) and not overrides_queries else None
        if not overrides_queries and fn is None:
            query_names = ", ".join(sorted(cls._queries)) or "none"
            raise UnknownQuery(f"{cls.name} does not answer the query {name!r} (it answers: {query_names})")
        args, state = encode_lossless(args, label=f"the arguments of query {name!r}"), deep_copy(state)
        guard.watch(cls)
        try:
            with _query_hooks(cls.name, name), current.outside_workflow("query"):
                # An empty context: the answer must not depend on context variables of the caller.
                value = Context().run(cls._call_query, fn, name, args, state)
        except UnknownQuery as exc:
            raise UnknownQuery(f"{cls.name} does not answer the query {name!r}: {exc}") from exc
        except TemporalexError as exc:
            raise QueryFailed(f"query {name!r} of {cls.name}: {exception_message(exc)}") from exc
        except Exception as exc:
            raised = f"{exception_name(type(exc))}: {exception_message(exc)}"
            # The code that reads the state is right, and the run has not come to the place that publishes one.
            hint = "" if state is not None else "; the state is None, since the run has published none yet"
            raise QueryFailed(f"query {name!r} of {cls.name} raised {raised}{hint}") from exc
        label = f"the answer to query {name!r}"
        answer = codec.to_plain(value, label=label)
        require_readable(value, answer, lambda: codec.resolve_hints(fn).get("return", Any), label=label)
        return answer

    @classmethod
    def queries(cls) -> Mapping[str, Callable[..., Any]]:
        """Return the functions that answer queries, by the name of the query; empty if ``handle_query`` answers."""
        return cls._queries if cls.handle_query is Workflow.handle_query else {}

    @classmethod
    def _call_query(cls, fn: Callable[..., Any] | None, name: str, args: Any, state: Any) -> Any:
        """Ask ``fn``, or ``handle_query`` if it is None, about the published state."""
        if fn is None:
            return cls.handle_query(name, args, state)
        return fn(state, args) if queries.takes_args(fn) else fn(state)

    # `start_api` makes these methods at run time; here are their types.
    if TYPE_CHECKING:

        @overload
        @classmethod
        def start(cls: type[TypedWorkflow[None, R]], **options: Unpack[StartOptions]) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        def start(cls: type[TypedWorkflow[A, R]], args: A, **options: Unpack[StartOptions]) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        def start(
            cls: type[TypedWorkflow[None, R]], value: str | int | UUID, /, **options: Unpack[ValueOptions]
        ) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        def start(
            cls: type[TypedWorkflow[A, R]], value: str | int | UUID, args: A, /, **options: Unpack[ValueOptions]
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
            cls: type[TypedWorkflow[None, R]], value: str | int | UUID, /, **options: Unpack[ValueOptions]
        ) -> WorkflowHandle[R]: ...
        @overload
        @classmethod
        async def astart(
            cls: type[TypedWorkflow[A, R]], value: str | int | UUID, args: A, /, **options: Unpack[ValueOptions]
        ) -> WorkflowHandle[R]: ...
        @classmethod
        async def astart(cls, *positional: Any, **options: Any) -> Any: ...

        @classmethod
        def start_many(
            cls: type[TypedWorkflow[A, R]],
            items: Iterable[A | tuple[A, Mapping[str, Any]]],
            *,
            by: Person | None = None,
        ) -> list[WorkflowHandle[R] | AlreadyRunning]: ...
        @classmethod
        async def astart_many(
            cls: type[TypedWorkflow[A, R]],
            items: Iterable[A | tuple[A, Mapping[str, Any]]],
            *,
            by: Person | None = None,
        ) -> list[WorkflowHandle[R] | AlreadyRunning]: ...

        @classmethod
        def get(
            cls: type[TypedWorkflow[Any, R]], value: str | int | UUID, *, version: int | None = None
        ) -> WorkflowHandle[R]: ...
        @classmethod
        async def aget(
            cls: type[TypedWorkflow[Any, R]], value: str | int | UUID, *, version: int | None = None
        ) -> WorkflowHandle[R]: ...

        @classmethod
        def signal_with_start(
            cls: type[TypedWorkflow[A, R]],
            signal: str,
            payload: Any = None,
            args: A | None = None,
            **options: Unpack[SignalStartOptions],
        ) -> WorkflowHandle[R]: ...
        @classmethod
        async def asignal_with_start(
            cls: type[TypedWorkflow[A, R]],
            signal: str,
            payload: Any = None,
            args: A | None = None,
            **options: Unpack[SignalStartOptions],
        ) -> WorkflowHandle[R]: ...

    @classmethod
    def handle(cls: type[TypedWorkflow[Any, R]], id: str) -> WorkflowHandle[R]:
        """Return the handle of the newest chain of this class with the business id ``id``.

        It reads nothing: a missing run raises when you use the handle.
        """
        return cast("WorkflowHandle[R]", backend.backend(cls).handle(id, workflow=cast("type[Workflow]", cls)))


def _query_hooks(workflow: str, name: str) -> AbstractContextManager[None]:
    if not chain.query:
        return nullcontext()
    return around(chain.query, QueryCall(workflow=workflow, name=name))


def register(cls: type[Workflow | VersionedWorkflow]) -> None:
    """Register a class under its name and its aliases. It replaces a class that was registered before."""
    cls.defined_as, cls.definition_place = next(_definitions), redefinitions.place_of_class(cls)
    registry[cls.name] = cls
    # A present name wins over an alias: runs of a class that exists must not continue with its former namesake.
    aliases.WORKFLOWS.pop(cls.name, None)
    aliases.WORKFLOWS.update((alias, cls.name) for alias in getattr(cls, "aliases", ()) if alias not in registry)


def adopt(cls: type[Workflow], dispatcher: type[VersionedWorkflow]) -> None:
    """Make a class a version of ``dispatcher``: from now on its runs are stored under the name of the dispatcher."""
    # A version is found through its dispatcher only; a start by its old name would create a run without a dispatcher.
    if registry.get(cls.name) is cls:
        del registry[cls.name]
    cls.name = dispatcher.name
    cls.definition = replace(cls.definition, name=cls.name)
    cls.dispatched_by = dispatcher


def find(name: str) -> type[Workflow | VersionedWorkflow]:
    """Return the workflow class that is registered under ``name``, now or as an alias for a former name.

    Raises ``UnknownWorkflow``, which suggests the nearest name.
    """
    try:
        return registry[aliases.current_name(name)]
    except (KeyError, TypeError):
        matches = difflib.get_close_matches(str(name), registry, n=1)
        advice = (
            f": did you mean {matches[0]!r}?" if matches else ": is its module a `workflows.py` of an installed app?"
        )
        raise UnknownWorkflow(f"no workflow {name!r} in this process{advice}") from None


def find_or_none(name: str) -> type[Workflow | VersionedWorkflow] | None:
    """Return the workflow class that is registered under ``name``, now or as an alias, or None for an unknown name."""
    return registry.get(aliases.current_name(name))


def named_classes() -> list[tuple[str, type[Workflow | VersionedWorkflow]]]:
    """Return ``(name, class)`` for every name that a run may hold, including aliases."""
    aliased = ((alias, registry[name]) for alias, name in aliases.WORKFLOWS.items() if name in registry)
    return [*registry.items(), *aliased]


def class_for_run(name: str, version: int) -> type[Workflow]:
    """Return the class with which a run of that name and version continues.

    For a dispatcher it is the class of that version. A class without a dispatcher takes runs of all its versions, since
    its code handles the differences by patches. Raises ``UnknownWorkflow``.
    """
    try:
        workflow_class = find(name)
        return workflow_class if issubclass(workflow_class, Workflow) else workflow_class.resolve_version(version)[1]
    except (UnknownWorkflow, UnknownVersion) as exc:
        raise UnknownWorkflow(
            f"a run of version {version} of {name!r} has no class in this process ({exc}): "
            f"restore the class, or give its successor `name = {name!r}`; "
            "the run continues when a worker that has it starts"
        ) from None


def find_version(name: str, version: int) -> type[Workflow] | None:
    """Return the class of a run by its name, if this process has it in exactly this version, else None."""
    if find_or_none(name) is None:
        return None
    try:
        cls = class_for_run(name, version)
    except UnknownWorkflow:
        return None
    return cls if cls.version == version else None


def signal_sender(name: str, version: int | None = None) -> Any:
    """Return the ``sender`` of Django signals about a run: its class, or its name if this process lacks the class.

    With ``version`` it is the class of that version of a dispatcher.
    """
    sender = find_or_none(name) or name
    if isinstance(sender, str) or issubclass(sender, Workflow):
        return sender
    return sender.versions.get(version, sender) if version is not None else sender


def concrete_classes() -> Iterator[type[Workflow]]:
    """Yield every class that runs can have, including the versions of dispatchers."""
    for workflow_class in registry.values():
        if issubclass(workflow_class, Workflow):
            yield workflow_class
        else:
            yield from workflow_class.versions.values()


def registered_versions() -> dict[str, list[int]]:
    """Return the numbers of the versions that this process has, by name of the workflow."""
    versions: dict[str, list[int]] = {}
    for cls in concrete_classes():
        versions.setdefault(cls.name, []).append(cls.version)
    return versions | {old: versions[new] for old, new in aliases.WORKFLOWS.items() if new in versions}


def fork_options(cls: type[Workflow], *, tags: Sequence[str]) -> dict[str, Any]:
    """Return the start options of a fork of a run that has these tags.

    The fork keeps them, in addition to those that its class has now.
    """
    return start_options(cls) | {"tags": [*dict.fromkeys([*cls.tags, *tags])] or None}


def start_options(
    cls: type[Workflow], *, search_attributes: Mapping[str, Any] | None = None, tags: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the options of a run that is started: the options of its class, with those of the caller.

    Timeouts are in seconds; options that are not set are left out. Raises ``PayloadError`` for search attributes and
    tags that do not fit.
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
    """Return a result (plain data) as the annotation of ``run`` describes it. Raises ``PayloadError``."""
    return codec.convert(result, cls.definition.result_type, label=f"the result of {cls.name}")


def input_or_default(cls: type[Workflow], args: Any) -> Any:
    """Return the input of a start. If ``args`` is None, return the default of the parameter of ``run``, or None."""
    return deep_copy(cls.definition.args_default) if args is None else args


def read_input(cls: type[Workflow], attributes: Mapping[str, Any]) -> InputReading:
    """Return the recorded input, ``attributes['args']``, as ``run`` of the class reads it. Raises ``PayloadError``."""
    label, args_type = f"the input of {cls.name}", cls.definition.args_type
    return to_reading(
        {"args": codec.convert(deep_copy(attributes["args"]), args_type, label=label)}, {"args": args_type}
    )


def require_signal(cls: type[Workflow], name: str) -> None:
    """Raise ``UnknownSignal`` if the class declares the signals that it takes, and ``name`` is not one of them."""
    if cls.signals is None or name in cls.signals:
        return
    declared = sorted(cls.signals)
    matches = difflib.get_close_matches(str(name), declared, n=1)
    advice = f": did you mean {matches[0]!r}?" if matches else ""
    raise UnknownSignal(
        f"{cls.name} does not accept the signal {name!r}{advice} (it accepts: {', '.join(declared) or 'none'})",
        known=declared,
    )


def newest_class(workflow_class: type[Workflow], definition_number: int) -> type[Workflow]:
    """Return the class with which a run of ``workflow_class`` continues: the newest of its name and version.

    A module that is reloaded defines its classes anew. Only a class that was defined after the class number
    ``definition_number`` counts, which ``last_definition_number`` returned earlier. Without one the result is
    ``workflow_class``.
    """
    current_class = registry.get(workflow_class.name)
    # Only a later definition replaces the class of the run. An earlier one with the same name, for example from another
    # test, is a different workflow.
    if current_class is None or current_class.defined_as <= definition_number:
        return workflow_class
    return class_for_run(workflow_class.name, workflow_class.version)


def last_definition_number() -> int:
    """Return the number of the class that was defined last. Classes are numbered in the order of definition."""
    return max((cls.defined_as for cls in registry.values()), default=0)


def _entry_point(cls: type[Workflow]) -> Callable[[Any], Any]:
    """Return a function that creates the coroutine of a new run from its input."""

    def entry(args: Any) -> Any:
        guard.watch(cls)
        return cls().run(args)

    return entry


def _args_type(cls: type[Workflow]) -> Any:
    """Return the annotation of the input of ``run``, or Any."""
    parameters = [name for name in inspect.signature(cls.run).parameters if name != "self"]
    return codec.resolve_hints(cls.run).get(parameters[0], Any) if parameters else Any


def _args_default(cls: type[Workflow]) -> Any:
    parameters = [parameter for parameter in inspect.signature(cls.run).parameters.values() if parameter.name != "self"]
    default = parameters[0].default if parameters else None
    return None if default is inspect.Parameter.empty else default


def _result_type(cls: type[Workflow]) -> Any:
    """Return ``T`` of ``run(...) -> Ok[T] | …``; Any if the annotation has none."""
    annotation = codec.resolve_hints(cls.run).get("return", Any)
    for part in typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,):
        if typing.get_origin(part) is Ok:
            (result_type,) = typing.get_args(part)
            return Any if isinstance(result_type, typing.TypeVar) else result_type
    return Any
