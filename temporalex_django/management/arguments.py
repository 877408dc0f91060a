"""Arguments of commands: users, filters, values."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet

from temporalex_django.access import VIEW, require_access, runs_for, runs_or_all
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.run_filters import INTERFACE_FILTERS, FilterType
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.names import check_time, quoted
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.management import outputs
from temporalex_django.management.outputs import add_json_argument, escape, usage_error
from temporalex_django.models import Instance, Status
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.run_lookup import find_run

# --- command arguments ------------------------------------------------------------------------------------------------
#
# Arguments that several commands share: the run, JSON values, and the confirmation.


def add_run_arguments(parser: CommandParser) -> None:
    """Add the arguments that name a run (RUN and ``--workflow``), ``--as-user`` and ``--json``."""
    parser.add_argument("run", metavar="RUN", help="Business id (selects its newest run) or run id.")
    parser.add_argument("--workflow", metavar="NAME", help="Workflow class, if several classes have used the id.")
    add_user_argument(parser)
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
    return find_run(run, storage=storage(), workflow=workflow, visible_runs=visible_runs(actor))


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
            outputs.with_next_step("nothing was done", "Answer y, or use --yes."), returncode=outputs.FINDINGS
        )


# --- as user ----------------------------------------------------------------------------------------------------------
#
# The option ``--as-user``, with which a command acts as a user.
#
# The command then does only what that user may do, to runs that they may see, and the audit log names them. Without the
# option it may do anything, and the audit log names the account of the operating system.


def add_user_argument(parser: CommandParser) -> None:
    """Add the option ``--as-user``."""
    parser.add_argument(
        "--as-user",
        metavar="NAME",
        help="Act as this user, with their permissions only (default: act without restrictions).",
    )


def resolve_actor(as_user: str | None) -> Actor:
    """Return the actor of a command: the user with the name ``as_user``, or code if it is None.

    Raises ``CommandError`` if no user has the name.
    """
    if as_user is None:
        return Actor(source="command", account=os_account())
    user_model: Any = get_user_model()
    user = user_model.objects.filter(**{user_model.USERNAME_FIELD: as_user}).first()
    if user is None:
        text = outputs.with_next_step(
            f"--as-user {quoted(as_user)} is not a user", "Pass the name with which they log in."
        )
        raise CommandError(text, returncode=outputs.NOT_FOUND)
    return Actor(user=cast("Person", user), source="command")


def os_account() -> str:
    """Return the name of the operating system's account that owns this process.

    It does not come from the environment, which everybody can set.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, for example
        return f"uid {os.getuid()}"


def visible_runs(actor: Actor) -> QuerySet[Instance]:
    """Return the runs that the actor may look at; all runs for code.

    Raises ``CommandError`` if the user may look at no runs.
    """
    alias = storage().alias
    try:
        require_access(actor.user, VIEW, alias=alias)
    except ActionNotPermitted as exc:
        raise outputs.as_command_error(exc) from exc
    allowed_runs = runs_for(actor.user, alias=alias)
    # None means no restriction: code and commands without a user see all runs.
    return runs_or_all(allowed_runs, alias=alias)


# --- filter options ---------------------------------------------------------------------------------------------------
#
# The filters of ``list`` and ``bulk``, with the names and the errors of REST.


_DEST_PREFIX = "filter_"


def add_filters(parser: CommandParser) -> None:
    """Add an option for each filter of runs to the parser."""
    group = parser.add_argument_group("filters", "A run must match all of them.")
    for name, row in INTERFACE_FILTERS.items():
        # A prefix keeps filters apart from other options of a command, such as an input of the same name.
        group.add_argument(
            _option_name(name), dest=f"{_DEST_PREFIX}{name}", metavar="VALUE", help=row.help.replace("%", "%%")
        )


def filter_names() -> Collection[str]:
    """Return the names of all filters of runs, such as ``id_prefix``."""
    return INTERFACE_FILTERS.keys()


def filters_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the filters that were given on the command line, by the name of the filter.

    ``options`` are the parsed options of the command.
    """
    option_values = {name: options.get(f"{_DEST_PREFIX}{name}") for name in INTERFACE_FILTERS}
    return {name: value for name, value in option_values.items() if value is not None}


def apply_filters(runs: QuerySet[Instance], filters: Mapping[str, str]) -> QuerySet[Instance]:
    """Return the runs for which all filters hold.

    Raises ``CommandError`` for a value that a filter does not take; it says which values there are.
    """
    for name, value in filters.items():
        # Databases refuse some control characters in parameters.
        if not value.isprintable():
            raise usage_error(
                f"{_option_name(name)} {escape(value)} contains unprintable characters",
                "Use printable characters only.",
            )
    # With REST, the import takes as long as all other imports together, and a worker does not need it.
    from temporalex_django.forms.run_filters import RunFilter  # noqa: PLC0415 - see above

    form = RunFilter(data=filters, queryset=runs)
    if not form.is_valid():
        # One error is enough: the person corrects the command line one option at a time.
        name, messages = next(iter(form.errors.items()))
        next_step = _next_step(name)
        raise usage_error(
            f"{_option_name(name)} {escape(filters[name])}: {escape(' '.join(map(str, messages)))}", next_step
        )
    filtered_runs: QuerySet[Instance] = form.qs
    return filtered_runs


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _next_step(name: str) -> str:
    """Return the sentence after an error about a filter: its valid values, or an example."""
    row = INTERFACE_FILTERS[name]
    if row.type is FilterType.STATUSES:
        return f"Use one of: {', '.join(Status.values)}."
    # Attributes belong to a class, so they need the option for the class beside them.
    needed_option = "--workflow NAME " if row.type is FilterType.ATTRIBUTES else ""
    return f"Write: {needed_option}{_option_name(name)} {row.example}."
