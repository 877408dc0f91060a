"""Bulk jobs in the admin: their progress, the outcome for each run, and buttons to stop and resume them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.access import VIEW, policy, runs_or_all
from temporalex_django.admin.base import (
    CappedPaginator,
    ReadOnlyAdmin,
    actor_of,
    badge,
    format_time,
    refuse,
    shorten,
    user_of,
    visible_runs,
)
from temporalex_django.admin.filters import JobStateFilter
from temporalex_django.admin.run.bulk import bulk_permission_error, can_start_bulk
from temporalex_django.errors import ActionNotPermitted, TemporalexError, WorkflowNotFound
from temporalex_django.forms.payload_forms import NoteFormField
from temporalex_django.models import BulkItem, BulkJob, Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.bulk import ResumeBulk, StopBulk, count_text, jobs_for, redact_items
from temporalex_django.operations.registry import STEERING

_RUNS_PER_PAGE = 100
_STATE_BADGES = {"running": "running", "stopped": "terminated", "done": "completed"}
_OUTCOME_BADGES = {"done": "completed", "failed": "failed", "": "pending"}


class ReasonForm(forms.Form):
    """A form that asks for the reason of an operation, which the audit log stores."""

    reason = NoteFormField(
        required=False, label=gettext_lazy("Reason"), label_suffix="",
        help_text=gettext_lazy("Shown in the audit log."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )  # fmt: skip


@admin.register(BulkJob)
class BulkJobAdmin(ReadOnlyAdmin[BulkJob]):
    """The admin pages of the bulk jobs that the user has started; superusers who may see all runs see all jobs.

    The pages need the permission to start bulk jobs.
    """

    list_display = ("job_title", "state_badge", "progress", "failures", "already_done", "actor_name", "created")
    list_filter = (JobStateFilter,)
    ordering = ("-id",)
    paginator = CappedPaginator
    change_form_template = "admin/temporalex_django/bulkjob/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[BulkJob]:
        return jobs_for(user_of(request), alias=storage().alias)

    def has_view_permission(self, request: HttpRequest, obj: BulkJob | None = None) -> bool:
        return can_start_bulk(user_of(request))

    @admin.display(description=gettext_lazy("job"), ordering="id")
    def job_title(self, job: BulkJob) -> str:
        return f"{_action_label(job)}: {count_text(job.action, job.total)}"

    @admin.display(description=gettext_lazy("state"), ordering="state")
    def state_badge(self, job: BulkJob) -> SafeString:
        return badge(_STATE_BADGES.get(job.state, "pending"), job.get_state_display())

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, job: BulkJob) -> str:
        return _("%(done)d of %(total)d") % {"done": job.done + job.failed, "total": job.total}

    @admin.display(description=gettext_lazy("not possible"), ordering="failed")
    def failures(self, job: BulkJob) -> int:
        return job.not_possible

    @admin.display(description=gettext_lazy("already done"), ordering="already_done")
    def already_done(self, job: BulkJob) -> int:
        return job.already_done

    @admin.display(description=gettext_lazy("created"), ordering="id")
    def created(self, job: BulkJob) -> SafeString:
        return format_time(job.created_at)

    # -- one job -------------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Return the URLs of the operations on bulk jobs, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        site = self.admin_site
        return [
            path("<path:object_id>/stop/", site.admin_view(self.stop_view), name="temporalex_django_bulkjob_stop"),
            path(
                "<path:object_id>/resume/", site.admin_view(self.resume_view), name="temporalex_django_bulkjob_resume"
            ),
            *super().get_urls(),
        ]  # fmt: skip

    def stop_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Stop the bulk job on a POST: runs that are not processed yet stay as they are."""
        return self._operate(
            request, object_id, StopBulk, _("The job has been stopped. The remaining runs stay as they are.")
        )

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume a stopped bulk job on a POST: workers process the runs that are left."""
        return self._operate(request, object_id, ResumeBulk, _("The job will continue."))

    def _operate(
        self, request: HttpRequest, object_id: str, action: type[StopBulk], success_message: str
    ) -> HttpResponse:
        """Stop or resume the job on a POST. Its page shows a refusal."""
        job = self._find_job(request, object_id, action_name=action.name)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = ReasonForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(map(str, form.errors["reason"])))
        elif job is not None:
            try:
                action(job.pk, reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            # The job was deleted after it was looked up.
            except WorkflowNotFound:
                job = None
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                messages.success(request, success_message)
        if job is None:
            return self._job_not_found(request, object_id)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:temporalex_django_bulkjob_change", args=[job.pk]))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of a bulk job, with its progress and the outcome for each run."""
        job = self._find_job(request, unquote(object_id))
        if job is None:
            return self._job_not_found(request, object_id)
        if request.method not in ("GET", "HEAD"):
            refuse(request, "change", _("You cannot change a job. Stop or resume it instead."))
        action = STEERING.get(job.action)
        context = {
            **self.admin_site.each_context(request),
            "title": f"{_action_label(job)}: {count_text(job.action, job.total)}",
            "subtitle": None,
            "original": job,
            "opts": self.opts,
            "media": self.media,
            "change": True,
            "add": False,
            "is_popup": False,
            "has_view_permission": True,
            "badge": self.state_badge(job),
            "about": "" if action is None else action.description(),
            "behind": job.done + job.failed,
            "form": ReasonForm(),
            **self._items_context(request, job),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, self.change_form_template, context)

    def _items_context(self, request: HttpRequest, job: BulkJob) -> dict[str, Any]:
        """Return one page of the runs, with the failed ones first."""
        # "failed" sorts after "done" and the empty outcome, so the descending order puts it first.
        # Runs for which it was done already come after those for which it was not possible.
        items = BulkItem.objects.using(storage().alias).filter(job_id=job.pk)
        items = items.order_by("-outcome", "already_done", "pk")
        page: Page[BulkItem] = Paginator(items, _RUNS_PER_PAGE).get_page(request.GET.get("p"))
        rows = redact_items(page.object_list, user_of(request), alias=storage().alias)
        # Items name runs by id only: the names and links of runs are for users who may see those runs.
        runs_by_id = self._load_runs(request, [item.run_id for item in rows])
        return {"page": page, "rows": [self._item_row(item, runs_by_id.get(item.run_id)) for item in rows]}

    def _item_row(self, item: BulkItem, run: Instance | None) -> dict[str, Any]:
        """Return the context of one run, which is None if the user may not see it."""
        row = {
            "run": run,
            "run_id": item.run_id,
            "part": item.part,
            "address": None,
            "badge": _outcome_badge(item),
            "why": shorten(item.message or item.code),
            "name": "",
        }
        if run is not None:
            row["name"] = shorten(run.workflow_id)
            if self.admin_site.is_registered(Instance):
                row["address"] = self._run_address(item.run_id)
        return row

    def _load_runs(self, request: HttpRequest, ids: list[UUID]) -> dict[UUID, Instance]:
        """Return the runs by id, without those that the user may not see."""
        if not policy().allows(user_of(request), VIEW):
            return {}
        restricted_runs = visible_runs(self.admin_site, request)
        runs = runs_or_all(restricted_runs, alias=storage().alias)
        return {run.pk: run for run in runs.filter(pk__in=ids).only("id", "workflow", "workflow_id")}

    def _run_address(self, run_id: UUID) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_instance_change", args=[run_id])

    def _find_job(self, request: HttpRequest, ref: str, *, action_name: str = "view") -> BulkJob | None:
        """Return None for a job that the user may not see. Raises ``PermissionDenied``, audited as ``action_name``."""
        if not self.has_view_permission(request):
            refuse(request, action_name, bulk_permission_error())
        try:
            return self.get_queryset(request).filter(pk=UUID(ref)).first()
        except ValueError:
            return None

    def _job_not_found(self, request: HttpRequest, ref: str) -> HttpResponse:
        return self._get_obj_does_not_exist_redirect(request, self.opts, ref)  # type: ignore[attr-defined,no-any-return]


def _action_label(job: BulkJob) -> str:
    action = STEERING.get(job.action)
    if action is None:
        return job.action
    return str(action.label)


def _outcome_badge(item: BulkItem) -> SafeString:
    kind = _OUTCOME_BADGES.get(item.outcome, "pending")
    if item.already_done:
        kind = "skipped"
    return badge(kind, str(_outcome_label(item)))


def _outcome_label(item: BulkItem) -> str | Promise:
    if item.outcome:
        if item.outcome == "done":
            return _("done")
        if item.already_done:
            return _("already done")
        return _("not possible")
    if not item.tries:
        return _("to do")
    return _("busy, will be retried")
