"""Definitions of schedules: the input of people, and the arguments of the runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from django.apps import apps
from django.db import connections

from temporalex_django.authoring import django_tasks
from temporalex_django.authoring.schedules.functions import ARGUMENTS
from temporalex_django.authoring.schedules.schedule import (
    Overlap,
    Schedule,
    check_schedule_name,
    check_template,
    parse_overlap,
    plain_input,
    schedule_problems,
    task_arguments,
)
from temporalex_django.authoring.schedules.slots import DEFAULT_TEMPLATE, TimeTable
from temporalex_django.authoring.schedules.specs import Spec, parse_specs, parse_time, specs_from_json, specs_to_json
from temporalex_django.authoring.start_api import Startable
from temporalex_django.backends.host import host
from temporalex_django.conf import codec as project_codec
from temporalex_django.conf import get_settings
from temporalex_django.core.failures import exception_name
from temporalex_django.core.names import to_seconds
from temporalex_django.engine import policy
from temporalex_django.engine.schedules import SlotFailure, call_arguments
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.models import Schedule as ScheduleRow

# --- definition -------------------------------------------------------------------------------------------------------
#
# The definition of a schedule: everything that code declares, or people fill in, and the checks of it.


#: Input of a definition that leaves the input of a stored schedule as it is.
KEPT: Final[Any] = object()
#: Limit of the columns of numbers.
_MAX_NUMBER = 2**31 - 1
#: Columns whose change begins the position of the schedule anew.
TIME_COLUMNS = ("specs", "tz", "dst_gap", "dst_fold", "start", "end")
#: Columns whose change makes a person the starter of the runs.
RUN_COLUMNS = ("workflow", "task", "args", "arguments_function", "overlap")


@dataclass(frozen=True, kw_only=True)
class ScheduleDefinition:
    """The definition of a schedule: when it fires, and which runs it starts, or which task it enqueues.

    ``workflow`` is the name of the class, ``task`` the dotted path of a task, and ``tz`` the name of the time zone. One
    of the first two is empty. ``args`` is the input of the runs; the
    constant ``KEPT`` keeps the input that is stored. ``arguments_function`` names a registered function that makes the
    input instead. ``workflow_id`` is the template of their ids. Naive times are wall-clock times of the zone.
    """

    name: str
    specs: Sequence[Spec]
    workflow: str = ""
    task: str = ""
    tz: str = "UTC"
    args: Any = None
    arguments_function: str = ""
    workflow_id: str = DEFAULT_TEMPLATE
    overlap: Overlap = Overlap.SKIP
    catch_up: timedelta = timedelta(hours=1)
    jitter: timedelta | None = None
    start: datetime | None = None
    end: datetime | None = None
    max_fires: int | None = None
    pause_after: int | None = None
    dst_gap: str = "shift"
    dst_fold: str = "first"

    @classmethod
    def of_declaration(cls, schedule: Schedule) -> ScheduleDefinition:
        """Convert a schedule declared in code to a ``ScheduleDefinition``.

        Raises ``WorkflowDefinitionError`` if another class has been defined under the name of its class.
        """
        target = {"workflow": "", "task": ""}
        if schedule.workflow is None:
            target["task"] = schedule.task.module_path
        else:
            schedule.workflow.require_registered()
            target["workflow"] = schedule.workflow.name
        values = {field.name: getattr(schedule, field.name) for field in fields(cls)}
        args, function = values["args"], schedule.arguments_function_name or ""
        if function:
            args = None
        return cls(**{**values, **target, "args": args, "arguments_function": function})

    def table(self) -> TimeTable:
        """Return the time table, which computes the times at which the schedule fires.

        Raises ``ScheduleInvalid`` for an unknown zone, and for an end before the start.
        """
        return TimeTable(tuple(self.specs), self.tz, self.start, self.end, self.dst_gap, self.dst_fold)  # type: ignore[arg-type] # checked there

    def workflow_class(self) -> type[Startable] | None:
        """Return the class of the runs; None for a task.

        Raises ``UnknownWorkflow`` if this process does not have it, and ``ScheduleInvalid`` for a task that a schedule
        cannot enqueue, and for a definition with both or neither.
        """
        if bool(self.workflow) is bool(self.task):
            raise ScheduleInvalid(f"schedule {self.name!r}: give either a workflow or a task")
        if self.task:
            # The path may come from a person: no module outside of the project is imported for it.
            if self.task not in django_tasks.defined_paths and apps.get_containing_app_config(self.task) is None:
                raise ScheduleInvalid(f"task: there is no Django task {self.task!r} in an installed app")
            django_tasks.find_scheduled(self.task)
            return None
        return host().find_workflow(self.workflow)

    def check(self, now: datetime) -> None:
        """Check the whole definition at the time ``now``, before it is stored.

        Calls the project's functions for holidays. Raises ``ScheduleInvalid`` with all problems, ``UnknownWorkflow``,
        and ``PayloadError`` for an input that does not fit the class.
        """
        check_schedule_name(self.name)
        if problems := self.problems(now):
            raise ScheduleInvalid(f"schedule {self.name!r}: {'; '.join(problems)}")
        if self.arguments_function:
            if self.args not in (None, KEPT):
                raise ScheduleInvalid(f"schedule {self.name!r}: give an input or a function that makes it, not both")
            ARGUMENTS.find(self.arguments_function)
        elif self.args is not KEPT:
            self.plain_args(self.workflow_class())

    def problems(self, now: datetime) -> list[str]:
        """Return a sentence for each problem of the time table and the options; most begin with the field and a colon.

        ``now`` is the time from which slots are computed. Calls the project's functions for holidays. Raises
        ``ScheduleInvalid`` for an unknown zone or an end before the start, and ``UnknownWorkflow``.
        """
        workflow, table = self.workflow_class(), self.table()
        problems = [*self._number_problems()]
        try:
            overlap = parse_overlap(self.overlap)
            check_template(self.workflow_id, overlap, workflow, name=self.name, zone=self.tz)
        except ScheduleInvalid as exc:
            return [*problems, str(exc)]
        return [
            *problems,
            *schedule_problems(
                table,
                now,
                name=self.name,
                template=self.workflow_id,
                overlap=overlap,
                catch_up=self.catch_up,
                jitter=self.jitter,
            ),
        ]

    def _number_problems(self) -> list[str]:
        problems = []
        for name in ("max_fires", "pause_after"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or not 1 <= number <= _MAX_NUMBER):
                problems.append(f"{name}: {number!r} must be a whole number from 1 to {_MAX_NUMBER:,}, or empty")
        return problems

    def plain_args(self, workflow: type[Startable] | None) -> Any:
        """Return the input of the runs, or the arguments of the task, as plain JSON types.

        Raises ``PayloadError`` if it does not fit the class or the signature.
        """
        limit = get_settings().MAX_PAYLOAD_BYTES
        if workflow is None:
            return task_arguments(django_tasks.find_scheduled(self.task), self.args, limit=limit)
        return plain_input(workflow, self.args, limit=limit)

    def columns(self) -> dict[str, Any]:
        """Return the values for the columns of ``Schedule``, by name.

        ``args`` is left out if the stored input is kept.
        """
        table = self.table()
        columns: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("specs", "args")
        }
        columns |= {"specs": specs_to_json(table.specs), "start": table.start, "end": table.end}
        columns["overlap"] = str(parse_overlap(self.overlap))
        if self.arguments_function:
            columns["args"] = None
        elif self.args is not KEPT:
            columns["args"] = project_codec().encode(self.plain_args(self.workflow_class()))
        return columns


def changed_columns(row: ScheduleRow, columns: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of the ``columns`` whose values differ from the row of the schedule."""
    return sorted(name for name, value in columns.items() if not _is_same(name, getattr(row, name), value))


def _is_same(name: str, stored: Any, value: Any) -> bool:
    if name != "args" or stored is None or value is None:
        return bool(stored == value)
    # Compared decoded: a codec that encrypts makes other bytes of one value each time.
    decode = project_codec().decode
    return bool(decode(bytes(stored)) == decode(bytes(value)))


def apply_columns(row: ScheduleRow, columns: Mapping[str, Any], now: datetime) -> list[str]:
    """Set columns of a schedule's row, which is new or locked, and return the names of those that change.

    If the time table changes, the schedule next fires after ``now``, and a backfill under way ends. The row is not
    saved.
    """
    changed = changed_columns(row, columns)
    for name in changed:
        setattr(row, name, columns[name])
    if row._state.adding or not {*changed}.isdisjoint(TIME_COLUMNS):  # noqa: SLF001 - Django documents it
        # The range of a backfill was previewed with the old times.
        row.position, row.last_walls, row.backfill = now, {}, None
    row.changed_at, row.error = now, ""
    return changed


# --- definition input -------------------------------------------------------------------------------------------------
#
# Definitions of schedules as people and programs write them: plain values, such as the body of a request.


#: Values that say when a schedule fires, beside ``specs``.
SPEC_WORDS = ("cron", "every", "offset", "calendar", "holidays", "at")
_DURATIONS = ("catch_up", "jitter")
_TIMES = ("start", "end")


def parse_definition(values: Mapping[str, Any]) -> ScheduleDefinition:
    """Parse the definition of a schedule from plain values, such as the body of a request.

    The names are the fields of ``ScheduleDefinition``; a value that is missing, or None, is the default. Instead of
    ``specs`` (objects with a ``type``), the values may have ``cron``, ``every``, ``offset``, ``calendar``, ``holidays``
    and ``at``, each a value or a list. Durations are seconds. Times are ISO strings; without an offset they are
    wall-clock times of the zone. ``args`` may be ``KEPT``.

    Raises ``ScheduleInvalid`` for a value that cannot be read. ``ScheduleDefinition.check`` finds the other problems.
    """
    parsed = {name: value for name, value in values.items() if name not in SPEC_WORDS and value is not None}
    parsed["specs"] = _parse_specs(values)
    for name in _DURATIONS:
        if name in parsed:
            parsed[name] = _duration(parsed[name], name)
    for name in _TIMES:
        if name in parsed:
            parsed[name] = parse_time(parsed[name], name)
    if "overlap" in parsed:
        parsed["overlap"] = parse_overlap(parsed["overlap"])
    return ScheduleDefinition(**parsed)


def _parse_specs(values: Mapping[str, Any]) -> tuple[Spec, ...]:
    words = {name: values[name] for name in SPEC_WORDS if values.get(name) is not None}
    if values.get("specs") is None:
        if "at" in words:
            words["at"] = [parse_time(text, "at") for text in _as_list(words["at"])]
        return parse_specs(**words)
    if words:
        raise ScheduleInvalid(f"give either `specs` or {', '.join(f'`{name}`' for name in words)}, not both")
    return specs_from_json(values["specs"])


def _as_list(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _duration(seconds: Any, label: str) -> timedelta:
    try:
        duration = timedelta(seconds=to_seconds(seconds, label=label))
    except (TypeError, ValueError) as exc:
        raise ScheduleInvalid(str(exc)) from None
    if duration < timedelta(0):
        raise ScheduleInvalid(f"{label}: {seconds} must not be negative")
    return duration


# --- arguments --------------------------------------------------------------------------------------------------------
#
# Calls of arguments functions, which make the input of the runs of a schedule.


logger = logging.getLogger("temporalex_django.operations")

#: Arguments functions that did not return in time, and are still running in this process.
hanging_functions: dict[str, threading.Thread] = {}


def compute_arguments(name: str, at: datetime) -> Any | SlotFailure:
    """Call a registered arguments function, which makes the input of a run, for the schedule's time ``at``.

    Returns the input as plain JSON types, or a ``SlotFailure`` if the function raises or does not return in time. It is
    called in a thread of its own, because it is code of the project. A thread that does not return in time is left
    alone; later slots fail until it returns. In a test environment the function is called in the thread of the test.
    """
    if not host().limits_functions:
        return call_arguments(name, at, limit=get_settings().MAX_PAYLOAD_BYTES)
    hanging = hanging_functions.get(name)
    if hanging is not None and hanging.is_alive():
        return SlotFailure(
            code="arguments", message=f"the arguments function {name} has not returned since an earlier slot"
        )
    results: list[Any | SlotFailure] = []
    thread = threading.Thread(
        target=_call_in_thread, args=[name, at, results], name=f"temporalex-arguments-{name}", daemon=True
    )
    thread.start()
    thread.join(policy.ARGUMENTS_SECONDS)
    if not results:
        hanging_functions[name] = thread
        return SlotFailure(
            code="arguments",
            message=f"the arguments function {name} did not return within {policy.ARGUMENTS_SECONDS:g} s",
        )
    return results[0]


def _call_in_thread(name: str, at: datetime, results: list[Any | SlotFailure]) -> None:
    try:
        results.append(call_arguments(name, at, limit=get_settings().MAX_PAYLOAD_BYTES))
    except BaseException as exc:  # noqa: BLE001 - such as SystemExit, which ends only this thread
        results.append(
            SlotFailure(code="arguments", message=f"the arguments function {name}: {exception_name(type(exc))}")
        )
    finally:
        connections.close_all()
