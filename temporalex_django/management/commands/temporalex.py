"""The command ``manage.py temporalex SUBCOMMAND``; each subcommand is a class of ``management``."""

from __future__ import annotations

from argparse import SUPPRESS
from inspect import cleandoc
from typing import Any, ClassVar, Protocol

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import fleet_commands, outputs, run_commands
from temporalex_django.management.bulk import BulkCommand
from temporalex_django.management.doctor import DoctorCommand
from temporalex_django.management.fleet_commands import MigrateCommand, OutgoingCommand, SwitchesCommand, SyncCommand
from temporalex_django.management.graph import GraphCommand
from temporalex_django.management.read_commands import (
    DescribeCommand,
    ExportCommand,
    HistoryCommand,
    ListCommand,
    VersionsCommand,
)
from temporalex_django.management.replay import ReplayCommand
from temporalex_django.management.run_commands import (
    QueryCommand,
    ResumeCommand,
    SignalCommand,
    StartCommand,
    UpdateCommand,
)
from temporalex_django.management.schedules import SchedulesCommand
from temporalex_django.management.tasks import TASK_COMMANDS, EnqueuedCommand, TasksCommand
from temporalex_django.management.worker import HealthCommand, WorkerCommand
from temporalex_django.workers import app_modules


class Subcommand(Protocol):
    """A subcommand of ``temporalex``, such as ``start``.

    Its docstring is the help text. ``output`` is the type of the object that ``--json`` prints, or a tuple of such
    types.
    """

    __doc__: str | None
    output: Any

    def add_arguments(self, parser: CommandParser) -> None: ...

    def handle(self, command: BaseCommand, **options: Any) -> None: ...


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
    subcommands: ClassVar[dict[str, Any]] = {
        "start": StartCommand(),
        "list": ListCommand(),
        "describe": DescribeCommand(),
        "history": HistoryCommand(),
        "signal": SignalCommand(),
        "update": UpdateCommand(),
        "query": QueryCommand(),
        "resume": ResumeCommand(),
        **run_commands.COMMANDS,
        **fleet_commands.COMMANDS,
        "schedules": SchedulesCommand(),
        "switches": SwitchesCommand(),
        "tasks": TasksCommand(),
        "bulk": BulkCommand(),
        "enqueued": EnqueuedCommand(),
        **TASK_COMMANDS,
        "doctor": DoctorCommand(),
        "export": ExportCommand(),
        "graph": GraphCommand(),
        "health": HealthCommand(),
        "migrate": MigrateCommand(),
        "outbox": OutgoingCommand(),
        "replay": ReplayCommand(),
        "sync": SyncCommand(),
        "versions": VersionsCommand(),
        "worker": WorkerCommand(),
    }

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(
            dest="subcommand", required=True, title="subcommands", metavar="SUBCOMMAND", parser_class=_Subparser
        )
        for name, command in self.subcommands.items():
            # Argparse formats help texts with %.
            description = cleandoc(command.__doc__ or "").replace("%", "%%")
            subparser = parsers.add_parser(name, help=description.split("\n", 1)[0], description=description)
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
