"""List filters that are cheap on big tables: their choices come from code, not from a DISTINCT over the rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import is_unfiltered
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.run_filters import (
    CHECKS,
    ORDERS,
    RUN_FILTERS,
    WAIT_KINDS,
    FilterType,
    condition_keys,
    parse_conditions,
)
from temporalex_django.authoring.start_api import Startable
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.models import BulkJob, EndedTask, Instance, Status
from temporalex_django.operations.audit import READ
from temporalex_django.operations.background_tasks import named_queues
from temporalex_django.operations.read import run_filters
from temporalex_django.operations.read.failure_groups import run_failure_groups
from temporalex_django.operations.registry import ACTIONS

_MAX_DIGITS = 9


class ChoicesFilter(ABC, admin.SimpleListFilter):
    """Base class of list filters whose choices come from the code of this process, and not from the rows.

    ``column`` is the column that is compared with the chosen value.
    """

    column: str

    @abstractmethod
    def choices_from_code(self) -> Iterable[tuple[str, Any]]: ...

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        choices = list(self.choices_from_code())
        chosen = self.used_parameters.get(str(self.parameter_name))
        # A bookmark can name a class that this process no longer has; its runs are still there.
        if chosen is not None and chosen not in dict(choices):
            choices.append((str(chosen), str(chosen)))
        return choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        # No column contains unprintable characters, and PostgreSQL raises an error for some of them, such as NUL.
        if value.isprintable():
            return queryset.filter(**{self.column: value})
        return queryset.none()


class WorkflowFilter(ChoicesFilter):
    """List filter by workflow class; the choices are the classes of this process."""

    title = _("workflow")
    parameter_name = "workflow"
    column = "workflow"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted(workflows.registry)]


class QueueFilter(ChoicesFilter):
    """List filter by the queue of runs; the choices are the queues that the classes of this process name."""

    title = _("queue")
    parameter_name = "queue"
    column = "queue"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted({"default", *(cls.task_queue for cls in workflows.concrete_classes())})]


class TaskQueueFilter(QueueFilter):
    """List filter by the queue of a Django task; the choices are the queues that the task backends name."""

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in named_queues()]


class TaskStatusFilter(ChoicesFilter):
    """List filter by the status with which a Django task has ended."""

    title = _("status")
    parameter_name = "status"
    column = "status"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return EndedTask.TaskStatus.choices


class BackendFilter(ChoicesFilter):
    """List filter by the task backend with which a Django task was enqueued."""

    title = _("backend")
    parameter_name = "backend"
    column = "backend"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted(getattr(settings, "TASKS", None) or {})]


class RunListFilter(admin.SimpleListFilter):
    """Base class of list filters of runs that use the query of a filter which REST and the commands have, too.

    The class argument ``row`` is the name of that filter in ``authoring.run_filters.RUN_FILTERS``.
    """

    def __init_subclass__(cls, *, row: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.parameter_name, cls.title = row, _(RUN_FILTERS[row].title)

    def parse(self, text: str) -> Any:
        """Convert the text in the URL to the value of the filter; raises ``ValueError`` if no run can match it."""
        return CHECKS[RUN_FILTERS[str(self.parameter_name)].type](text)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        text = self.value()
        if text is None:
            return queryset
        try:
            value = self.parse(text)
        except ValueError:
            return queryset.none()
        return run_filters.FILTERS[str(self.parameter_name)](queryset, value)


class RunWorkflowFilter(RunListFilter, WorkflowFilter, row="workflow"):
    """List filter of runs by workflow class."""


class RunQueueFilter(RunListFilter, QueueFilter, row="queue"):
    """List filter of runs by queue."""


class JobStateFilter(ChoicesFilter):
    """List filter by the state of a bulk job."""

    title = _("state")
    parameter_name = "state"
    column = "state"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return BulkJob.State.choices


class TroubleFilter(admin.SimpleListFilter):
    """List filter by a condition of runs, such as stuck or paused, or for all open or all closed runs.

    The conditions are the filters of ``RUN_FILTERS`` that are true or false.
    """

    title = _("condition")
    parameter_name = "standing"
    # Stuck runs come first, because they need a person.
    _CONDITIONS = sorted(
        ((row.name, _(row.title)) for row in RUN_FILTERS.values() if row.type is FilterType.BOOLEAN and row.title),
        key=lambda choice: choice[0] != "stuck",
    )

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*self._CONDITIONS, ("open", _("Open")), ("closed", _("Closed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "open":
                return queryset.exclude(status__in=CLOSED_STATUSES)
            case "closed":
                return queryset.filter(status__in=CLOSED_STATUSES)
            case name if name in dict(self._CONDITIONS):
                return run_filters.FILTERS[name](queryset, True)
        return queryset


class CauseFilter(RunListFilter, row="cause"):
    """List filter of runs by the cause of a failure: the runs that failed with it, or whose activities do."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the causes of the largest groups of failures as choices, pairs ``(cause, label)``.

        The label of each has the number of failures.
        """
        # Causes are no values that code knows, but few rows have one: the groups are read by a partial index.
        runs = model_admin.get_queryset(request)
        groups = run_failure_groups(runs.db, None if is_unfiltered(runs) else runs, now=timezone.now())
        counts: Counter[str] = Counter()
        for group in groups:
            counts[group.cause] += group.count
        choices = [(cause, f"{cause} ({count:,})") for cause, count in counts.most_common()]
        chosen = self.used_parameters.get(str(self.parameter_name))
        if chosen is None or chosen in counts:
            return choices
        return [*choices, (str(chosen), str(chosen))]


class VersionFilter(RunListFilter, ChoicesFilter, row="version"):
    """List filter by the version of the workflow class."""

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        versions = {number for numbers in workflows.registered_versions().values() for number in numbers}
        return [(str(number), str(number)) for number in sorted(versions)]

    def parse(self, text: str) -> Any:
        # More digits would overflow the integer column, and int() accepts digits that are not ASCII.
        if not (text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS):
            raise ValueError("must be a version")
        return int(text)


class StartedFilter(admin.SimpleListFilter):
    """List filter of runs by the time since their start: the last hour, day, week or month.

    The run id contains the time of the start, so no other column is read.
    """

    title = _("started")
    parameter_name = "started"
    _SPANS = (
        ("1h", 1, _("Last hour")),
        ("24h", 24, _("Last 24 hours")),
        ("7d", 168, _("Last 7 days")),
        ("30d", 720, _("Last 30 days")),
    )

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, _hours, label in self._SPANS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        hours = {name: hours for name, hours, _label in self._SPANS}.get(self.value() or "")
        if hours is None:
            return queryset
        first = timezone.now() - timedelta(hours=hours)
        # The first 48 bits of a UUIDv7 are milliseconds since 1970; the remaining 80 bits are zero for the lowest id.
        return queryset.filter(pk__gte=UUID(int=int(first.timestamp() * 1000) << 80))


class WaitingForFilter(RunListFilter, row="waits"):
    """List filter of runs by the kind of thing that open runs wait for, such as a timer or a message."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("message", _("A message")),
            ("activity", _("An activity")),
            ("timer", _("A timer")),
            ("child", _("Another run")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        # An address with another kind shows all runs.
        if self.value() in WAIT_KINDS:
            return super().queryset(request, queryset)
        return queryset


class RunStatusFilter(RunListFilter, row="status"):
    """List filter by the status of runs."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*Status.choices]


class OrderFilter(admin.SimpleListFilter):
    """A filter of the list of runs that sorts the list, by the time of the start, of the end or of the next activation.

    Runs that lack the time by which the list is sorted are left out.
    """

    title = _("order")
    parameter_name = "order"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("started", _("Oldest first")),
            ("-closed", _("Most recently closed first")),
            ("closed", _("Earliest closed first")),
            ("due", _("Earliest due first")),
            ("-due", _("Latest due first")),
        ]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": _("Newest first")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        order = self.value()
        if order in ORDERS:
            return run_filters.order_runs(queryset, order)
        return queryset


class TagFilter(RunListFilter, ChoicesFilter, row="tag"):
    """List filter of runs by tag.

    The choices are the tags that classes declare; ``?tag=`` in the URL may name another one.
    """

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(tag, tag) for tag in sorted({tag for cls in workflows.concrete_classes() for tag in cls.tags})]


class ActionFilter(ChoicesFilter):
    """List filter of the audit log by the name of the action."""

    title = _("action")
    parameter_name = "action"
    column = "action"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted({*ACTIONS, "view", READ})]


class AutomaticFilter(admin.SimpleListFilter):
    """List filter of the audit log by the actor: people (the default), automatic actions, or all.

    Automatic actions are those of code and of programs. There may be thousands of them a day.
    """

    title = _("actor")
    parameter_name = "who"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("automatic", _("Automatic")), ("all", _("All"))]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": _("People")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen == "all":
            return queryset
        return queryset.filter(automatic=chosen == "automatic")


class InboxFilter(admin.SimpleListFilter):
    """List filter of human tasks: those for the user to decide, claimed by the user, of all visible runs, or closed.

    It only offers the choices; ``HumanTaskAdmin.get_queryset`` applies them.
    """

    title = _("inbox")
    parameter_name = "whose"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("mine", _("Claimed by me")), ("all", _("All that I can see")), ("closed", _("Closed"))]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": _("For me to decide")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class DueFilter(admin.SimpleListFilter):
    """List filter of human tasks by their due time: within a day, within a week, or without one."""

    title = _("due")
    parameter_name = "due"
    _SPANS = (("today", 1, _("Within a day")), ("week", 7, _("Within a week")))

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*((name, label) for name, _days, label in self._SPANS), ("never", _("No due date"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "never":
            return queryset.filter(due_at=None)
        days = {name: days for name, days, _label in self._SPANS}.get(self.value() or "")
        if days is None:
            return queryset
        return queryset.filter(due_at__lte=timezone.now() + timedelta(days=days))


_ATTRIBUTES_ROW = RUN_FILTERS["attributes"]
_ALL_PARAM, _NAME_PARAM, _VALUE_PARAM = _ATTRIBUTES_ROW.name, "attribute", "attribute_value"
#: Parameters of an address that a link of this filter drops: its own, the page, and the error flag of Django.
_DROPPED_PARAMS = frozenset({_ALL_PARAM, _NAME_PARAM, _VALUE_PARAM, "p", "e"})
_OPERATOR_SIGNS = {"": "=", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "prefix": _("begins with")}


class SearchAttributeFilter(admin.ListFilter):
    """List filter of runs by their search attributes.

    The conditions are a JSON object in the URL, as in the REST API. A form on the page adds a condition to them.
    """

    title = _(_ATTRIBUTES_ROW.title)
    #: The parameters of an address that belong to this filter.
    parameters = (_ALL_PARAM, _NAME_PARAM, _VALUE_PARAM)
    template = "admin/temporalex_django/instance/attributes_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        # Django treats what is left in params as lookups of fields, so a filter removes its own.
        raw_params = {name: (params.pop(name, None) or [""])[-1] for name in self.parameters}
        self.other_params = [(name, str(value)) for name, value in request.GET.items() if name not in _DROPPED_PARAMS]
        self.workflow_class: type[Startable] | None = workflows.registry.get(request.GET.get("workflow", ""))
        self.attribute_lookups = _parse_lookups(raw_params[_ALL_PARAM])
        if raw_params[_NAME_PARAM]:
            self.attribute_lookups = {
                **(self.attribute_lookups or {}),
                raw_params[_NAME_PARAM]: raw_params[_VALUE_PARAM],
            }

    def has_output(self) -> bool:
        """Return True if the page should show this filter.

        It should if the chosen workflow class has search attributes, or if the URL has conditions on them.
        """
        # Conditions show even without a class: otherwise the list would be empty and nobody could remove them.
        return self.attribute_lookups != {} or (
            self.workflow_class is not None and bool(condition_keys(self.workflow_class))
        )

    def expected_parameters(self) -> list[str | None]:
        return [*self.parameters]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Instance]) -> QuerySet[Instance]:
        if self.attribute_lookups == {}:
            return queryset
        if self.workflow_class is None:
            messages.error(request, _("Choose the workflow that has these search attributes."))
            return queryset.none()
        if self.attribute_lookups is None:
            messages.error(request, _('Enter a JSON object, such as {"total__gt": 1000}.'))
            return queryset.none()
        try:
            parsed_conditions = parse_conditions(self.workflow_class, self.attribute_lookups, texts=True)
        except (TypeError, ValueError) as exc:
            messages.error(request, str(exc))
            return queryset.none()
        return run_filters.with_attributes(queryset, parsed_conditions)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the template context of each condition: its text, and the URL of the list without the condition."""
        for name, value in (self.attribute_lookups or {}).items():
            remaining = {
                other_name: other_value
                for other_name, other_value in (self.attribute_lookups or {}).items()
                if other_name != name
            }
            query_params = [*self.other_params, *([(_ALL_PARAM, _encode_lookups(remaining))] if remaining else [])]
            yield {
                "display": f"{_lookup_label(name)} {value}",
                "query_string": f"?{urlencode(query_params)}",
                "selected": True,
            }

    @property
    def hidden_params(self) -> list[tuple[str, str]]:
        """The hidden fields of the form that adds a condition, as pairs of name and value.

        They repeat all other filters of the URL, and the conditions so far.
        """
        return [
            *self.other_params,
            *([(_ALL_PARAM, _encode_lookups(self.attribute_lookups))] if self.attribute_lookups else []),
        ]

    @property
    def attribute_choices(self) -> list[tuple[str, str]]:
        """The conditions from which the form lets the user choose, as pairs of key and label.

        A key consists of an attribute and an operator, such as ``total__gt``.
        """
        if self.workflow_class is None:
            return []
        return [(name, _lookup_label(name)) for name in condition_keys(self.workflow_class)]


def _parse_lookups(text: str) -> dict[str, Any] | None:
    # Decimal keeps every digit of a number. It raises InvalidOperation for an exponent with too many digits.
    try:
        lookups = {}
        if text:
            lookups = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation):
        return None
    if isinstance(lookups, dict):
        return lookups
    return None


def _encode_lookups(lookups: Mapping[str, Any]) -> str:
    return json.dumps(lookups, default=str, ensure_ascii=False)


def _lookup_label(name: str) -> str:
    attribute, _, operator = str(name).partition("__")
    return f"{attribute} {_OPERATOR_SIGNS.get(operator, operator)}"
