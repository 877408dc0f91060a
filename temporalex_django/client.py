"""``DatabaseBackend``: it starts and finds runs in the database, and performs the requests of their handles.

Everything here is a thin layer over the package ``operations``. Code for async callers runs in the thread that asgiref
keeps for Django. An operation that waits holds no thread while it waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async

from temporalex_django import access
from temporalex_django.authoring.authorization import Person, check_person, split_decider
from temporalex_django.authoring.declared_messages import name_function, read_answer
from temporalex_django.authoring.handle import WorkflowHandle, make_handle
from temporalex_django.authoring.human_tasks import select_task
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.authoring.requests import RunAddress, RunRequest, StartRequest
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import decode_result
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.errors import AlreadyRunning
from temporalex_django.operations.base import Action, Actor, actor_for, refuse_inside_workflow, storage
from temporalex_django.operations.human_tasks import inbox
from temporalex_django.operations.human_tasks.inbox import redact_tasks
from temporalex_django.operations.human_tasks.operations import Decide
from temporalex_django.operations.read import describe as reading
from temporalex_django.operations.registry import ACTIONS
from temporalex_django.operations.run_lookup import find_by_version, find_chain, find_run, list_runs
from temporalex_django.operations.runs.messages import Query, SignalWithStart
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.start import Start, start_many, target_of
from temporalex_django.operations.runs.update import SendUpdate

T = TypeVar("T")

#: Requests that read, and are no operations of the registry.
READS = ("human_tasks", "instance", "result", "describe", "history", "run_id", "run_ids")


class DatabaseBackend:
    """The backend that keeps runs in the database.

    It starts, finds and lists runs, and performs the requests of their handles. Its methods are those of the protocol
    ``authoring.backend.Backend``; each one whose name begins with ``a`` is for async callers.
    """

    def __reduce__(self) -> Any:
        # A copy of a handle, or one that was pickled, belongs to the backend of its process.
        return backend, ()

    def start(self, request: StartRequest) -> WorkflowHandle[Any]:
        start = Start(request, by=actor_for(request.by))
        handle = self._handle(start.execute(), workflow=request.workflow)
        handle.start_outcome = start.outcome
        return handle

    async def astart(self, request: StartRequest) -> WorkflowHandle[Any]:
        return await sync_to_async(self.start)(request)

    def start_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        by = requests[0].by if requests else None
        return [self._start_result(result) for result in start_many(requests, by=actor_for(by))]

    async def astart_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        return await sync_to_async(self.start_many)(requests)

    def _start_result(self, result: Start | AlreadyRunning) -> WorkflowHandle[Any] | AlreadyRunning:
        """Return the handle of a run; an ``AlreadyRunning`` error is returned as it is."""
        if isinstance(result, AlreadyRunning):
            return result
        handle = self._handle(target_of(result), workflow=result.request.workflow)
        handle.start_outcome = result.outcome
        return handle

    def signal_with_start(self, request: StartRequest, signal: str, payload: Any) -> WorkflowHandle[Any]:
        action = SignalWithStart(request, signal=signal, payload=payload, by=actor_for(request.by))
        handle = self._handle(action.execute(), workflow=request.workflow)
        handle.start_outcome = action.outcome
        return handle

    async def asignal_with_start(self, request: StartRequest, signal: str, payload: Any) -> WorkflowHandle[Any]:
        return await sync_to_async(self.signal_with_start)(request, signal, payload)

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> WorkflowHandle[Any]:
        return make_handle(RunAddress(id=id, workflow=workflow), self)

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle[Any]:
        target = find_by_version(id, storage=storage(), workflow=workflow.name, version=version)
        return self._handle(target, workflow=workflow)

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle[Any]:
        return await sync_to_async(self.get)(workflow, id, version=version)

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[WorkflowHandle[Any]]:
        runs = list_runs(workflow.name, filters, storage=storage(), by=check_person(by))
        return (
            make_handle(RunAddress(id=workflow_id, chain_id=chain_id, workflow=workflow), self)
            for workflow_id, chain_id in runs
        )

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[WorkflowHandle[Any]]:
        return await sync_to_async(lambda: [*self.list(workflow, filters, by=by)])()

    def perform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform the request on the run at ``address`` and return its result."""
        refuse_inside_workflow("an operation on a run")
        if request.operation in READS:
            return cast("T", getattr(_RunReader(address, request), request.operation)(**request.inputs))
        action = build_action(address, request)
        return cast("T", self._result(address, request, action, action.execute()))

    async def aperform(self, address: RunAddress, request: RunRequest[T]) -> T:
        """Perform the request from async code; a wait for a result or an answer holds no thread."""
        refuse_inside_workflow("an operation on a run")
        if request.operation == "result":
            reader = await sync_to_async(_RunReader)(address, request)
            return cast("T", await reader.aresult(**request.inputs))
        if request.operation in READS:
            return await sync_to_async(self.perform)(address, request)
        action = await sync_to_async(build_action)(address, request)
        return cast("T", self._result(address, request, action, await action.aexecute()))

    def _result(self, address: RunAddress, request: RunRequest[Any], action: Action[Any], result: Any) -> Any:
        """Return the result as the handle returns it: a new handle for a fork, answers with their declared type."""
        if request.operation == "fork":
            return self._handle(result, workflow=address.workflow)
        if isinstance(action, (SendUpdate, Query)):
            cls = action.target.workflow_class
            return read_answer(cls, request, result, may_be_redacted=action.redacts_answer)
        return result

    def _handle(self, target: RunTarget, *, workflow: type[Startable] | None) -> WorkflowHandle[Any]:
        address = RunAddress(id=target.workflow_id, chain_id=target.chain_id, workflow=workflow)
        return make_handle(address, self)


def _find_target(address: RunAddress, by: Person | None) -> RunTarget:
    """Return the run if it exists for the user ``by``. Raises ``WorkflowNotFound``."""
    store = storage()
    visible_runs = None if by is None else access.runs_for(by, alias=store.alias)
    if address.run_id is not None:
        return find_run(str(address.run_id), storage=store, visible_runs=visible_runs)
    if address.chain_id is not None:
        return find_chain(address.chain_id, storage=store, visible_runs=visible_runs)
    workflow_name = address.workflow.name if address.workflow else None
    return find_run(address.id, storage=store, workflow=workflow_name, visible_runs=visible_runs)


def build_action(address: RunAddress, request: RunRequest[Any]) -> Action[Any]:
    """Return the operation that the request names, for the run at ``address``.

    Nothing is done before its ``execute``.
    """
    if request.operation == "resume":
        user, decider_name = split_decider(request.by)
        return Resume(_find_target(address, user), by=Actor(user=user), decided_by=decider_name, **request.inputs)
    actor = actor_for(request.by)
    target = _find_target(address, actor.user)
    if request.operation == "decide":
        return _build_decision(target, actor, **request.inputs)
    if not isinstance(request.inputs.get(request.operation, ""), str):  # a function in place of the name
        request = name_function(target.workflow_class, request)
    operation: Any = ACTIONS[request.operation]
    return cast("Action[Any]", operation(target, by=actor, **request.inputs))


def _build_decision(target: RunTarget, actor: Actor, *, task: str | None, **inputs: Any) -> Decide:
    """Return the operation for a task's key, id or title, or None for the only one."""
    rows = inbox.all_tasks_of_run(target.selected_run_id)
    tasks = [inbox.to_open_human_task(row) for row in rows]
    # Closed tasks are searched too, so that the error can say who decided them and when.
    task_row = rows[tasks.index(select_task(tasks, task, run=f"{target.workflow} {target.workflow_id}"))]
    return Decide(task_row, by=actor, **inputs)


class _RunReader:
    """Answers the requests that only read a run, in the name of the user of the request.

    Each public method has the name of a request in ``READS``; ``aresult`` is the async form of ``result``. The
    constructor looks up the run, and raises ``WorkflowNotFound`` if it does not exist for the user. It raises
    ``ActionNotPermitted`` if they may not look at the run, except for their human tasks.
    """

    def __init__(self, address: RunAddress, request: RunRequest[Any]) -> None:
        self._by = check_person(request.by)
        self._storage = storage()
        if request.operation == "human_tasks":
            # People who may not view the run may still see the tasks that ask them.
            self._target, self._redactor = _find_target(address, self._by), UNREDACTED
        else:
            self._target, self._redactor = self._find_visible(address)

    def _find_visible(self, address: RunAddress) -> tuple[RunTarget, Redactor]:
        """Return the run with the user's redactor. Raises ``ActionNotPermitted`` if they may not look at it."""
        user = self._by
        target = access.find_visible(
            lambda: _find_target(address, user), lambda run_target: run_target.row, user, alias=self._storage.alias
        )
        return target, access.redactor_for(user, target.row) if user is not None else UNREDACTED

    def human_tasks(self) -> list[Any]:
        tasks = inbox.open_tasks_of_run(self._target.selected_run_id, user=self._by)
        return [inbox.to_open_human_task(task) for task in redact_tasks(tasks, self._by)]

    def instance(self) -> Any:
        return reading.load_instance(
            self._target, storage=self._storage, redactor=self._redactor.require_payloads(self._by)
        )

    def describe(self) -> Any:
        return reading.describe(self._target, storage=self._storage, redactor=self._redactor)

    def history(self) -> list[Any]:
        return reading.load_history(self._target, storage=self._storage, redactor=self._redactor)

    def run_id(self) -> str:
        return str(self._target.selected_run_id)

    def run_ids(self) -> list[str]:
        return [str(run_id) for run_id in reading.run_ids(self._target, storage=self._storage)]

    def result(self, *, timeout: float | None) -> Any:
        return self._fit_result(self._result_waiter(timeout).get())

    async def aresult(self, *, timeout: float | None) -> Any:
        waiter = await sync_to_async(self._result_waiter)(timeout)
        return self._fit_result(await waiter.aget())

    def _result_waiter(self, timeout: float | None) -> reading.ResultWaiter:
        redactor = self._redactor.require_payloads(self._by)
        return reading.ResultWaiter(self._target, timeout=timeout, storage=self._storage, redactor=redactor)

    def _fit_result(self, result: Any) -> Any:
        """Convert a result to the annotation of ``run``. A redacted one may not fit, so it stays plain data."""
        code = self._target.workflow_class if self._redactor is UNREDACTED else None
        return result if code is None else decode_result(code, result)


_database = DatabaseBackend()


def backend() -> DatabaseBackend:
    """Return the one backend of this process that keeps runs in the database. ``AppConfig.ready`` binds it."""
    return _database
