"""``manage.py temporalex <subcommand>``: each subcommand is a module beside this package."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from django.core.management.base import BaseCommand, CommandParser

from temporalex_django.management import export, graph, migrate, replay, versions, worker


class Subcommand(Protocol):
    """A module with these: a one-line docstring, its arguments, and what it does."""

    __doc__: str | None

    def add_arguments(self, parser: CommandParser) -> None: ...

    def handle(self, command: BaseCommand, **options: Any) -> None: ...


class Command(BaseCommand):
    """Run and look after durable workflows."""

    help = "Run and look after durable workflows."
    # a worker needs neither the URLs nor the templates of the project
    requires_system_checks = ["temporalex"]
    subcommands: ClassVar[dict[str, Any]] = {
        "export": export,
        "graph": graph,
        "migrate": migrate,
        "replay": replay,
        "versions": versions,
        "worker": worker,
    }

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="subcommand", required=True, title="subcommands")
        for name, module in self.subcommands.items():
            text = (module.__doc__ or "").strip()
            module.add_arguments(parsers.add_parser(name, help=text.split("\n", 1)[0], description=text))

    def handle(self, *args: Any, **options: Any) -> None:
        del args
        self.subcommands[options.pop("subcommand")].handle(self, **options)
