"""Schedules: their records, and the starts that are due."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2s
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from temporalex_django.authoring.schedules.functions import ARGUMENTS
from temporalex_django.authoring.schedules.schedule import Overlap
from temporalex_django.authoring.schedules.slots import Slot, TimeTable, load_zone, render_run_id
from temporalex_django.core.failures import error_line, exception_name
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.engine import policy
from temporalex_django.errors import ActionNotPossible, TemporalexError

logger = logging.getLogger("temporalex_django.engine")

# --- records ----------------------------------------------------------------------------------------------------------
#
# The data of schedules and their slots (times to fire), for the code that fires them. No I/O, no clock.


class SlotOutcome(StrEnum):
    """The outcomes that a slot (a time at which a schedule fires) can have."""

    #: Its run was started.
    STARTED = "started"
    #: It waits until the run of an earlier slot has closed.
    WAITING = "waiting"
    #: It was passed over on purpose; ``SlotReason`` says why.
    SKIPPED = "skipped"
    #: No worker fired it within the catch-up window.
    MISSED = "missed"
    #: Its run could not be started.
    FAILED = "failed"


class SlotReason(StrEnum):
    """The reasons why a slot (time to fire) was skipped or missed; empty for the other outcomes.

    A slot that was backfilled afterwards keeps its reason.
    """

    NONE = ""
    #: A run of the schedule was open.
    OVERLAP = "overlap"
    #: As many slots waited as may wait.
    BUFFER = "buffer"
    #: The slot was older than the catch-up window.
    WINDOW = "window"
    #: The schedule was paused.
    PAUSED = "paused"
    #: The code no longer declares the schedule.
    GONE = "gone"


class SlotCause(StrEnum):
    """The causes of a slot (time to fire): the specs of the schedule, a backfill, or a person who triggered it."""

    TIME = "time"
    BACKFILL = "backfill"
    TRIGGER = "trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord:
    """A slot (a time at which a schedule fires) with its outcome.

    ``at`` is its time (UTC), and ``cause`` says what made it. ``outcome`` and ``reason`` say what became of it, at the
    time ``decided_at``. A started slot has the ids of its run. It is ``running`` until the schedule has seen that the
    run is closed. A failed slot has ``error``, a code and a message. ``actor`` is the name of the user who triggered or
    backfilled it, and ``actor_key`` their key.

    A record may stand for ``count`` slots from ``at`` to ``until``, all with one outcome.
    """

    at: datetime
    cause: SlotCause
    outcome: SlotOutcome
    decided_at: datetime
    reason: SlotReason = SlotReason.NONE
    workflow_id: str = ""
    run_id: UUID | None = None
    chain_id: UUID | None = None
    running: bool = False
    error_code: str = ""
    error: str = ""
    until: datetime | None = None
    count: int = 1
    actor: str = ""
    actor_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePause:
    """The pause of a schedule: since when, why, and who paused it.

    ``by`` is the name of a user, empty for code. ``after_failures`` is True if the schedule paused itself.
    """

    since: datetime
    reason: str = ""
    by: str = ""
    after_failures: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A backfill that is under way: the slots (times to fire) after ``after`` and up to ``until`` are still to start.

    The next one is started at ``next_at``, and one after the other every ``pause`` seconds. ``total`` is the number of
    slots of the whole range, and ``done`` how many have been handled. ``actor`` is the name of the user who asked, and
    ``actor_key`` their key.
    """

    after: datetime
    until: datetime
    pause: float
    next_at: datetime
    total: int
    done: int = 0
    actor: str = ""
    actor_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """A schedule as it is stored, with the position that it has reached.

    ``args`` is the plain input of its runs, unless ``arguments_function`` names a function that makes it. ``position``
    is the time up to which slots have been handled. ``workflow_id`` is the template of the ids. ``last_walls`` has the
    wall-clock time of each spec's last slot. ``fires`` counts the started slots, and ``failures`` the failed runs and
    slots in a row. ``gone_since`` is set while the code no longer declares the schedule. ``waiting`` is the number of
    waiting slots.
    """

    id: int
    name: str
    workflow: str = ""
    task: str = ""
    table: TimeTable
    args: Any = None
    arguments_function: str = ""
    workflow_id: str
    overlap: Overlap
    catch_up: timedelta
    jitter: timedelta | None = None
    max_fires: int | None = None
    pause_after: int | None = None
    position: datetime
    last_walls: Mapping[str, datetime] = field(default_factory=dict)
    fires: int = 0
    failures: int = 0
    waiting: int = 0
    paused: SchedulePause | None = None
    gone_since: datetime | None = None
    backfill: Backfill | None = None

    def changed(self, **values: Any) -> ScheduleState:
        """Return a copy of the state in which the named fields have other values."""
        return replace(self, **values)

    def jitter_of(self, at: datetime) -> timedelta:
        """Return the delay with which the schedule fires for the time ``at``: a random fraction of ``jitter``.

        It is computed from that time, so that it is the same in all workers.
        """
        if not self.jitter:
            return timedelta(0)
        # Drawn from the name and the slot, so that all workers agree and a retry does not move the slot.
        digest = blake2s(f"{self.name}|{at.astimezone(UTC).isoformat()}".encode(), digest_size=8).digest()
        return self.jitter * (int.from_bytes(digest) / 2**64)

    def workflow_id_of(self, at: datetime, *, cause: SlotCause = SlotCause.TIME) -> str:
        """Return the business id of the run for the slot (time to fire) ``at``, made from the schedule's template.

        A triggered slot gets a suffix. Raises ``ScheduleInvalid`` for a bad template.
        """
        run_id = render_run_id(self.workflow_id, schedule=self.name, instant=at, zone=self.table.zone)
        if cause is SlotCause.TRIGGER:
            # The template may have minutes only, and people may trigger twice in one.
            return f"{run_id}-{at:%S%f}"
        return run_id

    def local_time(self, at: datetime) -> datetime:
        """Return the time ``at`` of a slot (time to fire) as an aware time in the zone of the schedule."""
        return at.astimezone(load_zone(self.table.zone))

    @property
    def is_held(self) -> bool:
        """True if the schedule is paused, or the code no longer declares it: it then skips its times to fire."""
        return self.paused is not None or self.gone_since is not None

    @property
    def has_ended(self) -> bool:
        """True if the schedule has fired ``max_fires`` times, slots that wait for a run included: it has ended."""
        return self.max_fires is not None and self.fires + self.waiting >= self.max_fires

    def next_due(self) -> datetime | None:
        """Return when the schedule has something to do next because of its times or a backfill; None if never."""
        times = []
        # A pause holds a backfill, which must not stay due meanwhile.
        if self.backfill is not None and not self.is_held:
            times.append(self.backfill.next_at)
        if not self.has_ended:
            slot = self.table.next_slot(self.position, self.last_walls)
            if slot is not None:
                times.append(slot.instant + self.jitter_of(slot.instant))
        return min(times, default=None)


# --- firing -----------------------------------------------------------------------------------------------------------
#
# The firing of schedules: which slots (times to fire) are due, and what becomes of each. No I/O of its own, no clock.
#
# A store keeps a schedule, its slots and its runs. The database and the memory of environments are stores, so both fire
# by the rules of this module.


#: Statuses of a closed run that count as a failure in a row, and those that end such a row. A run that people cancel or
#: terminate does neither.
_FAILURES = frozenset({"failed", "timed_out"})
_SUCCESSES = frozenset({"completed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStart:
    """The run that was started for a slot, a time at which a schedule fires; or the task, which has no chain."""

    chain_id: UUID | None
    run_id: UUID
    workflow_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFailure:
    """The error because of which no run was started for a slot (time to fire): its code, and a message for people."""

    code: str
    message: str

    @classmethod
    def of_error(cls, error: TemporalexError) -> SlotFailure:
        """Return the failure for an error of a start, or of the end of an earlier run."""
        return cls(code=error.code, message=str(error)[: policy.SLOT_ERROR_LENGTH])


def call_arguments(name: str, at: datetime, *, limit: int = codec.MAX_BYTES) -> Any | SlotFailure:
    """Call a registered arguments function for the schedule's time ``at``, and return the input of the run.

    The input is plain JSON of at most ``limit`` bytes. If the function raises, a ``SlotFailure`` is returned.
    """
    try:
        return codec.to_plain(ARGUMENTS.find(name)(at), label=f"the input that {name} returned", limit=limit)
    except TemporalexError as exc:
        return SlotFailure.of_error(exc)
    except Exception as exc:  # noqa: BLE001 - whatever the function raises becomes the outcome of the slot
        logger.error("the arguments function %s failed for the slot %s: %s", name, at.isoformat(), error_line(exc))
        return SlotFailure(code="arguments", message=f"the arguments function {name}: {exception_name(type(exc))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSlot:
    """A slot (time to fire) that has started a run whose end the schedule has not recorded yet.

    ``closed_as`` is the status of the closed run, "deleted" if the run no longer exists, and None while it is open.
    """

    slot: SlotRecord
    closed_as: str | None


def require_pause(name: str, *, is_paused: bool, expected: bool) -> None:
    """Raise ``ActionNotPossible`` if the schedule is paused and should not be, or should be and is not."""
    if is_paused and not expected:
        raise ActionNotPossible(f"the schedule {name} is already paused")
    if expected and not is_paused:
        raise ActionNotPossible(f"the schedule {name} is not paused")


class ScheduleStore(Protocol):
    """The storage of one schedule, its slots (times to fire) and its runs. All calls belong to one transaction."""

    def find_slot(self, at: datetime) -> SlotRecord | None: ...

    def add_slots(self, slots: Sequence[SlotRecord]) -> None: ...

    def replace_slot(self, slot: SlotRecord) -> None:
        """Store ``slot`` in place of the record with the same time to fire, because its outcome has changed."""

    def running_slots(self) -> list[RunningSlot]:
        """Return the slots that have started a run whose end is not recorded yet, oldest first."""
        ...

    def waiting_slots(self, limit: int) -> list[SlotRecord]:
        """Return at most ``limit`` slots that wait for the end of an open run, oldest first."""
        ...

    def mark_closed(self, slots: Sequence[SlotRecord]) -> None:
        """Record that the runs which these slots (times to fire) have started are closed."""

    def check_start(self, schedule: ScheduleState, at: datetime) -> SlotFailure | None:
        """Return the error with which a start of the slot ``at`` would surely fail, such as a bad arguments function.

        Returns None if no such error is known. Nothing is started.
        """
        ...

    def start(self, schedule: ScheduleState, slot: SlotRecord) -> SlotStart | SlotFailure:
        """Start the run of a slot, and return its ids, or the error if it could not be started.

        A start that fails leaves nothing behind.
        """
        ...

    def stop_run(self, schedule: ScheduleState, slot: SlotRecord, *, terminate: bool) -> SlotFailure | None:
        """Ask the run that a slot has started to cancel or, with ``terminate``, terminate it.

        Returns the error if this failed, else None.
        """
        ...

    def save(self, schedule: ScheduleState) -> None:
        """Store the state of the schedule that firing changes, such as its position and its pause."""


class ScheduleFirer:
    """The rules by which a schedule of a store fires.

    At most ``buffer_limit`` of its slots (times to fire) may wait for the end of an open run.
    """

    def __init__(self, store: ScheduleStore, *, buffer_limit: int) -> None:
        self._store = store
        self._buffer_limit = buffer_limit

    def fire(self, schedule: ScheduleState, now: datetime) -> ScheduleState:
        """Do the next step of a schedule that is due at ``now``, save it and return its new state.

        A step takes note of the runs that have closed, and handles at most one waiting slot, one slot of the schedule's
        times and one of a backfill. So there is more to do if ``next_due()`` of the result is not after ``now``.
        """
        step = _Step(self._store, schedule, now, self._buffer_limit)
        step.see_closed_runs()
        step.start_waiting()
        step.fire_time_slot()
        step.fire_backfill()
        self._store.save(step.schedule)
        return step.schedule

    def trigger(
        self, schedule: ScheduleState, now: datetime, *, actor: Sender | None = None
    ) -> tuple[ScheduleState, SlotRecord]:
        """Fire the schedule once now, because a person asked for it, even if it is paused.

        Returns ``(new state of the schedule, record of the slot)``. The overlap policy decides as for any other slot.
        The times at which the schedule fires do not change. ``actor`` is the person, or None for code.
        """
        step = _Step(self._store, schedule, now, self._buffer_limit)
        step.see_closed_runs()
        at = now
        while self._store.find_slot(at) is not None:
            at += timedelta(microseconds=1)
        slot = step.decide(at, SlotCause.TRIGGER, actor=actor)
        self._store.save(step.schedule)
        return step.schedule, slot


def _actor_fields(actor: Sender | None) -> dict[str, Any]:
    """Return the fields of a ``SlotRecord`` that say who triggered or backfilled it."""
    return {} if actor is None else {"actor": actor.name, "actor_key": actor.key}


class _Step:
    """One step of firing a schedule: the methods change ``schedule``, its state, one after the other."""

    def __init__(self, store: ScheduleStore, schedule: ScheduleState, now: datetime, buffer_limit: int) -> None:
        self.store = store
        self.schedule = schedule
        self.now = now
        self.buffer_limit = buffer_limit
        self.open_slots: list[SlotRecord] = []

    def see_closed_runs(self) -> None:
        """Record which runs have closed, and pause the schedule after too many failures in a row."""
        running = self.store.running_slots()
        self.open_slots = [entry.slot for entry in running if entry.closed_as is None]
        closed = [entry for entry in running if entry.closed_as is not None]
        if not closed:
            return
        self.store.mark_closed([entry.slot for entry in closed])
        for entry in closed:
            if entry.closed_as in _FAILURES:
                self._count_failure()
            elif entry.closed_as in _SUCCESSES:
                self.schedule = self.schedule.changed(failures=0)

    def _count_failure(self) -> None:
        failures, limit = self.schedule.failures + 1, self.schedule.pause_after
        self.schedule = self.schedule.changed(failures=failures)
        if limit is not None and failures >= limit and self.schedule.paused is None:
            pause = SchedulePause(since=self.now, reason=f"{failures} failures in a row", after_failures=True)
            self.schedule = self.schedule.changed(paused=pause)

    def start_waiting(self) -> None:
        """Start the oldest slot that waits, if no open run prevents it and the schedule is not paused."""
        schedule = self.schedule
        must_wait = bool(self.open_slots) and schedule.overlap is not Overlap.ALLOW_ALL
        if not schedule.waiting or must_wait or schedule.is_held:
            return
        for slot in self.store.waiting_slots(1):
            self.schedule = self.schedule.changed(waiting=self.schedule.waiting - 1)
            self.store.replace_slot(self._start(slot))

    def fire_time_slot(self) -> None:
        """Handle the next slot, if it has come. Slots older than ``catch_up`` are recorded as missed."""
        schedule = self.schedule
        if schedule.has_ended:
            return
        slot = schedule.table.next_slot(schedule.position, schedule.last_walls)
        if slot is None or slot.instant + schedule.jitter_of(slot.instant) > self.now:
            return
        oldest = self.now - schedule.catch_up - (schedule.jitter or timedelta(0))
        if slot.instant < oldest:
            self._pass_over(oldest)
            return
        # A slot that has a row was decided before the clock or the position was set back.
        if self.store.find_slot(slot.instant) is None:
            self._decide_by_time(slot.instant)
        self._move_behind(slot)

    def _decide_by_time(self, at: datetime) -> None:
        if self.schedule.is_held:
            self._add(at, SlotCause.TIME, SlotOutcome.SKIPPED, self._hold_reason)
            return
        self.decide(at, SlotCause.TIME)

    @property
    def _hold_reason(self) -> SlotReason:
        if self.schedule.gone_since is not None:
            return SlotReason.GONE
        return SlotReason.PAUSED

    def _pass_over(self, oldest: datetime) -> None:
        """Record slots as missed, or as skipped if the schedule is paused. One record stands for very many."""
        outcome, reason = SlotOutcome.MISSED, SlotReason.WINDOW
        if self.schedule.is_held:
            outcome, reason = SlotOutcome.SKIPPED, self._hold_reason
        slots = [*islice(self._slots_before(oldest), policy.PASSED_SLOTS)]
        records = [
            SlotRecord(at=slot.instant, cause=SlotCause.TIME, outcome=outcome, reason=reason, decided_at=self.now)
            for slot in slots
        ]
        if len(records) > policy.LISTED_SLOTS:
            records = [replace(records[0], until=slots[-1].instant, count=len(slots))]
        records = [record for record in records if self.store.find_slot(record.at) is None]
        self.store.add_slots(records)
        for slot in slots:
            self._move_behind(slot)

    def _slots_before(self, oldest: datetime) -> Iterator[Slot]:
        table, position = self.schedule.table, self.schedule.position
        slots = table.slots(position, until=oldest, last_walls=self.schedule.last_walls)
        return (slot for slot in slots if slot.instant < oldest)

    def _move_behind(self, slot: Slot) -> None:
        walls = {**self.schedule.last_walls, **dict.fromkeys(slot.by_wall, slot.wall)}
        self.schedule = self.schedule.changed(position=slot.instant, last_walls=walls)

    def fire_backfill(self) -> None:
        """Handle the next slot of a backfill, if it is due and the schedule is not paused."""
        backfill = self.schedule.backfill
        if backfill is None or backfill.next_at > self.now or self.schedule.is_held:
            return
        if self.schedule.waiting >= self.buffer_limit:
            self._set_backfill(backfill, next_at=self._later(backfill))
            return
        for slot in islice(self.schedule.table.slots(backfill.after, until=backfill.until), policy.PASSED_SLOTS):
            previous = self.store.find_slot(slot.instant)
            is_over = previous is None or previous.outcome not in (SlotOutcome.STARTED, SlotOutcome.WAITING)
            backfill = replace(backfill, after=slot.instant, done=backfill.done + is_over)
            if is_over:
                self._backfill_slot(slot.instant, previous, backfill)
                break
        else:
            self.schedule = self.schedule.changed(backfill=None)
            return
        self._set_backfill(backfill, next_at=self._later(backfill))

    def _later(self, backfill: Backfill) -> datetime:
        return max(backfill.next_at, self.now - timedelta(seconds=1)) + timedelta(seconds=backfill.pause)

    def _set_backfill(self, backfill: Backfill, *, next_at: datetime) -> None:
        next_slot = self.schedule.table.next_slot(backfill.after)
        if next_slot is None or next_slot.instant > backfill.until:
            self.schedule = self.schedule.changed(backfill=None)
        else:
            self.schedule = self.schedule.changed(backfill=replace(backfill, next_at=next_at))

    def _backfill_slot(self, at: datetime, previous: SlotRecord | None, backfill: Backfill) -> None:
        """Start the run of the slot; if runs must not overlap, let it wait until the open ones end."""
        waits = self.schedule.overlap is not Overlap.ALLOW_ALL and bool(self.open_slots or self.schedule.waiting)
        slot = SlotRecord(
            at=at,
            cause=SlotCause.BACKFILL,
            outcome=SlotOutcome.WAITING,
            decided_at=self.now,
            # That it was missed or skipped remains to be seen, beside the run that it has now.
            reason=SlotReason.NONE if previous is None else previous.reason,
            actor=backfill.actor,
            actor_key=backfill.actor_key,
        )
        if waits:
            self.schedule = self.schedule.changed(waiting=self.schedule.waiting + 1)
        else:
            slot = self._start(slot)
        if previous is None:
            self.store.add_slots([slot])
        else:
            self.store.replace_slot(slot)

    def decide(self, at: datetime, cause: SlotCause, *, actor: Sender | None = None) -> SlotRecord:
        """Start, queue or skip the slot ``at`` as the overlap policy says, and store its record."""
        is_busy = bool(self.open_slots or self.schedule.waiting)
        overlap = self.schedule.overlap
        if not is_busy or overlap is Overlap.ALLOW_ALL:
            return self._add_started(at, cause, actor)
        if overlap is Overlap.SKIP:
            return self._add(at, cause, SlotOutcome.SKIPPED, SlotReason.OVERLAP, **_actor_fields(actor))
        if overlap is Overlap.BUFFER_ONE and self.schedule.waiting:
            return self._add(at, cause, SlotOutcome.SKIPPED, SlotReason.OVERLAP, **_actor_fields(actor))
        if overlap is Overlap.BUFFER_ALL and self.schedule.waiting >= self.buffer_limit:
            return self._add(at, cause, SlotOutcome.SKIPPED, SlotReason.BUFFER, **_actor_fields(actor))
        if overlap in (Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER):
            return self._replace_other(at, cause, actor)
        return self._add_waiting(at, cause, actor)

    def _replace_other(self, at: datetime, cause: SlotCause, actor: Sender | None) -> SlotRecord:
        """Stop the open runs for the slot ``at``. A waiting slot, except one of a backfill, is skipped for it."""
        # A run must not give way to one that cannot start.
        if (failure := self.store.check_start(self.schedule, at)) is not None:
            return self._add_failed(at, cause, actor, failure)
        terminates = self.schedule.overlap is Overlap.TERMINATE_OTHER
        for slot in self.open_slots:
            failure = self.store.stop_run(self.schedule, slot, terminate=terminates)
            if failure is not None:
                return self._add_failed(at, cause, actor, failure)
        # A backfill starts its slots one after the other; those still wait.
        waiting = self.store.waiting_slots(policy.PASSED_SLOTS)
        replaced = [slot for slot in waiting if slot.cause is not SlotCause.BACKFILL]
        for slot in replaced:
            skipped = replace(slot, outcome=SlotOutcome.SKIPPED, reason=SlotReason.OVERLAP, decided_at=self.now)
            self.store.replace_slot(skipped)
        self.schedule = self.schedule.changed(waiting=len(waiting) - len(replaced))
        if not terminates and self.open_slots:
            return self._add_waiting(at, cause, actor)
        return self._add_started(at, cause, actor)

    def _start(self, slot: SlotRecord) -> SlotRecord:
        """Start the run of a slot, and return the slot's new record, which is not stored yet."""
        start = self.store.start(self.schedule, slot)
        if isinstance(start, SlotFailure):
            self._count_failure()
            return replace(
                slot,
                outcome=SlotOutcome.FAILED,
                reason=SlotReason.NONE,
                error_code=start.code,
                error=start.message,
                decided_at=self.now,
            )
        started = replace(
            slot,
            outcome=SlotOutcome.STARTED,
            reason=SlotReason.NONE,
            workflow_id=start.workflow_id,
            run_id=start.run_id,
            chain_id=start.chain_id,
            running=True,
            decided_at=self.now,
        )
        self.open_slots.append(started)
        if slot.cause is SlotCause.TIME:
            self.schedule = self.schedule.changed(fires=self.schedule.fires + 1)
        return started

    def _add_started(self, at: datetime, cause: SlotCause, actor: Sender | None) -> SlotRecord:
        slot = SlotRecord(at=at, cause=cause, outcome=SlotOutcome.WAITING, decided_at=self.now, **_actor_fields(actor))
        started = self._start(slot)
        self.store.add_slots([started])
        return started

    def _add_waiting(self, at: datetime, cause: SlotCause, actor: Sender | None) -> SlotRecord:
        self.schedule = self.schedule.changed(waiting=self.schedule.waiting + 1)
        return self._add(at, cause, SlotOutcome.WAITING, SlotReason.OVERLAP, **_actor_fields(actor))

    def _add_failed(self, at: datetime, cause: SlotCause, actor: Sender | None, failure: SlotFailure) -> SlotRecord:
        self._count_failure()
        return self._add(
            at, cause, SlotOutcome.FAILED, **_actor_fields(actor), error_code=failure.code, error=failure.message
        )

    def _add(
        self,
        at: datetime,
        cause: SlotCause,
        outcome: SlotOutcome,
        reason: SlotReason = SlotReason.NONE,
        **values: Any,
    ) -> SlotRecord:
        slot = SlotRecord(at=at, cause=cause, outcome=outcome, reason=reason, decided_at=self.now, **values)
        self.store.add_slots([slot])
        return slot
