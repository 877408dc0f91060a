"""The part that both test environments share: starts, messages, a virtual clock, and the work until all runs wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, cast, overload
from uuid import UUID

from temporalex_django.authoring import run_filters
from temporalex_django.authoring.activity_options import check_id
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.requests import OnClosed, OnConflict, StartRequest
from temporalex_django.authoring.schedules.schedule import Schedule
from temporalex_django.authoring.start_api import R, Startable, TypedWorkflow
from temporalex_django.authoring.workflow import (
    Workflow,
)
from temporalex_django.core.history.events import HistoryEvent, ReplayDifference
from temporalex_django.core.history.replay import replay
from temporalex_django.core.names import key_text, wait_seconds
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import AlreadyRunning, TemporalexError
from temporalex_django.testing.activities import EnvironmentActivities
from temporalex_django.testing.environment_base import EnvironmentHandle

#: The environment stops after this many turns: the runs of the test keep each other busy for ever.
_MAX_TURNS = 100_000


def _sum_of(label: str, duration: timedelta | float, other_units: timedelta) -> timedelta:
    return timedelta(seconds=wait_seconds(duration, label=label) + wait_seconds(other_units, label=label))


class Environment(EnvironmentActivities):
    """The base class of ``WorkflowEnvironment`` (memory) and ``DjangoEnvironment`` (database); not for direct use."""

    # -- runs ---------------------------------------------------------------------------------------------------------

    @overload
    def start(
        self,
        workflow: type[TypedWorkflow[Any, R]],
        args: Any = None,
        id: str | None = None,
        value: str | int | UUID | None = None,
        version: int | None = None,
        *,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        subject: Any = None,
        by: Person | None = None,
        start_at: datetime | None = None,
        start_delay: timedelta | float | None = None,
        start_before: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EnvironmentHandle[R]: ...
    @overload
    def start(
        self,
        workflow: type[Startable],
        args: Any = None,
        id: str | None = None,
        value: str | int | UUID | None = None,
        version: int | None = None,
        *,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        subject: Any = None,
        by: Person | None = None,
        start_at: datetime | None = None,
        start_delay: timedelta | float | None = None,
        start_before: datetime | None = None,
        on_conflict: OnConflict = "fail",
        on_closed: OnClosed = "allow",
        debounce: timedelta | float | None = None,
        throttle: tuple[Any, ...] | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> EnvironmentHandle: ...
    def start(
        self,
        workflow: Any,
        args: Any = None,
        id: str | None = None,
        value: str | int | UUID | None = None,
        version: int | None = None,
        *,
        search_attributes: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        subject: Any = None,
        by: Person | None = None,
        start_at: datetime | None = None,
        start_delay: timedelta | float | None = None,
        start_before: datetime | None = None,
        on_conflict: OnConflict = "fail",
        on_closed: OnClosed = "allow",
        debounce: timedelta | float | None = None,
        throttle: tuple[Any, ...] | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> EnvironmentHandle:
        """Start a run and let it work until every part of its code waits. Return its handle.

        ``args`` is the input, ``id`` the business id, and ``value`` the value from which ``unique`` makes the id.
        ``subject`` is the saved model instance that the run is about; runs in memory have none. ``options`` are for
        ``version_for`` of a dispatcher. The other arguments are those of ``Workflow.start``. Raises ``AlreadyRunning``,
        ``InvalidId``, ``UnknownVersion``, ``PayloadError``, ``ActionNotPermitted``, ``NotConfigured``.
        """
        if not (isinstance(workflow, type) and issubclass(workflow, Startable)):
            raise TypeError(f"start: {workflow!r} is not a workflow class: pass the class, and its input as args")
        request = StartRequest(
            workflow=workflow.choose(version, options),
            args=args,
            id=id,
            value=key_text(value),
            subject=subject,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
            start_at=start_at,
            start_delay=start_delay,
            start_before=start_before,
            on_conflict=on_conflict,
            on_closed=on_closed,
            debounce=debounce,
            throttle=throttle,
            headers=headers,
        )
        return cast("EnvironmentHandle", self.backend.start(request))

    def start_many(
        self, workflow: type[Startable], items: Iterable[Any], *, by: Person | None = None
    ) -> Sequence[EnvironmentHandle | AlreadyRunning]:
        """Start many runs, and let them work until every part of their code waits.

        An item is the input of a run, or a tuple ``(input, options)`` with options of ``start``, such as ``id``. ``by``
        is the user in whose name they start. Returns a list in the order of ``items``, of handles or
        ``AlreadyRunning``. The errors are those of ``start``.
        """
        requests = Startable._start_many(workflow, items, by=by)  # noqa: SLF001 - the library's own
        return cast("Sequence[EnvironmentHandle | AlreadyRunning]", self.backend.start_many(requests))

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
        start_at: datetime | None = None,
        start_delay: timedelta | float | None = None,
        start_before: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EnvironmentHandle:
        """Send a signal to the open run with the business id ``id`` of that class, after a start if there is none.

        ``args`` is the input of a run that is started. That run sees its start and the signal in one activation. Raises
        ``AlreadyRunning`` when a run of another class has the id, and the errors of ``start``.
        """
        request = StartRequest(
            workflow=workflow.choose(None, {}),
            args=args,
            id=check_id(id),
            subject=subject,
            search_attributes=search_attributes,
            tags=tags,
            by=by,
            start_at=start_at,
            start_delay=start_delay,
            start_before=start_before,
            headers=headers,
        )
        return cast("EnvironmentHandle", self.backend.signal_with_start(request, signal, payload))

    def handle(self, id: str | UUID, *, workflow: type[Startable] | None = None) -> EnvironmentHandle:
        """Return the handle of the run with the run id ``id``, else of the newest chain with that business id.

        ``workflow`` restricts the search to one class. Raises ``WorkflowNotFound``, and ``AmbiguousId`` for an id that
        several workflows used.
        """
        return cast("EnvironmentHandle", self.backend.handle(str(id), workflow=workflow))

    def list(
        self, workflow: type[Startable], *, by: Person | None = None, **filters: Any
    ) -> Sequence[EnvironmentHandle]:
        """Return handles of the runs of this environment that match, as ``workflow.list(...)`` does, newest first.

        The filters are those of ``workflow.list(...)``; in memory there is no ``subject``. Raises ``TypeError`` for
        an unknown filter, ``ValueError`` for a value that a filter cannot have, ``ActionNotPermitted``,
        ``NotConfigured``.
        """
        return [*self.backend.list(workflow, run_filters.check_filters(workflow, filters), by=by)]

    def schedule(self, schedule: Schedule) -> None:
        """Add a declared schedule: it fires from now on, when the clock reaches its times.

        ``env.schedules`` shows when it has fired and with what outcome, and triggers it. A schedule of the same name is
        replaced. Raises ``ScheduleInvalid`` and ``PayloadError``.
        """
        self.schedules.add(schedule)
        self.work()

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
        self._skip(_sum_of("advance", duration, other_units))

    def outage(
        self,
        duration: timedelta | float = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Let time pass in which nothing runs, as if all workers were down; then do all that has become due.

        So timers fire late, and deadlines have passed when code looks at the clock. Arguments and errors are those of
        ``advance``.
        """
        other_units = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._skip(_sum_of("outage", duration, other_units), idle=True)

    def _skip(self, duration: timedelta, *, idle: bool = False) -> None:
        """Let the time ``duration`` pass, with all work that becomes due in it, or with ``idle`` after it."""
        with self._drive_lock:
            until = self.clock + duration
            if idle:
                self._set_time(until)
            self._advance(until)

    def _advance(self, until: datetime) -> None:
        """Do the work that is due at each time up to ``until``, and set the clock to ``until``."""
        if self._batch is not None:
            self._set_time(until)
            return
        self._forget_pending()
        self._wake_blocked()
        self._drive_all()
        while (due := self._due_by(until)) is not None:
            # A due time may lie in the past; the clock never goes back.
            self._set_time(max(due, self.clock))
            self._expire()
            self._drive_all()
        self._set_time(until)

    def now(self) -> datetime:
        """Return the time of the virtual clock."""
        return self.clock

    def work(self) -> None:
        """Do all work that is due (turns, activities, schedules), until every run waits; the virtual clock stays."""
        self._drive()

    def _due_by(self, until: datetime) -> datetime | None:
        """Return the next time, not after ``until``, at which something is due; None if there is none."""
        times = (self._next_due(), self._next_held_timeout())
        due = min((moment for moment in times if moment is not None), default=None)
        return due if due is not None and due <= until else None

    def _set_time(self, now: datetime) -> None:
        self.clock = now
        self._set_clock(now)

    # -- driving ------------------------------------------------------------------------------------------------------

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Return a context manager at whose end everything that was sent inside is delivered in one activation.

        The messages keep the order in which they were sent.
        """
        if self._batch is not None:
            raise TemporalexError("env.batch() cannot be nested")
        self._batch = []
        try:
            yield
        finally:
            self._batch = None
        self._forget_pending()
        self._expire()
        self._drive()

    def _drive(self) -> None:
        if self._batch is not None:
            return
        with self._drive_lock:
            self._forget_pending()
            self._drive_all()

    def _drive_all(self) -> None:
        """Run turns, activities, bulk jobs and schedules until nothing is due.

        If a turn raises an unexpected error, all other work is done first, and then the first such error is raised.
        """
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
            if self._run_next_activity() or self._run_bulk_jobs():
                continue
            if not self.schedules.fire():
                if unexpected:
                    # Only when all work is done, so that one failing run does not keep the others from being driven.
                    raise unexpected[0]
                return
            self._forget_pending()
        raise TemporalexError(f"still busy after {_MAX_TURNS:,} turns: is something starting itself over and over?")

    def note(self, report: TurnReport) -> None:
        """Record the commands, the refused messages and the blocked runs of a turn, for the test to inspect."""
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
        """Start a run from async code, and return its handle, as ``start`` does with these arguments."""
        return cast("EnvironmentHandle", await self.from_async(self.start, workflow, *args, **options))

    async def asignal_with_start(
        self, workflow: type[Workflow], signal: str, *args: Any, **options: Any
    ) -> EnvironmentHandle:
        """Send a signal to the open run with an id, after a start if there is none, from async code.

        The arguments are those of ``signal_with_start``. Returns the handle.
        """
        handle = await self.from_async(self.signal_with_start, workflow, signal, *args, **options)
        return cast("EnvironmentHandle", handle)

    async def aadvance(self, duration: timedelta | float = 0, **units: float) -> None:
        """Do the work that is due and let time pass, from async code, as ``advance`` does with these arguments."""
        await self.from_async(self.advance, duration, **units)

    # -- replay -------------------------------------------------------------------------------------------------------

    def replay(self, handle: EnvironmentHandle) -> None:
        """Rebuild every run in the chain of the handle from its history.

        Raises ``NondeterminismError`` if the code does not match. An input of an activity or a child that differs from
        the recorded one counts as well.
        """
        for run_id in self.run_ids(handle.chain_id):
            row = self.row(run_id)
            record = row.facts
            replay(self.class_of(handle.chain_id, record.workflow, record.version).definition, row.events, strict=True)

    def replay_all(self) -> None:
        """Replay every run in this environment.

        Raises ``NondeterminismError`` for the first that does not match its code.
        """
        for chain_id in self.chain_ids():
            self.replay(EnvironmentHandle(self, "", chain_id))

    def replay_history(
        self, workflow: type[Workflow], history: Sequence[HistoryEvent], *, strict: bool = False
    ) -> Sequence[ReplayDifference]:
        """Replay a history with the code of the class ``workflow``, and return the differences that are allowed.

        Inputs of activities and children, and durations, may differ. With ``strict``, an input that differs raises as
        well. Raises ``NondeterminismError``.
        """
        return replay(workflow.definition, history, strict=strict)
