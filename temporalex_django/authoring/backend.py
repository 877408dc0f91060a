"""The connection from workflow classes to the backend that runs them, without importing it.

``AppConfig.ready`` binds the database backend (``client.backend``); a ``WorkflowEnvironment`` has handles of its own.
Engines without Django are registered here while they run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from temporalex_django.core.failures import AttemptFailure
from temporalex_django.errors import AlreadyRunning, EngineNotFound, NotConfigured

if TYPE_CHECKING:
    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.handle import WorkflowHandle
    from temporalex_django.authoring.requests import RunAddress, RunRequest, StartRequest
    from temporalex_django.authoring.start_api import Startable

T = TypeVar("T")

#: Most activities in a description.
MOST_ACTIVITIES = 100


def _empty_accepts() -> dict[str, list[str]]:
    return {"signals": [], "updates": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenActivity:
    """An activity that has no result yet.

    ``seq`` is the number of its command. ``attempt`` is the number of the running attempt, or of the last one.
    ``max_attempts`` is the limit of attempts (0: no limit). ``due_at`` is the time at which the activity may start, or
    is tried next. ``owner`` is the epoch of the worker that runs it (a number that the worker drew when it registered),
    or None. ``beat_at`` is the time of its last heartbeat. ``expires_at`` is the time at which its first timeout
    passes. ``heartbeat_timeout`` is in seconds. ``waits_for`` names what the worker that released it lacked.
    ``progress`` is the last one that an attempt reported (``done``, ``total``, ``text``), or None. ``last_failure`` is
    the failure of its last attempt.
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
    progress: Mapping[str, Any] | None = None
    last_failure: AttemptFailure | None = None

    @property
    def state(self) -> str:
        """The state: "running", "retrying" (an attempt failed, and another one is due) or "queued"."""
        if self.owner is not None:
            return "running"
        return "retrying" if self.last_failure is not None else "queued"

    @property
    def next_try(self) -> datetime | None:
        """The time of the next attempt; None unless the activity is retrying."""
        return self.due_at if self.state == "retrying" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt of an activity that failed, timed out or was lost, as ``outcome`` says.

    ``seq`` is the number of the activity's command, and ``attempt`` that of the attempt. ``began_at`` is None if the
    attempt never began. ``worker`` is the name of the worker, or empty. ``message`` and ``traceback`` may quote
    payloads.
    """

    seq: int
    activity: str
    attempt: int
    outcome: str
    began_at: datetime | None
    ended_at: datetime
    worker: str
    type: str
    message: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """A signal whose handler failed; pass its ``id`` to ``handle.redeliver`` or ``handle.discard``.

    ``type`` and ``message`` are those of the exception.
    """

    id: str
    name: str
    type: str
    message: str
    failed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The present state of a run, as ``handle.describe()`` returns it. Read a field by attribute or by key.

    ``blocked`` is None, or a mapping that says why the run cannot continue (``code, error, since, attempt``).
    ``paused`` is None, or says who paused it (``since, reason, by``). ``waiting_for`` says in words what the run waits
    for, including a worker. ``accepts`` names the signals and updates that the open phase takes. ``starts_at`` and
    ``start_before`` are the times of its start, if the caller named them. ``activities`` are the
    first hundred that have no result yet, with their attempts and last failures. ``activities_error`` is None, or says
    why the activities of a run on a cluster are not known. ``attempts`` are the last attempts that failed, timed out or
    were lost, also those of activities that have succeeded since. ``failed_messages`` are the first hundred failed
    messages of the chain, which people can deliver again or discard. ``search_attributes`` are those
    that workflow code has set, and ``tags`` are those of the class and of the start. ``scheduled_for`` is the time of
    the slot for which a schedule started the run. ``headers`` are those of the start.
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
    starts_at: datetime | None = None
    start_before: datetime | None = None
    started_at: datetime | None = None
    closed_at: datetime | None = None
    activities: list[OpenActivity] = field(default_factory=list)
    activities_error: str | None = None
    attempts: list[EndedAttempt] = field(default_factory=list)
    failed_messages: list[FailedMessage] = field(default_factory=list)
    search_attributes: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    scheduled_for: datetime | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> list[str]:
        """Return the names of the fields, so that ``dict(description)`` works."""
        return list(self.__slots__)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by name, with those of activities and failed messages as dictionaries."""
        return asdict(self)


class Backend(Protocol):
    """The part that runs workflows: the database with its workers, a test environment or an engine without Django.

    It starts and finds runs, and performs the requests of their handles.
    """

    def start(self, request: StartRequest) -> WorkflowHandle[Any]: ...

    async def astart(self, request: StartRequest) -> WorkflowHandle[Any]: ...

    def start_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]: ...

    async def astart_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]: ...

    def signal_with_start(self, request: StartRequest, signal: str, payload: Any) -> WorkflowHandle[Any]: ...

    async def asignal_with_start(self, request: StartRequest, signal: str, payload: Any) -> WorkflowHandle[Any]: ...

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> WorkflowHandle[Any]: ...

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle[Any]: ...

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle[Any]: ...

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[WorkflowHandle[Any]]: ...

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[WorkflowHandle[Any]]: ...

    def perform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform ``request`` on the run at ``address`` and return its result."""

    async def aperform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform ``request`` on the run at ``address`` from async code; a wait holds no thread."""


_backend: Callable[[], Backend] | None = None


def bind(backend: Callable[[], Backend]) -> None:
    """Set the function ``backend``, which returns the backend for all classes that name no engine of their own.

    The function is called at each use, so that the import of the backend can wait until Django is ready.
    """
    global _backend  # noqa: PLW0603 - the one place where the application is wired
    _backend = backend


def backend(cls: Any = None) -> Backend:
    """Return the backend for the runs of a workflow class.

    If the class names an engine (``engine = "name"``), the result is the backend of that engine. Otherwise it is the
    backend of the application. If ``bind`` has set none, it is the backend of the only engine that runs. Raises
    ``EngineNotFound``, and ``NotConfigured`` if there is neither a backend nor an engine.
    """
    # A named engine comes first: such a graph stays with its engine in processes where Django's backend is bound, too.
    named = getattr(cls, "engine", None) or getattr(getattr(cls, "dispatched_by", None), "engine", None)
    if named is not None:
        return engine(named).backend
    if _backend is None and _engines:
        return engine().backend
    return bound_backend()


def bound_backend() -> Backend:
    """Return the backend of the application, which ``bind`` has set. Raises ``NotConfigured`` without one."""
    if _backend is not None:
        return _backend()
    raise NotConfigured(
        "workflows have nowhere to run: add 'temporalex_django' to INSTALLED_APPS (and call django.setup() in scripts), "
        "use WorkflowEnvironment().start(...) in a test, or run graphs inside `with Engine(name):`"
    )


# -- engines without Django --------------------------------------------------------------------------------------------


class StandaloneEngine(Protocol):
    """An engine without Django, which runs graphs in this process. This module reads only its backend."""

    @property
    def backend(self) -> Backend: ...


_engines: dict[str, StandaloneEngine] = {}
# Engines start and stop in any thread of the process.
_lock = threading.Lock()


def register(name: str, standalone_engine: StandaloneEngine) -> None:
    """Register a running engine. Raises ``NotConfigured`` if its name is taken."""
    with _lock:
        if name in _engines:
            raise NotConfigured(f"an engine {name!r} is already running: stop it, or use another name")
        _engines[name] = standalone_engine


def deregister(name: str, standalone_engine: StandaloneEngine) -> None:
    """Remove an engine that has stopped. Another engine that has taken the name meanwhile stays."""
    with _lock:
        # An engine that was stopped twice must not remove its successor of the same name.
        if _engines.get(name) is standalone_engine:
            del _engines[name]


def engine(name: str | None = None) -> StandaloneEngine:
    """Return the running engine of that name, or the only one that runs if ``name`` is None.

    Raises ``EngineNotFound``, with advice.
    """
    # A copy, so that the messages below are built without the lock.
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
            f"several engines are running ({names}): choose one with lookup(name), or with engine = name in the "
            "workflow"
        )
    raise EngineNotFound("no engine is running: start one, with Engine(name).start() or inside `with Engine(name):`")
