"""Send a signal to a run."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import arguments, outputs
from temporalex_django.management import arguments as people
from temporalex_django.management.outputs import SignalSent, run_fields
from temporalex_django.operations.runs.messages import SendSignal


class SignalCommand:
    """Send a signal to a run."""

    output: ClassVar[Any] = SignalSent

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex signal`` to its parser."""
        arguments.add_run_arguments(parser)
        parser.add_argument("name", metavar="NAME", help="Name of the signal.")
        parser.add_argument(
            "--payload", metavar="JSON", help="Payload of the signal, as JSON; use - to read it from standard input."
        )
        parser.add_argument(
            "--message-id",
            metavar="ID",
            help="Id of the message: a signal that you send again with the same id counts only once.",
        )

    def handle(
        self,
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
        """Send the signal: one INSERT. The run reads it in its next turn."""
        actor, signal_payload = people.resolve_actor(as_user), arguments.parse_json(payload, option="--payload")
        target = arguments.find_target(run, workflow, actor=actor)
        # ``exact``: a message id that came with another payload before is an error, and no repetition.
        SendSignal(target, signal=name, payload=signal_payload, id=message_id, exact=True, by=actor).execute()
        if json:
            outputs.print_json(command, SignalSent(**run_fields(target), signal=name))
        else:
            outputs.write_line(command, f"signal {name} sent to {target.workflow} {target.workflow_id}")
