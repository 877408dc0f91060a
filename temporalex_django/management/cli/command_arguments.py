"""Arguments that several commands share: the run, JSON values, and the confirmation."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.access import runs_for
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.names import check_time
from temporalex_django.management.cli import as_user as people
from temporalex_django.management.cli import exit_codes
from temporalex_django.management.cli.exit_codes import usage_error
from temporalex_django.management.cli.printing import add_json_argument, escape
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.run_lookup import find_run


def add_run_arguments(parser: CommandParser) -> None:
    """Add the arguments that name a run (RUN and ``--workflow``), ``--as-user`` and ``--json``."""
    parser.add_argument("run", metavar="RUN", help="Business id (selects its newest run) or run id.")
    parser.add_argument("--workflow", metavar="NAME", help="Workflow class, if several classes have used the id.")
    people.add_user_argument(parser)
    add_json_argument(parser)


def find_target(run: str, workflow: str | None, *, actor: Actor) -> RunTarget:
    """Return the run on which a command operates; ``run`` is a run id, or a business id, which means its newest run.

    ``workflow`` is the name of a class that the run must have; None means any. Runs that the access policy hides from
    the actor are not found. The operation itself checks if the actor may perform it. Raises ``WorkflowNotFound`` and
    ``AmbiguousId``.
    """
    run_storage = storage()
    return find_run(
        run, storage=run_storage, workflow=workflow, visible_runs=runs_for(actor.user, alias=run_storage.alias)
    )


def find_visible_target(run: str, workflow: str | None, *, actor: Actor) -> RunTarget:
    """Return the run that a command reads, among the runs that the actor may look at.

    ``run`` is a run id, or a business id, which means its newest run. ``workflow`` is the name of a class that the run
    must have; None means any. Raises ``WorkflowNotFound`` and ``AmbiguousId``, and ``CommandError`` if the actor may
    look at no runs.
    """
    return find_run(run, storage=storage(), workflow=workflow, visible_runs=people.visible_runs(actor))


def parse_json(text: str | None, *, option: str) -> Any:
    """Parse ``text``, the value of an option, as JSON; ``-`` reads the JSON from the standard input.

    Returns None for an option that is not given (None). Raises ``CommandError`` for malformed JSON, with ``option`` as
    the name of the option.
    """
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    try:
        # Python reads NaN and Infinity, which are not JSON, and which no payload can contain.
        return json.loads(text, parse_constant=_reject_constant)
    # Hostile or generated JSON may be nested too deeply: that is a usage error as well.
    except (ValueError, RecursionError) as exc:
        reason = "it is nested too deeply"
        if not isinstance(exc, RecursionError):
            reason = str(exc)
        raise usage_error(
            f"{option} {escape(text[:60])} is not valid JSON: {escape(reason)}",
            f"""Quote it for the shell: {option} '{{"a": 1}}'. Write a string as '"text"'. """
            f"{option} - reads standard input.",
        ) from exc


def parse_time(text: str | None, *, option: str) -> datetime | None:
    """Parse ``text``, the value of an option, as a time in ISO 8601 with an offset from UTC.

    Returns None for an option that is not given (None). Raises ``CommandError``, with ``option`` as its name.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise usage_error(
            f"{option} {escape(text[:60])} is not a time with an offset from UTC",
            f"Write {option} 2026-11-27T09:00:00+01:00.",
        )
    try:
        return check_time(moment, label=option)
    except ValueError as exc:
        raise usage_error(str(exc), f"Write {option} 2026-11-27T09:00:00+01:00.") from None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_YES_ANSWERS = {"y", "yes"}


def add_yes_argument(parser: CommandParser) -> None:
    """Add the option ``--yes``, with which a command does not ask for confirmation."""
    parser.add_argument(
        "--yes", action="store_true", help="Skip the confirmation prompt. Without a terminal, there is no prompt."
    )


def confirm(command: BaseCommand, question: str, *, yes: bool) -> None:
    """Ask the question on standard error, and raise ``CommandError`` unless the answer is yes.

    Nothing is asked with ``--yes``, or if the standard input is not a terminal.
    """
    # A script without a terminal could only hang at a question.
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    # On standard error, so that the output stays JSON.
    command.stderr.write(f"{escape(question)} [y/N] ", ending="")
    command.stderr.flush()
    if sys.stdin.readline().strip().lower() not in _YES_ANSWERS:
        raise CommandError(
            exit_codes.with_next_step("nothing was done", "Answer y, or use --yes."), returncode=exit_codes.FINDINGS
        )
