"""List, show, pause, unpause, trigger, backfill and delete schedules, and compare them with the code.

`schedules list` and `schedules show NAME` show when schedules fire and what happened to their slots. `schedules diff`
lists what differs between the schedules declared in code and their rows, and exits with status 1 if anything does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

from django.core.management.base import BaseCommand, CommandError

from temporalex_django.access import require_access
from temporalex_django.core.names import counted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import (
    DEFAULT_LIMIT,
    ActorOption,
    Argument,
    JsonOption,
    Option,
    ReasonOption,
    YesOption,
    limit_option,
    subcommand,
)
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.base import Action, Actor, storage
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.describe import (
    STATES,
    ScheduleDescription,
    SlotDescription,
    describe_schedule,
    describe_schedules,
    describe_slots,
    filter_schedules,
)
from temporalex_django.operations.schedules.operations import (
    VIEW_SCHEDULE,
    BackfillPreview,
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    StopBackfill,
    TriggerSchedule,
    UnpauseSchedule,
    find_manageable_schedule,
    find_schedule,
    preview_backfill,
    range_time,
    visible_schedules,
)
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.operations.schedules.sync import ScheduleDifference, schedule_differences

_PAGE_SIZE, _SHOWN_FIRES, _DEFAULT_RATE = 200, 5, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePrinted(ScheduleDescription):
    """A schedule, as ``temporalex schedules`` prints it; ``catch_up`` and ``jitter`` are in seconds."""

    catch_up: float  # type: ignore[assignment] # JSON has no durations
    jitter: float | None  # type: ignore[assignment] # as above


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChanged:
    """The name of the schedule on which a command acted, and the name of the operation."""

    name: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFired:
    """The result of ``schedules trigger``: the slot (a time at which the schedule fires) with its outcome."""

    name: str
    slot: SlotDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPrinted:
    """The result of ``schedules backfill``: the slots of the range, and how many of them are to start.

    A slot is a time at which the schedule fires. ``dry_run`` is true if nothing was started.
    """

    name: str
    slots: int
    started: int
    to_start: int
    first: datetime | None
    last: datetime | None
    dry_run: bool


@subcommand(
    "schedules",
    output=(SchedulePrinted, ScheduleChanged, SlotFired, BackfillPrinted, Sequence[ScheduleDifference]),
)
def schedules() -> None:
    """List, show, create, pause, unpause, trigger, backfill and delete schedules, and compare them with the code.

    `schedules list` and `schedules show NAME` show when schedules fire and what happened to their slots. `schedules
    diff` lists what differs between the schedules declared in code and their rows, and exits with status 1 if
    anything does.
    """


@schedules.word("list")
def list_schedules(
    command: BaseCommand,
    *,
    owner: Annotated[str, Option("Only schedules of this owner.", choices=Schedule.Owner.values)] = "",
    state: Annotated[str, Option("Only schedules in this state.", choices=[*STATES])] = "",
    workflow: Annotated[str, Option("Only schedules that start runs of this class.", "NAME")] = "",
    task: Annotated[str, Option("Only schedules that enqueue this task.", "PATH")] = "",
    search: Annotated[str, Option("Only schedules whose name contains the text.", "TEXT")] = "",
    limit: Annotated[int | None, limit_option("schedules")],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """List schedules by name, with the time at which each fires next."""
    filters = {"owner": owner, "state": state, "workflow": workflow, "task": task, "search": search}
    for name, text in filters.items():
        # Databases refuse some characters in parameters.
        if not text.isprintable():
            raise printing.usage_error(
                f"--{name} {printing.escape(text)} contains unprintable characters", "Use printable characters only."
            )
    alias = storage().alias
    queryset = filter_schedules(visible_schedules(actor.user, alias=alias), **filters)
    maximum = None if json and limit is None else limit or DEFAULT_LIMIT
    rows = islice(iterate_pages(queryset, by="name", size=_PAGE_SIZE), None if maximum is None else maximum + 1)
    described = _described(rows, actor, alias)
    if json:
        for description in islice(described, maximum):
            printing.print_json_line(command, _schedule_output(description))
        return
    _print_table(command, [*described], maximum or 0)


NameArgument = Annotated[str, Argument("Name of the schedule.", "NAME")]


@schedules.word("show")
def show(command: BaseCommand, *, name: NameArgument, actor: ActorOption, json: JsonOption) -> None:
    """Show a schedule with its next fire times and the outcomes of its last slots."""
    row = find_schedule(name, actor.user, alias=storage().alias)
    _print_schedule(command, describe_schedule(row, actor, alias=storage().alias), json=json)


@schedules.word("create")
def create(
    command: BaseCommand,
    *,
    name: NameArgument,
    workflow: Annotated[str | None, Option("Workflow class whose runs it starts.", "NAME")],
    task: Annotated[str | None, Option("Path of the Django task that it enqueues, instead of a class.", "PATH")],
    cron: Annotated[list[str] | None, Option("Five fields, such as '30 2 * * *'.", "EXPRESSION")],
    every: Annotated[list[float] | None, Option("An interval of elapsed time.", "SECONDS")],
    calendar: Annotated[list[str] | None, Option("Such as 'last working day 18:00'.", "RULE")],
    at: Annotated[list[str] | None, Option("A one-off time.", "TIME")],
    tz: Annotated[str | None, Option("Time zone of the wall-clock times (default: UTC).", "ZONE")],
    input_text: Annotated[
        Any,
        Option(
            "Input of the runs, or arguments of the task (a list, or an object of keyword arguments), as JSON; use - "
            "to read it from standard input.",
            "JSON",
            name="--args",
        ),
    ],
    overlap: Annotated[
        str | None,
        Option("What happens while an earlier slot is not over.", choices=Schedule.OverlapPolicy.values),
    ],
    workflow_id: Annotated[str | None, Option("Template of the ids of the runs.", "TEMPLATE", name="--id-template")],
    reason: ReasonOption = "",
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Create a schedule that starts runs of a workflow, or that enqueues a Django task."""
    values = {
        "workflow": workflow,
        "task": task,
        "cron": cron,
        "every": every,
        "calendar": calendar,
        "at": at,
        "tz": tz,
        "overlap": overlap,
        "workflow_id": workflow_id,
    }
    definition = {key: value for key, value in values.items() if value is not None}
    definition |= {"name": name, "args": input_text}
    row = SaveSchedule(parse_definition(definition), create=True, reason=reason, by=actor).execute()
    _print_changed(command, row.name, SaveSchedule, "is created", json=json)


@schedules.word("pause")
def pause(
    command: BaseCommand, *, name: NameArgument, reason: ReasonOption = "", actor: ActorOption, json: JsonOption
) -> None:
    """Pause a schedule: its slots are skipped until the pause ends."""
    PauseSchedule(name, reason=reason, by=actor).execute()
    _print_changed(command, name, PauseSchedule, "is paused", json=json)


@schedules.word("unpause")
def unpause(
    command: BaseCommand, *, name: NameArgument, reason: ReasonOption = "", actor: ActorOption, json: JsonOption
) -> None:
    """End the pause of a schedule."""
    UnpauseSchedule(name, reason=reason, by=actor).execute()
    _print_changed(command, name, UnpauseSchedule, "is no longer paused", json=json)


@schedules.word("trigger")
def trigger(
    command: BaseCommand, *, name: NameArgument, reason: ReasonOption = "", actor: ActorOption, json: JsonOption
) -> None:
    """Fire a schedule now; its overlap policy determines whether a run starts."""
    # The exit status is 5 if the run could not be started.
    alias, record = storage().alias, TriggerSchedule(name, reason=reason, by=actor).execute()
    rows = ScheduleSlot.objects.using(alias).filter(schedule__name=name, at=record.at)
    (slot,) = describe_slots(rows, actor.user, alias=alias)
    if json:
        printing.print_json(command, SlotFired(name=name, slot=slot))
    else:
        printing.write_line(command, f"{printing.escape(name)}: {printing.escape(_slot_text(slot))}")
    if slot.outcome == "failed":
        text = printing.with_next_step(
            "the run could not be started", f"Correct that, then: manage.py temporalex schedules trigger {name}"
        )
        raise CommandError(printing.escape(text), returncode=printing.REFUSED)


@schedules.word("backfill")
def backfill(
    command: BaseCommand,
    *,
    name: NameArgument,
    start: Annotated[
        str | None,
        Option(
            "Start of the range, inclusive, such as 2026-01-31T00:00; without an offset, in the schedule's zone.",
            "TIME",
        ),
    ],
    end: Annotated[str | None, Option("End of the range, inclusive.", "TIME")],
    per_minute: Annotated[int | None, Option("Start at most N runs per minute (default: 60).", "N")],
    dry_run: Annotated[bool, Option("Print what would be started, without starting anything.")],
    stop: Annotated[bool, Option("Stop the backfill in progress.")],
    reason: ReasonOption = "",
    yes: YesOption,
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Start the slots of a past range that have no run, or stop a backfill."""
    has_range = start is not None and end is not None
    has_part = any(option is not None for option in (start, end, per_minute)) or dry_run
    if (stop and has_part) or not (stop or has_range):
        raise printing.usage_error(
            "the command needs either a range or --stop", "Give --start TIME and --end TIME, or --stop."
        )
    if stop:
        StopBackfill(name, reason=reason, by=actor).execute()
        _print_changed(command, name, StopBackfill, "is no longer being backfilled", json=json)
        return
    alias, rate = storage().alias, _DEFAULT_RATE if per_minute is None else per_minute
    row = (find_schedule if dry_run else find_manageable_schedule)(name, actor.user, alias=alias)
    begin, until = range_time(row, start or "", "--start"), range_time(row, end or "", "--end")
    preview = preview_backfill(row, begin, until, alias=alias)
    if not dry_run:
        question = f"Start {_count(preview.to_start, 'run')} of {row.workflow or row.task}, at most {rate} a minute?"
        command_arguments.confirm(command, question, yes=yes)
        preview = BackfillSchedule(name, start=begin, end=until, per_minute=rate, reason=reason, by=actor).execute()
    _print_backfill(command, _backfill_output(name, preview, dry_run=dry_run), rate, json=json)


@schedules.word("diff")
def diff(command: BaseCommand, *, actor: ActorOption, json: JsonOption) -> None:
    """List differences between the schedules declared in code and their rows."""
    alias = storage().alias
    require_access(actor.user, VIEW_SCHEDULE, alias=alias)
    differences = schedule_differences(alias)
    if json:
        printing.print_json(command, differences)
    elif not differences:
        printing.write_line(command, "the schedules match the code")
    for difference in () if json else differences:
        printing.write_line(command, f"{difference.kind}: {printing.escape(difference.text)}")
    # After the differences, so that a pipeline stops but its log says why.
    if differences:
        text = f"{_count(len(differences), 'schedule')} differ from the code: see above"
        if len(differences) == 1:
            text = "1 schedule differs from the code: see above"
        raise CommandError(text, returncode=printing.FINDINGS)


@schedules.word("delete")
def delete(
    command: BaseCommand,
    *,
    name: NameArgument,
    reason: ReasonOption = "",
    yes: YesOption,
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Delete a schedule and its slots; its runs are kept."""
    command_arguments.confirm(command, f"{delete.description} Continue for {name}?", yes=yes)
    DeleteSchedule(name, reason=reason, by=actor).execute()
    _print_changed(command, name, DeleteSchedule, "is deleted", json=json)


def _print_changed(command: BaseCommand, name: str, action: type[Action[Any]], done: str, *, json: bool) -> None:
    change = ScheduleChanged(name=name, action=action.name)
    printing.print_result(command, change, f"the schedule {printing.escape(name)} {done}", as_json=json)


def _print_backfill(command: BaseCommand, printed: BackfillPrinted, rate: int, *, json: bool) -> None:
    if json:
        printing.print_json(command, printed)
        return
    text = f"{_count(printed.slots, 'slot')} in the range, {printed.started:,} started already, {printed.to_start:,} to start"
    suffix = "" if printed.dry_run else f"; workers start at most {rate} a minute"
    printing.write_line(command, f"{printing.escape(printed.name)}: {text}{suffix}")


def _backfill_output(name: str, preview: BackfillPreview, *, dry_run: bool) -> BackfillPrinted:
    return BackfillPrinted(
        name=name,
        slots=preview.slots,
        started=preview.started,
        to_start=preview.to_start,
        first=preview.first,
        last=preview.last,
        dry_run=dry_run,
    )


# -- lists and texts ---------------------------------------------------------------------------------------------------


def _described(rows: Iterator[Schedule], actor: Actor, alias: str) -> Iterator[ScheduleDescription]:
    """Yield the descriptions, one page of rows at a time."""
    while page := [*islice(rows, _PAGE_SIZE)]:
        yield from describe_schedules(page, actor.user, alias=alias, fires=_SHOWN_FIRES)


def _print_table(command: BaseCommand, descriptions: Sequence[ScheduleDescription], maximum: int) -> None:
    if not descriptions:
        printing.write_line(command, "no schedules")
        return
    cells = [
        (
            schedule.name,
            schedule.workflow or schedule.task,
            schedule.description,
            schedule.state,
            printing.format_local_time(next(iter(schedule.next_fires), None)) or "-",
        )
        for schedule in descriptions[:maximum]
    ]
    printing.print_table(command, ("NAME", "WORKFLOW OR TASK", "WHEN", "STATE", "NEXT"), cells)
    if len(descriptions) > len(cells):
        printing.write_line(
            command,
            f"More than {counted(len(cells), 'schedule matches', 'schedules match')}. Use --limit N or a filter to see others.",
        )


def _schedule_output(description: ScheduleDescription) -> SchedulePrinted:
    values = {field.name: getattr(description, field.name) for field in fields(description)}
    jitter = None if description.jitter is None else description.jitter.total_seconds()
    return SchedulePrinted(**{**values, "catch_up": description.catch_up.total_seconds(), "jitter": jitter})


def _print_schedule(command: BaseCommand, schedule: ScheduleDescription, *, json: bool) -> None:
    if json:
        printing.print_json(command, _schedule_output(schedule))
        return
    printing.print_table(command, ("", ""), [*_schedule_lines(schedule)])
    if schedule.slots:
        printing.write_line(command, "")
        cells = [
            (
                printing.format_local_time(slot.at),
                _slot_text(slot),
                slot.run_id or slot.task_id or "-",
                slot.status or "-",
            )
            for slot in schedule.slots
        ]
        printing.print_table(command, ("SLOT", "OUTCOME", "RUN OR TASK", "STATUS"), cells)


def _schedule_lines(schedule: ScheduleDescription) -> list[tuple[str, str]]:
    """Return pairs of a label and a text, without empty ones."""
    local: Callable[[datetime | None], str] = printing.format_local_time
    paused = f"since {local(schedule.paused_at)}, by {schedule.paused_by or 'code'}: {schedule.pause_reason or '-'}"
    backfill = ""
    if schedule.backfill is not None:
        backfill = f"{schedule.backfill.done:,} of {counted(schedule.backfill.total, 'slot', 'slots')}"
    lines = [
        ("schedule", schedule.name),
        ("when", schedule.description),
        ("state", schedule.state),
        ("paused", paused if schedule.paused_at else ""),
        ("gone", f"since {local(schedule.gone_since)}" if schedule.gone_since else ""),
        ("error", schedule.error),
        ("workflow", schedule.workflow),
        ("task", schedule.task),
        ("owner", f"{schedule.owner} {schedule.module or schedule.editor}".strip()),
        ("overlap", schedule.overlap),
        ("catch-up", str(schedule.catch_up)),
        ("jitter", str(schedule.jitter or "")),
        ("fires", f"{schedule.fires:,}" + (f" of {schedule.max_fires:,}" if schedule.max_fires else "")),
        ("failures", f"{schedule.failures:,} in a row" if schedule.failures else ""),
        ("waiting", _count(schedule.waiting, "slot") if schedule.waiting else ""),
        ("backfill", backfill),
        *(("next", local(at)) for at in schedule.next_fires[:_SHOWN_FIRES]),
    ]
    return [line for line in lines if line[1]]


def _slot_text(slot: SlotDescription) -> str:
    """Return the outcome in words: "skipped (overlap)" or "started basket-1"."""
    match slot.outcome:
        case "started":
            return f"started {slot.workflow_id or slot.task_id or ''}".rstrip()
        case "failed":
            return f"failed: {slot.error}"
    reason = f" ({slot.reason})" if slot.reason else ""
    count = f" {_count(slot.count, 'slot')} until {printing.format_local_time(slot.until)}" if slot.count > 1 else ""
    return f"{slot.outcome}{count}{reason}"


def _count(number: int, noun: Literal["slot", "run", "schedule"]) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
