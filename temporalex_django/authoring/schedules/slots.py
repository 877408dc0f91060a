"""Slots: the instants at which a schedule is due, in local time, and the ids of their runs."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property, lru_cache
from itertools import groupby, islice, pairwise, takewhile
from operator import itemgetter
from string import Formatter
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, cast, get_args
from zoneinfo import ZoneInfo

from temporalex_django.authoring.activity_options import check_id
from temporalex_django.authoring.schedules.functions import holiday_test
from temporalex_django.authoring.schedules.specs import (
    CalendarRule,
    Cron,
    Interval,
    Once,
    Spec,
    check_specs,
    check_year,
    parse_rule,
    runs_through,
    spec_key,
    walls_after,
)
from temporalex_django.core.names import quoted
from temporalex_django.errors import InvalidId, ScheduleInvalid

# --- slots ------------------------------------------------------------------------------------------------------------
#
# The times at which a schedule fires: pure functions of its specs, its zone and the zone's clock changes.
#
# Clock changes follow one rule:
#
# - Cron expressions, calendar rules and naive one-off times go by the wall clock. A wall-clock time that does not exist
#   fires once, at the end of the gap; one that occurs twice fires once, at its first occurrence. ``dst_gap`` and
#   ``dst_fold`` change this.
# - Cron expressions whose hour field begins with ``*`` follow elapsed time: nothing fires in a gap, and both passes of
#   a fold fire.
# - Intervals are measured in elapsed time, and aware one-off times are instants. Clock changes do not affect them.


DstGap: TypeAlias = Literal["shift", "skip"]
DstFold: TypeAlias = Literal["first", "second", "both"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
#: Slots that `smallest_gap` compares: a year of a weekly schedule, and a working week of one that fires each hour.
_SLOTS_COMPARED = 200
_NO_WALLS: Mapping[str, datetime] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Slot:
    """A time at which a schedule fires.

    - ``instant`` is aware, in UTC. It identifies the slot.
    - ``wall`` is the naive wall-clock time of the instant in the zone. For a time that was shifted out of a gap it is
      the end of the gap, since the slot stands for all wall-clock times up to then.
    - ``specs`` are the keys of the specs that give the slot.
    - ``by_wall`` are the keys among ``specs`` whose next slot must have a later wall-clock time. After a fire, store
      ``wall`` for each of them, and pass these times as ``last_walls`` when you compute the next slots.
    """

    instant: datetime
    wall: datetime
    specs: tuple[str, ...]
    by_wall: tuple[str, ...]


class _Source(NamedTuple):
    """A spec of a time table, with its key and its rules for clock changes (``gap`` and ``fold``).

    ``by_wall`` is True if each slot (time to fire) of the spec must have a later wall-clock time than the one before.
    """

    spec: Spec
    key: str
    by_wall: bool
    gap: str
    fold: str


@dataclass(frozen=True)
class TimeTable:
    """The slots (times to fire) of specs in a time zone, between ``start`` and ``end`` (both inclusive).

    A naive ``start`` or ``end`` is the wall clock in the zone: the first one in a fold, the end of the gap in a gap.
    Raises ``ScheduleInvalid`` for an unknown zone, an ``end`` that is not later than ``start``, and values that
    ``dst_gap`` or ``dst_fold`` do not have. Methods raise it too if a holidays function is unknown or raises.
    """

    specs: tuple[Spec, ...]
    zone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    dst_gap: DstGap = "shift"
    dst_fold: DstFold = "first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", check_specs(self.specs))
        load_zone(self.zone)
        for name, choices in (("dst_gap", get_args(DstGap)), ("dst_fold", get_args(DstFold))):
            if getattr(self, name) not in choices:
                raise ScheduleInvalid(f"{name}: {quoted(getattr(self, name))} must be one of {', '.join(choices)}")
        for name in ("start", "end"):
            object.__setattr__(self, name, self._bound(name))
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ScheduleInvalid(f"end: {self.end.isoformat()} must be later than the start, {self.start.isoformat()}")

    def slots(
        self, after: datetime, *, until: datetime | None = None, last_walls: Mapping[str, datetime] = _NO_WALLS
    ) -> Iterator[Slot]:
        """Return an iterator of the slots after ``after``, up to ``until`` (inclusive), ascending, each instant once.

        The slots of several specs are combined. The iterator is lazy, and ends when no slot follows for fifty years.
        ``last_walls`` has the last wall-clock time by the key of a spec: slots of that spec which are not later by wall
        clock are left out, so that two versions of the tz database do not give one slot twice. It does not apply
        to intervals, cron expressions whose hour field begins with ``*``, aware one-off times, or ``dst_fold="both"``.

        Raises ``ValueError`` for a naive ``after`` or ``until``.
        """
        if after.tzinfo is None or (until is not None and until.tzinfo is None):
            raise ValueError("slots can be listed only between aware datetimes: give `after` and `until` a time zone")
        after = after if self.start is None else max(after, self.start - _TICK)
        ends = [moment for moment in (until, self.end) if moment is not None]
        slots = self._single(after, last_walls) if len(self._sources) == 1 else self._union(after, last_walls)
        if not ends:
            return slots
        end = min(ends)
        return takewhile(lambda slot: slot.instant <= end, slots)

    def next_slot(self, after: datetime, last_walls: Mapping[str, datetime] = _NO_WALLS) -> Slot | None:
        """Return the first slot (time at which the schedule fires) after ``after``, or None.

        ``last_walls`` has the last wall-clock time of each spec that fired, by the key of the spec, as for ``slots``.
        """
        return next(iter(self.slots(after, last_walls=last_walls)), None)

    def count(self, after: datetime, until: datetime, at_most: int) -> int:
        """Return the number of slots (times to fire) after ``after``, up to ``until`` (inclusive); at most ``at_most``.

        The work is bounded by ``at_most``. Ask for one more than you accept, to see if there are more.
        """
        return sum(1 for _ in islice(self.slots(after, until=until), at_most))

    def smallest_gap(self, after: datetime) -> timedelta | None:
        """Return the shortest time between neighbours of the 200 slots after ``after``; None if there are none."""
        instants = (slot.instant for slot in islice(self.slots(after), _SLOTS_COMPARED))
        return min((later - earlier for earlier, later in pairwise(instants)), default=None)

    def check(self, now: datetime) -> None:
        """Raise ``ScheduleInvalid`` if the schedule has no slot after ``now`` (aware)."""
        if self.next_slot(now) is not None:
            return
        if self.end is not None and self.end <= now:
            raise ScheduleInvalid(f"the schedule never fires: its end, {self.end.isoformat()}, is in the past")
        if all(isinstance(spec, Once) for spec in self.specs):
            raise ScheduleInvalid(
                f"the schedule never fires: none of its times is later than {now.isoformat()} and between start and end"
            )
        raise ScheduleInvalid(f"the schedule never fires: its specs have no slot after {now.isoformat()} until its end")

    @cached_property
    def time_zone(self) -> tzinfo:
        """The time zone of the table as a ``tzinfo`` object."""
        return load_zone(self.zone)

    @cached_property
    def _sources(self) -> tuple[_Source, ...]:
        return tuple(self._source(spec) for spec in self.specs)

    def _source(self, spec: Spec) -> _Source:
        key = spec_key(spec)
        if isinstance(spec, Cron) and runs_through(spec.expression):
            return _Source(spec, key, by_wall=False, gap="skip", fold="both")
        if isinstance(spec, Interval) or (isinstance(spec, Once) and spec.at.tzinfo is not None):
            return _Source(spec, key, by_wall=False, gap="", fold="")
        return _Source(spec, key, by_wall=self.dst_fold != "both", gap=self.dst_gap, fold=self.dst_fold)

    def _bound(self, name: str) -> datetime | None:
        """Return "start" or "end" as an instant in UTC, or None."""
        moment = getattr(self, name)
        if moment is None:
            return None
        if not isinstance(moment, datetime):
            raise ScheduleInvalid(f"{name}: {quoted(moment)} must be a datetime")
        check_year(moment, name)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
        return instants_of(moment, self.time_zone, gap="shift", fold="first")[0]

    def _single(self, after: datetime, last_walls: Mapping[str, datetime]) -> Iterator[Slot]:
        source = self._sources[0]
        specs = (source.key,)
        by_wall = specs if source.by_wall else ()
        for instant in self._instants(source, after, last_walls):
            yield Slot(instant, wall_time(instant, self.time_zone), specs, by_wall)

    def _union(self, after: datetime, last_walls: Mapping[str, datetime]) -> Iterator[Slot]:
        by_wall = {source.key for source in self._sources if source.by_wall}
        streams = (self._numbered(number, after, last_walls) for number in range(len(self._sources)))
        for instant, group in groupby(heapq.merge(*streams), key=itemgetter(0)):
            keys = tuple(self._sources[number].key for _, number in group)
            wall = wall_time(instant, self.time_zone)
            yield Slot(instant, wall, keys, tuple(key for key in keys if key in by_wall))

    def _numbered(
        self, number: int, after: datetime, last_walls: Mapping[str, datetime]
    ) -> Iterator[tuple[datetime, int]]:
        for instant in self._instants(self._sources[number], after, last_walls):
            yield instant, number

    def _instants(self, source: _Source, after: datetime, last_walls: Mapping[str, datetime]) -> Iterator[datetime]:
        """Return the instants after ``after``, ascending, each once, and after the last wall-clock time of the spec."""
        spec = source.spec
        if isinstance(spec, Interval):
            return _interval_instants(spec, after)
        if isinstance(spec, Once) and spec.at.tzinfo is not None:
            return iter([spec.at.astimezone(UTC)] if spec.at > after else [])
        begin = earliest_wall(after, self.time_zone) - timedelta(seconds=1)
        if source.by_wall and source.key in last_walls:
            begin = max(begin, last_walls[source.key])
        return self._wall_instants(source, _walls_after(spec, begin), after)

    def _wall_instants(self, source: _Source, walls: Iterator[datetime], after: datetime) -> Iterator[datetime]:
        """Yield ascending instants, each once. A second pass (a repeated hour) waits: its instants are out of order."""
        newest = after
        second_passes: deque[datetime] = deque()
        for wall in walls:
            instants = instants_of(wall, self.time_zone, gap=source.gap, fold=source.fold)
            if not instants:
                continue
            while second_passes and second_passes[0] < instants[0]:
                newest = max(newest, second_passes[0])
                yield second_passes.popleft()
            if instants[0] > newest:
                newest = instants[0]
                yield newest
            second_passes.extend(instant for instant in instants[1:] if instant > after)
        yield from second_passes


def _walls_after(spec: Spec, begin: datetime) -> Iterator[datetime]:
    """Return naive wall-clock times strictly after ``begin``, ascending."""
    match spec:
        case Cron(expression=expression):
            return _until_the_end_of_time(walls_after(expression, begin))
        case CalendarRule(rule=rule, holidays=holidays):
            return parse_rule(rule).walls_after(begin, holiday_test(holidays))
        case Once(at=at):
            return iter([at] if at > begin else [])
        case Interval():
            raise TypeError("intervals count elapsed time and have no wall-clock times")


def _interval_instants(spec: Interval, after: datetime) -> Iterator[datetime]:
    number = (after - _EPOCH - spec.offset) // spec.every + 1
    instant = _EPOCH + spec.offset + number * spec.every
    while True:
        yield instant
        try:
            instant += spec.every
        except OverflowError:
            return


def _until_the_end_of_time(walls: Iterator[datetime]) -> Iterator[datetime]:
    """Stop in the year 9999, where Python's calendar ends and iterators of times raise."""
    while True:
        try:
            wall = next(walls)
        except (StopIteration, OverflowError):
            return
        yield wall


# --- local time -------------------------------------------------------------------------------------------------------
#
# Instants of wall-clock times: one as a rule, none or a shifted one in a gap, two in a fold.
#
# A clock change forwards makes a gap: its wall-clock times do not exist. One backwards makes a fold: its wall-clock
# times exist twice. ``gap`` is ``"shift"`` (the instant at which the gap ends) or ``"skip"``; ``fold`` is ``"first"``,
# ``"second"`` or ``"both"``.


_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_ZERO = timedelta()
_LOCAL_ZONES = frozenset({"localtime", "posixrules", "Factory"})
_LAST_DAY = datetime(9999, 12, 29, tzinfo=UTC)


@lru_cache(maxsize=512)
def load_zone(name: str) -> tzinfo:
    """Return the time zone with that name of the tz database. Raises ``ScheduleInvalid`` for an unknown one."""
    if name == "UTC":
        return UTC  # much faster than the file of the same name
    if name in _LOCAL_ZONES:
        raise ScheduleInvalid(f"the time zone {quoted(name)} differs from machine to machine: name a place instead")
    try:
        return ZoneInfo(name)
    # OSError: the name of a folder, such as "Europe", or a name that is too long for a file.
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise ScheduleInvalid(
            f"there is no time zone {quoted(name)}: use a name from the tz database, such as 'Europe/Berlin' or 'UTC'"
        ) from None


def wall_time(instant: datetime, zone: tzinfo) -> datetime:
    """Return the naive wall-clock time of an instant in the zone."""
    return instant.astimezone(zone).replace(tzinfo=None)


def instants_of(wall: datetime, zone: tzinfo, *, gap: str, fold: str) -> tuple[datetime, ...]:
    """Return the instants (in UTC, ascending) at which clocks in the zone show a naive wall-clock time.

    There is one as a rule. ``gap`` decides for a time that a clock change leaves out: ``"shift"`` (the end of the gap)
    or ``"skip"``. ``fold`` decides for a time that exists twice: ``"first"``, ``"second"`` or ``"both"``.
    """
    first_offset = _offset(wall.replace(tzinfo=zone, fold=0))
    second_offset = _offset(wall.replace(tzinfo=zone, fold=1))
    first = (wall - first_offset).replace(tzinfo=UTC)
    if first_offset == second_offset:
        return (first,)
    second = (wall - second_offset).replace(tzinfo=UTC)
    if first_offset > second_offset:
        return {"first": (first,), "second": (second,), "both": (first, second)}[fold]
    # In a gap, PEP 495 gives the offset before the change for fold=0, so `first` is later than the change.
    return (_transition(second, first, zone),) if gap == "shift" else ()


def is_second_pass(instant: datetime, zone: tzinfo) -> bool:
    """Return True if the wall-clock time of the instant exists twice, and this is the second time."""
    return instant.astimezone(zone).fold == 1


def earliest_wall(after: datetime, zone: tzinfo) -> datetime:
    """Return a lower bound of the wall-clock times that clocks in the zone show after the instant ``after``.

    Usually this is the wall-clock time of ``after``. Shortly before a fold it is earlier by the length of the fold,
    because the second pass repeats wall-clock times that are over. Folds are at most a day long, a day apart.
    """
    local = after.astimezone(zone)
    wall = local.replace(tzinfo=None)
    # The last two days of the calendar of Python have no next day in every zone.
    next_day = min(after, _LAST_DAY) + _DAY
    return wall - max(_ZERO, _offset(local) - _offset(next_day.astimezone(zone)))


def _offset(local: datetime) -> timedelta:
    return cast("timedelta", local.utcoffset())


def _transition(earlier: datetime, later: datetime, zone: tzinfo) -> datetime:
    """Return the instant of the one clock change between two instants."""
    old_offset = _offset(earlier.astimezone(zone))
    while later - earlier > _SECOND:
        middle = earlier + (later - earlier) // (2 * _SECOND) * _SECOND
        if _offset(middle.astimezone(zone)) == old_offset:
            earlier = middle
        else:
            later = middle
    return later


# --- run ids ----------------------------------------------------------------------------------------------------------
#
# Ids of the runs that a schedule starts, made from a template such as ``{schedule}-{slot:%Y%m%dT%H%M}``.


DEFAULT_TEMPLATE = "{schedule}-{slot:%Y%m%dT%H%M}"
_DEFAULT_FORMAT = "%Y%m%dT%H%M"
#: As in the official names of the hours of a fold in Germany, 2A and 2B.
_LATER_HOUR = "b"


def render_run_id(template: str, *, schedule: str, instant: datetime, zone: str) -> str:
    """Return the business id of the run for a slot, a time at which a schedule fires.

    ``{schedule}`` is the name of the schedule. ``{slot}`` is the wall-clock time of ``instant`` (aware) in the zone, in
    the format of ``strftime`` after the colon. In the second pass of a fold, ids of templates with ``{slot}`` end with
    ``b``, so that they differ from those of the first pass. Raises ``ScheduleInvalid``.
    """
    time_zone = load_zone(zone)
    values = {"schedule": schedule}
    parts = []
    for literal, field, time_format, conversion in _parsed(template):
        parts.append(literal)
        if field == "slot" and not conversion and "{" not in (time_format or ""):
            parts.append(wall_time(instant, time_zone).strftime(time_format or _DEFAULT_FORMAT))
        elif field in values and not conversion and not time_format:
            parts.append(values[field])
        elif field is not None:
            raise ScheduleInvalid(
                f"workflow_id: {quoted(template)} has the unknown field {{{field}}}: use {{schedule}} and "
                f"{{slot:{_DEFAULT_FORMAT}}}, without conversions"
            )
    if has_slot(template) and is_second_pass(instant, time_zone):
        parts.append(_LATER_HOUR)
    try:
        return check_id("".join(parts))
    except InvalidId as exc:
        raise ScheduleInvalid(f"workflow_id: the template {quoted(template)} gives no id: {exc}") from None


def has_slot(template: str) -> bool:
    """Return True if the ids that the template makes contain the time of the slot (time to fire).

    Raises ``ScheduleInvalid``.
    """
    return any(field == "slot" for _, field, _, _ in _parsed(template))


def _parsed(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    # Not `str.format`: people write templates, and it would let them read attributes of objects.
    try:
        return [*Formatter().parse(template)]
    except (ValueError, TypeError) as exc:
        raise ScheduleInvalid(f"workflow_id: {quoted(template)} is not a template: {exc}") from None
