"""What commands print: JSON for programs, tables for people, progress on the side.

A table takes the width of the terminal; without one its rows are lines, as long as they get.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, cast

import msgspec
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

_NARROWEST, _ENDLESS = 20, 10_000
_BAR = 30
Tell = Callable[..., None]


def add_json(parser: CommandParser) -> None:
    """For programs."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def safe(text: object) -> str:
    """As one line that a terminal shows and does not obey: line ends and escapes are written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def write(command: BaseCommand, text: str) -> None:
    """A line, in whatever the standard output can write."""
    encoding = getattr(command.stdout, "encoding", None) or "utf-8"
    command.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def document(command: BaseCommand, value: Any) -> None:
    """One value as JSON that people can read, too."""
    write(command, json.dumps(_plain(value), indent=2))


def record(command: BaseCommand, value: Any) -> None:
    """One of many: a line of JSON."""
    write(command, json.dumps(_plain(value), separators=(",", ":")))


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=repr)


def table(command: BaseCommand, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns; no heading at all: names and what stands behind them."""
    from rich.console import Console  # noqa: PLC0415 - a worker draws no tables
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    drawn = Table(box=None, pad_edge=False, show_header=any(headings), header_style="", padding=(0, 2, 0, 0))
    for heading in headings:
        drawn.add_column(heading, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(safe(cell)) for cell in row))
    out = io.StringIO()
    Console(file=out, width=_width(command), color_system=None, force_terminal=False).print(drawn)
    write(command, "\n".join(line.rstrip() for line in out.getvalue().splitlines()))


def _width(command: BaseCommand) -> int:
    if command.stdout.isatty() or "COLUMNS" in os.environ:
        return max(_NARROWEST, shutil.get_terminal_size().columns)
    return _ENDLESS


def moment(at: datetime | None) -> str:
    """In the zone of the project."""
    return "" if at is None else timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def watched(command: BaseCommand, *, lines: bool = False) -> bool:
    """Whether somebody sees how far long work is; with ``lines``, which are printed meanwhile, they say it."""
    return command.stderr.isatty() and not (lines and command.stdout.isatty())


def _nobody_looks(*_: object) -> None:
    pass


@contextmanager
def progress(command: BaseCommand, *, lines: bool = False) -> Iterator[Tell]:
    """A bar on the standard error, where that is ``watched``; what this gives is told how much of how much is done."""
    if not watched(command, lines=lines):
        yield _nobody_looks
        return
    from rich.console import Console  # noqa: PLC0415 - a worker draws no bars
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - as above

    out = Console(file=cast("IO[str]", getattr(command.stderr, "_out", command.stderr)), force_terminal=True)
    counted = TextColumn("{task.completed:,.0f} of {task.total:,.0f}{task.fields[said]}", markup=False)
    bar = Progress(BarColumn(bar_width=_BAR), counted, TimeRemainingColumn(), console=out)
    shown = bar.add_task("", total=None, said="")

    def tell(done: int, total: int, said: str = "") -> None:
        bar.update(shown, completed=done, total=total, said=safe(said))
        bar.start()  # the first time only: before that there is nothing to show

    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()
