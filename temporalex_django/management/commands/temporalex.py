"""The command ``manage.py temporalex <subcommand>``; each subcommand is a module beside this package."""

from __future__ import annotations

from argparse import SUPPRESS
from typing import Any, ClassVar, Protocol

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import background_tasks, tasks
from temporalex_django.management.cli import exit_codes
from temporalex_django.management.fleet import doctor, drain, health, migrate, switches, worker
from temporalex_django.management.runs import (
    bulk,
    describe,
    export,
    graph,
    history,
    list_runs,
    operator_commands,
    query,
    replay,
    resume,
    signal,
    start,
    update,
    versions,
)
from temporalex_django.workers import hash_seed


class Subcommand(Protocol):
    """A module with a docstring, which is its help text, and with these functions.

    ``output`` is the type of what ``--json`` prints.
    """

    __doc__: str | None
    output: Any

    def add_arguments(self, parser: CommandParser) -> None: ...

    def handle(self, command: BaseCommand, **options: Any) -> None: ...


class _Subparser(CommandParser):
    """Parser of one subcommand, which adds its arguments only when it parses.

    The arguments of the other subcommands would import modules that this command does not need.
    """

    module: Subcommand | None = None

    def fill_arguments(self) -> None:
        if self.module is not None:
            self.module.add_arguments(self)
            _add_general(self)
            # Filled once: parsing again must not add the arguments a second time.
            self.module = None

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        self.fill_arguments()
        namespace, unknown_arguments = super().parse_known_args(*args, **kwargs)
        if unknown_arguments:  # reported here, with the usage of the subcommand
            self.error(f"unrecognized arguments: {' '.join(unknown_arguments)}")
        return namespace, unknown_arguments

    def add_subparsers(self, **options: Any) -> Any:
        return super().add_subparsers(**{"parser_class": _Nested, **options})


class _Nested(_Subparser):
    """Parser of an action within a subcommand, such as ``switches off``."""

    general = False

    def fill_arguments(self) -> None:
        if not self.general:
            _add_general(self)
            self.general = True


class Command(BaseCommand):
    """Run and operate durable workflows."""

    help = "Run and operate durable workflows."
    # A worker needs neither the URLs nor the templates of the project, so their checks are not run.
    requires_system_checks = ["temporalex"]
    subcommands: ClassVar[dict[str, Any]] = {
        "start": start,
        "list": list_runs,
        "describe": describe,
        "history": history,
        "signal": signal,
        "update": update,
        "query": query,
        "resume": resume,
        **operator_commands.COMMANDS,
        **drain.COMMANDS,
        "switches": switches,
        "tasks": tasks,
        "bulk": bulk,
        "enqueued": background_tasks,
        "doctor": doctor,
        "export": export,
        "graph": graph,
        "health": health,
        "migrate": migrate,
        "replay": replay,
        "versions": versions,
        "worker": worker,
    }

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(
            dest="subcommand", required=True, title="subcommands", metavar="SUBCOMMAND", parser_class=_Subparser
        )
        for name, module in self.subcommands.items():
            # Argparse formats help texts with %.
            description = (module.__doc__ or "").strip().replace("%", "%%")
            subparser = parsers.add_parser(name, help=description.split("\n", 1)[0], description=description)
            subparser.module = module
            if not parser.called_from_command_line:  # call_command reads the options of all subcommands
                subparser.fill_arguments()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command. A worker first restarts its process with the hash seed of the project, if it can."""
        if argv[2:3] == ["worker"]:
            hash_seed.restart(argv[1:])
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> Any:
        """Execute the command, without system checks for two subcommands.

        ``doctor`` reports what the checks find itself. ``health`` must be quick, and uses no database.
        """
        if options.get("subcommand") in ("doctor", "health"):
            options["skip_checks"] = True
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        del args
        # Every expected error becomes an exit status here, so subcommands just raise.
        with exit_codes.exit_on_errors(self):
            self.subcommands[options.pop("subcommand")].handle(self, **options)


def _add_general(parser: CommandParser) -> None:
    """Let the options of every Django command follow the subcommand, too.

    An option that is not given leaves the value that came before the subcommand.
    """
    general = parser.add_argument_group("general options")
    general.add_argument("--settings", default=SUPPRESS, help=SUPPRESS)  # manage.py has read it already
    general.add_argument("--pythonpath", default=SUPPRESS, help=SUPPRESS)
    general.add_argument("-v", "--verbosity", default=SUPPRESS, type=int, choices=[0, 1, 2, 3], help=SUPPRESS)
    for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        general.add_argument(option, action="store_true", default=SUPPRESS, help=SUPPRESS)
