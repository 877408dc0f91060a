"""What commands print: JSON for programs, tables for people, progress on the side.

A table takes the width of the terminal; without one its rows are lines, as long as they get.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

_NARROWEST, _ENDLESS = 20, 10_000
_BAR = 30


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


def progress(command: BaseCommand, done: int, total: int, said: str = "") -> None:
    """How far long work is, on the standard error where that is a terminal."""
    if command.stderr.isatty() and total:
        end = "\n" if done == total else ""
        bar = "#" * (_BAR * done // total)
        command.stderr.write(f"\r[{bar:<{_BAR}}] {done:,} of {total:,}{said}{end}", ending="")
