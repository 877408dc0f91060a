"""The command ``manage.py temporalex SUBCOMMAND``; each subcommand is a module or object of ``management``."""

from __future__ import annotations

from argparse import SUPPRESS
from typing import Any, ClassVar, Protocol

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import background_tasks, bulk, doctor, graph, outputs, replay, schedules, tasks
from temporalex_django.management.fleet import drain, health, migrate, outbox, switches, sync, worker
from temporalex_django.management.runs import (
    describe,
    export,
    history,
    list_runs,
    operator_commands,
    query,
    resume,
    signal,
    start,
    update,
    versions,
)
from temporalex_django.workers import app_modules


class Subcommand(Protocol):
    """A module or object that is a subcommand of ``temporalex``, such as ``start``.

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
        "schedules": schedules,
        "switches": switches,
        "tasks": tasks,
        "bulk": bulk,
        "enqueued": background_tasks,
        "doctor": doctor,
        "export": export,
        "graph": graph,
        "health": health,
        "migrate": migrate,
        "outbox": outbox,
        "replay": replay,
        "sync": sync,
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
    """Add the options that every Django command has, so that they may also follow the subcommand.

    If an option is left out there, the value from before the subcommand stays.
    """
    general = parser.add_argument_group("general options")
    general.add_argument("--settings", default=SUPPRESS, help=SUPPRESS)  # manage.py has read it already
    general.add_argument("--pythonpath", default=SUPPRESS, help=SUPPRESS)
    general.add_argument("-v", "--verbosity", default=SUPPRESS, type=int, choices=[0, 1, 2, 3], help=SUPPRESS)
    for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        general.add_argument(option, action="store_true", default=SUPPRESS, help=SUPPRESS)
