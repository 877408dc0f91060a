"""Descriptions of schedules and their slots, which REST, commands and the admin show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery

from temporalex_django import access
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import redacted_paths_of
from temporalex_django.authoring.schedules.schedule import specs_in_words
from temporalex_django.authoring.schedules.specs import specs_from_json
from temporalex_django.engine.schedules import Backfill, SlotOutcome, SlotReason, SlotRecord
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.models import Chain, Instance, Schedule, ScheduleSlot
from temporalex_django.models.fields import decode_payload
from temporalex_django.operations import audit
from temporalex_django.operations.base import Actor
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.store import backfill_of, require_readable, slot_of, table_of

#: Slots that a description has.
LAST_SLOTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDescription:
    """A slot of a schedule (a time at which it fires) with its outcome, as one user sees it.

    The fields are those of ``SlotRecord``. ``run_id`` is the run to link to: the one that the slot started, or the one
    in the way of a skipped slot. It is None if there is none, or if the user may not see it. ``status`` is the status
    of that run, "blocked" if it is, or None.
    """

    at: datetime
    cause: str
    outcome: str
    reason: str
    decided_at: datetime
    workflow_id: str
    run_id: str | None
    status: str | None
    error_code: str
    error: str
    until: datetime | None
    count: int
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDescription:
    """A schedule, as one user sees it.

    ``description`` is its time table in words. ``state`` is ``active``, ``paused``, ``gone`` (the code no longer
    declares it) or ``ended`` (no slot will come). ``next_fires`` are the next slots. ``slots`` are the last ones,
    newest first. ``args`` is None in lists, and for a user who may not see payloads. ``error`` says why its slots
    cannot be computed.
    """

    name: str
    workflow: str
    owner: str
    module: str
    description: str
    state: str
    specs: list[dict[str, Any]]
    tz: str
    dst_gap: str
    dst_fold: str
    start: datetime | None
    end: datetime | None
    args: Any
    arguments_function: str
    workflow_id: str
    overlap: str
    catch_up: timedelta
    jitter: timedelta | None
    max_fires: int | None
    pause_after: int | None
    fires: int
    failures: int
    waiting: int
    next_fires: list[datetime]
    slots: list[SlotDescription]
    backfill: Backfill | None
    paused_at: datetime | None
    pause_reason: str
    paused_by: str
    gone_since: datetime | None
    error: str
    editor: str
    created_at: datetime
    changed_at: datetime


def next_fires(row: Schedule, count: int) -> list[datetime]:
    """Return the next ``count`` times (UTC) at which a schedule fires; an empty list if they cannot be computed."""
    if row.max_fires is not None:
        count = min(count, max(row.max_fires - row.fires, 0))
    # Not `state_of`, which decodes the input: a process that lacks its key can still say when the schedule fires.
    try:
        require_readable(row)
        last_walls = {key: datetime.fromisoformat(wall) for key, wall in row.last_walls.items()}
        return [slot.instant for slot in islice(table_of(row).slots(row.position, last_walls=last_walls), count)]
    except (ScheduleInvalid, TypeError, ValueError):
        return []


def preview_fires(definition: ScheduleDefinition, now: datetime, count: int) -> list[datetime]:
    """Return the next ``count`` times (UTC) at which a schedule with this definition would fire after ``now``.

    Raises ``ScheduleInvalid`` for a definition whose time table is wrong.
    """
    if definition.max_fires is not None:
        count = min(count, definition.max_fires)
    return [slot.instant for slot in islice(definition.table().slots(now), count)]


def describe_table(row: Schedule) -> str:
    """Return the time table of a schedule in words, or a text that says why this process cannot read it."""
    try:
        return specs_in_words(specs_from_json(row.specs), row.tz)
    except ScheduleInvalid as exc:
        return f"unreadable: {exc}"


def state_name(row: Schedule) -> str:
    """Return the state of a schedule: ``gone``, ``paused``, ``ended`` or ``active``."""
    if row.gone_since is not None:
        return "gone"
    if row.paused_at is not None:
        return "paused"
    if row.next_at is None and not row.waiting:
        return "ended"
    return "active"


def slots_of(row: Schedule, *, alias: str) -> QuerySet[ScheduleSlot]:
    """Return the slots of a schedule (times at which it fired or should have fired), newest first."""
    return ScheduleSlot.objects.using(alias).filter(schedule_id=row.pk).order_by("-at")


def last_slots(rows: Sequence[Schedule], *, alias: str, limit: int = LAST_SLOTS) -> dict[int, list[ScheduleSlot]]:
    """Return, for each of the schedules ``rows``, its last ``limit`` slots (times to fire), newest first.

    The keys are the primary keys of the schedules. Two reads.
    """
    newest = ScheduleSlot.objects.filter(schedule_id=OuterRef("pk")).order_by("-at")
    schedules = Schedule.objects.using(alias).filter(pk__in=[row.pk for row in rows]).order_by()
    oldest_shown = schedules.annotate(oldest_shown=Subquery(newest.values("at")[limit - 1 : limit]))
    # A range for each schedule, which the unique index finds. One condition for all would read every slot.
    ranges = Q(pk__in=[])
    for key, oldest in oldest_shown.values_list("pk", "oldest_shown"):
        slots_of_one = Q(schedule_id=key)
        if oldest is not None:
            slots_of_one &= Q(at__gte=oldest)
        ranges |= slots_of_one
    slots_by_schedule: dict[int, list[ScheduleSlot]] = {row.pk: [] for row in rows}
    for slot in ScheduleSlot.objects.using(alias).filter(ranges).order_by("schedule_id", "-at"):
        slots_by_schedule[slot.schedule_id].append(slot)
    return slots_by_schedule


def describe_slots(slots: Iterable[ScheduleSlot], user: Person | None, *, alias: str) -> list[SlotDescription]:
    """Return the description of each slot (time to fire) as a user sees it; code sees everything.

    ``user`` None means code. A slot shows the newest run of its chain, if the user may see that run. One that was
    skipped because another run was open shows that run. The id of any other run is hidden from a user who does not see
    all runs. Two reads, or three if slots were skipped.
    """
    rows = [*slots]
    in_the_way = open_slots_before(rows, alias=alias)
    chains = [row.chain_id for row in (*rows, *in_the_way.values()) if row.chain_id is not None]
    narrowed_runs = access.runs_for(user, alias=alias)
    visible_runs = access.runs_or_all(narrowed_runs, alias=alias)
    sees_all = narrowed_runs is None
    if user is not None and not access.policy().allows(user, access.VIEW):
        visible_runs, sees_all = Instance.objects.using(alias).none(), False
    current = Chain.objects.using(alias).filter(pk__in=chains).values("run_id")
    runs = {
        run.chain_id: run for run in visible_runs.filter(pk__in=current).only("pk", "chain_id", "status", "blocked")
    }
    return [_describe_slot(slot_of(row), slot_of(in_the_way.get(row.pk, row)), runs, sees_all=sees_all) for row in rows]


def open_slots_before(rows: Iterable[ScheduleSlot], *, alias: str) -> dict[int, ScheduleSlot]:
    """Return, for each slot that was skipped because a run was open, the slot of that run if the run is open still.

    The keys are the primary keys of the skipped slots. One read by an index of slots with open runs, or none.
    """
    skipped = [row for row in rows if (row.outcome, row.reason) == (SlotOutcome.SKIPPED, SlotReason.OVERLAP)]
    if not skipped:
        return {}
    open_slots = ScheduleSlot.objects.using(alias).filter(
        running=True, schedule__in={row.schedule_id for row in skipped}
    )
    open_slot_of: dict[int, ScheduleSlot] = {}
    for slot in open_slots.order_by("at"):
        for row in skipped:
            if row.schedule_id == slot.schedule_id and slot.at < row.at:
                open_slot_of.setdefault(row.pk, slot)
    return open_slot_of


def _describe_slot(
    slot: SlotRecord, with_run: SlotRecord, runs: dict[Any, Instance], *, sees_all: bool
) -> SlotDescription:
    """Return the description of a slot; ``with_run`` is the slot whose run it shows, nearly always itself."""
    run = runs.get(with_run.chain_id)
    run_id = status = None
    # The run of a slot may have been deleted; its id is of use then, too.
    workflow_id = with_run.workflow_id if sees_all else ""
    if run is not None:
        run_id, status, workflow_id = str(run.pk), run.status, with_run.workflow_id
        # A block is a state beside the status, and the one to know about here.
        if run.blocked and run.is_open:
            status = "blocked"
    return SlotDescription(
        at=slot.at,
        cause=str(slot.cause),
        outcome=str(slot.outcome),
        reason=str(slot.reason),
        decided_at=slot.decided_at,
        workflow_id=workflow_id,
        run_id=run_id,
        status=status,
        error_code=slot.error_code,
        error=slot.error,
        until=slot.until,
        count=slot.count,
        actor=slot.actor,
    )


def describe_schedules(
    rows: Sequence[Schedule], user: Person | None, *, alias: str, fires: int = 5
) -> list[ScheduleDescription]:
    """Return schedules as a user sees them, with their next ``fires`` times and their last ten slots. Four reads.

    The inputs of the runs are left out.
    """
    slots = last_slots(rows, alias=alias)
    described = iter(describe_slots([slot for row in rows for slot in slots[row.pk]], user, alias=alias))
    slots_by_schedule = {row.pk: [next(described) for _ in slots[row.pk]] for row in rows}
    return [_describe_schedule(row, slots_by_schedule[row.pk], fires) for row in rows]


def describe_schedule(row: Schedule, by: Actor, *, alias: str, fires: int = 20) -> ScheduleDescription:
    """Return one schedule as an actor sees it, with its input, its next ``fires`` times and its last ten slots.

    The audit log records that the input was read. Four reads.
    """
    [description] = describe_schedules([row], by.user, alias=alias, fires=fires)
    return replace(description, args=read_args(row, by))


def _describe_schedule(row: Schedule, slots: list[SlotDescription], fires: int) -> ScheduleDescription:
    return ScheduleDescription(
        name=row.name,
        workflow=row.workflow,
        owner=row.owner,
        module=row.module,
        description=describe_table(row),
        state=state_name(row),
        specs=row.specs,
        tz=row.tz,
        dst_gap=row.dst_gap,
        dst_fold=row.dst_fold,
        start=row.start,
        end=row.end,
        args=None,
        arguments_function=row.arguments_function,
        workflow_id=row.workflow_id,
        overlap=row.overlap,
        catch_up=row.catch_up,
        jitter=row.jitter,
        max_fires=row.max_fires,
        pause_after=row.pause_after,
        fires=row.fires,
        failures=row.failures,
        waiting=row.waiting,
        next_fires=next_fires(row, fires),
        slots=slots,
        backfill=backfill_of(row.backfill),
        paused_at=row.paused_at,
        pause_reason=row.pause_reason,
        paused_by=row.paused_by,
        gone_since=row.gone_since,
        error=row.error,
        editor=row.editor_name,
        created_at=row.created_at,
        changed_at=row.changed_at,
    )


def may_view_args(row: Schedule, user: Person | None) -> bool:
    """Return True if the user may see the input of the runs of a schedule.

    They need the permission to see payloads, and the class of the runs must redact no part of its payloads.
    """
    if user is None:
        return True
    paths = redacted_paths_of(row.workflow)
    # Paths begin at payloads of runs. An input of which a part is hidden there is hidden here as a whole.
    return paths is not None and not paths and access.policy().allows(user, access.VIEW_PAYLOAD)


def read_args(row: Schedule, by: Actor) -> Any:
    """Return the input of the runs of a schedule, or None if the actor may not see it.

    The audit log records that the actor has read it.
    """
    if row.args is None or not may_view_args(row, by.user):
        return None
    audit.record_schedule_read(by, row)
    return decode_payload(row.args)
