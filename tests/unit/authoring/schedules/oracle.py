"""An oracle of the slots of crons: it looks at every minute of a year in ``zoneinfo``, and not at the package."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 24 * 60
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Year:
    """All minutes of a year (UTC) with their wall-clock times, and the wall-clock times that a zone leaves out.

    Instants are minutes since 1970, and wall-clock times minutes since the first of January of year 1.
    """

    def __init__(self, zone: str, year: int) -> None:
        self.first = _minutes(datetime(year, 1, 1, tzinfo=UTC))
        self.last = _minutes(datetime(year + 1, 1, 1, tzinfo=UTC)) - 1
        #: Instants by the minute of their day on the wall clock.
        self.instants: list[list[int]] = [[] for _ in range(DAY)]
        self.walls: list[int] = []
        #: Wall-clock times that do not exist, with the instant at which their gap ends.
        self.gaps: dict[int, int] = {}
        #: Instants of the clock changes.
        self.changes: list[datetime] = []
        local_time, info, before = datetime.fromtimestamp, ZoneInfo(zone), None
        for instant in range(self.first, self.last + 1):
            local = local_time(instant * 60, info)
            time = local.hour * 60 + local.minute
            wall = local.toordinal() * DAY + time
            if before is not None and wall != before + 1:
                self.gaps.update(dict.fromkeys(range(before + 1, wall), instant))
                self.changes.append(EPOCH + timedelta(minutes=instant))
            self.walls.append(wall)
            self.instants[time].append(instant)
            before = wall

    def fires(self, expression: str) -> Fires:
        """Return the times that the cron names."""
        minute, hour, *days = expression.split()
        times = {60 * h + m for h in _numbers(hour, 0, 23) for m in _numbers(minute, 0, 59)}
        passes: dict[int, list[int]] = defaultdict(list)
        is_day = cache(lambda ordinal: _is_day(date.fromordinal(ordinal), days))
        for time in times:
            for instant in self.instants[time]:
                wall = self.walls[instant - self.first]
                if is_day(wall // DAY):
                    passes[wall].append(instant)
        ends = {end for wall, end in self.gaps.items() if wall % DAY in times and is_day(wall // DAY)}
        return Fires(hour.startswith("*"), [*passes.values()], ends)


@dataclass(frozen=True)
class Fires:
    """The instants of each wall-clock time that a cron names, and the ends of the gaps that have such a time."""

    runs_through: bool
    passes: list[list[int]]
    ends: set[int]

    def slots(self, gap: str, fold: str, first: datetime, last: datetime) -> list[datetime]:
        """Return the instants at which the cron fires, from ``first`` to ``last``."""
        if self.runs_through:
            gap, fold = "skip", "both"
        pick = {"first": slice(0, 1), "second": slice(-1, None), "both": slice(None)}[fold]
        instants = {instant for times in self.passes for instant in times[pick]}
        if gap == "shift":
            instants |= self.ends
        bounds = range(_minutes(first), _minutes(last) + 1)
        return [EPOCH + timedelta(minutes=instant) for instant in sorted(instants) if instant in bounds]


def _minutes(moment: datetime) -> int:
    return int(moment.timestamp()) // 60


def _numbers(field: str, lowest: int, highest: int) -> set[int]:
    numbers = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            bounds = (lowest, highest)
        else:
            bounds = (int(first), int(last or first))
        numbers.update(range(bounds[0], bounds[1] + 1, int(step or 1)))
    return numbers


def _is_day(day: date, fields: list[str]) -> bool:
    of_month, month, of_week = fields
    for number, name in enumerate(_DAYS):
        of_week = of_week.replace(name, str(number))
    if day.month not in _numbers(month, 1, 12):
        return False
    matches = (day.day in _numbers(of_month, 1, 31), day.isoweekday() % 7 in _numbers(of_week, 0, 6))
    return all(matches) if of_month.startswith("*") or of_week.startswith("*") else any(matches)
