"""List filters that are cheap on big tables: their choices come from code, not from a DISTINCT over the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring import workflow as workflows
from temporalex_django.models import EndedTask
from temporalex_django.operations.audit import EXPORT, READ
from temporalex_django.operations.background_tasks import named_queues
from temporalex_django.operations.registry import ACTIONS


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


class ActionFilter(ChoicesFilter):
    """List filter of the audit log by the name of the action."""

    title = _("action")
    parameter_name = "action"
    column = "action"

    def choices_from_code(self) -> Iterable[tuple[str, Any]]:
        return [(name, name) for name in sorted({*ACTIONS, "view", READ, EXPORT})]


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
