"""Rebuild the rows of runs that are on the Temporal cluster from their histories there.

`sync` compares all runs, and `sync RUN` those of one chain. Rows that were deleted come back, and open rows whose run
the cluster no longer has are closed. Workers keep the rows up to date by themselves, so you need this command only
after restoring a backup.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.core.names import counted
from temporalex_django.management import arguments, outputs
from temporalex_django.management import arguments as people
from temporalex_django.operations.fleet.outgoing import MirrorSynced, SyncMirror


class SyncCommand:
    """Rebuild the rows of runs that are on the Temporal cluster from their histories there.

    `sync` compares all runs, and `sync RUN` those of one chain. Rows that were deleted come back, and open rows
    whose run the cluster no longer has are closed. Workers keep the rows up to date by themselves, so you need this
    command only after restoring a backup.
    """

    output: ClassVar[Any] = MirrorSynced

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex sync`` to its parser."""
        parser.add_argument("run", nargs="?", metavar="RUN", help="Business id or run id; without it, all runs.")
        parser.add_argument("--workflow", metavar="NAME", help="Workflow class, if several classes have used the id.")
        people.add_user_argument(parser)
        outputs.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        run: str | None,
        workflow: str | None,
        as_user: str | None,
        json: bool,
        **options: object,
    ) -> None:
        """Compare the rows with the cluster, rebuild those of its runs, and print how many. Writes one audit row."""
        del options
        actor = people.resolve_actor(as_user)
        target = None if run is None else arguments.find_visible_target(run, workflow, actor=actor)
        done = SyncMirror(target, by=actor).execute()
        if json:
            outputs.print_json(command, done)
        else:
            outputs.write_line(
                command,
                f"compared {counted(done.compared, 'run', 'runs')} on the cluster: wrote the rows of {done.written}, "
                f"and closed those of {done.closed}",
            )
            if target is not None and target.closed and not done.compared:
                outputs.write_line(command, "The cluster no longer has this run. Its rows stay as they are.")
