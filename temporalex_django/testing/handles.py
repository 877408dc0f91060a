"""Handles of the test environments: the methods of ``WorkflowHandle``, without waiting for anything.

So ``timeout`` and ``mode`` are checked and change nothing: a run goes as far as it can before a method returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, cast
from uuid import UUID, uuid4

from temporalex_django.authoring.binding import Description
from temporalex_django.authoring.people import Person, decider, person, require
from temporalex_django.authoring.typed import Result_co
from temporalex_django.core.durations import check_waiting
from temporalex_django.core.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.core.names import check_message_id, check_name
from temporalex_django.core.payloads import text
from temporalex_django.core.values import copied
from temporalex_django.errors import WorkflowClosed
from temporalex_django.graph.run import deciding, requested
from temporalex_django.graph.steps import StepRef
from temporalex_django.runtime.outcomes import result_of, update_value
from temporalex_django.runtime.storage import Outcome

if TYPE_CHECKING:
    from temporalex_django.runtime.memory import MemoryRun
    from temporalex_django.testing.environment import Environment


class EnvironmentUpdate:
    """An update that nobody waits for. ``result()`` raises ``UpdateTimeout`` while there is none."""

    def __init__(self, env: Environment, message_id: int, update_id: str, what: str) -> None:
        self._env = env
        self._message_id = message_id
        self.id = update_id
        self._what = what

    @property
    def _outcome(self) -> Outcome | None:
        return self._env.outcome(self._message_id)

    @property
    def accepted(self) -> bool:
        outcome = self._outcome
        return outcome is not None and outcome.status != "rejected"

    @property
    def done(self) -> bool:
        outcome = self._outcome
        return outcome is not None and outcome.status != "accepted"

    def result(self) -> Any:
        return update_value(self._outcome, update_id=self.id, what=self._what)


class EnvironmentHandle(Generic[Result_co]):
    """A chain of runs in an environment."""

    def __init__(self, env: Environment, workflow_id: str, chain_id: UUID) -> None:
        self.env = env
        self.id = workflow_id
        self.chain_id = chain_id

    @property
    def _row(self) -> MemoryRun:
        return self.env.row(self.env.run_ids(self.chain_id)[-1])

    @property
    def run_id(self) -> str:
        return self.run_ids[-1]

    @property
    def run_ids(self) -> list[str]:
        """Of all runs of the chain, oldest first."""
        return [str(run_id) for run_id in self.env.run_ids(self.chain_id)]

    @property
    def status(self) -> str:
        return self._row.status

    @property
    def blocked(self) -> BaseException | None:
        """Why the run cannot go on, or None."""
        return self.env.errors.get(self.env.run_ids(self.chain_id)[-1])

    def signal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        """Send a signal; with ``id`` once, however often it is sent. Raises ``WorkflowClosed``, ``PayloadError``, ``InvalidId``."""
        by = person(by)
        what = f"signal {check_name(name, what='signal')!r}"
        if id is None:
            self._refuse_closed(what)
        dedupe = None if id is None else check_message_id(id, what="signal")
        outcome = self.env.outcome(self.env.send(self.chain_id, "signal", name, payload, dedupe, by=by))
        if outcome is not None and outcome.status == "undelivered":
            self._refuse_closed(what)

    def update(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = None,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        """Send an update and give its response.

        Raises ``UpdateRejected``, ``WorkflowClosed``, ``UpdateFailed``, ``UpdateTimeout``, ``ActionNotPermitted``.
        """
        check_waiting(timeout, mode)
        return self.update_async(name, args, id=id, by=by).result()

    def update_async(
        self, name: str, args: Any = None, id: str | None = None, *, by: Person | None = None
    ) -> EnvironmentUpdate:
        """Send an update without asking for its response."""
        by = person(by)
        check_name(name, what="update")
        update_id = str(uuid4()) if id is None else check_message_id(id, what="update")
        number = self.env.send(self.chain_id, "update", name, args, update_id, by=by)
        return EnvironmentUpdate(self.env, number, update_id, f"update {name!r} of {self.id}")

    def resume(
        self,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Give a graph the event that one of its steps waits for. ``by`` decides: a user, or a name, which has no role.

        Raises ``ResumeRefused`` when none or several steps wait for it, ``ActionNotPermitted`` when ``by`` lacks the role of the step,
        ``WorkflowClosed``, ``PayloadError``; nothing changes then.
        """
        check_waiting(timeout)
        user, name = decider(by)
        self._refuse_closed(f"resume({event!r})")
        update_id = str(uuid4())
        facts = self._row.facts
        may = deciding(self.env.class_of(self.chain_id, facts.workflow, facts.version), event, user)
        request = requested(event, step=step, data=data, by=str(user) if user is not None else name, may=may)
        number = self.env.send(self.chain_id, "resume", event, request, update_id, by=user)
        if not self.env.batching:
            update_value(self.env.outcome(number), update_id=update_id, what=f"resume({event!r}) of {self.id}")

    def instance(self, *, by: Person | None = None) -> Any:
        """A graph as an instance of the pure engine: its context and execution history, from the history of the run."""
        require(by, "view", what="look at")
        return self.env.instance(self)

    def query(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """The answer from the published state. Raises ``UnknownQuery``, ``QueryFailed``, ``ActionNotPermitted``."""
        require(by, "query", what="query")
        del fresh  # nothing is ever undelivered here
        row = self._row
        published = row.published
        if row.published is None and row.status == "pending" and len(self.run_ids) > 1:
            published = self.env.row(
                self.env.run_ids(self.chain_id)[-2]
            ).published  # the gap after continue-as-new (D-22)
        facts = row.facts
        return self.env.class_of(self.chain_id, facts.workflow, facts.version).answer(name, args, published)

    def result(self, timeout: float | None = None, *, by: Person | None = None) -> Result_co:
        """The result. Raises ``WorkflowFailed`` and its kin, ``WorkflowCancelled``; ``ResultTimeout`` while it cannot go on by itself."""
        require(by, "view", what="look at")
        check_waiting(timeout)
        row = self._row
        facts = row.facts
        found = result_of(
            row.status, row.closing, workflow=facts.workflow, workflow_id=facts.workflow_id, blocked=self.blocked
        )
        return cast("Result_co", found)

    def cancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """Ask the run to cancel; a graph is cancelled at once. Raises ``WorkflowClosed``, ``ActionNotPermitted``."""
        require(by, "cancel", what="cancel")
        text(reason, what="the reason")
        self._refuse_closed("cancel request")
        facts = self._row.facts
        if self.env.class_of(self.chain_id, facts.workflow, facts.version).cancels_at_once:
            self.env.close(self.chain_id, "cancelled", reason)
            return
        self.env.send(self.chain_id, "cancel", "", {"reason": reason})

    def terminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """Close the run at once. Raises ``WorkflowClosed``, ``ActionNotPermitted``."""
        require(by, "terminate", what="terminate")
        text(reason, what="the reason")
        self._refuse_closed("terminate")
        self.env.close(self.chain_id, "terminated", reason)

    def history(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """Of the newest run."""
        require(by, "view", what="look at")
        return [replace(event, attributes=copied(event.attributes)) for event in self._row.events]

    def describe(self, *, by: Person | None = None) -> Description:
        require(by, "view", what="look at")
        row = self._row
        return Description(
            id=self.id,
            run_id=self.run_id,
            workflow=row.facts.workflow,
            version=row.facts.version,
            status=row.status,
            blocked=row.blocked,
            waiting_for=row.waiting_for,
            accepts=row.accepts,
            started_at=row.started_at,
            closed_at=row.closed_at,
        )

    # -- async ----------------------------------------------------------------------------------------------------------

    async def asignal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        """``signal`` for async code."""
        await self.env.from_async(self.signal, name, payload, id=id, by=by)

    async def aupdate(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = None,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        """``update`` for async code."""
        return await self.env.from_async(self.update, name, args, id=id, timeout=timeout, mode=mode, by=by)

    async def aresume(
        self,
        event: str,
        step: StepRef | str | None = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """``resume`` for async code."""
        await self.env.from_async(self.resume, event, step, data, by=by, timeout=timeout)

    async def ainstance(self, *, by: Person | None = None) -> Any:
        """``instance`` for async code."""
        return await self.env.from_async(self.instance, by=by)

    async def aquery(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """``query`` for async code."""
        return await self.env.from_async(self.query, name, args, fresh=fresh, by=by)

    async def aresult(self, timeout: float | None = None, *, by: Person | None = None) -> Result_co:
        """``result`` for async code."""
        return cast("Result_co", await self.env.from_async(self.result, timeout, by=by))

    async def acancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """``cancel`` for async code."""
        await self.env.from_async(self.cancel, reason, by=by)

    async def aterminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """``terminate`` for async code."""
        await self.env.from_async(self.terminate, reason, by=by)

    async def adescribe(self, *, by: Person | None = None) -> Description:
        """``describe`` for async code."""
        return cast("Description", await self.env.from_async(self.describe, by=by))

    async def ahistory(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """``history`` for async code."""
        return cast("list[HistoryEvent]", await self.env.from_async(self.history, by=by))

    def __repr__(self) -> str:
        return f"<EnvironmentHandle {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EnvironmentHandle):
            return NotImplemented
        return self.env is other.env and self.chain_id == other.chain_id

    def __hash__(self) -> int:
        return hash(self.chain_id)

    def _refuse_closed(self, what: str) -> None:
        row = self._row
        if row.status in CLOSED_STATUSES:
            raise WorkflowClosed(f"{row.facts.workflow} {self.id} is closed ({row.status}): {what} refused")
