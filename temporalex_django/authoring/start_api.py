"""How code outside starts and reaches the runs of a class: by id, or by the business value of its ``unique``.

A class with ``unique`` has the facade ``start(value, args)``, ``resume``, ``get``, ``list`` and ``cancel``, each with
an async twin. With scope ``none`` several runs share a value, and without ``unique`` there is none, so only ``start``
and ``list`` exist. What does not exist is really absent: the attribute is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from temporalex_django.authoring import backend, listing
from temporalex_django.core.names import key_text
from temporalex_django.errors import InvalidId, NotCancellable, WorkflowClosed

if TYPE_CHECKING:
    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.unique import Unique
    from temporalex_django.authoring.workflow import Workflow

_UNSET: Any = object()


class _ConditionalMethod:
    """A class method that only fitting classes have; versions of a dispatcher have none of them.

    ``action_permission`` says what: nothing, or a scope in which a value means ``one`` run.
    """

    def __init__(self, fn: Callable[..., Any], *, needs: Literal["nothing", "one"] = "one") -> None:
        self._fn = fn
        self._needs = needs
        self.__doc__ = fn.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

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


class Startable:
    """What workflow classes and dispatchers have in common."""

    name: ClassVar[str]
    unique: ClassVar[Unique | None] = None
    #: Of graphs: the engine that runs them, wherever Django's backend is bound, too.
    engine: ClassVar[str | None] = None
    #: The dispatcher of which the class is a version.
    dispatched_by: ClassVar[type[Startable] | None] = None

    if TYPE_CHECKING:  # both kinds define these; an ABC would force its metaclass on users' classes

        @classmethod
        def is_versioned(cls) -> bool:
            """Whether it is a dispatcher over versions."""

        @classmethod
        def resolve_version(cls, version: int | None = None, **options: Any) -> tuple[int, type[Workflow]]:
            """The version and the class that a start would run. Raises ``UnknownVersion``."""

    @classmethod
    def choose(cls, version: int | None, options: dict[str, Any]) -> type[Workflow]:
        """The concrete class of a start with these options.

        Raises ``UnknownVersion``, ``TypeError`` for options of nobody.
        """
        if options and not cls.is_versioned():
            raise TypeError(f"{cls.__name__}.start has no option {', '.join(sorted(options))}")
        return cls.resolve_version(version, **options)[1]

    def _start(
        cls: Any,  # noqa: N805 - bound to the class by _ConditionalMethod
        *positional: Any,
        args: Any = _UNSET,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
        **options: Any,
    ) -> Any:
        """Start a run on the caller's connection: inside his transaction it commits or vanishes with it.

        Gives its handle.

        ``start(args, id=...)``; without ``id`` one is made up. With ``unique``: ``start(value, args)``, the id is
        ``key::value``. ``subject`` links the run to a model instance. A dispatcher takes ``version`` and further
        options for its ``version_for``; ``telemetry`` (JSON) is merged into every signal about the steps of a graph.
        ``search_attributes`` are values of those that the class declares, ``tags`` come beside those of the class.
        ``by`` is the user in whose name it is started: audited, and he needs the permission
        ``temporalex_django.start_instance``. Locks nothing that exists. Raises ``AlreadyRunning``, ``InvalidId``,
        ``UnknownVersion``, ``PayloadError``; nothing is written then.
        """
        workflow_class = cls.choose(version, options)
        value, args = parse_start_arguments(workflow_class, positional, args=args, id=id, value=value)
        return backend.backend(workflow_class).start(
            workflow_class,
            args,
            id=id,
            value=value,
            subject=subject,
            telemetry=telemetry,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
        )

    async def _astart(
        cls: Any,  # noqa: N805 - as above
        *positional: Any,
        args: Any = _UNSET,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
        **options: Any,
    ) -> Any:
        """``start`` for async code."""
        workflow_class = cls.choose(version, options)
        value, args = parse_start_arguments(workflow_class, positional, args=args, id=id, value=value)
        return await backend.backend(workflow_class).astart(
            workflow_class,
            args,
            id=id,
            value=value,
            subject=subject,
            telemetry=telemetry,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
        )

    start: ClassVar[Any] = _ConditionalMethod(_start, needs="nothing")
    astart: ClassVar[Any] = _ConditionalMethod(_astart, needs="nothing")

    def _resume(
        cls: Any,  # noqa: N805
        value: str,
        event: str,
        step: Any = None,
        data: Any = None,
        *,
        by: Any = None,
        version: int | None = None,
    ) -> None:
        """Give the run of that value an event that one of its steps waits for; see ``WorkflowHandle.resume``."""
        cls.get(value, version=version).resume(event, step=step, data=data, by=by)

    async def _aresume(
        cls: Any,  # noqa: N805
        value: str,
        event: str,
        step: Any = None,
        data: Any = None,
        *,
        by: Any = None,
        version: int | None = None,
    ) -> None:
        """``resume`` for async code."""
        handle = await cls.aget(value, version=version)
        await handle.aresume(event, step=step, data=data, by=by)

    def _get(cls: Any, value: str, *, version: int | None = None) -> Any:  # noqa: N805
        """The handle of the newest run of that value. Raises ``WorkflowNotFound``, ``InvalidId``.

        With scope ``version`` several may be open: then ``version`` says which (``UnknownVersion`` without it).
        """
        return backend.backend(cls).get(cls, _id_for_value(cls, value), version=version)

    async def _aget(cls: Any, value: str, *, version: int | None = None) -> Any:  # noqa: N805
        """``get`` for async code."""
        return await backend.backend(cls).aget(cls, _id_for_value(cls, value), version=version)

    def _list(cls: Any, *, by: Person | None = None, **filters: Any) -> Iterator[Any]:  # noqa: N805
        """Handles of the newest runs of this class, of all versions, those that were started last first.

        They are read in pages as they are asked for. Filters, all of which must hold: ``id``, ``id_prefix`` (what it
        begins with), ``value`` (of a class with ``unique``), ``status`` (one or a list), ``version``, ``queue``,
        ``blocked``, ``paused`` and ``stuck`` (True or False), ``waits`` (``"message"``, ``"activity"``, ``"timer"``,
        ``"child"``), ``cause`` (why runs failed or are blocked, or why an activity of them fails, as ``doctor`` groups
        them), ``subject`` (a saved object), ``tag``, and with a time zone ``created_after``, ``created_before``,
        ``closed_after``, ``closed_before`` (then or later; earlier), and ``attributes``: a mapping of search attributes
        that the class declares to values, ``{"total__gt": 1000, "customer": "x"}``, with ``__gt``, ``__gte``, ``__lt``,
        ``__lte`` for numbers and times, ``__prefix`` for texts. ``order``: ``"-started"`` unless given, ``"started"``,
        ``"closed"`` and ``"-closed"`` (closed runs, by when), ``"due"`` and ``"-due"`` (those that go on by themselves,
        by when). ``by`` is the user in whose name it is looked:
        only runs that there are for him. Raises ``TypeError`` for other filters, ``ValueError`` for what one cannot be,
        ``InvalidId``, ``ActionNotPermitted``.
        """
        return backend.backend(cls).list(cls, listing.check_filters(cls, filters), by=by)

    async def _alist(cls: Any, *, by: Person | None = None, **filters: Any) -> Sequence[Any]:  # noqa: N805
        """``list`` for async code; a list."""
        return await backend.backend(cls).alist(cls, listing.check_filters(cls, filters), by=by)

    def _cancel(
        cls: Any,  # noqa: N805
        value: str,
        *,
        version: int | None = None,
        by: Person | None = None,
    ) -> None:
        """Cancel the run of that value: a graph at once, a function workflow is asked to.

        See ``WorkflowHandle.cancel``.

        Raises ``WorkflowNotFound``, ``NotCancellable`` for one that is closed.
        """
        try:
            cls.get(value, version=version).cancel(by=by)
        except WorkflowClosed as exc:
            raise NotCancellable(exc.message) from None

    async def _acancel(
        cls: Any,  # noqa: N805
        value: str,
        *,
        version: int | None = None,
        by: Person | None = None,
    ) -> None:
        """``cancel`` for async code."""
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


#: Names of the facade: an attribute of a workflow class would hide it.
START_API = frozenset(
    {"start", "astart", "resume", "aresume", "get", "aget", "list", "alist", "cancel", "acancel", "choose"}
)


def parse_start_arguments(
    cls: type[Workflow], positional: tuple[Any, ...], *, args: Any, id: str | None, value: str | None
) -> tuple[str | None, Any]:
    """Value and arguments of a call of ``start``. Raises ``InvalidId``, ``TypeError``."""
    if cls.unique is not None and value is None and id is None:
        if not positional:
            raise InvalidId(f"{cls.name} has `unique`: start it with a value, start(value, args)")
        value, *rest = positional
    else:
        rest = [*positional]
    if len(rest) > 1 or (rest and args is not _UNSET):
        form = "start(value, args)" if cls.unique is not None else "start(args, id=...)"
        raise TypeError(f"{cls.name}.start takes {form}")
    return key_text(value), rest[0] if rest else None if args is _UNSET else args


def _id_for_value(cls: type[Startable], value: str) -> str:
    assert cls.unique is not None
    return cls.unique.id_for(key_text(value))
