"""The common part of the two environments: starts, messages, a virtual clock and the driving of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, cast, overload
from uuid import UUID

from temporalex_django.authoring import run_filters
from temporalex_django.authoring.authorization import Person, check_person, sender_of
from temporalex_django.authoring.declared_messages import warn_lossy
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.type_hints import R, TypedWorkflow
from temporalex_django.authoring.unique import check_id
from temporalex_django.authoring.workflow import (
    Workflow,
    fork_options,
    input_or_default,
    last_definition_number,
    require_signal,
    start_options,
)
from temporalex_django.core.history.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.core.history.inputs import ReplayDifference
from temporalex_django.core.history.replay import replay
from temporalex_django.core.names import check_name, key_text, wait_seconds
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import warn_lossy_value
from temporalex_django.core.people.four_eyes import fork_snapshot
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.ids import parse_run_id
from temporalex_django.engine.reset import apply
from temporalex_django.engine.reset.plan import ResetPlan, fork_id, make_plan, should_redeliver, successors
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import ActionNotPossible, InvalidId, TemporalexError, WorkflowNotFound
from temporalex_django.graph import snapshot
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.testing.activities import EnvironmentActivities
from temporalex_django.testing.environment_base import Crash
from temporalex_django.testing.handles import EnvironmentHandle

_TURN_LIMIT = 1000
#: The environment stops after this many turns: the runs of the test keep each other busy for ever.
_MAX_TURNS = 100_000


class Environment(EnvironmentActivities):
    """The base class of ``WorkflowEnvironment`` (memory) and ``DjangoEnvironment`` (database); not for direct use."""

    # -- runs ---------------------------------------------------------------------------------------------------------

    @overload
    def start(
        self,
        workflow: type[TypedWorkflow[Any, R]],
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        version: int | None = None,
        *,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        subject: Any = None,
        by: Person | None = None,
    ) -> EnvironmentHandle[R]: ...
    @overload
    def start(
        self,
        workflow: type[Startable],
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        version: int | None = None,
        *,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        subject: Any = None,
        by: Person | None = None,
        **options: Any,
    ) -> EnvironmentHandle: ...
    def start(
        self,
        workflow: Any,
        args: Any = None,
        id: str | None = None,
        value: str | None = None,
        version: int | None = None,
        *,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        subject: Any = None,
        by: Person | None = None,
        **options: Any,
    ) -> EnvironmentHandle:
        """Start a run and drive it until every unit is blocked.

        ``subject`` is the saved model instance that the run is about; runs in memory have none. Raises
        ``AlreadyRunning``, ``InvalidId``, ``UnknownVersion``, ``PayloadError``, ``ActionNotPermitted``,
        ``NotConfigured``.
        """
        workflow = cast("type[Startable]", workflow).choose(version, options)
        self._require_start_permitted(by, workflow)
        if value is not None:
            if id is not None:
                raise InvalidId(f"{workflow.name}: give id= or value=, not both")
            if workflow.unique is None:
                raise InvalidId(f"{workflow.name} does not declare `unique`: start it with an id, not a value")
            id = workflow.unique.run_id_for(key_text(value), self._random_suffix)  # noqa: A001 - the field's name
        if id is None:
            self._id_count += 1
            id = f"{workflow.name}-{self._id_count}"  # noqa: A001
        elif value is None and workflow.unique is not None:
            workflow.unique.check(id)
        workflow_id = check_id(id)
        plain = codec.to_plain(input_or_default(workflow, args), label=f"the input of {workflow.name}")
        warn_lossy_value(
            args, plain, lambda: workflow.definition.args_type, reader=f"run of {workflow.name}", emit_warning=False
        )
        run_snapshot = snapshot.start_snapshot(workflow, started_by=sender_of(by))
        labels = start_options(workflow, search_attributes=search_attributes, tags=tags)
        if subject is not None:
            labels["subject"] = self._subject(workflow, subject)
        chain_id = self._insert(workflow, workflow_id, plain, self._seeds.getrandbits(62), run_snapshot, **labels)
        self._classes[chain_id] = workflow, last_definition_number()
        self._drive()
        return EnvironmentHandle(self, workflow_id, chain_id)

    def _random_suffix(self) -> str:
        return f"{self._seeds.getrandbits(32):08x}"

    def signal_with_start(
        self,
        workflow: type[Workflow],
        signal: str,
        payload: Any = None,
        args: Any = None,
        *,
        id: str,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        subject: Any = None,
        by: Person | None = None,
    ) -> EnvironmentHandle:
        """Send a signal to the open run of that id and class, and start the run first when there is none.

        A run that is started here sees its start and the signal in one activation.

        Raises ``AlreadyRunning`` when a run of another class has the id, and the errors of ``start``.
        """
        by = check_person(by)
        require_signal(workflow, signal)
        plain = codec.to_plain(payload, label=f"the payload of signal {check_name(signal, label='signal')!r}")
        chain_id = self._chain_of(check_id(id), workflow.name)
        if chain_id is not None:
            row = self.row(self.run_ids(chain_id)[-1])
            if row.status not in CLOSED_STATUSES and row.facts.workflow_id == id:
                self.send(chain_id, "signal", signal, plain, by=by)
                return EnvironmentHandle(self, id, chain_id)
        # In a batch, so that the start and the signal arrive in one activation; batches cannot be nested.
        with nullcontext() if self._batch is not None else self.batch():
            handle = self.start(
                workflow, args, id=id, search_attributes=search_attributes, tags=tags, subject=subject, by=by
            )
            self.send(handle.chain_id, "signal", signal, plain, by=by)
        return handle

    def handle(self, id: str | UUID, *, workflow: type[Startable] | None = None) -> EnvironmentHandle:
        """Return the handle of the run with that run id, else of the newest chain with that id.

        ``workflow`` restricts the search to one class.

        Raises ``WorkflowNotFound``, and ``AmbiguousId`` for an id that several workflows used.
        """
        ref = str(id)
        chain_id = self._chain_of(ref, None if workflow is None else workflow.name)
        if chain_id is None:
            raise WorkflowNotFound(f"no run with the id {ref!r} was started in this environment")
        runs, run_id = self.run_ids(chain_id), parse_run_id(ref)
        pinned = run_id if run_id in runs else None
        return EnvironmentHandle(self, self.row(runs[-1]).facts.workflow_id, chain_id, pinned=pinned)

    def list(
        self, workflow: type[Startable], *, by: Person | None = None, **filters: Any
    ) -> Sequence[EnvironmentHandle]:
        """Return handles of the runs of this environment that match, as ``workflow.list(...)`` does, newest first.

        The filters are those of ``workflow.list(...)``; in memory there is no ``subject``. Raises ``TypeError`` for
        an unknown filter, ``ValueError`` for a value that a filter cannot have, ``ActionNotPermitted``,
        ``NotConfigured``.
        """
        user = check_person(by)
        if user is not None:
            self.require_permitted(user, "view", action_text="view")
        listed_runs = self._list_runs(workflow.name, run_filters.check_filters(workflow, filters), user)
        return [EnvironmentHandle(self, workflow_id, chain_id) for workflow_id, chain_id in listed_runs]

    def send(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        body: Any,
        request_id: str | None = None,
        *,
        by: Person | None = None,
    ) -> int:
        """Put a message into an inbox and drive. Return the id of the message."""
        plain = codec.to_plain(body, label=f"the payload of {kind} {name!r}")
        if kind in ("signal", "update"):
            record = self.row(self.run_ids(chain_id)[-1]).facts
            code = self.class_of(chain_id, record.workflow, record.version)
            if kind == "signal":
                require_signal(code, name)
            warn_lossy(code, "signal" if kind == "signal" else "update", name, body, plain, aloud=False)
        message_id = self._send(chain_id, kind, name, plain, request_id, self._sender(by))
        self._drive()
        return message_id

    def close(self, chain_id: UUID, status: str, reason: str) -> None:
        """Close a run at once as ``terminated``, or, for a graph, as ``cancelled``."""
        self._close(chain_id, status, reason)
        self._drive()

    def reset(self, handle: EnvironmentHandle, *, by: Person | None = None, **point: Any) -> UUID:
        """Continue the chain of a run with a new run and return its run id.

        The new run starts from a point of the history. For ``point``, see ``_plan``. Raises ``ActionNotPossible``,
        ``PayloadError``.
        """
        with self.engine.storage.transaction():
            run, plan, code = self._plan(handle, by, in_trouble=False, **point)
            if plan.record.expires_at is not None and plan.record.expires_at <= self.clock:
                raise ActionNotPossible(
                    "the time for all its runs together (execution_timeout) has run out: fork it instead"
                )
            if run.closed and not self._reopen(
                handle.chain_id, RunStart(workflow_id=handle.id, args=None, **start_options(code))
            ):
                raise ActionNotPossible("another open run has its id now")
            old_run_id, new_run_id = run.run_id, self.engine.storage.new_run_id()
            apply.reset(self.engine.storage, run, plan, run_id=new_run_id)
        self._evict_run(old_run_id)
        return new_run_id

    def fork(
        self, handle: EnvironmentHandle, id: str | None, *, by: Person | None = None, **point: Any
    ) -> EnvironmentHandle:
        """Start a new chain from the history of a run and return its handle. The source run stays as it is.

        Raises ``ActionNotPossible``, ``PayloadError``, ``InvalidId``, ``AlreadyRunning``.
        """
        with self.engine.storage.transaction():
            _, plan, code = self._plan(handle, by, in_trouble=True, **point)
            workflow_id = fork_id(handle.id, id, code.unique, suffix=self._random_suffix)
            # A history that is kept was made with the old seed, and would not replay with another one. A fork from the
            # start has none, so it draws its own numbers.
            seed = plan.record.seed if plan.prefix.activation else plan.seed
            snapshot = fork_snapshot(plan.record.snapshot, self._sender(by))
            labels = fork_options(code, tags=self.row(plan.record.run_id).column("tags") or ())
            labels |= {"search_attributes": plan.search_attributes, "snapshot": snapshot}
            chain_id = self._insert(code, workflow_id, plan.record.args, seed, **labels)
            self._copy_subject(chain_id, plan.record.run_id)
            # The row is written again below, with the history that the fork starts from: claim it as a turn would.
            run = self.engine.storage.claim(limit=1, queues=(), chains=[chain_id])[0]
            apply.fork(self.engine.storage, run, plan, source_chain=handle.chain_id, id=workflow_id, snapshot=snapshot)
        self._classes[chain_id] = code, last_definition_number()
        self._drive()
        return EnvironmentHandle(self, workflow_id, chain_id)

    def _plan(
        self,
        handle: EnvironmentHandle,
        by: Person | None,
        *,
        to: int | None,
        messages: str,
        edited: Any,
        in_trouble: bool,
    ) -> tuple[RunState, ResetPlan, type[Workflow]]:
        """Return the locked chain of a run, the plan of a reset or fork, and the class of the new run.

        Raises ``ActionNotPermitted`` if the person may not edit the inputs of the activities in ``edited``.
        """
        storage = self.engine.storage
        run = storage.claim(limit=1, queues=(), chains=[handle.chain_id])[0]
        record = handle.selected_run.facts
        code = self.class_of(handle.chain_id, record.workflow, record.version)
        redeliver_messages, runs = should_redeliver(messages), self.run_ids(handle.chain_id)
        run_statuses = [(run_id, self.row(run_id).status) for run_id in runs[runs.index(record.run_id) :]]
        later_run_ids = (
            successors(run_statuses, forked=in_trouble) if redeliver_messages and len(run_statuses) > 1 else []
        )
        plan = make_plan(
            storage.histories({record.run_id: 0})[record.run_id],
            record,
            code,
            to=to,
            redeliver=redeliver_messages,
            successor_histories=(storage.histories({run_id: 0})[run_id] for run_id in later_run_ids),
            tasks=self.engine.tasks.tasks_of_run(record.run_id),
            edited_inputs=edited,
            editable=not issubclass(code, GraphWorkflow),
            seed=self._seeds.getrandbits(62),
            in_trouble=in_trouble or run.closed or run.failed_tries > 0 or record.run_id != run.run_id,
            limit=None,
            atomic=False,
        )
        if (user := check_person(by)) is not None:
            for name in plan.edited_activities:
                self.require_permitted(
                    user, "edit_activity_input", action_text="edit the input of", run_id=record.run_id, activity=name
                )
        return run, plan, code

    def _evict_run(self, run_id: UUID) -> None:
        """Forget a run except for its history, and drive."""
        entry = self.engine.cache.take(run_id)
        if entry is not None:
            # No code of the run is run for this, see decision 29.
            entry.executor.evict()
        self.errors.pop(run_id, None)
        self._drive()

    def steer(self, handle: EnvironmentHandle, name: str, by: Person | None, options: dict[str, Any]) -> None:
        """Apply an operation to a run, as an operator does, and drive."""
        self._operate(handle.chain_id, name, by, options)
        self._drive()

    def instance(self, handle: EnvironmentHandle) -> Any:
        """Return the graph of a handle as an instance of the pure engine, computed from its history."""
        row = handle.selected_run
        cls = self.class_of(handle.chain_id, row.facts.workflow, row.facts.version)
        return self.projections.get(row.facts.run_id, cls).instance

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance(
        self,
        duration: timedelta | float = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Do the work that is due, then let time pass.

        The clock stops at each due time on the way, and runs work until they are blocked before it goes further.
        ``duration`` (a ``timedelta``, or seconds) and the other units are added up; without any of them no time
        passes. Raises ``ValueError`` for a negative amount.
        """
        other_units = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        skipped_seconds = wait_seconds(duration, label="advance") + wait_seconds(other_units, label="advance")
        self._skip(timedelta(seconds=skipped_seconds))

    def _skip(self, duration: timedelta) -> None:
        with self._drive_lock:
            self._advance(self.clock + duration)

    def _advance(self, until: datetime) -> None:
        if self._batch is not None:
            self._set_time(until)
            return
        self._wake_blocked()
        self._drive()
        while (due := self._due_by(until)) is not None:
            # A due time may lie in the past; the clock never goes back.
            self._set_time(max(due, self.clock))
            self._expire()
            self._drive()
        self._set_time(until)

    def now(self) -> datetime:
        """Return the time of the virtual clock."""
        return self.clock

    def work(self) -> None:
        """Do the work that is due; no time passes."""
        self._drive()

    def _due_by(self, until: datetime) -> datetime | None:
        times = (self._next_due(), self._next_held_timeout())
        due = min((moment for moment in times if moment is not None), default=None)
        return due if due is not None and due <= until else None

    def _set_time(self, now: datetime) -> None:
        self.clock = now
        self._set_clock(now)

    # -- driving ------------------------------------------------------------------------------------------------------

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Deliver everything that is sent inside the block in one activation, in that order, when the block ends."""
        if self._batch is not None:
            raise TemporalexError("env.batch() cannot be nested")
        self._batch = []
        try:
            yield
        finally:
            self._batch = None
        self._expire()
        self._drive()

    def _drive(self) -> None:
        if self._batch is not None:
            return
        with self._drive_lock:
            self._drive_all()

    def _drive_all(self) -> None:
        self._read_switches()
        unexpected: list[Exception] = []
        for _ in range(_MAX_TURNS):
            report = self._run_turn()
            if report is None:
                continue  # the worker died, and the next one does the same turn
            self.note(report)
            self._announce(report)
            unexpected += report.unexpected_errors
            # All turns come before the next activity, and each activity is followed by turns again: one fixed order, so
            # that a test gives the same history every time.
            if report.run_count:
                self._maybe_crash("after_turn")
                continue
            if not self._run_next_activity() and not self._run_bulk_jobs():
                if unexpected:
                    # Only when all work is done, so that one failing run does not keep the others from being driven.
                    raise unexpected[0]
                return
        raise TemporalexError(f"still busy after {_MAX_TURNS:,} turns: is something starting itself over and over?")

    def _run_turn(self) -> TurnReport | None:
        """Run one turn. Return None when a crash point rolled it back."""
        storage = self.engine.storage
        try:
            with storage.transaction():
                report = self.engine.advance(limit=_TURN_LIMIT, queues=self._queues())
                if report.run_count and self._maybe_crash("before_turn"):
                    raise Crash
        except Crash:
            return None
        return report

    def note(self, report: TurnReport) -> None:
        """Record the commands, the refused messages and the blocked runs of a turn."""
        for write in report.writes:
            self.refused += write.refused_signals
            self.not_taken += write.refused_redeliveries
            if write.commands is not None:
                self.commands.append(list(write.commands))
            if write.instance.get("blocked", 0) is None:
                self.errors.pop(write.run.run_id, None)
        self.errors.update(report.block_errors)

    # -- async ---------------------------------------------------------------------------------------------------------

    async def astart(self, workflow: type[Startable], *args: Any, **options: Any) -> EnvironmentHandle:
        """Call ``start`` from async code."""
        return cast("EnvironmentHandle", await self.from_async(self.start, workflow, *args, **options))

    async def asignal_with_start(
        self, workflow: type[Workflow], signal: str, *args: Any, **options: Any
    ) -> EnvironmentHandle:
        """Call ``signal_with_start`` from async code."""
        handle = await self.from_async(self.signal_with_start, workflow, signal, *args, **options)
        return cast("EnvironmentHandle", handle)

    async def aadvance(self, duration: timedelta | float = 0, **units: float) -> None:
        """Call ``advance`` from async code."""
        await self.from_async(self.advance, duration, **units)

    # -- replay -------------------------------------------------------------------------------------------------------

    def replay(self, handle: EnvironmentHandle) -> None:
        """Rebuild every run of the handle from its history.

        Raises ``NondeterminismError``, also for an input of an activity or a child that differs from the recorded
        one.
        """
        for run_id in self.run_ids(handle.chain_id):
            row = self.row(run_id)
            record = row.facts
            replay(self.class_of(handle.chain_id, record.workflow, record.version).definition, row.events, strict=True)

    def replay_all(self) -> None:
        """Replay every run that lives here. Raises ``NondeterminismError`` for the first that does not match."""
        for chain_id in self.chain_ids():
            self.replay(EnvironmentHandle(self, "", chain_id))

    def replay_history(
        self, workflow: type[Workflow], history: Sequence[HistoryEvent], *, strict: bool = False
    ) -> Sequence[ReplayDifference]:
        """Run ``workflow`` against a history and return the differences that are allowed.

        Inputs of activities and children, and durations, may differ. With ``strict``, an input that differs raises as
        well. Raises ``NondeterminismError``.
        """
        return replay(workflow.definition, history, strict=strict)
