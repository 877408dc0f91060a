"""Write histories as JSON files, one for each run, for `temporalex replay --file` and for tests.

The files contain the payloads in plain text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q

from temporalex_django.access import redactor_for
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.authoring.run_columns import UNREAD_COLUMNS
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.routing import backend_of
from temporalex_django.conf import get_settings
from temporalex_django.core.history import replay
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import counted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import parse_run_id
from temporalex_django.errors import QueryFailed
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs
from temporalex_django.models import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWritten:
    """A file that ``temporalex export`` has written, with the history of one run; ``events`` is their number."""

    id: str
    run_id: str
    workflow: str
    events: int
    path: str


class ExportCommand:
    """Write histories as JSON files, one for each run, for `temporalex replay --file` and for tests.

    The files contain the payloads in plain text.
    """

    output: ClassVar[Any] = HistoryWritten

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex export`` to its parser."""
        parser.add_argument("ids", nargs="*", metavar="ID", help="Business ids (all their runs) or run ids.")
        parser.add_argument("--workflow", metavar="NAME", help="All runs of this workflow.")
        parser.add_argument("--open", action="store_true", help="Only open runs.")
        people.add_user_argument(parser)
        parser.add_argument(
            "--output", metavar="FOLDER", default=".", help="Folder for the files (default: the current folder)."
        )
        outputs.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        ids: list[str],
        workflow: str | None,
        open: bool,
        output: str,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Write the history of each run to a file, and print a line for each; a file that exists is replaced.

        One history is in memory at a time. A run on a Temporal cluster whose history cannot be read is skipped and
        named. Raises ``CommandError`` if no run matches, for a user who may not see payloads, and at the end if runs
        were skipped.
        """
        if not ids and workflow is None:
            raise outputs.usage_error("no runs are selected", "Give business ids, run ids, or --workflow NAME.")
        actor = people.resolve_actor(as_user)
        runs = people.visible_runs(actor).filter(started_at__isnull=False)
        if ids:
            runs = runs.filter(_id_condition(ids))
        if workflow is not None:
            runs = runs.filter(workflow=workflow)
        if open:
            runs = runs.exclude(status__in=CLOSED_STATUSES)
        folder, storage, count, skipped = Path(output), DjangoStorage(), 0, 0
        total = 0
        if outputs.is_watched(command, lines=json):
            total = runs.count()
        with outputs.progress(command, lines=json) as report:
            # Runs are read by pages of ids, so an export of any size takes little memory.
            for row in iterate_pages(runs.defer(*UNREAD_COLUMNS).select_related("chain"), by="id"):
                try:
                    history_output = _write_history(row, folder, _redactor(actor.user, row), storage)
                except QueryFailed as exc:
                    skipped += 1
                    command.stderr.write(outputs.escape(f"skipped: {exc}"))
                    continue
                count += 1
                report(count, total)
                if json:
                    outputs.print_json_line(command, history_output)
        if not count and not skipped:
            text = outputs.with_next_step("no matching run has a history", "List the runs: manage.py temporalex list")
            raise CommandError(text, returncode=outputs.NOT_FOUND)
        if not json:
            outputs.write_line(command, outputs.escape(f"{counted(count, 'history', 'histories')} written to {folder}"))
        if skipped:
            raise CommandError(
                f"{skipped:,} of {counted(count + skipped, 'history', 'histories')} could not be read, and "
                f"{'was' if skipped == 1 else 'were'} not written"
            )


#: O_NOFOLLOW: other users who may write to the folder could place a link there, and choose which file is overwritten.
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def _write_history(row: Instance, folder: Path, redactor: Redactor, storage: DjangoStorage) -> HistoryWritten:
    """Write the history of the run to a file in ``folder``, redacted by ``redactor``, and return the line about it."""
    path = folder / f"{_safe_file_name(row.workflow)}-{row.pk}.json"
    target = RunTarget.of(row)
    events = [redactor.redact_event(event) for event in backend_of(target).history(target, storage=storage)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Payloads may be confidential, so only the owner can read the file.
        with os.fdopen(os.open(path, _NEW_FILE, 0o600), "w") as file:
            file.write(replay.dump(events))
    except OSError as exc:
        raise outputs.usage_error(
            f"{outputs.escape(path)} cannot be written: {exc.strerror}", "Choose another --output."
        ) from exc
    return HistoryWritten(
        id=row.workflow_id, run_id=str(row.pk), workflow=row.workflow, events=len(events), path=str(path)
    )


def _redactor(user: Person | None, row: Instance) -> Redactor:
    if user is None:
        return UNREDACTED
    return redactor_for(user, row).require_payloads(user)


def _id_condition(ids: Sequence[str]) -> Q:
    """Return the condition for the runs that ``ids`` names: run ids, or business ids of any workflow.

    A text is a run id only if a run has it. A business id selects all its runs.
    """
    # A business id may look like a UUID as well, so it counts as a run id only if such a run exists.
    texts_by_id = {run_id: text for text in ids if (run_id := parse_run_id(text)) is not None}
    existing_ids = (
        Instance.objects.using(get_settings().DATABASE).filter(pk__in=texts_by_id).values_list("pk", flat=True)
    )
    matched_texts = {texts_by_id[run_id] for run_id in existing_ids}
    return Q(pk__in=texts_by_id) | Q(workflow_id__in=[text for text in ids if text not in matched_texts])


def _safe_file_name(name: str) -> str:
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in name)
