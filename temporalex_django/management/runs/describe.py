"""Show the state of a run, what it is waiting for, and the messages that it accepts."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import is_unfiltered, redactor_for
from temporalex_django.authoring.backend import EndedAttempt
from temporalex_django.authoring.run_columns import ColumnType, Place, RunColumn, columns_shown_in
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.management import arguments, outputs
from temporalex_django.management import arguments as people
from temporalex_django.management.outputs import RunDescribed, status_text, summary_output
from temporalex_django.management.runs.list_runs import DEFERRED_COLUMNS
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.base import storage
from temporalex_django.operations.read.describe import describe
from temporalex_django.operations.read.run_filters import annotate_attempts
from temporalex_django.operations.read.run_summary import summarize_run


class DescribeCommand:
    """Show the state of a run, what it is waiting for, and the messages that it accepts."""

    output: ClassVar[Any] = RunDescribed

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex describe`` to its parser."""
        arguments.add_run_arguments(parser)

    def handle(
        self, command: BaseCommand, *, run: str, workflow: str | None, as_user: str | None, json: bool, **_: Any
    ) -> None:
        """Print the description of a run.

        It writes nothing but, for a user who sees payloads, an audit row about the read.
        """
        actor = people.resolve_actor(as_user)
        target = arguments.find_visible_target(run, workflow, actor=actor)
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
            parent_run_id=_visible_parent_id(row, people.visible_runs(actor)),
            summary=summary_output(summarize_run(row, redactor=redactor)),
        )
        if json:
            outputs.print_json(command, run_output)
            return
        outputs.print_table(command, ("", ""), [(name, text) for name, text in _text_rows(run_output) if text])


def _visible_parent_id(row: Instance, visible_runs: QuerySet[Instance]) -> str | None:
    """Return the run id of the parent of the run, or None if it has none or the parent is not in ``visible_runs``."""
    parent = row.parent_run_id
    if parent is None or not (is_unfiltered(visible_runs) or visible_runs.filter(pk=parent).exists()):
        return None
    return str(parent)


def _text_rows(run_output: RunDescribed) -> list[tuple[str, object]]:
    """Return pairs of a label and a value for the text output; the caller leaves out those without a value."""
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
    """Return the times, the worker and the error of an attempt that failed, timed out or was lost."""
    begin_text = "" if attempt.began_at is None else f"{outputs.format_local_time(attempt.began_at)} to "
    place = f" on {attempt.worker}" if attempt.worker else ""
    error = f"{attempt.type}: {attempt.message}" if attempt.message else attempt.type
    return f"{attempt.activity}: {begin_text}{outputs.format_local_time(attempt.ended_at)}{place}: {error}"


def _format_column(column: RunColumn, run_output: RunDescribed) -> str:
    """Return the value that a column has in ``run_output`` as text; empty if it has none."""
    run: object = run_output.run
    column_value: Any = getattr(run if hasattr(run, column.output_name) else run_output, column.output_name)
    match column.type:
        case ColumnType.TIME:
            return outputs.format_local_time(column_value)
        case ColumnType.TEXTS:
            return ", ".join(column_value)
        case ColumnType.ATTRIBUTES:
            return ", ".join(f"{name}={attribute}" for name, attribute in column_value.items())
        case _:
            if column_value is None:
                return ""
            return str(column_value)
