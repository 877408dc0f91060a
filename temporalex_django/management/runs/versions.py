"""List the versions of workflows that open runs use, and which workers have their code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Count, Min

from temporalex_django.authoring import workflow as workflows
from temporalex_django.conf import get_settings
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.management import arguments as people
from temporalex_django.management.outputs import add_json_argument, escape, print_json, write_line
from temporalex_django.operations.fleet.stats import live_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOpen:
    """The open runs of one version of a workflow in one queue.

    ``open`` is their number, and ``oldest`` the time at which the oldest one was created. ``missing`` says why no live
    worker can take them, and is null if one can. ``here`` is true if this process has the code.
    """

    workflow: str
    version: int
    queue: str
    open: int
    oldest: str
    here: bool
    missing: str | None


class VersionsCommand:
    """List the versions of workflows that open runs use, and which workers have their code."""

    output: ClassVar[Any] = Sequence[VersionOpen]

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex versions`` to its parser."""
        parser.add_argument("flows", nargs="*", metavar="FLOW", help="Only these workflows.")
        people.add_user_argument(parser)
        add_json_argument(parser)

    def handle(self, command: BaseCommand, *, flows: list[str], json: bool, as_user: str | None, **_: Any) -> None:
        """Print the numbers of open runs by class, version and queue: one query, and one for the workers."""
        alias = get_settings().DATABASE
        # Without the default order, which would be added to GROUP BY.
        runs = people.visible_runs(people.resolve_actor(as_user)).exclude(status__in=CLOSED_STATUSES).order_by()
        if flows:
            runs = runs.filter(workflow__in=flows)
        rows = runs.values("workflow", "version", "queue").annotate(open=Count("pk"), oldest=Min("created_at"))
        workers = live_workers(alias=alias)
        local_versions = workflows.registered_versions()
        outputs = [
            VersionOpen(
                workflow=row["workflow"],
                version=row["version"],
                queue=row["queue"],
                open=row["open"],
                oldest=row["oldest"].isoformat(),
                here=row["version"] in local_versions.get(row["workflow"], ()),
                missing=workers.missing_worker(workflow=row["workflow"], version=row["version"], queue=row["queue"]),
            )
            for row in sorted(rows, key=lambda row: (row["workflow"], row["version"], row["queue"]))
        ]
        if json:
            print_json(command, outputs)
            return
        for version_output in outputs:
            code_text = "code here" if version_output.here else "no code here"
            wait_text = ""
            if version_output.missing:
                wait_text = f"; waiting for {version_output.missing}"
            text = f"{version_output.workflow} version {version_output.version}: {version_output.open} open, oldest {version_output.oldest}, {code_text}{wait_text}"
            write_line(command, escape(text))
        if not outputs:
            write_line(command, "no open runs")
