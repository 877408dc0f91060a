"""Drain a worker from any machine: it finishes its work, accepts nothing new, and keeps running until you stop it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import arguments as people
from temporalex_django.management import outputs
from temporalex_django.operations.fleet.switches import DrainWorker, UndrainWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrained:
    """The worker on which ``drain`` or ``undrain`` acted.

    ``drained_at`` is the time since which it accepts nothing new; null if it accepts work.
    """

    worker: str
    host: str
    pid: int
    activities: int
    drained_at: datetime | None


class DrainCommand:
    """The commands ``temporalex drain WORKER`` and ``temporalex undrain WORKER``."""

    output: ClassVar[Any] = WorkerDrained

    def __init__(self, action: type[DrainWorker], description: str, done_text: str) -> None:
        self.action = action
        # The docstring of a subcommand is its help text.
        self.__doc__ = description
        self.done_text = done_text

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments WORKER, ``--reason``, ``--as-user`` and ``--json`` to the parser."""
        parser.add_argument(
            "worker", metavar="WORKER", help="Id of the worker, as shown by health, GET workers/ and the admin."
        )
        parser.add_argument("--reason", default="", metavar="TEXT", help="Reason, recorded in the audit log.")
        people.add_user_argument(parser)
        outputs.add_json_argument(parser)

    def handle(
        self, command: BaseCommand, *, worker: str, reason: str, as_user: str | None, json: bool, **_: Any
    ) -> None:
        """Drain or undrain the worker and print its row. One UPDATE, and one audit row."""
        row = self.action(worker, reason=reason, by=people.resolve_actor(as_user)).execute()
        if json:
            worker_output = WorkerDrained(
                worker=str(row.pk), host=row.host, pid=row.pid, activities=row.activities, drained_at=row.drained_at
            )
            outputs.print_json(command, worker_output)
        else:
            outputs.write_line(command, f"{outputs.escape(row)}: {self.done_text}")


COMMANDS = {
    "drain": DrainCommand(
        DrainWorker,
        "Drain a worker from any machine: it finishes its work, accepts nothing new, and keeps running until you stop it.",
        "it stops accepting work within a moment; undrain lets it accept work again",
    ),
    "undrain": DrainCommand(
        UndrainWorker, "Let a drained worker accept work again.", "it accepts work again within a moment"
    ),
}
