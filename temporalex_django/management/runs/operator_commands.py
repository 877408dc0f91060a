"""The commands that operate on a run, one for each operation in ``operations.registry.STEERING``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.backends.protocol import RunTarget
from temporalex_django.management import arguments, outputs
from temporalex_django.management import arguments as people
from temporalex_django.management.outputs import run_fields
from temporalex_django.operations.registry import STEERING
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction

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
        arguments.add_run_arguments(parser)
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
            arguments.add_yes_argument(parser)

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
        actor = people.resolve_actor(as_user)
        # Found without the permission to look at runs: the action needs only its own permission.
        target = arguments.find_target(run, workflow, actor=actor)
        action = self.action(target, reason=reason, seq=seq, by=actor, **input_values(options, self.action))
        if self.action.destructive:
            effect = self.action.effect_text(target.row)
            arguments.confirm(command, f"{effect} Continue for {target.workflow} {target.workflow_id}?", yes=yes)
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
            outputs.print_json(command, action_output)
            return
        outputs.write_line(command, f"{target.workflow} {target.workflow_id}: {action.done_message}")
        if new_run_id is not None:
            outputs.write_line(command, f"the new run is {new_run_id}")


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
        return arguments.parse_json(value, option=f"--{action_input.name.replace('_', '-')}")
    return value


def _command_name(action: type[OperatorRunAction[Any]]) -> str:
    """Return the name of the command for an operation, without the kind of its target.

    ``retry_activity`` becomes ``retry``, because the argument SEQ names an activity.
    """
    return re.sub(f"_{action.target_kind}$", "", action.name).replace("_", "-")


COMMANDS = {_command_name(action): OperatorCommand(action) for action in STEERING.values()}
