"""The output of commands: JSON for programs, tables for people, and progress on standard error.

A table is as wide as the terminal. Without a terminal, or without rich (the extra ``rich``), each row is one line of
any length. Without rich, progress is a number.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from typing import IO, Any, cast

import msgspec
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

_MIN_WIDTH, _UNLIMITED_WIDTH = 20, 10_000
_BAR_WIDTH = 30
ReportProgress = Callable[..., None]


def add_json_argument(parser: CommandParser) -> None:
    """Add the option ``--json``."""
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def escape(text: object) -> str:
    """Return the text as one line that is safe to print on a terminal: line ends and control characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def write_line(command: BaseCommand, text: str) -> None:
    """Write a line to the output of the command; characters that its encoding lacks are escaped."""
    # A UnicodeEncodeError in the middle of a list would lose the rest of it.
    encoding = getattr(command.stdout, "encoding", None) or "utf-8"
    command.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def print_json(command: BaseCommand, value: Any) -> None:
    """Print one value as JSON with indentation."""
    write_line(command, json.dumps(_to_builtins(value), indent=2))


def print_json_line(command: BaseCommand, value: Any) -> None:
    """Print one value as JSON on a single line, for commands that print many values."""
    write_line(command, json.dumps(_to_builtins(value), separators=(",", ":")))


def _to_builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=repr)


def print_table(command: BaseCommand, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table; without a heading line if all headings are empty."""
    cells = [[escape(cell) for cell in row] for row in rows]
    lines = _plain_lines(headings, cells) if find_spec("rich") is None else _rich_lines(command, headings, cells)
    write_line(command, "\n".join(line.rstrip() for line in lines))


def _plain_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown_rows = [headings, *rows] if any(headings) else rows
    widths = [max(map(len, column)) for column in zip(*shown_rows, strict=True)]
    for row in shown_rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _rich_lines(command: BaseCommand, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    from rich.console import Console  # noqa: PLC0415 - a worker draws no tables
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    grid = Table(box=None, pad_edge=False, show_header=any(headings), header_style="", padding=(0, 2, 0, 0))
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    buffer = io.StringIO()
    Console(file=buffer, width=_table_width(command), color_system=None, force_terminal=False).print(grid)
    return buffer.getvalue().splitlines()


def _table_width(command: BaseCommand) -> int:
    # Cutting columns in a pipe would break grep and friends.
    if command.stdout.isatty() or "COLUMNS" in os.environ:
        return max(_MIN_WIDTH, shutil.get_terminal_size().columns)
    return _UNLIMITED_WIDTH


def format_local_time(at: datetime | None) -> str:
    """Return a time in the time zone of the project as text, such as ``2026-01-31 14:02:00``; empty for None."""
    if at is None:
        return ""
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def is_watched(command: BaseCommand, *, lines: bool = False) -> bool:
    """Return True if a progress bar should be shown: standard error is a terminal.

    ``lines`` is True if the command prints lines meanwhile. If these go to a terminal, they show the progress, and the
    bar is left out.
    """
    return command.stderr.isatty() and not (lines and command.stdout.isatty())


def _ignore_progress(*_: object) -> None:
    pass


@contextmanager
def progress(command: BaseCommand, *, lines: bool = False) -> Iterator[ReportProgress]:
    """Show a progress bar on standard error during the block, if that is a terminal.

    ``lines`` is True if the command prints lines meanwhile; if these go to a terminal, the bar is left out. The value
    is a function that moves the bar; it takes the number that is done, the total, and a note.
    """
    if not is_watched(command, lines=lines):
        yield _ignore_progress
        return
    with _show_count(command) if find_spec("rich") is None else _show_bar(command) as report:
        yield report


@contextmanager
def _show_count(command: BaseCommand) -> Iterator[ReportProgress]:
    shown = ""

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal shown
        line = f"{done:,} of {total:,}{escape(note)}"
        command.stderr.write("\r" + line.ljust(len(shown)), ending="")
        shown = line

    try:
        yield report
    finally:
        if shown:
            command.stderr.write("")


@contextmanager
def _show_bar(command: BaseCommand) -> Iterator[ReportProgress]:
    from rich.console import Console  # noqa: PLC0415 - a worker draws no bars
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - as above

    # Django wraps its streams, and rich needs the raw one; the check for a terminal was made above.
    console = Console(file=cast("IO[str]", getattr(command.stderr, "_out", command.stderr)), force_terminal=True)
    count_column = TextColumn("{task.completed:,.0f} of {task.total:,.0f}{task.fields[said]}", markup=False)
    bar = Progress(BarColumn(bar_width=_BAR_WIDTH), count_column, TimeRemainingColumn(), console=console)
    task_id = bar.add_task("", total=None, said="")

    def report(done: int, total: int, note: str = "") -> None:
        bar.update(task_id, completed=done, total=total, said=escape(note))
        bar.start()  # only the first call does anything: before it there is nothing to show

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
