"""Base classes of the admin pages of this package."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from django.contrib import admin
from django.contrib.admin.options import TO_FIELD_VAR
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ERROR_FLAG, IGNORED_PARAMS, PAGE_VAR, SEARCH_VAR
from django.contrib.auth.views import redirect_to_login
from django.db import models
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.templatetags.static import static
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django.access import is_unfiltered, runs_for
from temporalex_django.console.base import format_time, user_of
from temporalex_django.console.mount import NAMESPACE, Mount
from temporalex_django.models import Instance, Schedule
from temporalex_django.operations.base import storage

#: Parameters of every list of Django's admin, such as the number of its page.
_LIST_PARAMETERS = frozenset({*IGNORED_PARAMS, PAGE_VAR, ERROR_FLAG})


M = TypeVar("M", bound=models.Model)


def visible_runs(site: admin.AdminSite, request: HttpRequest) -> models.QuerySet[Instance] | None:
    """Return the runs that the user sees in the list of runs of this admin site; None if they see all runs."""
    # A project can register a subclass with a narrower get_queryset: every page of the site must respect that.
    runs: Any = site._registry.get(Instance)  # noqa: SLF001 - 5.2 has no other way
    if runs is None:
        return runs_for(user_of(request), alias=storage().alias)
    queryset: models.QuerySet[Instance] = runs.get_queryset(request)
    # None lets callers omit a subquery that would match every row.
    if is_unfiltered(queryset):
        return None
    return queryset.order_by()


class AdminMount(Mount):
    """The console below the list of runs of an admin site, for those who may use the site."""

    def __init__(self, site: admin.AdminSite) -> None:
        self.site, self.site_name = site, site.name
        self.namespace = f"{site.name}:{NAMESPACE}"

    def visible_runs(self, request: HttpRequest) -> models.QuerySet[Instance] | None:
        return visible_runs(self.site, request)

    def visible_schedules(self, request: HttpRequest) -> models.QuerySet[Schedule]:
        schedules: Any = self.site._registry.get(Schedule)  # noqa: SLF001 - 5.2 has no other way
        return super().visible_schedules(request) if schedules is None else schedules.get_queryset(request)

    def is_signed_in(self, request: HttpRequest) -> bool:
        return self.site.has_permission(request)

    def sign_in(self, next_page: str) -> HttpResponse:
        return redirect_to_login(next_page, reverse(f"{self.site_name}:login"))

    def shows_admin(self, request: HttpRequest) -> bool:
        return True

    def subject_address(self, request: HttpRequest, run: Instance) -> str:
        kind = run.subject_type
        model = None if kind is None else kind.model_class()
        if kind is None or model is None or not self.site.is_registered(model):
            return ""
        if not self.site._registry[model].has_view_permission(request):  # noqa: SLF001 - 5.2 has no other way
            return ""
        return self._address_or_empty(f"{kind.app_label}_{kind.model}_change", quote(run.subject_id or ""))

    def context(self, request: HttpRequest) -> dict[str, Any]:
        request.current_app = self.site_name
        return {
            **super().context(request),
            "home_address": reverse(f"{self.site_name}:index"),
            "theme_script": static("admin/js/theme.js"),
        }


class ReadOnlyAdmin(admin.ModelAdmin, Generic[M]):  # type: ignore[type-arg] # generic in the stubs only
    """Base class of admin pages that show rows but offer no form to add, change or delete them.

    Only workers and operations write these rows.
    """

    actions: Any = None
    show_full_result_count = False
    # Each facet is a count over the whole table.
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200

    class Media:
        css = {"all": ("temporalex_django/admin.css",)}

    def __init__(self, model: type[M], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        if self.fields:
            self.fields = [  # type: ignore[misc] # the stubs declare a class variable
                tuple(map(self._time_field, row)) if isinstance(row, (list, tuple)) else self._time_field(row)
                for row in self.fields
            ]

    def _time_field(self, name: str) -> str:
        """Return the name of a method that formats a time as lists do, unlike Django; other names stay."""
        model_field = {column.name: column for column in self.opts.fields}.get(name)
        if not isinstance(model_field, models.DateTimeField):
            return name

        @admin.display(description=model_field.verbose_name, empty_value="–")
        def time_text(row: M) -> SafeString | None:
            at = getattr(row, name)
            return None if at is None else format_time(at)

        setattr(self, f"{name}_text", time_text)
        return f"{name}_text"

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[M]:
        return super().get_queryset(request).using(storage().alias)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Return True if the query parameter ``lookup`` in the URL of the list belongs to a filter of the list.

        Other lookups are refused: with them, users could guess the content of hidden columns letter by letter.
        """
        is_own_lookup = any(lookup == name or lookup.startswith(f"{name}__") for name in self._filter_names(request))
        return is_own_lookup and bool(super().lookup_allowed(lookup, value, request))

    def _filter_names(self, request: HttpRequest) -> list[str]:
        """Return the parameters in the URL of the list that belong to its filters."""
        names = [self.date_hierarchy]
        for entry in self.get_list_filter(request):
            list_filter: Any = entry[0] if isinstance(entry, (list, tuple)) else entry
            names += (
                [list_filter]
                if isinstance(list_filter, str)
                else getattr(list_filter, "parameters", (getattr(list_filter, "parameter_name", None),))
            )
        return [str(name) for name in names if name]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, or a page about the first parameter in the URL that the list does not have."""
        unknown_parameter = self.find_unknown_parameter(request)
        if unknown_parameter is None or not self.has_view_permission(request):
            return super().changelist_view(request, extra_context)
        return self.unknown_parameter_page(request, unknown_parameter, request.GET)

    def find_unknown_parameter(self, request: HttpRequest) -> str | None:
        """Return the first parameter in the URL by which the list cannot be filtered, or None."""
        for name, values in request.GET.lists():
            if name == TO_FIELD_VAR:
                is_own_parameter = all(self.to_field_allowed(request, value) for value in values)
            else:
                is_own_parameter = name in _LIST_PARAMETERS or all(
                    self.lookup_allowed(name, value, request) for value in values
                )
            if not is_own_parameter:
                return name
        return None

    def unknown_parameter_page(self, request: HttpRequest, parameter: str, query: QueryDict) -> HttpResponse:
        """Return the page, with status 400, that says which parameter of the list's URL is unknown.

        The page names the parameters that the list has, and links to the list with the rest of ``query``.
        """
        rest = query.copy()
        rest.pop(parameter, None)
        site, opts = self.admin_site, self.opts
        address = reverse(f"{site.name}:{opts.app_label}_{opts.model_name}_changelist")
        searches = [SEARCH_VAR] if self.get_search_fields(request) else []
        context = {
            **site.each_context(request),
            "title": _("Unknown parameter"),
            "opts": opts,
            "media": self.media,
            "parameter": parameter,
            "accepted": sorted({*self._filter_names(request), *searches}),
            "back": f"{address}?{rest.urlencode()}" if rest else address,
        }
        request.current_app = site.name
        return TemplateResponse(request, "admin/temporalex_django/unknown_parameter.html", context, status=400)

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False
