"""Runs in the admin: the list, and the page of a run."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import include, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import VIEW, is_unfiltered, policy, redactor_for, runs_for
from temporalex_django.admin.base import AdminMount, subject_address
from temporalex_django.admin.operator_views import (
    OperatorActionView,
    history_action_links,
    message_action_links,
    part_action_links,
    run_action_links,
)
from temporalex_django.admin.run.action_views import RunActionView, RunPagesAdmin, StartView, can_start, like_address
from temporalex_django.admin.run.detail import run_detail_context
from temporalex_django.admin.run.history import CompareView, can_compare
from temporalex_django.admin.run.messages import MessagePanel, QueryView, SendMessageView, message_panels, query_links
from temporalex_django.admin.run.origin import schedule_context
from temporalex_django.authoring.run_columns import PAYLOAD_COLUMNS
from temporalex_django.console.actions import superseded_error
from temporalex_django.console.base import (
    actor_of,
    format_time,
    refuse,
    shorten,
    status_badge,
    user_of,
    view_permission_error,
)
from temporalex_django.console.fleet import switch_address_for
from temporalex_django.console.mount import NAMESPACE
from temporalex_django.console.urls import patterns
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import TABLES
from temporalex_django.forms.run_filters import RunFilter
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.base import storage
from temporalex_django.operations.read.run_filters import (
    annotate_attempts,
    annotate_messages,
    annotate_switches,
)

_DEFERRED_FIELDS = (*PAYLOAD_COLUMNS, "seed", "metadata", "search_attributes")
#: Attribute of a run in the list that holds its summary.
_SUMMARY_ATTRIBUTE = "run_summary"
#: Largest number of runs that the list counts and offers as pages: to count a big table takes seconds.
_MAX_COUNT = 500


#: Parameters of an older list with another name or value in the console's list.
_OLD_STARTED = {"1h": "-1h", "24h": "-24h", "7d": "-7d", "30d": "-30d"}
_OLD_STANDINGS = {
    "open": {"status": "pending,running,waiting"},
    "closed": {"status": ",".join(sorted(CLOSED_STATUSES))},
}


def console_query(parameters: QueryDict) -> dict[str, str]:
    """Return the parameters of the console's list for those of an older list of the admin, such as a bookmark has."""
    query = {
        name: str(value) for name, value in parameters.dict().items() if name in {*RunFilter.base_filters, "order", "q"}
    }
    if standing := parameters.get("standing"):
        query |= _OLD_STANDINGS.get(standing, {standing: "true"} if standing in RunFilter.base_filters else {})
    if started := _OLD_STARTED.get(parameters.get("started", "")):
        query["created_after"] = started
    return query


class RunChangeList(ChangeList):
    """The thin list of runs in the admin: its rows are found by the ids of the matching runs."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the ids of the matching runs, at most as many as the list counts, and then the rows of the page."""
        ids = [*self.queryset.values_list("pk", flat=True)[: _MAX_COUNT + 1]]
        self.paginator = Paginator(ids, self.list_per_page)
        self.result_count, self.full_result_count = len(ids), None
        self.show_full_result_count = self.show_admin_actions = self.can_show_all = False
        self.multi_page = len(ids) > self.list_per_page
        try:
            page_ids = [*self.paginator.page(self.page_num).object_list]
        except InvalidPage:
            raise IncorrectLookupParameters from None
        rows = Instance.objects.using(self.queryset.db).defer(*_DEFERRED_FIELDS)
        runs_by_id = {run.pk: run for run in rows.filter(pk__in=page_ids)}
        # A run may have been deleted between the two statements.
        self.result_list = [runs_by_id[pk] for pk in page_ids if pk in runs_by_id]


@admin.register(Instance)
class InstanceAdmin(RunPagesAdmin):
    """The admin pages of runs: a short list, the console, and for each run a page with its history and operations."""

    list_display = ("run", "state", "created")
    list_select_related = False
    search_fields = ("workflow_id__startswith",)
    search_help_text = _("The beginning of an id, or a run id")
    ordering = ("-id",)
    sortable_by = ("created",)
    change_form_template = "admin/temporalex_django/instance/change_form.html"

    # -- list ----------------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RunChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Instance]:
        """Return the runs that the user may see.

        Every admin page about a run uses it, so a subclass may restrict the runs here.
        """
        visible_runs = runs_for(user_of(request), alias=storage().alias)
        queryset = super().get_queryset(request) if visible_runs is None else visible_runs
        # The annotations are subqueries, which a list would compute for each row.
        is_detail_view = request.resolver_match is not None and "object_id" in request.resolver_match.kwargs
        if is_detail_view:
            return annotate_attempts(annotate_messages(annotate_switches(queryset)))
        return queryset

    def has_view_permission(self, request: HttpRequest, obj: Instance | None = None) -> bool:
        return policy().allows(user_of(request), VIEW if obj is None else VIEW.of(obj))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Instance], search_term: str
    ) -> tuple[QuerySet[Instance], bool]:
        """Return the runs whose business id begins with the search term, or whose run id is the term.

        The second value is False, which tells Django that the result has no duplicates.
        """
        # Unlike Django, do not split the term at blanks: ids may contain them.
        term = search_term.strip()
        if not term:
            return queryset, False
        condition = Q(workflow_id__startswith=term)
        with suppress(ValueError):
            condition |= Q(pk=UUID(term))
        return queryset.filter(condition), False

    @admin.display(description=_("run"))
    def run(self, run: Instance) -> SafeString:
        about = run.workflow
        if run.backend != TABLES:
            about = _("%(workflow)s on a Temporal cluster") % {"workflow": run.workflow}
        return format_html('{}<span class="tx-under">{}</span>', shorten(run.workflow_id), about)

    @admin.display(description=_("status"))
    def state(self, run: Instance) -> SafeString:
        return status_badge(run.status, blocked=bool(run.blocked))

    @admin.display(description=_("created"), ordering="id")
    def created(self, run: Instance) -> SafeString:
        return format_time(run.created_at)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the short list. Addresses with filters lead to the list of the console."""
        if not self.has_view_permission(request):
            refuse(request, VIEW.action, view_permission_error())
        if query := console_query(request.GET) if self.find_unknown_parameter(request) else {}:
            return HttpResponseRedirect(self._console.address("runs", query=query))
        context: dict[str, Any] = {"most": _MAX_COUNT, "console_address": self._console.address("overview")}
        context |= {"start_address": self._start_address if can_start(user_of(request)) else None}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    # -- one run -------------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Return the URLs of the views of runs, followed by the URLs of Django's ``ModelAdmin``.

        The order matters: Django's last pattern matches every URL.
        """
        start = self.admin_site.admin_view(StartView(self))
        return [
            path("start/", start, name="temporalex_django_instance_start"),
            path("console/", include((patterns(self._console), NAMESPACE))),
            path("bulk/<slug:action>/", self.admin_site.admin_view(self.old_bulk_view)),
            path("<path:run_id>/message/", self._run_view(SendMessageView), name="temporalex_django_instance_message"),
            path("<path:run_id>/query/", self._run_view(QueryView), name="temporalex_django_instance_query"),
            path("<path:run_id>/compare/", self._run_view(CompareView), name="temporalex_django_instance_compare"),
            path(
                "<path:run_id>/do/<slug:action>/",
                self._run_view(OperatorActionView),
                name="temporalex_django_instance_do",
            ),
            *super().get_urls(),
        ]

    @property
    def _console(self) -> AdminMount:
        return AdminMount(self.admin_site)

    def old_bulk_view(self, request: HttpRequest, action: str) -> HttpResponse:
        """Redirect from an older address of a bulk operation to the list with its filters."""
        query = console_query(QueryDict(request.GET.get("_changelist_filters", "")))
        return HttpResponseRedirect(self._console.address("runs", query=query))

    @property
    def _start_address(self) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_instance_start")

    def _run_view(self, view_class: type[RunActionView]) -> Any:
        return self.admin_site.admin_view(view_class(self))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of a run. A POST is refused, because there is nothing to save.

        The audit log records that a user who sees payloads has read them.
        """
        run = self.find_run(request, unquote(object_id))
        if run is None:
            return self.run_not_found(request, object_id)
        self.require_view_permission(request, run)
        if request.method not in ("GET", "HEAD"):
            refuse(request, "change", str(_("You cannot change a run. Use its actions instead.")), run=run)
        user, action_address = user_of(request), partial(self.address_of, run, "do")
        redactor = redactor_for(user, run)
        if redactor.shows_payloads:
            audit.record_read(actor_of(request), run)
        panels = self._message_panels(request, run)
        context = {
            **self.admin_site.each_context(request),
            "title": run.workflow_id,
            "subtitle": None,
            "original": run,
            "opts": self.opts,
            "media": self.media,
            "change": True,
            "add": False,
            "is_popup": False,
            "has_view_permission": True,
            **run_detail_context(
                run,
                page=request.GET.get("p", ""),
                alias=storage().alias,
                user=user_of(request),
                redactor=redactor,
                visible_runs=self.get_queryset(request),
                part_links=partial(part_action_links, run, user=user, address=action_address),
                message_links=partial(message_action_links, run, user=user, address=action_address),
                switch_address=switch_address_for(self._console, request),
                history_links=history_action_links(run, user=user, address=action_address),
                may_decide=any(panel.can_decide for panel in panels),
            ),
            "newest": self.newest_address(request, run),
            "panels": panels,
            "tools": run_action_links(run, user, address=action_address),
            "subject": None if run.subject_type is None else f"{run.subject_type.name} {run.subject_id}",
            "subject_address": subject_address(self.admin_site, request, run),
            **self._parent_context(request, run),
            **schedule_context(self.admin_site, run),
            "queries": query_links(run, user, address=self.address_of(run, "query")),
            "like": like_address(run, user, address=self._start_address),
            "compare_address": self.address_of(run, "compare") if can_compare(run, user) else None,
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, self.change_form_template, context)

    def _parent_context(self, request: HttpRequest, run: Instance) -> dict[str, str | None]:
        """Return id and URL of the parent; both None if the user may not see it."""
        runs = self.get_queryset(request)
        if run.parent_run_id is None or not (is_unfiltered(runs) or runs.filter(pk=run.parent_run_id).exists()):
            return {"parent": None, "parent_address": None}
        page = reverse(f"{self.admin_site.name}:temporalex_django_instance_change", args=[run.parent_run_id])
        return {"parent": run.parent, "parent_address": page}

    def _message_panels(self, request: HttpRequest, run: Instance) -> list[MessagePanel]:
        # Messages go to the chain, and so to its newest run, whose page has the panels.
        if superseded_error(run) is not None:
            return []
        return message_panels(run, user_of(request), address=self.address_of(run, "message"))
