"""Views that change a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.access import Operation, policy
from temporalex_django.admin.schedules.formatting import ScheduleAdminBase, fire_times, time_text
from temporalex_django.admin.schedules.schedule_form import ScheduleForm, WallTimeField
from temporalex_django.authoring.authorization import APP
from temporalex_django.authoring.django_tasks import defined_paths
from temporalex_django.authoring.schedules.schedule import specs_in_words
from temporalex_django.authoring.schedules.slots import instants_of, load_zone
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.console.actions import ReasonForm
from temporalex_django.console.base import actor_of, idempotent_request, is_duplicate_request, posted_data, user_of
from temporalex_django.console.run.start import class_summary, startable_classes
from temporalex_django.errors import ActionNotPermitted, ScheduleInvalid, TemporalexError
from temporalex_django.models import Schedule
from temporalex_django.operations.background_tasks import RetryTask
from temporalex_django.operations.base import storage
from temporalex_django.operations.idempotency import DuplicateRequest
from temporalex_django.operations.schedules.operations import (
    BackfillPreview,
    BackfillSchedule,
    DeleteSchedule,
    preview_backfill,
)
from temporalex_django.operations.schedules.save import SaveSchedule

# --- action views -----------------------------------------------------------------------------------------------------
#
# Views of the admin that backfill and delete a schedule: a page that shows the effect, and a POST that does it.


#: Name of the button that starts the backfill; the other button of the page shows the preview.
_CONFIRM = "_confirm"
_MAX_RATE = 6_000


class BackfillForm(ReasonForm):
    """The form that starts a backfill in the admin: a range of past times, and the number of starts per minute.

    The times are wall-clock times in the zone of the schedule.
    """

    start = WallTimeField(label=gettext_lazy("From"), label_suffix="")
    end = WallTimeField(
        label=gettext_lazy("To"), label_suffix="", help_text=gettext_lazy("Both ends of the range are included.")
    )
    per_minute = forms.IntegerField(
        min_value=1,
        max_value=_MAX_RATE,
        initial=60,
        label=gettext_lazy("Starts per minute"),
        label_suffix="",
        help_text=gettext_lazy("The maximum number of runs started per minute."),
    )
    field_order = ("start", "end", "per_minute", "reason")

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if data.get("start") and data.get("end") and data["start"] > data["end"]:
            self.add_error("end", _("It must not be earlier than the start of the range."))
        return data

    def instants(self, zone_name: str) -> tuple[datetime, datetime]:
        """Return ``(start, end)`` of the range of a valid form, as aware times.

        ``zone_name`` is the zone of the schedule. An hour that a clock change repeats belongs to the range as a whole.
        Raises ``ScheduleInvalid`` for an unknown zone.
        """
        zone = load_zone(zone_name)
        first = instants_of(self.cleaned_data["start"], zone, gap="shift", fold="first")
        last = instants_of(self.cleaned_data["end"], zone, gap="shift", fold="second")
        return first[0], last[0]


class BackfillView:
    """The admin page that backfills a schedule in two steps.

    The first POST shows how many slots (times to fire) of the past range would be started, the second starts them.
    """

    def __init__(self, model_admin: ScheduleAdminBase) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        row = self.admin.find_schedule(request, object_id)
        if row is None:
            return self.admin.schedule_not_found(request, object_id)
        self.admin.require_manage_permission(request, BackfillSchedule.name)
        form = BackfillForm(posted_data(request))
        if not form.is_bound or not form.is_valid():
            return self._render(request, row, form)
        try:
            start, end = form.instants(row.tz)
            if _CONFIRM in request.POST:
                return self._backfill(request, row, form, start, end)
            preview = preview_backfill(row, start, end, alias=storage().alias)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error(None, exc.message)
            return self._render(request, row, form, status=409)
        return self._render(request, row, form, preview=preview)

    def _backfill(
        self, request: HttpRequest, row: Schedule, form: BackfillForm, start: datetime, end: datetime
    ) -> HttpResponse:
        data = form.cleaned_data
        preview = BackfillSchedule(
            row.name,
            start=start,
            end=end,
            per_minute=data["per_minute"],
            reason=data["reason"],
            by=actor_of(request),
        ).execute()
        text = ngettext(
            "The backfill of %(n)d slot has begun.", "The backfill of %(n)d slots has begun.", preview.to_start
        )
        messages.success(request, text % {"n": preview.to_start})
        return HttpResponseRedirect(self.admin.address_of(row))

    def _render(
        self,
        request: HttpRequest,
        row: Schedule,
        form: BackfillForm,
        *,
        preview: BackfillPreview | None = None,
        status: int = 200,
    ) -> HttpResponse:
        return self.admin.render_page(
            request,
            "backfill.html",
            title=_("Backfill %(name)s") % {"name": row.name},
            row=row,
            status=status,
            form=form,
            back=self.admin.address_of(row),
            **_preview_texts(row, preview),
        )


def _preview_texts(row: Schedule, preview: BackfillPreview | None) -> dict[str, Any]:
    if preview is None:
        return {"preview": None}
    zone = load_zone(row.tz)
    first_and_last = [time_text(at, zone) for at in (preview.first, preview.last) if at is not None]
    is_parallel = row.overlap == Schedule.OverlapPolicy.ALLOW_ALL
    return {"preview": preview, "ends": first_and_last, "is_parallel": is_parallel}


class DeleteScheduleView:
    """The admin page that deletes a schedule after a confirmation."""

    def __init__(self, model_admin: ScheduleAdminBase) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        row = self.admin.find_schedule(request, object_id)
        if row is None:
            return self.admin.schedule_not_found(request, object_id)
        self.admin.require_manage_permission(request, DeleteSchedule.name)
        form, status = ReasonForm(posted_data(request)), 200
        if form.is_bound and form.is_valid():
            try:
                DeleteSchedule(row.name, reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                form.add_error(None, exc.message)
                status = 409
            else:
                messages.success(request, _("Deleted %(name)s.") % {"name": row.name})
                return HttpResponseRedirect(self.admin.list_address)
        return self.admin.render_page(
            request,
            "delete.html",
            title=_("Delete %(name)s") % {"name": row.name},
            row=row,
            status=status,
            form=form,
            back=self.admin.address_of(row),
        )


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

    def __init__(self, model_admin: ScheduleAdminBase) -> None:
        self.admin = model_admin

    def __call__(self, request: HttpRequest, object_id: str = "") -> HttpResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        row = None
        if object_id:
            row = self.admin.find_schedule(request, object_id)
            if row is None:
                return self.admin.schedule_not_found(request, object_id)
        self.admin.require_manage_permission(request, SaveSchedule.name)
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
        return self.admin.render_page(request, "form.html", title=title, row=row, classes=choices)

    def _render_form(
        self, request: HttpRequest, row: Schedule | None, form: ScheduleForm, *, status: int = 200
    ) -> HttpResponse:
        title, back = _("Add a schedule for %(workflow)s"), self.admin.list_address
        if row is not None:
            title, back = _("Change %(name)s"), self.admin.address_of(row)
        return self.admin.render_page(
            request,
            "form.html",
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
