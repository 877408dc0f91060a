"""List filters that cost nothing on big tables: their choices come from code, not from a DISTINCT over the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from temporalex_django.actions.audit import READ
from temporalex_django.actions.registry import ACTIONS
from temporalex_django.authoring import workflow as workflows
from temporalex_django.core.history.events import CLOSED_STATUSES


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
        return [("blocked", _("Blocked")), ("open", _("Open")), ("closed", _("Closed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "blocked":
                return queryset.filter(blocked__isnull=False)
            case "open":
                return queryset.exclude(status__in=CLOSED_STATUSES)
            case "closed":
                return queryset.filter(status__in=CLOSED_STATUSES)
        return queryset


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
