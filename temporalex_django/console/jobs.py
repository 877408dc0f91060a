"""Bulk jobs: their progress, the outcome for each run, and buttons to stop and resume them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from temporalex_django.console.actions import ReasonForm, bulk_permission_error, can_start_bulk
from temporalex_django.console.base import CappedPaginator, actor_of, badge, format_time, refuse, shorten, user_of
from temporalex_django.console.live import MARK, is_poll, is_unchanged, mark_of, unchanged
from temporalex_django.console.mount import ConsoleView, Mount
from temporalex_django.errors import ActionNotPermitted, TemporalexError, WorkflowNotFound
from temporalex_django.models import BulkItem, BulkJob, Instance
from temporalex_django.operations.background_tasks import TASK_ACTIONS
from temporalex_django.operations.base import storage
from temporalex_django.operations.bulk import StopBulk, count_text, jobs_for, redact_items
from temporalex_django.operations.registry import STEERING

_RUNS_PER_PAGE, _JOBS_PER_PAGE = 100, 50
_STATE_BADGES = {"running": "running", "stopped": "terminated", "done": "completed"}
_OUTCOME_BADGES = {"done": "completed", "failed": "failed", "": "pending"}


class _JobsView(ConsoleView):
    """Base class of the pages of the bulk jobs that the user has started.

    Superusers who may see all runs see all jobs. The pages need the permission to start bulk jobs.
    """

    section = "jobs"

    def jobs(self, request: HttpRequest, action: str = "view") -> QuerySet[BulkJob]:
        """Return the jobs that the user sees. Raises ``PermissionDenied``, which is audited as ``action``."""
        if not can_start_bulk(user_of(request)):
            refuse(request, action, bulk_permission_error())
        return jobs_for(user_of(request), alias=storage().alias)

    def find_job(self, request: HttpRequest, job: UUID, action: str = "view") -> BulkJob:
        """Return one of the jobs that the user sees. Raises ``Http404`` for another one."""
        row = self.jobs(request, action).filter(pk=job).first()
        if row is None:
            raise Http404
        return row


class JobListView(_JobsView):
    """The list of bulk jobs, the newest first."""

    template = "temporalex_django/console/jobs.html"

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        jobs = self.jobs(request).order_by("-id")
        state = request.GET.get("state", "")
        if state in BulkJob.State.values:
            jobs = jobs.filter(state=state)
        page: Page[BulkJob] = CappedPaginator(jobs, _JOBS_PER_PAGE).get_page(request.GET.get("p"))
        rows: list[dict[str, Any]] = [
            {
                "job": job,
                "title": _job_title(job),
                "badge": _state_badge(job),
                "behind": job.done + job.failed,
                "created": format_time(job.created_at),
                "address": self.mount.address("job", job.pk),
            }
            for job in page.object_list
        ]
        facts = [(row["job"].pk, row["job"].state, row["behind"], row["created"]) for row in rows]
        if is_poll(request) and is_unchanged(request, facts, timezone.now()):
            return unchanged()
        states = [(value, label) for value, label in [("", _("All")), *BulkJob.State.choices]]
        running = sum(row["job"].state == BulkJob.State.RUNNING for row in rows)
        query = {"p": page.number, "state": state, MARK: mark_of(facts, None)}
        context = {
            "title": _("Bulk jobs"),
            "page": page,
            "rows": rows,
            "states": states,
            "state": state,
            "poll_address": self.mount.address("jobs", query=query),
            "announcement": ngettext("%(count)d job is running", "%(count)d jobs are running", running)
            % {"count": running},
        }
        return self.render(request, context)


class JobView(_JobsView):
    """The page of a bulk job, with its progress and the outcome for each run."""

    template = "temporalex_django/console/job.html"

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        job = self.find_job(request, kwargs["job"])
        items, facts = self._items(request, job), [job.state, job.done, job.failed, job.already_done]
        if is_poll(request) and is_unchanged(request, facts, timezone.now()):
            return unchanged()
        poll_address = ""
        # A job that has ended changes no more.
        if job.state != BulkJob.State.DONE:
            query = {"p": items["page"].number, MARK: mark_of(facts, None)}
            poll_address = self.mount.address("job", job.pk, query=query)
        context = {
            "title": _job_title(job),
            "job": job,
            "badge": _state_badge(job),
            "about": _about(job),
            "is_for_tasks": job.action in TASK_ACTIONS,
            "behind": job.done + job.failed,
            "created": format_time(job.created_at),
            "finished": "–" if job.finished_at is None else format_time(job.finished_at),
            "form": ReasonForm(),
            "stop_address": self.mount.address("stop_job", job.pk),
            "resume_address": self.mount.address("resume_job", job.pk),
            "poll_address": poll_address,
            **items,
        }
        return self.render(request, context)

    def _items(self, request: HttpRequest, job: BulkJob) -> dict[str, Any]:
        """Return one page of the runs, with the failed ones first."""
        # "failed" sorts after "done" and the empty outcome, so the descending order puts it first.
        # Runs for which it was done already come after those for which it was not possible.
        items = BulkItem.objects.using(storage().alias).filter(job_id=job.pk)
        items = items.order_by("-outcome", "already_done", "pk")
        page: Page[BulkItem] = Paginator(items, _RUNS_PER_PAGE).get_page(request.GET.get("p"))
        rows = redact_items(page.object_list, user_of(request), alias=storage().alias)
        # Items name runs by id only: the names and links of runs are for users who may see those runs.
        runs = self.runs(request).filter(pk__in=[item.run_id for item in rows]).only("id", "workflow", "workflow_id")
        runs_by_id = {run.pk: run for run in runs}
        if job.action in TASK_ACTIONS:
            return {"page": page, "rows": [self._task_row(request, item) for item in rows]}
        return {"page": page, "rows": [self._item_row(item, runs_by_id.get(item.run_id)) for item in rows]}

    def _task_row(self, request: HttpRequest, item: BulkItem) -> dict[str, Any]:
        """Return the context of one background task, which its id names."""
        return {
            "is_task": True,
            "run_id": item.run_id,
            "address": self.mount.background_task_address(request, item.run_id),
            "badge": _outcome_badge(item),
            "why": shorten(item.message or item.code),
        }

    def _item_row(self, item: BulkItem, run: Instance | None) -> dict[str, Any]:
        """Return the context of one run, which is None if the user may not see it."""
        return {
            "run": run,
            "run_id": item.run_id,
            "part": item.part,
            "address": "" if run is None else self.mount.run_address(item.run_id),
            "badge": _outcome_badge(item),
            "why": shorten(item.message or item.code),
            "name": "" if run is None else shorten(run.workflow_id),
        }


class JobActionView(_JobsView):
    """Stops or resumes a bulk job on a POST. Its page shows a refusal."""

    template = ""
    methods = ("POST",)

    def __init__(self, mount: Mount, action: type[StopBulk], success_message: Any) -> None:
        """Perform ``action`` on a job, and show the message afterwards."""
        super().__init__(mount)
        self.action, self.success_message = action, success_message

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        job = self.find_job(request, kwargs["job"], action=self.action.name)
        form = ReasonForm(request.POST)
        if not form.is_valid():
            messages.error(request, " ".join(map(str, form.errors["reason"])))
        else:
            try:
                self.action(job.pk, reason=form.cleaned_data["reason"], by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            # The job was deleted after it was looked up.
            except WorkflowNotFound:
                raise Http404 from None
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                messages.success(request, str(self.success_message))
        return HttpResponseRedirect(self.mount.address("job", job.pk))


def _job_title(job: BulkJob) -> str:
    return f"{_action_label(job)}: {count_text(job.action, job.total)}"


def _about(job: BulkJob) -> str:
    """Return what the operation of the job does; empty for one that this process does not have."""
    if job.action in TASK_ACTIONS:
        return str(TASK_ACTIONS[job.action].effect)
    action = STEERING.get(job.action)
    return "" if action is None else action.description()


def _state_badge(job: BulkJob) -> SafeString:
    return badge(_STATE_BADGES.get(job.state, "pending"), job.get_state_display())


def _action_label(job: BulkJob) -> str:
    action = STEERING.get(job.action) or TASK_ACTIONS.get(job.action)
    return job.action if action is None else str(action.label)


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
