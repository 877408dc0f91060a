"""The backend of ``DjangoEnvironment``: it performs production's operations, with the environment as the worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async

from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.declared_messages import read_answer
from temporalex_django.authoring.handle import WorkflowHandle
from temporalex_django.authoring.requests import RunAddress, RunRequest, StartRequest, inputs
from temporalex_django.authoring.start_api import Startable
from temporalex_django.backends.host import use_host
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.client import READS, DatabaseBackend, build_action
from temporalex_django.errors import AlreadyRunning, UpdateTimeout, WorkflowNotFound
from temporalex_django.operations.base import Action
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.update import SendUpdate
from temporalex_django.testing.environment_host import HandleHost
from temporalex_django.testing.handles import EnvironmentHandle, EnvironmentUpdate

if TYPE_CHECKING:
    from temporalex_django.testing.database import DjangoEnvironment

T = TypeVar("T")


class EnvironmentBackend(DatabaseBackend):
    """The backend of a ``DjangoEnvironment``: it performs production's operations on the database of the test.

    Before a call returns, the environment does the turns and activities that the call makes due.
    """

    def __init__(self, env: DjangoEnvironment) -> None:
        self._env = env
        self.host = HandleHost(env)

    def __reduce__(self) -> Any:
        raise TypeError("the handle of an environment cannot be copied or pickled: its runs live in the environment")

    def start(self, request: StartRequest) -> EnvironmentHandle[Any]:
        env = self._env
        env.remember_person(request.by)
        with use_host(self.host):
            handle = cast("EnvironmentHandle[Any]", super().start(request))
        env.remember_class(handle.chain_id, request.workflow)
        env.work()
        return handle

    def start_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        env = self._env
        for request in requests:
            env.remember_person(request.by)
        with use_host(self.host):
            results = super().start_many(requests)
        for request, result in zip(requests, results, strict=True):
            if not isinstance(result, AlreadyRunning):
                env.remember_new_class(cast("UUID", result.chain_id), request.workflow)
        env.work()
        return results

    def signal_with_start(self, request: StartRequest, signal: str, payload: Any) -> EnvironmentHandle[Any]:
        env = self._env
        env.remember_person(request.by)
        with use_host(self.host):
            handle = cast("EnvironmentHandle[Any]", super().signal_with_start(request, signal, payload))
        env.remember_new_class(handle.chain_id, request.workflow)
        env.work()
        return handle

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> EnvironmentHandle[Any]:
        with use_host(self.host):
            target = self._find_started(id, workflow)
        return EnvironmentHandle(self._env, target.workflow_id, target.chain_id, pinned=target.pinned)

    def _find_started(self, id: str, workflow: type[Startable] | None) -> RunTarget:
        """Return the run with that run id or business id. Raises ``WorkflowNotFound``."""
        try:
            return find_run(id, storage=self._env.storage, workflow=None if workflow is None else workflow.name)
        except WorkflowNotFound:
            raise WorkflowNotFound(f"no run with the id {id!r} was started in this environment") from None

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[EnvironmentHandle[Any]]:
        env = self._env
        with use_host(self.host):
            runs = [*super().list(workflow, filters, by=by)]
        return (EnvironmentHandle(env, handle.id, cast("UUID", handle.chain_id)) for handle in runs)

    def perform(self, address: RunAddress, request: RunRequest[T]) -> T:
        env = self._env
        env.remember_person(request.by)
        with use_host(self.host):
            try:
                result = super().perform(address, request)
            except UpdateTimeout:
                # In a batch nothing is delivered yet. The outcome of a decision is not awaited then.
                if not env.batching or request.operation not in ("resume", "decide"):
                    raise
                return cast("T", None)
        if request.operation not in (*READS, "query"):
            env.work()
        return result

    async def aperform(self, address: RunAddress, request: RunRequest[T]) -> T:
        # The environment works in the thread of the call, so the call is the one of sync code.
        return await sync_to_async(self.perform)(address, request)

    def send_update(
        self, address: RunAddress, name: Any, args: Any, *, id: str | None, by: Person | None
    ) -> EnvironmentUpdate:
        """Send the update ``name`` with ``args`` to a run, and let the environment do the work that is due.

        Returns the update without asking for its response. ``id`` is its message id, or None to generate one.
        """
        env = self._env
        env.remember_person(by)
        request: RunRequest[Any] = RunRequest("update", by, inputs(update=name, args=args, id=id))
        with use_host(self.host):
            update = cast("SendUpdate", build_action(address, request))
            update.send()
            code = update.target.workflow_class
        env.work()
        assert update.message_number is not None
        label = f"update {update.message!r} of {address.id}"
        read = partial(read_answer, code, request, may_be_redacted=False)
        return EnvironmentUpdate(env, update.target.chain_id, update.message_number, update.message_id, label, read)

    def _handle(self, target: RunTarget, *, workflow: type[Startable] | None) -> EnvironmentHandle[Any]:
        del workflow
        return EnvironmentHandle(self._env, target.workflow_id, target.chain_id)

    def _result(self, address: RunAddress, request: RunRequest[Any], action: Action[Any], result: Any) -> Any:
        """Convert the result of an operation into what the handle returns.

        If the operation is a fork, the class of the new run is remembered first, because the environment then runs it.
        """
        if request.operation == "fork":
            assert address.chain_id is not None
            code = self._env.class_of(address.chain_id, result.workflow, result.version)
            self._env.remember_class(result.chain_id, code)
        return super()._result(address, request, action, result)
