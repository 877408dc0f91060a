"""Ask a run, from the state that it has published."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.actions.query import Query
from temporalex_django.management import as_user as people
from temporalex_django.management import given, printing
from temporalex_django.management.outputs import QueryAnswered, named

output = QueryAnswered


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    given.add_run(parser)
    parser.add_argument("name", metavar="NAME", help="of the query; __describe and __accepts are there for every class")
    parser.add_argument(
        "--args", dest="arguments", metavar="JSON", help="what it is asked with; - reads it from the standard input"
    )


def handle(
    command: BaseCommand,
    *,
    run: str,
    workflow: str | None,
    name: str,
    arguments: str | None,
    as_user: str | None,
    json: bool,
    **_: Any,
) -> None:
    """Messages that no turn has read are delivered here first."""
    by, asked = people.actor(as_user), given.json_of(arguments, option="--args")
    target = given.found(run, workflow, by=by)
    result = Query(target, query=name, args=asked, by=by).execute()
    if json:
        printing.document(command, QueryAnswered(**named(target), query=name, result=result))
    else:
        printing.document(command, result)
