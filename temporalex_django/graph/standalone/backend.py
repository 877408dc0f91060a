"""The backend of graph classes on an engine without Django.

It implements ``start``, ``resume``, ``get``, ``list`` and ``cancel`` of a class, as in ``OrderFlow.start("42", …)``.
Handles have the methods that need no Django: ``resume``, ``cancel``, ``result``, ``instance`` and ``describe``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.handle import WorkflowHandle, make_handle
from temporalex_django.authoring.run_filters import NEWEST_FIRST
from temporalex_django.authoring.run_request import RunAddress, RunRequest
from temporalex_django.core.names import check_wait
from temporalex_django.errors import (
    InvalidId,
    NotConfigured,
    UnknownVersion,
    UnknownWorkflow,
    WorkflowCancelled,
    WorkflowFailed,
)
from temporalex_django.graph.contracts import OPEN
from temporalex_django.graph.durable.run import describe_waits
from temporalex_django.graph.frozen_data import thaw
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import key_of, name_of

if TYPE_CHECKING:
    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.start_api import Startable
    from temporalex_django.authoring.start_request import StartRequest
    from temporalex_django.graph.standalone.engine import Engine

T = TypeVar("T")


def _refuse_durable_options(operation: str, **options: Any) -> None:
    """Raise ``NotConfigured`` for options that only Django's tables can store."""
    for name, value in options.items():
        if value is not None:
            raise NotConfigured(f"{operation}: {name}= requires the durable runtime: an engine cannot store it")


class EngineBackend:
    """The implementation of ``authoring.backend.Backend`` on an engine without Django."""

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
        """Start an instance and return its handle, from async code; see ``start``."""
        return await asyncio.to_thread(self.start, request)

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
        """Return the handle of the newest instance with the id, the workflow and the version of this one."""
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
        """Return the handle of the newest instance of a class with that id, from async code; see ``get``."""
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
            raise TypeError(f"{workflow.__name__}.list: a standalone engine lists only the newest first")
        instances = self.engine.storage.query(workflow=workflow, **filters)
        return (self._handle(instance) for instance in instances)

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[WorkflowHandle[Any]]:
        """Return a list of handles of the instances that match, from async code; see ``list``."""
        return await asyncio.to_thread(lambda: [*self.list(workflow, filters, by=by)])

    def perform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform one of the operations that an engine has. Raises ``NotConfigured`` for any other."""
        instance = _EngineInstance(self.engine, address, by=request.by)
        if request.operation not in _OPERATIONS:
            raise NotConfigured(
                f"{request.operation} of {address.id} requires the durable runtime: an engine has no histories, "
                "messages or permissions"
            )
        return cast("T", getattr(instance, request.operation)(**request.inputs))

    async def aperform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform the operation in a thread, for async code; see ``perform``."""
        return await asyncio.to_thread(self.perform, address, request)


_OPERATIONS = ("instance", "describe", "resume", "cancel", "result", "run_id", "run_ids")


class _EngineInstance:
    """The operations on one instance. Each method has the name of its request, and takes its inputs."""

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
        """Return the current state; ``closed_at`` is the time when the last step ended."""
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
        """Resume a waiting step; ``by`` is recorded with the data, and a step may require a role."""
        check_wait(timeout)
        self._engine.runner.resume(self._id, event, step=step, data=data, by=self._by, **self._identity)

    def cancel(self, *, reason: str) -> None:
        """Close the instance as cancelled, at once.

        Raises ``NotConfigured`` for a reason or a user, because an engine cannot store them.
        """
        _refuse_durable_options(f"cancel of {self._id}", reason=reason or None, by=self._by)
        self._engine.runner.cancel(self._id, **self._identity)

    def result(self, *, timeout: float | None) -> dict[str, Any]:
        """Return the data of the steps by their keys."""
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
        _refuse_durable_options(f"{operation} of {self._id}", by=self._by)
