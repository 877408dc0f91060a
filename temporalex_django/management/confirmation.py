"""What cannot be undone is asked about, where somebody sits at a terminal."""

from __future__ import annotations

import sys

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.management import exit_codes
from temporalex_django.management.printing import escape

_YES_ANSWERS = {"y", "yes"}


def add_yes_argument(parser: CommandParser) -> None:
    """For whoever does not want to be asked."""
    parser.add_argument("--yes", action="store_true", help="do it without a question; without a terminal none is asked")


def confirm(command: BaseCommand, question: str, *, yes: bool) -> None:
    """Raises ``CommandError`` when somebody at a terminal does not say yes."""
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    command.stderr.write(f"{escape(question)} [y/N] ", ending="")
    command.stderr.flush()
    if sys.stdin.readline().strip().lower() not in _YES_ANSWERS:
        raise CommandError(
            exit_codes.with_next_step("nothing was done", "Answer y, or give --yes."), returncode=exit_codes.FINDINGS
        )
