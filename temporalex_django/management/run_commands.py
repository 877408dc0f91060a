"""Commands that act on a run: start, signal, update, query, resume and the operations of an operator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from inspect import Parameter
from typing import Annotated, Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Model

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.handle import ANSWER_TIMEOUT
from temporalex_django.authoring.requests import OnClosed, OnConflict, StartRequest
from temporalex_django.authoring.run_filters import INTERFACE_FILTERS
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import get_settings
from temporalex_django.core.payloads.search_attributes import parse_all
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import (
    ActorOption,
    Argument,
    FlowArgument,
    JsonOption,
    Option,
    ParsedValue,
    PayloadOption,
    ReasonOption,
    RunArgument,
    VersionOption,
    WorkflowOption,
    YesOptionIfDestructive,
    find_target,
    option_name,
    parse_json,
    subcommand,
)
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


class SequenceNumber(ParsedValue):
    """The argument SEQ, for an operation on an activity or timer: its number."""

    def add(self, parser: CommandParser, parameter: Parameter, action: type[OperatorRunAction[Any]]) -> None:
        """Add the argument to a parser, unless the operation is on the whole run."""
        help_text = "Number of the timer: the seq in history --json. A wrong number is answered with those that run."
        if action.target_kind == "activity":
            help_text = "Number of the activity, as shown by describe."
        if action.target_kind != "run":
            parser.add_argument(parameter.name, metavar="SEQ", type=int, help=help_text)


@dataclass(frozen=True)
class ActionInputs(ParsedValue):
    """The options for the inputs of an operation. Their value has the inputs that were given, by name.

    ``with_selectors`` is True for an operation on many runs: it has options for its selectors as well, which choose
    among the activities or timers of the runs.
    """

    with_selectors: bool = False

    def add(self, parser: CommandParser, parameter: Parameter, action: type[OperatorRunAction[Any]]) -> None:
        """Add an option for each input of the operation to a parser. Selectors that are filters of runs get none."""
        for action_input in action.inputs:
            _add_option(parser, action_input)
        for selector in action.selectors if self.with_selectors else ():
            if selector.name not in INTERFACE_FILTERS:
                _add_option(parser, selector)

    def read(
        self, options: Mapping[str, Any], parameter: Parameter, action: type[OperatorRunAction[Any]]
    ) -> dict[str, Any]:
        """Return the inputs that were given on the command line, by name.

        Raises ``CommandError`` for malformed JSON.
        """
        values: dict[str, Any] = {}
        for action_input in (*action.inputs, *action.selectors):
            value = options.get(f"{_DEST_PREFIX}{action_input.name}")
            if value is not None and action_input.kind is object:
                values[action_input.name] = parse_json(value, option=option_name(action_input.name))
            elif value is not None:
                values[action_input.name] = value
        return values


def _add_option(parser: CommandParser, action_input: Input) -> None:
    option, dest = option_name(action_input.name), f"{_DEST_PREFIX}{action_input.name}"
    texts = [str(text).rstrip(".") for text in (action_input.label, action_input.help) if text]
    # A label whose words are in the help as well says nothing new.
    if len(texts) == 2 and texts[0].lower() in texts[1].lower():
        del texts[0]
    help_text = " ".join(f"{text}." for text in texts).replace("%", "%%")
    if action_input.kind is bool:
        # None and not False without the option: only the inputs on the command line reach the action.
        parser.add_argument(option, dest=dest, action="store_true", default=None, help=help_text)
        return
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


def _operate(
    command: BaseCommand,
    *,
    action: type[OperatorRunAction[Any]],
    run: RunArgument,
    workflow: WorkflowOption,
    actor: ActorOption,
    json: JsonOption,
    seq: Annotated[int | None, SequenceNumber()] = None,
    reason: ReasonOption = "",
    inputs: Annotated[dict[str, Any], ActionInputs()],
    yes: YesOptionIfDestructive = False,
) -> None:
    """Execute an operation on a run and print the result.

    It locks and raises as the class of the operation says. An operation that cannot be undone asks for confirmation.
    """
    # Found without the permission to look at runs: the action needs only its own permission.
    target = find_target(run, workflow, actor=actor)
    operation = action(target, reason=reason, seq=seq, by=actor, **inputs)
    if action.destructive:
        question = f"{action.effect_text(target.row)} Continue for {target.workflow} {target.workflow_id}?"
        command_arguments.confirm(command, question, yes=yes)
    outcome = operation.execute()
    new_run_id = (
        # An action that creates a run returns it, or its id.
        str(outcome.selected_run_id)
        if isinstance(outcome, RunTarget)
        else outcome
        if isinstance(outcome, str)
        else None
    )
    action_output = Steered(
        **run_fields(target), action=action.name, answer=str(operation.done_message), made=new_run_id
    )
    lines = [f"{target.workflow} {target.workflow_id}: {operation.done_message}"]
    if new_run_id is not None:
        lines.append(f"the new run is {new_run_id}")
    printing.print_result(command, action_output, *lines, as_json=json)


def _command_name(action: type[OperatorRunAction[Any]]) -> str:
    """Return an operation's name without its target's kind: SEQ says that ``retry`` is for an activity."""
    return re.sub(f"_{action.target_kind}$", "", action.name).replace("_", "-")


#: The operations on one run by the names of their commands, such as ``cancel`` and ``retry``.
COMMANDS = {_command_name(action): action for action in STEERING.values()}
for _name, _action in COMMANDS.items():
    subcommand(_name, output=Steered, description=_action.description(), action=_action)(_operate)


# --- start ------------------------------------------------------------------------------------------------------------


@subcommand("start", output=RunNamed)
def start(
    command: BaseCommand,
    *,
    flow: FlowArgument,
    arguments: Annotated[
        Any, Option("Arguments of run(), as JSON; use - to read them from standard input.", "JSON", name="--args")
    ],
    id: Annotated[str | None, Option("Business id of the run (default: generated).", "ID")],
    value: Annotated[
        str | None,
        Option(
            "For a class that declares `unique`: the value that identifies the run. The business id is made from it.",
            "VALUE",
        ),
    ],
    number: VersionOption,
    subject: Annotated[str | None, Option("Object that the run is about.", "APP.MODEL:KEY")],
    attributes: Annotated[
        list[str] | None,
        Option("A search attribute that the class declares (can be repeated).", "NAME=VALUE", name="--attribute"),
    ],
    tags: Annotated[
        list[str] | None,
        Option("A tag in addition to those of the class (can be repeated).", "TAG", name="--tag"),
    ],
    start_at: Annotated[
        datetime | None, Option("Time at which the run begins, such as 2026-11-27T09:00:00+01:00.", "TIME")
    ],
    start_delay: Annotated[
        float | None,
        Option("Number of seconds after which the run begins; an alternative to --start-at.", "SECONDS"),
    ],
    start_before: Annotated[datetime | None, Option("The run times out if it has not begun by then.", "TIME")],
    on_conflict: Annotated[
        OnConflict, Option("What happens if an open run of the workflow has the id (default: fail).")
    ] = "fail",
    on_closed: Annotated[
        OnClosed, Option("Whether the run may start if an earlier run with this id has ended (default: allow).")
    ] = "allow",
    debounce: Annotated[
        float | None,
        Option(
            "The run begins after this many seconds. Until then, another start with the same id replaces its input.",
            "SECONDS",
        ),
    ],
    throttle: Annotated[
        list[str] | None,
        Option(
            "At most COUNT runs of the workflow begin within SECONDS; others begin later.",
            ("COUNT", "SECONDS"),
            nargs=2,
        ),
    ],
    actor: ActorOption,
    json: JsonOption,
) -> None:
    """Start a run."""
    # Everything is parsed before the start, so a wrong option has no effect. The start inserts two rows in one
    # transaction; a worker then runs the first turn.
    cls = workflows.find(flow).choose(number, {})
    request = StartRequest(
        workflow=cls,
        args=arguments,
        id=id,
        value=value,
        subject=None if subject is None else _find_subject(subject),
        search_attributes=None if attributes is None else _parse_attributes(attributes, cls.search_attributes),
        tags=tags,
        start_at=start_at,
        start_delay=start_delay,
        start_before=start_before,
        on_conflict=on_conflict,
        on_closed=on_closed,
        debounce=debounce,
        throttle=_parse_throttle(throttle),
    )
    operation = Start(request, by=actor)
    target = operation.execute()
    verb = {
        "existing": "already open:",
        "replaced": "terminated the open run, and started",
        "debounced": "replaced the input of",
    }.get(operation.outcome, "started")
    text = f"{verb} {target.workflow} {target.workflow_id}, run {target.run_id}"
    printing.print_result(command, RunNamed(**run_fields(target)), text, as_json=json)


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


# --- messages ---------------------------------------------------------------------------------------------------------


@subcommand("signal", output=SignalSent)
def signal(
    command: BaseCommand,
    *,
    run: RunArgument,
    workflow: WorkflowOption,
    actor: ActorOption,
    json: JsonOption,
    name: Annotated[str, Argument("Name of the signal.", "NAME")],
    payload: PayloadOption,
    message_id: Annotated[
        str | None,
        Option("Id of the message: a signal that you send again with the same id counts only once.", "ID"),
    ],
) -> None:
    """Send a signal to a run."""
    # The signal is one INSERT. The run reads it in its next turn.
    target = find_target(run, workflow, actor=actor)
    # ``exact``: a message id that came with another payload before is an error, and no repetition.
    SendSignal(target, signal=name, payload=payload, id=message_id, exact=True, by=actor).execute()
    text = f"signal {name} sent to {target.workflow} {target.workflow_id}"
    printing.print_result(command, SignalSent(**run_fields(target), signal=name), text, as_json=json)


@subcommand("update", output=UpdateAnswered)
def update(
    command: BaseCommand,
    *,
    run: RunArgument,
    workflow: WorkflowOption,
    actor: ActorOption,
    json: JsonOption,
    name: Annotated[str, Argument("Name of the update.", "NAME")],
    arguments: Annotated[
        Any,
        Option("Arguments of the update, as JSON; use - to read them from standard input.", "JSON", name="--args"),
    ],
    message_id: Annotated[
        str | None,
        Option("Id of the message: an update that you send again with the same id returns the first answer.", "ID"),
    ],
    wait: Annotated[
        float, Option(f"Seconds to wait for the answer (default: {ANSWER_TIMEOUT:g}).", "SECONDS")
    ] = ANSWER_TIMEOUT,
) -> None:
    """Send an update to a run and print the answer."""
    # The update runs in this process if the process has the class and the run is not locked; else a worker runs it (see
    # decision 33).
    target = find_target(run, workflow, actor=actor)
    # ``exact``: a message id that came with other arguments before is an error, and no repetition.
    result = SendUpdate(
        target, update=name, args=arguments, id=message_id, timeout=wait, exact=True, by=actor
    ).execute()
    answer = UpdateAnswered(**run_fields(target), update=name, result=result)
    printing.print_json(command, answer if json else result)


@subcommand("resume", output=GraphResumed)
def resume(
    command: BaseCommand,
    *,
    run: RunArgument,
    workflow: WorkflowOption,
    actor: ActorOption,
    json: JsonOption,
    event: Annotated[str, Argument("Name of the event, such as approved.", "EVENT")],
    step: Annotated[str | None, Option("Key of the step, if several steps wait for the event.", "KEY")],
    data: Annotated[Any, Option("Data of the event, as JSON; use - to read it from standard input.", "JSON")],
) -> None:
    """Give a graph the event that one of its steps is waiting for."""
    # A step with a role accepts it only from a user who has that role, so it needs ``--as-user``.
    target = find_target(run, workflow, actor=actor)
    # ``step`` may be left out when a single step waits for the event; the run decides that under its lock.
    Resume(target, event=event, step=step, data=data, by=actor).execute()
    text = f"{target.workflow} {target.workflow_id} continues with {event}"
    printing.print_result(command, GraphResumed(**run_fields(target), event=event), text, as_json=json)


@subcommand("query", output=QueryAnswered)
def query(
    command: BaseCommand,
    *,
    run: RunArgument,
    workflow: WorkflowOption,
    actor: ActorOption,
    json: JsonOption,
    name: Annotated[str, Argument("Name of the query. Every class has __describe and __accepts.", "NAME")],
    arguments: Annotated[
        Any, Option("Arguments of the query, as JSON; use - to read them from standard input.", "JSON", name="--args")
    ],
) -> None:
    """Query a run: its published state gives the answer."""
    # Unread messages of the run are processed before, in this process. The action checks the permission itself: a user
    # may query runs without the right to list them.
    target = find_target(run, workflow, actor=actor)
    result = Query(target, query=name, args=arguments, by=actor).execute()
    answer = QueryAnswered(**run_fields(target), query=name, result=result)
    printing.print_json(command, answer if json else result)
