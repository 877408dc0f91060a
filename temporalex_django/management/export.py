"""Write histories as JSON files, one a run, for `temporalex replay --file` and for tests.

The payloads are in them as they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q

from temporalex_django.access import redactor_for
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.conf import get_settings
from temporalex_django.core.history import json_file
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.db.querying import iterate_pages
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.lookup import parse_run_id
from temporalex_django.management import as_user as people
from temporalex_django.management import exits, printing
from temporalex_django.models import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWritten:
    """A file that ``export`` has written, a line each."""

    id: str
    run_id: str
    workflow: str
    events: int
    path: str


output = HistoryWritten


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="ids of workflows (all their runs) or of runs")
    parser.add_argument("--workflow", metavar="NAME", help="every run of this workflow")
    parser.add_argument("--open", action="store_true", help="only runs that are open")
    people.add_argument(parser)
    parser.add_argument("--output", metavar="FOLDER", default=".", help="where the files go (default: here)")
    printing.add_json(parser)


def handle(
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
    """A file that is there already is replaced. Runs are read one by one.

    Raises ``CommandError`` when nothing matches, and for a user who may not see payloads.
    """
    if not ids and workflow is None:
        raise exits.misused("it is not said which runs", "Give ids of workflows or runs, or --workflow NAME.")
    by = people.actor(as_user)
    runs = people.runs_of(by).filter(started_at__isnull=False)
    if ids:
        runs = runs.filter(_named(ids))
    if workflow is not None:
        runs = runs.filter(workflow=workflow)
    if open:
        runs = runs.exclude(status__in=CLOSED_STATUSES)
    folder, storage, count = Path(output), DjangoStorage(), 0
    total = runs.count() if printing.watched(command, lines=json) else 0
    with printing.progress(command, lines=json) as tell:
        for row in iterate_pages(runs.only("workflow", "workflow_id"), by="id"):
            written = _written(row, folder, UNREDACTED if by.user is None else _view(by.user, row), storage)
            count += 1
            tell(count, total)
            if json:
                printing.record(command, written)
    if not count:
        text = exits.sentence("no run with a history matches", "Look for it: manage.py temporalex list")
        raise CommandError(text, returncode=exits.NOT_FOUND)
    if not json:
        printing.write(
            command, printing.safe(f"{count:,} {'history' if count == 1 else 'histories'} written to {folder}")
        )


#: People who may write to the folder must not choose, by a link, which file is overwritten.
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def _written(row: Instance, folder: Path, view: Redactor, storage: DjangoStorage) -> HistoryWritten:
    path = folder / f"{_safe(row.workflow)}-{row.pk}.json"
    events = [view.redact_event(event) for event in storage.histories({row.pk: 0})[row.pk]]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, _NEW_FILE, 0o600), "w") as file:
            file.write(json_file.dump(events))
    except OSError as exc:
        raise exits.misused(
            f"{printing.safe(path)} cannot be written: {exc.strerror}", "Name another --output."
        ) from exc
    return HistoryWritten(
        id=row.workflow_id, run_id=str(row.pk), workflow=row.workflow, events=len(events), path=str(path)
    )


def _view(user: Person, row: Instance) -> Redactor:
    return redactor_for(user, row).require_payloads(user)


def _named(ids: Sequence[str]) -> Q:
    """Runs by their ids, and what else is no run's id by business id: all runs of it, of whatever workflow."""
    looks = {run_id: text for text in ids if (run_id := parse_run_id(text)) is not None}
    found = Instance.objects.using(get_settings().DATABASE).filter(pk__in=looks).values_list("pk", flat=True)
    taken = {looks[run_id] for run_id in found}
    return Q(pk__in=looks) | Q(workflow_id__in=[text for text in ids if text not in taken])


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
