"""Move open runs to another version of their class. This does not migrate the database.

For each run, print whether it moves, and if not, why not.

`temporalex migrate FLOW --from 1 --to 2 [--map OldStep=NewStep] [--dry-run]`.

Name steps by their classes or by their keys. `--map Old=` drops the data of a step that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import counted
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.errors import UnknownWorkflow
from temporalex_django.graph.steps import key_of, name_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.management import arguments as people
from temporalex_django.management import outputs
from temporalex_django.operations.base import storage
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
        people.add_user_argument(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="Report what would happen, without changing anything."
        )
        parser.add_argument(
            "--batch", type=int, default=500, metavar="N", help="Runs to read at a time (default: 500)."
        )
        outputs.add_json_argument(parser)

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
            raise outputs.usage_error(f"--batch {batch} is too small", "Give a number of at least 1.")
        old_class, new_class = _resolve_class(flow, old), _resolve_class(flow, new)
        # Both classes and the mapping are checked before the first run is moved.
        mapping = _parse_mapping(names, old_class, new_class)
        verdicts: list[MoveOutcome] = []
        actor = people.resolve_actor(as_user)
        runs = people.visible_runs(actor).exclude(status__in=CLOSED_STATUSES).filter(workflow=flow, version=old)
        # Counting costs a scan, which only a progress bar needs.
        total = 0
        if outputs.is_watched(command, lines=not json):
            total = runs.count()
        with outputs.progress(command, lines=not json) as report:
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
                    outputs.write_line(command, outputs.escape(f"{verdict.workflow_id}  {result_text}"))
        unmoved = [verdict for verdict in verdicts if not verdict.moves]
        if json:
            outputs.print_json(command, RunsMoved(dry_run=dry_run, runs=verdicts))
        else:
            moved_text = f"{len(verdicts) - len(unmoved)} of {counted(len(verdicts), 'run', 'runs')} {'would move' if dry_run else 'moved'}"
            outputs.write_line(command, moved_text)
        # A pipeline must notice that the old version is still in use.
        if unmoved:
            text = outputs.with_next_step(
                f"{counted(len(unmoved), 'run stays', 'runs stay')} at version {old}", "The reasons are listed above."
            )
            raise CommandError(text, returncode=outputs.FINDINGS)


def _resolve_class(flow: str, version: int) -> type[Workflow]:
    """Return the class of that version of a workflow. Raises ``UnknownWorkflow`` if the workflow has no versions."""
    versioned_class = workflows.find(flow)
    if not versioned_class.is_versioned():
        raise UnknownWorkflow(f"{flow} is not a versioned workflow: all its runs use one class")
    return versioned_class.resolve_version(version)[1]


def _parse_mapping(pairs: Sequence[str], old_class: type[Workflow], new_class: type[Workflow]) -> dict[str, str]:
    """Return the keys of renamed steps: the new key by the old one, or an empty text to drop the data of the step.

    ``pairs`` are texts such as ``OldStep=NewStep``. Raises ``CommandError`` for another text or an unknown step.
    """
    mapping: dict[str, str] = {}
    for text in pairs:
        old, equals, new = text.partition("=")
        if not equals or not old:
            raise outputs.usage_error(f"--map {outputs.escape(text)} is not an OLD=NEW pair", "Write OldStep=NewStep.")
        mapping[_step_key(old, old_class)] = _step_key(new, new_class) if new else ""
    return mapping


def _step_key(name: str, cls: type[Workflow]) -> str:
    """Return the key of the step in the graph class; ``name`` is the name of the step's class, or the key itself.

    Raises ``CommandError`` if the graph has no such step.
    """
    steps = {}
    if issubclass(cls, GraphWorkflow):
        steps = cls.graph()
    for step in steps:
        if name in (key_of(step), name_of(step)):
            return key_of(step)
    step_names = ", ".join(map(name_of, steps)) or "none"
    raise outputs.usage_error(
        f"--map: {cls.__name__} has no step {outputs.escape(repr(name))}", f"Its steps: {step_names}."
    )
