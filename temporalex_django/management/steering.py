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
from temporalex_django.management import asking, given, printing
from temporalex_django.management.outputs import named

_KINDS: dict[type, Any] = {int: int, float: float, str: str, object: str}
_DEST = "input_"


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


class SteeringCommand:
    """The subcommand of one action: ``cancel RUN``, ``retry RUN SEQ``."""

    output: ClassVar[Any] = Steered

    def __init__(self, action: type[OperatorRunAction[Any]]) -> None:
        self.action = action
        self.__doc__ = str(action.effect)

    def add_arguments(self, parser: CommandParser) -> None:
        """The run, the number of what it is about, the inputs of the action."""
        given.add_run(parser)
        if self.action.target_kind != "run":
            parser.add_argument(
                "seq",
                metavar="SEQ",
                type=int,
                help=f"number of the {self.action.target_kind}: describe and history have it",
            )
        add_inputs(parser, self.action)
        if self.action.destructive:
            asking.add_yes(parser)

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
        by = people.actor(as_user)
        target = given.found(run, workflow, by=by)
        action = self.action(target, reason=reason, seq=seq, by=by, **inputs_of(options, self.action))
        if self.action.destructive:
            effect = self.action.effect_text(target.row)
            asking.ask(command, f"{effect} Go on, for {target.workflow} {target.workflow_id}?", yes=yes)
        made = action.execute()
        new = str(made.selected_run_id) if isinstance(made, RunTarget) else made if isinstance(made, str) else None
        if json:
            said = Steered(**named(target), action=self.action.name, answer=str(action.done_message), made=new)
            printing.document(command, said)
            return
        printing.write(command, f"{target.workflow} {target.workflow_id}: {action.done_message}")
        if new is not None:
            printing.write(command, f"the new run is {new}")


def add_inputs(parser: CommandParser, action: type[OperatorRunAction[Any]]) -> None:
    """``--reason``, and an option for each input."""
    parser.add_argument("--reason", default="", metavar="TEXT", help="for the audit")
    _add(parser, action.inputs)


def add_selectors(parser: CommandParser, action: type[OperatorRunAction[Any]], *, beside: Collection[str]) -> None:
    """An option for each thing that chooses among the activities or timers of many runs.

    ``beside`` are the filters of the command, which choose among these as well.
    """
    _add(parser, [one for one in action.selectors if one.name not in beside])


def _add(parser: CommandParser, inputs: Iterable[Input]) -> None:
    for one in inputs:
        option, dest = f"--{one.name.replace('_', '-')}", f"{_DEST}{one.name}"
        said = ". ".join(str(text).rstrip(".") for text in (one.label, one.help) if text).replace("%", "%%")
        if one.kind is bool:
            parser.add_argument(option, dest=dest, action="store_true", default=None, help=said)
        else:
            parser.add_argument(
                option,
                dest=dest,
                type=_KINDS[one.kind],
                choices=one.choices or None,
                required=one.required,
                metavar=None if one.choices else "JSON" if one.kind is object else one.kind.__name__.upper(),
                help=said,
            )


def inputs_of(options: dict[str, Any], action: type[OperatorRunAction[Any]]) -> dict[str, Any]:
    """Those that were given, by name. Raises ``CommandError``."""
    asked = (*action.inputs, *action.selectors)
    found = {one.name: _value(one, options.get(f"{_DEST}{one.name}")) for one in asked}
    return {name: value for name, value in found.items() if options.get(f"{_DEST}{name}") is not None}


def _value(said: Input, value: Any) -> Any:
    return given.json_of(value, option=f"--{said.name.replace('_', '-')}") if said.kind is object else value


def _command_name(action: type[OperatorRunAction[Any]]) -> str:
    """``retry_activity`` is said ``retry``: the number that follows is an activity's."""
    return re.sub(f"_{action.target_kind}$", "", action.name).replace("_", "-")


COMMANDS = {_command_name(action): SteeringCommand(action) for action in STEERING.values()}
