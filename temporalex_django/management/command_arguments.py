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
from temporalex_django.management.exit_codes import usage_error
from temporalex_django.management.printing import add_json_argument, escape


def add_run_arguments(parser: CommandParser) -> None:
    """Which run, and in whose name; the answer may be JSON."""
    parser.add_argument("run", metavar="RUN", help="its id (then the newest run of it is meant), or its run id")
    parser.add_argument("--workflow", metavar="NAME", help="of this class, where several have the id")
    people.add_user_argument(parser)
    add_json_argument(parser)


def find_target(run: str, workflow: str | None, *, actor: Actor) -> RunTarget:
    """The run to act on, among those that there are for him; whether he may is for the action to say."""
    run_storage = storage()
    return find_run(
        run, storage=run_storage, workflow=workflow, visible_runs=runs_for(actor.user, alias=run_storage.alias)
    )


def find_visible_target(run: str, workflow: str | None, *, actor: Actor) -> RunTarget:
    """The run to look at. Raises ``CommandError`` for who may not look at runs."""
    return find_run(run, storage=storage(), workflow=workflow, visible_runs=people.visible_runs(actor))


def parse_json(text: str | None, *, option: str) -> Any:
    """The value of an option; ``-`` reads it from the standard input. Raises ``CommandError`` for what is no JSON."""
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as exc:
        reason = "it is nested too deep" if isinstance(exc, RecursionError) else str(exc)
        raise usage_error(
            f"{option} {escape(text[:60])} is no JSON: {escape(reason)}",
            f"""Quote it for the shell: {option} '{{"a": 1}}'; a text is '"text"'; {option} - reads it from the input.""",
        ) from exc


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
