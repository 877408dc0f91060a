"""Draw a graph workflow, with the state of a run if its id is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from django.core.management.base import BaseCommand, CommandError

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
from temporalex_django.management.arguments import (
    ActorOption,
    Argument,
    JsonOption,
    Option,
    VersionOption,
    subcommand,
)
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


@subcommand("graph", output=GraphDrawn)
def draw(
    command: BaseCommand,
    *,
    name: Annotated[str, Argument("Name of the workflow.", "NAME")],
    format: Annotated[
        str, Option("Format of the drawing (default: mermaid).", choices=(*render.FORMATS, "svg"))
    ] = "mermaid",
    id: Annotated[str | None, Option("A run: its business id, the value of its business key, or its run id.", "ID")],
    number: VersionOption,
    actor: ActorOption,
    output: Annotated[str | None, Option("File for the drawing (default: standard output).", "FILE")],
    json: JsonOption,
) -> None:
    """Draw a graph workflow, with the state of a run if its id is given."""
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
