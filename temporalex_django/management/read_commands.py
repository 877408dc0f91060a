"""Commands that show runs: lists, descriptions, histories, versions, exports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Count, Min, Q, QuerySet
from django.utils import timezone

from temporalex_django.access import is_unfiltered, redactor_for
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.backend import EndedAttempt
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.authoring.run_columns import (
    PAYLOAD_COLUMNS,
    UNREAD_COLUMNS,
    ColumnType,
    Place,
    RunColumn,
    columns_shown_in,
)
from temporalex_django.authoring.run_filters import NEWEST_FIRST, ORDERS
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.routing import read_history
from temporalex_django.conf import get_settings
from temporalex_django.core.history import replay
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import counted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import parse_run_id
from temporalex_django.errors import QueryFailed, WorkflowNotFound
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import (
    DEFAULT_LIMIT,
    ActorOption,
    Argument,
    FilterOptions,
    JsonOption,
    Option,
    RunArgument,
    WorkflowOption,
    apply_filters,
    limit_option,
    subcommand,
)
from temporalex_django.management.outputs import (
    EventPrinted,
    RunDescribed,
    RunListed,
    escape,
    run_output,
    status_text,
    summary_output,
    usage_error,
    write_line,
)
from temporalex_django.models import HistoryEvent, Instance
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations import audit
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.fleet.stats import live_workers
from temporalex_django.operations.read import timeline
from temporalex_django.operations.read.describe import describe, history_of
from temporalex_django.operations.read.run_filters import annotate_attempts, annotate_failed_messages, iterate_runs
from temporalex_django.operations.read.run_summary import summarize_run, summarize_runs


@subcommand("describe", output=RunDescribed)
def describe_run(
    command: BaseCommand, *, run: RunArgument, workflow: WorkflowOption, actor: ActorOption, json: JsonOption
) -> None:
    """Show the state of a run, what it is waiting for, and the messages that it accepts."""
    # The command writes nothing but, for a user who sees payloads, an audit row about the read.
    target = command_arguments.find_visible_target(run, workflow, actor=actor)
    runs = Instance.objects.using(storage().alias).defer(*DEFERRED_COLUMNS).select_related("chain")
    row = annotate_attempts(runs).filter(pk=target.selected_run_id).first()
    if row is None:  # it was deleted after it was found
        raise WorkflowNotFound(f"{target.workflow} {target.workflow_id} no longer exists")
    redactor = redactor_for(actor.user, row)
    # Recorded before anything is printed: a reader who stops the output has read it, too.
    if redactor.shows_payloads:
        audit.record_read(actor, row)
    run_output = RunDescribed(
        run=describe(target, storage=storage(), run=row, redactor=redactor),
        queue=row.queue,
        created_at=row.created_at,
        parent_run_id=_visible_parent_id(row, command_arguments.visible_runs(actor)),
        summary=summary_output(summarize_run(row, redactor=redactor)),
    )
    if json:
        printing.print_json(command, run_output)
        return
    printing.print_table(command, ("", ""), [(name, text) for name, text in _text_rows(run_output) if text])


def _visible_parent_id(row: Instance, visible_runs: QuerySet[Instance]) -> str | None:
    """Return the run id of the parent, or None if there is none or it is not visible."""
    parent = row.parent_run_id
    if parent is None or not (is_unfiltered(visible_runs) or visible_runs.filter(pk=parent).exists()):
        return None
    return str(parent)


def _text_rows(run_output: RunDescribed) -> list[tuple[str, object]]:
    """Return pairs of a label and a value; the caller leaves out those without a value."""
    run = run_output.run
    said_count = sum(entry.last_failure is not None for entry in run.activities) + (run.status == "failed")
    return [
        ("Run", run.id),
        ("Summary", run_output.summary.text),
        ("Class", f"{run.workflow} (version {run.version})"),
        ("Status", status_text(run.status, blocked=run.blocked is not None)),
        ("Run id", run.run_id),
        ("Parent", run_output.parent_run_id or ""),
        ("Queue", run_output.queue),
        *((column.heading, _format_column(column, run_output)) for column in columns_shown_in(Place.TEXT)),
        ("Signals", ", ".join(run.accepts.get("signals", ()))),
        ("Updates", ", ".join(run.accepts.get("updates", ()))),
        *(
            (f"Activity {entry.seq}", f"{entry.activity}: {entry.state}, attempt {entry.attempt}, queue {entry.queue}")
            for entry in run.activities
        ),
        ("Activities", run.activities_error or ""),
        # The summary says the last one of what fails, or failed, already.
        *(
            (f"Attempt {entry.attempt} of activity {entry.seq}", _attempt_text(entry))
            for entry in run.attempts
            if len(run.attempts) > said_count
        ),
        *(
            (f"Failed signal {entry.id}", f"{entry.name}: {entry.type}: {entry.message}")
            for entry in run.failed_messages
        ),
    ]


def _attempt_text(attempt: EndedAttempt) -> str:
    begin_text = "" if attempt.began_at is None else f"{printing.format_local_time(attempt.began_at)} to "
    place = f" on {attempt.worker}" if attempt.worker else ""
    error = f"{attempt.type}: {attempt.message}" if attempt.message else attempt.type
    return f"{attempt.activity}: {begin_text}{printing.format_local_time(attempt.ended_at)}{place}: {error}"


def _format_column(column: RunColumn, run_output: RunDescribed) -> str:
    run: object = run_output.run
    column_value: Any = getattr(run if hasattr(run, column.output_name) else run_output, column.output_name)
    match column.type:
        case ColumnType.TIME:
            return printing.format_local_time(column_value)
        case ColumnType.TEXTS:
            return ", ".join(column_value)
        case ColumnType.ATTRIBUTES:
            return ", ".join(f"{name}={attribute}" for name, attribute in column_value.items())
        case _:
            if column_value is None:
                return ""
            return str(column_value)


# --- history ----------------------------------------------------------------------------------------------------------


@subcommand("history", output=EventPrinted)
def print_history(
    command: BaseCommand, *, run: RunArgument, workflow: WorkflowOption, actor: ActorOption, json: JsonOption
) -> None:
    """Print the history of a run, one row for each thing that happened.

    With --json, every event as one line of JSON.
    """
    # Events are read in pages of 500. The command writes nothing but, for a user who sees payloads, an audit row about
    # the read.
    target = command_arguments.find_visible_target(run, workflow, actor=actor)
    redactor = redactor_for(actor.user, target.row)
    # Recorded before anything is printed: a reader who stops the output has read it, too.
    if redactor.shows_payloads:
        audit.record_read(actor, target.row)
    if json:
        told_events = history_of(target, storage=storage())
        if told_events is not None:
            for core_event in map(redactor.redact_event, told_events):
                event_output = EventPrinted(
                    number=core_event.number,
                    activation=core_event.activation,
                    kind=core_event.kind,
                    at=core_event.at,
                    attributes=core_event.attributes,
                )
                printing.print_json_line(command, event_output)
            return
        events = HistoryEvent.objects.using(storage().alias).filter(run_id=target.selected_run_id)
        for event in iterate_pages(events, by="seq"):
            printing.print_json_line(command, _event_output(event, redactor))
        return
    now, rows = timezone.now(), timeline.rows_of_run(target, redactor=redactor, storage=storage())
    cells = [
        (
            row.number,
            row.activation,
            printing.format_local_time(row.began),
            row.text(now=now, titles=timeline.titles_of(row)),
        )
        for row in rows
    ]
    if cells:
        printing.print_table(command, ("#", "ACTIVATION", "WHEN", "WHAT"), cells)
    else:
        printing.write_line(command, "no history yet: no worker has picked up the run")


def _event_output(event: HistoryEvent, redactor: Redactor) -> EventPrinted:
    """Return the JSON output. Attributes that the codec cannot read are replaced by an error text."""
    attributes = event.data
    redacted = (
        redactor.redact_payload(repr(attributes))
        if isinstance(attributes, UnreadablePayload)
        else redactor.redact_attributes(attributes, kind=event.kind)
    )
    return EventPrinted(
        number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=redacted
    )


# --- list runs --------------------------------------------------------------------------------------------------------


DEFERRED_COLUMNS = (*PAYLOAD_COLUMNS, "metadata")
_PAGE_SIZE = 500


@subcommand("list", output=RunListed)
def list_runs(
    command: BaseCommand,
    *,
    filters: FilterOptions,
    order: Annotated[
        str,
        Option(
            f"Order of the list: {', '.join(ORDERS)} (default: {NEWEST_FIRST}). "
            f"For descending order, use an equals sign: --order={NEWEST_FIRST}.",
            "ORDER",
        ),
    ] = NEWEST_FIRST,
    limit: Annotated[int | None, limit_option("runs")],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """List runs, newest first unless --order says otherwise, each with a sentence about its state.

    With --json, one line of JSON for each run, without a limit and in constant memory.
    """
    # Runs are read in pages of 500, each with at most four statements.
    if order not in ORDERS:
        raise usage_error(
            f"--order {printing.escape(order)} is not a valid sort order", f"Use one of: {', '.join(ORDERS)}."
        )
    runs = apply_filters(command_arguments.visible_runs(actor), filters).defer(*DEFERRED_COLUMNS)
    runs = annotate_failed_messages(runs.select_related("chain"))
    # One more than is printed, to know if there are more.
    maximum = None if json and limit is None else (limit or DEFAULT_LIMIT) + 1
    rows = islice(iterate_runs(runs, order, size=min(_PAGE_SIZE, maximum or _PAGE_SIZE)), maximum)
    if json:
        for run_output in islice(_run_outputs(rows, actor), limit):
            printing.print_json_line(command, run_output)
        return
    outputs = list(_run_outputs(rows, actor))
    printed_outputs = outputs[: limit or DEFAULT_LIMIT]
    if printed_outputs:
        cells = [
            (
                run_output.id,
                run_output.workflow,
                status_text(run_output.status, blocked=run_output.summary.state == "blocked"),
                run_output.summary.text,
            )
            for run_output in printed_outputs
        ]
        printing.print_table(command, ("ID", "WORKFLOW", "STATUS", "SUMMARY"), cells)
    if not outputs:
        printing.write_line(command, "no runs")
    elif len(outputs) > len(printed_outputs):
        printing.write_line(
            command,
            f"More than {counted(len(printed_outputs), 'run matches', 'runs match')}. Use --limit N or a filter to see others.",
        )


def _run_outputs(rows: Iterator[Any], actor: Actor) -> Iterator[RunListed]:
    while page := list(islice(rows, _PAGE_SIZE)):
        # One set of reads for a whole page, instead of one for each run.
        run_summaries = summarize_runs(page, redactor_of=lambda run: redactor_for(actor.user, run))
        yield from (run_output(run, run_summaries[run.pk]) for run in page)


# --- versions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOpen:
    """The open runs of one version of a workflow in one queue.

    ``open`` is their number, and ``oldest`` the time at which the oldest one was created. ``missing`` says why no live
    worker can take them, and is null if one can. ``here`` is true if this process has the code.
    """

    workflow: str
    version: int
    queue: str
    open: int
    oldest: str
    here: bool
    missing: str | None


@subcommand("versions", output=Sequence[VersionOpen])
def list_versions(
    command: BaseCommand,
    *,
    flows: Annotated[list[str], Argument("Only these workflows.", "FLOW")],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """List the versions of workflows that open runs use, and which workers have their code."""
    # There is one query for the runs, and one for the workers.
    alias = get_settings().DATABASE
    # Without the default order, which would be added to GROUP BY.
    runs = command_arguments.visible_runs(actor).exclude(status__in=CLOSED_STATUSES).order_by()
    if flows:
        runs = runs.filter(workflow__in=flows)
    rows = runs.values("workflow", "version", "queue").annotate(open=Count("pk"), oldest=Min("created_at"))
    workers = live_workers(alias=alias)
    local_versions = workflows.registered_versions()
    outputs = [
        VersionOpen(
            workflow=row["workflow"],
            version=row["version"],
            queue=row["queue"],
            open=row["open"],
            oldest=row["oldest"].isoformat(),
            here=row["version"] in local_versions.get(row["workflow"], ()),
            missing=workers.missing_worker(workflow=row["workflow"], version=row["version"], queue=row["queue"]),
        )
        for row in sorted(rows, key=lambda row: (row["workflow"], row["version"], row["queue"]))
    ]
    if json:
        printing.print_json(command, outputs)
        return
    for version_output in outputs:
        code_text = "code here" if version_output.here else "no code here"
        wait_text = ""
        if version_output.missing:
            wait_text = f"; waiting for {version_output.missing}"
        text = f"{version_output.workflow} version {version_output.version}: {version_output.open} open, oldest {version_output.oldest}, {code_text}{wait_text}"
        write_line(command, escape(text))
    if not outputs:
        write_line(command, "no open runs")


# --- export -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWritten:
    """A file that ``temporalex export`` has written, with the history of one run; ``events`` is their number."""

    id: str
    run_id: str
    workflow: str
    events: int
    path: str


@subcommand("export", output=HistoryWritten)
def export(
    command: BaseCommand,
    *,
    ids: Annotated[list[str], Argument("Business ids (all their runs) or run ids.", "ID")],
    workflow: Annotated[str | None, Option("All runs of this workflow.", "NAME")],
    open: Annotated[bool, Option("Only open runs.")],
    actor: ActorOption,
    output: Annotated[str, Option("Folder for the files (default: the current folder).", "FOLDER")] = ".",
    json: JsonOption,
) -> None:
    """Write histories as JSON files, one for each run, for `temporalex replay --file` and for tests.

    The files contain the payloads in plain text.
    """
    # One history is in memory at a time, and a file that exists is replaced. A run on a Temporal cluster whose history
    # cannot be read is skipped and named.
    if not ids and workflow is None:
        raise printing.usage_error("no runs are selected", "Give business ids, run ids, or --workflow NAME.")
    runs = command_arguments.visible_runs(actor).filter(started_at__isnull=False)
    if ids:
        runs = runs.filter(_id_condition(ids))
    if workflow is not None:
        runs = runs.filter(workflow=workflow)
    if open:
        runs = runs.exclude(status__in=CLOSED_STATUSES)
    folder, storage, count, skipped = Path(output), DjangoStorage(), 0, 0
    total = 0
    if printing.is_watched(command, lines=json):
        total = runs.count()
    with printing.progress(command, lines=json) as report:
        # Runs are read by pages of ids, so an export of any size takes little memory.
        for row in iterate_pages(runs.defer(*UNREAD_COLUMNS).select_related("chain"), by="id"):
            try:
                history_output = _write_history(row, folder, _redactor(actor.user, row), storage)
            except QueryFailed as exc:
                skipped += 1
                command.stderr.write(printing.escape(f"skipped: {exc}"))
                continue
            count += 1
            report(count, total)
            if json:
                printing.print_json_line(command, history_output)
    if not count and not skipped:
        text = printing.with_next_step("no matching run has a history", "List the runs: manage.py temporalex list")
        raise CommandError(text, returncode=printing.NOT_FOUND)
    if not json:
        printing.write_line(command, printing.escape(f"{counted(count, 'history', 'histories')} written to {folder}"))
    if skipped:
        raise CommandError(
            f"{skipped:,} of {counted(count + skipped, 'history', 'histories')} could not be read, and "
            f"{'was' if skipped == 1 else 'were'} not written"
        )


#: O_NOFOLLOW: other users who may write to the folder could place a link there, and choose which file is overwritten.
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def _write_history(row: Instance, folder: Path, redactor: Redactor, storage: DjangoStorage) -> HistoryWritten:
    path = folder / f"{_safe_file_name(row.workflow)}-{row.pk}.json"
    target = RunTarget.of(row)
    events = [redactor.redact_event(event) for event in read_history(target, storage=storage)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Payloads may be confidential, so only the owner can read the file.
        with os.fdopen(os.open(path, _NEW_FILE, 0o600), "w") as file:
            file.write(replay.dump(events))
    except OSError as exc:
        raise printing.usage_error(
            f"{printing.escape(path)} cannot be written: {exc.strerror}", "Choose another --output."
        ) from exc
    return HistoryWritten(
        id=row.workflow_id, run_id=str(row.pk), workflow=row.workflow, events=len(events), path=str(path)
    )


def _redactor(user: Person | None, row: Instance) -> Redactor:
    if user is None:
        return UNREDACTED
    return redactor_for(user, row).require_payloads(user)


def _id_condition(ids: Sequence[str]) -> Q:
    """Return the condition for run ids, or business ids. A text is a run id only if a run has it."""
    # A business id may look like a UUID as well, so it counts as a run id only if such a run exists.
    texts_by_id = {run_id: text for text in ids if (run_id := parse_run_id(text)) is not None}
    existing_ids = (
        Instance.objects.using(get_settings().DATABASE).filter(pk__in=texts_by_id).values_list("pk", flat=True)
    )
    matched_texts = {texts_by_id[run_id] for run_id in existing_ids}
    return Q(pk__in=texts_by_id) | Q(workflow_id__in=[text for text in ids if text not in matched_texts])


def _safe_file_name(name: str) -> str:
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in name)
