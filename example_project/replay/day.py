"""The reader of a day: its baskets, and the problems of lines that cannot be read."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from example_project.shop.money import cents
from example_project.shop.values import Line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = ("basket_id", "timestamp", "product_id", "quantity", "sales_value")
#: A basket's id becomes the id of its run and part of addresses.
BASKET_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
BETWEEN_LINES = timedelta(seconds=20)
LONGEST_LINE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Basket:
    """The purchase of one customer; ``stamp`` is the time of the checkout."""

    id: str
    stamp: datetime
    lines: tuple[Line, ...]

    @property
    def cents(self) -> int:
        """The sum of the lines, in cents."""
        return sum(cents(line.amount) for line in self.lines)

    @property
    def units(self) -> int:
        """The sum of the quantities."""
        return sum(line.quantity for line in self.lines)

    @property
    def begins(self) -> datetime:
        """The time of the first line."""
        return self.arrival(1)

    def arrival(self, number: int) -> datetime:
        """Return the time at which line ``number``, counted from 1, arrives."""
        return self.stamp - BETWEEN_LINES * (len(self.lines) - number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A line that cannot be read. Its basket is not played."""

    line: int
    reason: str
    basket: str = ""


@dataclass(slots=True, kw_only=True)
class Day:
    """The baskets in the order of their first lines, and the problems of the file."""

    file: Path
    baskets: list[Basket] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def skipped(self) -> list[str]:
        """Baskets that are not played."""
        return sorted({problem.basket for problem in self.problems if problem.basket})

    @property
    def begins(self) -> datetime:
        """The time of the first line of all baskets."""
        return min(basket.begins for basket in self.baskets)

    @property
    def ends(self) -> datetime:
        """The time of the last checkout."""
        return max(basket.stamp for basket in self.baskets)

    def units(self) -> dict[str, int]:
        """Add up units by product."""
        units: dict[str, int] = {}
        for basket in self.baskets:
            for line in basket.lines:
                units[line.product_id] = units.get(line.product_id, 0) + line.quantity
        return units


class Malformed(Exception):
    """A line cannot be read."""


def read_day(file: Path) -> Day:
    """Read a file of basket lines. Raises ``OSError`` if there is none; every other error becomes a ``Problem``."""
    day = Day(file=file)
    lines: dict[str, list[Line]] = {}
    stamps: dict[str, datetime] = {}
    for number, row in _rows(file, day=day):
        basket_id = row["basket_id"]
        try:
            stamp, line = _parse(row)
            if stamps.setdefault(basket_id, stamp) != stamp:
                message = (
                    f"timestamp {row['timestamp']!r}, but earlier lines of its basket have {str(stamps[basket_id])!r}"
                )
                raise Malformed(message)
        except Malformed as problem:
            known = basket_id if BASKET_ID.fullmatch(basket_id) else ""
            day.problems.append(Problem(line=number, reason=str(problem), basket=known))
        else:
            lines.setdefault(basket_id, []).append(line)
    skipped = set(day.skipped)
    day.baskets = [
        Basket(id=basket_id, stamp=stamps[basket_id], lines=tuple(found))
        for basket_id, found in lines.items()
        if basket_id not in skipped
    ]
    day.baskets.sort(key=lambda basket: (basket.begins, basket.id))
    return day


def _rows(file: Path, *, day: Day) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line numbers and named fields.

    Physical lines are split one at a time: a reader over the whole file would lose the baskets after a stray quote.
    """
    names: list[str] | None = None
    # errors="replace": an invalid byte becomes an odd character in one field, and so the problem of one line.
    with file.open(encoding="utf-8-sig", errors="replace", newline="\n") as text:
        for number, raw in enumerate(text, start=1):
            content = raw.rstrip("\r\n")
            if not content.strip():
                continue
            try:
                fields = next(csv.reader([content[:LONGEST_LINE]], strict=True))
            except (csv.Error, StopIteration) as error:
                day.problems.append(Problem(line=number, reason=str(error), basket=_first_field(content, names)))
                continue
            if names is None:
                names = [field.strip() for field in fields]
                missing = [column for column in COLUMNS if column not in names]
                if missing:
                    day.problems.append(Problem(line=number, reason=f"no column {', '.join(missing)}"))
                    return
            elif len(fields) != len(names):
                reason = f"{len(fields)} fields instead of {len(names)}"
                day.problems.append(Problem(line=number, reason=reason, basket=_first_field(content, names)))
            else:
                yield number, dict(zip(names, fields, strict=True))
    if names is None:
        day.problems.append(Problem(line=1, reason="the file is empty"))


def _first_field(content: str, names: list[str] | None) -> str:
    """Return the basket of a line that cannot be split, or an empty text if it is not readable."""
    position = names.index("basket_id") if names else 0
    fields = content.split(",")
    found = fields[position].strip().strip('"') if position < len(fields) else ""
    return found if BASKET_ID.fullmatch(found) else ""


def _parse(row: dict[str, str]) -> tuple[datetime, Line]:
    if not BASKET_ID.fullmatch(row["basket_id"]):
        message = f"invalid basket_id {row['basket_id']!r}"
        raise Malformed(message)
    try:
        stamp = datetime.strptime(row["timestamp"], "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - local time of the shop
    except ValueError:
        message = f"invalid timestamp {row['timestamp']!r}"
        raise Malformed(message) from None
    if not re.fullmatch(r"\d{1,12}", row["quantity"], re.ASCII):
        message = f"invalid quantity {row['quantity']!r}"
        raise Malformed(message)
    line = Line(product_id=row["product_id"], quantity=int(row["quantity"]), amount=row["sales_value"])
    if problem := line.problem():
        raise Malformed(problem)
    return stamp, line
