"""What operators do to a run: a command for each of ``actions.registry.STEERING``, made from what the action says."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.actions.registry import STEERING
from temporalex_django.actions.steering import Input, OperatorRunAction
from temporalex_django.actions.targets import RunTarget
from temporalex_django.management import as_user as people
from temporalex_django.management import command_arguments, confirmation, printing
from temporalex_django.management.outputs import run_fields

_OPTION_TYPES: dict[type, Any] = {int: int, float: float, str: str, object: str}
_DEST_PREFIX = "input_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """What a command of this kind prints with ``--json``. ``made``: the run id of the new run, where there is one."""

    id: str
    run_id: str
    workflow: str
    version: int
    action: str
    answer: str
    made: str | None


class OperatorCommand:
    """The subcommand of one action: ``cancel RUN``, ``retry RUN SEQ``."""

    output: ClassVar[Any] = Steered

    def __init__(self, action: type[OperatorRunAction[Any]]) -> None:
        self.action = action
        self.__doc__ = str(action.effect)

    def add_arguments(self, parser: CommandParser) -> None:
        """The run, the number of what it is about, the inputs of the action."""
        command_arguments.add_run_arguments(parser)
        if self.action.target_kind != "run":
            parser.add_argument(
                "seq",
                metavar="SEQ",
                type=int,
                help=f"number of the {self.action.target_kind}: describe and history have it",
            )
        add_input_arguments(parser, self.action)
        if self.action.destructive:
            confirmation.add_yes_argument(parser)

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
        """As the action says: what locks, what is refused."""
        actor = people.resolve_actor(as_user)
        target = command_arguments.find_target(run, workflow, actor=actor)
        action = self.action(target, reason=reason, seq=seq, by=actor, **input_values(options, self.action))
        if self.action.destructive:
            effect = self.action.effect_text(target.row)
            confirmation.confirm(command, f"{effect} Go on, for {target.workflow} {target.workflow_id}?", yes=yes)
        outcome = action.execute()
        new_run_id = (
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
    """``--reason``, and an option for each input."""
    parser.add_argument("--reason", default="", metavar="TEXT", help="for the audit")
    _add_options(parser, action.inputs)


def add_selector_arguments(
    parser: CommandParser, action: type[OperatorRunAction[Any]], *, excluded: Collection[str]
) -> None:
    """An option for each thing that chooses among the activities or timers of many runs.

    ``excluded`` are the filters of the command, which choose among these as well.
    """
    _add_options(parser, [action_input for action_input in action.selectors if action_input.name not in excluded])


def _add_options(parser: CommandParser, inputs: Iterable[Input]) -> None:
    for action_input in inputs:
        option, dest = f"--{action_input.name.replace('_', '-')}", f"{_DEST_PREFIX}{action_input.name}"
        help_text = ". ".join(
            str(text).rstrip(".") for text in (action_input.label, action_input.help) if text
        ).replace("%", "%%")
        if action_input.kind is bool:
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
    """Those that were given, by name. Raises ``CommandError``."""
    inputs = (*action.inputs, *action.selectors)
    parsed = {
        action_input.name: _parse_value(action_input, options.get(f"{_DEST_PREFIX}{action_input.name}"))
        for action_input in inputs
    }
    return {name: value for name, value in parsed.items() if options.get(f"{_DEST_PREFIX}{name}") is not None}


def _parse_value(action_input: Input, value: Any) -> Any:
    return (
        command_arguments.parse_json(value, option=f"--{action_input.name.replace('_', '-')}")
        if action_input.kind is object
        else value
    )


def _command_name(action: type[OperatorRunAction[Any]]) -> str:
    """``retry_activity`` is said ``retry``: the number that follows is an activity's."""
    return re.sub(f"_{action.target_kind}$", "", action.name).replace("_", "-")


COMMANDS = {_command_name(action): OperatorCommand(action) for action in STEERING.values()}
