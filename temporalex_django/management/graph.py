"""Draw a graph workflow, with the state of a run if its id is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django import access
from temporalex_django.authoring import workflow as workflows
from temporalex_django.console.run.graph import draw_graph, render_svg
from temporalex_django.errors import TemporalexError
from temporalex_django.graph import render
from temporalex_django.graph.definition import Graph
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.steps import key_of, name_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.management import arguments as command_arguments
from temporalex_django.management import outputs as printing
from temporalex_django.operations.base import storage
from temporalex_django.operations.read.describe import load_instance as instance_of
from temporalex_django.operations.run_lookup import find_run


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDrawn:
    """A step of a graph, as ``temporalex graph`` prints it.

    ``state`` is its state in the run: completed, active, waiting, requested or failed; null if the run has not reached
    it.
    """

    key: str
    name: str
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowDrawn:
    """A transition of a graph: from the step ``source``, when it has the ``event``, to the step ``target``.

    Steps are named by their keys. ``dynamic`` is true if code chooses among several targets.
    """

    source: str
    event: str
    target: str
    dynamic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDrawn:
    """The result of ``temporalex graph``: the steps and transitions of a graph, and its drawing.

    With ``--output`` the drawing is in that file, and ``drawing`` is null.
    """

    workflow: str
    version: int
    run_id: str | None
    steps: Sequence[StepDrawn]
    arrows: Sequence[ArrowDrawn]
    format: str
    drawing: str | None
    output: str | None


class GraphCommand:
    """Draw a graph workflow, with the state of a run if its id is given."""

    output: ClassVar[Any] = GraphDrawn

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex graph`` to its parser."""
        parser.add_argument("name", metavar="NAME", help="Name of the workflow.")
        parser.add_argument(
            "--format",
            choices=[*render.FORMATS, "svg"],
            default="mermaid",
            help="Format of the drawing (default: mermaid).",
        )
        parser.add_argument(
            "--id", metavar="ID", help="A run: its business id, the value of its business key, or its run id."
        )
        parser.add_argument("--version", metavar="N", dest="number", type=int, help="Version of the workflow.")
        command_arguments.add_user_argument(parser)
        parser.add_argument("--output", metavar="FILE", help="File for the drawing (default: standard output).")
        printing.add_json_argument(parser)

    def handle(
        self,
        command: BaseCommand,
        *,
        name: str,
        format: str,
        id: str | None,
        number: int | None,
        output: str | None,
        as_user: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        """Print the drawing of a graph, or write it to a file.

        Raises ``CommandError`` for a workflow that is not a graph, and for a run that does not exist.
        """
        actor = command_arguments.resolve_actor(as_user)
        visible_runs = command_arguments.visible_runs(actor)
        cls, instance, run_id = workflows.find(name).choose(number, {}), None, None
        if id is not None:
            # The run may have another version than the class that was named: draw the graph that it runs.
            target = find_run(_find_id(cls, id), storage=storage(), workflow=cls.name, visible_runs=visible_runs)
            access.require_access(actor.user, access.VIEW, alias=storage().alias, run=target.row)
            instance, run_id = instance_of(target, storage=storage()), str(target.selected_run_id)
            cls = instance.workflow
        if not issubclass(cls, GraphWorkflow):
            problem = f"{printing.escape(name)} is not a graph workflow, so there is nothing to draw"
            raise CommandError(
                printing.with_next_step(problem, "Pass the name of a graph workflow."), returncode=printing.REFUSED
            )
        graph = cls._require_graph()
        if format == "svg":
            picture = draw_graph(cls, instance)
            text = render_svg(picture)
            if picture.drawn.left_out:
                command.stderr.write(f"{picture.drawn.left_out} more steps are not drawn. The format mermaid has all.")
        else:
            text = render.FORMATS[format](graph, instance)
        if output is not None:
            _write_file(text, Path(output))
        if json:
            printing.print_json(command, _graph_output(cls, graph, instance, run_id, format, text, output))
        elif output is None:
            printing.write_line(command, text.rstrip("\n"))


def _graph_output(
    cls: type[GraphWorkflow],
    graph: Graph,
    instance: Instance | None,
    run_id: str | None,
    format: str,
    text: str,
    output: str | None,
) -> GraphDrawn:
    states = render.states(instance)
    return GraphDrawn(
        workflow=cls.name,
        version=cls.version,
        run_id=run_id,
        steps=[StepDrawn(key=key_of(step), name=name_of(step), state=states.get(step)) for step in graph.steps],
        arrows=[
            ArrowDrawn(source=key_of(edge.source), event=edge.event, target=key_of(target), dynamic=edge.dynamic)
            for edge in graph.edges()
            for target in edge.targets
        ],
        format=format,
        drawing=text if output is None else None,
        output=output,
    )


def _write_file(text: str, path: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise printing.usage_error(
            f"{printing.escape(path)} cannot be written: {exc.strerror}", "Choose another --output."
        ) from exc


def _find_id(cls: Any, id: str) -> str:
    """Return a business id from ``--id``, which may be the value that identifies the run (``unique``)."""
    if cls.unique is None or id.startswith(f"{cls.unique.key}::"):
        return id
    try:
        if "-" not in id:
            return str(cls.unique.id_for(id))
        return id
    except TemporalexError:
        return id
