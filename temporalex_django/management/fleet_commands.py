"""Commands for the fleet: switches, drains, outgoing messages, migrations, and the rows of a cluster's runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.access import Operation, require_access
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import counted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.errors import UnknownWorkflow
from temporalex_django.graph.steps import key_of, name_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.models import SwitchedOff
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import (
    DropOutgoing,
    MirrorSynced,
    OutgoingMessage,
    SendAgain,
    SyncMirror,
    describe_outgoing,
    outgoing_messages,
)
from temporalex_django.operations.fleet.switches import (
    DrainWorker,
    Switch,
    SwitchOff,
    SwitchOn,
    UndrainWorker,
    active_switches,
    redact_holds,
)
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.operations.runs.control import Move, MoveOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsMoved:
    """The result of ``temporalex migrate``: for each run, if it moved to the new version and, if not, why not.

    With ``dry_run``, nothing was changed.
    """

    dry_run: bool
    runs: Sequence[MoveOutcome]


class MigrateCommand:
    """Move open runs to another version of their class. This does not migrate the database.

    For each run, print whether it moves, and if not, why not.

    `temporalex migrate FLOW --from 1 --to 2 [--map OldStep=NewStep] [--dry-run]`.

    Name steps by their classes or by their keys. `--map Old=` drops the data of a step that has ended.
    """

    output: ClassVar[Any] = RunsMoved

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex migrate`` to its parser."""
        parser.add_argument("flow", metavar="FLOW", help="Name of the workflow.")
        parser.add_argument(
            "--from", dest="old", type=int, required=True, metavar="VERSION", help="Current version of the runs."
        )
        parser.add_argument("--to", dest="new", type=int, required=True, metavar="VERSION", help="New version.")
        parser.add_argument(
            "--map",
            dest="names",
            action="append",
            default=[],
            metavar="OLD=NEW",
            help="A renamed step (can be repeated).",
        )
        command_arguments.add_user_argument(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="Report what would happen, without changing anything."
        )
        parser.add_argument(
            "--batch", type=int, default=500, metavar="N", help="Runs to read at a time (default: 500)."
        )
        printing.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        flow: str,
        old: int,
        new: int,
        names: Sequence[str],
        dry_run: bool,
        batch: int,
        json: bool,
        as_user: str | None,
        **_: Any,
    ) -> None:
        """Move the runs, each in a transaction of its own, and print the outcome of each.

        Raises ``CommandError`` if this process lacks a version, and if a run was not moved.
        """
        if batch < 1:
            raise printing.usage_error(f"--batch {batch} is too small", "Give a number of at least 1.")
        old_class, new_class = _resolve_class(flow, old), _resolve_class(flow, new)
        # Both classes and the mapping are checked before the first run is moved.
        mapping = _parse_mapping(names, old_class, new_class)
        verdicts: list[MoveOutcome] = []
        actor = command_arguments.resolve_actor(as_user)
        runs = (
            command_arguments.visible_runs(actor).exclude(status__in=CLOSED_STATUSES).filter(workflow=flow, version=old)
        )
        # Counting costs a scan, which only a progress bar needs.
        total = 0
        if printing.is_watched(command, lines=not json):
            total = runs.count()
        with printing.progress(command, lines=not json) as report:
            for done, run in enumerate(iterate_pages(runs.only("chain_id"), by="id", size=batch), 1):
                target = find_chain(run.chain_id, storage=storage())
                report(done, total)
                # Read again by its chain: the run may have ended, or moved, since the page was read.
                if target.version != old or target.closed:
                    continue
                verdict = Move(target, version=new, names=mapping, rehearse=dry_run, by=actor).execute()
                verdicts.append(verdict)
                if not json:
                    result_text = (
                        ("would move" if dry_run else "moved") if verdict.moves else f"not moved: {verdict.why}"
                    )
                    printing.write_line(command, printing.escape(f"{verdict.workflow_id}  {result_text}"))
        unmoved = [verdict for verdict in verdicts if not verdict.moves]
        if json:
            printing.print_json(command, RunsMoved(dry_run=dry_run, runs=verdicts))
        else:
            moved_text = f"{len(verdicts) - len(unmoved)} of {counted(len(verdicts), 'run', 'runs')} {'would move' if dry_run else 'moved'}"
            printing.write_line(command, moved_text)
        # A pipeline must notice that the old version is still in use.
        if unmoved:
            text = printing.with_next_step(
                f"{counted(len(unmoved), 'run stays', 'runs stay')} at version {old}", "The reasons are listed above."
            )
            raise CommandError(text, returncode=printing.FINDINGS)


def _resolve_class(flow: str, version: int) -> type[Workflow]:
    """Return the class of a version. Raises ``UnknownWorkflow`` if the workflow has no versions."""
    versioned_class = workflows.find(flow)
    if not versioned_class.is_versioned():
        raise UnknownWorkflow(f"{flow} is not a versioned workflow: all its runs use one class")
    return versioned_class.resolve_version(version)[1]


def _parse_mapping(pairs: Sequence[str], old_class: type[Workflow], new_class: type[Workflow]) -> dict[str, str]:
    """Return new step keys by old ones; an empty one drops the data of the step. Raises ``CommandError``."""
    mapping: dict[str, str] = {}
    for text in pairs:
        old, equals, new = text.partition("=")
        if not equals or not old:
            raise printing.usage_error(
                f"--map {printing.escape(text)} is not an OLD=NEW pair", "Write OldStep=NewStep."
            )
        mapping[_step_key(old, old_class)] = _step_key(new, new_class) if new else ""
    return mapping


def _step_key(name: str, cls: type[Workflow]) -> str:
    """Return the key of a step by its class name or key. Raises ``CommandError`` for an unknown one."""
    steps = {}
    if issubclass(cls, GraphWorkflow):
        steps = cls.graph()
    for step in steps:
        if name in (key_of(step), name_of(step)):
            return key_of(step)
    step_names = ", ".join(map(name_of, steps)) or "none"
    raise printing.usage_error(
        f"--map: {cls.__name__} has no step {printing.escape(repr(name))}", f"Its steps: {step_names}."
    )


# --- drain ------------------------------------------------------------------------------------------------------------
#
# Drain a worker from any machine: it finishes its work, accepts nothing new, and keeps running until you stop it.


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
        command_arguments.add_user_argument(parser)
        printing.add_json_argument(parser)

    def handle(
        self, command: BaseCommand, *, worker: str, reason: str, as_user: str | None, json: bool, **_: Any
    ) -> None:
        """Drain or undrain the worker and print its row. One UPDATE, and one audit row."""
        row = self.action(worker, reason=reason, by=command_arguments.resolve_actor(as_user)).execute()
        if json:
            worker_output = WorkerDrained(
                worker=str(row.pk), host=row.host, pid=row.pid, activities=row.activities, drained_at=row.drained_at
            )
            printing.print_json(command, worker_output)
        else:
            printing.write_line(command, f"{printing.escape(row)}: {self.done_text}")


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


# --- switches ---------------------------------------------------------------------------------------------------------


_VIEW_SWITCHES = Operation(action="view", permission=f"{APP}.view_switchedoff")


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
            command_arguments.add_user_argument(subparser)
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
        actor = command_arguments.resolve_actor(as_user)
        if what == "show":
            alias = storage().alias
            require_access(actor.user, _VIEW_SWITCHES, alias=alias)
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
    """Return the reason of a switch, after the key and the end of a hold."""
    if switch.until is None:
        return switch.reason
    parts = [f"key {switch.key}" if switch.key else "", f"until {switch.until:%Y-%m-%d %H:%M}", switch.reason]
    return ", ".join(part for part in parts if part)


def _switch_output(row: SwitchedOff) -> Switch:
    return Switch(
        kind=row.kind, name=row.name, since=row.since, by=row.by, reason=row.reason, key=row.key, until=row.until
    )


# --- sync -------------------------------------------------------------------------------------------------------------


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
        command_arguments.add_user_argument(parser)
        printing.add_json_argument(parser)

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
        actor = command_arguments.resolve_actor(as_user)
        target = None if run is None else command_arguments.find_visible_target(run, workflow, actor=actor)
        done = SyncMirror(target, by=actor).execute()
        if json:
            printing.print_json(command, done)
        else:
            printing.write_line(
                command,
                f"compared {counted(done.compared, 'run', 'runs')} on the cluster: wrote the rows of {done.written}, "
                f"and closed those of {done.closed}",
            )
            if target is not None and target.closed and not done.compared:
                printing.write_line(command, "The cluster no longer has this run. Its rows stay as they are.")


# --- outbox -----------------------------------------------------------------------------------------------------------


_VIEW_OUTBOX = Operation(action="view", permission=f"{APP}.view_outbox")
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
            command_arguments.add_user_argument(subparser)
            printing.add_json_argument(subparser)

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
        actor = command_arguments.resolve_actor(as_user)
        if action == "show":
            alias = storage().alias
            require_access(actor.user, _VIEW_OUTBOX, alias=alias)
            rows = describe_outgoing([*outgoing_messages(alias, actor.user)[:_MAX_ROWS]], actor.user)
            if json:
                printing.print_json(command, rows)
            elif not rows:
                printing.write_line(command, "no messages are waiting to be sent")
            for row in [] if json else rows:
                printing.write_line(command, _line(row))
            return
        done = (SendAgain if action == "again" else DropOutgoing)(message, reason=reason, by=actor).execute()
        if json:
            printing.print_json(command, done)
        else:
            printing.write_line(
                command, f"{done.kind} {done.id}: {'it is sent again' if action == 'again' else 'dropped'}"
            )


def _line(message: OutgoingMessage) -> str:
    run = f" of {message.workflow} {message.workflow_id}" if message.workflow else ""
    problem = f": {message.code}: {message.error}" if message.code else f": {message.error}" if message.error else ""
    state = "dead letter" if message.is_dead else f"{message.tries} tries"
    return f"{message.id}  {message.kind}{run} ({state}){printing.escape(problem)}"
