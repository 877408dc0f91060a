"""Send an update to a run and print the answer."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs
from temporalex_django.management.outputs import UpdateAnswered, run_fields
from temporalex_django.operations.runs.update import SendUpdate


class UpdateCommand:
    """Send an update to a run and print the answer."""

    output: ClassVar[Any] = UpdateAnswered

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex update`` to its parser."""
        command_arguments.add_run_arguments(parser)
        parser.add_argument("name", metavar="NAME", help="Name of the update.")
        parser.add_argument(
            "--args",
            dest="arguments",
            metavar="JSON",
            help="Arguments of the update, as JSON; use - to read them from standard input.",
        )
        parser.add_argument(
            "--message-id",
            metavar="ID",
            help="Id of the message: an update that you send again with the same id returns the first answer.",
        )
        parser.add_argument(
            "--wait",
            type=float,
            default=ANSWER_TIMEOUT,
            metavar="SECONDS",
            help=f"Seconds to wait for the answer (default: {ANSWER_TIMEOUT:g}).",
        )

    def handle(
        self,
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
        """Send the update and print its answer.

        It runs in this process if the process has the class and the run is not locked; else a worker runs it (see
        decision 33).
        """
        actor, update_args = people.resolve_actor(as_user), command_arguments.parse_json(arguments, option="--args")
        target = command_arguments.find_target(run, workflow, actor=actor)
        # ``exact``: a message id that came with other arguments before is an error, and no repetition.
        result = SendUpdate(
            target, update=name, args=update_args, id=message_id, timeout=wait, exact=True, by=actor
        ).execute()
        if json:
            outputs.print_json(command, UpdateAnswered(**run_fields(target), update=name, result=result))
        else:
            outputs.print_json(command, result)
