"""The backend of ``WorkflowEnvironment``: it starts runs in memory, and performs the requests of their handles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

from temporalex_django.authoring.authorization import (
    APP,
    Person,
    check_person,
    require_operation,
    require_start,
    sender_key,
    sender_of,
    split_decider,
)
from temporalex_django.authoring.declared_messages import check_payload, name_function, read_answer
from temporalex_django.authoring.handle import WorkflowHandle
from temporalex_django.authoring.human_tasks import (
    base_key,
    clean_form_data,
    matching_candidate,
    require_candidacy,
    require_outcome,
    require_user,
    select_task,
    task_label,
)
from temporalex_django.authoring.requests import (
    REPLACED,
    RunAddress,
    RunRequest,
    StartOutcome,
    StartRequest,
    require_reusable,
)
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import (
    require_signal,
)
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.core.names import all_names, check_message_id, check_name, check_wait, fit_note
from temporalex_django.core.payloads import codec
from temporalex_django.core.process import REQUEST
from temporalex_django.engine import run_closing
from temporalex_django.engine.activity_policy import update_result
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.ids import parse_run_id
from temporalex_django.engine.memory.storage import MemoryRunStorage
from temporalex_django.engine.operator_overrides import OPERATOR_RULES
from temporalex_django.engine.refusals import (
    closed_request_error,
    closed_run_error,
    counts_when_closed,
    counts_when_paused,
    paused_request_error,
)
from temporalex_django.engine.run_start import RunStart, start_of_request, throttled_start
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.errors import (
    AlreadyRunning,
    NotConfigured,
    WorkflowNotFound,
)
from temporalex_django.graph import instance
from temporalex_django.graph.durable_run import resume_request
from temporalex_django.interceptors import ClientCall
from temporalex_django.interceptors.chain import around, chain
from temporalex_django.testing.engine_environment import EngineEnvironment
from temporalex_django.testing.environment_base import EPOCH, EnvironmentHandle, EnvironmentUpdate, explain_closed
from temporalex_django.testing.memory_actions import MemoryOperator, MemorySchedules
from temporalex_django.testing.memory_run_reads import MemoryReads, MemoryRunReads

T = TypeVar("T")

VIEW = f"{APP}.view_instance"


class MemoryBackend:
    """The backend that starts, finds and operates the runs of an environment in memory.

    Before a call returns, the environment does the turns and activities that the call makes due.
    """

    def __init__(self, env: WorkflowEnvironment) -> None:
        self._env = env

    # -- starting and finding ------------------------------------------------------------------------------------------

    def start(self, request: StartRequest) -> EnvironmentHandle[Any]:
        handle = self.insert_run(request)
        self._env.work()
        return handle

    def insert_run(self, request: StartRequest) -> EnvironmentHandle[Any]:
        """Insert the run that the request describes, which does no work yet, and return its handle."""
        workflow, workflow_id = request.workflow.name, request.id
        with client_call("start", request.headers, workflow=workflow, workflow_id=workflow_id) as headers:
            return self._insert_run(replace(request, headers=headers))

    def _insert_run(self, request: StartRequest) -> EnvironmentHandle[Any]:
        env, workflow = self._env, request.workflow
        require_start(request.by, workflow)
        if request.needs_id:
            workflow_id = env.generate_id(workflow)
        else:
            workflow_id = request.business_id(suffix=env.random_suffix)
        if request.subject is not None:
            raise NotConfigured(
                f"runs in memory have no subject, so {workflow.name} cannot have one: use DjangoEnvironment"
            )
        run_start = start_of_request(
            request,
            workflow_id=workflow_id,
            seed=env.new_seed(),
            by=request.by,
            make_snapshot=instance.start_snapshot,
            headers=request.headers,
        )
        chain_id, outcome = start_by_policy(env, request, run_start)
        if outcome != "existing":
            env.remember_class(chain_id, workflow)
        handle: EnvironmentHandle[Any] = EnvironmentHandle(env, workflow_id, chain_id)
        handle.start_outcome = outcome
        return handle

    async def astart(self, request: StartRequest) -> EnvironmentHandle[Any]:
        return self.start(request)

    def start_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        env, results = self._env, list[WorkflowHandle[Any] | AlreadyRunning]()
        # All or nothing: an input that does not fit undoes the starts before it.
        with nullcontext() if env.batching else env.batch(), env.storage.transaction():
            for request in requests:
                try:
                    results.append(self.start(request))
                except AlreadyRunning as exc:
                    results.append(exc)
        return results

    async def astart_many(self, requests: Sequence[StartRequest]) -> list[WorkflowHandle[Any] | AlreadyRunning]:
        return self.start_many(requests)

    def signal_with_start(self, request: StartRequest, signal: str, payload: Any) -> EnvironmentHandle[Any]:
        env, workflow, by = self._env, request.workflow, check_person(request.by)
        require_signal(workflow, signal)
        plain = codec.to_plain(payload, label=f"the payload of signal {check_name(signal, label='signal')!r}")
        assert request.id is not None
        chain_id = env.storage.find_chain(request.id, workflow=workflow.name)
        if chain_id is not None:
            row = env.row(env.run_ids(chain_id)[-1])
            if row.status not in CLOSED_STATUSES and row.facts.workflow_id == request.id:
                run = self._run(RunAddress(id=request.id, chain_id=chain_id))
                run.send("signal", signal, plain, by=by, headers=request.headers)
                open_run: EnvironmentHandle[Any] = EnvironmentHandle(env, request.id, chain_id)
                open_run.start_outcome = "existing"
                return open_run
        # In a batch, so that the start and the signal arrive in one activation; batches cannot be nested.
        with nullcontext() if env.batching else env.batch():
            handle = self.start(request)
            run = self._run(RunAddress(id=request.id, chain_id=handle.chain_id))
            run.send("signal", signal, plain, by=by, headers=request.headers)
        return handle

    async def asignal_with_start(self, request: StartRequest, signal: str, payload: Any) -> EnvironmentHandle[Any]:
        return self.signal_with_start(request, signal, payload)

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> EnvironmentHandle[Any]:
        env = self._env
        chain_id = env.storage.find_chain(id, workflow=None if workflow is None else workflow.name)
        if chain_id is None:
            raise WorkflowNotFound(f"no run with the id {id!r} was started in this environment")
        runs, run_id = env.run_ids(chain_id), parse_run_id(id)
        return EnvironmentHandle(
            env, env.row(runs[-1]).facts.workflow_id, chain_id, pinned=run_id if run_id in runs else None
        )

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> EnvironmentHandle[Any]:
        del version
        return self.handle(id, workflow=workflow)

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> EnvironmentHandle[Any]:
        return self.get(workflow, id, version=version)

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[EnvironmentHandle[Any]]:
        require_operation(by, "view", action="view")
        listed_runs = self._env.list_runs({"workflow": workflow.name, **filters})
        return (EnvironmentHandle(self._env, workflow_id, chain_id) for workflow_id, chain_id in listed_runs)

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[EnvironmentHandle[Any]]:
        return [*self.list(workflow, filters, by=by)]

    # -- requests ------------------------------------------------------------------------------------------------------

    def perform(self, address: RunAddress, request: RunRequest[T]) -> T:
        if request.operation not in ("update", "query"):
            return self._perform_intercepted(address, request)
        code = self._run(address).newest_class
        request = name_function(code, request)
        answer = self._perform_intercepted(address, request)
        may_be_redacted = request.operation == "query" and request.by is not None
        return cast("T", read_answer(code, request, answer, may_be_redacted=may_be_redacted))

    def _perform_intercepted(self, address: RunAddress, request: RunRequest[T]) -> T:
        inputs, runs = request.inputs, () if address.chain_id is None else self._env.run_ids(address.chain_id)
        if request.operation in _READS or not chain.client_call:
            return self._perform(address, request, None)
        with client_call(
            request.operation,
            inputs.get("headers"),
            workflow=self._env.row(runs[-1]).facts.workflow if runs else None,
            workflow_id=address.id,
            run_id=str(address.run_id or runs[-1]) if runs else None,
            message=inputs.get("signal") or inputs.get("update") or inputs.get("query"),
        ) as headers:
            if request.operation in ("signal", "update"):
                request = replace(request, inputs={**inputs, "headers": headers})
            return self._perform(address, request, headers)

    def _perform(self, address: RunAddress, request: RunRequest[T], headers: Headers | None) -> T:
        run = self._run(address)
        run.call_headers = headers
        if request.operation in OPERATOR_RULES:
            operator = MemoryOperator(run, check_person(request.by))
            return cast("T", operator.execute(request.operation, **request.inputs))
        return cast("T", getattr(run, request.operation)(by=request.by, **request.inputs))

    async def aperform(self, address: RunAddress, request: RunRequest[T]) -> T:
        return self.perform(address, request)

    def send_update(
        self, address: RunAddress, name: Any, args: Any, *, id: str | None, by: Person | None
    ) -> EnvironmentUpdate:
        """Send the update ``name`` and do the work that is due; return the update without asking for its response."""
        run = self._run(address)
        request: RunRequest[Any] = name_function(run.newest_class, RunRequest("update", by, {"update": name}))
        read = partial(read_answer, run.newest_class, request, may_be_redacted=False)
        return run.send_update(request.inputs["update"], args, id=id, by=by, read=read)

    def _run(self, address: RunAddress) -> MemoryRunOperations:
        """Return the operations on the run at ``address``. Raises ``WorkflowNotFound`` if it was deleted."""
        if address.chain_id not in self._env.storage.chains:
            raise WorkflowNotFound(f"{address.id} no longer exists: somebody has deleted it")
        return MemoryRunOperations(self._env, address)


class MemoryRunOperations(MemoryRunReads):
    """The operations on one run in memory. Each method performs the operation of its name of ``WorkflowHandle``."""

    #: Headers of the call that interceptors have added, for a message that takes none from the caller.
    call_headers: Headers | None = None

    def send(
        self,
        kind: str,
        name: str,
        body: Any,
        request_id: str | None = None,
        *,
        by: Person | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Put a message into the inbox and let the environment work. Return the number of the message.

        ``kind`` is the kind of message: signal, update or resume. ``body`` is its payload, and ``request_id`` its
        message id.
        """
        env = self.env
        plain = codec.to_plain(body, label=f"the payload of {kind} {name!r}")
        if kind in ("signal", "update"):
            code = self._code(self.newest_run.facts)
            if kind == "signal":
                require_signal(code, name)
            check_payload(code, "signal" if kind == "signal" else "update", name, body, plain, aloud=False)
        number: int = env.storage.send(
            *(self.chain_id, kind, name, plain),
            message_id=request_id,
            sender=env.remember_person(by),
            headers=check_headers(headers, label=f"{kind} {name!r}"),
        )
        env.work()
        return number

    def signal(
        self, *, signal: str, payload: Any, id: str | None, by: Person | None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send the signal named ``signal``. It is not refused if its message id was sent before."""
        by = check_person(by)
        label = f"signal {check_name(signal, label='signal')!r}"
        # A signal that was sent with this id before counts as sent, even if the run has closed since. So only a signal
        # without an id is refused before it is sent.
        if id is None:
            self._require_open(label)
        request_id = None if id is None else check_message_id(id, label="signal")
        outcome = self.env.outcome(self.send("signal", signal, payload, request_id, by=by, headers=headers))
        # The run may have closed in the activation that the signal caused.
        if outcome is not None and outcome.status == "undelivered":
            self._require_open(label)

    def _require_open(self, label: str) -> None:
        """Raise ``WorkflowClosed`` if the newest run is closed; ``label`` says in the error what was refused."""
        if (status := self.newest_run.status) in CLOSED_STATUSES:
            raise closed_run_error(self.label, status, label)

    def update(
        self,
        *,
        update: str,
        args: Any,
        id: str | None,
        timeout: float | None,
        mode: str,
        by: Person | None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        check_wait(timeout, mode)
        check_name(update, label="update")
        self._require_taking("update", update, id)
        return self.send_update(update, args, id=id, by=by, headers=headers).result()

    def _require_taking(self, kind: str, name: str, message_id: str | None) -> None:
        """Raise ``WorkflowClosed`` or ``RunPaused`` if the run takes no request, and has not taken this one before."""
        row, is_known, outcome = self.newest_run, False, None
        if message_id is not None:
            is_known = self.env.storage.has_message(self.chain_id, message_id)
            outcome = self.env.update_outcome(self.chain_id, message_id)
        status = None if outcome is None else outcome.status
        if row.status in CLOSED_STATUSES and not (is_known and counts_when_closed(status)):
            raise explain_closed(closed_request_error(self.label, row.status, f"{kind} {name!r}"), row)
        if row.paused is not None and not (is_known and counts_when_paused(status)):
            raise paused_request_error(self.label, f"{kind} {name!r}")

    def send_update(
        self,
        name: str,
        args: Any,
        *,
        id: str | None,
        by: Person | None,
        headers: Mapping[str, str] | None = None,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> EnvironmentUpdate:
        """Send the update ``name``, and return it without asking for its response.

        ``id`` is its message id, or None. ``read`` is that of ``EnvironmentUpdate``.
        """
        by = check_person(by)
        check_name(name, label="update")
        update_id = str(uuid4()) if id is None else check_message_id(id, label="update")
        number = self.send("update", name, args, update_id, by=by, headers=headers)
        label = f"update {name!r} of {self._address.id}"
        return EnvironmentUpdate(self.env, self.chain_id, number, update_id, label, read)

    def resume(self, *, event: str, step: Any, data: Any, timeout: float | None, by: Person | str | None) -> None:
        check_wait(timeout)
        user, name = split_decider(by)
        sender_name = str(user) if user is not None else name
        request = resume_request(event, step=step, data=data, by=sender_name, key=sender_key(user))
        self._request(event, request, label=f"resume({event!r}) of {self.label}", by=user)

    def decide(
        self, *, outcome: str, task: str | None, data: Any, comment: str, timeout: float | None, by: Person | None
    ) -> None:
        """Decide a human task of the run with ``outcome``, in the name of the user ``by``.

        ``task`` is its key, id or title; None if exactly one is open. ``timeout`` has no effect.
        """
        check_wait(timeout)
        person = check_person(by)
        human_task = select_task(self._human_tasks(None), task, run=self.label)
        label, comment = task_label(human_task.key, self.label), fit_note(comment, label="the comment")
        require_outcome(human_task.outcomes, outcome, label=label)
        user = require_user(person, label=label)
        state = self.env.storage.human_tasks[UUID(human_task.id)].task

        def is_excluded(person: Person) -> bool:
            return sender_key(person) in state.barred

        candidacy = matching_candidate([user], state.candidates, is_excluded=is_excluded)
        require_candidacy(user, candidacy, candidates=state.candidates, label=label, is_excluded=is_excluded)
        request = {
            "event": outcome,
            "step": base_key(human_task.key),
            "task": human_task.key,
            "run": self.run_id(),
            "comment": comment,
            # As the person saw it: a decision keeps the question that it answers (see decision 47).
            "question": {"title": human_task.title, "outcomes": [*human_task.outcomes]},
            "by": str(user),
            "by_key": sender_key(user),
            **clean_form_data(human_task.form, data, title=human_task.title),
        }
        self._request(outcome, request, label=f"the decision {outcome!r} of {label}", by=user)

    def _request(self, event: str, request: dict[str, Any], *, label: str, by: Person | None) -> None:
        """Send the run a request to resume a step or to decide a human task.

        ``event`` is the event of the step, or the outcome of the task. If the run refuses the request, raises the error
        that says why; ``label`` names the request in its message.
        """
        update_id = str(uuid4())
        self._require_taking(REQUEST, event, update_id)
        number = self.send(REQUEST, event, request, update_id, by=by, headers=self.call_headers)
        # In a batch nothing is delivered yet, so there is no outcome to raise.
        if not self.env.batching:
            update_result(self.env.outcome(number), update_id=update_id, label=label)


# --- memory calls -----------------------------------------------------------------------------------------------------
#
# The hooks of interceptors around client calls on runs in memory.


#: Requests that are no operations, so that interceptors do not see them.
_READS = frozenset({"human_tasks", "instance", "result", "describe", "history", "run_id", "run_ids"})


@contextmanager
def client_call(operation: str, headers: Headers | None, **facts: Any) -> Iterator[Headers | None]:
    """Return a context manager for an operation, in whose block the hooks of interceptors have been entered.

    Its value (``as``) are the headers, as the hooks have left them. ``facts`` are the other fields of ``ClientCall``.
    """
    if not chain.client_call:
        yield headers
        return
    call = ClientCall(operation=operation, headers=dict(headers or {}), **facts)
    with around(chain.client_call, call, keeps_errors=True):
        yield check_headers(call.headers, label=f"{operation} with interceptors")


# --- memory starts ----------------------------------------------------------------------------------------------------
#
# Starts of runs in memory, with the policies of a start about other runs that have its id.


def start_by_policy(env: WorkflowEnvironment, request: StartRequest, start: RunStart) -> tuple[UUID, StartOutcome]:
    """Start a run as ``on_conflict``, ``on_closed``, ``debounce`` and ``throttle`` of the request say.

    If an open run has its id, that run may be used or terminated instead. Returns ``(chain id, outcome)``, whose
    outcome is "started", "existing", "replaced" or "debounced".

    Raises ``AlreadyRunning``, ``AlreadyEnded`` and ``ActionNotPermitted``.
    """
    storage = env.storage
    if request.debounce is not None:
        chain_id = storage.replace_waiting_input(start, sender_of(request.by))
        if chain_id is not None:
            return chain_id, "debounced"
    _require_reusable(storage, request, start)
    try:
        with storage.transaction():
            return storage.start(_throttled(storage, request, start)), "started"
    except AlreadyRunning:
        chain_id = _find_open(storage, start)
        if chain_id is None or request.on_conflict == "fail":
            raise
    if request.on_conflict == "use_existing":
        require_operation(request.by, "view", action="view")
        return chain_id, "existing"
    open_run = MemoryRunReads(env, RunAddress(id=start.workflow_id, chain_id=chain_id))
    MemoryOperator(open_run, request.by).execute("terminate", reason=REPLACED)
    _require_reusable(storage, request, start)
    return storage.start(_throttled(storage, request, start)), "replaced"


def _throttled(storage: MemoryRunStorage, request: StartRequest, start: RunStart) -> RunStart:
    """Return ``start`` with the time at which the throttle of the request lets its run begin, and count the run.

    Without a throttle, or if the run may begin now, ``start`` is returned unchanged.
    """
    throttle = request.parsed_throttle
    if throttle is None:
        return start
    name = throttle.name_for(start.workflow)
    start, storage.start_times[name] = throttled_start(
        start, throttle, storage.start_times.get(name, ()), storage.clock
    )
    return start


def _require_reusable(storage: MemoryRunStorage, request: StartRequest, start: RunStart) -> None:
    statuses = [status for _, status in _runs_with_id(storage, start) if status in CLOSED_STATUSES]
    require_reusable(
        statuses[-1] if statuses else None,
        request.on_closed,
        workflow=start.workflow,
        workflow_id=start.workflow_id,
    )


def _find_open(storage: MemoryRunStorage, start: RunStart) -> UUID | None:
    """Return the chain of the open run of the class that has the business id of ``start``, or None."""
    open_chains = [chain for chain, status in _runs_with_id(storage, start) if status not in CLOSED_STATUSES]
    return open_chains[-1] if open_chains else None


def _runs_with_id(storage: MemoryRunStorage, start: RunStart) -> list[tuple[UUID, str]]:
    """Return ``(chain, status)`` for each chain of the class with the business id of ``start``, oldest first.

    The status is that of the chain's current run.
    """
    names, runs = all_names(start.workflow), []
    for chain_id in storage.chains_of(start.workflow_id):
        run = storage.current_run(chain_id)
        same_version = start.scope != "version" or run.facts.version == start.version
        if run.facts.workflow in names and same_version:
            runs.append((chain_id, run.status))
    return runs


# --- memory -----------------------------------------------------------------------------------------------------------
#
# ``WorkflowEnvironment``, which runs workflows in memory: no database, no Django.


class WorkflowEnvironment(EngineEnvironment, MemoryReads):
    """A test environment that runs workflows in memory, with a virtual clock that moves by ``advance`` alone.

    The clock starts at ``now`` (aware; by default 2026-01-01T00:00Z).

    ``evict=True`` rebuilds each run from its history before every activation. ``deadlock_timeout`` (real seconds)
    blocks a run whose code does not reach a wait in time; None means no limit.

    ``admit_updates`` and ``max_pending`` drive runs as a Temporal cluster would. With ``admit_updates``, an update that
    arrives while a handler is busy is accepted at once and queued. With ``max_pending``, calls beyond that number of
    unresolved calls are held back.
    """

    def __init__(
        self,
        *,
        evict: bool = False,
        deadlock_timeout: float | None = None,
        admit_updates: bool = False,
        max_pending: int | None = None,
        now: datetime | None = None,
    ) -> None:
        super().__init__()
        limits = {"admit_updates": admit_updates, "max_pending": max_pending}
        self.clock = EPOCH if now is None else now
        self.storage = MemoryRunStorage(self.clock)
        self.backend = backend = MemoryBackend(self)
        self.schedules = MemorySchedules(self, backend)
        self.engine = WorkflowEngine(
            self.storage,
            self.storage,
            cache_size=0 if evict else 1_000_000,
            inline_atomic=False,
            resolve=self.class_of,
            strict_replay=get_settings().STRICT_REPLAY,
            deadlock_timeout=deadlock_timeout,
            limits={name: value for name, value in limits.items() if value},
            budgeted=False,
            make_judge=lambda: self._judge,
        )

    def close(self, chain_id: UUID, status: str, reason: str) -> None:
        """Close the open run of a chain at once with ``status``, and do the work that is due.

        ``status`` is "terminated", or "cancelled" for a graph.
        """
        with self.storage.transaction():
            self._close_run(replace(self.storage.chains[chain_id]), status, reason)
        self._drive()

    def _close_run(self, run: RunState, status: str, reason: str) -> None:
        """Close a locked run at once with ``status``, and leave the work that is due to the caller."""
        # The run is closed without running any of its code, so its executor must not be activated again.
        self.engine.cache.take(run.run_id)
        record = self.storage.run_records([run.run_id])[run.run_id]
        self.storage.write([run_closing.CLOSERS[status](run, reason=reason, now=self.clock, record=record)])
        self.errors.pop(run.run_id, None)
