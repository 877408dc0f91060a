"""The backend and the handles of graph classes on an engine without Django.

They implement ``start``, ``resume``, ``get``, ``list`` and ``cancel`` of a class, as in ``OrderFlow.start("42", …)``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.handle import RESULT_TIMEOUT
from temporalex_django.authoring.run_filters import NEWEST_FIRST
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
from temporalex_django.graph.steps import StepRef, key_of, name_of

if TYPE_CHECKING:
    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.start_api import Startable
    from temporalex_django.graph.standalone.engine import Engine


class EngineHandle:
    """A handle of the newest instance with that id, workflow and version in an engine.

    It is no ``WorkflowHandle``, because an engine has no runs, histories, messages or permissions. The methods that
    it shares with ``WorkflowHandle`` do the same and take the same arguments, except those that would have no effect
    here.
    """

    def __init__(self, engine: Engine, instance: Instance) -> None:
        self.engine = engine
        self.id = instance.id
        self._identity: dict[str, Any] = {"workflow": instance.workflow.name, "version": instance.version}

    def __repr__(self) -> str:
        return f"<EngineHandle {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EngineHandle):
            return NotImplemented
        return (self.engine, self.id, self._identity) == (other.engine, other.id, other._identity)

    def __hash__(self) -> int:
        return hash(self.id)

    def instance(self) -> Instance:
        """Return the instance as it is stored now."""
        return self.engine.storage.get(self.id, **self._identity)

    @property
    def status(self) -> str:
        return self.instance().status

    def describe(self) -> Description:
        """Return the current state; ``closed_at`` is the time when the last step ended."""
        instance = self.instance()
        timestamps = [entry.timestamp for entry in instance.execution_history]
        # An instance does not record when it closed.
        closed_at: datetime | None = timestamps[-1] if instance.closed and timestamps else None
        return Description(
            id=self.id,
            run_id=self.id,
            workflow=self._identity["workflow"],
            version=instance.version,
            status=instance.status,
            waiting_for=describe_waits(instance),
            started_at=instance.telemetry_start_time,
            closed_at=closed_at,
        )

    def resume(self, event: str, step: StepRef | str | None = None, data: Any = None, *, by: Any = None) -> None:
        """Resume a waiting step; see ``WorkflowHandle.resume``.

        ``by`` is recorded with the data. An engine has no permission to resume runs, but a step may require a role.
        """
        self.engine.runner.resume(self.id, event, step=step, data=data, by=by, **self._identity)

    def cancel(self, reason: str = "", *, by: Any = None) -> None:
        """Close the instance as cancelled, at once.

        Raises ``WorkflowClosed``, and ``NotConfigured`` for a reason or a user, because an engine cannot store them.
        """
        _refuse_durable_options(f"cancel of {self.id}", reason=reason or None, by=by)
        self.engine.runner.cancel(self.id, **self._identity)

    def result(self, timeout: float | None = RESULT_TIMEOUT) -> dict[str, Any]:
        """Return the data of the steps by their keys.

        ``timeout`` is in seconds; None waits for ever. Raises ``WorkflowFailed``, ``WorkflowCancelled``,
        ``ResultTimeout``.
        """
        instance = self.engine.runner.wait(self.id, timeout=timeout, **self._identity)
        label = f"{self._identity['workflow']} {self.id}"
        if instance.status == "cancelled":
            raise WorkflowCancelled(f"{label} was cancelled")
        if instance.status == "failed":
            step = instance.failed_step
            step_text = ""
            if step is not None:
                step_text = f"step {key_of(step)} ({name_of(step)}): "
            raise WorkflowFailed(f"{label} failed: {step_text}{instance.reason}", reason=thaw(instance.reason))
        return {key: thaw(data) for key, data in instance.context.steps.items()}

    async def aresume(self, event: str, step: StepRef | str | None = None, data: Any = None, *, by: Any = None) -> None:
        """Resume a waiting step from async code; see ``resume``."""
        await asyncio.to_thread(self.resume, event, step=step, data=data, by=by)

    async def acancel(self, reason: str = "", *, by: Any = None) -> None:
        """Close the instance as cancelled, from async code; see ``cancel``."""
        await asyncio.to_thread(self.cancel, reason, by=by)

    async def aresult(self, timeout: float | None = RESULT_TIMEOUT) -> dict[str, Any]:
        """Wait for the end of the instance and return the data of its steps, from async code; see ``result``."""
        return await asyncio.to_thread(self.result, timeout)


def _refuse_durable_options(operation: str, **options: Any) -> None:
    """Raise ``NotConfigured`` for options that only Django's tables can store."""
    for name, value in options.items():
        if value is not None:
            raise NotConfigured(f"{operation}: {name}= requires the durable runtime: an engine cannot store it")


class EngineBackend:
    """The implementation of ``authoring.backend.Backend`` on an engine without Django."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def start(
        self,
        workflow: type[Any],
        args: Any = None,
        *,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        telemetry: Mapping[str, Any] | None = None,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        by: Any = None,
    ) -> EngineHandle:
        """Start an instance of a graph class and return its handle.

        The class calls this for ``start(value, args)``. Raises ``InvalidId``, ``NotConfigured`` for arguments that only
        Django's tables can store, and the errors of ``Engine.start_instance``.
        """
        _refuse_durable_options(
            f"start of {workflow.name}", subject=subject, search_attributes=search_attributes, tags=tags, by=by
        )
        if (id is None) == (value is None):
            raise InvalidId(f"{workflow.name}: an engine needs either the id or the value of an instance")
        key = id
        if key is None:
            if workflow.unique is None:
                raise InvalidId(f"{workflow.name} has no `unique`: pass an id, not a value")
            key = workflow.unique.run_id_for(value, lambda: os.urandom(4).hex())
        self.engine.start_instance(workflow, id=key, context=args, version=workflow.version, telemetry=telemetry)
        return EngineHandle(self.engine, self.engine.storage.get(key, workflow=workflow.name, version=workflow.version))

    async def astart(self, workflow: type[Any], args: Any = None, **options: Any) -> EngineHandle:
        """Start an instance and return its handle, from async code; see ``start``."""
        return await asyncio.to_thread(lambda: self.start(workflow, args, **options))

    def signal_with_start(self, workflow: type[Any], *_: Any, **__: Any) -> Any:
        """Raise ``UnknownWorkflow``, because graphs take no signals."""
        raise UnknownWorkflow(f"{workflow.name}: an engine executes graphs, which do not accept signals: use resume")

    async def asignal_with_start(self, workflow: type[Any], *_: Any, **__: Any) -> Any:
        """Raise ``UnknownWorkflow``, because graphs take no signals."""
        return self.signal_with_start(workflow)

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> EngineHandle:
        """Return the handle of the newest instance with that id. Raises ``WorkflowNotFound``."""
        return EngineHandle(
            self.engine, self.engine.storage.get(id, workflow=None if workflow is None else workflow.name)
        )

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> EngineHandle:
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
        return EngineHandle(self.engine, self.engine.storage.get(id, workflow=workflow.name, version=version))

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> EngineHandle:
        """Return the handle of the newest instance of a class with that id, from async code; see ``get``."""
        return await asyncio.to_thread(self.get, workflow, id, version=version)

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[EngineHandle]:
        """Return handles of the instances of a graph class that match the filters, newest start first.

        Raises ``TypeError`` for a user, for another order and for an unknown filter.
        """
        if by is not None:
            raise TypeError(f"{workflow.__name__}.list: a standalone engine has no users, so it does not accept by=")
        filters = dict(filters)
        if filters.pop("order", NEWEST_FIRST) != NEWEST_FIRST:
            raise TypeError(f"{workflow.__name__}.list: a standalone engine lists only the newest first")
        instances = self.engine.storage.query(workflow=workflow, **filters)
        return (EngineHandle(self.engine, instance) for instance in instances)

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[EngineHandle]:
        """Return a list of handles of the instances that match, from async code; see ``list``."""
        return await asyncio.to_thread(lambda: [*self.list(workflow, filters, by=by)])
