"""Commands for the fleet: switches, drains, outgoing messages, migrations, and the rows of a cluster's runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from django.core.management.base import BaseCommand, CommandError

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
from temporalex_django.management.arguments import (
    ActorOption,
    Argument,
    FlowArgument,
    JsonOption,
    Option,
    ReasonOption,
    WorkflowOption,
    subcommand,
)
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


@subcommand("migrate", output=RunsMoved)
def migrate_runs(
    command: BaseCommand,
    *,
    flow: FlowArgument,
    old: Annotated[int, Option("Current version of the runs.", "VERSION", name="--from", required=True)],
    new: Annotated[int, Option("New version.", "VERSION", name="--to", required=True)],
    names: Annotated[list[str] | None, Option("A renamed step (can be repeated).", "OLD=NEW", name="--map")],
    actor: ActorOption,
    dry_run: Annotated[bool, Option("Report what would happen, without changing anything.")],
    batch: Annotated[int, Option("Runs to read at a time (default: 500).", "N", is_positive=True)] = 500,
    json: JsonOption,
) -> None:
    """Move open runs to another version of their class. This does not migrate the database.

    For each run, print whether it moves, and if not, why not.

    `temporalex migrate FLOW --from 1 --to 2 [--map OldStep=NewStep] [--dry-run]`.

    Name steps by their classes or by their keys. `--map Old=` drops the data of a step that has ended.
    """
    # Each run is moved in a transaction of its own.
    old_class, new_class = _resolve_class(flow, old), _resolve_class(flow, new)
    # Both classes and the mapping are checked before the first run is moved.
    mapping = _parse_mapping(names or (), old_class, new_class)
    verdicts: list[MoveOutcome] = []
    runs = command_arguments.visible_runs(actor).exclude(status__in=CLOSED_STATUSES)
    runs = runs.filter(workflow=flow, version=old)
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
                result_text = ("would move" if dry_run else "moved") if verdict.moves else f"not moved: {verdict.why}"
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


_DONE_TEXTS: dict[type[DrainWorker], str] = {
    DrainWorker: "it stops accepting work within a moment; undrain lets it accept work again",
    UndrainWorker: "it accepts work again within a moment",
}


def _drain(
    command: BaseCommand,
    *,
    action: type[DrainWorker],
    worker: Annotated[str, Argument("Id of the worker, as shown by health, GET workers/ and the admin.", "WORKER")],
    reason: ReasonOption = "",
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Drain or undrain a worker and print its row. This is one UPDATE, and one audit row."""
    row = action(worker, reason=reason, by=actor).execute()
    worker_output = WorkerDrained(
        worker=str(row.pk), host=row.host, pid=row.pid, activities=row.activities, drained_at=row.drained_at
    )
    text = f"{printing.escape(row)}: {_DONE_TEXTS[action]}"
    printing.print_result(command, worker_output, text, as_json=json)


subcommand(
    "drain",
    output=WorkerDrained,
    description="Drain a worker from any machine: it finishes its work, accepts nothing new, "
    "and keeps running until you stop it.",
    action=DrainWorker,
)(_drain)
subcommand(
    "undrain", output=WorkerDrained, description="Let a drained worker accept work again.", action=UndrainWorker
)(_drain)


# --- switches ---------------------------------------------------------------------------------------------------------


_VIEW_SWITCHES = Operation(action="view", permission=f"{APP}.view_switchedoff")


@subcommand("switches", output=Switch | Sequence[Switch])
def switches() -> None:
    """Switch a queue, an activity or a workflow class off and on, for all workers.

    `switches show` lists what is off. `switches off KIND NAME` and `switches on KIND NAME` change it; workers
    notice the change within a second.
    """


@switches.word("show")
def show_switches(command: BaseCommand, *, actor: ActorOption, json: JsonOption) -> None:
    """List what is switched off, since when, and by whom."""
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


def _switch(
    command: BaseCommand,
    *,
    action: type[SwitchOff | SwitchOn],
    kind: Annotated[str, Argument("Kind of the switch.", choices=SwitchedOff.Switchable.values)],
    name: Annotated[str, Argument("Name of the queue, the activity or the workflow class.", "NAME")],
    key: Annotated[str, Option("Concurrency key, for a hold on only one key.", "KEY")] = "",
    reason: Annotated[
        str, Option("Reason, recorded in the audit log and shown to people whose runs are waiting.", "TEXT")
    ] = "",
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Switch off or on, and print the switch. One row is written, and one for the audit log."""
    # Switching on deletes the row, and the action returns it as it was.
    operation = action(kind, name, reason=reason, key=key, by=actor)
    row = operation.execute()
    if json:
        printing.print_json(command, *map(_switch_output, redact_holds([row], actor.user)))
    elif row.until is not None:
        printing.write_line(command, f"the hold of the queue {row.name} has ended")
    else:
        printing.write_line(command, f"the {row.kind} {row.name} is switched {'off' if action is SwitchOff else 'on'}")
        if operation.notice:
            printing.write_line(command, operation.notice)


switches.word(
    "off",
    description="Switch it off: workers start no new work for it, and running work finishes.",
    action=SwitchOff,
)(_switch)
switches.word("on", description="Switch it on: waiting work continues.", action=SwitchOn)(_switch)


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


@subcommand("sync", output=MirrorSynced)
def sync(
    command: BaseCommand,
    *,
    run: Annotated[str | None, Argument("Business id or run id; without it, all runs.", "RUN")],
    workflow: WorkflowOption,
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Rebuild the rows of runs that are on the Temporal cluster from their histories there.

    `sync` compares all runs, and `sync RUN` those of one chain. Rows that were deleted come back, and open rows
    whose run the cluster no longer has are closed. Workers keep the rows up to date by themselves, so you need this
    command only after restoring a backup.
    """
    # The command writes one audit row.
    target = None if run is None else command_arguments.find_visible_target(run, workflow, actor=actor)
    done = SyncMirror(target, by=actor).execute()
    text = (
        f"compared {counted(done.compared, 'run', 'runs')} on the cluster: wrote the rows of {done.written}, "
        f"and closed those of {done.closed}"
    )
    if target is not None and target.closed and not done.compared:
        text += "\nThe cluster no longer has this run. Its rows stay as they are."
    printing.print_result(command, done, text, as_json=json)


# --- outbox -----------------------------------------------------------------------------------------------------------


_VIEW_OUTBOX = Operation(action="view", permission=f"{APP}.view_outbox")
_MAX_ROWS = 200


@subcommand("outbox", output=OutgoingMessage | Sequence[OutgoingMessage])
def outbox() -> None:
    """List outgoing messages, send dead letters again, and drop messages.

    `outbox show` lists the messages that are waiting to be sent to other systems, and those that the systems refused.
    `outbox again ID` sends a dead letter again, and `outbox drop ID` drops a message.
    """


@outbox.word("show")
def show_outbox(command: BaseCommand, *, actor: ActorOption, json: JsonOption) -> None:
    """List messages that are waiting to be sent, and dead letters."""
    alias = storage().alias
    require_access(actor.user, _VIEW_OUTBOX, alias=alias)
    rows = describe_outgoing([*outgoing_messages(alias, actor.user)[:_MAX_ROWS]], actor.user)
    lines = [_line(row) for row in rows] or ["no messages are waiting to be sent"]
    printing.print_result(command, rows, *lines, as_json=json)


MessageArgument = Annotated[str, Argument("Id of the message, as printed by `outbox show`.", "ID")]


@outbox.word("again")
def send_again(
    command: BaseCommand, *, message: MessageArgument, reason: ReasonOption = "", actor: ActorOption, json: JsonOption
) -> None:
    """Send a dead letter again."""
    row = SendAgain(message, reason=reason, by=actor).execute()
    printing.print_result(command, row, f"{row.kind} {row.id}: it is sent again", as_json=json)


@outbox.word("drop")
def drop(
    command: BaseCommand, *, message: MessageArgument, reason: ReasonOption = "", actor: ActorOption, json: JsonOption
) -> None:
    """Drop a message, so that it is never sent."""
    row = DropOutgoing(message, reason=reason, by=actor).execute()
    printing.print_result(command, row, f"{row.kind} {row.id}: dropped", as_json=json)


def _line(message: OutgoingMessage) -> str:
    run = f" of {message.workflow} {message.workflow_id}" if message.workflow else ""
    problem = f": {message.code}: {message.error}" if message.code else f": {message.error}" if message.error else ""
    state = "dead letter" if message.is_dead else f"{message.tries} tries"
    return f"{message.id}  {message.kind}{run} ({state}){printing.escape(problem)}"
