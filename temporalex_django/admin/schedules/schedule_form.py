"""The form of a schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.authoring.schedules.functions import ARGUMENTS, HOLIDAYS
from temporalex_django.authoring.schedules.schedule import OPTIONS, Overlap, check_schedule_name
from temporalex_django.authoring.schedules.slots import DEFAULT_TEMPLATE, TimeTable, load_zone
from temporalex_django.authoring.schedules.specs import (
    CalendarRule,
    Cron,
    Interval,
    Once,
    Spec,
    specs_from_json,
)
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.forms.payload_forms import NOTHING, PAYLOAD_FIELD, PayloadForm
from temporalex_django.forms.schedule_fields import (
    CLOCK_CHANGES,
    DurationTextField,
    SpecLinesField,
    WallTimeField,
    common_holidays,
    duration_text,
    is_working_day_rule,
    parse_calendar_rule,
    parse_interval,
    parse_once,
    spec_line,
    zone_choices,
)
from temporalex_django.models import Schedule
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations.base import Actor
from temporalex_django.operations.schedules.definition import KEPT, ScheduleDefinition
from temporalex_django.operations.schedules.describe import may_view_args, read_args

_MAX_NUMBER = 2**31 - 1
_SPEC_FIELDS: dict[str, type[Spec]] = {"cron": Cron, "every": Interval, "calendar": CalendarRule, "at": Once}
_TIME_FIELDS = (*_SPEC_FIELDS, "holidays", "tz", "start", "end", "dst_gap", "dst_fold")
_FIELD_PROBLEM = re.compile(r"(\w+): (.+)", re.DOTALL)
_TEXT = {"class": "vTextField"}


def _clock_change_field(name: str) -> forms.ChoiceField:
    label, choices = CLOCK_CHANGES[name]
    return forms.ChoiceField(choices=choices, label=label)


class ScheduleForm(PayloadForm):
    """The form that creates or changes a schedule; once it is valid, ``definition`` is the definition of the schedule.

    ``workflow`` is the class of its runs; without one, ``task`` is the path of the task. ``row`` is the schedule that
    is changed, or None for a new one. The actor ``by`` sees the present input of ``row`` if they may; others can keep
    it. ``table`` is the time table as soon as the fields about times are valid, and None before.
    """

    # A function can make the input. The browser must not ask for the fields of an input then.
    use_required_attribute = False

    name = forms.CharField(max_length=100, label=gettext_lazy("Name"), widget=forms.TextInput(attrs=_TEXT))
    cron = SpecLinesField(
        Cron,
        label=gettext_lazy("Cron expressions"),
        help_text=gettext_lazy(
            "Minute, hour, day of the month, month and day of the week, such as “30 2 * * mon-fri”. Enter one per line."
        ),
    )
    every = SpecLinesField(
        parse_interval,
        label=gettext_lazy("Intervals"),
        help_text=gettext_lazy(
            "For example: “15 min” or “1 d, offset 2 h”. These are measured in elapsed time. Enter one per line."
        ),
    )
    calendar = SpecLinesField(
        parse_calendar_rule,
        label=gettext_lazy("Calendar rules"),
        help_text=gettext_lazy(
            "For example: “last working day 18:00”, “first monday 09:00 in mar, sep” or “15 08:00”. Enter one per line."
        ),
    )
    holidays = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Holidays"),
        help_text=gettext_lazy("The calendar rules do not treat these days as working days."),
    )
    at = SpecLinesField(
        parse_once,
        label=gettext_lazy("One-off times"),
        help_text=gettext_lazy("For example: “2027-03-03 09:00”. Enter one per line."),
    )
    tz = forms.ChoiceField(
        label=gettext_lazy("Time zone"),
        help_text=gettext_lazy("All times on this form are wall-clock times in this time zone."),
    )
    arguments_function = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Where the input comes from"),
        help_text=gettext_lazy(
            "A function receives the time of the slot. If you choose one, the fields below are ignored."
        ),
    )
    keep_input = forms.BooleanField(
        required=False,
        label=gettext_lazy("Keep the current input"),
        help_text=gettext_lazy(
            "You do not have permission to see the current input. If you keep it, the fields below are ignored."
        ),
    )
    overlap = forms.ChoiceField(
        choices=Schedule.OverlapPolicy.choices, label=gettext_lazy("If an earlier run is still open")
    )
    workflow_id = forms.CharField(
        max_length=200,
        label=gettext_lazy("Run ids"),
        widget=forms.TextInput(attrs=_TEXT),
        help_text=gettext_lazy("{schedule} is the name, and {slot} the time of the slot."),
    )
    catch_up = DurationTextField(
        label=gettext_lazy("Catch-up window"),
        help_text=gettext_lazy("A slot that is overdue by more than this counts as missed. For example: “1 h”."),
    )
    jitter = DurationTextField(
        required=False,
        label=gettext_lazy("Jitter"),
        help_text=gettext_lazy("Each slot is delayed by a random time of up to this length. For example: “5 min”."),
    )
    start = WallTimeField(required=False, label=gettext_lazy("Start"))
    end = WallTimeField(required=False, label=gettext_lazy("End"))
    max_fires = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=_MAX_NUMBER,
        label=gettext_lazy("Maximum number of slots"),
        help_text=gettext_lazy("The schedule ends after this number of slots."),
    )
    pause_after = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=_MAX_NUMBER,
        label=gettext_lazy("Pause after failures"),
        help_text=gettext_lazy("The schedule pauses itself after this number of failures in a row."),
    )
    dst_gap = _clock_change_field("dst_gap")
    dst_fold = _clock_change_field("dst_fold")
    #: When the row was changed last, as the page shows it: a later change by somebody else must not get lost.
    version = forms.CharField(required=False, max_length=40, widget=forms.HiddenInput)

    #: The headings of the page, with the fields below each. The fields of the input follow the second one.
    sections: ClassVar = (
        (gettext_lazy("What it runs"), ("name",)),
        (gettext_lazy("Input"), ("arguments_function", "keep_input")),
        (gettext_lazy("When"), ("tz", "cron", "calendar", "holidays", "every", "at", "start", "end")),
        (gettext_lazy("How it runs"), ("overlap", "catch_up", "jitter", "max_fires", "pause_after", "workflow_id")),
        (gettext_lazy("Clock changes"), ("dst_gap", "dst_fold")),
    )

    def __init__(
        self,
        data: Any = None,
        *,
        workflow: type[Workflow] | None,
        row: Schedule | None,
        by: Actor,
        task: str = "",
        **kwargs: Any,
    ) -> None:
        self.workflow, self.task, self.row = workflow, task, row
        #: The name of the class or the path of the task.
        self.target = task if workflow is None else workflow.name
        self.table: TimeTable | None = None
        self.definition: ScheduleDefinition | None = None
        example, is_hidden = self._read_input(row, by)
        initial = _new_schedule(workflow) if row is None else _initial_of(row)
        annotation = Any if workflow is None else workflow.definition.args_type
        super().__init__(data, annotation=annotation, example=example, initial=initial, **kwargs)
        self._declared_names = {*self.base_fields}
        self._set_choices(row)
        if workflow is None:
            self._adapt_to_task()
        if not is_hidden:
            del self.fields["keep_input"]
        if row is not None:
            self.fields["name"].disabled = True
        if self.is_bound and not self._reads_input:
            for field in self._input_fields:
                self.fields[field].required = False

    def _read_input(self, row: Schedule | None, by: Actor) -> tuple[Any, bool]:
        """Return ``(the stored input, True if the user may not see it)``. A new schedule has ``NOTHING``."""
        # An input belongs to its class: fields of another class begin empty.
        self.has_input = row is not None and (row.workflow or row.task) == self.target and row.args is not None
        if row is None or not self.has_input:
            return NOTHING, False
        args = read_args(row, by)
        is_hidden = not may_view_args(row, by.user) or isinstance(args, UnreadablePayload)
        return (NOTHING if is_hidden else args), is_hidden

    def _adapt_to_task(self) -> None:
        """Leave out what tasks do not have: ids of their own, and a termination."""
        del self.fields["workflow_id"]
        arguments = self.fields[PAYLOAD_FIELD]
        arguments.label = _("Arguments")
        arguments.help_text = _("A JSON list of positional arguments, or an object of keyword arguments.")
        policies = [
            choice for choice in Schedule.OverlapPolicy.choices if choice[0] != Schedule.OverlapPolicy.TERMINATE_OTHER
        ]
        self._choices("overlap", policies)
        self.fields["overlap"].label = _("If the task of an earlier slot has not ended")

    def _set_choices(self, row: Schedule | None) -> None:
        """Set choices that depend on this process. The values that ``row`` stores are always among them."""
        stored_zone = stored_function = stored_holidays = ""
        if row is not None:
            stored_zone, stored_function = row.tz, row.arguments_function
            stored_holidays = str(self.initial.get("holidays", ""))
        zones: list[Any] = [*zone_choices()]
        if stored_zone and not any((stored_zone, stored_zone) in group for _region, group in zones):
            zones.append((stored_zone, stored_zone))
        self._choices("tz", zones)
        from_fields = ("", _("The fields below"))
        self._choices("arguments_function", [from_fields, *_names(ARGUMENTS.names(), stored_function)])
        self._choices("holidays", [("", _("None")), *_names(HOLIDAYS.names(), stored_holidays)])
        for name in ("arguments_function", "holidays"):
            if len(self.fields[name].choices) == 1:  # type: ignore[attr-defined] # a ChoiceField
                del self.fields[name]

    def _choices(self, name: str, choices: list[Any]) -> None:
        self.fields[name].choices = choices  # type: ignore[attr-defined] # a ChoiceField

    @property
    def _input_fields(self) -> list[str]:
        return [name for name in self.fields if name not in self._declared_names]

    @property
    def _reads_input(self) -> bool:
        """True unless a function makes the input, or the stored input is kept."""
        names = ("arguments_function", "keep_input")
        return not any(name in self.fields and self.data.get(self.add_prefix(name)) for name in names)

    @property
    def expected_versions(self) -> list[datetime] | None:
        """The times of the last change that the row of the schedule may have when it is saved; None for a new schedule.

        If it has another one, somebody else has changed it since the page was shown.
        """
        if self.row is None:
            return None
        # A forged value is no time of a change.
        with suppress(ValueError):
            return [datetime.fromisoformat(self.cleaned_data["version"])]
        return []

    def groups(self) -> Iterator[tuple[Any, list[forms.BoundField]]]:
        """Yield the sections of the page as pairs of a heading and the fields below it."""
        for heading, names in self.sections:
            fields = [self[name] for name in names if name in self.fields]
            if "arguments_function" in names:
                fields += [self[name] for name in self._input_fields]
            yield heading, fields

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        try:
            check_schedule_name(name)
        except ScheduleInvalid as exc:
            raise ValidationError(exc.message) from exc
        return name

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        if self._reads_input:
            data = super().clean()
        specs = self._clean_specs(data)
        if self._is_time_valid(data):
            self._set_table(data, specs)
        if self.errors or self.table is None:
            return data
        self.definition = self._build_definition(data, specs)
        for problem in self.definition.problems(timezone.now()):
            self._add_problem(problem)
        return data

    def _clean_specs(self, data: dict[str, Any]) -> list[Spec]:
        """Give rules about working days the chosen holidays. Adds an error for no specs or holidays without effect."""
        specs = [spec for name in _SPEC_FIELDS for spec in data.get(name) or ()]
        holidays = data.get("holidays")
        if not specs and not self.errors.keys() & _SPEC_FIELDS.keys():
            self.add_error(
                "cron", _("Specify when it fires: enter at least one cron expression, rule, interval or time.")
            )
        if not holidays:
            return specs
        if not any(is_working_day_rule(spec) for spec in specs) and "calendar" not in self.errors:
            self.add_error("holidays", _("Holidays affect only working days, and no calendar rule uses working days."))
        return [
            CalendarRule(spec.rule, spec.holidays or holidays)
            if isinstance(spec, CalendarRule) and is_working_day_rule(spec)
            else spec
            for spec in specs
        ]

    def _is_time_valid(self, data: dict[str, Any]) -> bool:
        return not self.errors.keys() & {*_TIME_FIELDS} and "tz" in data

    def _set_table(self, data: dict[str, Any], specs: Sequence[Spec]) -> None:
        try:
            self.table = TimeTable(
                tuple(specs),
                data["tz"],
                self._bound_time("start", data),
                self._bound_time("end", data),
                data["dst_gap"],
                data["dst_fold"],
            )
        except ScheduleInvalid as exc:
            self._add_problem(exc.message)

    def _bound_time(self, name: str, data: dict[str, Any]) -> datetime | None:
        """Return the stored instant if the field did not change, so that a time in a repeated hour stays the same."""
        if self.row is None or name in self.changed_data or "tz" in self.changed_data:
            value: datetime | None = data[name]
            return value
        stored: datetime | None = getattr(self.row, name)
        return stored

    def _build_definition(self, data: dict[str, Any], specs: Sequence[Spec]) -> ScheduleDefinition:
        args, function = self.payload, data.get("arguments_function", "")
        if function:
            args = None
        elif not self._reads_input or (self.has_input and self.changed_data_of_input == []):
            args = KEPT
        options = {name: data[name] for name in OPTIONS if name in data}
        options |= {name: self._bound_time(name, data) for name in ("start", "end")}
        return ScheduleDefinition(
            name=data["name"],
            workflow="" if self.workflow is None else self.workflow.name,
            task=self.task,
            specs=specs,
            args=args,
            arguments_function=function,
            **{**options, "overlap": Overlap(data["overlap"])},
        )

    @property
    def changed_data_of_input(self) -> list[str]:
        """The names of the fields of the runs' input whose values the user has changed."""
        return [name for name in self.changed_data if name not in self._declared_names]

    def _add_problem(self, problem: str) -> None:
        """Add the error to the field that begins the sentence, or else to the form."""
        match = _FIELD_PROBLEM.fullmatch(problem)
        if match is not None and match[1] in self.fields:
            self.add_error(match[1], match[2])
        else:
            self.add_error(None, problem)


def _names(names: Sequence[str], stored: str) -> list[tuple[str, str]]:
    """Return choices. ``stored``, which this process may lack, is always among them."""
    return [(name, name) for name in sorted({*names, *filter(None, [stored])})]


def _new_schedule(workflow: type[Workflow] | None) -> dict[str, Any]:
    template = DEFAULT_TEMPLATE
    if workflow is not None and workflow.unique is not None:
        template = f"{workflow.unique.key}::{{slot:%Y%m%d%H%M}}"
    return {"tz": timezone.get_current_timezone_name(), "catch_up": "1 h", "workflow_id": template, "overlap": "skip"}


def _initial_of(row: Schedule) -> dict[str, Any]:
    """Return initial values by field name, without specs that this process cannot read."""
    try:
        specs: Sequence[Spec] = specs_from_json(row.specs)
        zone: Any = load_zone(row.tz)
    except ScheduleInvalid:
        specs, zone = [], ZoneInfo("UTC")
    holidays = common_holidays(specs)
    lines = {
        name: "\n".join(spec_line(_without(spec, holidays)) for spec in specs if isinstance(spec, spec_class))
        for name, spec_class in _SPEC_FIELDS.items()
    }
    walls = {name: _wall_text(getattr(row, name), zone) for name in ("start", "end")}
    return {
        **{name: getattr(row, name) for name in ("name", "arguments_function", *OPTIONS)},
        **lines,
        **walls,
        "holidays": holidays,
        "keep_input": True,
        "catch_up": duration_text(row.catch_up),
        "jitter": duration_text(row.jitter) if row.jitter else "",
        "version": row.changed_at.isoformat(),
    }


def _without(spec: Spec, holidays: str) -> Spec:
    """Drop ``holidays``, which the form shows in a field of their own."""
    if holidays and isinstance(spec, CalendarRule) and spec.holidays == holidays:
        return CalendarRule(spec.rule)
    return spec


def _wall_text(moment: datetime | None, zone: Any) -> str:
    if moment is None:
        return ""
    return moment.astimezone(zone).replace(tzinfo=None).isoformat(timespec="seconds")
