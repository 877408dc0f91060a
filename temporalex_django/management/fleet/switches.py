"""Switch a queue, an activity or a workflow class off and on, for all workers.

`switches show` lists what is off. `switches off KIND NAME` and `switches on KIND NAME` change it; workers
notice the change within a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.access import Operation, require_access
from temporalex_django.authoring.authorization import APP
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs as printing
from temporalex_django.models import SwitchedOff
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.switches import Switch, SwitchOff, SwitchOn, active_switches, redact_holds

_VIEW_OPERATION = Operation(action="view", permission=f"{APP}.view_switchedoff")


class SwitchesCommand:
    """Switch a queue, an activity or a workflow class off and on, for all workers.

    `switches show` lists what is off. `switches off KIND NAME` and `switches on KIND NAME` change it; workers
    notice the change within a second.
    """

    output: ClassVar[Any] = Switch | Sequence[Switch]

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex switches`` to its parser."""
        parsers = parser.add_subparsers(
            dest="what", required=True, title="actions", metavar="ACTION", help="What to do."
        )
        for name, text in (
            ("show", "List what is switched off, since when, and by whom."),
            ("off", "Switch it off: workers start no new work for it, and running work finishes."),
            ("on", "Switch it on: waiting work continues."),
        ):
            subparser = parsers.add_parser(name, description=text, help=text)
            if name != "show":
                subparser.add_argument("kind", choices=SwitchedOff.Switchable.values, help="Kind of the switch.")
                subparser.add_argument(
                    "name", metavar="NAME", help="Name of the queue, the activity or the workflow class."
                )
                subparser.add_argument(
                    "--key", default="", metavar="KEY", help="Concurrency key, for a hold on only one key."
                )
                subparser.add_argument(
                    "--reason",
                    default="",
                    metavar="TEXT",
                    help="Reason, recorded in the audit log and shown to people whose runs are waiting.",
                )
            people.add_user_argument(subparser)
            printing.add_json_argument(subparser)

    def handle(
        self,
        command: BaseCommand,
        *,
        what: str,
        as_user: str | None,
        json: bool,
        kind: str = "",
        name: str = "",
        key: str = "",
        reason: str = "",
        **options: object,
    ) -> None:
        """Print the switches that are off, or turn one off or on and print it.

        A change writes one row, and one for the audit log.
        """
        del options
        actor = people.resolve_actor(as_user)
        if what == "show":
            alias = storage().alias
            require_access(actor.user, _VIEW_OPERATION, alias=alias)
            outputs = [_switch_output(row) for row in redact_holds(active_switches(alias), actor.user)]
            if json:
                printing.print_json(command, outputs)
            elif not outputs:
                printing.write_line(command, "nothing is switched off")
            else:
                cells = [
                    (switch.kind, switch.name, f"{switch.since:%Y-%m-%d %H:%M}", switch.by, _reason_cell(switch))
                    for switch in outputs
                ]
                printing.print_table(command, ("KIND", "NAME", "SINCE", "BY", "REASON"), cells)
            return
        # Switching on deletes the row, and the action returns it as it was.
        action = (SwitchOff if what == "off" else SwitchOn)(kind, name, reason=reason, key=key, by=actor)
        row = action.execute()
        if json:
            printing.print_json(command, *map(_switch_output, redact_holds([row], actor.user)))
        elif row.until is not None:
            printing.write_line(command, f"the hold of the queue {row.name} has ended")
        else:
            printing.write_line(command, f"the {row.kind} {row.name} is switched {what}")
            if action.notice:
                printing.write_line(command, action.notice)


def _reason_cell(switch: Switch) -> str:
    """Return the reason of a switch, for the table of switches that are off.

    If the switch only holds back activities until a given time, its key and its end come first.
    """
    if switch.until is None:
        return switch.reason
    parts = [f"key {switch.key}" if switch.key else "", f"until {switch.until:%Y-%m-%d %H:%M}", switch.reason]
    return ", ".join(part for part in parts if part)


def _switch_output(row: SwitchedOff) -> Switch:
    return Switch(
        kind=row.kind, name=row.name, since=row.since, by=row.by, reason=row.reason, key=row.key, until=row.until
    )
