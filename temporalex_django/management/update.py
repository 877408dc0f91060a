"""Send an update to a run and print what it answers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.actions.update import SendUpdate
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.management import as_user as people
from temporalex_django.management import given, printing
from temporalex_django.management.outputs import UpdateAnswered, named

output = UpdateAnswered


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    given.add_run(parser)
    parser.add_argument("name", metavar="NAME", help="of the update")
    parser.add_argument(
        "--args", dest="arguments", metavar="JSON", help="what its handler is given; - reads it from the standard input"
    )
    parser.add_argument("--message-id", metavar="ID", help="sent again with it, it gives the first answer")
    parser.add_argument(
        "--wait", type=float, default=ANSWER_TIMEOUT, metavar="SECONDS", help=f"(default: {ANSWER_TIMEOUT:g})"
    )


def handle(
    command: BaseCommand,
    *,
    run: str,
    workflow: str | None,
    name: str,
    arguments: str | None,
    message_id: str | None,
    wait: float,
    as_user: str | None,
    json: bool,
    **_: Any,
) -> None:
    """In this process, where it has the class and the run is free; else a worker answers."""
    by, body = people.actor(as_user), given.json_of(arguments, option="--args")
    target = given.found(run, workflow, by=by)
    result = SendUpdate(target, update=name, args=body, id=message_id, timeout=wait, exact=True, by=by).execute()
    if json:
        printing.document(command, UpdateAnswered(**named(target), update=name, result=result))
    else:
        printing.document(command, result)
