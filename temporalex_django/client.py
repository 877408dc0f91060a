"""Handles: how code outside of workflows starts, messages, asks and ends runs.

Everything here is a thin way to ``actions``; every method has an ``a``-prefixed twin for async code, which runs the same code in
Django's thread for it and holds no thread while it waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, cast, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from temporalex_django.actions import describe as reading
from temporalex_django.actions.base import Actor, refuse_inside_workflow, storage
from temporalex_django.actions.cancel import cancel
from temporalex_django.actions.query import Query
from temporalex_django.actions.resume import Resume
from temporalex_django.actions.signal import Signal
from temporalex_django.actions.signal_with_start import SignalWithStart
from temporalex_django.actions.start import Start
from temporalex_django.actions.targets import Target, find, find_chain, find_one, found_by
from temporalex_django.actions.terminate import Terminate
from temporalex_django.actions.update import DEFAULT_TIMEOUT, Update
from temporalex_django.authoring.binding import Description
from temporalex_django.authoring.facade import Startable
from temporalex_django.authoring.people import Person, decider, person, require
from temporalex_django.authoring.typed import R, Result_co, Runs
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.events import HistoryEvent
from temporalex_django.graph.steps import StepRef

__all__ = ["Description", "WorkflowHandle", "backend"]


class WorkflowHandle(Generic[Result_co]):
    """A business execution: the newest chain of a business id, or the one that ``start`` gave or that a run id belongs to.

    Making one asks nobody. ``workflow`` narrows the search to one class, which scopes ``workflow`` and ``version`` need. What a
    method raises when there is no such run is ``WorkflowNotFound``; when several workflows used the id and not exactly one of them
    has an open run, ``AmbiguousId``.

    ``by`` of each method is the user in whose name it happens (None: code, which may do everything): it is audited and told. Who may send
    a message is for the handler to say (``permission=``, the role of an approval); everything else takes the permission of the
    operation (``temporalex_django.cancel_instance`` …). Raises ``ActionNotPermitted``; nothing is written then.
    """

    @overload
    def __init__(
        self: WorkflowHandle[R], id: str | UUID, *, workflow: type[Runs[Any, R]], chain_id: UUID | None = None
    ) -> None: ...
    @overload
    def __init__(
        self, id: str | UUID, *, workflow: type[Startable] | None = None, chain_id: UUID | None = None
    ) -> None: ...
    def __init__(self, id: str | UUID, *, workflow: Any = None, chain_id: UUID | None = None) -> None:
        self.id = str(id)
        self.chain_id = chain_id
        self._workflow: type[Startable] | None = workflow

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkflowHandle):
            return NotImplemented
        return (self.id, self.chain_id, self._workflow) == (other.id, other.chain_id, other._workflow)

    def __hash__(self) -> int:
        return hash((self.id, self.chain_id))

    def _target(self, by: Person | None = None) -> Target:
        """Raises ``ActionNotPermitted`` when ``by`` may not look at runs."""
        require(by, "view", what="look at")
        return self._found()

    def _found(self) -> Target:
        refuse_inside_workflow("an operation on a run")
        if self.chain_id is not None:
            return find_chain(self.chain_id, storage=storage())
        return find(self.id, storage=storage(), workflow=self._workflow.name if self._workflow else None)

    # -- messages -------------------------------------------------------------------------------------------------------

    def signal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        """Send a signal: one INSERT on the caller's connection, which commits or vanishes with his transaction.

        ``id`` makes it safe to send again: the run gets it once. A handler with a ``permission`` judges ``by`` when the signal is
        dispatched; one that is refused leaves an audit row alone. Raises ``WorkflowClosed``, ``PayloadError``, ``InvalidId``; nothing
        is written then.
        """
        who = _actor(by)
        Signal(self._found(), signal=name, payload=payload, id=id, by=who).execute()

    def update(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        """Send an update and give its response; see ``actions.update.Update`` for where it runs and what it locks.

        ``id`` makes it safe to send again: the first outcome is given. ``timeout`` is in seconds. ``mode`` "worker" leaves the
        turn to a worker. When the database goes away while it is sent, nobody knows whether it counts: ``UpdateTimeout`` with the code
        ``unknown`` has the ``update_id`` to ask again with. Raises ``UpdateRejected``, ``WorkflowClosed``, ``UpdateFailed``,
        ``UpdateTimeout``, ``PayloadError``, and ``ActionNotPermitted`` when ``by`` lacks the ``permission`` of the handler.
        """
        who = _actor(by)
        return Update(self._found(), update=name, args=args, id=id, timeout=timeout, mode=mode, by=who).execute()

    def resume(
        self,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:
        """Give a graph the event that one of its steps waits for; ``data`` goes under the step's key, with who decided (``by``).

        ``step`` (a step, or its key) says which, where several wait for the event. A mere name as ``by`` is noted, and has no role. Runs and waits as ``update`` does. Raises
        ``ResumeRefused`` when none or several match, ``ActionNotPermitted`` when ``by`` lacks the role of the step, ``WorkflowClosed``,
        ``PayloadError``, ``UpdateTimeout``; nothing changes then.
        """
        self._resume(event, step, data, by, timeout).execute()

    def _resume(
        self,
        event: str,
        step: StepRef | str | None,
        data: Any,
        by: Person | str | None,
        timeout: float | None,
    ) -> Resume:
        who, name = decider(by)
        actor = Actor(user=who)
        return Resume(self._found(), event=event, step=step, data=data, timeout=timeout, by=actor, decided_by=name)

    def instance(self, *, by: Person | None = None) -> Any:
        """A graph as an instance of the pure engine, with context and execution history, computed from its history.

        Raises ``UnknownWorkflow`` when this process does not have the class, or it is no graph.
        """
        return reading.instance(self._target(by), storage=storage())

    def query(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """Ask the run's published state. ``fresh`` delivers unread messages first.

        Raises ``UnknownQuery``, ``QueryFailed``, ``UnknownWorkflow`` where the class is missing.
        """
        who = _actor(by)
        return Query(self._found(), query=name, args=args, fresh=fresh, by=who).execute()

    # -- the end --------------------------------------------------------------------------------------------------------

    def result(self, timeout: float | None = reading.DEFAULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        """Wait for the result, through continue-as-new; ``timeout`` in seconds, None is for ever. In a transaction it looks once.

        Raises ``WorkflowFailed`` (with ``WorkflowTerminated`` and ``WorkflowTimedOut``), ``WorkflowCancelled``, ``ResultTimeout``.
        """
        return cast("Result_co", reading.Result(self._target(by), timeout=timeout, storage=storage()).get())

    def cancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """Ask the run to cancel: an INSERT like ``signal``; a graph is cancelled at once. Raises ``WorkflowClosed``."""
        who = _actor(by)
        cancel(self._found(), reason=reason, by=who)

    def terminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """Close the run at once, in the caller's transaction. Locks the chain. Raises ``WorkflowClosed``."""
        who = _actor(by)
        Terminate(self._found(), reason=reason, by=who).execute()

    # -- looking --------------------------------------------------------------------------------------------------------

    def describe(self, *, by: Person | None = None) -> Description:
        """The run as it stands; what it waits for includes a worker, when none that is alive can take it."""
        return reading.describe(self._target(by), storage=storage())

    def history(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """The events of the newest run, or of the run that the handle was made for by run id."""
        return reading.history(self._target(by), storage=storage())

    @property
    def run_id(self) -> str:
        """Of the newest run, or of the one that the handle was made for by run id."""
        return str(self._target().shown)

    @property
    def run_ids(self) -> list[str]:
        """Of all runs of the chain, oldest first."""
        return [str(run_id) for run_id in reading.run_ids(self._target(), storage=storage())]

    @property
    def status(self) -> str:
        return self.describe().status

    # -- async ----------------------------------------------------------------------------------------------------------

    async def asignal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        """``signal`` for async code."""
        await sync_to_async(self.signal)(name, payload, id=id, by=by)

    async def aupdate(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        """``update`` for async code."""
        who = _actor(by)
        target = await sync_to_async(self._found)()
        update = await sync_to_async(Update)(target, update=name, args=args, id=id, timeout=timeout, mode=mode, by=who)
        return await update.aexecute()

    async def aresume(
        self,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:
        """``resume`` for async code."""
        await (await sync_to_async(self._resume)(event, step, data, by, timeout)).aexecute()

    async def ainstance(self, *, by: Person | None = None) -> Any:
        """``instance`` for async code."""
        return await sync_to_async(self.instance)(by=by)

    async def aquery(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """``query`` for async code."""
        return await sync_to_async(self.query)(name, args, fresh=fresh, by=by)

    async def aresult(self, timeout: float | None = reading.DEFAULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        """``result`` for async code."""
        target = await sync_to_async(self._target)(by)
        waiting = await sync_to_async(reading.Result)(target, timeout=timeout, storage=storage())
        return cast("Result_co", await waiting.aget())

    async def acancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """``cancel`` for async code."""
        await sync_to_async(self.cancel)(reason, by=by)

    async def aterminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """``terminate`` for async code."""
        await sync_to_async(self.terminate)(reason, by=by)

    async def adescribe(self, *, by: Person | None = None) -> Description:
        """``describe`` for async code."""
        return await sync_to_async(self.describe)(by=by)

    async def ahistory(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """``history`` for async code."""
        return await sync_to_async(self.history)(by=by)


def _actor(by: object) -> Actor:
    """Code that acts in somebody's name. Raises ``ActionNotPermitted`` for what is no user."""
    return Actor(user=person(by))


class DatabaseBackend:
    """``binding.Backend`` on the tables."""

    def start(
        self,
        workflow: type[Workflow],
        args: Any,
        *,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        telemetry: Mapping[str, Any] | None = None,
        by: Person | None = None,
    ) -> WorkflowHandle:
        target = Start(
            workflow, args=args, id=id, value=value, subject=subject, telemetry=telemetry, by=_actor(by)
        ).execute()
        return WorkflowHandle(target.workflow_id, workflow=workflow, chain_id=target.chain_id)

    async def astart(
        self,
        workflow: type[Workflow],
        args: Any,
        *,
        id: str | None = None,
        value: str | None = None,
        subject: Any = None,
        telemetry: Mapping[str, Any] | None = None,
        by: Person | None = None,
    ) -> WorkflowHandle:
        return await sync_to_async(self.start)(
            workflow, args, id=id, value=value, subject=subject, telemetry=telemetry, by=by
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
        by: Person | None = None,
    ) -> WorkflowHandle:
        target = SignalWithStart(
            workflow, signal=signal, payload=payload, args=args, id=id, subject=subject, by=_actor(by)
        ).execute()
        return WorkflowHandle(target.workflow_id, workflow=workflow, chain_id=target.chain_id)

    async def asignal_with_start(
        self,
        workflow: type[Workflow],
        signal: str,
        payload: Any,
        args: Any,
        *,
        id: str,
        subject: Any = None,
        by: Person | None = None,
    ) -> WorkflowHandle:
        return await sync_to_async(self.signal_with_start)(
            workflow, signal, payload, args, id=id, subject=subject, by=by
        )

    def handle(self, id: str, *, workflow: type[Startable] | None = None) -> WorkflowHandle:
        return WorkflowHandle(id, workflow=workflow)

    def get(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle:
        target = find_one(id, storage=storage(), workflow=workflow.name, version=version)
        return WorkflowHandle(target.workflow_id, workflow=workflow, chain_id=target.chain_id)

    async def aget(self, workflow: type[Startable], id: str, *, version: int | None = None) -> WorkflowHandle:
        return await sync_to_async(self.get)(workflow, id, version=version)

    def list(self, workflow: type[Startable], filters: dict[str, Any]) -> Iterator[WorkflowHandle]:
        for workflow_id, chain_id in found_by(workflow.name, filters, storage=storage()):
            yield WorkflowHandle(workflow_id, workflow=workflow, chain_id=chain_id)

    async def alist(self, workflow: type[Startable], filters: dict[str, Any]) -> Sequence[WorkflowHandle]:
        return await sync_to_async(lambda: [*self.list(workflow, filters)])()


_database = DatabaseBackend()


def backend() -> DatabaseBackend:
    """What ``AppConfig.ready`` binds."""
    return _database
