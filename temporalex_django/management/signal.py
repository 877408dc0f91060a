"""Send a signal to a run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.actions.signal import SendSignal
from temporalex_django.management import as_user as people
from temporalex_django.management import given, printing
from temporalex_django.management.outputs import SignalSent, named

output = SignalSent


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    given.add_run(parser)
    parser.add_argument("name", metavar="NAME", help="of the signal")
    parser.add_argument("--payload", metavar="JSON", help="what goes with it; - reads it from the standard input")
    parser.add_argument("--message-id", metavar="ID", help="sent again with it, it is not sent twice")


def handle(
    command: BaseCommand,
    *,
    run: str,
    workflow: str | None,
    name: str,
    payload: str | None,
    message_id: str | None,
    as_user: str | None,
    json: bool,
    **_: Any,
) -> None:
    """One INSERT: the run reads it in its next turn."""
    by, body = people.actor(as_user), given.json_of(payload, option="--payload")
    target = given.found(run, workflow, by=by)
    SendSignal(target, signal=name, payload=body, id=message_id, exact=True, by=by).execute()
    if json:
        printing.document(command, SignalSent(**named(target), signal=name))
    else:
        printing.write(command, f"signal {name} sent to {target.workflow} {target.workflow_id}")
