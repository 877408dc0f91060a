"""Runs in the admin: a short list, whose pages are in the console."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import include, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import VIEW, policy, runs_for
from temporalex_django.admin.base import AdminMount, ReadOnlyAdmin
from temporalex_django.authoring.run_columns import PAYLOAD_COLUMNS
from temporalex_django.console.base import (
    format_time,
    refuse,
    shorten,
    status_badge,
    user_of,
    view_permission_error,
)
from temporalex_django.console.mount import NAMESPACE
from temporalex_django.console.urls import patterns
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import TABLES
from temporalex_django.forms.run_filters import RunFilter
from temporalex_django.models import Instance
from temporalex_django.operations.base import storage

_DEFERRED_FIELDS = (*PAYLOAD_COLUMNS, "seed", "metadata", "search_attributes")
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

    def url_for_result(self, result: Any) -> str:
        return AdminMount(self.model_admin.admin_site).address("run", result.pk)

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
class InstanceAdmin(ReadOnlyAdmin[Instance]):
    """The admin of runs: a short list, and the console, which has the pages of runs."""

    list_display = ("run", "state", "created")
    list_select_related = False
    search_fields = ("workflow_id__startswith",)
    search_help_text = _("The beginning of an id, or a run id")
    ordering = ("-id",)
    sortable_by = ("created",)

    # -- list ----------------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RunChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Instance]:
        """Return the runs that the user may see.

        The console below this site uses it, so a subclass may restrict the runs here.
        """
        visible_runs = runs_for(user_of(request), alias=storage().alias)
        return super().get_queryset(request) if visible_runs is None else visible_runs

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
        context |= {"start_address": self._console.start_address(request)}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    # -- older addresses -----------------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        """Return the URLs of the list and of the console, and those of the older pages, which lead to the console."""
        old = self.admin_site.admin_view(self.old_view)
        name = "temporalex_django_instance"
        return [
            path("start/", old, {"page": "start"}, name=f"{name}_start"),
            path("console/", include((patterns(self._console), NAMESPACE))),
            path("bulk/<slug:action>/", self.admin_site.admin_view(self.old_bulk_view)),
            *(path(f"<uuid:run_id>/{page}/", old, {"page": page}) for page in ("message", "query", "compare")),
            path("<uuid:run_id>/do/<slug:action>/", old, {"page": "do"}),
            path("<uuid:run_id>/history/", old, {"page": "run"}),
            path("<uuid:run_id>/change/", old, {"page": "run"}, name=f"{name}_change"),
            *super().get_urls(),
        ]

    @property
    def _console(self) -> AdminMount:
        return AdminMount(self.admin_site)

    def old_view(self, request: HttpRequest, page: str, **path_args: Any) -> HttpResponse:
        """Redirect from an older address of a page to that of the console, with its parameters."""
        query = request.GET.dict()
        # Pages of the history had the events one by one.
        if page == "run" and "p" in query:
            return HttpResponseRedirect(self._console.address("run_part", path_args["run_id"], "raw", query=query))
        return HttpResponseRedirect(self._console.address(page, *path_args.values(), query=query))

    def old_bulk_view(self, request: HttpRequest, action: str) -> HttpResponse:
        """Redirect from an older address of a bulk operation to the list with its filters."""
        query = console_query(QueryDict(request.GET.get("_changelist_filters", "")))
        return HttpResponseRedirect(self._console.address("runs", query=query))
