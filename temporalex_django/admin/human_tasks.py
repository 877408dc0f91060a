"""The inbox: what whoever is signed in may decide now, and a page of each human task where he does."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
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
from temporalex_django.actions import deciding
from temporalex_django.actions.claim import Claim
from temporalex_django.actions.delegate import Delegate
from temporalex_django.actions.human_task import HumanTaskAction
from temporalex_django.actions.inbox import candidates_of, find_task, inbox
from temporalex_django.actions.release import Release
from temporalex_django.actions.seeing import redact_tasks
from temporalex_django.admin.base import ReadOnlyAdmin
from temporalex_django.admin.filters import DueFilter, WhoseFilter, WorkflowFilter
from temporalex_django.admin.requests import actor_of, refuse, user_of
from temporalex_django.admin.shown import badge, moment, shortened, value
from temporalex_django.authoring import authorization
from temporalex_django.errors import ActionNotPermitted, HumanTaskNotFound, TemporalexError
from temporalex_django.forms.decisions import DecisionForm, DelegationForm, outcome_label
from temporalex_django.models import HumanTask, Instance
from temporalex_django.present.human_tasks import candidate_names, step_name

_ENDINGS = {"decided": "completed", "overdue": "timed_out", "cancelled": "cancelled", "run_closed": "terminated"}
#: No database counts on from more; nobody turns so many pages.
_LAST_PAGE = 100_000


class InboxChangeList(ChangeList):
    """One statement for a page of it, however long it is: nobody counts what he is to decide."""

    def get_results(self, request: HttpRequest) -> None:
        self.page_num = min(max(self.page_num, 1), _LAST_PAGE)
        rows, first = self._rows()
        if not rows and first:  # what stood there is decided
            self.page_num = 1
            rows, first = self._rows()
        shown = redact_tasks(rows[: self.list_per_page], user_of(request))
        self.result_list = deciding.mark_nobody_left(*shown)
        self.result_count, self.full_result_count = first + len(rows), None
        self.paginator = Paginator(range(self.result_count), self.list_per_page)  # as far as somebody has read
        self.show_full_result_count, self.show_admin_actions = False, False
        self.can_show_all, self.multi_page = False, self.result_count > self.list_per_page

    def _rows(self) -> tuple[list[HumanTask], int]:
        """Those of the page and one more, and how many there are before."""
        first = (self.page_num - 1) * self.list_per_page
        return [*self.queryset[first : first + self.list_per_page + 1]], first


@admin.register(HumanTask)
class HumanTaskAdmin(ReadOnlyAdmin[HumanTask]):
    """Takes no permission: everybody has an inbox, of what asks for him. Others' is for those who may look at runs."""

    list_display = ("asked_for", "about", "asks", "due", "taken", "since")
    list_display_links = ("asked_for",)
    list_filter = (WhoseFilter, DueFilter, WorkflowFilter)
    list_select_related = False
    search_fields = ("title__icontains", "workflow_id__startswith")
    search_help_text = gettext_lazy("What is asked, or an id from its beginning")
    change_list_template = "admin/temporalex_django/humantask/change_list.html"
    change_form_template = "admin/temporalex_django/humantask/change_form.html"

    # -- list ----------------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return InboxChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[HumanTask]:
        """What is for him to decide; what he may see besides where the address asks for it."""
        user = user_of(request)
        match request.GET.get(str(WhoseFilter.parameter_name)):
            case "all" if policy().allows(user, VIEW):
                return deciding.tasks_of_visible_runs(user).open()
            case "closed" if policy().allows(user, VIEW):
                return deciding.tasks_of_visible_runs(user).exclude(closed_at=None)
            case "mine":
                return inbox(user).filter(claimed_by_key=authorization.sender_key(user))
        return inbox(user)

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """The title is searched in one's own inbox, and by those who may see payloads: others would guess it."""
        others = request.GET.get(str(WhoseFilter.parameter_name)) in ("all", "closed")
        if others and not policy().allows(user_of(request), VIEW_PAYLOAD):
            return tuple(name for name in self.search_fields if not name.startswith("title"))
        return self.search_fields

    def get_ordering(self, request: HttpRequest) -> tuple[Any, ...]:
        """What is due first, and at last what never is; of closed ones the newest first."""
        if request.GET.get(str(WhoseFilter.parameter_name)) == "closed":
            return ("-closed_at", "pk")
        return (F("due_at").asc(nulls_last=True), "opened_at", "pk")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return request.user.is_authenticated

    def has_view_permission(self, request: HttpRequest, obj: HumanTask | None = None) -> bool:
        return self.has_module_permission(request)

    @admin.display(description=gettext_lazy("what is asked"))
    def asked_for(self, task: HumanTask) -> SafeString | str:
        title = shortened(task.title)
        return format_html("{} {}", title, badge("blocked", _("Nobody is left"))) if task.nobody_left else title

    @admin.display(description=gettext_lazy("about"))
    def about(self, task: HumanTask) -> SafeString:
        under = " · ".join(filter(None, (task.workflow, step_name(task.key))))
        return format_html('{}<span class="tx-under">{}</span>', shortened(task.workflow_id), under)

    @admin.display(description=gettext_lazy("asks"))
    def asks(self, task: HumanTask) -> str:
        return shortened(", ".join(candidate_names(candidates_of(task)))) or "–"

    @admin.display(description=gettext_lazy("due"))
    def due(self, task: HumanTask) -> SafeString | str:
        if not task.is_open:
            return _standing(task)
        if task.due_at is None:
            return "–"
        return _late(moment(task.due_at), late=task.due_at <= timezone.now())

    @admin.display(description=gettext_lazy("claimed by"))
    def taken(self, task: HumanTask) -> str:
        if not task.is_open:
            return task.decided_by_name or "–"
        return (task.claimed_by_name if _is_claimed(task) else "") or "–"

    @admin.display(description=gettext_lazy("since"))
    def since(self, task: HumanTask) -> SafeString:
        return moment(task.opened_at)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Inbox"), **(extra_context or {})})

    # -- one human task ------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Ours before Django's, whose last one takes everything."""
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
        """What is asked, and the form in which it is decided. A POST is refused: it is decided elsewhere."""
        task = self._task(request, unquote(object_id))
        if task is None:
            return self._no_such_task(request, object_id)
        if request.method not in ("GET", "HEAD"):
            refuse(request, "change", _("A human task is not changed: it is decided."), run=task.run)
        return self.page(request, task, **(extra_context or {}))

    def claim_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Nobody else decides it for a while."""
        return self._do(request, object_id, Claim)

    def release_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """It is everybody's again."""
        return self._do(request, object_id, Release)

    def delegate_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Somebody else may decide it, too."""
        form = DelegationForm(request.POST if request.method == "POST" else None)
        if form.is_bound and not form.is_valid():
            task = self._task(request, object_id)
            return (
                self._no_such_task(request, object_id)
                if task is None
                else self.page(request, task, delegation=form, status=409)
            )
        more = {name: form.cleaned_data[name] for name in ("to", "reason")} if form.is_bound else {}
        try:
            return self._do(request, object_id, Delegate, **more)
        except PermissionDenied as exc:  # also of a name with a slip in it: he corrects it where he wrote it
            task = self._task(request, object_id)
            if task is None or deciding.why_not(task, user_of(request)) is not None:
                raise
            form.add_error("to", str(exc))
            return self.page(request, task, delegation=form, status=403)

    def decide_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """To the inbox afterwards; where somebody else was quicker to the page of the task, which says so."""
        task = self._task(request, object_id)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if task is None:
            return self._no_such_task(request, object_id)
        try:
            form = DecisionForm(request.POST, task=task)
            if not form.decide(by=actor_of(request)):
                return self.page(request, task, form=form, status=409)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except HumanTaskNotFound:
            return self._no_such_task(request, object_id)
        except TemporalexError as exc:  # somebody else was quicker, or its code is not here
            messages.error(request, exc.message)
            return HttpResponseRedirect(self._address_of(task))
        said = {"title": shortened(task.title), "outcome": outcome_label(form.cleaned_data["outcome"])}
        messages.success(request, _("“%(title)s” is decided: %(outcome)s.") % said)
        return HttpResponseRedirect(self._inbox)

    def _do(
        self, request: HttpRequest, object_id: str, action: type[HumanTaskAction[Any]], **more: Any
    ) -> HttpResponse:
        """Only of a POST. What cannot be done now is said on the page of the task."""
        task = self._task(request, object_id)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if task is None:
            return self._no_such_task(request, object_id)
        try:
            action(task, by=actor_of(request), **more).execute()
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            messages.error(request, exc.message)
        else:
            messages.success(request, str(action.done))
        return HttpResponseRedirect(self._address_of(task))

    def page(self, request: HttpRequest, task: HumanTask, *, status: int = 200, **more: Any) -> HttpResponse:
        """The page of a task, with the form in which it is decided where he may."""
        user, site = user_of(request), self.admin_site
        (shown,) = redact_tasks(deciding.mark_nobody_left(task), user)
        why_not, about = deciding.why_not(task, user), deciding.subject_text(task.run)
        own = deciding.is_claimed(task) and task.claimed_by_key == authorization.sender_key(user)
        may_pass_on = why_not is None and policy().may_delegate(user, task, user)
        form, broken = more.pop("form", None), None
        if why_not is None and form is None:
            try:
                form = DecisionForm(task=task)
            except TemporalexError as exc:  # its code is not here, say
                broken = exc.message
        context = {
            **site.each_context(request),
            "title": shown.title,
            "subtitle": None,
            "original": shown,
            "shows": None if shown.shown_value is None else value(shown.shown_value),
            "opts": self.opts,
            "media": self.media,
            "change": True,
            "add": False,
            "is_popup": False,
            "has_view_permission": True,
            "badge": _standing(task),
            "said": deciding.task_sentence(shown, subject=about),
            "asks": candidate_names(candidates_of(task)),
            "handed_on": task.delegated,
            "step": step_name(task.key),
            "run_address": self._run_address(request, task),
            "subject": about,
            "subject_address": self._subject_address(request, task.run),
            "why_not": why_not or broken,
            "form": form if why_not is None else None,
            "claimed": own,
            "may_claim": why_not is None and not own,
            "delegation": DelegationForm(auto_id="delegation_%s") if may_pass_on else None,
            "inbox_address": self._inbox,
            **more,
        }
        request.current_app = site.name
        return TemplateResponse(request, self.change_form_template, context, status=status)

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def _inbox(self) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_humantask_changelist")

    def _address_of(self, task: HumanTask) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_humantask_change", args=[task.pk])

    def _task(self, request: HttpRequest, ref: str) -> HumanTask | None:
        try:
            return find_task(ref, user_of(request))
        except HumanTaskNotFound:
            return None

    def _no_such_task(self, request: HttpRequest, ref: str) -> HttpResponse:
        return self._get_obj_does_not_exist_redirect(request, self.opts, ref)  # type: ignore[attr-defined,no-any-return]

    def _run_address(self, request: HttpRequest, task: HumanTask) -> str | None:
        """The page of the run, if this site has one that he may see."""
        if not self.admin_site.is_registered(Instance) or not policy().allows(user_of(request), VIEW.of(task.run)):
            return None
        return reverse(f"{self.admin_site.name}:temporalex_django_instance_change", args=[task.run_id])

    def _subject_address(self, request: HttpRequest, run: Instance) -> str | None:
        """The page of the object that it is about, likewise."""
        kind = run.subject_type
        model = None if kind is None else kind.model_class()
        registered = None if model is None else self.admin_site._registry.get(model)  # noqa: SLF001 - 5.2 has no other way
        if kind is None or registered is None or not registered.has_view_permission(request):
            return None
        page = f"{self.admin_site.name}:{kind.app_label}_{kind.model}_change"
        return reverse(page, args=[quote(run.subject_id or "")])


def _is_claimed(task: HumanTask) -> bool:
    return task.claimed_until is not None and task.claimed_until > timezone.now()


def _standing(task: HumanTask) -> SafeString:
    if task.is_open:
        return badge("running", _("Claimed")) if _is_claimed(task) else badge("waiting", _("Open"))
    label = outcome_label(task.outcome) if task.ending == "decided" else task.get_ending_display()
    return badge(_ENDINGS.get(task.ending, "pending"), label)


def _late(shown: SafeString, *, late: bool) -> SafeString:
    return format_html('<span class="tx-problem">{} {}</span>', shown, _("(late)")) if late else shown
