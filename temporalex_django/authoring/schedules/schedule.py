"""Schedules, as code declares them, and the words for them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias, TypeVar, overload

from temporalex_django.authoring.django_tasks import is_task, task_signature
from temporalex_django.authoring.foreign_options import SCHEDULE, answers_foreign_arguments
from temporalex_django.authoring.schedules.functions import ARGUMENTS, HOLIDAYS
from temporalex_django.authoring.schedules.slots import (
    DEFAULT_TEMPLATE,
    DstFold,
    DstGap,
    TimeTable,
    has_slot,
    render_run_id,
)
from temporalex_django.authoring.schedules.specs import (
    MONTHS,
    ORDINALS,
    CalendarRule,
    Cron,
    DayRule,
    Duration,
    HolidaysFunction,
    Interval,
    Once,
    Spec,
    parse_rule,
    parse_specs,
)
from temporalex_django.authoring.start_api import Startable
from temporalex_django.authoring.workflow import input_or_default
from temporalex_django.core.names import is_name, quoted, to_seconds
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import require_readable
from temporalex_django.errors import InvalidId, PayloadError, ScheduleInvalid

# --- schedule ---------------------------------------------------------------------------------------------------------
#
# ``Schedule``: a declaration in code of a workflow that starts by itself, and the registry of these declarations.


ArgumentsFunction: TypeAlias = Callable[[datetime], Any]
_Arguments = TypeVar("_Arguments", bound=ArgumentsFunction)
_Holidays = TypeVar("_Holidays", bound=Callable[[date], bool])

#: Slots whose ids `schedule_problems` compares.
_IDS_COMPARED = 100
#: The shortest catch-up window. Workers look every second, so a shorter one would miss slots in a busy moment.
SHORTEST_CATCH_UP = timedelta(seconds=10)
#: The length of the column.
_MAX_NAME_LENGTH = 100
#: Options that a declaration, a row, a form, a definition and a description have under the same name.
OPTIONS: Final = (
    *("tz", "workflow_id", "overlap", "catch_up", "jitter", "start", "end", "max_fires", "pause_after"),
    *("dst_gap", "dst_fold"),
)
LONGEST_JITTER = timedelta(days=1)
#: A time to check templates with.
_SAMPLE = datetime(2027, 3, 3, 9, tzinfo=UTC)


class Overlap(StrEnum):
    """The policy for a slot (a time at which a schedule fires) while a run of the schedule is still open.

    - ``SKIP``: the slot is skipped.
    - ``BUFFER_ONE``: one slot waits until the run has ended; further ones are skipped.
    - ``BUFFER_ALL``: all slots wait, and start one after the other.
    - ``CANCEL_OTHER``: the run is cancelled, and the slot starts.
    - ``TERMINATE_OTHER``: the run is terminated, and the slot starts.
    - ``ALLOW_ALL``: the slot starts alongside the run.
    """

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"
    ALLOW_ALL = "allow_all"


#: Policies with which two runs of a schedule can be open at once, so that their ids must differ.
_SIDE_BY_SIDE = frozenset({Overlap.ALLOW_ALL, Overlap.CANCEL_OTHER})


@answers_foreign_arguments("Schedule", SCHEDULE)
@dataclass(frozen=True, eq=False)
class Schedule:
    """A workflow or a Django task that starts by itself, at times that specs say.

    Declare it in an app's ``schedules.py``.

    Specs are ``cron`` (five fields, such as ``30 2 * * *``), ``every`` with ``offset`` (an interval of elapsed time),
    ``calendar`` (a rule such as ``last working day 18:00``, with ``holidays``) and ``at`` (one-off times). Each is a
    value or a list. Several specs are combined, and a time that two of them have in common is a single slot.

    - ``tz`` is the time zone. Naive times (``at``, ``start``, ``end``) are wall-clock times in it.
    - ``workflow`` is the class of the runs. Instead, ``task`` is a function that ``@task`` has decorated, which is
      enqueued at each slot. Its ``args`` are a list of positional arguments, or a dict of keyword arguments. For a
      task, "the run is open" means that the task has not ended, and ``TERMINATE_OTHER`` is refused.
    - ``args`` is the input of the runs, or a function that is decorated with ``@Schedule.arguments_function``. It gets
      the time of the slot, aware and in the schedule's zone, and returns the input.
    - ``holidays`` is a function that is decorated with ``@Schedule.holidays_function``, or its name. It gets a ``date``
      and returns True for a holiday.
    - ``workflow_id`` is the template for the ids. ``{schedule}`` is the name, and ``{slot:%Y%m%dT%H%M}`` is the time of
      the slot in the schedule's zone. In the second pass of a repeated hour, the id ends with ``b``. Ids may repeat
      only with an ``overlap`` that never leaves two runs open: not with ``ALLOW_ALL`` and ``CANCEL_OTHER``.
    - ``overlap`` says what happens to a slot while a run of the schedule is open.
    - ``catch_up`` is how late a slot can still be started, for example if no worker was alive when it was due.
    - ``jitter`` is the longest random delay of a start. It is at most as long as the shortest time between two slots.
    - ``start`` and ``end`` limit the slots; both are inclusive.
    - ``max_fires`` is the number of started slots after which the schedule ends. ``pause_after`` is the number of
      failed runs in a row after which it is paused.
    - ``dst_gap`` says what happens to a wall-clock time that does not exist: ``"shift"`` (it fires once, at the end of
      the gap) or ``"skip"``.
    - ``dst_fold`` says in which pass a wall-clock time that occurs twice fires: ``"first"``, ``"second"`` or
      ``"both"``.

    ``dst_gap`` and ``dst_fold`` do not apply to intervals, aware times, or cron expressions whose hour field begins
    with ``*``. These follow elapsed time.

    Durations are timedeltas or seconds. Raises ``ScheduleInvalid`` for arguments that are invalid in themselves, and
    for a name that another schedule has. ``check`` finds what depends on the time or on registered functions.
    """

    name: str
    workflow: type[Startable] | None = None
    task: Any = field(default=None, kw_only=True)
    cron: str | Sequence[str] | None = field(default=None, kw_only=True)
    every: Duration | Sequence[Duration] | None = field(default=None, kw_only=True)
    offset: Duration | None = field(default=None, kw_only=True)
    calendar: str | Sequence[str] | None = field(default=None, kw_only=True)
    holidays: HolidaysFunction | None = field(default=None, kw_only=True)
    at: datetime | Sequence[datetime] | None = field(default=None, kw_only=True)
    tz: str | tzinfo = field(default="UTC", kw_only=True)
    args: Any | ArgumentsFunction = field(default=None, kw_only=True)
    workflow_id: str = field(default=DEFAULT_TEMPLATE, kw_only=True)
    overlap: Overlap = field(default=Overlap.SKIP, kw_only=True)
    catch_up: timedelta | float = field(default=timedelta(hours=1), kw_only=True)
    jitter: timedelta | float | None = field(default=None, kw_only=True)
    start: datetime | None = field(default=None, kw_only=True)
    end: datetime | None = field(default=None, kw_only=True)
    max_fires: int | None = field(default=None, kw_only=True)
    pause_after: int | None = field(default=None, kw_only=True)
    dst_gap: DstGap = field(default="shift", kw_only=True)
    dst_fold: DstFold = field(default="first", kw_only=True)

    #: The slots of the schedule.
    table: TimeTable = field(init=False, repr=False)
    #: The module that declared the schedule.
    module: str = field(init=False, repr=False)
    #: The name of the registered function that returns the input, or None if ``args`` is the input.
    arguments_function_name: str | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        try:
            self._check_identity()
            self._normalize()
        except ScheduleInvalid as exc:
            raise ScheduleInvalid(f"schedule {quoted(self.name)}: {exc}") from exc.__cause__
        frame = _declaring_frame()
        self._set("module", str(frame.f_globals.get("__name__", "__main__")))
        _register(self, frame.f_code, frame.f_lineno)

    @overload
    @staticmethod
    def arguments_function(function: _Arguments, /) -> _Arguments: ...

    @overload
    @staticmethod
    def arguments_function(*, name: str) -> Callable[[_Arguments], _Arguments]: ...

    @staticmethod
    def arguments_function(function: Any = None, /, *, name: str | None = None) -> Any:
        """Register a function that returns the input of runs; use it as a decorator.

        The function gets the time of the slot: aware, and in the zone of the schedule. ``name`` is the name of the
        function unless you give another one. Raises ``ScheduleInvalid`` if another function has the name.
        """
        return ARGUMENTS.register(function, name=name)

    @overload
    @staticmethod
    def holidays_function(function: _Holidays, /) -> _Holidays: ...

    @overload
    @staticmethod
    def holidays_function(*, name: str) -> Callable[[_Holidays], _Holidays]: ...

    @staticmethod
    def holidays_function(function: Any = None, /, *, name: str | None = None) -> Any:
        """Register a function that says if a day is a holiday; use it as a decorator.

        The function gets a ``date``, a Monday to Friday, and returns True for a holiday. It is called whenever times
        are computed, so it must be fast and give the same answer each time. ``name`` is as for ``arguments_function``.
        """
        return HOLIDAYS.register(function, name=name)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The specs of the schedule, made from ``cron``, ``every``, ``calendar`` and ``at``, each once."""
        return self.table.specs

    def run_id(self, instant: datetime) -> str:
        """Return the business id of the run that the schedule starts at ``instant`` (aware), from its template.

        The template is ``workflow_id``. Raises ``ScheduleInvalid``.
        """
        return render_run_id(self.workflow_id, schedule=self.name, instant=instant, zone=self.table.zone)

    def problems(self, now: datetime) -> list[str]:
        """Return a sentence for each problem of the schedule at the time ``now`` (aware).

        Problems are: the schedule never fires again, a function is unknown or raises, ``jitter`` is too long, or ids
        repeat although runs overlap. This calls the holidays function.
        """
        return [
            *schedule_problems(
                self.table,
                now,
                name=self.name,
                template=self.workflow_id,
                overlap=self.overlap,
                catch_up=_duration(self.catch_up, "catch_up"),
                jitter=None if self.jitter is None else _duration(self.jitter, "jitter"),
            )
        ]

    def check(self, now: datetime) -> None:
        """Raise ``ScheduleInvalid`` with all problems of the schedule at the time ``now`` (aware), if it has any.

        Raises ``PayloadError`` for an input that does not fit the class, and ``WorkflowDefinitionError`` if another
        class has been defined under its name.
        """
        if self.workflow is not None:
            self.workflow.require_registered()
        if problems := self.problems(now):
            raise ScheduleInvalid(f"schedule {quoted(self.name)}: {'; '.join(problems)}")
        if self.arguments_function_name is not None:
            return
        if self.workflow is None:
            task_arguments(self.task, self.args)
        else:
            plain_input(self.workflow, self.args)

    def _check_identity(self) -> None:
        check_schedule_name(self.name)
        if (self.workflow is None) is (self.task is None):
            raise ScheduleInvalid("give either a workflow class or `task=`, a function that @task has decorated")
        if self.task is not None and not is_task(self.task):
            raise ScheduleInvalid(f"task: {quoted(self.task)} is not a Django task: decorate the function with @task")
        if self.workflow is not None:
            if not (isinstance(self.workflow, type) and issubclass(self.workflow, Startable)):
                raise ScheduleInvalid(f"{quoted(self.workflow)} is not a workflow class")
            self.workflow.require_registered()
        for name in ("max_fires", "pause_after"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise ScheduleInvalid(f"{name}: {quoted(number)} must be a whole number of 1 or more, or None")

    def _normalize(self) -> None:
        self._set("overlap", parse_overlap(self.overlap))
        self._set("catch_up", _duration(self.catch_up, "catch_up"))
        if self.jitter is not None:
            self._set("jitter", _duration(self.jitter, "jitter"))
        if callable(self.args):
            self._set("arguments_function_name", ARGUMENTS.name_of(self.args))
        specs = parse_specs(
            cron=self.cron,
            every=self.every,
            offset=self.offset,
            calendar=self.calendar,
            holidays=self.holidays,
            at=self.at,
        )
        zone: Any = "UTC" if self.tz is UTC else getattr(self.tz, "key", self.tz)
        table = TimeTable(specs, zone, self.start, self.end, self.dst_gap, self.dst_fold)
        self._set("tz", zone)
        self._set("table", table)
        check_template(self.workflow_id, self.overlap, self.workflow, name=self.name, zone=zone)

    def _set(self, name: str, value: Any) -> None:
        """Set a field of the frozen schedule while it is created."""
        object.__setattr__(self, name, value)


def check_schedule_name(name: object) -> None:
    """Raise ``ScheduleInvalid`` unless the name is a string of 1 to 100 printable characters without '/'."""
    if not is_name(name) or len(str(name)) > _MAX_NAME_LENGTH or "/" in str(name) or str(name) != str(name).strip(" ."):
        raise ScheduleInvalid(
            f"the name must be a string of 1 to {_MAX_NAME_LENGTH} printable characters, without '/' and without leading "
            f"or trailing spaces or dots, not {quoted(name)}"
        )


def parse_overlap(overlap: object) -> Overlap:
    """Return the policy, given as ``Overlap`` or as its value. Raises ``ScheduleInvalid``."""
    try:
        return Overlap(overlap)  # type: ignore[arg-type] # it raises for other values
    except ValueError:
        choices = ", ".join(f"Overlap.{policy.name}" for policy in Overlap)
        raise ScheduleInvalid(f"overlap: {quoted(overlap)} must be one of {choices}") from None


def check_template(template: str, overlap: Overlap, workflow: Any, *, name: str, zone: str) -> None:
    """Check the template of the ids of a schedule's runs, without computing slots.

    Raises ``ScheduleInvalid`` if it cannot be read, if its ids are no ids of the class ``workflow``, and if it has no
    ``{slot}`` although two runs can be open at once. A task (``workflow`` None) has no id of its own, and no run that
    could be terminated.
    """
    if workflow is None:
        if overlap is Overlap.TERMINATE_OTHER:
            raise ScheduleInvalid(
                "overlap: a task cannot be terminated: use Overlap.CANCEL_OTHER, which asks the task to end"
            )
        return
    # Before it is rendered: what `strftime` swallows would stay in the column.
    if not is_name(template):
        raise ScheduleInvalid(f"workflow_id: {quoted(template)} is not a template of 1 to 200 printable characters")
    sample = render_run_id(template, schedule=name, instant=_SAMPLE, zone=zone)
    if overlap in _SIDE_BY_SIDE and not has_slot(template):
        raise ScheduleInvalid(
            f"workflow_id: with Overlap.{overlap.name} two runs can be open at once, so the template needs {{slot}}"
        )
    unique = getattr(workflow, "unique", None)
    if unique is None:
        return
    try:
        unique.check(sample)
    except InvalidId as exc:
        raise ScheduleInvalid(
            f"workflow_id: {workflow.__name__} has `unique`, and {quoted(template)} gives other ids: {exc}; use "
            f"'{unique.key}::{{slot:%Y%m%d%H%M}}'"
        ) from None


def schedule_problems(
    table: TimeTable,
    now: datetime,
    *,
    name: str,
    template: str,
    overlap: Overlap,
    catch_up: timedelta,
    jitter: timedelta | None,
) -> Iterator[str]:
    """Yield a sentence for each problem of a schedule, declared in code or not, at the time ``now`` (aware).

    The arguments are the parts of the schedule; ``table`` computes its slots. This calls the holidays function. Nothing
    is raised for problems of the schedule.
    """
    if catch_up < SHORTEST_CATCH_UP:
        yield f"catch_up: {catch_up} must be at least {SHORTEST_CATCH_UP.total_seconds():g} seconds"
    if jitter is not None and jitter > LONGEST_JITTER:
        yield f"jitter: {jitter} must be at most one day"
    try:
        table.check(now)
        shortest = table.smallest_gap(now) if jitter else None
        if jitter and shortest is not None and shortest < jitter <= LONGEST_JITTER:
            yield f"jitter: {jitter} is longer than the shortest time between two slots, {shortest}"
        if overlap in _SIDE_BY_SIDE and (repeated_id := _repeated_id(table, now, name, template)):
            yield (
                f"workflow_id: two slots have the id {repeated_id}, and with Overlap.{overlap.name} two runs can be open "
                "at once: let {slot} be more precise, such as {slot:%Y%m%dT%H%M%S}"
            )
    except ScheduleInvalid as exc:
        yield str(exc)


def _repeated_id(table: TimeTable, now: datetime, name: str, template: str) -> str | None:
    """Return an id that two of the next slots would share, or None."""
    run_ids: set[str] = set()
    for slot in islice(table.slots(now), _IDS_COMPARED):
        run_id = render_run_id(template, schedule=name, instant=slot.instant, zone=table.zone)
        if run_id in run_ids:
            return run_id
        run_ids.add(run_id)
    return None


def _duration(value: timedelta | float, label: str) -> timedelta:
    try:
        duration = timedelta(seconds=to_seconds(value, label=label))
    except (TypeError, ValueError) as exc:
        raise ScheduleInvalid(str(exc)) from None
    if duration < timedelta():
        raise ScheduleInvalid(f"{label}: {duration} must not be negative")
    return duration


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A registered schedule and the place of its declaration: the code object of the module, and the line.

    With these, two schedules of one name in a module (an error) differ from one schedule whose module is imported
    again.
    """

    schedule: Schedule
    code: CodeType
    line: int


_declarations: dict[str, _Declaration] = {}


def registered_schedules() -> dict[str, Schedule]:
    """Return the schedules that the modules of this process declare, by name."""
    return {name: declaration.schedule for name, declaration in _declarations.items()}


def _register(schedule: Schedule, code: CodeType, line: int) -> None:
    existing = _declarations.get(schedule.name)
    if existing is not None:
        if existing.schedule.module != schedule.module:
            raise ScheduleInvalid(
                f"two schedules are named {quoted(schedule.name)}: one in {existing.schedule.module} and one in "
                f"{schedule.module}; rename one of them"
            )
        if existing.code is code and existing.line != line:
            raise ScheduleInvalid(
                f"two schedules are named {quoted(schedule.name)}: in {schedule.module}, lines {existing.line} and {line}; "
                "rename one of them"
            )
        # Code of a module runs once. Tests call a function that declares a schedule again and again.
        if existing.code is code and code.co_name == "<module>":
            raise ScheduleInvalid(
                f"two schedules are named {quoted(schedule.name)}: in {schedule.module}, both in line {line}; give each "
                "of them a name of its own"
            )
    _declarations[schedule.name] = _Declaration(schedule, code, line)


def _declaring_frame() -> FrameType:
    """Return the frame that creates a ``Schedule``, for its module and line."""
    frame = sys._getframe(1)  # noqa: SLF001
    while (
        frame.f_globals.get("__name__") in (__name__, answers_foreign_arguments.__module__) and frame.f_back is not None
    ):
        frame = frame.f_back
    return frame


# --- run inputs -------------------------------------------------------------------------------------------------------
#
# Inputs of the runs that a schedule starts.


def plain_input(workflow: type[Startable], args: Any, *, limit: int = codec.MAX_BYTES) -> Any:
    """Return the input of a run of the class as plain JSON types. If ``args`` is None, return the default of ``run``.

    ``limit`` is the largest number of encoded bytes. Raises ``PayloadError`` if the input cannot be encoded, is too
    large, or does not fit the class.
    """
    concrete = workflow.choose(None, {})
    label = f"the input of {concrete.name}"
    plain_args = codec.to_plain(input_or_default(concrete, args), label=label, limit=limit)
    codec.convert(plain_args, concrete.definition.args_type, label=label)
    require_readable(args, plain_args, lambda: concrete.definition.args_type, label=label)
    return plain_args


def task_arguments(task: Any, args: Any, *, limit: int = codec.MAX_BYTES) -> Any:
    """Return the arguments of a Django task as plain JSON: a list of positional ones, or a dict of keyword arguments.

    Raises ``PayloadError`` for arguments that are no JSON, do not fit the signature of the task, or are larger than
    ``limit`` bytes.
    """
    label = f"the arguments of {task.module_path}"
    plain = codec.to_plain([] if args is None else args, label=label, limit=limit)
    if not isinstance(plain, (list, dict)):
        raise PayloadError(f"{label} must be a list of positional arguments or a dict of keyword arguments")
    positional, keywords = split_task_arguments(plain)
    try:
        task_signature(task).bind(*positional, **keywords)
    except TypeError as exc:
        raise PayloadError(f"{label} do not fit its signature: {exc}") from None
    return plain


def split_task_arguments(args: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of ``args``, which ``task_arguments`` has checked."""
    return ([], args) if isinstance(args, dict) else (list(args or ()), {})


# --- words ------------------------------------------------------------------------------------------------------------
#
# Specs in words, for people: "Every day at 02:30 (Europe/Berlin)".


_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
_TIMES = r"\d\d:\d\d(?:(?:, and | and |, )\d\d:\d\d)*"
_AT_TIMES = re.compile(rf"At ({_TIMES}) (.+)")
_STEP = re.compile(r"\*/(\d+) \* \* \* \*")


def spec_in_words(spec: Spec) -> str:
    """Return the spec as an English phrase that begins with a capital letter, without the time zone."""
    match spec:
        case Cron(expression=expression):
            return _cron_in_words(expression)
        case Interval():
            return _interval_in_words(spec)
        case CalendarRule(rule=rule, holidays=holidays):
            suffix = f", holidays: {holidays}" if holidays else ""
            return _rule_in_words(parse_rule(rule)) + suffix
        case Once(at=at):
            return f"Once, on {_time_in_words(at)}"


def specs_in_words(specs: Iterable[Spec], zone: str) -> str:
    """Return all specs as one phrase with the zone: ``Every day at 02:30; every 15 minutes (Europe/Berlin)``."""
    first, *others = [spec_in_words(spec) for spec in specs]
    return f"{'; '.join([first, *(_lower_first(phrase) for phrase in others)])} ({zone})"


def _cron_in_words(expression: str) -> str:
    from cronsim.explain import Expression  # noqa: PLC0415 - the package is importable without it

    step = _STEP.fullmatch(expression)
    # Other steps are no intervals: `*/25` fires at the minutes 0, 25 and 50.
    if step and 60 % int(step[1]) == 0:
        return f"Every {_amount(int(step[1]), 'minute')}"
    phrase: str = Expression(["0", *expression.upper().split()]).explain()
    match = _AT_TIMES.fullmatch(phrase)
    if match is None:
        return phrase
    times, days = match.groups()
    return f"{_upper_first(days)} at {times}"


def _interval_in_words(spec: Interval) -> str:
    phrase = f"Every {_duration_in_words(spec.every)}"
    return f"{phrase}, offset by {_offset_in_words(spec.offset)}" if spec.offset else phrase


def _rule_in_words(rule: DayRule) -> str:
    at = f"{rule.at:%H:%M}"
    unit = rule.unit if rule.unit in ("day", "working day") else rule.unit.capitalize()
    every_month = len(rule.months) == len(MONTHS)
    months = _list_in_words([MONTHS[month - 1].capitalize() for month in rule.months])
    if rule.position == 0:
        return f"Every {unit}{'' if every_month else f' in {months}'} at {at}"
    position = _position_in_words(rule.position)
    return f"On the {position} {unit} of {'the month' if every_month else months} at {at}"


def _position_in_words(position: int) -> str:
    number = abs(position)
    ordinal = ORDINALS[number - 1] if number <= len(ORDINALS) else _ordinal(number)
    if position > 0:
        return ordinal
    return "last" if number == 1 else f"{ordinal} last"


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


def _time_in_words(at: datetime) -> str:
    clock = f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"
    offset = f"{at:%z}"
    zone = f" UTC{offset[:3]}:{offset[3:5]}" if offset else ""
    return f"{at.day} {MONTHS[at.month - 1].capitalize()} {at.year} at {clock}{zone}"


def _duration_in_words(duration: timedelta) -> str:
    """Return the interval that follows "every": ``hour``, ``90 seconds``, ``day and 2 hours``."""
    parts = _parts_of(duration)
    return _list_in_words([_amount(count, unit) for count, unit in parts])


def _offset_in_words(duration: timedelta) -> str:
    return _list_in_words([f"{count:g} {unit}{'' if count == 1 else 's'}" for count, unit in _parts_of(duration)])


def _parts_of(duration: timedelta) -> list[tuple[float, str]]:
    """Return for example ``[(1, "day"), (2, "hour")]``, without zeros."""
    parts: list[tuple[float, str]] = []
    seconds = duration.total_seconds()
    for unit, length in _UNITS[:-1]:
        count, seconds = divmod(seconds, length)
        parts.append((count, unit))
    parts.append((round(seconds, 6), "second"))
    return [part for part in parts if part[0]]


def _amount(count: float, unit: str) -> str:
    return unit if count == 1 else f"{count:g} {unit}s"


def _list_in_words(words: list[str]) -> str:
    if len(words) <= 1:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
