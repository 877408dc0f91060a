"""Background tasks in the admin: those that are enqueued or running, and those that have ended."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import VIEW_PAYLOAD, policy
from temporalex_django.admin.base import CappedPaginator, M, ReadOnlyAdmin, actor_of, user_of
from temporalex_django.admin.filters import BackendFilter, TaskQueueFilter, TaskStatusFilter
from temporalex_django.admin.formatting import badge, format_call, format_payload, format_time
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.models.fields import decode_payload
from temporalex_django.operations import audit

_PAYLOADS = ("call_arguments", "result_text", "attempt_log")


class _BackgroundTaskAdmin(ReadOnlyAdmin[M]):
    paginator = CappedPaginator
    deferred_fields: tuple[str, ...] = ("call", "options")
    list_select_related = False
    ordering = ("-id",)
    # Only the order of ids has an index; a big table sorted by another column takes seconds.
    sortable_by = ("enqueued",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        """Return the background tasks; for a list, without loading their arguments and results, which may be long."""
        queryset = super().get_queryset(request)
        is_detail_view = request.resolver_match is not None and "object_id" in request.resolver_match.kwargs
        if is_detail_view:
            return queryset
        return queryset.defer(*self.deferred_fields)

    def get_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        """Return the names of the fields of the page of a background task.

        Arguments, results and errors are left out for users who may not see payloads.
        """
        can_view_payloads = policy().allows(user_of(request), VIEW_PAYLOAD)
        return [name for name in cast("Any", self.fields) if can_view_payloads or name not in _PAYLOADS]

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,  # noqa: FBT001, FBT002 - Django's own
        change: bool = False,  # noqa: FBT001, FBT002
        form_url: str = "",
        obj: M | None = None,
    ) -> HttpResponse:
        """Render the page of a background task.

        If the user sees its payloads, the audit log records that they have read them.
        """
        # Here and not in change_view: Django has found the object and checked the permission to see it by now.
        if obj is not None and policy().allows(user_of(request), VIEW_PAYLOAD):
            task_id = obj.run_id if isinstance(obj, EnqueuedTask) else obj.pk
            audit.record_task_read(actor_of(request), task_id, str(obj))
        return super().render_change_form(request, context, add, change, form_url, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return self.get_fields(request, obj)

    @admin.display(description=_("arguments"))
    def call_arguments(self, task: Any) -> str:
        return format_call(task.arguments).text

    @admin.display(description=_("attempts"))
    def attempt_log(self, task: Any) -> str:
        options = decode_payload(task.options)
        return format_payload(options.get("log") or [] if isinstance(options, dict) else options).text


@admin.register(EnqueuedTask)
class EnqueuedTaskAdmin(_BackgroundTaskAdmin[EnqueuedTask]):
    """The admin pages of background tasks that wait for a worker or are running: a list, and a page for each."""

    list_display = ("task_path", "state", "queue", "priority", "enqueued", "due", "attempt", "wait_text")
    list_filter = (TaskQueueFilter,)
    search_fields = ("run_id__exact",)
    search_help_text = _("The id of a task, as returned by enqueue()")
    fields = (
        "task_path",
        "task_id",
        "state",
        "queue",
        "priority",
        "enqueued",
        "due",
        "attempt",
        "owner",
        "call_arguments",
        "attempt_log",
    )

    @admin.display(description=_("task"), ordering="activity")
    def task_path(self, task: EnqueuedTask) -> str:
        return str(task)

    @admin.display(description=_("id"))
    def task_id(self, task: EnqueuedTask) -> str:
        return str(task.run_id)

    @admin.display(description=_("status"))
    def state(self, task: EnqueuedTask) -> SafeString:
        if task.owner is None:
            return badge("pending", str(_("Ready")))
        return badge("running", str(_("Running")))

    @admin.display(description=_("enqueued"), ordering="id")
    def enqueued(self, task: EnqueuedTask) -> SafeString:
        return format_time(task.scheduled_at)

    @admin.display(description=_("due"), ordering="due_at")
    def due(self, task: EnqueuedTask) -> SafeString:
        return format_time(task.due_at)

    @admin.display(description=_("waiting for"))
    def wait_text(self, task: EnqueuedTask) -> str:
        return task.waits_for or "–"


@admin.register(EndedTask)
class EndedTaskAdmin(_BackgroundTaskAdmin[EndedTask]):
    """The admin pages of background tasks that have ended, until their retention removes them."""

    deferred_fields = ("call", "options", "outcome")
    list_display = ("task", "state", "queue", "enqueued", "finished", "attempts")
    list_filter = (TaskStatusFilter, TaskQueueFilter, BackendFilter)
    search_fields = ("id__exact", "task__startswith")
    search_help_text = _("The id of a task, or the beginning of its function's path")
    fields = (
        *("task", "id", "state", "backend", "queue", "priority", "enqueued_at", "started_at", "finished_at"),
        *("keep_until", "attempts", "call_arguments", "result_text", "attempt_log"),
    )

    @admin.display(description=_("status"), ordering="status")
    def state(self, task: EndedTask) -> SafeString:
        kind = "completed" if task.status == EndedTask.TaskStatus.SUCCESSFUL else "failed"
        return badge(kind, str(task.get_status_display()))

    @admin.display(description=_("enqueued"), ordering="id")
    def enqueued(self, task: EndedTask) -> SafeString:
        return format_time(task.enqueued_at)

    @admin.display(description=_("finished"), ordering="finished_at")
    def finished(self, task: EndedTask) -> SafeString:
        return format_time(task.finished_at)

    @admin.display(description=_("result or error"))
    def result_text(self, task: EndedTask) -> str:
        outcome = decode_payload(task.outcome)
        if isinstance(outcome, dict) and "result" in outcome:
            outcome = outcome["result"]
        return format_payload(outcome).text
