"""Query a run: its published state gives the answer."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs
from temporalex_django.management.outputs import QueryAnswered, run_fields
from temporalex_django.operations.runs.messages import Query


class QueryCommand:
    """Query a run: its published state gives the answer."""

    output: ClassVar[Any] = QueryAnswered

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex query`` to its parser."""
        command_arguments.add_run_arguments(parser)
        parser.add_argument("name", metavar="NAME", help="Name of the query. Every class has __describe and __accepts.")
        parser.add_argument(
            "--args",
            dest="arguments",
            metavar="JSON",
            help="Arguments of the query, as JSON; use - to read them from standard input.",
        )

    def handle(
        self,
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
        """Ask the query and print its answer. Unread messages of the run are processed before, in this process."""
        actor, query_args = people.resolve_actor(as_user), command_arguments.parse_json(arguments, option="--args")
        # The action checks the permission itself: a user may query runs without the right to list them.
        target = command_arguments.find_target(run, workflow, actor=actor)
        result = Query(target, query=name, args=query_args, by=actor).execute()
        if json:
            outputs.print_json(command, QueryAnswered(**run_fields(target), query=name, result=result))
        else:
            outputs.print_json(command, result)
