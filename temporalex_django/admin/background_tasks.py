"""Background tasks in the admin: those that wait or run, those that have ended, and the operations on them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, cast
from urllib.parse import urlencode
from uuid import UUID, uuid4

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import VIEW, VIEW_PAYLOAD, Operation, policy, runs_for, tasks_for
from temporalex_django.admin.base import AdminMount, M, ReadOnlyAdmin
from temporalex_django.admin.filters import BackendFilter, TaskQueueFilter, TaskStatusFilter
from temporalex_django.authoring.authorization import APP
from temporalex_django.conf import get_settings
from temporalex_django.console.actions import ReasonForm
from temporalex_django.console.base import (
    CappedPaginator,
    actor_of,
    format_call,
    format_payload,
    format_time,
    progress_bar,
    refuse,
    task_status_badge,
    user_of,
)
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.models import EndedTask, EnqueuedTask, Instance
from temporalex_django.models.fields import decode_payload
from temporalex_django.operations import audit
from temporalex_django.operations.background_tasks import (
    CancelTask,
    Requeue,
    RetryTask,
    RunTaskNow,
    TaskAction,
    attempts_of,
    find_task_row,
    named_queues,
    parse_id,
    task_id_of,
)
from temporalex_django.operations.base import storage
from temporalex_django.operations.bulk import StartTaskBulk, count_text
from temporalex_django.operations.read.background_tasks import (
    ENDED_STATUSES,
    TaskFilter,
    TaskRow,
    describe_tasks,
    require_view,
    task_rows,
)
from temporalex_django.operations.read.failure_groups import task_failure_groups

_PAYLOADS = ("call_arguments", "result_text", "attempt_log")
#: Tasks that the preview of a bulk job names, and rows that it reads with one statement.
_NAMED, _PREVIEW_SIZE = 10, 500
_FILTERS = ("status", "queue", "task", "cause", "run")
_IDS = "ids"


class EnqueuedWithin(admin.SimpleListFilter):
    """List filter by the time at which a background task was enqueued."""

    title = _("enqueued")
    parameter_name = "within"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("1", _("Last hour")), ("24", _("Last 24 hours")), ("168", _("Last 7 days"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        hours = self.value()
        if hours not in ("1", "24", "168"):
            return queryset
        return TaskFilter(since=timezone.now() - timedelta(hours=int(hours))).apply(queryset)


class _TextFilter(admin.SimpleListFilter):
    """Base class of list filters by a text in the URL, which links of the pages set."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        chosen = self.value()
        return [] if chosen is None else [(chosen, chosen)]

    def has_output(self) -> bool:
        return self.value() is not None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        text = self.value()
        if text is None:
            return queryset
        if not text.isprintable():
            return queryset.none()
        conditions: dict[str, Any] = {str(self.parameter_name): text}
        return TaskFilter(**conditions).apply(queryset)


class PathFilter(_TextFilter):
    """List filter by the function of a background task."""

    title = _("task")
    parameter_name = "task"


class TaskCauseFilter(_TextFilter):
    """List filter by the cause of a failure, with those of its group."""

    title = _("cause")
    parameter_name = "cause"


class TaskRunFilter(_TextFilter):
    """List filter by the run whose activities enqueued a background task."""

    title = _("run")
    parameter_name = "run"


class _TaskList(ChangeList):
    """The list of background tasks, each with the sentence about it."""

    def url_for_result(self, result: Any) -> str:
        return task_address(self.model_admin.admin_site, task_id_of(result))

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = rows = [*self.result_list]
        for row, description in zip(rows, describe_tasks(rows, user_of(request)), strict=True):
            row.description = description


class RequeueForm(ReasonForm):
    """The form that moves a background task to another queue or priority."""

    queue = forms.ChoiceField(required=False, label=_("Queue"), label_suffix="")
    priority = forms.IntegerField(
        required=False, min_value=-100, max_value=100, label=_("Priority"), label_suffix="",
        help_text=_("From -100 to 100; a higher number runs first."),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        queue_field = cast("forms.ChoiceField", self.fields["queue"])
        queue_field.choices = [("", _("As it is")), *((name, name) for name in named_queues())]


def _preview_action(action_class: type[TaskAction]) -> Any:
    """Return an action of a list which leads to the preview of a bulk job over the selected tasks."""

    def show_preview(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        return HttpResponseRedirect(model_admin.preview_address(request, action_class, queryset))

    show_preview.__name__ = action_class.name
    show_preview.short_description = action_class.label  # type: ignore[attr-defined] # as Django documents it
    show_preview.allowed_permissions = ("start_bulk",)  # type: ignore[attr-defined] # as above
    return show_preview


class _BackgroundTaskAdmin(ReadOnlyAdmin[M]):
    paginator = CappedPaginator
    deferred_fields: tuple[str, ...] = ("call", "options")
    list_select_related = False
    ordering = ("-id",)
    # Only the order of ids has an index; a big table sorted by another column takes seconds.
    sortable_by = ("enqueued",)
    change_form_template = "admin/temporalex_django/backgroundtask/change_form.html"
    change_list_template = "admin/temporalex_django/backgroundtask/change_list.html"
    #: Operations on the tasks of this list.
    operations: tuple[type[TaskAction], ...] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        """Return the tasks that exist for the user. Defer arguments and results in a list, because they may be long."""
        queryset = tasks_for(user_of(request), self.model, alias=storage().alias).order_by("-id")
        is_detail_view = request.resolver_match is not None and "object_id" in request.resolver_match.kwargs
        if is_detail_view:
            return queryset
        return queryset.defer(*self.deferred_fields)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _TaskList

    def get_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        """Leave out arguments, results and errors for users who may not see payloads."""
        can_view_payloads = policy().allows(user_of(request), VIEW_PAYLOAD)
        return [name for name in cast("Any", self.fields) if can_view_payloads or name not in _PAYLOADS]

    def get_readonly_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return self.get_fields(request, obj)

    # -- one task ------------------------------------------------------------------------------------------------------

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,  # noqa: FBT001, FBT002 - Django's own
        change: bool = False,  # noqa: FBT001, FBT002
        form_url: str = "",
        obj: M | None = None,
    ) -> HttpResponse:
        """Show the page of a task with its operations, and record a read if the user sees the payloads."""
        # Here and not in change_view: Django has found the object and checked the permission to see it by now.
        if obj is not None:
            row: Any = obj
            if policy().allows(user_of(request), VIEW_PAYLOAD):
                audit.record_task_read(actor_of(request), task_id_of(row), str(row))
            (row.description,) = describe_tasks([row], user_of(request))
            context.update(
                task=row.description,
                badge=_badge(row.description),
                bar=_progress_bar(row.description),
                operations=self._operation_forms(request, row),
                run=self._enqueuing_run(request, row),
            )
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _operation_forms(self, request: HttpRequest, row: Any) -> list[dict[str, Any]]:
        """Return the operations that the user may perform on the task now, each with its form and its address."""
        if not self.may_operate(request):
            return []
        return [
            {
                "name": action.name,
                "label": action.label,
                "effect": action.effect,
                "destructive": action.destructive,
                "form": _form_of(action)(auto_id=f"id_{action.name}_%s"),
                "attempts": attempts_of(row),
                "address": self._address(action.name, row.pk),
            }
            for action in self.operations
            if action.why_not(row) is None
        ]

    def _enqueuing_run(self, request: HttpRequest, row: Any) -> dict[str, str] | None:
        """Return the name and the address of the run that enqueued the task, if the user may see it."""
        if row.enqueued_by_id is None or not self.admin_site.is_registered(Instance):
            return None
        alias, user = storage().alias, user_of(request)
        runs = runs_for(user, alias=alias)
        run = (Instance.objects.using(alias) if runs is None else runs).filter(pk=row.enqueued_by_id).first()
        operation = Operation(action="view", permission=f"{APP}.view_instance")
        if run is None or not policy().allows(user, operation.of(run)):
            return None
        address = AdminMount(self.admin_site).run_address(run.pk)
        return {"name": f"{run.workflow} {run.workflow_id}", "address": address}

    def may_operate(self, request: HttpRequest) -> bool:
        """Return True if the user may operate background tasks."""
        operation = Operation(action=RetryTask.name, permission=f"{APP}.{RetryTask.permission}")
        return policy().allows(user_of(request), operation)

    def get_urls(self) -> list[Any]:
        """Return the URLs of the operations, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        site, base = self.admin_site, f"temporalex_django_{self.opts.model_name}"
        own = []
        for action in self.operations:
            bulk = site.admin_view(partial(self.bulk_view, action_class=action))
            operate = site.admin_view(partial(self.operate_view, action_class=action))
            own += [
                path(f"bulk/{action.name}/", bulk, name=f"{base}_bulk_{action.name}"),
                path(f"<path:object_id>/{action.name}/", operate, name=f"{base}_{action.name}"),
            ]
        return [*own, *super().get_urls()]

    def operate_view(self, request: HttpRequest, object_id: str, *, action_class: type[TaskAction]) -> HttpResponse:
        """Perform an operation on the task on a POST. The page of the task shows a refusal."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row: Any = self.get_object(request, unquote(object_id))
        if row is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        task_id, attempts = task_id_of(row), request.POST.get("attempts", "")
        form = _form_of(action_class)(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(str(text) for errors in form.errors.values() for text in errors))
            return HttpResponseRedirect(task_address(self.admin_site, task_id))
        seen = int(attempts) if attempts.isascii() and attempts.isdecimal() else None
        try:
            action_class(task_id, by=actor_of(request), attempts=seen, **_inputs_of(form)).execute()
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            messages.error(request, exc.message)
        else:
            messages.success(request, str(action_class.done))
        return HttpResponseRedirect(task_address(self.admin_site, task_id))

    # -- many tasks ----------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, and above it the failures by cause, each with the operation that helps."""
        groups = self._failure_groups(request) if self.has_view_permission(request) else []
        return super().changelist_view(request, {"groups": groups, **(extra_context or {})})

    def _failure_groups(self, request: HttpRequest) -> list[dict[str, Any]]:
        user, alias, is_ended = user_of(request), storage().alias, self.model is EndedTask
        open_tasks = tasks_for(user, EnqueuedTask, alias=alias)
        ended_tasks = tasks_for(user, EndedTask, alias=alias)
        none = (open_tasks.none(), ended_tasks) if is_ended else (open_tasks, ended_tasks.none())
        action = RetryTask if is_ended else RunTaskNow
        may_operate = self.may_start_bulk(request)
        rows = []
        for group in task_failure_groups(*none, now=timezone.now()):
            filters = {"task": group.workflow, "cause": group.cause, **({"status": "FAILED"} if is_ended else {})}
            rows.append(
                {
                    "group": group,
                    "tasks": f"?{urlencode(filters)}",
                    "action": action.label,
                    "address": f"{self._address(f'bulk_{action.name}')}?{urlencode(filters)}" if may_operate else None,
                }
            )
        return rows

    def may_start_bulk(self, request: HttpRequest) -> bool:
        """Return True if the user may start bulk jobs over background tasks."""
        operation = Operation(action=StartTaskBulk.name, permission=f"{APP}.{StartTaskBulk.permission}")
        return self.may_operate(request) and policy().allows(user_of(request), operation)

    def bulk_view(self, request: HttpRequest, *, action_class: type[TaskAction]) -> HttpResponse:
        """Show a preview of a bulk job over tasks, and start the job on a POST.

        The parameters of the URL are a filter, or the ids of the tasks.
        """
        if not self.may_start_bulk(request):
            refuse(request, StartTaskBulk.name, gettext("You may not start bulk jobs over background tasks."))
        try:
            require_view(user_of(request))
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        form, refusal = _form_of(action_class)(request.POST if request.method == "POST" else None), ""
        selection = _selection_of(request.GET)
        if request.method == "POST" and form.is_valid():
            token = request.POST.get("token") or None
            start = partial(StartTaskBulk, action_class.name, tasks=selection, token=token, by=actor_of(request))
            try:
                job = start(**_inputs_of(form)).execute()
                return HttpResponseRedirect(AdminMount(self.admin_site).address("job", job.pk))
            except TemporalexError as exc:
                refusal = exc.message
        return self._preview(request, action_class, form, selection, refusal=refusal)

    def _preview(
        self,
        request: HttpRequest,
        action_class: type[TaskAction],
        form: ReasonForm,
        selection: TaskFilter | list[str],
        *,
        refusal: str,
    ) -> HttpResponse:
        limit, user = get_settings().BULK_LIMIT, user_of(request)
        if selection == TaskFilter():
            rows, refusal = [], refusal or gettext("Select tasks, or choose a filter first.")
        elif isinstance(selection, TaskFilter):
            rows = [*islice(task_rows(selection, user, size=_PREVIEW_SIZE), limit + 1)]
        else:
            rows = [row for task in selection if (row := find_task_row(task, user)) is not None]
        count = min(len(rows), limit)
        context = {
            **self.admin_site.each_context(request),
            "title": f"{action_class.label}: {count_text(action_class.name, count)}",
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "about": action_class.effect,
            "label": action_class.label,
            "destructive": action_class.destructive,
            "token": request.POST.get("token") or uuid4().hex,
            "tasks": describe_tasks(rows[:_NAMED], user),
            "more": max(0, count - _NAMED),
            "why_not": refusal or ("" if rows else gettext("No task meets these conditions any more.")),
            "back": self._address("changelist"),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/temporalex_django/backgroundtask/bulk.html", context)

    def preview_address(self, request: HttpRequest, action_class: type[TaskAction], queryset: QuerySet[Any]) -> str:
        """Return the address of the preview for the tasks that were selected in the list.

        If all tasks of a filter were selected, it is that of the filter.
        """
        address = self._address(f"bulk_{action_class.name}")
        conditions = {name: value for name in _FILTERS if (value := request.GET.get(name))}
        if request.POST.get("select_across") == "1" and conditions.keys() == {*request.GET} - {"p", "o"}:
            return f"{address}?{urlencode(conditions)}"
        column = "pk" if self.model is EndedTask else "run_id"
        ids = queryset.order_by("-id").values_list(column, flat=True)[: self.list_max_show_all]
        return f"{address}?{urlencode({_IDS: ','.join(map(str, ids))})}"

    def _address(self, view: str, *args: Any) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_{self.opts.model_name}_{view}", args=args)

    def has_start_bulk_permission(self, request: HttpRequest) -> bool:
        """Return True if the actions of the list are for this user."""
        return self.may_start_bulk(request)

    # -- columns -------------------------------------------------------------------------------------------------------

    @admin.display(description=_("arguments"))
    def call_arguments(self, task: Any) -> str:
        return format_call(task.arguments).text

    @admin.display(description=_("attempts"))
    def attempt_log(self, task: Any) -> str:
        options = decode_payload(task.options)
        return format_payload(options.get("log") or [] if isinstance(options, dict) else options).text

    @admin.display(description=_("status"))
    def state(self, task: Any) -> SafeString:
        return _badge(task.description)

    @admin.display(description=_("state"))
    def text(self, task: Any) -> SafeString:
        return format_html("{}{}", _progress_bar(task.description), task.description.text)

    @admin.display(description=_("enqueued"), ordering="id")
    def enqueued(self, task: Any) -> SafeString:
        return format_time(task.enqueued_at if isinstance(task, EndedTask) else task.scheduled_at)


@admin.register(EnqueuedTask)
class EnqueuedTaskAdmin(_BackgroundTaskAdmin[EnqueuedTask]):
    """The admin pages of background tasks that wait for a worker or are running: a list, and a page for each."""

    operations = (RunTaskNow, Requeue, CancelTask)
    actions = tuple(map(_preview_action, operations))
    list_display = ("task_path", "state", "text", "queue", "priority", "enqueued", "due", "attempt")
    list_filter = (TaskQueueFilter, EnqueuedWithin, PathFilter, TaskCauseFilter, TaskRunFilter)
    search_fields = ("run_id__exact",)
    search_help_text = _("The id of a task, as returned by enqueue()")
    fields = (
        *("task_path", "task_id", "queue", "priority", "enqueued", "due", "attempt", "owner"),
        *("call_arguments", "attempt_log"),
    )

    def get_urls(self) -> list[Any]:
        page = self.admin_site.admin_view(self.task_view)
        return [path("by-id/<uuid:task_id>/", page, name="temporalex_django_enqueuedtask_by_id"), *super().get_urls()]

    def task_view(self, request: HttpRequest, task_id: UUID) -> HttpResponse:
        """Show the page of the task with that id, whether or not it has ended."""
        row = find_task_row(task_id, user_of(request))
        if row is None:
            if not self.has_view_permission(request):
                refuse(request, VIEW.action, gettext("You may not view background tasks."))
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(task_id))  # type: ignore[attr-defined,no-any-return]
        return self.admin_site.get_model_admin(type(row)).change_view(request, str(row.pk))

    @admin.display(description=_("task"), ordering="activity")
    def task_path(self, task: EnqueuedTask) -> str:
        return str(task)

    @admin.display(description=_("id"))
    def task_id(self, task: EnqueuedTask) -> str:
        return str(task.run_id)

    @admin.display(description=_("due"), ordering="due_at")
    def due(self, task: EnqueuedTask) -> SafeString:
        return format_time(task.due_at)


@admin.register(EndedTask)
class EndedTaskAdmin(_BackgroundTaskAdmin[EndedTask]):
    """The admin pages of background tasks that have ended, until their retention removes them."""

    operations = (RetryTask,)
    actions = tuple(map(_preview_action, operations))
    deferred_fields = ("call", "options", "outcome")
    list_display = ("task", "state", "text", "queue", "enqueued", "finished", "attempts")
    list_filter = (
        TaskStatusFilter,
        TaskQueueFilter,
        BackendFilter,
        EnqueuedWithin,
        PathFilter,
        TaskCauseFilter,
        TaskRunFilter,
    )
    search_fields = ("id__exact", "task__startswith")
    search_help_text = _("The id of a task, or the beginning of its function's path")
    fields = (
        *("task", "id", "backend", "queue", "priority", "enqueued_at", "started_at", "finished_at"),
        *("keep_until", "attempts", "call_arguments", "result_text", "attempt_log"),
    )

    @admin.display(description=_("finished"), ordering="finished_at")
    def finished(self, task: EndedTask) -> SafeString:
        return format_time(task.finished_at)

    @admin.display(description=_("result or error"))
    def result_text(self, task: EndedTask) -> str:
        outcome = decode_payload(task.outcome)
        if isinstance(outcome, dict) and "result" in outcome:
            outcome = outcome["result"]
        return format_payload(outcome).text


def task_address(site: admin.AdminSite, task_id: UUID | str) -> str:
    """Return the address that leads to the page of a background task, whether or not it has ended."""
    return reverse(f"{site.name}:temporalex_django_enqueuedtask_by_id", args=[task_id])


def _badge(task: TaskRow) -> SafeString:
    return task_status_badge(task.status)


def _progress_bar(task: TaskRow) -> SafeString | str:
    if task.progress_done is None or task.progress_total is None or task.status in ENDED_STATUSES:
        return ""
    return progress_bar(task.progress_done, task.progress_total, task.progress_text or "")


def _form_of(action_class: type[TaskAction]) -> type[ReasonForm]:
    return RequeueForm if action_class is Requeue else ReasonForm


def _inputs_of(form: ReasonForm) -> dict[str, Any]:
    """Return the inputs of an operation that were filled in, and the reason."""
    return {name: value for name, value in form.cleaned_data.items() if name == "reason" or value not in ("", None)}


def _selection_of(parameters: Mapping[str, str]) -> TaskFilter | list[str]:
    """Return the ids of tasks that the parameters of a URL name, or their filter."""
    if ids := parameters.get(_IDS):
        return [entry for entry in ids.split(",") if parse_id(entry) is not None]
    conditions: dict[str, Any] = {name: parameters[name] for name in _FILTERS if parameters.get(name, "").strip()}
    return TaskFilter(**conditions)
