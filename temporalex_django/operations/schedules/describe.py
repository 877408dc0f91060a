"""Descriptions and lists of schedules, with their problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from django.db.models import Count, Min, OuterRef, Q, QuerySet, Subquery, Sum

from temporalex_django import access
from temporalex_django.access import runs_or_all
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import redacted_paths_of
from temporalex_django.authoring.schedules.schedule import specs_in_words
from temporalex_django.authoring.schedules.specs import specs_from_json
from temporalex_django.engine.schedules import Backfill, SlotCause, SlotOutcome, SlotReason, SlotRecord
from temporalex_django.errors import ActionNotPermitted, ScheduleInvalid
from temporalex_django.models import Chain, EndedTask, EnqueuedTask, Instance, Schedule, ScheduleSlot
from temporalex_django.models.fields import decode_payload
from temporalex_django.operations import audit
from temporalex_django.operations.background_tasks import VIEW_TASKS
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.fleet.stats import LiveWorkers, live_workers
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.operations import visible_schedules
from temporalex_django.operations.schedules.store import backfill_of, require_readable, slot_of, table_of
from temporalex_django.operations.schedules.sync import schedule_differences
from temporalex_django.present.view_models import ScheduleProblem

# --- describe ---------------------------------------------------------------------------------------------------------
#
# Descriptions of schedules and their slots, which REST, commands and the admin show.


#: Slots that a description has.
LAST_SLOTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDescription:
    """A slot of a schedule (a time at which it fires) with its outcome, as one user sees it.

    The fields are those of ``SlotRecord``. ``run_id`` is the run to link to: the one that the slot started, or the one
    in the way of a skipped slot. It is None if there is none, or if the user may not see it. ``task_id`` is the same
    for a schedule that enqueues a task. ``status`` is the status of that run or task, "blocked" if it is, or None.
    """

    at: datetime
    cause: str
    outcome: str
    reason: str
    decided_at: datetime
    workflow_id: str
    run_id: str | None
    task_id: str | None
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
    task: str
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


_DESCRIBED = [field.name for field in fields(ScheduleDescription)]


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
    task_ids = [row.run_id for row in (*rows, *in_the_way.values()) if row.chain_id is None and row.run_id is not None]
    tasks = _task_states(task_ids, user, alias=alias) if task_ids else {}
    return [
        _describe_slot(slot_of(row), slot_of(in_the_way.get(row.pk, row)), runs, tasks, sees_all=sees_all)
        for row in rows
    ]


def _task_states(task_ids: Sequence[Any], user: Person | None, *, alias: str) -> dict[Any, str]:
    """Return the statuses of those tasks that the user may see, by id. Two reads, or none."""
    if user is not None and not all(access.policy().allows(user, operation) for operation in VIEW_TASKS):
        return {}
    open_tasks = access.tasks_for(user, EnqueuedTask, alias=alias).filter(run_id__in=task_ids)
    ended_tasks = access.tasks_for(user, EndedTask, alias=alias).filter(pk__in=task_ids)
    return {
        **{
            task_id: "READY" if owner is None else "RUNNING"
            for task_id, owner in open_tasks.values_list("run_id", "owner")
        },
        **dict(ended_tasks.values_list("pk", "status")),
    }


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
    slot: SlotRecord, with_run: SlotRecord, runs: dict[Any, Instance], tasks: dict[Any, str], *, sees_all: bool
) -> SlotDescription:
    """Describe a slot; ``with_run`` is the slot whose run it shows, nearly always itself."""
    run = runs.get(with_run.chain_id)
    run_id = status = task_id = None
    if with_run.chain_id is None and with_run.run_id in tasks:
        task_id, status = str(with_run.run_id), tasks[with_run.run_id]
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
        task_id=task_id,
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
    computed: dict[str, Any] = {
        "description": describe_table(row),
        "state": state_name(row),
        "args": None,
        "next_fires": next_fires(row, fires),
        "slots": slots,
        "backfill": backfill_of(row.backfill),
        "editor": row.editor_name,
    }
    columns = {name: getattr(row, name) for name in _DESCRIBED if name not in computed}
    return ScheduleDescription(**columns, **computed)


def may_view_args(row: Schedule, user: Person | None) -> bool:
    """Return True if the user may see the input of the runs of a schedule.

    They need the permission to see payloads, and the class of the runs must redact no part of its payloads.
    """
    if user is None:
        return True
    paths = () if row.task else redacted_paths_of(row.workflow)
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


# --- problems ---------------------------------------------------------------------------------------------------------
#
# The problems of schedules that ``temporalex doctor`` reports: overdue ones, failures, missed slots and so on.


#: Time for which a schedule may be due: workers look every second, and leave one without their code to others first.
_OVERDUE_PERIOD = timedelta(minutes=3)
#: Time by which a schedule may be ahead of the clock, since the clocks of machines differ.
_AHEAD_PERIOD = timedelta(minutes=5)
_MISSED_PERIOD = timedelta(days=1)
#: A schedule that leaves out so many slots in a row needs a person; slots are counted up to a bound.
_STALL_COUNT, _MAX_SLOTS = 3, 10_000
_LEFT_OUT = (SlotOutcome.SKIPPED, SlotOutcome.MISSED)
_REASONS = (SlotReason.OVERLAP, SlotReason.BUFFER, SlotReason.WINDOW)
#: Most problems of each kind.
_LIMIT = 20
#: Most schedules that are read because their rows show a problem.
_MAX_SHOWN = 1_000


def reportable_schedules(user: Person | None) -> QuerySet[Schedule]:
    """Return the schedules whose problems a user may read; none without the permission to view schedules."""
    try:
        return visible_schedules(user, alias=storage().alias)
    except ActionNotPermitted:
        return Schedule.objects.none()


def load_schedule_problems(
    alias: str,
    schedules: QuerySet[Schedule] | None,
    live: LiveWorkers,
    now: datetime,
    runs: QuerySet[Instance] | None = None,
) -> list[ScheduleProblem]:
    """Return the problems of schedules at the time ``now``, at most 20 of each kind, the likeliest cause first.

    ``schedules`` restricts them. None means all, and also what differs from the code. ``runs`` restricts the runs that
    a problem names. Four reads, and a few more for each stalled schedule.
    """
    rows = Schedule.objects.using(alias) if schedules is None else schedules.using(alias)
    rows = rows.order_by("name")
    # The class of a schedule that starts no runs may be gone as well.
    active_rows = _active_schedules(rows)
    # One read for all problems that the row of a schedule shows.
    candidates = [*rows.filter(_shown_problems(now))[:_MAX_SHOWN]]
    failures = [row for row in candidates if row.paused_by_failures and row.paused_at and row.gone_since is None]
    undeclared = [row for row in candidates if row.gone_since is not None]
    problems = [
        *_overdue(candidates, now),
        *_ahead(candidates, now),
        *(
            _problem("error", row, detail=row.error.rstrip("."))
            for row in [row for row in candidates if row.error][:_LIMIT]
        ),
        *_without_code(active_rows, live),
        # If the newest slot was missed, the kind ``missed`` covers it.
        *load_stalls(alias, active_rows, runs, outcomes=(SlotOutcome.SKIPPED,)),
        *_missed(alias, rows, now),
        *(_problem("failures", row, count=row.failures, since=row.paused_at) for row in failures[:_LIMIT]),
        *(_problem("gone", row, since=row.gone_since, detail=row.module) for row in undeclared[:_LIMIT]),
    ]
    if schedules is None:
        problems += [
            ScheduleProblem(kind="differs", schedule=difference.name, detail=difference.text.rstrip("."))
            for difference in schedule_differences(alias)[:_LIMIT]
        ]
    return problems


def _shown_problems(now: datetime) -> Q:
    """Return the condition of schedules whose rows show a problem."""
    return (
        Q(next_at__lt=now - _OVERDUE_PERIOD)
        | Q(position__gt=now + _AHEAD_PERIOD, paused_at=None)
        | ~Q(error="")
        | Q(paused_by_failures=True, paused_at__isnull=False, gone_since=None)
        | Q(gone_since__isnull=False)
    )


def troubled_schedules(
    schedules: QuerySet[Schedule],
    now: datetime,
    *,
    alias: str,
    problems: Iterable[ScheduleProblem] | None = None,
) -> QuerySet[Schedule]:
    """Return those of the schedules that do not run as planned: the rows that ``load_schedule_problems`` is about.

    ``problems`` is what that has returned for the schedules. Without it, two reads find the classes that no worker can
    run.
    """
    rows = Schedule.objects.using(alias).order_by()
    if problems is None:
        problems = _without_code(_active_schedules(schedules).using(alias), live_workers(alias=alias))
    lacking = {problem.workflow for problem in problems if problem.kind in ("class", "unpolled")}
    without_code = _active_schedules(rows).filter(task="", workflow__in=lacking).values("pk")
    stalled = _stalled_schedules(rows, outcomes=(SlotOutcome.SKIPPED,)).order_by().values("pk")
    missed = _missed_slots(alias, now).values("schedule")
    return schedules.filter(_shown_problems(now) | Q(pk__in=stalled) | Q(pk__in=missed) | Q(pk__in=without_code))


def _active_schedules(schedules: QuerySet[Schedule]) -> QuerySet[Schedule]:
    """Return the schedules that start runs: a paused schedule or one that is gone starts none."""
    return schedules.filter(gone_since=None, paused_at=None, next_at__isnull=False)


def _problem(
    kind: str, row: Schedule, *, count: int = 1, since: datetime | None = None, detail: str = ""
) -> ScheduleProblem:
    return ScheduleProblem(
        kind=kind,  # type: ignore[arg-type] # one of the kinds
        schedule=row.name,
        workflow=row.workflow or row.task,
        count=count,
        since=since,
        detail=detail,
    )


def _overdue(rows: Sequence[Schedule], now: datetime) -> Iterator[ScheduleProblem]:
    """Yield one problem for all schedules, since one cause makes them all overdue."""
    late_rows = [(row.next_at, row) for row in rows if row.next_at and row.next_at < now - _OVERDUE_PERIOD]
    if late_rows:
        since, first = min(late_rows, key=lambda entry: entry[0])
        yield _problem("overdue", first, count=len(late_rows), since=since)


def _ahead(rows: Sequence[Schedule], now: datetime) -> Iterator[ScheduleProblem]:
    ahead = [row for row in rows if row.position and row.position > now + _AHEAD_PERIOD and row.paused_at is None]
    for row in ahead[:_LIMIT]:
        yield _problem("ahead", row, since=row.position)


def _without_code(rows: QuerySet[Schedule], live: LiveWorkers) -> Iterator[ScheduleProblem]:
    """Yield a problem for each class that this process lacks, or whose runs no live worker can take."""
    groups = (
        rows.filter(task="").order_by("workflow").values("workflow").annotate(count=Count("pk"), example=Min("name"))
    )
    for group in groups[:_LIMIT]:
        about = {"schedule": group["example"], "workflow": group["workflow"], "count": group["count"]}
        startable = workflows.find_or_none(group["workflow"])
        if startable is None:
            yield ScheduleProblem(kind="class", **about)
            continue
        try:
            workflow = startable.choose(None, {})
        # Code of the project chooses the version, and needs options for it that a schedule does not have.
        except Exception:  # noqa: BLE001, S112 - the slots of such a schedule fail, which lists the error
            continue
        # Without any worker, that is reported for all runs.
        missing = live.missing_worker(workflow=workflow.name, version=workflow.version, queue=workflow.task_queue)
        if missing is not None and live.workflow_versions:
            yield ScheduleProblem(kind="unpolled", detail=missing, **about)


def _missed(alias: str, rows: QuerySet[Schedule], now: datetime) -> Iterator[ScheduleProblem]:
    slots = _missed_slots(alias, now).filter(schedule__in=rows.order_by().values("pk"))
    groups = slots.values("schedule__name", "schedule__workflow").annotate(missed=Sum("count"))
    for group in groups.order_by("-missed", "schedule__name")[:_LIMIT]:
        yield ScheduleProblem(
            kind="missed",
            schedule=group["schedule__name"],
            workflow=group["schedule__workflow"],
            count=group["missed"],
        )


def _missed_slots(alias: str, now: datetime) -> QuerySet[ScheduleSlot]:
    slots = ScheduleSlot.objects.using(alias).order_by()
    return slots.filter(outcome=SlotOutcome.MISSED, decided_at__gte=now - _MISSED_PERIOD)


def is_stalled(slots: Iterable[ScheduleSlot | SlotDescription]) -> bool:
    """Return True if a schedule left out its last slots, at least three in a row.

    ``slots`` are its last ones, newest first.
    """
    by_time = (slot for slot in slots if slot.cause == SlotCause.TIME)
    left_out = takewhile(lambda slot: slot.outcome in _LEFT_OUT and slot.reason in _REASONS, by_time)
    return sum(slot.count for slot in left_out) >= _STALL_COUNT


def load_stalls(
    alias: str,
    schedules: QuerySet[Schedule],
    runs: QuerySet[Instance] | None = None,
    *,
    outcomes: Sequence[SlotOutcome] = _LEFT_OUT,
) -> list[ScheduleProblem]:
    """Return a problem for each of the active schedules that left out its last slots, at least three in a row.

    Slots that somebody wanted to leave out, by a pause, do not count. The newest slot has one of the ``outcomes``. A
    run in the way is named if it is in ``runs``; None means all. One read, and three more for each problem, at most 20.
    """
    rows = _stalled_schedules(schedules.using(alias), outcomes=outcomes)
    return [problem for row in rows[:_LIMIT] if (problem := _stall(alias, row, runs)) is not None]


def _stalled_schedules(schedules: QuerySet[Schedule], *, outcomes: Sequence[SlotOutcome]) -> QuerySet[Schedule]:
    """Return the active schedules that left out their last slots, at least three in a row."""
    newest = ScheduleSlot.objects.filter(schedule=OuterRef("pk"), cause=SlotCause.TIME).order_by("-at")
    rows: Any = _active_schedules(schedules).order_by("name")
    for number in range(_STALL_COUNT):
        slot = {name: Subquery(newest.values(name)[number : number + 1]) for name in ("outcome", "reason", "count")}
        rows = rows.alias(**{f"{name}_{number}": value for name, value in slot.items()})
    first, second, third = (
        Q(**{f"outcome_{number}__in": _LEFT_OUT, f"reason_{number}__in": _REASONS}) for number in range(_STALL_COUNT)
    )
    # One row may stand for several slots.
    stalled: QuerySet[Schedule] = rows.filter(first, outcome_0__in=outcomes).filter(
        Q(count_0__gte=3) | (second & (Q(count_0=2) | Q(count_1__gte=2) | third))
    )
    return stalled


def _stall(alias: str, row: Schedule, runs: QuerySet[Instance] | None) -> ScheduleProblem | None:
    slots = ScheduleSlot.objects.using(alias).filter(schedule=row, cause=SlotCause.TIME)
    left_out = slots.filter(outcome__in=_LEFT_OUT, reason__in=_REASONS)
    last_other = slots.exclude(pk__in=left_out.values("pk")).order_by("-at").values_list("at", flat=True).first()
    if last_other is not None:
        left_out = left_out.filter(at__gt=last_other)
    figures = left_out.order_by()[:_MAX_SLOTS].aggregate(count=Sum("count"), since=Min("at"))
    if (figures["count"] or 0) < _STALL_COUNT:
        return None
    in_the_way = ScheduleSlot.objects.using(alias).filter(schedule=row, running=True).order_by("at").first()
    run = (
        None
        if in_the_way is None
        else runs_or_all(runs, alias=alias).filter(chain=in_the_way.chain_id).order_by("-id").first()
    )
    return ScheduleProblem(
        kind="stalled",
        schedule=row.name,
        workflow=row.workflow or row.task,
        count=figures["count"],
        since=figures["since"],
        run="" if run is None else run.workflow_id,
        is_blocked=run is not None and bool(run.blocked),
    )


# --- filters ----------------------------------------------------------------------------------------------------------
#
# Filters of lists of schedules, which REST, the commands and the admin share.


#: The condition of each state of ``describe.state_name``.
STATES: dict[str, Q] = {
    "active": Q(gone_since=None, paused_at=None, next_at__isnull=False),
    "paused": Q(gone_since=None, paused_at__isnull=False),
    "gone": Q(gone_since__isnull=False),
    "ended": Q(gone_since=None, paused_at=None, next_at=None),
}


def filter_schedules(
    schedules: QuerySet[Schedule],
    *,
    owner: str = "",
    state: str = "",
    workflow: str = "",
    task: str = "",
    search: str = "",
) -> QuerySet[Schedule]:
    """Return the schedules for which all filters hold; an empty filter restricts nothing.

    ``owner`` is ``code`` or ``people``, and ``state`` one of ``STATES``. ``workflow`` is the name of the class,
    ``task`` the path of the task, and ``search`` a part of the name of the schedule, in any case.
    """
    if owner:
        schedules = schedules.filter(owner=owner)
    if state:
        schedules = schedules.filter(STATES[state])
    if workflow:
        schedules = schedules.filter(workflow=workflow)
    if task:
        schedules = schedules.filter(task=task)
    if search:
        schedules = schedules.filter(name__icontains=search)
    return schedules
