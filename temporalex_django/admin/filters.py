"""List filters that cost nothing on big tables: their choices come from code, not from a DISTINCT over the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.audit import READ
from temporalex_django.actions.registry import ACTIONS
from temporalex_django.authoring import workflow as workflows
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.models import ActivityTask, Chain, Instance

#: A run is due, and nobody has taken it for so long.
_LATE = timedelta(seconds=60)
_MANY_ATTEMPTS = 5
_MOST_DIGITS = 9
#: How the words begin in which a run says what it waits for.
_WAITS = {
    "message": ("phase: ", "signal ", "step "),
    "activity": ("activity ", "step "),
    "timer": ("timer", "sleep"),
    "child": ("child ", "workflow "),
}


class ChoicesFilter(ABC, admin.SimpleListFilter):
    """A column, and the values that code knows for it."""

    column: str

    @abstractmethod
    def choices_from_code(self) -> Iterable[tuple[str, Any]]: ...

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        found = list(self.choices_from_code())
        chosen = self.used_parameters.get(str(self.parameter_name))
        if chosen is not None and chosen not in dict(found):  # of a class that this process has no more
            found.append((str(chosen), str(chosen)))
        return found

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(**{self.column: value})


class WorkflowFilter(ChoicesFilter):
    """By class."""

    title = _("workflow")
    parameter_name = "workflow"
    column = "workflow"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted(workflows.registry)]


class QueueFilter(ChoicesFilter):
    """By queue."""

    title = _("queue")
    parameter_name = "queue"
    column = "queue"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted({"default", *(cls.task_queue for cls in workflows.concrete())})]


class StandingFilter(admin.SimpleListFilter):
    """What people look for first."""

    title = _("standing")
    parameter_name = "standing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("stuck", _("Stuck")), ("blocked", _("Blocked")), ("open", _("Open")), ("closed", _("Closed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "stuck":
                return queryset.filter(pk__in=_stuck(queryset.db))
            case "blocked":
                return queryset.filter(blocked__isnull=False)
            case "open":
                return queryset.exclude(status__in=CLOSED_STATUSES)
            case "closed":
                return queryset.filter(status__in=CLOSED_STATUSES)
        return queryset


def _stuck(alias: str) -> QuerySet[Any]:
    """Ids of the runs that somebody should look at: each of the three is found by an index of its own."""
    late = timezone.now() - _LATE
    return (
        Instance.objects.using(alias)
        .filter(blocked__isnull=False)
        .order_by()
        .values("pk")
        .union(
            ActivityTask.objects.using(alias).filter(attempt__gt=_MANY_ATTEMPTS).order_by().values("run_id"),
            Chain.objects.using(alias).filter(due_at__lt=late, closed=False, paused=False).order_by().values("run_id"),
        )
    )


class VersionFilter(ChoicesFilter):
    """By version of its class."""

    title = _("version")
    parameter_name = "version"
    column = "version"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        found = {number for numbers in workflows.versions_here().values() for number in numbers}
        return [(str(number), str(number)) for number in sorted(found)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        digits = value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS
        return queryset.filter(version=int(value)) if digits else queryset.none()


class StartedFilter(admin.SimpleListFilter):
    """By when it was started, which its id says: no column beside it is read."""

    title = _("started")
    parameter_name = "started"
    _SPANS = (("1h", 1, _("Last hour")), ("24h", 24, _("Last 24 hours")), ("7d", 168, _("Last 7 days")), ("30d", 720, _("Last 30 days")))  # fmt: skip

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, _hours, label in self._SPANS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        hours = {name: hours for name, hours, _label in self._SPANS}.get(self.value() or "")
        if hours is None:
            return queryset
        first = timezone.now() - timedelta(hours=hours)
        return queryset.filter(pk__gte=UUID(int=int(first.timestamp() * 1000) << 80))


class WaitsFilter(admin.SimpleListFilter):
    """By what open runs wait for."""

    title = _("waits for")
    parameter_name = "waits"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("message", _("A message")),
            ("activity", _("An activity")),
            ("timer", _("A timer")),
            ("child", _("Another run")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        words = _WAITS.get(self.value() or "")
        if words is None:
            return queryset
        wanted = Q()
        for word in words:
            wanted |= Q(waiting_for__icontains=f'"{word}')
        return queryset.exclude(status__in=CLOSED_STATUSES).filter(wanted)


class ActionFilter(ChoicesFilter):
    """By what was done."""

    title = _("action")
    parameter_name = "action"
    column = "action"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted({*ACTIONS, "view", READ})]


class ActorFilter(admin.SimpleListFilter):
    """What people did.

    What code and turns did by themselves only when it is asked for, since there may be thousands of them a day.
    """

    title = _("who")
    parameter_name = "who"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("automatic", _("Automatic")), ("all", _("All"))]

    def choices(self, changelist: Any) -> Iterator[Any]:
        first, *others = super().choices(changelist)
        yield {**first, "display": _("People")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset if chosen == "all" else queryset.filter(automatic=chosen == "automatic")
