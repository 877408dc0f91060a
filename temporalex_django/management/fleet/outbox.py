"""List outgoing messages, send dead letters again, and drop messages.

`outbox show` lists the messages that are waiting to be sent to other systems, and those that the systems refused.
`outbox again ID` sends a dead letter again, and `outbox drop ID` drops a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.access import Operation, require_access
from temporalex_django.authoring.authorization import APP
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import (
    DropOutgoing,
    OutgoingMessage,
    SendAgain,
    describe_outgoing,
    outgoing_messages,
)

_VIEW_OPERATION = Operation(action="view", permission=f"{APP}.view_outbox")
_MAX_ROWS = 200


class OutgoingCommand:
    """List outgoing messages, send dead letters again, and drop messages.

    `outbox show` lists the messages that are waiting to be sent to other systems, and those that the systems refused.
    `outbox again ID` sends a dead letter again, and `outbox drop ID` drops a message.
    """

    output: ClassVar[Any] = OutgoingMessage | Sequence[OutgoingMessage]

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex outbox`` to its parser."""
        parsers = parser.add_subparsers(
            dest="action", required=True, title="actions", metavar="ACTION", help="What to do."
        )
        for name, text in (
            ("show", "List messages that are waiting to be sent, and dead letters."),
            ("again", "Send a dead letter again."),
            ("drop", "Drop a message, so that it is never sent."),
        ):
            subparser = parsers.add_parser(name, description=text, help=text)
            if name != "show":
                subparser.add_argument("message", metavar="ID", help="Id of the message, as printed by `outbox show`.")
                subparser.add_argument(
                    "--reason", default="", metavar="TEXT", help="Reason, recorded in the audit log."
                )
            people.add_user_argument(subparser)
            outputs.add_json_argument(subparser)

    def handle(
        self,
        command: BaseCommand,
        *,
        action: str,
        as_user: str | None,
        json: bool,
        message: str = "",
        reason: str = "",
        **options: object,
    ) -> None:
        """Print the outgoing messages, or send one again or drop it and print it. A change writes one audit row."""
        del options
        actor = people.resolve_actor(as_user)
        if action == "show":
            alias = storage().alias
            require_access(actor.user, _VIEW_OPERATION, alias=alias)
            rows = describe_outgoing([*outgoing_messages(alias, actor.user)[:_MAX_ROWS]], actor.user)
            if json:
                outputs.print_json(command, rows)
            elif not rows:
                outputs.write_line(command, "no messages are waiting to be sent")
            for row in [] if json else rows:
                outputs.write_line(command, _line(row))
            return
        done = (SendAgain if action == "again" else DropOutgoing)(message, reason=reason, by=actor).execute()
        if json:
            outputs.print_json(command, done)
        else:
            outputs.write_line(
                command, f"{done.kind} {done.id}: {'it is sent again' if action == 'again' else 'dropped'}"
            )


def _line(message: OutgoingMessage) -> str:
    """Return a message as one line: its id, its kind and run, and its problem."""
    run = f" of {message.workflow} {message.workflow_id}" if message.workflow else ""
    problem = f": {message.code}: {message.error}" if message.code else f": {message.error}" if message.error else ""
    state = "dead letter" if message.is_dead else f"{message.tries} tries"
    return f"{message.id}  {message.kind}{run} ({state}){outputs.escape(problem)}"
