"""List runs, newest first unless --order says otherwise, each with a sentence about where it stands.

With --json a line of JSON each, as many as there are, in flat memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.access import redactor_for
from temporalex_django.actions.base import Actor
from temporalex_django.actions.ordering import iterate_runs
from temporalex_django.actions.summary import summarize_runs
from temporalex_django.authoring.listing import NEWEST_FIRST, ORDERS
from temporalex_django.management import as_user as people
from temporalex_django.management import printing
from temporalex_django.management.exits import misused
from temporalex_django.management.narrowing import add_filters, filters_of, narrowed
from temporalex_django.management.outputs import RunListed, listed

UNREAD = ("args", "carried_messages", "published", "closing", "snapshot", "metadata")
_SHOWN = 50
_PAGE = 500


output = RunListed


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    add_filters(parser)
    parser.add_argument(
        "--order",
        default=NEWEST_FIRST,
        metavar="ORDER",
        help=f"{', '.join(ORDERS)} (default: {NEWEST_FIRST}); write --order={NEWEST_FIRST} with a minus",
    )
    parser.add_argument("--limit", type=int, metavar="N", help=f"at most so many (default: {_SHOWN}; with --json all)")
    people.add_argument(parser)
    printing.add_json(parser)


def handle(
    command: BaseCommand, *, order: str, limit: int | None, as_user: str | None, json: bool, **options: Any
) -> None:
    """Reads pages of 500 by key: at most four statements each."""
    if limit is not None and limit < 1:
        raise misused(f"--limit {limit}", "Give a number from 1.")
    if order not in ORDERS:
        raise misused(f"--order {printing.safe(order)}", f"There are: {', '.join(ORDERS)}.")
    by = people.actor(as_user)
    runs = narrowed(people.runs_of(by), filters_of(options)).defer(*UNREAD).select_related("chain")
    most = None if json and limit is None else (limit or _SHOWN) + 1
    rows = islice(iterate_runs(runs, order, size=min(_PAGE, most or _PAGE)), most)
    if json:
        for one in islice(_listed(rows, by), limit):
            printing.record(command, one)
        return
    found = list(_listed(rows, by))
    shown = found[: limit or _SHOWN]
    if shown:
        cells = [(one.id, one.workflow, one.status, one.summary.text) for one in shown]
        printing.table(command, ("ID", "WORKFLOW", "STATUS", "WHERE IT STANDS"), cells)
    if not found:
        printing.write(command, "no runs")
    elif len(found) > len(shown):
        printing.write(command, f"there are more than {len(shown):,}: --limit N, or filters")


def _listed(rows: Iterator[Any], by: Actor) -> Iterator[RunListed]:
    while page := list(islice(rows, _PAGE)):
        said = summarize_runs(page, redactor_of=lambda run: redactor_for(by.user, run))
        yield from (listed(run, said[run.pk]) for run in page)
