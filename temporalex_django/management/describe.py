"""Say where a run stands, what it waits for and what it takes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import is_unfiltered, redactor_for
from temporalex_django.actions import audit
from temporalex_django.actions.base import storage
from temporalex_django.actions.describe import describe
from temporalex_django.actions.summary import summarize_run
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.management import as_user as people
from temporalex_django.management import given, printing
from temporalex_django.management.listing import UNREAD
from temporalex_django.management.outputs import RunDescribed, where
from temporalex_django.models import Instance

output = RunDescribed


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    given.add_run(parser)


def handle(command: BaseCommand, *, run: str, workflow: str | None, as_user: str | None, json: bool, **_: Any) -> None:
    """Nothing is written but, for a user who sees payloads, that he read it."""
    by = people.actor(as_user)
    target = given.looked_at(run, workflow, by=by)
    there = Instance.objects.using(storage().alias).defer(*UNREAD).select_related("chain")
    row = there.filter(pk=target.selected_run_id).first()
    if row is None:  # deleted since it was found
        raise WorkflowNotFound(f"{target.workflow} {target.workflow_id} is gone")
    view = redactor_for(by.user, row)
    if view.shows_payloads:
        audit.record_read(by, row)
    found = RunDescribed(
        run=describe(target, storage=storage(), run=row, redactor=view),
        queue=row.queue,
        created_at=row.created_at,
        parent_run_id=_parent(row, people.runs_of(by)),
        summary=where(summarize_run(row, redactor=view)),
    )
    if json:
        printing.document(command, found)
        return
    printing.table(command, ("", ""), [(name, text) for name, text in _fields(found) if text])


def _parent(row: Instance, there: QuerySet[Instance]) -> str | None:
    """The run that started it, if it is among those that there are for the user."""
    parent = row.parent_run_id
    if parent is None or not (is_unfiltered(there) or there.filter(pk=parent).exists()):
        return None
    return str(parent)


def _fields(found: RunDescribed) -> list[tuple[str, object]]:
    """What people read, in this order; what is empty is left out."""
    run = found.run
    return [
        ("Run", run.id),
        ("Stands", found.summary.text),
        ("Class", f"{run.workflow} (version {run.version})"),
        ("Status", run.status),
        ("Run id", run.run_id),
        ("Parent", found.parent_run_id or ""),
        ("Queue", found.queue),
        ("Created", printing.moment(found.created_at)),
        ("Started", printing.moment(run.started_at)),
        ("Closed", printing.moment(run.closed_at)),
        ("Waits for", ", ".join(run.waiting_for)),
        ("Search attributes", ", ".join(f"{name}={value}" for name, value in run.search_attributes.items())),
        ("Tags", ", ".join(run.tags)),
        ("Signals", ", ".join(run.accepts.get("signals", ()))),
        ("Updates", ", ".join(run.accepts.get("updates", ()))),
        *(
            (f"Activity {one.seq}", f"{one.activity}: {one.state}, attempt {one.attempt}, queue {one.queue}")
            for one in run.activities
        ),
        *((f"Failed signal {one.id}", f"{one.name}: {one.type}: {one.message}") for one in run.failed_messages),
    ]
