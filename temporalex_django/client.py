"""Handles with which code outside of workflows starts, messages, queries and ends runs.

Everything here is a thin layer over ``operations``. The ``a``-prefixed methods run the same code in the thread that
asgiref keeps for Django. Those that wait hold no thread while they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from asgiref.sync import sync_to_async

from temporalex_django import access
from temporalex_django.authoring.authorization import Person, check_person, split_decider
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.handle import ANSWER_TIMEOUT, RESULT_TIMEOUT, UNCHANGED, WorkflowHandle
from temporalex_django.authoring.human_tasks import OpenHumanTask, select_task
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.type_hints import Result_co
from temporalex_django.authoring.workflow import Workflow, decode_result
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.graph.steps import StepRef
from temporalex_django.operations.base import CODE, Actor, refuse_inside_workflow, storage
from temporalex_django.operations.human_tasks import inbox
from temporalex_django.operations.human_tasks.decide import Decide
from temporalex_django.operations.human_tasks.redaction import redact_tasks
from temporalex_django.operations.read import describe as reading
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.run_lookup import RunTarget, find_by_version, find_chain, find_run, list_runs
from temporalex_django.operations.runs.cancel import Cancel
from temporalex_django.operations.runs.fork import Fork
from temporalex_django.operations.runs.query import Query
from temporalex_django.operations.runs.reset import Reset
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.signal import SendSignal
from temporalex_django.operations.runs.signal_with_start import SignalWithStart
from temporalex_django.operations.runs.start import Start
from temporalex_django.operations.runs.terminate import Terminate
from temporalex_django.operations.runs.update import SendUpdate


class DatabaseHandle(WorkflowHandle[Result_co]):
    """A ``WorkflowHandle`` of a run in the database."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatabaseHandle):
            return NotImplemented
        return (self.id, self.chain_id, self._workflow) == (other.id, other.chain_id, other._workflow)

    def __hash__(self) -> int:
        return hash((self.id, self.chain_id))

    def _visible_target(self, by: Person | None) -> tuple[RunTarget, Redactor]:
        """Return the target and the redactor with which ``by`` sees it.

        Raises ``ActionNotPermitted`` when this user may not look at the run.
        """
        user = check_person(by)
        target = access.find_visible(
            lambda: self._target(user), lambda run_target: run_target.row, user, alias=storage().alias
        )
        return target, access.redactor_for(user, target.row) if user is not None else UNREDACTED

    def _target(self, by: Person | None = None) -> RunTarget:
        """Find the run among those that exist for ``by``."""
        refuse_inside_workflow("an operation on a run")
        store = storage()
        visible_runs = access.runs_for(by, alias=store.alias)
        if self.chain_id is not None:
            return find_chain(self.chain_id, storage=store, visible_runs=visible_runs)
        return find_run(
            self.id, storage=store, workflow=self._workflow.name if self._workflow else None, visible_runs=visible_runs
        )

    # -- messages ------------------------------------------------------------------------------------------------------

    def signal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        actor = _actor(by)
        SendSignal(self._target(actor.user), signal=name, payload=payload, id=id, by=actor).execute()

    def update(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        actor = _actor(by)
        return SendUpdate(
            self._target(actor.user), update=name, args=args, id=id, timeout=timeout, mode=mode, by=actor
        ).execute()

    def resume(
        self,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        self._resume(event, step, data, by, timeout).execute()

    def _resume(
        self,
        event: str,
        step: StepRef | str | None,
        data: Any,
        by: Person | str | None,
        timeout: float | None,
    ) -> Resume:
        user, name = split_decider(by)
        actor = Actor(user=user)
        return Resume(self._target(user), event=event, step=step, data=data, timeout=timeout, by=actor, decided_by=name)

    def human_tasks(self, *, by: Person | None = None) -> list[OpenHumanTask]:
        user = check_person(by)
        tasks = inbox.open_tasks_of_run(self._target(user).selected_run_id, user=user)
        return [inbox.to_open_human_task(task) for task in redact_tasks(tasks, user)]

    def decide(
        self,
        outcome: str,
        *,
        task: str | None = None,
        data: Any = None,
        comment: str = "",
        by: Person | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        self._decide(outcome, task, data, comment, by, timeout).execute()

    def _decide(
        self, outcome: str, task: str | None, data: Any, comment: str, by: Person | None, timeout: float | None
    ) -> Decide:
        actor = _actor(by)
        target = self._target(actor.user)
        rows = inbox.all_tasks_of_run(target.selected_run_id)
        tasks = [inbox.to_open_human_task(row) for row in rows]
        # Closed tasks are searched too, so that the error can say who decided them and when.
        task_row = rows[tasks.index(select_task(tasks, task, run=f"{target.workflow} {target.workflow_id}"))]
        return Decide(task_row, outcome=outcome, data=data, comment=comment, timeout=timeout, by=actor)

    async def adecide(
        self,
        outcome: str,
        *,
        task: str | None = None,
        data: Any = None,
        comment: str = "",
        by: Person | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        await (await sync_to_async(self._decide)(outcome, task, data, comment, by, timeout)).aexecute()

    def instance(self, *, by: Person | None = None) -> Any:
        target, redactor = self._visible_target(by)
        return reading.load_instance(target, storage=storage(), redactor=redactor.require_payloads(by))

    def query(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        actor = _actor(by)
        return Query(self._target(actor.user), query=name, args=args, fresh=fresh, by=actor).execute()

    # -- the end -------------------------------------------------------------------------------------------------------

    def result(self, timeout: float | None = RESULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        target, redactor = self._visible_target(by)
        result = reading.ResultWaiter(
            target, timeout=timeout, storage=storage(), redactor=redactor.require_payloads(by)
        ).get()
        return cast("Result_co", _fit_result(target, result, redactor))

    def cancel(self, reason: str = "", *, by: Person | None = None) -> None:
        actor = _actor(by)
        Cancel(self._target(actor.user), reason=reason, by=actor).execute()

    def terminate(self, reason: str = "", *, by: Person | None = None) -> None:
        actor = _actor(by)
        Terminate(self._target(actor.user), reason=reason, by=actor).execute()

    # -- reset and fork ------------------------------------------------------------------------------------------------

    def reset(
        self,
        to: int | None = None,
        *,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> str:
        actor = _actor(by)
        return Reset(
            self._target(actor.user), reason=reason, by=actor, **_reset_options(to, messages, edited)
        ).execute()

    def fork(
        self,
        to: int | None = None,
        *,
        id: str | None = None,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> DatabaseHandle[Result_co]:
        actor, options = _actor(by), _reset_options(to, messages, edited)
        # Leave the id out instead of passing None: an input that is present must be of its kind.
        id_option: dict[str, Any] = {} if id is None else {"id": id}
        target = Fork(self._target(actor.user), reason=reason, by=actor, **options, **id_option).execute()
        return DatabaseHandle(target.workflow_id, workflow=self._workflow, chain_id=target.chain_id)

    # -- operating -----------------------------------------------------------------------------------------------------

    def pause(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("pause", by, reason=reason)

    def unpause(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("unpause", by, reason=reason)

    def try_again(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("try_again", by, reason=reason)

    def retry_activity(self, seq: int, *, input: Any = UNCHANGED, reason: str = "", by: Person | None = None) -> None:
        self._operate("retry_activity", by, seq=seq, reason=reason, **({} if input is UNCHANGED else {"input": input}))

    def complete_activity(self, seq: int, result: Any = None, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("complete_activity", by, seq=seq, reason=reason, result=result)

    def fail_activity(
        self, seq: int, message: str, *, type: str = "FailedByHand", reason: str = "", by: Person | None = None
    ) -> None:
        self._operate("fail_activity", by, seq=seq, reason=reason, message=message, type=type)

    def redeliver(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("redeliver", by, reason=reason, **({} if id is None else {"message": id}))

    def discard(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("discard", by, reason=reason, **({} if id is None else {"message": id}))

    def skip_timer(self, seq: int, *, reason: str = "", by: Person | None = None) -> None:
        self._operate("skip_timer", by, seq=seq, reason=reason)

    def delete(self, reason: str = "", *, by: Person | None = None) -> None:
        self._operate("delete", by, reason=reason)

    def _operate(self, name: str, by: Person | None, **inputs: Any) -> None:
        actor = _actor(by)
        STEERING[name](self._target(actor.user), by=actor, **inputs).execute()

    # -- reading -------------------------------------------------------------------------------------------------------

    def describe(self, *, by: Person | None = None) -> Description:
        target, redactor = self._visible_target(by)
        return reading.describe(target, storage=storage(), redactor=redactor)

    def history(self, *, by: Person | None = None) -> list[HistoryEvent]:
        target, redactor = self._visible_target(by)
        return reading.load_history(target, storage=storage(), redactor=redactor)

    @property
    def run_id(self) -> str:
        return str(self._target().selected_run_id)

    @property
    def run_ids(self) -> list[str]:
        return [str(run_id) for run_id in reading.run_ids(self._target(), storage=storage())]

    # -- async ---------------------------------------------------------------------------------------------------------

    async def _from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await sync_to_async(call)(*args, **options)

    async def aupdate(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        actor = _actor(by)
        target = await sync_to_async(self._target)(actor.user)
        update = await sync_to_async(SendUpdate)(
            target, update=name, args=args, id=id, timeout=timeout, mode=mode, by=actor
        )
        return await update.aexecute()

    async def aresume(
        self,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        await (await sync_to_async(self._resume)(event, step, data, by, timeout)).aexecute()

    async def aresult(self, timeout: float | None = RESULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        target, redactor = await sync_to_async(self._visible_target)(by)
        pending_result = await sync_to_async(reading.ResultWaiter)(
            target, timeout=timeout, storage=storage(), redactor=redactor.require_payloads(by)
        )
        result = await pending_result.aget()
        return cast("Result_co", _fit_result(target, result, redactor))


def _actor(by: object) -> Actor:
    """Return the actor for code that acts in the name of ``by``, or ``CODE`` for None.

    Raises ``ActionNotPermitted`` for anything that is not a user.
    """
    return CODE if by is None else Actor(user=check_person(by))


def _fit_result(target: RunTarget, result: Any, redactor: Redactor) -> Any:
    """Convert a result to the annotation of ``run`` where the class is available in this process.

    A reader whose view is redacted gets plain data, because a redacted value may no longer fit the annotation.
    """
    code = target.workflow_class if redactor is UNREDACTED else None
    return result if code is None else decode_result(code, result)


def _reset_options(to: int | None, messages: str, edited: Any) -> dict[str, Any]:
    """Collect the options of a reset or fork, without those that were not given."""
    options = {"to": to, "messages": messages, "edited": edited}
    return {name: value for name, value in options.items() if value is not None}


class DatabaseBackend:
    """The ``backend.BoundBackend`` that keeps runs in the database."""

    handle_class = DatabaseHandle

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
    ) -> DatabaseHandle:
        target = Start(
            workflow,
            args=args,
            id=id,
            value=value,
            subject=subject,
            telemetry=telemetry,
            search_attributes=search_attributes,
            tags=tags,
            by=_actor(by),
        ).execute()
        return DatabaseHandle(target.workflow_id, workflow=workflow, chain_id=target.chain_id)

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
    ) -> DatabaseHandle:
        return await sync_to_async(self.start)(
            workflow,
            args,
            id=id,
            value=value,
            subject=subject,
            telemetry=telemetry,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
        )

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
    ) -> DatabaseHandle:
        target = SignalWithStart(
            workflow,
            signal=signal,
            payload=payload,
            args=args,
            id=id,
            subject=subject,
            search_attributes=search_attributes,
            tags=tags,
            by=_actor(by),
        ).execute()
        return DatabaseHandle(target.workflow_id, workflow=workflow, chain_id=target.chain_id)

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
    ) -> DatabaseHandle:
        return await sync_to_async(self.signal_with_start)(
            workflow,
            signal,
            payload,
            args,
            id=id,
            subject=subject,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
        )

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> DatabaseHandle:
        return DatabaseHandle(id, workflow=workflow)

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> DatabaseHandle:
        target = find_by_version(id, storage=storage(), workflow=workflow.name, version=version)
        return DatabaseHandle(target.workflow_id, workflow=workflow, chain_id=target.chain_id)

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> DatabaseHandle:
        return await sync_to_async(self.get)(workflow, id, version=version)

    def list(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Iterator[DatabaseHandle]:
        runs = list_runs(workflow.name, filters, storage=storage(), by=check_person(by))
        return (DatabaseHandle(workflow_id, workflow=workflow, chain_id=chain_id) for workflow_id, chain_id in runs)

    async def alist(
        self, workflow: type[Startable], filters: dict[str, Any], *, by: Person | None = None
    ) -> Sequence[DatabaseHandle]:
        return await sync_to_async(lambda: [*self.list(workflow, filters, by=by)])()


_database = DatabaseBackend()


def backend() -> DatabaseBackend:
    """Return the backend that ``AppConfig.ready`` binds."""
    return _database
