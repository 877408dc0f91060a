"""Confirmation, at a terminal, of what cannot be undone."""

from __future__ import annotations

import sys

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.management.cli import exit_codes
from temporalex_django.management.cli.printing import escape

_YES_ANSWERS = {"y", "yes"}


def add_yes_argument(parser: CommandParser) -> None:
    """Add the option ``--yes``, which answers the question in advance."""
    parser.add_argument(
        "--yes", action="store_true", help="Skip the confirmation prompt. Without a terminal, there is no prompt."
    )


def confirm(command: BaseCommand, question: str, *, yes: bool) -> None:
    """Ask for confirmation if the standard input is a terminal and ``--yes`` is not given.

    Raises ``CommandError`` unless the answer is yes.
    """
    # A script without a terminal could only hang at a question.
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    # On the standard error, so that the output stays JSON.
    command.stderr.write(f"{escape(question)} [y/N] ", ending="")
    command.stderr.flush()
    if sys.stdin.readline().strip().lower() not in _YES_ANSWERS:
        raise CommandError(
            exit_codes.with_next_step("nothing was done", "Answer y, or use --yes."), returncode=exit_codes.FINDINGS
        )
