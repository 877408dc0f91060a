"""Print the history of a run, one row for each thing that happened.

With --json, every event as one line of JSON.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from temporalex_django.access import redactor_for
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.management import arguments, outputs
from temporalex_django.management import arguments as people
from temporalex_django.management.outputs import EventPrinted
from temporalex_django.models import HistoryEvent
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations import audit
from temporalex_django.operations.base import storage
from temporalex_django.operations.read import timeline
from temporalex_django.operations.read.describe import history_of


class HistoryCommand:
    """Print the history of a run, one row for each thing that happened.

    With --json, every event as one line of JSON.
    """

    output: ClassVar[Any] = EventPrinted

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex history`` to its parser."""
        arguments.add_run_arguments(parser)

    def handle(
        self, command: BaseCommand, *, run: str, workflow: str | None, as_user: str | None, json: bool, **_: Any
    ) -> None:
        """Print the history of a run: its timeline or, with ``--json``, its events, which are read in pages of 500.

        It writes nothing but, for a user who sees payloads, an audit row about the read.
        """
        actor = people.resolve_actor(as_user)
        target = arguments.find_visible_target(run, workflow, actor=actor)
        redactor = redactor_for(actor.user, target.row)
        # Recorded before anything is printed: a reader who stops the output has read it, too.
        if redactor.shows_payloads:
            audit.record_read(actor, target.row)
        if json:
            told_events = history_of(target, storage=storage())
            if told_events is not None:
                for core_event in map(redactor.redact_event, told_events):
                    event_output = EventPrinted(
                        number=core_event.number,
                        activation=core_event.activation,
                        kind=core_event.kind,
                        at=core_event.at,
                        attributes=core_event.attributes,
                    )
                    outputs.print_json_line(command, event_output)
                return
            events = HistoryEvent.objects.using(storage().alias).filter(run_id=target.selected_run_id)
            for event in iterate_pages(events, by="seq"):
                outputs.print_json_line(command, _event_output(event, redactor))
            return
        now, rows = timezone.now(), timeline.rows_of_run(target, redactor=redactor, storage=storage())
        cells = [
            (
                row.number,
                row.activation,
                outputs.format_local_time(row.began),
                row.text(now=now, titles=timeline.titles_of(row)),
            )
            for row in rows
        ]
        if cells:
            outputs.print_table(command, ("#", "ACTIVATION", "WHEN", "WHAT"), cells)
        else:
            outputs.write_line(command, "no history yet: no worker has picked up the run")


def _event_output(event: HistoryEvent, redactor: Redactor) -> EventPrinted:
    """Return the JSON output for an event, redacted by ``redactor``.

    Attributes that the codec cannot read are replaced by an error text.
    """
    attributes = event.data
    redacted = (
        redactor.redact_payload(repr(attributes))
        if isinstance(attributes, UnreadablePayload)
        else redactor.redact_attributes(attributes, kind=event.kind)
    )
    return EventPrinted(
        number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=redacted
    )
