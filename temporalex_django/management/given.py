"""What several commands are given: the run that is meant, and JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import CommandParser

from temporalex_django.access import runs_for
from temporalex_django.actions.base import Actor, storage
from temporalex_django.actions.targets import RunTarget, find_run
from temporalex_django.management import as_user as people
from temporalex_django.management.exits import misused
from temporalex_django.management.printing import add_json, safe


def add_run(parser: CommandParser) -> None:
    """Which run, and in whose name; the answer may be JSON."""
    parser.add_argument("run", metavar="RUN", help="its id (then the newest run of it is meant), or its run id")
    parser.add_argument("--workflow", metavar="NAME", help="of this class, where several have the id")
    people.add_argument(parser)
    add_json(parser)


def found(run: str, workflow: str | None, *, by: Actor) -> RunTarget:
    """The run to act on, among those that there are for him; whether he may is for the action to say."""
    there = storage()
    return find_run(run, storage=there, workflow=workflow, visible_runs=runs_for(by.user, alias=there.alias))


def looked_at(run: str, workflow: str | None, *, by: Actor) -> RunTarget:
    """The run to look at. Raises ``CommandError`` for who may not look at runs."""
    return find_run(run, storage=storage(), workflow=workflow, visible_runs=people.runs_of(by))


def json_of(text: str | None, *, option: str) -> Any:
    """The value of an option; ``-`` reads it from the standard input. Raises ``CommandError`` for what is no JSON."""
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        why = "it is nested too deep" if isinstance(exc, RecursionError) else str(exc)
        raise misused(
            f"{option} {safe(text[:60])} is no JSON: {safe(why)}",
            f"""Quote it for the shell: {option} '{{"a": 1}}'; a text is '"text"'; {option} - reads it from the input.""",
        ) from exc


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
