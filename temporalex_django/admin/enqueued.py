"""Django tasks that were enqueued: those that are open, and those that have ended."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import VIEW_PAYLOAD, policy
from temporalex_django.actions import audit
from temporalex_django.admin.base import CappedPaginator, M, ReadOnlyAdmin
from temporalex_django.admin.filters import BackendFilter, TaskQueueFilter, TaskStatusFilter
from temporalex_django.admin.requests import actor_of, user_of
from temporalex_django.admin.shown import badge, moment, value
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.models.fields import decode_payload

_PAYLOADS = ("given", "came_of_it", "tried")


class _TaskAdmin(ReadOnlyAdmin[M]):
    paginator = CappedPaginator
    unread: tuple[str, ...] = ("call", "options")
    list_select_related = False
    ordering = ("-id",)
    sortable_by = ("enqueued",)  # no index has the others

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        """A list reads no arguments and no results, which may be long."""
        found = super().get_queryset(request)
        one = request.resolver_match is not None and "object_id" in request.resolver_match.kwargs
        return found if one else found.defer(*self.unread)

    def get_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        """Without arguments, results and errors for whoever may not see payloads."""
        allowed = policy().allows(user_of(request), VIEW_PAYLOAD)
        return [name for name in cast("Any", self.fields) if allowed or name not in _PAYLOADS]

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,  # noqa: FBT001, FBT002 - Django's own
        change: bool = False,  # noqa: FBT001, FBT002
        form_url: str = "",
        obj: M | None = None,
    ) -> HttpResponse:
        """The page of a task: that a person was shown its payloads is noted."""
        if obj is not None and policy().allows(user_of(request), VIEW_PAYLOAD):
            number = obj.run_id if isinstance(obj, EnqueuedTask) else obj.pk
            audit.record_task_read(actor_of(request), number, str(obj))
        return super().render_change_form(request, context, add, change, form_url, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return self.get_fields(request, obj)

    @admin.display(description=_("arguments"))
    def given(self, task: Any) -> str:
        return value(task.arguments).text

    @admin.display(description=_("attempts"))
    def tried(self, task: Any) -> str:
        options = decode_payload(task.options)
        return value(options.get("log") or [] if isinstance(options, dict) else options).text


@admin.register(EnqueuedTask)
class EnqueuedTaskAdmin(_TaskAdmin[EnqueuedTask]):
    """What is to be run, or runs."""

    list_display = ("path", "state", "queue", "priority", "enqueued", "due", "attempt", "why")
    list_filter = (TaskQueueFilter,)
    search_fields = ("run_id__exact",)
    search_help_text = _("Id of a task, as enqueue() gave it")
    fields = ("path", "number", "state", "queue", "priority", "enqueued", "due", "attempt", "owner", "given", "tried")

    @admin.display(description=_("task"), ordering="activity")
    def path(self, task: EnqueuedTask) -> str:
        return str(task)

    @admin.display(description=_("id"))
    def number(self, task: EnqueuedTask) -> str:
        return str(task.run_id)

    @admin.display(description=_("status"))
    def state(self, task: EnqueuedTask) -> SafeString:
        return badge("pending", str(_("Ready"))) if task.owner is None else badge("running", str(_("Running")))

    @admin.display(description=_("enqueued"), ordering="id")
    def enqueued(self, task: EnqueuedTask) -> SafeString:
        return moment(task.scheduled_at)

    @admin.display(description=_("due"), ordering="due_at")
    def due(self, task: EnqueuedTask) -> SafeString:
        return moment(task.due_at)

    @admin.display(description=_("waits for"))
    def why(self, task: EnqueuedTask) -> str:
        return task.waits_for or "–"


@admin.register(EndedTask)
class EndedTaskAdmin(_TaskAdmin[EndedTask]):
    """What became of them, as long as that is kept."""

    unread = ("call", "options", "outcome")
    list_display = ("task", "state", "queue", "enqueued", "finished", "attempts")
    list_filter = (TaskStatusFilter, TaskQueueFilter, BackendFilter)
    search_fields = ("id__exact", "task__startswith")
    search_help_text = _("Id of a task, or the path of its function from its beginning")
    fields = (
        *("task", "id", "state", "backend", "queue", "priority", "enqueued_at", "started_at", "finished_at"),
        *("keep_until", "attempts", "given", "came_of_it", "tried"),
    )

    @admin.display(description=_("status"), ordering="status")
    def state(self, task: EndedTask) -> SafeString:
        kind = "completed" if task.status == EndedTask.TaskStatus.SUCCESSFUL else "failed"
        return badge(kind, str(task.get_status_display()))

    @admin.display(description=_("enqueued"), ordering="id")
    def enqueued(self, task: EndedTask) -> SafeString:
        return moment(task.enqueued_at)

    @admin.display(description=_("finished"), ordering="finished_at")
    def finished(self, task: EndedTask) -> SafeString:
        return moment(task.finished_at)

    @admin.display(description=_("result, or why it failed"))
    def came_of_it(self, task: EndedTask) -> str:
        found = decode_payload(task.outcome)
        return value(found.get("result") if isinstance(found, dict) and "result" in found else found).text
