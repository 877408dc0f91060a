"""Give a graph the event that one of its steps is waiting for."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import arguments, outputs
from temporalex_django.management import arguments as people
from temporalex_django.management.outputs import GraphResumed, run_fields
from temporalex_django.operations.runs.resume import Resume


class ResumeCommand:
    """Give a graph the event that one of its steps is waiting for."""

    output: ClassVar[Any] = GraphResumed

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex resume`` to its parser."""
        arguments.add_run_arguments(parser)
        parser.add_argument("event", metavar="EVENT", help="Name of the event, such as approved.")
        parser.add_argument("--step", metavar="KEY", help="Key of the step, if several steps wait for the event.")
        parser.add_argument(
            "--data", metavar="JSON", help="Data of the event, as JSON; use - to read it from standard input."
        )

    def handle(
        self,
        command: BaseCommand,
        *,
        run: str,
        workflow: str | None,
        event: str,
        step: str | None,
        data: str | None,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Give the event to the waiting step of the graph.

        A step with a role accepts it only from a user who has that role, so it needs ``--as-user``.
        """
        actor, event_data = people.resolve_actor(as_user), arguments.parse_json(data, option="--data")
        target = arguments.find_target(run, workflow, actor=actor)
        # ``step`` may be left out when a single step waits for the event; the run decides that under its lock.
        Resume(target, event=event, step=step, data=event_data, by=actor).execute()
        if json:
            outputs.print_json(command, GraphResumed(**run_fields(target), event=event))
        else:
            outputs.write_line(command, f"{target.workflow} {target.workflow_id} continues with {event}")
