"""Stored schedules: the slots of one locked schedule, the starts of its runs, and the state that people see."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar, cast
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist
from django.db import Error as DatabaseError
from django.db.models import Q, QuerySet

from temporalex_django import access
from temporalex_django.authoring import django_tasks
from temporalex_django.authoring.authorization import APP
from temporalex_django.authoring.requests import StartRequest
from temporalex_django.authoring.schedules.schedule import Overlap, split_task_arguments, task_arguments
from temporalex_django.authoring.schedules.slots import DstFold, DstGap, TimeTable
from temporalex_django.authoring.schedules.specs import specs_from_json
from temporalex_django.backends.host import host
from temporalex_django.conf import codec
from temporalex_django.core.failures import error_line
from temporalex_django.db.storage import DjangoStorage, insert_slots, write_states
from temporalex_django.engine import policy
from temporalex_django.engine.schedules import (
    Backfill,
    RunningSlot,
    SchedulePause,
    ScheduleState,
    SlotCause,
    SlotFailure,
    SlotOutcome,
    SlotReason,
    SlotRecord,
    SlotStart,
)
from temporalex_django.errors import (
    ActionNotPermitted,
    ActionNotPossible,
    ScheduleInvalid,
    TaskNotFound,
    TemporalexError,
    UpdateTimeout,
    WorkflowClosed,
    WorkflowNotFound,
)
from temporalex_django.models import EndedTask, EnqueuedTask, Instance, Schedule, ScheduleSlot
from temporalex_django.models.fields import unreadable_columns
from temporalex_django.operations.background_tasks import CancelTask, RetryTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.operations.runs.control import Cancel, Terminate
from temporalex_django.operations.runs.operator_action import OperatorRunAction
from temporalex_django.operations.runs.start import Start
from temporalex_django.operations.schedules.definition import (
    compute_arguments,
)

logger = logging.getLogger("temporalex_django.operations")

#: The interface that audit rows name for what a schedule does.
SOURCE = "schedule"
MANAGE = access.Operation(action="manage_schedule", permission=f"{APP}.manage_schedule")
#: Statuses of ended tasks as those of runs, by which the failures of a schedule are counted.
RUN_STATUSES = {"SUCCESSFUL": "completed", "FAILED": "failed", "CANCELLED": "cancelled"}
#: The status of a run that no longer exists.
_DELETED = "deleted"


class SlotInterrupted(ABC, Exception):
    """Raised in the transaction that fires a slot, if something has to be computed first without a transaction.

    The transaction has to be rolled back and done again. Before that, ``prepare()`` returns the input of the run, or
    the failure for which the run was not started. Pass it to the next try in ``prepared``, under ``key``.
    """

    def __init__(self, schedule: ScheduleState, at: datetime) -> None:
        super().__init__(schedule.name, at)
        self.key = (schedule.id, at)

    @abstractmethod
    def prepare(self) -> Any | SlotFailure: ...


class ArgumentsNeeded(SlotInterrupted):
    """Raised if the arguments function of a schedule has to be called; ``prepare()`` calls it.

    It is code of the project, so it is called while nothing is locked.
    """

    def __init__(self, schedule: ScheduleState, at: datetime) -> None:
        super().__init__(schedule, at)
        self._function = schedule.arguments_function
        self._local_time = schedule.local_time(at)

    def prepare(self) -> Any | SlotFailure:
        return compute_arguments(self._function, self._local_time)


class StartRefused(SlotInterrupted):
    """Raised if the start of a run failed, possibly after it wrote something; ``prepare()`` returns that failure.

    The transaction is rolled back, and the next try stores the failure as the outcome of the slot (the time to fire).
    """

    def __init__(self, schedule: ScheduleState, at: datetime, failure: SlotFailure) -> None:
        super().__init__(schedule, at)
        self._failure = failure

    def prepare(self) -> SlotFailure:
        return self._failure


class TaskMissing(Exception):
    """Raised in the transaction that fires a slot, if this process lacks the task and another may have it."""


#: Tasks that schedules name and that this process lacks. Other workers fire these schedules.
missing_tasks: set[str] = set()
#: What is known about slots before their transaction, by the primary key of the schedule and the time of the slot.
Prepared = Mapping[tuple[int, datetime], Any | SlotFailure]


class DatabaseScheduleStore:
    """The ``ScheduleStore`` of one schedule, whose row the open transaction has locked.

    A slot is a time to fire, with its outcome. ``slots`` has the slots whose runs are open or that wait, with their
    chains, and the slot at the next time, if it has a row. ``statuses`` has the status of the closed runs among them,
    by chain, and that of each task by its id (None: it has not ended). ``prepared`` has inputs and failures that were
    computed before the transaction.

    ``start`` and ``stop_run`` raise ``SlotInterrupted``, and ``UpdateTimeout`` for a run that is busy. The transaction
    has to be rolled back after both.
    """

    def __init__(
        self,
        row: Schedule,
        state: ScheduleState,
        storage: DjangoStorage,
        *,
        slots: Sequence[ScheduleSlot],
        statuses: Mapping[UUID, str | None],
        prepared: Prepared,
    ) -> None:
        self.state = state
        self._row = row
        self._storage = storage
        self._slots = {slot.at: slot for slot in slots}
        self._statuses = statuses
        self._prepared = prepared
        self._new_slots: dict[datetime, SlotRecord] = {}
        self._replaced_slots: dict[datetime, SlotRecord] = {}

    @property
    def _stored_slots(self) -> QuerySet[ScheduleSlot]:
        return ScheduleSlot.objects.using(self._storage.alias).filter(schedule_id=self._row.pk)

    def find_slot(self, at: datetime) -> SlotRecord | None:
        if at in self._new_slots:
            return self._new_slots[at]
        if at in self._replaced_slots:
            return self._replaced_slots[at]
        row = self._slots.get(at)
        # The next slot of the time was looked up together with those of other schedules.
        if row is None and at != _next_instant(self.state):
            row = self._stored_slots.filter(at=at).first()
        if row is None:
            return None
        return slot_of(row)

    def add_slots(self, slots: Sequence[SlotRecord]) -> None:
        self._new_slots.update((slot.at, slot) for slot in slots)

    @property
    def new_slots(self) -> Collection[SlotRecord]:
        """The slots (times to fire, with their outcome) that firing has added; ``save_stores`` inserts their rows."""
        return self._new_slots.values()

    def replace_slot(self, slot: SlotRecord) -> None:
        if slot.at in self._new_slots:
            self._new_slots[slot.at] = slot
        else:
            self._stored_slots.filter(at=slot.at).update(**slot_columns(slot))
            self._slots.pop(slot.at, None)
            self._replaced_slots[slot.at] = slot

    def running_slots(self) -> list[RunningSlot]:
        rows = [row for _, row in sorted(self._slots.items()) if row.running]
        return [RunningSlot(slot=slot_of(row), closed_as=self._closed_as(row)) for row in rows]

    def _closed_as(self, row: ScheduleSlot) -> str | None:
        if self._row.task:
            return self._statuses.get(cast("UUID", row.run_id), _DELETED)
        if is_open(row):
            return None
        return self._statuses.get(cast("UUID", row.chain_id), _DELETED)

    def waiting_slots(self, limit: int) -> list[SlotRecord]:
        rows = [slot_of(row) for row in self._slots.values() if row.outcome == SlotOutcome.WAITING]
        new_slots = [slot for slot in self._new_slots.values() if slot.outcome is SlotOutcome.WAITING]
        return sorted([*rows, *new_slots], key=lambda slot: slot.at)[:limit]

    def mark_closed(self, slots: Sequence[SlotRecord]) -> None:
        self._stored_slots.filter(at__in=[slot.at for slot in slots]).update(running=False)

    def check_start(self, schedule: ScheduleState, at: datetime) -> SlotFailure | None:
        prepared = self._prepared.get((schedule.id, at))
        if isinstance(prepared, SlotFailure):
            return prepared
        if schedule.arguments_function and (schedule.id, at) not in self._prepared:
            raise ArgumentsNeeded(schedule, at)
        return None

    def start(self, schedule: ScheduleState, slot: SlotRecord) -> SlotStart | SlotFailure:
        at = slot.at
        if (failure := self.check_start(schedule, at)) is not None:
            return failure
        prepared = self._prepared.get((schedule.id, at), schedule.args)
        if schedule.task:
            return self._enqueue(schedule, slot, prepared)
        try:
            by = self._actor()
            request = StartRequest(
                workflow=host().find_workflow(schedule.workflow).choose(None, {}),
                args=prepared,
                id=schedule.workflow_id_of(at, cause=slot.cause),
                by=by.user,
                scheduled_for=at,
            )
            start = Start(request, by=by, schedulers=[*self._row.editors, slot.actor_key])
            start.storage = self._storage
            target = start.execute()
        except Exception as exc:
            raise StartRefused(schedule, at, self._failure(exc, "start")) from exc
        host().record_start(target.chain_id, request.workflow)
        return SlotStart(chain_id=target.chain_id, run_id=target.run_id, workflow_id=target.workflow_id)

    def _enqueue(self, schedule: ScheduleState, slot: SlotRecord, args: Any) -> SlotStart:
        try:
            if (by := self._actor()).user is not None:
                operation = access.Operation(action=RetryTask.name, permission=f"{APP}.{RetryTask.permission}")
                access.require_access(by.user, operation, alias=self._storage.alias)
            task = self._find_task(schedule.task, slot)
            positional, keywords = split_task_arguments(task_arguments(task, args))
            result = task.enqueue(*positional, **keywords)
        except TaskMissing:
            raise
        except Exception as exc:
            raise StartRefused(schedule, slot.at, self._failure(exc, "enqueue")) from exc
        return SlotStart(chain_id=None, run_id=UUID(str(result.id)), workflow_id="")

    def _find_task(self, path: str, slot: SlotRecord) -> Any:
        """Return the task. Raises ``TaskMissing`` if another worker may have its code, and ``ScheduleInvalid``."""
        try:
            return django_tasks.find_scheduled(path)
        except ScheduleInvalid as exc:
            # An environment has no other worker.
            is_alone = slot.cause is SlotCause.TRIGGER or self._storage.clock is not None
            if is_alone or self._storage.now() - slot.at >= timedelta(seconds=policy.SCHEDULE_CODE_WAIT):
                raise
            missing_tasks.add(path)
            raise TaskMissing(str(exc)) from exc

    def _cancel_task(self, slot: SlotRecord, reason: str) -> SlotFailure | None:
        try:
            with self._storage.savepoint():
                CancelTask(str(slot.run_id), reason=reason, by=self._actor()).execute()
        except UpdateTimeout:
            raise
        except (ActionNotPossible, TaskNotFound):
            return None  # it has ended meanwhile, or was asked to, which is all that was wanted
        except Exception as exc:  # noqa: BLE001 - as above
            return self._failure(exc, CancelTask.name)
        return None

    def stop_run(self, schedule: ScheduleState, slot: SlotRecord, *, terminate: bool) -> SlotFailure | None:
        if schedule.task:
            return self._cancel_task(slot, f"the schedule {schedule.name} enqueues its next task")
        assert slot.chain_id is not None
        operation: type[OperatorRunAction[None]] = Cancel
        if terminate:
            operation = Terminate
        reason = f"the schedule {schedule.name} starts its next run"
        try:
            with self._storage.savepoint():
                target = find_chain(slot.chain_id, storage=self._storage)
                operation(target, reason=reason, by=self._actor()).execute()
        except UpdateTimeout:
            raise
        except (WorkflowClosed, WorkflowNotFound):
            return None  # it has ended meanwhile, which is all that was wanted
        except Exception as exc:  # noqa: BLE001 - as above
            return self._failure(exc, operation.name)
        return None

    def save(self, schedule: ScheduleState) -> None:
        """Remember the new state of the schedule; ``save_stores`` writes it with the states of other schedules."""
        self.state = schedule

    def _actor(self) -> Actor:
        """Return code, or the person who created the schedule or last changed its class, input or overlap policy.

        Raises ``ActionNotPermitted`` if they are gone or may no longer manage schedules.
        """
        # A command without a user, and code that calls the operation, save a schedule without an editor.
        if self._row.owner == Schedule.Owner.CODE or not self._row.editor_name:
            return Actor(source=SOURCE)
        try:
            user = self._row.editor
        # The user was deleted by other means than Django, which would have set the column to NULL.
        except ObjectDoesNotExist:
            user = None
        if user is None:
            raise ActionNotPermitted(
                f"the user {self._row.editor_name} no longer exists: somebody else has to save the schedule"
            )
        access.require_access(user, MANAGE, alias=self._storage.alias)
        return Actor(user=user, source=SOURCE)

    def _failure(self, error: Exception, operation: str) -> SlotFailure:
        """Raise a transient error or a lost connection again, so that the slot is tried again."""
        if isinstance(error, DatabaseError) and (
            self._storage.is_transient(error) or self._storage.is_connection_lost(error)
        ):
            raise error
        if isinstance(error, TemporalexError):
            return SlotFailure.of_error(error)
        logger.error("%s of schedule %s: %s", operation, self._row.name, error_line(error))
        return SlotFailure(code="internal", message=type(error).__name__)


def is_open(row: ScheduleSlot) -> bool:
    """Return True if the run that a slot of a schedule has started still exists, and its chain is open.

    Takes no read if the chain was loaded with the slot.
    """
    try:
        return row.chain is not None and not row.chain.closed
    except ObjectDoesNotExist:
        return False


def load_stores(rows: Sequence[Schedule], storage: DjangoStorage, *, prepared: Prepared) -> list[DatabaseScheduleStore]:
    """Return a ``DatabaseScheduleStore`` for each schedule of ``rows``, which the open transaction has locked.

    ``prepared`` has inputs and failures that were computed before. Two reads, or three if runs have closed. Raises
    ``ScheduleInvalid`` and the errors of the codec for a schedule that this process cannot read.
    """
    states = {row.pk: state_of(row) for row in rows}
    instants = [instant for state in states.values() if (instant := _next_instant(state)) is not None]
    slots = ScheduleSlot.objects.using(storage.alias).filter(schedule_id__in=states)
    # Two statements, each by an index: a schedule may have a hundred thousand slots.
    undecided = slots.filter(Q(running=True) | Q(outcome=SlotOutcome.WAITING)).select_related("chain")
    loaded_slots = [*undecided, *slots.filter(at__in=instants, running=False).exclude(outcome=SlotOutcome.WAITING)]
    statuses = _closed_statuses([slot for slot in loaded_slots if slot.running], storage)
    by_schedule: dict[int, list[ScheduleSlot]] = {row.pk: [] for row in rows}
    for slot in loaded_slots:
        by_schedule[slot.schedule_id].append(slot)
    return [
        DatabaseScheduleStore(
            row, states[row.pk], storage, slots=by_schedule[row.pk], statuses=statuses, prepared=prepared
        )
        for row in rows
    ]


def _closed_statuses(running_slots: Sequence[ScheduleSlot], storage: DjangoStorage) -> dict[UUID, str | None]:
    """Return the statuses of runs that have closed, by chain, and those of tasks, by id. At most three reads."""
    task_ids = [slot.run_id for slot in running_slots if slot.chain_id is None]
    closed_chains = [slot.chain_id for slot in running_slots if slot.chain_id is not None and not is_open(slot)]
    statuses = _task_statuses(task_ids, storage) if task_ids else {}
    if closed_chains:
        runs = Instance.objects.using(storage.alias).filter(current_of__in=closed_chains)
        statuses.update(runs.values_list("chain_id", "status"))
    return statuses


def _task_statuses(task_ids: Sequence[Any], storage: DjangoStorage) -> dict[UUID, str | None]:
    """Return the status of each task that exists, as the status of a run; None if it has not ended. Two reads."""
    open_tasks = EnqueuedTask.objects.using(storage.alias).filter(run_id__in=task_ids).values_list("run_id", flat=True)
    statuses: dict[UUID, str | None] = dict.fromkeys(open_tasks)
    ended_tasks = EndedTask.objects.using(storage.alias).filter(pk__in=task_ids).values_list("pk", "status")
    statuses.update((task_id, RUN_STATUSES.get(status, "failed")) for task_id, status in ended_tasks)
    return statuses


def _next_instant(state: ScheduleState) -> datetime | None:
    slot = state.table.next_slot(state.position, state.last_walls)
    return None if slot is None else slot.instant


def save_stores(stores: Sequence[DatabaseScheduleStore], storage: DjangoStorage) -> None:
    """Write the states of the schedules and their new slots (times to fire), in two statements for all stores."""
    states = [store.state for store in stores]
    new_slots = [(store.state.id, slot) for store in stores for slot in store.new_slots]
    write_states([(state.id, state_columns(state)) for state in states], storage=storage)
    insert_slots([(schedule, slot_columns(slot)) for schedule, slot in new_slots], storage=storage)


# --- state ------------------------------------------------------------------------------------------------------------
#
# Rows of schedules and slots as the records that the firing works with, and back.


E = TypeVar("E", bound=StrEnum)


def table_of(row: Schedule) -> TimeTable:
    """Return the time table of a schedule, which computes its slots (the times at which it fires).

    Raises ``ScheduleInvalid`` if this process cannot read the specs of the row.
    """
    return TimeTable(
        specs=specs_from_json(row.specs),
        zone=row.tz,
        start=row.start,
        end=row.end,
        dst_gap=cast("DstGap", row.dst_gap),
        dst_fold=cast("DstFold", row.dst_fold),
    )


def require_readable(row: Schedule) -> None:
    """Raise ``ScheduleInvalid`` for a row with a time or JSON that cannot be read.

    From the times that stand in place of such a time, a table would compute slots for thousands of years.
    """
    if columns := [*unreadable_columns(row, payloads=False)]:
        raise ScheduleInvalid(
            f"the schedule {row.name!r} cannot be read: correct {', '.join(columns)} in its row of temporalex_schedule"
        )


#: Fields of a ``ScheduleState`` whose values are those of the columns of the same names.
_PLAIN_FIELDS = {field.name for field in fields(ScheduleState)} - {
    *("id", "table", "args", "overlap", "last_walls", "paused", "backfill"),
}


def state_of(row: Schedule) -> ScheduleState:
    """Convert the row of a schedule to the ``ScheduleState`` with which the firing works.

    Its input is decoded, if it has one. Raises ``ScheduleInvalid`` if this process cannot read its specs, and the
    errors of the codec.
    """
    require_readable(row)
    args = None
    if row.args is not None:
        args = codec().decode(bytes(row.args))
    return ScheduleState(
        id=row.pk,
        table=table_of(row),
        args=args,
        overlap=Overlap(row.overlap),
        last_walls={key: datetime.fromisoformat(wall) for key, wall in row.last_walls.items()},
        paused=_pause_of(row),
        backfill=backfill_of(row.backfill),
        **{name: getattr(row, name) for name in _PLAIN_FIELDS},
    )


def _pause_of(row: Schedule) -> SchedulePause | None:
    if row.paused_at is None:
        return None
    return SchedulePause(
        since=row.paused_at, reason=row.pause_reason, by=row.paused_by, after_failures=row.paused_by_failures
    )


_BACKFILL_TIMES = ("after", "until", "next_at")


def backfill_of(stored: Mapping[str, Any] | None) -> Backfill | None:
    """Parse the column ``backfill`` of a schedule; None for a schedule without one, or with one that cannot be read."""
    if not stored:
        return None
    times = {name: datetime.fromisoformat(stored[name]) for name in _BACKFILL_TIMES}
    return Backfill(**{**stored, **times})


def backfill_column(backfill: Backfill | None) -> dict[str, Any] | None:
    """Return a backfill as JSON for the column ``backfill`` of the schedule; None stays None."""
    if backfill is None:
        return None
    times = {name: getattr(backfill, name).isoformat() for name in _BACKFILL_TIMES}
    return {**asdict(backfill), **times}


def state_columns(state: ScheduleState) -> dict[str, Any]:
    """Return the values of the columns of a schedule that firing changes (``FIRED_COLUMNS``), by name, for a state.

    Raises ``ScheduleInvalid`` if a function of holidays fails.
    """
    pause = state.paused or SchedulePause(since=state.position)
    paused_at = None
    if state.paused is not None:
        paused_at = pause.since
    return {
        "position": state.position,
        "last_walls": {key: wall.isoformat() for key, wall in state.last_walls.items()},
        "fires": state.fires,
        "failures": state.failures,
        "waiting": state.waiting,
        "next_at": state.next_due(),
        "backfill": backfill_column(state.backfill),
        "paused_at": paused_at,
        "pause_reason": pause.reason,
        "paused_by": pause.by,
        "paused_by_failures": pause.after_failures,
        "gone_since": state.gone_since,
        "error": "",
    }


_SLOT_FIELDS = [field.name for field in fields(SlotRecord)]


def slot_columns(slot: SlotRecord) -> dict[str, Any]:
    """Return the values of the columns of ``ScheduleSlot`` for a slot (a time at which a schedule fires), by name."""
    return {name: getattr(slot, name) for name in _SLOT_FIELDS}


def slot_of(row: ScheduleSlot) -> SlotRecord:
    """Convert the row of a slot (a time at which a schedule fires) to the ``SlotRecord`` with which firing works."""
    values = {name: getattr(row, name) for name in _SLOT_FIELDS}
    return SlotRecord(
        **{
            **values,
            "cause": _member(SlotCause, row.cause),
            "outcome": _member(SlotOutcome, row.outcome),
            "reason": _member(SlotReason, row.reason),
        }
    )


def _member(kind: type[E], value: str) -> E:
    """Make a member for an unknown value, which pages show as it is."""
    for member in kind:
        if member.value == value:
            return member
    unknown = str.__new__(kind, value)
    unknown._name_, unknown._value_ = "UNKNOWN", value
    return unknown
