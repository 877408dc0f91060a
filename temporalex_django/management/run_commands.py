"""Commands that act on a run: start, signal, update, query, resume and the operations of an operator."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from django.apps import apps
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Model

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.authoring.requests import OnClosed, OnConflict, StartRequest
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import get_settings
from temporalex_django.core.payloads.search_attributes import parse_all
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import parse_json, parse_time
from temporalex_django.management.outputs import (
    GraphResumed,
    QueryAnswered,
    RunNamed,
    SignalSent,
    UpdateAnswered,
    run_fields,
    usage_error,
)
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.messages import Query, SendSignal
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.start import Start
from temporalex_django.operations.runs.update import SendUpdate

_OPTION_TYPES: dict[type, Any] = {int: int, float: float, str: str, object: str}
_DEST_PREFIX = "input_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """The result of a command that operates on a run.

    ``made`` is the run id of the new run, if the operation created one.
    """

    id: str
    run_id: str
    workflow: str
    version: int
    action: str
    answer: str
    made: str | None


class OperatorCommand:
    """The command of one operation on a run, such as ``temporalex cancel RUN`` or ``temporalex retry RUN SEQ``."""

    output: ClassVar[Any] = Steered

    def __init__(self, action: type[OperatorRunAction[Any]]) -> None:
        self.action = action
        # The docstring of a subcommand is its help text.
        self.__doc__ = action.description()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add RUN, SEQ for an activity or timer, and an option for each input of the operation to the parser."""
        command_arguments.add_run_arguments(parser)
        if self.action.target_kind != "run":
            parser.add_argument(
                "seq",
                metavar="SEQ",
                type=int,
                help="Number of the activity, as shown by describe."
                if self.action.target_kind == "activity"
                else "Number of the timer: the seq in history --json. A wrong number is answered with those that run.",
            )
        add_input_arguments(parser, self.action)
        if self.action.destructive:
            command_arguments.add_yes_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        run: str,
        workflow: str | None,
        as_user: str | None,
        json: bool,
        reason: str,
        seq: int | None = None,
        yes: bool = False,
        **options: Any,
    ) -> None:
        """Execute the operation and print the result.

        It locks and raises as the class of the operation says. An operation that cannot be undone asks for
        confirmation.
        """
        actor = command_arguments.resolve_actor(as_user)
        # Found without the permission to look at runs: the action needs only its own permission.
        target = command_arguments.find_target(run, workflow, actor=actor)
        action = self.action(target, reason=reason, seq=seq, by=actor, **input_values(options, self.action))
        if self.action.destructive:
            effect = self.action.effect_text(target.row)
            command_arguments.confirm(
                command, f"{effect} Continue for {target.workflow} {target.workflow_id}?", yes=yes
            )
        outcome = action.execute()
        new_run_id = (
            # An action that creates a run returns it, or its id.
            str(outcome.selected_run_id)
            if isinstance(outcome, RunTarget)
            else outcome
            if isinstance(outcome, str)
            else None
        )
        if json:
            action_output = Steered(
                **run_fields(target), action=self.action.name, answer=str(action.done_message), made=new_run_id
            )
            printing.print_json(command, action_output)
            return
        printing.write_line(command, f"{target.workflow} {target.workflow_id}: {action.done_message}")
        if new_run_id is not None:
            printing.write_line(command, f"the new run is {new_run_id}")


def add_input_arguments(parser: CommandParser, action: type[OperatorRunAction[Any]]) -> None:
    """Add ``--reason``, and an option for each input of an operation, to the parser."""
    parser.add_argument("--reason", default="", metavar="TEXT", help="Reason, recorded in the audit log.")
    _add_options(parser, action.inputs)


def add_selector_arguments(
    parser: CommandParser, action: type[OperatorRunAction[Any]], *, excluded: Collection[str]
) -> None:
    """Add an option for each selector of an operation, which chooses among the activities or timers of many runs.

    ``excluded`` are the names of selectors for which the command has a filter of runs already.
    """
    _add_options(parser, [action_input for action_input in action.selectors if action_input.name not in excluded])


def _add_options(parser: CommandParser, inputs: Iterable[Input]) -> None:
    for action_input in inputs:
        option, dest = f"--{action_input.name.replace('_', '-')}", f"{_DEST_PREFIX}{action_input.name}"
        texts = [str(text).rstrip(".") for text in (action_input.label, action_input.help) if text]
        # A label whose words are in the help as well says nothing new.
        if len(texts) == 2 and texts[0].lower() in texts[1].lower():
            del texts[0]
        help_text = " ".join(f"{text}." for text in texts).replace("%", "%%")
        if action_input.kind is bool:
            # None and not False without the option: only the inputs on the command line reach the action.
            parser.add_argument(option, dest=dest, action="store_true", default=None, help=help_text)
        else:
            parser.add_argument(
                option,
                dest=dest,
                type=_OPTION_TYPES[action_input.kind],
                choices=action_input.choices or None,
                required=action_input.required,
                metavar=None
                if action_input.choices
                else "JSON"
                if action_input.kind is object
                else action_input.kind.__name__.upper(),
                help=help_text,
            )


def input_values(options: dict[str, Any], action: type[OperatorRunAction[Any]]) -> dict[str, Any]:
    """Return the inputs and selectors that were given on the command line, by name.

    Raises ``CommandError`` for malformed JSON.
    """
    inputs = (*action.inputs, *action.selectors)
    parsed = {
        action_input.name: _parse_value(action_input, options.get(f"{_DEST_PREFIX}{action_input.name}"))
        for action_input in inputs
    }
    return {name: value for name, value in parsed.items() if options.get(f"{_DEST_PREFIX}{name}") is not None}


def _parse_value(action_input: Input, value: Any) -> Any:
    if action_input.kind is object:
        return command_arguments.parse_json(value, option=f"--{action_input.name.replace('_', '-')}")
    return value


def _command_name(action: type[OperatorRunAction[Any]]) -> str:
    """Return an operation's name without its target's kind: SEQ says that ``retry`` is for an activity."""
    return re.sub(f"_{action.target_kind}$", "", action.name).replace("_", "-")


COMMANDS = {_command_name(action): OperatorCommand(action) for action in STEERING.values()}


# --- start ------------------------------------------------------------------------------------------------------------


class StartCommand:
    """Start a run."""

    output: ClassVar[Any] = RunNamed

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex start`` to its parser."""
        parser.add_argument("flow", metavar="FLOW", help="Name of the workflow.")
        parser.add_argument(
            "--args",
            dest="arguments",
            metavar="JSON",
            help="Arguments of run(), as JSON; use - to read them from standard input.",
        )
        parser.add_argument("--id", metavar="ID", help="Business id of the run (default: generated).")
        parser.add_argument(
            "--value",
            metavar="VALUE",
            help="For a class that declares `unique`: the value that identifies the run. The business id is made from it.",
        )
        parser.add_argument("--version", metavar="N", dest="number", type=int, help="Version of the workflow.")
        parser.add_argument("--subject", metavar="APP.MODEL:KEY", help="Object that the run is about.")
        parser.add_argument(
            "--attribute",
            dest="attributes",
            metavar="NAME=VALUE",
            action="append",
            help="A search attribute that the class declares (can be repeated).",
        )
        parser.add_argument(
            "--tag",
            dest="tags",
            metavar="TAG",
            action="append",
            help="A tag in addition to those of the class (can be repeated).",
        )
        parser.add_argument(
            "--start-at", metavar="TIME", help="Time at which the run begins, such as 2026-11-27T09:00:00+01:00."
        )
        parser.add_argument(
            "--start-delay",
            metavar="SECONDS",
            type=float,
            help="Number of seconds after which the run begins; an alternative to --start-at.",
        )
        parser.add_argument("--start-before", metavar="TIME", help="The run times out if it has not begun by then.")
        parser.add_argument(
            "--on-conflict",
            choices=get_args(OnConflict),
            default="fail",
            help="What happens if an open run of the workflow has the id (default: fail).",
        )
        parser.add_argument(
            "--on-closed",
            choices=get_args(OnClosed),
            default="allow",
            help="Whether the run may start if an earlier run with this id has ended (default: allow).",
        )
        parser.add_argument(
            "--debounce",
            metavar="SECONDS",
            type=float,
            help="The run begins after this many seconds. Until then, another start with the same id replaces its input.",
        )
        parser.add_argument(
            "--throttle",
            metavar=("COUNT", "SECONDS"),
            nargs=2,
            help="At most COUNT runs of the workflow begin within SECONDS; others begin later.",
        )
        command_arguments.add_user_argument(parser)
        printing.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        flow: str,
        arguments: str | None,
        id: str | None,
        value: str | None,
        number: int | None,
        subject: str | None,
        attributes: list[str] | None,
        tags: list[str] | None,
        start_at: str | None,
        start_delay: float | None,
        start_before: str | None,
        on_conflict: OnConflict,
        on_closed: OnClosed,
        debounce: float | None,
        throttle: list[str] | None,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Start the run and print its ids. One transaction inserts two rows; a worker then runs the first turn."""
        # Everything is parsed before the start, so a wrong option has no effect.
        cls = workflows.find(flow).choose(number, {})
        subject_object = None
        if subject is not None:
            subject_object = _find_subject(subject)
        start_args = parse_json(arguments, option="--args")
        search_attributes = None
        if attributes is not None:
            search_attributes = _parse_attributes(attributes, cls.search_attributes)
        actor = command_arguments.resolve_actor(as_user)
        request = StartRequest(
            workflow=cls,
            args=start_args,
            id=id,
            value=value,
            subject=subject_object,
            search_attributes=search_attributes,
            tags=tags,
            start_at=parse_time(start_at, option="--start-at"),
            start_delay=start_delay,
            start_before=parse_time(start_before, option="--start-before"),
            on_conflict=on_conflict,
            on_closed=on_closed,
            debounce=debounce,
            throttle=_parse_throttle(throttle),
        )
        start = Start(request, by=actor)
        target = start.execute()
        if json:
            printing.print_json(command, RunNamed(**run_fields(target)))
        else:
            verb = {
                "existing": "already open:",
                "replaced": "terminated the open run, and started",
                "debounced": "replaced the input of",
            }.get(start.outcome, "started")
            printing.write_line(command, f"{verb} {target.workflow} {target.workflow_id}, run {target.run_id}")


def _parse_throttle(texts: list[str] | None) -> tuple[Any, ...] | None:
    """Return ``(count, seconds)``; None without the option. Raises ``CommandError``."""
    if texts is None:
        return None
    try:
        return int(texts[0]), float(texts[1])
    except ValueError:
        text = printing.escape(" ".join(texts))
        raise usage_error(
            f"--throttle must be a count and a number of seconds, not {text}", "Write --throttle 5 60."
        ) from None


def _parse_attributes(texts: list[str], declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return search attributes by name. A list is given once for each text. Raises ``CommandError``."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise usage_error(f"--attribute {printing.escape(text)} is not a NAME=VALUE pair", "Write NAME=VALUE.")
        parsed[name] = [*parsed.get(name, ()), value] if declared.get(name) == list[str] else value
    encoded: dict[str, Any] = parse_all(parsed, declared, label="--attribute")
    return encoded


def _find_subject(text: str) -> Model:
    label, _colon, key = text.partition(":")
    try:
        model = apps.get_model(label)
        subject: Model = model._default_manager.using(get_settings().DATABASE).get(pk=key)  # noqa: SLF001 - Django documents it
        return subject
    # The model, the key and its type may each be wrong, and each raises errors of its own.
    except Exception as exc:
        raise usage_error(
            f"--subject {printing.escape(text)} does not exist", "Write app.model:key, such as shop.order:42."
        ) from exc


# --- signal -----------------------------------------------------------------------------------------------------------


class SignalCommand:
    """Send a signal to a run."""

    output: ClassVar[Any] = SignalSent

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex signal`` to its parser."""
        command_arguments.add_run_arguments(parser)
        parser.add_argument("name", metavar="NAME", help="Name of the signal.")
        parser.add_argument(
            "--payload", metavar="JSON", help="Payload of the signal, as JSON; use - to read it from standard input."
        )
        parser.add_argument(
            "--message-id",
            metavar="ID",
            help="Id of the message: a signal that you send again with the same id counts only once.",
        )

    def handle(
        self,
        command: BaseCommand,
        *,
        run: str,
        workflow: str | None,
        name: str,
        payload: str | None,
        message_id: str | None,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Send the signal: one INSERT. The run reads it in its next turn."""
        actor, signal_payload = (
            command_arguments.resolve_actor(as_user),
            command_arguments.parse_json(payload, option="--payload"),
        )
        target = command_arguments.find_target(run, workflow, actor=actor)
        # ``exact``: a message id that came with another payload before is an error, and no repetition.
        SendSignal(target, signal=name, payload=signal_payload, id=message_id, exact=True, by=actor).execute()
        if json:
            printing.print_json(command, SignalSent(**run_fields(target), signal=name))
        else:
            printing.write_line(command, f"signal {name} sent to {target.workflow} {target.workflow_id}")


# --- update -----------------------------------------------------------------------------------------------------------


class UpdateCommand:
    """Send an update to a run and print the answer."""

    output: ClassVar[Any] = UpdateAnswered

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex update`` to its parser."""
        command_arguments.add_run_arguments(parser)
        parser.add_argument("name", metavar="NAME", help="Name of the update.")
        parser.add_argument(
            "--args",
            dest="arguments",
            metavar="JSON",
            help="Arguments of the update, as JSON; use - to read them from standard input.",
        )
        parser.add_argument(
            "--message-id",
            metavar="ID",
            help="Id of the message: an update that you send again with the same id returns the first answer.",
        )
        parser.add_argument(
            "--wait",
            type=float,
            default=ANSWER_TIMEOUT,
            metavar="SECONDS",
            help=f"Seconds to wait for the answer (default: {ANSWER_TIMEOUT:g}).",
        )

    def handle(
        self,
        command: BaseCommand,
        *,
        run: str,
        workflow: str | None,
        name: str,
        arguments: str | None,
        message_id: str | None,
        wait: float,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Send the update and print its answer.

        It runs in this process if the process has the class and the run is not locked; else a worker runs it (see
        decision 33).
        """
        actor, update_args = (
            command_arguments.resolve_actor(as_user),
            command_arguments.parse_json(arguments, option="--args"),
        )
        target = command_arguments.find_target(run, workflow, actor=actor)
        # ``exact``: a message id that came with other arguments before is an error, and no repetition.
        result = SendUpdate(
            target, update=name, args=update_args, id=message_id, timeout=wait, exact=True, by=actor
        ).execute()
        if json:
            printing.print_json(command, UpdateAnswered(**run_fields(target), update=name, result=result))
        else:
            printing.print_json(command, result)


# --- resume -----------------------------------------------------------------------------------------------------------


class ResumeCommand:
    """Give a graph the event that one of its steps is waiting for."""

    output: ClassVar[Any] = GraphResumed

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex resume`` to its parser."""
        command_arguments.add_run_arguments(parser)
        parser.add_argument("event", metavar="EVENT", help="Name of the event, such as approved.")
        parser.add_argument("--step", metavar="KEY", help="Key of the step, if several steps wait for the event.")
        parser.add_argument(
            "--data", metavar="JSON", help="Data of the event, as JSON; use - to read it from standard input."
        )

    def handle(
        self,
        command: BaseCommand,
        *,
        run: str,
        workflow: str | None,
        event: str,
        step: str | None,
        data: str | None,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Give the event to the waiting step of the graph.

        A step with a role accepts it only from a user who has that role, so it needs ``--as-user``.
        """
        actor, event_data = (
            command_arguments.resolve_actor(as_user),
            command_arguments.parse_json(data, option="--data"),
        )
        target = command_arguments.find_target(run, workflow, actor=actor)
        # ``step`` may be left out when a single step waits for the event; the run decides that under its lock.
        Resume(target, event=event, step=step, data=event_data, by=actor).execute()
        if json:
            printing.print_json(command, GraphResumed(**run_fields(target), event=event))
        else:
            printing.write_line(command, f"{target.workflow} {target.workflow_id} continues with {event}")


# --- query ------------------------------------------------------------------------------------------------------------


class QueryCommand:
    """Query a run: its published state gives the answer."""

    output: ClassVar[Any] = QueryAnswered

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex query`` to its parser."""
        command_arguments.add_run_arguments(parser)
        parser.add_argument("name", metavar="NAME", help="Name of the query. Every class has __describe and __accepts.")
        parser.add_argument(
            "--args",
            dest="arguments",
            metavar="JSON",
            help="Arguments of the query, as JSON; use - to read them from standard input.",
        )

    def handle(
        self,
        command: BaseCommand,
        *,
        run: str,
        workflow: str | None,
        name: str,
        arguments: str | None,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Ask the query and print its answer. Unread messages of the run are processed before, in this process."""
        actor, query_args = (
            command_arguments.resolve_actor(as_user),
            command_arguments.parse_json(arguments, option="--args"),
        )
        # The action checks the permission itself: a user may query runs without the right to list them.
        target = command_arguments.find_target(run, workflow, actor=actor)
        result = Query(target, query=name, args=query_args, by=actor).execute()
        if json:
            printing.print_json(command, QueryAnswered(**run_fields(target), query=name, result=result))
        else:
            printing.print_json(command, result)
