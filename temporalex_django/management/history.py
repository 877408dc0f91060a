"""Print what happened in a run: one row a thing; with --json every event, a line each."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from temporalex_django.access import redactor_for
from temporalex_django.actions import audit, timeline
from temporalex_django.actions.base import storage
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.db.querying import iterate_pages
from temporalex_django.management import as_user as people
from temporalex_django.management import given, printing
from temporalex_django.management.outputs import EventPrinted
from temporalex_django.models import HistoryEvent
from temporalex_django.models.fields import UnreadablePayload

output = EventPrinted


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    given.add_run(parser)


def handle(command: BaseCommand, *, run: str, workflow: str | None, as_user: str | None, json: bool, **_: Any) -> None:
    """Nothing is written but, for a user who sees payloads, that he read it. JSON is read in pages of 500 events."""
    by = people.actor(as_user)
    target = given.looked_at(run, workflow, by=by)
    view = redactor_for(by.user, target.row)
    if view.shows_payloads:
        audit.record_read(by, target.row)
    if json:
        events = HistoryEvent.objects.using(storage().alias).filter(run_id=target.selected_run_id)
        for event in iterate_pages(events, by="seq"):
            printing.record(command, _printed(event, view))
        return
    now, rows = timezone.now(), timeline.rows_of_run(target.selected_run_id, redactor=view, storage=storage())
    cells = [
        (one.number, one.activation, printing.moment(one.began), one.text(now=now, titles=timeline.titles_of(one)))
        for one in rows
    ]
    if cells:
        printing.table(command, ("#", "ACTIVATION", "WHEN", "WHAT"), cells)
    else:
        printing.write(command, "no history yet: no worker has taken it up")


def _printed(event: HistoryEvent, view: Redactor) -> EventPrinted:
    """What the codec cannot read is shown as such."""
    data = event.data
    shown = (
        view.redact_payload(repr(data))
        if isinstance(data, UnreadablePayload)
        else view.redact_attributes(data, kind=event.kind)
    )
    return EventPrinted(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=shown)
