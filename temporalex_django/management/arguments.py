"""Subcommands and their arguments: how functions declare them, and users, filters and values."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from functools import cached_property
from inspect import Parameter, cleandoc, signature
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

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
from temporalex_django.management.outputs import escape, usage_error
from temporalex_django.models import Instance, Status
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.run_lookup import find_run

# --- runs and values --------------------------------------------------------------------------------------------------


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


def resolve_actor(name: str | None, *, option: str) -> Actor:
    """Return the actor of a command: the user with the name, which is the value of an option, or code if it is None.

    Raises ``CommandError`` if no user has the name.
    """
    if name is None:
        return Actor(source="command", account=os_account())
    user_model: Any = get_user_model()
    user = user_model.objects.filter(**{user_model.USERNAME_FIELD: name}).first()
    if user is None:
        text = outputs.with_next_step(f"{option} {quoted(name)} is not a user", "Pass the name with which they log in.")
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


# --- filters ----------------------------------------------------------------------------------------------------------
#
# The filters of ``list`` and ``bulk``, with the names and the errors of REST.


def apply_filters(runs: QuerySet[Instance], filters: Mapping[str, str]) -> QuerySet[Instance]:
    """Return the runs for which all filters hold.

    Raises ``CommandError`` for a value that a filter does not take; it says which values there are.
    """
    for name, value in filters.items():
        # Databases refuse some control characters in parameters.
        if not value.isprintable():
            raise usage_error(
                f"{option_name(name)} {escape(value)} contains unprintable characters",
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
            f"{option_name(name)} {escape(filters[name])}: {escape(' '.join(map(str, messages)))}", next_step
        )
    filtered_runs: QuerySet[Instance] = form.qs
    return filtered_runs


def option_name(name: str) -> str:
    """Return the option for a name in Python, such as ``--dry-run`` for ``dry_run``."""
    return f"--{name.replace('_', '-')}"


def _next_step(name: str) -> str:
    """Return the sentence after an error about a filter: its valid values, or an example."""
    row = INTERFACE_FILTERS[name]
    if row.type is FilterType.STATUSES:
        return f"Use one of: {', '.join(Status.values)}."
    # Attributes belong to a class, so they need the option for the class beside them.
    needed_option = "--workflow NAME " if row.type is FilterType.ATTRIBUTES else ""
    return f"Write: {needed_option}{option_name(name)} {row.example}."


# --- declarations -----------------------------------------------------------------------------------------------------
#
# A subcommand is a function. Its docstring is the help text, and the annotations of its parameters declare arguments:
#
#     @subcommand("versions", output=Sequence[VersionOpen])
#     def list_versions(command: BaseCommand, *, flows: Annotated[list[str], Argument("Only these.", "FLOW")]) -> None:
#         """List the versions that open runs use."""
#
# The annotations are evaluated when the subcommand is used, so that others do not need what is in them.


class ParsedValue:
    """A value that a parameter of a subcommand gets from the parsed options, such as a general option of Django."""

    def add(self, parser: CommandParser, parameter: Parameter, action: Any) -> None:
        """Add the arguments of a parameter to a parser. ``action`` is the action of the subcommand, or None."""

    def read(self, options: Mapping[str, Any], parameter: Parameter, action: Any) -> Any:
        """Return the value of a parameter, and its default for an argument that the subcommand does not have.

        Raises ``CommandError`` for a value that is not valid.
        """
        return options.get(parameter.name, parameter.default)


@dataclass(frozen=True)
class Argument(ParsedValue):
    """A positional argument with the name and the type of the parameter.

    - ``help`` and ``metavar``: as for ``add_argument``.
    - ``choices``: the allowed values; for a ``Literal``, these are its values.
    - ``type``: a function that parses the text, if the parser has to do more than for an int, a float or a str.
    - ``when``: a function of the action, which returns True if the subcommand of that action has the argument.

    A ``list`` takes any number of values. An argument whose type includes None can be left out.
    """

    help: str
    metavar: str | tuple[str, ...] | None = None
    _: KW_ONLY
    choices: Collection[str] = ()
    type: Callable[[str], Any] | None = None
    when: Callable[[Any], bool] = lambda _action: True

    def add(self, parser: CommandParser, parameter: Parameter, action: Any) -> None:
        """Add the argument to a parser."""
        if self.when(action):
            value_type, is_list, is_optional = _split_type(parameter)
            nargs = "*" if is_list else "?" if is_optional else None
            parser.add_argument(parameter.name, nargs=nargs, **self.settings(value_type))

    def settings(self, value_type: Any) -> dict[str, Any]:
        """Return the arguments of ``add_argument`` that options have as well."""
        if value_type is bool:
            return {"help": self.help}
        literals = get_args(value_type) if get_origin(value_type) is Literal else ()
        return {
            "help": self.help,
            "metavar": self.metavar,
            "choices": self.choices or literals or None,
            "type": self.type or (value_type if value_type in (int, float) else None),
        }


@dataclass(frozen=True, kw_only=True)
class Option(Argument):
    """An option with the name, the type and the default of the parameter, such as ``--dry-run`` for ``dry_run``.

    - ``name``: the name of the option, if it is not that of the parameter.
    - ``dest``: the name of the value for ``call_command``, if it is not that of the parameter.
    - ``nargs``: the number of values of a ``list``. Without it, the option can be repeated.
    - ``required``: True if the option cannot be left out.
    - ``is_positive``: True if the number has to be at least 1.

    A ``bool`` is True if the option is given. The text of a ``datetime`` is a time with an offset, that of ``Any`` is
    JSON, and that of an ``Actor`` is the name of a user.
    """

    name: str = ""
    dest: str = ""
    nargs: int | None = None
    required: bool = False
    is_positive: bool = False

    def add(self, parser: CommandParser, parameter: Parameter, action: Any) -> None:
        """Add the option to a parser."""
        if not self.when(action):
            return
        value_type, is_list, _ = _split_type(parameter)
        settings = self.settings(value_type)
        if value_type is bool:
            settings["action"] = "store_true"
        elif is_list and self.nargs is None:
            settings["action"] = "append"
        else:
            settings["nargs"] = self.nargs
        if parameter.default is not Parameter.empty:
            settings["default"] = parameter.default
        parser.add_argument(self.label(parameter), dest=self.dest or parameter.name, required=self.required, **settings)

    def label(self, parameter: Parameter) -> str:
        """Return the option as people write it."""
        return self.name or option_name(parameter.name)

    def read(self, options: Mapping[str, Any], parameter: Parameter, action: Any) -> Any:
        """Return the value of the option, converted to the type of the parameter."""
        label, value = self.label(parameter), options.get(self.dest or parameter.name, parameter.default)
        if self.is_positive and value is not None and value < 1:
            raise usage_error(f"{label} {value} is too small", "Give a number of at least 1.")
        convert = _CONVERTERS.get(_split_type(parameter)[0])
        return value if convert is None else convert(value, option=label)


#: Functions that convert the text of an option, or None, by the type of the parameter.
_CONVERTERS: dict[Any, Callable[..., Any]] = {Any: parse_json, datetime: parse_time, Actor: resolve_actor}


def _split_type(parameter: Parameter) -> tuple[Any, bool, bool]:
    """Return the type of one value of a parameter, and if it takes a list and if its type includes None."""
    annotated_type = get_args(parameter.annotation)[0]
    is_optional = NoneType in get_args(annotated_type)
    value_type = get_args(annotated_type)[0] if is_optional else annotated_type
    is_list = get_origin(value_type) is list
    return get_args(value_type)[0] if is_list else value_type, is_list, is_optional


class RunFilters(ParsedValue):
    """The options for the filters of runs. Their value has the texts of those that were given, by name."""

    def add(self, parser: CommandParser, parameter: Parameter, action: Any) -> None:
        """Add an option for each filter of runs to a parser."""
        group = parser.add_argument_group("filters", "A run must match all of them.")
        for name, row in INTERFACE_FILTERS.items():
            # A prefix keeps filters apart from other options of a command, such as an input with that name.
            group.add_argument(
                option_name(name), dest=f"filter_{name}", metavar="VALUE", help=row.help.replace("%", "%%")
            )

    def read(self, options: Mapping[str, Any], parameter: Parameter, action: Any) -> dict[str, str]:
        """Return the texts of the filters that were given on the command line, by the name of the filter."""
        texts = {name: options.get(f"filter_{name}") for name in INTERFACE_FILTERS}
        return {name: text for name, text in texts.items() if text is not None}


def limit_option(noun: str) -> Option:
    """Return the option ``--limit`` of a command that lists many rows, such as "runs"."""
    help_text = f"Print at most N {noun} (default: {DEFAULT_LIMIT}; with --json, all)."
    return Option(help_text, "N", is_positive=True)


DEFAULT_LIMIT = 50
RunArgument = Annotated[str, Argument("Business id (selects its newest run) or run id.", "RUN")]
WorkflowOption = Annotated[str | None, Option("Workflow class, if several classes have used the id.", "NAME")]
FlowArgument = Annotated[str, Argument("Name of the workflow.", "FLOW")]
VersionOption = Annotated[int | None, Option("Version of the workflow.", "N", name="--version")]
ActorOption = Annotated[
    Actor,
    Option(
        "Act as this user, with their permissions only (default: act without restrictions).",
        "NAME",
        name="--as-user",
        dest="as_user",
    ),
]
PayloadOption = Annotated[Any, Option("Payload of the signal, as JSON; use - to read it from standard input.", "JSON")]
JsonOption = Annotated[bool, Option("Print JSON.")]
ReasonOption = Annotated[str, Option("Reason, recorded in the audit log.", "TEXT")]
_SKIP_PROMPT = "Skip the confirmation prompt. Without a terminal, there is no prompt."
YesOption = Annotated[bool, Option(_SKIP_PROMPT)]
#: The option ``--yes`` of the command of an action, if that cannot be undone.
YesOptionIfDestructive = Annotated[bool, Option(_SKIP_PROMPT, when=lambda action: action.destructive)]
FilterOptions = Annotated[dict[str, str], RunFilters()]


@dataclass(eq=False, kw_only=True)
class Subcommand:
    """A subcommand of ``temporalex``, such as ``start``, or a word after one, such as ``off`` in ``switches off``.

    - ``output``: the type of the object that ``--json`` prints, or a tuple of such types.
    - ``description`` and ``summary``: the help text, by default the docstring of the function, and its line in a list
      of subcommands, by default the first line of the help text.
    - ``action``: the class of the action that the function gets, for a function that serves several subcommands.
    - ``words``: the words that follow it, by name. With words, its function is not called.
    """

    function: Callable[..., None]
    output: Any = None
    description: str = ""
    summary: str = ""
    action: Any = None
    words: dict[str, Subcommand] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.description = self.description or cleandoc(self.function.__doc__ or "")
        self.summary = self.summary or self.description.split("\n", 1)[0]

    def word(self, name: str, **settings: Any) -> Callable[[Callable[..., None]], Subcommand]:
        """Return a decorator that makes a function a word after this subcommand."""
        return subcommand(name, table=self.words, **settings)

    @cached_property
    def parameters(self) -> list[tuple[Parameter, ParsedValue]]:
        """The parameters of the function that declare arguments, with their declarations."""
        parameters = signature(self.function, eval_str=True).parameters.values()
        return [
            (parameter, parameter.annotation.__metadata__[0])
            for parameter in parameters
            if get_origin(parameter.annotation) is Annotated
        ]

    def add_parser(self, parsers: Any, name: str) -> Any:
        """Return a new parser for the subcommand, without arguments."""
        # Argparse formats help texts with %.
        summary, description = self.summary.replace("%", "%%"), self.description.replace("%", "%%")
        return parsers.add_parser(name, help=summary, description=description)

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the words or the arguments of the subcommand to its parser."""
        if self.words:
            parsers = parser.add_subparsers(
                dest="word", required=True, title="actions", metavar="ACTION", help="What to do."
            )
            for name, word in self.words.items():
                word.add_arguments(word.add_parser(parsers, name))
        for parameter, parsed_value in self.parameters:
            parsed_value.add(parser, parameter, self.action)

    def handle(self, command: BaseCommand, **options: Any) -> None:
        """Call the function with the values of its parameters. Raises ``CommandError`` for one that is not valid."""
        if self.words:
            self.words[options["word"]].handle(command, **options)
            return
        values = {
            parameter.name: parsed_value.read(options, parameter, self.action)
            for parameter, parsed_value in self.parameters
        }
        if self.action is not None:
            values["action"] = self.action
        self.function(command, **values)


#: The subcommands of ``temporalex`` by name. The decorator ``subcommand`` adds them.
SUBCOMMANDS: dict[str, Subcommand] = {}


def subcommand(
    name: str, *, table: dict[str, Subcommand] = SUBCOMMANDS, **settings: Any
) -> Callable[[Callable[..., None]], Subcommand]:
    """Return a decorator that makes a function a subcommand; ``settings`` are those of ``Subcommand``."""

    def add(function: Callable[..., None]) -> Subcommand:
        table[name] = Subcommand(function=function, **settings)
        return table[name]

    return add
