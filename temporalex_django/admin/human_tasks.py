"""The inbox in the admin: human tasks that the user may decide now, and a page to decide each of them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.access import VIEW, VIEW_PAYLOAD, policy
from temporalex_django.admin.base import AdminMount, ReadOnlyAdmin
from temporalex_django.admin.filters import DueFilter, InboxFilter, WorkflowFilter
from temporalex_django.authoring import authorization
from temporalex_django.console.base import (
    actor_of,
    badge,
    claimed_by_name,
    format_payload,
    format_time,
    posted_data,
    refuse,
    shorten,
    user_of,
)
from temporalex_django.errors import ActionNotPermitted, HumanTaskNotFound, TemporalexError
from temporalex_django.forms.human_task_form import DecisionForm, DelegationForm, outcome_label
from temporalex_django.models import HumanTask, Instance
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.inbox import candidates_of, find_task, inbox, redact_tasks
from temporalex_django.operations.human_tasks.operations import Claim, Delegate, HumanTaskAction, Release
from temporalex_django.present.human_tasks import candidate_names, step_name

_ENDINGS = {"decided": "completed", "overdue": "timed_out", "cancelled": "cancelled", "run_closed": "terminated"}
#: Largest page number: a larger OFFSET would overflow in some databases, and nobody pages that far.
_LAST_PAGE = 100_000


class InboxChangeList(ChangeList):
    """The list of human tasks in the admin; it reads a page in one statement and never counts all tasks."""

    def get_results(self, request: HttpRequest) -> None:
        self.page_num = min(max(self.page_num, 1), _LAST_PAGE)
        rows, first = self._fetch_page()
        # The tasks of this page have been decided since the page before it was shown.
        if not rows and first:
            self.page_num = 1
            rows, first = self._fetch_page()
        tasks = redact_tasks(rows[: self.list_per_page], user_of(request))
        self.result_list = operations.mark_nobody_left(*tasks)
        self.result_count, self.full_result_count = first + len(rows), None
        # The paginator ends one row after this page: enough for a link to the next one, without a count.
        self.paginator = Paginator(range(self.result_count), self.list_per_page)
        self.show_full_result_count, self.show_admin_actions = False, False
        self.can_show_all, self.multi_page = False, self.result_count > self.list_per_page

    def _fetch_page(self) -> tuple[list[HumanTask], int]:
        """Return one more task if another page follows, and the number of tasks before the page."""
        first = (self.page_num - 1) * self.list_per_page
        return [*self.queryset[first : first + self.list_per_page + 1]], first


@admin.register(HumanTask)
class HumanTaskAdmin(ReadOnlyAdmin[HumanTask]):
    """The inbox in the admin: users need no permission to see the human tasks that they may decide.

    Users who may look at runs can see the other human tasks of these runs as well.
    """

    list_display = ("title_cell", "about", "asks", "due", "claimed_by", "since")
    list_display_links = ("title_cell",)
    list_filter = (InboxFilter, DueFilter, WorkflowFilter)
    list_select_related = False
    search_fields = ("title__icontains", "workflow_id__startswith")
    search_help_text = gettext_lazy("Title, or the beginning of an id")
    change_list_template = "admin/temporalex_django/humantask/change_list.html"
    change_form_template = "admin/temporalex_django/humantask/change_form.html"

    # -- list ----------------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return InboxChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[HumanTask]:
        """Return the inbox of the user, or the human tasks that the filter ``InboxFilter`` in the address selects."""
        user = user_of(request)
        # Not by the filter itself: filters narrow a queryset, and "all" and "closed" are wider than the inbox.
        match request.GET.get(str(InboxFilter.parameter_name)):
            case "all" if policy().allows(user, VIEW):
                return operations.tasks_of_visible_runs(user).open()
            case "closed" if policy().allows(user, VIEW):
                return operations.tasks_of_visible_runs(user).exclude(closed_at=None)
            case "mine":
                return inbox(user).filter(claimed_by_key=authorization.sender_key(user))
        return inbox(user)

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the fields that the search of the list compares.

        The title is left out for tasks outside the inbox, because it is a payload, which could be guessed letter by
        letter. Users who may see payloads can search it everywhere.
        """
        is_foreign_inbox = request.GET.get(str(InboxFilter.parameter_name)) in ("all", "closed")
        if is_foreign_inbox and not policy().allows(user_of(request), VIEW_PAYLOAD):
            return tuple(name for name in self.search_fields if not name.startswith("title"))
        return self.search_fields

    def get_ordering(self, request: HttpRequest) -> tuple[Any, ...]:
        """Return the order of the list of human tasks: earliest due time first, and tasks without one last.

        Closed tasks are sorted by the time at which they were closed, newest first.
        """
        if request.GET.get(str(InboxFilter.parameter_name)) == "closed":
            return ("-closed_at", "pk")
        return (F("due_at").asc(nulls_last=True), "opened_at", "pk")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return request.user.is_authenticated

    def has_view_permission(self, request: HttpRequest, obj: HumanTask | None = None) -> bool:
        return self.has_module_permission(request)

    @admin.display(description=gettext_lazy("question"))
    def title_cell(self, task: HumanTask) -> str:
        # The cell is the text of a link, whose name is the question and nothing else.
        return shorten(task.title)

    @admin.display(description=gettext_lazy("about"))
    def about(self, task: HumanTask) -> SafeString:
        under = " · ".join(filter(None, (task.workflow, step_name(task.key))))
        return format_html('{}<span class="tx-under">{}</span>', shorten(task.workflow_id), under)

    @admin.display(description=gettext_lazy("candidates"))
    def asks(self, task: HumanTask) -> SafeString | str:
        names = shorten(", ".join(candidate_names(candidates_of(task)))) or "–"
        if task.nobody_left or task.absent:
            return format_html("{} {}", names, badge("blocked", _("Nobody can decide")))
        return names

    @admin.display(description=gettext_lazy("due"))
    def due(self, task: HumanTask) -> SafeString | str:
        if not task.is_open:
            return _state_badge(task)
        if task.due_at is None:
            return "–"
        return _mark_late(format_time(task.due_at), is_late=task.due_at <= timezone.now())

    @admin.display(description=gettext_lazy("claimed by"))
    def claimed_by(self, task: HumanTask) -> str:
        if not task.is_open:
            return task.decided_by_name or "–"
        return claimed_by_name(task) or "–"

    @admin.display(description=gettext_lazy("since"))
    def since(self, task: HumanTask) -> SafeString:
        return format_time(task.opened_at)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Inbox"), **(extra_context or {})})

    # -- one human task ------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Return the URLs of the operations on human tasks, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        site = self.admin_site
        return [
            *(
                path(f"<path:object_id>/{name}/", site.admin_view(page), name=f"temporalex_django_humantask_{name}")
                for name, page in (
                    ("claim", self.claim_view),
                    ("release", self.release_view),
                    ("delegate", self.delegate_view),
                    ("decide", self.decide_view),
                )
            ),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a human task with the form that decides it.

        A POST is refused and recorded in the audit log, because the form is posted to ``decide_view``.
        """
        task = self._find_task(request, unquote(object_id))
        if task is None:
            return self._task_not_found(request, object_id)
        if request.method not in ("GET", "HEAD"):
            refuse(request, "change", _("You cannot edit a human task. Make a decision instead."), run=task.run)
        return self.render_page(request, task, **(extra_context or {}))

    def claim_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Claim the human task on a POST, and redirect to its page."""
        return self._run_action(request, object_id, Claim)

    def release_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """End the claim of the human task on a POST, and redirect to its page."""
        return self._run_action(request, object_id, Release)

    def delegate_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Delegate the human task to another user on a POST, and redirect to its page."""
        form = DelegationForm(posted_data(request))
        if form.is_bound and not form.is_valid():
            task = self._find_task(request, object_id)
            if task is None:
                return self._task_not_found(request, object_id)
            return self.render_page(request, task, delegation=form, status=409)
        inputs = {}
        if form.is_bound:
            inputs = {name: form.cleaned_data[name] for name in ("to", "reason")}
        try:
            return self._run_action(request, object_id, Delegate, **inputs)
        # Delegate answers an unknown name like a missing permission. If the user may decide the task, the name may be
        # a typing error: show it at the field.
        except PermissionDenied as exc:
            task = self._find_task(request, object_id)
            if task is None or operations.why_not(task, user_of(request)) is not None:
                raise
            form.add_error("to", str(exc))
            return self.render_page(request, task, delegation=form, status=403)

    def decide_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Decide the human task on a POST, and redirect to the inbox.

        If somebody has decided it already, redirect to the page of the task with a message.
        """
        task = self._find_task(request, object_id)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if task is None:
            return self._task_not_found(request, object_id)
        try:
            form = DecisionForm(request.POST, task=task)
            if not form.decide(by=actor_of(request)):
                return self.render_page(request, task, form=form, status=409)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except HumanTaskNotFound:
            return self._task_not_found(request, object_id)
        # Somebody else was quicker, or this process lacks the class of the form.
        except TemporalexError as exc:
            messages.error(request, exc.message)
            return HttpResponseRedirect(self._address_of(task))
        message_params = {"title": shorten(task.title), "outcome": outcome_label(form.cleaned_data["outcome"])}
        messages.success(request, _("You decided “%(title)s”: %(outcome)s.") % message_params)
        return HttpResponseRedirect(self._inbox_address)

    def _run_action(
        self, request: HttpRequest, object_id: str, action: type[HumanTaskAction[Any]], **inputs: Any
    ) -> HttpResponse:
        """Execute the operation on a POST. The page of the task shows a refusal."""
        task = self._find_task(request, object_id)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if task is None:
            return self._task_not_found(request, object_id)
        try:
            action(task, by=actor_of(request), **inputs).execute()
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            messages.error(request, exc.message)
        else:
            messages.success(request, str(action.done))
        return HttpResponseRedirect(self._address_of(task))

    def render_page(
        self, request: HttpRequest, task: HumanTask, *, status: int = 200, **context_overrides: Any
    ) -> HttpResponse:
        """Render the page of a human task, with the form that decides it if the user may decide it.

        ``context_overrides`` replace values of the template context. ``form`` among them is a submitted form with
        errors. ``status`` is the status of the response.
        """
        user, site = user_of(request), self.admin_site
        (redacted_task,) = redact_tasks(operations.mark_nobody_left(task), user)
        why_not, subject_text = operations.why_not(task, user), operations.subject_text(task.run)
        is_own_claim = operations.is_claimed(task) and task.claimed_by_key == authorization.sender_key(user)
        can_delegate = why_not is None and policy().may_delegate(user, task, user)
        form, form_error = context_overrides.pop("form", None), None
        if why_not is None and form is None:
            try:
                form = DecisionForm(task=task)
            # This process may lack the class of the form; show the task without it.
            except TemporalexError as exc:
                form_error = exc.message
        context = {
            **site.each_context(request),
            "title": redacted_task.title,
            "subtitle": None,
            "original": redacted_task,
            "shows": None if redacted_task.shown_value is None else format_payload(redacted_task.shown_value),
            "opts": self.opts,
            "media": self.media,
            "change": True,
            "add": False,
            "is_popup": False,
            "has_view_permission": True,
            "badge": _state_badge(task),
            "said": operations.task_sentence(redacted_task, subject=subject_text),
            "asks": candidate_names(candidates_of(task)),
            "handed_on": task.delegated,
            "step": step_name(task.key),
            "run_address": self._run_address(request, task),
            "subject": subject_text,
            "subject_address": AdminMount(self.admin_site).subject_address(request, task.run),
            "why_not": why_not or form_error,
            "form": form if why_not is None else None,
            "claimed": is_own_claim,
            "may_claim": why_not is None and not is_own_claim,
            "delegation": DelegationForm(auto_id="delegation_%s") if can_delegate else None,
            "inbox_address": self._inbox_address,
            **context_overrides,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.change_form_template, context, status=status)

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def _inbox_address(self) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_humantask_changelist")

    def _address_of(self, task: HumanTask) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_humantask_change", args=[task.pk])

    def _find_task(self, request: HttpRequest, ref: str) -> HumanTask | None:
        try:
            return find_task(ref, user_of(request))
        except HumanTaskNotFound:
            return None

    def _task_not_found(self, request: HttpRequest, ref: str) -> HttpResponse:
        return self._get_obj_does_not_exist_redirect(request, self.opts, ref)  # type: ignore[attr-defined,no-any-return]

    def _run_address(self, request: HttpRequest, task: HumanTask) -> str | None:
        """Return None if this site has no such page or the user may not see the run."""
        if not self.admin_site.is_registered(Instance) or not policy().allows(user_of(request), VIEW.of(task.run)):
            return None
        return AdminMount(self.admin_site).run_address(request, task.run_id)


def _state_badge(task: HumanTask) -> SafeString:
    if task.is_open:
        if claimed_by_name(task):
            return badge("running", _("Claimed"))
        return badge("waiting", _("Open"))
    label = outcome_label(task.outcome) if task.ending == "decided" else task.get_ending_display()
    return badge(_ENDINGS.get(task.ending, "pending"), label)


def _mark_late(time_html: SafeString, *, is_late: bool) -> SafeString:
    if is_late:
        return format_html('<span class="tx-problem">{} {}</span>', time_html, _("(late)"))
    return time_html
