"""``Engine``: a storage and a runner under one name, on which graphs can be started with or without Django.

    with Engine("shop") as engine:                                   # MemoryStorage, LocalRunner
        OrderFlow.start("42", {"order": 42})                         # the only engine there is
        engine.start_instance(OrderFlow, id="orderid::43", context={"order": 43})

Where Django's backend is bound, graphs start there. A class with ``engine = "shop"`` always starts on the engine of
that name.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from temporalex_django.authoring import backend
from temporalex_django.authoring.activity_options import check_id
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.handle import WorkflowHandle, make_handle
from temporalex_django.authoring.requests import RunAddress, RunRequest
from temporalex_django.authoring.run_filters import NEWEST_FIRST
from temporalex_django.core.names import check_wait
from temporalex_django.errors import (
    AlreadyRunning,
    InvalidId,
    NotConfigured,
    UnknownVersion,
    UnknownWorkflow,
    WorkflowCancelled,
    WorkflowFailed,
)
from temporalex_django.graph.context import thaw
from temporalex_django.graph.contracts import OPEN, Runner, Storage, Timer
from temporalex_django.graph.definition import Graph
from temporalex_django.graph.durable_run import describe_waits
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.local_runner import LocalRunner, MemoryStorage
from temporalex_django.graph.steps import StepRef, key_of, name_of

if TYPE_CHECKING:
    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.requests import StartRequest
    from temporalex_django.authoring.start_api import Startable

T = TypeVar("T")


def lookup(name: str | None = None) -> Engine:
    """Return the running engine of that name; without a name, the only one that runs. Raises ``EngineNotFound``."""
    return cast("Engine", backend.engine(name))


class Engine:
    """A storage and a runner under one name.

    ``storage`` and ``runner`` are each an object, a class, or ``(class, options)``; None means ``MemoryStorage`` and
    ``LocalRunner``. The class of a runner gets the storage as its first argument.

    The engine runs from ``start`` to ``stop``, or inside ``with``. While it runs, ``lookup`` and the classes of graphs
    find it.

    In the scope of its ``unique``, one instance of an id is open at most. The engine ensures this by checking and
    storing one start after the other. Starts that bypass this engine are not checked against its own.
    """

    def __init__(self, name: str, storage: Any = None, runner: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise NotConfigured(f"the name of an engine must be a string, not {name!r}")
        self.name = name
        if storage is None and runner is not None and not isinstance(runner, (type, tuple)):
            storage = runner.storage
        self.storage: Storage = _make_adapter("storage", storage, MemoryStorage)
        self.runner: Runner = _make_adapter("runner", runner, LocalRunner, self.storage)
        # Instances would be stored in one place and looked up in another.
        if getattr(self.runner, "storage", self.storage) is not self.storage:
            raise NotConfigured(f"engine {name!r}: its runner uses a different storage from the one that you passed")
        self.backend = EngineBackend(self)
        self._start_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Engine {self.name!r}>"

    def start(self) -> Self:
        """Make the engine available under its name, and continue the open instances of its storage. Return the engine.

        Raises ``NotConfigured`` when the name is taken.
        """
        backend.register(self.name, self)
        try:
            self.runner.recover()
        except BaseException:
            backend.deregister(self.name, self)
            raise
        return self

    def stop(self) -> None:
        """Make the engine unavailable under its name, then wait until the running steps have ended."""
        backend.deregister(self.name, self)
        self.runner.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # -- instances by id -----------------------------------------------------------------------------------------------

    def check(self, workflow: type[Startable], id: str, *, version: int | None = None) -> str:
        """Return ``"already_running"`` if an instance with that id is open in the scope of the class, else ``"ok"``.

        ``version`` is the version that would run.
        """
        number, cls = workflow.resolve_version(version)
        scope = "global" if cls.unique is None else cls.unique.scope
        if scope == "none":
            return "ok"
        scope_filters: dict[str, dict[str, Any]] = {
            "workflow": {"workflow": cls.name},
            "version": {"workflow": cls.name, "version": number},
        }
        if self.storage.query(id=id, status=OPEN, **scope_filters.get(scope, {})):
            return "already_running"
        return "ok"

    def start_instance(
        self,
        workflow: type[Startable],
        *,
        id: str,
        context: Mapping[str, Any] | None = None,
        version: int | None = None,
        telemetry: Mapping[str, Any] | None = None,
    ) -> str:
        """Store and start an instance of the class ``workflow`` with that id. Return the id.

        ``context`` is the data that it starts with. ``version`` selects one version of a workflow that has several.
        ``telemetry`` is merged into the reports about its steps. Raises ``AlreadyRunning``, ``InvalidId``,
        ``UnknownWorkflow`` for a function workflow, ``UnknownVersion``, ``PayloadError``.
        """
        number, cls = workflow.resolve_version(version)
        if not isinstance(getattr(cls, "_graph", None), Graph):
            raise UnknownWorkflow(
                f"{cls.name} is not a graph: an engine executes only graphs; a function workflow needs Django or a "
                "WorkflowEnvironment"
            )
        check_id(id)
        # The check and the insert are one step, or two starts of one id could both find it free.
        with self._start_lock:
            if self.check(workflow, id, version=number) != "ok":
                raise AlreadyRunning(f"{cls.name} {id!r} is open already: use its handle, or another id")
            return self.runner.start_instance(cls, id=id, context=context, version=number, telemetry=telemetry)

    def resume(
        self, id: str, event: str, step: StepRef | str | None = None, data: Any = None, *, by: Any = None
    ) -> None:
        """Give the event ``event`` to the one step of the instance ``id`` that waits for it.

        ``step`` (a step or its key) selects the step if several wait for the event. ``data`` goes into the context,
        with the name of the person ``by``. Raises ``WorkflowNotFound``, ``WorkflowClosed``, ``ResumeRefused``,
        ``PayloadError``; nothing changes then.
        """
        self.runner.resume(id, event, step=step, data=data, by=by)

    def schedule_resume(self, id: str, step: StepRef | str, delay: float) -> Timer:
        """Give ``step`` (a step or its key) its timeout event after ``delay`` seconds, if the step still waits then.

        Returns the timer, which can be cancelled. Raises ``WorkflowNotFound``, ``WorkflowClosed`` and
        ``ResumeRefused``.
        """
        return self.runner.schedule_resume(id, step, delay)

    def cancel(self, id: str) -> None:
        """Close the newest instance with that id as cancelled, at once.

        Raises ``WorkflowNotFound`` and ``WorkflowClosed``.
        """
        self.runner.cancel(id)

    def get(self, id: str) -> Instance:
        """Return the newest instance with that id. Raises ``WorkflowNotFound``."""
        return self.storage.get(id)

    def query(self, **filters: Any) -> list[Instance]:
        """Return the stored instances that match all filters, newest start first; without a filter, all of them.

        The filters are ``id``, ``status`` (one, or a list), ``version`` and ``workflow`` (a class or its name). Raises
        ``TypeError`` for others.
        """
        return self.storage.query(**filters)

    def delete(self, id: str) -> None:
        """Stop and delete all instances with that id, open ones included; a missing id is no error."""
        # First, so that no step stores the instance again after it was deleted.
        self.runner.forget(id)
        self.storage.delete(id)


def _make_adapter(role: str, adapter: Any, default: type, *args: Any) -> Any:
    """Make it from None (``default``), an object, a class or ``(class, options)``. Raises ``NotConfigured``."""
    if adapter is None:
        adapter = default
    cls, options = (adapter, {}) if isinstance(adapter, type) else adapter if isinstance(adapter, tuple) else (None, {})
    if cls is None:
        return adapter
    try:
        return cls(*args, **options)
    except TypeError as exc:
        raise NotConfigured(f"cannot create the {role} {cls.__name__} with {options!r}: {exc}") from exc


def _refuse_durable_options(operation: str, **options: Any) -> None:
    """Raise ``NotConfigured`` for an option that only Django's tables can store."""
    for name, value in options.items():
        if value is not None:
            raise NotConfigured(f"{operation}: {name}= requires the durable runtime: an engine cannot store it")


class EngineBackend:
    """The backend of an engine without Django: it starts and finds instances, and performs requests of their handles.

    It implements the protocol ``authoring.backend.Backend``.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def start(self, request: StartRequest) -> WorkflowHandle[Any]:
        """Start an instance of a graph class and return its handle.

        The class calls this for ``start(value, args)``. Raises ``InvalidId``, ``NotConfigured`` for options that only
        Django's tables can store, and the errors of ``Engine.start_instance``.
        """
        workflow = request.workflow
        _refuse_durable_options(
            f"start of {workflow.name}",
            subject=request.subject,
            search_attributes=request.search_attributes,
            tags=request.tags,
            by=request.by,
            headers=request.headers,
            **request.times.as_options(),
        )
        if (request.id is None) == (request.value is None):
            raise InvalidId(f"{workflow.name}: an engine needs either the id or the value of an instance")
        key = request.id
        if key is None:
            if workflow.unique is None:
                raise InvalidId(f"{workflow.name} has no `unique`: pass an id, not a value")
            key = workflow.unique.run_id_for(request.value, lambda: os.urandom(4).hex())
        self.engine.start_instance(
            workflow, id=key, context=request.args, version=workflow.version, telemetry=request.telemetry
        )
        return self._handle(self.engine.storage.get(key, workflow=workflow.name, version=workflow.version))

    async def astart(self, request: StartRequest) -> WorkflowHandle[Any]:
        """Start an instance of a graph class and return its handle, from async code; the start runs in a thread."""
        return await asyncio.to_thread(self.start, request)

    def start_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        """Start instances one by one, and return a list in the order of ``requests``.

        Each item is the handle, or the error ``AlreadyRunning`` if an instance with that id is open.
        """
        results: list[WorkflowHandle[Any] | AlreadyRunning] = []
        for request in requests:
            try:
                results.append(self.start(request))
            except AlreadyRunning as exc:
                results.append(exc)
        return results

    async def astart_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        """Start instances one by one, from async code; the starts run in a thread.

        Returns a list in the order of ``requests``. Each item is the handle, or the error ``AlreadyRunning``.
        """
        return await asyncio.to_thread(self.start_many, requests)

    def signal_with_start(self, request: StartRequest, signal: str, payload: Any) -> WorkflowHandle[Any]:
        """Raise ``UnknownWorkflow``, because graphs take no signals."""
        del signal, payload
        raise UnknownWorkflow(
            f"{request.workflow.name}: an engine executes graphs, which do not accept signals: use resume"
        )

    async def asignal_with_start(self, request: StartRequest, signal: str, payload: Any) -> WorkflowHandle[Any]:
        """Raise ``UnknownWorkflow``, because graphs take no signals."""
        return self.signal_with_start(request, signal, payload)

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> WorkflowHandle[Any]:
        """Return the handle of the newest instance with that id. Raises ``WorkflowNotFound``."""
        return self._handle(self.engine.storage.get(id, workflow=None if workflow is None else workflow.name))

    def _handle(self, instance: Instance) -> WorkflowHandle[Any]:
        """Return the handle of the newest instance."""
        address = RunAddress(id=instance.id, workflow=instance.workflow, version=instance.version)
        return make_handle(address, self)

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle[Any]:
        """Return the handle of the newest instance of a graph class with that id.

        Raises ``WorkflowNotFound``, and ``UnknownVersion`` when several versions are open and ``version`` selects none.
        """
        if version is None:
            open_versions = {
                instance.version for instance in self.engine.storage.query(id=id, workflow=workflow, status=OPEN)
            }
            if len(open_versions) == 1:
                version = open_versions.pop()
            elif open_versions:
                version_names = ", ".join(str(number) for number in sorted(open_versions))
                raise UnknownVersion(
                    f"{workflow.name} {id!r} is open in several versions ({version_names}): name one with version="
                )
        return self._handle(self.engine.storage.get(id, workflow=workflow.name, version=version))

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle[Any]:
        """Return the handle of the newest instance of a class with that id, from async code.

        The search runs in a thread. Raises ``WorkflowNotFound``, and ``UnknownVersion`` when several versions are open
        and ``version`` selects none.
        """
        return await asyncio.to_thread(self.get, workflow, id, version=version)

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[WorkflowHandle[Any]]:
        """Return handles of the instances of a graph class that match the filters, newest start first.

        Raises ``TypeError`` for a user, for another order and for an unknown filter.
        """
        if by is not None:
            raise TypeError(f"{workflow.__name__}.list: a standalone engine has no users, so it does not accept by=")
        filters = dict(filters)
        if filters.pop("order", NEWEST_FIRST) != NEWEST_FIRST:
            raise TypeError(f"{workflow.__name__}.list: a standalone engine lists runs only in newest-first order")
        instances = self.engine.storage.query(workflow=workflow, **filters)
        return (self._handle(instance) for instance in instances)

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[WorkflowHandle[Any]]:
        """Return a list of handles of the instances of a class that match, newest start first, from async code.

        The query runs in a thread. Raises ``TypeError`` for a user, for another order and for an unknown filter.
        """
        return await asyncio.to_thread(lambda: [*self.list(workflow, filters, by=by)])

    def perform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform the request on the instance at ``address`` and return its result.

        Raises ``NotConfigured`` for an operation that an engine does not have.
        """
        instance = _EngineInstance(self.engine, address, by=request.by)
        if request.operation not in _OPERATIONS:
            raise NotConfigured(
                f"{request.operation} of {address.id} requires the durable runtime: an engine has no histories, "
                "messages or permissions"
            )
        return cast("T", getattr(instance, request.operation)(**request.inputs))

    async def aperform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform ``request`` on the instance at ``address`` in a thread, for async code, and return its result.

        Raises ``NotConfigured`` for an operation that an engine does not have.
        """
        return await asyncio.to_thread(self.perform, address, request)


_OPERATIONS = ("instance", "describe", "resume", "cancel", "result", "run_id", "run_ids")


class _EngineInstance:
    """The operations of a handle on one instance of an engine, each performed at once.

    Each method has the name of an operation of ``WorkflowHandle``, and takes the inputs of its request.
    """

    def __init__(self, engine: Engine, address: RunAddress, *, by: Any) -> None:
        assert address.workflow is not None
        self._engine = engine
        self._id = address.id
        self._by = by
        self._identity: dict[str, Any] = {"workflow": address.workflow.name, "version": address.version}

    def instance(self) -> Instance:
        self._refuse_user("instance")
        return self._stored_instance()

    def describe(self) -> Description:
        """Return the state; ``closed_at`` is the time when the last step ended."""
        self._refuse_user("describe")
        instance = self._stored_instance()
        timestamps = [entry.timestamp for entry in instance.execution_history]
        # An instance does not record when it closed.
        closed_at: datetime | None = timestamps[-1] if instance.closed and timestamps else None
        return Description(
            id=self._id,
            run_id=self._id,
            workflow=self._identity["workflow"],
            version=instance.version,
            status=instance.status,
            waiting_for=describe_waits(instance),
            started_at=instance.telemetry_start_time,
            closed_at=closed_at,
        )

    def resume(self, *, event: str, step: Any, data: Any, timeout: float | None) -> None:
        """Give the event to a step, which may require a role. It takes effect at once: ``timeout`` is only checked."""
        check_wait(timeout)
        self._engine.runner.resume(self._id, event, step=step, data=data, by=self._by, **self._identity)

    def cancel(self, *, reason: str) -> None:
        """Cancel at once. Raises ``NotConfigured`` for a reason or a user, because an engine cannot store them."""
        _refuse_durable_options(f"cancel of {self._id}", reason=reason or None, by=self._by)
        self._engine.runner.cancel(self._id, **self._identity)

    def result(self, *, timeout: float | None) -> dict[str, Any]:
        """Return the data of the steps by key. ``timeout`` is in seconds; None waits for ever.

        Raises ``WorkflowFailed``, ``WorkflowCancelled`` and ``ResultTimeout``.
        """
        self._refuse_user("result")
        instance = self._engine.runner.wait(self._id, timeout=timeout, **self._identity)
        label = f"{self._identity['workflow']} {self._id}"
        if instance.status == "cancelled":
            raise WorkflowCancelled(f"{label} was cancelled")
        if instance.status == "failed":
            step = instance.failed_step
            step_text = "" if step is None else f"step {key_of(step)} ({name_of(step)}): "
            raise WorkflowFailed(f"{label} failed: {step_text}{instance.reason}", reason=thaw(instance.reason))
        return {key: thaw(data) for key, data in instance.context.steps.items()}

    def run_id(self) -> str:
        return self._id

    def run_ids(self) -> list[str]:
        return [self._id]

    def _stored_instance(self) -> Instance:
        return self._engine.storage.get(self._id, **self._identity)

    def _refuse_user(self, operation: str) -> None:
        """Raise ``NotConfigured`` for a user: an engine has no permissions that it could check."""
        if self._by is not None:
            raise NotConfigured(f"{operation} of {self._id}: by= requires the durable runtime: an engine has no users")
