"""The command ``manage.py temporalex SUBCOMMAND``; the modules of ``management`` have the functions of subcommands."""

from __future__ import annotations

from argparse import SUPPRESS
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

# Each of these modules adds its subcommands to the table.
from temporalex_django.management import (  # noqa: F401 - as above
    bulk,
    doctor,
    fleet_commands,
    graph,
    outputs,
    read_commands,
    replay,
    run_commands,
    schedules,
    tasks,
    worker,
)
from temporalex_django.management.arguments import SUBCOMMANDS, Subcommand
from temporalex_django.workers import app_modules

_RUN_COMMANDS = ("start", "list", "describe", "history", "signal", "update", "query", "resume", *run_commands.COMMANDS)
_FLEET_COMMANDS = ("drain", "undrain", "schedules", "switches", "tasks", "bulk", "enqueued", *tasks.TASK_COMMANDS)
#: The order of the subcommands in help texts. The others follow, sorted by name.
_ORDER = (*_RUN_COMMANDS, *_FLEET_COMMANDS)


class _Subparser(CommandParser):
    """The parser of one subcommand, which gets its arguments only when this subcommand is used.

    So a command does not import the modules that other subcommands need for their arguments.
    """

    command: Subcommand | None = None

    def fill_arguments(self) -> None:
        if self.command is not None:
            self.command.add_arguments(self)
            _add_general(self)
            # Filled once: parsing again must not add the arguments a second time.
            self.command = None

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        self.fill_arguments()
        namespace, unknown_arguments = super().parse_known_args(*args, **kwargs)
        if unknown_arguments:  # reported here, with the usage of the subcommand
            self.error(f"unrecognized arguments: {' '.join(unknown_arguments)}")
        return namespace, unknown_arguments

    def add_subparsers(self, **options: Any) -> Any:
        return super().add_subparsers(**{"parser_class": _Nested, **options})


class _Nested(_Subparser):
    """The parser of a word after a subcommand, such as ``off`` in ``switches off``."""

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
    subcommands: ClassVar[dict[str, Subcommand]] = {
        name: SUBCOMMANDS[name] for name in dict.fromkeys((*_ORDER, *sorted(SUBCOMMANDS)))
    }

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(
            dest="subcommand", required=True, title="subcommands", metavar="SUBCOMMAND", parser_class=_Subparser
        )
        for name, command in self.subcommands.items():
            subparser = command.add_parser(parsers, name)
            subparser.command = command
            if not parser.called_from_command_line:  # call_command reads the options of all subcommands
                subparser.fill_arguments()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line; ``worker`` first restarts its process with the hash seed of the project, if it can."""
        if argv[2:3] == ["worker"]:
            app_modules.restart(argv[1:])
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> Any:
        """Execute the command, for ``doctor`` and ``health`` without Django's system checks.

        ``doctor`` runs the checks itself. ``health`` must be fast, and uses no database.
        """
        if options.get("subcommand") in ("doctor", "health"):
            options["skip_checks"] = True
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        del args
        # Every expected error becomes an exit status here, so subcommands just raise.
        with outputs.exit_on_errors(self):
            self.subcommands[options.pop("subcommand")].handle(self, **options)


def _add_general(parser: CommandParser) -> None:
    """Let the options of every Django command follow the subcommand, too. Values from before it stay."""
    general = parser.add_argument_group("general options")
    general.add_argument("--settings", default=SUPPRESS, help=SUPPRESS)  # manage.py has read it already
    general.add_argument("--pythonpath", default=SUPPRESS, help=SUPPRESS)
    general.add_argument("-v", "--verbosity", default=SUPPRESS, type=int, choices=[0, 1, 2, 3], help=SUPPRESS)
    for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        general.add_argument(option, action="store_true", default=SUPPRESS, help=SUPPRESS)
