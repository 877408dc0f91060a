"""List runs, newest first unless --order says otherwise, each with a sentence about its state.

With --json, one line of JSON for each run, without a limit and in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.access import redactor_for
from temporalex_django.authoring.run_columns import PAYLOAD_COLUMNS
from temporalex_django.authoring.run_filters import NEWEST_FIRST, ORDERS
from temporalex_django.core.names import counted
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import add_filters, apply_filters, filters_of
from temporalex_django.management.outputs import RunListed, run_output, status_text, usage_error
from temporalex_django.operations.base import Actor
from temporalex_django.operations.read.run_filters import annotate_failed_messages, iterate_runs
from temporalex_django.operations.read.run_summary import summarize_runs

DEFERRED_COLUMNS = (*PAYLOAD_COLUMNS, "metadata")
_DEFAULT_LIMIT = 50
_PAGE_SIZE = 500


class ListCommand:
    """List runs, newest first unless --order says otherwise, each with a sentence about its state.

    With --json, one line of JSON for each run, without a limit and in constant memory.
    """

    output: ClassVar[Any] = RunListed

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex list`` to its parser."""
        add_filters(parser)
        parser.add_argument(
            "--order",
            default=NEWEST_FIRST,
            metavar="ORDER",
            help=f"Order of the list: {', '.join(ORDERS)} (default: {NEWEST_FIRST}). "
            f"For descending order, use an equals sign: --order={NEWEST_FIRST}.",
        )
        parser.add_argument(
            "--limit",
            type=int,
            metavar="N",
            help=f"Print at most N runs (default: {_DEFAULT_LIMIT}; with --json, all).",
        )
        people.add_user_argument(parser)
        printing.add_json_argument(parser)

    def handle(
        self, command: BaseCommand, *, order: str, limit: int | None, as_user: str | None, json: bool, **options: Any
    ) -> None:
        """Print the runs that match the filters, in pages of 500, each with at most four statements."""
        if limit is not None and limit < 1:
            raise usage_error(f"--limit {limit} is too small", "Give a number of at least 1.")
        if order not in ORDERS:
            raise usage_error(
                f"--order {printing.escape(order)} is not a valid sort order", f"Use one of: {', '.join(ORDERS)}."
            )
        actor = people.resolve_actor(as_user)
        runs = apply_filters(people.visible_runs(actor), filters_of(options)).defer(*DEFERRED_COLUMNS)
        runs = annotate_failed_messages(runs.select_related("chain"))
        # One more than is printed, to know if there are more.
        maximum = None if json and limit is None else (limit or _DEFAULT_LIMIT) + 1
        rows = islice(iterate_runs(runs, order, size=min(_PAGE_SIZE, maximum or _PAGE_SIZE)), maximum)
        if json:
            for run_output in islice(_run_outputs(rows, actor), limit):
                printing.print_json_line(command, run_output)
            return
        outputs = list(_run_outputs(rows, actor))
        printed_outputs = outputs[: limit or _DEFAULT_LIMIT]
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
