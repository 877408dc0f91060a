"""Schedules in the admin: the form that adds or changes one. Their other pages are in the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy, schedules_for
from temporalex_django.admin.base import AdminMount
from temporalex_django.admin.read_only import ConsoleEntryAdmin
from temporalex_django.admin.schedules.schedule_form import ScheduleForm
from temporalex_django.authoring.authorization import APP
from temporalex_django.authoring.django_tasks import defined_paths
from temporalex_django.authoring.schedules.schedule import specs_in_words
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.console.base import (
    actor_of,
    idempotent_request,
    is_duplicate_request,
    posted_data,
    refuse,
    user_of,
)
from temporalex_django.console.run.start import class_summary, startable_classes
from temporalex_django.console.schedule_rows import fire_times
from temporalex_django.console.schedules import can_manage, require_manage_permission
from temporalex_django.errors import ActionNotPermitted, ScheduleInvalid, TemporalexError
from temporalex_django.models import Schedule
from temporalex_django.operations.background_tasks import RetryTask
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import DuplicateRequest
from temporalex_django.operations.schedules.operations import VIEW_SCHEDULE
from temporalex_django.operations.schedules.save import SaveSchedule

_MAX_DIGITS = 18


@admin.register(Schedule)
class ScheduleAdmin(ConsoleEntryAdmin[Schedule]):
    """The entry of schedules in the admin, which leads to the console, and the form that adds or changes a schedule."""

    page = "schedules"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Return the schedules that the user may see. The console of this site uses it, too."""
        return schedules_for(user_of(request), alias=storage().alias)

    def has_view_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return policy().allows(user_of(request), VIEW_SCHEDULE)

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return can_manage(user_of(request), SaveSchedule.name)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        edit = EditScheduleView(self)
        return [
            path("add/", view(edit), name="temporalex_django_schedule_add"),
            path("<path:object_id>/edit/", view(edit), name="temporalex_django_schedule_edit"),
            path("<path:object_id>/change/", view(self.change_view), name="temporalex_django_schedule_change"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the page of the schedule in the console."""
        return self.old_view(request, object_id)

    def old_view(self, request: HttpRequest, rest: str) -> HttpResponse:
        key = rest.partition("/")[0]
        if not _is_key(key) or not self.has_view_permission(request):
            return super().old_view(request, rest)
        return HttpResponseRedirect(AdminMount(self.admin_site).address("schedule", int(key)))

    def find_schedule(self, request: HttpRequest, ref: str) -> Schedule:
        """Return the schedule with the primary key ``ref``.

        Raises ``Http404`` if it does not exist or is hidden from the user. A user who may not look at schedules at all
        gets ``PermissionDenied``, which the audit log records.
        """
        if not self.has_view_permission(request):
            error = _("You may not view schedules: this requires the permission %(wanted)s.")
            refuse(request, VIEW_SCHEDULE.action, error % {"wanted": VIEW_SCHEDULE.permission})
        row = self.get_queryset(request).filter(pk=int(ref)).first() if _is_key(ref) else None
        if row is None:
            raise Http404
        return row

    def address_of(self, row: Schedule) -> str:
        """Return the URL of the page of the schedule."""
        return AdminMount(self.admin_site).address("schedule", row.pk)

    @property
    def list_address(self) -> str:
        return AdminMount(self.admin_site).address("schedules")

    def render_form(
        self, request: HttpRequest, *, title: str, row: Schedule | None, status: int = 200, **context: Any
    ) -> HttpResponse:
        """Render the page with the form of the schedule ``row``, or of a new one if ``row`` is None.

        ``status`` is the status of the response, and ``context`` adds values to the template context.
        """
        page_context = {
            **self.admin_site.each_context(request),
            "title": title,
            "subtitle": None,
            "original": row,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "add": row is None,
            "change": row is not None,
            "is_popup": False,
            **context,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/temporalex_django/schedule/form.html", page_context, status=status)


def _is_key(text: str) -> bool:
    # More digits would overflow the column, and int() accepts digits that are not ASCII.
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


# --- edit view --------------------------------------------------------------------------------------------------------
#
# Create or change a schedule in the admin: choose a class, fill in a form, and see when it would fire.


_FIRES_SHOWN = 5
#: Name of the button that shows the times and saves nothing.
_PREVIEW = "_preview"


class EditScheduleView:
    """The admin page that creates a schedule of the class ``?workflow=`` or of the task ``?task=``, or changes one.

    Without both, the page lists the classes and the tasks. The button *Preview* shows when the schedule would fire.
    """

    def __init__(self, model_admin: ScheduleAdmin) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest, object_id: str = "") -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        row = self.admin.find_schedule(request, object_id) if object_id else None
        require_manage_permission(request, SaveSchedule.name)
        if row is not None and row.owner == Schedule.Owner.CODE:
            messages.error(request, _("%(module)s declares this schedule: change it there.") % {"module": row.module})
            return HttpResponseRedirect(self.admin.address_of(row))
        classes = {cls.name: cls for cls in startable_classes(user_of(request))}
        tasks = self._tasks(request)
        workflow, task = self._target(request, row, classes, tasks)
        if workflow is None and not task:
            return self._render_choice(request, row, [*classes.values()], tasks)
        form = ScheduleForm(posted_data(request), workflow=workflow, task=task, row=row, by=actor_of(request))
        if request.method == "POST" and form.is_valid() and _PREVIEW not in request.POST:
            return self._save(request, row, form)
        return self._render_form(request, row, form)

    def _target(
        self, request: HttpRequest, row: Schedule | None, classes: Mapping[str, type[Workflow]], tasks: Sequence[str]
    ) -> tuple[type[Workflow] | None, str]:
        """Return the class or the task that was chosen, or that of the row; (None, "") if there is none of both.

        Raises ``Http404`` for one that the user may not schedule.
        """
        name, task = request.GET.get("workflow", ""), request.GET.get("task", "")
        if name or task:
            if name not in classes and task not in tasks:
                raise Http404
        elif row is not None:
            name, task = row.workflow, row.task
        workflow = classes.get(name)
        return workflow, task if workflow is None and task in tasks else ""

    def _tasks(self, request: HttpRequest) -> list[str]:
        """Return the paths of the tasks that the user may schedule."""
        operation = Operation(action=RetryTask.name, permission=f"{APP}.{RetryTask.permission}")
        return sorted(defined_paths) if policy().allows(user_of(request), operation) else []

    def _save(self, request: HttpRequest, row: Schedule | None, form: ScheduleForm) -> HttpResponse:
        token = form.cleaned_data["token"]
        if is_duplicate_request(request, token):
            return self._duplicate_response(request)
        assert form.definition is not None
        try:
            # The row and the token commit together: if the response gets lost, the second POST saves nothing.
            with idempotent_request(request, token).run_once() as answer:
                operation = SaveSchedule(
                    form.definition, create=row is None, expected=form.expected_versions, by=actor_of(request)
                )
                saved_row = operation.execute()
                answer.made = UUID(int=saved_row.pk)
        # Another process did the same POST between the check above and the insert of the token.
        except DuplicateRequest:
            return self._duplicate_response(request)
        except TemporalexError as exc:
            status = 409
            if isinstance(exc, ActionNotPermitted):
                status = 403
            form.add_error(None, exc.message)
            form.renew()
            return self._render_form(request, row, form, status=status)
        messages.success(request, _("Saved %(name)s.") % {"name": saved_row.name})
        return HttpResponseRedirect(self.admin.address_of(saved_row))

    def _duplicate_response(self, request: HttpRequest) -> HttpResponse:
        messages.info(request, _("This form was already submitted, so nothing was saved this time."))
        return HttpResponseRedirect(self.admin.list_address)

    def _render_choice(
        self, request: HttpRequest, row: Schedule | None, classes: list[type[Workflow]], tasks: list[str]
    ) -> HttpResponse:
        choices = [
            {"name": cls.name, "address": f"?{urlencode({'workflow': cls.name})}", "about": class_summary(cls)}
            for cls in classes
        ]
        choices += [
            {"name": task, "address": f"?{urlencode({'task': task})}", "about": _("A Django task")} for task in tasks
        ]
        title = _("Add a schedule: choose the workflow or the task")
        if row is not None:
            title = _("Change %(name)s: choose the workflow or the task") % {"name": row.name}
        return self.admin.render_form(request, title=title, row=row, classes=choices)

    def _render_form(
        self, request: HttpRequest, row: Schedule | None, form: ScheduleForm, *, status: int = 200
    ) -> HttpResponse:
        title, back = _("Add a schedule for %(workflow)s"), self.admin.list_address
        if row is not None:
            title, back = _("Change %(name)s"), self.admin.address_of(row)
        return self.admin.render_form(
            request,
            title=title % {"workflow": form.target, "name": getattr(row, "name", "")},
            row=row,
            status=status,
            form=form,
            about="" if form.workflow is None else class_summary(form.workflow),
            back=back,
            **_preview_context(form),
        )


def _preview_context(form: ScheduleForm) -> dict[str, Any]:
    """Return when the schedule would fire; empty while the fields about times are not valid."""
    table = form.table
    if table is None:
        return {}
    limit = form.cleaned_data.get("max_fires") or _FIRES_SHOWN
    try:
        slots = [*islice(table.slots(timezone.now()), min(limit, _FIRES_SHOWN))]
        words = specs_in_words(table.specs, table.zone)
    # A function of holidays failed: the form says so at the field.
    except ScheduleInvalid:
        return {}
    return {
        "words": words,
        "fires": fire_times([slot.instant for slot in slots], table.zone),
        "zone": table.zone,
        "viewer_zone": timezone.get_current_timezone_name(),
    }
