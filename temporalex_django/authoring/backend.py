"""How classes reach whatever runs them, without importing it.

``AppConfig.ready`` puts the database backend here (``client.backend``); a ``WorkflowEnvironment`` brings handles of its
own. Engines that stand alone, without Django, are known here while they run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from temporalex_django.core.failures import AttemptFailure
from temporalex_django.errors import EngineNotFound, NotConfigured

if TYPE_CHECKING:
    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.start_api import Startable
    from temporalex_django.authoring.workflow import Workflow

#: Activities that a description has.
MOST_ACTIVITIES = 100


def _empty_accepts() -> dict[str, list[str]]:
    return {"signals": [], "updates": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenActivity:
    """An activity that has no result yet, as it stands.

    ``attempt`` is the one under way, or the last that was; of at most ``max_attempts`` (0: without limit). ``due_at``
    is when it may begin, or is tried next. ``owner`` is the epoch of the worker that has it, None while nobody has.
    ``expires_at`` is when the first of its timeouts passes. ``heartbeat_timeout`` is in seconds. ``waits_for`` is what
    a worker lacked that gave it back. ``last_failure`` is why its last attempt failed.
    """

    seq: int
    activity: str
    queue: str
    attempt: int
    max_attempts: int
    scheduled_at: datetime
    due_at: datetime
    owner: int | None = None
    started_at: datetime | None = None
    beat_at: datetime | None = None
    expires_at: datetime | None = None
    heartbeat_timeout: float | None = None
    waits_for: str | None = None
    last_failure: AttemptFailure | None = None

    @property
    def state(self) -> str:
        """Running, retrying (it failed and is due again), or queued."""
        if self.owner is not None:
            return "running"
        return "retrying" if self.last_failure is not None else "queued"

    @property
    def next_try(self) -> datetime | None:
        """When it is tried again; None unless it is retrying."""
        return self.due_at if self.state == "retrying" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """A signal whose handler failed, as ``handle.redeliver`` and ``handle.discard`` take it by its ``id``.

    ``type`` and ``message`` are those of the exception.
    """

    id: str
    name: str
    type: str
    message: str
    failed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What ``handle.describe()`` gives: a run as it stands, readable by attribute and by key.

    ``blocked`` is None, or why the run cannot go on (``code, error, since, attempt``), ``paused`` None, or who paused
    it (``since, reason, by``). ``waiting_for`` says in words what it waits for, a worker included. ``accepts`` names
    the signals and updates that the open phase takes. ``activities`` are those that have no result yet, with their
    attempts and the last failure: the first hundred. ``failed_messages`` are signals whose handler failed, which people
    can deliver again or discard: the first hundred of the chain. ``search_attributes`` are as workflow code set them,
    ``tags`` those of the class and of the start.
    """

    id: str
    run_id: str
    workflow: str
    version: int
    status: str
    blocked: dict[str, Any] | None = None
    paused: dict[str, Any] | None = None
    waiting_for: list[str] = field(default_factory=list)
    accepts: dict[str, list[str]] = field(default_factory=_empty_accepts)
    started_at: datetime | None = None
    closed_at: datetime | None = None
    activities: list[OpenActivity] = field(default_factory=list)
    failed_messages: list[FailedMessage] = field(default_factory=list)
    search_attributes: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> list[str]:
        return list(self.__slots__)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Backend(Protocol):
    """Where ``Workflow.start`` and its kin go. Each gives a handle."""

    def start(
        self,
        workflow: type[Workflow],
        args: Any,
        *,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        telemetry: Mapping[str, Any] | None = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
    ) -> Any: ...

    async def astart(
        self,
        workflow: type[Workflow],
        args: Any,
        *,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        telemetry: Mapping[str, Any] | None = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
    ) -> Any: ...

    def signal_with_start(
        self,
        workflow: type[Workflow],
        signal: str,
        payload: Any,
        args: Any,
        *,
        id: str,
        subject: Any = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
    ) -> Any: ...

    async def asignal_with_start(
        self,
        workflow: type[Workflow],
        signal: str,
        payload: Any,
        args: Any,
        *,
        id: str,
        subject: Any = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Person | None = None,
    ) -> Any: ...

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> Any: ...

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> Any: ...

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> Any: ...

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[Any]: ...

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[Any]: ...


class BoundBackend(Backend, Protocol):
    """One that an application is wired to: ``WorkflowHandle(id)`` makes its handles."""

    handle_class: type[Any]


_backend: Callable[[], BoundBackend] | None = None


def bind(backend: Callable[[], BoundBackend]) -> None:
    """``backend()`` is asked at each use, so that importing it can wait until Django is ready."""
    global _backend  # noqa: PLW0603 - the one place where the application is wired
    _backend = backend


def backend(cls: Any = None) -> Backend:
    """Where the runs of a class are: the engine that it names, else what is bound, else the only engine that runs.

    Raises ``EngineNotFound``, and ``NotConfigured`` when there is nothing at all.
    """
    named = getattr(cls, "engine", None) or getattr(getattr(cls, "dispatched_by", None), "engine", None)
    if named is not None:
        return engine(named).backend
    if _backend is None and _engines:
        return engine().backend
    return bound_backend()


def bound_backend() -> BoundBackend:
    """What the application is wired to. Raises ``NotConfigured``."""
    if _backend is not None:
        return _backend()
    raise NotConfigured(
        "workflows have nowhere to run: add 'temporalex_django' to INSTALLED_APPS (and call django.setup() in scripts), "
        "use WorkflowEnvironment().start(...) in a test, or run graphs inside `with Engine(name):`"
    )


# -- engines that stand alone ------------------------------------------------------------------------------------------


class StandaloneEngine(Protocol):
    """An engine that stands alone, as far as is to be known here."""

    @property
    def backend(self) -> Backend: ...


_engines: dict[str, StandaloneEngine] = {}
_lock = threading.Lock()


def register(name: str, standalone_engine: StandaloneEngine) -> None:
    """Make an engine known. Raises ``NotConfigured`` for a name that is taken."""
    with _lock:
        if name in _engines:
            raise NotConfigured(f"an engine {name!r} is running already: stop it, or take another name")
        _engines[name] = standalone_engine


def deregister(name: str, standalone_engine: StandaloneEngine) -> None:
    """It has stopped."""
    with _lock:
        if _engines.get(name) is standalone_engine:
            del _engines[name]


def engine(name: str | None = None) -> StandaloneEngine:
    """The engine of that name; without one the only one there is. Raises ``EngineNotFound``, with advice."""
    with _lock:
        engines = dict(_engines)
    if name is not None and name in engines:
        return engines[name]
    names = ", ".join(repr(engine_name) for engine_name in sorted(engines)) or "none"
    if name is not None:
        raise EngineNotFound(
            f"no engine {name!r} is running (running: {names}): start it with Engine({name!r}).start()"
        )
    if len(engines) == 1:
        return next(iter(engines.values()))
    if engines:
        raise EngineNotFound(
            f"several engines are running ({names}): name the one that is meant, as lookup(name) or engine = name in the workflow"
        )
    raise EngineNotFound("no engine is running: start one, with Engine(name).start() or inside `with Engine(name):`")
